"""
Why does masked_ce lower mdlm's bound faster than the bound itself? The noise of the gradient.

    python -m experiments.gradient early=out/a late=out/b --json=F

NAME=FOLDER are runs of mdlm; untrained weights of the first one's sizes come before them. Each
network is given the gradients of both objectives, many times, each of a new batch of windows with
new masks, as in a step of training. A gradient is its mean plus noise. Each
network has

    noise scale     the windows that a batch must have for both to be equally large: batch size ·
                    (variance of the gradient) / |mean gradient|² (arXiv 1812.06162)
    cosine          of the angle between the two mean gradients: 1 if both objectives pull the same
                    way

The expected answer: masked_ce has less noise, because rows that hide few tokens have few
predictions and in the bound as much weight as all others; and it pulls nearly the same way. It
would be refuted if its noise scale were not smaller, or if the cosine were far from 1 where it
trains faster. That would leave the weights of the mask ratios as the explanation.

A network takes a minute on a core at the sizes of run_all.sh. Where the noise hides the mean, the
numbers are NaN, and more draws are needed.
"""
import math
from dataclasses import dataclass, replace

import torch
from tqdm import tqdm

from prepare_data import Windows
from sample import open_model
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.runs import origin_of, random_numbers, read_run

OBJECTIVES = "nelbo", "masked_ce"


@dataclass
class GradientOptions:
    """what to measure"""
    batch_size: int = flag(8, "windows of a gradient", low=2)
    draws: int = flag(64, "gradients of each objective and network", low=2)
    seed: int = flag(1337, "of windows, masks and untrained weights")
    json: str = flag("", "file for the results", file=(".json",))


def gradient(model, losses, batch) -> torch.Tensor:
    """All partial derivatives of the loss of a batch, as one vector."""
    model.zero_grad()
    losses(model, batch, batch.select()).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def measure(model, variant, windows: Windows, o: GradientOptions) -> dict:
    """{objective: noise scale, in windows}, and the cosine of the two mean gradients."""
    found = {}
    means, signals = [], []
    for number, objective in enumerate(OBJECTIVES):
        config = replace(model.config, objective=objective)
        total, squares = 0, 0.0
        for draw in tqdm(range(o.draws), leave=False, disable=None):
            step = number * o.draws + draw          # so the two see different windows and masks
            x = torch.from_numpy(windows.batch(step, o.batch_size))
            batch = variant.training_batch(config, x, random_numbers(o.seed, step))
            g = gradient(model, variant.losses, batch)
            total = total + g.double()
            squares += g.square().sum().item()
        mean = total / o.draws
        square = mean.square().sum().item()
        variance = (squares - o.draws * square) / (o.draws - 1)
        signal = square - variance / o.draws        # the square without its bias
        if signal < 0:
            signal = math.nan           # the noise hides the mean; more draws may show it
        found[objective] = o.batch_size * variance / signal
        means.append(mean)
        signals.append(signal)
    found["cosine"] = (means[0] @ means[1]).item() / (signals[0] * signals[1]) ** 0.5
    return found


def main():
    flags = parse_flags(__doc__, GradientOptions, named="NAME=FOLDER")
    o = build(GradientOptions, flags)
    found = {}
    runs = {}
    for name, folder in flags["named"].items():
        run = read_run(folder)
        runs[folder] = origin_of(folder)
        model, variant, *_ = open_model(folder, "cpu")
        config = model.config
        if config.mode != "mdlm":
            raise InputError(f"{folder} is a run of {config.mode}; give runs of mdlm")
        windows = Windows(run["settings"]["data"], "train", config.block_size, seed=o.seed)
        if not found:
            torch.manual_seed(o.seed)
            found["untrained"] = measure(variant.Transformer(config), variant, windows, o)
        found[name] = measure(model, variant, windows, o)
        print(found, flush=True)
    if o.json:
        facts = provenance(o.seed) | {"batch_size": o.batch_size, "draws": o.draws}
        write_json(o.json, facts | {"networks": found, "runs": runs})


if __name__ == "__main__":
    command(main, "nothing was written")
