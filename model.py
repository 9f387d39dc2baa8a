"""
One Transformer, three ways to read a sentence.

This file has only the network. objectives.py makes slots of a text and computes the loss, and
samplers.py writes.

Every mode trains p(token | some of the other tokens). A *slot* is one index of the sequence that
the network reads. It holds a token, knows that token's position (key_pos), and predicts the token
at another position or the same one (target_pos). The modes are the first three rows of this table;
the last is mdlm in blocks, when it writes:

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
above the true value. The exception is the objective masked_ce, which is no bound: see `pool`. These
functions are in objectives.py, all but `slots_seen`.

Shapes: B rows (batch), T positions (block_size), S slots, C = n_embd, H = n_head, D = C / H,
V = vocab_size, n slots that are attended to. Where only some slots are predicted, these are P in
each of G groups of rows. N is the length of a block.

    python model.py          prints the table of sizes and FLOPs per token
"""
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    l2r_fraction: float | None = flag(
        None, "aogpt: fraction of rows trained from left to right (0.1, and with infill 0.5)",
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
        defaults = vars(Config) | {"l2r_fraction": 0.5 if self.orders == "infill" else 0.1}
        if self.l2r_fraction is None:
            self.l2r_fraction = defaults["l2r_fraction"]
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
            value = getattr(self, name)
            if self.mode not in modes and value != defaults[name]:
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


# Orders are a dial between left to right and random: blocks of N tokens, one block after another,
# each in random order inside. N = 1 is left to right, and one block of all tokens is random. infill
# goes from left to right too, but what it has to fill in comes last.

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

    A slot sees all slots of its own stage, and those of earlier stages if these are odd: later
    stages may read an odd stage, and none may read an even one. With blocks BOS has stage -1, which
    is odd and the earliest, so all see it. When a model in blocks writes, all stages are odd. In
    training each block is there twice, known in an odd stage, and with [MASK]s in an even one. The
    stages of the slots are

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
    Without it a slot sees itself and those before it if `causal` is true, and otherwise all slots.
    Returns (B, H, S, D)."""
    causal = causal and visible is None
    training_on_cpu = q.requires_grad and q.device.type == "cpu"
    if not (training_on_cpu and q.dtype == torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v, visible, is_causal=causal)
    # The same, written out, because on a CPU that function's backward pass is slow in bfloat16.
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
            # Under torch.autocast the new ones have another dtype than the cache.
            k = keys.scatter_(2, place, k.to(keys.dtype))[:, :, :n]             # (B, H, n, D)
            v = values.scatter_(2, place, v.to(values.dtype))[:, :, :n]         # (B, H, n, D)
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
    `pack_pairs` makes groups of two rows. Of the samplers those of mdlm make one group of all rows,
    and the others a group of each row."""
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
