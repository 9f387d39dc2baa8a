"""
Worlds: data whose texts are made here, by rules that tell what is right.

A world is an object with these methods, and a line of the table below:

    words()         its vocabulary
    draw(rng)       a random text
    is_right(text)  whether the rules allow this text
    log_probs(text) (words,) ln p of each word given those before it; None if the text is not
                    right, or its law not known
    entropy()       nats of a text on average, or None
    mean_words()    words of a text on average
    columns         the width of a text on the screen, if it has a shape, else 0
"""
import random
from importlib import import_module

WORLDS = {
    "toy": "worlds.toy.TOY",
    "sudoku": "worlds.sudoku.GRIDS",
    "sudoku-9": "worlds.nine.NINE",
    "sudoku-pairs": "worlds.solved.PAIRS",
    "sudoku-moves": "worlds.solved.MOVES",
}


def world_named(name: str):
    """The world of that name, which is the name of its data set too; None for any other data."""
    if name not in WORLDS:
        return None
    module, _, variable = WORLDS[name].rpartition(".")
    return getattr(import_module(module), variable)


def world_of(tokenizer):
    """The world whose words a tokenizer has; None for any other data."""
    for world in map(world_named, WORLDS):
        if world.words() == tokenizer.words:
            return world


def columns_of(tokenizer) -> int:
    """The width of a text on the screen, if the texts of its world have a shape, else 0."""
    return getattr(world_of(tokenizer), "columns", 0)


def texts_of(world, seed: int):
    """Random texts of a world without end, the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        yield world.draw(rng)
