"""
Tiny Shakespeare in nanoGPT's recipe for a CPU: its own code beside ours.

    git clone https://github.com/karpathy/nanoGPT
    python prepare_data.py --dataset=shakespeare
    python -m experiments.shakespeare --json=F      about 13 minutes a seed

It is the first table of results/shakespeare.md. nanoGPT's train.py and ours take turns. Both train
4 layers of width 128 on 64 characters of context, in 2,000 steps of 12 windows. nanoGPT's own
program prepares its data, in its folder. Both have the same learning rates, beta2, weight decay and
largest gradient here.

The losses are means over all windows of the validation text, in nats per character. They are exact
for nanoGPT and ar, and bounds for mdlm and aogpt; aogpt also has an exact one, from left to right.
nanoGPT's last weights are scored by its own model.py, those of our train.py are its best ones.
nanoGPT predicts the first character of a window from the one before it, and ours has nothing to
predict it from. In the second half of a window that advantage is gone, and nanoGPT is scored there
too.

All runs take as many threads as OMP_NUM_THREADS says. A finished run is kept in the folder of --out
and not made again.
"""
import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from prepare_data import Windows, load_meta
from support.flags import (
    ROOT, InputError, build, command, flag, parse_flags, provenance, write_json)
from support.runs import ORIGIN, read_run

# nanoGPT's README has these flags for a CPU; with the last one the last weights are kept.
NANOGPT_FLAGS = """
config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20
--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000
--lr_decay_iters=2000 --dropout=0.0 --always_save_checkpoint=True""".split()
OUR_FLAGS = ["--preset=shakespeare", "--device=cpu", "--objective=nelbo"]
TEXT = "data/shakespeare/input.txt"     # which prepare_data.py has downloaded

# nanoGPT's train.py has its seed in its text. This runs it as it is, but for the seed.
WITH_SEED = """
import runpy, sys, torch
seed = int(sys.argv.pop(1))
set_seed = torch.manual_seed
torch.manual_seed = lambda _: set_seed(seed)
runpy.run_path("train.py", run_name="__main__")
"""


@dataclass
class ShakespeareOptions:
    """what to train"""
    nanogpt: str = flag("nanoGPT", "folder of github.com/karpathy/nanoGPT")
    seeds: int = flag(3, "runs of each", low=1)
    seed: int = flag(1337, "the first of them; this one is nanoGPT's own", low=0)
    out: str = flag("out/shakespeare", "folder for finished runs")
    json: str = flag("", "file for the results", file=(".json",))


# ---- Everybody's own code ------------------------------------------------------------------------

def python(arguments: list, folder):
    """Runs `python arguments` in a folder. Raises InputError."""
    program = [sys.executable, *arguments]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last_line = done.stderr.strip().split("\n")[-1]
        raise InputError(f"python failed in {folder}: {last_line}")


def import_file(path: str):
    """The Python file, imported."""
    spec = importlib.util.spec_from_file_location("others_code", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["others_code"] = module             # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def prepare_nanogpt(o: ShakespeareOptions) -> Path:
    """The folder of nanoGPT's data, which its own program makes. Raises InputError."""
    folder = Path(o.nanogpt, "data/shakespeare_char")
    if not folder.exists():
        raise InputError(f"{folder} is not there; --help says where to get nanoGPT")
    if not Path(TEXT).exists():
        raise InputError(f"{TEXT} is not there; copy the text that was prepared to this place")
    shutil.copy(TEXT, folder / "input.txt")
    python(["prepare.py"], folder)
    return folder


def run_nanogpt(o: ShakespeareOptions, data: Path, seed: int) -> dict:
    """nanoGPT's own train.py with this seed."""
    folder = Path(o.out, f"nanoGPT-{seed}").resolve()
    flags = [*NANOGPT_FLAGS, f"--out_dir={folder}"]
    python(["-c", WITH_SEED, str(seed), *flags], o.nanogpt)
    code = import_file(f"{o.nanogpt}/model.py")
    checkpoint = torch.load(folder / "ckpt.pt", weights_only=True)
    net = code.GPT(code.GPTConfig(**checkpoint["model_args"]))
    net.load_state_dict(checkpoint["model"])
    parameters = sum(p.numel() for p in net.parameters())
    found = score_nanogpt(net.eval(), data)
    return {"dtype": "float32", "parameters": parameters} | found   # on a CPU it has no other


@torch.no_grad()
def score_nanogpt(net, data: Path) -> dict:
    """The losses of nanoGPT's network, on the characters on which ours are scored."""
    T = net.config.block_size
    train = np.fromfile(data / "train.bin", np.uint16)
    val = np.fromfile(data / "val.bin", np.uint16)
    text = np.concatenate([train[-1:], val])        # the first window sees a character before it
    text = torch.from_numpy(text.astype(np.int64))
    windows = Windows("shakespeare", "val", T)
    places = windows.spread_places(len(windows))                                # (N, T)
    x = text[places]
    y = text[places + 1]
    _, nats = net(x, y)
    y[:, :T // 2] = -1      # nanoGPT leaves out a target of -1
    _, second_half = net(x, y)
    return {"nats": nats.item(), "second half": second_half.item()}


def run_ours(o: ShakespeareOptions, mode: str, seed: int) -> dict:
    """Our own train.py with this seed."""
    folder = Path(o.out, f"{mode}-{seed}")
    shutil.rmtree(folder, ignore_errors=True)       # a run that was interrupted begins again
    flags = [*OUR_FLAGS, f"--mode={mode}", f"--seed={seed}", f"--out_dir={folder}"]
    python([ROOT / "train.py", *flags], ".")
    run = read_run(folder)
    best = min(run["curve"], key=lambda entry: entry["val_nll"])
    log = (folder / "log.jsonl").read_text().splitlines()
    result = {"dtype": run["settings"]["dtype"], "parameters": run["parameters"],
              "nats": json.loads(log[-1])["final_nll"]}
    if "val_nll_l2r" in best:
        result["left to right"] = best["val_nll_l2r"]
    return result


# ---- The table -----------------------------------------------------------------------------------

def runs_of(o: ShakespeareOptions) -> dict:
    """{name of a row: the function that makes a run of it from a seed}"""
    runs = {"nanoGPT": partial(run_nanogpt, o, prepare_nanogpt(o))}
    for mode in "ar", "mdlm", "aogpt":
        runs[mode] = partial(run_ours, o, mode)
    return runs


def result_of(name: str, run, seed: int, folder: str) -> dict:
    """What a run found. It is kept in the folder, and not made again."""
    file = Path(folder, f"{name}-{seed}.json")
    if not file.exists():
        origin = provenance(seed) | {"device": "cpu", "torch": torch.__version__}
        write_json(file, {key: origin[key] for key in ORIGIN if key in origin} | run(seed))
    result = json.loads(file.read_text())
    print(f"seed {seed}, {name}: {result['nats']:.4f} nats per character", flush=True)
    return result


def main():
    o = build(ShakespeareOptions, parse_flags(__doc__, ShakespeareOptions))
    load_meta("shakespeare")        # the data must be there
    runs = runs_of(o)
    Path(o.out).mkdir(parents=True, exist_ok=True)
    results = {name: [] for name in runs}
    for seed in range(o.seed, o.seed + o.seeds):
        for name, run in runs.items():
            results[name].append(result_of(name, run, seed, o.out))
    if o.json:
        facts = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        write_json(o.json, provenance(o.seed) | facts | {"results": results})


if __name__ == "__main__":
    command(main, "finished runs are kept in the folder of --out")
