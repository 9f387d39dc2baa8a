"""
Write what is sure: in each pass as many tokens as the network is sure of.

Adds: masked diffusion in fewer passes, with a promise on what that costs (Ben-Hamu et al. 2025,
arXiv 2505.24857); and for aogpt the same, by slots for all places that are left. Costs: nothing
where the network is sure, and many passes where it is not. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --sampler=adaptive --risk=0.1

The masked tokens of a story are sorted by the entropy of the laws that they are drawn from, the
surest first. A token is revealed if the entropies of those ahead of it sum to at most `risk` nats.
Let p be the joint law of the revealed tokens, and q the product of the laws of each, from which
they are drawn. Then KL(p‖q) is the sum of the single entropies less the joint one. The joint one is
at least the largest single one, so the KL is at most the risk. What was drawn does not influence
what is kept; if it did, the stories would not follow the law. With a temperature of 0 nothing is
left to chance, and the entropies are those at temperature 1, so that the surest still come first.
"""
import itertools
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

from extras.cache import Cache
from samplers.ancestral import logits_where
from model import draw, probabilities
from support.flags import InputError, build, flag


@dataclass
class Options:
    """--sampler=adaptive (mdlm, aogpt): reveal in each pass what the network is sure of"""
    risk: float = flag(0.1, "nats that a pass may be unsure of", low=0)


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if config.mode not in ("mdlm", "aogpt") or o.steps or o.order:
        raise InputError("--sampler=adaptive is for mdlm and aogpt, without --steps and --order")
    return partial(write, risk=build(Options, flags).risk)


def entropies(logits, o):
    """Nats (n,) of the laws that tokens are drawn from, from logits (n, V)."""
    law = probabilities(logits, replace(o, temperature=o.temperature or 1.0))   # (n, V)
    law = law / law.sum(dim=-1, keepdim=True)
    return torch.special.entr(law).sum(dim=-1)          # −Σ p ln p, where 0 ln 0 is 0


def logits_of_masked(model, tokens, masked, appeared):
    """Logits (n, V) of the n masked places of tokens (B, L) where masked (B, L) is true.

    aogpt reads the known tokens in the order in which they appeared (B, L). The slots after them
    are copies of the last of these, and each predicts a place of its own: see extras/cache.py."""
    if model.config.mode == "mdlm":
        return logits_where(model, tokens, masked)
    known = tokens != model.config.mask_id                                      # (B, L)
    order = appeared.where(known, torch.inf).argsort(dim=1, stable=True)        # (B, L)
    slots = torch.arange(tokens.size(1), device=tokens.device).expand_as(order)
    last_known = known.sum(dim=1, keepdim=True)         # (B, 1), because BOS has slot 0
    logits = Cache(model).predict(tokens, order, slots, last_known, tokens.size(1))  # (B, L, V)
    in_place = logits.gather(1, order.argsort(dim=1)[:, :, None].expand_as(logits))  # (B, L, V)
    return in_place[masked]


def within_risk(nats, risk):
    """Which places (B, L) are revealed, by the entropies nats (B, L) of their laws; inf is known.

    In each row those whose surer places sum to at most `risk` nats, so always the surest of all."""
    ascending, place = nats.sort(dim=1, stable=True)
    before = F.pad(ascending.cumsum(dim=1)[:, :-1], (1, 0))                     # (B, L)
    within = torch.zeros_like(nats, dtype=torch.bool).scatter(1, place, before <= risk)
    return within & nats.isfinite()


@torch.no_grad()
def write(model, tokens, times, noise, o, risk: float):
    """Yields tokens (B, L) after each pass, until all are written, block after block."""
    config, L = model.config, tokens.size(1)
    u = noise(L)                                                                # (B, L)
    block = torch.arange(L, device=tokens.device) // getattr(config, "block_length", L)     # (L,)
    masked = tokens == config.mask_id                                           # (B, L)
    appeared = torch.zeros(tokens.shape, device=tokens.device)      # (B, L) the pass of each token
    for step in itertools.count(1):
        if not masked.any():
            return
        unfinished = block[masked.any(dim=0)]
        masked &= block == unfinished[0]        # the stories of a batch keep pace with each other
        logits = logits_of_masked(model, tokens, masked, appeared)              # (n, V)
        drawn = draw(probabilities(logits, o), u[masked.to(u.device)])
        single = entropies(logits, o)                                           # (n,)
        nats = single.new_full(tokens.shape, torch.inf).masked_scatter(masked, single)  # (B, L)
        new = tokens.masked_scatter(masked, drawn)
        now = within_risk(nats, risk)                                           # (B, L)
        tokens = torch.where(now, new, tokens)
        appeared = appeared.masked_fill(now, step)
        masked = tokens == config.mask_id
        yield tokens
