"""
train.py for mdlm, with other weights of what is masked, and maybe of fewer predictions:

    python -m experiments.weighted --power=1 --mode=mdlm …      --help lists the flags, train.py's too

Of a row of k masked tokens each counts in proportion to k^(power−1), so the row as k^power; k is uniform on
1 … T. power=0 is the bound. power=1 counts all masked tokens alike, as --objective=masked_ce does, but in the
bound's pairs of rows. With share=1/3 only a random third of the masked tokens is predicted, each counting
three times: the same objective, with the noise of a third of the predictions.
"""
from dataclasses import dataclass

import torch

import train
from cli import InputError, build, command, parse_flags
from model import Batch, Config, nelbo_batch

@dataclass
class Weights:
    """the loss"""
    power: float = 0.0          # rows of k masked tokens count as k^power
    share: float = 1.0          # of the masked tokens that is predicted

def weighted_batch(config: Config, x, generator, w: Weights) -> Batch:
    """nelbo_batch of x (B, T) with other weights, of a group on average 1 in sum."""
    batch = nelbo_batch(config, x, generator)
    k, T = 0.5 / batch.weight, x.size(1)                                            # (B / 2, T+1)
    mean = (torch.arange(1, T + 1) ** w.power).mean(dtype=torch.float64)            # of k^power
    predicted = torch.rand(k.shape, generator=generator) < w.share
    return batch._replace(weight=(0.5 * k ** (w.power - 1) / mean * predicted / w.share).float())

def main():
    flags = parse_flags(__doc__, Weights, Config, train.Settings)
    w = build(Weights, flags)
    if flags.get("mode") != "mdlm" or "objective" in flags or not 0 < w.share <= 1:
        raise InputError("give --mode=mdlm, no --objective, and a --share above 0, at most 1")
    train.parse_flags = lambda *_: flags
    train.training_batch = lambda config, x, generator: weighted_batch(config, x, generator, w)
    train.main()

if __name__ == "__main__":
    command(main, "a checkpoint saved before, if any, is kept")
