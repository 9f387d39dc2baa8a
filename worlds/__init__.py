"""
Worlds: data whose texts are made here, by rules that tell what is right.

Yours is one file: what --data=sums asks for is the object SUMS of worlds/sums.py, and that of
sudoku-9 is SUDOKU_9 of worlds/sudoku_9.py. It must have

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

from support.flags import names_in

WORLDS = [file.replace("_", "-") for file in names_in("worlds")]


def world_named(name: str):
    """The world of that name, which is the name of its data set too; None for any other data."""
    if name not in WORLDS:
        return None
    file = name.replace("-", "_")
    return getattr(import_module(f"worlds.{file}"), file.upper())


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
