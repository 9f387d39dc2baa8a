"""
Several runs in one table, one JSON and one figure: validation loss at equal steps and at equal seconds.

    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt --json=toy.json --plot=toy.png
"""
from dataclasses import dataclass

import numpy as np

from cli import build, command, parse_flags, print_table, provenance, write_json
from runs import read_run
from show import draw_losses

@dataclass
class CompareOptions:
    """what to write"""
    json: str = ""  # file for the table, and each run's settings and curve
    plot: str = ""  # file for the figure (.png, .svg or .pdf)

def main():
    flags = parse_flags(__doc__, CompareOptions, named="NAME=FOLDER")
    o = build(CompareOptions, flags)
    runs = {name: read_run(folder) for name, folder in flags["named"].items()}
    steps, seconds = (min(run["curve"][-1][key] for run in runs.values()) for key in ("step", "seconds"))
    rows = [["nats per token", "best", "± s.e.", f"at {steps:,} steps", f"at {seconds:,.0f} s", "true law"]]
    for name, run in runs.items():
        best = min(run["curve"], key=lambda entry: entry["val_nll"])
        step, second, loss = np.array([(e["step"], e["seconds"], e["val_nll"]) for e in run["curve"]]).T
        between = (np.interp(at, x, loss, left=np.nan) for at, x in ((steps, step), (seconds, second)))
        numbers = best["val_nll"], best["val_nll_se"], *between, best.get("val_floor", np.nan)
        run["table"] = {"best_step": best["step"], **dict(zip(rows[0][1:], numbers))}
        rows.append([name, *(f"{x:.4f}".replace("nan", "–") for x in numbers)])
    print_table(rows)
    if o.plot:
        draw_losses(runs, o.plot)
    if o.json:
        kept = {name: {key: run[key] for key in run if key != "training"} for name, run in runs.items()}
        write_json(o.json, {**provenance([run["seed"] for run in runs.values()]), "runs": kept})

if __name__ == "__main__":
    command(main, "nothing was written")
