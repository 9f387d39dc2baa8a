"""
How noisy is an estimate of mdlm's bound: ours, beside the 1/t-weighted one that is published?

    python -m experiments.estimator --models=out/toy-mdlm --json=results/estimator.json

Each estimates the bound of one window from two passes of the network. Ours masks k and T+1-k of its
tokens, and takes the mean of the two rows' own means. The published one (Sahoo et al. 2024, arXiv
2406.07524) masks each token with a probability t and takes the sum over masked tokens of
−log p / (tT). Its two t are drawn independently or half a period apart.

The table compares the variances of the estimates, averaged over windows. If all tokens were equally
hard, −log p = c, ours would have none. The published one would have c²/T · (ln 1/ε − 1) a row,
where t is drawn from (ε, 1). Without the cut-off at ε = 0.001 it would be infinite.

Every model makes 600 passes over each window, which takes seconds on the toy.
"""
import math
from dataclasses import dataclass

import torch

from cli import (
    InputError, build, check_flags, command, flag, parse_flags, print_table, provenance, write_json)
from model import Batch, Config, Transformer, evaluation_batch, masking_batch, weighted_losses
from prepare_data import Windows
from runs import load, read_run


@dataclass
class EstimatorOptions:
    """what to measure"""
    models: str = flag("", "folders of mdlm runs: A,B,…")
    windows: int = flag(16, "windows of the validation split")
    repeats: int = flag(100, "estimates for each window")
    json: str = flag("", "file for the results", file=(".json",))
    seed: int = flag(1337, "of masks")

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
def variances(model: Transformer, x, o: EstimatorOptions) -> dict:
    """{estimator: (mean, its standard error, variance of an estimate, averaged over windows)}"""
    config = model.config
    generator = torch.Generator().manual_seed(o.seed)
    estimators = {
        "ours": lambda: evaluation_batch(config, x, generator),
        "1/t, antithetic": lambda: published_batch(config, x, generator, antithetic=True),
        "1/t, independent": lambda: published_batch(config, x, generator, antithetic=False)}
    found = {}
    for name, draw_batch in estimators.items():
        losses = []
        for _ in range(o.repeats):
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
    if not o.models:
        raise InputError("which models? give --models=DIR,DIR, runs of mdlm")
    results = {}
    rows = []
    for folder in o.models.split(","):
        model, _ = load(f"{folder}/best.pt")
        config = model.config
        if config.mode != "mdlm":
            raise InputError(f"{folder} is a run of {config.mode}, which has no such bound")
        settings = read_run(folder)["settings"]
        val = Windows(settings["data"], "val", config.block_size)
        x = torch.from_numpy(val.spread(o.windows))                             # (N, T)
        results[folder] = variances(model, x, o)
        _, _, variance_of_ours = results[folder]["ours"]
        for name, (mean, error, variance) in results[folder].items():
            ratio = variance / variance_of_ours
            rows.append([f"{folder}, {name}", f"{mean:.4f} ± {error:.4f}", f"{ratio:.2f}"])
    print_table([["", "bound, nats per token", "variance ÷ ours"], *rows])
    if o.json:
        facts = provenance(o.seed)
        facts |= {"windows": o.windows, "repeats": o.repeats, "results": results}
        write_json(o.json, facts)


if __name__ == "__main__":
    command(main, "nothing was written")
