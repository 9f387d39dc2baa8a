"""
Learn answers: of each text only what follows a mark.

Adds: a GPT that is not made to learn what it will always be given, such as the puzzle before its
solution. Costs: nothing. Plugs in as

    python train.py --mode=ar --preset=sudoku-pairs     the preset chooses --variant=answers
    python train.py --mode=ar --data=mine --variant=answers --mark=17
"""
from dataclasses import dataclass
from typing import Literal

import model
from model import MODES, one_order_batch
from support.flags import InputError, flag


@dataclass
class Config(model.Config):
    """--variant=answers (ar): learn only what follows a mark in each text"""
    mode: Literal["ar"] = "ar"
    mark: int = flag(1, "id of the token that ends what is given", low=0)

    def __post_init__(self):
        super().__post_init__()
        if self.mark >= self.vocab_size:
            raise ValueError(f"--mark={self.mark} is no token; there are {self.vocab_size}")


def answer_batch(config, x, generator):
    """The loss of a GPT, in nats per token of the answers in each row of x (B, T).

    The loss of a row without a mark, or with nothing after it, is 0. Raises InputError where no row
    has an answer."""
    batch = one_order_batch(config, x, generator)
    is_mark = (x == config.mark).long()                                         # (B, T)
    answer = is_mark.cumsum(dim=1) > is_mark        # (B, T) all that comes after the first mark
    if not answer.any():
        raise InputError(f"no text of a batch has an answer after the token --mark={config.mark}")
    return batch._replace(weight=answer / answer.sum(dim=1, keepdim=True).clamp(min=1))


Config.modes = {"ar": MODES["ar"]._replace(
    bound_batch=answer_batch, training_batch=answer_batch, whole=False)}
