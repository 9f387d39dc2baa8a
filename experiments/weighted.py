"""
train.py for mdlm, with other weights of what is masked, and maybe of fewer predictions:

    python -m experiments.weighted --power=1 --mode=mdlm …      --help lists the flags, train.py's too

Of a row of k masked tokens each counts in proportion to k^(power-1), so the row as k^power; k is uniform
on 1 … T. power=0 is the bound; power=1 counts all masked tokens alike and is --objective=masked_ce. With
least=32 each token of a row of fewer counts as if 32 were masked: the bound but for an eighth of the rows,
without its heaviest tokens. With share=0.3333 only a random third of the masked tokens is predicted, each
counting three times: the same objective, with the noise of a third. With draws=3 each row is masked in three
ways: the same objective, with less noise, for three times the work.
"""
from dataclasses import dataclass, make_dataclass

import torch

import train
from cli import InputError, build, command, parse_flags
from model import Batch, Config, nelbo_batch

@dataclass
class Weights:
    """the loss"""
    power: float = 0.0          # rows of k masked tokens count as k^power
    least: int = 1              # tokens of rows of fewer masked ones count as in a row of so many
    share: float = 1.0          # of the masked tokens that is predicted
    draws: int = 1              # of masks for each row

def weighted_batch(config: Config, x, generator, w: Weights) -> Batch:
    """nelbo_batch of x (B, T) with other weights, of a group on average 1 in sum."""
    batch = nelbo_batch(config, x.repeat(w.draws, 1), generator)
    k, every = 0.5 / batch.weight, torch.arange(1, x.size(1) + 1)           # (draws · B / 2, T+1), (T,)

    def of_token(k):
        return k.clamp(min=w.least).double() ** (w.power - 1)

    mean = (every * of_token(every)).mean()                                         # of a row's sum
    predicted = torch.rand(k.shape, generator=generator) < w.share
    return batch._replace(weight=(0.5 * of_token(k) / mean * predicted / w.share).float())

def main():
    flags = parse_flags(__doc__, Weights, Config, train.Settings)
    w = build(Weights, flags)
    if flags.get("mode") != "mdlm" or "objective" in flags or not 0 < w.share <= 1 <= w.draws:
        raise InputError("give --mode=mdlm, no --objective, a --share above 0, at most 1, and --draws from 1")
    train.parse_flags = lambda *_: flags
    train.Settings = make_dataclass("Settings", [], bases=(train.Settings, Weights))    # config.json has both
    train.training_batch = lambda config, x, generator: weighted_batch(config, x, generator, w)
    train.main()

if __name__ == "__main__":
    command(main, "a checkpoint saved before, if any, is kept")
