"""
How long do README's first commands take, and how well does the model write then?

    python -m experiments.first_command results/first-command.json          with nothing else running

Of each mode: train.py --preset=toy in an empty folder, so that its data are made and everything is compiled
anew; then 1,000 stories by sample.py, and the share that obeys the grammar. And how long until the first step
is taken, in an empty folder and once more there, with and without torch.compile's trials of the C++ compiler.
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
ONE_STEP = ["--max_steps=1", "--eval_windows=2", "--quiet"]
ROUNDS = 3

def seconds(folder: str, script: str, *flags, **environment) -> float:
    """From start to end of a command in the folder, which also keeps what is compiled."""
    began, line = time.perf_counter(), [sys.executable, ROOT / script, *flags]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"} | environment
    subprocess.run(line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began

def measure(mode: str) -> dict:
    """Of both commands the seconds, the compiler's and the evaluations' among them."""
    with tempfile.TemporaryDirectory() as folder:
        training = seconds(folder, *TRAIN, f"--mode={mode}", "--out_dir=run")
        last = read_run(f"{folder}/run")["curve"][-1]
        sampling = seconds(folder, *SAMPLE, "--out_dir=run", "--json=samples.json")
        with open(f"{folder}/samples.json") as f:
            [summary] = json.load(f)
    return {"mode": mode, "seconds": training, "of_steps": last["seconds"],
            "of_sampling": sampling, "val_nll": last["val_nll"], "grammatical": summary["grammatical"]}

def first_step(told: str) -> list:
    """Seconds of a training of one step in an empty folder, and of another one there. told: what
    TORCHINDUCTOR_VEC_ISA_OK is; train.py sets "1", "" lets torch.compile try the C++ compiler."""
    with tempfile.TemporaryDirectory() as folder:
        return [seconds(folder, *TRAIN, *ONE_STEP, "--mode=mdlm", f"--out_dir={run}",
                        TORCHINDUCTOR_VEC_ISA_OK=told) for run in ("first", "second")]

def main():
    made = provenance(1337)         # the seed that both scripts take by themselves
    rows = [["mode", "seconds", "of steps", "of sampling", "grammatical"]]
    runs = [measure(mode) for mode in MODES]
    for run in runs:
        times = (f"{run[of]:.0f}" for of in ("seconds", "of_steps", "of_sampling"))
        rows.append([run["mode"], *times, f"{run['grammatical']:.1%}"])
    print_table(rows)
    ways = {"trials": "", "none": "1"}
    starts = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, told in ways.items():
            starts[name].append(first_step(told))
    print_table([["seconds to one step, and again", *(f"round {n + 1}" for n in range(ROUNDS))],
                 *([name, *(", ".join(f"{s:.1f}" for s in times) for times in of)]
                   for name, of in starts.items())])
    write_json(sys.argv[1], made | {"runs": runs, "first_step": starts})

if __name__ == "__main__":
    command(main, "nothing was written")
