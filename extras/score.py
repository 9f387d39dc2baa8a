"""
What a text costs: −log p of a whole text, of any length, under the sampler that writes it.

Adds two ways to score. The quick one is exact for ar; for mdlm and aogpt it is a bound, a mean over
masks or orders. The other lets a sampler write, but in place of drawing it reveals the true token,
and adds up its −log p (DUEL, arXiv 2603.01367). If the places that the sampler writes next follow
from what is known, it can write a text in one way only, and the sum is exact. If they are drawn at
random, whatever the text is, the sum is an upper bound on average, as that of model.py's
`order_batch` is. Costs: of the quick way a row of a batch for each window of ar, and eight for each
window and draw of the others; of the other way as many passes as the sampler takes. Plugs in as

    python -m extras.compare ar=out/toy-ar mdlm=out/toy-mdlm --text=mine.txt
    python -m extras.compare mdlm=out/toy-mdlm --text=mine.txt --sampler=adaptive --risk=0.1

The sampler is the very function that sample.py calls, so what is scored is what runs, where it
writes a text of so many tokens; of a longer one, each window with as many passes. One that
looks at the tokens it drew before it keeps them has no such score, and is refused. drafts is one,
but its texts cost what those of one token a pass cost.
"""
import collections
import itertools
import math
from dataclasses import replace
from typing import NamedTuple

import torch
from tqdm import tqdm

from model import order_batch, probabilities, read_masked
from sample import noise_of, times_of
from support.flags import InputError
from support.runs import random_numbers
from train import losses_in_parts

ROWS = 8        # of a batch that are drawn together, for a quick bound


class Score(NamedTuple):
    """What a model finds of one text."""
    nats: float         # −log p of the whole text, or an upper bound on it
    variance: float     # of nats, over draws of masks or orders; 0 where nats is exact
    tokens: int
    passes: float       # runs of the network that write it; NaN where nothing was written


def parts_of(ids: list, T: int, stride: int) -> list:
    """Windows of at most T tokens of a text, and how many tokens at the end of each are new.

    By the chain rule −log p(text) is a sum over parts of −log p(part | what comes before). The
    first part is a window of T tokens, or the text, if it is shorter. Each other one is the next
    `stride` tokens, and of what comes before it the model sees as much as the window has room for.
    So with a smaller stride each token has more context, and all takes longer. Raises InputError
    for a stride longer than the window."""
    stride = stride or max(1, T // 2)
    if stride > T:
        raise InputError(f"--stride={stride} must not exceed the window, {T}")
    edges = [0, *range(T, len(ids), stride), len(ids)]
    parts = itertools.pairwise(edges) if ids else []
    return [(ids[max(0, end - T):end], end - start) for start, end in parts]


# ---- The quick way -------------------------------------------------------------------------------

def score_texts(model, texts: list, draws: int = 4, stride: int = 0) -> list:
    """The Score of each text, which is a list of token ids; a bound is the mean of so many draws.

    Of two texts that begin alike, the model finds the continuation of the one with fewer nats
    likelier."""
    config, exact = model.config, not model.config.row.drawn
    scores = []
    for number, ids in enumerate(tqdm(texts, unit="text", leave=False, disable=None)):
        parts = parts_of(ids, config.block_size, stride)
        found = torch.zeros(1 if exact else draws, dtype=torch.float64)
        for part, (window, new) in enumerate(tqdm(parts, unit="window", leave=False, disable=None)):
            x = torch.tensor(window).expand(1 if exact else ROWS, -1)           # (B, L)
            generator = random_numbers(number, part)
            for draw in range(len(found)):
                batch = part_batch(config, x, new, generator)
                found[draw] += losses_in_parts(model, batch).mean()
        variance = 0.0 if exact else found.var().item() / draws
        scores.append(Score(found.mean().item(), variance, len(ids), torch.nan))
    return scores


def part_batch(config, x, new: int, generator):
    """Losses (B,) that are −log p of the last `new` tokens of x (B, L) after the others, in nats,
    or bounds on it on average."""
    known = x.size(1) - new
    if config.row.causal:
        pattern = x.index_fill(1, torch.arange(known, x.size(1)), config.mask_id)
        times = config.row.times(config, torch.rand(x.shape, generator=generator))
        order, _ = config.row.plan(config, pattern, times)                      # (B, L)
        return order_batch(config, x, order)._replace(weight=(order >= known).float())
    from variants.blocks import one_block_batch     # all tokens can be one block
    batch = one_block_batch(config, x, generator, known)
    return batch._replace(weight=batch.weight * new)


# ---- In hindsight --------------------------------------------------------------------------------

@torch.no_grad()
def misfits(model, ids: list) -> int:
    """How many tokens of a text have less than 1% by masked diffusion that sees all others of their
    window. Each is hidden in turn. No grammar is asked, so that holds of any text, its own too."""
    count = 0
    device = model.head.weight.device
    for window, new in parts_of(ids, model.config.block_size, 0):
        x = torch.tensor(window, device=device)                                 # (L,)
        places = range(len(x) - new, len(x))
        for some in written_together(places, len(x), device):
            place = torch.tensor(some, device=device)                           # (n,)
            row = torch.arange(len(place), device=device)
            hidden = x.repeat(len(place), 1)
            hidden[row, place] = model.config.mask_id                           # (n, L)
            p = read_masked(model, hidden, row, place).softmax(dim=-1)          # (n, V)
            count += int((p[row, x[place]] < 0.01).sum())
    return count


# ---- As a sampler writes -------------------------------------------------------------------------

def score_writing(model, texts: list, sampler, o, draws: int = 1, stride: int = 0) -> list:
    """The Score of each text, which is a list of token ids, under a sampler of samplers/.

    o has the flags of sample.py that count: order, temperature, top_p and seed. A bound is the mean
    of so many draws; exact costs are all alike, so one is enough. Raises InputError."""
    alike = collections.defaultdict(list)       # windows that can be written together
    for number, ids in enumerate(texts):
        for part, (window, new) in enumerate(parts_of(ids, model.config.block_size, stride)):
            alike[len(window), new].append((number, part, window))
    nats = torch.zeros(draws, len(texts), dtype=torch.float64)
    passes = torch.zeros(draws, len(texts), dtype=torch.float64)
    total = draws * sum(map(len, alike.values()))
    with tqdm(total=total, unit="window", leave=False, disable=None) as bar:
        for draw, ((L, new), group) in itertools.product(range(draws), alike.items()):
            for some in written_together(group, L, model.head.weight.device):
                numbers, parts, windows = zip(*some)
                stories = [(draw, *which) for which in zip(numbers, parts)]
                x = torch.tensor(windows)                                       # (B, L)
                hidden = torch.arange(x.size(1)).expand_as(x) >= x.size(1) - new
                found, took = cost_of_writing(model, x, hidden, sampler, o, stories)
                nats[draw].index_add_(0, torch.tensor(numbers), found)
                passes[draw].index_add_(0, torch.tensor(numbers), took)
                bar.update(len(numbers))
    variances = nats.var(dim=0) / draws if draws > 1 else torch.zeros(len(texts))
    tokens = map(len, texts)
    columns = nats.mean(dim=0).tolist(), variances.tolist(), tokens, passes.mean(dim=0).tolist()
    return [Score(*text) for text in zip(*columns)]


def writes_in_one_way(model, ids: list, sampler, o) -> bool:
    """Whether the order of writing a text is not left to chance: all draws cost the same.

    The order does not depend on how tokens are drawn, so the costs are those of no temperature."""
    o = replace(o, temperature=1.0, top_p=1.0)
    draws = [score_writing(model, [ids], sampler, replace(o, seed=seed)) for seed in range(4)]
    return all(math.isclose(draw[0].nats, draws[0][0].nats, rel_tol=1e-9) for draw in draws)


def written_together(windows, L: int, device):
    """Yields the windows, of L tokens each, a few at a time: on a CPU so few that what a layer
    makes of them stays in its cache."""
    rows = max(1, 2 ** 11 // L) if device.type == "cpu" else 64
    for first in range(0, len(windows), rows):
        yield windows[first:first + rows]


def costs_of_writing(model, x, hidden, sampler, o) -> tuple:
    """What `cost_of_writing` finds of many windows x (N, T), a few at a time: (N,) each."""
    found = []
    for some in written_together(range(len(x)), x.size(1), model.head.weight.device):
        part = slice(some.start, some.stop)
        found.append(cost_of_writing(model, x[part], hidden[part], sampler, o, some))
    nats, passes = zip(*found)
    return torch.cat(nats), torch.cat(passes)


def cost_of_writing(model, x, hidden, sampler, o, stories) -> tuple:
    """−log p (B,) of what is hidden (B, L) of the texts x (B, L), when the sampler writes it beside
    what is not, in nats, and its passes (B,). What it cannot write costs infinitely many nats.

    In each row as much is hidden, and in blocks the same places. The stories' numbers are for what
    is drawn of the order. Raises InputError for a sampler that looks at what it drew, or does not
    write all."""
    config, device = model.config, model.head.weight.device
    x = x.to(device)
    tokens = x.masked_fill(hidden.to(device), config.mask_id)                   # (B, L)
    times = times_of(config, o, noise_of(o.seed, stories, device)(x.size(1)))   # (B, L)
    nats = torch.zeros(len(x), dtype=torch.float64)
    passes = torch.zeros(len(x), dtype=torch.float64)
    decided = tokens != config.mask_id                                          # (B, L)

    def reveal(logits, row, place):
        if decided[row, place].any():
            refuse(0)       # it decides on a place twice
        token = x[row, place]                                                   # (…)
        p = probabilities(logits, o)                                            # (…, V)
        chance = p.gather(-1, token[..., None])[..., 0] / p.sum(dim=-1)         # (…)
        row = row.expand_as(token)
        nats.index_put_((row.cpu(),), -chance.cpu().double().log(), accumulate=True)
        decided[row, place] = True
        return token

    def refuse(n: int):
        raise InputError("this sampler looks at the tokens it drew before it keeps them, so no "
                         "text has an exact cost under it; drafts writes as one token a pass does")

    written = sampler(model, tokens, times, reveal, refuse)
    for after in tqdm(written, total=int(hidden[0].sum()), unit="pass", leave=False, disable=None):
        passes += (after != tokens).any(dim=1).cpu()
        tokens = after.clone()      # because a sampler may change what it has yielded
        if (tokens != x.where(decided, config.mask_id)).any():
            refuse(0)       # it decided on a token, and has not kept it
    if not decided.all():
        raise InputError("this sampler ends before all is written, so no text has a cost under it")
    return nats, passes
