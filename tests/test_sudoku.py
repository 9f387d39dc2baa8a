"""Sudoku's law and its puzzles, against a solver of few lines and every grid of 4 x 4."""
import collections
import itertools
import math
import random
import zlib

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from conftest import small_model
from support.flags import InputError
from train import PRESETS
from variants import answers
from worlds import sudoku, world_named
from worlds.sudoku import SUDOKU, AllGrids
from worlds.sudoku_9 import SUDOKU_9
from worlds.sudoku_moves import CELL_NAMES, SUDOKU_MOVES
from worlds.sudoku_pairs import SUDOKU_PAIRS

SMALL = AllGrids(2, 2)


def neighbours_of(world, cell):
    """The other cells of a cell's row, column and box."""
    def names(cell):
        row, column = divmod(cell, world.n)
        return [row, column, (row // world.height, column // world.width)]

    return [other for other in range(world.cells) if other != cell
            and any(a == b for a, b in zip(names(cell), names(other)))]


NEIGHBOURS = {world: [neighbours_of(world, cell) for cell in range(world.cells)]
              for world in (SMALL, SUDOKU, SUDOKU_9)}


def fitting(world, grid, cell):
    """The digits that no neighbour of a cell has."""
    taken = {grid[other] for other in NEIGHBOURS[world][cell]}
    return set(range(1, world.n + 1)) - taken


def all_solutions(world, puzzle):
    """Tries all digits, cell by cell."""
    if 0 not in puzzle:
        return [tuple(puzzle)]
    cell = puzzle.index(0)
    found = []
    for digit in fitting(world, puzzle, cell):
        found += all_solutions(world, [*puzzle[:cell], digit, *puzzle[cell + 1:]])
    return found


def text_of(cells):
    return " ".join(map(str, cells))


def cells_of(text):
    return [int(c) if c.isdecimal() else 0 for c in text]


def even(classes, items):
    """Whether so many classes of items are equally likely."""
    counts = list(collections.Counter(items).values())
    return chisquare(counts + [0] * (classes - len(counts))).pvalue > 0.001


# ---- Grids and their law -------------------------------------------------------------------------

def test_all_grids_are_found_and_equally_likely():
    """Of 6 x 6 the first box's cells 0, 1, 2 and 6 have 6 · 5 · 4 · 3 values, and a hash all."""
    assert SUDOKU.number_of_grids() == 28_200_960
    assert sorted(SMALL.solutions([0] * 16)) == sorted(all_solutions(SMALL, [0] * 16))
    rng = random.Random(1)
    assert even(SMALL.number_of_grids(), (SMALL.draw_grid(rng) for _ in range(20_000)))
    grids = [SUDOKU.draw_grid(rng) for _ in range(20_000)]
    assert even(360, ((*grid[:3], grid[6]) for grid in grids))
    assert even(100, (zlib.crc32(text_of(grid).encode()) % 100 for grid in grids))


def test_log_probs_against_every_grid_of_4_x_4():
    """A word's probability: how many grids begin so, with the word and without it?"""
    grids = all_solutions(SMALL, [0] * 16)
    begins = collections.Counter(grid[:end] for grid in grids for end in range(17))
    for grid in grids:
        wanted = [begins[grid[:end + 1]] / begins[grid[:end]] for end in range(16)]
        assert np.exp(SMALL.log_probs(text_of(grid))) == pytest.approx(wanted, abs=1e-12)
    log_p = SUDOKU.log_probs(SUDOKU.draw(random.Random(2)))
    assert log_p.shape == (36,) and log_p.sum() == pytest.approx(-math.log(28_200_960))
    assert SUDOKU.entropy() == math.log(28_200_960) and SUDOKU_9.entropy() is None


@pytest.mark.parametrize("world", [SMALL, SUDOKU, SUDOKU_9])
def test_what_is_no_grid_is_noticed_where_it_clashes(world):
    rng = random.Random(3)
    for _ in range(50):
        grid = list(world.draw_grid(rng))
        assert world.is_right(text_of(grid)) and not world.clashes(grid)
        a, b = rng.sample(range(world.cells), 2)
        grid[a], grid[b] = grid[b], grid[a]
        clashes = {cell for cell, digit in enumerate(grid)
                   if digit not in fitting(world, grid, cell)}
        assert world.clashes(grid) == clashes
        assert world.is_right(text_of(grid)) == (not clashes)
    text = world.draw(rng)
    for wrong in "", text[:-2], f"{text} 1", text.replace("4", "0"), text.replace("1", "a"), "²":
        assert not world.is_right(wrong) and world.log_probs(wrong) is None


def test_random_grids_of_9_x_9():
    """Each cell has each digit equally often, and the same seed gives the same grids."""
    grids = [SUDOKU_9.draw_grid(random.Random(seed)) for seed in range(300)]
    assert len(set(grids)) == 300 and all(map(SUDOKU_9.is_grid, grids))
    assert all(even(9, cell) for cell in zip(*grids))
    assert zlib.crc32(bytes(grids[5])) == 2090667940


# ---- Puzzles -------------------------------------------------------------------------------------

@pytest.mark.parametrize("world, all_givens", [
    (SMALL, [5, 8]), (SUDOKU, [9, 11, 14]), (SUDOKU_9, [28, 36])])
def test_a_drawn_puzzle_has_one_solution_also_when_shuffled(world, all_givens):
    rng = random.Random(7)
    for givens in all_givens:
        grid = world.draw_grid(rng)
        puzzle = world.draw_puzzle(grid, givens, rng)
        assert givens <= world.cells - puzzle.count(0) <= givens + 3
        other, solution = world.shuffled([puzzle, grid], rng)
        assert puzzle != other and world.is_grid(solution)
        assert sorted(map(other.count, world.digits)) == sorted(map(puzzle.count, world.digits))
        for given, wanted in (puzzle, grid), (other, solution):
            assert all_solutions(world, given) == list(world.solutions(given)) == [wanted]


def test_all_solutions_are_found():
    """Of givens that clash, and of others that allow none, there is none."""
    rng = random.Random(5)
    counts = collections.Counter()
    for grid in itertools.islice(itertools.cycle(SMALL.solutions([0] * 16)), 60):
        puzzle = [digit if rng.random() < 0.3 else 0 for digit in grid]
        puzzle[rng.randrange(16)] = rng.randint(1, 4)
        wanted = [] if SMALL.clashes([digit or -cell for cell, digit in enumerate(puzzle)]
                                     ) else all_solutions(SMALL, puzzle)
        assert sorted(SMALL.solutions(puzzle)) == sorted(wanted)
        counts[min(2, len(wanted))] += 1
    assert len(counts) == 3


@pytest.mark.parametrize("puzzle, count", [
    ("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79", 1),
    ("..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9", 1),
    (".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........", 0),
    (".....6....59.....82....8....45........3........6..3.54...325..6..................", 2),
    ("." * 81, 2)])
def test_hard_puzzles_end_within_seconds(puzzle, count):
    assert len(list(itertools.islice(SUDOKU_9.solutions(cells_of(puzzle)), 2))) == count


def test_a_search_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(sudoku, "MOST_TRIES", 90)       # of which each solution takes 81
    assert len(list(itertools.islice(SUDOKU_9.solutions([0] * 81), 20))) == 20
    monkeypatch.setattr(sudoku, "MOST_TRIES", 40)
    with pytest.raises(InputError):
        next(SUDOKU_9.solutions([0] * 81))


# ---- The worlds of puzzles with their solutions --------------------------------------------------

def test_solved_puzzles_are_used_ten_times():
    rng = random.Random(6)
    solved = [SUDOKU_PAIRS.draw_solved(rng) for _ in range(40)]
    assert len(set(solved)) == 40
    for puzzle, grid in solved:
        assert all_solutions(SUDOKU, puzzle) == [grid]
    givens = [36 - puzzle.count(0) for puzzle, _ in solved]
    assert givens == [count for count in givens[::10] for _ in range(10)]


def wrong_pairs(text, other, rng):
    puzzle, solution = text.split(" | ")
    yield from [f"{puzzle} | {other.split(' | ')[1]}", f"{puzzle} {solution}", text[:-2],
                f"{puzzle[2:]} | {solution}", f"{puzzle[:-2]} | {solution}",
                f"{puzzle} 0 | {solution}"]
    words = text.split()
    for i in rng.choice([i for i in range(36) if words[i] != "0"]), rng.randrange(37, 73):
        yield text_of([*words[:i], int(words[i]) % 6 + 1, *words[i + 1:]])


def wrong_moves(text, other, rng):
    words = text.split()
    i = rng.choice([i for i, word in enumerate(words) if word != "|"])
    for j in i, words.index("|"):
        yield text_of(words[:j] + words[j + 1:])
        yield text_of(words + [words[j]])
    yield text_of([*words[:i], words[i][:2] + str(int(words[i][2]) % 6 + 1), *words[i + 1:]])


@pytest.mark.parametrize("world, wrong", [(SUDOKU_PAIRS, wrong_pairs), (SUDOKU_MOVES, wrong_moves)])
def test_wrong_answers_are_noticed(world, wrong):
    rng = random.Random(9)
    texts = [world.draw(rng) for _ in range(20)]
    for text, other in itertools.pairwise(texts):
        assert world.is_right(text)
        assert not any(map(world.is_right, wrong(text, other, rng)))


def test_moves_are_those_of_somebody_who_solves():
    """A cell without a choice comes first: it has one candidate, or is a unit's only place."""
    for seed in range(20):
        text = SUDOKU_MOVES.draw(random.Random(seed))
        before, after = (part.split() for part in text.split(" | "))
        puzzle = [0] * 36
        for move in before:
            puzzle[CELL_NAMES.index(move[:2])] = int(move[2])
        assert len(list(SUDOKU.solutions(puzzle))) == 1
        for move in after:
            cell, digit = CELL_NAMES.index(move[:2]), int(move[2])
            open_cells = {c: fitting(SUDOKU, puzzle, c) for c in range(36) if not puzzle[c]}
            forced = [(c, *digits) for c, digits in open_cells.items() if len(digits) == 1]
            if not forced:
                for unit in range(18):
                    for d in range(1, 7):
                        places = [c for c in open_cells if unit in SUDOKU.units_of[c]
                                  and d in open_cells[c]]
                        forced += [(c, d) for c in places if len(places) == 1]
            assert (cell, digit) in forced or not forced and not puzzle[cell]
            puzzle[cell] = digit
        assert SUDOKU.is_grid(puzzle)


# ---- A GPT that learns answers -------------------------------------------------------------------

@torch.no_grad()
def test_only_answers_are_learned():
    """The loss of a row is the mean of what a GPT's losses are after the first mark."""
    model = small_model("ar", variant=answers, mark=9)
    x = torch.tensor([[3, 4, 9, 5, 6, 7, 8, 0], [9, 3, 4, 9, 5, 6, 7, 8],
                      [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9]])
    first_after = torch.tensor([3, 1, 8, 8])
    batch = answers.training_batch(model.config, x, torch.Generator())
    answer = torch.arange(8) >= first_after[:, None]                            # (4, 8)
    assert torch.equal(batch.weight > 0, answer)
    assert torch.allclose(batch.weight.sum(dim=1), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    every = batch._replace(weight=torch.ones(4, 8))
    log_p = model(*every[:3], every.select()).view(4, 8, -1).log_softmax(dim=-1)
    nll = -log_p.gather(-1, x[..., None])[..., 0]                               # (4, 8)
    wanted = [nll[0, 3:].mean(), nll[1, 1:].mean(), 0.0, 0.0]
    found = answers.losses(model, batch, batch.select())
    assert torch.allclose(found, torch.tensor(wanted), atol=1e-5)


def test_presets_know_the_mark():
    for name in "sudoku-pairs", "sudoku-moves":
        assert world_named(name).words()[PRESETS[name]["mark"]] == "|"


def test_answers_are_for_a_gpt():
    with pytest.raises(ValueError, match="--mode=ar"):
        answers.Config("mdlm", vocab_size=9)
