"""
Fills the numbers of README.md and of the pages in results/ from the files in results/data/.

    python -m experiments.report            after run_all.sh

A page asks for its numbers itself. Before <!--end--> stands the answer to what the mark asks:

    <!--scores(few, "few/ar-both-1250")-->2.99 ± 0.02<!--end-->
    <!--100 * solved("mdlm", "surest first", 12) : .1f-->99.3 ± 0.5<!--end-->%

That is Python, which knows the functions below, and by its name, here few, all that results/data
has under "few" in a file. After a colon stands how the number is written, else it has two digits.
Several numbers are those of seeds, of which the mean ± the standard deviation is written. A table
asks for each row and column:

    <!--table: scores(real, f"{row}/{col}")
    steps || ar := `ar` | mdlm := `mdlm` (bound)
    stories := 1,250
    long := 5,000
    -->

In its first line stand the columns, and then the rows: what they are called in the question, and
what the page shows. After a colon a row or a column may ask something else. What is not there
leaves its cell empty; anywhere else that is an error. So no number is typed. It takes a second.
"""
import json
import math
import re

import numpy as np

from experiments.held_out import error_of
from support.flags import ROOT, InputError, command, parse_flags

DATA = {name.replace("-", "_"): found
        for path in ROOT.glob("results/data/*.json")
        for name, found in json.loads(path.read_text()).items()}
MARKED = re.compile(r"<!--((?:(?!-->).)+)-->(?:(?!<!--).)*<!--end-->", re.DOTALL)


# ---- What a page may ask for ---------------------------------------------------------------------

exp, log, mean, median = math.exp, math.log, np.mean, np.median
RATES = "0.002", "0.008", "0.016"       # beside that of all runs


def scores(file, name: str):
    """(seeds, groups of windows) of the runs out/NAME-SEED that held_out.py has scored.

    After a comma the name may say what else than the bound is asked for."""
    name, _, kind = name.partition(", ")
    runs = [run["scores"][kind or "bound"] for folder, run in file["runs"].items()
            if re.fullmatch(rf"out/{re.escape(name)}-\d", folder)]
    if not runs:
        raise KeyError(name)
    return np.array(runs)


def rows(found: list, key: str, **wanted) -> np.ndarray:
    """What the rows of a table have in a column, one for each seed, where they have these values.

    Of a number with its error it is the number."""
    values = [row[key] for row in found
              if key in row and all(row.get(name) == value for name, value in wanted.items())]
    return np.array([value[0] if isinstance(value, list) else value for value in values])


def cost(name: str, way: str, run="mdlm", key="nats") -> np.ndarray:
    """A column of cost.py for a way of writing, for each seed that was measured."""
    files = [DATA[file] for file in sorted(DATA)
             if re.fullmatch(rf"cost_(others_)?{name}(_\d)?", file)]
    found = [row for file in files for row in file["rows"] if row.get(key) is not None]
    return rows(found, key, run=run, way=way)


def seconds(name: str) -> str:
    """How long masked diffusion trained whose costs were measured."""
    return format(DATA[f"cost_{name}_1"]["runs"]["mdlm"]["seconds"], ".0f")


def priced(name: str, way: str, run="mdlm") -> np.ndarray:
    """The same, but on text above the GPT of the same seed; of the GPT it is the cost itself."""
    nats = cost(name, way, run)
    if run == "ar" or name not in ("shakespeare", "stories", "long"):
        return nats
    return nats - cost(name, "exact", "ar")[:len(nats)]


def saved(name: str, way: str, run="mdlm") -> str:
    """What a way costs above the cheapest one with one token a pass, and its passes."""
    nats = cost(name, way, run)
    one_each = [cost(name, other, run) for other in ("left to right", "random", "surest first")]
    more = [nats[i] - min(costs[i] for costs in one_each) for i in range(len(nats))]
    return f"{shown(more, '.3f')} in {cost(name, way, run, 'passes').mean():.0f}"


def beside(name: str, way: str, run="mdlm") -> str:
    """How much more it costs than masked diffusion from left to right, ± the error over windows."""
    return pm([cost(name, way, run, key).mean() for key in ("less", "less_error")], 3)


def lead(name: str, run="ar") -> str:
    """How much less a GPT costs than masked diffusion from left to right, ± the error over windows.
    """
    return pm([cost(name, "exact", run, key).mean() for key in ("less", "less_error")], factor=-1)


def gained(way: str) -> str:
    """What equal weights and a = 4 gain over the bound's weights, ± its error over windows."""
    return pm([cost("nelbo", way, "nelbo", key)[0] for key in ("gain", "gain_error")], 3)


def variance_ratio(name: str) -> float:
    """The variance of a random order's cost, beside that of 16 pairs of masks, where the network
    reads as many rows."""
    order = cost(name, "random", key="error") ** 2 * cost(name, "random", key="passes")
    return mean(order) / mean(cost(name, "bound", key="error") ** 2 * 32)


def seeds(values, digits=2, between=", ") -> str:
    """Each number; of scores (seeds, groups) the mean of each seed."""
    return between.join(f"{np.mean(value):.{digits}f}" for value in values)


def curve(file, run: str) -> np.ndarray:
    """(evaluations, 2) epochs and the loss that chooses, of a run that held_out.py has scored."""
    return np.array(file["runs"][f"out/{run}"]["curve"])


def lowest(points: np.ndarray) -> np.ndarray:
    """(2,) the point of a curve that has the lowest loss."""
    return points[points[:, 1].argmin()]


def pm(pair, digits=2, factor=1) -> str:
    """A number and its error."""
    value, error = pair
    return f"{factor * value:z.{digits}f} ± {abs(factor) * error:.{digits}f}"


def diff(runs, others):
    """Scores (seeds, groups) minus others, for the first seeds, which both have."""
    both = min(len(runs), len(others))
    return runs[:both] - others[:both]


def above(runs, others) -> str:
    """How far scores (seeds, groups) are above others of the same seeds, ± its error.

    It is a standard error, over the stories and the seeds that both have, and a little too large,
    because a part of the one is in the other too. For one seed there is none: seeds differ by more
    than stories explain."""
    gap = diff(runs, others)
    if len(gap) == 1:
        return f"{gap.mean():z.2f}"
    return pm((gap.mean(), math.hypot(error_of(gap.mean(axis=0)), error_of(gap.mean(axis=1)))))


def times(runs, steps: int) -> list:
    """How many times fewer steps a GPT needs for the loss of each of these runs, seed by seed.

    The losses of GPTs lie on straight lines over the logarithm of their steps. Where real and gpt
    both have a GPT of as many steps, that of gpt counts."""
    factors = []
    for seed, loss in enumerate(np.mean(runs, axis=1), 1):
        losses = {}
        for name in "real", "gpt":
            for folder, run in DATA[name]["runs"].items():
                found = re.fullmatch(rf"out/(stories|steps|gpt)/ar-?(\d*)-{seed}", folder)
                if found:
                    losses[int(found[2] or 1250)] = -np.mean(run["scores"]["bound"])
        counts = sorted(losses)
        known = [losses[count] for count in counts]
        factors.append(steps / math.exp(np.interp(-loss, known, np.log(counts), left=math.nan)))
    return factors


def rate(name: str) -> float:
    """The loss of a run with the best rate, which is chosen on other stories."""
    folders = [f"out/stories/{name}-1", *(f"out/rates/{name}-{lr}-1" for lr in RATES)]
    runs = [DATA["rates"]["runs"][folder] for folder in folders]
    best = min(runs, key=lambda run: run["curve"][-1][1])
    return np.mean(best["scores"]["bound"])


def story(recipe: str, steps: int):
    """The scores of a recipe of mask ratios; a = 1 is of real, and 1/2 the paper's cosine."""
    if recipe == "masked_ce-0.5":
        return scores(DATA["paper"], "paper/mdlm-loss" if steps == 1250 else recipe)
    if recipe.endswith("-1"):
        folder = "stories" if steps == 1250 else "long"
        return scores(DATA["real"], f"{folder}/{recipe.removesuffix('-1')}")
    return scores(DATA["learning"], f"learning{'' if steps == 1250 else '-long'}/{recipe}")


def world(recipe: str, name: str):
    """Bounds of a recipe in a world, above the law where that is known, for each seed."""
    values = [run["bound"] - run.get("law", 0) for folder, run in DATA["worlds"]["runs"].items()
              if re.fullmatch(rf"out/{name}-bell/{recipe}-\d", folder)]
    return np.array(values)


def gpt_of(group: str):
    """The scores of the GPT beside a group of runs; in 5,000 steps it overfits."""
    return scores(DATA["real"], {"stories": "stories/ar", "long": "steps/ar-2500"}[group])


def change(mode: str, difference: str) -> tuple:
    """The scores of a run with this difference from ours, and those of ours."""
    name = f"paper/{mode}-{difference}"
    if name == "paper/mdlm-masked_ce":
        name = "stories/masked_ce"
    return scores(DATA["paper"], name), scores(DATA["paper"], f"stories/{mode}")


def noised(networks: str) -> list:
    """What uniform.py has of all networks whose names begin like this, one for each seed."""
    files = [DATA[f"uniform_{name}"] for name in ("law", "toy", "long", "sudoku", "shakespeare")]
    return [found for file in files for name, found in file["results"].items()
            if name.startswith(networks)]


def by_noise(networks: str, key: str, **wanted):
    """A column of their ways of writing."""
    return rows([row for found in noised(networks) for row in found["rows"]], key, **wanted)


def by_passes(networks: str, passes: str) -> str:
    """What a text costs by so many passes, and which share of those written is right."""
    costs = [found["costs"][passes][0] for found in noised(networks)]
    right = by_noise(networks, "right", steps=int(passes))
    return ", ".join(filter(None, [shown(costs, ".2f"), shown(right, ".0%")]))


def at_rate(run: str) -> float:
    """The bound of a run of the search for rates, above the law where that is known."""
    return DATA["uniform_rates"]["results"][run]["bound"][0]


def taken(name: str, key: str):
    """A column of our ar with a difference from nanoGPT taken away, for each seed."""
    return rows(DATA["shakespeare_taken"]["results"][name], key)


def reached(run: str) -> str:
    """How far above the law a run of the board ended."""
    entry = DATA["board"]["board"][run]
    return pm((entry["above the law"], entry["±"]), 4)


def slower(name: str, ours: str) -> float:
    seconds = DATA["speed_others"]["seconds"]
    return median(seconds[name]) / median(seconds[ours])


SUDOKU = [f"sudoku_{name}"        # one for each seed, and more
          for name in ("1", "2", "3", "controls", "moves_1", "moves_2", "moves_3")]
LONG = ["sudoku_moves_long", "sudoku_pairs_long"]


def solved(run: str, way: str, givens: int, key="solved", files=SUDOKU):
    """A column of the tables of extras/solve.py, for each seed."""
    found = [row for file in files for row in DATA[file]["solved"]]
    return rows(found, key, run=run, way=way, givens=givens)


def right(run: str, way: str):
    found = [row for file in SUDOKU for row in DATA[file]["grids"]]
    return rows(found, "right", run=run, way=way)


def grid_loss(run: str, kind: str):
    losses = [DATA[file]["losses"] for file in SUDOKU]
    return np.array([seed[run][kind][0] for seed in losses if run in seed])


def nine(way: str, givens=0) -> dict:
    """A row of the 9 x 9 grids, with so many givens or none."""
    found = DATA["sudoku_9"]["solved" if givens else "grids"]
    return next(row for row in found if row["way"] == way and row.get("givens", 0) == givens)


def blank(file, run: str, length) -> tuple:
    """Nats per token of a blank, and their standard error."""
    found = file["runs"][f"out/{run}"]["blanks"][str(length)]
    return found["nats"], found["nats_se"]


def opened(way: str, writer: str, metric: str):
    """A metric of the openings, for each seed. Real text is not written by a rule."""
    if writer == "real text":
        way = way.rpartition(", ")[0]
    return np.array(DATA["openings"]["cells"][f"{way}, {writer}"][metric])


# ---- Answers -------------------------------------------------------------------------------------

def shown(value, form: str) -> str:
    """A number as it is written; of several, which are of seeds, the mean ± its deviation."""
    if isinstance(value, str):
        return value
    value = np.atleast_1d(np.asarray(value, dtype=float))
    value = value.reshape(len(value), -1).mean(axis=1) if value.size else value     # (seeds,)
    if not len(value):
        return ""
    text = format(value.mean(), f"z{form}")         # z: 0 instead of −0
    if len(value) > 1:
        factor = 100 if form.endswith("%") else 1
        text += f" ± {factor * value.std(ddof=1):{form.replace('%', 'f')}}"
    return text


def answer(question: str, **names) -> str:
    """Raises InputError for what no file has."""
    python, _, form = question.partition(" : ")
    try:
        text = shown(eval(python, globals(), DATA | names), form.strip() or ".2f")
        if "nan" in text:
            raise KeyError("a mean of nothing")
        return text
    except (KeyError, IndexError, NameError, SyntaxError) as e:
        raise InputError(f"{python} has no answer in results/data ({e!r})") from e


def name_and_label(cell: str, question: str) -> tuple:
    """What stands before =, after it, and what is asked for, if not this question."""
    cell, _, own = cell.partition(" : ")
    name, _, label = cell.partition(" := ")
    return name.strip(), label.strip() or name.strip(), own or question


def table(spec: str) -> list:
    """The rows of a table, of which the first is its head."""
    question, head, *lines = spec.strip().splitlines()
    corner, _, columns = head.partition("|| ")
    columns = [name_and_label(column, "") for column in columns.split(" | ")]
    result = [[corner.strip(), *(label for _, label, _ in columns)]]
    for line in lines:
        row, label, of_row = name_and_label(line, "")
        cells = [label]
        for col, _, of_column in columns:
            try:
                cells.append(answer(of_row or of_column or question, row=row, col=col))
            except InputError:      # it was not measured
                cells.append("")
        result.append(cells)
    return result


def filled(page: str) -> tuple:
    """The text of a page with its numbers. Raises InputError."""
    def fill(match):
        mark = match[1]
        if mark.startswith("table:"):
            head, *lines = table(mark.removeprefix("table:"))
            wide = " | ".join(head).count("|") + 1
            text = "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * wide, *lines])
            text = f"\n\n{text}\n\n"
        else:
            text = answer(mark)
        return f"<!--{mark}-->{text}<!--end-->"

    return MARKED.sub(fill, page)


def pages() -> list:
    return [ROOT / "README.md", *sorted(ROOT.glob("results/*.md"))]


def main():
    parse_flags(__doc__)
    for page in pages():
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    command(main, "some pages may not be filled; run it again")
