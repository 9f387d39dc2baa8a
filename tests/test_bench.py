"""bench.py: the figures hang together, and the steps do train."""
import json
import sys
from pathlib import Path

import pytest
import torch

import bench
from bench import by_turns, flops_per_token, training_step
from conftest import read_log, small_model
from model import Config, losses
from train import Settings

SIZES = dict(vocab_size=50, block_size=8, n_layer=1, n_head=2, n_embd=16, n_hidden=16)
FLAGS = [f"--{name}={value}" for name, value in SIZES.items()]
CPU = torch.device("cpu")


def test_the_command(workdir, monkeypatch):
    """By a clock of our own: a step of ar takes an eighth of a second, and all else a quarter."""
    def turns(steps, repeats, _):
        return {name: [0.125 if name == "ar" else 0.25] * repeats for name in steps}

    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(bench, "by_turns", turns)
    flags = "bench.py --repeats=2 --batch_size=4 --json=b.json --device=cpu"
    monkeypatch.setattr(sys, "argv", flags.split() + FLAGS)
    bench.main()
    rows = json.loads(Path("b.json").read_text())["train"]
    for mode, took in ("ar", 0.125), ("mdlm", 0.25):
        found = rows[mode]
        assert found["tok_per_s"] == 4 * 8 / took and found["ms_per_step"] == 1000 * took
        assert found["speedup"] == 0.25 / took and found["ratio_to_ar"] == 0.125 / took
        done = flops_per_token(Config(mode, **SIZES)) * 4 * 8 / took
        assert found["of_a_product"] == done / (2 * 2048 ** 3 / 0.25)
def test_the_baseline_computes_every_slot():
    """Whichever are asked for, and its losses are the same."""
    model = small_model("mdlm")
    batch = model.config.row.bound_batch(model.config, torch.randint(11, (4, 8)), None)
    select = batch.select()
    found = bench.losses_of_every_slot(model, batch, select[:0])
    torch.testing.assert_close(found, losses(model, batch, select))


def test_the_board(trained, call, monkeypatch):
    """What 30 steps of eight windows have spent, and reached by their log."""
    monkeypatch.chdir(trained)
    done = call("bench.py", "--board=out/mdlm", "--json=board.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(Path("board.json").read_text())["board"]["out/mdlm"]
    *_, end = read_log(Path("out/mdlm"))
    config = Config(**json.loads(Path("out/mdlm/config.json").read_text())["config"])
    assert found["above the law"] == end["above_law"]
    assert found["multiply-adds"] == 30 * 8 * config.block_size * flops_per_token(config) / 2


@pytest.mark.parametrize("tuned", [True, False])
def test_a_step_trains(monkeypatch, tuned):
    """The timed step is an optimizer step, on new masks each time."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    step = training_step(Settings(batch_size=4), Config("mdlm", **SIZES), CPU, tuned)
    found = [step()[0].item() for _ in range(60)]
    assert sum(found[-5:]) < sum(found[:5])
    assert len(set(found)) == 60


def test_turns_are_taken_and_the_first_does_not_count(monkeypatch):
    """By a clock of our own; a turn lasts half a second."""
    now = [0.0]
    order = []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])

    def step(name, took):
        order.append(name)
        now[0] += took

    steps = {"a": lambda: step("a", 0.125), "b": lambda: step("b", 0.25)}
    seconds = by_turns(steps, 2, CPU)
    assert seconds == {"a": [0.125] * 2, "b": [0.25] * 2}
    assert "".join(order) == "ab" + 2 * "aaaabb"
