"""Training as a user runs it: what a run leaves, how it goes on, and that each step is right."""
import itertools
import json
import math
import subprocess
import sys
from dataclasses import asdict
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import model as plain
import variants.paper
from conftest import ROOT, TINY, read_log, small_model
from extras.start_from import start_from
from model import MODES, Transformer, losses
from tokenizer import Tokenizer
from support import machine
from support.flags import InputError
from support.runs import load, random_numbers
from test_model import make
from worlds.toy import TOY
from train import Settings, evaluate, learning_rate, make_optimizers, resolve, train_step

CPU = torch.device("cpu")


@pytest.fixture
def train_command(trained, call, monkeypatch):
    """A function that trains with TINY and these flags, which must go well. It gives the log."""
    def train(out_dir, *flags):
        monkeypatch.chdir(trained)
        done = call("train.py", *TINY, f"--out_dir=out/{out_dir}", *flags)
        assert done.returncode == 0, done.stderr
        return read_log(trained / "out" / out_dir)

    return train


def values_of(name, log) -> dict:
    """{step: value} of the lines that have one of this name."""
    return {entry["step"]: entry[name] for entry in log if name in entry}


def losses_by_hand(model, batch):
    """(B,) with logits of every slot."""
    S = batch.tokens.numel()
    logits = model(batch.tokens, batch.key_pos, batch.target_pos, torch.arange(S))      # (B·S, V)
    nll = F.cross_entropy(logits, batch.targets.flatten(), reduction="none")            # (B·S,)
    return (nll.view(batch.weight.shape) * batch.weight).sum(dim=1)

# ---- What a run leaves ---------------------------------------------------------------------------

@pytest.mark.parametrize("mode", MODES)
def test_a_run_leaves_what_it_promises(trained, mode):
    out = trained / "out" / mode
    names = {path.name for path in out.iterdir() if path.suffix != ".tmp"}     # other tests sample
    assert names == {"best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"}
    log = read_log(out)
    assert list(values_of("train_loss", log)) == [10, 20, 30]
    first, second, third = values_of("val_nll", log).values()
    assert third < second < first < 6
    assert values_of("val_floor", log)[30] == pytest.approx(0.386, abs=0.05)
    assert json.loads((out / "config.json").read_text())["config"]["mode"] == mode


def test_the_best_is_the_lowest_and_not_the_last(trained, train_command):
    """Also of a run that goes on. What is said at the end is of the best weights, not the last."""
    log = train_command("high", "--mode=ar", "--lr=0.1", "--train_stories=1")
    longer = train_command("high", "--resume", "--max_steps=45")
    assert longer[:6] == log[:6]                # the seventh was the last evaluation
    nll = values_of("val_nll", longer)
    assert list(nll) == [10, 20, 30, 40, 45]
    best = min(nll, key=nll.get)
    assert best < 30
    _, saved = load(trained / "out/high/best.pt")
    for *_, end in log, longer:
        assert saved["step"] == end["best_step"] == best
        assert end["final_nll"] == pytest.approx(nll[best], rel=1e-6)


def test_a_loss_that_is_not_finite_stops_it(trained, call, monkeypatch):
    monkeypatch.chdir(trained)
    done = call("train.py", *TINY, "--out_dir=out/wild", "--lr=1e30", "--warmup=0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "max_grad_norm" in done.stderr and "--lr" in done.stderr
    assert not (trained / "out/wild/ckpt.pt").exists()


# ---- What a preset chooses -----------------------------------------------------------------------

@pytest.mark.parametrize("variant, objective, flags", [
    ("bell", "masked_ce", dict(mode="mdlm")),
    ("", "nelbo", dict(mode="mdlm", objective="nelbo")),
    ("", "nelbo", dict(mode="ar"))])
def test_presets_of_text_train_masked_diffusion_otherwise(workdir, variant, objective, flags):
    s, config = resolve({"preset": "laptop", "data": "toy"} | flags)
    assert (s.variant, config.objective) == (variant, objective)


# ---- A run goes on -------------------------------------------------------------------------------

def test_a_resumed_run_keeps_its_settings(trained, monkeypatch):
    """Only flags that contradict them are refused; auto was decided once."""
    monkeypatch.chdir(trained)
    again = {"out_dir": "out/mdlm", "resume": True}
    allowed = dict(grad_accum=2, quiet=False, save_minutes=1.0, device="auto", compile="auto")
    s, config = resolve(again | allowed | {"mode": "mdlm", "preset": "auto", "windows": "auto"})
    assert (config.mode, config.n_embd, s.lr, s.batch_size) == ("mdlm", 16, 3e-3, 8)
    assert asdict(s).items() >= {**allowed, "windows": "aligned"}.items()
    for name, value in dict(mode="ar", n_embd=32, data="toy", lr=0.5, preset="laptop").items():
        with pytest.raises(InputError, match=f"--{name}="):
            resolve(again | {name: value})


def test_two_processes_train_as_one(trained):
    """But for the order in which gradients are added up."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = [f"{ROOT}/train.py", *TINY, "--mode=mdlm", "--grad_accum=2", "--out_dir=out/two"]
    done = subprocess.run([sys.executable, *launcher, *script], cwd=trained, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 x cpu") == 1
    for a, b in zip(read_log(trained / "out/mdlm"), read_log(trained / "out/two"), strict=True):
        assert a == pytest.approx(b, abs=1e-4)


# ---- Evaluation ----------------------------------------------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("kind", [*MODES, "ar/answers"])
def test_evaluation_by_hand(kind):
    """It can be repeated, leaves the random numbers of training alone, and knows no dropout. Who
    learns answers alone has no bits per byte."""
    model = make(kind, torch.float32, dropout=0.5)
    config, row = model.config, model.config.row
    x = torch.randint(11, (6, 8))
    batch = row.bound_batch(config, x.repeat_interleave(row.together, dim=0), random_numbers(1))
    nll = losses_by_hand(model, batch).view(6, -1).mean(dim=1)                  # (6,)
    expected = {"val_nll": nll.mean().item(), "val_nll_se": stats.sem(nll), "val_floor": 2.0}
    if row.whole:
        expected["val_bpb"] = nll.mean().item() / math.log(2) * 0.5
    for name, batch_of in row.reported.items():
        batch = batch_of(config, x, random_numbers(1, 1))
        expected[name] = losses_by_hand(model, batch).mean().item()
    model.train()
    state = torch.get_rng_state()
    for _ in range(2):
        assert evaluate(model, x, 1, 0.5, np.full(6, 2.0)) == pytest.approx(expected, rel=1e-5)
    assert torch.equal(state, torch.get_rng_state())


# ---- A run starts from another -------------------------------------------------------------------

@pytest.mark.parametrize("mode, variant, fields", [
    ("aogpt", plain, {}), ("mdlm", variants.paper, {"time_embedding": "add"})])
def test_a_run_starts_from_another(trained, monkeypatch, mode, variant, fields):
    """It has the other's weights, and zeros where that has none."""
    monkeypatch.chdir(trained)
    source, _ = load("out/ar/best.pt")
    config = variant.Config(**asdict(source.config) | fields | {"mode": mode})
    model, words = config.row.network(config), TOY.words()
    with pytest.raises(InputError, match="tokenizer"):
        start_from("out/ar", model, Tokenizer("words", words=["zebra", *words[1:]]))
    start_from("out/ar", model, Tokenizer("words", words=words))
    weights = source.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, weights.get(name, torch.zeros_like(weight)))


# ---- What each step is given ---------------------------------------------------------------------

@pytest.mark.parametrize("mode, dropout", [("ar", 0.5), ("aogpt", 0)])
def test_each_step_has_its_own_draws_and_each_evaluation_the_same(train_command, mode, dropout):
    """Nothing is learned here, and of a single window, so nothing but the draws can differ."""
    flags = ["--lr=0", "--train_stories=1", "--batch_size=2", f"--dropout={dropout}"]
    log = train_command(f"still-{mode}", f"--mode={mode}", *flags)
    assert len(set(values_of("train_loss", log).values())) == 3
    assert len(set(values_of("val_nll", log).values())) == 1


def test_no_two_seeds_share_their_noise():
    """Nor do masks and the dropout of two processes: no generator has the seed of another."""
    of_seeds = itertools.product([1, 2], range(30))
    seeds = [(*seed, *rank) for seed in of_seeds for rank in ((), (1,), (2,))]
    assert len({random_numbers(*seed).initial_seed() for seed in seeds}) == len(seeds)


def test_the_learning_rate_rises_and_falls():
    s = Settings(lr=1.0, warmup=4, max_steps=12, final_lr=0.5)
    found = [learning_rate(s, step) for step in (0, 3, 4, 8, 12)]
    assert found == pytest.approx([0.25, 1, 1, 0.75, 0.5])


# ---- A training step -----------------------------------------------------------------------------

def some_batch(model, seed=0):
    generator = random_numbers(seed)
    x = torch.randint(10, (8, 8), generator=generator)
    return model.config.row.training_batch(model.config, x, generator)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_is_that_of_the_settings(mode):
    """Also in parts; and the norm is that of the whole gradient before it is clipped."""
    s = Settings(batch_size=8, dtype="float32", grad_clip=0.01, grad_accum=2)
    model, by_hand = small_model(mode), small_model(mode)
    [optimizer], [expected] = make_optimizers(model, s), make_optimizers(by_hand, s)
    expected.param_groups[0]["lr"] = 0.01
    for seed in range(3):
        batch = some_batch(model, seed)
        loss, norm = train_step(model, losses, [optimizer], batch, s, lr=0.01)
        expected.zero_grad()
        expected_loss = losses_by_hand(by_hand, batch).mean()
        expected_loss.backward()
        whole_norm = torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.01)
        expected.step()
        assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-4)
        assert norm.item() == pytest.approx(whole_norm.item(), rel=1e-3)
    for a, b in zip(model.parameters(), by_hand.parameters()):
        assert torch.allclose(a, b, atol=1e-4)


def test_bfloat16_compiled_follows_float32(capsys):
    """Over 20 steps the losses differ by less than 0.02 nats per token. Compiled code gives the
    same bits again."""
    found = []
    compiled = machine.compiled(losses, Settings(compile="true"), CPU)
    for dtype, function in ("float32", losses), ("bfloat16", compiled), ("bfloat16", compiled):
        s = Settings(batch_size=8, dtype=dtype)
        machine.prepare(s, CPU)
        torch.manual_seed(0)
        model = Transformer(small_model("mdlm", n_layer=1).config)
        model.softmax_attention = machine.attention_for(CPU)
        optimizers = make_optimizers(model, s)
        steps = [train_step(model, function, optimizers, some_batch(model, seed), s, lr=0.01)
                 for seed in range(20)]
        found.append([loss.item() for loss, _ in steps])
    exact, fast, again = found
    assert "torch.compile failed" not in capsys.readouterr().err
    assert fast == again != exact
    assert fast == pytest.approx(exact, abs=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("mode", MODES)
def test_cuda_follows_the_cpu(trained, train_command, mode):
    flags = [f"--mode={mode}", "--device=cuda", "--dtype=bfloat16"]
    *_, final = train_command(f"cuda-{mode}", *flags)
    *_, expected = read_log(trained / "out" / mode)
    assert abs(final["final_nll"] - expected["final_nll"]) < 0.02


# ---- Compilers -----------------------------------------------------------------------------------

@pytest.mark.parametrize("fault", [
    RuntimeError("torch.compile is not supported on Python 3.99+"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")])
@pytest.mark.parametrize("calls", [0, 1])
def test_only_a_first_call_that_fails_is_a_failed_compilation(monkeypatch, fault, calls):
    """Then it goes on without. Too little memory is none."""
    results = [*["result"] * calls, fault]
    monkeypatch.setattr(torch, "compile", lambda function: mock.Mock(side_effect=results))
    function = machine.compiled(abs, Settings(compile="true"), CPU)
    for _ in range(calls):
        assert function(-1) == "result"
    if calls or "memory" in str(fault):
        with pytest.raises(RuntimeError, match=str(fault)[:9]):
            function(-1)
    else:
        assert [function(-1), function(-1)] == [1, 1]
