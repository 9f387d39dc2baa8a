"""What was wrong once with numbers: on which device they are made, and under which name shown."""
import re
from pathlib import Path

import pytest
import torch

import model as plain
from conftest import ROOT, run, small_model
from model import Config, Drawing, Transformer, bound_batch, write
from test_compare import compare_runs, write_run
from train import losses_in_parts


# ---- Devices -------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["ar", "aogpt"])
def test_passes_wait_for_no_gpu(mode):
    """A tensor on the device meta has no values, so who asks for one is refused."""
    from extras.cache import Cache
    net = small_model(mode).to("meta")
    tokens = torch.full((4, 8), net.config.mask_id, device="meta")
    order = torch.arange(8, device="meta").expand(4, -1)
    u = torch.zeros(4, 8, dtype=torch.float64, device="meta")
    for read in plain.read_slots, Cache(net):
        passes = write(net, tokens, order, [0, 2, 4, 6, 8], u, Drawing(), read)
        assert [after.shape for after in passes] == 4 * [tokens.shape]


@pytest.mark.parametrize("device, expected", [("cpu", [1] * 12), ("meta", [10, 2])])
def test_a_gpu_evaluates_many_windows_at_once(device, expected):
    """Of 50,257 words and 512 tokens; the device meta stands for a GPU."""
    with torch.device("meta"):
        net = Transformer(Config(n_layer=1, n_head=1, n_embd=2, n_hidden=1)).to_empty(device=device)
    parts = []

    def count(net, batch, select):
        assert batch.tokens.device.type == select.device.type == device
        parts.append(len(batch.targets))
        return torch.zeros(len(batch.targets))

    batch = bound_batch(net.config, torch.zeros(12, 512, dtype=torch.long), None)
    assert len(losses_in_parts(net, count, batch)) == 12
    assert parts == expected


def test_a_device_is_asked_by_name(monkeypatch):
    """Else --device=cuda:1 is timed by what cuda:0 does."""
    import bench
    device = torch.device("cuda:1")
    asked = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *of: asked.append(of))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *of: asked.append(of) or "H200")
    bench.by_turns({"nothing": bool}, 1, device)
    assert bench.peak_flops(device, "bfloat16") == bench.PEAK["H200"]
    assert set(asked) == {(device,)}


def test_no_code_asks_the_device_that_happens_to_be_first():
    unnamed = r"(synchronize|get_device_name|get_device_properties|memory_\w+|\w+_memory_\w+)\(\)"
    for path in Path(ROOT).rglob("*.py"):
        if path.parent.name != "tests":
            assert not re.search(unnamed, path.read_text()), path


@pytest.mark.parametrize("script, other", [
    ("extras/compare.py", "--text=t.txt"), ("diversity.py", "--judge=out/ar")])
def test_scoring_takes_a_device(trained, script, other):
    text = "One day, a girl named Anna found a blue ball."
    (trained / "t.txt").write_text(f"{text}<|endoftext|>{text}")
    named = "a=out/ar" if "compare" in script else "a=t.txt"
    refused = run(script, named, other, "--device=tpu", cwd=trained)
    assert "--device=tpu is not usable here" in refused.stderr
    assert refused.returncode == 2
    assert run(script, named, other, "--device=cpu", cwd=trained).returncode == 0


# ---- Figures -------------------------------------------------------------------------------------

def test_any_name_stands_in_the_legend(tmp_path):
    names = "$$", "_x", "a$b$c"
    for i in range(3):
        write_run(tmp_path / str(i), [(1, 1, 2), (2, 2, 1)])
    compare_runs(*[f"{name}={i}" for i, name in enumerate(names)], "--plot=c.svg", cwd=tmp_path)
    texts = re.findall("<!-- +(.*) -->", (tmp_path / "c.svg").read_text())
    assert {f"{name} (exact)" for name in names} <= set(texts)
