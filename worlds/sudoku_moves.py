"""
Solved puzzles again, as the moves of somebody who solves: the text says the order of the cells.

A text has the givens in any order, the word |, and the other cells in the order in which somebody
would fill them. The preset learns only what comes after |:

    python train.py --mode=aogpt --preset=sudoku-moves
"""
import random

from worlds.sudoku_pairs import SolvedPuzzles

CELL_NAMES = [row + column for row in "abcdef" for column in "123456"]


class Moves(SolvedPuzzles):
    """One word is one cell: b34 says that in row b and column 3 stands a 4.

    After | comes a cell with the fewest candidates. Where these are more than one, a cell comes
    first that is the only one of its row, column or box for some digit, if there is such a cell."""

    def words(self) -> list:
        return [f"{cell}{digit}" for cell in CELL_NAMES for digit in self.digits] + ["|"]

    def mean_words(self) -> float:
        return self.cells + 1.0

    def order_of_solving(self, puzzle, grid, rng: random.Random):
        """Yields the blank cells of a puzzle, in the order in which somebody would fill them."""
        puzzle = list(puzzle)
        while 0 in puzzle:
            used = self.used_in(puzzle)
            candidates = self.candidates(puzzle, used)
            counts = {cell: digits.bit_count() for cell, digits in candidates.items()}
            fewest = min(counts.values())
            easiest = [cell for cell, count in counts.items() if count == fewest]
            if fewest > 1:
                places = self.places(candidates, used).values()
                easiest = sorted({cells[0] for cells in places if len(cells) == 1}) or easiest
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


SUDOKU_MOVES = Moves(2, 3)
