"""
The mask ratio: how often masked diffusion hides how many tokens, while it learns.

Adds: k, the number of hidden tokens, is most often near T/2, by the chances

    p(k)  in proportion to  (k (T+1−k))^(a−1),      k = 1 … T

of which a = 1 is model.py's uniform k, and the larger a, the narrower the bell. That is a
Beta(a, a) in steps; bell-shaped ratios are of arXiv 2605.13026. A bell hardly ever hides few
tokens, or nearly all: --uniform=0.1 mixes a tenth of uniform k into its chances. With --draws=N
each window is masked N times. Costs: nothing, but N masks make N rows to read. Plugs in as a
variant of training, and the loss that is reported stays model.py's bound (results/learning.md):

    python train.py --mode=mdlm --objective=masked_ce --variant=bell --bell=4
"""
from dataclasses import dataclass

import torch

import model as plain
from model import *         # what is not defined here is model.py's, and calls what is there
from support.flags import InputError, flag


@dataclass
class Config(plain.Config):
    """--variant=bell (mdlm): how many tokens are hidden while it learns"""
    bell: int = flag(4, "a: 1 hides each number of tokens equally often, more prefers half", low=1)
    uniform: float = flag(0.0, "share of the rows that hide each number equally often all the same")
    draws: int = flag(1, "masks of each window in a step; two of a window are complements", low=1)

    def __post_init__(self):
        super().__post_init__()
        if self.mode != "mdlm":
            raise InputError("--variant=bell is for --mode=mdlm")


def chances(config):
    """p(k) of k = 1 … T: (T,) float64."""
    k = torch.arange(1, config.block_size + 1, dtype=torch.float64)             # (T,)
    # As logarithms, because powers of large numbers would overflow.
    p = ((config.bell - 1) * (k * (config.block_size + 1 - k)).log()).softmax(dim=0)
    return (1 - config.uniform) * p + config.uniform / config.block_size


def draw_masks(config, x, generator):
    """Where x (B, T) is masked (B, T). As in model.py, but k has the chances p(k).

    Here too the numbers u are spread evenly, and the rows of a pair mask k and T+1−k tokens. If
    they are of the same window, the second masks what the first leaves, and one token more."""
    B, T = x.shape
    part = torch.randperm(B // 2, generator=generator)
    u = (part + torch.rand(B // 2, generator=generator)) / B                    # (B/2,) in [0, 1/2)
    cdf = chances(config).cumsum(dim=0)                                         # (T,)
    # By symmetry p has half of its mass below the middle, so this is the smaller k of each pair.
    k = 1 + torch.searchsorted(cdf, u.double(), right=True)                     # (B/2,)
    rank = torch.rand(B, T, generator=generator).argsort(dim=1)                 # (B, T)
    if config.draws > 1:
        rank[1::2] = T - 1 - rank[::2]
    k = torch.stack([k, T + 1 - k], dim=1).view(B, 1)                           # (B, 1)
    return rank < k


def training_batch(config, x, generator):
    """What is trained on: with objective nelbo the bound, with masked_ce equal weights.

    A row with k hidden tokens is drawn T p(k) times as often as the bound asks, so there it has
    1 / (T p(k)) times the weight."""
    x = x.repeat_interleave(config.draws, dim=0)                                # (draws · B, T)
    batch = plain.mask_batch(config, x, draw_masks(config, x, generator))
    if config.objective == "masked_ce":
        return plain.equal_weights(batch)
    k = (batch.weight > 0).sum(dim=1, keepdim=True)                             # (draws · B, 1)
    often = (chances(config) * config.block_size).float()                       # (T,)
    return batch._replace(weight=batch.weight / often[k - 1])
