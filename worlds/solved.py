"""
Solved puzzles: two worlds in which a GPT learns to solve Sudokus.

Adds: texts of a puzzle, the word | and its solution, in two forms. Costs: a minute or two to make
them. Plugs in as data of prepare_data.py, whose presets learn only what comes after |:

    python train.py --mode=ar --preset=sudoku-pairs         the solution, cell by cell
    python train.py --mode=aogpt --preset=sudoku-moves      the cells in the order of a solver

The puzzles have one solution each. Nobody has counted them, so their law is not known.
"""
import random
import weakref

from worlds import solving
from worlds.sudoku import Sudoku

CELL_NAMES = [row + column for row in "abcdef" for column in "123456"]


class SolvedPuzzles(Sudoku):
    """What both worlds share: random puzzles of 9 to 18 givens, or a few more, and solutions.

    A puzzle takes some milliseconds. So each is used ten times, with the digits renamed, and
    with rows and columns in another order that keeps the units."""

    GIVENS = range(9, 19)       # the fewest that a puzzle may have
    TIMES = 10

    def __init__(self, height: int, width: int):
        super().__init__(height, width)
        self.columns = 0
        self.waiting = weakref.WeakKeyDictionary()      # {rng: puzzles that it has still to use}

    def draw_solved(self, rng: random.Random) -> tuple:
        """A puzzle and its solution."""
        waiting = self.waiting.setdefault(rng, [])
        if not waiting:
            grid = self.draw_grid(rng)
            puzzle = solving.draw_puzzle(self, grid, rng.choice(self.GIVENS), rng)
            waiting += [(puzzle, grid)] * self.TIMES
        return tuple(solving.shuffled(self, waiting.pop(), rng))

    def entropy(self):
        return None

    def log_probs(self, text: str):
        return None


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


class Moves(SolvedPuzzles):
    """The givens in any order, the word |, and the other cells in the order of somebody who solves.

    One word is one cell: b34 says that in row b and column 3 stands a 4. After | comes a cell with
    the fewest candidates. Where these are more than one, a cell comes first that is the only one of
    its row, column or box for some digit, if there is such a cell."""

    def words(self) -> list:
        digits = range(1, self.n + 1)
        return [f"{cell}{digit}" for cell in CELL_NAMES for digit in digits] + ["|"]

    def mean_words(self) -> float:
        return self.cells + 1.0

    def order_of_solving(self, puzzle, grid, rng: random.Random):
        """Yields the blank cells of a puzzle, in the order in which somebody would fill them."""
        puzzle = list(puzzle)
        while 0 in puzzle:
            candidates = self.candidates(puzzle, self.used_in(puzzle))
            counts = {cell: digits.bit_count() for cell, digits in candidates.items()}
            fewest = min(counts.values())
            easiest = [cell for cell, count in counts.items() if count == fewest]
            if fewest > 1:
                easiest = [cell for cell, _ in solving.singles(self, puzzle)] or easiest
            cell = rng.choice(easiest)
            puzzle[cell] = grid[cell]
            yield cell

    def draw(self, rng: random.Random) -> str:
        puzzle, grid = self.draw_solved(rng)
        givens = [cell for cell in range(self.cells) if puzzle[cell]]
        rng.shuffle(givens)
        moves = self.order_of_solving(puzzle, grid, rng)
        word = [f"{name}{digit}" for name, digit in zip(CELL_NAMES, grid)]
        return " ".join([*(word[c] for c in givens), "|", *(word[c] for c in moves)])

    def grid_of(self, text: str) -> tuple:
        moves = {move[:2]: move[2:] for move in reversed(text.split())}     # the first move counts
        return super().grid_of(" ".join(moves.get(name, "0") for name in CELL_NAMES))

    def is_right(self, text: str) -> bool:
        cells = [word[:2] for word in sorted(text.split())]
        return cells == [*CELL_NAMES, "|"] and super().is_right(text)


PAIRS = Pairs(2, 3)
MOVES = Moves(2, 3)
