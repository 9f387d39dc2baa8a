"""
Uniform noise: a hidden token looks like any other, so what is written can be taken back.

Adds: diffusion whose noise replaces a token by a random one, and not by [MASK] (UDLM, Schiff et al.
2024, arXiv 2412.10193; Duo, 2506.10892; DiffusionGemma). While it writes, any token may change in
any pass. Costs: the network must find out what is noise. Plugs in as the variant of a run, which
samplers/uniform.py writes with:

    python train.py --mode=mdlm --variant=uniform --preset=toy --out_dir=out/toy-uniform
    python sample.py --out_dir=out/toy-uniform --sampler=uniform --steps=12

Time t goes from 0, the text, to 1, noise alone. At t each token has been replaced with the chance t
by one of the V words, all alike, so what was the word x is now v with the chance

    q(v|x)  =  (1 − t) [v = x]  +  t/V

The network is not told t. It learns the law of a token given all *other* tokens of the noisy text,
in arXiv 2605.22765 "leave-one-out". What the token itself tells depends on t alone, and is put in
by whoever knows t: `cost` here, and `step_law` of the sampler.
"""
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

import model
from model import MODES, mask_batch, spread
from variants.paper import TimedBatch


@dataclass
class Config(model.Config):
    """--variant=uniform (mdlm): noise replaces tokens by random ones"""
    mode: Literal["mdlm"] = "mdlm"


def noisy_batch(config, x, noisy, t):
    """Predict all tokens of x (B, T) from what noise has made of it (B, T), at the times t (B,)."""
    batch = mask_batch(config, x, x >= 0)
    tokens = F.pad(noisy, (1, 0), value=config.bos_id)                          # (B, T+1)
    return TimedBatch(*batch._replace(tokens=tokens), t)


def bound_batch(config, x, generator):
    """x (B, T), each row at a time of its own. None is below 1e-4, so a word costs too little if
    the network gives it less than about 1e-4 / V."""
    t = spread(len(x), generator).clamp(1e-4, 1 - 1e-4)                         # (B,)
    replaced = torch.rand(x.shape, generator=generator) < t[:, None]            # (B, T)
    other = torch.randint(config.vocab_size, x.shape, generator=generator)      # (B, T)
    return noisy_batch(config, x, torch.where(replaced, other, x), t)


def cost(p, x, z, t):
    """What it costs (n, 1) that a token x stands as z at time t, and the network's guess of x is p.

        −log p(text)  ≤  ∫ dt Σ_i E cost         over t from 0 to 1, and over the noise at t

    p (n, V), x, z and t (n, 1). From t to t + dt noise replaces a token with the chance dt/(1 − t).
    Now let a film of the noise be played backwards, of a text that has the word x at a place. If
    the token z stands there, it becomes another word v, by Bayes' rule, at the rate

        r(v) / (V (1 − t))      with    r(v) = q(v|x) / q(z|x)

    The model knows p alone, so it has r'(v), with the mean of q over p in place of q. A path that r
    makes is likelier by r than by r', and the log of how much grows in each unit of time by

        Σ r'(v) − r(v) + r(v) log(r(v)/r'(v))  over v,  divided by V (1 − t)

    on average: r' − r while nothing happens, and log(r/r') at each jump. The integral of that is
    what it is worth to know the text. Both begin with the same noise, and as p(text) is a sum over
    paths, minus its log is at most that (Jensen's inequality). t is uniform and has no other
    weight: another pace of the noise is another clock, and changes nothing. Where p is the right
    law at each time, the bound is exact."""
    V = p.size(1)

    def ratios(p):
        at_t = (1 - t) * p + t / V                                              # (n, V)
        return at_t / at_t.gather(1, z)

    right, guess = ratios(F.one_hot(x[:, 0], V)), ratios(p)                     # (n, V)
    nats = guess - right + right * (right / guess).log()                        # (n, V)
    return nats.sum(dim=1, keepdim=True) / (V * (1 - t))                        # (n, 1)


class Transformer(model.Transformer):
    def forward(self, tokens, key_pos, *others):
        """As model.py's. It has never seen a [MASK], so each is read as one word or another."""
        word = 7919 * key_pos % self.config.vocab_size
        return super().forward(word.where(tokens > self.config.bos_id, tokens), key_pos, *others)

    def guess(self, batch, select):
        """The logits (n, V) of tokens given all other tokens."""
        return self(*batch[:3], select)

    def logits(self, batch, select):
        """Of a TimedBatch logits (n, V) that give each target the chance exp(−cost): `losses` takes
        −log of that, and knows no other cost."""
        logits = self.guess(batch, select)                                      # (n, V)
        if not isinstance(batch, TimedBatch):
            return logits
        x, z = (held.flatten()[select, None] for held in (batch.targets, batch.tokens))     # (n, 1)
        t = batch.t[select // batch.tokens.size(1), None]                       # (n, 1)
        nats = cost(logits.softmax(dim=-1), x, z, t).clamp(min=1e-6)            # (n, 1)
        # The logarithm of the odds, if all others share what is left.
        odds = math.log(logits.size(1) - 1) - nats - (1 - (-nats).exp()).log()
        return torch.zeros_like(logits).scatter(1, x, odds)


Config.modes = {"mdlm": MODES["mdlm"]._replace(
    bound_batch=bound_batch, training_batch=bound_batch, network=Transformer, reported={},
    drawn="times")}
