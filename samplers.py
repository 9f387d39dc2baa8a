"""
How the models write: a sampler for each mode in its plainest form, then faster ones.

A pass is one run of the network. ar writes one token a pass, from left to right. aogpt writes in a
random or a given order, one token a pass, or several that are drawn independently of each other,
which is faster but not exact. With --draft it is exact: a second pass accepts or rejects each of
them. mdlm reveals masked tokens anywhere, and each of its passes reads the whole window. If it was
trained with --orders=blocks:N, it finishes one block after another, and with a cache most of its
passes read N tokens only, see `cached_blocks`.

    plain                   fast
    write_left_to_right     write_in_order          ar
    write_in_any_order      write_in_order          aogpt
                            write_and_confirm       aogpt with --draft
    unmask_one_by_one       unmask                  mdlm, first_hitting and ancestral
                            unmask_within_risk      mdlm, adaptive
                            unmask_surest           mdlm, confidence

The function to call is `generate`; `states` chooses from the fast ones. sample.py is the command.
"""
import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from cli import InputError, check_flags, flag
from model import Cache, Transformer, new_keys_values, slots_seen
from objectives import draw_orders, infill_order, masking_batch, order_batch, reveal_times


# The flags of sample.py. Of these the plain samplers read temperature and top_p alone.

@dataclass
class SampleOptions:
    """what to write, and how"""
    out_dir: str = flag("", "the run to sample from; its best.pt is read")
    num_samples: int = flag(3, "stories", low=1)
    length: int | None = flag(
        None, "tokens a story; default: the window, or the prompt if it has blanks", low=1)
    prompt: str = flag(
        "", "begin with this text, or with that of FILE:name; ___ in it is a blank to be filled "
        "(mdlm, aogpt)", as_typed=True)
    blank: int = flag(8, "tokens of a blank", low=1)
    sampler: Literal["first_hitting", "ancestral", "confidence", "adaptive"] = flag(
        "first_hitting", "mdlm reveals in each step: equally many, by chance, the likeliest, or as "
        "many as it is sure of")
    risk: float = flag(0.1, "with --sampler=adaptive: nats that a pass may be unsure of", low=0)
    order: str = flag(
        "", "aogpt: random, left_to_right, infill, blocks:N, or all positions as wanted: 2,0,1; "
        "default: as in training")
    steps: int | None = flag(
        None, "passes a story, or a few more in blocks and beyond the window; default: one a token",
        low=1)
    temperature: float = flag(
        1.0, "1 samples the model's distribution, 0 takes the likeliest token", low=0)
    top_p: float = flag(
        1.0, "keep the likeliest tokens with this much probability", low=1e-9, high=1)
    final_temperature: float | None = flag(
        None, "with --sampler=confidence the temperature falls to this one", low=0)
    repetition_penalty: float = flag(
        1.0, "with --sampler=confidence tokens that occur become rarer", low=1)
    protocol: Literal["own", "paper"] = flag(
        "own", "paper: what its code did (arXiv 2603.22075), for flags that are not given")
    draft: int | None = flag(
        None, "aogpt: draft so many tokens at once, keep what a second pass confirms", low=1)
    batch_size: int = flag(64, "stories at a time; changes speed, not stories", low=1)
    full_length: bool = flag(False, "keep what comes after the end of the story")
    show: bool = flag(False, "watch the tokens appear")
    out: str = flag(
        "", "file of stories; default: in out_dir samples.jsonl, with --show shown.jsonl",
        file=(".jsonl",))
    json: str = flag("", "file for settings, seconds, passes, grammatical share", file=(".json",))
    seed: int = flag(1337, "of the stories", low=0, high=10 ** 15)
    device: str = flag("auto", "auto, cpu, cuda or mps")

    def __post_init__(self):
        check_flags(self)


# ---- Drawing a token -----------------------------------------------------------------------------
# B stories, L tokens each, V words. A number u in [0, 1) decides on a token. Every story has random
# numbers of its own, so that it does not depend on what else is in its batch.

def uniforms(generators: list, length: int, device: torch.device) -> torch.Tensor:
    """(B, length) float64 numbers in [0, 1), the next ones of each of the B generators."""
    u = torch.from_numpy(np.stack([generator.random(length) for generator in generators]))
    return u.to("cpu" if device.type == "mps" else device)      # mps has no float64


def probabilities(logits, o: SampleOptions, temperature: float | None = None):
    """Weights (…, V) of tokens, from logits (…, V): their probabilities, but of some tokens 0.

    The temperature is by default o.temperature; 0 keeps the likeliest token alone, with the
    probability that it has at temperature 1. o.top_p keeps the smallest set of likeliest tokens
    that has this much probability. What is kept is not rescaled to sum to 1: `invert` takes any
    sum, and the sampler `confidence` compares probabilities."""
    if temperature is None:
        temperature = o.temperature
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature < 1e-6:
        p, token = logits.softmax(dim=-1).max(dim=-1, keepdim=True)             # (…, 1) each
        return torch.zeros_like(logits).scatter(-1, token, p)
    p = (logits / temperature).softmax(dim=-1)
    if o.top_p == 1:
        return p
    p, token = p.sort(dim=-1, descending=True)                                  # (…, V) each
    likelier = p.cumsum(dim=-1) - p         # the mass of all tokens that are likelier than this one
    kept = p * (likelier < o.top_p)
    return torch.zeros_like(p).scatter(-1, token, kept)


def invert(p, u):
    """Tokens (…) drawn from weights p (…, V) of any sum, by uniform numbers u (…).

    The token is the first at which the running sum of the weights exceeds u times their total. The
    sum is in float64, because float32 would cut off the tail of the distribution, and so lower the
    real temperature (Zheng et al. 2024, arXiv 2409.02908)."""
    cdf = p.cumsum(dim=-1, dtype=torch.float64)                                 # (…, V)
    threshold = u[..., None] * cdf[..., -1:]                                    # (…, 1)
    token = torch.searchsorted(cdf, threshold, right=True)[..., 0]              # (…)
    return token.clamp(max=p.size(-1) - 1)      # where all weights are 0, the search ends at V


def draw(logits, u, o: SampleOptions, temperature: float | None = None):
    """Tokens (P,) from logits (P, V) by uniform numbers u (P,), and the probability of each.

    It takes a few rows at a time, because the sums in float64 would not fit the cache of a CPU."""
    tokens, chances = [], []
    numbers = 2 ** 19 if u.is_cpu else 2 ** 23
    rows = max(1, numbers // logits.size(-1))
    for some_logits, some_u in zip(logits.split(rows), u.split(rows)):
        p = probabilities(some_logits.to(u.device), o, temperature)       # (rows, V)
        token = invert(p, some_u)                                               # (rows,)
        tokens.append(token)
        chances.append(p.gather(-1, token[:, None])[:, 0])
    tokens, chances = torch.cat(tokens), torch.cat(chances).float()
    return tokens.to(logits.device), chances.to(logits.device)


def entropy(logits, o: SampleOptions):
    """The entropies (P,), in nats, of the laws that `draw` draws from, given logits (P, V).

    At temperature 0 nothing is drawn at random, so all of them would be 0. There they are those at
    temperature 1, which still say how sure the network is."""
    if o.temperature < 1e-6:
        o = replace(o, temperature=1.0, top_p=1.0)
    logits = logits.float() / o.temperature
    if o.top_p < 1:
        kept = probabilities(logits, o, temperature=1.0) > 0                    # (P, V)
        logits = logits.masked_fill(~kept, -torch.inf)
    return torch.distributions.Categorical(logits=logits).entropy()


def u_at(u, position):
    """From u (B, L) the number of each story at its position (B, 1): (B,)."""
    return u.gather(1, position.to(u.device))[:, 0]


# ---- The plain samplers: one token a pass --------------------------------------------------------
# tokens (B, L) has what is given, and [MASK] elsewhere; each sampler yields it after every pass.
# order (B, L) has the positions in the order of writing, and the first `given` of them are known;
# if infill fills a blank, one of these comes twice, and order is (B, L+1). u (B, L) has a number
# for every position. Who only wants to know how these models write can stop reading after these
# three. The command runs faster ones, which write the same stories, and a test compares them; the
# test alone calls these.

def write_left_to_right(model, tokens, given: int, u, o: SampleOptions):
    """ar: each new token takes a pass over all before it."""
    for j in range(given, tokens.size(1)):
        known = F.pad(tokens[:, :j], (1, 0), value=model.config.bos_id)     # (B, j+1) BOS, x_0 …
        position = torch.arange(-1, j, device=tokens.device)[None]          # (1, j+1)
        logits = model(known, key_pos=position, target_pos=position + 1)    # (B, j+1, V)
        new, _ = draw(logits[:, -1], u[:, j], o)                            # (B,)
        tokens = tokens.select_scatter(new, dim=1, index=j)
        yield tokens


def write_in_any_order(model, tokens, order, given: int, u, o: SampleOptions):
    """aogpt: slot j sees BOS and the first j tokens of the order, and predicts the next one."""
    for j in range(given, order.size(1)):
        batch = order_batch(model.config, tokens, order)        # the slots after j are not seen
        logits = model(batch.tokens, batch.key_pos, batch.target_pos)       # (B, L, V)
        position = order[:, j:j + 1]                                        # (B, 1)
        new, _ = draw(logits[:, j], u_at(u, position), o)               # (B,)
        tokens = tokens.scatter(1, position, new[:, None])
        yield tokens


def unmask_one_by_one(model, tokens, order, given: int, u, o: SampleOptions):
    """mdlm: all masked tokens are predicted, and the one whose turn has come is revealed."""
    for j in range(given, tokens.size(1)):
        masked = tokens == model.config.mask_id                             # (B, L)
        batch = masking_batch(model.config, tokens, masked)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, batch.t,
                       stage=batch.stage)                                       # (B, T+1, V)
        position = order[:, j:j + 1]                                        # (B, 1)
        slot = position[:, :, None] + 1                                   # (B, 1, 1) BOS has slot 0
        logits = logits.take_along_dim(slot, dim=1)[:, 0]                   # (B, V)
        new, _ = draw(logits, u_at(u, position), o)                     # (B,)
        tokens = tokens.scatter(1, position, new[:, None])
        yield tokens


# ---- The same, faster: ar and aogpt with a cache, and several tokens a pass ----------------------
# Slot 0 holds BOS, and slot j the token at order[j-1]; it predicts the token at order[j]. In the
# order 2 0 3 1, for example,
#
#     slot         0     1     2     3
#     holds        BOS   x_2   x_0   x_3
#     predicts     x_2   x_0   x_3   x_1
#
# The cache keeps keys and values of slots whose token is known. To predict m tokens at once, the
# last known slot is joined by the next m-1 slots. Their own tokens are not known yet, so they are
# made copies of it: each holds the last known token, but predicts at a place of its own. In the
# next pass they are read again, with the tokens they should hold. A copy does not see the slot that
# it copies, because it holds the same token itself. Nor does it see other copies. For 4 tokens, 2 a
# pass, x marks the slots (columns) that each slot (rows) sees:
#
#                                  slot 0  1  2  3
#     pass 0     slot 0                 x
#                slot 1, copy of 0      .  x
#     pass 1     slot 1                 x  x
#                slot 2                 x  x  x
#                slot 3, copy of 2      x  x  .  x

def slots_in_order(model, tokens, order, spare: int = 0):
    """What the slots of an order (B, L) hold, and a function that runs the network on some of them.

    Returns held (B, L+1+spare), for the caller to fill in, and `predict`. Spare slots come last."""
    (B, L), device = order.shape, order.device
    known = tokens.gather(1, order)                                             # (B, L)
    held = F.pad(known, (1, spare), value=model.config.bos_id)                  # (B, L+1+spare)
    # The positions that the slots predict, and those of the tokens that they hold.
    target = F.pad(order, (0, spare))                                           # (B, L+spare)
    position = F.pad(target, (1, 0), value=-1)                                  # (B, L+1+spare)
    keys_values = new_keys_values(model, B, L + spare)

    def predict(slots, last_known, m: int):
        """Logits (B, m, V) of the last m of the slots (B, S).

        Those after last_known (B, 1) are copies of it."""
        S = slots.size(1)
        n = L + spare
        if device.type == "cpu":        # a GPU is faster if it need not wait, and shapes stay
            n = int(slots.max()) + 1    # no slot of this call sees a slot from n on
        copied_from = slots.minimum(last_known)                                 # (B, S)
        # A copy sees itself and the slots before the one that it copies. For a slot that is no copy
        # copied_from is its own number, so it sees itself and all slots before it.
        other = torch.arange(n, device=device)                                  # (n,)
        itself = other == slots[:, :, None]                                     # (B, S, n)
        visible = itself | (other < copied_from[:, :, None])                    # (B, S, n)
        cache = Cache(keys_values, slots, visible[:, None])
        select = torch.arange(S - m, S, device=device).expand(B, -1)            # (B, m)
        return model(held.gather(1, copied_from), position.gather(1, copied_from),
                     target.gather(1, slots), select=select, cache=cache)

    return held, predict


def write_in_order(model, tokens, order, given: int, u, steps: int, o: SampleOptions):
    """ar and aogpt: what is not given is written in `steps` groups, one after the other."""
    B, L = order.shape
    held, predict = slots_in_order(model, tokens, order)
    all_slots = torch.arange(L, device=order.device).expand(B, -1)              # (B, L)
    edges = [given + (L - given) * step // steps for step in range(steps + 1)]
    unread = 0              # slots before it are in the cache
    for start, end in itertools.pairwise(edges):
        last_known = all_slots[:, start:start + 1]                              # (B, 1)
        logits = predict(all_slots[:, unread:end], last_known, end - start)     # (B, m, V)
        revealed = order[:, start:end]                                          # (B, m) positions
        noise = u.gather(1, revealed.to(u.device))                              # (B, m)
        new, _ = draw(logits.flatten(0, 1), noise.flatten(), o)                 # (B·m,)
        new = new.view(B, -1)                                                   # (B, m)
        held[:, start + 1:end + 1] = new
        tokens = tokens.scatter(1, revealed, new)
        unread = start + 1
        yield tokens


# ---- Drafts: several tokens a pass, by the law of one token a pass -------------------------------

def confirm(p, q, draft, u):
    """Tokens (B, m+1) and count (B, 1): the first `count` tokens are as if drawn one at a time.

    draft (B, m), numbers 0 … m-1, were drawn independently of each other from the laws
    q (B, m, V). p[:, i] (B, V) is the law of token i+1, given the drafts 0 … i; the last is for
    one token more than was drafted. u (B, m) are uniform numbers.

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
    last = invert((p_there - q_there).clamp(min=0), u[:, -1])                   # (B,)
    tokens = F.pad(draft, (0, 1)).scatter(1, kept, last[:, None])               # (B, m+1)
    return tokens, kept + 1


def write_and_confirm(model, tokens, order, given: int, generators: list, o: SampleOptions):
    """aogpt: speculative decoding by any-order drafts (Guo & Ermon 2025, arXiv 2504.20456).

    Each round drafts the next m tokens in one pass, and a second pass tells how many of them to
    keep. With 2 tokens known and 3 to draft:

        first pass     slot 2, and its copies as slots 3, 4      draft tokens at order[2], [3], [4]
        second pass    slots 3, 4, 5, which hold these drafts    give the laws at order[3], [4], [5]
    """
    (B, L), device = order.shape, order.device
    m = min(o.draft, L - given)
    held, predict = slots_in_order(model, tokens, order, spare=m + 1)
    nowhere = tokens.size(1)        # a column to be cut off, for what lies beyond the end
    order = F.pad(order, (0, m + 1), value=nowhere)
    tokens = F.pad(tokens, (0, 1))                                              # (B, nowhere+1)
    known = torch.full((B, 1), given, device=device)        # how many tokens each story has
    # The first pass of a round reads from slot known + unread on. In the first round that is slot
    # 0, as the given tokens are not in the cache yet; later it is the last known slot.
    unread = -given

    def laws(slots, last_known):
        logits = predict(slots, last_known, m)                                  # (B, m, V)
        return probabilities(logits.to(u.device), o)

    def written(new, count):
        """The tokens with the first `count` of new (B, m+1) after the known ones.

        All of new is put into the slots, for the second pass to read."""
        ahead = known + torch.arange(m + 1, device=device)                      # (B, m+1)
        held.scatter_(1, ahead + 1, new)
        position = order.gather(1, ahead).where(ahead < known + count, nowhere)     # (B, m+1)
        return tokens.scatter(1, position, new)

    while (known < L).any():
        u = uniforms(generators, 2 * m, device)                                 # (B, 2m)

        # First pass: draft m tokens. The first of them is final.
        q = laws(known + torch.arange(unread, m, device=device), known)         # (B, m, V)
        draft = invert(q, u[:, :m])                                             # (B, m)
        tokens = written(F.pad(draft, (0, 1)).to(device), 1)
        yield tokens[:, :nowhere]
        if (known >= L - 1).all():      # the first draft was the last token
            return

        # Second pass: what would one token a pass have drawn, given these drafts?
        drafted = known + torch.arange(1, m + 1, device=device)                 # (B, m)
        p = laws(drafted, drafted[:, -1:])                                      # (B, m, V)
        new, count = confirm(p, q, draft, u[:, m:])                             # (B, m+1), (B, 1)
        new, count = new.to(device), count.to(device)
        tokens = written(new, count)
        known = (known + count).clamp(max=L)
        unread = 0
        yield tokens[:, :nowhere]


# ---- mdlm: several tokens a pass -----------------------------------------------------------------
# `unmask` is the sampler, and two others choose in another way what to reveal. `draw_masked`, which
# they have in common, is one pass, and `cached_blocks` makes it faster for blocks.

def unmask(model, tokens, reveal_step, u, o: SampleOptions):
    """Step s reveals the tokens where reveal_step (B, L) is s; if there are none, no network runs.

    With --orders=blocks:N the tokens of a step are all in one block."""
    predict = cached_blocks(model, len(tokens))
    for step in range(int(reveal_step.max()) + 1):
        now = reveal_step == step                                               # (B, L)
        if now.any():
            tokens, _ = draw_masked(model, tokens, now, u, o, predict=predict)
        yield tokens


def unmask_surest(model, tokens, generators: list, steps: int, o: SampleOptions):
    """Each step draws a token for every masked position, and keeps the likeliest of them.

    That is MaskGIT (Chang et al. 2022, arXiv 2202.04200), and the paper's sampler: 100 steps for
    128 tokens keep one 72 times, then two 28 times. It looks at what it drew before it keeps it, so
    it does not follow the model's law."""
    final = o.temperature if o.final_temperature is None else o.final_temperature
    left = int((tokens[0] == model.config.mask_id).sum())       # every row has as many
    for step in range(steps):
        masked = tokens == model.config.mask_id                                 # (B, L)
        t = 1 - step / steps if o.protocol == "paper" else None
        temperature = o.temperature + (final - o.temperature) * step / steps
        u = uniforms(generators, tokens.size(1), tokens.device)                 # (B, L)
        new, probability = draw_masked(model, tokens, masked, u, o, temperature, t)
        keep = left // (steps - step)
        left -= keep
        probability = probability.masked_fill(~masked, -1)
        surest = probability.topk(keep, dim=1).indices                          # (B, keep)
        tokens = tokens.scatter(1, surest, new.gather(1, surest))
        yield tokens


def unmask_within_risk(model, tokens, u, o: SampleOptions):
    """Each pass reveals as many tokens as it can without much risk; at least one.

    The masked tokens of a story, with blocks those of one block, are sorted by the entropy of their
    predictions, the surest first. A token is revealed if the entropies of those ahead of it sum to
    at most o.risk nats (Ben-Hamu et al. 2025, arXiv 2505.24857). Let q be the product of the laws
    that the revealed tokens are drawn from, and p any joint law whose tokens have these laws one by
    one. Then KL(p‖q) is the sum of the single entropies less the joint one. The joint one is at
    least the largest single one, so the KL is at most o.risk. At temperature 1 and without top_p
    the network's joint law is such a p. Else one token at a time may follow another law, from which
    q can be farther away. What was drawn does not influence what is kept; if it did, the stories
    would not follow the law."""
    config = model.config
    predict = cached_blocks(model, len(tokens))
    position = torch.arange(tokens.size(1), device=tokens.device)
    block = position // config.block_length                                     # (L,)
    while (tokens == config.mask_id).any():
        masked = tokens == config.mask_id                                       # (B, L)
        unfinished = block[masked.any(dim=0)]
        masked &= block == unfinished[0]        # the stories of a batch keep pace with each other
        new, nats = draw_masked(model, tokens, masked, u, o, predict=predict)   # (B, L) each
        nats = nats.masked_fill(~masked, torch.inf)
        ascending, place = nats.sort(dim=1, stable=True)
        total = ascending.cumsum(dim=1)
        before = F.pad(total[:, :-1], (1, 0))                                   # (B, L)
        within = torch.zeros_like(masked).scatter(1, place, before <= o.risk)
        tokens = torch.where(within & masked, new, tokens)
        yield tokens


LOGITS_AT_ONCE = 2 ** 28        # a gigabyte of them


def draw_masked(model, tokens, now, u, o: SampleOptions, temperature=None, t=None, predict=None):
    """Tokens (B, L), new where `now` (B, L) is true, and the probability (B, L) of each new one.

    With --sampler=adaptive the second result is not the probability but the `entropy` of the law
    at that place. t is what a network with time_embedding=add is told; by
    default it follows from the share masked. The network reads a whole window of block_size tokens,
    or by the paper's protocol only these L, and predicts where `now` is true. With blocks the
    caller gives the function `predict` of `cached_blocks`, which reads less."""
    config = model.config
    logits_of_story = config.vocab_size * int(now.sum(dim=1).max())
    at_once = max(1, LOGITS_AT_ONCE // max(1, logits_of_story))
    if len(tokens) > at_once and not predict:
        parts = zip(tokens.split(at_once), now.split(at_once), u.split(at_once))
        drawn = [draw_masked(model, *part, o, temperature, t) for part in parts]
        tokens, probability = zip(*drawn)
        return torch.cat(tokens), torch.cat(probability)
    if o.protocol == "paper":
        config = replace(config, block_size=tokens.size(1))
    if t is not None:
        t = torch.full((len(tokens),), t, device=tokens.device)             # (B,)
    batch = masking_batch(config, tokens, tokens == config.mask_id, t)
    beyond = config.block_size - tokens.size(1)
    wanted = F.pad(now, (1, beyond))                                        # (B, T+1)
    if predict:
        logits = predict(batch, wanted)                                     # (P, V)
    else:
        # Stories may want unequal numbers of slots, so all rows are one group for `take_slots`.
        select = wanted.flatten().nonzero().T                               # (1, P)
        [logits] = model(batch.tokens, batch.key_pos, batch.target_pos, batch.t, select,
                         stage=batch.stage)                                 # (P, V)
    if o.repetition_penalty != 1:
        logits = penalize(logits, tokens, now, o)
    drawn, chance = draw(logits, u[now.to(u.device)], o, temperature)       # (P,) each
    if o.sampler == "adaptive":
        chance = entropy(logits, o)
    probability = torch.zeros(tokens.shape, device=tokens.device)
    return tokens.masked_scatter(now, drawn), probability.masked_scatter(now, chance)


def penalize(logits, tokens, now, o: SampleOptions):
    """Logits (P, V), changed so that tokens that occur in the story become less likely.

    The paper's code divides logits by the penalty, which makes a token with a negative logit
    likelier. Ours multiplies log p, which is never positive."""
    story = now.nonzero()[:, 0]                                             # (P,)
    count = torch.zeros(len(tokens), logits.size(1) + 1, device=tokens.device)
    count.scatter_add_(1, tokens, torch.ones(tokens.shape, device=tokens.device))
    penalty = (o.repetition_penalty ** count).clamp(max=5)                  # (B, V+1), [MASK] too
    penalty = penalty[story, :-1]                                           # (P, V)
    if o.protocol == "paper":
        return logits / penalty
    return logits.log_softmax(dim=-1) * penalty


def cached_blocks(model, rows: int):
    """A function that runs one block, and keeps what it has computed; None without blocks.

    A slot sees its own block and those before, so a finished block need not be read again. But what
    the cache has of a block that still had [MASK]s is not final. It is overwritten by the block's
    next pass, and in the end by the first pass of the next block, which reads both. For N = 2, with
    BOS in slot 0, these slots are read, and the others up to the last of them are in the cache:

        block 0                     slots 0 1 2     x_0 and x_1
        block 0 again                       1 2
        block 1, first pass                 1 2 3 4
        block 1 again                           3 4
    """
    config = model.config
    if not config.in_blocks:
        return None
    N = config.block_length
    keys_values = new_keys_values(model, rows, config.block_size + 1)
    final = 0           # slots before it are in the cache as they will stay

    def predict(batch, wanted):
        """Logits (P, V) of the wanted (B, T+1) slots, which are all in one block, row by row."""
        nonlocal final
        first = int(wanted.any(dim=0).nonzero()[0])
        start = 1 + (first - 1) // N * N                # of the block
        end = min(start + N, wanted.size(1))
        read = slice(final, end)                        # S slots
        final = start
        slots = torch.arange(end, device=wanted.device)[read]
        visible = slots_seen(batch.stage[:, :end])[:, None, read]                   # (1, 1, S, end)
        cache = Cache(keys_values, slots.expand(rows, -1), visible)
        position = batch.key_pos[:, read]
        select = wanted[:, read].flatten().nonzero().T                              # (1, P)
        [logits] = model(batch.tokens[:, read], position, position, select=select, cache=cache)
        return logits

    return predict


# ---- Which sampler, and in which order -----------------------------------------------------------

def left_of_blank(free):
    """The place (1,) of the last word before the blank, which `infill_order` has twice.

    free (L,) is true where a token is to be written. If no word comes after one of these, there is
    no blank, only an end to be written, and the result is empty, (0,). Raises InputError for any
    blank but one between words, which is what infill is trained for."""
    left, right = free[:-1], free[1:]
    place = (~left & right).nonzero()[:, 0]
    if not (left & ~right).any():
        return place[:0]
    if free[0] or len(place) > 1:
        raise InputError("--prompt must have words, one blank, and words, and --length no more, "
                         "for a model of --orders=infill")
    return place


def times_of(order: str, u):
    """When each position is written, in any unit: (B, L) or (L,). u (B, L) is uniform.

    Raises InputError where `order` names no order."""
    positions = order.split(",")
    if not positions[0].isdecimal():
        return reveal_times(order, u)       # of random, left_to_right, infill or blocks:N
    L = u.size(1)
    if sorted(positions) != sorted(str(position) for position in range(L)):
        raise InputError(f"--order={order:.40} must have each of the positions 0 to {L - 1} once, "
                         "with commas")
    return torch.tensor([int(position) for position in positions]).argsort()


def states(model: Transformer, stories, pattern, o: SampleOptions):
    """Yields (B, L) tokens after every step of writing the stories with these numbers.

    pattern, (L,) or (B, L), has the tokens that are given, and [MASK] elsewhere. A story does not
    depend on the others in its batch. Tokens of one pass are drawn independently of each other. So
    one token a pass is exact, except with --sampler=confidence. Several are not, except with
    --draft.

    mdlm's ancestral sampler gives each position a uniform time in [0, 1) and cuts time into equal
    steps, so each masked token is revealed with the probability that the masking process gives it.
    first_hitting reveals equally many in each step. In blocks both finish one block after another,
    and a step in which tokens of two blocks are due becomes two. Raises InputError if all is given.
    """
    config, device, L = model.config, model.head.weight.device, pattern.size(-1)
    generators = [np.random.default_rng((o.seed, story)) for story in stories]
    time_of = uniforms(generators, L, device)                                       # (B, L)
    u = uniforms(generators, L, device)                                             # (B, L)
    tokens = pattern.to(device).expand(time_of.shape)
    free = tokens == config.mask_id                                                 # (B, L)
    n = int(free[0].sum())      # tokens to write, in each row as many
    if n == 0:
        raise InputError("the prompt leaves nothing to write: the pattern has no [MASK]")
    steps = o.steps or n
    if config.mode == "mdlm" and o.sampler == "confidence":
        return unmask_surest(model, tokens, generators, steps, o)
    if config.mode == "mdlm" and o.sampler == "adaptive":
        return unmask_within_risk(model, tokens, u, o)
    block = torch.arange(L, device=device) // config.block_length                   # (L,)
    if config.mode == "mdlm" and o.sampler == "ancestral":
        first = int(block[free[0]][0])          # all before it is given
        times = reveal_times(config.orders, time_of) - first                    # (B, L) from 0 on
        times = times / (int(block[-1]) + 1 - first)                            # up to 1
        # The block is added so that no step has tokens of two blocks.
        reveal_step = (times * steps).long().to(device) + block
        return unmask(model, tokens, reveal_step.where(free, -1), u, o)

    if config.mode in ("mdlm", "aogpt"):
        order_words = o.order or config.orders
        times = times_of(order_words, time_of)
    else:       # ar, or a mode that you add: it has one order, and `draw_orders` knows which
        times = draw_orders(config, tokens.cpu(), None, l2r_fraction=0.0).argsort(dim=1)
    times = times.to(device).expand(free.shape)
    times = times.masked_fill(~free, -1)        # what is given comes first
    order = times.argsort(dim=1, stable=True)       # (B, L) the position that comes j-th
    if config.mode == "mdlm":
        turn = order.argsort(dim=1)                 # (B, L) when each position comes
        rank = turn - (L - n)                       # the same among those that are free
        reveal_step = (rank * steps // n + block).where(free, -1)       # + block as for ancestral
        # Number the steps without gaps. Where tokens are given, their -1 takes the number 0, so 1
        # is subtracted.
        _, number = reveal_step.unique(return_inverse=True)
        return unmask(model, tokens, number - int(n < L), u, o)
    if config.mode == "aogpt" and order_words == "infill":
        before = left_of_blank(free[0])                                             # (0 or 1,)
        order = infill_order(free, before.expand(len(free), -1))            # (B, L+0 or 1)
    given = order.size(1) - n
    if o.draft:
        return write_and_confirm(model, tokens, order, given, generators, o)
    return write_in_order(model, tokens, order, given, u, steps, o)


@torch.no_grad()
def generate(model: Transformer, stories, pattern, o: SampleOptions):
    """Tokens (B, L) of the stories with these numbers, and the pass (B, L) at which each appeared.

    The latter is -1 where a token was given. ancestral counts also the steps in which it reveals
    nothing and so runs no network. Without o.full_length ar stops when every story has ended, and
    leaves [MASK] from there on. `states` says what the arguments are. A pattern that is longer than
    the window is written in parts, see `generate_in_parts`."""
    config = model.config
    if pattern.size(-1) > config.block_size:
        return generate_in_parts(model, stories, pattern, o)
    free = (pattern == config.mask_id).to(model.head.weight.device)                 # (L,) or (B, L)
    appeared = torch.where(free, 0, -1).expand(len(stories), -1).clone()            # (B, L)
    for tokens in states(model, stories, pattern, o):
        appeared += tokens == config.mask_id        # it counts the passes that left a token masked
        ended = (free & (tokens == config.bos_id)).any(dim=1)                       # (B,)
        if config.mode == "ar" and not o.full_length and ended.all():
            break
    return tokens, appeared


def generate_in_parts(model: Transformer, stories, pattern, o: SampleOptions):
    """The same for a pattern of more than T tokens: one window, then half a window at a time.

    Rotary positions and target embeddings end with the window. So each part after the first is the
    second half of a window whose first half is written already, and whose positions begin at 0."""
    config = model.config
    L, T = pattern.size(-1), config.block_size
    tokens = pattern.to(model.head.weight.device).expand(len(stories), L).clone()   # (B, L)
    appeared = torch.where(tokens == config.mask_id, 0, -1)                         # (B, L)
    n = int((tokens[0] == config.mask_id).sum())
    passes = torch.zeros_like(tokens[:, :1])        # (B, 1) of each story, in the parts before
    for end in [*range(T, L, max(1, T // 2)), L]:
        window = slice(end - T, end)
        new = int((tokens[0, window] == config.mask_id).sum())
        if new:
            steps = math.ceil((o.steps or n) * new / n)
            seed = (o.seed + 10 ** 6 * end) % 10 ** 15      # other random numbers for each part
            part = replace(o, steps=steps, seed=seed)
            tokens[:, window], when = generate(model, stories, tokens[:, window], part)
            appeared[:, window] = torch.where(when < 0, appeared[:, window], passes + when)
            passes += when.amax(dim=1, keepdim=True) + 1
        if (tokens[:, window] == config.mask_id).any():     # ar has ended
            break
    return tokens, appeared
