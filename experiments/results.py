"""
The commands behind results/, in the order in which they must run, from the project's folder:

    python -m experiments.results toy
    python -m experiments.results sampling          after toy; an hour
    python -m experiments.results few               after toy; hours; calls, one a core, share the work
    python -m experiments.results minute            likewise
    python -m experiments.results real FOLDER       likewise; FOLDER holds real text, train.txt and valid.txt
    python -m experiments.results laptop FOLDER     likewise: the preset laptop, and as it was
    python -m experiments.results longer FOLDER     likewise: all stories ten times as long
    python -m experiments.results later FOLDER      likewise: blanks, after three times real's steps
    python -m experiments.results bigger FOLDER     likewise, with a GPU: 28M parameters
    python -m experiments.results written           right after real: what its models write
    python -m experiments.results confounds MODE    mdlm, ar or aogpt; after real; hours
    python -m experiments.results weights           right after confounds mdlm; likewise
    python -m experiments.results gaps              after confounds mdlm and ar
    python -m experiments.results orders            after real; likewise
    python -m experiments.results plateau           after real; hours, likewise
    python -m experiments.results adapt             after confounds, whose runs must be in out/; likewise
    python -m experiments.results diversity FOLDER  after real; likewise
    python -m experiments.results grown FOLDER      likewise
    python -m experiments.results frontier FOLDER   after real; an hour; two calls share its first half
    python -m experiments.results own FOLDER        after toy and diversity; minutes
    python -m experiments.results denormals FOLDER  an hour
    python -m experiments.results speed FOLDER      with nothing else running; after toy
    python -m experiments.results others            likewise; nanoGPT and arche cloned here
    python -m experiments.results gpu               with nothing else running on the GPU; minutes
    python -m experiments.results first MODE        README's first command on two of many cores, by taskset

For each core: OMP_NUM_THREADS=1 taskset -c 0 python -m experiments.results real FOLDER
Runs that have begun are resumed. Those of real text that results/ has the scores of are not made again
(delete the file there to make them anew), and keep adds scores before all runs of a figure are done.
Only a tree without uncommitted changes makes figures.
"""
import inspect
import itertools
import os
import shlex
import subprocess
import sys
import time
from glob import glob
from pathlib import Path

from cli import InputError, command, nearest, provenance
from experiments.trials import stored
from prepare_data import EOT, read_stories
from runs import open_locked, read_run
from train import bfloat16_is_faster

MODES, SEEDS = ("ar", "mdlm", "aogpt"), (1, 2, 3)
KEPT = [f"results/{name}.json" for name in (    # scores of runs that need not be made again
    "real-lr", "real-tried", "real-500", "real-all", "real-helped", "real-laptop", "real-longer",
    "real-later", "real-bigger", "confounds-rates", "confounds-ar", "confounds-mdlm",
    "confounds-aogpt", "weights")]

NARROW = dict(preset="laptop", n_embd=128, n_hidden=352)    # 1.4M parameters of 4.3M, a third of the time
CHOOSING = NARROW | dict(data="excerpt-choose", eval_windows=150, dtype="float32")
THOUSAND = CHOOSING | dict(batch_size=8, max_steps=1000, eval_interval=250)     # of half of real's batch

# ---- One command, one run; calls that share the work -------------------------------------------------------

def flag(name: str, value) -> str:
    if value is True:
        return f"--{name}"
    text = ",".join(value) if isinstance(value, list) else "false" if value is False else value
    return f"--{name}={text}"

def python(what: str, *arguments, **flags):
    """One of the project's commands, a script or experiments.NAME, to its end. Raises InputError where it
    fails. What stops this, Ctrl-C or SIGTERM, stops it too."""
    start = [what] if what.endswith(".py") else ["-m", what]
    line = [*start, *arguments, *(flag(name, value) for name, value in flags.items())]
    child = subprocess.Popen([sys.executable, *line], start_new_session=True)   # signals come through us
    try:
        failed = child.wait()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()            # it saves what it has
        raise
    if failed:
        raise InputError(f"failed: python {shlex.join(line)}")

def lock(path: str, wait: bool):
    """The locked file. While another call has it: None, or with wait not before it lets go."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    while True:
        try:
            return open_locked(path)
        except InputError:
            if not wait:
                return None
        time.sleep(2)

def once(name: str, make, *arguments, **values):
    """make(…), by one call at a time; others go on without it."""
    if not (held := lock(f"out/{name}.lock", wait=False)):
        return print(f"another call is at {name}")
    with held:
        make(*arguments, **values)

def known() -> dict:
    """{folder: run} of those whose scores held_out has put into results/."""
    return {folder: run for path in KEPT for folder, run in stored(path, "runs").items()}

def is_done(path: str) -> bool:
    """A run, or a file of stories."""
    return os.path.isfile(path) or os.path.exists(f"{path}.done") or path in known()

def claimed(path: str):
    """Its lock, for the call that is to make it; None where it is done or another call is at it."""
    if not is_done(path) and (held := lock(f"{path}.lock", wait=False)):
        if not is_done(path):       # it may just have been done
            return held
        held.close()

def train(folder: str, script="train.py", **settings) -> str:
    """A run in the folder, which it returns; unless it is done or another call is at it."""
    if held := claimed(folder):
        with held:
            if os.path.exists(f"{folder}/ckpt.pt"):
                settings["resume"] = True
            python(script, out_dir=folder, quiet=True, **settings)
            Path(f"{folder}.done").touch()
    return folder

def finished(*paths) -> list:
    """These runs or files, as soon as other calls have done them. Raises InputError where one is not done."""
    for path in paths:
        if not is_done(path):
            lock(f"{path}.lock", wait=True).close()
            if not is_done(path):
                raise InputError(f"{path} is not done; call this again")
    return list(paths)

def dashed(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")

def seeds(folder: str) -> list:
    return [f"{folder}-{seed}" for seed in SEEDS]

def named(runs: dict) -> list:
    """NAME=FOLDER,FOLDER,… of {name: folder or folders}."""
    return [f"{name}={of if isinstance(of, str) else ','.join(of)}" for name, of in runs.items()]

def best_of(*folders) -> str:
    """The run that the stories which choose like best."""
    runs = known()
    return min(folders, key=lambda folder: min(
        entry["val_nll"] for entry in (runs.get(folder) or read_run(folder))["curve"]))

def climb(rate: float, run) -> str:
    """The best learning rate: halved or doubled while that is better. run(rate) trains; its folder."""
    for factor in (0.5, 2):
        while True:
            here, there = finished(run(f"{rate:g}"), run(f"{rate * factor:g}"))
            if best_of(here, there) == here:
                break
            rate *= factor
    return f"{rate:g}"

def keep(path: str, pattern: str, report="excerpt-report", **how):
    """Adds to a file of results the scores of those runs in out/ that are done."""
    done = {path.removesuffix(".done") for path in glob(f"{pattern}.done")} - set(known())
    if done:
        once(Path(path).stem, python, "experiments.held_out", *named({"these": sorted(done)}),
             report=report, json=path, only_score=True, **how)

# ---- The toy -----------------------------------------------------------------------------------------------

def toy_runs(*modes) -> list:
    return [f"out/toy-{mode}{seed}" for mode in modes for seed in ("", "-1", "-2")]

def toy():
    """Three seeds a mode, the first of them train.py's own, and what they write."""
    settings = dict(preset="toy", eval_windows=4096)
    first = {mode: train(f"out/toy-{mode}", mode=mode, **settings) for mode in MODES}
    more = {f"{mode}-{seed}": train(f"out/toy-{mode}-{seed}", mode=mode, seed=seed, **settings)
            for seed in (1, 2) for mode in MODES}
    python("compare.py", *named(first), json="results/toy.json", plot="results/toy.png")
    python("compare.py", *named(more), json="results/toy-seeds.json")
    runs = list(first.values())
    python("sample.py", out_dir=runs, draft=8, num_samples=1, seed=4, picture="results/modes.svg")
    python("sample.py", out_dir=[*runs, *more.values()], num_samples=1000,
           json="results/toy-grammatical.json")
    python("diversity.py", *named({mode: f"{run}/samples.jsonl" for mode, run in first.items()}), data="toy",
           judge="out/toy-ar", json="results/toy-diversity.json", plot="results/toy-diversity.png")
    python("sample.py", out_dir=toy_runs("aogpt"), order="left_to_right", num_samples=1000,
           json="results/toy-grammatical-l2r.json")
    python("experiments.frontier", models=runs, num_samples=300, temperatures="0.4,0.6,0.8,1.0,1.2",
           data="toy", judge="out/toy-ar", json="results/toy-frontier.json", plot="results/toy-frontier.png")

def sampling():
    """What samplers lose, with trained networks of three seeds and with a perfect one."""
    aogpt = toy_runs("aogpt")
    python("experiments.steps", models=toy_runs(*MODES), json="results/toy-steps.json",
           plot="results/toy-steps.png")
    python("experiments.planners", mdlm=toy_runs("mdlm"), aogpt=aogpt, num_samples=500,
           json="results/toy-planners.json")
    python("experiments.infill", models=toy_runs(*MODES), json="results/toy-infill.json",
           plot="results/toy-infill.png")
    python("experiments.speculative", models="out/toy-aogpt", json="results/speculative.json")
    python("experiments.orders", *named({"aogpt": aogpt}), data="toy", blocks="4,16", windows=500, orders=16,
           json="results/toy-orders.json", md="results/toy-orders.md", plot="results/toy-orders.png")

def minute():
    """What mdlm learns of the toy so soon, and what was tried in the preset's place."""
    os.environ["OMP_NUM_THREADS"] = "1"
    python("experiments.first_minute", json="results/first-minute.json", md="results/first-minute.md")

def few():
    """Distance from the toy's law, from few stories."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for part in ("sizes", "not_told", "why", "widths"):
        python("experiments.few_stories", part=part, json="results/few-stories.json",
               md="results/few-stories-tables.md", plot="results/few-stories.png")

# ---- Real text: an excerpt of TinyStories, half of whose held-out stories choose ---------------------------

def halves(text: str):
    """data/excerpt-choose and -report: the same training text, half of the held-out stories each."""
    with lock("data/excerpt.lock", wait=True):
        if os.path.exists("data/excerpt-report/meta.json"):
            return
        stories = list(read_stories(f"{text}/valid.txt"))
        for half, part in {"choose": stories[:150], "report": stories[150:]}.items():
            Path(f"data/{half}.txt").write_text(EOT.join(part), encoding="utf-8")
            python("prepare_data.py", text=f"{text}/train.txt", val=f"data/{half}.txt", vocab_size=4096,
                   name=f"excerpt-{half}")

def rated(mode: str) -> list:
    """The runs that try learning rates, for 500 steps."""
    rates = ["2e-3", "4e-3", "8e-3", "1.6e-2"] + (["3.2e-2", "6.4e-2"] if mode == "aogpt" else [])  # its best
    return [f"out/real/{mode}-lr-{rate}" for rate in rates]                             # was at the edge

def on_text(name: str, mode: str, stories: str, lr, seed: int, **more) -> str:
    """A run on all stories or on 500, as long as real's are."""
    length = dict(max_steps=1500) if stories == "all" else dict(max_steps=1000, train_stories=500)
    interval = 50 if mode == "ar" else 125          # ar may turn soon
    settings = CHOOSING | length | dict(eval_interval=interval) | more
    return train(f"out/real/{name}-{seed}", mode=mode, lr=lr, seed=seed, **settings)

def lr_of(mode: str, stories="all") -> str:
    """What climbs from the best learning rate of 500 steps, for 500 stories from that of all."""
    begin = lr_of(mode) if stories != "all" else best_of(*finished(*rated(mode))).split("-lr-")[1]
    return climb(float(begin), lambda rate: on_text(f"{mode}-{stories}-{rate}", mode, stories, rate, 1))

def by_masked_ce(stories="all") -> list:
    """mdlm by the other loss, at a learning rate of its own."""
    def run(lr, seed=1):
        return on_text(f"mdlm-masked_ce-{stories}-{lr}", "mdlm", stories, lr, seed, objective="masked_ce")

    lr = climb(float(lr_of("mdlm", stories)), run)
    return [run(lr, seed) for seed in SEEDS]

def compare_real(name: str, title: str, runs: dict):
    """The table and figure of runs, {name: folders}, on the stories that chose nothing."""
    finished(*(folder for of in runs.values() for folder in of))
    once(f"real-{name}", python, "experiments.held_out", *named(runs), report="excerpt-report", title=title,
         json=f"results/real-{name}.json", md=f"results/real-{name}.md", plot=f"results/real-{name}.png")

# What is tried on 500 stories, with a seed of its own: DROPOUT-NOISE-STEPS, and maybe another learning rate
REMEDIES = {"ar": ["0-0-200", "0-0-400", "0.1-0.1-400", "0.3-0.3-400", "0.3-0.3-1000", "0.5-0.3-1000",
                   "0.3-0.3-1000-0.016"],
            "mdlm": ["0-0-4000", "0.1-0-2000", "0.3-0-2000"],
            "aogpt": ["0.1-0-2000", "0.3-0-2000", "0.3-0-4000"]}
REMEDY_LR = {"ar": "0.008", "mdlm": "0.008", "aogpt": "0.004"}

def remedied(mode: str, remedy: str, seed: int, **loss) -> str:
    dropout, noise, steps, *lr = remedy.split("-")
    name = "-".join([mode, *loss.values(), "500", remedy])
    return on_text(name, mode, "500", *(lr or [REMEDY_LR[mode]]), seed, dropout=dropout, token_noise=noise,
                   max_steps=steps, **loss)

def real(text: str):
    """The excerpt, whole and 500 of its stories."""
    halves(text)
    for mode in MODES:
        for folder in rated(mode):
            train(folder, mode=mode, lr=folder.split("-lr-")[1], **CHOOSING | dict(
                max_steps=500, eval_interval=50 if mode == "ar" else 125))
    keep("results/real-lr.json", "out/real/*-lr-*")
    for stories in ("all", "500"):
        runs = {}
        for mode in MODES:
            lr = lr_of(mode, stories)
            runs[mode] = [on_text(f"{mode}-{stories}-{lr}", mode, stories, lr, seed) for seed in SEEDS]
        runs["mdlm by masked_ce"] = by_masked_ce(stories)
        if stories == "all":
            lr = lr_of("mdlm")
            runs["mdlm, no target embedding"] = [
                on_text(f"mdlm-untold-all-{lr}", "mdlm", "all", lr, seed, **NOT_TOLD) for seed in SEEDS]
        keep(f"results/real-{stories}.json", f"out/real/*-{stories}-0.0*-1")     # also those that chose it
        compare_real(stories, f"Real text, {stories} stories", runs)
    tried = {mode: [remedied(mode, remedy, 4) for remedy in REMEDIES[mode]] for mode in MODES}
    best = {mode: best_of(*finished(*tried[mode])).split("-500-")[1].removesuffix("-4") for mode in MODES}
    runs = {mode: [remedied(mode, best[mode], seed) for seed in SEEDS] for mode in MODES}
    runs["mdlm by masked_ce"] = [remedied("mdlm", best["mdlm"], seed, objective="masked_ce")
                                 for seed in SEEDS]
    keep("results/real-tried.json", "out/real/*-500-*-4")
    title = "Real text, 500 stories, each mode at the best of what was tried (masked_ce at the bound's)"
    compare_real("helped", title, runs)

def laptop(text: str):
    """The preset laptop, and as it was: AdamW, twice the steps, no target embedding. Three seeds of mdlm, one
    of the others, for want of time."""
    halves(text)
    os.environ["OMP_NUM_THREADS"] = "1"         # two calls, a core each: their seconds can be compared
    before, runs = dict(optimizer="adamw", lr="2e-3", max_steps=3000, target_embedding=False), {}
    for mode in ("ar", "aogpt", "mdlm"):
        for name, changed in {mode: {}, f"{mode}, as it was": before}.items():
            runs[name] = [train(f"out/laptop/{dashed(name)}-{seed}", mode=mode, preset="laptop", seed=seed,
                                data="excerpt-choose", eval_windows=150, dtype="bfloat16", **changed)
                          for seed in (SEEDS if mode == "mdlm" else SEEDS[:1])]
    compare_real("laptop", "The preset laptop, now and as it was", runs)

BLANKS = dict(lengths="1,2,4,8,16,32", draws=4, data="excerpt-report")

def fill_blanks(file: str, models, **how):
    """What these runs, which must be in out/, fill in; unless results/ has it."""
    if not os.path.exists(path := f"results/{file}.json"):
        once(file, python, "experiments.infill", models=list(models), **BLANKS, places=4, json=path, **how)

def longer(text: str):
    """All stories for ten times as many steps, at half the learning rate; ar with what helped it on 500. And
    what two seeds fill in then, mdlm by its bound and as exactly as aogpt."""
    halves(text)
    helped = dict(dtype="bfloat16", dropout=0.1, token_noise=0.1, max_steps=3000, eval_interval=100)
    rates = [on_text(f"ar-longer-{lr}", "ar", "all", lr, 1, **helped) for lr in ("0.004", "0.008")]
    finished(*rates)
    keep("results/real-longer.json", "out/real/ar-longer-*-1")
    lr = best_of(*rates).split("-")[2]
    runs = {"ar": [on_text(f"ar-longer-{lr}", "ar", "all", lr, seed, **helped) for seed in SEEDS]}
    long = dict(dtype="bfloat16", max_steps=15000, eval_interval=500)
    for mode in "mdlm", "aogpt":
        runs[mode] = [on_text(f"{mode}-longer", mode, "all", "0.004", seed, **long) for seed in SEEDS]
    runs["mdlm by masked_ce"] = [on_text("masked_ce-longer", "mdlm", "all", "0.004", seed,
                                         objective="masked_ce", **long) for seed in SEEDS]
    compare_real("longer", "Real text, all stories: 15,000 steps; ar 3,000, with dropout and token noise "
                 "of 0.1", runs)
    for seed in 2, 3:
        for name, how in {f"longer-{seed}": {}, f"longer-{seed}-in-order": dict(in_order=True)}.items():
            fill_blanks(f"real-infill-{name}", [runs[mode][seed - 1] for mode in ("mdlm", "aogpt")], **how)
    fill_blanks("real-infill-longer-ar", runs["ar"][1:])

def later(text: str):
    """What mdlm and aogpt fill in after three times real's steps, when mdlm's bound should be the lower one;
    two seeds, so blanks at more places of a story than in written. And what drafts give in either order."""
    halves(text)
    settings = dict(max_steps=4500, eval_interval=500)
    aogpt, mdlm = [], []
    for seed in 1, 2:
        aogpt.append(on_text("aogpt-later", "aogpt", "all", "0.004", seed, **settings))
        mdlm.append(on_text("mdlm-masked_ce-later", "mdlm", "all", "0.004", seed, objective="masked_ce",
                            **settings))
    compare_real("later", "Real text, all stories: 4,500 steps", {"mdlm by masked_ce": mdlm, "aogpt": aogpt})
    for models, file in zip(zip(mdlm, aogpt), ("real-infill-later", "real-infill-later-2")):
        fill_blanks(file, models, plot=f"results/{file}.png")
    for order in "random", "left_to_right":
        file = f"results/real-speculative-{order}.json"
        if not os.path.exists(file):
            once(f"speculative-{order}", python, "experiments.speculative", models=aogpt[1], order=order,
                 stories=1, json=file)

LOSSES = {"ar": dict(mode="ar"), "mdlm": dict(mode="mdlm"),
          "mdlm by masked_ce": dict(mode="mdlm", objective="masked_ce"), "aogpt": dict(mode="aogpt")}
BIG = dict(preset="laptop", n_layer=8, n_head=8, n_embd=512, n_hidden=1408, data="excerpt-choose",
           eval_windows=150, dtype="bfloat16")

def bigger(text: str):
    """Twenty times the parameters of real: 1,500 steps at four rates, of which seed 1 likes 0.002 best in all
    modes; three seeds of that; and as many of longer, at half of it (ar: at it, with what helped it on 500
    stories)."""
    def run(loss: str, name: str, seed: int, **settings) -> str:
        of = {"mdlm": "bound", "mdlm by masked_ce": "mdlm"}.get(loss, loss)     # masked_ce's runs came first
        folder = f"out/bigger/{of}-{name}" + (f"-{seed}" if seed > 1 else "")
        return train(folder, seed=seed, **BIG | LOSSES[loss] | settings)

    def at_rate(loss: str, lr: str, seed=1) -> str:
        return run(loss, f"lr-{lr}", seed, lr=lr, eval_interval=50 if loss == "ar" else 125)

    halves(text)
    for lr, loss in itertools.product(("0.002", "0.004", "0.008", "0.001"), LOSSES):
        at_rate(loss, lr)
    shorter = {f"{loss}, 1,500 steps": [at_rate(loss, "0.002", seed) for seed in SEEDS] for loss in LOSSES}
    half = dict(lr="0.001", max_steps=8000, eval_interval=500)
    helped = dict(lr="0.002", max_steps=3000, eval_interval=100, dropout=0.1, token_noise=0.1)
    longer = {f"{loss}, longer": [run(loss, "longer", seed, **helped if loss == "ar" else half)
                                  for seed in SEEDS] for loss in LOSSES}
    keep("results/real-bigger.json", "out/bigger/*-lr-*")
    compare_real("bigger", "Real text, all stories, 28M parameters", shorter | longer)

def written():
    """What the models of real write and fill in; its runs must be in out/."""
    runs = {mode: finished(*seeds(f"out/real/{mode}-all-{lr_of(mode)}")) for mode in MODES}
    first = [folders[0] for folders in runs.values()]
    cool = dict(temperature=0.7, num_samples=2)
    python("sample.py", out_dir=first, **cool, json="results/real-samples.json",
           picture="results/modes.png")
    python("sample.py", out_dir=runs["aogpt"][0], order="left_to_right", **cool,
           json="results/real-samples-l2r.json")
    python("sample.py", out_dir=runs["mdlm"][0], prompt="Once upon a time ___ lived happily.",
           temperature=0.7, num_samples=4, json="results/real-blank.json")
    python("experiments.orders", *named({mode: runs[mode] for mode in ("mdlm", "aogpt")}),
           data="excerpt-report", windows=48, blocks=16, orders=1, json="results/real-orders.json",
           md="results/real-orders.md")
    python("experiments.infill", models=sum(runs.values(), []), **BLANKS, places=2,
           json="results/real-infill.json", plot="results/real-infill.png")
    python("experiments.infill", models=by_masked_ce(), **BLANKS, places=2,
           json="results/real-infill-masked-ce.json")
    python("experiments.speculative", models=runs["aogpt"][0], like=runs["aogpt"][0],
           json="results/real-speculative.json", plot="results/real-speculative.png")

# ---- What each thing does, on real text, in a thousand steps -----------------------------------------------

INIT, NOT_TOLD = dict(init="paper", shared_init=False), dict(target_embedding=False)
UNTIED, TIME, ADAM = dict(tie_head=False), dict(time_embedding="add"), dict(optimizer="adamw")
SCHEDULE = dict(warmup=25, final_lr=0.05)       # in as many steps
BFLOAT16 = dict(dtype="bfloat16")               # of adapt and orders: fast where a CPU has it
COSINE = dict(objective="masked_ce", schedule="cosine")
ALL = ADAM | dict(beta2=0.999) | INIT | SCHEDULE | NOT_TOLD | dict(windows="paper")
VARIANTS = [    # name, modes, the variant whose learning rate it takes, what differs
    ("as it is", "mdlm ar", "as it is", {}),
    ("as it is", "aogpt", "bfloat16", {}),
    ("bfloat16", "mdlm ar", "as it is", BFLOAT16),
    ("untied head", "mdlm ar", "as it is", UNTIED),
    ("its windows", "mdlm ar", "as it is", dict(windows="paper")),
    ("its schedule", "mdlm ar", "as it is", SCHEDULE),
    ("time embedding", "mdlm", "as it is", TIME),
    ("masked_ce, cosine schedule", "mdlm", "as it is", COSINE),
    ("masked_ce, uniform schedule", "mdlm", "as it is", dict(objective="masked_ce")),
    ("all of it", "mdlm", "all of it", ALL | UNTIED | TIME | COSINE),
    ("all of it", "ar", "all of it", ALL),
    ("its init, untied head", "mdlm", "its init, untied head", INIT | UNTIED),
    ("its init, head, time", "mdlm", "its init, untied head", INIT | UNTIED | TIME),
    ("its init", "ar", "its init", INIT),
    ("AdamW", "mdlm ar aogpt", "AdamW", ADAM),
    ("no common vector", "mdlm ar", "as it is", dict(shared_init=False)),
    ("no target embedding", "mdlm ar aogpt", "as it is", NOT_TOLD)]
OF_AOGPT = ("bfloat16", "aogpt", "bfloat16", BFLOAT16)      # has a rate of its own; see orders for the runs
SCORED = dict(report="excerpt-report", without_end=True, draws=4)
CLIMB = {"all of it": 0.004, "AdamW": 0.004}        # else from 0.008

def variant(mode: str, name: str) -> str:
    return f"out/confounds/{mode}-{dashed(name)}"

def rate_of(mode: str, name="bfloat16") -> str:
    """The best learning rate in 500 steps, with a seed of its own, of the variant whose rate this one takes;
    for aogpt in all 1,000, for what is best of its rates after 500 steps is not later (real.md)."""
    [(rated_as, changed)] = [row for of, modes, *row in [*VARIANTS, OF_AOGPT]
                             if of == name and mode in modes.split()]
    if rated_as != name:
        return rate_of(mode, rated_as)
    settings = THOUSAND | changed | dict(mode=mode, seed=4, max_steps=1000 if mode == "aogpt" else 500)
    return climb(CLIMB.get(name, 0.008), lambda rate: train(
        f"{variant(mode, name)}-rate-{rate}", lr=rate, **settings))

def base(mode: str, seed: int) -> str:
    """What others are compared with, or go on from."""
    return train(f"{variant(mode, 'bfloat16')}-{seed}", mode=mode, lr=rate_of(mode), seed=seed,
                 **THOUSAND | BFLOAT16)

def confounds(mode: str):
    """What each thing does that the paper has otherwise, one at a time."""
    runs = {}
    for name, modes, _, changed in VARIANTS:
        if mode in modes.split():
            lr = rate_of(mode, name)
            runs[name] = [train(f"{variant(mode, name)}-{seed}", **THOUSAND | changed | dict(
                mode=mode, lr=lr, seed=seed)) for seed in SEEDS]
            keep("results/confounds-rates.json", "out/confounds/*-rate-*", draws=1)
            keep(f"results/confounds-{mode}.json", f"out/confounds/{mode}-*-[123]", **SCORED)
    finished(*sum(runs.values(), []))
    once(f"confounds-{mode}", python, "experiments.held_out", *named(runs), **SCORED,
         title=f"What the paper has otherwise, {mode}", json=f"results/confounds-{mode}.json",
         md=f"results/confounds-{mode}.md")

WEIGHTS = {     # of the loss, see experiments/weighted.py; the first is masked_ce's, since commit c36381c
    "a row as k": dict(power=1), "as k, a third predicted": dict(power=1, share="0.3333"),
    "as k, a third predicted, half the rate": dict(power=1, share="0.3333", lr="0.004"),
    "the bound, k at least 32": dict(least=32), "the bound, three draws of masks": dict(draws=3),
    "a row as k, three draws of masks": dict(power=1, draws=3)}

def weights():
    """Why does mdlm learn the bound better from masked_ce than from itself?"""
    confounded = {name: seeds(variant("mdlm", name)) for name in ("as it is", "masked_ce, uniform schedule")}
    runs = dict(confounded)
    for name, changed in WEIGHTS.items():
        runs[name] = [train(f"out/weights/{dashed(name)}-{seed}", "experiments.weighted",
                            **THOUSAND | dict(mode="mdlm", lr=rate_of("mdlm"), seed=seed) | changed)
                      for seed in SEEDS]
        keep("results/weights.json", "out/weights/*", **SCORED)
    finished(*sum(runs.values(), []))
    once("weights", python, "experiments.held_out", *named(runs), **SCORED, title="Weights of mdlm's loss",
         json="results/weights.json", md="results/weights-table.md", forest="results/weights.png")
    if not os.path.exists("results/by-ratio.json"):
        once("by-ratio", python, "experiments.by_ratio", *named(confounded), windows=48,
             data="excerpt-report", json="results/by-ratio.json", md="results/by-ratio.md",
             plot="results/by-ratio.png")

def gaps():
    """Both modes' variants in one table and figure."""
    python("experiments.confounds", mdlm="results/confounds-mdlm.json", ar="results/confounds-ar.json",
           json="results/confounds.json", plot="results/confounds.png")

def orders():
    """aogpt: left to right how often; rotation and common vector; its runs must stay in out/."""
    settings = THOUSAND | BFLOAT16 | dict(mode="aogpt", lr=rate_of("aogpt"))
    keep("results/confounds-rates.json", "out/confounds/*-rate-*", draws=1)
    fractions = {f"l2r_fraction {share}": dict(l2r_fraction=share) for share in (0, 0.25, 0.5)}    # 1 is ar
    turned, common = dict(target_rotation=False), dict(shared_init=False)
    others = {"no rotation": turned, "no common vector": common, "neither": turned | common}
    runs = {name: seeds(f"out/orders/{dashed(name)}") for name in fractions | others}
    for seed in SEEDS:
        for mode in "ar", "aogpt":
            base(mode, seed)
        for name, changed in (fractions | others).items():
            train(runs[name][seed - 1], seed=seed, **settings | changed)
    runs = {"as it is": seeds(variant("aogpt", "bfloat16"))} | runs | {"ar": seeds(variant("ar", "bfloat16"))}
    finished(*sum(runs.values(), []))
    once("orders-held-out", python, "experiments.held_out", *named(runs), report="excerpt-report",
         json="results/orders-held-out.json", forest="results/orders-held-out.png")
    shares = {name: of for name, of in runs.items() if name not in others and name != "ar"}
    once("orders", python, "experiments.orders", *named(shares), data="excerpt-report", windows=48,
         json="results/orders.json", plot="results/orders.png")

def plateau():
    """What ends mdlm's first hundreds of steps on real text; needs what real prepares."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for part in ("where", "how_much", "lengths", "settings"):
        python("experiments.plateau", part=part, json="results/plateau.json")
    python("experiments.plateau", json="results/plateau.json", md="results/plateau-tables.md",
           plot="results/plateau.png")

def adapt():
    """From one mode to another, beside going on in the same one, and beside from scratch in as many steps."""
    half, plain = THOUSAND | BFLOAT16 | dict(max_steps=500, eval_interval=50), dict(shared_init=False)
    sources = {"ar": {}, "aogpt": {}, "mdlm": {}, "ar-plain": plain, "mdlm-plain": plain}
    # is there a plateau for an mdlm that begins as an ar-plain, where mdlm-plain has its longest?
    adapted = ("ar-from-ar", "ar-from-aogpt", "aogpt-from-aogpt", "aogpt-from-ar", "mdlm-from-mdlm",
               "mdlm-from-ar", "mdlm-from-ar-plain")
    for seed in SEEDS:
        for source, changed in sources.items():
            mode = source.removesuffix("-plain")
            train(f"out/adapt/{source}-{seed}", mode=mode, lr=rate_of(mode), seed=seed, **half | changed)
        for name in adapted:
            to, source = name.split("-from-")
            base(to, seed)
            # a seed of its own: it would read the same windows a second time, in the same order
            train(f"out/adapt/{name}-{seed}", mode=to, lr=rate_of(to), seed=seed + 10,
                  init_from=finished(f"out/adapt/{source}-{seed}"), **half)
    for to in MODES:
        runs = {to: seeds(variant(to, "bfloat16"))}
        runs |= {f"{name}, 500 steps": seeds(f"out/adapt/{name}") for name in sources if name.startswith(to)}
        runs |= {name.replace("-", " "): seeds(f"out/adapt/{name}") for name in adapted
                 if name.startswith(to)}
        finished(*sum(runs.values(), []))
        once(f"adapt-{to}", python, "experiments.held_out", *named(runs), report="excerpt-report",
             draws=4, json=f"results/adapt-{to}.json", plot=f"results/adapt-{to}.png")

# ---- Diversity ---------------------------------------------------------------------------------------------

def parts(text: str):
    """data/excerpt-models, -judges: the training text of either; -real, -cut: real text beside samples."""
    with lock("data/excerpt.lock", wait=True):
        if os.path.exists("data/excerpt-cut/meta.json"):
            return
        stories = list(read_stories(f"{text}/train.txt"))
        part = {"models": EOT.join(stories[:2700]), "judges": EOT.join(stories[2700:4300]),
                "real": EOT.join(stories[4300:]), "cut": "".join(stories[4300:])}  # as --windows=paper reads
        for name, content in part.items():
            Path(f"data/{name}.txt").write_text(content, encoding="utf-8")
        for name in ("models", "judges"):
            python("prepare_data.py", text=f"data/{name}.txt", val=f"{text}/valid.txt", vocab_size=4096,
                   name=f"excerpt-{name}")
        for name in ("real", "cut"):
            python("prepare_data.py", text="data/models.txt", val=f"data/{name}.txt", vocab_size=4096,
                   name=f"excerpt-{name}")

def write(file: str, **flags) -> str:
    """Stories in the file, which it returns; unless they are there or another call is at it."""
    if held := claimed(file):
        with held:
            python("sample.py", out=file, **flags)
    return file

# name: whose stories, and flags of sample.py. The paper's are apart: its ar goes on from a word, beside real
# text that does; its mdlm writes from anywhere, beside real text from anywhere
OURS = {"ar": ("ar", {}), "mdlm": ("mdlm", {}), "mdlm, confidence": ("mdlm", dict(sampler="confidence")),
        "aogpt": ("aogpt", {}), "aogpt, left to right": ("aogpt", dict(order="left_to_right"))}
PAPER_AR = {"ar by the paper": ("ar", dict(protocol="paper"))}
PAPER_MDLM = {"mdlm by the paper": ("mdlm-paper", dict(protocol="paper")),
              "mdlm by the paper, no penalty": ("mdlm-paper", dict(protocol="paper", repetition_penalty=1))}

# Those who write, and the judges, trained on the other part of the text
MASKED_CE = dict(mode="mdlm", objective="masked_ce", max_steps=1500)    # mdlm learns its bound best from it
WRITERS = {"ar": dict(mode="ar", max_steps=750, eval_interval=50),      # more, and it overfits
           "mdlm": MASKED_CE, "aogpt": dict(mode="aogpt", max_steps=1500),
           "mdlm-paper": MASKED_CE | dict(schedule="cosine", windows="paper")}
GROWN = {name: WRITERS["mdlm-paper"] | dict(dtype="bfloat16") | changed for name, changed in {
    "mdlm by the paper": {}, "twice as wide": dict(n_embd=256, n_hidden=704),
    "three times the steps": dict(max_steps=4500)}.items()}
JUDGES = ["out/diversity/judge-1", "out/diversity/judge-2"]

def writer(name: str, seed: int) -> str:
    """A run on windows as long as what is sampled."""
    changed = NARROW | dict(dtype="float32", data="excerpt-models", block_size=128) | (WRITERS | GROWN)[name]
    return train(f"out/diversity/{dashed(name)}-{seed}", **changed, seed=seed, lr=lr_of(changed["mode"]))

def judge(seed: int) -> str:
    return train(JUDGES[seed - 1], **NARROW, dtype="float32", data="excerpt-judges", mode="ar", max_steps=800,
                 eval_interval=50, dropout=0.1, token_noise=0.1, seed=seed, lr=lr_of("ar"))

def compare_stories(name: str, script: str, ways: dict, stories=300, **flags):
    """What the models write in these ways, beside real text, by the script, with two judges."""
    to = "out/diversity"
    sets = {way: [write(f"{to}/{dashed(way)}-{seed}.jsonl", out_dir=f"{to}/{dashed(whose)}-{seed}",
                        seed=seed, num_samples=stories, **how) for seed in SEEDS]
            for way, (whose, how) in ways.items()}
    finished(*sum(sets.values(), []))
    once(name, python, script, *named(sets), **flags, judge=JUDGES, json=f"results/{name}.json")

def diversity(text: str):
    """Stories of three seeds a mode, beside real ones, judged by others' models; runs must stay."""
    parts(text)
    runs = [writer(name, seed) for seed in SEEDS for name in WRITERS] + [judge(seed) for seed in (1, 2)]
    finished(*runs)
    compare_stories("diversity", "diversity.py", OURS, data="excerpt-real", plot="results/diversity.png")
    compare_stories("diversity-paper-ar", "experiments.paper_diversity", PAPER_AR, data="excerpt-real")
    compare_stories("diversity-paper-mdlm", "experiments.paper_diversity", PAPER_MDLM, data="excerpt-cut")

def grown(text: str):
    """Do size, steps or the number of stories change how diverse stories by the paper's protocol are?"""
    parts(text)
    finished(*(writer(name, seed) for seed in SEEDS for name in ("ar", *GROWN)), *map(judge, (1, 2)))
    for name, whose, data in ("ar", "ar", "excerpt-real"), ("mdlm", "mdlm by the paper", "excerpt-cut"):
        compare_stories(f"diversity-thousand-{name}", "experiments.paper_diversity", {
            f"{name}, 1,000 stories": (whose, dict(protocol="paper"))}, stories=1000, data=data)
    _, *others = GROWN
    compare_stories("diversity-grown", "experiments.paper_diversity", {
        name: (name, dict(protocol="paper")) for name in others}, data="excerpt-cut")

def frontier(text: str):
    """Quality against diversity over temperatures, of one seed."""
    parts(text)
    runs = [writer(name, 1) for name in ("ar", "mdlm", "aogpt")]
    finished(*runs, judge(1))
    once("diversity-frontier", python, "experiments.frontier", models=[*runs, f"{runs[-1]}:left_to_right"],
         num_samples=300, data="excerpt-real", judge=JUDGES[0], json="results/diversity-frontier.json",
         plot="results/diversity-frontier.png")

# ---- Speed -------------------------------------------------------------------------------------------------

def denormals(text: str):
    """Of some runs, made again if need be."""
    KEPT.clear()
    halves(text)
    runs = [on_text(f"mdlm-500-{lr}", "mdlm", "500", lr, 1) for lr in ("0.016", "0.008")]
    runs.append(on_text("mdlm-500-0-0-4000", "mdlm", "500", "0.008", 4, max_steps=4000))
    runs.append(on_text("ar-500-0.064", "ar", "500", "0.064", 1))
    runs.append(on_text("aogpt-500-0.032", "aogpt", "500", "0.032", 1))
    python("experiments.denormals", runs=runs, json="results/denormals.json")

def speed(text: str):
    """Of training, sampling, and what else takes time."""
    python("bench.py", json="results/speed.json")
    python("bench.py", preset="paper", batch_size=2, repeats=3, json="results/speed-paper.json")
    python("experiments.step_parts", json="results/step-parts.json")
    for mode, nanogpt in ("ar", ",nanogpt"), ("mdlm", ""):
        python("experiments.try_speed", mode=mode, json=f"results/speed-tried-{mode}.json",
               variants="tuned,cut_logits,cross_entropy,gradient_with_loss,linear_cross_entropy,"
                        f"fused_attention,rotate_before_transpose{nanogpt}")
    python("experiments.try_speed", preset="laptop", variants="tuned,cut_logits,gradient_with_loss",
           json="results/speed-cut-laptop-ar.json")
    for preset, mode in ("small", "ar"), ("small", "mdlm"), ("paper", "ar"):
        python("experiments.try_speed", mode=mode, preset=preset, variants="tuned,cross_entropy",
               json=f"results/speed-loss-{preset}-{mode}.json")
    python("experiments.try_speed", mode="mdlm", preset="laptop", variants="muon,pytorch_muon",
           json="results/speed-muon.json")
    for mode in "ar", "mdlm", "aogpt":
        python("experiments.try_speed", mode=mode, preset="laptop", json=f"results/speed-muon-{mode}.json",
               variants="muon,muon_separately,pytorch_muon,tuned")
    for preset in "toy", "laptop":
        python("experiments.try_speed", mode="mdlm", preset=preset, json=f"results/speed-slots-{preset}.json",
               variants="tuned,mlp_on_every_slot,rotate_before_transpose")
    python("experiments.sampling_cost", lengths="64,128,256", stories="1,16",
           json="results/sampling-small.json")
    python("experiments.sampling_cost", preset="paper", json="results/sampling-cost.json")
    python("experiments.sampling_cost", preset="paper", stories=16, lengths=256,
           json="results/sampling-cost-16.json")
    python("experiments.scaling", modes="ar,mdlm", repeats=2, json="results/scaling.json")
    kind = "" if bfloat16_is_faster() else "-float32"       # of another machine, beside it
    python("experiments.contention", json=f"results/contention{kind}.json")
    python("experiments.contention", spins="300000,10000", repeats=60,
           json=f"results/contention-idle{kind}.json")
    python("experiments.first_command", f"results/first-command{kind}.json")
    python("experiments.first_command", f"results/first-step{kind}.json", "step")
    python("experiments.time_self_bleu", "results/self-bleu-speed.json")
    python("experiments.try_load", f"{text}/valid.txt", "out/toy-ar", "results/load.json")

def others():
    """A step beside one of nanoGPT's and the paper's own code, three times."""
    for run in 1, 2, 3:
        python("experiments.others", json=f"results/speed-others-{run}.json")

def gpu():
    """Of training and sampling on a CUDA GPU, at the paper's sizes."""
    python("experiments.gpu_smoke", "--what=attention,right", json="results/gpu-smoke.json")
    python("bench.py", json="results/speed-gpu.json")
    python("experiments.try_speed", json="results/speed-tried-gpu.json",
           variants="tuned,cross_entropy,gradient_with_loss,rotate_before_transpose,bfloat16_residual,"
                    "nanogpt")
    python("experiments.try_speed", json="results/speed-eager-gpu.json", variants="tuned,eager,eager_float32")
    python("experiments.try_speed", mode="mdlm", preset="laptop", json="results/speed-muon-gpu.json",
           variants="muon,muon_separately,pytorch_muon")
    python("experiments.others", json="results/speed-others-gpu.json")
    python("experiments.sampling_cost", lengths=512, stories="1,64", json="results/sampling-cost-gpu.json")
    python("experiments.step_parts", json="results/step-parts-gpu.json")

def first(mode: str):
    """README's first command of a mode, on the CPU: taskset -c 0,1 python -m experiments.results first ar."""
    python("experiments.first_command", f"results/first-command-{mode}.json", mode)

# ---- What is done in another way than the paper does it ----------------------------------------------------

def own(text: str):
    """The loss at which each begins, by the paper's weights and ours; how noisy the bound is."""
    runs = {}
    python("prepare_data.py", text=f"{text}/train.txt", val=f"{text}/valid.txt", name="excerpt")
    for mode in ("ar", "mdlm"):
        for init in ("paper", "scaled"):    # a step of next to no length
            runs[f"{mode}-{init}"] = train(f"out/first-{mode}-{init}", mode=mode, preset="paper", init=init,
                data="excerpt", batch_size=2, block_size=128, max_steps=1, eval_windows=64)
    python("compare.py", *named(runs), json="results/first-loss.json")
    python("experiments.estimator", models=["out/toy-mdlm", "out/diversity/mdlm-1"], windows=8,
           json="results/estimator.json")

# ---- The command -------------------------------------------------------------------------------------------

COMMANDS = (toy, sampling, few, minute, real, laptop, longer, later, bigger, written, confounds, weights,
            gaps, orders, plateau, adapt, diversity, grown, frontier, own, denormals, speed, others, gpu,
            first)

def main():
    name, *arguments = sys.argv[1:] or ["--help"]
    if name == "--help":
        return print(__doc__)
    commands = {of.__name__: of for of in COMMANDS}
    if name not in commands or len(arguments) != len(inspect.signature(commands[name]).parameters):
        raise InputError(f"{shlex.join(sys.argv[1:])} is not what --help lists{nearest(name, commands)}")
    if provenance(0)["commit"].endswith("-dirty"):
        raise InputError("commit your changes first")
    commands[name](*arguments)

if __name__ == "__main__":
    command(main, "what is done is kept; call it again to go on")
