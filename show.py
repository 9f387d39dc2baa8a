"""Stories as they are revealed, in the terminal and as a picture; and the figures of results/."""
import collections
import contextlib
import html
import itertools
import os
import re
import shutil
import sys
import time

import numpy as np

# ---- Text --------------------------------------------------------------------------------------------------

def layout(pieces: list, width: int):
    """(line, column, text) of each piece, broken between words; no line begins with a space."""
    line = column = 0
    for i, piece in enumerate(pieces):
        same_word = itertools.takewhile(lambda text: text[:1] not in (" ", "↵"), pieces[i + 1:])
        if column and column + len(piece.rstrip()) + len("".join(same_word).rstrip()) > width:
            line, column = line + 1, 0
        piece = piece if column else piece.lstrip()
        yield line, column, piece
        column += len(piece)

def token_texts(tokenizer, ids, mask_id: int) -> list:
    """What each token adds to the text, on one line; a masked token is a shaded gap."""
    texts = iter(tokenizer.pieces([i for i in ids if i != mask_id]))
    return [" ░░░" if i == mask_id else next(texts).replace("\n", "↵").replace("\r", "") for i in ids]

def play(panels: list):
    """Panels (title, pieces of text, step at which each appeared, -1 if given) side by side in the terminal:
    a step of one beside a step of the others, what is new in colour. Into a pipe just the stories."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        print(*("".join(p).replace("↵", "\n").strip() for _, p, _ in panels), sep="\n\n", end="\n\n")
        return
    new = "{}" if "NO_COLOR" in os.environ else "\x1b[1;32m{}\x1b[0m"
    columns, rows = shutil.get_terminal_size()
    width, placed, drawn = max(1, columns // len(panels)), [], 0    # placed: (line, column, text, step)
    for left, (title, pieces, steps) in zip(range(0, columns, width), panels):
        placed.append((0, left, title[:width - 2], -1))
        placed += [(1 + line, left + column, piece, step)
                   for (line, column, piece), step in zip(layout(pieces, width - 2), steps)]
    last = max(step for *_, step in placed)
    for now in range(last + 2):                                     # at last all, and nothing of it is new
        lines = collections.defaultdict(str)
        for line, column, text, step in placed:
            text = re.sub(r"\S", "░", text) if step > now else new.format(text) if step == now else text
            lines[line] += f"\x1b[{1 + column}G{text}"              # from that column on
        seen = [lines[line] for line in range(len(lines))]
        seen = seen[:rows - 2] if now <= last else seen             # what has scrolled away can't be redrawn
        print((f"\x1b[{drawn}F\x1b[J" if drawn else "") + "\n".join(seen), flush=True)
        drawn = len(seen)
        time.sleep(0.05)
    print()

def draw_picture(panels: list, path: str):
    """Panels, as in play; x counts characters, y lines."""
    from matplotlib import colormaps, patches       # here: they take a second
    from matplotlib.figure import Figure
    width, y, colour = 100, 0.0, colormaps["YlGnBu"]
    font = dict(family="DejaVu Sans Mono", fontsize=9.8 * 72 / width / 0.602, parse_math=False)     # 1 wide
    canvas = Figure(dpi=140)
    axes = canvas.add_axes((0.01, 0, 0.98, 1))
    for title, pieces, steps in panels:
        axes.text(0, y + 0.55, title, fontsize=10, fontweight="bold", va="center")
        top, places = y + 1.1, list(layout(pieces, width))
        for step, (line, column, piece) in zip(steps, places):
            x, text = column + len(piece) - len(piece.lstrip()), piece.strip()
            fill = colour(0.06 + 0.5 * step / max(1, *steps)) if step >= 0 else "0.88"
            corner = x - 0.1, top + line + 0.06
            axes.add_patch(patches.Rectangle(corner, len(text) + 0.2, 0.88, facecolor=fill, lw=0))
            axes.text(x, top + line + 0.5, text, va="center_baseline", **font)
        y = top + max((line for line, *_ in places), default=0) + 1.1
    axes.imshow(np.linspace(0.06, 0.56, 256)[None], cmap=colour, vmin=0, vmax=1, aspect="auto",
                extent=(30, 70, y + 0.8, y + 0.3))
    for x, label in ((30, "first step"), (70, "last step")):
        axes.text(x, y + 1, label, fontsize=9, ha="center", va="top")
    axes.set(xlim=(0, width), ylim=(y + 2, 0))
    axes.axis("off")
    canvas.set_size_inches(10, 0.235 * (y + 2))
    canvas.savefig(path)

def draw_moving(panels: list, path: str):
    """The same as an SVG in which the stories appear, a step of one beside a step of the others, rest, and
    begin again. Where nothing moves, it shows them whole. A character is 8 wide, a line 20 high."""
    last, y, width, parts = max(max(steps, default=0) for *_, steps in panels), 0, 84, []
    colours = ["#d7e3f4", "#d7ecd9", "#f8e3cf"]                     # of one panel each
    for (title, pieces, steps), colour in zip(panels, itertools.cycle(colours)):
        parts.append(f'<text x="8" y="{y + 24}" font-weight="bold">{html.escape(title)}</text>')
        line = 0        # after the loop: the last
        for step, (line, column, piece) in zip(steps, layout(pieces, width)):
            text, begin = re.sub(r"[\x00-\x1f]", "", piece.strip()), 0.8 * max(0, step) / max(1, last)
            x, top = 8 * (1 + column + len(piece) - len(piece.lstrip())), y + 32 + 20 * line
            fill = colour if step >= 0 else "#e4e4e4"               # as of a gap
            box = f'<rect x="{x - 1}" y="{top}" width="{8 * len(text) + 2}" height="18" rx="3" fill="'
            parts.append(f'{box}#e4e4e4"/><g>{box}{fill}"/><text x="{x}" y="{top + 14}" textLength='
                         f'"{8 * len(text)}">{html.escape(text)}</text><animate attributeName="opacity" '
                         f'calcMode="discrete" values="0;1" keyTimes="0;{begin:.3f}" dur="12s" '
                         f'repeatCount="indefinite"/></g>')
        y += 60 + 20 * line
    with open(path, "w", encoding="utf-8") as f:
        print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {8 * (width + 2)} {y + 8}"',
              'font-size="13" font-family="ui-monospace, Menlo, Consolas, monospace">',
              '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", sep="\n", file=f)

# ---- Figures -----------------------------------------------------------------------------------------------

@contextlib.contextmanager
def figure(path: str, size: tuple, columns: int = 1, grid: str = "both"):
    """Axes to draw on, or several side by side with one y scale; then the first's legend above, the file."""
    from matplotlib.figure import Figure
    canvas = Figure(size, layout="constrained")
    panels = canvas.subplots(1, columns, sharey=True)
    for axes in canvas.axes:
        axes.grid(alpha=0.3, axis=grid, which="both")
    yield panels
    canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    canvas.savefig(path, dpi=110)

def draw_losses(runs: dict, path: str):
    """Nats per token against steps, and against seconds of training."""
    labels = {"step": "optimizer step", "seconds": "seconds of training, evaluation not counted"}
    with figure(path, (10, 4), columns=2) as panels:
        for axes, (key, label) in zip(panels, labels.items()):
            for name, run in runs.items():
                x, loss, error = np.array([(e[key], e["val_nll"], e["val_nll_se"]) for e in run["curve"]]).T
                kind = "exact" if run["config"]["mode"] == "ar" else "upper bound"
                axes.errorbar(x, loss, 2 * error, marker="o", ms=3, capsize=2, label=f"{name} ({kind})")
            for floor in {run["curve"][-1].get("val_floor") for run in runs.values()} - {None}:
                axes.axhline(floor, color="k", ls="--", lw=1, label="the true law")
            axes.set(xlabel=label)
        run, *others = runs.values()
        if not others and run["config"]["objective"] == "nelbo":        # masked_ce is something else
            later = [row for row in run["training"] if row[0] >= run["curve"][0]["step"]]   # else it sets y
            panels[0].plot(*zip(*later), color="0.75", lw=1, zorder=0, label="training")
        panels[0].set(ylabel="validation loss, nats per token (± 2 s.e.)")

def draw_distances(columns: dict, path: str):
    """Each metric of each set of samples, divided by real text's; columns as in diversity.py."""
    real, names = columns["real text"], [name for name in columns if name != "real text"]
    metrics = [m for m in real if all(column[m][0] > 0 for column in columns.values())]
    scale, y = np.array([real[m][0] for m in metrics]), np.arange(len(metrics))
    with figure(path, (8, 0.34 * len(metrics) + 1.2), grid="x") as axes:
        for i, name in enumerate(names):
            value, error = np.array([columns[name][m] for m in metrics]).T
            axes.errorbar(value / scale, y + 0.5 * ((i + 0.5) / len(names) - 0.5), fmt="o", ms=4, capsize=2,
                          xerr=np.nan_to_num(error) / scale, label=name)
        axes.axvline(1, color="k", ls="--", lw=1, label="real text")
        axes.set(xscale="log", xlabel="sample ÷ real text (± 95% interval, of several seeds ± s.d.)")
        axes.set_yticks(y, metrics)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "25" else "")  # 0.2, 0.5…
        axes.set(ylim=axes.get_ylim()[::-1], xlim=(max(0.01, axes.get_xlim()[0]), None))
