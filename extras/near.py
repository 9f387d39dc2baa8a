"""
Near tokens alone: masked diffusion learns only from hidden tokens that have a visible one nearby.

Adds: a test of why it learns slowly. Where nothing near is visible, a token is predicted little
better than by the frequencies of words. If such tokens teach nothing, they can be left out of the
loss. With --alike=true as many hidden tokens of each row are left out, but any; so it is seen what
is due to their number. Costs: what is far from all that is visible is not learned. Plugs in as a
variant of training, and the loss that is reported stays model.py's bound (results/learning.md):

    python train.py --mode=mdlm --objective=masked_ce --variant=near --reach=2
"""
from dataclasses import dataclass

import torch

import model as plain
from model import *         # what is not defined here is model.py's, and calls what is there
from support.flags import InputError, flag


@dataclass
class Config(plain.Config):
    """--variant=near (mdlm): which hidden tokens it learns from"""
    reach: int = flag(2, "those whose nearest visible token is at most so many places away", low=1)
    alike: bool = flag(False, "as many, but any")

    def __post_init__(self):
        super().__post_init__()
        if self.mode != "mdlm":
            raise InputError("--variant=near is for --mode=mdlm")


def distance_to_visible(hidden) -> torch.Tensor:
    """For each slot of hidden (B, S), how far away the nearest slot that is not hidden is: (B, S).

    BOS, in slot 0, is never hidden."""
    slots = torch.arange(hidden.size(1)).expand_as(hidden)                      # (B, S)
    far = 2 * hidden.size(1)
    left = slots.masked_fill(hidden, -far).cummax(dim=1).values
    right = slots.masked_fill(hidden, far).flip(1).cummin(dim=1).values.flip(1)
    return torch.minimum(slots - left, right - slots)


def training_batch(config, x, generator):
    """As model.py's, but only near tokens have a weight, and all weights have the same sum."""
    batch = plain.training_batch(config, x, generator)
    hidden = batch.weight > 0                                                   # (B, S)
    kept = hidden & (distance_to_visible(hidden) <= config.reach)               # (B, S)
    if config.alike:
        chance = torch.rand(hidden.shape, generator=generator)                  # (B, S)
        rank = chance.masked_fill(~hidden, 2).argsort(dim=1).argsort(dim=1)     # (B, S)
        kept = rank < kept.sum(dim=1, keepdim=True)
    weight = batch.weight * kept
    return batch._replace(weight=weight * (batch.weight.sum() / weight.sum()))
