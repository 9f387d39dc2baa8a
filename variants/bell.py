"""
The mask ratio: how often masked diffusion hides how many tokens, while it learns.

Adds: k, the number of hidden tokens, is most often near T/2, by the chances

    p(k)  in proportion to  (k (T+1−k))^(a−1),      k = 1 … T

of which a = 1 is model.py's uniform k, and the larger a, the narrower the bell. That is a
Beta(a, a) in steps; bell-shaped ratios are of arXiv 2605.13026. Costs: nothing. Plugs in as a
variant of training, and the loss that is reported stays model.py's bound (results/learning.md):

    python train.py --mode=mdlm --objective=masked_ce --variant=bell --bell=4
"""
from dataclasses import dataclass
from typing import Literal

import torch

import model
from model import MODES, draw_masks, mask_batch, spread, weighted
from support.flags import flag


@dataclass
class Config(model.Config):
    """--variant=bell (mdlm): how many tokens are hidden while it learns"""
    mode: Literal["mdlm"] = "mdlm"
    bell: int = flag(4, "a: 1 hides each number of tokens equally often, more prefers half", low=1)


def chances(config):
    """p(k) of k = 1 … T: (T,) float64."""
    k = torch.arange(1, config.block_size + 1, dtype=torch.float64)             # (T,)
    # As logarithms, because powers of large numbers would overflow.
    return ((config.bell - 1) * (k * (config.block_size + 1 - k)).log()).softmax(dim=0)


def bell_counts(config, B, generator):
    """How many tokens to mask in each row: k (B, 1), with the chances p(k).

    Here too the numbers u are spread evenly, and the rows of a pair mask k and T+1−k tokens."""
    u = spread(B // 2, generator) / 2                                           # (B/2,) in [0, 1/2)
    cdf = chances(config).cumsum(dim=0)                                         # (T,)
    # By symmetry p has half of its mass below the middle, so this is the smaller k of each pair.
    k = 1 + torch.searchsorted(cdf, u.double(), right=True)                     # (B/2,)
    return torch.stack([k, config.block_size + 1 - k], dim=1).view(B, 1)        # (B, 1)


def training_batch(config, x, generator):
    """What is trained on, with the weights of --objective.

    A row with k hidden tokens is drawn T p(k) times as often as the bound asks, so there it has
    1 / (T p(k)) times the weight. Equal weights stay equal."""
    k = bell_counts(config, len(x), generator)                                  # (B, 1)
    batch = mask_batch(config, x, draw_masks(x, k, generator))
    often = (chances(config) * config.block_size).float()                       # (T,)
    return weighted(config, batch._replace(weight=batch.weight / often[k - 1]))


Config.modes = {"mdlm": MODES["mdlm"]._replace(training_batch=training_batch)}
