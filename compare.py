"""
Several runs in one table, one JSON and one figure: validation loss at equal steps and at equal seconds.

    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt --json=results/toy.json --plot=results/toy.png
"""
import json
import os
import sys
from dataclasses import dataclass

import matplotlib

from prepare_data import fail, parse_flags, provenance

matplotlib.use("Agg")   # there may be no display
import matplotlib.pyplot as plt  # noqa: E402


@dataclass
class Options:
    """what to write"""
    json: str = ""  # file for the curves, the settings of each run and the table
    plot: str = ""  # file for the figure (.png, .svg or .pdf)


def read_run(folder: str) -> dict:
    """config.json and the evaluations in log.jsonl."""
    try:
        with open(os.path.join(folder, "config.json")) as f:
            run = json.load(f)
        with open(os.path.join(folder, "log.jsonl")) as f:
            run["curve"] = [entry for entry in map(json.loads, f) if "val_nll" in entry]
    except (OSError, ValueError) as e:
        fail(f"{folder} holds no readable run ({e}); give folders that train.py wrote, as NAME=FOLDER")
    if not run["curve"]:
        fail(f"{folder} has no evaluation yet")
    return run


def at_seconds(curve: list, seconds: float) -> float:
    """Validation loss after that much training time, between evaluations by linear interpolation."""
    for a, b in zip(curve, curve[1:]):
        if a["seconds"] <= seconds <= b["seconds"]:
            return a["val_nll"] + (b["val_nll"] - a["val_nll"]) * (seconds - a["seconds"]) / (b["seconds"] - a["seconds"])
    return curve[-1]["val_nll"]


def draw(runs: dict, path: str):
    """One axis for all: nats per token against steps, and against seconds of training."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axes, key, label in zip(panels, ("step", "seconds"), ("optimizer step", "seconds of training (evaluation not counted)")):
        for name, run in runs.items():
            curve, bound = run["curve"], run["config"]["mode"] != "ar"
            axes.errorbar([e[key] for e in curve], [e["val_nll"] for e in curve], [2 * e["val_nll_se"] for e in curve],
                          marker="o", ms=3, capsize=2, label=f"{name} ({'upper bound' if bound else 'exact'})")
        floor = next(iter(runs.values()))["curve"][-1].get("val_floor")
        if floor is not None:
            axes.axhline(floor, color="k", ls="--", lw=1, label="the true law's own loss")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="validation loss, nats per token (± 2 s.e.)")
    panels[1].legend()
    figure.savefig(path, dpi=110)


def main():
    named = [a for a in sys.argv[1:] if not a.startswith("-")]
    sys.argv[1:], all_arguments = [a for a in sys.argv[1:] if a.startswith("-")], sys.argv[1:]
    o = Options(**parse_flags(__doc__, Options))
    sys.argv[1:] = all_arguments
    if not named or not all("=" in a for a in named):
        fail("which runs? give NAME=FOLDER for each, e.g. mdlm=out/toy-mdlm")
    runs = {name: read_run(folder) for name, folder in (a.split("=", 1) for a in named)}
    steps = min(run["curve"][-1]["step"] for run in runs.values())
    seconds = min(run["curve"][-1]["seconds"] for run in runs.values())
    print(f"{'':20}{'best':>9}{'± s.e.':>9}{f'at {steps:,} steps':>18}{f'at {seconds:,.0f} s':>12}{'floor':>9}")
    for name, run in runs.items():
        curve = run["curve"]
        best = min(curve, key=lambda e: e["val_nll"])
        run["table"] = {"best": best["val_nll"], "best_se": best["val_nll_se"], "best_step": best["step"],
                        "equal_steps": steps, "at_equal_steps": next((e["val_nll"] for e in curve if e["step"] == steps), None),
                        "equal_seconds": seconds, "at_equal_seconds": at_seconds(curve, seconds)}
        print(f"{name:20}{best['val_nll']:>9.4f}{best['val_nll_se']:>9.4f}{run['table']['at_equal_steps'] or float('nan'):>18.4f}"
              f"{run['table']['at_equal_seconds']:>12.4f}{best.get('val_floor', float('nan')):>9.4f}")
    if o.json:
        with open(o.json, "w") as f:
            json.dump({**provenance(next(iter(runs.values()))["seed"]), "runs": runs}, f, indent=1)
    if o.plot:
        draw(runs, o.plot)


if __name__ == "__main__":
    main()
