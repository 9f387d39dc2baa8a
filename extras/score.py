"""
How likely a model finds a whole text, of any length.

Adds: exact scores for ar, bounds for mdlm and aogpt, or exact ones in one order. Costs: a row of a
batch for each window and draw; for mdlm in one order a row for each token. Plugs in as

    python -m extras.compare ar=out/toy-ar mdlm=out/toy-mdlm --text=mine.txt
"""
import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tqdm import tqdm

import variants.blocks
import variants.infill
import model as plain
from support.flags import InputError
from support.runs import random_numbers
from train import losses_in_parts


class Score(NamedTuple):
    """What a model finds of one text."""
    nats: float         # −log p of the whole text, or an upper bound on it
    variance: float     # of nats, over draws of masks or orders; 0 where nats is exact
    tokens: int


def score_texts(model, variant, texts: list, order="bound", draws=32, stride=0) -> list:
    """The Score of each text, which is a list of token ids.

    Of two texts that begin alike, the model finds the continuation of the one with fewer nats
    likelier. What `order`, `draws` and `stride` mean is said at the flags of extras/compare.py."""
    bar = tqdm(texts, unit="text", leave=False, disable=None)
    return [score_text(model, variant, ids, order, draws, stride, seed)
            for seed, ids in enumerate(bar)]


def score_text(model, variant, ids: list, order="bound", draws=32, stride=0, seed=0) -> Score:
    """The Score of a text of any length, which is a list of token ids. The seed is for the draws.

    By the chain rule −log p(text) is a sum over parts of −log p(part | what comes before). The
    first part is a window of T tokens, or the text, if it is shorter. Each other one is the next
    `stride` tokens, and of what comes before it the model sees as much as the window has room for.
    So with a smaller stride each token has more context, and all takes longer. Raises InputError
    for a stride longer than the window."""
    config = model.config
    T = config.block_size
    if variant is variants.infill:
        order = "left_to_right"         # a part of its training; a text has no span that is last
    stride = stride or max(1, T // 2)
    if stride > T:
        raise InputError(f"--stride={stride} must not exceed the window, {T}")
    exact = order != "bound" or config.mode not in ("mdlm", "aogpt")
    edges = [0, *range(T, len(ids), stride), len(ids)]
    parts = list(itertools.pairwise(edges)) if ids else []
    nats, variance = 0.0, 0.0
    for start, end in tqdm(parts, unit="window", leave=False, disable=None):
        window = torch.tensor(ids[max(0, end - T):end])                         # (L,)
        new = end - start
        rows = 1 if exact else draws
        generator = random_numbers(seed, start)
        batch = part_batch(config, variant, window, new, order, rows, generator)
        # One loss for each draw or, where all is exact, for each turn of the part.
        losses = losses_in_parts(model, variant.losses, batch)
        if exact:
            nats += losses.sum().item()
        else:
            nats += losses.mean().item()
            variance += losses.var().item() / draws
    return Score(nats, variance, len(ids))


def part_batch(config, variant, window, new: int, order: str, rows: int, generator):
    """What predicts the last `new` tokens of a window (L,) from those before, which are known."""
    if config.mode != "mdlm":
        left_to_right = order == "left_to_right"
        return in_some_order(config, variant, window, new, left_to_right, rows, generator)
    L = len(window)
    if order == "bound":
        x = window.expand(rows, L)
        batch = variants.blocks.one_block_batch(config, x, generator, known=L - new)
        return batch._replace(weight=batch.weight * new)
    times = torch.arange(L)                                                     # (L,)
    if order == "random":
        N = getattr(config, "block_length", L)
        times = times // N + torch.rand(L, generator=generator).double()
    return unmasked_in_turn(config, window, turn=times[-new:].argsort().argsort())


def in_some_order(config, variant, window, new: int, left_to_right: bool, rows: int, generator):
    """For ar and aogpt: (rows,) losses, each −log p of the new tokens in an order, in nats."""
    L = len(window)
    x = window.expand(rows, L)                                                  # (rows, L)
    order = variant.draw_orders(config, x, generator, l2r_fraction=float(left_to_right))
    is_new = order >= L - new                                                   # (rows, L)
    known_first = is_new.int().argsort(dim=1, stable=True)
    order = order.gather(1, known_first)                                        # (rows, L)
    is_new = is_new.gather(1, known_first)                                      # (rows, L)
    batch = plain.order_batch(config, x, order)
    return batch._replace(weight=is_new.float())


def unmasked_in_turn(config, window, turn):
    """For mdlm: (new,) losses, of the token of each turn. In sum they are exact.

    turn (new,) says when each of the new tokens comes. At step j those before it are known, and
    what lies beyond the text is not."""
    new = len(turn)
    known = len(window) - new
    beyond = config.block_size - len(window)
    step = torch.arange(new)[:, None]                                           # (new, 1)
    masked = F.pad(turn >= step, (known, 0))                                    # (new, L)
    masked = F.pad(masked, (0, beyond), value=True)                             # (new, T)
    x = F.pad(window, (0, beyond)).expand(masked.shape)                         # (new, T)
    batch = plain.mask_batch(config, x, masked)
    slot = 1 + known + turn.argsort()[:, None]      # (new, 1) of the token to predict; BOS has 0
    weight = torch.zeros_like(batch.weight).scatter(1, slot, 1.0)               # (new, T+1)
    return batch._replace(weight=weight)
