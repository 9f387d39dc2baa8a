"""
Few stories, many epochs: how near to the toy's law does each mode come, and what does it memorize?

    python -m experiments.few_stories --part=sizes          settings for each mode, then every size with them
    python -m experiments.few_stories --part=not_told       ar and mdlm with --target_embedding=false
    python -m experiments.few_stories --part=why            K orders, or K epochs' masks, in all
    python -m experiments.few_stories --part=widths         learning rates, then five widths, on all stories
    python -m experiments.few_stories --json=F --plot=G     all that is done, as tables and figures

A trial is a run, at a constant learning rate but for widths. Its distance from the law is that of held-out
stories: nats per token, less what the law itself scores on the same ones; exact for ar, that of an upper
bound for the others. Some held-out stories choose the step and the settings, others are reported. A trial has
turned if both its last evaluations are over 1.5 times its best distance. Each trial is a file in --folder;
those that are there, or in --json, are not made again, and several processes share the work, best with a
core each (OMP_NUM_THREADS=1).
"""
import dataclasses
import itertools
import math
import os
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from matplotlib.ticker import LogLocator
from tqdm import tqdm

from cli import build, command, parse_flags, pick_device, print_table, provenance
from model import (Config, Transformer, count_parameters, evaluation_batch, flops_per_token,
                   losses_in_parts, mask_generator, order_batch, training_batch)
from experiments.oracle import toy_oracle
from experiments.report import mean_of, write_markdown
from experiments.trials import make_trials, read_trials, restore, store, trial_name
from prepare_data import Tokenizer, Windows
from sample import SampleOptions, generate
from show import figure
from toy import TOY
from train import PRESETS, Settings, learning_rate, make_update

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
    l2r_fraction: float = 0.1       # aogpt: of rows that are read left to right, where orders are fresh
    repeat: int = 0                 # after so many epochs the same batches, masks and orders again; 0: never
    width: int = 0                  # n_embd; 0: the preset's
    final_lr: float = 1.0           # fraction of the learning rate that a cosine ends at; 1: constant
    batch_size: int = 32
    steps: int = 2000               # at most
    target_embedding: bool = True
    until: float = 1.5              # stop where the distance has twice been so many times its best; see run

    name = trial_name

MODES = "ar", "aogpt", "mdlm"
SEEDS, CHOOSING = (1, 2, 3), (0, 4, 5)                  # of what is reported; of what chooses settings
FIGURE = 1000                                           # stories of the first figure
SIZES = FIGURE, 300, 3000, 10000, 0
WIDTHS = 48, 72, 112, 168, 256                          # 0.07M to 1.8M parameters
STEPS = 2000                                            # of a run
LONG = 4000                                             # where stories are few, of mdlm and with dropout
FEW = SIZES[:2]                                         # sizes at which the settings are chosen
HELPED = SIZES[:3]                                      # where remedies are used; more is read too seldom
RATES = {"ar": (1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2),    # learning rates
         "aogpt": (1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2), "mdlm": (1.5e-3, 3e-3, 6e-3, 7e-4)}
ENDS = {WIDTHS[0]: (7e-4, 1.5e-3, 3e-3, 6e-3, 1.2e-2),              # and of the widths' two ends
        WIDTHS[-1]: (3.5e-4, 7e-4, 1.5e-3, 3e-3, 6e-3)}

def steps_of(mode: str, stories: int, dropout: float) -> int:
    return LONG if stories in HELPED and (mode == "mdlm" or dropout > 0) else STEPS

def tried(mode: str, stories: int, dropout: float = 0.0, **other) -> Trial:
    """One of seed 0, which chooses. ar has the most of them: they take STEPS even with dropout."""
    steps = STEPS if mode == "ar" else steps_of(mode, stories, dropout)
    return Trial(mode, stories, 0, dropout=dropout, steps=steps, **other)

def sweep(stories: int):
    """Learning rates, and the remedies that the field knows, with one seed; ar is tried with most. At other
    sizes than FEW those of the figure's size stand in."""
    stories = stories if stories in FEW else FIGURE
    for mode in MODES:
        noise = 0.3 if mode == "ar" else 0.0            # masks and orders are some already
        for lr in RATES[mode]:
            yield tried(mode, stories, lr=lr)
        for lr in RATES[mode][:2]:
            yield tried(mode, stories, lr=lr, dropout=0.3, noise=noise)
        if mode == "ar":
            yield tried(mode, stories, dropout=0.3)
            yield tried(mode, stories, noise=0.3)
            yield tried(mode, stories, weight_decay=1.0)
        if stories == min(FEW):
            yield tried(mode, stories, dropout=0.5, noise=noise)

def plain(trial: Trial) -> bool:
    return (trial.weight_decay, trial.dropout, trial.noise) == (0.01, 0, 0)

def chosen_by(done: dict, trial: Trial) -> float:
    return done[trial.name()]["best"]["chosen_by"]

def finalists(done: dict, trials):
    """Of each mode the best two of the trials, with more seeds: one may be lucky."""
    trials = sorted(trials, key=lambda trial: chosen_by(done, trial))
    for mode in MODES:
        for trial, seed in itertools.product([t for t in trials if t.mode == mode][:2], CHOOSING):
            yield dataclasses.replace(trial, seed=seed)

def chosen(done: dict, mode: str, trials) -> dict:
    """The settings of the mode's best finalist."""
    groups = {}
    for trial in finalists(done, [t for t in trials if t.mode == mode]):
        groups.setdefault(dataclasses.replace(trial, seed=0), []).append(chosen_by(done, trial))
    best = min(groups, key=lambda trial: np.mean(groups[trial]))
    return {name: getattr(best, name) for name in ("lr", "weight_decay", "dropout", "noise")}

def at_size(done: dict, stories: int):
    """Every mode with the best settings, if so few are read often, and with the best that have no remedy."""
    swept = list(sweep(stories))
    choices = [swept] * (stories in HELPED) + [list(filter(plain, swept))]
    until = 4.0 if stories == FIGURE else 1.5           # at the size of the figure, far past the turn
    for trials, seed, mode in itertools.product(choices, SEEDS, MODES):
        values = chosen(done, mode, trials)
        yield Trial(mode, stories, seed, until=until, **values,
                    steps=steps_of(mode, stories, values["dropout"]))

def untold(done: dict):
    """The figure's runs without remedies again, without the target embedding, which aogpt keeps."""
    for trial in at_size(done, FIGURE):
        if trial.mode != "aogpt" and plain(trial):
            yield dataclasses.replace(trial, target_embedding=False)

def other_tasks(done: dict):
    """How often the task is another one, with the same stories; 0: always."""
    bare = list(filter(plain, sweep(FIGURE)))
    for seed, number in itertools.product(SEEDS, (0, 1, 4, 16)):
        for mode, task in ("aogpt", dict(orders=number, l2r_fraction=0.0)), ("mdlm", dict(repeat=number)):
            yield Trial(mode, FIGURE, seed, steps=steps_of(mode, FIGURE, 0), until=4.0, **task,
                        **chosen(done, mode, bare))

def rates(width: int):
    """One of the narrowest and the widest, where one seed chooses."""
    for mode, lr in itertools.product(MODES, ENDS[width]):
        yield Trial(mode, 0, seed=0, lr=lr, width=width, final_lr=0.0, steps=STEPS)

def safe_rate(done: dict, mode: str, width: int) -> float:
    """The lowest learning rate that comes to 1.5 times the best one's distance: the best of one seed may be
    the last before runs fail. (ar's, 1.2e-2 and 6e-3 at the ends, left two of two seeds at 0.025 between.)"""
    found = {trial.lr: chosen_by(done, trial) for trial in rates(width) if trial.mode == mode}
    return min(lr for lr in found if found[lr] <= 1.5 * min(found.values()))

def at_widths(done: dict):
    """All stories; learning rates between those of the two ends."""
    for width, mode, seed in itertools.product(WIDTHS, MODES, SEEDS):
        ends = [math.log(safe_rate(done, mode, end)) for end in ENDS]
        lr = math.exp(np.interp(math.log(width), np.log(list(ENDS)), ends))
        yield Trial(mode, 0, seed=seed, lr=float(f"{lr:.2g}"), width=width, final_lr=0.0, steps=STEPS)

def after(done: dict, first, then):
    """The first trials; those of the generator `then`, whose settings they choose, once they are done."""
    first = list(first)
    yield from first
    if all(trial.name() in done for trial in first):
        yield from then

def with_settings(done: dict, stories: int, then):
    """The trials of a generator that needs settings, after those that choose them."""
    swept = list(sweep(stories))
    best = itertools.chain(finalists(done, swept), finalists(done, filter(plain, swept)))
    yield from after(done, swept, after(done, best, then))

def sizes(done: dict):
    for stories in SIZES:
        yield from with_settings(done, stories, at_size(done, stories))

def not_told(done: dict):
    yield from with_settings(done, FIGURE, untold(done))

def why(done: dict):
    yield from with_settings(done, FIGURE, other_tasks(done))

def widths(done: dict):
    yield from after(done, itertools.chain(*map(rates, ENDS)), at_widths(done))

PARTS = {"sizes": sizes, "not_told": not_told, "why": why, "widths": widths}

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
        batches = [evaluation_batch(config, x, mask_generator(trial.seed, 2, draw + 1), left_to_right)
                   for draw in range(draws)]
    return batches, score(toy_oracle("mdlm"), batches) if trial.mode == "mdlm" else law_of(x, tokenizer)

@torch.no_grad()
def score(model, batches: list) -> torch.Tensor:
    """(N,) nats per token of each story, averaged over the batches."""
    model.eval()
    return torch.stack([losses_in_parts(model, batch) for batch in batches]).mean(dim=0)

def distance(model, batches: list, law):
    """Nats per token above the law (N,), and the standard error over stories."""
    excess = score(model, batches) - law
    return excess.mean().item(), excess.std().item() / math.sqrt(len(law))

@torch.no_grad()
def copies(model, tokenizer: Tokenizer, known: dict, seed: int, samples: int) -> dict:
    """Shares of sampled stories: grammatical, among the known {story: nats under the law}, grammatical and
    not among them; and the share of known ones that the law itself would draw."""
    model.eval()
    texts, blank = [], torch.full((model.config.block_size,), model.config.mask_id)
    o = SampleOptions(seed=seed)
    for first in range(0, samples, 100):
        tokens, _ = generate(model, range(first, min(samples, first + 100)), blank, o)
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
    values = PRESETS["toy"] | dict(dtype="float32") | dataclasses.asdict(trial)
    values |= dict(token_noise=trial.noise, max_steps=trial.steps)
    values |= dict(n_embd=trial.width, n_hidden=3 * trial.width) if trial.width else {}
    train = Windows("toy", "train", values["block_size"], seed=trial.seed, at_most=trial.stories)
    val = Windows("toy", "val", values["block_size"])
    tokenizer = Tokenizer(**val.meta["tokenizer"])
    config, s = build(Config, values | {"vocab_size": tokenizer.vocab_size}), build(Settings, values)
    x = torch.from_numpy(val.spread(len(val)))
    ways = {"bound": False} | ({"left_to_right": True} if trial.mode == "aogpt" and not trial.orders else {})
    choose, report = ({way: held_out(trial, config, half, tokenizer, draws, left)
                       for way, left in ways.items()}
                      for half, draws in ((x[::2][:o.stories], 1), (x[1::2], o.draws)))
    torch.manual_seed(trial.seed)
    model = Transformer(config).to(pick_device(o.device))
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
        # high learning rates rise and fall again, in the warm-up above all
        if step > 500 and all(min(entry[way], curve[-2][way]) > trial.until * b["chosen_by"]
                              and step > 2 * b["step"] for way, b in best.items()):
            break
    last = {name: w.clone() for name, w in model.state_dict().items()}
    for way, b in best.items():
        model.load_state_dict(weights[way])
        b["distance"], b["distance_se"] = distance(model, *report[way])
        b["turned"] = min(entry[way] for entry in curve[-2:]) > 1.5 * b["chosen_by"]
    columns = {name: [float(f"{entry[name]:.5g}") for entry in curve] for name in curve[0]}
    result = {"trial": dataclasses.asdict(trial), "parameters": count_parameters(model), "curve": columns,
              "flops_per_token": flops_per_token(config),
              "device": str(model.head.weight.device), "best": best.pop("bound"), **best}
    if trial.seed in SEEDS and not (trial.orders or trial.repeat or trial.width):
        x = torch.from_numpy(train.batch(0, len(train)))
        nats = law_of(x, tokenizer) * config.block_size
        known = dict(zip(map(tokenizer.decode_story, x.tolist()), nats.tolist()))
        for when, state in ("samples", weights["bound"]), ("samples_at_the_end", last):
            model.load_state_dict(state)
            result[when] = copies(model, tokenizer, known, trial.seed, o.samples)
    return result | {"seconds": time.perf_counter() - began, **provenance(trial.seed)}

# ---- What has been found -----------------------------------------------------------------------------------

def missing(part: str, done: dict) -> list:
    """The trials of a part that can be made now."""
    return [trial for trial in dict.fromkeys(PARTS[part](done)) if trial.name() not in done]

def by_settings(trials, done: dict) -> dict:
    """{trial without its seed: results of all its seeds}, of those that are done."""
    groups = {}
    for trial in dict.fromkeys(trials):
        groups.setdefault(dataclasses.replace(trial, seed=0), []).append(done.get(trial.name()))
    return {trial: runs for trial, runs in groups.items() if all(runs)}

def kinds_of(done: dict) -> dict:
    """{heading: groups of trials, see by_settings}, of what is done."""
    def of(part, seeds):
        return [trial for trial in part(done) if trial.seed in seeds]

    trials = {"sweep": of(sizes, CHOOSING),
              "sizes": of(sizes, SEEDS) + of(not_told, SEEDS), "why": of(why, SEEDS),
              "rates": of(widths, CHOOSING), "widths": of(widths, SEEDS)}
    groups = {kind: by_settings(several, done) for kind, several in trials.items()}
    return {kind: several for kind, several in groups.items() if several}

def label(trial: Trial) -> str:
    """The mode, and what it is helped by."""
    names = {"dropout": "dropout", "noise": "noise", "weight_decay": "weight decay"}
    told = [] if trial.target_embedding else ["not told positions"]
    return ", ".join([trial.mode, *told, *(f"{names[name]} {getattr(trial, name):g}" for name in names
                                    if getattr(trial, name) != getattr(Trial, name))])

HEAD = ["above the law, mean ± s.d. of seeds", "each seed", "best after epochs", "turned"]

def row_of(first: list, runs: list, way: str = "best") -> list:
    """A row of a table: nats per token of the reported stories above the law, at the steps chosen."""
    best = [run[way] for run in runs]
    values = [b["distance"] for b in best]
    return [*first, mean_of(values), ", ".join(f"{value:.4f}" for value in values),
            ", ".join(f"{b['epochs']:.3g}" for b in best),
            f"{sum(b['turned'] for b in best)} of {len(best)}"]

def shares(runs: list, when: str) -> list:
    """Of the stories that the models wrote: grammatical, copies of training stories, grammatical and new."""
    names = "grammatical", "copied", "new"
    return [f"{np.mean([run[when][name] for run in runs]):.1%}" for name in names]

def read_of(stories: int) -> int:
    """How many of so many stories training reads; of all, less than an epoch."""
    return stories or Trial.batch_size * STEPS

def stories_of(trial: Trial) -> str:
    return f"{trial.stories:,}" if trial.stories else "all"

def slope(points: list) -> list:
    """Of log y on log x over five points (x, y): the slope and its 95% interval, t with 3 d.o.f."""
    (exponent, _), covariance = np.polyfit(*np.log(points).T, 1, cov=True)
    error = 3.182 * math.sqrt(covariance[0, 0])
    return [f"{exponent:.3f}", f"{exponent - error:.3f} to {exponent + error:.3f}"]

def table_of(kind: str, groups: dict) -> list:
    """Rows of text, the first is the head."""
    if kind == "sweep":
        order = sorted(groups, key=lambda t: (
            t.stories, t.mode, np.mean([run["best"]["chosen_by"] for run in groups[t]])))
        return [["the best by the other half first", "stories", "lr", *HEAD]] + [
            row_of([label(t), stories_of(t), f"{t.lr:g}"], groups[t]) for t in order]
    if kind == "sizes":
        shared = ["grammatical", "copies", "grammatical and new"]
        rows = [["", "stories", "lr", *HEAD, *shared, *(f"{name}, at the end" for name in shared)]]
        for t, runs in sorted(groups.items(), key=lambda group: read_of(group[0].stories)):
            about = [stories_of(t), f"{t.lr:g}"]
            rows.append(row_of([label(t), *about], runs)
                        + shares(runs, "samples") + shares(runs, "samples_at_the_end"))
            if t.mode == "aogpt":
                rows.append(row_of([f"{label(t)}, left to right", *about], runs, "left_to_right") + [""] * 6)
        return rows
    if kind == "why":
        rows = [["1,000 stories, without remedies", *HEAD]]
        for t in groups:
            what = f"{t.orders} order{'s' * (t.orders > 1)} in all, scored in them" if t.orders else (
                f"the same {t.repeat} epoch{'s' * (t.repeat > 1)} over and over" if t.repeat else "as it is")
            rows.append(row_of([f"{t.mode}, {what}"], groups[t]))
        return rows
    rows = [["all stories", "width", "parameters", "lr", *HEAD]]
    lines = {}
    for t, runs in groups.items():
        for way, name in ("best", t.mode), ("left_to_right", f"{t.mode}, left to right"):
            if way in runs[0]:
                about = [name, str(t.width), f"{runs[0]['parameters']:,}", f"{t.lr:g}"]
                rows.append(row_of(about, runs, way))
                distance_of = np.mean([run[way]["distance"] for run in runs])
                lines.setdefault(name, []).append((runs[0]["flops_per_token"], distance_of))
    if kind == "widths":
        rows += [[f"{name}: exponent in FLOPs, 95% interval", *slope(points), *[""] * 5]
                 for name, points in lines.items() if len(points) == len(WIDTHS)]
    return rows

# ---- The figures -------------------------------------------------------------------------------------------

COLOURS = {"ar": "C0", "aogpt": "C2", "mdlm": "C1"}

def lines_of(trial: Trial) -> dict:
    """{which result: how its line is drawn} of a trial: with remedies solid, without dashed."""
    helped, colour = not plain(trial), COLOURS[trial.mode]
    how = "with remedies" if helped else "as it is" if trial.target_embedding else "not told positions"
    kind = f"{trial.mode}, {how}"
    style = dict(color=colour, ls="-" if helped else "--" if trial.target_embedding else ":")
    lines = {"bound": dict(label=f"{kind} ({'exact' if trial.mode == 'ar' else 'bound'})", **style)}
    if trial.mode == "aogpt":
        lines["left_to_right"] = dict(style, label=f"{kind}, left to right (exact)", color="C6")
    return lines

def number(*axes):
    """Marks on log scales at 0.1, 0.2, 0.5, 1 and so on."""
    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(lambda x, _: "")

def draw_epochs(groups: dict, path: str):
    """Distance of the stories that choose against epochs, at one size: seeds thin, their mean thick."""
    with figure(path, (9, 5)) as axes:
        for t, runs in groups.items():
            for way, style in lines_of(t).items() if t.stories == FIGURE else ():
                lines = [list(zip(run["curve"]["epochs"], run["curve"][way])) for run in runs]
                for line in lines:
                    axes.plot(*zip(*line), lw=0.6, alpha=0.6, **style | {"label": None})
                n = min(map(len, lines))                # some seeds stop before others
                axes.plot(*np.mean([line[:n] for line in lines], axis=0).T, lw=2, **style)
        axes.set(xscale="log", yscale="log", xlabel=f"epochs over {FIGURE:,} stories",
                 ylabel="nats per token above the true law")
        number(axes.xaxis, axes.yaxis)

def draw_best(groups: dict, path: str, x_of, xlabel: str, ticks=()):
    """Best distance of the reported stories against x_of(trial, result); a point for each seed."""
    lines = {}
    for t, runs in groups.items():
        for way, style in lines_of(t).items():
            style, points = lines.setdefault(style["label"], (style, {}))
            points[x_of(t, runs[0])] = [run["best" if way == "bound" else way]["distance"] for run in runs]
    with figure(path, (9, 5)) as axes:
        for style, points in lines.values():
            axes.plot(*zip(*sorted((x, np.mean(values)) for x, values in points.items())), lw=2, **style)
            for x, values in points.items():
                axes.plot([x] * len(values), values, "o", ms=4, color=style["color"],
                          mfc=style["color"] if style["ls"] == "-" else "white")
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="best nats per token above the true law")
        axes.set_ylim(top=10 * axes.get_ylim()[1])      # the legend is there
        if ticks:
            axes.set_xticks(ticks, [f"{x:,}" for x in ticks])
        number(axes.yaxis)

# ---- The command -------------------------------------------------------------------------------------------

@dataclass
class FewStoriesOptions:
    """what to run, and what to write of all that has been run"""
    part: Literal["none", "sizes", "not_told", "why", "widths"] = "none"    # the trials to make
    folder: str = "out/few-stories"     # where each trial's file goes
    stories: int = 512          # held-out ones that choose; 2,083 others are reported
    draws: int = 2              # masks or orders for each reported story's bound
    samples: int = 300          # stories that each reported model writes
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for all trials' results; those already in it are not made again
    md: str = ""                # file for the tables
    plot: str = ""              # file for a figure (.png): against epochs; -sizes: stories; -widths: FLOPs

def line(result: dict) -> str:
    b = result["best"]
    return f"{b['distance']:.4f} ± {b['distance_se']:.4f} above the law at step {b['step']:,}, " \
           f"{result['seconds']:.0f} s"

def main():
    o = build(FewStoriesOptions, parse_flags(__doc__, FewStoriesOptions))
    restore(o.folder, o.json)
    if o.part != "none":
        make_trials(o.folder, lambda done: missing(o.part, done), lambda trial: run(trial, o), line)
    done, made = read_trials(o.folder), provenance(SEEDS)
    kinds = kinds_of(done)
    tables = {kind: table_of(kind, groups) for kind, groups in kinds.items()}
    for kind, rows in tables.items():
        print(f"\n{kind}")
        print_table(rows)
    if o.md:
        write_markdown(o.md, "Few stories, many epochs", made, __doc__, tables)
    if o.plot and "sizes" in kinds:
        draw_epochs(kinds["sizes"], o.plot)
        told = {trial: runs for trial, runs in kinds["sizes"].items() if trial.target_embedding}
        draw_best(told, "-sizes".join(os.path.splitext(o.plot)),
                  lambda trial, result: read_of(trial.stories), "stories to train on", [*map(read_of, SIZES)])
    if o.plot and "widths" in kinds:
        tokens = STEPS * Trial.batch_size * PRESETS["toy"]["block_size"]
        draw_best(kinds["widths"], "-widths".join(os.path.splitext(o.plot)),
                  lambda trial, result: tokens * result["flops_per_token"], "training FLOPs")
    if o.json:
        store(o.json, {**made, "trials": done})

if __name__ == "__main__":
    command(main, "the trials that are done are kept, each in a file of its own")
