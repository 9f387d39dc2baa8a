"""
Several runs in one table, one JSON and one figure: validation loss at equal steps and at equal seconds.

    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt --json=results/toy.json --plot=results/toy.png
"""
import json
import os
from dataclasses import dataclass

from prepare_data import command, fail, parse_flags, provenance
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
            log = [json.loads(line) for line in f]
    except (OSError, ValueError) as e:
        fail(f"{folder} holds no readable run ({e}); give folders that train.py wrote, as NAME=FOLDER")
    run["curve"] = [entry for entry in log if "val_nll" in entry]
    run["training"] = [[entry["step"], entry["train_loss"]] for entry in log if "train_loss" in entry]
    if not run["curve"]:
        fail(f"{folder} has no evaluation yet; let it train on")
    return run


def loss_at(curve: list, key: str, value: float) -> float:
    """Validation loss at that step or second, by linear interpolation between evaluations; nan before the first."""
    if value < curve[0][key]:
        return float("nan")
    for a, b in zip(curve, curve[1:]):
        if value <= b[key]:
            return a["val_nll"] + (b["val_nll"] - a["val_nll"]) * (value - a[key]) / (b[key] - a[key])
    return curve[-1]["val_nll"]


def main():
    flags = parse_flags(__doc__, Options, positional="NAME=FOLDER")
    named = flags.pop("positional")
    o = Options(**flags)
    if not named or not all("=" in n for n in named):
        fail("which runs? give NAME=FOLDER for each, e.g. mdlm=out/toy-mdlm")
    runs = {name: read_run(folder) for name, folder in (n.split("=", 1) for n in named)}
    steps, seconds = (min(run["curve"][-1][key] for run in runs.values()) for key in ("step", "seconds"))
    print(f"{'nats per token':24}{'best':>9}{'± s.e.':>9}{f'at {steps:,} steps':>18}{f'at {seconds:,.0f} s':>12}{'true law':>10}")
    for name, run in runs.items():
        best = min(run["curve"], key=lambda e: e["val_nll"])
        at_steps, at_seconds = loss_at(run["curve"], "step", steps), loss_at(run["curve"], "seconds", seconds)
        run["table"] = {"best": best["val_nll"], "best_se": best["val_nll_se"], "best_step": best["step"],
                        "equal_steps": steps, "at_equal_steps": at_steps, "equal_seconds": seconds, "at_equal_seconds": at_seconds}
        print(f"{name:24}{best['val_nll']:>9.4f}{best['val_nll_se']:>9.4f}{at_steps:>18.4f}{at_seconds:>12.4f}"
              + (f"{best['val_floor']:>10.4f}" if "val_floor" in best else ""))
    if o.plot:
        draw_losses(runs, o.plot)
    if o.json:
        for run in runs.values():
            del run["training"]
        with open(o.json, "w") as f:
            json.dump({**provenance(run["seed"]), "runs": runs}, f, indent=1)


if __name__ == "__main__":
    command(main, "nothing was written")
