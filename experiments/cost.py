"""
What does a text cost under the sampler that writes it, and what does a saved pass cost?

    python -m experiments.cost NAME=FOLDER … --windows=200 --json=FILE

Each NAME=FOLDER is a run. Windows of its validation split are scored by extras/score.py in several
ways of writing: all of them by the same network, so only the way differs. A row has nats per token,
above the true law where there is one, and passes; ± is the standard error over windows, most of
which all rows of a network share, so beside it stands that of the difference to "left to right".
Of a GPT there is one row. With --givens=N the windows are Sudokus, and cost what is not given.

The expected answer: on text the ways of one token a pass cost the same within 0.02 nats, so that
the GPT's lead is real; on Sudokus surest first costs least. It would be refuted by an order that
brings masked diffusion on text near the GPT.
"""
import random
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from tqdm import tqdm

from extras.score import AT_ONCE, cost_of_writing
from model import read_masked
from prepare_data import open_windows
from sample import SampleOptions, open_model, plain_sampler
from samplers import adaptive
from support.flags import (
    build, command, flag, parse_flags, print_table, provenance, write_json)
from support.runs import origin_of, read_run
from train import mean_and_error, window_losses


@dataclass
class CostOptions:
    """what to score"""
    windows: int = flag(200, "validation windows", low=2)
    givens: int = flag(0, "cells that are given of each Sudoku, drawn at random", low=0)
    json: str = flag("", "file for the rows", file=(".json",))
    device: str = flag("cpu", "cpu, cuda or mps")


def surest_of_pass(count: int):
    """A sampler that writes in each pass the `count` tokens that the network is surest of."""
    @torch.no_grad()
    def write(model, tokens, times, decide, noise):
        for _ in range(tokens.size(1)):
            masked = tokens == model.config.mask_id                             # (B, L)
            if not masked.any():
                return
            row, place = masked.nonzero(as_tuple=True)                          # (n,) each
            logits = read_masked(model, tokens, row, place)                     # (n, V)
            nats = logits.new_full(tokens.shape, torch.inf)                     # (B, L)
            nats[row, place] = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)
            rank = nats.argsort(dim=1).argsort(dim=1)                           # (B, L)
            now = rank[row, place] < count                                      # (n,)
            row, place = row[now], place[now]
            tokens = tokens.index_put((row, place), decide(logits[now], row, place))
            yield tokens

    return write


def ways_of(config, tokens: int) -> dict:
    """{name: (sampler, flags of sample.py)} of the ways to write so many tokens."""
    def plain(order: str, a_pass: int = 1):
        o = SampleOptions(order=order, steps=-(-tokens // a_pass))
        return plain_sampler(config, o), o

    ways = {"left to right": plain("left_to_right"), "random": plain("random")}
    for a_pass in 2, 4, 8:
        ways[f"random, {a_pass} a pass"] = plain("random", a_pass)
    for a_pass in 2, 4, 8:
        ways[f"surest {a_pass} a pass"] = surest_of_pass(a_pass), SampleOptions()
    for risk in 0, 0.03, 0.1, 0.3, 1, 3, 10:
        name = f"risk {risk:g}" if risk else "surest first"
        ways[name] = adaptive.sampler(config, SampleOptions(), {"risk": risk}), SampleOptions()
    return ways


def rows_of(name: str, folder: str, o: CostOptions):
    """Yields what is found of a run: a row for each way of writing."""
    model, tokenizer, _ = open_model(folder, o.device)
    config = model.config
    settings = SimpleNamespace(**read_run(folder)["settings"])
    windows = open_windows(settings, "val", config.block_size)
    x = torch.from_numpy(windows.spread(o.windows))                             # (N, T)
    hidden = torch.ones_like(x, dtype=torch.bool)
    if o.givens:
        rng = random.Random(0)
        for row in hidden:
            row[rng.sample(range(x.size(1)), o.givens)] = False
    count = x.size(1) - o.givens
    law = windows.law(o.windows)                # (N,) nats per token of whole texts, or None
    law = torch.zeros(len(x)) if law is None or o.givens else torch.from_numpy(law)
    if not o.givens:
        nats = window_losses(model, x, seed=1, draws=16 if config.row.drawn else 1) - law
        yield name, "bound" if config.row.drawn else "exact", nats, None
    if config.row.orders == "one":
        return
    for way, (sampler, options) in tqdm(ways_of(config, count).items(), name, leave=False):
        found = []
        for first in range(0, len(x), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            stories = range(first, first + len(x[part]))
            found.append(cost_of_writing(model, x[part], hidden[part], sampler, options, stories))
        nats, passes = map(torch.cat, zip(*found))
        yield name, way, nats / count - law, passes.mean().item()


def main():
    flags = parse_flags(__doc__, CostOptions, named="NAME=FOLDER")
    o = build(CostOptions, flags)
    table, rows = [["run, way", "nats", "±", "less left to right", "±", "passes"]], []
    for name, folder in flags["named"].items():
        from_left = None
        for run, way, nats, passes in rows_of(name, folder, o):
            mean, error = mean_and_error(nats)
            row = {"run": run, "way": way, "nats": mean, "error": error, "passes": passes}
            if way == "left to right":
                from_left = nats
            if from_left is not None:
                row["less"], row["less_error"] = mean_and_error(nats - from_left)
            rows.append(row)
            figures = [row.get(key) for key in ("nats", "error", "less", "less_error", "passes")]
            cells = ["–" if figure is None else f"{figure:.4f}" for figure in figures]
            table.append([f"{run}, {way}", *cells])
    print_table(table)
    if o.json:
        runs = {name: origin_of(folder) for name, folder in flags["named"].items()}
        write_json(o.json, provenance(0) | {"runs": runs, "givens": o.givens, "rows": rows})


if __name__ == "__main__":
    command(main, "nothing was written")
