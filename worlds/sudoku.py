"""
Sudoku: a world without a natural order, in which almost every word depends on all others.

A grid has 6 x 6 cells. In each row, each column and each box of 2 x 3 cells stands every digit from
1 to 6 once. There are 28,200,960 such grids. Here all of them are equally likely, so the law is as
exact as the toy's: a grid costs ln 28,200,960 / 36 = 0.4765 nats per word, and what is no grid
has the probability 0.

    python train.py --mode=mdlm --preset=sudoku                     prepares the grids, and trains
    python -m extras.solve mdlm=out/sudoku-mdlm                     which puzzles does it solve?
    python -m extras.solve mdlm=out/sudoku-mdlm --puzzles=mine.txt  your own
    python train.py --mode=mdlm --preset=sudoku-9                   9 x 9: see worlds/sudoku_9.py

A puzzle is a grid of which some cells, the givens, are left, so many that it has one solution.
"""
import bisect
import functools
import itertools
import math
import random

import numpy as np


class Sudoku:
    """Grids of n x n digits with boxes of height x width, where n = height · width.

    A grid is a tuple of n² numbers from 1 to n, row after row; of a puzzle some are 0. Its text has
    a word for each number. The 3n units are rows, columns and boxes. A set of digits is a number,
    in which bit d stands for the digit d. A world of grids has a draw_grid(rng) too."""

    def __init__(self, height: int, width: int):
        self.height, self.width = height, width
        self.n = n = height * width
        self.cells = n * n
        self.digits = range(1, n + 1)
        self.all_digits = 2 ** (n + 1) - 2
        self.units_of = []              # of each cell its row, its column and its box
        for cell in range(self.cells):
            row, column = divmod(cell, n)
            box = row // height * height + column // width
            self.units_of.append((row, n + column, 2 * n + box))

    # ---- What is a grid, and what solves a puzzle ------------------------------------------------

    def is_grid(self, grid) -> bool:
        """Whether every unit has every digit."""
        return (len(grid) == self.cells and set(grid) <= set(self.digits)
                and self.used_in(grid) is not None)

    def clashes(self, grid) -> set:
        """The cells whose digit stands twice in one of their units."""
        pairs = itertools.permutations(range(self.cells), 2)
        return {a for a, b in pairs
                if grid[a] == grid[b] and {*self.units_of[a]} & {*self.units_of[b]}}

    def used_in(self, puzzle) -> list:
        """The set of digits that stand in each unit; None, if a digit stands in a unit twice."""
        used = [0] * (3 * self.n)
        for digit, units in zip(puzzle, self.units_of):
            for unit in units:
                if digit and used[unit] >> digit & 1:
                    return None
                used[unit] |= 1 << digit
        return used

    def candidates(self, puzzle, used) -> dict:
        """For each blank cell the digits that no unit of it has."""
        found = {}
        for cell, digit in enumerate(puzzle):
            if not digit:
                row, column, box = self.units_of[cell]
                found[cell] = self.all_digits & ~(used[row] | used[column] | used[box])
        return found

    def digits_in(self, found: int) -> list:
        """The digits of a set."""
        return [digit for digit in self.digits if found >> digit & 1]

    def places(self, candidates, used) -> dict:
        """For each (unit, digit) that is still missing the cells of the unit where it may stand."""
        found = {(unit, digit): [] for unit, digits in enumerate(used)
                 for digit in self.digits_in(~digits)}
        for cell, digits in candidates.items():
            for unit, digit in itertools.product(self.units_of[cell], self.digits_in(digits)):
                found[unit, digit].append(cell)
        return found

    def solutions(self, puzzle, rng: random.Random = None):
        """Yields all grids that a puzzle can become, with rng in random order."""
        grid = list(puzzle)
        used = self.used_in(grid)

        def fill():
            candidates = self.candidates(grid, used)
            if not candidates:
                yield tuple(grid)
                return
            # The blank cell with the fewest candidates leaves the fewest ways to go wrong. Where
            # these are many, a unit may have fewer places for a digit.
            cell = min(candidates, key=lambda cell: candidates[cell].bit_count())
            digits = rng.sample(self.digits, self.n) if rng else self.digits
            moves = [(cell, digit) for digit in digits if candidates[cell] >> digit & 1]
            if len(moves) > 2 and not rng:
                places = self.places(candidates, used)
                (_, digit), cells = min(places.items(), key=lambda place: len(place[1]))
                if len(cells) < len(moves):
                    moves = [(cell, digit) for cell in cells]
            for cell, digit in moves:
                self.toggle(grid, used, cell, digit)
                yield from fill()
                self.toggle(grid, used, cell, digit)

        return fill() if used else iter(())

    def toggle(self, grid: list, used: list, cell: int, digit: int):
        """Writes a digit into a blank cell; called again, it takes the digit out."""
        grid[cell] = digit - grid[cell]
        for unit in self.units_of[cell]:
            used[unit] ^= 1 << digit

    # ---- Random puzzles --------------------------------------------------------------------------

    def draw_puzzle(self, grid, givens: int, rng: random.Random) -> tuple:
        """A puzzle of which this grid is the only solution, with so many givens, or a few more.

        Cells are emptied in random order, unless a second solution would appear."""
        puzzle = list(grid)
        for cell in rng.sample(range(self.cells), self.cells):
            if self.cells - puzzle.count(0) == givens:
                break
            puzzle[cell] = 0
            if len(list(itertools.islice(self.solutions(puzzle), 2))) > 1:
                puzzle[cell] = grid[cell]
        return tuple(puzzle)

    def examples(self, count: int) -> list:
        """Puzzles to begin with, a third of whose cells are given, as tokens; a blank is -1."""
        rng = random.Random(1337)
        grids = [self.draw_grid(rng) for _ in range(count)]
        puzzles = [self.draw_puzzle(grid, self.cells // 3, rng) for grid in grids]
        return [[digit - 1 for digit in puzzle] for puzzle in puzzles]

    def shuffled(self, grids, rng: random.Random) -> list:
        """Grids or puzzles with the digits renamed, and rows and columns in another order.

        The units stay units. All the grids are changed in the same way."""
        names = [0, *rng.sample(self.digits, self.n)]
        rows = self.reordered(self.height, rng)
        columns = self.reordered(self.width, rng)
        cells = [row * self.n + column for row in rows for column in columns]
        return [tuple(names[grid[cell]] for cell in cells) for grid in grids]

    def reordered(self, together: int, rng: random.Random) -> list:
        """All rows, or all columns, in a random order that keeps those of a box together."""
        groups = [range(first, first + together) for first in range(0, self.n, together)]
        return [line for group in rng.sample(groups, len(groups))
                for line in rng.sample(group, together)]

    # ---- The world of grids, whose law is not known: see __init__.py -----------------------------

    @property
    def columns(self) -> int:
        return 2 * self.n - 1

    def words(self) -> list:
        return [str(digit) for digit in self.digits]

    def draw(self, rng: random.Random) -> str:
        """The text of a random grid."""
        return " ".join(map(str, self.draw_grid(rng)))

    def entropy(self):
        return None

    def mean_words(self) -> float:
        return float(self.cells)

    def log_probs(self, text: str):
        return None

    def grid_of(self, text: str) -> tuple:
        """The grid that a text stands for; a word that is no number counts as a blank."""
        return tuple(int(word) if word.isdecimal() else 0 for word in text.split())

    def is_right(self, text: str) -> bool:
        """Whether the text is that of a grid."""
        return self.is_grid(self.grid_of(text))


class AllGrids(Sudoku):
    """All grids, each as likely as any other. So there must be few enough for a list."""

    @functools.cached_property
    def first_row_sorted(self) -> list:
        """The grids whose first row is 1 … n, sorted. New names for the digits give all others."""
        return sorted(self.solutions([*self.digits] + [0] * (self.cells - self.n)))

    def number_of_grids(self) -> int:
        return len(self.first_row_sorted) * math.factorial(self.n)

    def draw_grid(self, rng: random.Random) -> tuple:
        grid = rng.choice(self.first_row_sorted)
        names = rng.sample(self.digits, self.n)
        return tuple(names[digit - 1] for digit in grid)

    def entropy(self) -> float:
        """Nats per text."""
        return math.log(self.number_of_grids())

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


SUDOKU = AllGrids(2, 3)
