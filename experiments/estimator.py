"""How noisy an estimate of mdlm's bound is: ours beside the published 1/t-weighted one (Sahoo et al. 2024).

    python -m experiments.estimator --models=out/toy-mdlm --json=results/estimator.json

Both estimate the bound of one window from two passes of the network. Ours masks k and T+1-k of its tokens
and takes the mean of the two rows' own means. The published one masks each token with probability t and
takes Σ over masked tokens of −log p / (tT), its two t's drawn independently, or half a period apart. The
table compares their variances over draws, averaged over windows. Were all tokens equally hard, −log p = c,
ours would have none; the published one has c²/T · (ln 1/ε − 1) a row, t being drawn from (ε, 1): it is
infinite but for the cut-off at ε = 0.001.
"""
from dataclasses import dataclass

import torch
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from model import Batch, Config, Transformer, evaluation_batch, group_losses, masking_batch
from prepare_data import Windows
from runs import load, read_run

@dataclass
class EstimatorOptions:
    """what to measure"""
    models: str = ""            # folders of mdlm runs: A,B,…
    windows: int = 16           # of the validation split
    repeats: int = 100          # estimates for each
    json: str = ""              # file for the results
    seed: int = 1337            # of masks

def published_batch(config: Config, x, generator, antithetic: bool) -> Batch:
    """A group for each row of x (N, T), whose loss is an estimate of its bound."""
    N, T = x.shape
    t = torch.rand(N, 2, generator=generator)
    if antithetic:
        t[:, 1] = (t[:, 0] + 0.5) % 1
    t = 0.001 + 0.999 * t.view(2 * N)
    masked = torch.rand(2 * N, T, generator=generator) < t[:, None]
    batch = masking_batch(config, x.repeat_interleave(2, dim=0), masked, t)
    weight = batch.weight / (2 * T * t[:, None])
    return batch._replace(weight=weight.view(N, -1), targets=batch.targets.view(N, -1))

@torch.no_grad()
def variances(model: Transformer, x, o: EstimatorOptions) -> dict:
    """{estimator: (mean, its standard error, variance of one estimate averaged over windows)}"""
    config, generator = model.config, torch.Generator().manual_seed(o.seed)
    estimators = {"ours": lambda: evaluation_batch(config, x, generator),
                  "1/t, antithetic": lambda: published_batch(config, x, generator, True),
                  "1/t, independent": lambda: published_batch(config, x, generator, False)}
    found = {}
    for name, batch in estimators.items():
        bar = tqdm(range(o.repeats), desc=name, leave=False, disable=None)
        losses = torch.stack([group_losses(model, batch()) for _ in bar]).double()  # (repeats, N)
        variance = losses.var(dim=0).mean()
        found[name] = losses.mean().item(), (variance / losses.numel()).sqrt().item(), variance.item()
    return found

def main():
    o = build(EstimatorOptions, parse_flags(__doc__, EstimatorOptions))
    if not o.models:
        raise InputError("which models? give --models=DIR,DIR, runs of mdlm")
    rows = [["bound of", "T", "ours", "1/t, antithetic", "1/t, independent", "variances ÷ ours", ""]]
    results = []
    for folder in o.models.split(","):
        model, _ = load(f"{folder}/best.pt")
        if model.config.mode != "mdlm":
            raise InputError(f"{folder} is a run of {model.config.mode}; only mdlm's bound is estimated")
        settings, T = read_run(folder)["settings"], model.config.block_size
        x = torch.from_numpy(Windows(settings["data"], "val", T, settings["windows"]).spread(o.windows))
        found = variances(model, x, o)
        ours, *others = found.values()
        ratios = [other[2] / ours[2] for other in others]
        means = [f"{mean:.4f} ± {error:.4f}" for mean, error, _ in found.values()]
        rows.append([folder, str(T), *means, *(f"{ratio:.2f}" for ratio in ratios)])
        results.append({"model": folder, "block_size": T, "estimates": found, "ratios": ratios})
    print_table(rows)
    if o.json:
        facts = {"windows": o.windows, "repeats": o.repeats, "results": results}
        write_json(o.json, provenance(o.seed) | facts)

if __name__ == "__main__":
    command(main, "nothing was written")
