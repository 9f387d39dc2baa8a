"""
Several runs in one table, one JSON and one figure: validation loss at equal steps and at equal seconds.

    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt --json=toy.json --plot=toy.png
    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm --text=story.txt      how likely each finds that text

--text: UTF-8, stories split at <|endoftext|>, each scored from its start to its end or as far as block_size
reaches, exactly by ar, else by the bound ± s.e. of --draws (mdlm's s.e. is too large: stratified masks).
"""
from dataclasses import dataclass

import numpy as np
import torch

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from model import evaluation_batch, losses_in_parts, mask_generator
from prepare_data import read_stories
from runs import open_model, read_run
from show import draw_losses

@dataclass
class CompareOptions:
    """what to write, and what to score"""
    json: str = ""  # file for the table, and each run's settings and curve
    plot: str = ""  # file for the figure (.png, .svg or .pdf)
    text: str = ""  # file of stories to score
    draws: int = 100    # pairs of masks, or orders, for each story's bound

def score(folder: str, o: CompareOptions) -> tuple:
    """Nats per token of o.text's stories under a run's best model, and the standard error of the draws."""
    model, tokenizer, windows = open_model(folder, "auto")
    found, draws = [], 1 if model.config.mode == "ar" else max(2, o.draws)
    end = [] if windows == "paper" else [tokenizer.eot]     # such a model has never seen one
    for i, text in enumerate(read_stories(o.text)):
        ids = [*tokenizer.encode(text), *end][:model.config.block_size]
        batch = evaluation_batch(model.config, torch.tensor([ids] * draws), mask_generator(i))
        nats = len(ids) * losses_in_parts(model, batch).numpy()                     # (draws,)
        found.append((len(ids), nats.mean(), nats.var() / max(1, draws - 1)))
    if not found:
        raise InputError(f"--text={o.text} is empty; give a file with a text")
    tokens, nats, variance = np.sum(found, axis=0)
    return nats / tokens, np.sqrt(variance) / tokens

def main():
    flags = parse_flags(__doc__, CompareOptions, named="NAME=FOLDER")
    o = build(CompareOptions, flags)
    runs = {name: read_run(folder) for name, folder in flags["named"].items()}
    step, second = (min(run["curve"][-1][key] for run in runs.values()) for key in ("step", "seconds"))
    rows = [["nats per token", "best", "± s.e.", f"at {step:,} steps", f"at {second:,.0f} s", "true law",
             *([f"of {o.text}", "± s.e. of draws"] if o.text else ())]]
    for name, run in runs.items():
        best = min(run["curve"], key=lambda entry: entry["val_nll"])
        steps, seconds, losses = np.array([(e["step"], e["seconds"], e["val_nll"]) for e in run["curve"]]).T
        between = (np.interp(at, x, losses, left=np.nan) for at, x in ((step, steps), (second, seconds)))
        numbers = [best["val_nll"], best["val_nll_se"], *between, best.get("val_floor", np.nan),
                   *(score(flags["named"][name], o) if o.text else ())]
        run["table"] = {"best_step": best["step"], **dict(zip(rows[0][1:], numbers))}
        rows.append([name, *(f"{x:.4f}".replace("nan", "–") for x in numbers)])
    print_table(rows)
    if len({(run["settings"]["data"], run["settings"]["windows"], run["config"]["block_size"])
            for run in runs.values()}) > 1:
        print("  ! losses on other data, windows or block_size cannot be compared")
    if o.plot:
        draw_losses(runs, o.plot)
    if o.json:
        kept = {name: {key: run[key] for key in run if key != "training"} for name, run in runs.items()}
        write_json(o.json, {**provenance([run["seed"] for run in runs.values()]), "runs": kept})

if __name__ == "__main__":
    command(main, "nothing was written")
