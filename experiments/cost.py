"""
What does a text cost under the sampler that writes it, and what does a saved pass cost?

    python -m experiments.cost NAME=FOLDER … --windows=200 --json=FILE

Each NAME=FOLDER is a run. Windows of its validation split, or of that of --data, are scored by
extras/score.py: by the first run in many ways of writing, which only differ in the way, and by the
others, or with --few by all, in a few of them. A row has nats per token, above the true law where
there is one, and passes. ± is the standard error over windows, most of which all rows share. So
beside it stands the difference to "left to right" of the same run, or for a GPT of the run before
it, with its own ±. The file also has how much less than the first run it costs in the same way.

With --givens=N the windows are Sudokus, and cost what is not given. With law=law the law of the toy
is scored in the place of a network: what it has above the law is what the way of writing loses by
itself, the KL of the law from what would be written.

The expected answer: on text the ways of one token a pass cost the same within 0.02 nats, so that
the GPT's lead is real; on Sudokus surest first costs least. It would be refuted by an order that
brings masked diffusion on text near the GPT.

A way takes its passes over all windows: 12 windows of 256 tokens by 1.4M weights take half a minute
to a minute and a half on one core with one token a pass.
"""
import json
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from experiments.held_out import open_run
from experiments.oracle import toy_oracle
from extras.score import costs_of_writing
from prepare_data import Windows
from sample import SampleOptions, plain_sampler
from samplers import adaptive
from support.flags import (
    InputError, build, command, flag, parse_flags, print_table, provenance, write_json)
from support.pictures import figure
from support.runs import origin_of, read_run
from tokenizer import Tokenizer
from train import mean_and_error, window_losses
from worlds import world_of
from worlds.sudoku import SUDOKU

RISKS = 0.1, 1, 3, 10
SEVERAL = 2, 4, 8           # tokens a pass
LAW = "law"


@dataclass
class CostOptions:
    """what to score"""
    windows: int = flag(200, "validation windows", low=2)
    data: str = flag("", "data set whose validation split is scored; default: the run's own")
    few: bool = flag(False, "few ways of writing for the first run too")
    givens: int = flag(0, "cells that are given of each Sudoku, drawn at random", low=0)
    json: str = flag("", "file for the rows", file=(".json",))
    device: str = flag("cpu", "cpu, cuda or mps")


def surest_of_pass(count: int):
    """A sampler that writes in each pass the `count` tokens that the network is surest of."""
    def choose(nats):
        rank = nats.argsort(dim=1).argsort(dim=1)                               # (B, L)
        return (rank < count) & nats.isfinite()

    return partial(adaptive.write, choose=choose)


def ways_of(config, tokens: int, few: bool) -> dict:
    """{name: (sampler, flags of sample.py)} of the ways to write so many tokens.

    "random" is the order of training: in blocks block by block, and at random places inside."""
    def plain(order: str = "", a_pass: int = 1):
        o = SampleOptions(order=order, steps=-(-tokens // a_pass))
        return plain_sampler(config, o), o

    def sure(risk: float):
        return adaptive.sampler(config, SampleOptions(), {"risk": risk}), SampleOptions()

    ways = {"left to right": plain("left_to_right"), "random": plain(),
            "surest first": sure(0)}
    several = SEVERAL[:1] if few else SEVERAL
    ways |= {f"random, {a_pass} a pass": plain(a_pass=a_pass) for a_pass in several}
    if few:
        return ways
    ways |= {f"surest {a_pass} a pass": (surest_of_pass(a_pass), SampleOptions())
             for a_pass in SEVERAL}
    return ways | {f"risk {risk:g}": sure(risk) for risk in RISKS}


def opened(folder: str, o: CostOptions) -> tuple:
    """The model, the windows to score x (N, T), what is hidden of them (N, T), and the nats of the
    law per hidden token (N,), which are 0 if it is not known. Raises InputError."""
    if folder == LAW:
        model = toy_oracle()
        windows = Windows("toy", "val", model.config.block_size)
    else:
        _, model, windows = open_run(folder, o.data, o.device)
    if not model.config.row.whole:
        raise InputError(f"{folder} has not learned whole texts, so none has a cost")
    x = torch.from_numpy(windows.spread(o.windows))                             # (N, T)
    hidden = torch.ones_like(x, dtype=torch.bool)
    law = windows.law(o.windows)            # (N,) of whole texts, or None
    law = torch.zeros(len(x)) if law is None else torch.from_numpy(law)
    if o.givens:
        world = world_of(Tokenizer(**windows.meta["tokenizer"]))
        if world is not SUDOKU or model.config.row.orders != "any" or o.givens >= x.size(1):
            raise InputError(f"{folder}: --givens={o.givens} is for mdlm and aogpt of Sudokus, and "
                             "for fewer cells than these have")
        rng = random.Random(0)
        for row in hidden:
            row[rng.sample(range(x.size(1)), o.givens)] = False
        puzzles = (x + 1).masked_fill(hidden, 0).tolist()       # the token of a digit is one less
        solutions = [sum(1 for _ in SUDOKU.solutions(puzzle)) for puzzle in puzzles]
        count = x.size(1) - o.givens
        law = torch.tensor(solutions).double().log() / count    # each is as likely as the others
    return model, x, hidden, law


def costs_of(model, x, hidden, few: bool):
    """Yields each way of writing, nats per token of each window (N,), and passes."""
    config, count = model.config, int(hidden[0].sum())
    if config.row.orders == "one":
        yield "exact", window_losses(model, x, seed=1), None
        return
    ways = ways_of(config, count, few)
    for way, (sampler, options) in tqdm(ways.items(), leave=False, disable=None):
        nats, passes = costs_of_writing(model, x, hidden, sampler, options)
        yield way, nats / count, passes.mean().item()
    if hidden.all():
        yield "bound", window_losses(model, x, seed=1, draws=16), None


# ---- All rows, and the figure --------------------------------------------------------------------

PANELS = {"toy-1": "toy", "sudoku-1": "Sudoku", "sudoku-given-1": "12 given cells",
          "shakespeare-1": "Tiny Shakespeare", "long-1": "stories, 5,000 steps"}
# How the names of ways begin.
LINES = {"random": "random places", "surest": "the k surest", "risk": "adaptive"}


def draw_costs(measured: str, path: str):
    """Nats beside the cheapest way, against passes a token, of all that a file of results has."""
    measured = json.loads(Path(measured).read_text())
    with figure(path, (12, 3.4), len(PANELS), one_scale=False) as panels:
        for axes, (name, title) in zip(panels, PANELS.items()):
            rows = measured[f"cost-{name}"]["rows"]
            rows = [row for row in rows if row["passes"] and row["run"] == "mdlm"]
            one_each = max(row["passes"] for row in rows)
            least = min(row["nats"] for row in rows)
            for way, label in LINES.items():
                points = [(row["passes"] / one_each, row["nats"] - least) for row in rows
                          if row["way"].startswith(way)]
                axes.plot(*zip(*sorted(points)), "o-", ms=4, label=label)
            axes.set(title=title, xlabel="passes a token")
        panels[0].set_ylabel("nats lost a token")


SHOWN = {"nats": "nats", "error": "±", "less": "less left to right", "less_error": "±",
         "passes": "passes"}


def main():
    flags = parse_flags(__doc__, CostOptions, named="NAME=FOLDER")
    o = build(CostOptions, flags)
    table = [["run, way", *SHOWN.values()]]
    rows = []
    first, newest = {}, {}                  # {way: nats of each window}, of the first run and now
    scored = None                           # (N, T) the windows of the first run
    for name, folder in flags["named"].items():
        model, x, hidden, law = opened(folder, o)
        few = o.few or scored is not None
        scored = x if scored is None else scored
        if not torch.equal(x, scored):
            raise InputError(f"{folder} has other windows than the first run; costs of these "
                             "cannot be compared")
        for way, nats, passes in costs_of(model, x, hidden, few):
            nats = newest[way] = nats - law
            row = {"run": name, "way": way, "passes": passes, "law": law.mean().item()}
            row["nats"], row["error"] = mean_and_error(nats)
            row["gain"], row["gain_error"] = mean_and_error(first.setdefault(way, nats) - nats)
            if "left to right" in newest:
                row["less"], row["less_error"] = mean_and_error(nats - newest["left to right"])
            rows.append(row)
            cells = ["–" if row.get(key) is None else f"{row[key]:.4f}" for key in SHOWN]
            table.append([f"{name}, {way}", *cells])
    print_table(table)
    if o.json:
        runs = {}
        for name, folder in flags["named"].items():
            if folder != LAW:
                end = read_run(folder)["curve"][-1]
                runs[name] = origin_of(folder) | {key: end[key] for key in ("step", "seconds")}
        write_json(o.json, provenance(0) | {"runs": runs, "givens": o.givens, "rows": rows})


if __name__ == "__main__":
    command(main, "nothing was written")
