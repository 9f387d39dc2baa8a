"""
How fast it trains, with random weights and random tokens.

    python bench.py                                 every mode, tuned beside a baseline
    python bench.py --preset=paper --batch_size=2   the same at 124M parameters

All that the table compares is measured in one process, by turns. tuned: as train.py trains by default.
baseline: eager float32, logits of every slot, as in the paper's code. Sampling: experiments/sampling_cost.py
"""
import ctypes
import os
import statistics
import time
from dataclasses import dataclass, fields
from typing import Literal

from train import Settings, make_update, numerics      # before torch: it sets how threads wait
import numpy as np
import torch

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from model import Config, Transformer, flops_per_token, training_batch
from runs import WORLD_SIZE, join_processes, leave_processes, sum_over_processes

@dataclass
class BenchOptions:
    """what to measure"""
    modes: tuple[Literal["ar", "mdlm", "aogpt"], ...] = ("ar", "mdlm", "aogpt")  # modes to measure
    preset: Literal["auto", "small", "paper"] = "auto"  # default sizes; auto: paper with CUDA, else small
    batch_size: int | None = None   # windows per training step; default: 8, paper 32
    repeats: int = 5            # measurements of each; the table has their median
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for the results

SIZES = {"small": dict(n_layer=6, n_head=4, n_embd=256, n_hidden=704, block_size=256, batch_size=8),
         "paper": dict(batch_size=32)}
PEAK = {"H200": 989e12, "H100 80GB HBM3": 989e12, "A100": 312e12}   # dense bfloat16 FLOP/s, from data sheets

def begin(o, flags: dict):
    """Device, sizes (of a Config) and batch size that the flags ask for, and what a results file says of
    the machine, which is printed too. Raises InputError."""
    if "mode" in flags:
        raise InputError(f"--mode={flags['mode']}: the modes to measure are --modes=ar,mdlm,aogpt")
    device = join_processes(o.device)
    preset = o.preset if o.preset != "auto" else "paper" if device.type == "cuda" else "small"
    sizes = SIZES[preset] | {f.name: flags[f.name] for f in fields(Config) if f.name in flags}
    batch_size = flags.get("batch_size", sizes.pop("batch_size"))
    if batch_size % (2 * WORLD_SIZE):
        raise InputError(f"--batch_size={batch_size} must be even in every process (mdlm's rows are pairs)")
    for mode in getattr(o, "modes", ["ar"]):
        build(Config, sizes | {"mode": mode})       # sizes that don't go together are named
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    results = {**provenance(0), "device": name, "torch": torch.__version__, "processes": WORLD_SIZE,
               "threads": torch.get_num_threads(), "sizes": sizes, "batch_size": batch_size}
    dtype = str(numerics(Settings(), device)[0]).removeprefix("torch.")
    print("{machine}; {device}, torch {torch}, {threads} threads, {processes} processes".format(**results),
          f"{dtype}, commit {results['commit']}; {sizes or 'the sizes of the paper'}", sep=", ", flush=True)
    return device, sizes, batch_size, results

def by_turns(steps: dict, repeats: int, device) -> dict:
    """{name: seconds per step of each repeat}, by turns; a repeat lasts half a second or one step."""
    seconds, count = {name: [] for name in steps}, dict.fromkeys(steps, 1)
    wait = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    for turn in range(repeats + 1):
        for name, step in steps.items():
            wait()
            began = time.perf_counter()
            for _ in range(count[name]):
                step()
            wait()
            seconds[name].append((time.perf_counter() - began) / count[name])
            if turn == 0:       # which doesn't count; several processes must agree
                times = sum_over_processes(torch.tensor(0.5 / seconds[name].pop(), device=device))
                count[name] = max(1, int(times / WORLD_SIZE))
    return seconds

def peak_flops(device, dtype) -> float:
    """FLOP/s of the device: from the table, else those of a large matrix product."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        for name, peak in PEAK.items():
            if name in torch.cuda.get_device_name():
                return peak
    n = 2048 if device.type == "cpu" else 8192
    a = torch.randn(n, n, device=device, dtype=dtype)
    return 2 * n ** 3 / min(by_turns({"": lambda: a @ a}, 10, device)[""])

def memory_mb(device, reset=False) -> float:
    """MiB in use at most since the last reset; on a CPU of the whole process, nan without Linux."""
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / 2 ** 20
    if not os.path.exists("/proc/self/clear_refs"):
        return np.nan
    if reset:
        ctypes.CDLL(None).malloc_trim(0)        # what was freed must not count as in use
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024

def training_step(config: Config, batch_size: int, device, tuned=True):
    """step(), an optimizer step as train.py makes it, compiled and warm; the MiB it and its logits need."""
    torch.manual_seed(0)
    s = Settings(batch_size=batch_size, **({} if tuned else dict(dtype="float32", compile="false")))
    dtype, _ = numerics(s, device)
    model = Transformer(config).to(device)
    _, update = make_update(model, s)
    x = torch.randint(config.vocab_size, (batch_size, config.block_size))               # (B, T)
    generator = torch.Generator().manual_seed(0)

    def step():
        return update(training_batch(config, x, generator), s.lr)

    step()[0].item()                                                    # compiles
    before = memory_mb(device, reset=True)
    step()[0].item()
    held = 12 / 2 ** 20 * sum(p.numel() for p in model.parameters())    # float32 weights and two moments
    slots = training_batch(config, x, generator).targets.numel()
    needs = {"dtype": str(dtype).removeprefix("torch."), "peak_mem_mb": held + memory_mb(device) - before}
    return step, needs | {"logits_mb": slots * config.vocab_size * dtype.itemsize / 2 ** 20}

def bench_train(o: BenchOptions, sizes: dict, batch_size: int, device) -> dict:
    """Prints a table; {mode: figures}. The baseline has mdlm's last MLP and head on every slot."""
    steps, figures = {}, {}
    for mode in o.modes:
        every_slot = dict(objective="masked_ce", schedule="cosine") if mode == "mdlm" else {}
        steps[mode, "tuned"], figures[mode] = training_step(Config(mode, **sizes), batch_size, device)
        baseline = Config(mode, **sizes | every_slot)
        steps[mode, "baseline"], needs = training_step(baseline, batch_size, device, tuned=False)
        figures[mode] |= {f"baseline_{name}": value for name, value in needs.items()}
    seconds = by_turns(steps, o.repeats, device)
    block_size = Config(o.modes[0], **sizes).block_size
    peak, tokens = peak_flops(device, numerics(Settings(), device)[0]) * WORLD_SIZE, batch_size * block_size
    rows = [["", "tokens/s", "range", "baseline", "tuned ÷ that", "÷ ar", "ms/step", "MFLOP/token", "MFU",
             "peak MiB", "baseline", "logits MiB"]]
    for mode, f in figures.items():
        took, flops = seconds[mode, "tuned"], flops_per_token(Config(mode, **sizes))
        f["tok_per_s"] = tokens / statistics.median(took)
        f["baseline_tok_per_s"] = tokens / statistics.median(seconds[mode, "baseline"])
        f["ms_per_step"], f["seconds"] = 1000 * statistics.median(took), took
        f["ratio_to_ar"] = statistics.median(np.divide(seconds.get(("ar", "tuned"), np.nan), took))
        f["flops_per_token"], f["mfu"] = flops, f["tok_per_s"] * flops / peak
        rows.append([mode, f"{f['tok_per_s']:,.0f}", f"{tokens / max(took):,.0f}–{tokens / min(took):,.0f}",
                     f"{f['baseline_tok_per_s']:,.0f}", f"{f['tok_per_s'] / f['baseline_tok_per_s']:.2f}",
                     f"{f['ratio_to_ar']:.2f}", f"{f['ms_per_step']:.1f}", f"{flops / 1e6:.1f}",
                     f"{f['mfu']:.1%}", f"{f['peak_mem_mb']:,.0f}", f"{f['baseline_peak_mem_mb']:,.0f}",
                     f"{f['logits_mb']:,.0f}"])
    print(f"\n{batch_size} x {block_size} tokens, median of {o.repeats}; peak {peak / 1e12:.3g} TFLOP/s")
    print_table(rows)
    return figures

def main():
    flags = parse_flags(__doc__, BenchOptions, Config)
    o = build(BenchOptions, flags)
    device, sizes, batch_size, results = begin(o, flags)
    results["train"] = bench_train(o, sizes, batch_size, device)
    leave_processes()
    if o.json:
        write_json(o.json, results)

if __name__ == "__main__":
    command(main, "nothing was written")
