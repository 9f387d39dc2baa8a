"""Sudokus, against a solver of few lines and every grid of 4 x 4; and who solves them."""
import collections
import functools
import itertools
import json
import math
import random
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
from support.flags import InputError
from support.runs import save
from tokenizer import Tokenizer
from variants import answers, taught
from worlds import world_named
from worlds.sudoku import SUDOKU, AllGrids
from worlds.sudoku_9 import SUDOKU_9
from worlds.sudoku_moves import CELL_NAMES, SUDOKU_MOVES
from worlds.sudoku_pairs import SUDOKU_PAIRS

SMALL = AllGrids(2, 2)
KNOWN_OF_9 = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


@functools.cache
def neighbours(world, cell):
    """The other cells of a cell's row, column and box."""
    def units(cell):
        row, column = divmod(cell, world.n)
        return {(row, -1), (-1, column), (row // world.height, column // world.width, "box")}

    return [c for c in range(world.cells) if c != cell and units(c) & units(cell)]


def fitting(world, grid, cell):
    """The digits that no neighbour of a cell has."""
    return {*world.digits} - {grid[other] for other in neighbours(world, cell)}


def all_solutions(world, puzzle):
    """Tries all digits, cell by cell."""
    if 0 not in puzzle:
        return [tuple(puzzle)]
    cell = puzzle.index(0)
    return [found for digit in fitting(world, puzzle, cell)
            for found in all_solutions(world, [*puzzle[:cell], digit, *puzzle[cell + 1:]])]


def clashes(world, puzzle):
    return {cell for cell, digit in enumerate(puzzle)
            if digit and digit not in fitting(world, puzzle, cell)}


GRIDS_OF_4 = all_solutions(SMALL, [0] * 16)


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
    begins = collections.Counter(grid[:end] for grid in GRIDS_OF_4 for end in range(17))
    for grid in GRIDS_OF_4:
        wanted = [begins[grid[:end + 1]] / begins[grid[:end]] for end in range(16)]
        found = np.exp(SMALL.log_probs(" ".join(map(str, grid))))
        assert found == pytest.approx(wanted, abs=1e-12)
    assert SUDOKU.log_probs(SUDOKU.draw(random.Random(2))).sum() == pytest.approx(-SUDOKU.entropy())
    assert SUDOKU.entropy() == math.log(28_200_960) and SUDOKU_9.entropy() is None


@pytest.mark.parametrize("world, all_givens", [
    (SMALL, [5, 8]), (SUDOKU, [9, 11, 14]), (SUDOKU_9, [28, 36])])
def test_grids_and_puzzles(world, all_givens):
    """Swapped cells clash. A drawn puzzle has one solution, also when it is shuffled."""
    rng = random.Random(7)
    for givens in all_givens * 5:
        grid = world.draw_grid(rng)
        swapped = list(grid)
        a, b = rng.sample(range(world.cells), 2)
        swapped[a], swapped[b] = swapped[b], swapped[a]
        for cells in grid, swapped:
            wrong = clashes(world, cells)
            assert world.clashes(cells) == wrong and world.is_grid(cells) == (not wrong)
        puzzle = world.draw_puzzle(grid, givens, rng)
        assert givens <= world.cells - puzzle.count(0) <= givens + 3
        other, solution = world.shuffled([puzzle, grid], rng)
        assert puzzle != other and world.is_grid(solution)
        assert sorted(map(other.count, world.digits)) == sorted(map(puzzle.count, world.digits))
        for given, wanted in (puzzle, grid), (other, solution):
            assert list(world.solutions(given)) == [wanted]
            assert world is SUDOKU_9 or all_solutions(world, given) == [wanted]


def test_all_solutions_are_found():
    """Of givens that clash, and of others that allow none, there is none."""
    rng = random.Random(5)
    counts = set()
    for grid in [[0] * 16, *rng.sample(GRIDS_OF_4, 60)]:
        puzzle = [digit if rng.random() < 0.3 else 0 for digit in grid]
        if any(grid):
            puzzle[rng.randrange(16)] = rng.randint(1, 4)
        wanted = [] if clashes(SMALL, puzzle) else all_solutions(SMALL, puzzle)
        assert sorted(SMALL.solutions(puzzle)) == sorted(wanted)
        counts.add(min(2, len(wanted)))
    assert len(counts) == 3


@pytest.mark.parametrize("puzzle, count", [
    ("..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9", 1),
    (".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........", 0),
    (".....6....59.....82....8....45........3........6..3.54...325..6..................", 2)])
def test_hard_puzzles_end_within_seconds(puzzle, count):
    cells = [int(cell) for cell in puzzle.replace(".", "0")]
    assert len(list(itertools.islice(SUDOKU_9.solutions(cells), 2))) == count


# ---- Puzzles with their solutions ----------------------------------------------------------------

def test_solved_puzzles_are_used_ten_times():
    rng = random.Random(6)
    solved = [SUDOKU_PAIRS.draw_solved(rng) for _ in range(40)]
    blanks = [puzzle.count(0) for puzzle, _ in solved]
    assert len(set(solved)) == 40 and blanks == [count for count in blanks[::10] for _ in range(10)]


def test_moves_are_those_of_somebody_who_solves():
    """A cell without a choice comes first: it has one candidate, or is a unit's only place."""
    for seed in range(10):
        before, after = (part.split() for part in SUDOKU_MOVES.draw(random.Random(seed)).split("|"))
        given = {CELL_NAMES.index(move[:2]): int(move[2]) for move in before}
        puzzle = [given.get(cell, 0) for cell in range(36)]
        for move in after:
            cell, digit = CELL_NAMES.index(move[:2]), int(move[2])
            fits = {c: fitting(SUDOKU, puzzle, c) for c in range(36) if not puzzle[c]}

            def forced(c, d):
                return fits[c] == {d} or any(
                    not any(unit in SUDOKU.units_of[other] and d in fits[other]
                            for other in fits if other != c) for unit in SUDOKU.units_of[c])

            assert forced(cell, digit) or not any(forced(c, d) for c in fits for d in fits[c])
            puzzle[cell] = digit
        assert SUDOKU.is_grid(puzzle)


def test_only_answers_are_learned():
    """The loss of a row is the mean of what a GPT's losses are after the first mark."""
    config = small_model(variant=answers, mark=9).config
    x = torch.tensor([[3, 4, 9, 5, 6, 7, 8, 0], [9, 3, 4, 9, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9]])
    weight = torch.tensor([[0, 0, 0] + [1 / 5] * 5, [0] + [1 / 7] * 7, [0] * 8])
    plain_batch = plain.one_order_batch(config, x, None)
    for found, wanted in zip(config.row.training_batch(config, x, None),
                             plain_batch._replace(weight=weight), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_taught_model_learns_the_order_of_its_text():
    """The loss is that of a chain rule in the order of the moves, on the cells after the mark."""
    rng = random.Random(2)
    ids = {word: i for i, word in enumerate(SUDOKU_MOVES.words())}
    x = torch.tensor([[ids[word] for word in SUDOKU_MOVES.draw(rng).split()] for _ in range(5)])
    for order in "solver", "left_to_right":
        config = taught.Config("aogpt", vocab_size=218, block_size=37, mark=216, taught=order,
                               n_embd=8, n_head=1)
        tokens, _, *rest = config.row.training_batch(config, x, None)
        for row, tokens, pos, target, weight in zip(x.tolist(), tokens, *rest):
            given = row.index(216)
            moves = [divmod(word, 6) for word in row if word != 216]
            if order == "left_to_right":
                moves[given:] = sorted(moves[given:])
            assert list(zip(pos.tolist(), target.tolist())) == moves
            assert tokens.tolist() == [config.bos_id, *(digit for _, digit in moves[:-1])]
            assert weight.tolist() == pytest.approx([0] * given + [1 / (36 - given)] * (36 - given))


def test_presets_know_the_mark():
    for name in "sudoku-pairs", "sudoku-moves":
        assert world_named(name).words()[PRESETS[name]["mark"]] == "|"


# ---- Files of puzzles ----------------------------------------------------------------------------

def test_a_file_of_puzzles(workdir):
    lines = [KNOWN_OF_9, KNOWN_OF_9.replace(".", "0")]
    Path("p.txt").write_text("\r\n\r\n".join(lines))
    [(puzzle, solution)] = {*solve.read_puzzles("p.txt", SUDOKU_9)}
    assert puzzle[:5] == (5, 3, 0, 0, 7) and list(SUDOKU_9.solutions(puzzle)) == [solution]


RIGHT = ".23456456123231564564231312645645312"


@pytest.mark.parametrize("text", [
    "12345x" + "." * 30, "7" * 36, "." * 35, "." * 36, "11" + "." * 34, "",
    RIGHT.replace(".", "1"), f"{RIGHT}\n{RIGHT}."])
def test_what_is_no_puzzle_is_refused(workdir, text):
    Path("p.txt").write_text(text)
    with pytest.raises(InputError, match="^p.txt[^\n]*$"):
        solve.read_puzzles("p.txt", SUDOKU)


# ---- The command ---------------------------------------------------------------------------------

RUNS = {
    "mdlm": ("mdlm", plain, SUDOKU, {}),
    "aogpt": ("aogpt", plain, SUDOKU, {}),
    "ar": ("ar", plain, SUDOKU, {}),
    "pairs": ("ar", answers, SUDOKU_PAIRS, {"mark": 7}),
    "taught": ("aogpt", taught, SUDOKU_MOVES, {"mark": 216}),
    "first": ("aogpt", taught, SUDOKU_MOVES, {"mark": 216, "taught": "left_to_right"}),
    "untaught": ("aogpt", plain, SUDOKU_MOVES, {}),
    "nine": ("mdlm", plain, SUDOKU_9, {})}
OF_6 = ["mdlm", "aogpt", "ar", "pairs", "taught", "first"]


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
def call(models, monkeypatch, capsys):
    """What `python -m extras.solve` prints, and writes, of these runs with these flags."""
    monkeypatch.chdir(models)

    def run(runs, *flags):
        named = [f"{name}=out/{name}" for name in runs]
        monkeypatch.setattr("sys.argv", ["solve.py", *named, *flags, "--json=s.json"])
        solve.main()
        return capsys.readouterr().out, json.loads(Path("s.json").read_text())

    return run


def test_puzzles_are_of_grids_that_training_has_not(models, monkeypatch):
    monkeypatch.chdir(models)
    grids = solve.held_out_grids()
    train = Windows("sudoku", "train", 36).spread(99).tolist()
    assert len(grids) > 1 and len(train) > 50
    assert not set(grids) & {tuple(digit + 1 for digit in grid) for grid in train}


@pytest.mark.parametrize("runs, cells, givens, rows", [
    (OF_6, 36, "12,16", 22), (["nine"], 81, "28,32", 8)])
def test_the_table_has_every_model_in_every_order(call, runs, cells, givens, rows):
    _, found = call(runs, "--num_puzzles=5", f"--givens={givens}", "--risks=5")
    table = {(row["run"], row["way"], row["givens"]): row for row in found["solved"]}
    assert len(table) == len(found["solved"]) == rows and found["runs"].keys() == set(runs)
    for (name, way, givens), row in table.items():
        passes = 36 if name == "pairs" else cells - givens
        assert row["passes"] == passes or "risk" in way and 1 <= row["passes"] <= passes
        assert row["puzzles"] == 5 and row["solved"][0] < 1
    of_grids = set(runs) & {"mdlm", "aogpt", "ar", "nine"}
    assert {row["run"] for row in found["grids"]} == found["losses"].keys() == of_grids
    assert all(losses["loss"][0] > 1 for losses in found["losses"].values())


def test_own_puzzles_are_answered_in_the_terminal(call):
    """Each way of writing keeps what is given."""
    Path("p.txt").write_text(f"{RIGHT}\n......{RIGHT[6:]}")
    said, found = call(["mdlm", "aogpt", "taught", "first"], "--puzzles=p.txt", "--risks=")
    texts = [text.split("\n") for text in said.split("\n\n")[:-1]]
    assert len(texts) == sum(row["puzzles"] for row in found["solved"]) == 16
    for puzzle, answer in texts:
        grid = answer.split()[:36]
        assert all(given in (".", digit) for given, digit in zip(puzzle.split(), grid))
        assert SUDOKU.is_grid(tuple(map(int, grid))) == answer.endswith("right")


@pytest.mark.parametrize("runs, flag, named", [
    (["mdlm"], "--risks=x", "--risks"), (["mdlm"], "--givens=x", "--givens"),
    (["mdlm"], "--givens=7", "--givens"),
    (["nine", "mdlm"], "--risks=", "sizes"), (["untaught"], "--risks=", "out/untaught")])
def test_what_means_nothing_is_refused(call, runs, flag, named):
    with pytest.raises(InputError, match=f"^[^\n]*{named}[^\n]*$"):
        call(runs, flag)
