"""
Ancestral sampling of masked diffusion: in each step a token is revealed by chance.

Adds: the sampler of the literature (Sahoo et al. 2024, arXiv 2406.07524). Each place has a uniform
time in [0, 1), and time is cut into equal steps. So each masked token is revealed with the
probability that the masking process gives it. Costs: steps that reveal nothing, which run no
network, and steps that reveal several. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --sampler=ancestral --steps=24
"""
import torch

from extras.unmask import logits_where
from model import draw, probabilities
from support.flags import InputError


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if config.mode != "mdlm" or o.order:
        raise InputError("--sampler=ancestral is for --mode=mdlm, and without --order")
    return write


@torch.no_grad()
def write(model, tokens, times, noise, o):
    """Yields tokens (B, L) after each step. times (B, L) are uniform in [0, 1).

    With blocks of N tokens those of block b are uniform in [b, b+1)."""
    L = tokens.size(1)
    u = noise(L)                                                                # (B, L)
    # The times are in float64, which not every device has, so all this is where they are.
    free = (tokens == model.config.mask_id).to(times.device)                    # (B, L)
    steps = o.steps or int(free[0].sum())
    N = getattr(model.config, "block_length", L)
    block = torch.arange(L, device=times.device) // N                           # (L,)
    first = int(block[free[0]][0])              # all before it is given
    times = (times - first) / (int(block[-1]) + 1 - first)                      # from 0 up to 1
    # The block is added so that no step has tokens of two blocks.
    reveal_step = ((times * steps).long() + block).where(free, -1).to(tokens.device)    # (B, L)
    for step in range(int(reveal_step.max()) + 1):
        now = reveal_step == step                                               # (B, L)
        if now.any():
            p = probabilities(logits_where(model, tokens, now), o)    # (n, V)
            tokens = tokens.masked_scatter(now, draw(p, u[now.to(u.device)]))
        yield tokens
