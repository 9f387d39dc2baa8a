"""What was wrong once with numbers: of samplers, losses, timings, tables and figures."""
import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import bench
import model
import objectives
import samplers
from support.flags import InputError
from compare import CompareOptions, score_files
from conftest import ROOT, read_log, run, small_model
from experiments import held_out, infill
from model import Config, Transformer
from objectives import evaluation_batch, losses_in_parts, masking_batch
from samplers import SampleOptions, generate
from show import draw_losses
from test_show import texts_of


# ---- Samplers ------------------------------------------------------------------------------------

def law_of(logits, temperature: float, top_p: float):
    """p (…, V) that a token is drawn from."""
    p = (logits / temperature).softmax(dim=-1)
    largest, token = p.sort(dim=-1, descending=True)
    before = largest.cumsum(dim=-1) - largest
    kept = largest.masked_fill(before >= top_p, 0)
    p = torch.zeros_like(p).scatter(-1, token, kept)
    return p / p.sum(dim=-1, keepdim=True)


@torch.no_grad()
@pytest.mark.parametrize("temperature, top_p, charged", [
    (0.5, 1.0, (0.5, 1.0)),
    (1.5, 0.7, (1.5, 0.7)),
    (1.0, 0.5, (1.0, 0.5)),
    (0.0, 0.5, (1.0, 1.0))])        # where nothing is drawn at random
def test_adaptive_charges_the_law_that_it_draws_from(temperature, top_p, charged):
    """What a pass reveals is within the risk, the last token apart; one more would exceed it."""
    net = small_model("mdlm")
    hidden = net.config.mask_id
    o = SampleOptions(sampler="adaptive", risk=2.5, temperature=temperature, top_p=top_p)
    before = torch.full((40, 8), hidden)
    numbers = set()
    for after in samplers.states(net, range(40), before[0], o):
        batch = masking_batch(net.config, before, before == hidden)
        p = law_of(net(*batch[:3])[:, 1:], *charged)
        nats = torch.special.entr(p).sum(dim=-1)                                # (40, 8)
        for row, old, new in zip(nats, before, after):
            left = row[old == hidden].sort().values
            shown = row[(old == hidden) & (new != hidden)].sort().values
            if len(left) > 0:
                numbers.add(len(shown))
                assert torch.allclose(shown, left[:len(shown)], atol=1e-5)
                assert shown[:-1].sum() <= 2.5 + 1e-4
            if len(shown) < len(left):
                assert shown.sum() > 2.5 - 1e-4
        before = after
    assert max(numbers) > 1


@torch.no_grad()
@pytest.mark.parametrize("fields, flags", [
    (dict(mode="ar"), {}),
    (dict(mode="aogpt"), {}),
    (dict(mode="aogpt"), dict(draft=3)),
    (dict(mode="mdlm"), {}),
    (dict(mode="mdlm", orders="blocks:4"), dict(sampler="adaptive"))])
def test_stories_can_be_written_under_autocast(fields, flags):
    net = small_model(**fields)
    pattern = torch.full((8,), net.config.mask_id)
    o = SampleOptions(full_length=True, **flags)
    with torch.autocast("cpu", torch.bfloat16):
        tokens, _ = generate(net, range(4), pattern, o)
    assert (tokens < net.config.vocab_size).all()
    again, _ = generate(net, range(4), pattern, o)
    assert (tokens == again).float().mean() > 0.5       # bfloat16 seldom decides on a token


@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "aogpt"])
def test_passes_wait_for_no_gpu(mode):
    """A tensor on the device meta has no values, so who asks for one is refused."""
    net = small_model(mode).to("meta")
    tokens = torch.full((4, 8), net.config.mask_id, device="meta")
    order = torch.arange(8, device="meta").expand(4, -1)
    u = torch.zeros(4, 8, dtype=torch.float64, device="meta")
    passes = samplers.write_in_order(net, tokens, order, 0, u, 4, SampleOptions())
    assert [after.shape for after in passes] == 4 * [tokens.shape]


# ---- Attention and losses ------------------------------------------------------------------------

@pytest.mark.parametrize("seen", ["all", "causal", "some"])
def test_attention_is_written_out_for_bfloat16_training_alone(seen, monkeypatch):
    """And is the same there, but for rounding."""
    calls = []
    library = F.scaled_dot_product_attention

    def counted(q, *others, **flags):
        calls.append(q.dtype)
        return library(q, *others, **flags)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    torch.manual_seed(0)
    visible = None
    if seen == "some":
        visible = (torch.rand(1, 1, 6, 6) < 0.5) | torch.eye(6, dtype=torch.bool)
    inputs = torch.randn(3, 2, 2, 6, 4).bfloat16()      # q, k and v
    found = []
    for dtype in torch.float64, torch.float32, torch.bfloat16:
        x = inputs.to(dtype).requires_grad_()
        y = model.attend(*x, visible, seen == "causal")
        y.sum().backward()
        found.append(torch.cat([y.flatten(), x.grad.flatten()]).double())
    assert calls == [torch.float64, torch.float32]
    exact, single, half = found
    assert (single - exact).abs().max() < 1e-5
    assert (half - exact).abs().max() < 0.05


@pytest.mark.parametrize("device, expected", [("cpu", [1] * 12), ("meta", [10, 2])])
def test_a_gpu_evaluates_many_windows_at_once(device, expected, monkeypatch):
    """Of 50,257 words and 512 tokens; the device meta stands for a GPU."""
    sizes = dict(n_layer=1, n_head=1, n_embd=2, n_hidden=1)
    with torch.device("meta"):
        net = Transformer(Config("ar", **sizes)).to_empty(device=device)
    parts = []

    def count(net, batch):
        assert batch.tokens.device.type == device
        parts.append(len(batch.targets))
        return torch.zeros(len(batch.targets))

    monkeypatch.setattr(objectives, "weighted_losses", count)
    x = torch.zeros(12, 512, dtype=torch.long)
    assert len(losses_in_parts(net, evaluation_batch(net.config, x, None))) == 12
    assert parts == expected


# ---- Timings -------------------------------------------------------------------------------------

def test_a_device_is_asked_by_name(monkeypatch):
    """Else --device=cuda:1 is timed by what cuda:0 does."""
    device = torch.device("cuda:1")
    asked = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *of: asked.append(of))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *of: asked.append(of) or "H200")
    bench.by_turns({"nothing": bool}, 1, device)
    assert bench.peak_flops(device, "bfloat16") == bench.PEAK["H200"]
    assert set(asked) == {(device,)}
    unnamed = r"(synchronize|get_device_name|get_device_properties|memory_\w+|\w+_memory_\w+)\(\)"
    for path in [*Path(ROOT).glob("*.py"), *Path(ROOT).glob("experiments/*.py")]:
        assert not re.search(unnamed, path.read_text()), path


# ---- Tables and figures --------------------------------------------------------------------------

def write_run(folder, losses, **final):
    """A run as compare.py reads it, with an evaluation after each second; final: its last line."""
    folder.mkdir(parents=True)
    config = {"seed": 1,
              "config": {"block_size": 8, "mode": "ar"},
              "settings": {"data": "t", "windows": "aligned", "max_steps": len(losses)},
              "commit": ""}
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "log.jsonl", "w") as file:
        for i, loss in enumerate(losses, 1):
            print(json.dumps(dict(step=i, seconds=i, val_nll=loss, val_nll_se=0.1)), file=file)
        if final:
            print(json.dumps(final), file=file)


NAMES = "$$", "_x", "a$b$c"


def test_any_name_stands_in_the_legend(tmp_path):
    for i, name in enumerate(NAMES):
        write_run(tmp_path / str(i), [2, 1])
    arguments = [f"{name}={i}" for i, name in enumerate(NAMES)]
    done = run("compare.py", *arguments, "--plot=c.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    texts = [text.strip() for text in texts_of(tmp_path / "c.svg")]
    for name in NAMES:
        assert f"{name} (exact)" in texts


def test_experiments_show_any_name_too(tmp_path):
    curve = [(1, 2.0), (2, 1.0)]
    blanks = {"1": {"nats": 1.0, "nats_se": 0.1}}
    held_out.draw_curves({f"out/{name}-1": {"curve": curve} for name in NAMES}, tmp_path / "c.svg")
    infill.draw_infill({f"out/{name}": {"blanks": blanks} for name in NAMES}, tmp_path / "i.svg")
    for file in "c.svg", "i.svg":
        texts = [text.strip() for text in texts_of(tmp_path / file)]
        assert set(NAMES) <= set(texts)


def test_a_run_that_has_diverged_is_shown(trained, tmp_path):
    write_run(tmp_path / "out/bad", [7e11, 3e300])
    checkpoint = torch.load(trained / "out/ar/best.pt")
    for name in "embed.weight", "head.weight":
        checkpoint["model"][name] = 3e4 * torch.randn(checkpoint["model"][name].shape)
    torch.save(checkpoint, tmp_path / "out/bad/best.pt")
    (tmp_path / "t.txt").write_text("One day, a girl named Anna found a blue ball.")
    done = run("compare.py", "bad=out/bad", "--text=t.txt", "--json=c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) < 100
    assert " 7e+11 " in done.stdout
    assert done.stdout.rstrip().endswith(" inf")
    found = json.loads((tmp_path / "c.json").read_text())["runs"]["bad"]["text"]
    assert found["nats per token"] > 1000
    assert found["perplexity"] is None


def test_the_best_loss_is_that_of_the_last_evaluation(tmp_path):
    """It has many draws; a run that has not ended has quick estimates alone."""
    write_run(tmp_path / "ended", [3, 1, 2], best_step=2, final_nll=1.25, final_nll_se=0.01)
    write_run(tmp_path / "begun", [3, 1, 2])
    done = run("compare.py", "ended=ended", "begun=begun", "--json=c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "c.json").read_text())["runs"]
    expected = {"ended": (1.25, 0.01, "final"), "begun": (1, 0.1, "quick")}
    for name, (best, error, estimate) in expected.items():
        table = runs[name]["table"]
        assert (table["best"], table["± s.e."], table["estimate"]) == (best, error, estimate)
        assert table["at 3 steps"] == 2
        assert re.search(f"\n{name} +{best:.4f} +{error:.4f} +{estimate} +2.0000 ", done.stdout)


def test_scoring_takes_a_device(trained):
    text = trained / "device.txt"
    text.write_text("One day, a girl named Anna found a blue ball.")
    refused = run("compare.py", "a=out/ar", f"--text={text}", "--device=tpu", cwd=trained)
    assert "--device=tpu is not usable here" in refused.stderr
    assert refused.returncode == 2
    o = CompareOptions(text=str(text), device="cpu")
    assert score_files(str(trained / "out/ar"), o)["texts"] == 1
    with pytest.raises(InputError, match="--device=cpu means nothing without --text"):
        CompareOptions(device="cpu")
    refused = run("diversity.py", f"a={text}", "--judge=out/ar", "--device=tpu", cwd=trained)
    assert "--device=tpu is not usable here" in refused.stderr
    assert refused.returncode == 2
