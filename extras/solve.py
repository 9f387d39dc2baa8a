"""
Which Sudokus a model solves, in each order in which it can write.

Adds: a table of who solves which. Costs: nothing elsewhere. Plugs in as

    python -m extras.solve mdlm=out/sudoku-mdlm aogpt=out/sudoku-aogpt ar=out/sudoku-pairs-ar
    python -m extras.solve mdlm=out/sudoku-mdlm --puzzles=mine.txt
    python -m extras.solve mdlm=out/sudoku-9-mdlm                     9 x 9, see worlds/nine.py

The puzzles have one solution each, and so many givens. Their grids are those that data/sudoku holds
out for validation, or data/sudoku-9. In the texts of data/sudoku-pairs and data/sudoku-moves at
most one of 260 of them is there by chance. Solved means that every cell is right. "Surest first"
fills in each pass the cell whose law has the lowest entropy; a risk lets it fill several, see
samplers/adaptive.py. A pass is one run of the network. Without givens, the share that is right says
how often a grid comes out that obeys the rules. The loss is in nats per cell, above the law if that
is known. That of ar is exact, that of the others a bound, and exact where they write from left to
right.
"""
import math
import os
import random
import re
import time
from dataclasses import asdict, dataclass, replace
from functools import cache, partial

import torch
from tqdm import tqdm

from extras.score import score_writing
from prepare_data import Windows, prepare_if_missing
from sample import SampleOptions, generate, open_model, plain_sampler
from samplers import adaptive
from support.flags import (
    InputError, build, command, flag, parse_flags, print_table, provenance, write_json)
from support.pictures import figure
from support.rows import read_text
from support.runs import origin_of
from train import mean_and_error, window_losses
from variants.taught import in_solvers_order
from worlds import solving, world_named, world_of
from worlds.solved import MOVES, PAIRS
from worlds.sudoku import GRIDS, Sudoku

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
        "", "a file of your own instead: a puzzle in each line, or a row of it in each; for blanks "
        "dots, zeros or _")
    risks: str = flag("0.001,0.01,0.1", "nats that a pass may be unsure of, besides 0; mdlm, aogpt")
    temperature: float = flag(0.0, "0 takes the likeliest digit, 1 draws", low=0)
    losses: bool = flag(True, "measure the losses too")
    batch_size: int = flag(250, "puzzles at a time; changes speed, not results", low=1)
    seed: int = flag(1337, "of the puzzles and of what is drawn", low=0, high=10 ** 15)
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for all numbers", file=(".json",))
    plot: str = flag("", "file for a figure", file=(".png", ".svg", ".pdf"))


def numbers_of(name: str, text: str, kind) -> list:
    """The numbers of a flag like --givens=9,12,16, none of them negative. Raises InputError."""
    try:
        numbers = [kind(part) for part in text.split(",") if part.strip()]
        if not all(number >= 0 for number in numbers):      # with such a risk nothing is revealed
            raise ValueError("there is a negative one, or one that is no number")
    except ValueError as e:
        raise InputError(f"--{name}={text} must be numbers from 0 on, with commas between them"
                         ) from e
    return numbers


# ---- Puzzles -------------------------------------------------------------------------------------

def held_out_grids(rules: Sudoku = GRIDS) -> list:
    """The grids that data/sudoku, or data/sudoku-9, holds out. Raises InputError."""
    prepare_if_missing(DATA[rules.n])
    val = Windows(DATA[rules.n], "val", rules.cells)
    return [tuple(digit + 1 for digit in grid) for grid in val.spread(len(val)).tolist()]


def drawn_puzzles(grids: list, givens: int, count: int, seed: int, rules: Sudoku = GRIDS) -> list:
    """So many puzzles with so many givens, each with its solution. Raises InputError."""
    if not FEWEST[rules.n] <= givens < rules.cells:
        raise InputError(f"--givens={givens} must be from {FEWEST[rules.n]} to {rules.cells - 1}")
    rng = random.Random(f"{seed} {givens}")
    found = []
    with tqdm(total=count, unit="puzzle", leave=False, disable=None) as bar:
        while len(found) < count:
            solution = rng.choice(grids)
            puzzle = solving.draw_puzzle(rules, solution, givens, rng)
            if rules.cells - puzzle.count(0) == givens:
                found.append((puzzle, solution))
                bar.update()
    return found


def read_puzzles(path: str, rules: Sudoku = GRIDS) -> list:
    """The puzzles of a file, each with its solution. Raises InputError."""
    cells, n = rules.cells, rules.n
    digits = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        row = re.sub(r"[\s|+,-]", "", line)            # without the lines between boxes
        wrong = re.search(f"[^._*0-{n}]", row)
        if wrong:
            raise InputError(f"{path}, line {number} has the character {wrong[0]}; a puzzle has "
                             f"digits from 1 to {n}, and dots, zeros or _ for blanks")
        if len(row) not in (0, n, cells):
            raise InputError(f"{path}, line {number} has {len(row)} cells; give {cells} in a line, "
                             f"or {n} lines of {n}")
        digits += [int(digit) if digit.isdecimal() else 0 for digit in row]
    if not digits or len(digits) % cells:
        raise InputError(f"{path} ends before a puzzle is complete; give {cells} cells for each")
    puzzles = [tuple(digits[first:first + cells]) for first in range(0, len(digits), cells)]
    if any(0 not in puzzle for puzzle in puzzles):
        raise InputError(f"{path} has a grid without blanks, which is no puzzle")
    return [(puzzle, solution_of(puzzle, rules, f"{path}, puzzle {number}"))
            for number, puzzle in enumerate(puzzles, 1)]


def solution_of(puzzle, rules: Sudoku, name: str) -> tuple:
    """The only solution of a puzzle. Raises InputError."""
    found = [solution for solution, _ in zip(rules.solutions(puzzle), range(2))]
    if len(found) != 1:
        raise InputError(f"{name} has {'several solutions' if found else 'no solution'}, so no "
                         "answer to it is the right one")
    return found[0]


@cache
def needs_no_guess(puzzle, rules: Sudoku) -> bool:
    """Whether `singles` alone, again and again, fill all of it."""
    puzzle = list(puzzle)
    while singles := solving.singles(rules, puzzle):
        for cell, digit in singles:
            puzzle[cell] = digit
    return 0 not in puzzle


# ---- Solving -------------------------------------------------------------------------------------

def ways_of(config, world, risks: list, seed: int) -> dict:
    """{name: (flags of sample.py, sampler)} of the orders in which a model can write."""
    taught = getattr(config, "taught", "")
    if taught == "solver":
        return {"a solver's order": ({}, partial(in_solvers_order, seed=seed))}
    if taught or world is PAIRS:
        return {"left to right": ({"order": "left_to_right"} if taught else {}, None)}
    if config.mode == "ar":
        return {}               # it cannot go around what is given
    ways = {
        "left to right": ({"order": "left_to_right"}, None),
        "random order": ({"order": "random"}, None),
        "surest first": ({}, partial(adaptive.write, risk=0.0))}
    return ways | {f"risk {risk:g}": ({}, partial(adaptive.write, risk=risk)) for risk in risks}


def patterns_of(world, puzzles: list, config) -> torch.Tensor:
    """(N, L) tokens of puzzles that have equally many givens, with [MASK]s for what is to come.

    In a grid the digit d is the token d−1. In a pair it is the token d, the token 0 is a blank, and
    before what is to come stands the mark."""
    if world is PAIRS:
        rows = [[*puzzle, config.mark] + [config.mask_id] * len(puzzle) for puzzle in puzzles]
    else:
        rows = [[digit - 1 if digit else config.mask_id for digit in puzzle] for puzzle in puzzles]
    return torch.tensor(rows)


def grid_of(world, ids: list) -> tuple:
    """The grid that a model has written as these tokens."""
    return tuple(ids[-world.cells:]) if world is PAIRS else tuple(i + 1 for i in ids)


def written(name: str, opened: tuple, patterns, o: PuzzleOptions, flags: dict, sampler) -> tuple:
    """What a model makes of patterns (N, L): tokens, passes of each (N,), and seconds in all."""
    model, *_ = opened
    options = SampleOptions(temperature=o.temperature, seed=o.seed, full_length=True, **flags)
    found, passes = [], []
    began = time.perf_counter()
    for first in tqdm(range(0, len(patterns), o.batch_size), name, leave=False, disable=None):
        part = patterns[first:first + o.batch_size]
        stories = range(first, first + len(part))
        tokens, appeared = generate(model, stories, part, options, sampler)
        found += tokens.tolist()
        passes += [len(set(row) - {-1}) for row in appeared.tolist()]
    return found, passes, time.perf_counter() - began


def share(right: list) -> tuple:
    """The share that is true, and its standard error."""
    p = sum(right) / len(right) if right else math.nan
    return p, math.sqrt(p * (1 - p) / len(right)) if right else math.nan


def solve(name: str, opened: tuple, sets: dict, risks: list, o: PuzzleOptions) -> list:
    """A row for each way of writing and each set of puzzles, {name: [(puzzle, solution), …]}."""
    model, tokenizer, _ = opened
    world = world_of(tokenizer)
    rows = []
    for way, (flags, sampler) in ways_of(model.config, world, risks, o.seed).items():
        for givens, pairs in sets.items():
            puzzles, solutions = zip(*pairs)
            patterns = patterns_of(world, puzzles, model.config)
            found, passes, seconds = written(
                f"{name}, {way}, {givens} givens", opened, patterns, o, flags, sampler)
            answers = [grid_of(world, ids) for ids in found]
            right = [answer == solution for answer, solution in zip(answers, solutions)]
            hard = [ok for ok, puzzle in zip(right, puzzles) if not needs_no_guess(puzzle, world)]
            rows.append({
                "run": name, "way": way, "givens": givens, "puzzles": len(right),
                "solved": share(right), "hard": len(hard), "hard_solved": share(hard),
                "passes": sum(passes) / len(passes), "ms": 1000 * seconds / len(right),
                "answers": dict(zip(puzzles, answers))})
    return rows


def write_grids(name: str, opened: tuple, risks: list, o: PuzzleOptions) -> list:
    """A row for each way of writing grids from nothing, drawn at temperature 1."""
    model, tokenizer, _ = opened
    world, config = world_of(tokenizer), model.config
    blank = torch.full((o.num_puzzles, world.cells), config.mask_id)
    ways = ways_of(config, world, risks)
    rows = []
    for way, (flags, sampler) in (ways or {"left to right": ({}, None)}).items():
        found, passes, _ = written(f"{name}, {way}, no givens", opened, blank,
                                   replace(o, temperature=1.0), flags, sampler)
        texts = [tokenizer.decode(ids) for ids in found]
        rows.append({
            "run": name, "way": way, "right": share([*map(world.is_right, texts)]),
            "different": len(set(texts)), "passes": sum(passes) / len(passes)})
    return rows


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
        o = SampleOptions(order="left_to_right", seed=seed)
        sampler = plain_sampler(model.config, o)
        scores = score_writing(model, x[:300].tolist(), sampler, o)
        nats = torch.tensor([score.nats / world.cells for score in scores])
        loss, error = mean_and_error(nats)
        found["left_to_right"] = (loss - law, error)
    return found


# ---- The command ---------------------------------------------------------------------------------

def per_cent(pair) -> str:
    """A share and its standard error, as both are shown in a table."""
    p, error = pair
    return "" if math.isnan(p) else f"{100 * p:.1f} ± {100 * error:.1f}"


def print_results(solved: list, grids: list, losses: dict, rules: Sudoku):
    table = [["run", "way", "givens", "solved, %", "needing a guess, %", "passes", "ms"]]
    for row in solved:
        table.append([row["run"], row["way"], str(row["givens"]), per_cent(row["solved"]),
                      per_cent(row["hard_solved"]), f"{row['passes']:.1f}", f"{row['ms']:.1f}"])
    print_table(table)
    if grids:
        print("\ngrids from nothing")
        table = [["run", "way", "right, %", "passes"]]
        for row in grids:
            table.append([row["run"], row["way"], per_cent(row["right"]), f"{row['passes']:.1f}"])
        print_table(table)
    if losses:
        above = ""
        if rules.entropy():
            above = f" above the law, which is {rules.entropy() / rules.cells:.4f}"
        print(f"\nnats per cell{above} (exact for ar, else a bound; and exact from left to right)")
        table = [["run", "loss", "left to right"]]
        for name, found in losses.items():
            table.append([name, *("{:.4f} ± {:.4f}".format(*pair) for pair in found.values())])
        print_table(table)


def print_answers(solved: list, pairs: list):
    """For puzzles of one's own, what each run makes of them."""
    for puzzle, solution in pairs:
        print("\n" + " ".join(str(digit) if digit else "." for digit in puzzle))
        for row in solved:
            answer = row["answers"].get(puzzle)
            if answer:
                wrong = sum(a != b for a, b in zip(answer, solution))
                verdict = f"{wrong} cells wrong" if wrong else "right"
                print(" ".join(map(str, answer)), f" {row['run']}, {row['way']}: {verdict}")


def draw_figure(rows: list, path: str):
    """How many are solved, by the number of givens, and against the passes that it takes."""
    with figure(path, (10, 4), columns=2) as (by_givens, by_passes):
        for run, way in dict.fromkeys((row["run"], row["way"]) for row in rows):
            of_way = [row for row in rows if (row["run"], row["way"]) == (run, way)]
            solved = [100 * row["solved"][0] for row in of_way]
            label = f"{run}, {way}"
            by_givens.plot([row["givens"] for row in of_way], solved, marker="o", label=label)
            by_passes.plot([row["passes"] for row in of_way], solved, marker="o")
        by_givens.set(xlabel="givens", ylabel="puzzles solved, %", ylim=(-3, 103))
        by_passes.set(xlabel="passes a puzzle", xscale="log")


def main():
    flags = parse_flags(__doc__, PuzzleOptions, named="NAME=DIR")
    o = build(PuzzleOptions, flags)
    runs, worlds = {}, {}
    for name, folder in flags["named"].items():
        runs[name] = open_model(folder, o.device)
        worlds[name] = world_of(runs[name][1])
        if not isinstance(worlds[name], Sudoku):
            raise InputError(f"{folder} was not trained on Sudokus; train one by python train.py "
                             "--mode=mdlm --preset=sudoku")
        config = runs[name][0].config
        learned = {PAIRS: hasattr(config, "mark"), MOVES: hasattr(config, "taught")}
        if not learned.get(worlds[name], True):
            raise InputError(f"{folder} has not learned to answer; train one by --preset="
                             "sudoku-pairs or sudoku-moves")
    sizes = {world.n for world in worlds.values()}
    if len(sizes) > 1:
        raise InputError("these models know grids of different sizes; give those of one size")
    [n] = sizes
    rules = world_named(DATA[n])
    risks = numbers_of("risks", o.risks, float)
    all_givens = numbers_of("givens", o.givens or GIVENS[n], int)
    own = read_puzzles(os.path.expanduser(o.puzzles), rules) if o.puzzles else []
    grids = [] if own else held_out_grids(rules)
    sets = {}                   # {givens: puzzles}
    for puzzle, solution in own:
        sets.setdefault(rules.cells - puzzle.count(0), []).append((puzzle, solution))
    for givens in [] if own else all_givens:
        sets[givens] = drawn_puzzles(grids, givens, o.num_puzzles, o.seed, rules)

    solved, from_nothing, losses = [], [], {}
    for name, opened in runs.items():
        solved += solve(name, opened, sets, risks, o)
        if o.losses and not own and worlds[name] is rules:
            from_nothing += write_grids(name, opened, risks, o)
            losses[name] = losses_above_law(opened, grids[:1000], o.seed)
    print_results(solved, from_nothing, losses, rules)
    if own:
        print_answers(solved, own)
    for row in solved:
        del row["answers"]
    if o.plot:
        draw_figure(solved, o.plot)
    if o.json:
        write_json(o.json, provenance(o.seed) | {
            "runs": {name: origin_of(folder) for name, folder in flags["named"].items()},
            "options": asdict(o), "solved": solved, "grids": from_nothing, "losses": losses})


if __name__ == "__main__":
    command(main, "nothing was written")
