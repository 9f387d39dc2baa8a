"""
Which Sudokus a model solves, in each order in which it can write.

Adds: the command of sudoku.py. Costs: nothing elsewhere. Plugs in as

    python sudoku.py mdlm=out/sudoku-mdlm aogpt=out/sudoku-aogpt ar=out/sudoku-pairs-ar
    python sudoku.py mdlm=out/sudoku-mdlm --puzzles=mine.txt

The puzzles have one solution each, and so many givens. Their grids are those that data/sudoku holds
out for validation. In the texts of data/sudoku-pairs and data/sudoku-moves one grid in 260 is in
training by chance. Solved means that every cell is right. "Surest first" fills in each pass the
cell whose law has the lowest entropy; a risk lets it fill several, see extras/adaptive.py. A pass
is one run of the network. Without givens, the share that is right says how often a grid comes out
that obeys the rules. And the loss, in nats per cell above the law, has no order that helps: that of
ar is exact, that of the others a bound, and exact where they write from left to right.
"""
import math
import random
import re
import time
from dataclasses import dataclass

import torch

from extras import adaptive
from extras.score import score_texts
from prepare_data import Windows, prepare_if_missing, world_of
from sample import SampleOptions, generate, open_model
from sudoku import CELL_NAMES, GRIDS, MOVES, PAIRS
from support.flags import (
    InputError, build, command, flag, parse_flags, print_table, provenance, write_json)
from support.pictures import figure
from support.rows import read_text
from tqdm import tqdm
from train import mean_and_error, window_losses


@dataclass
class PuzzleOptions:
    """which puzzles, and how they are solved"""
    givens: str = flag("9,12,16", "cells of a puzzle that are given, one row each")
    num_puzzles: int = flag(1000, "puzzles for each number of givens; also grids without", low=2)
    puzzles: str = flag(
        "", "a file of your own instead: a puzzle in each line, or in six lines of six cells; dots, "
        "zeros or _ for blanks")
    risks: str = flag("0.001,0.01,0.1", "nats that a pass may be unsure of, besides 0; mdlm, aogpt")
    temperature: float = flag(0.0, "0 takes the likeliest digit, 1 draws", low=0)
    losses: bool = flag(True, "measure the losses too")
    batch_size: int = flag(250, "puzzles at a time; changes speed, not results", low=1)
    seed: int = flag(1337, "of the puzzles and of what is drawn", low=0, high=10 ** 15)
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for all numbers", file=(".json",))
    plot: str = flag("", "file for a figure", file=(".png", ".svg", ".pdf"))


def numbers_of(name: str, text: str, kind) -> list:
    """The numbers of a flag like --givens=9,12,16. Raises InputError."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as e:
        raise InputError(f"--{name}={text} must be numbers with commas between them") from e


# ---- Puzzles -------------------------------------------------------------------------------------

def held_out_grids() -> list:
    """The grids that data/sudoku holds out. Raises InputError."""
    prepare_if_missing("sudoku")
    val = Windows("sudoku", "val", GRIDS.cells)
    return [tuple(digit + 1 for digit in grid) for grid in val.spread(len(val)).tolist()]


def drawn_puzzles(grids: list, givens: int, count: int, seed: int) -> list:
    """So many puzzles with so many givens, each with its solution. Raises InputError."""
    if not 8 <= givens < GRIDS.cells:       # by trial: 8 is the fewest that is met at all
        raise InputError(f"--givens={givens} must be from 8 to {GRIDS.cells - 1}")
    rng = random.Random(f"{seed} {givens}")
    found = []
    with tqdm(total=count, unit="puzzle", leave=False, disable=None) as bar:
        while len(found) < count:
            solution = rng.choice(grids)
            puzzle = GRIDS.draw_puzzle(solution, givens, rng)
            if GRIDS.cells - puzzle.count(0) == givens:
                found.append((puzzle, solution))
                bar.update()
    return found


def read_puzzles(path: str) -> list:
    """The puzzles of a file, each with its solution. Raises InputError."""
    cells, n = GRIDS.cells, GRIDS.n
    puzzles, rows = [], []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        where = f"{path}, line {number}"
        digits = re.sub(r"[\s|+,-]", "", line)          # blanks, and the lines between boxes
        wrong = re.search(f"[^._*0-{n}]", digits)
        if wrong:
            raise InputError(f"{where} has the character {wrong[0]}; a puzzle has digits from 1 to "
                             f"{n}, and dots, zeros or _ for blanks")
        row = [int(digit) if digit.isdecimal() else 0 for digit in digits]
        if row and len(row) not in (n, cells):
            raise InputError(f"{where} has {len(row)} cells; give {cells} in a line, or {n} lines "
                             f"of {n}")
        rows += row
        if len(rows) == cells:
            puzzles.append(tuple(rows))
            rows = []
        elif len(row) == cells or rows and not row:
            raise InputError(f"{where} comes before the {n} lines of a puzzle are complete")
    if rows or not puzzles:
        raise InputError(f"{path} ends before a puzzle is complete; give {cells} cells for each")
    return [(puzzle, solution_of(puzzle, f"{path}, puzzle {i}"))
            for i, puzzle in enumerate(puzzles, 1)]


def solution_of(puzzle, name: str) -> tuple:
    """The only solution of a puzzle. Raises InputError."""
    found = [solution for solution, _ in zip(GRIDS.solutions(puzzle), range(2))]
    if len(found) != 1:
        raise InputError(f"{name} has {'several solutions' if found else 'no solution'}, so no "
                         "answer to it is the right one")
    return found[0]


def needs_no_guess(puzzle) -> bool:
    """Whether `singles` alone, again and again, fill all of it."""
    puzzle = list(puzzle)
    while singles := GRIDS.singles(puzzle):
        for cell, digit in singles:
            puzzle[cell] = digit
    return 0 not in puzzle


# ---- Solving -------------------------------------------------------------------------------------

def ways_of(config, world, risks: list) -> dict:
    """{name: (flags of sample.py, sampler)} of the orders in which a model can write."""
    if world is not GRIDS:
        return {"left to right" if world is PAIRS else "its own order": ({}, None)}
    if config.mode == "ar":
        return {}               # it cannot go around what is given
    ways = {
        "left to right": ({"order": "left_to_right"}, None),
        "random order": ({"order": "random"}, None),
        "surest first": ({}, adaptive.sampler_of(0.0))}
    return ways | {f"risk {risk:g}": ({}, adaptive.sampler_of(risk)) for risk in risks}


def prompt_of(world, puzzle, rng: random.Random) -> str:
    """A puzzle as the beginning of a text of its world; of a grid the word _ is a blank."""
    if world is GRIDS:
        return " ".join(str(digit) if digit else "_" for digit in puzzle)
    if world is PAIRS:
        return " ".join(map(str, [*puzzle, "|"]))
    moves = [f"{name}{digit}" for name, digit in zip(CELL_NAMES, puzzle) if digit]
    rng.shuffle(moves)
    return " ".join([*moves, "|"])


def patterns_of(world, puzzles: list, tokenizer, config, seed: int) -> torch.Tensor:
    """(N, L) tokens of puzzles that have equally many givens, with [MASK]s for what is to come."""
    rng = random.Random(seed)
    ids = {word: i for i, word in enumerate(tokenizer.words)} | {"_": config.mask_id}
    length = int(world.mean_words())
    rows = []
    for puzzle in puzzles:
        row = [ids[word] for word in prompt_of(world, puzzle, rng).split()]
        rows.append(row + [config.mask_id] * (length - len(row)))
    return torch.tensor(rows)


def written(model, variant, tokenizer, patterns, o: PuzzleOptions, flags: dict, sampler) -> tuple:
    """The texts that a model makes of patterns (N, L), passes of each (N,), and seconds in all."""
    options = SampleOptions(temperature=o.temperature, seed=o.seed, full_length=True, **flags)
    texts, passes = [], []
    began = time.perf_counter()
    for first in range(0, len(patterns), o.batch_size):
        part = patterns[first:first + o.batch_size]
        stories = range(first, first + len(part))
        tokens, appeared = generate(model, stories, part, options, variant, sampler)
        texts += [tokenizer.decode(ids) for ids in tokens.tolist()]
        passes += [len(set(row) - {-1}) for row in appeared.tolist()]
    return texts, passes, time.perf_counter() - began


def share(right: list) -> tuple:
    """The share that is true, and its standard error."""
    p = sum(right) / len(right) if right else math.nan
    return p, math.sqrt(p * (1 - p) / len(right)) if right else math.nan


def measure(name: str, opened: tuple, world, sets: dict, o: PuzzleOptions) -> list:
    """A row for each way of writing and each set of puzzles."""
    model, variant, tokenizer, _ = opened
    rows = []
    for way, (flags, sampler) in ways_of(model.config, world, numbers_of("risks", o.risks, float)).items():
        for kind, puzzles in sets.items():
            given, solutions = zip(*puzzles)
            patterns = patterns_of(world, given, tokenizer, model.config, o.seed)
            texts, passes, seconds = written(
                model, variant, tokenizer, patterns, o, flags, sampler)
            right = [world.grid_of(text) == solution for text, solution in zip(texts, solutions)]
            hard = [ok for ok, puzzle in zip(right, given) if not needs_no_guess(puzzle)]
            solved, error = share(right)
            rows.append({
                "run": name, "way": way, "givens": kind, "puzzles": len(right), "solved": solved,
                "solved_se": error, "guess_needed": len(hard), "solved_of_these": share(hard)[0],
                "passes": sum(passes) / len(passes), "ms": 1000 * seconds / len(right),
                "answers": texts})
    return rows
