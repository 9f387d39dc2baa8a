"""
Uniform noise, played backwards: each pass may change any token.

Adds: for runs of --variant=uniform the exact step back, in as many passes as are asked for, and
DiffusionGemma's rule, which keeps what is sure and noises the rest. Costs: every pass reads and
predicts all tokens. Plugs in as

    python sample.py --out_dir=out/toy-uniform --sampler=uniform --steps=12
    python sample.py --out_dir=out/toy-uniform --sampler=uniform --risk=0.1

What is given stays, but the network is not told that it can trust it. A token appears in the pass
that writes it for the last time, so passes in which none does are not counted by sample.py.
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
    risk: float = flag(0.0, "DiffusionGemma's rule: nats that a pass may be unsure of", low=0)


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if not isinstance(config, Config) or o.order:
        raise InputError("--sampler=uniform is for --variant=uniform, and without --order")
    return partial(write, o=o, risk=build(Options, flags).risk)


def step_law(p, tokens, t, s: float):
    """Chances (B, L, V), up to a factor, of each word at time s, of what is tokens (B, L) at t.

    p (B, L, V) is the law of the text's words, given the other tokens, and t (B,) is later than s.
    By Bayes' rule that is the chance that a word is there at s, times the chance that it becomes
    this token from s to t."""
    V = p.size(-1)
    spared = (1 - t[:, None, None]) / (1 - s)       # by the noise from s to t: its chance (B, 1, 1)
    at_s = (1 - s) * p + s / V                                                  # (B, L, V)
    return at_s * ((1 - spared) / V + spared * F.one_hot(tokens, V))


def keep_sure(p, risk: float):
    """Weights (B, L, V) of the next draw, and which share (B,) of it is noise, by DiffusionGemma.

    What is sure by p (B, L, V), as in adaptive.py, is drawn from p, and all else is any word."""
    p = p / p.sum(dim=-1, keepdim=True)
    sure = within_risk(torch.special.entr(p).sum(dim=-1), risk)                 # (B, L)
    noise = 1 - sure.float().mean(dim=1)                                        # (B,)
    return p.where(sure[:, :, None], 1), noise.clamp(min=1 / p.size(1))


@torch.no_grad()
def write(model, tokens, times, decide, noise, o, risk: float = 0):
    """Yields tokens (B, L) after each pass, with [MASK] where a later pass writes another word."""
    config, (B, L) = model.config, tokens.shape
    free = tokens == config.mask_id                                             # (B, L)
    weights = torch.ones(B, L, config.vocab_size, device=tokens.device)         # of any word
    canvas = torch.where(free, draw(weights, noise(L)), tokens)                 # (B, L)
    t = torch.ones(B, device=tokens.device)
    steps = o.steps or L
    canvases = []
    for step in range(1, steps + 1):
        batch = noisy_batch(config, canvas, canvas, t)
        p = probabilities(model.guess(batch, batch.select()), o)                # (B·L, V)
        s = 0.0 if risk else 1 - step / steps
        weights = step_law(p.view_as(weights), canvas, t, s)
        t = torch.full_like(t, s)
        if risk and step < steps:
            weights, t = keep_sure(weights, risk)
        canvas = torch.where(free, draw(weights, noise(L)), tokens)
        canvases.append(canvas)
    for step in range(steps):
        changes = sum(later != canvas for later in canvases[step:]) > 0         # (B, L)
        yield canvas.masked_fill(changes, config.mask_id)
