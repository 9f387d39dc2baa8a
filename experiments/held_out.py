"""
What do runs score on stories by which nothing was chosen, and in which order is a story easiest?

    python -m experiments.held_out --runs=out/ar-1,out/ar-2,out/mdlm-1 --json=F
    python -m experiments.held_out --runs=out/aogpt-1 --windows=64 --orders=8 --json=F

Its numbers are those of results/real.md and paper.md, and of stories in learning.md. Every run's
own validation stories chose its best.pt. The validation stories of data/DATA are others. On those
the best weights are scored, in nats per token: ar exactly, mdlm and aogpt by their bounds, aogpt
also exactly from left to right.

With --orders=K every run is scored exactly in orders of writing, one token a pass: from left to
right, and in K random orders. The mean over random orders is the bound. What the model itself says
is −log of the mean of p over all orders, which is lower. The mean of p over K of them lies between
the two (Burda et al. 2016, arXiv 1509.00519), so the distance from the bound to that of K is a part
of the bound's slack. aogpt reads a window in one pass for each order, while mdlm takes a pass for
each of its tokens: for 60 windows of 256 tokens that is three minutes an order on a core. With
--left_to_right every run is scored exactly in this order alone.

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
from tqdm import tqdm

import model as plain
from prepare_data import open_windows
from sample import open_model
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.pictures import figure, in_legend
from support.runs import origin_of, random_numbers, read_run
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
    orders: int = flag(0, "exact, in so many random orders and left to right; 0: bounds", low=0)
    left_to_right: bool = flag(False, "exact, from left to right alone")


# ---- Orders --------------------------------------------------------------------------------------

def nats(model, x, order):
    """(N,) nats per token of the windows x (N, T), written in the order (N, T) one by one."""
    config = model.config
    if config.row.causal:
        return losses_in_parts(model, plain.order_batch(config, x, order))
    return nats_in_turn(model, x, order, known=0)


def left_to_right(model, x):
    """(N,) nats per token of the windows x (N, T), written in the order in which they are read."""
    return nats(model, x, torch.arange(x.size(1)).expand_as(x))


def nats_in_turn(model, x, order, known: int):
    """(N,) as `nats` of an mdlm, where the first `known` tokens of the order are given."""
    T = x.size(1)
    rank = order.argsort(dim=1)             # when the turn of each position comes
    total = torch.zeros(len(x), dtype=torch.float64)
    for turn in tqdm(range(known, T), leave=False, disable=None):
        batch = plain.mask_batch(model.config, x, rank >= turn)
        slot = 1 + order[:, turn:turn + 1]                      # (N, 1), BOS has slot 0
        weight = torch.zeros_like(batch.weight).scatter(1, slot, 1.0)           # (N, T+1)
        total += losses_in_parts(model, batch._replace(weight=weight))
    return total / (T - known)


def of_the_mean(scores, T: int):
    """(N,) nats per token of the mean over K orders of p, given those of each, scores (K, N)."""
    log_p = -T * scores
    log_mean = torch.logsumexp(log_p, dim=0) - math.log(len(scores))            # (N,)
    return -log_mean / T


def in_orders(model, x, K: int) -> dict:
    """(N,) nats per token of the windows x (N, T) in each kind of order. ar has only one."""
    generator = random_numbers(SEED)
    found = {"left to right": left_to_right(model, x)}
    if model.config.row.orders == "one":
        return found
    scores = []
    for _ in range(K):
        order = torch.rand(x.shape, generator=generator).argsort(dim=1)         # (N, T)
        scores.append(nats(model, x, order))
    scores = torch.stack(scores)                                                # (K, N)
    found["random"] = scores.mean(dim=0)
    found[f"mean of {K}"] = of_the_mean(scores, x.size(1))
    return found


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
    has_own_orders = type(model.config).__module__ in ("variants.blocks", "variants.infill")
    if has_own_orders and (o.orders or o.left_to_right):
        raise InputError("--orders and --left_to_right are for ar, and for mdlm and aogpt in "
                         "random order")
    if o.orders:
        found = in_orders(model, x, o.orders)
    elif o.left_to_right:
        found = {"left to right": left_to_right(model, x)}
    else:
        draws = o.draws if model.config.row.drawn else 1
        found = {"bound": window_losses(model, x, SEED, draws)}
        if model.config.mode == "aogpt":
            found["left to right"] = left_to_right(model, x)
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
    the style of its line."""
    with figure(path, (7, 4.5)) as axes:
        for folder, run in runs.items():
            if folder.endswith("-1"):
                mode, help, *_ = Path(folder).name.split("-")
                label, style = HELPS.get(help, ("", ".-"))
                axes.plot(*zip(*run["curve"]), style, color=COLOURS.get(mode), ms=4, lw=1,
                          label=in_legend(f"{mode}, {label}" if label else mode))
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
