"""Sudoku's law and its puzzles, against a solver of few lines and every grid of 4 x 4."""
import collections
import math
import random
import zlib

import numpy as np
import pytest
import torch

from conftest import small_model
from variants import answers
from worlds import solving
from worlds.nine import NINE
from worlds.solved import CELL_NAMES, MOVES, PAIRS
from worlds.sudoku import GRIDS, Sudoku
from tokenizer import Tokenizer
from train import PRESETS
from worlds import world_named

SMALL = Sudoku(2, 2)


def neighbours_of(cell, height, width):
    """The other cells of a cell's row, column and box."""
    n = height * width
    row, column = divmod(cell, n)
    found = set()
    for other in range(n * n):
        r, c = divmod(other, n)
        same_box = r // height == row // height and c // width == column // width
        if r == row or c == column or same_box:
            found.add(other)
    return found - {cell}


NEIGHBOURS = {world: [neighbours_of(cell, world.height, world.width) for cell in range(world.cells)]
              for world in (GRIDS, SMALL, NINE)}


def fitting(world, grid, cell):
    """The digits that no neighbour of a cell has."""
    taken = {grid[other] for other in NEIGHBOURS[world][cell]}
    return set(range(1, world.n + 1)) - taken


def all_solutions(world, puzzle):
    """Tries all digits, cell by cell."""
    grid = list(puzzle)

    def fill(blanks):
        if not blanks:
            yield tuple(grid)
            return
        cell, *rest = blanks
        for digit in fitting(world, grid, cell):
            grid[cell] = digit
            yield from fill(rest)
        grid[cell] = 0

    return list(fill([cell for cell, digit in enumerate(puzzle) if not digit]))


SMALL_GRIDS = all_solutions(SMALL, [0] * 16)


def text_of(cells):
    return " ".join(map(str, cells))


def chi_square(counts, classes):
    """Standard deviations by which the counts of equally likely classes are too uneven."""
    expected = sum(counts.values()) / classes
    assert len(counts) <= classes
    missing = (classes - len(counts)) * expected
    statistic = missing + sum((count - expected) ** 2 / expected for count in counts.values())
    return (statistic - (classes - 1)) / math.sqrt(2 * (classes - 1))


@pytest.fixture(scope="module", autouse=True)
def grids_found_once():
    """It takes two seconds, and three worlds need the same ones."""
    PAIRS.first_row_sorted = MOVES.first_row_sorted = GRIDS.first_row_sorted


@pytest.fixture(scope="module")
def puzzles():
    """Twenty puzzles and the grids they were made of."""
    rng = random.Random(7)
    found = []
    for i in range(20):
        grid = GRIDS.draw_grid(rng)
        found.append((solving.draw_puzzle(GRIDS, grid, 9 + i % 6, rng), grid))
    return found


# ---- Grids and their law -------------------------------------------------------------------------

def test_there_are_as_many_grids_as_are_known():
    assert len(GRIDS.first_row_sorted) == 39_168
    assert GRIDS.number_of_grids() == 39_168 * 720 == 28_200_960
    assert SMALL.number_of_grids() == len(SMALL_GRIDS) == 288


def test_grids_are_uniform():
    """The first box's cells 0, 1, 2 and 6 have 6 · 5 · 4 · 3 values. The hash is of all cells."""
    rng = random.Random(1)
    grids = [GRIDS.draw_grid(rng) for _ in range(20000)]
    first = collections.Counter((*grid[:3], grid[6]) for grid in grids)
    assert chi_square(first, 360) < 4
    hashes = collections.Counter(zlib.crc32(text_of(grid).encode()) % 100 for grid in grids)
    assert chi_square(hashes, 100) < 4
    small = collections.Counter(SMALL.draw_grid(rng) for _ in range(20000))
    assert chi_square(small, 288) < 4


def test_log_probs_against_every_grid_of_4_x_4():
    """A word's probability: how many grids begin so, with the word and without it?"""
    begins = collections.Counter(grid[:end] for grid in SMALL_GRIDS for end in range(17))
    for grid in SMALL_GRIDS:
        log_p = SMALL.log_probs(text_of(grid))
        wanted = [begins[grid[:end + 1]] / begins[grid[:end]] for end in range(16)]
        assert np.abs(np.exp(log_p) - wanted).max() < 1e-12


def test_each_grid_costs_the_same():
    rng = random.Random(2)
    for _ in range(50):
        log_p = GRIDS.log_probs(GRIDS.draw(rng))
        assert log_p.shape == (36,) and (log_p <= 0).all()
        assert abs(log_p.sum() + math.log(28_200_960)) < 1e-9
    assert GRIDS.entropy() == math.log(28_200_960)


def test_what_is_no_grid_has_no_law():
    rng = random.Random(3)
    text = GRIDS.draw(rng)
    for wrong in "", text[:-2], f"{text} 1", text.replace("6", "7"), text.replace("1", "a"), "²":
        assert GRIDS.log_probs(wrong) is None
    for _ in range(200):
        grid = list(GRIDS.draw_grid(rng))
        a, b = rng.sample(range(36), 2)
        grid[a], grid[b] = grid[b], grid[a]
        same = grid[a] == grid[b]
        assert (GRIDS.log_probs(text_of(grid)) is not None) == same
        assert bool(solving.clashes(GRIDS, grid)) != same


def test_clashes_are_of_neighbours_that_are_equal():
    rng = random.Random(4)
    for _ in range(50):
        grid = list(GRIDS.draw_grid(rng))
        grid[rng.randrange(36)] = rng.randint(1, 6)
        wanted = {cell for cell, digit in enumerate(grid)
                  if digit not in fitting(GRIDS, grid, cell)}
        assert solving.clashes(GRIDS, grid) == wanted


# ---- Puzzles -------------------------------------------------------------------------------------

def test_a_puzzle_has_one_solution(puzzles):
    for i, (puzzle, grid) in enumerate(puzzles):
        givens = 36 - puzzle.count(0)
        assert 9 + i % 6 <= givens < 16
        assert all_solutions(GRIDS, puzzle) == list(GRIDS.solutions(puzzle)) == [grid]


def test_all_solutions_are_found():
    rng = random.Random(5)
    for _ in range(30):
        grid = rng.choice(SMALL_GRIDS)
        puzzle = [digit if rng.random() < 0.3 else 0 for digit in grid]
        solutions = list(SMALL.solutions(puzzle))
        assert sorted(solutions) == sorted(all_solutions(SMALL, puzzle))
        assert solving.has_one_solution(SMALL, puzzle) == (len(solutions) == 1)


def test_givens_that_clash_have_no_solution():
    for other in 5, 30, 7:          # in the row, the column and the box of the first cell
        puzzle = [0] * 36
        puzzle[0] = puzzle[other] = 3
        assert list(GRIDS.solutions(puzzle)) == []
        assert not solving.has_one_solution(GRIDS, puzzle)


def test_singles(puzzles):
    """Cells that have no other candidate, or are the only place in a unit for it; all of them."""
    units = collections.defaultdict(list)
    for cell, names in enumerate(GRIDS.units_of):
        for name in names:
            units[name].append(cell)
    for puzzle, grid in puzzles:
        candidates = {cell: fitting(GRIDS, puzzle, cell) for cell in range(36) if not puzzle[cell]}
        wanted = {(cell, *digits) for cell, digits in candidates.items() if len(digits) == 1}
        for cells in units.values():
            for digit in range(1, 7):
                places = [cell for cell in cells if digit in candidates.get(cell, ())]
                if len(places) == 1:
                    wanted.add((places[0], digit))
        found = solving.singles(GRIDS, puzzle)
        assert len(set(found)) == len(found)
        assert set(found) == wanted
        assert all(grid[cell] == digit for cell, digit in found)


# ---- 9 x 9 ---------------------------------------------------------------------------------------

# The example of many books, and its solution.
KNOWN = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def cells_of(text):
    return tuple(map(int, text.replace(".", "0")))


def test_a_known_puzzle_of_9_x_9():
    assert NINE.is_grid(cells_of(SOLUTION))
    assert list(NINE.solutions(cells_of(KNOWN))) == [cells_of(SOLUTION)]
    assert all_solutions(NINE, cells_of(KNOWN)) == [cells_of(SOLUTION)]


def test_random_grids_of_9_x_9():
    """Each cell has each digit equally often, and the same seed gives the same grids."""
    grids = [NINE.draw_grid(random.Random(seed)) for seed in range(300)]
    assert len(set(grids)) == 300
    for grid in grids:
        assert all(fitting(NINE, grid, cell) == {grid[cell]} for cell in range(81))
    for cell in range(81):
        assert chi_square(collections.Counter(grid[cell] for grid in grids), 9) < 5
    assert NINE.draw_grid(random.Random(5)) == grids[5]
    assert zlib.crc32(bytes(grids[5])) == 2090667940


def test_shuffled_grids_and_puzzles_are_the_same_but_for_names_and_places():
    rng = random.Random(13)
    for _ in range(20):
        puzzle, grid = solving.shuffled(NINE, [cells_of(KNOWN), cells_of(SOLUTION)], rng)
        assert NINE.is_grid(grid)
        assert list(NINE.solutions(puzzle)) == [grid]
        assert sorted(map(puzzle.count, range(1, 10))) == sorted(map(KNOWN.count, "123456789"))


def test_puzzles_of_9_x_9_have_one_solution():
    rng = random.Random(14)
    for givens in 28, 36:
        grid = NINE.draw_grid(rng)
        puzzle = solving.draw_puzzle(NINE, grid, givens, rng)
        assert 81 - puzzle.count(0) == givens
        assert all_solutions(NINE, puzzle) == [grid]


def test_grids_of_9_x_9_have_no_known_law():
    text = NINE.draw(random.Random(15))
    assert NINE.is_right(text) and not NINE.is_right(text[:-2])
    assert NINE.entropy() is None and NINE.log_probs(text) is None


# ---- The worlds of puzzles with their solutions --------------------------------------------------

def test_what_is_renamed_and_reordered_is_a_puzzle_still():
    rng = random.Random(6)
    solved = [PAIRS.draw_solved(rng) for _ in range(40)]
    assert len(set(solved)) == 40
    for puzzle, grid in solved:
        assert GRIDS.is_grid(grid)
        assert all_solutions(GRIDS, puzzle) == [grid]
    givens = [36 - puzzle.count(0) for puzzle, _ in solved]
    assert givens == [count for count in givens[::10] for _ in range(10)]


@pytest.mark.parametrize("name", ["sudoku", "sudoku-9", "sudoku-pairs", "sudoku-moves"])
def test_texts_are_right_and_of_the_vocabulary(name):
    world, rng = world_named(name), random.Random(8)
    tokenizer = Tokenizer("words", words=world.words())
    for _ in range(30):
        text = world.draw(rng)
        assert world.is_right(text)
        ids = tokenizer.encode(text)
        assert len(ids) == world.mean_words()
        assert tokenizer.decode(ids) == text


def with_another_digit(word):
    """The same cell, with another digit."""
    return word[:-1] + str(int(word[-1]) % 6 + 1)


def test_wrong_pairs():
    rng = random.Random(9)
    texts = [PAIRS.draw(rng) for _ in range(30)]
    for text, other in zip(texts, texts[1:]):
        puzzle, solution = text.split(" | ")
        assert not PAIRS.is_right(f"{puzzle} | {other.split(' | ')[1]}")
        assert not PAIRS.is_right(f"{puzzle} {solution}")
        assert not PAIRS.is_right(f"{puzzle[2:]} | {solution}")
        assert not PAIRS.is_right(f"{puzzle[:-2]} | {solution}")
        assert not PAIRS.is_right(f"{puzzle} 0 | {solution}")
        assert not PAIRS.is_right(text[:-2])
        words = text.split()
        given = rng.choice([i for i, word in enumerate(words[:36]) if word != "0"])
        for i in given, rng.randrange(37, 73):
            wrong = words[:i] + [with_another_digit(words[i])] + words[i + 1:]
            assert not PAIRS.is_right(" ".join(wrong))


def test_wrong_moves():
    rng = random.Random(10)
    for _ in range(30):
        words = MOVES.draw(rng).split()
        for i in range(37):
            missing = words[:i] + words[i + 1:]
            assert not MOVES.is_right(" ".join(missing))
            twice = words[:i] + [words[i]] + words[i:]
            assert not MOVES.is_right(" ".join(twice))
            if words[i] != "|":
                assert not MOVES.is_right(" ".join([*missing, with_another_digit(words[i])]))
                assert MOVES.is_right(" ".join([*missing, words[i]]))


def test_the_order_of_solving_has_each_blank_once(puzzles):
    """And no step of it is a guess where there is a single."""
    rng = random.Random(11)
    for puzzle, grid in puzzles:
        order = list(MOVES.order_of_solving(puzzle, grid, rng))
        assert sorted(order) == [cell for cell in range(36) if not puzzle[cell]]
        now = list(puzzle)
        for cell in order:
            singles = solving.singles(GRIDS, now)
            assert not singles or (cell, grid[cell]) in singles
            now[cell] = grid[cell]


def test_moves_are_of_a_puzzle_with_one_solution():
    rng = random.Random(12)
    for _ in range(10):
        givens = MOVES.draw(rng).split(" | ")[0].split()
        digits = {word[:2]: int(word[2:]) for word in givens}
        assert solving.has_one_solution(GRIDS, [digits.get(name, 0) for name in CELL_NAMES])


# ---- A GPT that learns answers -------------------------------------------------------------------

@torch.no_grad()
def test_only_answers_are_learned():
    """The loss of a row is the mean of what a GPT's losses are after the first mark."""
    model = small_model("ar", variant=answers, mark=9)
    x = torch.tensor([[3, 4, 9, 5, 6, 7, 8, 0], [9, 3, 4, 9, 5, 6, 7, 8],
                      [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9]])
    first_after = [3, 1, 8, 8]
    batch = answers.training_batch(model.config, x, torch.Generator())
    position = torch.arange(8)
    answer = torch.stack([position >= first for first in first_after])          # (4, 8)
    assert torch.equal(batch.target_pos, position.expand(4, 8))
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
        words = world_named(name).words()
        assert words[PRESETS[name]["mark"]] == "|"


def test_answers_are_for_a_gpt():
    with pytest.raises(ValueError, match="--mode=ar"):
        answers.Config("mdlm", vocab_size=9)
