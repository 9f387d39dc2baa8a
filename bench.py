"""
How fast training is, with random weights and random tokens.

    python bench.py                                 every mode, tuned beside a baseline
    python bench.py --preset=paper --batch_size=2   the same at 124M parameters

"tuned" is what train.py does by default. "baseline" is eager float32 with logits of every slot, as
in the code of arXiv 2603.22075. All of it is measured in one process, by turns, because a machine
is not equally fast all the time. So six models and their optimizers are in memory, which takes 9 GB
at 124M parameters; --modes=mdlm takes a third of that. It takes minutes. How long writing takes is
said by sample.py.
"""
import functools
import math
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import Literal

from support import machine     # before torch, because it sets how torch's threads wait
import torch

from model import Config, Transformer, losses
from support.flags import (
    InputError, build, command, flag, parse_flags, pick_device, print_table, provenance, write_json)
from support.processes import WORLD_SIZE
from train import Settings, make_optimizers, train_step


# ---- What is asked for ---------------------------------------------------------------------------

@dataclass
class BenchOptions:
    """what to measure"""
    modes: str = flag("ar,mdlm,aogpt", "modes to measure, with commas")
    preset: Literal["auto", "small", "paper"] = flag(
        "auto", "sizes where no flag says otherwise; auto: paper with CUDA, else small")
    batch_size: int | None = flag(None, "windows per training step; default: 8, paper 32", low=2)
    repeats: int = flag(5, "measurements of each; the table has their median", low=1)
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for the results", file=(".json",))


SIZES = {
    "small": dict(n_layer=6, n_head=4, n_embd=256, n_hidden=704, block_size=256, batch_size=8),
    "paper": dict(batch_size=32)}       # and the defaults of Config


def begin(o, flags: dict, mode: str = "ar") -> tuple:
    """The device, the Config of this mode and the batch size that the flags ask for.

    Raises InputError."""
    if "mode" in flags:
        raise InputError(f"--mode={flags['mode']} means nothing here, where modes are compared")
    if WORLD_SIZE > 1:
        raise InputError("bench.py measures one process; unset WORLD_SIZE")
    device = pick_device(o.device)
    preset = o.preset
    if preset == "auto":
        preset = "paper" if device.type == "cuda" else "small"
    values = SIZES[preset] | flags
    rows = values["batch_size"]
    if rows % 2:
        raise InputError(f"--batch_size={rows} must be even: mdlm's rows come in pairs")
    return device, build(Config, values | {"mode": mode}), rows


# ---- Time, and what the machine could do ---------------------------------------------------------

def by_turns(steps: dict, repeats: int, device: torch.device) -> dict:
    """{name: seconds per step in each repeat} of the functions {name: step}.

    In a repeat every function has its turn, which lasts half a second or one step. Before them
    comes a turn that tells how many steps that is, and does not count."""
    count = dict.fromkeys(steps, 1)
    seconds = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            wait_for(device)
            began = time.perf_counter()
            for _ in range(count[name]):
                step()
            wait_for(device)
            took = (time.perf_counter() - began) / count[name]
            if repeat == 0:
                count[name] = max(1, int(0.5 / took))
            else:
                seconds[name].append(took)
    return seconds


def wait_for(device: torch.device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


# FLOP/s of dense bfloat16 products, from the data sheets.
PEAK = {"H200": 989e12, "H100 80GB HBM3": 989e12, "A100": 312e12}


@functools.cache
def peak_flops(device: torch.device, dtype: str) -> float:
    """FLOP/s of the device, from the table above, else those of a large matrix product."""
    if device.type == "cuda" and dtype == "bfloat16":
        for name, peak in PEAK.items():
            if name in torch.cuda.get_device_name(device):
                return peak
    n = 2048 if device.type == "cpu" else 8192
    a = torch.randn(n, n, device=device, dtype=getattr(torch, dtype))
    seconds = by_turns({"product": lambda: a @ a}, 5, device)
    return 2 * n ** 3 / min(seconds["product"])


def flops_per_token(config) -> float:
    """FLOPs of training on one token: 6 for each multiply-add of the forward matrix products."""
    C, T = config.n_embd, config.block_size
    reach, predicted = T / 2, 1     # the slots that attention sees, and the share that is predicted
    if not config.row.causal:
        reach, predicted = T, (T + 1) / (2 * T)
    attention = config.n_layer * (4 * C * C + 2 * C * reach)
    mlp = (config.n_layer - 1 + predicted) * 3 * C * config.n_hidden
    head = predicted * C * config.vocab_size
    return 6 * (attention + mlp + head)


# ---- Training steps, and the table ---------------------------------------------------------------

def losses_of_every_slot(model, batch, select):
    """The same losses; but the last MLP and the head run on all slots, as in the paper's code."""
    every_slot = torch.arange(batch.tokens.numel(), device=select.device)
    return losses(model, batch, every_slot)


def training_step(config: Config, batch_size: int, device: torch.device, tuned=True):
    """A function that takes a step of train.py, compiled and warm; its dtype; its MiB at most.

    The masks are new in each step. It returns the loss and the norm of the gradient. Memory is
    that of weights, optimizer and step, and is known with CUDA only, else NaN."""
    torch.manual_seed(0)
    s = Settings(batch_size=batch_size)
    make_batch = config.row.training_batch
    if not tuned:
        s = replace(s, dtype="float32", compile="false")
        make_batch = config.row.reported.get("val_masked_ce", make_batch)
    machine.prepare(s, device)
    torch.set_float32_matmul_precision("highest")       # the baseline's float32 is no TF32
    cuda = device.type == "cuda"
    memory = -torch.cuda.memory_allocated(device) if cuda else math.nan
    model = Transformer(config).to(device)
    model.softmax_attention = machine.attention_for(device)
    model.cross_entropy = machine.cross_entropy
    optimizers = make_optimizers(model, s)
    losses_of = machine.compiled(losses if tuned else losses_of_every_slot, s, device)
    x = torch.randint(config.vocab_size, (batch_size, config.block_size))       # (B, T)
    generator = torch.Generator().manual_seed(0)

    def step():
        batch = make_batch(config, x, generator)
        return train_step(model, losses_of, optimizers, batch, s, s.lr)

    step()                  # this one compiles
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
        step()
        memory += torch.cuda.max_memory_allocated(device)
    return step, s.dtype, memory / 2 ** 20


COLUMNS = {             # of the table: a figure, what it is called there, and its format
    "tok_per_s": ("tokens/s", ",.0f"),
    "baseline_tok_per_s": ("baseline", ",.0f"),
    "speedup": ("tuned ÷ that", ".2f"),
    "ratio_to_ar": ("÷ ar", ".2f"),
    "ms_per_step": ("ms/step", ".1f"),
    "mflop_per_token": ("MFLOP/token", ".1f"),
    "mfu": ("MFU", ".1%"),
    "peak_mem_mb": ("peak MiB", ",.0f")}


def bench_train(config: Config, batch_size: int, o: BenchOptions, device: torch.device) -> dict:
    """{mode: its figures}."""
    configs = {mode: build(Config, asdict(config) | {"mode": mode}) for mode in o.modes.split(",")}
    steps, needs = {}, {}
    for mode, of_mode in configs.items():
        steps[mode], *needs[mode] = training_step(of_mode, batch_size, device)
        steps[f"{mode}, baseline"], *_ = training_step(of_mode, batch_size, device, tuned=False)
    seconds = by_turns(steps, o.repeats, device)
    median = {name: statistics.median(of_steps) for name, of_steps in seconds.items()}
    tokens = batch_size * config.block_size
    figures = {}
    for mode, (dtype, memory) in needs.items():
        took, baseline = median[mode], median[f"{mode}, baseline"]
        flops = flops_per_token(configs[mode])
        figures[mode] = {
            "tok_per_s": tokens / took,
            "baseline_tok_per_s": tokens / baseline,
            "speedup": baseline / took,
            "ratio_to_ar": median.get("ar", math.nan) / took,
            "ms_per_step": 1000 * took,
            "mflop_per_token": flops / 1e6,
            "mfu": flops * tokens / took / peak_flops(device, dtype),
            "peak_mem_mb": memory,
            "dtype": dtype,
            "seconds": seconds[mode]}
    return figures


def main():
    flags = parse_flags(__doc__, BenchOptions, Config)
    o = build(BenchOptions, flags)
    first, *_ = o.modes.split(",")
    device, config, batch_size = begin(o, flags, first)
    figures = bench_train(config, batch_size, o, device)
    rows = [["", *(title for title, _ in COLUMNS.values())]]
    for mode, f in figures.items():
        cells = [format(f[name], form).replace("nan", "–") for name, (_, form) in COLUMNS.items()]
        rows.append([f"{mode}, {f['dtype']}", *cells])
    print_table(rows)
    if o.json:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        write_json(o.json, provenance(0) | {
            "device": name, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "sizes": asdict(config), "batch_size": batch_size, "train": figures})


if __name__ == "__main__":
    command(main, "nothing was written")
