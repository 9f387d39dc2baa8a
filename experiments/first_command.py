"""
How long do README's first commands take, and how well does the model write then?

    python -m experiments.first_command results/first-command.json          with nothing else running
    taskset -c 0,1 python -m experiments.first_command F.json ar            one mode, on two of many cores
    python -m experiments.first_command F.json step                         the first step alone

Of each mode: train.py --preset=toy on the CPU in an empty folder, so that its data are made and everything
is compiled anew; then 1,000 stories by sample.py, and the share that obeys the grammar; and a single one,
beside what the import of torch takes. step: how long until the first step is taken, in an empty folder and
once more there; the same where headers are not precompiled while the data are made ("in turn"), and where
torch.compile is let try what the C++ compiler can do ("trials").
"""
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

from cli import ROOT, InputError, command, print_table, provenance, write_json
from runs import read_run

MODES = "ar", "mdlm", "aogpt"
SEEDS = 1337, 1, 2              # the first is the one that both scripts take by themselves
TRAIN, SAMPLE = [ROOT / "train.py", "--preset=toy"], [ROOT / "sample.py", "--out_dir=run"]
ONE_STEP = ["--max_steps=1", "--eval_windows=2", "--quiet"]
IN_TURN = "import train; from unittest.mock import Mock; train.subprocess = Mock(); train.main()"
STORIES = 1000
ROUNDS = 3

def seconds(folder: str, *line, **environment) -> float:
    """From start to end of a command of Python in the folder, which also keeps what is compiled."""
    began = time.perf_counter()
    # torch.compile keeps precompiled headers in TMPDIR, wherever the rest of what it makes is
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled", "TMPDIR": folder,
                                "CUDA_VISIBLE_DEVICES": ""} | environment
    subprocess.run([sys.executable, *line], cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                   check=True)
    return time.perf_counter() - began

def measure(mode: str, seed: int) -> dict:
    """Of both commands the seconds, the compiler's and the evaluations' among them."""
    with tempfile.TemporaryDirectory() as folder:
        training = seconds(folder, *TRAIN, f"--mode={mode}", f"--seed={seed}", "--out_dir=run")
        last = read_run(f"{folder}/run")["curve"][-1]
        many = f"--seed={seed}", f"--num_samples={STORIES}", "--json=samples.json"
        sampling = seconds(folder, *SAMPLE, *many)
        with open(f"{folder}/samples.json") as f:
            [summary] = json.load(f)
        one, imports = seconds(folder, *SAMPLE, "--num_samples=1"), seconds(folder, "-c", "import torch")
    return {"mode": mode, "seed": seed, "seconds": training, "of_steps": last["seconds"],
            "of_sampling": sampling, "of_one_story": one, "of_import_torch": imports,
            "val_nll": last["val_nll"], "grammatical": summary["grammatical"]}

def first_step(script: list, environment: dict) -> list:
    """Seconds of a training of one step in an empty folder, and of another one there."""
    with tempfile.TemporaryDirectory() as folder:
        return [seconds(folder, *script, *TRAIN[1:], *ONE_STEP, "--mode=mdlm", f"--out_dir={run}",
                        **environment) for run in ("first", "second")]

def main():
    path, *what = sys.argv[1:] or [""]
    if not path or set(what) - {*MODES, "step"}:
        raise InputError("give the file for the results, results/first-command.json, and maybe modes or step")
    ways = {"at once": (TRAIN[:1], {}), "in turn": (["-c", IN_TURN], {"PYTHONPATH": str(ROOT)}),
            "trials": (TRAIN[:1], {"TORCHINDUCTOR_VEC_ISA_OK": ""})}
    runs, starts = [], {name: [] for name in ways}
    found = provenance(SEEDS) | {"torch": version("torch"), "runs": runs, "first_step": starts}
    for mode, seed in itertools.product([mode for mode in what or MODES if mode != "step"], SEEDS):
        runs.append(measure(mode, seed))
        print(json.dumps(runs[-1]))
        write_json(path, found)
    if "step" not in what:
        return
    for _ in range(ROUNDS):
        for name, way in ways.items():
            starts[name].append(first_step(*way))
    print_table([["seconds to one step, and again", *(f"round {n + 1}" for n in range(ROUNDS))],
                 *([name, *(", ".join(f"{s:.1f}" for s in times) for times in of)]
                   for name, of in starts.items())])
    write_json(path, found)

if __name__ == "__main__":
    command(main, "the file has the runs that are done")
