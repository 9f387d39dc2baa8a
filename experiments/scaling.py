"""
How the cost of a training step grows, with random weights and random tokens.

    python -m experiments.scaling --modes=ar,mdlm --repeats=2 --json=results/scaling.json

Block size, batch size and width in turn at 1, 2 and 4 times, where the exponent to expect is that of the
FLOPs; and 1, 2, 4 … processes of one thread or GPU each, with as many windows for each, where a step should
take as long.
"""
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from bench import begin, by_turns, training_step
from cli import ROOT, build, command, parse_flags, print_table, write_json
from model import Config, flops_per_token

@dataclass
class ScalingOptions:
    """what to measure"""
    modes: tuple[Literal["ar", "mdlm", "aogpt"], ...] = ("ar", "mdlm", "aogpt")  # of training
    preset: Literal["auto", "small", "paper"] = "auto"  # sizes, where no flag says otherwise; with CUDA paper
    batch_size: int | None = None   # windows per training step; default: 8, paper 32
    repeats: int = 5            # measurements of each
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for the results

def exponent(x, y) -> float:
    """The slope of log y over log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])

def against_size(o: ScalingOptions, mode: str, name: str, sizes: dict, batch_size: int, device) -> dict:
    """Milliseconds of a step at 1, 2 and 4 times the size with this name."""
    base = Config(mode, **sizes)
    first = batch_size if name == "batch_size" else getattr(base, name)
    values = [int(times * first) for times in (1, 2, 4)]
    ms, flops = [], []
    for value in tqdm(values, desc=f"{mode}, {name}", leave=False, disable=None):
        changed = {} if name == "batch_size" else {name: value}
        if name == "n_embd":
            changed["n_hidden"] = base.n_hidden * value // base.n_embd
        config, batch = Config(mode, **sizes | changed), value if name == "batch_size" else batch_size
        torch._dynamo.reset()
        step, _ = training_step(config, batch, device)
        ms.append(1000 * statistics.median(by_turns({"": step}, o.repeats, device)[""]))
        flops.append(flops_per_token(config) * config.block_size * batch)
    return {"mode": mode, "against": name, "values": values, "ms": ms, "exponent": exponent(values, ms),
            "expected": exponent(values, flops)}

def against_processes(o: ScalingOptions, mode: str, sizes: dict, batch_size: int, most: int) -> dict:
    """Milliseconds of a step of 1, 2, 4 … and all processes, batch_size windows for each."""
    values, ms = sorted({most, *(2 ** i for i in range(most.bit_length()))}), []
    for n in values:
        with tempfile.TemporaryDirectory() as folder:
            flags = sizes | dict(preset=o.preset, modes=mode, batch_size=n * batch_size, repeats=o.repeats,
                                 device=o.device, json=f"{folder}/r.json")
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}",
                       ROOT / "bench.py", *(f"--{name}={value}" for name, value in flags.items())]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL,
                           env={**os.environ, "OMP_NUM_THREADS": "1"})
            with open(f"{folder}/r.json") as f:
                ms.append(json.load(f)["train"][mode]["ms_per_step"])
    return {"mode": mode, "against": "processes", "values": values, "ms": ms,
            "exponent": exponent(values, ms), "expected": 0.0}

def main():
    flags = parse_flags(__doc__, ScalingOptions, Config)
    o = build(ScalingOptions, flags)
    device, sizes, batch_size, results = begin(o, flags)
    most = torch.cuda.device_count() if device.type == "cuda" else torch.get_num_threads()
    rows = []
    for mode, name in itertools.product(o.modes, ("block_size", "batch_size", "n_embd")):
        rows.append(against_size(o, mode, name, sizes, batch_size, device))
    for mode in o.modes if most > 1 else ():
        rows.append(against_processes(o, mode, sizes, batch_size, most))
    print("\nms of a training step")
    table = [["", "against", "", "exponent", "expected"]]
    for row in rows:
        times = ", ".join(f"{value}: {ms:,.0f}" for value, ms in zip(row["values"], row["ms"]))
        table.append([row["mode"], row["against"], times, f"{row['exponent']:.2f}", f"{row['expected']:.2f}"])
    print_table(table)
    if o.json:
        write_json(o.json, results | {"scaling": rows})

if __name__ == "__main__":
    command(main, "nothing was written")
