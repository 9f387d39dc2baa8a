"""
The objectives: what the slots of a window hold, what they should predict, and what that counts.

Each objective turns tokens x (B, T) into a `Batch`. The loss is the same for all of them: it is the
mean over rows of what `weighted_losses` returns, for each row the sum of weight · −log p(target)
over its slots.

    ar       `order_batch`        the chain rule from left to right: exact
    aogpt    `order_batch`        the chain rule in a random order: on average an upper bound
    mdlm     `nelbo_batch`        random masks, the upper bound of masked diffusion
             `one_block_batch`    the same in blocks, but each row has one block only
             `pool`               equal weights for all masked tokens (masked_ce): no bound
             `paper_batch`        the paper's masks, with equal weights too

In the sections on orders and masks they stand nearly in their plainest form. Their random numbers
come from `spread` and `mask_counts` of the last section, where plain uniform numbers would do too.
For these mdlm needs an even number of rows. The last section has the same losses, less noisy and
faster, and this is what mdlm trains on.

Shapes are named as in model.py; L is the length of an x that may be shorter than the window. For
training x is on the CPU, and so are the random numbers.
"""
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from cli import InputError
from model import Config, block_length


# ---- A batch, and its loss -----------------------------------------------------------------------

class Batch(NamedTuple):
    """B rows of S slots. S is T, or T+1 with infill; for mdlm T+1, or more after `two_streams`.

    `pack_pairs` makes a select (B/2, P); then targets and weight are (B/2, P) too."""
    tokens: Tensor                  # (B, S) what the slots hold
    key_pos: Tensor                 # (B, S) position of the token held
    target_pos: Tensor              # (B, S) position of the token predicted
    targets: Tensor                 # (B, S) the tokens to predict
    weight: Tensor                  # (B, S) how much each prediction counts
    t: Tensor | None = None         # (B,) how much is masked; mdlm only
    select: Tensor | None = None    # (B/2, P) the slots of each pair of rows that have a weight
    stage: Tensor | None = None     # (1, S) which slots each slot sees; mdlm in blocks only

    def split(self, at_once: int):
        """Parts of the batch with at_once losses each, one a row or pair; the last has the rest."""
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


# ---- Orders: what ar and aogpt learn -------------------------------------------------------------

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


def reveal_times(orders: str, u: Tensor) -> Tensor:
    """When each position becomes known (B, T): block b has the times from b to b+1.

    u (B, T) are uniform numbers in [0, 1). Sorted by their times, positions are in an order that
    `orders` names.
    """
    T = u.size(1)
    position = torch.arange(T, device=u.device)
    block = position // block_length(orders, T)
    return block + u.double()       # a float32 could round a time up to the next block's


def infill_order(hidden: Tensor, before: Tensor) -> Tensor:
    """Left to right, but the places where `hidden` (B, T) is true come last: an order (B, T+m).

    `before` (B, m) has the last place ahead of the gap. It comes a second time in the order, just
    ahead of the gap. m is 1, or 0 if no row has a gap; a row without one then ends with that place.
    For T = 6, where the places 2 and 3 are hidden, `before` is [1], and the order is

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


def draw_orders(config: Config, x: Tensor, generator, l2r_fraction: float) -> Tensor:
    """The orders (B, T) in which the rows of x (B, T) are predicted, or (B, T+1) with infill.

    That of ar is 0 … T-1. Those of aogpt are drawn as config.orders says, but l2r_fraction of
    them are 0 … T-1 too. With an l2r_fraction of 0 the mean loss of aogpt is an upper bound on
    −log p(x)/T. There p(x) is the mean of the probabilities that the orders give to x, each order
    counted as often as it is drawn, and −log of a mean is at most the mean of −log (Jensen's
    inequality).

    With infill one span of a row comes last. Spans of 1, of 2 to 3, of 4 to 7 … tokens are
    equally frequent, and the span begins at any place but the first. In the rows that are left to
    right nothing is hidden. But all rows of a batch have T+1 slots, so there the last one repeats a
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


# ---- Masks: what mdlm learns ---------------------------------------------------------------------

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


def pool(batch: Batch) -> Batch:
    """The same predictions with equal weights. The loss, masked_ce, is then their plain mean.

    That is no bound: a row counts the more, the more of its tokens are masked."""
    predicted = (batch.weight > 0).float()                                      # (B, S)
    predictions_of_row = predicted.sum().clamp(min=1) / len(predicted)          # on average
    return batch._replace(weight=predicted / predictions_of_row)


def paper_batch(config: Config, x: Tensor, generator) -> Batch:
    """The paper's masks (arXiv 2603.22075), and its mean over all masked tokens of the batch.

    For each row t is uniform on (0, 1); each token is masked with the chance 1 − cos²(πt/2)."""
    t = torch.rand(len(x), generator=generator)                                 # (B,)
    ratio = 1 - torch.cos(math.pi / 2 * t) ** 2                                 # (B,)
    masked = torch.rand(x.shape, generator=generator) < ratio[:, None]          # (B, T)
    told = timestep(config, ratio)      # t itself, if the network was trained with this schedule
    batch = masking_batch(config, x, masked, told)
    return pool(two_streams(config, batch))


def one_block_batch(config: Config, x: Tensor, generator, known: int = 0) -> Batch:
    """The bound of block diffusion in its plainest form: each row predicts k tokens of one block b.

        −log p(x)/T ≤ E_b E_k E_M [(1/k) Σ_{i in M} −log p(x_i | b outside M, blocks before)]

    For each block that is the bound of `nelbo_batch`. b is the block of a random token, because a
    shorter last block counts less. Later blocks are all [MASK], and not seen. Where the first
    `known` tokens are given, it is the bound on −log p of the others, per token of these. Here T
    is the length of x, which may be shorter than the window. Training takes all blocks at once: see
    `all_blocks_batch`."""
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
    weight = F.pad(masked / k, (1, config.block_size - T))          # (B, block_size+1)
    return batch._replace(weight=weight)


# ---- What training and evaluation take -----------------------------------------------------------
# `all_blocks_batch` and `pack_pairs` are in the next section. They give the same losses as above,
# for all blocks at once and from fewer predictions.

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


@torch.no_grad()
def losses_in_parts(model: nn.Module, batch: Batch) -> Tensor:
    """`weighted_losses` without gradients, returned as float64 on the CPU.

    64 are computed at a time, or fewer, down to one, if 64 have too many logits: more than 64 MB on
    a CPU, whose cache they should fit, and more than a gigabyte on a GPU. `weighted_losses` takes
    twice as much, because logsumexp has a copy of them. For T = 512 and 50,257 words that is one
    window or pair at a time on a CPU, and ten on a GPU. It does not depend on how much memory is
    free, so that an evaluation gives the same numbers again."""
    device = model.head.weight.device
    logits_of_one = batch.targets.size(1) * model.config.vocab_size
    most_logits = 2 ** 24 if device.type == "cpu" else 2 ** 28
    at_once = min(64, max(1, most_logits // logits_of_one))
    losses = []
    for part in batch.split(at_once):
        part = part.to(device)
        losses.append(weighted_losses(model, part).cpu().double())
    return torch.cat(losses)


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
