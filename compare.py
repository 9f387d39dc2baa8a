"""
Several runs in one table, one JSON and one figure: validation loss at equal steps and at equal seconds.

    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt --json=results/toy.json --plot=results/toy.png
"""
import json
import os
from dataclasses import dataclass

import numpy as np

from prepare_data import command, fail, parse_flags, print_table, provenance, write_json
from show import draw_losses


@dataclass
class Options:
    """what to write"""
    json: str = ""  # file for the table, and each run's settings and curve
    plot: str = ""  # file for the figure (.png, .svg or .pdf)


def read_run(folder: str) -> dict:
    """config.json, and from log.jsonl the evaluations (curve) and the training losses [step, loss]."""
    try:
        with open(os.path.join(folder, "config.json")) as f:
            run = json.load(f)
        with open(os.path.join(folder, "log.jsonl")) as f:
            log = [json.loads(line) for line in f if line.endswith("\n")]      # the last line may be cut off
        run["curve"] = [entry for entry in log if "val_nll" in entry]
        run["training"] = [[entry["step"], entry["train_loss"]] for entry in log if "train_loss" in entry]
    except (OSError, ValueError, KeyError, TypeError) as e:
        fail(f"{folder} holds no readable run ({type(e).__name__}: {e}); give folders that train.py wrote, as NAME=FOLDER")
    if not run["curve"]:
        fail(f"{folder} has no evaluation yet; let it train on")
    return run


def main():
    flags = parse_flags(__doc__, Options, positional="NAME=FOLDER")
    named = flags.pop("positional")
    o = Options(**flags)
    if not named or not all("=" in n for n in named) or len({n.split("=")[0] for n in named}) < len(named):
        fail("which runs? give NAME=FOLDER for each, every NAME once, e.g. mdlm=out/toy-mdlm")
    runs = {name: read_run(folder) for name, folder in (n.split("=", 1) for n in named)}
    steps, seconds = (min(run["curve"][-1][key] for run in runs.values()) for key in ("step", "seconds"))
    rows = [["nats per token", "best", "± s.e.", f"at {steps:,} steps", f"at {seconds:,.0f} s", "true law"]]
    for name, run in runs.items():
        best = min(run["curve"], key=lambda e: e["val_nll"])
        step, second, loss = np.array([(e["step"], e["seconds"], e["val_nll"]) for e in run["curve"]]).T
        at_steps, at_seconds = (float(np.interp(*xs, loss, left=np.nan)) for xs in ((steps, step), (seconds, second)))  # linear
        run["table"] = {"best": best["val_nll"], "best_se": best["val_nll_se"], "best_step": best["step"], "equal_steps": steps,
                        "at_equal_steps": at_steps, "equal_seconds": seconds, "at_equal_seconds": at_seconds}
        numbers = best["val_nll"], best["val_nll_se"], at_steps, at_seconds, best.get("val_floor", float("nan"))
        rows.append([name, *(f"{x:.4f}".replace("nan", "–") for x in numbers)])
    print_table(rows)
    if o.plot:
        draw_losses(runs, o.plot)
    if o.json:
        for run in runs.values():
            del run["training"]
        write_json(o.json, {**provenance(run["seed"]), "runs": runs})


if __name__ == "__main__":
    command(main, "nothing was written")
