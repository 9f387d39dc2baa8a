"""
Puzzles with their solutions, from which a GPT learns to solve Sudokus.

A text is a puzzle, the word | and its solution, cell by cell. It takes a minute or two to make
them. The preset learns only what comes after |:

    python train.py --mode=ar --preset=sudoku-pairs

The puzzles have one solution each. Nobody has counted them, so their law is not known. In
worlds/sudoku_moves.py the same puzzles are texts of another form.
"""
import random
import weakref

from worlds.sudoku import SUDOKU, Sudoku


class SolvedPuzzles(Sudoku):
    """What both worlds share: random puzzles of 9 to 18 givens, or a few more, and solutions.

    A puzzle takes some milliseconds. So each is used ten times, with the digits renamed, and
    with rows and columns in another order that keeps the units."""

    GIVENS = range(9, 19)       # the fewest that a puzzle may have
    TIMES = 10
    columns = 0
    waiting = weakref.WeakKeyDictionary()       # {rng: puzzles that it has still to use}

    def draw_solved(self, rng: random.Random) -> tuple:
        """A puzzle and its solution."""
        waiting = self.waiting.setdefault(rng, [])
        if not waiting:
            grid = SUDOKU.draw_grid(rng)
            puzzle = self.draw_puzzle(grid, rng.choice(self.GIVENS), rng)
            waiting += [(puzzle, grid)] * self.TIMES
        return tuple(self.shuffled(waiting.pop(), rng))


class Pairs(SolvedPuzzles):
    """A puzzle, the word |, and its solution, cell by cell; a blank of the puzzle is the word 0."""

    def words(self) -> list:
        return ["0", *super().words(), "|"]

    def mean_words(self) -> float:
        return 2.0 * self.cells + 1

    def draw(self, rng: random.Random) -> str:
        puzzle, grid = self.draw_solved(rng)
        return " ".join(map(str, [*puzzle, "|", *grid]))

    def grid_of(self, text: str) -> tuple:
        return super().grid_of(text.partition("|")[2])

    def is_right(self, text: str) -> bool:
        puzzle = super().grid_of(text.partition("|")[0])
        pairs = zip(puzzle, self.grid_of(text))
        return (len(puzzle) == self.cells and super().is_right(text)
                and all(given in (0, digit) for given, digit in pairs))


SUDOKU_PAIRS = Pairs(2, 3)
