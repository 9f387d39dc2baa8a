"""
What drafting and confirming gives: tokens per network pass and seconds, beside one token a pass.

    python -m experiments.speculative --models=out/toy-aogpt --json=F --plot=F

Seconds of one model and number of stories are measured alternately. --like=FOLDER: also the 124M sizes, with
random weights, of whose drafts as many are kept in each round as of that model's: what a pass costs does not
depend on weights, how many passes it takes does.
"""
import itertools
import json
import os
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

import sample
from cli import InputError, build, command, parse_flags, provenance, write_json
from model import Config, Transformer
from runs import open_model
from show import figure

@dataclass
class SpeculativeOptions:
    """what to measure"""
    models: str = ""            # folders of aogpts: A,B,…
    drafts: tuple[int, ...] = (2, 4, 8, 16, 32)  # tokens
    stories: tuple[int, ...] = (1, 16)  # at a time
    total: int = 64             # stories over which passes are averaged
    repeats: int = 2            # of the timing
    order: Literal["random", "left_to_right"] = "random"    # in which they are written
    like: str = ""              # folder of an aogpt, see above
    length: int = 256           # tokens of a story of the 124M sizes
    seed: int = 1337            # of the stories
    json: str = ""              # file for the results
    plot: str = ""              # file for a figure (.png)
    redraw: str = ""            # draw the figure of this file of results, measure nothing

def run(model, stories, draft, o: SpeculativeOptions, length: int):
    """Seconds and passes of the network, as many as the batch's slowest story needs."""
    passes, forward = [], model.forward
    model.forward = lambda *inputs, **named: passes.append(0) or forward(*inputs, **named)
    flags = sample.SampleOptions(draft=draft, order=o.order, seed=o.seed, full_length=True)
    began = time.perf_counter()
    sample.generate(model, stories, torch.full((length,), model.config.mask_id), flags)
    seconds = time.perf_counter() - began
    model.forward = forward
    return seconds, len(passes)

def measure(model, o: SpeculativeOptions, length: int, kept=None) -> list:
    """kept: {(draft, stories): per round the number of tokens kept, (stories, 1)} to repeat."""
    rows, confirm = [], sample.confirm
    for stories in o.stories:
        seconds, passes = {}, {}
        ways = [None, *(m for m in o.drafts if m < length)]
        for repeat, draft in itertools.product(range(o.repeats), ways):
            if kept and draft:
                rounds = iter(kept[draft, stories])
                sample.confirm = lambda p, q, draft, u: (confirm(p, q, draft, u)[0], next(rounds))
            took, passes[draft] = run(model, range(stories), draft, o, length)
            seconds.setdefault(draft, []).append(took)
            sample.confirm = confirm
        for draft in ways:
            ratio = np.median(np.divide(seconds[None], seconds[draft]))
            rows.append({"stories": stories, "draft": draft, "passes": passes[draft],
                         "seconds": seconds[draft], "times_faster": float(ratio)})
            print(f"  {stories} stories, draft {draft}: {passes[draft]} passes, "
                  f"{np.median(seconds[draft]):.2f} s, {ratio:.2f} times as fast", flush=True)
    return rows

def record(model, o: SpeculativeOptions, length: int):
    """Of o.total stories, for each draft: passes, tokens per pass, share of drafts kept (the first of a round
    always is; in rounds but a story's last). And what `measure` takes as kept."""
    confirm, law, kept = sample.confirm, [], {}
    for draft in (m for m in o.drafts if m < length):
        for stories in (*o.stories, o.total):                   # the last one for the law
            counts = kept[draft, stories] = []

            def note(*inputs):
                tokens, count = confirm(*inputs)
                counts.append(count)
                return tokens, count

            sample.confirm = note
            flags = sample.SampleOptions(draft=draft, order=o.order, seed=o.seed, full_length=True)
            pattern = torch.full((length,), model.config.mask_id)
            _, appeared = sample.generate(model, range(stories), pattern, flags)
            sample.confirm = confirm
        rounds = appeared.amax(dim=1) + 1                                           # (total,)
        alone = (appeared == appeared.amax(dim=1, keepdim=True)).sum(dim=1) == 1
        passes = 2 * rounds - alone.long()
        # tokens of every round but each story's last: one more than it keeps of its drafts
        whole = [n for row in appeared for n in row.bincount()[:-1].tolist()]
        law.append({"draft": draft, "passes": passes.float().mean().item(),
                    "tokens_per_pass": length * len(passes) / passes.sum().item(),
                    "drafts_kept": (sum(whole) / len(whole) - 1) / draft if whole else None})
        print(f"  draft {draft}: {law[-1]['tokens_per_pass']:.2f} tokens a pass, "
              f"{100 * (law[-1]['drafts_kept'] or np.nan):.0f}% of drafts kept", flush=True)
    return law, kept

@torch.no_grad()
def rounding(folder: str, o: SpeculativeOptions, stories=8) -> dict:
    """Mean and largest total variation between the conditionals of the same tokens when asked for one by one
    and all at once, as confirming does; and between those of bfloat16 and float32 weights."""
    asked = {}
    for dtype in ("float32", "bfloat16"):
        model, *_ = open_model(folder, "cpu", dtype)
        L, s = model.config.block_size, sample.SampleOptions(seed=o.seed, full_length=True)
        order = torch.rand(stories, L, generator=torch.Generator().manual_seed(o.seed)).argsort(dim=1)
        if dtype == "float32":
            blank = torch.full((L,), model.config.mask_id)
            tokens, _ = sample.generate(model, range(stories), blank, s)
        slots = torch.arange(L).expand(stories, -1)
        for size in (1, L):
            _, predict = sample.slots_in_order(model, tokens, order, s)
            parts = [predict(part, part[:, -1:], size) for part in slots.split(size, dim=1)]
            asked[dtype, size] = torch.cat(parts, dim=1).double().softmax(dim=-1)

    def variation(p, q):
        tv = (p - q).abs().sum(dim=-1) / 2
        return {"mean": tv.mean().item(), "largest": tv.max().item()}

    together = {dtype: variation(asked[dtype, 1], asked[dtype, L]) for dtype in ("float32", "bfloat16")}
    return together | {"bfloat16 for float32": variation(asked["float32", 1], asked["bfloat16", 1])}

def draw_speed(results: dict, path: str):
    """Left: tokens per pass against the draft's length. Right: times as fast as one token a pass."""
    drafted = (row["draft"] for result in results.values() for row in result["speed"])
    ticks = sorted(set(filter(None, drafted)))
    with figure(path, (10, 4), columns=2) as panels:
        for i, (folder, result) in enumerate(results.items()):
            name = os.path.basename(folder)
            style = dict(color=f"C{i}", marker="o")
            if "law" in result:
                x, y = zip(*((row["draft"], row["tokens_per_pass"]) for row in result["law"]))
                panels[0].plot(x, y, label=name, **style)
            counts = dict.fromkeys(row["stories"] for row in result["speed"])
            for stories, ls in zip(counts, ("-", "--", ":")):
                x, y = zip(*((row["draft"], row["times_faster"]) for row in result["speed"]
                             if row["stories"] == stories and row["draft"]))
                panels[1].plot(x, y, ls=ls, label=f"{name}, {stories} at a time", **style)
        panels[1].axhline(1, color="k", lw=1)
        for axes, label in zip(panels, ("tokens per network pass", "times as fast as one token a pass")):
            axes.set(xscale="log", xticks=ticks, xticklabels=ticks, ylabel=label,
                     xlabel="tokens drafted in a round")
            axes.minorticks_off()
        panels[1].tick_params(labelleft=True)       # one scale, two quantities
        panels[1].legend(fontsize=8)

def main():
    o = build(SpeculativeOptions, parse_flags(__doc__, SpeculativeOptions))
    if o.redraw:
        if not o.plot:
            raise InputError("--redraw draws a figure; give its file, --plot=F.png")
        with open(o.redraw) as f:
            return draw_speed(json.load(f)["results"], o.plot)
    if not o.models:
        raise InputError("which models? give --models=DIR,DIR, aogpts")
    results, models = {}, {folder: open_model(folder, "cpu")[0] for folder in o.models.split(",")}
    if {model.config.mode for model in models.values()} != {"aogpt"}:
        raise InputError(f"--models={o.models} must be aogpts, which alone can draft")
    if o.like and (o.like not in models or models[o.like].config.block_size != o.length):
        raise InputError(f"--like={o.like} must be one of --models, with --length={o.length} tokens a story")
    for folder, model in models.items():
        print(folder, flush=True)
        law, kept = record(model, o, model.config.block_size)
        results[folder] = {"law": law, "speed": measure(model, o, model.config.block_size),
                           "rounding": rounding(folder, o)}
        print(f"  total variation of conditionals asked for at once: {results[folder]['rounding']}")
        if folder == o.like:
            torch.manual_seed(0)
            large = Transformer(Config("aogpt", block_size=max(512, o.length))).eval()
            print("124M", flush=True)
            results["124M"] = {"like": folder, "speed": measure(large, o, o.length, kept)}
    if o.json:
        write_json(o.json, {**provenance(o.seed), "threads": torch.get_num_threads(), "order": o.order,
                            "results": results})
    if o.plot:
        draw_speed(results, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
