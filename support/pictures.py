"""
What is shown: stories in a terminal while they are written, and figures of numbers.

A panel is one story to be shown: (title, pieces, steps, columns). Each token has a piece, which is
the text it adds to the story, and a step, the pass at which it appeared, or -1 if it was given. A
text that has a shape, as a grid has, is so many columns wide; of others this is 0.
"""
import collections
import contextlib
import os
import shutil
import sys
import textwrap
import time

from support.flags import printable, text_width


# ---- Text: what each token adds, and where it stands ---------------------------------------------

def token_texts(tokenizer, ids: list, mask_id: int) -> list:
    """The piece of each token, all on one line. A masked token is a shaded gap."""
    texts = iter(tokenizer.pieces([i for i in ids if i != mask_id]))
    return [" ░░░" if i == mask_id else on_one_line(next(texts)) for i in ids]


def on_one_line(text: str) -> str:
    return printable(text).replace("\n", "↵").replace("\t", " ")


def in_shape(text: str, columns: int) -> str:
    """The text in lines of so many columns, or, if that is 0, as it is."""
    return textwrap.fill(text, columns) if columns else text


def layout(pieces: list, width: int):
    """(line, column, text) of each piece, without spaces around it.

    Lines break between words; a word that is longer than a line is broken where the line ends."""
    line = 0
    column = 0
    for i, piece in enumerate(pieces):
        needed = text_width(piece.rstrip())
        if i == 0 or piece.startswith((" ", "↵")):
            word = word_at(i, pieces)
            if text_width(word.strip()) <= width:
                needed = text_width(word.rstrip())
        if column and column + needed > width:
            line += 1
            column = 0
        text = piece.lstrip()
        if column:
            column += text_width(piece) - text_width(text)      # a line does not begin with a space
        yield line, column, text.rstrip()
        column += text_width(text)


def word_at(i: int, pieces: list) -> str:
    """The piece i, and those after it up to the next one that begins a word."""
    word = pieces[i]
    for following in pieces[i + 1:]:
        if following.startswith((" ", "↵")):
            break
        word += following
    return word


def last_step(panels: list) -> int:
    """The step after which nothing moves any more."""
    return max(step for _, _, steps, _ in panels for step in [0, *steps])


# ---- In the terminal -----------------------------------------------------------------------------

def play(panels: list):
    """Shows the panels side by side while their tokens appear; the new ones are in reverse colours.

    Into a pipe, or where nothing can move, it prints the finished stories below one another. So it
    does in a terminal that is too small to redraw a line in."""
    columns, rows = shutil.get_terminal_size()
    width = columns // len(panels)
    small = width < 10 or rows < 4
    if small or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        for _, pieces, _, columns in panels:
            text = "".join(pieces).replace("↵", "\n").strip()
            print(in_shape(text, columns), end="\n\n")
        return
    last = last_step(panels)
    for now in range(last + 1):
        lines = lines_at(now, panels, width)[:rows - 2]     # what scrolls away could not be redrawn
        print("\n".join(lines), flush=True)
        time.sleep(0.05)
        print(f"\x1b[{len(lines)}F\x1b[J", end="")          # go back to the first line, and clear
    print("\n".join(lines_at(last + 1, panels, width)), end="\n\n")


def lines_at(now: int, panels: list, width: int) -> list:
    """What the terminal shows at a step, line by line. Each panel is `width` columns wide."""
    lines = collections.defaultdict(str)
    for i, (title, pieces, steps, columns) in enumerate(panels):
        while text_width(title) > width - 2:
            title = title[:-1]
        left = 1 + i * width                                # a terminal counts its columns from 1
        lines[0] += f"\x1b[{left}G{title}"                  # G: go to that column
        places = layout(pieces, min(columns or width, width - 2))
        for step, (line, column, text) in zip(steps, places):
            if step > now:
                text = "░" * text_width(text)
            if step == now:
                text = f"\x1b[7m{text}\x1b[0m"
            lines[1 + line] += f"\x1b[{left + column}G{text}"
    return [lines[line] for line in range(len(lines))]


# ---- Figures of numbers --------------------------------------------------------------------------

@contextlib.contextmanager
def figure(path: str, size: tuple, columns: int = 1, one_scale: bool = True):
    """Gives axes to draw on, or several side by side, and then writes the file.

    size        width and height in inches
    one_scale   whether panels side by side have the same y axis
    The legend stands above, and explains each label of the first axes once."""
    from matplotlib.figure import Figure    # not at the top, because it takes a second
    canvas = Figure(size, layout="constrained")
    panels = canvas.subplots(1, columns, sharey=one_scale)
    for axes in canvas.axes:
        axes.grid(alpha=0.3, which="both")
    yield panels
    legend = {}
    for axes in canvas.axes:
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles))
    canvas.legend(legend.values(), legend.keys(), loc="outside upper center", ncols=2)
    canvas.savefig(path, dpi=110)


def in_legend(name: str) -> str:
    """The label by which the legend shows a name as it is.

    matplotlib takes what is between two $ for mathematics, and leaves out what begins with _."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def draw_losses(runs: dict, path: str):
    """Nats per token against steps and against seconds of training, of {name: read_run(folder)}."""
    with figure(path, (10, 4), columns=2) as (by_step, by_second):
        for name, run in runs.items():
            draw_curve(by_step, name, run, "step")
            draw_curve(by_second, name, run, "seconds")
        by_step.set(xlabel="optimizer step", ylabel="validation loss, nats per token (± 2 s.e.)")
        by_second.set(xlabel="seconds of training, evaluation not counted")


def draw_curve(axes, name: str, run: dict, key: str):
    """A run's validation loss against `key` of its log, and the true law's where it is known."""
    curve = run["curve"]
    x = [entry[key] for entry in curve]
    loss = [entry["val_nll"] for entry in curve]
    error = [2 * entry["val_nll_se"] for entry in curve]
    # A run of an older commit does not say what its bound draws, if its loss is one.
    kind = "upper bound" if run.get("drawn", run["config"]["mode"] != "ar") else "exact"
    label = in_legend(f"{name} ({kind})")
    axes.errorbar(x, loss, error, marker="o", ms=3, capsize=2, label=label)
    if "val_floor" in curve[-1]:
        axes.axhline(curve[-1]["val_floor"], color="k", ls="--", lw=1, label="the true law")
