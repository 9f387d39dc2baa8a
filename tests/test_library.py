"""The files beside each other: who imports whom, who may exit, what README and exercises say."""
import ast
import math
import re
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import cli
import conftest
from conftest import small_model
from objectives import masking_batch, weighted_losses

ROOT = Path(conftest.ROOT)

# What each file may import of the others.
BELOW = {
    "cli": [],
    "toy": [],
    "model": ["cli"],
    "objectives": ["cli", "model"],
    "samplers": ["cli", "model", "objectives"],
    "prepare_data": ["cli", "toy"],
    "show": ["cli"],
    "runs": ["cli", "model", "prepare_data"],
    "compare": ["cli", "model", "objectives", "prepare_data", "runs", "show"],
    "sample": ["cli", "model", "objectives", "prepare_data", "runs", "samplers", "show", "toy"],
    "train": ["cli", "model", "objectives", "prepare_data", "runs", "samplers", "show"],
    "diversity": ["cli", "objectives", "prepare_data", "runs", "toy"],
    "bench": ["cli", "model", "objectives", "train"]}


def tree(name):
    return ast.parse((ROOT / f"{name}.py").read_text("utf-8"))


def imports_of(nodes) -> set:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return names


@pytest.mark.parametrize("name", BELOW)
def test_imports_run_one_way(name):
    imported = imports_of(ast.walk(tree(name))) & BELOW.keys()
    assert sorted(imported) == BELOW[name]
    order = list(BELOW)
    for other in imported:
        assert order.index(other) < order.index(name)


def test_every_file_has_its_place():
    assert sorted(BELOW) == sorted(path.stem for path in ROOT.glob("*.py"))


def test_no_command_imports_matplotlib_at_its_start():
    """It takes a second, and only what draws needs it."""
    for name in BELOW:
        for imported in imports_of(tree(name).body):
            assert not imported.startswith("matplotlib")


def test_only_commands_exit():
    """leave_processes ends those that torchrun started beside the first."""
    exits = set()
    for name in BELOW:
        for function in ast.walk(tree(name)):
            if isinstance(function, ast.FunctionDef):
                code = ast.unparse(function)
                if re.search(r"SystemExit|sys\.exit|os\._exit|\b(exit|quit)\(", code):
                    exits.add(f"{name}.{function.name}")
    assert exits == {"cli.command", "train.exit_stopped", "runs.leave_processes"}


# ---- The pages -----------------------------------------------------------------------------------

def source(*folders) -> str:
    """All code of these folders."""
    texts = []
    for folder in folders:
        for path in sorted((ROOT / folder).glob("*.py")):
            texts.append(path.read_text("utf-8"))
    return "\n".join(texts)


@pytest.mark.parametrize("page", ["README.md", "exercises.md"])
def test_files_and_flags_of_commands_are_there(page):
    text = (ROOT / page).read_text("utf-8")
    fields = re.findall(r"^    (\w+): ", source(".", "experiments"), re.MULTILINE)
    of_others = ["help", "standalone", "nproc_per_node", "top_k"]       # and of an exercise
    for flag in re.findall(r"(?<!<!)--(\w+)", text):      # not the marks of report.py
        assert flag in [*fields, *of_others]
    for script in re.findall(r"python (\w+\.py)", text):
        assert (ROOT / script).exists()
    for name in re.findall(r"\bexperiments\.(\w+)", text):
        assert (ROOT / f"experiments/{name}.py").exists()


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("results/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def python_block(page, begins: str) -> str:
    """The one that begins so."""
    text = (ROOT / page).read_text("utf-8")
    return re.search(rf"```python\n({begins}.+?)```", text, re.DOTALL)[1]


@torch.no_grad()
def test_readmes_ten_lines():
    """They have the loss of objectives.py, for the same masks, and write a story."""
    network = small_model("mdlm")
    config = network.config
    position = torch.arange(-1, config.block_size)[None]                        # (1, T+1)

    def model(tokens):
        begun = F.pad(tokens, (1, 0), value=config.bos_id)
        return network(begun, position, position)[:, 1:]

    x = torch.randint(config.bos_id, (5, config.block_size))
    names = dict(torch=torch, F=F, model=model, x=x, MASK=config.mask_id, B=5, T=config.block_size)
    exec(python_block("README.md", "k = "), names)
    batch = masking_batch(config, x, names["masked"])
    losses = weighted_losses(network, batch._replace(weight=batch.weight / names["k"]))
    assert names["loss"].item() == pytest.approx(losses.mean().item(), abs=1e-5)
    assert names["story"].max() < config.mask_id


def test_the_first_exercise():
    """Its number, computed without sampling."""
    names = {}
    exec(python_block("exercises.md", "import torch"), names)
    model, x = names["model"], names["x"]
    exact = 0.0
    for masked in torch.cartesian_prod(*[torch.tensor([False, True])] * 4)[1:]:     # (4,)
        k = int(masked.sum())
        batch = masking_batch(model.config, x, masked[None])
        exact += weighted_losses(model, batch).item() / k / math.comb(4, k) / 4
    assert abs(names["losses"].mean() - exact) < 0.02
    assert f"Expect {exact:.4f} " in (ROOT / "exercises.md").read_text("utf-8")


def test_what_exercises_name_is_there():
    """Tests, functions and options."""
    text = (ROOT / "exercises.md").read_text("utf-8")
    code = source(".", "tests", "experiments")
    for name in re.findall(r"`(\w+_\w+)`", text):
        assert re.search(rf"\b{name}\b", code), name


# ---- The commit ----------------------------------------------------------------------------------

def git(*arguments):
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_a_commit_is_dirty_when_anything_but_the_results_has_changed(workdir, monkeypatch):
    monkeypatch.setattr(cli, "ROOT", workdir)
    assert cli.provenance(0)["commit"] == ""            # there is no repository
    code, result = workdir / "code.py", workdir / "results/r.json"
    result.parent.mkdir()
    for path in code, result:
        path.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "m")
    clean = cli.provenance(0)["commit"]
    assert len(clean) >= 7
    result.write_text("2")
    assert cli.provenance(0)["commit"] == clean
    code.write_text("2")
    assert cli.provenance(0)["commit"] == f"{clean}-dirty"
