"""
What should the loss of the first steps be, and how much does it jump?

    python -m experiments.first_steps mdlm=out/toy-mdlm ar=out/toy-ar --plot=F

It is the figure of is-my-loss-right.md. NAME=FOLDER are runs on the same data, whose windows begin
where stories do. It prints the losses, in nats per token, of models that know less and less of the
text, and draws them beside the training losses of the runs, each the mean of ten steps:

    nothing         ln V, all words equally likely
    frequencies     how often each word occurs: the entropy of the words
    places          how often each word occurs at each place of a window
    law             the text's own law, if it is known

A second panel has the last half of training by itself.
"""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.held_out import COLOURS
from prepare_data import Windows
from support.flags import build, command, flag, parse_flags, print_table
from support.pictures import figure
from support.runs import read_run

STEPS = 10, 20, 30, 50, 100, 200


@dataclass
class FirstStepsOptions:
    """what to write"""
    plot: str = flag("", "file for a figure", file=(".png", ".svg", ".pdf"))


def entropy(tokens) -> float:
    """Nats of a token that is drawn from these."""
    _, counts = np.unique(tokens, return_counts=True)
    share = counts / counts.sum()
    return -(share * np.log(share)).sum()


def levels(windows, vocab_size: int) -> dict:
    """{what a model knows of these windows: its nats per token}."""
    tokens = windows.spread(len(windows))                                       # (N, T)
    law = windows.law(len(windows))
    found = {
        "nothing": math.log(vocab_size),
        "frequencies": entropy(tokens),
        "places": np.mean([entropy(place) for place in tokens.T])}
    if law is not None:
        found["law"] = law.mean()
    return found


def training_losses(folder: str) -> tuple:
    """Steps (n,), and the mean training loss of the ten steps up to each (n,)."""
    lines = Path(folder, "log.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]
    points = [(entry["step"], entry["train_loss"]) for entry in log if "train_loss" in entry]
    return np.array(points).T


def draw_curves(curves: dict, known: dict, path: str):
    """Training losses {name: (steps, losses)}, and what the levels are, {name: nats}."""
    with figure(path, (10, 4), columns=2, one_scale=False) as (whole, end):
        for axes in whole, end:
            for name, (steps, losses) in curves.items():
                axes.plot(steps, losses, lw=1, color=COLOURS.get(name), label=name)
            for name, nats in known.items():
                axes.axhline(nats, color="k", ls="--", lw=0.8)
        for name, nats in known.items():
            whole.text(steps[-1], nats - 0.03, name, ha="right", va="top")
        whole.set(xscale="log", ylim=(0, None), xlabel="optimizer step",
                  ylabel="training loss, nats per token")
        half = steps[-1] / 2
        late = np.concatenate([losses[steps > half] for steps, losses in curves.values()])
        end.set(xlim=(half, steps[-1]), ylim=(late.min() - 0.005, late.max() + 0.005),
                xlabel="optimizer step")


def main():
    flags = parse_flags(__doc__, FirstStepsOptions, named="NAME=FOLDER")
    o = build(FirstStepsOptions, flags)
    folders = flags["named"]
    run = read_run(next(iter(folders.values())))
    config = run["config"]
    windows = Windows(run["settings"]["data"], "val", config["block_size"])
    known = levels(windows, config["vocab_size"])
    print_table([["knows", "nats per token"]] + [[name, f"{known[name]:.3f}"] for name in known])

    curves = {name: training_losses(folder) for name, folder in folders.items()}
    print("\nmean of the ten steps up to, and of the last half with its standard deviation")
    rows = [["", *map(str, STEPS), "last half", "±"]]
    for name, (steps, losses) in curves.items():
        early = np.interp(STEPS, steps, losses)
        late = losses[steps > steps[-1] / 2]
        rows.append([name, *(f"{loss:.2f}" for loss in early),
                     f"{late.mean():.3f}", f"{late.std():.3f}"])
    print_table(rows)
    if o.plot:
        draw_curves(curves, known, o.plot)


if __name__ == "__main__":
    command(main, "nothing was written")
