"""What bench.py says: the figures hang together; and they are of the work that train.py does."""
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters

import bench
import cli
import model
import train
from bench import BenchOptions, begin, by_turns, training_step
from conftest import ROOT, experiment, run, small_model
from experiments import others, sampling_cost, step_parts, try_speed
from experiments.scaling import exponent
from model import Config, flops_per_token

SMALL = ["--n_layer=1", "--n_head=2", "--n_embd=32", "--n_hidden=32", "--vocab_size=300", "--device=cpu"]

def test_training_figures(tmp_path):
    done = run("bench.py", "--modes=ar", *SMALL, "--block_size=16", "--batch_size=4", "--repeats=2",
               "--json=b.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.load(open(tmp_path / "b.json"))
    assert content["threads"] == torch.get_num_threads()
    row = content["train"]["ar"]
    config = Config("ar", vocab_size=300, block_size=16, n_layer=1, n_head=2, n_embd=32, n_hidden=32)
    assert row["flops_per_token"] == flops_per_token(config)
    assert row["tok_per_s"] == pytest.approx(4 * 16 / (row["ms_per_step"] / 1000))
    assert row["baseline_tok_per_s"] > 0 and row["ratio_to_ar"] == 1
    assert 0 < row["mfu"] < 1 and row["peak_mem_mb"] > 0 and len(row["seconds"]) == 2
    begin(BenchOptions(modes=("mdlm",)), {"time_embedding": "add"})         # what is for mdlm alone
    # a row of logits for each slot that predicts
    assert row["logits_mb"] * 2 ** 20 == 64 * 300 * (2 if row["dtype"] == "bfloat16" else 4)

def test_sampling_figures(tmp_path):
    done = experiment("sampling_cost", *SMALL, "--lengths=16,32", "--json=s.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.load(open(tmp_path / "s.json"))
    assert [(r["length"], r["stories"]) for r in content["sample"]] == [(16, 1), (32, 1)]
    assert all(v > 0 for r in content["sample"] for v in r["seconds"].values())
    done = experiment("sampling_cost", *SMALL, "--lengths=8", cwd=tmp_path)
    assert done.returncode == 2 and "--places=4" in done.stderr

def test_windows_are_as_long_as_the_stories_whose_cost_is_measured(monkeypatch):
    """mdlm reads all of a longer one."""
    seen = []
    monkeypatch.setattr(sampling_cost, "story_seconds", lambda model, length, *how, **flags: seen.append(
        (model.config.block_size, length)) or 1.0)
    sizes = dict(n_layer=1, n_head=2, n_embd=32, n_hidden=32, vocab_size=300, block_size=64)
    sampling_cost.bench_sample(sampling_cost.CostOptions(lengths=(16, 32)), sizes, torch.device("cpu"))
    assert len(seen) == 2 * len(sampling_cost.columns(64)) and set(seen) == {(16, 16), (32, 32)}

@pytest.mark.parametrize("few", [None, 8])
def test_the_first_steps_of_writing_do_not_count(monkeypatch, few):
    """On a GPU kernels are loaded in them. A story's cost is that of its steps at four places."""
    now, slow = [0.0], [100.0] * 4      # four steps at the first place; of these three are timed

    def states(model, stories, pattern, o):
        assert len(stories) == 3 and o.steps == round((few or 32) * (pattern == 64).sum().item() / 32)
        for _ in range(o.steps):
            now[0] += slow.pop() if slow else 0.5
            yield torch.zeros(3, 32)

    monkeypatch.setattr(sampling_cost.sample, "states", states)
    monkeypatch.setattr(sampling_cost.time, "perf_counter", lambda: now[0])
    model = small_model("aogpt", vocab_size=64, block_size=32)
    cost = sampling_cost.story_seconds(model, 32, 3, 4, few)
    assert cost == 0.5 * (few or 32) and not slow

def test_a_bench_step_trains():
    """The timed step is an optimizer step, on new masks each time."""
    config = Config("mdlm", vocab_size=50, block_size=8, n_layer=1, n_head=2, n_embd=16, n_hidden=16)
    step, needs = training_step(config, 4, torch.device("cpu"), tuned=False)
    losses = [step()[0].item() for _ in range(60)]
    assert sum(losses[-5:]) < sum(losses[:5]) and len(set(losses)) == 60 and needs["dtype"] == "float32"
    # (T + 1) of a pair's 2T slots predict, each a row of logits
    assert needs["logits_mb"] * 2 ** 20 == 2 * 9 * 50 * 4

def put_back(monkeypatch):
    """Afterwards, what try_speed's variants change."""
    for of, name in ((train, "group_losses"), (train, "Muon"), (model, "attend"), (model, "logits_of"),
                     (model.Attention, "forward"), (model.Block, "forward"), (torch, "baddbmm")):
        monkeypatch.setattr(of, name, getattr(of, name))

def test_every_variant_is_compiled_for_itself(monkeypatch):
    """What is compiled is kept with a function's code: a variant of a method would get the first one's."""
    put_back(monkeypatch)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    sizes = dict(vocab_size=50, block_size=8, n_layer=1, n_head=2, n_embd=16, n_hidden=16)
    graphs = [counters["stats"]["unique_graphs"]]
    for name in ("tuned", "mlp_on_every_slot", "rotate_before_transpose", "bfloat16_residual",
                 "fused_attention", "cut_logits", "cross_entropy", "gradient_with_loss",
                 "head_on_every_slot"):
        try_speed.make_step(name, "mdlm", sizes, rows=4)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == sorted(set(graphs))        # more with each

def test_the_residual_stream_is_in_bfloat16(monkeypatch):
    """In try_speed's variant of that name, through all blocks, whatever embeddings are added."""
    put_back(monkeypatch)
    monkeypatch.setattr(torch, "compile", lambda of, **_: of)
    seen, forward = {}, try_speed.block_forward
    for name in "bfloat16", "bfloat16_residual":
        monkeypatch.setitem(try_speed.VARIANTS[name], "block", lambda self, x, *more, name=name: (
            seen.setdefault(name, []).append(x.dtype), forward(self, x, *more))[1])
        try_speed.make_step(name, "ar", dict(vocab_size=50, block_size=8, n_layer=2, n_head=2, n_embd=16,
                                             n_hidden=16), rows=4)
    assert [set(dtypes) for dtypes in seen.values()] == [{torch.float32}, {torch.bfloat16}]

@pytest.mark.parametrize("mode, words", [("ar", 50), ("ar", 32), ("mdlm", 32)])
def test_parts_of_a_step_have_its_products(mode, words):
    """Their FLOPs are those of the shapes: forward, twice that backward; also with as many words as slots."""
    config = Config(mode, vocab_size=words, block_size=8, n_layer=2, n_head=2, n_embd=16, n_hidden=24)
    step, _ = training_step(config, 4, torch.device("cpu"), tuned=False)
    parts = step_parts.parts_of_step(step, config, 3, torch.device("cpu"))
    found = {part: flops for part, (seconds, flops) in parts.items() if flops}
    assert sum(seconds for seconds, _ in parts.values()) > 0
    S, N, seen = (32, 32, 1) if mode == "ar" else (36, 18, 2)       # slots, predictions, parts of attention
    weights = 2 * 4 * 16 * 16 * S + 3 * 16 * 24 * (S + N)           # the last MLP sees those that predict
    assert found == pytest.approx({"products of the head": 6 * N * 16 * words,
                                   "products of the layers": 6 * weights,
                                   "products of attention": 6 * S * 2 * 2 * 16 * S / 4})

def test_turns_are_taken_and_the_first_does_not_count(monkeypatch):
    """By a clock of our own: half a second a turn."""
    now, order = [0.0], []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])

    def step(name, took):
        order.append(name)
        now[0] += took

    steps = {"a": lambda: step("a", 0.125), "b": lambda: step("b", 0.25)}
    seconds = by_turns(steps, 2, torch.device("cpu"))
    assert seconds == {"a": [0.125] * 2, "b": [0.25] * 2} and "".join(order) == "ab" + 2 * "aaaabb"

def test_exponent():
    assert exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)

OTHERS_CODE = {"nanoGPT/model.py": """
from dataclasses import dataclass
import torch

@dataclass
class GPTConfig:
    block_size: int; vocab_size: int; n_layer: int; n_head: int; n_embd: int; dropout: float; bias: bool

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = torch.nn.Embedding(config.vocab_size, config.n_embd)
    def forward(self, x, y):
        logits = self.embed(x) @ self.embed.weight.T
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    def configure_optimizers(self, weight_decay, lr, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=lr, weight_decay=weight_decay, betas=betas)
""", "arche/gpu/models.py": """
import torch

class AutoregressiveModel(torch.nn.Module):
    def __init__(self, vocab_size, width, heads, of_a_head, hidden, layers):
        super().__init__()
        assert (vocab_size, width, heads, of_a_head, hidden, layers) == (50257, 16, 2, 8, 24, 1)
        self.embed = torch.nn.Embedding(vocab_size, width)
    def compute_loss(self, tokens):
        return self.embed(tokens).pow(2).mean()

class MDLMModel(AutoregressiveModel):
    pass
"""}

class HereAndNow:
    """A ProcessPoolExecutor without a process."""
    order = []

    def __init__(self, *_):
        self.step = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, of, *given):
        if of is others.settings:
            sizes = dict(n_layer=1, n_head=2, n_embd=16, n_hidden=24, block_size=8)
            found = sizes, 4, "cpu", "cpu", "bfloat16"
        else:
            others.step = self.step
            self.name = given[0] if of is others.prepare else self.name
            self.order += [self.name] if of is others.seconds_per_step else []
            found = of(*given)
            self.step = others.step
        return SimpleNamespace(result=lambda: found)

def test_others_code_is_timed_beside_ours(monkeypatch, tmp_path, capsys):
    """By turns; by made-up code of the same shape as nanoGPT's and the paper's, whose weights stay."""
    nets, update = [], others.update
    monkeypatch.setattr(torch, "compile", lambda of, **_: of)
    monkeypatch.setattr(others, "ProcessPoolExecutor", HereAndNow)
    monkeypatch.setattr(others, "step", None, raising=False)
    monkeypatch.setattr(others.ctypes, "CDLL", library := mock.MagicMock())
    monkeypatch.setattr(others, "update", lambda net, *more: (
        nets.append((net, net.embed.weight.detach().clone())), update(net, *more)))
    for mode in "ar", "mdlm":
        monkeypatch.setitem(others.OURS, mode, (lambda *given: lambda: torch.ones(()), mode))
    folders = [f"--nanogpt={tmp_path}/nanoGPT", f"--paper={tmp_path}/arche"]
    monkeypatch.setattr("sys.argv", ["others.py", *folders, "--repeats=2", "--seconds=0.01",
                                     f"--json={tmp_path}/o.json"])
    with pytest.raises(cli.InputError, match="nanoGPT/model.py is not there; --help says where to get it"):
        others.main()
    for name, code in OTHERS_CODE.items():
        Path(tmp_path, name).parent.mkdir(parents=True)
        Path(tmp_path, name).write_text(code)
    others.main()
    seconds = json.load(open(tmp_path / "o.json"))["seconds"]
    assert list(seconds) == [*others.OURS, *others.OTHERS, *others.KEPT] and len(seconds) == 8
    assert all(len(took) == 2 and min(took) > 0 for took in seconds.values())
    assert HereAndNow.order == 2 * list(seconds) and "nanoGPT, memory kept" in capsys.readouterr().out
    assert library().mallopt.call_count == 2 * 3 and len(nets) > 6 * 3
    assert all(torch.equal(net.embed.weight, before) for net, before in nets)

def test_our_process_has_train_pys_settings():
    """They come before torch, which reads them: so others.py may not bring it along."""
    code = """import os
from experiments import others
step = others.ours(None, "mdlm", dict(n_layer=1, n_head=2, n_embd=16, n_hidden=24, block_size=8), 4, "cpu")
print(os.environ["GOMP_SPINCOUNT"], step() > 0)"""
    environment = {name: text for name, text in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True,
                          env=environment | {"TORCHDYNAMO_DISABLE": "1"})
    assert done.stdout == "10000 tensor(True)\n", done.stderr
