"""
Do numbers that were made again agree with the old ones?

    python -m experiments.agree results/data/few.json=results/again/few.json

Two numbers agree if they differ by at most three times their error, that of both together. The
error of a number is its standard error, or the standard deviation over seeds where that is larger.
Where a file says neither, a tenth of the number and 0.01 are allowed. With three seeds the standard
deviation is itself uncertain, so of a hundred numbers a few disagree by chance. What depends on the
machine is not compared, such as seconds.
"""
import json
import re
from math import hypot
from pathlib import Path

import numpy as np

from support.flags import InputError, command, parse_flags

ALLOWED = 3         # errors
TENTH, LITTLE = 0.1, 0.01
WORST = 3           # differences that are printed

# Names of what is not compared: where a number came from, errors, and what a clock has measured.
LEFT_OUT = re.compile(
    "command|date|machine|device|python|torch|threads|dtype|commit|seed|folder|options|sizes|"
    ".*_se|± s.e.|.*seconds.*|.*, s|.*ms_per_.*|.*tok_per_s.*|ms|mfu")

# By these a row of a table is known again.
LABELS = "network", "N", "sampler", "settings", "run", "way", "givens"


# ---- The numbers of a file -----------------------------------------------------------------------

def label_of(row: dict, place: int) -> str:
    """What the row is of. Rows that do not say so are of one seed each."""
    words = [str(row[name]) for name in LABELS if name in row]
    if "seed" in row or not words:
        words.append(f"seed {row.get('seed', place)}")
    return ", ".join(words)


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def numbers(content, *path: str):
    """Yields (path, number, its standard error or 0) for each number in the content of a file."""
    if isinstance(content, dict):
        for name, part in content.items():
            if name in LABELS or LEFT_OUT.fullmatch(name):
                continue
            error = content.get("± s.e." if name == "bound" else f"{name}_se")
            if is_number(part):
                yield (*path, name), part, error or 0
            else:
                yield from numbers(part, *path, name)
    elif not isinstance(content, list) or not content:
        return
    elif isinstance(content[0], dict):
        rows = {label_of(row, place): row for place, row in enumerate(content)}
        yield from numbers(rows, *path)
    elif path[-1] == "curve":       # of (epochs, loss)
        yield from numbers({f"at {epoch:.3g}": loss for epoch, loss in content}, *path)
    elif len(content) == 2 and is_number(content[0]):       # a number and its error
        yield path, content[0], content[1] or 0
    elif all(map(is_number, content)):                      # scores, whose mean is reported
        yield path, np.mean(content), np.std(content, ddof=1) / len(content) ** 0.5


def without_seed(path: tuple) -> tuple:
    return tuple(re.sub(r"^(out/.*)-\d+$|,? ?seed \d+$", r"\1", name) for name in path)


def with_errors(content: dict) -> dict:
    """{path: (number, error)}, where the error is the larger of the two kinds; 0 if unknown."""
    found = list(numbers(content))
    of_seeds = {}
    for path, number, _ in found:
        of_seeds.setdefault(without_seed(path), []).append(number)
    result = {}
    for path, number, error in found:
        seeds = of_seeds[without_seed(path)]
        spread = np.std(seeds, ddof=1) if len(seeds) > 1 else 0
        result[path] = number, max(error, spread)
    return result


# ---- Two files -----------------------------------------------------------------------------------

def allowed(old: tuple, new: tuple) -> float:
    """By how much two numbers with errors may differ."""
    (number, error), (_, other_error) = old, new
    return ALLOWED * hypot(error, other_error) or TENTH * abs(number) + LITTLE


def compare(old: dict, new: dict) -> str:
    """How many numbers of two files agree, and which are the worst."""
    old, new = with_errors(old), with_errors(new)
    differences = []        # (as a part of what is allowed, path)
    for path in old.keys() & new.keys():
        difference = abs(new[path][0] - old[path][0])
        differences.append((difference / allowed(old[path], new[path]), path))
    differences.sort(reverse=True)
    agree = sum(part <= 1 for part, _ in differences)
    alone = len(old.keys() ^ new.keys())
    lines = [f"{agree} of {len(differences)} numbers agree, and {alone} are in one file alone"]
    for part, path in differences[:WORST]:
        (a, _), (b, _) = old[path], new[path]
        lines.append(f"  {' / '.join(path)}: {a:.5g}, now {b:.5g}, {part:.1f} of what is allowed")
    return "\n".join(lines)


def read(path: str) -> dict:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as e:
        raise InputError(f"{path} is no file of results ({e}); give another") from e


def main():
    for old, new in parse_flags(__doc__, named="OLD=NEW")["named"].items():
        print(f"{new}: {compare(read(old), read(new))}")


if __name__ == "__main__":
    command(main, "nothing was written")
