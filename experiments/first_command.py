"""
How long do README's first commands take, and how well does the model write then?

    python -m experiments.first_command results/first-command.json          with nothing else running

Of each mode: train.py --preset=toy in an empty folder, so that its data are made and everything is compiled
anew; then 1,000 stories by sample.py, and the share that obeys the grammar.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

from cli import ROOT, command, print_table, provenance, write_json
from runs import read_run

MODES = "ar", "mdlm", "aogpt"
TRAIN, SAMPLE = ["train.py", "--preset=toy"], ["sample.py", "--num_samples=1000"]

def measure(mode: str) -> dict:
    """Of both commands the seconds from start to end, the compiler's and the evaluations' among them."""
    with tempfile.TemporaryDirectory() as folder:
        def seconds(script, *flags):
            began, line = time.perf_counter(), [sys.executable, ROOT / script, *flags]
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"}
            subprocess.run(line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
            return time.perf_counter() - began

        training = seconds(*TRAIN, f"--mode={mode}", "--out_dir=run")
        last = read_run(f"{folder}/run")["curve"][-1]
        sampling = seconds(*SAMPLE, "--out_dir=run", "--json=samples.json")
        with open(f"{folder}/samples.json") as f:
            [summary] = json.load(f)
    return {"mode": mode, "seconds": training, "of_steps": last["seconds"],
            "of_sampling": sampling, "val_nll": last["val_nll"], "grammatical": summary["grammatical"]}

def main():
    made = provenance(1337)         # the seed that both scripts take by themselves
    rows = [["mode", "seconds", "of steps", "of sampling", "grammatical"]]
    runs = [measure(mode) for mode in MODES]
    for run in runs:
        times = (f"{run[of]:.0f}" for of in ("seconds", "of_steps", "of_sampling"))
        rows.append([run["mode"], *times, f"{run['grammatical']:.1%}"])
    print_table(rows)
    write_json(sys.argv[1], made | {"runs": runs})

if __name__ == "__main__":
    command(main, "nothing was written")
