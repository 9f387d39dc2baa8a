"""What a student does to a copy of the code: a file more, a field changed, folders deleted."""
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, TINY, run

HEAD = """
import torch
import model
from model import MODES

class Config(model.Config):
    "a file of one's own"

"""
FILES = {
    "variants/rtl.py": """
def times(config, u):
    return model.left_to_right(config, u).flip(1)

Config.modes = {"ar": MODES["ar"]._replace(times=times)}
""",
    "variants/late.py": """
def late_batch(config, x, generator):
    return model.mask_batch(config, x, torch.arange(x.size(1)).expand(x.shape) > 5)

Config.modes = {"mdlm": MODES["mdlm"]._replace(training_batch=late_batch)}
""",
    "variants/wrong.py": """
Config.modes = {"ar": MODES["ar"]._replace(trainingbatch=len)}
""",
    "variants/twice.py": """
Config.modes = {"mdlm": MODES["mdlm"]._replace(reported={"val_nll": len})}
""",
    "variants/vain.py": """
def draw_masks(x, k, generator):
    return x > 0

Config.modes = {"mdlm": MODES["mdlm"]}
""",
    "samplers/mine.py": """
def sampler(config, o, flags):
    return write

@torch.no_grad()
def write(network, tokens, times, decide, noise):
    row = torch.arange(len(tokens))[:, None]
    for place in reversed(range(tokens.size(1))):
        here = torch.full_like(row, place)
        logits = model.read_masked(network, tokens, row, here)
        tokens = tokens.scatter(1, here, decide(logits, row, here))
        yield tokens
""",
    # Which is run there: what a row of rtl and the bound of late are, and a law for the sampler.
    "look.py": """
import itertools
from extras.score import cost_of_writing
from sample import SampleOptions
from samplers import mine
from variants import late, rtl

config = rtl.Config("ar", vocab_size=9, block_size=4)
print(config.row.training_batch(config, torch.ones(2, 4).long(), None).target_pos.tolist())
print(late.Config.modes["mdlm"].bound_batch is MODES["mdlm"].bound_batch)
network = model.Transformer(model.Config("mdlm", 3, 4, 1, 1, 8, 8)).double()
x = torch.tensor(list(itertools.product(range(3), repeat=4)))
nats, _ = cost_of_writing(network, x, x >= 0, mine.write, SampleOptions(), range(81))
print(round(nats.neg().exp().sum().item(), 9))
"""}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the project, with these files."""
    folder = tmp_path_factory.mktemp("copy") / "tree"
    names = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True)
    for name in names.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(ROOT, name), folder / name)
    for name, text in FILES.items():
        (folder / name).write_text(HEAD + text)
    return folder


@pytest.fixture
def go(tree, trained):
    """A command there, which ends well or says in one line what is wrong with this name."""
    def go(script, *flags, wrong=""):
        done = run(script, *flags, cwd=trained, tree=tree)
        if wrong:
            assert done.returncode == 2 and done.stderr.count("\n") == 1 and wrong in done.stderr
        else:
            assert done.returncode == 0, done.stderr
        return done.stdout

    return go


def test_files_of_ones_own(go, trained):
    """An order is one row and masks are one field; a sampler writes and is scored as it is."""
    assert go("look.py") == f"{[[3, 2, 1, 0]] * 2}\nTrue\n1.0\n"
    for name in "rtl", "late":
        mode = "ar" if name == "rtl" else "mdlm"
        go("train.py", *TINY, f"--mode={mode}", f"--variant={name}", f"--out_dir=out/{name}",
           "--max_steps=5")
    go("sample.py", "--out_dir=out/rtl", "--prompt=One day", wrong="--prompt")
    go("train.py", *TINY, "--variant=wrong", wrong="training_batch?")
    go("train.py", *TINY, "--mode=mdlm", "--variant=vain", wrong="draw_masks")
    go("train.py", *TINY, "--mode=mdlm", "--variant=twice", wrong="val_nll")
    go("sample.py", "--out_dir=out/late", "--sampler=mine", "--out=mine.jsonl")
    *_, row = map(json.loads, open(trained / "mine.jsonl"))
    assert row["appeared"] == list(range(47, 47 - len(row["appeared"]), -1))


def test_the_plain_path_knows_no_extras(go, tree):
    """The last test of the copy, because it deletes them."""
    for folder in "variants", "samplers", "extras":
        shutil.rmtree(tree / folder)
    for mode in "ar", "mdlm", "aogpt":
        flags = [f"--mode={mode}", f"--out_dir=out/bare-{mode}", "--max_steps=5"]
        go("train.py", *TINY, *flags, "--optimizer=adamw")      # Muon is in extras/
        cache = [] if mode == "mdlm" else ["--cache=false"]
        go("sample.py", f"--out_dir=out/bare-{mode}", "--num_samples=1", "--prompt=One", *cache)
