"""
Ancestral sampling of masked diffusion: in each step a token is revealed by chance.

Adds: the sampler of the literature (Sahoo et al. 2024, arXiv 2406.07524). Each place has a uniform
time in [0, 1), and time is cut into equal steps. So each masked token is revealed with the
probability that the masking process gives it. Costs: steps that reveal nothing, which run no
network, and steps that reveal several. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --sampler=ancestral --steps=24
"""
from functools import partial

import torch

from model import read_masked
from support.flags import InputError


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if config.row.causal or o.order:
        raise InputError("--sampler=ancestral is for --mode=mdlm, and without --order")
    return partial(write, steps=o.steps)


@torch.no_grad()
def write(model, tokens, times, decide, noise, steps: int = 0):
    """Yields tokens (B, L) after each pass. times (B, L) are uniform in [0, 1).

    In blocks those of block b are uniform in [b, b+1)."""
    # The times are in float64, which not every device has, so all this is where they are.
    free = (tokens == model.config.mask_id).to(times.device)                    # (B, L)
    steps = steps or int(free[0].sum())
    block = times.floor()                                                       # (B, L)
    first, last = block[free].min(), block.max()
    share = (times - first) / (last + 1 - first)        # of the way from the first block's begin
    # The block is added so that no step has tokens of two blocks.
    reveal_step = ((share * steps).floor() + block).where(free, -1).long()      # (B, L)
    # Now the steps of each text are counted without those that reveal nothing of it.
    ascending, place = reveal_step.sort(dim=1)                                  # (B, L)
    given = torch.full_like(ascending[:, :1], -1)                               # (B, 1)
    count = (ascending.diff(dim=1, prepend=given) > 0).cumsum(dim=1) - 1        # (B, L)
    passes = count.scatter(1, place, count).to(tokens.device)                   # (B, L)
    for step in range(int(passes.max()) + 1):
        row, place = (passes == step).nonzero(as_tuple=True)                    # (n,) each
        logits = read_masked(model, tokens, row, place)                         # (n, V)
        tokens = tokens.index_put((row, place), decide(logits, row, place))
        yield tokens
