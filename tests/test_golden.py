"""Today's code trains and writes as the code did that made the data of results/."""
import json

import pytest
from pytest import approx

import golden

RUNS = json.loads(golden.FILE.read_text())["runs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("golden")


@pytest.fixture
def right(folder, call, monkeypatch):
    """A function that runs a command there, which must go well. The first one needs the data.

    It draws no curve, which would take almost as long as to train."""
    monkeypatch.setattr("support.runs.draw_losses", lambda *_: None)

    def run(script, *arguments, cwd):
        monkeypatch.chdir(cwd)
        done = call(script, *arguments)
        assert done.returncode == 0, done.stderr

    if not any(folder.iterdir()):
        golden.prepare(folder, run)
    return run


@pytest.mark.parametrize("expected", RUNS, ids=[made["name"] for made in RUNS])
def test_a_run_is_the_same(folder, right, expected):
    """Other machines add numbers up in another order, so 20 steps may differ in the fifth digit."""
    name = expected["name"]
    losses, weights = golden.train(folder, name, expected["flags"], right)
    assert losses.keys() == expected["losses"].keys()
    for key, value in losses.items():
        error = 1e-2 if "norm" in key or "se" in key else 2e-5
        assert value == approx(expected["losses"][key], rel=error), key
    assert weights == approx(expected["weights"], rel=1e-6)
    for story in expected["samples"]:
        assert golden.sample(folder, name, story["flags"], right) == story["tokens"], story["flags"]
