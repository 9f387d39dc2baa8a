"""
Tiny Shakespeare in nanoGPT's recipe for a CPU: its own code beside ours, and why ours gets lower.

    git clone https://github.com/karpathy/nanoGPT
    python prepare_data.py --dataset=shakespeare
    python -m experiments.shakespeare --table=own_code --json=F     about 13 minutes a seed
    python -m experiments.shakespeare --table=take_away --json=F    about 25 minutes a seed

own_code    nanoGPT's train.py and ours take turns. Both train 4 layers of width 128 on 64
            characters of context, in 2,000 steps of 12 windows. nanoGPT's own program prepares its
            data, in its folder.
take_away   Our ar is trained without one of its differences from nanoGPT at a time, and without
            all of them. In the last row the network is nanoGPT's: the same weights give the same
            logits. Our vocabulary stays, of 257 bytes where nanoGPT has 65 characters.

The losses are means over all windows of the validation text, in nats per character. They are exact
for nanoGPT and ar, and bounds for mdlm and aogpt; aogpt also has an exact one, from left to right.
nanoGPT's last weights are scored by its own model.py, those of our train.py are its best ones.
nanoGPT predicts the first character of a window from the one before it, and ours has nothing to
predict it from. In the second half of a window that advantage is gone; nanoGPT and the rows of
take_away are scored there too.

Both projects have the same learning rates, beta2, weight decay and largest gradient here. All runs
take as many threads as OMP_NUM_THREADS says. A finished run is kept in the folder of --out and not
made again.
"""
import json
import math
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from experiments.others import import_file
from variants.paper import Config, Transformer     # whose flags take differences away
from model import bound_batch, losses, training_batch
from prepare_data import Windows, load_meta, open_windows
from support import machine
from support.flags import (
    ROOT, InputError, build, command, flag, parse_flags, provenance, write_json)
from support.runs import ORIGIN, random_numbers, read_run
from train import PRESETS, Settings, learning_rate, losses_in_parts, make_optimizers, train_step

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
    table: Literal["own_code", "take_away"] = flag("own_code", "which of the two")
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


# ---- Differences in the network ------------------------------------------------------------------
# Each function puts what nanoGPT has in the place of what our ar has.

def learned_positions(model: Transformer):
    """A vector for each position is added to the token's, and begins with the same size.

    In ar a slot predicts the next position, so our target embedding is a table of such vectors."""
    model.rotary[0] = 1.0           # cosines
    model.rotary[1] = 0.0           # sines
    model.init_weight("embed", model.embed_target.weight)


def layer_norm(model: Transformer):
    width = model.config.n_embd
    model.norm = nn.LayerNorm(width, bias=False)
    for block in model.blocks:
        block.norm1 = nn.LayerNorm(width, bias=False)
        block.norm2 = nn.LayerNorm(width, bias=False)


class GeluMLP(nn.Module):
    """It has about as many weights as our SwiGLU, whose n_hidden is 8/3 · width."""

    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.proj(F.gelu(self.up(x)))


def gelu(model: Transformer):
    for block in model.blocks:
        block.mlp = GeluMLP(model.config.n_embd)
        for name, p in block.mlp.named_parameters():
            model.init_weight(name, p)


def small_weights(model: Transformer):
    """A standard deviation of 0.02 at any width, and less for what adds to the residual stream."""
    for name, p in model.named_parameters():
        if name.endswith("proj.weight"):
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * model.config.n_layer))
        elif p.dim() == 2:
            nn.init.normal_(p, std=0.02)


OF_NETWORK = {
    "rotary positions": learned_positions,
    "RMSNorm": layer_norm,
    "SwiGLU": gelu,
    "initial weights": small_weights}
OF_CONFIG = {
    "common vector": "shared_init",
    "target embedding": "target_embedding",
    "target rotation": "target_rotation"}
OF_TRAINING = ["bfloat16", "windows end to end", "decay of gains"]
ALL = [*OF_NETWORK, *OF_CONFIG, *OF_TRAINING]


def model_without(taken: list, seed: int) -> Transformer:
    """Our ar without the differences that are taken away."""
    values = PRESETS["shakespeare"] | {"vocab_size": load_meta("shakespeare")["eot"] + 1}
    for name, field in OF_CONFIG.items():
        values[field] = name not in taken
    if "rotary positions" in taken:
        values["target_embedding"] = True       # it holds the learned positions
    torch.manual_seed(seed)
    model = Transformer(build(Config, values))
    for name, change in OF_NETWORK.items():
        if name in taken:
            change(model)
    return model


# ---- Differences in training ---------------------------------------------------------------------

def decay_of_matrices(model: Transformer, s: Settings) -> list:
    """The optimizers where the gains of norms have no weight decay."""
    optimizers = []
    for dim, decay in (2, s.weight_decay), (1, 0):
        group = [p for p in model.parameters() if p.dim() == dim]
        optimizers.append(
            torch.optim.AdamW(group, betas=(0.9, s.beta2), weight_decay=decay, fused=True))
    return optimizers


def draw_anywhere(windows: Windows, rows: int, rng) -> np.ndarray:
    """(rows, T): windows that start anywhere, some of them more often than others."""
    T = windows.block_size
    starts = rng.integers(len(windows.tokens) - T, size=rows)
    places = starts[:, None] + np.arange(T)                                     # (rows, T)
    return windows.tokens[places].astype(np.int64)


def run_without(taken: list, seed: int) -> dict:
    """Our ar without the differences that are taken away, trained as train.py does."""
    dtype = "float32" if "bfloat16" in taken else "bfloat16"
    s = build(Settings, PRESETS["shakespeare"] | {"seed": seed, "dtype": dtype})
    device = torch.device("cpu")
    machine.prepare(s, device)
    torch._dynamo.reset()           # else it compiles only the first few networks
    model = model_without(taken, seed)
    model.softmax_attention = machine.attention_for(device)
    config = model.config
    optimizers = make_optimizers(model, s)
    if "decay of gains" in taken:
        optimizers = decay_of_matrices(model, s)
    windows = open_windows(s, "train", config.block_size)
    rng = np.random.default_rng(seed)
    losses_of = machine.compiled(losses, s, device)
    for step in range(s.max_steps):
        x = windows.batch(step, s.batch_size)                                   # (B, T)
        if "windows end to end" in taken:
            x = draw_anywhere(windows, s.batch_size, rng)
        batch = training_batch(config, torch.from_numpy(x), random_numbers(seed, step))
        train_step(model, losses_of, optimizers, batch, s, learning_rate(s, step))
    val = open_windows(s, "val", config.block_size)
    found = score(model, torch.from_numpy(val.spread(s.eval_windows)))
    return {"dtype": dtype} | found


def score(model: Transformer, x: torch.Tensor) -> dict:
    """The losses of an ar on windows x (N, T)."""
    T = x.size(1)
    batch = bound_batch(model.config, x, None)
    late = torch.arange(T) >= T // 2                                            # (T,)
    weight = late / late.sum()                                                  # (T,)
    of_late = batch._replace(weight=weight.expand(x.shape))
    return {
        "nats": losses_in_parts(model, losses, batch).mean().item(),
        "second half": losses_in_parts(model, losses, of_late).mean().item()}


# ---- The tables ----------------------------------------------------------------------------------

def runs_of(o: ShakespeareOptions) -> dict:
    """{name of a row: the function that makes a run of it from a seed}"""
    if o.table == "own_code":
        runs = {"nanoGPT": partial(run_nanogpt, o, prepare_nanogpt(o))}
        for mode in "ar", "mdlm", "aogpt":
            runs[mode] = partial(run_ours, o, mode)
        return runs
    runs = {"nothing taken away": partial(run_without, [])}
    for name in ALL:
        runs[f"without {name}"] = partial(run_without, [name])
    runs["all taken away"] = partial(run_without, ALL)
    return runs


def result_of(name: str, run, seed: int, folder: str) -> dict:
    """What a run found. It is kept in the folder, and not made again."""
    file = Path(folder, f"{name.replace(' ', '-')}-{seed}.json")
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
