"""
How fast it trains and writes, with random weights and random tokens.

    python bench.py                                     training: every mode, tuned beside the plain way, and their ratios
    python bench.py --preset=paper --batch_size=2       the same at 124M parameters
    python bench.py --what=sample --preset=paper        writing: every sampler, lengths 64 to 1,024, one story at a time
    python bench.py --what=sample --stories=16 --lengths=256,512
    python bench.py --what=scaling --modes=ar,mdlm      a step's cost against block size, batch, width and processes

What stands in one table is measured in one run, training by turns. tuned: as train.py does it by default. baseline: eager float32 and
logits of every slot, as the paper's code has it. --json=F keeps all of it.
"""
import ctypes
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

import sample
from model import Config, Transformer, flops_per_token, masking_batch, training_batch
from prepare_data import command, fail, parse_flags, print_table, provenance, write_json
from train import WORLD, Settings, join_processes, make_update, numerics, part_processes, total

SWEEP = ("what", "modes", "lengths", "stories")


@dataclass
class Options:
    """what to measure"""
    what: Literal["train", "sample", "scaling"] = ("train",)  # several: train,sample
    modes: Literal["ar", "mdlm", "aogpt"] = ("ar", "mdlm", "aogpt")  # of training
    preset: Literal["auto", "small", "paper"] = "auto"  # sizes, where no flag says otherwise; auto: paper where CUDA is present
    batch_size: int = None      # windows per training step; default: 8, paper 32
    repeats: int = 5            # measurements of each, by turns
    lengths: int = (64, 128, 256, 512, 1024)  # tokens of a story
    stories: int = (1,)         # written at a time
    few: int = 64               # steps per story of the samplers that reveal several tokens a step
    places: int = 4             # sampling steps are timed at so many places of a story
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for the results


SIZES = {"small": dict(n_layer=6, n_head=4, n_embd=256, n_hidden=704, block_size=256, batch_size=8), "paper": dict(batch_size=32)}
PEAK = {"H200": 989e12, "H100 80GB HBM3": 989e12, "A100": 312e12}     # dense bfloat16 FLOP/s, from the makers' data sheets


def by_turns(steps: dict, repeats: int, device) -> dict:
    """{name: seconds per step of each repeat}, the names by turns; a repeat lasts half a second or one step."""
    seconds, count = {name: [] for name in steps}, {}
    wait = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    for _ in range(repeats + 1):
        for name, step in steps.items():
            wait()
            began = time.perf_counter()
            for _ in range(count.get(name, 1)):
                step()
            wait()
            took = (time.perf_counter() - began) / count.get(name, 1)
            if name in count:
                seconds[name].append(took)
            else:   # the first turn, which doesn't count; several processes must agree
                count[name] = max(1, int(total(torch.tensor(0.5 / took, device=device)) / WORLD))
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
    """The most memory in use since the last reset, in MB; on a CPU that of the whole process, nan where Linux isn't."""
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / 2 ** 20
    if not os.path.exists("/proc/self/clear_refs"):
        return float("nan")
    if reset:
        ctypes.CDLL(None).malloc_trim(0)        # what was freed must not count as in use
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


# ----------------------------------------------------------------------------------------------------------------------
# Training


def training_step(config: Config, batch_size: int, device, tuned=True):
    """step(), one optimizer step as train.py makes it, compiled and warm; and what it needs: memory, logits, in MB."""
    torch.manual_seed(0)
    s = Settings(batch_size=batch_size, **({} if tuned else dict(dtype="float32", compile="false")))
    dtype, _ = numerics(s, device)
    model = Transformer(config).to(device)
    _, update = make_update(model, s)
    x, generator = torch.randint(config.vocab_size, (batch_size, config.block_size)), torch.Generator().manual_seed(0)

    def step():
        return update(training_batch(config, x, generator), s.lr)

    step()                                                              # compiles
    step()[0].item()
    before = memory_mb(device, reset=True)
    step()[0].item()
    held = 12 / 2 ** 20 * sum(p.numel() for p in model.parameters())    # float32 weights and two moments
    slots = training_batch(config, x, generator).targets.numel()
    return step, {"dtype": str(dtype).removeprefix("torch."), "peak_mem_mb": held + memory_mb(device) - before,
                  "logits_mb": slots * config.padded_vocab * dtype.itemsize / 2 ** 20}


def bench_train(o: Options, sizes: dict, batch_size: int, device) -> dict:
    """Prints a table; {mode: figures}."""
    steps, figures = {}, {}
    for mode in o.modes:
        plain = dict(objective="masked_ce", schedule="cosine") if mode == "mdlm" else {}    # its head is on every slot
        config, figures[mode] = Config(mode, **sizes), {}
        for kind, c in (("", config), ("baseline_", Config(mode, **sizes | plain))):
            steps[mode, kind], needs = training_step(c, batch_size, device, tuned=not kind)
            figures[mode] |= {kind + name: value for name, value in needs.items()}
    seconds = by_turns(steps, o.repeats, device)
    peak, tokens = peak_flops(device, numerics(Settings(), device)[0]) * WORLD, batch_size * config.block_size
    rows = [["", "tokens/s", "(range)", "baseline", "tuned ÷ that", "÷ ar", "ms/step", "MFLOP/token", "MFU", "peak MB", "baseline", "logits MB"]]
    for mode, f in figures.items():
        took, flops = seconds[mode, ""], flops_per_token(Config(mode, **sizes))
        to_ar = statistics.median(np.divide(seconds.get(("ar", ""), math.nan), took))
        f |= dict(tok_per_s=tokens / statistics.median(took), baseline_tok_per_s=tokens / statistics.median(seconds[mode, "baseline_"]),
                  ms_per_step=1000 * statistics.median(took), flops_per_token=flops, ratio_to_ar=to_ar, seconds=took)
        f["mfu"] = f["tok_per_s"] * flops / peak
        rows.append([mode, f"{f['tok_per_s']:,.0f}", f"({tokens / max(took):,.0f}–{tokens / min(took):,.0f})", f"{f['baseline_tok_per_s']:,.0f}",
                     f"{f['tok_per_s'] / f['baseline_tok_per_s']:.2f}", f"{to_ar:.2f}", f"{f['ms_per_step']:.1f}", f"{flops / 1e6:.1f}",
                     f"{f['mfu']:.1%}", f"{f['peak_mem_mb']:,.0f}", f"{f['baseline_peak_mem_mb']:,.0f}", f"{f['logits_mb']:,.0f}"])
    print(f"\ntraining, {batch_size} windows of {config.block_size} tokens a step, median of {o.repeats}; peak {peak / 1e12:.3g} TFLOP/s")
    print_table(rows)
    return figures


# ----------------------------------------------------------------------------------------------------------------------
# Scaling: how a step's cost grows


def exponent(x, y) -> float:
    """The slope of log y over log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def bench_scaling(o: Options, sizes: dict, batch_size: int, device) -> list:
    """Each size in turn at 1, 2 and 4 times, the expected exponent being that of the FLOPs; and 1, 2, 4 … processes of one thread
    or GPU each, with as many windows for each, where a step should take as long."""
    results, base = [], Config("ar", **sizes)

    def add(mode, name, values, ms, expected):
        results.append({"mode": mode, "against": name, "values": values, "ms": ms, "exponent": exponent(values, ms), "expected": expected})

    for mode, name in itertools.product(o.modes, ("block_size", "batch_size", "n_embd")):
        values = [int(f * (batch_size if name == "batch_size" else getattr(base, name))) for f in (1, 2, 4)]
        ms, flops = [], []
        for value in tqdm(values, desc=f"{mode}, {name}", leave=False, disable=None):
            wider = dict(n_hidden=base.n_hidden * value // base.n_embd) if name == "n_embd" else {}
            config = Config(mode, **sizes | wider | ({name: value} if name != "batch_size" else {}))
            batch = value if name == "batch_size" else batch_size
            torch._dynamo.reset()
            step, _ = training_step(config, batch, device)
            ms.append(1000 * statistics.median(by_turns({"": step}, o.repeats, device)[""]))
            flops.append(flops_per_token(config) * config.block_size * batch)
        add(mode, name, values, ms, exponent(values, flops))
    most = torch.cuda.device_count() if device.type == "cuda" else torch.get_num_threads()
    processes = [2 ** i for i in range(most.bit_length())]
    for mode in o.modes if most > 1 else ():
        ms = []
        for n in processes:
            with tempfile.TemporaryDirectory() as folder:
                flags = sizes | dict(modes=mode, batch_size=n * batch_size, repeats=o.repeats, device=o.device, json=f"{folder}/r.json")
                subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}", __file__,
                                *(f"--{k}={v}" for k, v in flags.items())], check=True, stdout=subprocess.DEVNULL,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
                with open(f"{folder}/r.json") as f:
                    ms.append(json.load(f)["train"][mode]["ms_per_step"])
        add(mode, "processes", processes, ms, 0.0)
    print("\nms of a training step")
    print_table([["", "against", "", "exponent", "expected"], *(
        [r["mode"], r["against"], ", ".join(f"{v}: {t:,.0f}" for v, t in zip(r["values"], r["ms"])), f"{r['exponent']:.2f}", f"{r['expected']:.2f}"]
        for r in results)])
    return results


# ----------------------------------------------------------------------------------------------------------------------
# Sampling. Whole stories would take hours without a cache, so a story's cost is the mean of steps timed at evenly spaced places
# in it, times the number of steps


def all_logits(model, stories, pattern, o):
    """mdlm as a plain loop has it: every step computes the logits of all slots. Compare sample.sample_masked."""
    config, device = model.config, model.head.weight.device
    when, u = sample.story_noise(o.seed, stories, len(pattern), device)
    tokens = pattern.to(device).expand_as(u)
    for step in range(o.steps):
        masked = tokens == config.mask_id
        now = masked & ((when * o.steps).long().to(device) == step)
        batch = masking_batch(config, tokens, masked, t=None)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos)[:, 1:]                # (B, L, V)
        tokens = tokens.masked_scatter(now, sample.draw(logits[now], u[now.to(u.device)], o.temperature, o.top_p)[0])
        yield tokens


@torch.no_grad()
def story_seconds(model, length: int, stories: int, places: int, few=None, states=sample.states, **flags) -> float:
    """Seconds to write so many stories at once, one token a step or in `few` steps: three steps at each of so many places."""
    steps, seconds = min(few or length, length), []
    for place in range(places):
        given = length * (2 * place + 1) // (2 * places)
        pattern = torch.full((length,), model.config.mask_id)
        pattern[:given] = torch.randint(model.config.vocab_size, (given,))
        o, ticks = sample.Options(steps=max(1, round(steps * (length - given) / length)), **flags), []
        for _, tokens in zip(range(4), states(model, range(stories), pattern, o)):      # the first reads the prompt
            tokens[0, 0].item()                                     # waits for the device
            ticks.append(time.perf_counter())
        seconds += [np.mean(np.diff(ticks))] if len(ticks) > 1 else []      # a short rest may be over after one step
    return steps * float(np.mean(seconds))


# column -> mode, weights, and what story_seconds takes; with few=True in --few steps
COLUMNS = {"ar": ("ar", torch.float32, {}),
           "ar, no cache": ("ar", torch.float32, dict(kv_cache=False)),
           "ar, bf16": ("ar", torch.bfloat16, {}),
           "aogpt": ("aogpt", torch.float32, {}),
           "mdlm": ("mdlm", torch.float32, dict(sampler="first_hitting")),
           "aogpt, few steps": ("aogpt", torch.float32, dict(few=True)),
           "ancestral, few": ("mdlm", torch.float32, dict(few=True)),
           "confidence, few": ("mdlm", torch.float32, dict(sampler="confidence", few=True)),
           "all logits, few": ("mdlm", torch.float32, dict(states=all_logits, few=True))}
RATIOS = {"÷ cache": ("ar, no cache", "ar"), "mdlm ÷ aogpt": ("mdlm", "aogpt"), "all logits ÷ ours": ("all logits, few", "ancestral, few")}


def bench_sample(o: Options, sizes: dict, device) -> list:
    models = {}
    for mode, dtype, _ in COLUMNS.values():
        if (mode, dtype) not in models:
            torch.manual_seed(0)
            models[mode, dtype] = Transformer(Config(mode, **sizes | {"block_size": max(o.lengths)})).to(device)
            for p in models[mode, dtype].parameters():      # the table of positions stays float32
                p.data = p.data.to(dtype)
    results, rows = [], [["tokens", "stories", *COLUMNS, *RATIOS]]
    for stories, length in tqdm(list(itertools.product(o.stories, o.lengths)), leave=False, disable=None):
        seconds = {name: story_seconds(models[mode, dtype], length, stories, o.places, **flags | ({"few": o.few} if "few" in flags else {}))
                   for name, (mode, dtype, flags) in COLUMNS.items()}
        ratios = {name: seconds[a] / seconds[b] for name, (a, b) in RATIOS.items()}
        results.append({"length": length, "stories": stories, "seconds": seconds, "ratios": ratios})
        rows.append([str(length), str(stories), *(f"{v:.3g}" for v in seconds.values()), *(f"{v:.2f}" for v in ratios.values())])
    print(f"\nsampling, seconds to write a batch of stories, one token a step, or in {o.few}; and ratios")
    print_table(rows)
    return results


def main():
    flags = parse_flags(__doc__, Options, Config, sweep=SWEEP)
    o = Options(**{k: v for k, v in flags.items() if k in Options.__dataclass_fields__})
    if "mode" in flags:
        fail(f"--mode={flags['mode']}: the modes to measure are --modes=ar,mdlm,aogpt")
    if min(o.lengths) < 4 * o.places:
        fail(f"--places={o.places} must be at most a quarter of the shortest length, {min(o.lengths)}")
    device = join_processes(o.device)
    preset = o.preset if o.preset != "auto" else "paper" if device.type == "cuda" else "small"
    sizes = SIZES[preset] | {k: v for k, v in flags.items() if k in (*Config.__dataclass_fields__, "batch_size")}
    batch_size = sizes.pop("batch_size")
    if batch_size % (2 * WORLD):
        fail(f"--batch_size={batch_size} must be even for every process (mdlm's rows come in pairs)")
    try:
        Config(**sizes)
    except ValueError as e:
        fail(str(e))
    results = {**provenance(0), "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type, "torch": torch.__version__,
               "threads": torch.get_num_threads(), "processes": WORLD, "sizes": sizes, "batch_size": batch_size}
    print(f"{results['machine']}; {results['device']}, torch {torch.__version__}, {results['threads']} threads, {WORLD} processes, "
          f"{str(numerics(Settings(), device)[0]).removeprefix('torch.')}, commit {results['commit']}; {sizes or 'the sizes of the paper'}", flush=True)
    if "train" in o.what:
        results["train"] = bench_train(o, sizes, batch_size, device)
    if "scaling" in o.what:
        results["scaling"] = bench_scaling(o, sizes, batch_size, device)
    if "sample" in o.what:
        results["sample"] = bench_sample(o, sizes, device)
    part_processes()
    if o.json:
        write_json(o.json, results)


if __name__ == "__main__":
    command(main, "nothing was written")
