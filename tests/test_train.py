"""Training as a user runs it: what a run leaves, how it goes on, and that each step is right."""
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import extras.paper
import model as plain
import train
from conftest import ROOT, TINY, Running, read_log, run, small_model
from extras.muon import Muon
from extras.start_from import start_from
from model import bound_batch, losses, masked_ce_batch, training_batch
from prepare_data import Tokenizer, open_windows
from support import machine
from support.flags import InputError
from support.runs import Run, load, random_numbers, read_checkpoint
from toy import TOY
from train import Settings, evaluate, make_optimizers, resolve, train_step

MODES = ["ar", "mdlm", "aogpt"]
CPU = torch.device("cpu")


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


def values_of(name, log) -> dict:
    """{step: value} of the lines that have one of this name."""
    return {entry["step"]: entry[name] for entry in log if name in entry}


def losses_by_hand(model, batch):
    """(B,) with logits of every slot."""
    S = batch.tokens.numel()
    logits = model(batch.tokens, batch.key_pos, batch.target_pos, torch.arange(S))      # (B·S, V)
    nll = F.cross_entropy(logits, batch.targets.flatten(), reduction="none")            # (B·S,)
    return (nll.view(batch.weight.shape) * batch.weight).sum(dim=1)


def window_losses_by_hand(model, x, generator):
    """(N,) of one draw; each window of mdlm is there twice, for a pair of masks."""
    rows = train.rows_together(model.config)
    batch = bound_batch(model.config, x.repeat_interleave(rows, dim=0), generator)
    return losses_by_hand(model, batch).view(len(x), rows).mean(dim=1)


# ---- What a run leaves ---------------------------------------------------------------------------

@pytest.mark.parametrize("mode", MODES)
def test_a_run_leaves_what_it_promises(trained, mode):
    out = trained / "out" / mode
    names = {path.name for path in out.iterdir()}
    assert names == {"best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"}
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
    assert said.startswith(f"preset toy: {mode} on data/t, 30 steps")
    assert f"python sample.py --out_dir=out/{mode}" in said


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_the_last_evaluation_averages_many_draws(trained, monkeypatch, mode):
    """Its line in the log is that of the best model, above the toy's law window by window."""
    monkeypatch.chdir(trained)
    model, _, best = load(f"out/{mode}/best.pt")
    *log, final = read_log(trained / "out" / mode)
    assert best["val_nll"] == min(values_of("val_nll", log).values())
    assert "optimizers" not in best
    val = open_windows(Settings(data="t"), "val", 48)
    x = torch.from_numpy(val.spread(20))                                        # (20, 48)
    generator = random_numbers(1337)
    draws = [window_losses_by_hand(model, x, generator) for _ in range(1 if mode == "ar" else 16)]
    assert draws[0].mean().item() == pytest.approx(best["val_nll"], abs=1e-5)
    of_windows = torch.stack(draws).mean(dim=0).numpy()                         # (20,)
    above = of_windows - val.law(20)
    assert final == pytest.approx({
        "step": 30,
        "best_step": best["step"],
        "final_nll": of_windows.mean(),
        "final_nll_se": stats.sem(of_windows),
        "above_law": above.mean(),
        "above_law_se": stats.sem(above)}, abs=1e-5)
    assert f"{final['above_law']:.4f}" in (trained / f"{mode}.txt").read_text()


def test_stories_on_the_way_do_not_change_a_run(trained):
    done = train_command(trained, "told", "--quiet=false")
    assert done.stdout.count("before training: ") == 1
    assert done.stdout.count("\n    ") == 3
    assert read_log(trained / "out/told") == read_log(trained / "out/ar")


def test_the_best_is_the_lowest_and_not_the_last(tmp_path):
    """Also of a run that goes on."""
    s = Settings(out_dir=str(tmp_path / "r"))
    trained_on = {"variant": "model", "tokenizer": {}, "windows": "aligned", "data": {}}

    def best_of(s, losses, checkpoint=None):
        run = Run(s, small_model(), [], trained_on, checkpoint)
        for loss in losses:
            run.step += 1
            run.record_evaluation({"val_nll": loss})
        run.checkpoint()
        run.log_file.close()
        _, _, best = load(tmp_path / "r/best.pt")
        return best["step"]

    assert best_of(s, [3.0, 2.0, 2.5]) == 2
    checkpoint = read_checkpoint(tmp_path / "r/ckpt.pt")
    assert best_of(replace(s, resume=True), [2.2, 1.9, 2.0], checkpoint) == 5


def test_checkpoints_come_by_the_clock(trained):
    """One comes at once, so that the folder is taken, then none for minutes, and one at a stop.
    Until then no other process can train in the folder."""
    flags = ["--max_steps=100000", "--save_minutes=100", "--out_dir=out/clock"]
    process = Running("train.py", *TINY, *flags, cwd=trained)
    out = trained / "out/clock"
    log = out / "log.jsonl"
    process.wait_for(log.exists)
    process.wait_for(lambda: log.read_text().count("\n") >= 8)
    assert read_checkpoint(out / "ckpt.pt")["step"] == 10
    assert "another process is writing out/clock" in refused(trained, "clock", *flags, "--resume")
    done = process.end(signal.SIGINT)
    assert "finishing this step" in done.stderr
    *_, last = read_log(out)
    assert read_checkpoint(out / "ckpt.pt")["step"] >= last["step"] > 30


def test_a_loss_that_is_not_finite_stops_it(trained):
    said = refused(trained, "wild", "--lr=1e30", "--warmup=0")
    for words in "max_grad_norm", "step 10 ", "--lr":
        assert words in said
    assert not (trained / "out/wild/ckpt.pt").exists()


# ---- A run goes on -------------------------------------------------------------------------------

def test_a_resumed_run_keeps_its_settings(trained, monkeypatch):
    """Only flags that contradict them are refused; auto decides anew, but not on what is fixed."""
    monkeypatch.chdir(trained)
    again = {"out_dir": "out/mdlm", "resume": True}
    s, _, config, checkpoint = resolve(again | {"mode": "mdlm", "preset": "auto", "warmup": 5})
    assert (config.mode, config.n_embd, s.lr, s.batch_size) == ("mdlm", 16, 2e-3, 8)
    assert checkpoint["step"] == 30
    assert s.dtype in ("bfloat16", "float32")       # auto was decided once
    for name, value in dict(mode="ar", n_embd=32, data="toy", lr=0.5, preset="laptop").items():
        words = f"made with --{name}=.+, not {value}; leave the flag out"
        with pytest.raises(InputError, match=words):
            resolve(again | {name: value})
    auto = dict(device="auto", dtype="auto", compile="auto", windows="auto")
    others = dict(grad_accum=2, quiet=False, save_minutes=1.0)
    s, *_ = resolve(again | auto | others)
    assert (auto | others | {"windows": "aligned"}).items() <= asdict(s).items()


def test_more_steps_may_be_asked_for_and_fewer_not(trained):
    shutil.copytree(trained / "out/aogpt", trained / "out/longer")
    done = run("train.py", "--out_dir=out/longer", "--resume", "--max_steps=45", cwd=trained)
    assert done.returncode == 0, done.stderr
    before, after = read_log(trained / "out/aogpt"), read_log(trained / "out/longer")
    assert after[:6] == before[:6]              # the seventh was the last evaluation
    assert list(values_of("val_nll", after)) == [10, 20, 30, 40, 45]
    assert "final_nll" in after[-1]
    said = refused(trained, "longer", "--mode=aogpt", "--resume", "--max_steps=44")
    assert "has made 45 steps" in said
    facts = json.loads((trained / "out/longer/config.json").read_text())
    assert facts["settings"]["max_steps"] == 45
    assert "--out_dir=out/aogpt" in facts["command"]        # the one that began


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


def test_two_processes_train_as_one(trained):
    flags = ["--mode=mdlm", "--dtype=float32"]
    train_command(trained, "one", *flags)
    process = launch(2, "two", *flags, "--grad_accum=2", cwd=trained)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert said.count("2 x cpu") == 1
    assert_close(trained / "out/one", trained / "out/two")


def test_a_process_dies_and_another_number_goes_on(trained):
    """The other process ends too, the checkpoint is good, and one process comes to the same end."""
    flags = ["--mode=aogpt", "--dtype=float32", "--max_steps=400", "--eval_interval=100"]
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
    assert read_checkpoint(checkpoint)["step"] in range(10, 400, 10)
    train_command(trained, "dying", *flags, "--resume", "--grad_accum=2")
    assert_close(trained / "out/alive", trained / "out/dying")


# ---- Evaluation ----------------------------------------------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_evaluation_by_hand(mode):
    """It can be repeated, leaves the random numbers of training alone, and knows no dropout."""
    model = small_model(mode, dropout=0.5)
    config = model.config
    x = torch.randint(11, (6, 8))
    nll = window_losses_by_hand(model, x, random_numbers(1))
    expected = {
        "val_nll": nll.mean().item(),
        "val_nll_se": stats.sem(nll)}
    if mode == "aogpt":
        batch = plain.order_batch(config, x, torch.arange(8).expand(6, 8))
        expected["val_nll_l2r"] = losses_by_hand(model, batch).mean().item()
    if mode == "mdlm":
        batch = masked_ce_batch(config, x, random_numbers(1, 1))
        masked = (batch.tokens == config.mask_id).flatten().nonzero()[:, 0]
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, masked)
        expected["val_masked_ce"] = F.cross_entropy(logits, batch.targets.flatten()[masked]).item()
    model.train()
    state = torch.get_rng_state()
    found = evaluate(model, plain, x, seed=1)
    assert found == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, plain, x, seed=1) == found
    assert torch.equal(state, torch.get_rng_state())


# ---- A run starts from another -------------------------------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("mode, variant, fields", [
    ("ar", plain, {}),
    ("aogpt", plain, {}),
    ("mdlm", extras.paper, {"time_embedding": "add"})])
def test_a_run_starts_from_another(trained, monkeypatch, mode, variant, fields):
    """What the other mode adds changes nothing yet: aogpt, left to right, is the ar it was."""
    monkeypatch.chdir(trained)
    source, _, _ = load("out/ar/best.pt")
    x = torch.randint(100, (10, 48))
    config = variant.Config(**asdict(source.config) | fields | {"mode": mode})
    model = variant.Transformer(config).eval()
    assert not torch.equal(model.embed.weight, source.embed.weight)
    start_from("out/ar", model, Tokenizer("words", words=TOY.words()))
    weights = model.state_dict()
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, weights.pop(name))
    assert not any(weight.any() for weight in weights.values())     # a timestep has no effect
    if mode != "mdlm":
        batch = bound_batch(config, x, random_numbers(0), l2r_fraction=1.0)
        assert torch.equal(losses_by_hand(model, batch), losses_by_hand(source, batch))


def test_a_run_starts_from_another_of_the_same_sizes_only(trained, monkeypatch):
    """And one that did is not begun anew when it is resumed."""
    monkeypatch.chdir(trained)
    source, _, _ = load("out/ar/best.pt")
    other_words = Tokenizer("words", words=["zebra", *TOY.words()[1:]])
    with pytest.raises(InputError, match="another tokenizer"):
        start_from("out/ar", source, other_words)
    flags = ["--mode=aogpt", "--init_from=out/ar"]
    said = refused(trained, "on", *flags, "--n_hidden=32")
    assert "--init_from=out/ar has --n_hidden=16, not 32" in said
    assert not os.path.exists("out/on")
    train_command(trained, "on", *flags, "--max_steps=10")
    first, *_ = read_log(trained / "out/on")
    fresh, *_ = read_log(trained / "out/aogpt")
    assert first["train_loss"] < fresh["train_loss"] - 0.05
    train_command(trained, "on", *flags, "--max_steps=20", "--resume")
    assert read_log(trained / "out/on")[0] == first


# ---- What each step is given ---------------------------------------------------------------------

@pytest.mark.parametrize("mode", MODES)
def test_each_step_has_its_own_noise(trained, mode):
    """Of a single window nothing is learned, so only masks, orders and dropout can differ."""
    flags = [f"--mode={mode}", "--lr=0", "--train_stories=1", "--batch_size=2"]
    if mode == "ar":
        flags.append("--dropout=0.5")
    train_command(trained, f"noise-{mode}", *flags)
    found = values_of("train_loss", read_log(trained / f"out/noise-{mode}"))
    assert len(set(found.values())) == 3


def test_no_two_seeds_share_their_noise():
    """Nor do masks and the dropout of two processes: no generator has the seed of another."""
    drawn = set()
    for seed, step, rank in itertools.product([1, 2], range(30), [(), (1,), (2,)]):
        drawn.add(random_numbers(seed, step, *rank).initial_seed())
    assert len(drawn) == 180


# ---- A training step -----------------------------------------------------------------------------

def some_batch(model, seed=0):
    generator = random_numbers(seed)
    x = torch.randint(10, (8, 8), generator=generator)
    return training_batch(model.config, x, generator)


def test_each_weight_has_its_optimizer():
    s = Settings(optimizer="muon", beta2=0.5, weight_decay=0.3)
    model = small_model()
    [adamw], [muon] = (optimizer.param_groups for optimizer in make_optimizers(model, s))
    [all_weights] = make_optimizers(model, replace(s, optimizer="adamw"))[0].param_groups
    assert adamw["betas"] == all_weights["betas"] == (0.9, 0.5)
    assert adamw["weight_decay"] == muon["weight_decay"] == all_weights["weight_decay"] == 0.3
    assert len(muon["params"]) == 8
    assert len(adamw["params"]) + 8 == len(all_weights["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_is_that_of_the_settings(mode, optimizer):
    """Also in parts; the norm is that of the whole gradient before it is clipped, and every group
    of weights gets the learning rate."""
    s = Settings(batch_size=8, dtype="float32", optimizer=optimizer, grad_clip=0.01, grad_accum=2)
    model, by_hand = small_model(mode), small_model(mode)
    optimizers = make_optimizers(model, s)
    last = optimizers[0].param_groups[0]["params"].pop()
    optimizers[0].add_param_group({"params": [last]})
    expected_optimizers = make_optimizers(by_hand, s)
    for seed in range(3):
        batch = some_batch(model, seed)
        loss, norm = train_step(model, losses, optimizers, batch, s, lr=0.01)
        by_hand.zero_grad()
        expected = losses_by_hand(by_hand, batch).mean()
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-4)
        whole_norm = torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.01)
        assert norm == pytest.approx(whole_norm.item(), rel=1e-3)
        assert norm > 0.01
        for expected_optimizer in expected_optimizers:
            expected_optimizer.param_groups[0]["lr"] = 0.01
            expected_optimizer.step()
    for a, b in zip(model.parameters(), by_hand.parameters()):
        assert torch.allclose(a, b, atol=1e-4)


def test_muon_is_pytorchs_in_the_precision_of_training():
    """Ten steps end where those of torch.optim.Muon do, but for the rounding of its bfloat16."""
    generator = random_numbers(0)
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


def test_bfloat16_compiled_follows_float32(trained):
    """In 200 steps of a run, the mean losses of 10 steps differ by less than 0.01 nats per token.
    Compiled code gives the same bits again."""
    flags = ["--mode=mdlm", "--max_steps=200", "--eval_interval=100", "--n_embd=32"]
    fast = ["--dtype=bfloat16", "--compile=true"]

    def train_losses(name, *more):
        done = train_command(trained, name, *flags, *more)
        assert "torch.compile failed" not in done.stderr
        return values_of("train_loss", read_log(trained / "out" / name))

    exact = train_losses("slow", "--dtype=float32")
    compiled = train_losses("fast", *fast)
    assert len(exact) == 20
    assert compiled == pytest.approx(exact, abs=0.01)
    assert compiled == train_losses("again", *fast)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("mode", MODES)
def test_cuda_follows_the_cpu(trained, mode):
    train_command(trained, f"cuda-{mode}", f"--mode={mode}", "--device=cuda", "--dtype=bfloat16")
    final = read_log(trained / f"out/cuda-{mode}")[-1]
    expected = read_log(trained / "out" / mode)[-1]
    assert abs(final["final_nll"] - expected["final_nll"]) < 0.02


# ---- Compilers -----------------------------------------------------------------------------------

def losses_with_compiler(monkeypatch, compile):
    """Losses as compiled by another torch.compile, and what they are called with."""
    monkeypatch.setattr(torch, "compile", compile)
    losses_of = machine.compiled(losses, Settings(compile="true"), CPU)
    model = small_model("ar")
    batch = some_batch(model)
    return losses_of, (model, batch, batch.select())


def unknown_python(function):
    raise RuntimeError("torch.compile is not supported on Python 3.99+")


def no_compiler(function):
    def fails(*arguments):
        raise RuntimeError("there is no C++ compiler")
    return fails


@pytest.mark.parametrize("compile", [unknown_python, no_compiler])
def test_without_a_compiler_it_goes_on(monkeypatch, capsys, compile):
    losses_of, arguments = losses_with_compiler(monkeypatch, compile)
    for _ in range(2):
        assert torch.equal(losses_of(*arguments), losses(*arguments))
    assert capsys.readouterr().err.count("going on without it") == 1


@pytest.mark.parametrize("results", [
    [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")],
    [RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    [torch.zeros(8), RuntimeError("a fault of this code")]])
def test_only_a_first_step_that_fails_is_a_failed_compilation(monkeypatch, results):
    """And too little memory is none, at any step."""
    def compile(function):
        return mock.Mock(side_effect=results)

    losses_of, arguments = losses_with_compiler(monkeypatch, compile)
    with pytest.raises(RuntimeError) as raised:
        for _ in range(2):
            losses_of(*arguments)
    assert raised.value is results[-1]


def test_if_one_process_cannot_compile_none_does(monkeypatch):
    def compile(function):
        return lambda *arguments: function(*arguments) + 1

    losses_of, arguments = losses_with_compiler(monkeypatch, compile)
    monkeypatch.setattr(machine, "mean_over_processes", lambda failed: failed + 0.5)
    for _ in range(2):
        assert torch.equal(losses_of(*arguments), losses(*arguments))
