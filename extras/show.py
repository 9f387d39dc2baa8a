"""
Watch stories being written, several models side by side.

    python -m extras.show ar=out/toy-ar/samples.jsonl mdlm=out/toy-mdlm/samples.jsonl
    python -m extras.show ar=out/toy-ar/samples.jsonl --story=3 --picture=ar.svg

The first shows them in the terminal, the second writes a moving picture for a web page. In one of
Sudokus, what the model wrote turns red at the end where it clashes with other digits. The files
are those that sample.py writes. They hold the pass at which each token appeared, and a pass of one
story is shown beside the same pass of the others. A panel is what support/pictures.py says.
"""
import html
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from support.flags import build, command, flag, parse_flags, text_width
from support.pictures import last_step, layout, on_one_line, play
from support.rows import usable
from worlds.sudoku import SUDOKU, Sudoku
from worlds.sudoku_9 import SUDOKU_9


# ---- As a moving picture -------------------------------------------------------------------------

WIDTH = 84                                      # columns of a line
CELL = 46                                       # units from one cell of a grid to the next
COLOURS = ["#d7e3f4", "#d7ecd9", "#f8e3cf"]     # behind the tokens of the first panel, and so on
GREY = "#e4e4e4"                                # of a gap, and behind a token that was given
PALE = "#f6f6f6"                                # of a blank cell
RED = "#f08a80"                                 # behind a digit that clashes with another
RULES = {rules.columns: rules for rules in (SUDOKU, SUDOKU_9)}       # by the width of their texts


def draw_moving(panels: list, path: str):
    """An SVG in which the panels' tokens appear; then the stories rest, and it begins again.

    A viewer that cannot move pictures shows the stories whole."""
    widths = {columns for *_, columns in panels}
    if len(widths) == 1 and widths <= RULES.keys():
        width, height, parts = draw_grids(panels, RULES[widths.pop()])
    else:
        width, height, parts = draw_stories(panels)
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-size="13" font-family="ui-monospace, Menlo, Consolas, monospace">\n'
            '<rect width="100%" height="100%" fill="white"/>')
    Path(path).write_text("\n".join([head, *parts, "</svg>\n"]), encoding="utf-8")


def draw_stories(panels: list) -> tuple:
    """Width, height and parts of a picture in which the panels stand below one another.

    A column is 8 units wide and a line 20 high."""
    last = max(1, last_step(panels))
    parts = []
    y = 0                                           # where the panel begins
    for (title, pieces, steps, columns), colour in zip(panels, itertools.cycle(COLOURS)):
        parts.append(bold(8, y + 24, title))
        line = 0
        for step, (line, column, text) in zip(steps, layout(pieces, columns or WIDTH)):
            width = 8 * text_width(text)
            x = 8 * (1 + column)
            top = y + 32 + 20 * line
            box = f'x="{x - 1}" y="{top}" width="{width + 2}" height="18" rx="3"'
            place = f'x="{x}" y="{top + 14}" textLength="{width}"'
            parts.append(f'<rect {box} fill="{GREY}"/>')
            parts.append(appearing(step / last, box, place, text, GREY if step < 0 else colour))
        y += 60 + 20 * line
    return 8 * (WIDTH + 2), y + 8, parts


def draw_grids(panels: list, rules: Sudoku) -> tuple:
    """Width, height and parts of a picture in which the grids of Sudokus stand side by side.

    At the end the digits that the model wrote turn red where they clash with others."""
    last = max(1, last_step(panels))
    xs = [16 + CELL * i + 6 * (i // rules.width) for i in range(rules.n)]       # of columns
    ys = [36 + CELL * i + 6 * (i // rules.height) for i in range(rules.n)]      # of rows
    width = xs[-1] + CELL + 20
    parts = []
    for i, (title, pieces, steps, columns) in enumerate(panels):
        colour = COLOURS[i % len(COLOURS)]
        left = i * width                            # where the panel begins
        parts.append(bold(left + xs[0], 24, title[:(width - xs[0]) // 8]))
        digits = [piece.strip() for piece in pieces]
        clashes = rules.clashes(digits)
        cells = enumerate(itertools.product(ys, xs))
        for (cell, (y, x)), step, digit in zip(cells, steps, digits):
            box = f'x="{left + x}" y="{y}" width="{CELL - 3}" height="{CELL - 3}" rx="4"'
            place = f'x="{left + x + 14}" y="{y + 30}" textLength="15" font-size="25"'
            parts.append(f'<rect {box} fill="{PALE}"/>')
            parts.append(appearing(step / last, box, place, digit, GREY if step < 0 else colour))
            if step >= 0 and cell in clashes:
                parts.append(appearing(1.02, box, place, digit, RED))
    return len(panels) * width, ys[-1] + CELL + 5, parts


def bold(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" font-weight="bold">{html.escape(text)}</text>'


def appearing(when: float, box: str, place: str, text: str, fill: str) -> str:
    """A token on its colour. The last ones come when it is 1, and then all rest for 2.4 s of 12."""
    return (f'<g><rect {box} fill="{fill}"/><text {place}>{html.escape(text)}</text>'
            f'<animate attributeName="opacity" calcMode="discrete" values="0;1" '
            f'keyTimes="0;{0.8 * max(0, when):.3f}" dur="12s" repeatCount="indefinite"/></g>')


# ---- The command ---------------------------------------------------------------------------------

@dataclass
class ShowOptions:
    """what to show"""
    story: int = flag(0, "which story of each file, counted from 0", low=0)
    picture: str = flag("", "file for a moving picture, instead of the terminal", file=(".svg",))


def read_panel(name, path, story):
    """The panel of one story in a file that sample.py wrote. Raises OSError."""
    with usable(path, "file of sample.py"), open(path, encoding="utf-8") as file:
        columns = json.loads(file.readline())["settings"].get("columns", 0)
        row = next((row for row in map(json.loads, file) if row["story"] == story), None)
        if not row:
            raise ValueError(f"it has no story {story}; choose another --story")
        steps = list(map(int, row["appeared"]))
        pieces = list(map(on_one_line, row["pieces"]))
        return name, pieces, steps, int(columns)


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
