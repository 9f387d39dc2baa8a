"""
Sudokus of 9 x 9 cells, as they stand in newspapers.

Adds: the data set sudoku-9, whose texts are grids. Costs: a millisecond or two for each. Plugs in
as a world of worlds.py:

    python train.py --mode=mdlm --preset=sudoku-9
    python -m extras.solve mdlm=out/sudoku-9-mdlm
    python -m extras.solve mdlm=out/sudoku-9-mdlm --puzzles=mine.txt      your own

There are 6.67e21 such grids (Felgenhauer & Jarvis 2006), too many for a list from which to draw. So
here they are not equally likely, and their law is not known. If they were, a grid would cost
ln 6.67e21 / 81 = 0.6204 nats per word; under a law of unequal grids they cost less.
"""
import itertools
import random

from worlds import solving
from worlds.sudoku import Sudoku


class FilledGrids(Sudoku):
    """Grids that are filled at random, one cell after the other, and then shuffled."""

    def draw_grid(self, rng: random.Random) -> tuple:
        first_row = range(1, self.n + 1)        # which gets other digits and another place below
        grid = next(self.solutions([*first_row] + [0] * (self.cells - self.n), rng))
        [grid] = solving.shuffled(self, [grid], rng)
        if rng.random() < 0.5:                  # rows become columns
            columns = [grid[column::self.n] for column in range(self.n)]
            grid = tuple(itertools.chain(*columns))
        return grid

    def entropy(self):
        return None

    def log_probs(self, text: str):
        return None


NINE = FilledGrids(3, 3)
