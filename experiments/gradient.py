"""
How noisy is what a model learns from? The noise of the gradient, of recipes of mask ratios.

    python -m experiments.gradient early=out/a late=out/b ar=out/c --json=F

NAME=FOLDER are runs of mdlm or ar; untrained weights of the first one's sizes come before them.
Each network is given the gradient of each recipe many times, each of a new batch of windows with
new masks, as in a step of training. A gradient is its mean plus noise. For each recipe there is

    noise scale     the windows that a batch must have for both to be equally large: batch size ·
                    (variance of the gradient) / |mean gradient|² (arXiv 1812.06162)
    cosine          of the angle between its mean gradient and that of the bound: 1 if both pull the
                    same way

A recipe is an objective and the a of variants/bell.py, where 1 is model.py's own choice of how many
tokens are hidden. `4 masks` hides each window in four ways; its noise scale is in windows too, and
each of them is four rows. The expected answer: what trains faster has less noise, because rows that
hide few tokens have few predictions and in the bound as much weight as all others; and it pulls
nearly the same way. It would be refuted if the noise scale were not smaller, or if the cosine were
far from 1 where it trains faster. That would leave the weights of the mask ratios as the
explanation.

A network takes four minutes on a core at the sizes of run_all.sh. Where the noise hides the mean,
the numbers are NaN, and more draws are needed.
"""
import math
from dataclasses import dataclass, fields

import torch
from tqdm import tqdm

import model as plain
from prepare_data import Windows
from sample import open_model
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.runs import origin_of, random_numbers, read_run
from variants import bell

RECIPES = {
    "bound": dict(objective="nelbo", bell=1),
    "masked_ce": dict(objective="masked_ce", bell=1),
    "bound, a = 4": dict(objective="nelbo", bell=4),
    "masked_ce, a = 4": dict(objective="masked_ce", bell=4),
    "masked_ce, a = 4, 4 masks": dict(objective="masked_ce", bell=4, draws=4)}


@dataclass
class GradientOptions:
    """what to measure"""
    batch_size: int = flag(8, "windows of a gradient", low=2)
    draws: int = flag(64, "gradients of each recipe and network", low=2)
    seed: int = flag(1337, "of windows, masks and untrained weights")
    json: str = flag("", "file for the results", file=(".json",))


def gradient(model, losses, batch) -> torch.Tensor:
    """All partial derivatives of the loss of a batch, as one vector."""
    model.zero_grad()
    losses(model, batch, batch.select()).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def configs_of(config) -> dict:
    """{recipe: its Config}; of ar there is one alone, its loss."""
    if config.mode == "ar":
        return {"loss": config}
    sizes = {f.name: getattr(config, f.name) for f in fields(plain.Config)}
    return {name: bell.Config(**sizes | recipe) for name, recipe in RECIPES.items()}


def measure(model, variant, windows: Windows, o: GradientOptions) -> dict:
    """{recipe: {"noise scale": windows, "cosine": of its mean gradient with the first one's}}."""
    batch_of = variant.training_batch if model.config.mode == "ar" else bell.training_batch
    found = {}
    for number, (name, config) in enumerate(configs_of(model.config).items()):
        total, squares = 0, 0.0
        for draw in tqdm(range(o.draws), leave=False, disable=None):
            step = number * o.draws + draw      # so each recipe sees other windows and masks
            x = torch.from_numpy(windows.batch(step, o.batch_size))
            batch = batch_of(config, x, random_numbers(o.seed, step))
            g = gradient(model, variant.losses, batch)
            total = total + g.double()
            squares += g.square().sum().item()
        mean = total / o.draws
        square = mean.square().sum().item()
        variance = (squares - o.draws * square) / (o.draws - 1)
        signal = square - variance / o.draws        # the square without its bias
        if signal < 0:
            signal = math.nan           # the noise hides the mean; more draws may show it
        if not found:
            first, first_signal = mean, signal
        cosine = (mean @ first).item() / (signal * first_signal) ** 0.5 if found else 1.0
        found[name] = {"noise scale": o.batch_size * variance / signal, "cosine": cosine}
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
        if config.mode == "aogpt" or hasattr(config, "block_length"):
            raise InputError(f"{folder} is a run of aogpt, or in blocks; give others")
        windows = Windows(run["settings"]["data"], "train", config.block_size, seed=o.seed)
        if not found:
            torch.manual_seed(o.seed)
            found["untrained"] = measure(variant.Transformer(config), variant, windows, o)
        found[name] = measure(model, variant, windows, o)
        print(name, found[name], flush=True)
    if o.json:
        facts = provenance(o.seed) | {"batch_size": o.batch_size, "draws": o.draws}
        write_json(o.json, facts | {"networks": found, "runs": runs})


if __name__ == "__main__":
    command(main, "nothing was written")
