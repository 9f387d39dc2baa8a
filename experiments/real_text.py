"""
Real text: how low does each mode get, on stories that chose nothing?

    python -m experiments.real_text ar=out/a,out/b mdlm=out/c,out/d --report=DATA --json=F --plot=G

NAME=FOLDER,FOLDER,… are runs of train.py, one for each seed, whose own validation stories chose best.pt (by
val_nll: for aogpt by its bound) and make the curves. Scored are the validation stories of data/DATA, which
are others: nats per token, ar's exact, the others' bounds, from several masks or orders; and how far each
NAME is above the first one, window by window, with the standard error that stories and seeds leave. A window
is the first block_size tokens from a story's start. Where a story is shorter, the next one's beginning
follows, so that neighbours share text: the stories' part of the error comes from leaving out ten neighbours
at a time. Where it is longer, the rest is in no window.
"""
import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from diversity import interval
from model import evaluation_batch, flops_per_token, group_losses
from prepare_data import Tokenizer, Windows
from runs import load, read_run
from show import figure
from train import mask_generator

@dataclass
class RealTextOptions:
    """what to score"""
    report: str = ""            # data set whose validation stories are scored
    draws: int = 16             # masks or orders for each window's bound
    seed: int = 1337            # of masks and orders
    json: str = ""              # file for the results
    plot: str = ""              # file for the figure (.png): the curves against steps, tokens, FLOPs, seconds

@torch.no_grad()
def score(model, x, draws: int, seed: int, left_to_right: bool = False):
    """(N,) nats per token of the windows x (N, T), averaged over the draws."""
    generator, total = mask_generator(seed), np.zeros(len(x))
    exact = model.config.mode == "ar" or left_to_right
    for _ in tqdm(range(1 if exact else draws), leave=False, disable=None):
        batch = evaluation_batch(model.config, x, generator, left_to_right)
        total += torch.cat([group_losses(model, part) for part in batch.split(8)]).double().numpy()
    return total / (1 if exact else draws)

def measure(folder: str, stories: Windows, o: RealTextOptions) -> dict:
    """Of a run: its best model's nats per token of each window, when that was, and its curve."""
    model, checkpoint = load(os.path.join(folder, "best.pt"), needs=("data", "tokenizer", "windows"))
    run, s, c = read_run(folder), checkpoint["step"], model.config
    x = torch.from_numpy(stories.spread(len(stories)))                              # (N, T)
    if checkpoint["windows"] != "aligned" or x.size(1) != c.block_size:
        raise InputError(f"{folder} was not trained on aligned windows of {x.size(1)} tokens")
    if checkpoint["tokenizer"] != Tokenizer(**stories.meta["tokenizer"]).to_dict():
        raise InputError(f"{folder} has another tokenizer than data/{o.report}")
    if checkpoint["data"]["val"]["crc32"] == stories.meta["splits"]["val"]["crc32"]:
        raise InputError(f"the stories of data/{o.report} chose {folder}/best.pt; report others")
    batch_size = run["settings"]["batch_size"]
    result = {"nats": score(model, x, o.draws, o.seed).tolist(), "step": s,
              "epochs": s * batch_size / run["train_windows"], "command": run["command"],
              "commit": run["commit"], "seconds": run["curve"][-1]["seconds"]}
    if c.mode == "aogpt":
        result["nats_l2r"] = score(model, x, 1, o.seed, left_to_right=True).tolist()
    # what a step takes: tokens that are predicted, FLOPs
    share = (c.block_size + 1) / (2 * c.block_size) if c.mode == "mdlm" else 1
    tokens = batch_size * c.block_size
    result["curve"] = [{"steps": e["step"], "predicted tokens": e["step"] * tokens * share,
                        "training FLOPs": e["step"] * tokens * flops_per_token(c),
                        "seconds of training": e["seconds"], "val_nll": e["val_nll"]} for e in run["curve"]]
    return result

def difference(nats, others) -> tuple:
    """Mean over windows of nats − others, and its standard error, leaving out ten neighbours at a time."""
    gap = np.subtract(nats, others)
    mean, half = interval(lambda keep: gap[keep].mean(), np.arange(len(gap)) // 10)
    return mean, half / 1.96

def row_of(name: str, results: list, first: list, key: str = "nats") -> list:
    """Mean and standard deviation over seeds; and what is above the first, with its standard error."""
    ours, theirs = (np.array([result[k] for result in several])                     # (seeds, N) each
                    for k, several in ((key, results), ("nats", first)))
    gap, error = difference(ours.mean(axis=0), theirs.mean(axis=0))
    of_seeds = [np.var(nats.mean(axis=1), ddof=1) / len(nats) for nats in (ours, theirs) if len(nats) > 1]
    means = ours.mean(axis=1)
    deviation = f" ± {np.std(means, ddof=1):.4f}" if len(means) > 1 else ""
    return [name, f"{means.mean():.4f}{deviation}", ", ".join(f"{mean:.4f}" for mean in means),
            f"{gap:.4f} ± {math.sqrt(error ** 2 + sum(of_seeds)):.4f}",
            ", ".join(f"{result['epochs']:.3g}" for result in results)]

def draw_curves(found: dict, path: str):
    """The stories that choose, against what training took: a line for each seed."""
    labels = "steps", "predicted tokens", "training FLOPs", "seconds of training"
    with figure(path, (14, 4.2), columns=4) as panels:
        for axes, label in zip(panels, labels):
            for i, (name, results) in enumerate(found.items()):
                for j, result in enumerate(results):
                    line = [(entry[label], entry["val_nll"]) for entry in result["curve"]]
                    axes.plot(*zip(*line), color=f"C{i}", lw=1, label=name if j == 0 else None)
            axes.set(xlabel=label, xscale="log")
        panels[0].set(ylabel="validation loss, nats per token")

def main():
    flags = parse_flags(__doc__, RealTextOptions, named="NAME=FOLDER")
    o = build(RealTextOptions, flags)
    if not o.report:
        raise InputError("which stories? give --report=NAME, a data set that chose nothing")
    folders = {name: text.split(",") for name, text in flags["named"].items()}
    block_size = read_run(next(iter(folders.values()))[0])["config"]["block_size"]
    stories = Windows(o.report, "val", block_size)
    found = {name: [measure(folder, stories, o) for folder in several] for name, several in folders.items()}
    first = next(iter(found.values()))
    rows = [["", "nats per token, ± s.d. of seeds", "each seed", f"above {next(iter(found))}, ± s.e.",
             "best after epochs"]]
    for name, results in found.items():
        rows.append(row_of(name, results, first))
        if "nats_l2r" in results[0]:
            rows.append(row_of(f"{name}, left to right", results, first, "nats_l2r"))
    seen = np.unique(stories.starts[:, None] + np.arange(block_size)).size / len(stories.tokens)
    print(f"{len(stories)} windows of data/{o.report}, which hold {seen:.1%} of its tokens")
    print_table(rows)
    if o.json:
        facts = {"windows": len(stories), "share_of_tokens": seen, "table": rows, "runs": found}
        write_json(o.json, provenance(o.seed) | facts)
    if o.plot:
        draw_curves(found, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
