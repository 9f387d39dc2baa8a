"""bench.py: the figures hang together, and the steps do train."""
import json

import pytest
import torch

import bench
from bench import by_turns, flops_per_token, training_step
from conftest import run, small_model
from model import Config, losses

SIZES = dict(vocab_size=50, block_size=8, n_layer=1, n_head=2, n_embd=16, n_hidden=16)
FLAGS = [f"--{name}={value}" for name, value in SIZES.items()]
CPU = torch.device("cpu")


def test_the_command(tmp_path):
    done = run("bench.py", "--modes=ar,mdlm", "--repeats=2", "--batch_size=4", "--json=b.json",
               "--device=cpu", *FLAGS, cwd=tmp_path, TORCHDYNAMO_DISABLE="1")
    assert done.returncode == 0, done.stderr
    content = json.load(open(tmp_path / "b.json"))
    for mode, row in content["train"].items():
        assert f"\n{mode}, {row['dtype']} " in done.stdout
        assert row["mflop_per_token"] == flops_per_token(Config(mode, **SIZES)) / 1e6
        assert row["tok_per_s"] == pytest.approx(4 * 8 / (row["ms_per_step"] / 1000))
        assert 0 < row["mfu"] < 1
        assert len(row["seconds"]) == 2
    assert content["train"]["ar"]["ratio_to_ar"] == 1


def test_the_baseline_computes_every_slot():
    """And its losses are the same."""
    model = small_model("mdlm")
    batch = model.config.row.bound_batch(model.config, torch.randint(11, (4, 8)), None)
    select = batch.select()
    predicted = []
    model.head.register_forward_hook(lambda head, inputs, logits: predicted.append(len(logits)))
    expected = losses(model, batch, select)
    assert torch.allclose(bench.losses_of_every_slot(model, batch, select), expected, atol=1e-5)
    assert predicted == [len(select), 4 * 9]


@pytest.mark.parametrize("tuned", [True, False])
def test_a_step_trains(monkeypatch, tuned):
    """The timed step is an optimizer step, on new masks each time."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    step, dtype, _ = training_step(Config("mdlm", **SIZES), 4, CPU, tuned)
    found = [step()[0].item() for _ in range(60)]
    assert sum(found[-5:]) < sum(found[:5])
    assert len(set(found)) == 60
    assert tuned or dtype == "float32"


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
