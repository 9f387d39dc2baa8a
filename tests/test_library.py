"""The files beside each other: who imports whom, and what the pages say of them."""
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import conftest
from conftest import small_model
from model import losses, mask_batch

ROOT = Path(conftest.ROOT)
# Each file of the root may import those before it, and PLUGINS inside functions.
ROOT_FILES = ["model", "tokenizer", "worlds", "presets", "prepare_data", "sample", "train",
              "diversity", "bench"]
PLUGINS = {"variants", "samplers", "extras"}
FILES = [path.relative_to(ROOT) for folder in [".", "support", "worlds", *sorted(PLUGINS)]
         for path in sorted((ROOT / folder).glob("*.py"))]


def text_of(path) -> str:
    return (ROOT / path).read_text("utf-8")


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
    """And where several devices are there, no code asks the one that happens to be the first."""
    tree = ast.parse(text_of(file))
    imported, at_start = imports_of(ast.walk(tree)), imports_of(tree.body)
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
    assert imported & {*ROOT_FILES, *PLUGINS, "support", "experiments", "tests"} <= allowed
    assert "matplotlib" not in at_start     # it takes a second, and only what draws needs it
    unnamed = r"(synchronize|get_device_name|get_device_properties|memory_\w+|\w+_memory_\w+)\(\)"
    assert not re.search(unnamed, text_of(file))


def test_it_is_used_from_another_folder(tmp_path):
    """Whatever is there is imported without a command or a circle, and leaves nothing behind."""
    names = [".".join(file.with_suffix("").parts) for file in FILES if file.stem != "__init__"]
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(names)}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not list(tmp_path.iterdir())


# ---- The pages -----------------------------------------------------------------------------------

@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("results/*.md")],
                         ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_names_what_is_there(page):
    """Files; and in what a beginner reads, commands and their flags."""
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / link).exists()
    if page not in (ROOT / "README.md", ROOT / "exercises.md"):
        return
    for script in re.findall(r"python (?:-m )?((?:course\.|experiments\.|extras\.)?\w+)", text):
        assert script == "pytest" or (ROOT / script.replace(".", "/")).with_suffix(".py").exists()
    folders = [".", "support", "worlds", *PLUGINS, "experiments", "tests"]
    paths = [path for name in folders for path in ROOT.glob(f"{name}/*.py")]
    fields = re.findall(r"^    (\w+): ", "\n".join(map(text_of, paths)), re.MULTILINE)
    of_others = {"help", "nproc_per_node", "standalone", "top_k"}       # and of an exercise
    assert {*re.findall(r"(?<!<!)--(\w+)", text)} <= {*fields} | of_others     # not <!--marks-->


def run_block(page, begins: str, names: dict) -> dict:
    """The names after the page's block of Python that begins so."""
    exec(re.search(rf"```python\n({begins}.+?)```", text_of(page), re.DOTALL)[1], names)
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


def test_the_first_exercise():
    """Its number is the bound that its code estimates."""
    names = run_block("exercises.md", "import torch", {})
    expected = re.search(r"Expect (\d\.\d{4}) ", text_of("exercises.md"))
    assert names["nats"].mean().item() == pytest.approx(float(expected[1]), abs=0.012)
