"""
Watch stories being written, several models side by side.

    python -m extras.show ar=out/toy-ar/samples.jsonl mdlm=out/toy-mdlm/samples.jsonl
    python -m extras.show ar=out/toy-ar/samples.jsonl --story=3 --picture=ar.svg

The first shows them in the terminal, the second writes a moving picture for a web page. The files
are those that sample.py writes. They hold the pass at which each token appeared, and a pass of one
story is shown beside the same pass of the others. A panel is what support/pictures.py says.
"""
import html
import itertools
import json
from dataclasses import dataclass

from support.flags import InputError, build, command, flag, parse_flags, text_width
from support.pictures import last_step, layout, on_one_line, play


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
            for row in map(json.loads, file):
                if row["story"] == story:
                    steps = list(map(int, row["appeared"]))
                    pieces = list(map(on_one_line, row["pieces"]))
                    if len(pieces) != len(steps):
                        raise ValueError("not as many pieces as passes")
                    return on_one_line(title), pieces, steps
    except Exception as e:      # a damaged file can fail anywhere above
        reason = f"{type(e).__name__}: {e}"
        raise InputError(f"{path} is not a file that sample.py wrote ({reason})") from e
    raise InputError(f"{path} has no story {story}; choose another --story")


def how_written(settings: dict) -> str:
    """For a title, what the settings say; for example "adaptive, risk 0.1" or "24 steps"."""
    ways = []
    if settings["mode"] == "ar":
        ways.append("left to right")
    if settings["order"]:
        ways.append(f"{settings['order']:.20} order")
    if settings["sampler"]:
        ways.append(f"{settings['sampler']:.20}")
    if "draft" in settings:
        ways.append(f"{settings['draft']} at once")
    elif "risk" in settings:
        ways.append(f"risk {settings['risk']:g}")
    elif settings["steps"]:
        ways.append(f"{settings['steps']} steps")
    else:
        ways.append("one by one")
    return ", ".join(ways).replace("_", " ")


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
