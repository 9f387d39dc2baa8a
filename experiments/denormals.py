"""Whether denormal numbers (float32 below 1.2e-38) slow training on a CPU: with and without, by turns.

    python -m experiments.denormals --runs=out/A,out/B --json=results/denormals.json

Where attention is so sharp that a score lies 87 below the highest, its weight is one, and products with
denormals take a CPU many times as long. train.py has them count as 0. Each run's ckpt.pt takes steps of
length 0, in one thread: a thread started later inherits the setting, one at work does not.
"""
import os
import statistics
from dataclasses import dataclass

import torch

import model as model_module
from bench import by_turns
from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from model import group_losses, mask_generator, training_batch
from prepare_data import Windows
from runs import load, read_run
from train import Settings, make_update

@dataclass
class DenormalOptions:
    """what to measure"""
    runs: str = ""          # folders of runs: A,B,…
    repeats: int = 5        # measurements of each
    json: str = ""          # file for the results

def shares(model, batch) -> list:
    """Each layer's share of attention weights that are denormal."""
    attend, found = model_module.attend, []

    def recorded(q, k, v, visible, causal):
        weights = attend(q, k, torch.eye(k.size(-2)).expand(*k.shape[:2], -1, -1), visible, causal)
        denormal = (weights > 0) & (weights < torch.finfo(torch.float32).tiny)
        found.append(denormal.double().mean().item())
        return weights @ v

    model_module.attend = recorded
    group_losses(model, batch)
    model_module.attend = attend
    return found

def main():
    o = build(DenormalOptions, parse_flags(__doc__, DenormalOptions))
    if not o.runs:
        raise InputError("which runs? give --runs=DIR,DIR,…")
    torch.set_num_threads(1)
    found, rows = {}, [["run", "step", "denormal, each layer", "tokens/s", "as 0", "ratio"]]
    for folder in o.runs.split(","):
        model, checkpoint = load(os.path.join(folder, "ckpt.pt"))
        config, s = model.config, Settings(**read_run(folder)["settings"])
        windows = Windows(s.data, "train", config.block_size, s.windows, s.seed, at_most=s.train_stories)
        x = torch.from_numpy(windows.batch(0, s.batch_size))
        batch = training_batch(config, x, mask_generator(s.seed, 0))
        denormal = shares(model, batch)
        _, update = make_update(model, s)

        def step(flush):
            torch.set_flush_denormal(flush)
            update(batch, 0.0)
            torch.set_flush_denormal(False)

        seconds = by_turns({flush: lambda flush=flush: step(flush) for flush in (False, True)}, o.repeats,
                           torch.device("cpu"))
        ratio = statistics.median(a / b for a, b in zip(seconds[False], seconds[True]))
        speed = [x.numel() / statistics.median(seconds[flush]) for flush in (False, True)]
        found[folder] = {"step": checkpoint["step"], "denormal": denormal, "tokens_per_second": speed,
                         "ratio": ratio}
        rows.append([folder, f"{checkpoint['step']:,}", ", ".join(f"{part:.1%}" for part in denormal),
                     *(f"{value:,.0f}" for value in speed), f"{ratio:.2f}"])
    print_table(rows)
    if o.json:
        write_json(o.json, provenance(0) | {"runs": found})

if __name__ == "__main__":
    command(main, "nothing was written")
