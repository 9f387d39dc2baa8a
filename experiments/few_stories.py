"""
Few stories, many epochs: how near to the toy's law does each mode come, and what does it learn by heart?

    python -m experiments.few_stories --part=sweep          each mode's settings, at the smallest sizes
    python -m experiments.few_stories --part=main           with them every size, three seeds; after sweep
    python -m experiments.few_stories --part=why            K orders, or K epochs' masks again and again
    python -m experiments.few_stories --part=rates          learning rates of narrow and of wide networks
    python -m experiments.few_stories --part=widths         with them five widths, all stories; after rates
    python -m experiments.few_stories --json=F --plot=G     all that is done, as tables and figures

A trial is a run at a constant learning rate. Its distance from the law is that of held-out stories, in nats
per token, what the law itself scores on the same ones taken off: exact for ar, that of an upper bound for the
others. Every other held-out story chooses (the step, the settings), the ones between are reported. Each
trial is a file in --folder; those that are there are not made again, and several processes share the work.
"""
import dataclasses
import itertools
import json
import math
import os
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from model import (Config, Transformer, count_parameters, evaluation_batch, flops_per_token, group_losses,
                   order_batch, training_batch)
from experiments.oracle import toy_oracle
from prepare_data import Tokenizer, Windows
from runs import open_locked
from sample import SampleOptions, generate
from show import figure
from toy import TOY
from train import PRESETS, Settings, learning_rate, make_update, mask_generator

# ---- What is tried -----------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Trial:
    """One run; its name is what differs from these defaults."""
    mode: str = "ar"
    stories: int = 1000             # to train on; 0: all
    seed: int = 1                   # of the choice of stories, weights, data order, masks
    lr: float = 1.5e-3
    weight_decay: float = 0.01
    dropout: float = 0.0            # of what each attention and MLP adds
    noise: float = 0.0              # share of the tokens read that are replaced by random ones
    orders: int = 0                 # aogpt: so many in all, drawn from the seed; 0: a fresh one each time
    repeat: int = 0                 # after so many epochs the same batches, masks and orders again; 0: never
    width: int = 0                  # n_embd; 0: the preset's
    final_lr: float = 1.0           # fraction of the learning rate that a cosine ends at; 1: constant
    steps: int = 3000               # at most
    until: float = 1.5              # stop where the distance is so many times its best

    def name(self) -> str:
        changed = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "mode"]
        return "-".join([self.mode, *(f"{name}={value}" for name, value in changed
                                      if value != getattr(Trial, name))])

MODES = "ar", "aogpt", "mdlm"
SEEDS = 1, 2, 3
SIZES = 300, 1000, 3000, 10000, 0
WIDTHS = 48, 72, 112, 168, 256                          # 0.1M to 2.5M parameters
RATES = 7e-4, 1.5e-3, 3e-3, 6e-3
SWEPT = SIZES[:2]                                       # sizes at which the settings are chosen
STEPS = {300: 1500, 1000: 3000, 3000: 4000, 10000: 6000, 0: 6000, "widths": 3000}

def sweep():
    """Learning rates, and the remedies that the field knows: dropout, noise in what is read, weight decay."""
    for stories in SWEPT:
        remedies = [dict(dropout=d, noise=n) for d in (0.0, 0.1, 0.3) for n in (0.0, 0.1, 0.3)]
        settings = dict(lr=5e-4), dict(lr=3e-3), dict(weight_decay=1.0)
        for changed in remedies + [s | r for s in settings for r in (remedies[0], remedies[4])]:
            yield Trial("ar", stories, seed=0, steps=STEPS[stories], **changed)
    for d, n, lr in (0.3, 0.5, 1.5e-3), (0.5, 0.3, 1.5e-3), (0.3, 0.3, 3e-3):     # few take more
        yield Trial("ar", SWEPT[0], seed=0, steps=STEPS[SWEPT[0]], dropout=d, noise=n, lr=lr)
    for mode, lr in itertools.product(("aogpt", "mdlm"), (7e-4, 1.5e-3, 3e-3)):
        yield Trial(mode, SWEPT[0], seed=0, lr=lr, steps=STEPS[SWEPT[0]])
    for mode in ("aogpt", "mdlm"):
        for remedy in dict(dropout=0.1), dict(dropout=0.3), dict(noise=0.1), dict(dropout=0.3, noise=0.1):
            yield Trial(mode, SWEPT[0], seed=0, steps=STEPS[SWEPT[0]], **remedy)

def chosen(done: dict, mode: str, stories: int) -> dict:
    """The settings that the sweep chose for this size, or the next smaller one that was swept."""
    swept = [Trial(**r["trial"]) for r in done.values() if r["part"] == "sweep"]
    of_mode = [trial for trial in swept if trial.mode == mode]
    sizes = sorted({trial.stories for trial in of_mode})
    size = max((s for s in sizes if 0 < s <= (stories or math.inf)), default=sizes[0])
    best = min((t for t in of_mode if t.stories == size), key=lambda t: done[t.name()]["best"]["chosen_by"])
    return {name: getattr(best, name) for name in ("lr", "weight_decay", "dropout", "noise")}

def main_part(done: dict):
    """Every mode at every size, with its best settings and without any remedy."""
    if missing := sum(trial.name() not in done for trial in sweep()):
        raise InputError(f"{missing} trials of --part=sweep are not done; its choices come first")
    for stories, seed in itertools.product(SIZES, SEEDS):
        common = dict(stories=stories, seed=seed, steps=STEPS[stories])
        if stories == SIZES[1]:         # the figure's
            common["until"] = 5.0
        for mode in MODES:
            yield Trial(mode, **common | chosen(done, mode, stories))
            yield Trial(mode, **common)

def why():
    """How often the task is another one, with the same stories."""
    for seed in SEEDS:
        for orders in (1, 4, 16):
            yield Trial("aogpt", orders=orders, seed=seed)
        for mode, repeat in itertools.product(("aogpt", "mdlm"), (1, 4, 16)):
            yield Trial(mode, repeat=repeat, seed=seed)

def rates():
    """The narrowest and the widest, where one seed chooses."""
    for width, mode, lr in itertools.product((WIDTHS[0], WIDTHS[-1]), MODES, RATES):
        yield Trial(mode, 0, seed=0, lr=lr, width=width, final_lr=0.0, steps=STEPS["widths"] // 2)

def widths(done: dict):
    """All stories, each width with the best learning rate of the end that it is nearer to."""
    best = {}
    for trial in rates():
        if trial.name() not in done:
            raise InputError("run --part=rates to its end first; its choices are needed")
        reached = done[trial.name()]["best"]["chosen_by"], trial.lr
        best[trial.mode, trial.width] = min(reached, best.get((trial.mode, trial.width), reached))
    for width, mode, seed in itertools.product(WIDTHS, MODES, SEEDS):
        end = min((WIDTHS[0], WIDTHS[-1]), key=lambda w: abs(math.log(w / width)))
        yield Trial(mode, 0, seed=seed, lr=best[mode, end][1], width=width, final_lr=0.0,
                    steps=STEPS["widths"])

# ---- A trial -----------------------------------------------------------------------------------------------

def law_of(x, tokenizer: Tokenizer) -> torch.Tensor:
    """(N,) nats per token of the stories x (N, T) under the true law."""
    log_p = [TOY.log_probs(tokenizer.decode_story(row)).sum() for row in x.tolist()]
    return -torch.tensor(log_p) / x.size(1)

def all_orders(trial: Trial, T: int):
    """(K, T): the orders of a trial that has some."""
    return torch.rand(trial.orders, T, generator=mask_generator(trial.seed, 1)).argsort(dim=1)

def batch_of(trial: Trial, config: Config, x, generator):
    """What a training step learns from the stories x (B, T)."""
    if not trial.orders:
        return training_batch(config, x, generator)
    number = torch.randint(trial.orders, (len(x),), generator=generator)
    return order_batch(config, x, all_orders(trial, x.size(1))[number])

def held_out(trial: Trial, config: Config, x, tokenizer: Tokenizer, draws: int = 1, left_to_right=False):
    """Batches that ask for the stories x (N, T), and what the law itself scores on them, (N,). For mdlm that
    is the perfect denoiser's loss with the same masks: over all masks its mean is the law's too, but a hard
    mask is hard for both, so that the difference is far less noisy."""
    if trial.orders:                # those that it has learned
        number = [(torch.arange(len(x)) + draw) % trial.orders for draw in range(draws)]
        batches = [order_batch(config, x, all_orders(trial, x.size(1))[n]) for n in number]
    else:
        batches = [evaluation_batch(config, x, mask_generator(trial.seed, 2, draw), left_to_right)
                   for draw in range(draws)]
    return batches, score(toy_oracle("mdlm"), batches) if trial.mode == "mdlm" else law_of(x, tokenizer)

@torch.no_grad()
def score(model, batches: list) -> torch.Tensor:
    """(N,) nats per token of each story, averaged over the batches."""
    model.eval()
    losses = [torch.cat([group_losses(model, part) for part in batch.split(64)]) for batch in batches]
    return torch.stack(losses).double().mean(dim=0)

def distance(model, batches: list, law):
    """Nats per token above the law (N,), and the standard error over stories."""
    excess = score(model, batches) - law
    return excess.mean().item(), excess.std().item() / math.sqrt(len(law))

@torch.no_grad()
def copies(model, tokenizer: Tokenizer, known: dict, seed: int, samples: int = 1000) -> dict:
    """Shares of sampled stories: grammatical, among the known {story: nats under the law}, grammatical and
    not among them; and the share of known ones that the law itself would draw."""
    model.eval()
    texts, blank = [], torch.full((model.config.block_size,), model.config.mask_id)
    o = SampleOptions(sampler="first_hitting", seed=seed)
    for first in range(0, samples, 100):
        tokens, _ = generate(model, range(first, first + 100), blank, o)
        texts += [tokenizer.decode_story(row) for row in tokens.tolist()]
    good = np.array([TOY.log_probs(text) is not None for text in texts])
    copied = np.array([text in known for text in texts])
    return {"grammatical": good.mean(), "copied": copied.mean(), "new": (good & ~copied).mean(),
            "different": len(set(texts)) / samples,
            "copied_by_law": sum(math.exp(-nats) for nats in known.values())}

def evaluation_steps(most: int) -> list:
    """25, 50, 75, 100, then a fifth more each time."""
    steps = [25, 50, 75, 100]
    while steps[-1] < most:
        steps.append(min(most, 25 * round(steps[-1] * 1.2 / 25)))
    return [step for step in steps if step <= most]

def run(trial: Trial, o) -> dict:
    """Train; returns the trial, its curve, what stood at the chosen step, and what that model writes."""
    torch._dynamo.reset()           # it counts the models it has compiled, and would stop
    values = PRESETS["toy"] | dataclasses.asdict(trial)
    values |= dict(token_noise=trial.noise, max_steps=trial.steps)
    values |= dict(n_embd=trial.width, n_hidden=3 * trial.width) if trial.width else {}
    train = Windows("toy", "train", values["block_size"], seed=trial.seed, first=trial.stories)
    val = Windows("toy", "val", values["block_size"])
    tokenizer = Tokenizer(**val.meta["tokenizer"])
    config, s = build(Config, values | {"vocab_size": tokenizer.vocab_size}), build(Settings, values)
    x = torch.from_numpy(val.spread(len(val)))
    ways = {"bound": False} | ({"left_to_right": True} if trial.mode == "aogpt" and not trial.orders else {})
    choose, report = ({way: held_out(trial, config, half, tokenizer, draws, left)
                       for way, left in ways.items()}
                      for half, draws in ((x[::2][:o.stories], 1), (x[1::2], o.draws)))
    torch.manual_seed(trial.seed)
    model = Transformer(config)
    _, update = make_update(model, s)
    period = max(1, round(trial.repeat * len(train) / s.batch_size)) if trial.repeat else trial.steps
    curve, best, weights, began = [], {}, {}, time.perf_counter()
    evaluations = evaluation_steps(trial.steps)
    for step in tqdm(range(trial.steps), desc=trial.name(), unit="step", leave=False, disable=None):
        torch.manual_seed(trial.seed + step)
        batch = batch_of(trial, config, torch.from_numpy(train.batch(step % period, s.batch_size)),
                         mask_generator(trial.seed, step % period))
        update(batch, learning_rate(s, step))
        if step + 1 not in evaluations:
            continue
        entry = {"step": step + 1, "epochs": (step + 1) * s.batch_size / len(train)}
        for way in ways:
            entry[way], _ = distance(model, *choose[way])
            if entry[way] < best.get(way, {"chosen_by": math.inf})["chosen_by"]:
                best[way] = {"step": entry["step"], "epochs": entry["epochs"], "chosen_by": entry[way]}
                weights[way] = {name: w.clone() for name, w in model.state_dict().items()}
        curve.append(entry)
        if all(entry[way] > trial.until * b["chosen_by"] and step > 2 * b["step"] for way, b in best.items()):
            break
    last = {name: w.clone() for name, w in model.state_dict().items()}
    for way, b in best.items():
        model.load_state_dict(weights[way])
        b["distance"], b["distance_se"] = distance(model, *report[way])
        b["turned"] = curve[-1][way] > 1.5 * b["chosen_by"]
    result = {"trial": dataclasses.asdict(trial), "parameters": count_parameters(model), "curve": curve,
              "flops_per_token": flops_per_token(config), "best": best.pop("bound"), **best}
    if o.part == "main":
        x = torch.from_numpy(train.batch(0, len(train)))
        nats = law_of(x, tokenizer) * config.block_size
        known = dict(zip(map(tokenizer.decode_story, x.tolist()), nats.tolist()))
        for when, state in ("samples", weights["bound"]), ("samples_at_the_end", last):
            model.load_state_dict(state)
            result[when] = copies(model, tokenizer, known, trial.seed, o.samples)
    return result | {"seconds": time.perf_counter() - began, **provenance(trial.seed)}

# ---- What has been found -----------------------------------------------------------------------------------

def spread(values) -> str:
    """Mean ± standard deviation over seeds."""
    values = np.array(values)
    return f"{values.mean():.4f}" + (f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else "")

def by_settings(done: dict, part: str) -> dict:
    """{trial without its seed: results of all its seeds}."""
    groups = {}
    for result in sorted(done.values(), key=lambda r: r["trial"]["seed"]):
        if result["part"] == part:
            groups.setdefault(Trial(**result["trial"] | {"seed": 0}), []).append(result)
    return groups

def label(trial: Trial) -> str:
    remedies = [f"{name} {getattr(trial, name):g}" for name in ("dropout", "noise") if getattr(trial, name)]
    return ", ".join([trial.mode, *remedies])

def row_of(first: list, runs: list, way: str = "best") -> list:
    """A row of a table: what is reported, how it was chosen, and what the model of that step writes."""
    best = [r[way] for r in runs]
    rows = [*first, spread([b["distance"] for b in best]), ", ".join(f"{b['distance']:.4f}" for b in best),
            ", ".join(f"{b['epochs']:.3g}" for b in best), "yes" if all(b["turned"] for b in best) else "no"]
    for share in ("grammatical", "copied", "new") if "samples" in runs[0] else ():
        rows.append(f"{np.mean([r['samples'][share] for r in runs]):.1%}")
    return rows

def flops_of(result: dict) -> float:
    """What a whole run takes in training."""
    s = PRESETS["toy"]
    return result["trial"]["steps"] * s["batch_size"] * s["block_size"] * result["flops_per_token"]

def exponent(points: list):
    """Slope of log y on log x over points (x, y), and its 95% interval from resampling the points."""
    x, y = np.log(points).T
    rng, n = np.random.default_rng(1), len(points)
    picks = [pick for pick in rng.integers(n, size=(2000, n)) if len(set(x[pick])) > 1]
    return np.polyfit(x, y, 1)[0], *np.quantile([np.polyfit(x[p], y[p], 1)[0] for p in picks], (0.025, 0.975))

def tables(done: dict) -> dict:
    """{title: rows}, of every part that has trials."""
    found = {}
    head = ["nats per token above the law", "each seed", "epochs then", "turned"]
    if groups := by_settings(done, "sweep"):
        rows = [["", "stories", "lr", "weight decay", *head]]
        for t in sorted(groups, key=lambda t: (t.mode, t.stories, groups[t][0]["best"]["chosen_by"])):
            rows.append(row_of([label(t), str(t.stories), f"{t.lr:g}", f"{t.weight_decay:g}"], groups[t]))
        found["The settings, one seed, best first"] = rows
    if groups := by_settings(done, "main"):
        rows = [["", "stories", *head, "grammatical", "copied", "new"]]
        for t in sorted(groups, key=lambda t: (t.stories or math.inf, t.mode, t.dropout + t.noise)):
            stories = f"{t.stories:,}" if t.stories else "all"
            rows.append(row_of([label(t), stories], groups[t]))
            if t.mode == "aogpt":
                rows.append(row_of(["aogpt, left to right", stories], groups[t], "left_to_right")[:-3])
                rows[-1] += [""] * 3
        found["From few stories"] = rows
    if groups := by_settings(done, "why"):
        rows = [["", *head]]
        for t in sorted(groups, key=lambda t: (t.mode, t.orders, t.repeat)):
            what = f"{t.orders} order{'s' * (t.orders > 1)} in all" if t.orders else (
                f"{t.repeat} epoch{'s' * (t.repeat > 1)} again and again")
            rows.append(row_of([f"{t.mode}, {what}"], groups[t]))
        found["1,000 stories, fewer tasks"] = rows
    if groups := by_settings(done, "widths"):
        rows, fits = [["", "width", "parameters", "lr", "training FLOPs", *head]], {}
        for t in sorted(groups, key=lambda t: (t.mode, t.width)):
            flops = flops_of(groups[t][0])
            row = [t.mode, str(t.width), f"{groups[t][0]['parameters']:,}", f"{t.lr:g}", f"{flops:.2g}"]
            rows.append(row_of(row, groups[t]))
            fits.setdefault(t.mode, []).extend((flops, r["best"]["distance"]) for r in groups[t])
        found["All stories, five widths"] = rows
        found["Exponent of the distance in training FLOPs"] = [["", "exponent", "95% interval"], *(
            [mode, "{:.3f}".format(fit[0]), "{:.3f} to {:.3f}".format(*fit[1:])]
            for mode, points in fits.items() if (fit := exponent(points)))]
    return found

COLOURS = {"ar": "C0", "aogpt": "C2", "mdlm": "C1"}

def draw_epochs(done: dict, path: str):
    """Distance of the stories that choose against epochs, at one size: seeds thin, their mean thick."""
    with figure(path, (8, 4.6)) as axes:
        for t, runs in by_settings(done, "main").items():
            for way in ("bound", "left_to_right") if t.stories == SIZES[1] else ():
                curves = [{e["epochs"]: e[way] for e in r["curve"] if way in e} for r in runs]
                style = dict(color=COLOURS[t.mode], ls="-" if way == "bound" else ":")
                style["ls"] = style["ls"] if t.dropout + t.noise or way != "bound" else "--"
                for curve in curves if all(curves) else ():
                    axes.plot(*zip(*curve.items()), lw=0.6, alpha=0.6, **style)
                shared = [epoch for epoch in curves[0] if all(epoch in curve for curve in curves)]
                if shared:
                    kind = {"ar": "exact"}.get(t.mode, "upper bound" if way == "bound" else "left to right")
                    mean = [np.mean([curve[epoch] for curve in curves]) for epoch in shared]
                    axes.plot(shared, mean, lw=2, label=f"{label(t)} ({kind})", **style)
        axes.set(xscale="log", yscale="log", xlabel=f"epochs over {SIZES[1]:,} stories",
                 ylabel="nats per token above the true law")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")

def draw_stories(done: dict, path: str):
    """Best distance of the reported stories against the number of stories; a point for each seed."""
    lines = {}
    for t, runs in by_settings(done, "main").items():
        tuned = ", best remedy" if t.dropout + t.noise else ""
        for way in ("best", "left_to_right") if t.mode == "aogpt" else ("best",):
            kind = "left to right" if way != "best" else "exact" if t.mode == "ar" else "upper bound"
            values = [r[way]["distance"] for r in runs]
            lines.setdefault((f"{t.mode}{tuned} ({kind})", t.mode), {})[t.stories] = values
    with figure(path, (8, 4.6)) as axes:
        for (name, mode), values in lines.items():
            ls = ":" if "to right" in name else "-" if "remedy" in name else "--"
            x, values = zip(*sorted((stories or 83333, v) for stories, v in values.items()))
            axes.plot(x, [np.mean(v) for v in values], color=COLOURS[mode], ls=ls, lw=2, label=name)
            for stories, v in zip(x, values):
                axes.plot([stories] * len(v), v, "o", ms=3, color=COLOURS[mode])
        axes.set(xscale="log", yscale="log", xlabel="stories to train on",
                 ylabel="best nats per token above the true law")
        axes.set_xticks(x, [f"{stories:,}" for stories in x])
        axes.yaxis.set_major_formatter("{x:g}")

# ---- The command -------------------------------------------------------------------------------------------

@dataclass
class FewStoriesOptions:
    """what to run, and what to write of all that has been run"""
    part: Literal["none", "sweep", "main", "why", "rates", "widths"] = "none"  # the trials to make
    folder: str = "out/few-stories"     # where each trial's file goes
    stories: int = 1000         # held-out ones that choose; 2,083 others are reported
    draws: int = 2              # masks or orders for each reported story's bound
    samples: int = 500          # stories that each model of --part=main writes (a multiple of 100)
    json: str = ""              # file for all trials' results
    md: str = ""                # file for the tables
    plot: str = ""              # file for a figure (.png): distance against epochs; -n: against stories

def read_trials(folder: str) -> dict:
    """{name: result} of the trials that are done."""
    done = {}
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if file.endswith(".json"):
            with open(os.path.join(folder, file)) as f:
                done[file.removesuffix(".json")] = json.load(f)
    return done

def make(trials, part: str, o: FewStoriesOptions):
    """Run those of the trials that are not done, and that no other process is at."""
    os.makedirs(o.folder, exist_ok=True)
    for trial in dict.fromkeys(trials):
        path = os.path.join(o.folder, trial.name())
        try:
            lock = open_locked(f"{path}.lock")
        except InputError:
            continue
        with lock:
            if not os.path.exists(f"{path}.json"):
                result = run(trial, o)
                write_json(f"{path}.tmp", {"part": part, **result})
                os.replace(f"{path}.tmp", f"{path}.json")
                b = result["best"]
                print(f"{trial.name()}: {b['distance']:.4f} ± {b['distance_se']:.4f} above the law at step "
                      f"{b['step']:,}, {result['seconds']:.0f} s", flush=True)

def write_markdown(path: str, found: dict, command: str):
    """The tables, for reading."""
    with open(path, "w") as f:
        print(f"# Few stories, many epochs\n\nMade by `{command}`.", file=f)
        for title, rows in found.items():
            print(f"\n## {title}\n", file=f)
            for i, row in enumerate(rows):
                print("|", " | ".join(row), "|", file=f)
                if i == 0:
                    print("|---" * len(row) + "|", file=f)

def main():
    o = build(FewStoriesOptions, parse_flags(__doc__, FewStoriesOptions))
    before = read_trials(o.folder)
    parts = {"none": list, "sweep": sweep, "main": lambda: main_part(before), "why": why,
             "rates": rates, "widths": lambda: widths(before)}
    make(parts[o.part](), o.part, o)
    done, made = read_trials(o.folder), provenance(SEEDS)
    for title, rows in (found := tables(done)).items():
        print(f"\n{title}")
        print_table(rows)
    if o.md:
        write_markdown(o.md, found, made["command"])
    if o.json:
        write_json(o.json, {**made, "trials": done})
    if o.plot:
        draw_epochs(done, o.plot)
        draw_stories(done, o.plot.replace(".", "-n."))

if __name__ == "__main__":
    command(main, "the trials that are done are kept, each in a file of its own")
