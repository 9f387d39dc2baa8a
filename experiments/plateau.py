"""
How long does mdlm on real text stay at the frequencies of single words, and what ends that?

    python -m experiments.plateau --part=where      each list of probes; several processes share the work
    python -m experiments.plateau --json=F --md=G --plot=H

A probe is a short run of the preset laptop, half as wide, in bfloat16, without --shared_init, at a constant
learning rate after warm-up, with one thing added. c is a random vector of a token's embedding's norm, as
--shared_init adds it. The plateau ends where the bound is 0.3 nats below what the frequencies of words score
(between two evaluations: on the straight line).
"""
import dataclasses
import itertools
import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, pick_device, print_table, provenance
from experiments.report import mean_of, write_markdown
from experiments.trials import make_trials, read_trials, restore, store, trial_name
from model import Config, Transformer, mask_generator, masking_batch, rotate, training_batch
from prepare_data import Windows
from show import figure
from train import PRESETS, Settings, evaluate, learning_rate, make_update

NARROW = PRESETS["laptop"] | dict(n_embd=128, n_hidden=352)     # a third of the time

@dataclass(frozen=True)
class Probe:
    added: str = "nothing"      # a name of ADDED
    mode: str = "mdlm"
    seed: int = 1
    block_size: int = 256
    batch_size: int = 16        # windows of 256 tokens; as many tokens of others
    size: float = 1.0           # of what is added, times the usual
    lr: float = 8e-3            # the best of longer runs
    warmup: int = 100
    init: str = "scaled"
    optimizer: str = "muon"
    tie_head: bool = True
    target_embedding: bool = True
    windows: str = "aligned"
    steps: int = 200

    name = trial_name

# ---- What is added -----------------------------------------------------------------------------------------

def to_embeddings(model, c, mask=1.0, others=1.0, other=None):
    """c times so much to the rows of real tokens, and to the row of [MASK], or there another vector."""
    with torch.no_grad():
        model.embed.weight += others * c
        model.embed.weight[model.config.mask_id] += (mask * c if other is None else other) - others * c

def to_layers(model, c, attention, mlp):
    """c to the input of these layers' norms, as a constant: not trained, not part of the residual stream."""
    for i, block in enumerate(model.blocks):
        for norm, layers in ((block.norm1, attention), (block.norm2, mlp)):
            if i in layers:
                norm.register_forward_pre_hook(lambda module, inputs: (inputs[0] + c,))

def norm_biases(model):
    """A bias after each of the layers' norms, as LayerNorm has: learned, from zero."""
    for block in model.blocks:
        for norm in (block.norm1, block.norm2):
            bias = torch.nn.Parameter(torch.zeros_like(norm.weight))
            norm.register_parameter("probe", bias)
            norm.register_forward_hook(lambda module, x, y: y + module.probe.to(y.dtype))

def outputs_of(model, layers, parts: str, mlp: bool):
    """(linear layer, (outputs,) ones where its output belongs to these parts of q, k and v, else zeros) of
    these layers, and maybe of their MLPs."""
    ones = model.head.weight.new_tensor([float(part in parts) for part in "qkv"])
    for i in set(layers) & set(range(len(model.blocks))):
        yield model.blocks[i].attention.qkv, ones.repeat_interleave(model.config.n_embd)
        if mlp:
            yield model.blocks[i].mlp.gate_up, ones.new_ones(2 * model.config.n_hidden)

def beside_a_token(c):
    """What a norm leaves of c where it stands beside a token."""
    return math.sqrt(len(c) / 2) * c / c.norm()

def biases(model, c=None, layers=range(99), parts="qkv", mlp=True):
    """A plain bias on these outputs: learned, from zero. With c it moves as far in a step of AdamW as what W
    does to c would: 72 times as far where C = 128, for the C steps of a row add up."""
    speed = 1 if c is None else beside_a_token(c).abs().sum()
    for i, (linear, where) in enumerate(outputs_of(model, layers, parts, mlp)):
        bias = torch.nn.Parameter(torch.zeros_like(where))
        model.register_parameter(f"probe_{i}", bias)
        linear.register_forward_hook(
            lambda module, x, y, bias=bias, where=where: y + (speed * where * bias).to(y.dtype))

def through(model, c, initial, learned, layers=range(99), parts="qkv", mlp=True):
    """What these linear layers W do to c: so much of V u, where V is W at the start, and so much of (W - V) u
    is added to their outputs, u being what the norm leaves of c beside a token. The second is a bias that is
    zero at first, and moves as W takes it there: fast under AdamW (see biases), less so under Muon."""
    u = beside_a_token(c)
    for linear, where in outputs_of(model, layers, parts, mlp):
        first = linear.weight.detach().clone()

        def add(module, x, y, first=first, where=where):
            return y + (where * F.linear(u, learned * (module.weight - first) + initial * first)).to(y.dtype)

        linear.register_forward_hook(add)

def without_mean_key(model):
    """Takes from each layer's keys, before rotation, their mean; returns what undoes that."""
    hooks = [linear.register_forward_hook(lambda module, x, y, where=where: y - where * y.mean(dim=(0, 1)))
             for linear, where in outputs_of(model, range(99), "k", mlp=False)]
    return lambda: [hook.remove() for hook in hooks]

def without_the_mean(model):
    """Takes from the outputs what the linear layers have learned to do to the mean of what they read, be it
    of c or of all else that slots have in common: (W - V) u, u the mean of the batch (in mdlm's last MLP: of
    its masked tokens)."""
    for linear, _ in outputs_of(model, range(99), "qkv", mlp=True):
        first = linear.weight.detach().clone()

        def take(module, x, y, first=first):
            return y - F.linear(x[0].detach().mean(dim=(0, 1)), module.weight - first).to(y.dtype)

        linear.register_forward_hook(take)

def smaller(model):
    """What c leaves of a token's embedding after the norm."""
    for block in model.blocks:
        block.norm1.weight.data *= math.sqrt(0.5)
        block.norm2.weight.data *= math.sqrt(0.5)

ADDED = {       # what a model of n layers gets, with c (C,) and, for what needs another vector, c2 (C,)
    "nothing": lambda m, c, c2: None,
    "c to all embeddings": lambda m, c, c2: to_embeddings(m, c),
    "c to real tokens": lambda m, c, c2: to_embeddings(m, c, mask=0),
    "c to [MASK]": lambda m, c, c2: to_embeddings(m, c, others=0),
    "c to real tokens, -c to [MASK]": lambda m, c, c2: to_embeddings(m, c, mask=-1),
    "c to real tokens, another to [MASK]": lambda m, c, c2: to_embeddings(m, c, other=c2),
    "c before all layers": lambda m, c, c2: to_layers(m, c, range(99), range(99)),
    "c before attention of layer 1": lambda m, c, c2: to_layers(m, c, (0,), ()),
    "biases of norms": lambda m, c, c2: norm_biases(m),
    "plain biases": lambda m, c, c2: biases(m),
    "plain biases, 72 times as fast": lambda m, c, c2: biases(m, c),
    "plain bias of k of layer 1, 72 times as fast": lambda m, c, c2: biases(m, c, (0,), "k", False),
    "plain bias of q of layer 1, 72 times as fast": lambda m, c, c2: biases(m, c, (0,), "q", False),
    "plain bias of v of layer 1, 72 times as fast": lambda m, c, c2: biases(m, c, (0,), "v", False),
    "c's bias": lambda m, c, c2: through(m, c, 1, 1),
    "c's bias, as it begins": lambda m, c, c2: through(m, c, 1, 0),
    "c's bias, as it begins, k of layer 1": lambda m, c, c2: through(m, c, 1, 0, (0,), "k", False),
    "c's bias, as it begins, q and k": lambda m, c, c2: through(m, c, 1, 0, parts="qk", mlp=False),
    "c's bias, as it begins, v and MLP": lambda m, c, c2: through(m, c, 1, 0, parts="v"),
    "c's bias, what is learned": lambda m, c, c2: through(m, c, 0, 1),
    "c's bias, what is learned, k of layer 1": lambda m, c, c2: through(m, c, 0, 1, (0,), "k", False),
    "c to all embeddings, nothing learned of the mean": lambda m, c, c2: (
        to_embeddings(m, c), without_the_mean(m)),
    "embeddings smaller, as beside c": lambda m, c, c2: smaller(m),
}

# ---- The probes --------------------------------------------------------------------------------------------

SEEDS = 1, 2, 3

def where():
    """Which rows need c, which layers; and is it the bias, as it begins or as fast as it learns?"""
    return [Probe(added, seed=seed) for seed in SEEDS for added in ADDED]

def with_and_without(*others):
    """Probes in other settings, with c and without."""
    return [Probe(added, seed=seed, **other) for seed in SEEDS for other in others
            for added in ("nothing", "c to all embeddings")]

def how_much():
    """Vectors shorter and longer than c."""
    return with_and_without({}) + [Probe("c to all embeddings", seed=seed, size=size)
                                   for seed in SEEDS for size in (0.25, 0.5, 2.0, 4.0)]

def lengths():
    """Does the plateau grow with the window? Windows from anywhere: the beginnings of stories, which short
    ones would be, are much alike. A batch has as many tokens whatever the window; those of shorter windows
    count as up to 1.5 times as many of equal weight (weights.md), hence the last one, with so many more."""
    return with_and_without(*(dict(block_size=T, windows="random") for T in (32, 64, 128, 256)),
                            dict(batch_size=24, windows="random"))

def settings():
    """Is it the optimizer, the learning rate, the warm-up, the initialisation, the positions, the mode? What
    is left after as many steps as a model takes: confounds.md, "no common vector"."""
    return with_and_without(dict(optimizer="adamw", lr=4e-3, steps=400), dict(lr=4e-3, steps=400),
                            dict(lr=1.6e-2), dict(warmup=20), dict(init="paper", tie_head=False, steps=600),
                            dict(target_embedding=False), dict(mode="aogpt"), dict(mode="ar"))

PARTS = {"where": where, "how_much": how_much, "lengths": lengths, "settings": settings}

# ---- A probe -----------------------------------------------------------------------------------------------

@torch.no_grad()
def looks(model, x, generator) -> dict:
    """mdlm's attention in layer 1 from masked slots, of the head that has most of it: what visible slots get,
    and of that those at distance 1, each divided by what even attention would give."""
    config, block = model.config, model.blocks[0]
    masked = torch.rand(x.shape, generator=generator) < 0.5
    batch = masking_batch(config, x, masked, torch.full((len(x),), 0.5)).to(model.head.weight.device)
    h = model.embed(batch.tokens)
    if config.target_embedding:
        h = h + model.embed_target(batch.target_pos.clamp(min=0))
    qkv = block.attention.qkv(block.norm1(h)).view(*h.shape[:2], 3, config.n_head, -1)
    q, k, _ = qkv.permute(2, 0, 3, 1, 4)                                                # (B, H, S, D) each
    rotary = model.rotary[:, batch.key_pos + 1].unsqueeze(2)
    scores = rotate(q, rotary) @ rotate(k, rotary).transpose(-2, -1) / math.sqrt(q.size(-1))    # (B, H, S, S)
    visible, place = (batch.tokens != config.mask_id)[:, None, None], torch.arange(h.size(1), device=h.device)
    pairs = visible & ~visible.mT                           # (B, 1, S, S) from masked slots to visible ones
    beside = pairs & ((place[:, None] - place).abs() == 1)

    def most(pairs, among):
        share, even = (x.masked_fill(~among, -math.inf).softmax(dim=-1) * pairs     # (B, H, S, S)
                       for x in (scores, torch.zeros_like(scores)))
        return (share.sum(dim=(0, 2, 3)) / even.sum(dim=(0, 2, 3))).max().item()

    return {"visible": most(pairs, among=torch.ones_like(visible)), "near": most(beside, among=visible)}

def run(probe: Probe, o) -> dict:
    """Train; returns the validation losses at eighths of it, and for mdlm where its first layer looks."""
    torch._dynamo.reset()
    values = NARROW | dataclasses.asdict(probe)
    values |= dict(shared_init=False, max_steps=probe.steps, final_lr=1.0, dtype="bfloat16")
    shorter = max(1, NARROW["block_size"] // probe.block_size)
    values["batch_size"] *= shorter
    train, val = (Windows(o.data, split, probe.block_size, probe.windows, probe.seed)
                  for split in ("train", "val"))
    x = torch.from_numpy(val.spread(o.windows * shorter))                           # (N, T)
    vocab_size = val.meta["tokenizer"]["vocab_size"]
    config, s = build(Config, values | {"vocab_size": vocab_size}), build(Settings, values)
    torch.manual_seed(probe.seed)
    model, device = Transformer(config), pick_device(o.device)
    c, c2 = probe.size * torch.randn(2, config.n_embd).to(device)
    if probe.init == "scaled":
        c, c2 = c / math.sqrt(config.n_embd), c2 / math.sqrt(config.n_embd)
    model.to(device)
    ADDED[probe.added](model, c, c2)
    _, update = make_update(model, s)
    curve, began = [], time.perf_counter()
    for step in tqdm(range(probe.steps), desc=probe.name(), unit="step", leave=False, disable=None):
        batch = training_batch(config, torch.from_numpy(train.batch(step, s.batch_size)),
                               mask_generator(probe.seed, step))
        update(batch, learning_rate(s, step))
        if (step + 1) * 8 % probe.steps < 8:        # eight times, at last at the end
            curve.append({"step": step + 1, **evaluate(model, x, 8, probe.seed)})
            if not math.isfinite(curve[-1]["val_nll"]):
                raise InputError(f"{probe.name()} diverged at step {step + 1}; try a lower lr")
            if config.mode == "mdlm":
                curve[-1] |= looks(model, x[:16], mask_generator(probe.seed, 1))
    put_back = without_mean_key(model)
    no_mean_key = evaluate(model, x, 8, probe.seed)["val_nll"]
    put_back()
    counts = np.bincount(train.tokens, minlength=vocab_size) + 1
    unigram = -np.log(counts / counts.sum())[x.numpy()].mean().item()   # what the words' frequencies score
    return {"probe": dataclasses.asdict(probe), "curve": curve, "without_mean_key": no_mean_key,
            "unigram": unigram, "device": str(device), "seconds": time.perf_counter() - began,
            **provenance(probe.seed)}

# ---- What has been found -----------------------------------------------------------------------------------

def ended(run: dict) -> float:
    """The step at which the plateau ended: −inf if before the first evaluation, inf if after the last."""
    curve, loss = [(entry["step"], entry["val_nll"]) for entry in run["curve"]], run["unigram"] - 0.3
    if curve[0][1] < loss:
        return -math.inf
    for (before, high), (step, low) in itertools.pairwise(curve):
        if low < loss:
            return before + (step - before) * (high - loss) / (high - low)
    return math.inf

def table_of(part: str, done: dict) -> list:
    """A row for each probe but for its seed."""
    groups = {}
    for probe in PARTS[part]():
        groups.setdefault(dataclasses.replace(probe, seed=1).name(), []).append(done[probe.name()])
    rows = [["added", "the plateau ends at step", "bound at the end", "each seed", "looks at words", "beside",
             "without the mean key"]]
    for name, runs in groups.items():
        values, at = [run["curve"][-1]["val_nll"] for run in runs], runs[0]["curve"]
        beyond = {-math.inf: f"< {at[0]['step']}", math.inf: f"> {at[-1]['step']}"}
        steps = ", ".join(beyond.get(step := ended(run), f"{step:.0f}") for run in runs)
        seen = [f"{np.mean([run['curve'][-1].get(of, math.nan) for run in runs]):.2f}"
                for of in ("visible", "near")]
        no_mean = np.mean([run["without_mean_key"] - value for run, value in zip(runs, values)])
        rows.append([name.replace("_", " "), steps, mean_of(values, 3),
                     ", ".join(f"{value:.3f}" for value in values), *seen, f"{no_mean:+.3f}"])
    return rows

def draw(done: dict, path: str):
    """Some of the list `where`: the bound against steps, a line for each seed."""
    with figure(path, (8, 5)) as axes:
        for i, added in enumerate(("nothing", "c to [MASK]", "c to real tokens", "c to all embeddings",
                                   "c to all embeddings, nothing learned of the mean",
                                   "plain bias of k of layer 1, 72 times as fast")):
            for seed in SEEDS:
                curve = done[Probe(added, seed=seed).name()]["curve"]
                axes.plot([entry["step"] for entry in curve], [entry["val_nll"] for entry in curve], lw=1.2,
                          color=f"C{i}", label=added if seed == 1 else None)
        axes.set(xlabel="step", ylabel="validation bound, nats per token")

@dataclass
class PlateauOptions:
    """what to run, and what to write of all that has been run"""
    part: Literal["none", "where", "how_much", "lengths", "settings"] = "none"  # the probes to make
    data: str = "excerpt-choose"    # data set with 4,096 tokens
    windows: int = 100          # of its validation stories
    folder: str = "out/plateau"     # where each probe's file goes
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for all probes' results
    md: str = ""                # file for the tables
    plot: str = ""              # file for a figure (.png)

def main():
    o = build(PlateauOptions, parse_flags(__doc__, PlateauOptions))

    def missing(done, part=o.part):
        return [probe for probe in dict.fromkeys(PARTS[part]()) if probe.name() not in done]

    restore(o.folder, o.json)
    if o.part != "none":
        make_trials(o.folder, missing, lambda probe: run(probe, o),
                    lambda result: f"{result['curve'][-1]['val_nll']:.3f}, {result['seconds']:.0f} s")
    done, made = read_trials(o.folder), provenance(SEEDS)
    tables = {part: table_of(part, done) for part in PARTS if not missing(done, part)}
    for part, rows in tables.items():
        print(f"\n{part}")
        print_table(rows)
    if o.json:
        store(o.json, {**made, "trials": done})
    if o.md:
        write_markdown(o.md, "What ends the plateau", made, __doc__, tables)
    if o.plot and "where" in tables:
        draw(done, o.plot)

if __name__ == "__main__":
    command(main, "the probes that are done are kept, each in a file of its own")
