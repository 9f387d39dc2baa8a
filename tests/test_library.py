"""The files beside each other: who imports whom, who may exit, and what the pages say."""
import ast
import copy
import graphlib
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import conftest
from conftest import small_model
from model import losses, mask_batch, read_next
from support.runs import load, save
from test_model import every_text, kinds, make

ROOT = Path(conftest.ROOT)
# Each file of the root may import those before it, and PLUGINS inside functions.
ROOT_FILES = ["model", "tokenizer", "worlds", "presets", "prepare_data", "sample", "train",
              "diversity", "bench"]
PLUGINS = {"variants", "samplers", "extras"}
FOLDERS = ["support", "worlds", *sorted(PLUGINS), "experiments", "tests"]
FILES = [path.relative_to(ROOT) for folder in [".", *FOLDERS[:5]]
         for path in sorted((ROOT / folder).glob("*.py"))]


def imports_of(nodes) -> set:
    """The modules and folders that are imported: {"torch", "support", …}."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_run_one_way(file):
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    imported, at_start = imports_of(ast.walk(tree)), imports_of(tree.body)
    if file.stem == "model":
        assert imported <= {"torch", *sys.stdlib_module_names}
    allowed = {"support"}
    if file.parent.name != "support":
        allowed |= {*PLUGINS, *ROOT_FILES}
    if file.parent.name == "worlds":
        allowed -= {*PLUGINS, *ROOT_FILES[3:], "model"}
    if file.parent.name in ("variants", "samplers"):
        allowed -= set(ROOT_FILES[5:])
    if file.parent == Path("."):
        assert not PLUGINS & at_start
        allowed -= set(ROOT_FILES[ROOT_FILES.index(file.stem):])
    assert imported & {*ROOT_FILES, *FOLDERS} <= allowed
    assert "matplotlib" not in at_start     # it takes a second, and only what draws needs it


def test_imports_make_no_circle():
    """Between files; what is imported inside a function is not in the way."""
    graph = {}
    for file in FILES:
        found = graph[".".join(file.with_suffix("").parts)] = set()
        for node in ast.parse((ROOT / file).read_text("utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    graphlib.TopologicalSorter(graph).prepare()         # raises CycleError


def test_only_commands_exit():
    """leave_processes ends those that torchrun started beside the first."""
    code = "\n".join((ROOT / file).read_text("utf-8") for file in FILES)
    exits = set()
    for function in ast.walk(ast.parse(code)):
        if isinstance(function, ast.FunctionDef):
            if re.search(r"SystemExit|sys\.exit|os\._exit|\b(exit|quit)\(", ast.unparse(function)):
                exits.add(function.name)
    assert exits == {"command", "exit_stopped", "leave_processes"}


def test_no_code_asks_the_device_that_happens_to_be_first():
    unnamed = r"(synchronize|get_device_name|get_device_properties|memory_\w+|\w+_memory_\w+)\(\)"
    for path in [*ROOT.glob("*.py"), *ROOT.glob("[esvw]*/*.py")]:
        assert not re.search(unnamed, path.read_text("utf-8")), path


# ---- As a library --------------------------------------------------------------------------------

@torch.no_grad()
@kinds(lambda kind, row: True)
def test_a_model_can_be_copied_pickled_and_saved(tmp_path, kind):
    model = make(kind, dtype=torch.float32)
    config = model.config
    blank, order = torch.full((2, 8), config.mask_id), torch.arange(8).expand(2, -1)
    save(tmp_path / "a.pt", model, variant=type(config).__module__)
    loaded, _ = load(tmp_path / "a.pt")
    for again in copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded:
        assert again.config == config
        found, expected = (read_next(net, blank, order, 0, 8) for net in (again, model))
        assert torch.equal(found, expected)


def test_it_is_used_from_another_folder(tmp_path):
    """Whatever is there is imported without a command, and leaves nothing behind."""
    names = [".".join(file.with_suffix("").parts) for file in FILES if file.stem != "__init__"]
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(names)}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not list(tmp_path.iterdir())


# ---- The pages -----------------------------------------------------------------------------------

def source(*folders) -> str:
    """All code of these folders."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).glob("*.py"))]
    return "\n".join(path.read_text("utf-8") for path in paths)


@pytest.mark.parametrize("page", ["README.md", "exercises.md"])
def test_files_and_flags_of_commands_are_there(page):
    text = (ROOT / page).read_text("utf-8")
    fields = re.findall(r"^    (\w+): ", source(".", *FOLDERS), re.MULTILINE)
    of_others = ["help", "standalone", "nproc_per_node", "top_k"]       # and of an exercise
    for name in re.findall(r"(?<!<!)--(\w+)", text):      # not the marks of report.py
        assert name in [*fields, *of_others]
    for script in re.findall(r"python (\w+\.py)", text):
        assert (ROOT / script).exists()
    for folder, name in re.findall(r"\b(experiments|extras)\.(\w+)", text):
        assert (ROOT / folder / f"{name}.py").exists()


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("results/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def run_block(page, begins: str, names: dict) -> dict:
    """The names after the page's block of Python that begins so."""
    text = (ROOT / page).read_text("utf-8")
    exec(re.search(rf"```python\n({begins}.+?)```", text, re.DOTALL)[1], names)
    return names


@torch.no_grad()
def test_readmes_ten_lines():
    """They have the loss of model.py, for the same masks, and write a story."""
    network = small_model("mdlm")
    config = network.config
    T = config.block_size

    def model(tokens):
        batch = mask_batch(config, tokens, tokens == config.mask_id)
        slots = torch.arange(batch.tokens.numel()).view(-1, T + 1)[:, 1:]
        return network(*batch[:3], slots.flatten()).view(-1, T, config.vocab_size)

    x = torch.randint(config.bos_id, (5, T))
    names = run_block("README.md", "k = ", dict(
        torch=torch, F=F, model=model, x=x, MASK=config.mask_id, B=5, T=T))
    batch = mask_batch(config, x, names["masked"])
    expected = losses(network, batch, batch.select()).mean().item()
    assert names["loss"].item() == pytest.approx(expected, abs=1e-5)
    assert names["story"].max() < config.mask_id


@torch.no_grad()
def test_the_first_exercise():
    """Its number, computed without sampling, from a number k and from a chance t."""
    names = run_block("exercises.md", "import torch", {})
    model, x = names["model"], names["x"]
    exact = by_chance = 0.0
    for masked in every_text(2, 4).bool()[1:]:                                  # (4,)
        batch = mask_batch(model.config, x, masked[None])
        k = int(masked.sum())
        loss = losses(model, batch, batch.select()).item()      # the mean over the masked tokens
        exact += loss / math.comb(4, k) / 4
        integral = math.factorial(k - 1) * math.factorial(4 - k) / math.factorial(4)
        by_chance += k * loss * integral / 4
    assert by_chance == pytest.approx(exact)
    assert abs(names["nats"].mean() - exact) < 0.02
    assert f"Expect {exact:.4f} " in (ROOT / "exercises.md").read_text("utf-8")


def test_what_exercises_name_is_there():
    """Tests, functions and options."""
    code = source(".", *FOLDERS)
    for name in re.findall(r"`(\w+_\w+)`", (ROOT / "exercises.md").read_text("utf-8")):
        assert re.search(rf"\b{name}\b", code), name
