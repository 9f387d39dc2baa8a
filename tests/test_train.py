"""Training, sampling and comparing as a user runs them: real processes in a folder of their own."""
import itertools
import json
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

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import runs
import train
from compare import CompareOptions, score
from conftest import ROOT, TINY, Running, read_log, run, small_model
from cli import InputError
from model import (Config, Transformer, evaluation_batch, group_losses, mask_generator,
                   order_batch, paper_batch, training_batch)
from prepare_data import Tokenizer, Windows
from runs import Run, load, open_model
from toy import TOY, toy_stories
from train import Muon, Settings, evaluate, make_update, start_from

@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_a_run_leaves_what_it_promises(trained, mode):
    out = trained / "out" / mode
    files = sorted(name for name in os.listdir(out) if not name.startswith(("samples", "shown")))
    assert files == ["best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"]
    log = read_log(out)
    for name in ("train_loss", "val_nll"):
        assert [e["step"] for e in log if name in e] == [10, 20, 30]
    final = log[-1]
    assert final["val_nll"] < log[1]["val_nll"] < 6 and final["val_floor"] == pytest.approx(0.386, abs=0.05)
    counts = json.load(open(trained / "data/t/meta.json"))["splits"]["val"]
    bits = final["val_nll"] / np.log(2) * counts["tokens"] / counts["bytes"]
    assert final["val_bpb"] == pytest.approx(bits)
    assert ("val_masked_ce" in final) == (mode == "mdlm") and ("val_nll_l2r" in final) == (mode == "aogpt")
    config = json.load(open(out / "config.json"))
    assert config["config"]["mode"] == mode and all(config[k] for k in ("command", "date", "seed", "machine"))
    text = (trained / f"{mode}.txt").read_text()
    assert text.startswith("preset toy (as asked)")
    assert "float" in text and "not compiled" in text and "python sample.py" in text

def test_a_story_before_training_and_at_every_evaluation(trained):
    """It doesn't change the run, and the last one is the first of those at the end."""
    done = run("train.py", "--mode=ar", "--out_dir=out/told", *TINY, "--quiet=false", cwd=trained)
    before, *shown = re.findall(r"^(?:before training: |    )(.+)$", done.stdout, re.MULTILINE)
    end = re.search(r"three samples of that model:\n\n(.+)\n", done.stdout)[1]
    assert len(shown) == 3 and before != shown[0]
    assert textwrap.shorten(end, 300, placeholder=" …") == shown[2]
    assert read_log(trained / "out/told") == read_log(trained / "out/ar")
    assert "before training" not in (trained / "ar.txt").read_text()

def test_best_checkpoint_scores_what_the_log_says(trained, monkeypatch):
    for mode in ("ar", "mdlm", "aogpt"):
        model, checkpoint = load(str(trained / "out" / mode / "best.pt"))
        log = read_log(trained / "out" / mode)
        assert checkpoint["val_nll"] == min(e["val_nll"] for e in log if "val_nll" in e)
        monkeypatch.chdir(trained)
        x = torch.from_numpy(Windows("t", "val", 48).spread(20))
        assert evaluate(model, x, 4, seed=1337)["val_nll"] == pytest.approx(checkpoint["val_nll"], abs=1e-5)
        assert "optimizers" not in checkpoint and Tokenizer(**checkpoint["tokenizer"]).words == TOY.words()

def test_best_is_the_lowest_not_the_last(tmp_path):
    """Also of a run that goes on."""
    s, best = Settings(out_dir=str(tmp_path / "r")), str(tmp_path / "r/best.pt")

    def best_of(s, *losses):
        run = Run(s, small_model(), [], {})
        run.bar = types.SimpleNamespace(write=lambda _: None)
        for loss in losses:
            run.step += 1
            run.record_evaluation("", val_nll=loss)
        run.checkpoint()
        run.log_file.close()
        return load(best)[1]["step"]

    assert best_of(s, 3.0, 2.0, 2.5) == 2
    assert best_of(replace(s, resume=True), 2.2, 1.9, 2.0) == 5

@pytest.mark.parametrize("mode, more", [("ar", ["--dropout=0.5"]), ("mdlm", []), ("aogpt", [])])
def test_each_step_has_its_own_noise(trained, mode, more):
    """Nothing is learned, of a single window: only masks, orders and dropout can differ."""
    done = run("train.py", f"--mode={mode}", *TINY, "--lr=0", "--train_stories=1", "--batch_size=2",
               f"--out_dir=out/noise-{mode}", *more, cwd=trained)
    assert done.returncode == 0, done.stderr
    log = read_log(trained / f"out/noise-{mode}")
    assert len({entry["train_loss"] for entry in log if "train_loss" in entry}) == 3

def launch(processes, *arguments, cwd):
    """train.py in so many processes, started but not waited for."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}",
               os.path.join(ROOT, "train.py"), *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})

def close(a, b):
    """The same log, numbers within 1e-4: two processes add up gradients in another order than one."""
    if [e.keys() for e in a] != [e.keys() for e in b]:
        return False
    return all(x[k] == pytest.approx(y[k], abs=1e-4) for x, y in zip(a, b) for k in x)

@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_two_processes_train_as_one(trained, mode):
    arguments = [f"--mode={mode}", *TINY, "--dtype=float32",
                 f"--compile={'true' if mode == 'ar' else 'false'}"]
    assert run("train.py", *arguments, f"--out_dir=out/one-{mode}", cwd=trained).returncode == 0
    process = launch(2, *arguments, "--grad_accum=2", f"--out_dir=out/two-{mode}", cwd=trained)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0 and output.count("2 x cpu") == 1, output
    one, two = (read_log(trained / "out" / f"{name}-{mode}") for name in ("one", "two"))
    assert close(one, two) and len(one) == 6

def test_a_process_dies_and_another_number_goes_on(trained):
    """Two processes, one killed: the other ends too, the checkpoint is good, and one process resumes to the
    same end."""
    arguments = ["--mode=mdlm", *TINY, "--dtype=float32", "--max_steps=400", "--eval_interval=100"]
    assert run("train.py", *arguments, "--out_dir=out/alive", cwd=trained).returncode == 0
    process = launch(2, *arguments, "--out_dir=out/dying", cwd=trained)
    while not (trained / "out/dying/ckpt.pt").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    process.communicate(timeout=60)
    step = load(str(trained / "out/dying/ckpt.pt"))[1]["step"]
    assert process.returncode != 0 and step in range(10, 400, 10)
    arguments += ["--out_dir=out/dying", "--resume", "--grad_accum=2", "--quiet=false"]     # these may change
    assert run("train.py", *arguments, cwd=trained).returncode == 0
    assert close(read_log(trained / "out/alive"), read_log(trained / "out/dying"))

def test_a_run_is_locked_and_a_loss_that_is_not_finite_stops_it(trained):
    arguments = ["--mode=ar", *TINY, "--max_steps=100000", "--out_dir=out/busy"]
    process = Running("train.py", *arguments, cwd=trained)
    process.wait_for((trained / "out/busy/ckpt.pt").exists)
    done = run("train.py", *arguments, "--resume", cwd=trained)
    process.end(signal.SIGINT)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "another process is writing out/busy" in done.stderr
    done = run("train.py", *TINY, "--lr=1e30", "--warmup=0", "--out_dir=out/wild", cwd=trained)
    assert done.returncode == 2
    assert all(words in done.stderr for words in ("max_grad_norm", "step 10 ", "--lr"))
    assert not (trained / "out/wild/ckpt.pt").exists()

def test_checkpoints_come_by_the_clock(trained):
    """At once, so that the folder is taken, then not at every evaluation; and when it is stopped."""
    arguments = ["--mode=ar", *TINY, "--max_steps=100000", "--save_minutes=100", "--out_dir=out/clock"]
    process, out = Running("train.py", *arguments, cwd=trained), trained / "out/clock"
    process.wait_for((out / "log.jsonl").exists)
    process.wait_for(lambda: len(open(out / "log.jsonl").readlines()) >= 8)
    assert load(str(out / "best.pt"))[1]["step"] > load(str(out / "ckpt.pt"))[1]["step"] == 10
    assert "finishing this step" in process.end(signal.SIGINT).stderr
    checkpoint = load(str(out / "ckpt.pt"))[1]
    last = json.loads(open(out / "log.jsonl").readlines()[-1])
    assert checkpoint["step"] >= last["step"] and 0 < last["seconds"] < last["wall_seconds"]
    assert checkpoint["wall_seconds"] >= last["wall_seconds"]

def test_a_signal_is_obeyed_where_nobody_reads_what_is_said(tmp_path, monkeypatch):
    """Ctrl-C stops `tee` too."""
    def write(*_):
        raise BrokenPipeError

    run = Run(Settings(out_dir=str(tmp_path / "r")), small_model(), [], {})
    monkeypatch.setattr(runs.os, "write", write)
    with run.training():
        assert not run.asked_to_stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.asked_to_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    run.log_file.close()

def test_several_processes_on_a_mac_train_on_its_cpu(monkeypatch):
    monkeypatch.setattr(runs, "WORLD_SIZE", 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    joined = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda kind, **_: joined.append(kind))
    assert runs.join_processes("auto").type == "cpu" and joined == ["gloo"]

def test_evaluation_is_repeatable_and_leaves_training_alone():
    model = small_model("mdlm")
    x = torch.randint(0, 11, (12, 8))
    state, before = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    first = evaluate(model, x, 4, seed=1)
    assert first == evaluate(model, x, 4, seed=1) != evaluate(model, x, 4, seed=2)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))

@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_evaluation_by_hand(mode):
    model, generator = small_model(mode), mask_generator(1)
    x, config = torch.randint(11, (6, 8)), model.config
    found = evaluate(model, x, 4, seed=1)
    nll = group_losses(model, evaluation_batch(config, x, generator))
    expected = {"val_nll": nll.mean().item(), "val_nll_se": stats.sem(nll)}
    if mode == "aogpt":
        expected["val_nll_l2r"] = group_losses(model, order_batch(config, x)).mean().item()
    if mode == "mdlm":
        batch = paper_batch(config, x, generator)
        masked = batch.tokens == config.mask_id
        logits = model(batch.tokens, batch.key_pos, batch.target_pos)[masked]
        expected["val_masked_ce"] = F.cross_entropy(logits, batch.targets[masked]).item()
    assert found == pytest.approx(expected, rel=1e-5)

@pytest.mark.parametrize("other, settings", [("aogpt", {}), ("mdlm", {}), ("mdlm", {"time_embedding": "add"}),
                                             ("ar", {})])
def test_a_run_starts_from_another(trained, monkeypatch, other, settings):
    """What the other mode adds changes nothing yet: aogpt is the ar that it starts from, read left to right;
    the rest asks the same weights another question."""
    monkeypatch.chdir(trained)
    source, checkpoint = load("out/ar/best.pt")
    words = Tokenizer(**checkpoint["tokenizer"])
    fields = {name: getattr(source.config, name) for name in ("vocab_size", "block_size", "n_layer", "n_head",
                                                              "n_embd", "n_hidden")}
    model, plain = (Transformer(Config(other, **fields, **more)).eval() for more in (settings, {}))
    assert not torch.equal(model.embed.weight, source.embed.weight)
    for m in (model, plain):
        start_from("out/ar", m, words)
    weights = model.state_dict()
    assert all(torch.equal(w, weights[name]) for name, w in source.state_dict().items())
    x = torch.from_numpy(Windows("t", "val", 48).spread(10))
    batch = evaluation_batch(model.config, x, mask_generator(0), left_to_right=True)
    assert torch.equal(group_losses(model, batch), group_losses(plain, batch))      # a timestep of no effect
    if other != "mdlm":
        assert torch.equal(group_losses(model, batch), group_losses(source, batch))

def test_a_run_starts_from_another_of_the_same_sizes_only(trained, monkeypatch):
    monkeypatch.chdir(trained)
    source, checkpoint = load("out/ar/best.pt")
    words = Tokenizer("words", words=TOY.words()[:-1] + ["zebra"])
    with pytest.raises(InputError, match="another tokenizer"):
        start_from("out/ar", source, words)
    with pytest.raises(InputError, match="out/aogpt has embed_target.weight, this"):
        start_from("out/aogpt", Transformer(replace(source.config, target_embedding=False)),
                   Tokenizer(**checkpoint["tokenizer"]))
    done = run("train.py", "--mode=mdlm", "--out_dir=out/on", "--init_from=out/ar", *TINY, "--n_hidden=32",
               cwd=trained)
    assert done.returncode == 2 and "--init_from=out/ar has n_hidden 16, not 32; give the same" in done.stderr
    assert not os.path.exists("out/on")
    flags = ["--mode=aogpt", "--out_dir=out/on", "--init_from=out/ar", *TINY, "--max_steps=10"]
    done = run("train.py", *flags, cwd=trained)
    first, fresh = (read_log(trained / "out" / name)[0] for name in ("on", "aogpt"))
    assert done.returncode == 0 and first["train_loss"] < fresh["train_loss"] - 0.05
    done = run("train.py", *flags, "--resume", cwd=trained)
    assert done.returncode == 0 and read_log(trained / "out/on")[0] == first        # not begun anew

def test_dropout_is_for_training_alone():
    x = torch.randint(10, (4, 8), generator=torch.Generator().manual_seed(0))
    model, without = small_model(dropout=0.5), small_model()
    assert evaluate(model, x, 4, seed=1) == evaluate(without, x, 4, seed=1)
    _, update = make_update(model, Settings(batch_size=4, compile="false", dtype="float32"))
    batch = training_batch(model.config, x, torch.Generator())
    losses = {update(batch, lr=0.0)[0].item() for _ in range(3)}
    assert len(losses) == 3 and evaluate(model, x, 4, seed=1) == evaluate(without, x, 4, seed=1)

@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_updates_are_those_of_the_settings(kind):
    s = Settings(batch_size=8, compile="false", dtype="float32", optimizer=kind, grad_clip=0.01, beta2=0.5,
                 weight_decay=0.3)
    model, plain = small_model(), small_model()
    update = make_update(model, s)[1]
    matrices = [p for p in plain.blocks.parameters() if p.dim() == 2] if kind == "muon" else []
    rest = [p for p in plain.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [torch.optim.AdamW(rest, betas=(0.9, 0.5), weight_decay=0.3)]
    optimizers += [Muon(matrices, dict(weight_decay=0.3))] if matrices else []
    for _ in range(3):
        batch = order_batch(plain.config, torch.randint(10, (8, 8)))
        assert update(batch, 0.01)[1] > 0.01            # the norm is clipped
        group_losses(plain, batch).mean().backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.01
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(model.parameters(), plain.parameters()))

def test_muon_moves_the_matrices_of_the_blocks_in_all_directions_alike():
    """The first update of a matrix (A, B) is its gradient with all singular values at 0.2 √max(A, B) lr,
    but for a factor of 0.7 to 1.2 that five Newton-Schulz steps leave, and the smallest, which they do not
    lift as far. All else is AdamW's: the gradient's sign, times lr."""
    model, lr = small_model("mdlm", block_size=16, n_embd=32, n_hidden=48), 1e-3
    x = torch.randint(10, (8, 16), generator=torch.Generator().manual_seed(0))
    batch = training_batch(model.config, x, torch.Generator().manual_seed(0))
    s = Settings(batch_size=8, compile="false", dtype="float32", optimizer="muon", weight_decay=0.0)
    gradients = torch.autograd.grad(group_losses(model, batch).mean(), model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    make_update(model, s)[1](batch, lr)
    matrices = 0
    for (name, p), old, gradient in zip(model.named_parameters(), before, gradients):
        update = old - p.detach()
        if name.startswith("blocks") and p.dim() == 2:
            U, S, V = torch.linalg.svd(gradient, full_matrices=False)
            size = U.T @ update @ V.T / (0.2 * max(p.shape) ** 0.5 * lr)
            large = size.diagonal()[S > 0.05 * S[0]]
            assert len(large) > 5 and large.min() > 0.6 and size.diagonal().max() < 1.3, name
            assert (size - size.diagonal().diag()).abs().max() < 0.2, name
            matrices += 1
        else:
            large = gradient.abs() > 1e-5
            assert update[large] == pytest.approx(lr * gradient[large].sign(), rel=0.01), name
    assert matrices == 8

def test_muon_is_pytorchs_in_the_precision_of_training():
    """Ten steps of torch.optim.Muon, whose products are bfloat16, end where ours do, but for its rounding;
    in float64 the first singular values are the polynomial's, applied five times."""
    generator = torch.Generator().manual_seed(0)
    for shape in (24, 64), (64, 24), (32, 32):
        start = torch.randn(shape, generator=generator)
        ours, theirs = (start.clone().requires_grad_() for _ in range(2))
        both = Muon([ours], dict(weight_decay=0.1)), torch.optim.Muon(
            [theirs], weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        for _ in range(10):
            ours.grad = torch.randn(shape, generator=generator)
            theirs.grad = ours.grad.clone()
            for optimizer in both:
                optimizer.param_groups[0]["lr"] = 0.01
                optimizer.step()
        moved = (ours - start).norm()
        assert moved > 0.4 and (ours - theirs).norm() < 0.01 * moved
    p = torch.zeros(24, 64, dtype=torch.float64)
    p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    s = torch.linalg.svdvals(p.grad) / p.grad.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s ** 3 + 2.0315 * s ** 5
    optimizer = Muon([p], dict(weight_decay=0.1))
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.step()
    assert torch.linalg.svdvals(p / (0.2 * 8)) == pytest.approx(s.sort(descending=True)[0], rel=1e-9)

def test_muon_takes_matrices_of_a_size_together_as_if_each_were_alone():
    """Tall and wide ones, interleaved; each has its own momentum, also after a checkpoint."""
    generator, shapes = torch.Generator().manual_seed(0), [(8, 3), (3, 8), (8, 3), (5, 5), (3, 8), (8, 3)]
    starts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    alone, together = ([p.clone() for p in starts] for _ in range(2))
    optimizers = [Muon([p], dict(weight_decay=0.3)) for p in alone]
    optimizers.append(Muon(together, dict(weight_decay=0.3)))
    for step in range(3):
        if step == 2:
            state = optimizers.pop().state_dict()
            optimizers.append(Muon(together, dict(weight_decay=0.3)))
            optimizers[-1].load_state_dict(state)
        for p, q in zip(alone, together):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.1
            optimizer.step()
    for p, q, start in zip(alone, together, starts, strict=True):
        assert (p - q).abs().max() < 1e-12 and (p - start).norm() > 0.1

def test_evaluation_gives_every_window_every_mask_ratio():
    """The bound of fixed windows is the mean over all k for each of them: no stratum may stick to a row."""
    from model import nelbo_batch
    model = small_model("mdlm")
    x = torch.zeros(8, 8, dtype=torch.long)
    batches = [nelbo_batch(model.config, x, torch.Generator().manual_seed(s)) for s in range(400)]
    masked = torch.stack([(batch.tokens == 11).sum(dim=1) for batch in batches])    # (400, 8): how many each
    assert all(len(set(masked[:, row].tolist())) >= 4 for row in range(8))
    assert (masked[:, 0::2].float().mean(dim=0) - masked[:, 0::2].float().mean()).abs().max() < 5 * 2.3 / 20

@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_bfloat16_compiled_follows_float32_eager_and_is_repeatable(trained, mode):
    """The fast path and the exact one, 200 steps of the same run: the mean losses of 10 steps differ by less
    than 0.01 nats per token. Compiled code on two threads gives the same bits again."""
    loss, fast = {}, ["--dtype=bfloat16", "--compile=true"]
    runs = {"slow": ["--dtype=float32"], "fast": fast}
    if mode == "mdlm":
        runs["again"] = fast
    for name, flags in runs.items():
        done = run("train.py", f"--mode={mode}", *TINY, "--max_steps=200", "--eval_interval=100",
                   "--n_embd=32", f"--out_dir=out/{name}-{mode}", *flags, cwd=trained)
        assert done.returncode == 0 and "torch.compile failed" not in done.stderr, done.stderr
        log = read_log(trained / "out" / f"{name}-{mode}")
        loss[name] = np.array([e["train_loss"] for e in log if "train_loss" in e])
    assert len(loss["slow"]) == 20 and np.abs(loss["slow"] - loss["fast"]).max() < 0.01
    assert mode != "mdlm" or (loss["fast"] == loss["again"]).all()

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_cuda_follows_cpu(trained, mode):
    done = run("train.py", f"--mode={mode}", *TINY, f"--out_dir=out/cuda-{mode}", "--device=cuda",
               "--dtype=bfloat16", cwd=trained)
    assert done.returncode == 0, done.stderr
    a, b = (read_log(trained / "out" / name)[-1]["val_nll"] for name in (mode, f"cuda-{mode}"))
    assert abs(a - b) < 0.02

# ------------------------------------------------------------------------------------------------ comparing

def test_equal_steps_and_equal_seconds(tmp_path):
    for name, curve in {"a": [(10, 1, 4), (20, 3, 2)], "b": [(10, 1, 6), (30, 2, 5)]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({
            "seed": 1, "config": {"block_size": 8}, "settings": {"data": "t", "windows": "aligned"}}))
        log = (dict(zip(("step", "seconds", "val_nll", "val_nll_se"), (*entry, 0.1))) for entry in curve)
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    done = run("compare.py", "a=a", "b=b", "--json=c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    a, b = (json.load(open(tmp_path / "c.json"))["runs"][name]["table"] for name in "ab")
    assert [a["at 20 steps"], a["at 2 s"], b["at 20 steps"], b["at 2 s"]] == [2, 3, 5.5, 5]

def test_compare_command(trained):
    """Also a text: ar's own −log p; a bound, and its error."""
    stories = list(itertools.islice(toy_stories(seed=5), 2))
    (trained / "two.txt").write_text("<|endoftext|>".join(stories))
    done = run("compare.py", "ar=out/ar", "mdlm=out/mdlm", "--text=two.txt", "--json=c.json", "--plot=c.png",
               cwd=trained)
    assert done.returncode == 0 and "cannot be compared" not in done.stdout, done.stderr
    shutil.copytree(trained / "out/ar", trained / "out/far")
    config = json.loads((trained / "out/far/config.json").read_text())
    config["settings"]["data"] = "elsewhere"
    (trained / "out/far/config.json").write_text(json.dumps(config))
    done = run("compare.py", "ar=out/ar", "far=out/far", cwd=trained)
    assert "! losses on other data, windows or block_size cannot be compared" in done.stdout, done.stderr
    content = json.load(open(trained / "c.json"))
    ar, mdlm = (content["runs"][name]["table"] for name in ("ar", "mdlm"))
    log = [e for e in read_log(trained / "out/mdlm") if "val_nll" in e]
    assert mdlm["best"] == min(e["val_nll"] for e in log) and ar["at 30 steps"] is not None
    model, tokenizer, _ = open_model(str(trained / "out/ar"), "cpu")
    T = model.config.block_size
    x = torch.tensor([[*tokenizer.encode(story), tokenizer.eot][:T] for story in stories])
    exact = group_losses(model, order_batch(model.config, x)).mean().item()
    assert ar["of two.txt"] == pytest.approx(exact, abs=1e-6)
    checkpoint = torch.load(trained / "out/ar/best.pt")     # a model that never saw a story's end
    os.makedirs(trained / "out/endless")
    torch.save({**checkpoint, "windows": "paper"}, trained / "out/endless/best.pt")
    nats, _ = score(str(trained / "out/endless"), CompareOptions(text=str(trained / "two.txt")))
    assert nats * (x != tokenizer.eot).sum() < exact * x.numel()
    assert ar["± s.e. of draws"] == 0 < mdlm["± s.e. of draws"] < 0.1
    assert os.path.getsize(trained / "c.png") > 5000

def test_headers_are_precompiled_while_the_data_are_made(tmp_path, monkeypatch):
    """By a process of its own, which leaves them where torch.compile keeps them; if it compiles. The others
    of several processes wait meanwhile, so that the first one must ask them nothing."""
    begun = []

    def stop(_):
        raise InputError("the data would be made now")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "prepare", stop)
    monkeypatch.setattr(train, "sum_over_processes", lambda x: pytest.fail("the others are not there"))
    train.bfloat16_is_faster.cache_clear()
    monkeypatch.setattr(train.subprocess, "Popen", lambda line, **_: begun.append(line))
    for compile_it, processes in ("false", 0), ("true", 1):
        monkeypatch.setattr(sys, "argv", ["train.py", "--mode=ar", "--preset=toy", "--device=cpu",
                                          f"--compile={compile_it}"])
        with pytest.raises(InputError, match="the data would be made now"):
            train.main()
        assert len(begun) == processes
    monkeypatch.undo()
    subprocess.run(begun[0], check=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert any("precompiled_headers" in str(path) for path in tmp_path.rglob("*.[gp]ch"))
