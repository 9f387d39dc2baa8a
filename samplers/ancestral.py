"""
Ancestral sampling of masked diffusion: in each step a token is revealed by chance.

Adds: the sampler of the literature (Sahoo et al. 2024, arXiv 2406.07524). Each place has a uniform
time in [0, 1), and time is cut into equal steps. So each masked token is revealed with the
probability that the masking process gives it. Costs: steps that reveal nothing, which run no
network, and steps that reveal several. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --sampler=ancestral --steps=24
"""
import torch
import torch.nn.functional as F

from model import draw, mask_batch, probabilities
from support.flags import InputError


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if config.mode != "mdlm" or o.order:
        raise InputError("--sampler=ancestral is for --mode=mdlm, and without --order")
    return write


def logits_where(model, tokens, where):
    """Logits (n, V) of the n masked places of tokens (B, L) where `where` (B, L) is true.

    So one pass serves stories of which unequally many tokens are revealed."""
    config = model.config
    beyond = config.block_size - tokens.size(1)         # the network has learned whole windows
    window = F.pad(tokens, (0, beyond), value=config.mask_id)                   # (B, T)
    batch = mask_batch(config, window, window == config.mask_id)
    select = F.pad(where, (1, beyond)).flatten().nonzero().flatten()          # (n,) BOS has slot 0
    return model(batch.tokens, batch.key_pos, batch.target_pos, select)


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
