"""
Which Sudokus a model solves, in each order in which it can write.

Adds: a table of who solves which. Costs: nothing elsewhere. Plugs in as

    python -m extras.solve mdlm=out/sudoku-mdlm aogpt=out/sudoku-aogpt ar=out/sudoku-pairs-ar
    python -m extras.solve mdlm=out/sudoku-mdlm --puzzles=mine.txt
    python -m extras.solve mdlm=out/sudoku-9-mdlm                     9 x 9, see worlds/sudoku_9.py

The puzzles have one solution each, and so many givens. Their grids are those that data/sudoku holds
out for validation, or data/sudoku-9. In the texts of data/sudoku-pairs and data/sudoku-moves at
most one of 260 of them is there by chance. Solved means that every cell is right. A GPT that has
learned moves chooses the cells too, and must name each of them once. "Surest first" fills in each
pass the cell whose law has the lowest entropy; a risk lets it fill several, see
samplers/adaptive.py. A pass is one run of the network. Without givens, the share that is right says
how often a grid comes out that obeys the rules. The loss is in nats per cell, above the law if that
is known. That of ar is exact, that of the others a bound, and exact where they write from left to
right.
"""
import collections
import itertools
import math
import random
import re
from dataclasses import asdict, dataclass
from functools import partial

import torch
from tqdm import tqdm

from extras.score import score_writing
from prepare_data import Windows, prepare_if_missing
from sample import SampleOptions, generate, open_model, plain_sampler
from samplers import adaptive
from support.flags import (
    InputError, build, command, flag, parse_flags, print_table, provenance, write_json)
from support.rows import read_text
from support.runs import origin_of
from train import mean_and_error, window_losses
from variants.taught import in_solvers_order
from worlds import world_named, world_of
from worlds.sudoku import SUDOKU, Sudoku
from worlds.sudoku_moves import SUDOKU_MOVES
from worlds.sudoku_pairs import SUDOKU_PAIRS, SolvedPuzzles

# Of each size of a grid the data set of which grids are held out, the numbers of givens to try, and
# the fewest that are met at all, by trial.
DATA = {6: "sudoku", 9: "sudoku-9"}
GIVENS = {6: "9,12,16", 9: "28,32,40"}
FEWEST = {6: 8, 9: 22}


@dataclass
class PuzzleOptions:
    """which puzzles, and how they are solved"""
    givens: str = flag(
        "", "cells of a puzzle that are given, one row each; default: 9,12,16; of 9 x 9 28,32,40")
    num_puzzles: int = flag(1000, "puzzles for each number of givens; also grids without", low=2)
    puzzles: str = flag(
        "", "a file of your own instead, with a puzzle in each line; a blank is a dot or a 0")
    risks: str = flag("0.001,0.01,0.1", "nats that a pass may be unsure of, besides 0; mdlm, aogpt")
    losses: bool = flag(True, "measure the losses too")
    seed: int = flag(1337, "of the puzzles and of what is drawn", low=0, high=10 ** 15)
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for all numbers", file=(".json",))


def numbers_of(name: str, text: str, kind) -> list:
    """The numbers of a flag like --givens=9,12,16. Raises InputError."""
    try:
        return [kind(part) for part in text.split(",") if part]
    except ValueError as e:
        raise InputError(f"--{name}={text} must be numbers with commas between them") from e


# ---- Puzzles -------------------------------------------------------------------------------------

def held_out_grids(rules: Sudoku = SUDOKU) -> list:
    """The grids that data/sudoku, or data/sudoku-9, holds out. Raises InputError."""
    prepare_if_missing(DATA[rules.n])
    val = Windows(DATA[rules.n], "val", rules.cells)
    return [tuple(digit + 1 for digit in grid) for grid in val.spread(len(val)).tolist()]


def drawn_puzzles(grids: list, givens: int, count: int, seed: int, rules=SUDOKU) -> list:
    """So many puzzles with so many givens, each with its solution. Raises InputError."""
    if not FEWEST[rules.n] <= givens < rules.cells:
        raise InputError(f"--givens={givens} must be from {FEWEST[rules.n]} to {rules.cells - 1}")
    rng = random.Random(f"{seed} {givens}")
    found = []
    with tqdm(total=count, unit="puzzle", leave=False, disable=None) as bar:
        while len(found) < count:
            solution = rng.choice(grids)
            puzzle = rules.draw_puzzle(solution, givens, rng)
            if rules.cells - puzzle.count(0) == givens:
                found.append((puzzle, solution))
                bar.update()
    return found


def read_puzzles(path: str, rules: Sudoku) -> list:
    """The puzzles of a file, each with its solution. Raises InputError."""
    found = []
    lines = read_text(path).split() or [""]
    for line in tqdm(lines, unit="puzzle", leave=False, disable=None):
        if not re.fullmatch(f"[.0-{rules.n}]{{{rules.cells}}}", line):
            raise InputError(f"{path} must have a puzzle in each line, of {rules.cells} digits "
                             f"from 1 to {rules.n}, or dots for blanks; it has: {line}")
        puzzle = tuple(map(int, line.replace(".", "0")))
        solutions = list(itertools.islice(rules.solutions(puzzle), 2))
        if 0 not in puzzle or len(solutions) != 1:
            raise InputError(f"{path} has a puzzle with no blank, no solution or several; give one "
                             f"with a single right answer instead of {line}")
        found.append((puzzle, *solutions))
    return found


# ---- Solving -------------------------------------------------------------------------------------

def ways_of(world, config, risks: list, seed: int) -> dict:
    """{name: (flags of sample.py, what makes a sampler)} of the orders in which it can write."""
    def adaptively(risk: float):
        return partial(adaptive.sampler, flags={"risk": risk})

    taught = getattr(config, "taught", "")
    if taught == "solver":
        return {"a solver's order": ({}, lambda config, o: partial(in_solvers_order, seed=seed))}
    if config.row.orders == "one":
        way = "its own order" if world is SUDOKU_MOVES else "left to right"
        return {way: ({}, plain_sampler)}
    ways = {"left to right": ({"order": "left_to_right"}, plain_sampler)}
    if not taught:
        ways["random order"] = {"order": "random"}, plain_sampler
        ways["surest first"] = {}, adaptively(0.0)
        for risk in risks:
            ways[f"risk {risk:g}"] = {}, adaptively(risk)
    return ways


def pattern_of(world, puzzle: tuple, config) -> list:
    """The tokens of a puzzle, with [MASK]s for what is to come.

    In a grid the digit d is the token d−1. In a pair it is the token d, the token 0 is a blank, and
    before what is to come stands the mark. A GPT that writes moves reads those of the givens."""
    if world is SUDOKU_PAIRS:
        return [*puzzle, config.mark] + [config.mask_id] * world.cells
    if world is SUDOKU_MOVES and config.row.orders == "one":
        givens = [world.n * cell + digit - 1 for cell, digit in enumerate(puzzle) if digit]
        return [*givens, config.mark] + [config.mask_id] * puzzle.count(0)
    return [digit - 1 if digit else config.mask_id for digit in puzzle]


def solve(name: str, opened: tuple, puzzles: list, risks: list, seed: int, temperature=0.0):
    """Yields for each way of writing a row of what it takes, and the grids that come out.

    The puzzles have equally many givens. The temperature 0 takes the likeliest digit, 1 draws."""
    model, tokenizer, _ = opened
    world = world_of(tokenizer)
    patterns = torch.tensor([pattern_of(world, puzzle, model.config) for puzzle in puzzles])
    for way, (flags, make_sampler) in ways_of(world, model.config, risks, seed).items():
        options = SampleOptions(temperature=temperature, seed=seed, full_length=True, **flags)
        grids, passes = [], []
        for part in tqdm(patterns.split(250), f"{name}, {way}", leave=False, disable=None):
            stories = range(len(grids), len(grids) + len(part))
            tokens, appeared = generate(model, stories, part, options, make_sampler)
            if hasattr(model.config, "taught"):     # it writes digits, and not the data's words
                grids += [tuple(digit + 1 for digit in ids) for ids in tokens.tolist()]
            else:
                grids += [world.grid_of(tokenizer.decode(ids)) for ids in tokens.tolist()]
            passes += (appeared.amax(dim=1) + 1).tolist()
        yield {"run": name, "way": way, "passes": sum(passes) / len(passes)}, grids


def share(right: list) -> tuple:
    """The share that is true, and its standard error."""
    p = sum(right) / len(right)
    return p, math.sqrt(p * (1 - p) / len(right))


def losses_above_law(opened: tuple, grids: list, seed: int) -> dict:
    """Nats per cell above the law, if it is known, each with its standard error over grids."""
    model, tokenizer, _ = opened
    world = world_of(tokenizer)
    law = (world.entropy() or 0) / world.cells
    x = torch.tensor(grids) - 1                                                 # (N, n²)
    draws = 16 if model.config.row.drawn else 1
    loss, error = mean_and_error(window_losses(model, x, seed, draws))
    found = {"loss": (loss - law, error)}
    if model.config.row.orders == "any":
        o = SampleOptions(order="left_to_right")
        scores = score_writing(model, x[:300].tolist(), plain_sampler(model.config, o), o)
        nats = torch.tensor([score.nats / world.cells for score in scores])
        loss, error = mean_and_error(nats)
        found["left_to_right"] = (loss - law, error)
    return found


# ---- The command ---------------------------------------------------------------------------------

def open_runs(folders: dict, device: str) -> dict:
    """{name: what open_model of sample.py returns}. Raises InputError for other than Sudokus."""
    runs = {}
    for name, folder in folders.items():
        model, tokenizer, _ = runs[name] = open_model(folder, device)
        world = world_of(tokenizer)
        needs = "mark" if isinstance(world, SolvedPuzzles) else "mode"
        row = model.config.row
        if not isinstance(world, Sudoku) or not hasattr(model.config, needs) or row.orders == "own":
            raise InputError(f"{folder} has not learned to solve Sudokus; train one by python "
                             "train.py --mode=mdlm --preset=sudoku, or another such preset")
    return runs


def print_results(rows: list, losses: dict):
    """Tables of what `main` has found."""
    table = [["run", "way", "givens", "right, %", "passes"]]
    for row in rows:
        right, error = row.get("solved") or row["right"]
        table.append([row["run"], row["way"], str(row.get("givens", 0)),
                      f"{100 * right:.1f} ± {100 * error:.1f}", f"{row['passes']:.1f}"])
    print_table(table)
    if losses:
        print("\nnats per cell, above the law if that is known (exact for ar and from left to "
              "right, else a bound)")
    for name, found in losses.items():
        for kind, (nats, error) in found.items():
            print(f"{name}, {kind}: {nats:.4f} ± {error:.4f}")


def main():
    flags = parse_flags(__doc__, PuzzleOptions, named="NAME=DIR")
    o = build(PuzzleOptions, flags)
    runs = open_runs(flags["named"], o.device)
    [n, *others] = {world_of(tokenizer).n for _, tokenizer, _ in runs.values()}
    if others:
        raise InputError("these models know grids of different sizes; give those of one size")
    rules = world_named(DATA[n])
    risks = numbers_of("risks", o.risks, float)
    all_givens = numbers_of("givens", o.givens or GIVENS[n], int)
    sets = collections.defaultdict(list)        # {givens: puzzles and their solutions}
    if o.puzzles:
        for puzzle, solution in read_puzzles(o.puzzles, rules):
            sets[rules.cells - puzzle.count(0)].append((puzzle, solution))
    else:
        grids = held_out_grids(rules)
        for givens in all_givens:
            sets[givens] = drawn_puzzles(grids, givens, o.num_puzzles, o.seed, rules)

    solved, from_nothing, losses = [], [], {}
    blank = [(0,) * rules.cells] * o.num_puzzles
    for name, opened in runs.items():
        knows_grids = world_of(opened[1]) is rules
        goes_around = not knows_grids or opened[0].config.row.orders != "one"   # what is given
        for givens, pairs in sets.items() if goes_around else ():
            puzzles, solutions = zip(*pairs)
            for row, found in solve(name, opened, puzzles, risks, o.seed):
                right = [grid == solution for grid, solution in zip(found, solutions)]
                row |= {"givens": givens, "puzzles": len(right), "solved": share(right)}
                solved.append(row)
                for puzzle, grid, ok in zip(puzzles if o.puzzles else (), found, right):
                    print(*(digit or "." for digit in puzzle))
                    print(*grid, f" {name}, {row['way']}: {'right' if ok else 'wrong'}\n")
        if o.losses and not o.puzzles and knows_grids:
            for row, found in solve(name, opened, blank, risks, o.seed, 1.0):
                from_nothing.append(row | {"right": share([*map(rules.is_grid, found)])})
            losses[name] = losses_above_law(opened, grids[:1000], o.seed)
    print_results(solved + from_nothing, losses)
    if o.json:
        write_json(o.json, provenance(o.seed) | {
            "runs": {name: origin_of(folder) for name, folder in flags["named"].items()},
            "options": asdict(o), "solved": solved, "grids": from_nothing, "losses": losses})


if __name__ == "__main__":
    command(main, "nothing was written")
