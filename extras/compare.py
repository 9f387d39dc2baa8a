"""
Several runs in one table, JSON and figure; and how likely each of them finds a text.

    python -m extras.compare ar=out/toy-ar mdlm=out/toy-mdlm --json=toy.json --plot=toy.png
    python -m extras.compare ar=out/toy-ar mdlm=out/toy-mdlm --text=mine.txt

The first compares validation losses at equal steps and at equal seconds. Those are the quick
estimates of training; "best" is the final one, from many draws, where training came to its end.
With --text the whole text is scored, also where it is longer than the window: see extras/score.py.
ar's score is exact. That of mdlm and aogpt is an upper bound, an average over masks or orders; that
of --variant=uniform too, which reads some word for each [MASK], and whose val_nll is lower. With
--sampler, --order, --steps, --temperature or --top_p it is what the text costs when it is written
in that way, and the table says whether that is exact or a bound, and how many passes it took:

    python -m extras.compare mdlm=out/toy-mdlm --text=mine.txt --sampler=adaptive --risk=0.1
    python -m extras.compare mdlm=out/toy-mdlm --text=mine.txt --order=left_to_right

With --hindsight it also says which share of the tokens masked diffusion itself disowns: hides each
in turn, and gives it less than 1%. On the toy that marks the wrong stories (results/sampling.md).
A model that was trained on stories predicts the end of each, too.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch

from extras.score import misfits, score_texts, score_writing, writes_in_one_way
from prepare_data import read_texts, split_stories
from sample import SampleOptions, check_flags, open_model, sampler_of
from support.flags import (
    InputError, build, command, flag, parse_flags, print_table, provenance, write_json)
from support.pictures import draw_losses
from support.rows import files_of
from support.runs import read_run


@dataclass
class CompareOptions:
    """what to write, and what to score"""
    json: str = flag("", "file for the table, and each run's settings and curve", file=(".json",))
    plot: str = flag("", "file for the figure", file=(".png", ".svg", ".pdf"))
    text: str = flag("", "text to score, all of it: .txt or .jsonl files, with commas")
    sampler: str = flag("", "of --text: file of samplers/ that writes it")
    order: str = flag("", "of --text: random, left_to_right, blocks:N, or all positions: 2,0,1")
    steps: int = flag(0, "of --text: passes of each window of it; default: one a token", low=0)
    temperature: float = flag(1.0, "of --text: that of the laws that tokens are drawn from", low=0)
    top_p: float = flag(1.0, "of --text: as in sample.py", low=1e-9, high=1)
    draws: int = flag(4, "draws of masks, orders or times, of which a bound is the mean", low=2)
    stride: int = flag(
        0, "of --text: tokens from window to window; default: half a window", low=0)
    hindsight: bool = flag(False, "of --text: the share of tokens that mdlm itself disowns")
    device: str = flag("auto", "of --text: auto, cpu, cuda or mps")


# ---- Validation losses ---------------------------------------------------------------------------

def loss_at(curve: list, key: str, at: float) -> float:
    """The validation loss where `key` is `at`, on a straight line between two evaluations.

    It is NaN before the first evaluation."""
    losses = {entry[key]: entry["val_nll"] for entry in curve}
    return np.interp(at, list(losses), list(losses.values()), left=np.nan)


def losses_of(run: dict, step: int, seconds: float) -> dict:
    """What the table says of a run, which has come as far as this step and these seconds."""
    curve = run["curve"]
    best = min(curve, key=lambda entry: entry["val_nll"])
    final = run["final"] or {}
    return {
        "best": final.get("final_nll", best["val_nll"]),
        "± s.e.": final.get("final_nll_se", best["val_nll_se"]),
        "estimate": "final" if final else "quick",
        f"at {step:,} steps": loss_at(curve, "step", step),
        f"at {seconds:,.0f} s": loss_at(curve, "seconds", seconds),
        "true law": best.get("val_floor", np.nan)}


# ---- A text --------------------------------------------------------------------------------------

WAYS = {"sampler", "order", "steps", "temperature", "top_p"}       # of writing


def score_files(folder: str, o: CompareOptions, flags: dict) -> dict:
    """How likely the best model of a run finds o.text: a row of the table. Raises InputError.

    The texts are the stories of the files, if there are marks between them. Else all is one text,
    of which a model of stories gets no white space at its ends."""
    model, tokenizer, windows = open_model(folder, o.device)
    texts, marked = read_texts(files_of(o.text))
    ends = [tokenizer.eot] if windows == "aligned" else []      # others have never seen an end
    texts = split_stories(texts) if marked or ends else ["".join(texts)]
    encoded = [tokenizer.encode(text) + ends for text in texts]
    if not any(texts) or not any(encoded):
        raise InputError(f"--text={o.text} is empty; give a file with a text")
    if not model.config.row.whole:
        raise InputError(f"{folder} has not learned whole texts, so none has a score")
    exact = not model.config.row.drawn
    if WAYS & flags.keys():
        way = build(SampleOptions, flags)
        make_sampler, _ = sampler_of(model.config, way, flags)
        sampler = make_sampler(model.config, way)
        check_flags(way, model.config)
        longest = max(encoded, key=len)[:model.config.block_size]
        exact = writes_in_one_way(model, longest, sampler, way)
        scores = score_writing(model, encoded, sampler, way, 1 if exact else o.draws, o.stride)
    else:
        scores = score_texts(model, encoded, o.draws, o.stride)
    nats, variance, tokens, passes = np.sum(scores, axis=0)
    per_token = nats / tokens
    disowned = {}
    if o.hindsight:
        sees_all = not model.config.row.causal and model.config.row.orders == "any"
        count = sum(misfits(model, ids) for ids in encoded) if sees_all else math.nan
        disowned = {"disowned": count / tokens}
    return {
        "texts": len(texts),
        "tokens": int(tokens),
        "nats per token": per_token,
        "which is": "exact" if exact else "a bound",
        "± s.e.": math.sqrt(variance) / tokens,
        "bits per byte": nats / len("".join(texts).encode()) / math.log(2),
        "perplexity": torch.tensor(per_token).exp().item(),     # infinite if a run has diverged
        "passes": passes / len(texts),
        "of zero chance": sum(s.nats == math.inf for s in scores) if exact else math.nan,
        **disowned}


# ---- The command ---------------------------------------------------------------------------------

def cell(x) -> str:
    """A value as the table shows it: "–" where it is not known, short where a run diverged."""
    if isinstance(x, float):
        return format(x, ".4f" if abs(x) < 1e6 else ".3g").replace("nan", "–")
    return f"{x:,}" if isinstance(x, int) else x


def print_rows(title: str, runs: dict, key: str):
    """Prints what each of {name: run} has under this key, {column: value}."""
    rows = []
    for name, run in runs.items():
        rows.append([name, *map(cell, run[key].values())])
    print_table([[title, *run[key]], *rows])


def main():
    flags = parse_flags(__doc__, CompareOptions, named="NAME=FOLDER",
                        plugins={"sampler": "samplers"})
    o = build(CompareOptions, flags)
    for name in flags.keys() & (WAYS | {"draws", "stride", "hindsight", "device"}):
        if not o.text:
            raise InputError(f"--{name}={flags[name]} means nothing without --text; leave it out")
    runs = {name: read_run(folder) for name, folder in flags["named"].items()}
    ends = [run["curve"][-1] for run in runs.values()]
    step, seconds = (min(end[key] for end in ends) for key in ("step", "seconds"))
    data = set()
    for run in runs.values():
        run["table"] = losses_of(run, step, seconds)
        settings = run["settings"]
        data.add((settings["data"], settings["windows"], run["config"]["block_size"]))
    print_rows("nats per token", runs, "table")
    if len(data) > 1:
        print("  ! losses on other data, windows or block_size cannot be compared")
    if o.text:
        for name, folder in flags["named"].items():
            runs[name]["text"] = score_files(folder, o, flags)
        print_rows(f"\n{o.text}", runs, "text")
    if o.plot:
        draw_losses(runs, o.plot)
    if o.json:
        write_json(o.json, provenance([run["seed"] for run in runs.values()]) | {"runs": runs})


if __name__ == "__main__":
    command(main, "nothing was written")
