"""
One Transformer, three ways to read a sentence.

Every mode trains p(token | some of the other tokens). A *slot* holds a token, knows that token's position
(key_pos), and predicts the one at target_pos. A mode is a row of this table:

           attention      the slots hold             key_pos            target_pos     loss on
    ar     causal         BOS, x_0 … x_{T-2}         -1, 0 … T-2        0 … T-1        every slot
    mdlm   bidirectional  BOS, x, some of it [MASK]  -1, 0 … T-1        as key_pos     the masked slots
    aogpt  causal         BOS, x_σ(0) … x_σ(T-2)     -1, σ(0) … σ(T-2)  σ(0) … σ(T-1)  every slot

    ar     autoregressive, left to right; its loss is the exact negative log-likelihood
    mdlm   masked diffusion (Sahoo et al. 2024, arXiv 2406.07524); its loss is an upper bound (NELBO)
    aogpt  any-order GPT (Xue et al. 2025, arXiv 2506.19935), order σ random; a bound, exact for a fixed one

So `ar` is `aogpt` with the identity order, and `mdlm` is the same blocks without the causal mask. All losses
but masked_ce are nats per token of the same T tokens, so they can be compared. BOS is the end-of-text token.

Shapes: B rows (batch), T positions (block_size), S slots, C = n_embd, H = n_head, D = C / H, V = vocab_size.

    python model.py          prints the table of sizes and FLOPs per token
"""
import math
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

# ---- Configuration -----------------------------------------------------------------------------------------

@dataclass
class Config:
    """the network, and what it learns"""
    mode: Literal["ar", "mdlm", "aogpt"] = "ar"  # left to right, masked diffusion, or any order
    vocab_size: int = 50257         # tokens that can be predicted, end-of-text the last; [MASK] comes on top
    block_size: int = 512           # T, tokens in a window
    n_layer: int = 12               # Transformer blocks
    n_head: int = 12                # attention heads
    n_embd: int = 768               # width C of the residual stream
    n_hidden: int = 2048            # width of the SwiGLU layer
    tie_head: bool = True           # the output head is the embedding matrix
    time_embedding: Literal["none", "add"] = "none"  # mdlm: tell the network how much is masked
    objective: Literal["nelbo", "masked_ce"] = "nelbo"  # mdlm: bound, or mean over all masked tokens
    schedule: Literal["uniform", "cosine"] = "uniform"  # mdlm: law of the mask ratio (nelbo needs uniform)
    l2r_fraction: float = 0.1       # aogpt: fraction of rows trained in the left-to-right order
    dropout: float = 0.0            # share dropped of what each attention and MLP adds, in training
    token_noise: float = 0.0        # share of the tokens read that are replaced by random ones, in training
    target_embedding: bool = True   # tell each slot what position it predicts (rotary tells distances only)
    target_rotation: bool = True    # turn queries by the position they predict (false: by the one they hold)
    init: Literal["scaled", "paper"] = "scaled"     # weights by number of inputs; or PyTorch's, as the paper
    shared_init: bool = True        # embeddings start around one common vector (false: around zero)

    def __post_init__(self):
        """Raises ValueError, naming the field and what it may be."""
        for f in fields(self):
            value, choices = getattr(self, f.name), get_args(f.type)
            if choices and value not in choices:
                raise ValueError(f"{f.name} is {value!r}; choose one of {', '.join(choices)}")
            if f.type is int and value < 1:
                raise ValueError(f"{f.name} is {value}; it must be at least 1")
            if f.type is float and not 0 <= value <= 1:     # each is a share
                raise ValueError(f"{f.name} is {value}; it must lie in [0, 1]")
        if self.n_embd % (2 * self.n_head):
            near = max(1, self.n_embd // (2 * self.n_head)) * 2 * self.n_head
            raise ValueError(f"n_embd {self.n_embd} / n_head {self.n_head} must be even; try n_embd={near}")
        for_one = {"time_embedding": "mdlm", "objective": "mdlm", "schedule": "mdlm", "l2r_fraction": "aogpt"}
        for name, mode in for_one.items():
            if self.mode != mode and (value := getattr(self, name)) != getattr(Config, name):
                raise ValueError(f"{name} is {value}, which is for mode {mode}, not {self.mode}")
        if (self.objective, self.schedule) == ("nelbo", "cosine"):
            raise ValueError("schedule is cosine; objective=nelbo is a bound for schedule=uniform only")
        self.bos_id, self.mask_id = self.vocab_size - 1, self.vocab_size
        self.padded_vocab = math.ceil((self.vocab_size + 1) / 64) * 64  # rows of the embedding, for speed

# how the paper's mdlm (arXiv 2603.22075) differs from its ar; what both share: train.py's preset paper
PAPER_MDLM = dict(tie_head=False, time_embedding="add", objective="masked_ce", schedule="cosine")

# ---- The Transformer: rotary positions, attention, SwiGLU, blocks ------------------------------------------

def rotary_table(block_size: int, head_dim: int) -> Tensor:
    """(2, T+1, D/2): cos and sin of position × frequency for positions -1 … T-1; row p+1 is position p."""
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(-1, block_size).float(), frequency)
    return torch.stack([angle.cos(), angle.sin()])

def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn x (B, H, S, D) by rotary (2, 1 or B, 1, S, D/2): RoPE (Su et al. 2021), halves convention."""
    cos, sin = rotary
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).to(x.dtype)

def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool) -> Tensor:
    """softmax(q kᵀ / √D) v, (B, H, S, D): a query averages the values (B, H, n, D) of the slots it sees.

    PyTorch's fused kernel; written out where a CPU needs gradients: the kernel's backward is slow there."""
    if visible is not None or not q.requires_grad or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, visible, is_causal=causal and visible is None)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))                        # (B, H, S, n)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(dim=-1).to(v.dtype) @ v                                   # (B, H, S, D)

class Cache(NamedTuple):
    """Keys and values kept from earlier calls, and what this call of S slots does with them."""
    keys_values: list               # per layer (keys, values), each (B, H, size, D); a layer gets its pair
    slots: Tensor                   # (B, S)        where among the `size` kept ones the S slots go
    visible: Tensor                 # (B, 1, S, n)  boolean: which of the first n kept ones each of them sees

class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.n_head, self.causal = config.n_head, config.mode != "mdlm"
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x, rotary_q, rotary_k, cache=None):   # (B, S, C), twice (2, 1 or B, 1, S, D/2)
        B, S, C = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)     # each (B, H, S, D)
        q, k = rotate(q, rotary_q), rotate(k, rotary_k)
        if cache is not None:       # keep the new keys and values, attend to the visible ones
            (keys, values), n = cache.keys_values, cache.visible.size(-1)
            place = cache.slots[:, None, :, None].expand_as(k)                      # (B, H, S, D)
            k = keys.scatter_(2, place, k)[:, :, :n]                                # (B, H, n, D)
            v = values.scatter_(2, place, v)[:, :, :n]                              # (B, H, n, D)
        y = attend(q, k, v, cache and cache.visible, self.causal)                   # (B, H, S, D)
        return self.proj(y.transpose(1, 2).reshape(B, S, C))                        # (B, S, C)

class MLP(nn.Module):
    """SwiGLU (Shazeer 2020): proj(silu(gate(x)) · up(x))."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.n_hidden, bias=False)
        self.proj = nn.Linear(config.n_hidden, config.n_embd, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)                                 # each (B, S, n_hidden)
        return self.proj(F.silu(gate) * up)

class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.norm1 = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, rotary_q, rotary_k, cache=None, select=None):
        x = x + self.dropout(self.attention(self.norm1(x), rotary_q, rotary_k, cache))     # (B, S, C)
        if select is not None:      # in the last block: other slots only lend their keys and values
            x = x.view(len(select), -1, x.size(-1))                                 # (G, B·S/G, C)
            x = x.gather(1, select[:, :, None].expand(-1, -1, x.size(-1)))          # (G, N, C)
        return x + self.dropout(self.mlp(self.norm2(x)))

class TimeEmbedding(nn.Module):
    """The timestep t in [0, 1], one value a row: sinusoids, a linear layer, SiLU. (B,) -> (B, 1, C)"""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, t):
        half = self.linear.in_features // 2
        frequency = 10000.0 ** (-torch.arange(half, device=t.device, dtype=t.dtype) / half)
        angle = t[:, None, None] * frequency
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1)                       # (B, 1, C)
        return F.silu(self.linear(waves.to(self.linear.weight.dtype)))

def logits_of(x: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
    """(…, V) of x (…, C) by a padded head: padding speeds up products on a GPU, slows a CPU's softmax."""
    return F.linear(x, weight)[..., :vocab_size] if x.is_cuda else F.linear(x, weight[:vocab_size])

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
        rotary = rotary_table(config.block_size, config.n_embd // config.n_head)    # (2, T+1, D/2)
        self.register_buffer("rotary", rotary, persistent=False)
        self.init_weights()

    def forward(self, tokens, key_pos, target_pos, select=None, t=None, cache=None):
        """Logits of the tokens at target_pos.

        tokens      (B, S) what the slots hold
        key_pos, target_pos     (B or 1, S), see the table at the top of this file
        select      (G, N) predict only these slots of each group of B/G rows, counted through all its rows
        t           (B,) timestep, for time_embedding=add
        cache       a Cache, to see slots of earlier calls too
        returns     (B, S, V), or (G, N, V) with select"""
        x = self.embed(tokens)                                                      # (B, S, C)
        if self.config.target_embedding:
            x = x + self.embed_target(target_pos.clamp(min=0))      # (B, S, C); BOS of mdlm predicts none
        if self.config.time_embedding == "add":
            x = x + self.embed_time(t)                                              # (B, S, C)
        rotary_k = self.rotary[:, key_pos + 1].unsqueeze(2)                         # (2, B or 1, 1, S, D/2)
        rotary_q = self.rotary[:, target_pos + 1].unsqueeze(2) if self.config.target_rotation else rotary_k
        for i, block in enumerate(self.blocks):
            kept = cache and cache._replace(keys_values=cache.keys_values[i])
            x = block(x, rotary_q, rotary_k, kept, select if block is self.blocks[-1] else None)
        return logits_of(self.norm(x), self.head.weight, self.config.vocab_size)    # (B, S, V) or (G, N, V)

    def init_weights(self):
        """Normal, standard deviation 1/√(inputs): the usual 0.02 starves narrow models. Projections back
        into the residual stream shrink with depth, as in GPT-2. init=paper leaves all as PyTorch has it:
        embeddings N(0, 1), so that the logits of a tied head begin with a standard deviation of √C.

        With shared_init embeddings start around one common vector (by a tied head it adds the same to all
        logits). Layer 1 learns from it what keys share; mdlm finds neighbours by it (results/plateau.md)."""
        scaled = self.config.init == "scaled"
        for name, p in self.named_parameters() if scaled else ():
            if p.dim() == 1 or name.startswith("embed_target"):     # a gain: 1; a bias, a target position: 0
                nn.init.constant_(p, 1.0 if "norm" in name else 0.0)
            elif name.endswith("proj.weight"):      # back into the residual stream
                nn.init.normal_(p, std=1 / math.sqrt(p.size(1) * 2 * self.config.n_layer))
            elif name.startswith("embed_time"):     # its norm 0.35, a token's 1.4
                nn.init.normal_(p, std=1 / p.size(1))
            else:
                nn.init.normal_(p, std=1 / math.sqrt(p.size(1)))
        if self.config.shared_init:
            common = torch.randn(self.config.n_embd) / (math.sqrt(self.config.n_embd) if scaled else 1)
            self.embed.weight.data.add_(common)

def new_keys_values(model: Transformer, batch: int, size: int) -> list:
    """Room for the keys and values of `size` slots, as Cache has it. Serves `ar` and `aogpt` alike; a tensor
    each, because compiled code writes into a whole tensor in place, but copies a slice."""
    c, weight = model.config, model.head.weight
    shape = batch, c.n_head, size, c.n_embd // c.n_head
    return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in range(c.n_layer)]

# ---- The objectives. Each turns tokens x (B, T) into one Batch; the loss is the same line for all. ---------

class Batch(NamedTuple):
    """B rows of S slots (S = T; mdlm: T+1) in G groups. A group is one row, or by nelbo_batch a pair of
    rows; its loss is Σ_n weight · −log p(target), and the batch's is the mean over groups."""
    tokens: Tensor                  # (B, S)    what the slots hold
    key_pos: Tensor                 # (B, S)    position of the token held
    target_pos: Tensor              # (B, S)    position of the token predicted
    targets: Tensor                 # (G, N)    tokens to predict
    weight: Tensor                  # (G, N)
    select: Tensor | None = None    # (G, N)    the slots of the group that predict them; None: all
    t: Tensor | None = None         # (B,)      timestep

    def split(self, groups: int):
        """Parts of `groups` groups each, the last maybe fewer; of a field f a group has len(f) / G rows."""
        G = len(self.targets)
        parts = ([None] * G if f is None else f.split(groups * (len(f) // G)) for f in self)
        return [Batch(*part) for part in zip(*parts)]

    def to(self, device):
        """On the device; to CUDA from pinned memory, so that the copy need not wait for the step before."""
        cuda = torch.device(device).type == "cuda"
        tensors = (f.contiguous().pin_memory() if cuda and f is not None else f for f in self)
        return Batch(*(f if f is None else f.to(device, non_blocking=cuda) for f in tensors))

def mask_generator(*seed) -> torch.Generator:
    """For masks and orders, anew from (seed, step): the same in a resumed run, and on every device."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))

def order_batch(config: Config, x: Tensor, order: Tensor | None = None) -> Batch:
    """The chain rule, left to right or in an order σ (B, T): slot j predicts x_σ(j) from those before it.

    −log p(x)/T = (1/T) Σ_j −log p(x_σ(j) | x_σ(0) … x_σ(j-1))."""
    order = torch.arange(x.size(1), device=x.device).expand_as(x) if order is None else order
    targets = x.gather(1, order)                                                    # (B, T)
    tokens = F.pad(targets[:, :-1], (1, 0), value=config.bos_id)                    # (B, T)
    key_pos = F.pad(order[:, :-1], (1, 0), value=-1)                                # (B, T)
    weight = torch.full(x.shape, 1 / x.size(1), device=x.device)
    return Batch(tokens, key_pos, target_pos=order, targets=targets, weight=weight)

def aogpt_batch(config: Config, x: Tensor, generator: torch.Generator, l2r_fraction: float) -> Batch:
    """A uniformly random order per row; a fraction of the rows left to right.

    With l2r_fraction=0 its mean over orders is at least −log p(x)/T, p being their mixture (Jensen)."""
    order = torch.rand(x.shape, generator=generator).argsort(dim=1)
    left_to_right = torch.rand(len(x), 1, generator=generator) < l2r_fraction
    return order_batch(config, x, torch.where(left_to_right, torch.arange(x.size(1)), order))

def timestep(config: Config, ratio: Tensor) -> Tensor:
    """The t that training showed with this ratio of masked tokens (the inverse of the schedule)."""
    return torch.acos((1 - ratio).sqrt()) * 2 / math.pi if config.schedule == "cosine" else ratio

def masking_batch(config: Config, x: Tensor, masked: Tensor, t: Tensor | None = None) -> Batch:
    """Predict the masked tokens of x (B, L) from the others; weight (B, T+1) is 1 where masked (B, L) is.

    The window is whole, as in training: what lies beyond x is masked too, with weight 0. t (B,) is by default
    that of the share masked. Slot 0 holds BOS, as in the other modes (why here too: results/paper.md)."""
    rest = max(0, config.block_size - x.size(1))        # of a longer text expand_as, below, raises
    targets = F.pad(x, (1, rest), value=config.bos_id)                              # (B, T+1)
    hidden = F.pad(F.pad(masked, (1, 0)), (0, rest), value=True)                    # (B, T+1)
    position = torch.arange(-1, config.block_size, device=x.device).expand_as(targets)
    t = timestep(config, hidden[:, 1:].float().mean(dim=1)) if t is None else t
    return Batch(tokens=torch.where(hidden, config.mask_id, targets), key_pos=position, target_pos=position,
                 targets=targets, weight=F.pad(masked, (1, rest)).float(), t=t)

def nelbo_batch(config: Config, x: Tensor, generator: torch.Generator) -> Batch:
    """Mask a random set M of k of the T tokens, k uniform on 1 … T:

        −log p(x)/T  ≤  E_k E_M [ (1/k) Σ_{i∈M} −log p(x_i | x outside M) ].

    So the bound is *the mean over rows of each row's own mean over its masked tokens*, and nothing more.
    Why: predict the tokens in a random order; the j-th prediction knows j-1 tokens, so k = T-j+1 are
    masked, each of which is equally likely to be the next. Averaged over orders, the chain rule's j-th term
    is E_M (1/k) Σ_{i∈M} −log p(x_i | rest), and the mean over its T terms is the mean over k; p(x) mixes
    all orders, hence ≤ (Jensen). The 1/t-weighted loss of the literature has the same mean. In masked_ce
    all masked tokens count alike, so term k counts k times. That bounds parts of x: the first j tokens of
    an order, j = 1 … T, all their nats over all their tokens (a part's p mixes the orders of that part).

    Rows 2p and 2p+1 are an antithetic pair, masking k and T+1-k tokens, and the k's are stratified over the
    batch: less variance. The first row never masks more than the second, so this is unbiased only where
    rows come in random order, as in training, or a pair is one row twice, as in evaluation. Every pair has
    exactly T+1 masked tokens: shapes are static, last MLP and head run on masked slots alone. B must be even.
    A pair with T = 6 and k = 2, T+1-k = 5:

        row 2p       BOS   x_0  [M]  x_2  x_3  [M]  x_5         2 predictions, each with weight 1/2 · 1/2
        row 2p+1     BOS   [M]  [M]  [M]  x_3  [M]  [M]         5 predictions, each with weight 1/2 · 1/5
        select       the 7 slots of the 14 that hold [M]: 2, 5, 8, 9, 10, 12, 13
    """
    B, T = x.shape
    P = B // 2                                                                      # pairs
    stratum = torch.randperm(P, generator=generator)                                # (P,) P bins of [0, 1/2)
    u = (stratum + torch.rand(P, generator=generator)) / B                          # (P,)
    k = 1 + (u * T).long()
    k = torch.stack([k, T + 1 - k], dim=1)                                          # (P, 2)
    masked = torch.rand(B, T, generator=generator).argsort(dim=1) < k.view(B, 1)    # (B, T), k random places
    batch = masking_batch(config, x, masked)
    select = batch.weight.view(P, -1).nonzero()[:, 1].view(P, T + 1)                # of a pair's 2T+2 slots
    return batch._replace(targets=batch.targets.view(P, -1).gather(1, select), select=select,
                          weight=(0.5 / k).gather(1, select // batch.tokens.size(1)))

def paper_batch(config: Config, x: Tensor, generator: torch.Generator) -> Batch:
    """The paper's loss (arXiv 2603.22075): t uniform on (0, 1) for each row, each token masked with chance
    1−cos²(πt/2); a mean over all masked tokens of the batch, from logits of every slot."""
    ratio = 1 - torch.cos(math.pi / 2 * torch.rand(len(x), generator=generator)) ** 2           # (B,)
    masked = torch.rand(x.shape, generator=generator) < ratio[:, None]              # (B, T)
    batch = masking_batch(config, x, masked, timestep(config, ratio))   # t of the config's own schedule
    return batch._replace(weight=batch.weight * len(x) / batch.weight.sum().clamp(min=1))

def training_batch(config: Config, x: Tensor, generator: torch.Generator) -> Batch:
    """x (B, T) tokens, as the configured mode and objective train on them."""
    if config.mode == "ar":
        batch = order_batch(config, x)
    elif config.mode == "aogpt":
        batch = aogpt_batch(config, x, generator, config.l2r_fraction)
    elif config.schedule == "cosine":
        batch = paper_batch(config, x, generator)
    else:
        batch = nelbo_batch(config, x, generator)
        if config.objective == "masked_ce":     # by the same masks; here all masked tokens count alike
            batch = batch._replace(weight=torch.full_like(batch.weight, 1 / batch.weight.size(1)))
    if config.token_noise:      # what is predicted stays; so do end-of-text and [MASK], which come last
        wrong = torch.rand(batch.tokens.shape, generator=generator) < config.token_noise
        other = torch.randint(config.bos_id, batch.tokens.shape, generator=generator)
        batch = batch._replace(tokens=other.where(wrong & (batch.tokens < config.bos_id), batch.tokens))
    return batch

def group_losses(model: nn.Module, batch: Batch) -> Tensor:
    """(G,) whose mean is the loss: nats per token (for masked_ce, nats per masked token)."""
    logits = model(batch.tokens, batch.key_pos, batch.target_pos, batch.select, batch.t)    # (G, N, V)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))    # a bfloat16 softmax is too coarse
    if torch.compiler.is_compiling():   # as below; its gradient fuses into one pass over V, not two
        words = torch.arange(logits.size(-1), dtype=torch.int32, device=logits.device)  # (V,), int32: faster
        nll = logits.logsumexp(dim=-1) - logits.where(words == batch.targets[..., None].int(), 0).sum(dim=-1)
    else:
        nll = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")  # (G·N,)
    return (nll.view_as(batch.weight) * batch.weight).sum(dim=1)

@torch.no_grad()
def losses_in_parts(model: nn.Module, batch: Batch) -> Tensor:
    """group_losses without gradients, in parts of 64 groups or 64 MB of logits or MLP: (G,), float64, CPU."""
    c, slots = model.config, batch.tokens.numel() // len(batch.targets)             # slots of a group
    groups = 2 ** 24 // max(batch.targets.size(1) * c.vocab_size, slots * 2 * c.n_hidden)
    parts = batch.to(model.head.weight.device).split(max(1, min(64, groups)))
    return torch.cat([group_losses(model, part) for part in parts]).cpu().double()

def evaluation_batch(config: Config, x: Tensor, generator: torch.Generator, left_to_right=False) -> Batch:
    """A group for each row of x (B, T) on the CPU, its loss −log p(row)/T: exact for `ar` and left-to-right
    `aogpt`; else an unbiased estimate of the upper bound (`mdlm`: a pair of masks; `aogpt`: an order)."""
    if config.mode == "mdlm":
        return nelbo_batch(config, x.repeat_interleave(2, dim=0), generator)
    if config.mode == "ar" or left_to_right:
        return order_batch(config, x)
    return aogpt_batch(config, x, generator, l2r_fraction=0.0)

# ---- Sizes -------------------------------------------------------------------------------------------------

def count_parameters(model: Transformer) -> int:
    """Trained numbers; rows of the embedding and untied head that only pad the vocabulary do not count."""
    c = model.config
    padding = (c.padded_vocab - c.vocab_size) * (1 if c.tie_head else 2) - (c.mode == "mdlm")   # its [MASK]
    return sum(p.numel() for p in model.parameters()) - padding * c.n_embd

def flops_per_token(config: Config) -> float:
    """Matrix-product FLOPs of training on one token: 2 per weight forward, twice that backward; attention
    reaches T slots, on average half of them where it is causal; mdlm's last MLP and head see (T+1)/2 of T,
    of all with schedule=cosine. (Left out: mdlm's BOS slot in the blocks, 1/T of them; the optimizer's.)"""
    C, T = config.n_embd, config.block_size
    attention = 4 * C * C + 2 * C * T * (1 if config.mode == "mdlm" else 0.5)
    mlp, head = 3 * C * config.n_hidden, C * config.vocab_size
    selected = (T + 1) / (2 * T) if config.mode == "mdlm" and config.schedule == "uniform" else 1
    return 6 * (config.n_layer * attention + (config.n_layer - 1) * mlp + selected * (mlp + head))

def main():
    configs = {mode: Config(mode) for mode in ("ar", "mdlm", "aogpt")}
    configs["mdlm as in the paper"] = Config("mdlm", target_embedding=False, **PAPER_MDLM)
    print(f"{'124M, T=512':22}{'parameters':>14}{'training MFLOP/token':>24}")
    with torch.device("meta"):
        for name, c in configs.items():
            print(f"{name:22}{count_parameters(Transformer(c)):>14,}{flops_per_token(c) / 1e6:>24.1f}")

if __name__ == "__main__":
    main()
