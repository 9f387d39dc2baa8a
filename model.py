"""
One Transformer, three ways to read a sentence.

Every mode trains p(token | some of the other tokens). A *slot* is one index of the sequence that
the network reads. It holds a token, knows that token's position (key_pos), and predicts the token
at another position or the same one (target_pos). A mode is a row of this table:

           attention      the slots hold             key_pos            target_pos
    ar     causal         BOS, x_0 … x_{T-2}         -1, 0 … T-2        0 … T-1
    mdlm   bidirectional  BOS, x, some of it [MASK]  -1, 0 … T-1        -1, 0 … T-1
    aogpt  causal         BOS, x_σ(0) … x_σ(T-2)     -1, σ(0) … σ(T-2)  σ(0) … σ(T-1)
    mdlm*  by blocks      BOS, x, some of it [MASK]  -1, 0 … T-1        -1, 0 … T-1

    ar     autoregressive, that is, left to right: a GPT. Its loss is the exact negative
           log-likelihood.
    mdlm   masked diffusion (Sahoo et al. 2024, arXiv 2406.07524). Any number of the tokens, from
           one to all, are replaced by [MASK] and predicted from the visible ones. Its loss is an
           upper bound on the negative log-likelihood: see `nelbo_batch`. BOS predicts nothing here.
    aogpt  any-order GPT (Xue et al. 2025, arXiv 2506.19935). It predicts the tokens in an order σ,
           which is random. Its loss is an upper bound too; in one given order it is exact, for the
           model that uses only this order.
    mdlm*  block diffusion (Arriola et al. 2025, arXiv 2503.09573), which is --orders=blocks:N. A
           token sees its own block of N and those before it: see `slots_seen`. The same orders, N
           by N from left to right but random inside a block, are for aogpt too. So is
           --orders=infill, a GPT that fills in the middle: see `infill_order`.

So `ar` is `aogpt` in the order 0 … T-1; and `mdlm` is the same network without the causal mask,
in which each slot predicts its own position. BOS, which begins every window, is the end-of-text
token. Losses are nats per token of the same T tokens, so they can be compared; but a bound may lie
above the true value. The exception is the objective masked_ce, which is no bound: see `pool`.

Shapes: B rows (batch), T positions (block_size), S slots, C = n_embd, H = n_head, D = C / H,
V = vocab_size, n slots that are attended to. Where only some slots are predicted, these are P in
each of G groups of rows. N is the length of a block.

    python model.py          prints the table of sizes and FLOPs per token
"""
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from cli import InputError, check_flags, flag


# ---- Configuration -------------------------------------------------------------------------------

@dataclass
class Config:
    """the network, and what it learns"""
    mode: Literal["ar", "mdlm", "aogpt"] = flag(
        "ar", "left to right, masked diffusion, or any order")
    vocab_size: int = flag(50257, "tokens that can be predicted; the last is end-of-text", low=2)
    block_size: int = flag(512, "T, the tokens in a window", low=1)
    n_layer: int = flag(12, "Transformer blocks", low=1)
    n_head: int = flag(12, "attention heads", low=1)
    n_embd: int = flag(768, "C, the width of the residual stream", low=2)
    n_hidden: int = flag(2048, "width of the SwiGLU layer", low=1)
    tie_head: bool = flag(True, "use the embedding matrix as the output head too")
    time_embedding: Literal["none", "add"] = flag(
        "none", "mdlm: tell the network how much is masked")
    objective: Literal["nelbo", "masked_ce"] = flag(
        "nelbo", "mdlm: the bound, or a plain mean over all masked tokens")
    schedule: Literal["uniform", "cosine"] = flag(
        "uniform", "mdlm: distribution of the share masked; nelbo needs uniform")
    orders: str = flag(
        "random", "mdlm, aogpt: tokens become known in random order, left_to_right, or blocks:N, "
        "which are N tokens in random order, then the next N; aogpt: infill, a span last")
    l2r_fraction: float = flag(
        0.1, "aogpt: fraction of rows trained from left to right; 0.5 if infill is asked for",
        low=0, high=1)
    dropout: float = flag(
        0.0, "share of what each layer adds that training drops", low=0, high=1)
    token_noise: float = flag(
        0.0, "share of the tokens read in training that are replaced by random ones", low=0, high=1)
    target_embedding: bool = flag(True, "add an embedding of the position that a slot predicts")
    target_rotation: bool = flag(
        True, "turn queries by the position they predict; false: by the one they hold")
    init: Literal["scaled", "paper"] = flag(
        "scaled", "initial weights by number of inputs, or as PyTorch has them")
    shared_init: bool = flag(True, "start all embeddings around one common vector, not around zero")

    def __post_init__(self):
        """Raises InputError, which names the field and says what it may be."""
        check_flags(self)
        if self.n_embd % (2 * self.n_head):
            nearest = max(1, self.n_embd // (2 * self.n_head)) * 2 * self.n_head
            raise InputError(f"--n_embd={self.n_embd} over --n_head={self.n_head} must be an even "
                             f"number; try --n_embd={nearest}")
        if self.orders == "infill" and self.mode != "aogpt":
            raise InputError("--orders=infill is for --mode=aogpt; mdlm with --orders=random fills "
                             "blanks as it is")
        belongs_to = {"time_embedding": ["mdlm"], "objective": ["mdlm"], "schedule": ["mdlm"],
                      "l2r_fraction": ["aogpt"], "orders": ["mdlm", "aogpt"]}
        for name, modes in belongs_to.items():
            value, default = getattr(self, name), getattr(Config, name)
            if self.mode not in modes and value != default:
                raise InputError(f"--{name}={value} is for --mode={' or '.join(modes)}, "
                                 f"not --mode={self.mode}")
        self.block_length = block_length(self.orders, self.block_size)
        self.in_blocks = self.mode == "mdlm" and self.block_length < self.block_size
        one_share = self.time_embedding == "add" or self.schedule == "cosine"
        if self.in_blocks and one_share:
            raise InputError(f"--orders={self.orders} needs --schedule=uniform and "
                             "--time_embedding=none: each block has a masked share of its own")
        if self.objective == "nelbo" and self.schedule == "cosine":
            raise InputError("--schedule=cosine needs --objective=masked_ce; the weights of nelbo "
                             "make a bound for the uniform schedule only")
        self.bos_id = self.vocab_size - 1
        self.mask_id = self.vocab_size          # [MASK] can be read, but never predicted
        # A GPU is faster if the number of rows of the embedding is a multiple of 64.
        self.padded_vocab = math.ceil((self.vocab_size + 1) / 64) * 64


# "The paper" is arXiv 2603.22075, which this project began with. This is how its mdlm differs from
# its ar. What both of them share, init=paper for example, is train.py's preset `paper`.
PAPER_MDLM = dict(tie_head=False, time_embedding="add", objective="masked_ce", schedule="cosine")


# ---- Orders --------------------------------------------------------------------------------------
# An order is a dial between left to right and random: blocks of N tokens, one block after another,
# each in random order inside. N = 1 is left to right, and one block of all tokens is random.

def block_length(orders: str, T: int) -> int:
    """N of the orders of a text of T tokens. Raises InputError for what names no orders."""
    named = {"random": T, "left_to_right": 1, "infill": 1}
    if orders in named:
        return named[orders]
    word, _, number = orders.partition(":")
    if word != "blocks" or not number.isdecimal() or int(number) == 0:
        raise InputError(f"an order must be random, left_to_right, infill, or blocks:N with N of "
                         f"1 or more, not {orders:.40}")
    return min(int(number), T)


def reveal_times(orders: str, u: Tensor) -> Tensor:
    """When each position becomes known (B, T): block b has the times from b to b+1.

    u (B, T) are uniform numbers in [0, 1). Sorted by their times, positions are in such an order.
    """
    T = u.size(1)
    position = torch.arange(T, device=u.device)
    block = position // block_length(orders, T)
    return block + u.double()       # a float32 could round a time up to the next block's


def infill_order(hidden: Tensor, before: Tensor) -> Tensor:
    """Left to right, but the places where `hidden` (B, T) is true come last: an order (B, T+m).

    `before` (B, m) lists the last place ahead of each gap. It comes a second time in the order,
    just ahead of the gap. m is 1, or 0 if there is no gap to fill. For T = 6, where the places 2
    and 3 are hidden, `before` is [1], and the order is

        0  1  4  5  1  2  3

    So the slot that predicts place 2 holds the token of place 1, as it does from left to right. If
    it held that of place 5, a GPT would hardly learn to jump. Fill-in-the-middle as published marks
    the jump by a special token (Bavarian et al. 2022, arXiv 2207.14255)."""
    place = torch.arange(hidden.size(1), device=hidden.device)                  # (T,)
    positions = torch.cat([place.expand_as(hidden), before], dim=1)             # (B, T+m)
    # What is not hidden has the time 0, and the stable sort leaves it from left to right. A hidden
    # place has its number as its time. A place that comes again has its number plus a half.
    times = torch.cat([place * hidden, before + 0.5], dim=1)                    # (B, T+m)
    return positions.gather(1, times.argsort(dim=1, stable=True))


# ---- The Transformer: rotary positions, attention, SwiGLU, blocks --------------------------------

def rotary_table(block_size: int, head_dim: int) -> Tensor:
    """Cosine and sine of position · frequency, for the positions -1 … T-1: (2, T+1, D/2).

    Position p stands in row p+1, because BOS has position -1."""
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)   # (D/2,)
    position = torch.arange(-1, block_size).float()                             # (T+1,)
    angle = torch.outer(position, frequency)                                    # (T+1, D/2)
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv 2104.09864), convention of two halves.

    x (B, H, S, D); rotary (2, 1 or B, 1, S, D/2) has the cosine and the sine for each slot."""
    cos, sin = rotary
    x1, x2 = x.chunk(2, dim=-1)                                                # (B, H, S, D/2) each
    y1 = x1 * cos - x2 * sin
    y2 = x1 * sin + x2 * cos
    return torch.cat([y1, y2], dim=-1).to(x.dtype)


def slots_seen(stage: Tensor) -> Tensor:
    """Which slots (columns) each slot (rows) sees, by the slots' stages (1, S): (1, S, S).

    A slot sees all slots of its own stage, and those of earlier stages if these are odd. An odd
    stage is for tokens that later stages may read. An even stage is for a copy of a block that has
    [MASK]s in it, which no other stage may read. With blocks BOS has stage -1, which is odd and the
    earliest, so all see it. The stages of the slots are

        ar, aogpt                 -1  1  3  5  7           causal
        mdlm                       0  0  0  0  0           bidirectional
        mdlm in blocks of 2       -1  1  1  3  3           bidirectional in a block, else causal
        the same, to train it     -1  1  1  0  0  2  2     see `two_streams`

    The first two are here for comparison. No stages are computed for them, because `attend` has a
    flag for causal attention and needs nothing for full attention, and both are faster so."""
    own = stage[:, :, None]                                                     # (1, S, 1)
    other = stage[:, None, :]                                                   # (1, 1, S)
    known = other % 2 == 1
    return (other == own) | (known & (other < own))


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool) -> Tensor:
    """softmax(q kᵀ / √D) v: each query averages the values of the slots that it sees.

    q (B, H, S, D); k and v (B, H, n, D). visible (B or 1, 1, S, n) is true where a slot is seen.
    Only without it `causal` counts: then a slot sees itself and those before it, else all slots.
    Returns (B, H, S, D)."""
    causal = causal and visible is None
    training_on_cpu = q.requires_grad and q.device.type == "cpu"
    if not training_on_cpu:
        return F.scaled_dot_product_attention(q, k, v, visible, is_causal=causal)
    # The same, written out, because on a CPU the backward pass of that function is slow.
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))                    # (B, H, S, n)
    if causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        visible = ones.tril()
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(dim=-1).to(v.dtype) @ v


class Cache(NamedTuple):
    """Room for the keys and values of `size` slots, which samplers fill call by call."""
    keys_values: list       # for each layer (keys, values), each (B, H, size, D)
    slots: Tensor           # (B, S) where among the `size` those of the S slots of this call go
    visible: Tensor         # (B or 1, 1, S, n) which of the first n each slot of this call sees

    def of_layer(self, i: int):
        """The same with the (keys, values) of layer i alone."""
        return self._replace(keys_values=self.keys_values[i])


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.n_head = config.n_head
        self.causal = config.mode != "mdlm"
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x, rotary_q, rotary_k, visible=None, layer_cache=None):
        """x (B, S, C), rotary_q and rotary_k as in `rotate`, visible as in `attend`: (B, S, C)."""
        B, S, C = x.shape
        qkv = self.qkv(x).view(B, S, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                                    # (B, H, S, D) each
        q = rotate(q, rotary_q)
        k = rotate(k, rotary_k)
        if layer_cache is not None:     # write into the cache, and attend to what it has
            (keys, values), slots, visible = layer_cache
            n = visible.size(-1)
            place = slots[:, None, :, None].expand_as(k)                        # (B, H, S, D)
            k = keys.scatter_(2, place, k)[:, :, :n]                            # (B, H, n, D)
            v = values.scatter_(2, place, v)[:, :, :n]                          # (B, H, n, D)
        y = attend(q, k, v, visible, self.causal)                               # (B, H, S, D)
        y = y.transpose(1, 2).reshape(B, S, C)
        return self.proj(y)


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202): proj(silu(gate(x)) · up(x))."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.n_hidden, bias=False)
        self.proj = nn.Linear(config.n_hidden, config.n_embd, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)                          # (B, S, n_hidden) each
        return self.proj(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.norm1 = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, rotary_q, rotary_k, visible=None, layer_cache=None, select=None):
        """x (B, S, C). select, for the last block, lists the slots that its MLP is needed for."""
        attended = self.attention(self.norm1(x), rotary_q, rotary_k, visible, layer_cache)
        x = x + self.dropout(attended)                                          # (B, S, C)
        if select is not None:
            x = take_slots(x, select)                                           # (G, P, C)
        return x + self.dropout(self.mlp(self.norm2(x)))


def take_slots(x: Tensor, select: Tensor) -> Tensor:
    """The slots of x (B, S, C) that are listed in select (G, P): (G, P, C).

    The B rows are taken in G groups of equally many. Line g of select lists P slots of group g, and
    numbers them as if the rows of the group were one long row: slot s of its second row is S + s.
    `pack_pairs` makes groups of two rows, and sample.py one group of all rows."""
    G, C = len(select), x.size(-1)
    x = x.view(G, -1, C)                                                        # (G, B/G · S, C)
    index = select[:, :, None].expand(-1, -1, C)                                # (G, P, C)
    return x.gather(1, index)


class TimeEmbedding(nn.Module):
    """How much is masked, as a number t in [0, 1] for each row (B,), as a vector (B, 1, C)."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, t):
        half = self.linear.in_features // 2
        index = torch.arange(half, device=t.device, dtype=t.dtype)              # (C/2,)
        angle = t[:, None, None] * 10000.0 ** (-index / half)                   # (B, 1, C/2)
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1)                   # (B, 1, C)
        return F.silu(self.linear(waves.to(self.linear.weight.dtype)))


class Transformer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.padded_vocab, config.n_embd)
        if config.target_embedding:
            self.embed_target = nn.Embedding(config.block_size, config.n_embd)
        if config.time_embedding == "add":
            self.embed_time = TimeEmbedding(config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.head = nn.Linear(config.n_embd, config.padded_vocab, bias=False)
        if config.tie_head:
            self.head.weight = self.embed.weight
        rotary = rotary_table(config.block_size, config.n_embd // config.n_head)
        self.register_buffer("rotary", rotary, persistent=False)
        self.init_weights()

    def forward(self, tokens, key_pos, target_pos, t=None, select=None, cache=None,
                stage=None):
        """Logits of the tokens at target_pos.

        tokens      (B, S) what the slots hold
        key_pos, target_pos     (B, S), or (1, S) for all rows alike: see the table at the top
        t           (B,) how much is masked, for time_embedding=add
        select      (G, P) predict only these slots, see `take_slots`
        cache       a Cache, to see slots of earlier calls too
        stage       (1, S) who sees whom, see `slots_seen`; without it and cache, as the mode does
        returns     (B, S, V), or with select (G, P, V)"""
        x = self.embed(tokens)                                                  # (B, S, C)
        if self.config.target_embedding:
            x = x + self.embed_target(target_pos.clamp(min=0))      # any will do for mdlm's BOS
        if self.config.time_embedding == "add":
            x = x + self.embed_time(t)                                          # (B, S, C)

        # An order is random in aogpt, so a slot must be told what to predict. The target embedding
        # tells it the position. And keys turn by where a token stands, but queries by what they
        # predict, so each head sees the distance from the one to the other.
        rotary_k = self.rotary[:, key_pos + 1].unsqueeze(2)                 # (2, B or 1, 1, S, D/2)
        rotary_q = rotary_k
        if self.config.target_rotation:
            rotary_q = self.rotary[:, target_pos + 1].unsqueeze(2)          # (2, B or 1, 1, S, D/2)

        visible = None
        if stage is not None:
            visible = slots_seen(stage)[:, None]                            # (1, 1, S, S)
        for i, block in enumerate(self.blocks):
            is_last = i == len(self.blocks) - 1
            layer_cache = cache and cache.of_layer(i)
            x = block(x, rotary_q, rotary_k, visible, layer_cache, select if is_last else None)

        x = self.norm(x)                                                    # (B, S, C) or (G, P, C)
        V = self.config.vocab_size
        if x.is_cuda:       # a GPU is faster with the padded rows, a CPU without
            return F.linear(x, self.head.weight)[..., :V]
        return F.linear(x, self.head.weight[:V])

    def init_weights(self):
        """Normal weights of standard deviation 1/√(row length) keep outputs as large as inputs.

        GPT-2's 0.02 does that for rows of 2,500 numbers; in narrow models outputs would shrink.
        With init=paper all is left as PyTorch has it: embeddings are N(0, 1), so the logits of a
        tied head begin with a standard deviation of √C. With shared_init one common vector is
        added to all embeddings. A tied head then adds the same to all logits, and predictions stay.
        But all keys of the first layer have a part in common, so by rotary embedding a head can
        tell slots by their distance, whatever they hold. mdlm so learns sooner
        (results/paper.md)."""
        row_length = 1
        if self.config.init == "scaled":
            row_length = self.config.n_embd
            for name, p in self.named_parameters():
                self.init_weight(name, p)
        if self.config.shared_init:
            common = torch.randn(self.config.n_embd) / math.sqrt(row_length)        # (C,)
            self.embed.weight.data.add_(common)

    def init_weight(self, name: str, p: Tensor):
        if p.dim() == 1:
            nn.init.constant_(p, 1.0 if "norm" in name else 0.0)    # a gain, or a bias
        elif name.startswith("embed_target"):
            nn.init.zeros_(p)                       # at first it changes nothing
        elif name.startswith("embed_time"):
            nn.init.normal_(p, std=1 / p.size(1))   # it begins shorter than the token's embedding
        elif name.endswith("proj.weight"):
            # 2 · n_layer of these add to the residual stream, so each is smaller, as in GPT-2.
            nn.init.normal_(p, std=1 / math.sqrt(p.size(1) * 2 * self.config.n_layer))
        else:
            nn.init.normal_(p, std=1 / math.sqrt(p.size(1)))


def new_keys_values(model: Transformer, rows: int, size: int) -> list:
    """An empty Cache's keys_values."""
    config, weight = model.config, model.head.weight
    shape = rows, config.n_head, size, config.n_embd // config.n_head
    return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in range(config.n_layer)]


# ---- The objectives: what each slot reads, what it should predict, and how much that counts ------
# Each objective turns tokens x (B, T) into a Batch. The loss is the same line for all of them: the
# mean over rows of Σ weight · −log p(target), a sum over the slots of a row. For training x is
# on the CPU, and so are the random numbers.

class Batch(NamedTuple):
    """B rows of S slots. S is T, or T+1 with infill; for mdlm T+1, or more after `two_streams`.

    `pack_pairs` makes a select (B/2, P); then targets and weight are (B/2, P) too."""
    tokens: Tensor                  # (B, S) what the slots hold
    key_pos: Tensor                 # (B, S) position of the token held
    target_pos: Tensor              # (B, S) position of the token predicted
    targets: Tensor                 # (B, S) the tokens to predict
    weight: Tensor                  # (B, S) how much each prediction counts
    t: Tensor | None = None         # (B,) how much is masked; mdlm only
    select: Tensor | None = None    # (B/2, P) the slots of each pair of rows that predict something
    stage: Tensor | None = None     # (1, S) which slots each slot sees; mdlm in blocks only

    def split(self, at_once: int):
        """Parts of the batch with so many losses each, one a row or pair, or fewer in the last."""
        count = len(self.targets)
        parts = []
        for first in range(0, count, at_once):
            part = []
            for f in self:
                if f is not None and len(f) > 1:        # else it is the same for all rows
                    rows = len(f) // count      # of this field, for each loss
                    f = f[first * rows:(first + at_once) * rows]
                part.append(f)
            parts.append(Batch(*part))
        return parts

    def to(self, device):
        return Batch(*(f if f is None else f.to(device) for f in self))


def weighted_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Σ weight · −log p(target) of each row (B,), or of each pair (B/2,) after `pack_pairs`.

    Their mean is the loss in nats per token; with masked_ce in nats per masked token. The shapes
    below are those of rows; for (B, S) pairs have (B/2, P)."""
    logits = model(batch.tokens, batch.key_pos, batch.target_pos, batch.t, batch.select,
                   stage=batch.stage)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))        # (B, S, V)
    target_logit = logits.gather(-1, batch.targets[:, :, None])[:, :, 0]        # (B, S)
    nll = logits.logsumexp(dim=-1) - target_logit               # −log softmax(logits)[target]
    return (nll * batch.weight).sum(dim=1)


def order_batch(config: Config, x: Tensor, order: Tensor) -> Batch:
    """The chain rule in an order σ (B, S): slot j predicts x_σ(j) from those before it.

        −log p(x) / T  =  (1/T) Σ_j −log p(x_σ(j) | x_σ(0) … x_σ(j-1))

    S is T, or more if the order has positions twice, see `infill_order`. The second time counts
    nothing."""
    targets = x.gather(1, order)                                                # (B, S)
    tokens = F.pad(targets[:, :-1], (1, 0), value=config.bos_id)                # (B, S)
    key_pos = F.pad(order[:, :-1], (1, 0), value=-1)                            # (B, S)
    weight = torch.full(order.shape, 1 / x.size(1), device=x.device)            # (B, S)
    if order.size(1) > x.size(1):
        same = order[:, :, None] == order[:, None, :]                           # (B, S, S)
        predicted_before = same.tril(diagonal=-1).any(dim=2)                    # (B, S)
        weight = weight.masked_fill(predicted_before, 0)
    return Batch(tokens, key_pos, order, targets, weight)


def draw_orders(config: Config, x: Tensor, generator, l2r_fraction: float) -> Tensor:
    """The orders (B, T) in which the rows of x (B, T) are predicted, or (B, T+1) with infill.

    That of ar is 0 … T-1. Those of aogpt are drawn as config.orders says, but l2r_fraction of
    them are 0 … T-1 too. If that is 0, the mean loss of aogpt is an upper bound on −log p(x)/T,
    where p(x) is the mean over all such orders of the probability that each gives to x: −log of a
    mean is at most the mean of −log (Jensen's inequality).

    With infill one span of a row comes last. Spans of 1, of 2 to 3, of 4 to 7 … tokens are
    equally frequent, and it begins at any place but the first. In the rows that are left to right
    nothing is hidden. But all rows of a batch have T+1 slots, so there the last one repeats a
    position, and `order_batch` gives it no weight."""
    left_to_right = torch.arange(x.size(1)).expand_as(x)                        # (B, T)
    if config.mode == "ar" or l2r_fraction == 1:
        return left_to_right
    if config.orders == "infill":
        T = x.size(1)
        u = torch.rand(3, len(x), 1, generator=generator)
        length = (T ** u[0]).long().clamp(max=T - 1)                            # (B, 1)
        start = 1 + (u[1] * (T - length)).long()                                # (B, 1)
        inside = (left_to_right >= start) & (left_to_right < start + length)    # (B, T)
        return infill_order(inside & (u[2] >= l2r_fraction), before=start - 1)
    u = torch.rand(x.shape, generator=generator)                                # (B, T)
    order = reveal_times(config.orders, u).argsort(dim=1)                       # (B, T)
    chosen = torch.rand(len(x), 1, generator=generator) < l2r_fraction          # (B, 1)
    return torch.where(chosen, left_to_right, order)


def masking_batch(config: Config, x: Tensor, masked: Tensor, t: Tensor | None = None) -> Batch:
    """Predict the masked tokens of x (B, L) from the others: weight 1 where masked (B, L) is true.

    The network has seen whole windows in training, so what lies beyond x is masked too, with weight
    0. Slot 0 holds BOS, as in the other modes. t (B,) is what time_embedding=add tells the network;
    by default it comes from the share masked, including what lies beyond. Raises InputError."""
    B, L = x.shape
    beyond = config.block_size - L
    if beyond < 0:
        raise InputError(f"a text of {L} tokens is longer than the window, {config.block_size}")
    targets = F.pad(x, (1, beyond), value=config.bos_id)                        # (B, T+1)
    hidden = torch.ones_like(targets, dtype=torch.bool)                         # (B, T+1)
    hidden[:, 0] = False
    hidden[:, 1:L + 1] = masked
    tokens = targets.masked_fill(hidden, config.mask_id)                        # (B, T+1)
    position = torch.arange(-1, config.block_size, device=x.device).expand_as(tokens)
    weight = F.pad(masked, (1, beyond)).float()                                 # (B, T+1)
    if t is None:
        t = timestep(config, hidden[:, 1:].float().mean(dim=1))                 # (B,)
    stage = None
    if config.in_blocks:        # a slot sees its own block and those before; BOS is block -1
        block = position[:1].div(config.block_length, rounding_mode="floor")    # (1, T+1)
        stage = 2 * block + 1
    return Batch(tokens, position, position, targets, weight, t, stage=stage)


def timestep(config: Config, ratio: Tensor) -> Tensor:
    """The t at which training masks this ratio of the tokens: the inverse of the schedule."""
    if config.schedule == "cosine":
        return torch.acos((1 - ratio).sqrt()) * 2 / math.pi
    return ratio


def nelbo_batch(config: Config, x: Tensor, generator) -> Batch:
    """The bound of masked diffusion: mask a random set M of k of T tokens, k uniform on 1 … T.

        −log p(x) / T  ≤  E_k E_M [ (1/k) Σ_{i in M} −log p(x_i | x outside M) ]

    So the bound is *the mean over rows of each row's own mean over its masked tokens*.

    Why is that a bound? Predict the tokens one by one in a random order. When k of them are left,
    these are a random set M, and each of them is equally likely to be the next. So that step costs
    on average, over orders, E_M [ (1/k) Σ_{i in M} −log p(x_i | x outside M) ]. An order has one
    step for each k = 1 … T, so the mean over k of these costs is 1/T of what an order costs on
    average. And it is a bound because p(x) is the mean over orders, as in `draw_orders`.

    The literature masks each token with a chance t that is uniform on (0, 1), and has a weight 1/t
    where we have 1/k; that is the same bound in another parametrisation. The mean over all masked
    tokens of a batch is something else: see `pool`."""
    B, T = x.shape
    # torch.randint(1, T + 1, (B, 1)) would do for k; `mask_counts` makes the bound less noisy.
    k = mask_counts(B, torch.tensor([T]), generator)                            # (B, 1)
    # The argsort of random numbers is a random permutation, so it can serve as their ranks.
    rank = torch.rand(B, T, generator=generator).argsort(dim=1)                 # (B, T)
    masked = rank < k       # exactly k in each row, at random places
    batch = masking_batch(config, x, masked)
    return batch._replace(weight=batch.weight / k)


def one_block_batch(config: Config, x: Tensor, generator, known: int = 0) -> Batch:
    """The bound of block diffusion in its plainest form: each row predicts k tokens of one block b.

        −log p(x)/T ≤ E_b E_k E_M [(1/k) Σ_{i in M} −log p(x_i | b outside M, blocks before)]

    For each block that is the bound of `nelbo_batch`. b is the block of a random token, because a
    shorter last block counts less. Later blocks are all [MASK], and not seen. Where the first
    `known` tokens are given, it is the bound on −log p of the others, per token of these.
    Training takes all blocks at once: see `all_blocks_batch`."""
    B, T = x.shape
    place = torch.arange(T)
    block = place // config.block_length                            # (T,) 0 if orders are random
    some_token = known + (spread(B, generator) * (T - known)).long()            # (B,)
    b = block[some_token][:, None]                                              # (B, 1)
    here = (block == b) & (place >= known)                                      # (B, T)
    size = here.sum(dim=1, keepdim=True)                                        # (B, 1)
    k = 1 + (spread(B, generator)[:, None] * size).long()                       # (B, 1)
    # Each place of the block draws a number below 1, and all others have 1, so they rank last. Here
    # it must be true ranks, which are the argsort of the argsort.
    lot = torch.rand(B, T, generator=generator).masked_fill(~here, 1)
    rank = lot.argsort(dim=1).argsort(dim=1)                                    # (B, T)
    masked = here & (rank < k)
    batch = masking_batch(config, x, masked | (block > b))
    weight = F.pad(masked / k, (1, config.block_size - T))                      # (B, T+1)
    return batch._replace(weight=weight)


def paper_batch(config: Config, x: Tensor, generator) -> Batch:
    """The paper's masks (arXiv 2603.22075), and its mean over all masked tokens of the batch.

    For each row t is uniform on (0, 1); each token is masked with the chance 1 − cos²(πt/2)."""
    t = torch.rand(len(x), generator=generator)                                 # (B,)
    ratio = 1 - torch.cos(math.pi / 2 * t) ** 2                                 # (B,)
    masked = torch.rand(x.shape, generator=generator) < ratio[:, None]          # (B, T)
    told = timestep(config, ratio)      # t itself, if the network was trained with this schedule
    batch = masking_batch(config, x, masked, told)
    return pool(two_streams(config, batch))


def pool(batch: Batch) -> Batch:
    """The same predictions with equal weights. The loss, masked_ce, is then their plain mean.

    That is no bound: a row counts the more, the more of its tokens are masked."""
    predicted = (batch.weight > 0).float()                                      # (B, S)
    predictions_of_row = predicted.sum().clamp(min=1) / len(predicted)          # on average
    return batch._replace(weight=predicted / predictions_of_row)


def training_batch(config: Config, x: Tensor, generator) -> Batch:
    """What the configured mode and objective train on, given the tokens x (B, T)."""
    if config.mode != "mdlm":
        order = draw_orders(config, x, generator, config.l2r_fraction)
        batch = order_batch(config, x, order)
    elif config.schedule == "cosine":       # here pairs have unequal numbers of predictions
        batch = paper_batch(config, x, generator)
    elif config.objective == "masked_ce":
        batch = pack_pairs(pool(bound_batch(config, x, generator)))
    else:
        batch = pack_pairs(bound_batch(config, x, generator))
    if config.token_noise:
        batch = add_noise(config, batch, generator)
    return batch


def bound_batch(config: Config, x: Tensor, generator) -> Batch:
    """The bound of mdlm, in blocks or without."""
    if config.in_blocks:
        return all_blocks_batch(config, x, generator)
    return nelbo_batch(config, x, generator)


def evaluation_batch(config: Config, x: Tensor, generator, left_to_right=False) -> Batch:
    """One loss for each row of x (B, T), −log p(row) / T, whatever the objective of training is.

    It is exact for `ar`, and for `aogpt` from left to right. Else it is an unbiased estimate of the
    upper bound: for `aogpt` from one random order, for `mdlm` from one pair of masks."""
    if config.mode == "mdlm":
        twice = x.repeat_interleave(2, dim=0)                                   # (2B, T)
        return pack_pairs(bound_batch(config, twice, generator))
    l2r_fraction = 1.0 if left_to_right else 0.0
    return order_batch(config, x, draw_orders(config, x, generator, l2r_fraction))


def add_noise(config: Config, batch: Batch, generator) -> Batch:
    """Some of the tokens that are read are replaced by random ones, but neither BOS nor [MASK]."""
    wrong = torch.rand(batch.tokens.shape, generator=generator) < config.token_noise
    wrong &= batch.tokens < config.bos_id       # BOS and [MASK] have the largest ids
    other = torch.randint(config.bos_id, batch.tokens.shape, generator=generator)
    return batch._replace(tokens=torch.where(wrong, other, batch.tokens))


def mask_generator(*seed: int) -> torch.Generator:
    """Random numbers for masks and orders, from one or more integers such as (seed, step).

    It lives on the CPU, so a run draws the same on every device, and after it was resumed."""
    state = np.random.SeedSequence(seed).generate_state(1)[0]
    return torch.Generator().manual_seed(int(state))


# ---- The same losses, less noisy and faster ------------------------------------------------------

def spread(n: int, generator) -> Tensor:
    """Uniform numbers (n,), one in each of n equal parts of [0, 1), in random order."""
    part = torch.randperm(n, generator=generator)
    u = (part + torch.rand(n, generator=generator)) / n
    return u.clamp(max=1 - 2 ** -24)        # a float32 may have been rounded up to 1


def mask_counts(B: int, size: Tensor, generator) -> Tensor:
    """How many tokens each row masks in each of M blocks, which have size (M,) tokens: k (B, M).

    Over all rows k is uniform on 1 … size. To lower the variance of the bound, rows 2p and 2p+1
    are a pair that masks k and size+1−k tokens, the smaller number first, and the k of all pairs
    are spread evenly. So k is not uniform for one given row. That does not bias the loss: in
    training rows come in random order, and in evaluation a pair is one row twice. B must be
    even."""
    M = len(size)
    u = spread(B // 2 * M, generator).view(-1, M) / 2                           # (B/2, M)
    k = 1 + (u * size).long()                                                   # (B/2, M)
    return torch.stack([k, size + 1 - k], dim=1).view(B, M)


def all_blocks_batch(config: Config, x: Tensor, generator) -> Batch:
    """The bound of `one_block_batch` for all blocks at once, each with a k and masks of its own.

    The mean over b, the block that is drawn there, is a sum over all blocks here."""
    B, T = x.shape
    block = torch.arange(T) // config.block_length                              # (T,)
    size = block.bincount()                         # (M,) how many tokens each of M blocks has
    k = mask_counts(B, size, generator)[:, block]   # (B, T) at each place the k of its block
    u = torch.rand(B, T, generator=generator)
    # The places of block 0 in random order, then those of block 1, and so on. Counted from the
    # beginning of their block they are 0, 1, … in random order, so they can serve as ranks in it.
    order = reveal_times(config.orders, u).argsort(dim=1)                       # (B, T)
    rank = order % config.block_length                                          # (B, T)
    batch = masking_batch(config, x, masked=rank < k)       # k in each block, at random places
    # size / T is the chance with which `one_block_batch` draws the block.
    batch.weight[:, 1:T + 1] *= size[block] / T / k
    return two_streams(config, batch)


def two_streams(config: Config, batch: Batch) -> Batch:
    """Each row twice over, so that a block with masks can see the blocks before it without theirs.

    A row gets BOS and all blocks but the last without masks, and then all blocks with their masks.
    The former predict nothing. For T = 4 and blocks of 2, where | is put between the parts:

        as it came      BOS  x_0  [M]  [M]  [M]
        returned        BOS  x_0  x_1 | x_0  [M] | [M]  [M]
        stage           -1    1    1     0    0     2    2

    Each masked slot sees what it sees in `one_block_batch`. Without blocks nothing changes."""
    if not config.in_blocks:
        return batch
    N, T = config.block_length, config.block_size
    clean = 1 + (T - 1) // N * N        # slots before the last block

    def one_row(first, second):
        return torch.cat([first[:, :clean], second[:, 1:]], dim=1)

    # S = clean + T slots, which is 2T−N+1 if N divides T.
    tokens = one_row(batch.targets, batch.tokens)                               # (B, S)
    position = one_row(batch.key_pos, batch.key_pos)
    targets = one_row(batch.targets, batch.targets)
    weight = one_row(torch.zeros_like(batch.weight), batch.weight)
    stage = one_row(batch.stage, batch.stage - 1)
    return Batch(tokens, position, position, targets, weight, batch.t, stage=stage)


def pack_pairs(batch: Batch) -> Batch:
    """The same loss from fewer predictions: last MLP and head run only on slots with a weight.

    No token moves. Rows 2p and 2p+1 become a pair, and `select` lists those of its slots that have
    a weight. Every pair must have equally many, P. It has, because `mask_counts` gives its rows k
    and T+1−k masked tokens, together T+1; with blocks, in each of them its length + 1. The
    loss of a pair is the mean of its rows' losses. With T = 6, and k = 2 and 5 masked tokens:

        row 2p       BOS   x_0  [M]  x_2  x_3  [M]  x_5         2 predictions, each of weight 1/2
        row 2p+1     BOS   [M]  [M]  [M]  x_3  [M]  [M]         5 predictions, each of weight 1/5
        select       of these 14 slots the 7 with [M]: 2, 5, 8, 9, 10, 12, 13
    """
    pairs = len(batch.tokens) // 2
    weight = batch.weight.view(pairs, -1)                                       # (B/2, 2S)
    select = weight.nonzero()[:, 1].view(pairs, -1)         # (B/2, P), as nonzero goes row by row
    targets = batch.targets.view(pairs, -1).gather(1, select)                   # (B/2, P)
    weight = weight.gather(1, select) / 2                                       # (B/2, P)
    return batch._replace(targets=targets, weight=weight, select=select)


@torch.no_grad()
def losses_in_parts(model: nn.Module, batch: Batch) -> Tensor:
    """`weighted_losses` without gradients, returned as float64 on the CPU.

    64 are computed at a time, or fewer, down to one, if 64 have more than 64 MB of logits."""
    logits_of_one = batch.targets.size(1) * model.config.vocab_size
    at_once = min(64, max(1, 2 ** 24 // logits_of_one))
    losses = []
    for part in batch.split(at_once):
        part = part.to(model.head.weight.device)
        losses.append(weighted_losses(model, part).cpu().double())
    return torch.cat(losses)


# ---- Sizes ---------------------------------------------------------------------------------------

def count_parameters(model: Transformer) -> int:
    """Trained numbers. Rows of embedding and head that only pad the vocabulary do not count."""
    config = model.config
    unused = config.padded_vocab - config.vocab_size
    if not config.tie_head:
        unused *= 2
    if config.mode == "mdlm":
        unused -= 1         # the embedding of [MASK] is used
    return sum(p.numel() for p in model.parameters()) - unused * config.n_embd


def flops_per_token(config: Config) -> float:
    """Matrix-product FLOPs of training on one token: 6 for each multiply-add of the forward pass.

    Attention reaches T slots, or on average half of them where it is causal. mdlm's last MLP and
    head run on T+1 of the 2T tokens of a pair, with schedule=cosine on all. In blocks of N, if N
    divides T, it has 2T−N slots, and predicts (N+1)·T/N of a pair. The T slots with masks reach
    (T+N)/2 slots on average; the others reach T/2, but are counted alike. Not counted are the
    optimizer, that mdlm's BOS makes 1/T more slots, and the extra slot of infill."""
    C, T, N = config.n_embd, config.block_size, config.block_length
    reach = (T + N) / 2 if config.mode == "mdlm" else T / 2
    attention = 4 * C * C + 2 * C * reach
    mlp = 3 * C * config.n_hidden
    head = C * config.vocab_size
    predicted = 1
    if config.mode == "mdlm" and config.schedule == "uniform":
        predicted = (N + 1) / (2 * N)
    slots = 2 - N / T if config.in_blocks else 1        # for each token
    first_layers = (config.n_layer - 1) * (attention + mlp)
    return 6 * (slots * (first_layers + attention) + predicted * (mlp + head))


def main():
    rows = [
        ("ar of the paper", Config("ar", target_embedding=False), ""),
        ("mdlm of the paper", Config("mdlm", target_embedding=False, **PAPER_MDLM),
         "+ an untied head (38.6M), timestep (0.6M), [MASK]"),
        ("ar", Config("ar"), "the paper's + target embedding (0.4M)"),
        ("mdlm", Config("mdlm"), "the same + [MASK]"),
        ("aogpt", Config("aogpt"), "the same as ar"),
    ]
    print("12 layers, width 768, T = 512, 50,257 words\n")
    print(f"{'':18}{'parameters':>12}  {'training MFLOP/token':>20}")
    for name, config, what in rows:
        with torch.device("meta"):      # which takes no memory
            parameters = count_parameters(Transformer(config))
        print(f"{name:18}{parameters:>12,}  {flops_per_token(config) / 1e6:>20.1f}  {what}")


if __name__ == "__main__":
    main()
