"""
Sudoku: a world without a natural order, in which almost every word depends on all others.

A grid has 6 x 6 cells. In each row, each column and each box of 2 x 3 cells stands every digit from
1 to 6 once. There are 28,200,960 such grids. Here all of them are equally likely, so the law is as
exact as the toy's: a grid costs ln 28,200,960 / 36 = 0.4765 nats per word, and what is no grid
has the probability 0.

    python train.py --mode=mdlm --preset=sudoku                 prepares the grids, and trains
    python -m extras.solve mdlm=out/sudoku-mdlm                       which puzzles does it solve?
    python -m extras.solve mdlm=out/sudoku-mdlm --puzzles=mine.txt    your own
    python train.py --mode=mdlm --preset=sudoku-9               9 x 9: see worlds/nine.py

A puzzle is a grid of which some cells, the givens, are left, so many that it has one solution.
"""
import bisect
import functools
import itertools
import math
import random

import numpy as np


class Sudoku:
    """All grids of n x n digits with boxes of height x width, where n = height · width.

    A grid is a tuple of n² numbers from 1 to n, row after row; of a puzzle some are 0. Its text has
    a word for each number. The 3n units are rows, columns and boxes. A set of digits is a number,
    in which bit d stands for the digit d."""

    def __init__(self, height: int, width: int):
        self.height, self.width = height, width
        self.n = n = height * width
        self.cells = n * n
        self.columns = 2 * n - 1        # of the screen, to show a text as a grid
        self.all_digits = 2 ** (n + 1) - 2
        self.units_of = []              # of each cell its row, its column and its box
        for cell in range(self.cells):
            row, column = divmod(cell, n)
            box = row // height * height + column // width
            self.units_of.append((row, n + column, 2 * n + box))

    # ---- What is a grid, and what solves a puzzle ------------------------------------------------

    def is_grid(self, grid) -> bool:
        """Whether every unit has every digit."""
        found = {(unit, digit) for digit, units in zip(grid, self.units_of) for unit in units}
        wanted = itertools.product(range(3 * self.n), range(1, self.n + 1))
        return len(grid) == self.cells and found == set(wanted)

    def used_in(self, puzzle) -> list:
        """The set of digits that stand in each unit; None, if a digit stands in a unit twice."""
        used = [0] * (3 * self.n)
        for digit, units in zip(puzzle, self.units_of):
            for unit in units:
                if digit and used[unit] >> digit & 1:
                    return None
                used[unit] |= 1 << digit & self.all_digits
        return used

    def candidates(self, puzzle, used) -> dict:
        """For each blank cell the digits that no unit of it has."""
        found = {}
        for cell, digit in enumerate(puzzle):
            if not digit:
                row, column, box = self.units_of[cell]
                found[cell] = self.all_digits & ~(used[row] | used[column] | used[box])
        return found

    def solutions(self, puzzle, rng: random.Random = None):
        """Yields all grids that a puzzle can become, with rng in random order."""
        grid = list(puzzle)
        used = self.used_in(grid)

        def fill():
            # The blank cell with the fewest candidates leaves the fewest ways to go wrong.
            candidates = self.candidates(grid, used)
            if not candidates:
                yield tuple(grid)
                return
            cell = min(candidates, key=lambda cell: candidates[cell].bit_count())
            digits = range(1, self.n + 1)
            if rng:
                digits = rng.sample(digits, self.n)
            for digit in digits:
                if candidates[cell] >> digit & 1:
                    self.toggle(grid, used, cell, digit)
                    yield from fill()
                    self.toggle(grid, used, cell, digit)

        return fill() if used else iter(())

    def toggle(self, grid: list, used: list, cell: int, digit: int):
        """Writes a digit into a blank cell; called again, it takes the digit out."""
        grid[cell] = digit - grid[cell]
        for unit in self.units_of[cell]:
            used[unit] ^= 1 << digit

    # ---- Random grids ----------------------------------------------------------------------------

    @functools.cached_property
    def first_row_sorted(self) -> list:
        """The grids whose first row is 1 … n, sorted. New names for the digits give all others."""
        return sorted(self.solutions([*range(1, self.n + 1)] + [0] * (self.cells - self.n)))

    def number_of_grids(self) -> int:
        return len(self.first_row_sorted) * math.factorial(self.n)

    def draw_grid(self, rng: random.Random) -> tuple:
        """A random grid, each as likely as any other."""
        grid = rng.choice(self.first_row_sorted)
        names = rng.sample(range(1, self.n + 1), self.n)
        return tuple(names[digit - 1] for digit in grid)

    # ---- The world of grids: see __init__.py -----------------------------------------------------

    def words(self) -> list:
        return [str(digit) for digit in range(1, self.n + 1)]

    def draw(self, rng: random.Random) -> str:
        """The text of a random grid."""
        return " ".join(map(str, self.draw_grid(rng)))

    def entropy(self) -> float:
        """Nats per text."""
        return math.log(self.number_of_grids())

    def mean_words(self) -> float:
        return float(self.cells)

    def log_probs(self, text: str):
        """(n²,) ln p of every word given the words before it; None if the text is no grid."""
        if not self.is_right(text):
            return None
        # By its first row a grid is told from its namesakes. The digits get the names in which this
        # row is 1 … n, and grids that begin like this one stand side by side in the sorted list.
        grid = self.grid_of(text)
        names = {digit: i for i, digit in enumerate(grid[:self.n], 1)}
        grid = tuple(names[digit] for digit in grid)
        # How many grids begin like this one, after 0, 1, … words.
        left = [math.factorial(unnamed) for unnamed in range(self.n, 0, -1)]
        for end in range(self.n, self.cells + 1):
            first = bisect.bisect_left(self.first_row_sorted, grid[:end])
            last = bisect.bisect_left(self.first_row_sorted, grid[:end] + (self.n + 1,))
            left.append(last - first)
        left = np.array(left, dtype=float)
        left[:self.n] *= len(self.first_row_sorted)
        return np.diff(np.log(left))

    def grid_of(self, text: str) -> tuple:
        """The grid that a text stands for; a word that is no number counts as a blank."""
        return tuple(int(word) if word.isdecimal() else 0 for word in text.split())

    def is_right(self, text: str) -> bool:
        """Whether the text is that of a grid."""
        return self.is_grid(self.grid_of(text))


GRIDS = Sudoku(2, 3)
