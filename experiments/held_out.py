"""
How low do runs get on stories by which nothing was chosen, and how far is each from the first one?

    python -m experiments.held_out ar=out/a,out/b mdlm=out/c,out/d --report=DATA --json=F --plot=G

NAME=FOLDER,FOLDER,… are runs of train.py, one for each seed, whose own validation stories chose best.pt (by
val_nll: for aogpt by its bound) and make the curves. Scored are the validation stories of data/DATA, which
are others: nats per token, ar's exact, the others' bounds, from several masks or orders (the same ones for
all), also of runs that were trained on another loss or other windows; and how far each NAME is above the
first one, window by window, with the standard error that stories and seeds leave (stories alone, where
neither of the two has several seeds). A window is the first block_size tokens from a story's start. Where a
story is shorter, the next one's beginning follows, so that neighbours share text: the stories' part of the
error comes from leaving out ten neighbours at a time. Where it is longer, the rest is in no window. Scores
that --json has are not made again.

--without_end: for runs with --windows=paper beside others. These have never seen end-of-text between words,
nor a story's start marked; so it is not scored, and they also get a row for windows as the paper cuts them,
end-of-text dropped, one after the other, on which the first NAME is scored, too.
"""
import itertools
import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, pick_device, print_table, provenance
from diversity import interval
from experiments.report import mean_of, write_markdown
from experiments.trials import store, stored
from model import Config, evaluation_batch, flops_per_token, losses_in_parts, mask_generator
from prepare_data import Tokenizer, Windows, load_meta
from runs import load, read_run
from show import figure

@dataclass
class HeldOutOptions:
    """what to score"""
    report: str = ""            # data set whose validation stories are scored
    block_size: int = 256       # of the runs
    draws: int = 16             # masks or orders for each window's bound
    without_end: bool = False   # do not score end-of-text, which --windows=paper never shows; see above
    seed: int = 1337            # of masks and orders
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for the results, and of earlier ones
    plot: str = ""              # file for a figure (.png): the curves against steps, tokens, FLOPs, seconds
    forest: str = ""            # file for a figure (.png): how far each NAME is above the first
    md: str = ""                # file for the table
    only_score: bool = False    # put the runs' scores into --json, and compare none
    title: str = "On stories that chose nothing"    # of that

def scored_how(stories: Windows, o: HeldOutOptions) -> dict:
    """What the scores of two runs must have in common."""
    return {"crc32": stories.meta["splits"]["val"]["crc32"], "block_size": o.block_size, "draws": o.draws,
            "without_end": o.without_end, "seed": o.seed}

def demand_tokenizer(folder: str, tokenizer: dict, data: str):
    """Raises InputError where the run in the folder has another one than data/DATA."""
    if tokenizer != Tokenizer(**load_meta(data)["tokenizer"]).to_dict():
        raise InputError(f"{folder} has another tokenizer than data/{data}")

def score(model, x, draws: int, seed: int, left_to_right=False, without_end=False):
    """[N] nats per token of the windows x (N, T), averaged over the draws, to 6 digits."""
    generator, total = mask_generator(seed), np.zeros(len(x))
    exact = model.config.mode == "ar" or left_to_right
    for _ in tqdm(range(1 if exact else draws), leave=False, disable=None):
        batch = evaluation_batch(model.config, x, generator, left_to_right)
        if without_end:
            words = (x != model.config.bos_id).float().mean(dim=1, keepdim=True)                # (N, 1) share
            batch = batch._replace(weight=batch.weight * (batch.targets != model.config.bos_id) / words)
        total += losses_in_parts(model, batch).numpy()
    return (total / (1 if exact else draws)).round(6).tolist()

def spent(run: dict, step: int, seconds: float) -> dict:
    """What training has taken after so many steps and seconds, with that of the run it started from."""
    c, s = Config(**run["config"]), run["settings"]
    tokens = step * s["batch_size"] * c.block_size
    share = (c.block_size + 1) / (2 * c.block_size) if c.mode == "mdlm" else 1      # mdlm: the masked ones
    total = {"steps": step, "predicted tokens": tokens * share, "training FLOPs": tokens * flops_per_token(c),
             "seconds of training": seconds}
    if s["init_from"]:
        before = read_run(s["init_from"])
        of_source = spent(before, before["curve"][-1]["step"], before["curve"][-1]["seconds"])
        total = {name: value + of_source[name] for name, value in total.items()}
    return total

def measure(folder: str, stories: Windows, o: HeldOutOptions) -> dict:
    """Of a run: its best model's nats per token of each window, when that was, and its curve."""
    path, needs = os.path.join(folder, "best.pt"), ("data", "tokenizer", "windows")
    model, checkpoint = load(path, pick_device(o.device), needs)
    run, s, c = read_run(folder), checkpoint["step"], model.config
    x = torch.from_numpy(stories.spread(len(stories)))                              # (N, T)
    if x.size(1) != c.block_size:
        raise InputError(f"{folder} was trained on other windows; give --block_size={c.block_size}")
    demand_tokenizer(folder, checkpoint["tokenizer"], o.report)
    if checkpoint["data"]["val"]["crc32"] == stories.meta["splits"]["val"]["crc32"]:
        raise InputError(f"the stories of data/{o.report} chose {folder}/best.pt; report others")
    epochs = spent(run, s, 0)["steps"] * run["settings"]["batch_size"] / run["train_windows"]
    result = {"scored": scored_how(stories, o), "step": s, "epochs": epochs,
              "command": run["command"], "commit": run["commit"], "machine": run["machine"],
              "seconds": run["curve"][-1]["seconds"],
              "nats": score(model, x, o.draws, o.seed, False, o.without_end)}
    if c.mode == "aogpt":
        result["nats_l2r"] = score(model, x, 1, o.seed, True, o.without_end)
    if o.without_end:
        words = torch.from_numpy(stories.tokens[stories.tokens != c.bos_id].astype(np.int64))
        cut = words[:len(words) // c.block_size * c.block_size].view(-1, c.block_size)
        result |= {"windows": run["settings"]["windows"], "nats_cut": score(model, cut, o.draws, o.seed)}
    losses = "val_nll", "val_nll_l2r", "val_masked_ce"      # mdlm's masked_ce is what the paper reports
    result["curve"] = [spent(run, e["step"], e["seconds"]) | {name: e[name] for name in losses if name in e}
                       for e in run["curve"]]
    return result

def groups_of(windows: int):
    """(windows,) the group of neighbours in which each is: ten of them, fewer where there are few."""
    return np.arange(windows) // min(10, max(1, windows // 2))

def difference(nats, others) -> tuple:
    """Mean over windows of nats − others, and its standard error, leaving out a group at a time."""
    gap = np.subtract(nats, others)
    mean, half = interval(lambda keep: gap[keep].mean(), groups_of(len(gap)))
    return mean, half / 1.96

def compare(results: list, first: list, key: str = "nats", key_of_first: str = "nats") -> dict:
    """Each seed's mean; what is above the first; its standard error, from stories and from seeds; and half
    of its 95% interval, by Student's t, whose degrees of freedom come from those of either's seeds and of
    the groups of stories (Welch & Satterthwaite)."""
    ours, theirs = (np.array([result[k] for result in several])                     # (seeds, N) each
                    for k, several in ((key, results), (key_of_first, first)))
    gap, error = difference(ours.mean(axis=0), theirs.mean(axis=0))
    sets = [ours - theirs] if results is first else [ours, theirs]      # the same networks: seed by seed
    if min(map(len, sets)) > 1:
        of_seeds = [(of.mean(axis=1).var(ddof=1) / len(of), len(of) - 1) for of in sets]
    else:                               # a lone run is taken to vary like those it is beside
        freedom = sum(map(len, sets)) - len(sets)
        variance = sum(len(of) * of.mean(axis=1).var() for of in sets) / max(1, freedom)
        of_seeds = [(variance * sum(1 / len(of) for of in sets), freedom)]
    parts = [*of_seeds, (error ** 2, groups_of(len(ours[0])).max())]
    total = sum(of for of, _ in parts)
    freedom = total ** 2 / sum(of ** 2 / free for of, free in parts if of) if total else math.inf
    return {"seeds": ours.mean(axis=1).tolist(), "above": gap, "error": math.sqrt(total),
            "half": math.sqrt(total) * stats.t.ppf(0.975, freedom),
            "epochs": [result["epochs"] for result in results]}

def runs_of(found: dict, name: str) -> list:
    """A NAME's runs, from a file of results."""
    return [found["runs"][folder] for folder in found["names"][name].split(",")]

def row_of(name: str, of: dict) -> list:
    return [name, mean_of(of["seeds"]), ", ".join(f"{mean:.4f}" for mean in of["seeds"]),
            f"{of['above']:.4f} ± {of['error']:.4f}", ", ".join(f"{epochs:.3g}" for epochs in of["epochs"])]

def draw_curves(found: dict, path: str):
    """The stories that choose, against what training took: a line for each seed. What is alike up to a comma,
    "ar" and "ar, longer", has one colour, which is a mode's own in all of these."""
    labels = "steps", "predicted tokens", "training FLOPs", "seconds of training"
    alike = {kind: [] for kind in ("ar", "mdlm", "aogpt", "mdlm by masked_ce")}
    for name in found:
        alike.setdefault(name.split(",")[0], []).append(name)
    style = {name: dict(color=f"C{i}", ls=ls) for i, names in enumerate(alike.values())
             for name, ls in zip(names, itertools.cycle(("-", "--", ":", "-.")))}
    with figure(path, (14, 4.2), columns=4) as panels:
        for axes, label in zip(panels, labels):
            for name, results in found.items():
                for j, result in enumerate(results):
                    line = [(entry[label], entry["val_nll"]) for entry in result["curve"]]
                    axes.plot(*zip(*line), **style[name], lw=1, label=name if j == 0 else None)
            axes.set(xlabel=label, xscale="log")
            axes.xaxis.set_minor_formatter(lambda x, _: "")
        panels[0].set(ylabel="validation loss, nats per token")

def draw_forest(axes, compared: dict, names: list):
    """Each name's difference, with its 95% interval, and a dot for each seed; a row for each of the names."""
    rows = {i: of for i, name in enumerate(names) if (of := compared.get(name)) and of["error"]}
    for i, of in rows.items():      # not what is beside itself: its error is 0
        seeds, first = of["seeds"] - np.mean(of["seeds"]) + of["above"], i == min(rows)
        axes.plot(seeds, [i + 0.2] * len(seeds), "o", ms=3, color="0.6", label="each seed" if first else None)
        axes.errorbar(of["above"], i, xerr=of["half"], fmt="o", ms=5, capsize=3, color="C0",
                      label="mean, 95% interval" if first else None)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)       # the first at the top

def main():
    flags = parse_flags(__doc__, HeldOutOptions, named="NAME=FOLDER")
    o = build(HeldOutOptions, flags)
    if not o.report:
        raise InputError("which stories? give --report=NAME, a data set that chose nothing")
    stories = Windows(o.report, "val", o.block_size)
    runs = stored(o.json, "runs", "compared")
    if any(run["scored"] != scored_how(stories, o) for run in runs.values()):
        raise InputError(f"--json={o.json} has scores made another way; choose another file")
    before = provenance(o.seed) | {"compared": {}} | stored(o.json)
    for folder in ",".join(flags["named"].values()).split(","):
        if folder not in runs:
            runs[folder] = measure(folder, stories, o)
            if o.json:      # it may be hours until all are scored
                store(o.json, before | {"runs": runs})
    if o.only_score:
        return
    found = {name: [runs[folder] for folder in text.split(",")] for name, text in flags["named"].items()}
    first = next(iter(found.values()))
    compared, cut = {}, any(run.get("windows") == "paper" for of in found.values() for run in of)
    for name, results in found.items():
        compared[name] = compare(results, first)
        if all("nats_l2r" in result for result in results):
            key = "nats_l2r" if "nats_l2r" in first[0] else "nats"      # the same order, where there is one
            compared[f"{name}, left to right"] = compare(results, first, "nats_l2r", key)
        if cut and (results is first or all(result["windows"] == "paper" for result in results)):
            compared[f"{name}, on the paper's windows"] = compare(results, first, "nats_cut", "nats_cut")
    rows = [["", "nats per token, ± s.d. of seeds", "each seed", f"above {next(iter(found))}, ± s.e.",
             "best after epochs"], *(row_of(name, of) for name, of in compared.items())]
    seen = np.unique(stories.starts[:, None] + np.arange(o.block_size)).size / len(stories.tokens)
    about = (f"{len(stories)} windows of data/{o.report}, which hold {seen:.1%} of its tokens. The s.e. is "
             "of stories; of seeds too, where the row or the first one has several.")
    print(about)
    print_table(rows)
    facts = provenance(o.seed) | {"windows": len(stories), "share_of_tokens": seen, "compared": compared}
    if o.json:
        store(o.json, facts | {"names": flags["named"], "runs": runs})
    if o.md:
        write_markdown(o.md, o.title, facts, about, {"": rows})
    if o.forest:
        others = [name for name in compared if compared[name]["error"]]     # not the first beside itself
        with figure(o.forest, (8, 0.34 * len(others) + 1.2), grid="x") as axes:
            draw_forest(axes, compared, others)
            axes.axvline(0, color="k", ls="--", lw=1, label=next(iter(compared)))
            axes.set(xlabel=f"nats per token above {next(iter(compared))}; left of the line is better")
    if o.plot:
        draw_curves(found, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
