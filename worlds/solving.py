"""
Puzzles of Sudoku: how they are drawn, what makes them easy, and where a grid is wrong.

Adds: what sudoku.py, which knows grids and solutions alone, does not say of puzzles. Here `rules`
is its class, for grids of some size. Costs: nothing elsewhere. Plugs into extras/solve.py,
solved.py, nine.py, and extras/show.py.
"""
import collections
import functools
import itertools
import random


def clashes(rules, grid) -> set:
    """The cells whose digit stands twice in one of their units."""
    cells = list(zip(grid, rules.units_of))
    count = collections.Counter((unit, digit) for digit, units in cells for unit in units)
    return {cell for cell, (digit, units) in enumerate(cells)
            if any(count[unit, digit] > 1 for unit in units)}


def has_one_solution(rules, puzzle) -> bool:
    """Whether exactly one grid has the givens of the puzzle."""
    return len(list(itertools.islice(rules.solutions(puzzle), 2))) == 1


def singles(rules, puzzle) -> list:
    """The cells that a person would fill next: (cell, digit) for which there is no choice.

    Either the cell has no other candidate, or no other cell of a unit has this candidate."""
    candidates = rules.candidates(puzzle, rules.used_in(puzzle))
    # The digits that are candidates of at least one cell of each unit, and of at least two.
    once, twice = [0] * (3 * rules.n), [0] * (3 * rules.n)
    for cell, digits in candidates.items():
        for unit in rules.units_of[cell]:
            twice[unit] |= once[unit] & digits
            once[unit] |= digits
    found = []
    for cell, digits in candidates.items():
        only = digits
        if digits.bit_count() > 1:
            in_units = [once[unit] & ~twice[unit] for unit in rules.units_of[cell]]
            only &= functools.reduce(int.__or__, in_units)
        if only.bit_count() == 1:
            found.append((cell, only.bit_length() - 1))
    return found


def draw_puzzle(rules, grid, givens: int, rng: random.Random) -> tuple:
    """A puzzle of which this grid is the only solution, with so many givens, or a few more.

    Cells are emptied in random order, unless a second solution would appear."""
    puzzle = list(grid)
    for cell in rng.sample(range(rules.cells), rules.cells):
        if rules.cells - puzzle.count(0) == givens:
            break
        puzzle[cell] = 0
        if not has_one_solution(rules, puzzle):
            puzzle[cell] = grid[cell]
    return tuple(puzzle)


def shuffled(rules, grids: list, rng: random.Random) -> list:
    """Grids or puzzles with the digits renamed, and rows and columns in another order.

    The units stay units. All the grids are changed in the same way."""
    names = [0, *rng.sample(range(1, rules.n + 1), rules.n)]
    rows = reordered(rules, rules.height, rng)
    columns = reordered(rules, rules.width, rng)
    cells = [row * rules.n + column for row in rows for column in columns]
    return [tuple(names[grid[cell]] for cell in cells) for grid in grids]


def reordered(rules, together: int, rng: random.Random) -> list:
    """All rows, or all columns, in a random order that keeps those of a box together."""
    groups = [range(first, first + together) for first in range(0, rules.n, together)]
    return [line for group in rng.sample(groups, len(groups))
            for line in rng.sample(group, together)]
