"""
Write what is sure: in each pass as many tokens as the network is sure of.

Adds: masked diffusion in fewer passes, with a promise on what that costs (Ben-Hamu et al. 2025,
arXiv 2505.24857); and for aogpt the same, by slots for all places that are left. Costs: nothing
where the network is sure, and many passes where it is not. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --sampler=adaptive --risk=0.1

The masked tokens of a story are sorted by the entropy of their laws, the surest first. A token is
revealed if the entropies of those ahead of it sum to at most `risk` nats. Let p be the joint law of
the revealed tokens, and q the product of the laws of each, from which they are drawn. Then KL(p‖q)
is the sum of the single entropies less the joint one. The joint one is at least the largest single
one, so the KL is at most the risk. What was drawn does not influence what is kept; if it did, the
stories would not follow the law.

All this is of the network's own laws, those of temperature 1 and without top_p. Tokens may be drawn
from sharper laws, and the surest still come first, but then nothing is promised of the KL.
"""
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from extras.cache import Cache
from model import read_masked
from support.flags import InputError, build, flag


@dataclass
class Options:
    """--sampler=adaptive (mdlm, aogpt): reveal in each pass what the network is sure of"""
    risk: float = flag(0.1, "nats that a pass may be unsure of", low=0)


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    # A causal network that has not learned all orders, as that of infill, has one of its own.
    if o.steps or o.order or config.row.causal and config.row.orders != "any":
        raise InputError("--sampler=adaptive is for mdlm, and for aogpt that learned all orders, "
                         "without --steps and --order")
    return partial(write, choose=partial(within_risk, risk=build(Options, flags).risk))


def logits_of(model, tokens, row, place, appeared):
    """Logits (n, V) of the [MASK]s in these rows (n,), at these places (n,), of tokens (B, L).

    aogpt reads the known tokens in the order in which they appeared (B, L). The slots after them
    are copies of the last of these, and each predicts a place of its own: see extras/cache.py."""
    if not model.config.row.causal:
        return read_masked(model, tokens, row, place)
    known = tokens != model.config.mask_id                                      # (B, L)
    order = appeared.where(known, torch.inf).argsort(dim=1, stable=True)        # (B, L)
    slots = torch.arange(tokens.size(1), device=tokens.device).expand_as(order)
    last_known = known.sum(dim=1, keepdim=True)         # (B, 1), because BOS has slot 0
    logits = Cache(model).predict(tokens, order, slots, last_known, tokens.size(1))  # (B, L, V)
    rank = order.argsort(dim=1)                 # (B, L) where in the order each place is
    return logits[row, rank[row, place]]


def within_risk(nats, risk):
    """Which places (B, L) are revealed, by the entropies nats (B, L) of their laws; inf is known.

    A place is revealed if the nats of all surer places of its row sum to at most `risk`. So the
    surest place of a row always is, whatever the risk."""
    ascending, place = nats.sort(dim=1, stable=True)
    before = F.pad(ascending.cumsum(dim=1)[:, :-1], (1, 0))                     # (B, L)
    within = torch.zeros_like(nats, dtype=torch.bool).scatter(1, place, before <= risk)
    return within & nats.isfinite()


@torch.no_grad()
def write(model, tokens, times, decide, noise, choose):
    """Yields tokens (B, L) after each pass, until all are written, block after block.

    times (B, L) are below 1; in blocks those of block b are from b to b+1. `choose` says which
    places are revealed, by entropies, as `within_risk` does."""
    block = times.floor().float().to(tokens.device)                             # (B, L)
    appeared = torch.zeros(tokens.shape, device=tokens.device)      # (B, L) the pass of each token
    for step in range(1, tokens.size(1) + 1):       # each pass reveals at least one token
        masked = tokens == model.config.mask_id                                 # (B, L)
        if not masked.any():
            return
        first = block.where(masked, torch.inf).amin(dim=1, keepdim=True)        # (B, 1)
        row, place = (masked & (block == first)).nonzero(as_tuple=True)         # (n,) each
        logits = logits_of(model, tokens, row, place, appeared)                 # (n, V)
        nats = logits.new_full(tokens.shape, torch.inf)                         # (B, L)
        nats[row, place] = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)   # −Σ p ln p
        now = choose(nats)[row, place]                                          # (n,)
        row, place = row[now], place[now]
        tokens = tokens.index_put((row, place), decide(logits[now], row, place))
        appeared[row, place] = step
        yield tokens
