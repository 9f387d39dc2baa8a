"""
Watch stories being written, several models side by side; and the figures that other commands draw.

    python show.py ar=out/toy-ar/samples.jsonl mdlm=out/toy-mdlm/samples.jsonl
    python show.py ar=out/toy-ar/samples.jsonl --story=3 --picture=ar.svg

The first shows them in the terminal, the second writes a moving picture for a web page. The files
are those that sample.py writes. They hold the pass at which each token appeared, and a pass of one
story is shown beside the same pass of the others.

In this file a panel is one story to be shown: (title, pieces, steps). Each token has a piece, which
is the text it adds to the story, and a step, the pass at which it appeared, or -1 if it was given.
"""
import collections
import contextlib
import html
import itertools
import json
import shutil
import sys
import time
from dataclasses import dataclass

from cli import InputError, build, command, flag, parse_flags, printable, text_width


# ---- Text: what each token adds, and where it stands ---------------------------------------------

def token_texts(tokenizer, ids: list, mask_id: int) -> list:
    """The piece of each token, all on one line. A masked token is a shaded gap."""
    texts = iter(tokenizer.pieces([i for i in ids if i != mask_id]))
    return [" ░░░" if i == mask_id else on_one_line(next(texts)) for i in ids]


def on_one_line(text: str) -> str:
    return printable(text).replace("\n", "↵").replace("\t", " ")


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
    last = 0
    for title, pieces, steps in panels:
        last = max([last, *steps])
    return last


# ---- In the terminal -----------------------------------------------------------------------------

def play(panels: list):
    """Shows the panels side by side while their tokens appear; the new ones are in reverse colours.

    Into a pipe, where nothing can move, it prints the finished stories below one another."""
    if not sys.stdout.isatty():
        for title, pieces, steps in panels:
            print("".join(pieces).replace("↵", "\n").strip(), end="\n\n")
        return
    columns, rows = shutil.get_terminal_size()
    width = columns // len(panels)
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
    for i, (title, pieces, steps) in enumerate(panels):
        while text_width(title) > width - 2:
            title = title[:-1]
        left = 1 + i * width                                # a terminal counts its columns from 1
        lines[0] += f"\x1b[{left}G{title}"                  # G: go to that column
        for step, (line, column, text) in zip(steps, layout(pieces, width - 2)):
            if step > now:
                text = "░" * text_width(text)
            if step == now:
                text = f"\x1b[7m{text}\x1b[0m"
            lines[1 + line] += f"\x1b[{left + column}G{text}"
    return [lines[line] for line in range(len(lines))]


# ---- As a moving picture -------------------------------------------------------------------------

WIDTH = 84                                      # columns of a line
COLOURS = ["#d7e3f4", "#d7ecd9", "#f8e3cf"]     # behind the tokens of the first panel, and so on
GREY = "#e4e4e4"                                # of a gap, and behind a token that was given


def draw_moving(panels: list, path: str):
    """An SVG in which the panels' tokens appear; then the stories rest, and it begins again.

    The panels stand below one another. A viewer that cannot move pictures shows the stories whole.
    A column is 8 units wide and a line 20 high."""
    last = max(1, last_step(panels))
    parts = []
    y = 0                                           # where the panel begins
    for (title, pieces, steps), colour in zip(panels, itertools.cycle(COLOURS)):
        parts.append(f'<text x="8" y="{y + 24}" font-weight="bold">{html.escape(title)}</text>')
        line = 0
        for step, (line, column, text) in zip(steps, layout(pieces, WIDTH)):
            x = 8 * (1 + column)
            top = y + 32 + 20 * line
            fill = GREY if step < 0 else colour
            begin = 0.8 * max(0, step) / last       # the stories rest for the last fifth
            parts.append(moving_token(x, top, text, fill, begin))
        y += 60 + 20 * line
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {8 * (WIDTH + 2)} {y + 8}" '
            'font-size="13" font-family="ui-monospace, Menlo, Consolas, monospace">')
    white = '<rect width="100%" height="100%" fill="white"/>'
    with open(path, "w", encoding="utf-8") as file:
        print(head, white, *parts, "</svg>", sep="\n", file=file)


def moving_token(x: int, top: int, text: str, fill: str, begin: float) -> str:
    """A gap, and over it the token on its colour, which shows after the share `begin` of 12 s."""
    width = 8 * text_width(text)
    box = f'x="{x - 1}" y="{top}" width="{width + 2}" height="18" rx="3"'
    return (f'<rect {box} fill="{GREY}"/>'
            f'<g><rect {box} fill="{fill}"/>'
            f'<text x="{x}" y="{top + 14}" textLength="{width}">{html.escape(text)}</text>'
            f'<animate attributeName="opacity" calcMode="discrete" values="0;1" '
            f'keyTimes="0;{begin:.3f}" dur="12s" repeatCount="indefinite"/></g>')


# ---- Figures of numbers --------------------------------------------------------------------------

@contextlib.contextmanager
def figure(path: str, size: tuple, columns: int = 1, grid: str = "both", one_scale: bool = True):
    """Gives axes to draw on, or several side by side, and then writes the file.

    size        width and height in inches
    grid        which grid lines there are: "x", "y" or "both"
    one_scale   whether panels side by side have the same y axis
    The legend stands above, and explains each label of the first axes once."""
    from matplotlib.figure import Figure    # not at the top, because it takes a second
    canvas = Figure(size, layout="constrained")
    panels = canvas.subplots(1, columns, sharey=one_scale)
    for axes in canvas.axes:
        axes.grid(alpha=0.3, axis=grid, which="both")
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
    kind = "upper bound" if run["config"]["mode"] in ("mdlm", "aogpt") else "exact"
    label = in_legend(f"{name} ({kind})")
    axes.errorbar(x, loss, error, marker="o", ms=3, capsize=2, label=label)
    if "val_floor" in curve[-1]:
        axes.axhline(curve[-1]["val_floor"], color="k", ls="--", lw=1, label="the true law")


# ---- The command ---------------------------------------------------------------------------------

@dataclass
class ShowOptions:
    """what to show"""
    story: int = flag(0, "which story of each file, counted from 0", low=0)
    picture: str = flag("", "file for a moving picture, instead of the terminal", file=(".svg",))


def read_panel(name: str, path: str, story: int) -> tuple:
    """The panel of one story in a file that sample.py wrote. Raises InputError."""
    try:
        with open(path, encoding="utf-8") as file:
            title = f"{name}, {how_written(json.loads(file.readline())['settings'])}"
            for line in file:
                row = json.loads(line)
                if row["story"] == story:
                    steps = [int(step) for step in row["appeared"]]
                    pieces = [on_one_line(piece) for piece in row["pieces"]]
                    if len(pieces) != len(steps):
                        raise ValueError("not as many pieces as passes")
                    return on_one_line(title), pieces, steps
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as e:
        reason = f"{type(e).__name__}: {e}"
        raise InputError(f"{path} is not a file that sample.py wrote ({reason})") from e
    raise InputError(f"{path} has no story {story}; choose another --story")


def how_written(settings: dict) -> str:
    """For a title, what the settings say; for example "first hitting, 24 steps"."""
    order = f"{settings['order']:.20} order"
    ways = {"ar": "left to right", "mdlm": settings["sampler"], "aogpt": order}
    way = ways.get(settings["mode"], settings["mode"]).replace("_", " ")
    if settings["draft"]:
        return f"{way}, drafts of {settings['draft']}"
    if way == "adaptive":
        return f"{way}, risk {settings['risk']:g}"
    return f"{way}, {settings['steps']} steps"


def main():
    flags = parse_flags(__doc__, ShowOptions, named="NAME=FILE")
    o = build(ShowOptions, flags)
    panels = [read_panel(name, path, o.story) for name, path in flags["named"].items()]
    if o.picture:
        draw_moving(panels, o.picture)
    else:
        play(panels)


if __name__ == "__main__":
    command(main, "nothing was written")
