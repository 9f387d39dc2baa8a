"""
How much of the toy does mdlm learn in the first minute? What the preset takes, and what was tried instead.

    python -m experiments.first_minute --json=F --md=G      the trials that are not done, and the table of all

Each trial trains the preset toy with something else, in bfloat16, and is asked for its distance from the law
on held-out stories, nats per token (from one pair of masks each, beside the perfect denoiser's with the same
ones), and for stories, one token a step: the share that is grammatical. Each is a file in --folder; several
processes share the work, best with one core each (OMP_NUM_THREADS=1). Compare them by FLOPs: seconds
contain what else the machine does. FLOPs are the network's: Muon's own products are not counted.
"""
import dataclasses
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from cli import build, command, parse_flags, print_table, provenance
from experiments.few_stories import Trial as FewStories
from experiments.few_stories import copies, distance, held_out
from experiments.report import write_markdown
from experiments.trials import make_trials, read_trials, restore, store, trial_name
from model import Config, Transformer, flops_per_token, mask_generator, training_batch
from prepare_data import Tokenizer, Windows
from train import PRESETS, Settings, learning_rate, make_update

SEEDS = 1, 2, 3

@dataclass(frozen=True)
class Trial:
    """A run; its name is what differs from these defaults, the preset's."""
    mode: str = "mdlm"
    seed: int = 1
    steps: int = 2000
    lr: float = 2e-3
    warmup: int = 100
    batch_size: int = 64
    beta2: float = 0.99
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 128
    shared_init: bool = True
    target_embedding: bool = True
    optimizer: str = "adamw"
    objective: str = "nelbo"
    final_lr: float = 0.0
    ema: float = 0.0        # the weights are averaged over about 1 / (1 - ema) steps; 0: they are the last

    name = trial_name

def trials() -> list:
    """The preset, another loss, Muon in half as many steps, both, Muon in about the preset's time, and a
    third more time for either optimizer, with three seeds; other settings with one, at about the preset's
    FLOPs, or for Muon at half of them."""
    loss, muon = dict(objective="masked_ce"), dict(optimizer="muon", steps=1000, lr=4e-3)
    others = [dict(lr=1.5e-3), dict(lr=3e-3), dict(beta2=0.95), dict(ema=0.99), dict(ema=0.99, final_lr=0.2),
              dict(n_head=2), dict(n_layer=3, steps=1400), dict(batch_size=128, steps=1000, lr=3e-3),
              muon | dict(lr=2e-3), muon | dict(lr=8e-3), loss | dict(lr=3e-3)]
    thrice = [{}, loss, muon, muon | loss, muon | dict(steps=1500), muon | dict(steps=2000), dict(steps=2600)]
    return [Trial(seed=seed, **values) for values in thrice for seed in SEEDS] + [
        Trial(**values) for values in others]

def run(trial: Trial, o) -> dict:
    """Train; returns the trial, its distance from the law, and what of its stories is grammatical."""
    torch._dynamo.reset()           # it counts the models it has compiled, and would stop
    values = PRESETS["toy"] | dataclasses.asdict(trial)
    values |= dict(max_steps=trial.steps, n_hidden=3 * trial.n_embd, dtype="bfloat16")
    train = Windows("toy", "train", values["block_size"], seed=trial.seed)
    val = Windows("toy", "val", values["block_size"])
    tokenizer = Tokenizer(**val.meta["tokenizer"])
    config, s = build(Config, values | {"vocab_size": tokenizer.vocab_size}), build(Settings, values)
    x = torch.from_numpy(val.spread(o.stories))                                     # (N, T)
    batches, law = held_out(FewStories(trial.mode, seed=trial.seed), config, x, tokenizer)
    torch.manual_seed(trial.seed)
    model = Transformer(config)
    _, update = make_update(model, s)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(trial.ema))
    began = time.perf_counter()
    for step in tqdm(range(trial.steps), desc=trial.name(), unit="step", leave=False, disable=None):
        batch = training_batch(config, torch.from_numpy(train.batch(step, s.batch_size)),
                               mask_generator(trial.seed, step))
        update(batch, learning_rate(s, step))
        if trial.ema:
            average.update_parameters(model)
    seconds = time.perf_counter() - began
    model = average.module if trial.ema else model
    above, error = distance(model, batches, law)
    flops = trial.steps * s.batch_size * config.block_size * flops_per_token(config)
    return {"trial": dataclasses.asdict(trial), "distance": above, "distance_se": error, "flops": flops,
            "training_seconds": seconds, **copies(model, tokenizer, {}, trial.seed, o.samples),
            **provenance(trial.seed)}

# ---- The command -------------------------------------------------------------------------------------------

@dataclass
class FirstMinuteOptions:
    """what to run, and what to write of all that has been run"""
    folder: str = "out/first-minute"    # where each trial's file goes
    stories: int = 2000         # held-out ones
    samples: int = 1000         # stories that each model writes
    json: str = ""              # file for all trials' results
    md: str = ""                # file for the table

def line(result: dict) -> str:
    return f"{result['distance']:.4f} ± {result['distance_se']:.4f} above the law, " \
           f"{result['grammatical']:.1%} grammatical, {result['training_seconds']:.0f} s"

def table_of(done: dict) -> list:
    """Rows of text, the first is the head; best first."""
    groups = {}
    for result in done.values():
        trial = Trial(**result["trial"])
        groups.setdefault(dataclasses.replace(trial, seed=0), []).append(result)
    rows = [["differs from the preset in", "nats per token above the law", "grammatical", "TFLOP"]]
    for trial, runs in sorted(groups.items(), key=lambda g: np.mean([run["distance"] for run in g[1]])):
        runs.sort(key=lambda run: run["trial"]["seed"])
        _, *changed = dataclasses.replace(trial, seed=Trial.seed).name().split("-")
        above = ", ".join(f"{run['distance']:.4f} ± {run['distance_se']:.4f}" for run in runs)
        good = ", ".join(f"{run['grammatical']:.1%}" for run in runs)
        rows.append([", ".join(changed) or "nothing", above, good, f"{runs[0]['flops'] / 1e12:.1f}"])
    return rows

def main():
    o = build(FirstMinuteOptions, parse_flags(__doc__, FirstMinuteOptions))
    restore(o.folder, o.json)
    make_trials(o.folder, lambda done: [t for t in trials() if t.name() not in done],
                lambda trial: run(trial, o), line)
    done, made = read_trials(o.folder), provenance(SEEDS)
    table = table_of(done)
    print_table(table)
    if o.md:
        write_markdown(o.md, "The first minute", made, __doc__, {"": table})
    if o.json:
        store(o.json, {**made, "trials": done})

if __name__ == "__main__":
    command(main, "the trials that are done are kept, each in a file of its own")
