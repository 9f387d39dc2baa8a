"""
Infill: a GPT that fills in the middle.

Adds: aogpt that writes from left to right, but can read the text after a gap before it fills the
gap (results/blanks.md). Costs: one slot more in each row. It fills one blank between words, no
other. Plugs in as the variant of a run, and brings its own Config, batches and `plan`:

    python train.py --mode=aogpt --variant=infill
    python sample.py --out_dir=out/toy-aogpt --prompt="One day, a ___ the park."
"""
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import model
from model import MODES, Batch, left_to_right
from support.flags import InputError, flag


@dataclass
class Config(model.Config):
    """--variant=infill (aogpt): a span of the text comes last"""
    mode: Literal["aogpt"] = "aogpt"
    l2r_fraction: float = flag(0.5, "share of the rows that it learns from left to right", low=0,
                               high=1)


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
    """Orders (B, T+1) for x (B, T), or from left to right (B, T) if all rows are.

    One span of a row comes last. Spans of 1, of 2 to 3, of 4 to 7 … tokens are equally frequent,
    and the span begins at any place but the first. In the rows that are left to right nothing is
    hidden. But all rows of a batch have T+1 slots, so there the last one repeats a position."""
    place = left_to_right(config, x)                                            # (B, T)
    if l2r_fraction == 1:
        return place
    T = x.size(1)
    u = torch.rand(3, len(x), 1, generator=generator)
    length = (T ** u[0]).long().clamp(max=T - 1)                                # (B, 1)
    start = 1 + (u[1] * (T - length)).long()                                    # (B, 1)
    inside = (place >= start) & (place < start + length)                        # (B, T)
    return infill_order(inside & (u[2] >= l2r_fraction), before=start - 1)


def infill_batch(config: Config, x: Tensor, generator, l2r_fraction: float = 0.0) -> Batch:
    """One loss for each row of x (B, T), a bound on −log p(row) / T.

    Where a position comes a second time in the order, that counts nothing."""
    order = draw_orders(config, x, generator, l2r_fraction)                     # (B, S)
    batch = model.order_batch(config, x, order)
    same = order[:, :, None] == order[:, None, :]                               # (B, S, S)
    predicted_before = same.tril(diagonal=-1).any(dim=2)                        # (B, S)
    return batch._replace(weight=batch.weight.masked_fill(predicted_before, 0))


def training_batch(config: Config, x: Tensor, generator) -> Batch:
    return infill_batch(config, x, generator, config.l2r_fraction)


# ---- How it writes -------------------------------------------------------------------------------

def left_of_blank(free: Tensor) -> Tensor:
    """The place (1,) of the last word before the blank, which `infill_order` has twice.

    free (L,) is true where a token is to be written. If no word comes after one of these, there is
    no blank, only an end to be written, and the result is empty, (0,). Raises InputError for any
    blank but one between words, which is what infill is trained for."""
    left, right = free[:-1], free[1:]
    place = (~left & right).nonzero()[:, 0]
    if not (left & ~right).any():
        return place[:0]
    if free[0] or len(place) > 1:
        raise InputError("--prompt must have words, one blank, and words, and --length no more, "
                         "for a model of --variant=infill")
    return place


def check_prompt(config: Config, pattern: Tensor):
    """Raises InputError for what such a model cannot write."""
    left_of_blank(pattern == config.mask_id)


def plan(config: Config, tokens, times, steps=0):
    """As model.py's, by `infill_order`, which may have a place twice: (B, L) or (B, L+1)."""
    free = tokens == config.mask_id                                             # (B, L)
    before = left_of_blank(free[0])                                             # (0 or 1,)
    order = infill_order(free, before.expand(len(free), -1))                    # (B, L+0 or 1)
    _, edges = model.plan(config, tokens, times, steps)
    return order, [edge + len(before) for edge in edges]


Config.modes = {"aogpt": MODES["aogpt"]._replace(
    orders="own", bound_batch=infill_batch, training_batch=training_batch, plan=plan,
    check_prompt=check_prompt)}
