"""
Sudokus of 9 x 9 cells, as they stand in newspapers.

    python train.py --mode=mdlm --preset=sudoku-9
    python -m extras.solve mdlm=out/sudoku-9-mdlm
    python -m extras.solve mdlm=out/sudoku-9-mdlm --puzzles=mine.txt      your own

There are 6.67e21 such grids (Felgenhauer & Jarvis 2006), too many for a list from which to draw. So
here they are not equally likely, and their law is not known. If they were, a grid would cost
ln 6.67e21 / 81 = 0.6204 nats per word; under a law of unequal grids they cost less.
"""
import random

from worlds.sudoku import Sudoku


class FilledGrids(Sudoku):
    """Grids that are filled at random, one cell after the other, and then shuffled."""

    def draw_grid(self, rng: random.Random) -> tuple:
        first_row = range(1, self.n + 1)        # which gets other digits and another place below
        grid = next(self.solutions([*first_row] + [0] * (self.cells - self.n), rng))
        [grid] = self.shuffled([grid], rng)
        if rng.random() < 0.5:                  # rows become columns
            grid = tuple(grid[column + row] for column in range(self.n)
                         for row in range(0, self.cells, self.n))
        return grid


SUDOKU_9 = FilledGrids(3, 3)
