"""
Fills the numbers of README.md and of the pages in results/ from the files in results/data/, and
draws two figures.

    python -m experiments.report            after run_all.sh

Between <!--NAME--> and <!--end--> a page has what `values` returns for NAME, a table or a number
within a sentence. So no number is typed, and none is forgotten when experiments are made again. A
name that no file has is an error. It takes a second.
"""
import itertools
import json
import math
import re

import numpy as np

from experiments.held_out import COLOURS, HELPS, error_of
from experiments.mapping import PAPER_GPT, name_of
from support.flags import ROOT, InputError, command, parse_flags
from support.pictures import figure

DATA = ROOT / "results/data"
MARKED = re.compile(r"<!--(\S+?)-->.*?<!--end-->", re.DOTALL)


def read(name: str) -> dict:
    return json.loads((DATA / f"{name}.json").read_text())


# ---- How numbers are written ---------------------------------------------------------------------

def with_spread(numbers: list, digits: int, factor: float = 1, unit: str = "") -> str:
    """The mean over seeds, and their standard deviation if there are several; nothing of none."""
    if not len(numbers):
        return ""
    numbers = factor * np.array(numbers)
    text = f"{numbers.mean():z.{digits}f}{unit}"        # z: 0 instead of −0
    if len(numbers) > 1:
        text += f" ± {numbers.std(ddof=1):.{digits}f}"
    return text


def column(runs: list, key: str) -> list:
    """The numbers of the runs, one for each seed; none where they have no such number."""
    return [run[key] for run in runs if key in run]


def table(head: list, rows: list) -> str:
    """A Markdown table, with empty lines around."""
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"\n\n{text}\n\n"


# ---- The dial ------------------------------------------------------------------------------------
# {column of a row of dial.py: (head in the table, digits, factor, unit)}

TOY_COLUMNS = {
    "above the law": ("above the law, 1/1000 nats", 2, 1000, ""),
    "1 a pass": ("1 token a pass", 1, 100, "%"),
    "2 a pass": ("2", 1, 100, "%"),
    "4 a pass": ("4", 1, 100, "%"),
    "adaptive": ("adaptive", 1, 100, "%"),
    "its tokens": ("its tokens a pass", 1, 1, ""),
    "their tokens": ("drafts of 16, tokens a pass", 1, 1, ""),
    "step, s": ("step, ms", 0, 1000, "")}
STORY_COLUMNS = {
    "bound": ("bound", 2, 1, ""),
    "left to right": ("left to right, exact", 2, 1, ""),
    "adaptive: tokens a pass": ("adaptive, tokens a pass", 2, 1, ""),
    "16: tokens a pass": ("drafts of 16, tokens a pass", 2, 1, ""),
    "step, s": ("step, ms", 0, 1000, ""),
    "story, s": ("a story, s", 2, 1, "")}
NETWORKS = {"mdlm": "`mdlm`", "aogpt": "`aogpt`", "the law": "perfect"}


def dial(file: str, columns: dict) -> dict:
    """The table of a file of dial.py, and {file.network.N.column: number}."""
    seeds = {}          # {(N, network): a row of the file for each seed}
    for row in read(file)["rows"]:
        seeds.setdefault((row["N"], row["network"]), []).append(row)
    found = {}
    lines = []
    for N, network in sorted(seeds, key=lambda key: (key[0], list(NETWORKS).index(key[1]))):
        line = [str(N), NETWORKS[network]]
        for name, (_, digits, factor, unit) in columns.items():
            numbers = column(seeds[N, network], name)
            text = with_spread(numbers, digits, factor, unit)
            line.append(text)
            mark = f"{file}.{network}.{N}.{name}".replace(" ", "-")
            found[mark], *_ = text.split(" ±")
        lines.append(line)
    heads = [head for head, *_ in columns.values()]
    found[f"{file}.table"] = table(["N", "network", *heads], lines)
    return found


# ---- Samplers ------------------------------------------------------------------------------------

# Settings of denoiser.json that the table leaves out.
LEFT_OUT = "steps 6", "risk 0.03", "eta 0.05", "eta 0.2"


def samplers() -> dict:
    """The table of denoiser.json, and {write.sampler.setting.law or trained.what: number}."""
    found = {}
    rows = {}           # {(sampler, setting): {"law" or "trained": row}}
    for row in read("denoiser")["rows"]:
        setting = ", ".join(f"{name} {value}" for name, value in row["settings"].items())
        network = "law" if row["network"] == "the law" else "trained"
        rows.setdefault((row["sampler"], setting), {})[network] = row
        name = f"write.{row['sampler']}.{setting}.{network}".replace(" ", "-")
        found[f"{name}.grammatical"] = f"{row['grammatical']:.1%}"
        found[f"{name}.passes"] = f"{row['passes']:.1f}"
        found[f"{name}.tokens"] = f"{row['tokens_per_pass']:.1f}"
        found[f"{name}.kl"] = distance(row)
        if row["surprise"] is not None:
            found[f"{name}.times"] = f"{math.exp(-row['surprise']):.0f}"
    lines = []
    for (sampler, setting), row in rows.items():
        if setting.endswith(LEFT_OUT):
            continue
        trained, law = row["trained"], row["law"]
        seconds = [f"{1000 * value:.1f}" for value in trained["seconds"]]
        lines.append([
            sampler.replace("_", " "),
            setting,
            f"{trained['tokens_per_pass']:.1f}",
            f"{law['grammatical']:.1%}",
            f"{trained['grammatical']:.1%}",
            distance(law),
            distance(trained),
            *seconds])
    head = ["sampler", "setting", "tokens a pass", "grammatical, law", "trained", "kl, law",
            "trained", "ms a story, alone", "of 64"]
    found["write.table"] = table(head, lines)
    return found


def distance(row: dict) -> str:
    """The kl in two digits, or nothing where too few stories were grammatical for one."""
    return "" if row["kl"] is None else f"{row['kl']:z.2f}"


# ---- Blanks --------------------------------------------------------------------------------------

def blanks(file: str) -> dict:
    """The tables of a file of infill.py, and {file.run.length: nats}."""
    found = {}
    rows = []
    timed = []
    for folder, run in read(file)["runs"].items():
        name = folder.split("/")[-1].split("-")[0]
        row = [f"`{name}`"]
        for length, blank in run["blanks"].items():
            digits = 4 if file == "blanks-toy" else 2       # on the toy it is a small difference
            nats = f"{blank['nats']:z.{digits}f}"
            found[f"{file}.{name}.{length}"] = nats
            row.append(f"{nats} ± {blank['nats_se']:.{digits}f}")
        if "left to right" in run:
            found[f"{file}.{name}.left-to-right"] = f"{run['left to right']:.3f}"
        rows.append(row)
        seconds = column(run["blanks"].values(), "seconds")
        if seconds:
            timed.append([f"`{name}`", *(f"{1000 * value:.0f}" for value in seconds)])
    head = ["tokens of the blank", *run["blanks"]]
    found[f"{file}.table"] = table(head, rows)
    found[f"{file}.milliseconds"] = table(head, timed)
    return found


# ---- The noise of the gradient -------------------------------------------------------------------

def gradients() -> dict:
    """The table of gradient.json, and {gradient.network.recipe: noise scale}.

    Where the mean of all gradients is still mostly noise, their scale is not known, nor the angle
    between means."""
    found = {}
    rows = []
    facts = read("gradient")
    largest = 2 * facts["batch_size"] * facts["draws"]
    for network, recipes in facts["networks"].items():
        label = network
        for recipe, numbers in recipes.items():
            noise = numbers["noise scale"]
            known = noise is not None and noise < largest
            scale = f"{noise:.{2 if noise < 10 else 0}f}" if known else f"above {largest}"
            first = next(iter(recipes))         # the cosine is that of the angle to its gradient
            told = known and recipe != first and recipes[first]["noise scale"] < largest
            cosine = f"{numbers['cosine']:.2f}" if told else ""
            recipe = recipe.replace("masked_ce", "equal weights")
            found[f"gradient.{network}.{recipe}".replace(" ", "-").replace(",", "")] = scale
            rows.append([label, recipe, scale, cosine])
            label = ""
    found["gradient.table"] = table(["network", "learns from", "noise scale", "cosine"], rows)
    return found


# ---- Real text -----------------------------------------------------------------------------------
# A run is out/GROUP/NAME-SEED.

MODES = {
    "ar": "`ar`",
    "mdlm": "`mdlm` (bound)",
    "masked_ce": "`masked_ce` (bound)",
    "aogpt": "`aogpt` (bound)",
    "aogpt left to right": "`aogpt` left to right"}
STEPS = {"stories": 1250, "long": 5000}
T_OF_THREE = 4.303      # the 97.5% quantile of Student's t with two degrees of freedom


def scores_of(file: str) -> dict:
    """{(group, name and kind of score): (seeds, groups of windows)} of a file of held_out.py."""
    found = {}
    for folder, run in read(file)["runs"].items():
        _, group, name = folder.split("/")
        name = name.rsplit("-", 1)[0]       # without the seed
        for kind, of_neighbours in run["scores"].items():
            key = name if kind == "bound" else f"{name} {kind}"
            found.setdefault((group, key), []).append(of_neighbours)
    return found


def seed_by_seed(runs, others) -> np.ndarray:
    """runs (seeds, groups of windows) minus others, for the first seeds, which both have."""
    seeds = min(len(runs), len(others))
    return np.subtract(runs[:seeds], others[:seeds])


def above(runs, others) -> str:
    """How far runs (seeds, groups of windows) are above others of the same seeds, ± its error.

    It is a standard error, over the stories and the seeds that both have, and a little too large,
    because a part of the one is in the other too. For one seed there is none: seeds differ by more
    than stories explain."""
    gap = seed_by_seed(runs, others)
    text = f"{gap.mean():z.2f}"
    if len(gap) > 1:
        error = math.hypot(error_of(gap.mean(axis=0)), error_of(gap.mean(axis=1)))
        text += f" ± {error:.2f}"
    return text


def each_seed(runs, others) -> dict:
    """How far each seed of runs is above others, and half the 95% interval of the mean of three.

    The interval is Student's, which for three seeds is 2.5 standard deviations."""
    gaps = seed_by_seed(runs, others).mean(axis=1)                              # (seeds,)
    found = {"seeds": ", ".join(f"{gap:.2f}" for gap in gaps), "mean": f"{gaps.mean():.2f}"}
    if len(gaps) == 3:
        found["interval"] = f"{T_OF_THREE * gaps.std(ddof=1) / math.sqrt(3):.2f}"
    return found


def steps_of_ar(loss: float, curve: dict) -> float:
    """After how many steps ar has this loss, on a straight line between two of {steps: loss} over
    the logarithm of the steps. Raises InputError outside of them."""
    steps = sorted(curve)
    losses = [curve[count] for count in steps]
    if not min(losses) <= loss <= max(losses):
        raise InputError(f"no runs of ar lie on both sides of {loss:.2f}")
    return math.exp(np.interp(-loss, -np.array(losses), np.log(steps)))


def real() -> dict:
    """The tables of real.json, and {real.group.name.nats, above or times: number}."""
    found = {}
    scores = scores_of("real")
    curve = {1250: np.mean(scores["stories", "ar"])}        # {steps: loss of ar}
    for (group, name), runs in scores.items():
        if group == "steps":
            curve[int(name.removeprefix("ar-"))] = np.mean(runs)
    scores["long", "ar"] = scores["steps", "ar-2500"]       # in 5,000 it overfits
    rows = {"nats": [], "above": [], "times": []}
    for group, steps in STEPS.items():
        for kind in rows.values():
            kind.append([f"{steps:,}"])
        for name in MODES:
            runs = scores[group, name]
            texts = {
                "nats": with_spread(np.mean(runs, axis=1), 2),
                "above": "" if name == "ar" else above(runs, scores[group, "ar"]),
                "times": "" if name == "ar" else (
                    f"{steps / steps_of_ar(np.mean(runs), curve):.1f}")}
            for kind, text in texts.items():
                found[f"real.{group}.{name}.{kind}".replace(" ", "-")] = text
                rows[kind][-1].append(text)
        gain = above(scores[group, "masked_ce"], scores[group, "mdlm"])
        found[f"real.{group}.masked_ce.above-mdlm"] = gain
    for kind, lines in rows.items():
        found[f"real.{kind}"] = table(["steps", *MODES.values()], lines)
    return found


def rates() -> dict:
    """The table of rates.json, and {rates.name: how far it is above ar, each at its best rate}."""
    losses = {}         # {name: {learning rate: (loss that chooses, loss on unseen stories)}}
    for folder, run in read("rates")["runs"].items():
        name, *rate = folder.split("/")[-1].split("-")[:-1]
        _, loss = run["curve"][-1]
        unseen = np.mean(run["scores"]["bound"])
        losses.setdefault(name, {})["".join(rate) or "0.004"] = loss, unseen
    rows = []
    for rate in "0.002", "0.004", "0.008", "0.016":
        rows.append([rate, *(f"{of_name[rate][0]:.2f}" for of_name in losses.values())])
    best = {name: min(of_name.values())[1] for name, of_name in losses.items()}
    rows.append(["other stories, best rate", *(f"{loss:.2f}" for loss in best.values())])
    found = {f"rates.{name}": f"{loss - best['ar']:.2f}" for name, loss in best.items()}
    found["rates.table"] = table(["learning rate", *(MODES[name] for name in losses)], rows)
    return found


def orders() -> dict:
    """The table of orders.json, and {orders.name.order: nats}."""
    found = {}
    rows = {}
    for (_, name), runs in scores_of("orders").items():
        name, _, order = name.partition(" ")
        name = name.split("-")[0]       # ar-2500 has its steps in its name
        found[f"orders.{name}.{order}".replace(" ", "-")] = f"{np.mean(runs):.2f}"
        row = rows.setdefault(name, {})
        row[order] = f"{np.mean(runs):.2f} ± {error_of(np.mean(runs, axis=0)):.2f}"
    kinds = list(rows["mdlm"])
    lines = [[f"`{name}`", *(row.get(kind, "") for kind in kinds)] for name, row in rows.items()]
    found["orders.table"] = table(["", *kinds], lines)
    return found


# ---- Mask ratios ---------------------------------------------------------------------------------
# A run is out/GROUP/OBJECTIVE-A-SEED, where A is that of extras/bell.py.

RECIPES = {
    "mdlm-1": "bound, a = 1",
    "mdlm-2": "bound, a = 2",
    "mdlm-4": "bound, a = 4",
    "masked_ce-0.5": "equal weights, a = 1/2",
    "masked_ce-1": "equal weights, a = 1",
    "masked_ce-2": "equal weights, a = 2",
    "masked_ce-4": "equal weights, a = 4",
    "masked_ce-8": "equal weights, a = 8",
    "masked_ce-16": "equal weights, a = 16",
    "masked_ce-4-uniform": "equal weights, a = 4, a tenth uniform"}
# {recipe: (windows of a step, masks of each)}
MASKS = {
    "masked_ce-4": (8, 1),
    "masked_ce-4-two-four": (4, 2),
    "masked_ce-4-four-two": (2, 4),
    "masked_ce-4-one-sixteen": (16, 1),
    "masked_ce-4-two": (8, 2),
    "masked_ce-4-four": (8, 4)}
COMPARED_WITH_GPTS = "mdlm-1", "masked_ce-1", "masked_ce-4"
TESTS = {
    "masked_ce-near": "equal weights, a = 1, near tokens alone",
    "masked_ce-alike": "equal weights, a = 1, as many, but any"}
WORLDS = {"shakespeare": (3, 1), "toy": (1, 1000), "sudoku": (1, 1000)}    # digits, factor


def story_recipes() -> dict:
    """{(recipe, steps): (seeds, groups of windows)} of learning.json, of real.json for a = 1, and
    of paper.json for a = 1/2, which is the paper's cosine."""
    found = {("masked_ce-0.5", 1250): scores_of("paper")["paper", "mdlm-loss"]}
    groups = {"stories": 1250, "long": 5000, "learning": 1250, "learning-long": 5000}
    for file in "real", "learning":
        for (group, name), runs in scores_of(file).items():
            if file == "real" and name in ("mdlm", "masked_ce"):
                name += "-1"
            if group in groups and name in RECIPES | MASKS:
                found.setdefault((name, groups[group]), []).extend(runs)
    return found


def steps_saved(loss: float, steps: int, seed: int) -> float:
    """How many times fewer steps a GPT of this seed needs for a loss.

    GPTs of few steps have a warm-up in proportion."""
    curve = {}
    for file in "gpt", "real":
        for folder, run in read(file)["runs"].items():
            found = re.fullmatch(r"out/(?:gpt/ar-(\d+)|steps/ar-(\d{3,})|stories/ar)-(\d)", folder)
            if found and int(found[3]) == seed:
                steps_of_run = int(found[1] or found[2] or 1250)
                curve.setdefault(steps_of_run, np.mean(run["scores"]["bound"]))
    return steps / steps_of_ar(loss, curve)


def learning() -> dict:
    """The tables of learning.json, worlds.json and shares.json, and {learning.recipe.what: number},
    where what is the steps on stories, a world, or times-STEPS."""
    found = {}
    stories = story_recipes()
    [longest_gpt] = read("overfits")["runs"].values()      # of seed 1, at its best
    worlds = {}         # {(recipe, world): [bound, or distance from the law, for each seed]}
    for folder, run in read("worlds")["runs"].items():
        _, world, name = folder.split("/")
        key = name.rsplit("-", 1)[0], world.removesuffix("-bell")
        worlds.setdefault(key, []).append(run["bound"] - run.get("law", 0))
    rows = []
    factors = []
    for name, label in RECIPES.items():
        row = [label]
        factor = [label]
        for steps in 1250, 5000:
            runs = stories.get((name, steps), [])
            row.append(with_spread([np.mean(seed) for seed in runs], 2))
            found[f"learning.{name}.{steps}"] = row[-1]
            if runs and name != "mdlm-1":
                gain = above(stories["mdlm-1", steps], runs)
                found[f"learning.{name}.gain-{steps}"] = gain
            if runs and steps == 5000:
                gap = np.mean(runs[:1]) - np.mean(longest_gpt["scores"]["bound"])
                found[f"learning.{name}.above-5000"] = f"{gap:.2f}"
            if name in COMPARED_WITH_GPTS:
                times = [steps_saved(np.mean(of_seed), steps, seed)
                         for seed, of_seed in enumerate(runs, 1)]
                factor.append(", ".join(f"{number:.1f}" for number in times))
                found[f"learning.{name}.times-{steps}"] = factor[-1]
        for world, (digits, scale) in WORLDS.items():
            row.append(with_spread(worlds.get((name, world), []), digits, scale))
            found[f"learning.{name}.{world}"] = row[-1]
        rows.append(row)
        if name in COMPARED_WITH_GPTS:
            factors.append(factor)
    gains = 1000 * np.subtract(worlds["mdlm-1", "sudoku"], worlds["masked_ce-4", "sudoku"])
    found["learning.masked_ce-4.sudoku-gains"] = ", ".join(f"{gain:.1f}" for gain in gains)
    head = ["learns from", "stories, 1,250 steps", "5,000", "Shakespeare", "toy", "Sudoku"]
    found["learning.table"] = table(head, rows)
    found["learning.times"] = table(["learns from", "1,250 steps", "5,000"], factors)
    rows = []
    for name, (windows, masks) in MASKS.items():
        bound = with_spread([np.mean(seed) for seed in stories[name, 1250]], 2)
        rows.append([str(windows), str(masks), str(windows * masks), bound])
    found["learning.masks"] = table(["windows", "masks of each", "rows to read", "bound"], rows)
    rows = []
    distances = []
    for folder, run in read("shares")["runs"].items():
        name = folder.split("/")[-1].removesuffix("-1")
        label = TESTS.get(name) or RECIPES.get(name) or RECIPES[f"{name}-1"]
        found[f"learning.{name}.on-these-masks"] = f"{run['bound']:.2f}"
        rows.append([label, *(f"{nats:.2f}" for nats in run["by share"])])
        distances.append([label, *(f"{nats:.2f}" for nats in run["by distance"].values())])
    often = [f"{share:.0%}" for share in run["how often"].values()]
    head = ["hidden, in eighths", *(f"to {eighth}" for eighth in range(1, 9))]
    found["learning.shares"] = table(head, rows)
    head = ["places away", *run["by distance"]]
    head[-1] = "17 or more"
    found["learning.distances"] = table(head, [*distances, ["share of the hidden tokens", *often]])
    return found


def elsewhere() -> dict:
    """The table of both optimizers, {learning.recipe.optimizer: a number for each seed}, what a = 4
    has exactly from left to right, on few stories, in batches of 32, and with twice the width; and
    what local orders do for aogpt."""
    muon = story_recipes()
    seeds = {
        ("mdlm-1", "Muon"): muon["mdlm-1", 1250],
        ("masked_ce-4", "Muon"): muon["masked_ce-4", 1250],
        ("mdlm-1", "AdamW"): scores_of("paper")["paper", "mdlm-adamw"],
        ("masked_ce-4", "AdamW"): scores_of("learning-adamw")["learning", "masked_ce-4-adamw"]}
    found = {}
    rows = {}
    for (name, optimizer), runs in seeds.items():
        text = ", ".join(f"{np.mean(seed):.2f}" for seed in runs)
        found[f"learning.{name}.{optimizer}"] = text
        rows.setdefault(RECIPES[name], []).append(text)
    of_bell = each_seed(seeds["masked_ce-4", "AdamW"], seeds["masked_ce-4", "Muon"])
    found["learning.masked_ce-4.AdamW-costs"] = of_bell["seeds"]
    lines = [[label, *texts] for label, texts in rows.items()]
    found["learning.optimizers"] = table(["learns from", "Muon", "AdamW"], lines)
    [exact] = scores_of("learning-exact").values()
    found["learning.exact"] = f"{np.mean(exact):.2f}"
    for (group, name), runs in scores_of("learning-others").items():
        found[f"learning.{group}.{name}".replace(" ", "-")] = f"{np.mean(runs):.2f}"
    for name in "aogpt", "aogpt left to right":
        runs = scores_of("real")["stories", name]
        text = with_spread([np.mean(seed) for seed in runs], 2)
        found[f"learning.plain-{name}".replace(" ", "-")] = text
    few_plain = scores_of("few")["few", "masked_ce-plain-2500"]
    found["learning.few.masked_ce-1"] = ", ".join(f"{np.mean(seed):.2f}" for seed in few_plain)
    return found


def written_by_recipes() -> dict:
    """What is wrong with the texts of two recipes, and the table of how well they fill blanks."""
    found = {}
    for name, metrics in read("learning-written")["columns"].items():
        share, _ = metrics["new words"]
        found[f"learning.{name}.new-words".replace(" ", "-")] = f"{share:.1%}"
    toy = {}            # {recipe: the rows of its seeds}
    for row in read("learning-toy")["rows"]:
        toy.setdefault(row["network"].rsplit("-", 1)[0], []).append(row)
    for name, rows in toy.items():
        share = with_spread(column(rows, "grammatical"), 1, 100, "%")
        found[f"learning.{name}.grammatical"] = share
        found[f"learning.{name}.kl"] = with_spread(column(rows, "kl"), 3)
    uniform = read("blanks-stories")["runs"]["out/long/masked_ce-1"]["blanks"]
    bell = read("blanks-bell")["runs"]["out/learning-long/masked_ce-4-1"]["blanks"]
    rows = []
    for name, lengths in ("masked_ce-1", uniform), ("masked_ce-4", bell):
        cells = [f"{blank['nats']:.2f} ± {blank['nats_se']:.2f}" for blank in lengths.values()]
        rows.append([RECIPES[name], *cells])
    found["learning.blanks"] = table(["tokens of the blank", *bell], rows)
    return found


def draw_learning():
    """How far above a GPT of 2,500 steps each recipe is, by the rows of 256 tokens it has read."""
    ar = np.mean(scores_of("real")["steps", "ar-2500"])
    lines = {}          # {recipe: [(rows of 256 tokens, above ar)]}
    for (name, steps), runs in story_recipes().items():
        lines.setdefault(name, []).append((8 * steps, np.mean(runs) - ar))
    with figure(ROOT / "results/figures/learning.png", (7, 4.5)) as axes:
        for name, label in RECIPES.items():
            if name in lines:
                axes.plot(*zip(*sorted(lines[name])), "o-", ms=4, lw=1, label=label)
        axes.set(xlabel="rows of 256 tokens read in training",
                 ylabel="bound, above ar after 2,500 steps")
        axes.set_xscale("log", base=2)
        axes.set_xticks([10_000, 20_000, 40_000])
        axes.xaxis.set_major_formatter("{x:,.0f}")


# ---- What differs from the paper -----------------------------------------------------------------
# A run is out/GROUP/MODE-DIFFERENCE-SEED. {difference: (what the paper has, its flags)}

DIFFERENCES = {
    "vector": ("no common vector in the embeddings", "`--shared_init=false`"),
    "init": ("its initial weights; `mdlm`: untied head", "`--shared_init=false --init=paper`"),
    "adamw": ("AdamW", "`--optimizer=adamw`"),
    "adamw-0.002": ("the same, half the learning rate", "`--optimizer=adamw --lr=0.002`"),
    "adamw-0.008": ("the same, twice the learning rate", "`--optimizer=adamw --lr=0.008`"),
    "windows": ("windows cut anywhere, without end-of-text", "`--windows=paper`"),
    "schedule": ("a short warm-up, a decay to 5%", "`--warmup=25 --final_lr=0.05`"),
    "time": ("a timestep embedding", "`--time_embedding=add`"),
    "untied": ("an untied head", "`--tie_head=false`"),
    "target": ("no target embedding", "`--target_embedding=false`"),
    "loss": ("its loss, the mean over masked tokens", "`--objective=masked_ce --schedule=cosine`"),
    "masked_ce": ("the same, all mask ratios equally likely", "`--objective=masked_ce`"),
    "all": ("all of it at once, as in `--preset=paper`", "")}


def differences() -> dict:
    """The table of paper.json, and {paper.difference.mdlm, ar, gap, seeds, mean, interval or
    seed-1: number}."""
    scores = {name: runs for (_, name), runs in scores_of("paper").items()}
    ar, mdlm = scores["ar"], scores["mdlm"]
    gap = seed_by_seed(mdlm, ar).mean()
    found = {}
    rows = [["nothing: ours", "", "", "", f"{gap:.2f}"]]
    for name, (label, flags) in DIFFERENCES.items():
        of_mdlm = scores["masked_ce" if name == "masked_ce" else f"mdlm-{name}"]
        of_ar = scores.get(f"ar-{name}", ar)
        gap_here = gap + seed_by_seed(of_mdlm, mdlm).mean() - seed_by_seed(of_ar, ar).mean()
        texts = {
            "mdlm": above(of_mdlm, mdlm),
            "ar": "" if of_ar is ar else above(of_ar, ar),
            "gap": f"{gap_here:.2f}"}
        marks = texts | each_seed(of_mdlm, mdlm)
        found |= {f"paper.{name}.{what}": text for what, text in marks.items()}
        found[f"paper.{name}.seed-1"] = above(of_mdlm[:1], mdlm[:1])
        rows.append([label, flags, *texts.values()])
    head = ["what the paper has", "flags, beside `--variant=paper`", "`mdlm` changes",
            "`ar` changes", "`mdlm` above `ar`"]
    found["paper.table"] = table(head, rows)
    return found


# ---- The paper's loss as a bound -----------------------------------------------------------------

def mapping() -> dict:
    """The table of mapping.json, and {mapping.bound, range, gap, gaps, spread or luck: number}."""
    facts = read("mapping")
    bounds = facts["bound"], facts["lowest"], facts["highest"]
    bound, lowest, highest = (f"{number:.2f}" for number in bounds)
    gap, least, most = (f"{number - PAPER_GPT:.2f}" for number in bounds)
    found = {
        "mapping.bound": bound, "mapping.range": f"{lowest} to {highest}",
        "mapping.gap": gap, "mapping.gaps": f"{least} to {most}",
        "mapping.spread": f"{facts['spread']:.2f}",
        "mapping.luck": f"{facts['luck of the paper']:.2f}"}
    rows = []
    for size in "1.4M", "28M":
        runs = [run for run in facts["notebook"].values() if run["size"] == size]
        label = f"{len(runs)} of the lab notebook"
        rows.append([label, size, "4,096", "256", *from_the_curve(runs)])
    for folder, run in facts["runs"].items():
        numbers = [f"{run['vocab_size']:,}", str(run["block_size"])]
        million = f"{run['parameters'] / 1e6:.1f}M"
        rows.append([name_of(folder), million, *numbers, *from_the_curve([run])])
    head = ["runs", "weights", "vocabulary", "window", "lowest of the paper's loss", "bound there",
            "bounds above the curve"]
    found["mapping.table"] = table(head, rows)
    return found


def from_the_curve(runs: list) -> list:
    """The lowest pair of these runs, and how far their means lie from the curve."""
    loss, bound = min(min(run["pairs"]) for run in runs)
    above_it = sorted({f"{run['above the curve']:z.2f}" for run in runs}, key=float)
    return [f"{loss:.2f}", f"{bound:.2f}", " to ".join([above_it[0], above_it[-1]][:len(above_it)])]


# ---- Few stories ---------------------------------------------------------------------------------
# A run is out/GROUP/MODE-HELP-STEPS-SEED. BEST has the runs of each mode, without help and with it,
# whose loss at the end was lowest with seed 1 on the stories that choose. Most of them got more
# seeds. Runs whose loss rose again did not count: their best weights are of a high learning rate.

BEST = [
    "ar-plain-250", "masked_ce-plain-2500", "aogpt-plain-1250",
    "ar-both-1250", "masked_ce-dropout-5000", "aogpt-dropout-2500"]


def few() -> dict:
    """The tables of few.json, and {few.mode.help.nats, epochs or above-ar: number}, where above-ar
    compares with ar without help, and {few.mode.help.epochs: loss that chooses}."""
    found = {}
    searched = {}       # {(help, epochs): {mode: loss that chooses, with seed 1}}
    for folder, run in read("few")["runs"].items():
        mode, help, steps, seed = folder.split("/")[-1].split("-")
        epochs, loss = run["curve"][-1]
        if seed == "1":
            found[f"few.{mode}.{help}.{epochs:.0f}"] = f"{loss:.2f}"
            searched.setdefault((help, round(epochs)), {})[mode] = f"{loss:.2f}"
            if f"{mode}-{help}-{steps}" in BEST:
                found[f"few.{mode}.{help}.epochs"] = f"{epochs:.0f}"
    scores = {name: of_seeds for (_, name), of_seeds in scores_of("few").items()}
    cells = {}          # {help: {mode and kind of score: text}}
    for best in BEST:
        mode, help, _ = best.split("-")
        epochs = found[f"few.{mode}.{help}.epochs"]
        for kind in "", " left to right":
            if best + kind in scores:
                nats = with_spread(np.mean(scores[best + kind], axis=1), 2)
                key = f"few.{mode}{kind}.{help}".replace(" ", "-")
                found[f"{key}.nats"] = nats
                found[f"{key}.above-ar"] = above(scores[best + kind], scores[BEST[0]])
                cells.setdefault(help, {})[mode + kind] = f"{nats} ({epochs} epochs)"
    names = [name for name in MODES if name != "mdlm"]
    trained = names[:-1]        # the last is another score of aogpt
    rows = []
    lines = []
    for help, (label, _) in HELPS.items():
        if help in cells:
            rows.append([label, *(cells[help].get(name, "") for name in names)])
        for epochs in sorted(epochs for of_help, epochs in searched if of_help == help):
            losses = searched[help, epochs]
            lines.append([label, str(epochs), *(losses.get(name, "") for name in trained)])
    found["few.table"] = table(["", *(MODES[name] for name in names)], rows)
    found["few.search"] = table(["", "epochs", *(f"`{name}`" for name in trained)], lines)
    return found


def few_exactly() -> dict:
    """{few-exact.mode: nats} of few-exact.json."""
    return {f"few-exact.{name.split('-')[0]}": f"{np.mean(runs):.2f}"
            for (_, name), runs in scores_of("few-exact").items()}


def overfits() -> dict:
    """{overfits.epochs, lowest, all or last: number} of a GPT that reads its stories eight times.

    `all` are the epochs that it read, and `epochs` those after which it was best."""
    [run] = read("overfits")["runs"].values()
    loss, epochs = min((loss, epochs) for epochs, loss in run["curve"])
    last_epochs, last = run["curve"][-1]
    return {"overfits.epochs": f"{epochs:.1f}", "overfits.lowest": f"{loss:.2f}",
            "overfits.all": f"{last_epochs:.0f}", "overfits.last": f"{last:.2f}"}


# ---- Tiny Shakespeare ----------------------------------------------------------------------------

TAKEN = {
    "without rotary positions": "learned positions instead of rotary ones",
    "without initial weights": "initial weights of size 0.02 at any width",
    "without SwiGLU": "GELU instead of SwiGLU",
    "without common vector": "no common vector in the embeddings",
    "without windows end to end": "windows drawn anywhere, some of them twice",
    "without target rotation": "queries not rotated by the target",
    "without decay of gains": "no weight decay of the norms' gains",
    "without bfloat16": "float32 instead of bfloat16",
    "without target embedding": "no embedding of the target",
    "without RMSNorm": "LayerNorm instead of RMSNorm",
    "all taken away": "all taken away"}


def shakespeare() -> dict:
    """The tables of shakespeare.json and shakespeare-taken.json, and {shakespeare.row: nats}."""
    found = {}
    rows = []
    own_code = read("shakespeare")["results"]
    for name, runs in own_code.items():
        found[f"shakespeare.{name}"] = f"{np.mean(column(runs, 'nats')):.2f}"
        million = f"{runs[0]['parameters'] / 1e6:.2f}M"
        label = MODES.get(name, "nanoGPT's own code")
        rows.append([label, million, with_spread(column(runs, "nats"), 3)])
    left_to_right = with_spread(column(own_code["aogpt"], "left to right"), 3)
    rows.append([MODES["aogpt left to right"], million, left_to_right])
    found["shakespeare.table"] = table(["", "parameters", "nats per character"], rows)
    late = with_spread(column(own_code["nanoGPT"], "second half"), 3)
    found["shakespeare.nanoGPT.late"] = late

    rows = []
    taken = read("shakespeare-taken")["results"]
    ours = np.array(column(taken["nothing taken away"], "nats"))
    for name in ["nothing taken away", *TAKEN]:
        nats = column(taken[name], "nats")
        late = with_spread(column(taken[name], "second half"), 3)
        above_ours = with_spread(nats - ours, 3)
        found[f"shakespeare.{name}.ar"] = above_ours
        rows.append([TAKEN.get(name, name), with_spread(nats, 3), above_ours, late])
    rows[0][2] = ""
    head = ["", "nats per character", "above the first row", "in the second half of a window"]
    found["shakespeare.taken"] = table(head, rows)
    return found


# ---- Diversity -----------------------------------------------------------------------------------

METRICS = [
    "distinct-1", "distinct-4", "self-BLEU", "most common first word", "distinct first words",
    "distinct 5-word openings", "new words", "nats/token"]
PERCENT = {"most common first word": 0, "new words": 1}     # {metric: digits}


def diversity() -> dict:
    """The table of diversity.json, and {diversity.samples.metric: number}."""
    columns = read("diversity")["columns"]
    found = {}
    rows = []
    for name in METRICS:
        [metric] = [metric for metric in columns["real text"] if metric.startswith(name)]
        row = [name]
        for samples, column in columns.items():
            number = column[metric][0]
            if name in PERCENT:
                row.append(f"{number:.{PERCENT[name]}%}")
            else:
                row.append(f"{number:.2f}")
            found[f"diversity.{samples}.{name}".replace(" ", "-")] = row[-1]
        rows.append(row)
    found["diversity.table"] = table(["", *columns], rows)
    return found


# ---- Openings ------------------------------------------------------------------------------------

WINDOWS = {"aligned": "where stories do", "anywhere": "anywhere"}
RULES = {"plain": "plain draws", "paper": "the paper's"}
WRITERS = {"ar": "`ar`", "mdlm": "`mdlm`", "real text": "real"}
MEASURES = {        # {metric of openings.json: (head in the table, digits, factor, unit)}
    "most common first word": ("commonest first word", 0, 100, "%"),
    "distinct 5-word openings": ("five first words", 2, 1, ""),
    "distinct first words": ("first words", 3, 1, ""),
    "distinct-4": ("distinct-4", 2, 1, ""),
    "self-BLEU": ("self-BLEU", 2, 1, ""),
    "new words": ("new words", 1, 100, "%")}
TABLES = {
    "first": ["most common first word", "distinct 5-word openings"],
    "all": ["distinct-4", "self-BLEU"]}


def openings() -> dict:
    """Two tables of openings.json, and {openings.windows.start.rule.writer.metric: number}.

    Real text is not written by a rule, so it stands beside both."""
    found = {}
    cells = read("openings")["cells"]
    rows = {name: [] for name in TABLES}
    for windows, start, rule in itertools.product(WINDOWS, ("free", "Once"), RULES):
        for name in rows:
            rows[name].append([WINDOWS[windows], start, RULES[rule]])
        for metric, writer in itertools.product(MEASURES, WRITERS):
            of_writer = writer if writer == "real text" else f"{rule}, {writer}"
            numbers = cells[f"{windows}, {start}, {of_writer}"][metric]
            _, digits, factor, unit = MEASURES[metric]
            text = with_spread(numbers, digits, factor, unit)
            mark = f"openings.{windows}.{start}.{rule}.{writer}.{metric}".replace(" ", "-")
            found[mark] = text
            found[f"{mark}.seeds"] = ", ".join(f"{number:.{digits}f}" for number in numbers)
            for name, metrics in TABLES.items():
                if metric in metrics:
                    rows[name][-1].append(text)
    for name, metrics in TABLES.items():
        heads = [f"{MEASURES[metric][0]}: {writer}"
                 for metric, writer in itertools.product(metrics, WRITERS.values())]
        found[f"openings.{name}"] = table(["windows begin", "start", "rule", *heads], rows[name])
    return found


# ---- Speed ---------------------------------------------------------------------------------------

BESIDE = {"nanoGPT": "ar", "the paper's ar": "ar", "the paper's mdlm": "mdlm", "mdlm": "ar"}


def speed() -> dict:
    """The tables of speed-others.json and speed-gpu.json, and {speed.name.times: number}."""
    found = {}
    rows = []
    facts = read("speed-others")
    seconds = facts["seconds"]
    for name, ours in BESIDE.items():
        times = f"{np.median(seconds[name]) / np.median(seconds[ours]):.1f}"
        found[f"speed.others.{name}.times".replace(" ", "-")] = times
        rows.append([name, f"`{ours}`", times])
    head = [f"{facts['machine']}, {facts['threads']} threads", "beside our", "time ÷ ours"]
    found["speed.others"] = table(head, rows)
    rows = []
    facts = read("speed-gpu")
    for mode, numbers in facts["train"].items():
        times = f"{numbers['speedup']:.1f}"
        found[f"speed.{mode}.times"] = times
        plain = f"{numbers['baseline_tok_per_s'] / 1000:.0f},000"
        tuned = f"{numbers['tok_per_s'] / 1000:.0f},000"
        found |= {f"speed.{mode}.plain": plain, f"speed.{mode}.tuned": tuned}
        rows.append([f"`{mode}`", tuned, plain, times, f"{numbers['mfu']:.0%}"])
    ar, mdlm = facts["train"]["ar"], facts["train"]["mdlm"]
    for way, key in ("plain", "baseline_tok_per_s"), ("tuned", "tok_per_s"):
        found[f"speed.mdlm-to-ar.{way}"] = f"{mdlm[key] / ar[key]:.2f}"
    device = f"124M parameters, {facts['device']}"
    head = [device, "tokens/s", "the plain way", "times as fast", "MFU"]
    found["speed.table"] = table(head, rows)
    return found


# ---- Sudoku --------------------------------------------------------------------------------------

# {run of sudoku-1.json and so on: how it was trained}
TRAINED = {
    "pairs": "`ar` on puzzles with their solutions",
    "taught": "`aogpt`, taught the order of a solver",
    "aogpt": "`aogpt` on grids",
    "mdlm": "`mdlm` on grids",
    "masked_ce": "`mdlm` with equal weights on grids",
    "mdlm-short": "`mdlm` on grids, 1,000 steps",
    "ar": "`ar` on grids"}

CONTROLS = {
    "pairs-deep": "`ar` on puzzles with their solutions, four layers",
    "taught-first": "`aogpt` on the givens first, then from left to right"}


def sudoku() -> dict:
    """The tables of sudoku-1.json and so on, and {sudoku.run.way.givens or what: number}."""
    found, solved, right, losses = {}, {}, {}, {}
    for path in sorted(DATA.glob("sudoku-[123].json")):
        seed = json.loads(path.read_text())
        for row in seed["solved"]:
            of_way = solved.setdefault((row["run"], row["way"]), {})
            of_way.setdefault(row["givens"], []).append(row)
        for row in seed["grids"]:
            right.setdefault((row["run"], row["way"]), []).append(row["right"][0])
        for run, of_run in seed["losses"].items():
            for kind, (loss, _) in of_run.items():
                losses.setdefault(run, {}).setdefault(kind, []).append(loss)
    rows = []
    for run, label in TRAINED.items():
        for way in [way for name, way in solved if name == run]:
            line = [label, way]
            for givens, seeds in solved[run, way].items():
                mark = f"sudoku.{run}.{way}.{givens}".replace(" ", "-")
                line.append(with_spread([row["solved"][0] for row in seeds], 1, 100))
                found[mark] = f"{line[-1]}%"
                hard = sum(row["hard_solved"][0] * row["hard"] for row in seeds if row["hard"])
                of = max(1, sum(row["hard"] for row in seeds))
                found[f"sudoku.hard.{givens}"] = f"{seeds[0]['hard'] / seeds[0]['puzzles']:.0%}"
                found[f"{mark}.hard"] = f"{hard / of:.0%}"
            passes = [np.mean(column(seeds, "passes")) for seeds in solved[run, way].values()]
            rows.append([*line, ", ".join(f"{number:.3g}" for number in passes)])
            label = ""
    head = ["trained", "written", "9 givens", "12", "16", "passes"]
    found["sudoku.table"] = table(head, rows)
    rows = {}
    for row in read("sudoku-controls")["solved"]:
        line = rows.setdefault((row["run"], row["way"]), [CONTROLS[row["run"]], row["way"]])
        line.append(f"{100 * row['solved'][0]:.1f}")
    head = ["trained", "written", "9 givens", "12", "16"]
    found["sudoku.controls"] = table(head, list(rows.values()))
    rows = []
    of_rate = {(row["run"], row["way"]): row["solved"][0] for row in read("sudoku-rates")["solved"]}
    for run, way in ("pairs", "left to right"), ("aogpt", "surest first"), ("mdlm", "surest first"):
        shares = [of_rate[f"{run}-{rate}", way] for rate in "248"]
        rows.append([TRAINED[run], way, *(f"{share:.1%}" for share in shares)])
    head = ["trained", "written", "0.002", "0.004", "0.008"]
    found["sudoku.rates"] = table(head, rows)
    rows = []
    for run, way in [(run, way) for run, way in right if run in TRAINED]:
        shares = right[run, way]
        found[f"sudoku.{run}.{way}.right".replace(" ", "-")] = with_spread(shares, 1, 100) + "%"
        rows.append([TRAINED[run], way, with_spread(shares, 1, 100)])
    found["sudoku.right"] = table(["trained", "written", "right, %"], rows)
    rows = []
    for run in [run for run in TRAINED if run in losses]:
        kinds, line = losses[run], [TRAINED[run]]
        for kind in "loss", "left_to_right":
            line.append(with_spread(kinds.get(kind, []), 4))
            found[f"sudoku.{run}.{kind}"] = line[-1]
        rows.append(line)
    head = ["trained", "loss above the law", "exactly, left to right"]
    found["sudoku.losses"] = table(head, rows)
    return found


def sudoku_nine() -> dict:
    """The table of sudoku-9.json, and {nine.way.givens or what: number}."""
    found = {}
    lines = {}          # {way: shares that are solved}
    passes = {}         # {way: passes}
    seed = read("sudoku-9")
    for row in seed["solved"]:
        way, givens = row["way"], row["givens"]
        share, error = (f"{100 * number:.1f}" for number in row["solved"])
        name = f"nine.{way}.{givens}".replace(" ", "-")
        found[name] = f"{share}%"
        found[f"{name}.passes"] = f"{row['passes']:.1f}"
        if row["hard"]:
            found[f"{name}.hard"] = f"{row['hard_solved'][0]:.0%}"
        found[f"nine.hard.{givens}"] = f"{row['hard'] / row['puzzles']:.0%}"
        lines.setdefault(way, [way]).append(f"{share} ± {error}")
        passes.setdefault(way, []).append(f"{row['passes']:.3g}")
    for row in seed["grids"]:
        share, error = (f"{100 * number:.1f}" for number in row["right"])
        lines[row["way"]] += [", ".join(passes[row["way"]]), f"{share} ± {error}"]
    for kind, (loss, _) in seed["losses"]["mdlm"].items():
        found[f"nine.{kind}"] = f"{loss:.3f}"
    head = ["written", "28 givens", "32", "40", "passes", "right without givens, %"]
    found["nine.table"] = table(head, list(lines.values()))
    return found


# ---- Pages ---------------------------------------------------------------------------------------

def values() -> dict:
    """{name: text} of all that a page may ask for."""
    return {
        **dial("dial", TOY_COLUMNS),
        **dial("dial-stories", STORY_COLUMNS),
        **samplers(),
        **blanks("blanks-toy"),
        **blanks("blanks-stories"),
        **blanks("blanks-bell"),
        **gradients(),
        **real(),
        **rates(),
        **orders(),
        **learning(),
        **elsewhere(),
        **written_by_recipes(),
        **differences(),
        **mapping(),
        **few(),
        **few_exactly(),
        **overfits(),
        **shakespeare(),
        **diversity(),
        **openings(),
        **sudoku(),
        **sudoku_nine(),
        **speed()}


def filled(page: str, found: dict) -> str:
    """The text of a page with its numbers. Raises InputError for a name that no file has."""
    def fill(match):
        name = match[1]
        if name not in found:
            raise InputError(f"{name} is in none of the files of results/data")
        return f"<!--{name}-->{found[name]}<!--end-->"

    return MARKED.sub(fill, page)


def pages() -> list:
    return [ROOT / "README.md", *sorted(ROOT.glob("results/*.md"))]


def draw_changes(page: str, labels: dict, found: dict):
    """A line for each of {name: label}, and on it found[page.name.mode], a text, for each mode."""
    with figure(ROOT / f"results/figures/{page}.png", (7.5, 4), grid="x") as axes:
        for line, name in enumerate(labels):
            for i, mode in enumerate(["ar", "mdlm"]):
                text = found.get(f"{page}.{name}.{mode}")
                if text:
                    number, _, error = text.partition(" ± ")
                    error = float(error) if error else None     # one seed has none
                    axes.errorbar(float(number), line + i / 4, xerr=error, fmt="o", ms=4,
                                  capsize=3, color=COLOURS[mode], label=mode)
        axes.set_yticks(range(len(labels)), [label.replace("`", "") for label in labels.values()])
        axes.invert_yaxis()
        axes.set(xlabel="change of the loss, nats per token")


def main():
    parse_flags(__doc__)
    found = values()
    for page in pages():
        page.write_text(filled(page.read_text(), found))
    draw_changes("paper", {name: label for name, (label, _) in DIFFERENCES.items()}, found)
    draw_changes("shakespeare", TAKEN, found)
    draw_learning()


if __name__ == "__main__":
    command(main, "some pages may not be filled; run it again")
