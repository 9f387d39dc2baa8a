"""
An any-order GPT that is told where to go next: the order of each text stands in the text.

Adds: cells are predicted in the order in which somebody would solve the puzzle, or from left to
right after what is given, and never the givens. So it shows what a GPT can do if a good order is
known. Costs: data whose words are moves, as those of worlds/sudoku_moves.py. Plugs in as

    python train.py --mode=aogpt --preset=sudoku-moves      the preset chooses --variant=taught

In such a text the words before the mark are given, and a word is the number cell · digits + digit.
"""
import random
from dataclasses import dataclass
from typing import Literal

import torch

import model
from extras.cache import Cache
from model import MODES, order_batch, write
from support.flags import InputError, flag
from worlds.sudoku import SUDOKU
from worlds.sudoku_moves import SUDOKU_MOVES


@dataclass
class Config(model.Config):
    """--variant=taught (aogpt): predict in the order that the text has"""
    mode: Literal["aogpt"] = "aogpt"
    mark: int = flag(1, "id of the word after which the answer begins", low=0)
    digits: int = 6                 # words for each cell
    taught: Literal["solver", "left_to_right"] = "solver"   # the order of what is not given


def taught_batch(config, x, generator):
    """The exact loss in that order, in nats per cell that is not given, of x (B, T)."""
    is_mark = x == config.mark                                                  # (B, T)
    given = is_mark.long().argmax(dim=1, keepdim=True)                          # (B, 1)
    moves = x[~is_mark].view(len(x), -1)                                        # (B, T-1)
    order, digit = moves // config.digits, moves % config.digits                # (B, T-1) each
    is_answer = torch.arange(order.size(1)) >= given                            # (B, T-1)
    grid = torch.zeros_like(order).scatter(1, order, digit)                     # (B, T-1)
    if config.taught == "left_to_right":
        order = order.gather(1, order.where(is_answer, -1).argsort(dim=1, stable=True))
    batch = order_batch(config, grid, order)
    return batch._replace(weight=is_answer / is_answer.sum(dim=1, keepdim=True))


def refuse(config, pattern):
    """Raises InputError, because the tokens of what it writes are digits, and not the text's words.
    """
    raise InputError("a model of --variant=taught writes grids; see python -m extras.solve --help")


Config.modes = {"aogpt": MODES["aogpt"]._replace(
    drawn="", bound_batch=taught_batch, training_batch=taught_batch, reported={},
    check_prompt=refuse, whole=False)}


def in_solvers_order(model, tokens, times, decide, noise, seed: int = 0):
    """What writes grids (B, 36) with equally many givens, each in the order of a solver.

    A sampler, as samplers/README.md describes it. The solver knows the solution where it has to
    guess, and guesses by the seed where to look for a cell that it can fill."""
    rng = random.Random(seed)
    orders = []
    for grid in tokens.tolist():
        puzzle = [0 if digit == model.config.mask_id else digit + 1 for digit in grid]
        givens = [cell for cell, digit in enumerate(puzzle) if digit]
        solution = next(SUDOKU.solutions(puzzle))
        orders.append([*givens, *SUDOKU_MOVES.order_of_solving(puzzle, solution, rng)])
    order = torch.tensor(orders, device=tokens.device)                          # (B, 36)
    edges = range(len(givens), len(puzzle) + 1)
    yield from write(model, tokens, order, edges, decide, Cache(model))
