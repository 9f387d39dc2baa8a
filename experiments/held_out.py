"""
How low do runs get on stories by which nothing was chosen, and how far is each from the first one?

    python -m experiments.held_out ar=out/a,out/b mdlm=out/c,out/d --report=DATA --json=F --plot=G

NAME=FOLDER,FOLDER,… are runs of train.py, one for each seed. Their own validation stories chose
best.pt. The validation stories of data/DATA are others, and on those the best models are scored, in
nats per token: ar exactly, mdlm and aogpt by their bounds, aogpt also exactly from left to right.

A window is the first block_size tokens from a story's start. Where a story is shorter, the next one
follows, so windows beside each other share text. The standard error therefore comes from leaving
out ten neighbours at a time; where a NAME has several seeds, the error between them is added.

A draw of orders takes a third of the time of a training step with as many windows, and a draw of
masks two thirds, because a window is masked twice.
"""
import json
import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from cli import (
    InputError, build, check_flags, command, flag, parse_flags, pick_device, print_table,
    provenance, write_json)
from diversity import interval
from model import Config, evaluation_batch, flops_per_token, losses_in_parts, mask_generator
from prepare_data import Tokenizer, Windows, load_meta
from runs import load, read_run
from show import figure


@dataclass
class HeldOutOptions:
    """what to score"""
    report: str = flag("", "data set whose validation stories are scored")
    block_size: int = flag(256, "of the runs", low=1)
    draws: int = flag(16, "masks or orders for each window's bound", low=1)
    without_end: bool = flag(False, "do not score end-of-text, which --windows=paper never shows")
    seed: int = flag(1337, "of masks and orders", low=0)
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for the results; scores that it has already are not made again",
                     file=(".json",))
    plot: str = flag("", "file for a figure: loss against training FLOPs",
                     file=(".png", ".svg", ".pdf"))

    def __post_init__(self):
        check_flags(self)


# ---- The scores of a run -------------------------------------------------------------------------

def check_tokenizer(folder: str, tokenizer: dict, data: str):
    """Raises InputError where the run in the folder has another tokenizer than data/DATA."""
    meta = load_meta(data)
    if tokenizer != Tokenizer(**meta["tokenizer"]).to_dict():
        raise InputError(f"{folder} has another tokenizer than data/{data}")


def score(model, x, o: HeldOutOptions, left_to_right=False) -> list:
    """Nats per token of each window of x (N, T), the mean over the draws, to 6 digits."""
    config = model.config
    exact = config.mode == "ar" or left_to_right
    draws = 1 if exact else o.draws
    generator = mask_generator(o.seed)
    is_word = x != config.bos_id                                                # (N, T)
    share_of_words = is_word.float().mean(dim=1, keepdim=True)                  # (N, 1)
    total = torch.zeros(len(x), dtype=torch.float64)
    for _ in tqdm(range(draws), leave=False, disable=None):
        batch = evaluation_batch(config, x, generator, left_to_right)
        if o.without_end:
            predicts_word = batch.targets != config.bos_id
            weight = batch.weight * predicts_word / share_of_words
            batch = batch._replace(weight=weight)
        total += losses_in_parts(model, batch)
    return (total / draws).numpy().round(6).tolist()


def flops_after(run: dict, step: int) -> float:
    """Training FLOPs after so many steps of a run, as read_run has it."""
    config = Config(**run["config"])
    tokens = step * run["settings"]["batch_size"] * config.block_size
    return tokens * flops_per_token(config)


def scored_how(stories: Windows, o: HeldOutOptions) -> dict:
    """What the scores of two runs must have in common."""
    split = stories.meta["splits"]["val"]
    return {
        "crc32": split["crc32"],
        "block_size": o.block_size,
        "draws": o.draws,
        "without_end": o.without_end,
        "seed": o.seed}


def measure(folder: str, stories: Windows, o: HeldOutOptions) -> dict:
    """The scores of a run's best model, how long it was trained, and the run's curve."""
    run = read_run(folder)
    path = os.path.join(folder, "best.pt")
    needs = ("data", "tokenizer", "step")
    model, checkpoint = load(path, pick_device(o.device), needs)
    if model.config.block_size != o.block_size:
        raise InputError(f"{folder} has other windows; give --block_size={model.config.block_size}")
    check_tokenizer(folder, checkpoint["tokenizer"], o.report)
    if checkpoint["data"]["val"] == stories.meta["splits"]["val"]:
        raise InputError(f"the stories of data/{o.report} chose {path}; report others")
    x = torch.from_numpy(stories.spread(len(stories)))                          # (N, T)
    windows_read = checkpoint["step"] * run["settings"]["batch_size"]
    result = {
        "scored": scored_how(stories, o),
        "step": checkpoint["step"],
        "epochs": windows_read / run["train_windows"],
        "nats": score(model, x, o),
        "curve": []}
    if model.config.mode == "aogpt":
        result["nats_l2r"] = score(model, x, o, left_to_right=True)
    for entry in run["curve"]:
        flops = flops_after(run, entry["step"])
        result["curve"].append(entry | {"training FLOPs": flops})
    return result


# ---- Comparison: errors of stories and of seeds --------------------------------------------------

def groups_of(windows: int):
    """(windows,) the group of neighbours of each window: ten of them, fewer where there are few."""
    size = min(10, max(1, windows // 2))
    return np.arange(windows) // size


def difference(nats, others) -> tuple:
    """The mean over windows of nats − others, and its standard error."""
    gap = np.subtract(nats, others)                                             # (N,)
    groups = groups_of(len(gap))
    mean, half = interval(lambda keep: gap[keep].mean(), groups)
    return mean, half / 1.96


def errors_of_seeds(sets: list) -> list:
    """(variance, degrees of freedom) of the mean over seeds, for sets of scores (seeds, N)."""
    means = [scores.mean(axis=1) for scores in sets]                            # (seeds,) each
    parts = []
    if all(len(mean) > 1 for mean in means):
        for mean in means:
            freedom = len(mean) - 1
            parts.append((mean.var(ddof=1) / len(mean), freedom))
        return parts
    # A run without other seeds is taken to vary like those that it is compared with.
    freedom = 0
    squares = 0.0
    one_over_seeds = 0.0
    for mean in means:
        freedom += len(mean) - 1
        squares += len(mean) * mean.var()
        one_over_seeds += 1 / len(mean)
    variance = squares / max(1, freedom)
    return [(variance * one_over_seeds, freedom)]


def compare(results: list, first: list, key: str = "nats", key_of_first: str = "nats") -> dict:
    """How far results lie above the first ones, with what standard error, and half of the 95%
    interval.

    results, first      what `measure` found for each seed
    The interval is Student's t, whose degrees of freedom come from those of the seeds and of the
    groups of stories (Welch & Satterthwaite)."""
    from scipy import stats         # not at the top, because nothing else needs it
    ours = np.array([result[key] for result in results])                        # (seeds, N)
    theirs = np.array([result[key_of_first] for result in first])               # (seeds, N)
    above, error = difference(ours.mean(axis=0), theirs.mean(axis=0))
    groups = groups_of(ours.shape[1])
    sets = [ours, theirs]
    if results is first:        # the same networks in another order: their seeds belong together
        sets = [ours - theirs]
    parts = errors_of_seeds(sets)
    parts.append((error ** 2, groups.max()))
    total = 0.0
    over_freedom = 0.0
    for variance, freedom in parts:
        if variance > 0:
            total += variance
            over_freedom += variance ** 2 / freedom
    freedom = total ** 2 / over_freedom if total else math.inf
    error = math.sqrt(total)
    return {
        "seeds": ours.mean(axis=1).tolist(),
        "above": above,
        "error": error,
        "half": error * stats.t.ppf(0.975, freedom),
        "epochs": [result["epochs"] for result in results]}


def compare_all(found: dict) -> dict:
    """{name: what `compare` says} of {name: [result of each seed]}, each beside the first name.

    aogpt has a second row: from left to right, beside the first name's scores in the same order."""
    first = next(iter(found.values()))
    compared = {}
    for name, results in found.items():
        compared[name] = compare(results, first)
        if all("nats_l2r" in result for result in results):
            key = "nats_l2r" if "nats_l2r" in first[0] else "nats"
            compared[f"{name}, left to right"] = compare(results, first, "nats_l2r", key)
    return compared


# ---- Files, table and figure ---------------------------------------------------------------------

def read_results(path: str) -> dict:
    """What this command wrote into the file. Raises InputError where it is something else."""
    with open(path) as file:
        found = json.load(file)
    if not {"names", "runs"} <= found.keys():
        raise InputError(f"{path} has other results than those of experiments.held_out")
    return found


def runs_of(found: dict, name: str) -> list:
    """The results of a NAME's runs, in a file that this command wrote."""
    folders = found["names"][name].split(",")
    return [found["runs"][folder] for folder in folders]


def mean_of(values, digits: int = 4) -> str:
    """The mean over seeds ± their standard deviation."""
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.{digits}f}"
    return text


def show(compared: dict):
    first = next(iter(compared))
    rows = [["", "nats per token, ± s.d. of seeds", f"above {first}, ± s.e.", "95% interval",
             "best after epochs"]]
    for name, row in compared.items():
        epochs = ", ".join(f"{epoch:.3g}" for epoch in row["epochs"])
        rows.append([name, mean_of(row["seeds"]), f"{row['above']:.4f} ± {row['error']:.4f}",
                     f"± {row['half']:.4f}", epochs])
    print_table(rows)


def draw_curves(found: dict, path: str):
    """Loss on the stories that choose against training FLOPs, a line for each seed."""
    with figure(path, (7, 4.5)) as axes:
        for i, name in enumerate(found):
            for result in found[name]:
                flops = [entry["training FLOPs"] for entry in result["curve"]]
                losses = [entry["val_nll"] for entry in result["curve"]]
                axes.plot(flops, losses, color=f"C{i}", lw=1, label=name)
        axes.set(xlabel="training FLOPs", xscale="log", ylabel="validation loss, nats per token")


def main():
    flags = parse_flags(__doc__, HeldOutOptions, named="NAME=FOLDER")
    o = build(HeldOutOptions, flags)
    names = flags["named"]
    if not o.report:
        raise InputError("which stories? give --report=NAME, a data set that chose nothing")
    stories = Windows(o.report, "val", o.block_size)
    runs = {}
    if os.path.exists(o.json):
        runs = read_results(o.json)["runs"]
    facts = provenance(o.seed)
    facts |= {"windows": len(stories), "names": names, "runs": runs}
    how = scored_how(stories, o)
    folders = ",".join(names.values())
    for folder in folders.split(","):
        if folder not in runs or runs[folder]["scored"] != how:
            runs[folder] = measure(folder, stories, o)
            if o.json:          # it may take hours until all are scored
                write_json(o.json, facts)
    found = {name: runs_of(facts, name) for name in names}
    compared = compare_all(found)
    print(f"{len(stories)} windows of data/{o.report}")
    show(compared)
    if o.json:
        write_json(o.json, facts | {"compared": compared})
    if o.plot:
        draw_curves(found, o.plot)


if __name__ == "__main__":
    command(main, "the scores made so far are in the file of --json")
