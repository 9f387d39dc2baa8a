"""Training as a user runs it: what a run leaves, how it goes on, and that each step is right."""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import types
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import runs
import train
from support.flags import InputError
from conftest import ROOT, TINY, Running, read_log, run, small_model
from model import Transformer
from objectives import (
    evaluation_batch, mask_generator, order_batch, paper_batch, training_batch, weighted_losses)
from prepare_data import Tokenizer, Windows
from runs import Run, load
from toy import TOY
from train import (Muon, Settings, evaluate, make_optimizers, prepare_machine, resolve, start_from,
                   train_step, window_losses)

MODES = ["ar", "mdlm", "aogpt"]
CPU = torch.device("cpu")
WORDS = Tokenizer("words", words=TOY.words())


def train_command(folder, out_dir, *flags):
    """Runs train.py with TINY and these flags; it must end well."""
    done = run("train.py", *TINY, f"--out_dir=out/{out_dir}", *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def refused(folder, out_dir, *flags) -> str:
    """What train.py says, in one line, when it refuses these flags."""
    done = run("train.py", *TINY, f"--out_dir=out/{out_dir}", *flags, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    return done.stderr


def step_of(path) -> int:
    """After how many steps a checkpoint was written."""
    _, checkpoint = load(path)
    return checkpoint["step"]


def validation_windows(n):
    """(n, 48) of data/t."""
    windows = Windows("t", "val", 48)
    return torch.from_numpy(windows.spread(n))


def values_of(name, log) -> dict:
    """{step: value} of the lines that have one of this name."""
    return {entry["step"]: entry[name] for entry in log if name in entry}


# ---- What a run leaves ---------------------------------------------------------------------------

@pytest.mark.parametrize("mode", MODES)
def test_a_run_leaves_what_it_promises(trained, mode):
    out = trained / "out" / mode
    names = {path.name for path in out.iterdir()}
    assert names >= {"best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"}
    log = read_log(out)
    assert list(values_of("train_loss", log)) == [10, 20, 30]
    nll = values_of("val_nll", log)
    assert list(nll) == [10, 20, 30]
    assert nll[30] < nll[20] < nll[10] < 6
    counts = json.loads((trained / "data/t/meta.json").read_text())["splits"]["val"]
    bits = nll[30] / math.log(2) * counts["tokens"] / counts["bytes"]
    assert values_of("val_bpb", log)[30] == pytest.approx(bits)
    assert values_of("val_floor", log)[30] == pytest.approx(0.386, abs=0.05)
    facts = json.loads((out / "config.json").read_text())
    assert facts["config"]["mode"] == mode
    for name in "command", "date", "seed", "machine":
        assert facts[name]
    said = (trained / f"{mode}.txt").read_text()
    assert said.startswith("preset toy (as asked)")
    assert f"python sample.py --out_dir=out/{mode}" in said


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_the_last_evaluation_averages_many_draws(trained, monkeypatch, mode):
    """Its line in the log is that of the best model, above the toy's law window by window."""
    monkeypatch.chdir(trained)
    model, best = load(f"out/{mode}/best.pt")
    x = validation_windows(20)
    law = Windows("t", "val", 48).law(20)                                       # (20,)
    generator = mask_generator(1337)
    draws = []
    for _ in range(1 if mode == "ar" else train.FINAL_DRAWS):
        batch = evaluation_batch(model.config, x, generator)
        draws.append(weighted_losses(model, batch))
    losses = torch.stack(draws).mean(dim=0).numpy()                             # (20,)
    above = losses - law
    final = read_log(trained / "out" / mode)[-1]
    assert final == pytest.approx({
        "step": 30,
        "best_step": best["step"],
        "final_nll": losses.mean(),
        "final_nll_se": stats.sem(losses),
        "above_law": above.mean(),
        "above_law_se": stats.sem(above)}, abs=1e-5)
    assert f"{final['above_law']:.4f}" in (trained / f"{mode}.txt").read_text()


def test_many_draws_have_less_noise():
    model = small_model("mdlm")
    x = torch.randint(11, (1, 8)).expand(400, 8)        # one window, so that only masks differ
    one = window_losses(model, x, seed=1)
    many = window_losses(model, x, seed=1, draws=16)
    ratio = many.std().item() / one.std().item()
    assert ratio == pytest.approx(1 / 4, rel=0.2)


def test_a_story_before_training_and_at_every_evaluation(trained):
    """It doesn't change the run, and the last one is the first of those at the end."""
    done = train_command(trained, "told", "--quiet=false")
    before, *shown = re.findall(r"^(?:before training: |    )(.+)$", done.stdout, re.MULTILINE)
    assert len(shown) == 3
    assert before != shown[0]
    story, *_ = re.findall(r"over windows\)\n\n(.+)\n", done.stdout)
    assert textwrap.shorten(story, 300, placeholder=" …") == shown[2]
    assert read_log(trained / "out/told") == read_log(trained / "out/ar")
    assert "before training" not in (trained / "ar.txt").read_text()


@pytest.mark.parametrize("mode", MODES)
def test_the_best_checkpoint_scores_what_the_log_says(trained, monkeypatch, mode):
    monkeypatch.chdir(trained)
    model, checkpoint = load(f"out/{mode}/best.pt")
    nll = values_of("val_nll", read_log(trained / "out" / mode))
    assert checkpoint["val_nll"] == min(nll.values())
    x = validation_windows(20)
    found = evaluate(model, x, seed=1337)
    assert found["val_nll"] == pytest.approx(checkpoint["val_nll"], abs=1e-5)
    assert Tokenizer(**checkpoint["tokenizer"]).words == TOY.words()
    assert "optimizers" not in checkpoint


def test_the_best_is_the_lowest_and_not_the_last(tmp_path):
    """Also of a run that goes on."""
    s = Settings(out_dir=str(tmp_path / "r"))
    trained_on = {"tokenizer": {}, "windows": "aligned", "data": {}}

    def best_of(s, losses, checkpoint=None):
        run = Run(s, small_model(), [], trained_on, checkpoint)
        run.bar = types.SimpleNamespace(write=print)
        for loss in losses:
            run.step += 1
            run.record_evaluation({"val_nll": loss}, story="")
        run.checkpoint()
        run.log_file.close()
        return step_of(tmp_path / "r/best.pt")

    assert best_of(s, [3.0, 2.0, 2.5]) == 2
    checkpoint = runs.read_checkpoint(tmp_path / "r/ckpt.pt")
    assert best_of(replace(s, resume=True), [2.2, 1.9, 2.0], checkpoint) == 5


@pytest.mark.parametrize("mode", MODES)
def test_each_step_has_its_own_noise(trained, mode):
    """Of a single window nothing is learned, so only masks, orders and dropout can differ."""
    flags = [f"--mode={mode}", "--lr=0", "--train_stories=1", "--batch_size=2"]
    if mode == "ar":
        flags.append("--dropout=0.5")
    train_command(trained, f"noise-{mode}", *flags)
    losses = values_of("train_loss", read_log(trained / f"out/noise-{mode}"))
    assert len(set(losses.values())) == 3


def test_checkpoints_come_by_the_clock(trained):
    """One comes at once, so that the folder is taken, then none for minutes, and one at a stop."""
    flags = ["--max_steps=100000", "--save_minutes=100", "--out_dir=out/clock"]
    process = Running("train.py", *TINY, *flags, cwd=trained)
    out = trained / "out/clock"
    log = out / "log.jsonl"
    process.wait_for(log.exists)
    process.wait_for(lambda: log.read_text().count("\n") >= 8)
    assert step_of(out / "ckpt.pt") == 10
    assert step_of(out / "best.pt") > 10
    done = process.end(signal.SIGINT)
    assert "finishing this step" in done.stderr
    assert "--resume" in done.stderr
    *_, last = read_log(out)
    assert step_of(out / "ckpt.pt") >= last["step"]


# ---- A run goes on -------------------------------------------------------------------------------

def test_a_resumed_run_keeps_its_settings(trained, monkeypatch):
    """Only flags that contradict them are refused."""
    monkeypatch.chdir(trained)
    config, s, why, checkpoint = resolve({"out_dir": "out/mdlm", "resume": True})
    assert config.mode == "mdlm"
    assert config.n_embd == 16
    assert s.lr == 2e-3
    assert s.batch_size == 8
    assert checkpoint["step"] == 30
    again = {"out_dir": "out/mdlm", "resume": True, "mode": "mdlm", "preset": "auto", "warmup": 5}
    assert resolve(again)[0] == config
    others = dict(mode="ar", n_embd=32, data="toy", lr=0.5, preset="laptop")
    for name, value in others.items():
        words = f"made with --{name}=.+, not {value}; leave the flag out"
        with pytest.raises(InputError, match=words):
            resolve(again | {name: value})
    allowed = dict(grad_accum=2, quiet=False, save_minutes=1.0)
    _, s, _, _ = resolve(again | allowed)
    for name, value in allowed.items():
        assert getattr(s, name) == value


@pytest.mark.parametrize("flags, fraction", [
    ({}, 0.1), ({"orders": "infill"}, 0.5), ({"orders": "infill", "l2r_fraction": 0.2}, 0.2)])
def test_infill_is_trained_from_left_to_right_in_half_of_the_rows(flags, fraction):
    config, *_ = resolve({"mode": "aogpt", "preset": "toy"} | flags)
    assert config.l2r_fraction == fraction


def test_a_run_from_before_a_setting_was_added_goes_on_with_its_default(trained):
    shutil.copytree(trained / "out/ar", trained / "out/older")
    path = trained / "out/older/ckpt.pt"
    checkpoint = torch.load(path)
    for name in "grad_clip", "init_from":
        del checkpoint["settings"][name]
    for name in "token_noise", "target_rotation":
        del checkpoint["config"][name]
    torch.save(checkpoint, path)
    more = ["--resume", "--max_steps=40"]
    train_command(trained, "older", *more)
    shutil.copytree(trained / "out/ar", trained / "out/newer")
    train_command(trained, "newer", *more)
    assert read_log(trained / "out/older") == read_log(trained / "out/newer")


def test_more_steps_may_be_asked_for_and_fewer_not(trained):
    shutil.copytree(trained / "out/aogpt", trained / "out/longer")
    done = run("train.py", "--out_dir=out/longer", "--resume", "--max_steps=45", cwd=trained)
    assert done.returncode == 0, done.stderr
    before, after = read_log(trained / "out/aogpt"), read_log(trained / "out/longer")
    assert after[:6] == before[:6]              # the seventh was the last evaluation
    assert list(values_of("val_nll", after)) == [10, 20, 30, 40, 45]
    assert after[-1]["step"] == 45
    assert "final_nll" in after[-1]
    said = refused(trained, "longer", "--mode=aogpt", "--resume", "--max_steps=44")
    assert "has made 45 steps" in said
    facts = json.loads((trained / "out/longer/config.json").read_text())
    assert facts["settings"]["max_steps"] == 45
    assert "--out_dir=out/aogpt" in facts["command"]        # the one that began


def test_the_precision_is_decided_once_for_a_run(trained, monkeypatch):
    facts = json.loads((trained / "out/ar/config.json").read_text())
    _, checkpoint = load(trained / "out/ar/ckpt.pt")
    decided = facts["settings"]["dtype"]
    assert decided in ("bfloat16", "float32")
    assert checkpoint["settings"]["dtype"] == decided

    def changed(device):
        return decided == "float32"

    monkeypatch.chdir(trained)
    monkeypatch.setattr(train, "bfloat16_is_faster", changed)
    monkeypatch.setattr(train, "prepare_cpu", lambda: None)
    _, resumed, _, _ = resolve({"out_dir": "out/ar", "resume": True})
    fresh = Settings()
    for s in resumed, fresh:
        prepare_machine(s, CPU)
    assert resumed.dtype == decided
    assert fresh.dtype != decided


def test_a_run_is_locked(trained):
    flags = ["--max_steps=100000", "--out_dir=out/busy"]
    process = Running("train.py", *TINY, *flags, cwd=trained)
    process.wait_for((trained / "out/busy/ckpt.pt").exists)
    assert "another process is writing out/busy" in refused(trained, "busy", *flags, "--resume")
    process.end(signal.SIGINT)


def test_a_loss_that_is_not_finite_stops_it(trained):
    said = refused(trained, "wild", "--lr=1e30", "--warmup=0")
    for words in "max_grad_norm", "step 10 ", "--lr":
        assert words in said
    assert not (trained / "out/wild/ckpt.pt").exists()


def test_a_signal_is_obeyed_where_nobody_reads_what_is_said(tmp_path, monkeypatch):
    """Ctrl-C stops `tee` too."""
    def write(*_):
        raise BrokenPipeError

    s = Settings(out_dir=str(tmp_path / "r"))
    run = Run(s, small_model(), [], {}, None)
    monkeypatch.setattr(runs.os, "write", write)
    with run.training():
        assert not run.asked_to_stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.asked_to_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    run.log_file.close()


# ---- Several processes ---------------------------------------------------------------------------

def launch(processes, out_dir, *flags, cwd):
    """train.py in so many processes, started but not waited for."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    script = [os.path.join(ROOT, "train.py"), *TINY, f"--out_dir=out/{out_dir}", *flags]
    return subprocess.Popen([sys.executable, "-m", *launcher, *script], cwd=cwd, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def assert_close(one, other):
    """The same log within 1e-4: two processes add up gradients in another order than one."""
    for a, b in zip(read_log(one), read_log(other), strict=True):
        assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_two_processes_train_as_one(trained, mode):
    flags = [f"--mode={mode}", "--dtype=float32"]
    train_command(trained, f"one-{mode}", *flags)
    process = launch(2, f"two-{mode}", *flags, "--grad_accum=2", cwd=trained)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert said.count("2 x cpu") == 1
    assert_close(trained / f"out/one-{mode}", trained / f"out/two-{mode}")


def test_a_process_dies_and_another_number_goes_on(trained):
    """The other process ends too, the checkpoint is good, and one process comes to the same end."""
    flags = ["--mode=mdlm", "--dtype=float32", "--max_steps=400", "--eval_interval=100"]
    train_command(trained, "alive", *flags)
    checkpoint = trained / "out/dying/ckpt.pt"
    process = launch(2, "dying", *flags, cwd=trained)
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    children = ["pgrep", "-P", str(process.pid)]
    listed = subprocess.run(children, capture_output=True, text=True)
    *_, worker = listed.stdout.split()
    os.kill(int(worker), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert step_of(checkpoint) in range(10, 400, 10)
    train_command(trained, "dying", *flags, "--resume", "--grad_accum=2")
    assert_close(trained / "out/alive", trained / "out/dying")


def test_several_processes_on_a_mac_train_on_its_cpu(monkeypatch):
    backends = []
    monkeypatch.setattr(runs, "WORLD_SIZE", 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.distributed, "init_process_group",
                        lambda backend, timeout: backends.append(backend))
    assert runs.join_processes("auto").type == "cpu"
    assert backends == ["gloo"]


# ---- Evaluation ----------------------------------------------------------------------------------

def test_evaluation_is_repeatable_and_leaves_training_alone():
    model = small_model("mdlm")
    x = torch.randint(11, (12, 8))
    state = torch.get_rng_state()
    before = [p.clone() for p in model.parameters()]
    first = evaluate(model, x, seed=1)
    assert evaluate(model, x, seed=1) == first
    assert evaluate(model, x, seed=2) != first
    assert torch.equal(state, torch.get_rng_state())
    for old, new in zip(before, model.parameters()):
        assert torch.equal(old, new)


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_evaluation_by_hand(mode):
    model = small_model(mode)
    config = model.config
    x = torch.randint(11, (6, 8))
    nll = weighted_losses(model, evaluation_batch(config, x, mask_generator(1)))
    expected = {
        "val_nll": nll.mean().item(),
        "val_nll_se": stats.sem(nll)}
    if mode == "aogpt":
        left_to_right = torch.arange(8).expand(6, 8)
        batch = order_batch(config, x, left_to_right)
        expected["val_nll_l2r"] = weighted_losses(model, batch).mean().item()
    if mode == "mdlm":
        batch = paper_batch(config, x, mask_generator(1, 1))
        masked = batch.tokens == config.mask_id
        logits = model(batch.tokens, batch.key_pos, batch.target_pos)[masked]
        expected["val_masked_ce"] = F.cross_entropy(logits, batch.targets[masked]).item()
    assert evaluate(model, x, seed=1) == pytest.approx(expected, rel=1e-5)


# ---- A run starts from another -------------------------------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("mode, fields", [
    ("ar", {}),
    ("aogpt", {}),
    ("mdlm", {}),
    ("mdlm", {"time_embedding": "add"})])
def test_a_run_starts_from_another(trained, monkeypatch, mode, fields):
    """What the other mode adds changes nothing yet: aogpt, left to right, is the ar it was. The
    rest asks the same weights another question."""
    monkeypatch.chdir(trained)
    source, _ = load("out/ar/best.pt")
    x = validation_windows(10)

    def losses_after_start(**fields):
        config = replace(source.config, mode=mode, **fields)
        model = Transformer(config).eval()
        assert not torch.equal(model.embed.weight, source.embed.weight)
        start_from("out/ar", model, WORDS)
        weights = model.state_dict()
        for name, weight in source.state_dict().items():
            assert torch.equal(weight, weights[name])
        batch = evaluation_batch(model.config, x, mask_generator(0), left_to_right=True)
        return weighted_losses(model, batch)

    losses = losses_after_start(**fields)
    assert torch.equal(losses, losses_after_start())        # a timestep has no effect yet
    if mode != "mdlm":
        batch = evaluation_batch(source.config, x, mask_generator(0))
        assert torch.equal(losses, weighted_losses(source, batch))


def test_a_run_starts_from_another_of_the_same_sizes_only(trained, monkeypatch):
    monkeypatch.chdir(trained)
    source, _ = load("out/ar/best.pt")
    words = ["zebra", *TOY.words()[1:]]
    other_words = Tokenizer("words", words=words)
    with pytest.raises(InputError, match="another tokenizer"):
        start_from("out/ar", source, other_words)
    plain = Transformer(replace(source.config, target_embedding=False))
    with pytest.raises(InputError, match="out/aogpt has embed_target.weight, this"):
        start_from("out/aogpt", plain, WORDS)
    said = refused(trained, "on", "--mode=mdlm", "--init_from=out/ar", "--n_hidden=32")
    assert "--init_from=out/ar has --n_hidden=16, not 32" in said
    assert not os.path.exists("out/on")


def test_a_run_that_started_from_another_is_not_begun_anew(trained):
    flags = ["--mode=aogpt", "--init_from=out/ar"]
    train_command(trained, "on", *flags, "--max_steps=10")
    first, *_ = read_log(trained / "out/on")
    fresh, *_ = read_log(trained / "out/aogpt")
    assert first["train_loss"] < fresh["train_loss"] - 0.05
    train_command(trained, "on", *flags, "--max_steps=20", "--resume")
    assert read_log(trained / "out/on")[0] == first


# ---- A training step -----------------------------------------------------------------------------

def settings(**values):
    return Settings(**{"batch_size": 8, "dtype": "float32", **values})


def some_batch(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(10, (8, 8), generator=generator)
    return training_batch(model.config, x, generator)


def test_dropout_is_for_training_alone():
    x = torch.randint(10, (4, 8))
    model, without = small_model(dropout=0.5), small_model()
    expected = evaluate(without, x, seed=1)
    assert evaluate(model, x, seed=1) == expected
    s = settings()
    optimizers = make_optimizers(model, s)
    losses = set()
    for _ in range(3):
        batch = some_batch(model)
        loss, _ = train_step(model, weighted_losses, optimizers, batch, s, lr=0.0)
        losses.add(loss.item())
    assert len(losses) == 3
    assert evaluate(model, x, seed=1) == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_is_that_of_the_settings(mode, optimizer):
    """Also in parts; the norm is that of the whole gradient before it is clipped."""
    s = settings(optimizer=optimizer, grad_clip=0.01, beta2=0.5, weight_decay=0.3, grad_accum=2)
    model, plain = small_model(mode), small_model(mode)
    optimizers = make_optimizers(model, s)
    rest, matrices = [], []
    for name, p in plain.named_parameters():
        if optimizer == "muon" and name.startswith("blocks") and p.dim() == 2:
            matrices.append(p)
        else:
            rest.append(p)
    adamw = torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.5), weight_decay=0.3)
    plain_optimizers = [adamw]
    if matrices:
        assert len(matrices) == 8
        muon = Muon(matrices, dict(lr=0.01, weight_decay=0.3))
        plain_optimizers.append(muon)
    for seed in range(3):
        batch = some_batch(model, seed)
        loss, norm = train_step(model, weighted_losses, optimizers, batch, s, lr=0.01)
        plain.zero_grad()
        expected = weighted_losses(plain, batch).mean()
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-4)
        whole_norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        assert norm == pytest.approx(whole_norm.item(), rel=1e-3)
        assert norm > 0.01
        for plain_optimizer in plain_optimizers:
            plain_optimizer.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(a, b, atol=1e-4)


def test_muon_is_pytorchs_in_the_precision_of_training():
    """Ten steps end where those of torch.optim.Muon do, but for the rounding of its bfloat16."""
    generator = torch.Generator().manual_seed(0)
    for shape in (24, 64), (64, 24), (32, 32):
        start = torch.randn(shape, generator=generator)
        ours = start.clone().requires_grad_()
        theirs = start.clone().requires_grad_()
        both = dict(lr=0.01, weight_decay=0.1)
        one = Muon([ours], both)
        other = torch.optim.Muon([theirs], **both, adjust_lr_fn="match_rms_adamw")
        for _ in range(10):
            ours.grad = torch.randn(shape, generator=generator)
            theirs.grad = ours.grad.clone()
            one.step()
            other.step()
        moved = (ours - start).norm()
        assert moved > 0.4
        assert (ours - theirs).norm() < 0.01 * moved


def test_muon_evens_out_singular_values():
    """In float64 they are what the polynomial makes of the gradient's, applied five times."""
    torch.manual_seed(0)
    p = torch.zeros(24, 64, dtype=torch.float64)
    p.grad = torch.randn(24, 64, dtype=torch.float64)
    s = torch.linalg.svdvals(p.grad) / p.grad.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s ** 3 + 2.0315 * s ** 5
    expected, _ = s.sort(descending=True)
    muon = Muon([p], dict(lr=1.0, weight_decay=0.1))
    muon.step()
    found = torch.linalg.svdvals(p)
    assert found == pytest.approx(0.2 * 64 ** 0.5 * expected, rel=1e-9)


def test_bfloat16_compiled_follows_float32(trained):
    """In 200 steps of a run, the mean losses of 10 steps differ by less than 0.01 nats per token.
    Compiled code gives the same bits again."""
    flags = ["--mode=mdlm", "--max_steps=200", "--eval_interval=100", "--n_embd=32"]
    fast = ["--dtype=bfloat16", "--compile=true"]

    def losses(name, *more):
        done = train_command(trained, name, *flags, *more)
        assert "torch.compile failed" not in done.stderr
        return values_of("train_loss", read_log(trained / "out" / name))

    exact = losses("slow", "--dtype=float32")
    compiled = losses("fast", *fast)
    assert len(exact) == 20
    assert compiled == pytest.approx(exact, abs=0.01)
    assert compiled == losses("again", *fast)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("mode", MODES)
def test_cuda_follows_the_cpu(trained, mode):
    train_command(trained, f"cuda-{mode}", f"--mode={mode}", "--device=cuda", "--dtype=bfloat16")
    final = read_log(trained / f"out/cuda-{mode}")[-1]
    expected = read_log(trained / "out" / mode)[-1]
    assert abs(final["final_nll"] - expected["final_nll"]) < 0.02
