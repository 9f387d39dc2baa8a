"""
Uniform noise, played backwards: each pass may change any token.

Adds: for runs of --variant=uniform the exact step back, in as many passes as are asked for, and
DiffusionGemma's rule, which keeps what is sure and noises the rest, until nothing changes. Costs:
every pass reads and predicts all tokens. Plugs in as

    python sample.py --out_dir=out/toy-uniform --sampler=uniform --steps=12
    python sample.py --out_dir=out/toy-uniform --sampler=uniform --risk=1

What is given stays, but the network is not told that it can trust it. A token appears in the pass
that changes it for the last time, so what is taken back is not seen. The one that changes last
appears in the last pass of its text.
"""
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from model import draw, probabilities
from samplers.adaptive import within_risk
from support.flags import InputError, build, flag
from variants.uniform import Config, noisy_batch


@dataclass
class Options:
    """--sampler=uniform (--variant=uniform): any token may change in any pass"""
    risk: float = flag(
        0.0, "DiffusionGemma's rule: nats that a pass may be unsure of; if they are too few, the "
        "passes end before the text is done; 0: the exact step back", low=0)


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if not isinstance(config, Config) or o.order:
        raise InputError("--sampler=uniform is for --variant=uniform, and without --order")
    return partial(write, o=o, risk=build(Options, flags).risk)


def step_law(p, tokens, t, s: float):
    """The law (B, L, V) of each word at time s, of what is tokens (B, L) at the times t (B,).

    p (B, L, V) is the law of the text's words, given the other tokens, and t is later than s. By
    Bayes' rule it is the chance that a word is there at s, times the chance that it becomes this
    token from s to t."""
    V = p.size(-1)
    spared = (1 - t[:, None, None]) / (1 - s)       # by the noise from s to t: its chance (B, 1, 1)
    law = ((1 - s) * p + s / V) * ((1 - spared) / V + spared * F.one_hot(tokens, V))
    return law / law.sum(dim=-1, keepdim=True)


@torch.no_grad()
def write(model, tokens, times, decide, noise, o, risk: float = 0):
    """Yields tokens (B, L) after each pass, with [MASK] where a later pass writes another word.

    By DiffusionGemma's rule a pass draws all words, keeps those that are sure, as in adaptive.py,
    and makes noise of the rest. A text is done when a pass was sure of all of it, and has changed
    nothing."""
    (B, L), steps = tokens.shape, o.steps or tokens.size(1)
    hidden = free = tokens == model.config.mask_id                              # (B, L)
    law = torch.ones(B, L, model.config.vocab_size, device=tokens.device)       # of any word
    canvas = draw(law, noise(L)).where(free, tokens)                            # (B, L)
    settled = free.long() - 1       # (B, L) the pass that changes a token for the last time
    t, passes, sure = law[:, 0, 0], 0, torch.zeros_like(free)
    for step in range(steps):
        batch = noisy_batch(model.config, canvas, canvas, t)
        p = probabilities(model.guess(batch, batch.select()), o).view_as(law)
        s = 0.0 if risk else 1 - (step + 1) / steps
        law = step_law(p / p.sum(dim=-1, keepdim=True), canvas, t, s)
        t = torch.full_like(t, s)
        if risk and step + 1 < steps:
            nats = torch.special.entr(law).sum(dim=-1) * hidden                 # (B, L)
            sure = within_risk(nats, risk)                                      # (B, L)
            law = law.where(sure[:, :, None], 1)
            t = (1 - sure.float().mean(dim=1)).clamp(min=1 / L)
        before, canvas = canvas, draw(law, noise(L)).where(free, canvas)
        settled[canvas != before] = step
        passes += free.any(dim=1, keepdim=True)                                 # (B, 1)
        free = free & ((canvas != before) | ~sure).any(dim=1, keepdim=True)
        if not free.any():
            break
    # What settles last waits for the last pass of its text.
    settled = settled.where(settled < settled.amax(dim=1, keepdim=True), passes - 1)
    for step in range(passes.max()):
        yield canvas.masked_fill(settled > step, model.config.mask_id)
