"""
How noisy is an estimate of mdlm's bound: ours, beside the 1/t-weighted one that is published?

    python -m experiments.estimator --out_dir=out/toy-mdlm

Each estimates the bound of one window from two passes of the network. Ours masks k and T+1-k of its
tokens, and takes the mean of the two rows' own means. The published one (Sahoo et al. 2024, arXiv
2406.07524) masks each token with a probability t and takes the sum over masked tokens of
−log p / (tT). Its two t are drawn independently or half a period apart.

The table compares the variances of the estimates, averaged over 16 windows. If all tokens were
equally hard, −log p = c, ours would have none. The published one would have
c²/T · (ln 1/ε − 1) a row, where t is drawn from (ε, 1). Without the cut-off at ε = 0.001 it
would be infinite.

The network makes 600 passes over each window, which takes seconds on the toy.
"""
import math
from dataclasses import dataclass

import torch

from cli import InputError, build, check_flags, command, flag, parse_flags, print_table
from model import (
    Batch, Config, Transformer, evaluation_batch, mask_generator, masking_batch, weighted_losses)
from prepare_data import Windows
from runs import open_model, read_run


@dataclass
class EstimatorOptions:
    """what to measure"""
    out_dir: str = flag("out/toy-mdlm", "the run of mdlm; its best.pt is read")
    repeats: int = flag(100, "estimates for each window", low=2)

    def __post_init__(self):
        check_flags(self)


def published_batch(config: Config, x, generator, antithetic: bool) -> Batch:
    """Two rows for each row of x (N, T); the mean of their losses estimates its bound."""
    N, T = x.shape
    t = torch.rand(N, 2, generator=generator)
    if antithetic:
        t[:, 1] = (t[:, 0] + 0.5) % 1
    t = 0.001 + 0.999 * t.flatten()                                             # (2N,)
    x = x.repeat_interleave(2, dim=0)                                           # (2N, T)
    chance = t[:, None]                                                         # (2N, 1)
    masked = torch.rand(x.shape, generator=generator) < chance
    batch = masking_batch(config, x, masked, t)
    return batch._replace(weight=batch.weight / (T * chance))


@torch.no_grad()
def variances(model: Transformer, x, repeats: int) -> dict:
    """{estimator: (mean, its standard error, variance of an estimate, averaged over windows)}"""
    config = model.config
    generator = mask_generator(1337)
    estimators = {
        "ours": lambda: evaluation_batch(config, x, generator),
        "1/t, antithetic": lambda: published_batch(config, x, generator, antithetic=True),
        "1/t, independent": lambda: published_batch(config, x, generator, antithetic=False)}
    found = {}
    for name, draw_batch in estimators.items():
        losses = []
        for _ in range(repeats):
            of_rows = weighted_losses(model, draw_batch())      # (N,), or (2N,) if published
            losses.append(of_rows.view(len(x), -1).mean(dim=1))
        losses = torch.stack(losses).double()                                   # (repeats, N)
        mean = losses.mean().item()
        variance = losses.var(dim=0).mean().item()
        error = math.sqrt(variance / losses.numel())
        found[name] = mean, error, variance
    return found


def main():
    o = build(EstimatorOptions, parse_flags(__doc__, EstimatorOptions))
    model, _, _ = open_model(o.out_dir, "cpu")
    if model.config.mode != "mdlm":
        raise InputError(f"{o.out_dir} is a run of {model.config.mode}, which has no such bound")
    settings = read_run(o.out_dir)["settings"]
    val = Windows(settings["data"], "val", model.config.block_size)
    x = torch.from_numpy(val.spread(16))                                        # (16, T)
    found = variances(model, x, o.repeats)
    _, _, variance_of_ours = found["ours"]
    rows = [["", "bound, nats per token", "variance ÷ ours"]]
    for name, (mean, error, variance) in found.items():
        rows.append([name, f"{mean:.4f} ± {error:.4f}", f"{variance / variance_of_ours:.2f}"])
    print_table(rows)


if __name__ == "__main__":
    command(main, "nothing was written")
