"""
One Transformer, three ways to read a sentence: the network, what it learns, and how it writes.

This file is the whole method, and needs torch alone. Every mode trains p(token | some of the other
tokens), and they differ in which others these are:

    ar     autoregressive, that is, left to right: a GPT. Its loss is exactly −log p(text) / T.
    mdlm   masked diffusion (Sahoo et al. 2024, arXiv 2406.07524). Any number of the tokens, from
           one to all, are replaced by [MASK] and predicted from the visible ones. Its loss is an
           upper bound on −log p(text) / T, see `mask_batch`.
    aogpt  any-order GPT (Xue et al. 2025, arXiv 2506.19935). It predicts the tokens in a random
           order σ, at σ(0) first, at σ(T-1) last. Its loss is an upper bound too: `order_batch`.

p(text) is the chance that a model writes this text, token by token; the latter two modes do so in
an order that is drawn at random. All losses are in nats per token.

*Diffusion* means to learn to undo noise. Noise is added to a text, a little at a time, until
nothing is left of it; a network that has learned to take a step back can make texts out of noise.
Here noise replaces tokens, one after another at random places, by [MASK]. Other diffusion models
must be told how far the noise has come; this one sees it, by how many tokens are [MASK].

A *slot* is one column of the sequence that the network reads. It holds a token, knows that token's
position (key_pos), and predicts the token at another position or the same one (target_pos). Here is
what differs from mode to mode; `Mode`, at the end, says it in code:

           attention      the slots hold             key_pos            target_pos     loss on
    ar     causal         BOS, x_0 … x_{T-2}         -1, 0 … T-2        0 … T-1        every slot
    mdlm   bidirectional  BOS, x, some of it [MASK]  -1, 0 … T-1        -1, 0 … T-1    [MASK]s
    aogpt  causal         BOS, x_σ(0) … x_σ(T-2)     -1, σ(0) … σ(T-2)  σ(0) … σ(T-1)  every slot

So `ar` is `aogpt` in the order 0 … T-1; and `mdlm` is the same network without the causal mask, in
which each slot predicts its own position. BOS, which tells where a window begins, is the
end-of-text token; in mdlm it predicts nothing.

Shapes: B rows of a batch, T positions of a window, L positions of a text to be written, S slots,
C = n_embd, H = n_head, D = C / H, V = vocab_size, n predictions.
"""
import itertools
import math
from dataclasses import dataclass, fields
from typing import Callable, Literal, NamedTuple, get_args

import torch
import torch.nn as nn
import torch.nn.functional as F


# ---- Configuration: each field is a flag of train.py, and the comment after it is its help -------

@dataclass
class Config:
    """the network, and what it learns"""
    mode: Literal["ar", "mdlm", "aogpt"] = "ar"     # left to right, masked diffusion, or any order
    vocab_size: int = 50257         # tokens that can be predicted; the last one is end-of-text
    block_size: int = 512           # T, the tokens in a window
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768               # C, the width of the residual stream
    n_hidden: int = 2048            # width of the SwiGLU layer
    dropout: float = 0.0            # chance that training drops a number that a layer adds
    objective: Literal["nelbo", "masked_ce"] = "nelbo"  # mdlm: its bound, or equal weights
    l2r_fraction: float = 0.1       # aogpt: share of rows from left to right, as published

    def __post_init__(self):
        """Raises ValueError, which names the flag."""
        for f in fields(self):
            value = getattr(self, f.name)
            choices = self.modes if f.name == "mode" else get_args(f.type)
            if choices and value not in choices:
                raise ValueError(f"--{f.name}={value} must be one of {', '.join(choices)}")
            if f.type is int and value < 1:
                raise ValueError(f"--{f.name}={value} must be at least 1")
            if f.type is float and not 0 <= value <= 1:
                raise ValueError(f"--{f.name}={value} must be a share from 0 to 1")
        if self.n_embd % (2 * self.n_head):
            raise ValueError(f"--n_embd={self.n_embd} must be a multiple of twice "
                             f"--n_head={self.n_head}")
        if self.objective != "nelbo" and self.mode != "mdlm":
            raise ValueError(f"--objective={self.objective} is for --mode=mdlm")
        self.bos_id = self.vocab_size - 1
        self.mask_id = self.vocab_size          # [MASK] can be read, but never predicted
        self.padded_vocab = math.ceil((self.vocab_size + 1) / 64) * 64      # which suits a GPU

    @property
    def row(self):
        """The Mode: this model's row of the table at the top."""
        return self.modes[self.mode]        # `modes` is set at the end, see MODES


# ---- The Transformer: rotary positions, attention, SwiGLU, blocks --------------------------------

def rotary_table(block_size, head_dim):
    """Cosine and sine of position · frequency: (2, T+1, D/2). Position p, from -1, has row p+1."""
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)   # (D/2,)
    position = torch.arange(-1, block_size).float()                             # (T+1,)
    angle = torch.outer(position, frequency)                                    # (T+1, D/2)
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x, rotary):
    """Turns q or k by angles that grow with position, so that q·k sees the distance alone. That is
    rotary position embedding (Su et al. 2021, arXiv 2104.09864), in its convention of two halves.

    x (B, H, S, D); rotary (2, 1 or B, 1, S, D/2) has the cosine and the sine for each slot."""
    cos, sin = rotary
    x1, x2 = x.chunk(2, dim=-1)                                                 # (B, H, S, D/2)
    rotated = torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)
    return rotated.to(x.dtype)


class Attention(nn.Module):
    """Slots look at each other. Who sees whom is up to `attend`, a method of the Transformer."""
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x, rotary_q, rotary_k, attend):
        B, S, C = x.shape
        qkv = self.qkv(x).view(B, S, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                                    # (B, H, S, D) each
        y = attend(self, rotate(q, rotary_q), rotate(k, rotary_k), v)           # (B, H, S, D)
        return self.proj(y.transpose(1, 2).reshape(B, S, C))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202): proj(silu(gate(x)) · up(x))."""
    def __init__(self, config):
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.n_hidden, bias=False)
        self.proj = nn.Linear(config.n_hidden, config.n_embd, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)                         # (…, n_hidden) each
        return self.proj(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1 = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, rotary_q, rotary_k, attend, select=None):
        """x (B, S, C). If `select` is given, only its slots go on after attention: (n, C)."""
        attended = self.attention(self.norm1(x), rotary_q, rotary_k, attend)    # (B, S, C)
        x = x + self.dropout(attended)
        if select is not None:
            x = x.flatten(0, 1)[select]                                         # (n, C)
        return x + self.dropout(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.padded_vocab, config.n_embd)
        self.embed_target = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.head = nn.Linear(config.n_embd, config.padded_vocab, bias=False)
        self.head.weight = self.embed.weight
        rotary = rotary_table(config.block_size, config.n_embd // config.n_head)
        self.register_buffer("rotary", rotary, persistent=False)
        self.init_weights()

    def attend(self, layer, q, k, v):
        """Who sees whom: softmax(q kᵀ / √D) v, from q, k and v (B, H, S, D) of one layer.

        This is all of the network that depends on the mode. A cache puts in its place a function
        that adds k and v of earlier calls, which it keeps apart by `layer`."""
        return self.softmax_attention(q, k, v, is_causal=self.config.row.causal)

    # train.py may put functions here that are faster on its device.
    softmax_attention = staticmethod(F.scaled_dot_product_attention)
    cross_entropy = staticmethod(F.cross_entropy)

    def forward(self, tokens, key_pos, target_pos, select, attend=None):
        """Logits (n, V) of the tokens that the slots of `select` predict.

        tokens      (B, S) what the slots hold
        key_pos, target_pos     (B, S), or (1, S) for all rows alike: see the table at the top
        select      (n,) the slots to be predicted, counted over all rows: slot s of row b is b·S+s
        attend      takes the place of the method above, if it is given"""
        # aogpt must be told which position to predict, and all modes have this embedding of it. As
        # mdlm's BOS predicts nothing, position 0 will do there. Rotary turns keys by where a token
        # stands, queries by what they predict, so each head sees the distance between them.
        x = self.embed(tokens) + self.embed_target(target_pos.clamp(min=0))     # (B, S, C)
        rotary_k = self.rotary[:, key_pos + 1].unsqueeze(2)                 # (2, B or 1, 1, S, D/2)
        rotary_q = self.rotary[:, target_pos + 1].unsqueeze(2)              # (2, B or 1, 1, S, D/2)
        attend = attend or self.attend
        *first, last = self.blocks
        for block in first:
            x = block(x, rotary_q, rotary_k, attend)                            # (B, S, C)
        # After the last attention no slot looks at others any more, so only those that are asked
        # for go on. Of mdlm that is half of them, and the head is a large part of the work.
        x = last(x, rotary_q, rotary_k, attend, select)                         # (n, C)
        logits = self.head(self.norm(x))[:, :self.config.vocab_size]            # (n, V)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))      # at least float32

    def logits(self, batch, select):
        """What the slots of `select` predict in a Batch: (n, V)."""
        return self(*batch[:3], select)

    @torch.no_grad()
    def init_weights(self):
        """Normal weights of standard deviation 1/√(row length) keep outputs as large as inputs.

        One random vector is added to all rows of the embedding. In the head, which is the same
        matrix, this adds as much to each logit, and changes no prediction. But all keys now share a
        part that rotary turns by position alone, so from the first step attention can go by
        distance, whatever the tokens are. mdlm learns sooner by it (results/paper.md)."""
        for name, p in self.named_parameters():
            self.init_weight(name, p)
        common = torch.randn(self.config.n_embd)                                # (C,)
        self.embed.weight += common / math.sqrt(self.config.n_embd)

    def init_weight(self, name, p):
        """Of one tensor; variants/paper.py has other tensors too."""
        if p.dim() == 1:
            nn.init.ones_(p)                # the gain of a norm
        elif name.startswith("embed_target"):
            nn.init.zeros_(p)               # at first it changes nothing
        elif name.endswith("proj.weight"):
            # 2 · n_layer of these add to the residual stream, so each is smaller, as in GPT-2.
            nn.init.normal_(p, std=1 / math.sqrt(p.size(1) * 2 * self.config.n_layer))
        else:
            nn.init.normal_(p, std=1 / math.sqrt(p.size(1)))

    def count_parameters(self):
        """Trained numbers. Rows of the embedding that only pad the vocabulary do not count."""
        used = self.config.vocab_size + (not self.config.row.causal)    # mdlm has [MASK] too
        padding = (self.config.padded_vocab - used) * self.config.n_embd
        return sum(p.numel() for p in self.parameters()) - padding


# ---- What a model learns: a batch, and its loss --------------------------------------------------

class Batch(NamedTuple):
    """B rows of S slots. In training S is T, but T+1 for mdlm, whose BOS predicts nothing."""
    tokens: torch.Tensor            # (B, S) what the slots hold
    key_pos: torch.Tensor           # (B, S) position of the token held
    target_pos: torch.Tensor        # (B, S) position of the token predicted
    targets: torch.Tensor           # (B, S) the tokens to predict
    weight: torch.Tensor            # (B, S) how much each prediction counts; of many it is 0

    def select(self):
        """The slots with a weight (n,), counted over all rows. Only these need be predicted."""
        return self.weight.flatten().nonzero().flatten()


def losses(model, batch, select):
    """Σ weight · −log p(target) of each row (B,). Their mean is the loss, in nats per token.

    select is batch.select(), found on the CPU: on a GPU it would have to be waited for."""
    logits = model.logits(batch, select)                                        # (n, V)
    targets = batch.targets.flatten()[select]                                   # (n,)
    nll = model.cross_entropy(logits, targets, reduction="none")                # (n,)
    # Each prediction goes back to its place in the rows, and a row is summed up.
    weight = batch.weight.flatten()                                             # (B·S,)
    costs = nll.new_zeros(len(weight)).scatter(0, select, nll * weight[select])     # (B·S,)
    return costs.view(batch.weight.shape).sum(dim=1)                            # (B,)


# ---- What ar and aogpt learn: the chain rule, in an order ----------------------------------------

def order_batch(config, x, order):
    """The chain rule in an order σ (B, S): slot j predicts x_σ(j) from those before it.

        −log p(x) / T  =  (1/T) Σ_j −log p(x_σ(j) | x_σ(0) … x_σ(j-1))

    For ar σ is 0 … T-1, and this is the loss of a GPT. aogpt writes in a random σ, so its p(x) is
    the mean over σ of such products. −log of a mean is at most the mean of −log (Jensen's
    inequality), so the mean loss over orders is an upper bound on −log p(x) / T."""
    targets = x.gather(1, order)                                                # (B, S)
    tokens = F.pad(targets[:, :-1], (1, 0), value=config.bos_id)                # (B, S)
    key_pos = F.pad(order[:, :-1], (1, 0), value=-1)                            # (B, S)
    weight = torch.full(order.shape, 1 / x.size(1), device=x.device)            # (B, S)
    return Batch(tokens, key_pos, order, targets, weight)


def left_to_right(config, u):
    """The turn of each position, 0 … L-1, in each row. u (B, L) gives only shape and type."""
    return torch.arange(u.size(1)).to(u).expand_as(u)


def one_order_batch(config, x, generator):
    """x (B, T) in the one order that a mode such as ar has, so the loss is exact."""
    times = config.row.times(config, x)     # (B, T) the turn of each position: of ar left_to_right
    return order_batch(config, x, times.argsort(dim=1))


def any_order_batch(config, x, generator, l2r_fraction=0.0):
    """x (B, T) in random orders, but a share l2r_fraction of the rows from left to right."""
    u = torch.rand(x.shape, generator=generator)                                # (B, T)
    # Here `times` gives u itself, and the argsort of random numbers is a random permutation.
    order = config.row.times(config, u).argsort(dim=1)                          # (B, T)
    chosen = torch.rand(len(x), 1, generator=generator) < l2r_fraction          # (B, 1)
    return order_batch(config, x, torch.where(chosen, torch.arange(x.size(1)), order))


# ---- What mdlm learns: masks ---------------------------------------------------------------------

def mask_batch(config, x, masked):
    """Predict the tokens of x (B, T) where `masked` (B, T) is true, k in each row, from the others.

        −log p(x) / T  ≤  E_k E_M [ (1/k) Σ_{i in M} −log p(x_i | x outside M) ]

    Here M is a random set of k of the T tokens, and k is uniform on 1 … T, as `diffusion_batch`
    draws them. So the bound is *the mean over rows of each row's own mean over its masked tokens*.

    Why is that a bound? Predict the tokens one by one in a random order. When k of them are left,
    these are a random set M, and each of them is equally likely to be the next. So that step costs
    on average, over orders, E_M [ (1/k) Σ_{i in M} −log p(x_i | x outside M) ]. An order has one
    step for each k = 1 … T, so the mean over k of these costs is 1/T of what an order costs on
    average. And p(x), the chance that `write` writes x, is a mean over orders, so this is a bound
    as in `order_batch`. Papers mask each token with a chance t, uniform on (0, 1), and have the
    weight 1/(tT) where we have 1/k; on average over t that is the same bound."""
    targets = F.pad(x, (1, 0), value=config.bos_id)                             # (B, T+1)
    hidden = F.pad(masked, (1, 0))                                              # (B, T+1)
    tokens = targets.masked_fill(hidden, config.mask_id)                        # (B, T+1)
    position = torch.arange(-1, x.size(1), device=x.device).expand_as(tokens)
    k = hidden.sum(dim=1, keepdim=True)                                         # (B, 1)
    return Batch(tokens, position, position, targets, weight=hidden / k.clamp(min=1))


def draw_masks(x, k, generator):
    """Where x (B, T) is masked (B, T): k (B, 1) random ones of the T tokens of each row."""
    rank = torch.rand(x.shape, generator=generator).argsort(dim=1)              # (B, T)
    return rank < k


def draw_counts(B, T, generator):
    """How many tokens to mask in each row: k (B, 1), uniform on 1 … T.

    torch.randint(1, T + 1, (B, 1)) would do. But the bound varies less if the k are spread evenly,
    and if rows come in pairs of k and T+1−k. And then every batch has equally many predictions,
    B·(T+1)/2, so that a compiled step always has the same shapes."""
    if B % 2:
        raise ValueError(f"masks are drawn for pairs of rows, and {B} rows are an odd number")
    k = 1 + (spread(B // 2, generator) / 2 * T).long()      # (B/2,) the smaller k of each pair
    return torch.stack([k, T + 1 - k], dim=1).view(B, 1)                        # (B, 1)


def spread(n, generator):
    """Uniform numbers (n,), one in each of n equal parts of [0, 1), in random order."""
    part = torch.randperm(n, generator=generator)
    u = (part + torch.rand(n, generator=generator)) / n
    return u.clamp(max=1 - 2 ** -24)        # a float32 may have been rounded up to 1


def diffusion_batch(config, x, generator):
    """x (B, T) with random masks. The loss of a row estimates the bound, that of a pair better."""
    k = draw_counts(*x.shape, generator)                                        # (B, 1)
    return mask_batch(config, x, draw_masks(x, k, generator))


def equal_weights(batch):
    """The same predictions with equal weights. The loss, masked_ce, is then their plain mean. That
    is no bound: a row counts the more, the more of its tokens are masked."""
    predicted = (batch.weight > 0).float()                                      # (B, S)
    mean_per_row = predicted.sum().clamp(min=1) / len(predicted)
    return batch._replace(weight=predicted / mean_per_row)


def weighted(config, batch):
    """The batch with the weights that --objective asks for in training."""
    return equal_weights(batch) if config.objective == "masked_ce" else batch


def cosine_batch(config, x, generator):
    """The loss of arXiv 2603.22075, with its masks: a token is hidden with the chance sin²(πt/2), t
    uniform on (0, 1). It is only reported, as val_masked_ce; nothing here trains on it."""
    t = torch.rand(len(x), 1, generator=generator)                              # (B, 1)
    ratio = torch.sin(math.pi / 2 * t) ** 2                                     # (B, 1)
    masked = torch.rand(x.shape, generator=generator) < ratio                   # (B, T)
    return equal_weights(mask_batch(config, x, masked))


# ---- How a token is drawn ------------------------------------------------------------------------

@dataclass
class Drawing:
    """how tokens are drawn"""
    temperature: float = 1.0    # 1 draws from the model's distribution, 0 takes the likeliest token
    top_p: float = 1.0          # keep the likeliest tokens with this much probability


def probabilities(logits, o):
    """Weights (…, V) of tokens, from logits (…, V), by o, a Drawing. They are probabilities, but
    only of the smallest set of likeliest tokens that together have top_p; all others have 0, and
    the sum is left as it is."""
    # The largest is subtracted, so that it is 0 at any temperature and nothing becomes infinite.
    logits = logits - logits.amax(dim=-1, keepdim=True)                         # (…, V)
    p = (logits / max(o.temperature, 1e-30)).softmax(dim=-1)                    # (…, V)
    if o.top_p == 1:
        return p
    p, token = p.sort(dim=-1, descending=True)                                  # (…, V) each
    likelier = p.cumsum(dim=-1) - p         # the mass of all tokens that are likelier than this one
    return torch.zeros_like(p).scatter(-1, token, p * (likelier < o.top_p))


def draw(p, u):
    """Tokens (…) drawn from weights p (…, V) of any sum, by uniform numbers u (…) in [0, 1).

    The token is the first at which the running sum of the weights exceeds u times their total. The
    sum is in float64, on u's device: float32 would cut off the tail of the distribution, and so
    lower the temperature (Zheng et al. 2024, arXiv 2409.02908)."""
    cdf = p.to(u.device).cumsum(dim=-1, dtype=torch.float64)                    # (…, V)
    token = torch.searchsorted(cdf, u[..., None] * cdf[..., -1:], right=True)   # (…, 1)
    return token[..., 0].clamp(max=p.size(-1) - 1).to(p.device)


def draw_with(u, o=Drawing()):
    """The `decide` of `write`, below: the token at each place is drawn by the number u (B, L) has
    there. row and place say where the logits are of.

    Numbers that are given, and no multinomial, make a text independent of others in its batch."""
    def decide(logits, row, place):
        return draw(probabilities(logits, o), u[row.to(u.device), place.to(u.device)])

    return decide


# ---- How a model writes --------------------------------------------------------------------------

def read_masked(model, tokens, row, place):
    """Logits (…, V) of [MASK]s of tokens (B, L), in these rows (…), at these places (…)."""
    config = model.config
    # The network has learned whole windows, so it reads [MASK]s beyond the text.
    beyond = config.block_size - tokens.size(1)
    window = F.pad(tokens, (0, beyond), value=config.mask_id)                   # (B, T)
    batch = mask_batch(config, window, window == config.mask_id)    # its targets mean nothing
    select = row * batch.tokens.size(1) + place + 1             # (…) because BOS has slot 0
    return model.logits(batch, select.flatten()).view(*select.shape, -1)


def read_next(model, tokens, order, start, end):
    """Logits (B, m, V) of the m tokens from `start` to `end` in the order (B, L).

    The tokens (B, L) before them are known. None of the m is told what the others become. For ar
    and aogpt sample.py takes extras/cache.py instead, which gives the same in one run of the
    network, where this takes m, and computes nothing twice."""
    if not model.config.row.causal:
        row = torch.arange(len(order), device=order.device)[:, None]            # (B, 1)
        return read_masked(model, tokens, row, order[:, start:end])
    logits = []
    for j in range(start, end):
        # The last slot sees all that is known, and predicts token j as if that were the next one.
        up_to_j = torch.cat([order[:, :start], order[:, j:j + 1]], dim=1)       # (B, start+1)
        batch = order_batch(model.config, tokens, up_to_j)
        last_slots = torch.arange(start, up_to_j.numel(), start + 1, device=order.device)   # (B,)
        logits.append(model.logits(batch, last_slots))                          # (B, V)
    return torch.stack(logits, dim=1)


def plan(config, tokens, times, steps=0):
    """The order (B, L) in which to fill the [MASK]s of tokens (B, L), and the edges between passes.

    It begins with the tokens that are given. times (B, L) say when the others are to be written,
    the smallest first: random numbers give a random order, 0 … L-1 is left to right. steps is the
    number of passes; 0 is one for each token. Tokens of one pass do not know of each other, so only
    one token a pass follows the model's own law."""
    free = (tokens == config.mask_id).to(times.device)                          # (B, L)
    # It is sorted where the times are, because not every device has float64.
    given_first = times.where(free, -math.inf)                                  # (B, L)
    order = given_first.argsort(dim=1, stable=True).to(tokens.device)           # (B, L)
    n = int(free[0].sum())                      # tokens to write, in each row as many
    given, steps = tokens.size(1) - n, min(steps, n) or n
    return order, [given + n * step // steps for step in range(steps + 1)]


@torch.no_grad()
def write(model, tokens, order, edges, decide, read=read_next):
    """Fills the [MASK]s of tokens (B, L), and yields the tokens after each pass of the network.

    A pass writes what stands in the order between one edge and the next: see `plan`. `read` runs
    the network, with the arguments of `read_next`; a cache is faster. `decide` makes tokens (B, m)
    of its logits (B, m, V), for rows (B, 1) and places (B, m): `draw_with` returns such a one."""
    row = torch.arange(len(tokens), device=tokens.device)[:, None]              # (B, 1)
    for start, end in itertools.pairwise(edges):
        place = order[:, start:end]                                             # (B, m)
        logits = read(model, tokens, order, start, end)                         # (B, m, V)
        tokens = tokens.scatter(1, place, decide(logits, row, place))
        yield tokens


def generate(model, rows=1, steps=0, o=Drawing(), generator=None):
    """New texts (rows, T), written in so many passes, or one for each token."""
    config, device = model.config, model.head.weight.device
    blank = torch.full((rows, config.block_size), config.mask_id, device=device)    # (B, T)
    turn, u = torch.rand(2, *blank.shape, generator=generator)                  # (B, T) each
    order, edges = config.row.plan(config, blank, config.row.times(config, turn), steps)
    for tokens in write(model, blank, order, edges, draw_with(u, o)):
        pass        # here one could watch
    return tokens


# ---- The table of modes --------------------------------------------------------------------------

class Mode(NamedTuple):
    """A row of the table at the top, in code: all that differs from mode to mode.

    A variant is a file with a Config, whose `modes` are rows like these with some fields replaced:
    MODES["mdlm"]._replace(training_batch=…). Functions that make a batch take (config, x,
    generator); x (B, T) and the random numbers are on the CPU, the same whatever device trains."""
    causal: bool                # whether a slot sees only the slots before it and itself
    orders: str                 # in which it writes: "one", "any", or its "own", as variants have
    drawn: str                  # in words, what the bound draws at random; if "", it is exact
    bound_batch: Callable       # the Batch of −log p(x) / T, or of a bound on it, for each row
    training_batch: Callable    # the Batch that is trained on
    reported: dict = {}         # {name: the Batch of another loss that evaluations report}
    together: int = 1           # rows that are drawn together, and are one estimate of the bound
    times: Callable = lambda config, u: u   # the turn of each place (B, L), by random u (B, L)
    # The others are replaced by variants alone.
    plan: Callable = plan                   # the order and the passes, from these times
    reader: Callable | None = None          # (model) -> a faster `read_next`, for one batch
    check_prompt: Callable | None = None    # (config, pattern (L,)) raises ValueError
    network: Callable = Transformer
    whole: bool = True          # false: the loss is of some tokens alone; the rest must be given


MODES = {
    "ar": Mode(
        causal=True, orders="one", times=left_to_right, drawn="",
        bound_batch=one_order_batch,
        training_batch=one_order_batch),
    "mdlm": Mode(
        causal=False, orders="any", drawn="pairs of masks", together=2,
        bound_batch=diffusion_batch,
        training_batch=lambda config, x, rng: weighted(config, diffusion_batch(config, x, rng)),
        reported={"val_masked_ce": cosine_batch}),
    "aogpt": Mode(
        causal=True, orders="any", drawn="orders",
        bound_batch=any_order_batch,
        training_batch=lambda config, x, rng: any_order_batch(config, x, rng, config.l2r_fraction),
        reported={"val_nll_l2r": lambda config, x, rng: any_order_batch(config, x, rng, 1.0)})}
Config.modes = MODES
