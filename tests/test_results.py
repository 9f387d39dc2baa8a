"""The commands behind results/ exist, take the flags they are given, and write all that is there."""
import importlib
import inspect
import json
import os
import re
import sys
from pathlib import Path

import pytest

import cli
import train
from cli import InputError
from conftest import ROOT
from experiments import results
from model import PAPER_MDLM, Config
from prepare_data import EOT

class Asked(Exception):
    """The command has read its flags."""

@pytest.fixture
def commands(tmp_path, monkeypatch):
    """call(name, …) is one of the commands; returns what it would run, and in vain looks for a best run."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "out", "results"):
        os.mkdir(folder)
    lines, kept = [], results.KEPT.copy()

    def python(what, *arguments, **flags):
        lines.append((what, [*arguments, *(results.flag(name, value) for name, value in flags.items())]))
        if what == "sample.py" and "out" in flags:
            Path(flags["out"]).touch()

    monkeypatch.setattr(results, "python", python)
    monkeypatch.setattr(results, "best_of", lambda *folders: folders[0])
    monkeypatch.setattr(results, "read_stories", lambda path: ["a story"] * 5)

    def call(name, *arguments):
        lines.clear()
        getattr(results, name)(*arguments)
        return list(lines)

    yield call
    results.KEPT[:] = kept

def test_every_command_takes_its_flags_and_every_result_has_its_command(commands, monkeypatch):
    lines = commands("real", "texts")       # first, for others take its runs
    for command in results.COMMANDS:
        takes = "".join(inspect.signature(command).parameters)
        for arguments in {"": [()], "text": [("texts",)], "mode": [("mdlm",), ("ar",), ("aogpt",)]}[takes]:
            lines += commands(command.__name__, *arguments)
    for faster in (True, False):        # on one machine and on another
        monkeypatch.setattr(results, "bfloat16_is_faster", lambda: faster)
        lines += commands("speed", "texts")
    assert len(lines) > 350
    written = {argument.split("=")[-1] for _, arguments in lines for argument in arguments
               if "results/" in argument}
    modules = {what: importlib.import_module(what.removesuffix(".py")) for what, _ in lines}
    parse = cli.parse_flags

    def parse_and_stop(*how, **more):
        raise Asked(parse(*how, **more))

    for module in [module for module in sys.modules.values() if getattr(module, "parse_flags", 0) is parse]:
        monkeypatch.setattr(module, "parse_flags", parse_and_stop)
    monkeypatch.setattr(train, "load_meta", lambda name: {"eot": 4096})
    for what, arguments in lines:
        if what in {f"experiments.{name}" for name in ("first_command", "time_self_bleu", "try_load")}:
            continue                                                            # they take places, no flags
        monkeypatch.setattr(sys, "argv", [what, *arguments])
        with pytest.raises(Asked) as asked:
            modules[what].main()
        if what == "train.py":
            train.resolve(asked.value.args[0])
    files = set(os.listdir(os.path.join(ROOT, "results"))) - {"README.md"}
    pages = Path(ROOT, "results/README.md").read_text("utf-8")
    more = r"few-stories-(sizes|widths)\.png"       # experiments/few_stories.py writes these too
    assert not [name for name in files if f"results/{name}" not in written and not re.fullmatch(more, name)
                and f"]({name})" not in pages]

def test_a_run_is_made_once(commands, monkeypatch):
    made = []
    monkeypatch.setattr(results, "python", lambda *what, **flags: made.append(flags))
    assert results.train("out/a/run", lr=1) == "out/a/run"
    assert made == [dict(out_dir="out/a/run", quiet=True, lr=1)]
    results.train("out/a/run", lr=1)
    with results.lock("out/a/other.lock", wait=False):      # another call is at it
        results.train("out/a/other", lr=1)
    assert len(made) == 1 and results.finished("out/a/run") == ["out/a/run"]
    with pytest.raises(InputError, match="out/a/other is not done; call this again"):
        results.finished("out/a/run", "out/a/other")
    os.mkdir("out/a/other")
    Path("out/a/other/ckpt.pt").touch()                     # begun: it goes on
    results.train("out/a/other", lr=1)
    assert made[1:] == [dict(out_dir="out/a/other", quiet=True, lr=1, resume=True)]
    Path("results/real-all.json").write_text(json.dumps({"compared": {}, "runs": {"out/a/gone": {}}}))
    assert results.train("out/a/gone", lr=1) == "out/a/gone" and len(made) == 2     # its scores are there
    results.keep("results/real-lr.json", "out/a/*")
    assert made[2]["json"] == "results/real-lr.json" and len(made) == 3

def test_climb(monkeypatch):
    """The best rate is found on either side, at powers of two."""
    monkeypatch.setattr(results, "finished", lambda *folders: folders)
    monkeypatch.setattr(results, "best_of", lambda *folders: min(folders, key=lambda f: abs(float(f) - 0.02)))
    assert results.climb(0.004, str) == results.climb(0.128, str) == results.climb(0.016, str) == "0.016"

def test_what_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("raise SystemExit(3)")
    with pytest.raises(InputError, match="failed: python bad.py --steps=1,2 --fast --slow=false"):
        results.python("bad.py", steps=["1", "2"], fast=True, slow=False)
    monkeypatch.setattr(sys, "argv", ["results", "confounds"])
    with pytest.raises(InputError, match="confounds is not what --help lists"):
        results.main()

def test_stories_that_choose_or_judge_are_no_others(commands, monkeypatch):
    told = [f"story {i}" for i in range(5000)]
    monkeypatch.setattr(results, "read_stories", lambda path: told)
    commands("halves", "texts")
    commands("parts", "texts")
    part = {name: Path(f"data/{name}.txt").read_text("utf-8").split(EOT)
            for name in ("choose", "report", "models", "judges", "real")}
    assert part["choose"] + part["report"] == told and len(part["choose"]) == 150
    assert part["models"] + part["judges"] + part["real"] == told

def test_the_best_run_is_the_one_that_was_lowest_at_any_time(monkeypatch):
    curves = {"a": (3.0, 2.0, 2.9), "b": (2.5, 2.4, 2.3), "c": (2.6, 2.2, 2.1)}
    runs = {name: {"curve": [{"val_nll": nats} for nats in of]} for name, of in curves.items()}
    monkeypatch.setattr(results, "known", lambda: {"a": runs["a"]})     # its scores are in results/
    monkeypatch.setattr(results, "read_run", {"b": runs["b"], "c": runs["c"]}.get)
    assert results.best_of("b", "a", "c") == "a"

@pytest.mark.parametrize("mode", ["ar", "mdlm"])
def test_all_of_it_is_the_preset_paper_but_for_sizes(mode):
    [changed] = [row[3] for row in results.VARIANTS if row[:2] == ("all of it", mode)]
    default = vars(Config()) | vars(train.Settings())
    ours = default | train.PRESETS["laptop"] | results.THOUSAND | changed
    paper = default | train.PRESETS["paper"] | (PAPER_MDLM if mode == "mdlm" else {})
    assert {name for name in paper if ours[name] != paper[name]} <= {
        "preset", "data", "block_size", "n_layer", "n_head", "n_embd", "n_hidden", "batch_size", "max_steps",
        "lr", "warmup", "eval_interval", "eval_windows", "compile"}
    assert ours["warmup"] / ours["max_steps"] == paper["warmup"] / paper["max_steps"]
