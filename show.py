"""
What there is to see: stories as they are revealed, in the terminal and as a picture, and the figures of results/.
"""
import itertools
import os
import shutil
import sys
import time

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from prepare_data import Tokenizer

matplotlib.use("Agg")   # there may be no display
import matplotlib.pyplot as plt  # noqa: E402

# ----------------------------------------------------------------------------------------------------------------------
# Text


def layout(pieces: list, width: int):
    """(line, column, text) of each piece, broken between words at the width; a line doesn't begin with a space."""
    line = column = 0
    for i, piece in enumerate(pieces):
        word = "".join(itertools.takewhile(lambda text: text[:1] not in (" ", "↵"), pieces[i + 1:]))    # what must stay with it
        if column and column + len(piece.rstrip()) + len(word.rstrip()) > width:
            line, column = line + 1, 0
        piece = piece if column else piece.lstrip()
        yield line, column, piece
        column += len(piece)


def token_texts(tokenizer: Tokenizer, ids, mask_id: int) -> list:
    """What each token adds to the text, on one line; a masked token is a shaded gap."""
    texts = iter(tokenizer.pieces([i for i in ids if i != mask_id]))
    return [" ░░░" if i == mask_id else next(texts).replace("\n", "↵").replace("\r", "") for i in ids]


class Screen:
    """Draws each state of a story over the one before, new tokens in colour; in a pipe, the finished story only."""

    def __init__(self, tokenizer: Tokenizer, mask_id: int):
        self.tokenizer, self.mask_id, self.before, self.lines = tokenizer, mask_id, [], 0
        self.live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.new = "{}" if "NO_COLOR" in os.environ else "\x1b[1;32m{}\x1b[0m"

    def draw(self, tokens):
        if not self.live:
            return
        width, height = shutil.get_terminal_size()
        ids, rows = tokens[0].tolist(), {}
        pieces = token_texts(self.tokenizer, ids, self.mask_id)
        for i, (line, _, text) in enumerate(layout(pieces, width - 1)):
            mark = self.new if ids[i] != (self.before[i] if self.before else self.mask_id) else "{}"
            rows[line] = rows.get(line, "") + mark.format(text)
        self.erase()
        shown = list(rows.values())[:max(1, height - 2)]            # what has scrolled away could not be redrawn
        print(*shown, sep="\n", flush=True)
        self.before, self.lines = ids, len(shown)
        time.sleep(0.05)

    def erase(self):
        if self.lines:
            print(f"\x1b[{self.lines}F\x1b[J", end="")

    def finish(self, text):
        self.erase()
        print(text, end="\n\n", flush=True)
        self.before, self.lines = [], 0


def draw_picture(panels: list, path: str):
    """panels: (title, pieces of text, step at which each appeared or -1 if given); one below the other."""
    width = 100                                                     # characters in a line
    shades = LinearSegmentedColormap.from_list("", plt.get_cmap("YlGnBu")(np.linspace(0.06, 0.56, 64)))
    places = [list(layout(pieces, width)) for _, pieces, _ in panels]
    heights = [max((line for line, *_ in place), default=0) + 2.2 for place in places]            # lines; a panel's title takes one
    figure = plt.figure(figsize=(10, 0.235 * sum(heights) + 0.55), dpi=140)
    axes = figure.add_axes([0.01, 0.5 / figure.get_figheight(), 0.98, 1 - 0.5 / figure.get_figheight()])
    axes.set(xlim=(0, width), ylim=(sum(heights), 0))
    axes.axis("off")
    points = 9.8 * 72 / width / 0.602                               # so that a character of the font is one unit wide
    top = 0.0
    for (title, _, steps), place, height in zip(panels, places, heights):
        axes.text(0, top + 0.55, title, fontsize=10, fontweight="bold", va="center")
        for step, (line, column, piece) in zip(steps, place):
            y, lead, text = top + line + 1.1, len(piece) - len(piece.lstrip()), piece.strip()
            fill = shades(step / max(1, *steps)) if step >= 0 else "0.88"
            axes.add_patch(plt.Rectangle((column + lead - 0.1, y + 0.06), len(text) + 0.2, 0.88, facecolor=fill, lw=0))
            axes.text(column + lead, y + 0.5, text, family="DejaVu Sans Mono", fontsize=points, va="center_baseline", parse_math=False)
        top += height
    bar = figure.add_axes([0.3, 0.32 / figure.get_figheight(), 0.4, 0.12 / figure.get_figheight()])
    bar.imshow(np.linspace(0, 1, 256)[None], aspect="auto", cmap=shades, extent=(0, 1, 0, 1))
    bar.set(yticks=[], xticks=[0, 1], xticklabels=["first step", "last step"])
    bar.tick_params(length=0, labelsize=9)
    figure.savefig(path)
    plt.close(figure)


# ----------------------------------------------------------------------------------------------------------------------
# Figures


def draw_losses(runs: dict, path: str):
    """One axis for all: nats per token against steps, and against seconds of training."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axes, key, label in zip(panels, ("step", "seconds"), ("optimizer step", "seconds of training, evaluation not counted")):
        for name, run in runs.items():
            curve = run["curve"]
            axes.errorbar([e[key] for e in curve], [e["val_nll"] for e in curve], [2 * e["val_nll_se"] for e in curve],
                          marker="o", ms=3, capsize=2, label=f"{name} ({'exact' if run['config']['mode'] == 'ar' else 'upper bound'})")
        if "val_floor" in curve[-1]:
            axes.axhline(curve[-1]["val_floor"], color="k", ls="--", lw=1, label="the true law")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    if len(runs) == 1 and run["config"]["objective"] == "nelbo":   # masked_ce's training loss is another quantity
        panels[0].plot(*zip(*run["training"]), color="0.75", lw=1, zorder=0, label="training")
    panels[0].set(ylabel="validation loss, nats per token (± 2 s.e.)")
    panels[0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_steps(summaries: list, path: str):
    """The toy: share of grammatical stories against tokens revealed per step, one line a model and sampler."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    lines = {}
    for s in summaries:
        lines.setdefault(s["mode"] + (f", {s['sampler']}" if s["mode"] == "mdlm" else ""), []).append(s)
    for (name, points), marker in zip(lines.items(), itertools.cycle("oDs^v")):
        if name == "ar":
            axes.axhline(100 * points[0]["grammatical"], color="k", ls="--", lw=1, label="ar, one token a step")
            continue
        points.sort(key=lambda p: p["tokens_per_step"])
        share = np.array([p["grammatical"] for p in points])
        error = 2 * np.sqrt(share * (1 - share) / [p["num_samples"] for p in points])
        axes.errorbar([p["tokens_per_step"] for p in points], 100 * share, 100 * error, marker=marker, ms=5,
                      ls="--" if name == "aogpt" else "-", capsize=2, label=name.replace("_", " "))
    axes.set(xscale="log", xlabel="tokens revealed per step (1: as many steps as tokens)", ylabel="grammatical stories, % (± 2 s.e.)", ylim=(-3, 103))
    ticks = sorted({p["tokens_per_step"] for p in summaries})
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_distances(columns: dict, path: str):
    """Each metric of each set of samples as a multiple of real text's; columns as in diversity.py, "real text" among them."""
    real = columns["real text"]
    names = [name for name in columns if name != "real text"]
    metrics = [m for m, (value, _) in real.items() if value > 0 and all(columns[n][m][0] > 0 for n in names)]
    figure, axes = plt.subplots(figsize=(8, 0.34 * len(metrics) + 1.2), layout="constrained")
    for i, name in enumerate(names):
        value, error = np.array([columns[name][m] for m in metrics]).T
        scale = np.array([real[m][0] for m in metrics])
        y = np.arange(len(metrics)) + 0.5 * ((i + 0.5) / len(names) - 0.5)
        axes.errorbar(value / scale, y, xerr=np.nan_to_num(error) / scale, fmt="o", ms=4, capsize=2, label=name)
    axes.axvline(1, color="k", ls="--", lw=1, label="real text")
    axes.set(xscale="log", xlabel="sample ÷ real text (with 95% interval)", yticks=range(len(metrics)), yticklabels=metrics)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "25" else "")
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x", which="both")
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_frontier(curves: dict, path: str):
    """Quality against diversity, a line a model over its temperatures; curves as in diversity.py, "real text" among them."""
    quality, diversity = next(m for m in curves["real text"] if "judge" in m), "distinct-4"
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for folder, points in curves.items():
        if folder == "real text":
            axes.plot(points[diversity][0], points[quality][0], "k*", ms=14, label=folder, zorder=3)
            continue
        x, y = ([m[name][0] for m in points.values()] for name in (diversity, quality))
        axes.plot(x, y, marker="o", ms=4, label=folder)
        for t, *place in zip(points, x, y):
            axes.annotate(f"{t:g}", place, xytext=(4, -9), textcoords="offset points", fontsize=7)
    axes.set(xlabel="distinct 4-grams (more diverse →)", ylabel=f"{quality} (better ↓)")
    axes.grid(alpha=0.3)
    axes.legend(title="numbers: temperature")
    figure.savefig(path, dpi=110)
    plt.close(figure)
