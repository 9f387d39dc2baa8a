"""
Write what is sure: in each pass as many tokens as the network is sure of.

Adds: masked diffusion in fewer passes, with a promise on what that costs (Ben-Hamu et al. 2025,
arXiv 2505.24857). Costs: nothing where the network is sure, and many passes where it is not. Plugs
in as

    python sample.py --out_dir=out/toy-mdlm --sampler=adaptive --risk=0.1

The masked tokens of a story are sorted by the entropy of the laws that they are drawn from, the
surest first. A token is revealed if the entropies of those ahead of it sum to at most `risk` nats.
Let p be the joint law of the revealed tokens, and q the product of the laws of each, from which
they are drawn. Then KL(p‖q) is the sum of the single entropies less the joint one. The joint one is
at least the largest single one, so the KL is at most the risk. What was drawn does not influence
what is kept; if it did, the stories would not follow the law. With a temperature of 0 nothing is
left to chance, and the entropies are those at temperature 1, so that the surest still come first.
"""
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

from extras.unmask import logits_where
from model import draw, probabilities
from support.flags import InputError, build, flag


@dataclass
class Options:
    """--sampler=adaptive (mdlm): reveal in each pass what the network is sure of"""
    risk: float = flag(0.1, "nats that a pass may be unsure of", low=0)


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if config.mode != "mdlm" or o.steps or o.order:
        raise InputError("--sampler=adaptive is for --mode=mdlm, without --steps and --order")
    return partial(write, risk=build(Options, flags).risk)


def entropies(logits, o):
    """Nats (n,) of the laws that tokens are drawn from, from logits (n, V)."""
    law = probabilities(logits, replace(o, temperature=o.temperature or 1.0))   # (n, V)
    law = law / law.sum(dim=-1, keepdim=True)
    return torch.special.entr(law).sum(dim=-1)          # −Σ p ln p, where 0 ln 0 is 0


@torch.no_grad()
def write(model, tokens, times, noise, o, risk: float):
    """Yields tokens (B, L) after each pass, until all are written, block after block."""
    config, L = model.config, tokens.size(1)
    u = noise(L)                                                                # (B, L)
    block = torch.arange(L, device=tokens.device) // getattr(config, "block_length", L)     # (L,)
    masked = tokens == config.mask_id                                           # (B, L)
    while masked.any():
        unfinished = block[masked.any(dim=0)]
        masked &= block == unfinished[0]        # the stories of a batch keep pace with each other
        logits = logits_where(model, tokens, masked)                               # (n, V)
        drawn = draw(probabilities(logits, o), u[masked.to(u.device)])
        single = entropies(logits, o)                                           # (n,)
        nats = single.new_full(tokens.shape, torch.inf).masked_scatter(masked, single)  # (B, L)
        ascending, place = nats.sort(dim=1, stable=True)
        before = F.pad(ascending.cumsum(dim=1)[:, :-1], (1, 0))                 # (B, L)
        within = torch.zeros_like(masked).scatter(1, place, before <= risk)     # (B, L)
        new = tokens.masked_scatter(masked, drawn)
        tokens = torch.where(within & masked, new, tokens)
        masked = tokens == config.mask_id
        yield tokens
