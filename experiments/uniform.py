"""
Is noise that can be taken back better than [MASK], and is it the noise or the network?

    python -m experiments.uniform NAME=FOLDER … --json=FILE
    python -m experiments.uniform law=law             the perfect network, which knows the toy's law

Each NAME=FOLDER is a run of mdlm, plain or with --variant=uniform, and all are of the same data. Of
each there is its bound, and what a text costs by so many passes, 3 to 48. Both are nats per token,
above the law where there is one. In a world there is also the share of right texts among those that
it writes, and on the toy their distance from the law. With law=law it is the law of the toy that
writes, by either noise. It is told how much noise there is, which trained networks are not.

On the toy there is also what becomes of a story in two of whose words noise has put other ones. By
uniform noise it is taken for what it is, a text at a small t, and played back from there. Masked
diffusion takes nothing back; what it can do is look for misfits in hindsight, hide them, and write
them again. So there is how often that check is right, on right stories and on wrong ones.

The expected answer: in few passes uniform noise writes more right stories than masked diffusion
does with equal shares, of the perfect network and of trained ones, and fewer than masked diffusion
that writes what is sure. It would be refuted by a trained network that breaks as many stories as
with masks, or by one that beats the adaptive sampler.
"""
import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from experiments.oracle import TOY, distance, exact_conditionals, toy_oracle
from extras.score import misfits
from model import draw, draw_masks, mask_batch
from prepare_data import open_windows
from sample import SampleOptions, generate, open_model, plain_sampler
from samplers import adaptive, uniform as sampler
from support.flags import build, command, flag, parse_flags, provenance, write_json
from support.runs import origin_of, random_numbers, read_run
from tokenizer import Tokenizer
from train import losses_in_parts, mean_and_error, window_losses
from variants import uniform
from worlds import world_of

PASSES = 3, 6, 12, 24, 48
RISKS = 0.1, 1
SEED = 1
AT_ONCE = 100
LAW = "law"         # in place of a folder


@dataclass
class UniformOptions:
    """what to write"""
    num_samples: int = flag(200, "texts of each row; with 0 only the bound is measured", low=0)
    windows: int = flag(200, "validation windows whose costs are measured", low=2)
    stories: int = flag(60, "stories of the toy that are spoilt, and checked in hindsight", low=1)
    json: str = flag("", "file for the results", file=(".json",))


# ---- The perfect network -------------------------------------------------------------------------

class Law(torch.nn.Module):
    """Answers as a network of variants/uniform.py would that knew the law of the toy, and t."""
    def __init__(self):
        super().__init__()
        sizes = toy_oracle().config
        self.config = uniform.Config(
            vocab_size=sizes.vocab_size, block_size=sizes.block_size, n_head=1, n_embd=2)
        self.head = torch.nn.Linear(1, 1)       # its device tells where the model is

    logits = uniform.Transformer.logits
    cross_entropy = staticmethod(F.cross_entropy)

    def guess(self, batch, select):
        z, t = batch.tokens[:, 1:], batch.t[:, None].double()                   # (B, T), (B, 1)
        # A word that agrees with the noisy text makes a story likelier by this factor.
        nats = torch.log1p((1 - t) * self.config.vocab_size / t)                # (B, 1)
        p = exact_conditionals(TOY, z[:, :-1].numpy(), nats.numpy())            # (B, T-1, V-1)
        p = np.pad(p, ((0, 0), (0, 1), (0, 1)))
        p[:, -1, -1] = 1                        # end-of-text is the last token, and certain
        # What the token itself has told is taken out again.
        logits = torch.from_numpy(p).clamp(min=1e-300).log()                    # (B, T, V)
        own = F.one_hot(z, p.shape[-1]) * nats[:, :, None]
        return F.pad((logits - own).float(), (0, 0, 1, 0)).flatten(0, 1)[select]


# ---- Writing -------------------------------------------------------------------------------------

def is_uniform(model) -> bool:
    return isinstance(model.config, uniform.Config)


def texts_written(model, make_sampler, o) -> tuple:
    """Tokens (N, T), and the pass (N, T) at which each was written for the last time."""
    blank = torch.full((model.config.block_size,), model.config.mask_id)
    stories = range(o.num_samples)
    found = [generate(model, stories[first:first + AT_ONCE], blank, o, make_sampler)
             for first in stories[::AT_ONCE]]
    return tuple(map(torch.cat, zip(*found)))


def ways(model):
    """Yields (what it is called, its flags, its sampler) of the ways in which this model writes."""
    plain, file = plain_sampler, adaptive
    if is_uniform(model):
        plain, file = partial(sampler.sampler, flags={}), sampler
    for steps in PASSES:
        yield "steps", {"steps": steps}, plain
    for risk in RISKS:
        flags = {"risk": risk}
        with_risk = partial(file.sampler, flags=flags)
        yield "risk", flags, with_risk
        if is_uniform(model):       # DiffusionGemma goes from 0.8 to 0.4
            yield "risk", flags | {"temperature": 0.6}, with_risk


def wrote(model, tokenizer, world, o: UniformOptions):
    """Yields a row for each way of writing."""
    for way, flags, make_sampler in ways(model):
        options = build(SampleOptions, flags | {
            "num_samples": o.num_samples, "seed": SEED, "full_length": True})
        tokens, appeared = texts_written(model, make_sampler, options)
        texts = [tokenizer.decode_story(ids) for ids in tokens.tolist()]
        right = np.mean([world.is_right(text) for text in texts])
        row = {"way": way, **flags, "right": right, "passes": flags.get("steps")}
        if way == "risk":
            row["passes"] = (appeared.amax(dim=1) + 1).double().mean().item()
        if world is TOY:
            row["kl"] = distance(texts)["kl"]
        yield row


# ---- What a text costs by so many passes ---------------------------------------------------------

@torch.no_grad()
def cost_of_pass(model, x, t: float, s: float, rng):
    """What the pass from time t to s costs of texts x (N, T), in nats per token (N,). The sum over
    passes is a bound on −log p(text) / T, as `mask_batch` and `cost` have it for endless passes.

    With masks t is the share of the tokens that is hidden. With noise the words at s have one law
    if the text is known, another if the model guesses it, and the cost is the KL between them."""
    N, T = x.shape
    if not is_uniform(model):
        # `plan` rounds up what it leaves hidden.
        before, after = (math.ceil(round(time * T, 6)) for time in (t, s))
        masked = draw_masks(x, torch.full((N, 1), before), rng)
        batch = mask_batch(model.config, x, masked)
        return losses_in_parts(model, batch) * (before - after) / T
    V = model.config.vocab_size
    replaced = torch.rand(x.shape, generator=rng) < t                           # (N, T)
    noisy = torch.randint(V, x.shape, generator=rng).where(replaced, x)
    times = torch.full((N,), t)
    batch = uniform.noisy_batch(model.config, x, noisy, times)
    p = model.guess(batch, batch.select()).softmax(dim=-1).view(N, T, V)
    right, guess = (sampler.step_law(law, noisy, times, s) for law in (F.one_hot(x, V), p))
    nats = torch.special.xlogy(right, right) - torch.special.xlogy(right, guess)    # (N, T, V)
    return nats.sum(dim=-1).mean(dim=-1).double()


def costs_of_passes(model, x):
    """Yields a number of passes, and what they cost of x (N, T) in nats per token (N,)."""
    for passes in PASSES:
        rng = random_numbers(SEED)
        times = torch.linspace(1, 0, passes + 1).tolist()
        yield passes, sum(cost_of_pass(model, x, t, s, rng) for t, s in pairwise(times))


# ---- Taking back ---------------------------------------------------------------------------------

def spoilt(x):
    """Stories x (N, T), in each of which two words have become other ones."""
    rng = random_numbers(SEED)
    place = torch.rand(len(x), x.size(1) - 1, generator=rng).argsort(dim=1)[:, :2]      # (N, 2)
    by = torch.randint(1, len(TOY.words()), place.shape, generator=rng)
    return x.scatter(1, place, (x.gather(1, place) + by) % len(TOY.words()))


@torch.no_grad()
def played_back(model, tokens, start: float, passes: int):
    """Tokens (N, T) after so many passes, which play noise back from the time `start` to 0."""
    rng = random_numbers(SEED)
    for t, s in pairwise(torch.linspace(start, 0, passes + 1).tolist()):
        t = torch.full((len(tokens),), t)
        batch = uniform.noisy_batch(model.config, tokens, tokens, t)
        p = model.guess(batch, batch.select()).softmax(dim=-1).view(*tokens.shape, -1)
        tokens = draw(sampler.step_law(p, tokens, t, s), torch.rand(tokens.shape, generator=rng))
    return tokens


def share_right(tokens, tokenizer) -> float:
    return np.mean([TOY.is_right(tokenizer.decode_story(ids)) for ids in tokens.tolist()])


def corrected(model, tokenizer, x) -> list:
    """How many of the spoilt stories x (N, T) are right after so many passes, and how they were."""
    rows = []
    for passes in 1, *PASSES:
        after = played_back(model, x, start=2 / x.size(1), passes=passes)
        rows.append({"passes": passes, "right": share_right(after, tokenizer)})
    return rows


def in_hindsight(model, tokenizer, stories) -> dict:
    """Of tokens (N, T) of stories: how many are right, and what the check says of either kind."""
    found = {"right": [], "wrong": []}
    for ids in stories.tolist():
        right = TOY.is_right(tokenizer.decode_story(ids))
        found["right" if right else "wrong"].append(misfits(model, ids) > 0)
    return {kind: {"stories": len(marked), "marked": sum(marked)} for kind, marked in found.items()}


# ---- All of it -----------------------------------------------------------------------------------

def measured(model, tokenizer, x, law, o: UniformOptions) -> dict:
    """What the file has of a network; x (N, T) are validation windows, and law (N,) may be 0."""
    draws = 16
    found = {"bound": mean_and_error(window_losses(model, x, SEED, draws) - law)}
    if not o.num_samples:
        return found
    found["costs"] = {passes: mean_and_error(nats - law)
                      for passes, nats in costs_of_passes(model, x)}
    world = world_of(tokenizer)
    found["rows"] = list(wrote(model, tokenizer, world, o)) if world else []
    if world is TOY:
        wrong = spoilt(x[:o.stories])
        found["spoilt"] = share_right(wrong, tokenizer)
        if is_uniform(model):
            found["corrected"] = corrected(model, tokenizer, wrong)
        else:
            found["hindsight"] = in_hindsight(model, tokenizer, torch.cat([x[:o.stories], wrong]))
    return found


def main():
    flags = parse_flags(__doc__, UniformOptions, named="NAME=FOLDER")
    o = build(UniformOptions, flags)
    networks, runs = {}, {}
    for name, folder in flags["named"].items():
        if folder == LAW:
            tokenizer = Tokenizer("words", words=TOY.words())
            settings = SimpleNamespace(data="toy", windows="aligned", seed=SEED)
            networks |= {f"{name}, masked": toy_oracle(), f"{name}, uniform": Law()}
        else:
            runs[name] = {"folder": folder} | origin_of(folder)
            networks[name], tokenizer, _ = open_model(folder, "cpu")
            settings = SimpleNamespace(**read_run(folder)["settings"])
    results = {}
    for name, model in networks.items():
        windows = open_windows(settings, "val", model.config.block_size)
        x = torch.from_numpy(windows.spread(o.windows))                         # (N, T)
        law = windows.law(o.windows)
        law = 0 if law is None else torch.from_numpy(law)
        results[name] = measured(model, tokenizer, x, law, o)
        print(name, results[name], flush=True)
        if o.json:
            write_json(o.json, provenance(SEED) | {"runs": runs, "results": results})


if __name__ == "__main__":
    command(main, "with --json, what was measured is in its file")
