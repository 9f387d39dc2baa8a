"""Today's code trains and writes as the code did that made the data of results/."""
import json

import pytest
from pytest import approx

import golden
from conftest import run

RUNS = json.loads(golden.FILE.read_text())["runs"]


def right(script, *arguments, cwd):
    done = run(script, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    golden.prepare(folder, right)
    return folder


@pytest.mark.parametrize("expected", RUNS, ids=[made["name"] for made in RUNS])
def test_a_run_is_the_same(data, expected):
    """Other machines add numbers up in another order, so 20 steps may differ in the fifth digit."""
    name = expected["name"]
    losses, weights = golden.train(data, name, expected["flags"], right)
    assert losses.keys() == expected["losses"].keys()
    for key, value in losses.items():
        error = 1e-2 if "norm" in key or "se" in key else 2e-5
        assert value == approx(expected["losses"][key], rel=error), key
    assert weights == approx(expected["weights"], rel=1e-6)
    for story in expected["samples"]:
        assert golden.sample(data, name, story["flags"], right) == story["tokens"], story["flags"]
