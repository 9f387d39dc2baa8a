"""Sudokus, against a solver of few lines and every grid of 4 x 4; and who solves them."""
import collections
import itertools
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import model as plain
from conftest import small_model
from extras import solve
from prepare_data import PrepareOptions, Windows, prepare
from presets import PRESETS
from support.runs import save
from tokenizer import Tokenizer
from variants import answers, taught
from worlds import world_named
from worlds.sudoku import SUDOKU, AllGrids
from worlds.sudoku_9 import SUDOKU_9
from worlds.sudoku_moves import CELL_NAMES, SUDOKU_MOVES
from worlds.sudoku_pairs import SUDOKU_PAIRS

SMALL = AllGrids(2, 2)
GRIDS_OF_4 = [*SMALL.solutions([0] * 16)]


def even(classes, items):
    """Whether so many classes of items are equally likely."""
    counts = list(collections.Counter(items).values())
    return chisquare(counts + [0] * (classes - len(counts))).pvalue > 0.001


# ---- Grids and their law -------------------------------------------------------------------------

def test_all_grids_are_found_and_equally_likely():
    """Of 6 x 6 the first box's cells 0, 1, 2 and 6 have 6 · 5 · 4 · 3 values. Of 9 x 9 each cell
    has each digit equally often."""
    rng = random.Random(1)
    assert even(SMALL.number_of_grids(), (SMALL.draw_grid(rng) for _ in range(20_000)))
    grids = [SUDOKU.draw_grid(rng) for _ in range(20_000)]
    assert even(360, ((*grid[:3], grid[6]) for grid in grids))
    grids = [SUDOKU_9.draw_grid(random.Random(seed)) for seed in range(200)]
    assert len(set(grids)) == 200 and all(even(9, cell) for cell in zip(*grids))


def test_log_probs_against_every_grid_of_4_x_4():
    """A word's probability: how many grids begin so, with the word and without it?"""
    assert len(set(GRIDS_OF_4)) == 288
    begins = collections.Counter(grid[:end] for grid in GRIDS_OF_4 for end in range(17))
    for grid in GRIDS_OF_4:
        wanted = [begins[grid[:end + 1]] / begins[grid[:end]] for end in range(16)]
        found = np.exp(SMALL.log_probs(" ".join(map(str, grid))))
        assert found == pytest.approx(wanted, abs=1e-12)
    assert SUDOKU.log_probs(SUDOKU.draw(random.Random(2))).sum() == pytest.approx(-SUDOKU.entropy())
    assert SUDOKU.entropy() == math.log(28_200_960) and SUDOKU_9.entropy() is None


@pytest.mark.parametrize("world, all_givens", [(SUDOKU, [9, 11, 14]), (SUDOKU_9, [28, 36])])
def test_grids_and_puzzles(world, all_givens):
    """Swapped cells clash. A drawn puzzle has one solution, also when it is shuffled."""
    rng = random.Random(7)
    for givens in all_givens * 5:
        grid = world.draw_grid(rng)
        assert world.is_grid(grid) and not world.clashes(grid)
        a, b = rng.sample(range(world.cells), 2)
        swapped = list(grid)
        swapped[a], swapped[b] = grid[b], grid[a]
        if swapped != list(grid):
            assert {a, b} <= world.clashes(swapped) and not world.is_grid(swapped)
        puzzle = world.draw_puzzle(grid, givens, rng)
        assert givens <= world.cells - puzzle.count(0) <= givens + 3
        other, solution = world.shuffled([puzzle, grid], rng)
        assert puzzle != other and world.is_grid(solution)
        for given, wanted in (puzzle, grid), (other, solution):
            assert list(world.solutions(given)) == [wanted]


@pytest.mark.parametrize("puzzle, count", [
    ("..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9", 1),
    (".....6....59.....82....8....45........3........6..3.54...325..6..................", 2)])
def test_hard_puzzles_end_within_seconds(puzzle, count):
    cells = [int(cell) for cell in puzzle.replace(".", "0")]
    assert len(list(itertools.islice(SUDOKU_9.solutions(cells), 2))) == count


# ---- Puzzles with their solutions ----------------------------------------------------------------

def fitting(puzzle, cell):
    """The digits that no cell in a unit of this one has."""
    near = [digit for digit, units in zip(puzzle, SUDOKU.units_of)
            if {*units} & {*SUDOKU.units_of[cell]}]
    return {*SUDOKU.digits} - {*near}


def test_moves_are_those_of_somebody_who_solves():
    """A cell without a choice comes first: it has one candidate, or is a unit's only place. A
    puzzle is used ten times, each time another way."""
    rng = random.Random(6)
    texts = [SUDOKU_MOVES.draw(rng) for _ in range(60)]
    givens = [text.split().index("|") for text in texts]
    assert len(set(texts)) == 60 and givens == [count for count in givens[::10] for _ in range(10)]
    for text in texts[::5]:
        before, after = (part.split() for part in text.split("|"))
        given = {CELL_NAMES.index(move[:2]): int(move[2]) for move in before}
        puzzle = [given.get(cell, 0) for cell in range(36)]
        for move in after:
            fits = {cell: fitting(puzzle, cell) for cell in range(36) if not puzzle[cell]}
            places = collections.Counter(       # of each digit that a unit lacks
                (unit, digit) for cell in fits for digit in fits[cell]
                for unit in SUDOKU.units_of[cell])
            forced = [f"{CELL_NAMES[cell]}{digit}" for cell in fits for digit in fits[cell]
                      if len(fits[cell]) == 1
                      or any(places[unit, digit] == 1 for unit in SUDOKU.units_of[cell])]
            assert move in forced or not forced
            cell, digit = CELL_NAMES.index(move[:2]), int(move[2])
            puzzle[cell] = digit
        assert SUDOKU.is_grid(puzzle)


def test_only_answers_are_learned():
    """The loss of a row is the mean of what a GPT's losses are after the first mark."""
    config = small_model(variant=answers, mark=9).config
    x = torch.tensor([[3, 4, 9, 5, 6, 7, 8, 0], [9, 3, 4, 9, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9]])
    weight = torch.tensor([[0, 0, 0] + [1 / 5] * 5, [0] + [1 / 7] * 7, [0] * 8])
    wanted = plain.one_order_batch(config, x, None)._replace(weight=weight)
    torch.testing.assert_close(config.row.training_batch(config, x, None), wanted)
    for name in "sudoku-pairs", "sudoku-moves":
        assert world_named(name).words()[PRESETS[name]["mark"]] == "|"


@pytest.mark.parametrize("order", ["solver", "left_to_right"])
def test_a_taught_model_learns_the_order_of_its_text(order):
    """The loss is that of a chain rule in the order of the moves, on the cells after the mark."""
    rng = random.Random(2)
    ids = {word: i for i, word in enumerate(SUDOKU_MOVES.words())}
    x = torch.tensor([[ids[word] for word in SUDOKU_MOVES.draw(rng).split()] for _ in range(5)])
    config = small_model("aogpt", variant=taught, block_size=37, mark=216, taught=order).config
    tokens, _, *rest = config.row.training_batch(config, x, None)
    for row, tokens, pos, target, weight in zip(x.tolist(), tokens, *rest):
        given = row.index(216)
        moves = [divmod(word, 6) for word in row if word != 216]
        if order == "left_to_right":
            moves[given:] = sorted(moves[given:])
        assert list(zip(pos.tolist(), target.tolist())) == moves
        assert tokens.tolist() == [config.bos_id, *(digit for _, digit in moves[:-1])]
        assert weight.tolist() == pytest.approx([0] * given + [1 / (36 - given)] * (36 - given))


# ---- The command ---------------------------------------------------------------------------------

RUNS = {
    "mdlm": ("mdlm", plain, SUDOKU, {}),
    "aogpt": ("aogpt", plain, SUDOKU, {}),
    "ar": ("ar", plain, SUDOKU, {}),
    "pairs": ("ar", answers, SUDOKU_PAIRS, {"mark": 7}),
    "moves": ("ar", answers, SUDOKU_MOVES, {"mark": 216}),
    "taught": ("aogpt", taught, SUDOKU_MOVES, {"mark": 216}),
    "first": ("aogpt", taught, SUDOKU_MOVES, {"mark": 216, "taught": "left_to_right"}),
    "nine": ("mdlm", plain, SUDOKU_9, {})}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with grids held out, and a small model of random weights for each of RUNS."""
    folder = tmp_path_factory.mktemp("sudoku")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in "sudoku", "sudoku-9":
            prepare(PrepareOptions(name, max_tokens=3000))
        for name, (mode, variant, world, fields) in RUNS.items():
            words = Tokenizer("words", words=world.words())
            model = small_model(mode, variant=variant, vocab_size=words.vocab_size,
                                block_size=int(world.mean_words()), **fields)
            Path("out", name).mkdir(parents=True)
            save(f"out/{name}/best.pt", model, variant=variant.__name__, windows="aligned",
                 tokenizer=words.to_dict())
    return folder


@pytest.fixture
def solve_with(models, call, monkeypatch):
    """A function that gives what `python -m extras.solve` says of these runs, with these flags."""
    def solve_with(runs, *flags):
        named = [f"{name}=out/{name}" for name in runs.split()]
        return call("extras/solve.py", *named, *flags, "--json=s.json")

    monkeypatch.chdir(models)
    return solve_with


@pytest.mark.parametrize("runs, cells, givens, rows", [
    ("mdlm aogpt ar pairs moves taught first", 36, "12,16", 24), ("nine", 81, "32", 4)])
def test_the_table_has_every_model_in_every_order(solve_with, runs, cells, givens, rows):
    """Its puzzles are of grids that training does not have."""
    solve_with(runs, "--num_puzzles=2", f"--givens={givens}", "--risks=5")
    found = json.loads(Path("s.json").read_text())
    assert len({(row["run"], row["way"], row["givens"]) for row in found["solved"]}) == rows
    for row in found["solved"]:
        blanks = 36 if row["run"] == "pairs" else cells - row["givens"]
        assert row["passes"] == blanks or "risk" in row["way"] and 1 <= row["passes"] <= blanks
    of_grids = {*runs.split()} & {"mdlm", "aogpt", "ar", "nine"}
    assert {row["run"] for row in found["grids"]} == found["losses"].keys() == of_grids
    assert all(losses["loss"][0] > 1 for losses in found["losses"].values())
    train = Windows("sudoku", "train", 36).spread(99) + 1
    assert not {*solve.held_out_grids()} & {*map(tuple, train.tolist())}


@pytest.mark.parametrize("last, right", [(-1, True), (0, False), (-2, False)])
def test_a_gpt_that_writes_moves_must_name_every_cell(monkeypatch, last, right):
    """It reads the givens and the mark. A move into a given or filled cell is wrong."""
    words = Tokenizer("words", words=SUDOKU_MOVES.words())
    ids = words.encode(SUDOKU_MOVES.draw(random.Random(3)))
    before = ids.index(216) + 1
    puzzle, solution = (SUDOKU_MOVES.grid_of(words.decode(part)) for part in (ids[:before], ids))
    model = small_model(variant=answers, vocab_size=words.vocab_size, block_size=37, mark=216)

    def generate(model, stories, patterns, *rest):
        [pattern] = patterns.tolist()
        assert sorted(pattern) == sorted([*ids[:before], *[model.config.mask_id] * (37 - before)])
        return torch.tensor([[*ids[:-1], ids[last]]]), torch.zeros(1, 37)

    monkeypatch.setattr(solve, "generate", generate)
    [(row, [grid])] = solve.solve("moves", (model, words, ""), [puzzle], [], seed=1)
    assert (grid == solution) == right and row["way"] == "its own order"


RIGHT = ".23456456123231564564231312645645312"


def test_own_puzzles_are_answered_in_the_terminal(solve_with):
    """However they are written. Each way of writing keeps what is given."""
    puzzles = [f"......{RIGHT[6:]}".replace(".", blank) for blank in ".0"]
    Path("p.txt").write_text("\r\n\r\n".join([RIGHT, *puzzles]))
    said = solve_with("mdlm taught", "--puzzles=p.txt", "--risks=").stdout
    texts = [text.split("\n") for text in said.split("\n\n")[:-1]]
    assert len(texts) == 4 * 3
    for puzzle, answer in texts:
        grid = answer.split()[:36]
        assert all(given in (".", digit) for given, digit in zip(puzzle.split(), grid))
        assert SUDOKU.is_grid(tuple(map(int, grid))) == answer.endswith("right")


@pytest.mark.parametrize("runs, flags, named", [
    ("mdlm", "--risks=x", "--risks"), ("mdlm", "--givens=x", "--givens"),
    ("mdlm", "--givens=7", "--givens"), ("nine mdlm", "--risks=", "sizes"),
    *[("mdlm", f"--puzzles={text}", "p.txt") for text in (
        "12345x" + "." * 30, "7" * 36, "." * 35, "." * 36, "11" + "." * 34, "",
        RIGHT.replace(".", "1"), f"{RIGHT}\n{RIGHT}.")]])
def test_what_means_nothing_is_refused(solve_with, runs, flags, named):
    """A puzzle must be one, and have one solution."""
    flag, _, text = flags.partition("=")
    if named == "p.txt":
        Path("p.txt").write_text(text)
        flags = f"{flag}=p.txt"
    done = solve_with(runs, flags)
    assert done.returncode == 2 and re.fullmatch(f".*{named}.*\n", done.stderr)
