"""
Local orders: an any-order GPT learns more often from orders that write neighbours in succession.

Adds: in a share of its rows the window is cut into stretches of N tokens, at places that differ
from row to row. The stretches come in random order, and each is written from left to right. So a
token sees one beside it more often than in a random order, which is what a bell-shaped mask ratio
does for masked diffusion (extras/bell.py). Costs: nothing; the loss that is reported stays
model.py's, of random orders alone. Plugs in as a variant of training (results/learning.md):

    python train.py --mode=aogpt --variant=local --local=0.5 --stretch=8
"""
from dataclasses import dataclass

import torch

import model as plain
from model import *         # what is not defined here is model.py's, and calls what is there
from support.flags import InputError, flag


@dataclass
class Config(plain.Config):
    """--variant=local (aogpt): the orders that it learns from"""
    local: float = flag(0.5, "share of the rows whose order is of stretches")
    stretch: int = flag(8, "N, the tokens of a stretch", low=1)

    def __post_init__(self):
        super().__post_init__()
        if self.mode != "aogpt":
            raise InputError("--variant=local is for --mode=aogpt")


def local_orders(N, x, generator):
    """Orders (B, T) for x (B, T): stretches of N tokens in random order, each from left to right.

    The first and the last stretch of a row may be shorter."""
    B, T = x.shape
    start = torch.randint(N, (B, 1), generator=generator)                       # (B, 1)
    stretch = (torch.arange(T) + start) // N                                    # (B, T)
    when = torch.rand(B, T // N + 2, generator=generator).gather(1, stretch)    # (B, T)
    return when.argsort(dim=1, stable=True)


def training_batch(config, x, generator):
    """The chain rule in model.py's orders, but in a share of the rows in local ones."""
    order = plain.draw_orders(config, x, generator, config.l2r_fraction)        # (B, T)
    chosen = torch.rand(len(x), 1, generator=generator) < config.local          # (B, 1)
    of_stretches = local_orders(config.stretch, x, generator)                   # (B, T)
    return order_batch(config, x, torch.where(chosen, of_stretches, order))
