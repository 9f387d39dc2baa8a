"""
How long it takes to write: seconds and tokens per second of the samplers, with random weights.

    python bench.py                                     the paper's sizes, lengths 64 to 1,024, one story at a time
    python bench.py --batch_sizes=16 --lengths=256,512
    python bench.py --n_layer=4 --n_head=4 --n_embd=256 --n_hidden=704 --vocab_size=4096 --lengths=128,256

Whole stories would take hours without a cache, so a story's cost is the mean of steps timed at evenly spaced places in it,
times the number of steps. The columns of a row are measured one after the other, in one run.
"""
import dataclasses
import itertools
import json
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

import sample
from model import Config, Transformer, masking_batch
from prepare_data import command, fail, parse_flags, provenance


@dataclass
class Options:
    """what to measure"""
    lengths: str = "64,128,256,512,1024"    # tokens of a story
    batch_sizes: str = "1"      # stories at a time
    places: int = 4             # steps are timed at so many places of a story
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for the results


def whole_numbers(name: str, text: str) -> list:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        fail(f"--{name}={text} must be whole numbers above 0, separated by commas")
    return numbers


def all_logits(model, stories, pattern, o):
    """mdlm as a plain loop has it: every step computes the logits of all slots. Compare sample.sample_masked."""
    config = model.config
    device = model.head.weight.device
    when, u = sample.story_noise(o.seed, stories, len(pattern), device)
    tokens = pattern.to(device).expand_as(u)
    for step in range(o.steps):
        masked, now = tokens == config.mask_id, (when * o.steps).long().to(device) == step
        batch = masking_batch(config, tokens, masked, masked.float().mean(dim=1))
        logits = model(batch.tokens, batch.key_pos, batch.target_pos)[:, 1:]                # (B, L, V)
        tokens = tokens.clone()
        tokens[now] = sample.draw(logits[now], u[now.to(u.device)], o.temperature, o.top_p)[0]
        yield tokens


@torch.no_grad()
def step_seconds(model, length: int, batch: int, places: int, timed=3, states=sample.states, **flags) -> float:
    """Seconds of one step, the mean of so many steps at each of so many places in a story. (A masked diffusion step is a pass
    over the whole window and costs the same everywhere, so there it is one place, the beginning.)"""
    config, seconds = model.config, []
    for place in range(places if config.mode != "mdlm" else 1):
        pattern = torch.full((length,), config.mask_id)
        given = length * (2 * place + 1) // (2 * places) if config.mode != "mdlm" else 0
        pattern[:given] = torch.randint(config.vocab_size, (given,))
        ticks = []
        for _, tokens in zip(range(timed + 1), states(model, range(batch), pattern, sample.Options(**flags))):     # the first reads the prompt
            tokens[0, 0].item()                                     # waits for the device
            ticks.append(time.perf_counter())
        seconds.append(np.mean(np.diff(ticks)))
    return float(np.mean(seconds))


# column -> mode, flags of the sampler, weights, steps per story (None: one a token)
COLUMNS = {"ar": ("ar", {}, torch.float32, None),
           "ar, no cache": ("ar", dict(kv_cache=False), torch.float32, None),
           "ar, bf16": ("ar", {}, torch.bfloat16, None),
           "aogpt": ("aogpt", {}, torch.float32, None),
           "mdlm": ("mdlm", dict(sampler="first_hitting"), torch.float32, None),
           "mdlm, 64 steps": ("mdlm", dict(sampler="ancestral", steps=64, timed=8), torch.float32, 64),
           "64, all logits": ("mdlm", dict(states=all_logits, steps=64, timed=8), torch.float32, 64)}


def main():
    flags = parse_flags(__doc__, Options, Config)
    o = Options(**{k: v for k, v in flags.items() if k in Options.__dataclass_fields__})
    lengths, batch_sizes = whole_numbers("lengths", o.lengths), whole_numbers("batch_sizes", o.batch_sizes)
    if min(lengths) < 4 * o.places or o.places < 1:
        fail(f"--places={o.places} must be at least 1 and at most a quarter of the shortest length, {min(lengths)}")
    device = sample.pick_device(o.device)
    sizes = {k: v for k, v in flags.items() if k in Config.__dataclass_fields__} | {"block_size": max(lengths)}
    models = {}
    try:
        for mode, _, dtype, _ in COLUMNS.values():
            if (mode, dtype) not in models:
                torch.manual_seed(0)
                models[mode, dtype] = sample.with_weights_in(Transformer(Config(**sizes | {"mode": mode})).to(device), dtype).eval()
    except ValueError as e:
        fail(str(e))
    print(f"{provenance(0)['machine']}; {device.type}, torch {torch.__version__}, {torch.get_num_threads()} threads; "
          f"seconds to write a batch of stories, one token a step unless said")
    print(f"{'length':>6}{'batch':>6}" + "".join(f"{name:>16}" for name in COLUMNS))
    rows = []
    for batch, length in itertools.product(batch_sizes, lengths):
        row = {"length": length, "batch": batch, "seconds": {}}
        print(f"{length:>6}{batch:>6}", end="", flush=True)
        for name, (mode, options, dtype, steps) in COLUMNS.items():
            row["seconds"][name] = step_seconds(models[mode, dtype], length, batch, o.places, **options) * (steps or length)
            print(f"{row['seconds'][name]:>16.3g}", end="", flush=True)
        s = row["seconds"]
        row["ratios"] = {"ar: no cache / cache": s["ar, no cache"] / s["ar"], "mdlm / aogpt": s["mdlm"] / s["aogpt"],
                         "ar: float32 / bf16": s["ar"] / s["ar, bf16"], "mdlm, 64 steps: all logits / revealed": s["64, all logits"] / s["mdlm, 64 steps"]}
        rows.append(row)
        print()
    for row in rows:
        print(f"length {row['length']}, batch {row['batch']}: " + "; ".join(f"{k} {v:.1f}" for k, v in row["ratios"].items()))
    if o.json:
        with open(o.json, "w") as f:
            json.dump({**provenance(0), "device": device.type, "torch": torch.__version__, "threads": torch.get_num_threads(),
                       "config": dataclasses.asdict(models["ar", torch.float32].config), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    command(main, "nothing was written")
