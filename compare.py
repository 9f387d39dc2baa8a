"""
Several runs in one table, JSON and figure: validation loss at equal steps and at equal seconds.

    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm --json=toy.json --plot=toy.png
    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm --text=mine.txt

The second also says how likely each run's model finds a text: a UTF-8 file in which <|endoftext|>
separates stories. Each story is scored from its start to its end, or as far as block_size reaches.
ar's score is exact. That of the other modes is the mean of --draws bounds, each with masks or an
order of its own, and it has a standard error. For mdlm this error is too large: it takes the masks
to be independent, but they cover the mask ratios evenly.
"""
from dataclasses import dataclass

import numpy as np
import torch

from cli import (InputError, build, check_flags, command, flag, parse_flags, print_table,
                 provenance, write_json)
from model import evaluation_batch, losses_in_parts, mask_generator
from prepare_data import read_stories
from runs import open_model, read_run
from show import draw_losses


@dataclass
class CompareOptions:
    """what to write, and what to score"""
    json: str = flag("", "file for the table, and each run's settings and curve", file=(".json",))
    plot: str = flag("", "file for the figure", file=(".png", ".svg", ".pdf"))
    text: str = flag("", "file of stories to score")
    draws: int = flag(100, "pairs of masks, or orders, for each story's bound", low=2)

    def __post_init__(self):
        check_flags(self)


def loss_at(curve: list, key: str, at: float) -> float:
    """The validation loss where `key` is `at`, on a straight line between two evaluations.

    It is NaN before the first evaluation."""
    x = [entry[key] for entry in curve]
    losses = [entry["val_nll"] for entry in curve]
    return np.interp(at, x, losses, left=np.nan)


def score(folder: str, o: CompareOptions) -> tuple:
    """Nats per token of o.text's stories under a run's best model, and the draws' standard error.

    For an exact score the error is 0. Raises InputError."""
    model, tokenizer, windows = open_model(folder, "auto")
    config = model.config
    draws = 1 if config.mode == "ar" else o.draws
    scores = []
    for i, text in enumerate(read_stories(o.text)):
        ids = tokenizer.encode(text)
        if windows != "paper":              # a model of the paper's windows has never seen an end
            ids = [*ids, tokenizer.eot]
        ids = ids[:config.block_size]
        x = torch.tensor([ids] * draws)                                     # (draws, T)
        batch = evaluation_batch(config, x, mask_generator(i))
        nats = len(ids) * losses_in_parts(model, batch).numpy()             # (draws,) of the story
        scores.append((len(ids), nats.mean(), nats.var() / max(1, draws - 1)))
    if not scores:
        raise InputError(f"--text={o.text} is empty; give a file with a text")
    tokens, nats, variance = np.sum(scores, axis=0)
    return nats / tokens, np.sqrt(variance) / tokens


def main():
    flags = parse_flags(__doc__, CompareOptions, named="NAME=FOLDER")
    o = build(CompareOptions, flags)
    folders = flags["named"]
    runs = {name: read_run(folder) for name, folder in folders.items()}
    ends = [run["curve"][-1] for run in runs.values()]
    step = min(end["step"] for end in ends)             # all runs have come as far as this
    seconds = min(end["seconds"] for end in ends)
    lines = []
    data = set()
    for name, run in runs.items():
        curve = run["curve"]
        best = min(curve, key=lambda entry: entry["val_nll"])
        row = {"best": best["val_nll"],
               "± s.e.": best["val_nll_se"],
               f"at {step:,} steps": loss_at(curve, "step", step),
               f"at {seconds:,.0f} s": loss_at(curve, "seconds", seconds),
               "true law": best.get("val_floor", np.nan)}
        if o.text:
            nats, error = score(folders[name], o)
            row[f"of {o.text}"] = nats
            row["± s.e. of draws"] = error
        run["table"] = row
        numbers = [f"{x:.4f}".replace("nan", "–") for x in row.values()]
        lines.append([name, *numbers])
        settings = run["settings"]
        block_size = run["config"]["block_size"]
        data.add((settings["data"], settings["windows"], block_size))
    print_table([["nats per token", *row], *lines])
    if len(data) > 1:
        print("  ! losses on other data, windows or block_size cannot be compared")
    if o.plot:
        draw_losses(runs, o.plot)
    if o.json:
        seeds = [run["seed"] for run in runs.values()]
        write_json(o.json, provenance(seeds) | {"runs": runs})


if __name__ == "__main__":
    command(main, "nothing was written")
