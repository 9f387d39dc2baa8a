"""
Guess and check: several tokens a pass, with exactly the law of one token a pass.

Adds: aogpt drafts m tokens in one pass, and a second pass tells how many of them to keep. That is
speculative decoding by any-order drafts (Guo & Ermon 2025, arXiv 2504.20456). Costs: two passes a
round, so it gains where at least three of the drafts are kept. Plugs in as

    python sample.py --out_dir=out/toy-aogpt --sampler=drafts --draft=16
"""
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from extras.cache import Cache
from model import draw, probabilities
from support.flags import InputError, build, flag


@dataclass
class Options:
    """--sampler=drafts (aogpt): draft tokens, and keep what a second pass confirms"""
    draft: int = flag(16, "tokens that are drafted at once", low=1)


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    row = config.row
    if not row.causal or row.orders == "one" or o.steps or not o.cache:
        raise InputError("--sampler=drafts is for --mode=aogpt, without --steps and --cache=false")
    return partial(write, o=o, draft=build(Options, flags).draft)


def confirm(p, q, draft, u):
    """Tokens (B, m+1) and count (B, 1): the first `count` tokens are as if drawn one at a time.

    draft (B, m), numbers 0 … m-1, were drawn independently of each other from the laws
    q (B, m, V). p[:, i] (B, V) is the law of token i+1, given the drafts 0 … i; the last is for
    one token more than was drafted. Both are weights of any sum, as `probabilities` gives them.
    u (B, m) are uniform numbers.

    Draft 0 is kept, because none comes before it. Each other one is kept with the probability
    min(1, p/q) of its token, up to the first that is not. In its place a token is drawn from
    max(0, p − q), which makes up for that exactly (Leviathan et al. 2023, arXiv 2211.17192). If
    all are kept, one token more is drawn from the last p."""
    p = p / p.sum(dim=-1, keepdim=True)     # what `probabilities` keeps sums to less than 1
    q = q / q.sum(dim=-1, keepdim=True)
    # Draft 0 is always kept, so its law is dropped, and q[:, i] goes with p[:, i]. The token more
    # was not drafted: with q = 0 it is drawn from all of p.
    q = F.pad(q[:, 1:], (0, 0, 0, 1))                                           # (B, m, V)

    # Which of the drafts 1 … m-1 would be kept, if those before are?
    others = draft[:, 1:, None]                                                 # (B, m-1, 1)
    p_of_draft = p[:, :-1].gather(2, others)[:, :, 0]                           # (B, m-1)
    q_of_draft = q[:, :-1].gather(2, others)[:, :, 0]                           # (B, m-1)
    accepted = u[:, :-1] * q_of_draft < p_of_draft                              # (B, m-1)

    # The first rejection ends it.
    kept = 1 + accepted.cumprod(dim=1).sum(dim=1, keepdim=True)                 # (B, 1) from 1 to m

    # One token more, from what p has more of than q.
    place = kept[:, :, None] - 1                                                # (B, 1, 1)
    p_there = p.take_along_dim(place, dim=1)[:, 0]                              # (B, V)
    q_there = q.take_along_dim(place, dim=1)[:, 0]                              # (B, V)
    last = draw((p_there - q_there).clamp(min=0), u[:, -1])                     # (B,)
    tokens = F.pad(draft, (0, 1)).scatter(1, kept, last[:, None])               # (B, m+1)
    return tokens, kept + 1


@torch.no_grad()
def write(model, tokens, times, decide, noise, o, draft: int):
    """Each round drafts the next m tokens in one pass; a second pass tells how many to keep.

    With 2 tokens known and 3 to draft:

        first pass     slot 2, and its copies as slots 3, 4      draft tokens at order[2], [3], [4]
        second pass    slots 3, 4, 5, which hold these drafts    give the laws at order[3], [4], [5]
    """
    (B, L), device = tokens.shape, tokens.device
    order, edges = model.config.row.plan(model.config, tokens, times)           # (B, S)
    given, S = edges[0], edges[-1]
    m = min(draft, S - given)
    cache = Cache(model)
    # Drafts may go beyond the end. The network is told any place for these, and what it writes
    # there goes into a column L of the tokens, which is cut off.
    places = F.pad(order, (0, m + 1), value=L)                                  # (B, S+m+1)
    order = F.pad(order, (0, m + 1))                                            # (B, S+m+1)
    tokens = F.pad(tokens, (0, 1), value=model.config.bos_id)                   # (B, L+1)
    known = torch.full((B, 1), given, device=device)        # how far each story is in its order
    # The first pass of a round reads from slot known + unread on. In the first round that is slot
    # 0, as the given tokens are not in the cache yet; later it is the last known slot.
    unread = -given

    def laws(tokens, slots, last_known):
        logits = cache.predict(tokens, order, slots, last_known, m)             # (B, m, V)
        return probabilities(logits, o)

    def written(new, count):
        """The tokens with the first `count` of new (B, m+1) after the known ones."""
        ahead = known + torch.arange(m + 1, device=device)                      # (B, m+1)
        place = places.gather(1, ahead).where(ahead < known + count, L)         # (B, m+1)
        return tokens.scatter(1, place, new)

    while (known < S).any():
        u = noise(2 * m)                                                        # (B, 2m)

        # First pass: draft m tokens. The first of them is final.
        q = laws(tokens, known + torch.arange(unread, m, device=device), known)     # (B, m, V)
        drafted = draw(q, u[:, :m])                                             # (B, m)
        guess = F.pad(drafted, (0, 1))                                          # (B, m+1)
        yield written(guess, 1)[:, :L]
        if (known >= S - 1).all():      # the first draft was the last token
            return

        # Second pass: what would one token a pass have drawn, given these drafts?
        slots = known + torch.arange(1, m + 1, device=device)                   # (B, m)
        p = laws(written(guess, m), slots, slots[:, -1:])                       # (B, m, V)
        new, count = confirm(p, q, drafted, u[:, m:].to(p.device))              # (B, m+1), (B, 1)
        tokens = written(new, count)
        known = (known + count).clamp(max=S)
        unread = 0
        yield tokens[:, :L]
