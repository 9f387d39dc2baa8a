"""
What do runs score on stories by which nothing was chosen?

    python -m experiments.held_out --runs=out/ar-1,out/ar-2,out/mdlm-1 --json=F

Its numbers are those of results/real.md and paper.md, and of stories in learning.md. Every run's
own validation stories chose its best.pt. The validation stories of data/DATA are others. On those
the best weights are scored, in nats per token: ar exactly, mdlm and aogpt by their bounds, aogpt
also exactly from left to right.

A window is the first block_size tokens from a story's start. Where a story is shorter, the next one
follows, so windows beside each other share text. The file has the mean over each ten neighbours;
the standard error of the mean of these is that of the stories.
"""
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from model import order_batch
from prepare_data import open_windows
from sample import open_model
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.pictures import figure, in_legend
from support.runs import origin_of, read_run
from train import losses_in_parts, window_losses

NEIGHBOURS = 10     # windows whose mean is one number
SEED = 1337         # of masks and orders

# The colour of a model in all figures; and for each help in a run's name, what it is called and the
# style of its line.
COLOURS = {"ar": "C0", "mdlm": "C1", "aogpt": "C2", "masked_ce": "C3", "infill": "C4"}
HELPS = {
    "plain": ("no help", ".-"),
    "dropout": ("dropout", "s--"),
    "both": ("dropout and noise", "^:")}


@dataclass
class Output:
    """Flags that several experiments have."""
    json: str = flag("", "file for the results", file=(".json",))
    plot: str = flag("", "file for a figure", file=(".png", ".svg", ".pdf"))


@dataclass
class HeldOutOptions(Output):
    """what to score"""
    data: str = flag("unseen", "data set whose validation stories are scored")
    runs: str = flag("", "folders of the runs: A,B,…")
    windows: int = flag(400, "windows of them", low=2 * NEIGHBOURS)
    draws: int = flag(8, "masks or orders for each window's bound", low=1)


# ---- A run ---------------------------------------------------------------------------------------

def of_neighbours(scores) -> list:
    """The mean of each ten of the scores (N,), in five decimals; fewer at the end are left out.

    Raises InputError where there are not twenty, of which no error could be told."""
    groups = len(scores) // NEIGHBOURS
    if groups < 2:
        raise InputError(f"{len(scores)} windows are too few; prepare more text")
    return [round(part.mean().item(), 5) for part in scores.split(NEIGHBOURS)[:groups]]


def finished_run(folder: str) -> dict:
    """What read_run returns. Raises InputError where the run has not come to its end."""
    run = read_run(folder)
    if run["curve"][-1]["step"] < run["settings"]["max_steps"]:
        raise InputError(f"{folder} is not finished; go on with train.py --resume")
    return run


def open_run(folder: str, data: str, device="auto") -> tuple:
    """What finished_run returns, the best model, and the windows of data, else of the run's own.

    Raises InputError."""
    run = finished_run(folder)
    data = data or run["settings"]["data"]
    model, tokenizer, _ = open_model(folder, device)
    kind = run["settings"]["windows"] if data == run["settings"]["data"] else "auto"
    settings = run["settings"] | {"data": data, "windows": kind}
    windows = open_windows(SimpleNamespace(**settings), "val", model.config.block_size)
    if tokenizer.to_dict() != windows.meta["tokenizer"]:
        raise InputError(f"{folder} has another tokenizer than data/{data}")
    return run, model, windows


def measure(folder: str, o: HeldOutOptions) -> dict:
    """The scores of a run's best model, and by what it was chosen. Raises InputError."""
    run, model, windows = open_run(folder, o.data)
    x = torch.from_numpy(windows.spread(o.windows))                             # (N, T)
    draws = o.draws if model.config.row.drawn else 1
    found = {"bound": window_losses(model, x, SEED, draws)}
    if model.config.mode == "aogpt":
        in_turn = torch.arange(x.size(1)).expand_as(x)
        found["left to right"] = losses_in_parts(model, order_batch(model.config, x, in_turn))
    steps_of_an_epoch = run["train_windows"] / run["settings"]["batch_size"]
    curve = [(entry["step"] / steps_of_an_epoch, entry["val_nll"]) for entry in run["curve"]]
    return origin_of(folder) | {
        "curve": curve,         # of (epochs, loss on the stories that choose)
        "scores": {name: of_neighbours(scores) for name, scores in found.items()}}


def error_of(scores) -> float:
    """The standard error of the mean of the scores of neighbours, (groups,)."""
    return np.std(scores, ddof=1) / math.sqrt(len(scores))


def draw_curves(runs: dict, path: str):
    """The loss on the stories that choose, against epochs, of the runs with seed 1.

    A run is out/GROUP/MODE-HELP-STEPS-SEED or out/GROUP/MODE-SEED. The mode is its colour, and help
    the style of its line. Of the shorter ones of a kind only the end is drawn, as a point."""
    kinds = {}
    for folder, run in runs.items():
        if folder.endswith("-1"):
            mode, help, *_ = Path(folder).name.split("-")
            kinds.setdefault((mode, HELPS.get(help, ("", ".-"))), []).append(run["curve"])
    with figure(path, (7, 4.5)) as axes:
        for (mode, (label, style)), curves in kinds.items():
            look = dict(color=COLOURS.get(mode), ms=4, lw=1)
            axes.plot(*zip(*max(curves, key=len)), style, **look,
                      label=in_legend(f"{mode}, {label}" if label else mode))
            axes.plot(*zip(*[curve[-1] for curve in curves]), style[0], **look)
        axes.set(xlabel="epochs", ylabel="validation loss, nats per token")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")


def main():
    o = build(HeldOutOptions, parse_flags(__doc__, HeldOutOptions))
    if not o.runs:
        raise InputError("which runs? give --runs=FOLDER,FOLDER,…")
    facts = provenance(SEED) | {"runs": {}}
    for folder in o.runs.split(","):
        run = measure(folder, o)
        facts["runs"][folder] = run
        for name, scores in run["scores"].items():
            text = f"{np.mean(scores):.3f} ± {error_of(scores):.3f}"
            print(f"{folder}, {name}: {text} nats per token", flush=True)
    if o.json:
        write_json(o.json, facts)
    if o.plot:
        draw_curves(facts["runs"], o.plot)


if __name__ == "__main__":
    command(main, "nothing was written")
