"""Used from Python, not as commands: who imports whom, and only a command ends the interpreter."""
import ast
import math
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

import cli
from cli import InputError, build
from conftest import ROOT
from diversity import DiversityOptions, encode, open_judges, read_samples
from model import Config, group_losses, masking_batch
from prepare_data import PrepareOptions, Tokenizer, Windows, load_meta, prepare, read_stories
from runs import check_folder, join_processes, load, open_model, read_run
from sample import SampleOptions, complete
from toy import TOY
from train import Settings, resolve

BELOW = {       # what each file may import of the others
    "cli": set(), "toy": set(), "model": set(), "prepare_data": {"cli", "toy"}, "show": set(),
    "runs": {"cli", "model", "prepare_data"}, "compare": {"cli", "model", "prepare_data", "runs", "show"},
    "sample": {"cli", "model", "runs", "show", "toy"},
    "train": {"cli", "model", "prepare_data", "runs", "sample", "show"},
    "diversity": {"cli", "model", "prepare_data", "runs", "show", "toy"},
    "bench": {"cli", "model", "runs", "train"}}

def tree(name):
    with open(os.path.join(ROOT, f"{name}.py"), encoding="utf-8") as f:
        return ast.parse(f.read())

@pytest.mark.parametrize("name", BELOW)
def test_imports_run_one_way(name):
    assert sorted(BELOW) == sorted(file[:-3] for file in os.listdir(ROOT) if file.endswith(".py"))
    imported = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported & set(BELOW) == BELOW[name]

def test_starting_a_command_does_not_import_matplotlib():
    """It takes a second; only what draws needs it."""
    for name in BELOW:
        top = [node for node in tree(name).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert "matplotlib" not in "".join(map(ast.unparse, top))

def test_only_commands_exit():
    exits = set()
    for name in BELOW:
        for function in ast.walk(tree(name)):
            if isinstance(function, ast.FunctionDef):
                nodes = [node for node in ast.walk(function) if isinstance(node, (ast.Name, ast.Attribute))]
                if {"SystemExit", "sys.exit", "os._exit", "exit", "quit"} & set(map(ast.unparse, nodes)):
                    exits.add(f"{name}.{function.name}")
    # leave_processes ends those that torchrun started beside the first
    assert exits == {"cli.command", "train.main", "runs.leave_processes"}

WORDS = Tokenizer("words", words=TOY.words())
TINY = dict(vocab_size=WORDS.vocab_size, block_size=8, n_layer=1, n_head=1, n_embd=4)

@pytest.mark.parametrize("call, words", [
    (lambda: Tokenizer("gpt2", 100), "--vocab_size=100"),
    (lambda: WORDS.encode("One zebra"), "zebra"),
    (lambda: PrepareOptions(val="a.txt"), "--val needs --text"),
    (lambda: PrepareOptions(name="../x"), "plain name"),
    (lambda: prepare(PrepareOptions(text="none.txt", vocab_size=300)), "none.txt cannot be read"),
    (lambda: list(read_stories("none.txt")), "none.txt cannot be read"),
    (lambda: load_meta("none"), "no data set at data/none/meta.json"),
    (lambda: Windows("none", "val", 8), "no data set"),
    (lambda: Windows("t", "val", 10 ** 6), "block_size 1000000 is too long"),
    (lambda: Windows("t", "val", load_meta("t")["splits"]["val"]["tokens"] - 1), "1 aligned val windows"),
    (lambda: Config(n_layer=0), "n_layer is 0"),
    (lambda: build(Config, {"n_layer": 0}), "n_layer is 0"),
    (lambda: Settings(beta2=1.5), "--beta2=1.5"),
    (lambda: resolve({"preset": "toy", "data": "none"}), "no data set"),
    (lambda: resolve({"preset": "toy", "data": "t", "vocab_size": 7}), "--vocab_size=7"),
    (lambda: resolve({"preset": "toy", "data": "t", "mode": "mdlm", "batch_size": 3}), "--batch_size=3"),
    (lambda: SampleOptions(top_p=2.0), "--top_p=2.0"),
    (lambda: complete(SampleOptions(length=9), Config("mdlm", **TINY), WORDS, "aligned"), "--length=9"),
    (lambda: complete(SampleOptions(steps=4), Config("ar", **TINY), WORDS, "aligned"), "--steps=4 means"),
    (lambda: open_model("none", "cpu"), "no checkpoint at none/best.pt"),
    (lambda: open_model("out/ar", "cuda:77"), "cuda:77 is not usable"),
    (lambda: load("none.pt"), "no checkpoint at none.pt"),
    (lambda: read_run("none"), "none holds no readable run"),
    (lambda: check_folder("out/ar", resume=False), "there is a run already"),
    (lambda: join_processes("tpu"), "--device=tpu"),
    (lambda: read_samples("none.jsonl"), "none.jsonl cannot be read"),
    (lambda: open_judges(DiversityOptions(judge="out/mdlm"), None), "--judge=out/mdlm"),
    (lambda: encode(WORDS, "zebra"), "zebra")])
def test_library_code_raises_one_line(trained, monkeypatch, request, call, words):
    monkeypatch.chdir(trained)
    if "300" in str(call.__code__.co_consts):
        request.getfixturevalue("gpt2")         # skips where there is none
    with pytest.raises((ValueError, OSError)) as e:
        call()
    assert words in str(e.value) and "\n" not in str(e.value)
    assert isinstance(e.value, (InputError, OSError)) or words == "n_layer is 0"     # model.py knows no cli

def test_it_stays_small():
    lines = {path: path.read_text("utf-8").splitlines() for folder in (".", "tests", "experiments")
             for path in Path(ROOT, folder).glob("*.py")}
    assert [f"{path.name}: {line}" for path in lines for line in lines[path] if len(line) > 110] == []
    assert sum(len(lines[path]) for path in Path(ROOT).glob("*.py")) < 2900
    readme = Path(ROOT, "README.md").read_text("utf-8")
    assert len(readme.encode()) < 14 * 1024
    for path in Path(ROOT).glob("*.py"):    # README tells how long each file is
        [told] = re.findall(rf"\[{path.name}\]\({path.name}\) \((\d+)", readme)
        assert abs(int(told) - len(lines[path])) <= 10

def test_commands_of_the_pages():
    """Each stands in backticks or on an indented line of its own; its files and flags are there."""
    code = "".join(path.read_text("utf-8") for folder in (".", "experiments")
                   for path in Path(ROOT, folder).glob("*.py"))
    flags = set(re.findall(r"^    (\w+): ", code, re.MULTILINE)) | {"help", "standalone", "nproc_per_node",
            "nnodes", "node_rank", "master_addr", "master_port"} | {"top_k"}    # torchrun's; an exercise's
    for page in [*Path(ROOT).glob("*.md"), *Path(ROOT, "results").glob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        lines = [line for line in text.splitlines() if line.startswith("    ")]
        words = re.sub(r"`[^`]*`", "", "\n".join(line for line in text.splitlines() if line not in lines))
        assert not re.search(r"python .*\.py|--\w+=", words), page.name
        for line in lines:
            command = line.split(" # ")[0]
            assert command.count("python ") <= 1 + command.count("&&"), line
        commands = [*lines, *re.findall(r"`(python [^`]+)`", text)]
        for command in commands:
            assert set(re.findall(r" --(\w+)", command)) <= flags, command
            for script in re.findall(r"python (\w+\.py)", command):
                assert Path(ROOT, script).exists(), command
            for name in re.findall(r"-m experiments\.(\w+)", command):
                assert Path(ROOT, "experiments", f"{name}.py").exists(), command

def test_readmes_ten_lines(trained, monkeypatch, capsys):
    """They run, and score an ar exactly."""
    text = Path(ROOT, "README.md").read_text("utf-8")
    code = re.search(r"```python\n(import torch.+?)```", text, re.DOTALL)[1]
    monkeypatch.chdir(trained)
    assert code.count("out/toy-mdlm") == 1
    for mode in ("mdlm", "ar"):
        exec(code.replace("out/toy-mdlm", f"out/{mode}"), names := {})
        assert names["nats"].shape == (4, 100) and (names["nats"].std(dim=1).max() > 1e-3) == (mode == "mdlm")
        assert " ± tensor" in capsys.readouterr().out

def test_exercises():
    """The first one's code and number; the tests and functions that others speak of are there."""
    text = Path(ROOT, "exercises.md").read_text("utf-8")
    exec(re.search(r"```python\n(.+?)```", text, re.DOTALL)[1], names := {})
    model, x = names["model"], names["x"]
    exact = 0.0
    for masked in torch.cartesian_prod(*[torch.tensor([False, True])] * 4)[1:]:     # (4,)
        k = int(masked.sum())
        batch = masking_batch(model.config, x, masked[None])
        exact += group_losses(model, batch).item() / k / math.comb(4, k) / 4
    assert f"Expect {exact:.4f} " in text and abs(names["losses"].mean() - exact) < 0.02
    code = "".join(path.read_text("utf-8") for folder in (".", "tests", "experiments")
                   for path in Path(ROOT, folder).glob("*.py"))
    for name in re.findall(r"`(\w+_\w+|variances|complete|plan)`", text):
        assert re.search(rf"\b{name}(\(| = |: )", code), name

def test_every_link_leads_somewhere_and_every_result_is_shown():
    shown = set()
    for page in [*Path(ROOT).glob("*.md"), *Path(ROOT, "results").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
                shown.add((page.parent / link).resolve().name)
        shown |= set(re.findall(r"[\w-]+\.json", page.read_text("utf-8")))
    assert set(os.listdir(os.path.join(ROOT, "results"))) <= shown | {"README.md"}

def test_a_commit_is_dirty_when_anything_but_the_results_has_changed(workdir, monkeypatch):
    monkeypatch.setattr(cli, "ROOT", workdir)
    assert cli.provenance(0)["commit"] == ""                    # no repository

    def git(*arguments):
        named = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        subprocess.run(named, check=True, capture_output=True)

    (workdir / "results").mkdir()
    for name in ("code.py", "results/r.json"):
        (workdir / name).write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "m")
    clean = cli.provenance(0)["commit"]
    (workdir / "results/r.json").write_text("2")
    assert cli.provenance(0)["commit"] == clean and len(clean) >= 7
    (workdir / "code.py").write_text("2")
    assert cli.provenance(0)["commit"] == f"{clean}-dirty"
