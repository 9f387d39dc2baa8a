"""
Several runs in one table, JSON and figure; and how likely each of them finds a text.

    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm --json=toy.json --plot=toy.png
    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm --text=mine.txt
    python compare.py ar=out/toy-ar mdlm=out/toy-mdlm --text=mine.txt --order=left_to_right

The first compares validation losses at equal steps and at equal seconds. With --text the whole text
is scored, also where it is longer than the window: see `score_text`. ar's score is exact. That of
mdlm and aogpt is an upper bound, an average over --draws masks or orders; with --order it is exact,
for a model that writes in this order. For mdlm that takes a pass for each token. A model that was
trained with --orders=infill is scored from left to right. A model that was trained on stories
predicts the end of each, too.
"""
import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from cli import (
    InputError, build, check_flags, command, flag, parse_flags, print_table, provenance, write_json)
from model import Config, Transformer
from objectives import (
    Batch, draw_orders, losses_in_parts, mask_generator, masking_batch, one_block_batch,
    order_batch, reveal_times)
from prepare_data import read_texts, split_stories
from runs import open_model, read_run
from show import draw_losses


@dataclass
class CompareOptions:
    """what to write, and what to score"""
    json: str = flag("", "file for the table, and each run's settings and curve", file=(".json",))
    plot: str = flag("", "file for the figure", file=(".png", ".svg", ".pdf"))
    text: str = flag("", "text to score, all of it: .txt or .jsonl files, with commas")
    order: Literal["bound", "left_to_right", "random"] = flag(
        "bound", "of --text for mdlm and aogpt: their bound, or exactly in one order")
    draws: int = flag(32, "masks, or orders, for each window's bound", low=2)
    stride: int | None = flag(
        None, "of --text: tokens from window to window; default: half a window", low=1)

    def __post_init__(self):
        check_flags(self)
        for name in "order", "draws", "stride":
            value = getattr(self, name)
            if not self.text and value != getattr(CompareOptions, name):
                raise InputError(f"--{name}={value} means nothing without --text; leave it out")


def loss_at(curve: list, key: str, at: float) -> float:
    """The validation loss where `key` is `at`, on a straight line between two evaluations.

    It is NaN before the first evaluation."""
    x = [entry[key] for entry in curve]
    losses = [entry["val_nll"] for entry in curve]
    return np.interp(at, x, losses, left=np.nan)


# ---- How likely a text is ------------------------------------------------------------------------

class Score(NamedTuple):
    """What a model finds of one text."""
    nats: float         # −log p of the whole text, or an upper bound on it
    variance: float     # of nats, over draws of masks or orders; 0 where nats is exact
    tokens: int


def score_texts(model: Transformer, texts: list, order="bound", draws=32, stride=None) -> list:
    """The Score of each text, which is a list of token ids. Raises InputError for an empty one.

    Of two texts that begin alike, the model finds the continuation of the one with fewer nats
    likelier. What `order`, `draws` and `stride` mean is said at the flags of these names."""
    bar = tqdm(texts, unit="text", leave=False, disable=None)
    return [score_text(model, ids, order, draws, stride, seed) for seed, ids in enumerate(bar)]


def score_text(model: Transformer, ids: list, order="bound", draws=32, stride=None, seed=0):
    """The Score of a text of any length, which is a list of token ids. The seed is for the draws.

    By the chain rule −log p(text) is a sum over parts of −log p(part | what comes before). The
    first part is a window of T tokens, or the text, if it is shorter. Each other one is the next
    `stride` tokens, and of what comes before it the model sees as much as the window has room for.
    So with a smaller stride each token has more context, and all takes longer. Raises InputError
    for a text without tokens, and for a stride longer than the window."""
    config = model.config
    T = config.block_size
    if config.orders == "infill":
        order = "left_to_right"         # a part of its training; a text has no span that is last
    stride = stride or max(1, T // 2)
    if not ids:
        raise InputError("a text without tokens has no likelihood; give a longer one")
    if stride > T:
        raise InputError(f"--stride={stride} must not exceed the window, {T}")
    exact = order != "bound" or config.mode not in ("mdlm", "aogpt")
    edges = [0, *range(T, len(ids), stride), len(ids)]
    nats, variance = 0.0, 0.0
    parts = list(itertools.pairwise(edges))
    for start, end in tqdm(parts, unit="window", leave=False, disable=None):
        window = torch.tensor(ids[max(0, end - T):end])                         # (L,)
        new = end - start
        rows = 1 if exact else draws
        batch = part_batch(config, window, new, order, rows, mask_generator(seed, start))
        losses = losses_in_parts(model, batch)      # (rows,) of the part, or (new,) of its tokens
        if exact:
            nats += losses.sum().item()
        else:
            nats += losses.mean().item()
            variance += losses.var().item() / draws
    return Score(nats, variance, len(ids))


def part_batch(config: Config, window, new: int, order: str, rows: int, generator) -> Batch:
    """What predicts the last `new` tokens of a window (L,) from those before, which are known."""
    if config.mode != "mdlm":
        return in_some_order(config, window, new, order == "left_to_right", rows, generator)
    L = len(window)
    if order == "bound":
        batch = one_block_batch(config, window.expand(rows, L), generator, known=L - new)
        return batch._replace(weight=batch.weight * new)
    orders = config.orders if order == "random" else order
    u = torch.rand(1, L, generator=generator)                                   # (1, L)
    time = reveal_times(orders, u)[0, -new:]                                    # (new,)
    return unmasked_in_turn(config, window, turn=time.argsort().argsort())


def in_some_order(config: Config, window, new: int, left_to_right: bool, rows: int, generator):
    """For ar and aogpt: (rows,) losses, each −log p of the new tokens in an order, in nats."""
    L = len(window)
    x = window.expand(rows, L)                                                  # (rows, L)
    order = draw_orders(config, x, generator, l2r_fraction=float(left_to_right))
    is_new = order >= L - new                                                   # (rows, L)
    known_first = is_new.int().argsort(dim=1, stable=True)
    order = order.gather(1, known_first)                                        # (rows, L)
    is_new = is_new.gather(1, known_first)                                      # (rows, L)
    batch = order_batch(config, x, order)
    return batch._replace(weight=is_new.float())


def unmasked_in_turn(config: Config, window, turn) -> Batch:
    """For mdlm: (new,) losses, of the token of each turn. In sum they are exact.

    turn (new,) says when each of the new tokens comes. At step j those before it are known."""
    new = len(turn)
    known = len(window) - new
    step = torch.arange(new)[:, None]                                           # (new, 1)
    masked = F.pad(turn >= step, (known, 0))                                    # (new, L)
    batch = masking_batch(config, window.expand(masked.shape), masked)
    slot = 1 + known + turn.argsort()[:, None]      # (new, 1) of the token to predict; BOS has 0
    target = batch.targets.gather(1, slot)                                      # (new, 1)
    return batch._replace(targets=target, weight=torch.ones(new, 1), select=slot)


def score_files(folder: str, o: CompareOptions) -> dict:
    """How likely the best model of a run finds o.text: a row of the table. Raises InputError."""
    model, tokenizer, windows = open_model(folder, "auto")
    texts, marked = read_texts(o.text.split(","))
    if marked or windows == "aligned":
        texts = split_stories(texts)        # of files without marks, each is a story
    else:
        texts = ["".join(texts)]
    if not any(texts):
        raise InputError(f"--text={o.text} is empty; give a file with a text")
    ends = [tokenizer.eot] if windows == "aligned" else []      # others have never seen an end
    encoded = [tokenizer.encode(text) + ends for text in texts]
    scores = score_texts(model, encoded, o.order, o.draws, o.stride)
    nats, variance, tokens = np.sum(scores, axis=0)
    size = sum(len(text.encode()) for text in texts)
    per_token = nats / tokens
    return {
        "texts": len(texts),
        "tokens": int(tokens),
        "nats per token": per_token,
        "± s.e.": math.sqrt(variance) / tokens,
        "bits per byte": nats / size / math.log(2),
        "perplexity": math.exp(per_token)}


# ---- The command ---------------------------------------------------------------------------------

def main():
    flags = parse_flags(__doc__, CompareOptions, named="NAME=FOLDER")
    o = build(CompareOptions, flags)
    folders = flags["named"]
    if o.text:
        read_texts(o.text.split(","))       # it can be read, or this raises
    runs = {name: read_run(folder) for name, folder in folders.items()}
    ends = [run["curve"][-1] for run in runs.values()]
    step = min(end["step"] for end in ends)             # all runs have come as far as this
    seconds = min(end["seconds"] for end in ends)
    lines = []
    data = set()
    for name, run in runs.items():
        curve = run["curve"]
        best = min(curve, key=lambda entry: entry["val_nll"])
        row = {"best": best["val_nll"],
               "± s.e.": best["val_nll_se"],
               f"at {step:,} steps": loss_at(curve, "step", step),
               f"at {seconds:,.0f} s": loss_at(curve, "seconds", seconds),
               "true law": best.get("val_floor", np.nan)}
        run["table"] = row
        numbers = [f"{x:.4f}".replace("nan", "–") for x in row.values()]
        lines.append([name, *numbers])
        settings = run["settings"]
        block_size = run["config"]["block_size"]
        data.add((settings["data"], settings["windows"], block_size))
    print_table([["nats per token", *row], *lines])
    if len(data) > 1:
        print("  ! losses on other data, windows or block_size cannot be compared")
    if o.text:
        rows = []
        for name, run in runs.items():
            run["text"] = score_files(folders[name], o)
            texts, tokens, *numbers = run["text"].values()
            rows.append([name, f"{texts:,}", f"{tokens:,}", *(f"{x:.4f}" for x in numbers)])
        print_table([[f"\n{o.text}", *run["text"]], *rows])
    if o.plot:
        draw_losses(runs, o.plot)
    if o.json:
        seeds = [run["seed"] for run in runs.values()]
        write_json(o.json, provenance(seeds) | {"runs": runs})


if __name__ == "__main__":
    command(main, "nothing was written")
