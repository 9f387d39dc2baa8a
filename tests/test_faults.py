"""What happens to runs: they are killed, the disk is full, files are damaged, a machine is poor."""
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import objectives
import runs
import train
from conftest import ROOT, TINY, Running, read_log, run, small_model
from runs import load

FILES = ["best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"]


def assert_same_run(one, other):
    """The log, the state of everything and the best weights agree in every bit."""
    assert read_log(one) == read_log(other)
    assert sorted(os.listdir(one)) == sorted(os.listdir(other)) == FILES
    for name in "ckpt.pt", "best.pt":
        assert contents(one / name) == contents(other / name)


def contents(path):
    """A checkpoint without what depends on the clock, tensors as lists."""
    checkpoint = torch.load(path, weights_only=True)
    for name in "seconds", "log":       # the length of the log in bytes
        checkpoint.pop(name, None)
    for name in "resume", "out_dir":
        checkpoint.get("settings", {}).pop(name, None)
    return plain(checkpoint)


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return value


# ---- Runs that are stopped -----------------------------------------------------------------------

def arguments_of(mode, name):
    """A run that saves every 30 ms, so that many signals come while it writes."""
    special = {
        "ar": ["--dropout=0.1", "--token_noise=0.1"],
        "mdlm": ["--optimizer=muon", "--grad_accum=2"],
        "aogpt": []}
    return [f"--mode={mode}", f"--out_dir=out/{name}-{mode}", *TINY, *special[mode],
            "--max_steps=300", "--eval_interval=5", "--save_minutes=0.0005"]


def leave_alone(folder, mode):
    done = run("train.py", *arguments_of(mode, "alone"), cwd=folder)
    assert done.returncode == 0, done.stderr


def kill_and_resume(folder, mode):
    """It is killed twice, perhaps stopped in between, and resumed each time. Returns the kills."""
    rng = random.Random(mode)
    checkpoint = folder / f"out/killed-{mode}/ckpt.pt"
    kills = 0
    while True:
        arguments = arguments_of(mode, "killed")
        if checkpoint.exists():
            arguments.append("--resume")
        else:                               # a best.pt without it is not written over
            checkpoint.with_name("best.pt").unlink(missing_ok=True)
        if kills == 2:
            done = run("train.py", *arguments, cwd=folder)
            assert done.returncode == 0, done.stderr
            return kills
        process = Running("train.py", *arguments, cwd=folder)
        if rng.random() < 0.8:              # while it trains, else perhaps while it starts
            process.wait_for(lambda: process.said()[0].startswith("preset"))
        time.sleep(rng.uniform(0, 0.3))
        kind = rng.choice([signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGINT])
        done = process.end(kind)
        if done.returncode == 0:            # it was at its end
            return kills
        if kind == signal.SIGKILL:
            assert done.returncode in (-signal.SIGKILL, 255)    # 255 if it was still being forked
            kills += 1
        elif done.returncode == 128 + kind:
            assert "stopped and saved; go on with: python " in done.stderr
            assert done.stderr.endswith(" --resume\n")
        else:                               # it had not begun to train
            early = done.stderr.endswith("KeyboardInterrupt\n") or done.returncode == -kind
            assert early or "interrupted; " in done.stderr, done
        if checkpoint.exists():
            assert load(checkpoint)[1]["step"] <= 300


def test_killed_at_random_moments(trained):
    """A run of each mode ends as one that was left alone."""
    modes = ["mdlm", "aogpt", "ar"]
    with ThreadPoolExecutor(3) as pool:
        killed = [pool.submit(kill_and_resume, trained, mode) for mode in modes]
        alone = [pool.submit(leave_alone, trained, mode) for mode in modes]
        assert sum(future.result() for future in killed) > 0
        for future in alone:
            future.result()
    for mode in modes:
        assert_same_run(trained / f"out/alone-{mode}", trained / f"out/killed-{mode}")


def test_the_disk_is_full_while_a_checkpoint_is_written(trained):
    """The limit on a file's size stands in for a full disk; ckpt.pt, the largest file, is above."""
    arguments = ["--mode=mdlm", *TINY, "--max_steps=400", "--out_dir=out/full"]
    checkpoint = trained / "out/full/ckpt.pt"
    limit = (trained / "out/mdlm/ckpt.pt").stat().st_size * 9 // 10

    def run_on_full_disk(*more):
        process = Running("train.py", *arguments, *more, cwd=trained, largest_file=limit)
        done = process.end()
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "out/full/ckpt.pt could not be written" in done.stderr

    run_on_full_disk()
    assert not checkpoint.exists()
    checkpoint.with_name("best.pt").unlink()        # it is smaller, so there was room for it
    process = Running("train.py", *arguments, cwd=trained)
    process.wait_for(checkpoint.exists)
    process.end(signal.SIGTERM)
    before = checkpoint.read_bytes()
    run_on_full_disk("--resume")
    assert checkpoint.read_bytes() == before
    assert run("train.py", *arguments, "--resume", cwd=trained).returncode == 0
    assert run("train.py", *arguments[:-1], "--out_dir=out/roomy", cwd=trained).returncode == 0
    assert_same_run(trained / "out/full", trained / "out/roomy")


def test_preparing_data_is_stopped(workdir):
    process = Running("prepare_data.py", "--name=t", "--max_tokens=10000000", cwd=workdir)
    time.sleep(3)               # nothing is to be seen before all is read
    done = process.end(signal.SIGTERM)
    assert done.returncode == 2
    assert "nothing was kept" in done.stderr
    assert not os.path.exists("data")


# ---- Damaged and foreign files -------------------------------------------------------------------

class Malice:
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("stolen",)


@pytest.mark.parametrize("name, value, said", [
    ("step", Malice(), "holds code"),
    ("format", 2, "format 2, this code reads 1"),
    ("config", {"mode": "mlm"}, "ar, mdlm, aogpt"),
    ("model", {}, "Missing key")])
def test_a_foreign_checkpoint_gets_one_line(trained, workdir, name, value, said):
    checkpoint = torch.load(trained / "out/mdlm/best.pt", weights_only=True)
    checkpoint[name] = value
    torch.save(checkpoint, "m.pt")
    with pytest.raises(OSError, match="m.pt is not a usable checkpoint") as e:
        load("m.pt")
    assert said in str(e.value)
    assert "\n" not in str(e.value)
    assert not os.path.exists("stolen")


def test_damaged_checkpoints_get_one_line(trained, workdir):
    whole = (trained / "out/mdlm/best.pt").read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:]
    for damaged in flipped, whole[:-100], b"", b"a text":
        (workdir / "best.pt").write_bytes(damaged)
        done = run("sample.py", "--out_dir=.")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "best.pt is not a usable checkpoint" in done.stderr


def refuses_to_resume(folder):
    """What train.py says, in one line, when it cannot go on with out/mine."""
    done = run("train.py", "--out_dir=out/mine", "--resume", "--device=cpu", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_lost_files_and_other_data_are_noticed(trained, workdir):
    shutil.copytree(trained / "out/ar", "out/mine")
    shutil.copytree(trained / "data/t", "data/t")
    log = workdir / "out/mine/log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-800])
    assert "has lost lines" in refuses_to_resume(workdir)
    log.write_bytes(whole)
    best = workdir / "out/mine/best.pt"
    best.rename("kept.pt")
    assert "best.pt is gone" in refuses_to_resume(workdir)
    os.rename("kept.pt", best)
    run("prepare_data.py", "--name=t", "--max_tokens=30000", "--seed=2")
    assert "data/t is not what" in refuses_to_resume(workdir)
    assert log.read_bytes() == whole


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(workdir, monkeypatch, capsys, code):
    def no_lock(file, how):
        raise OSError(code, "not here")

    monkeypatch.setattr(runs.fcntl, "flock", no_lock)
    file = runs.open_locked("log.jsonl")
    print("a line", file=file)
    assert Path("log.jsonl").read_text() == "a line\n"
    assert "log.jsonl cannot be locked (not here)" in capsys.readouterr().err


def test_a_compiler_that_fails_when_it_is_called(monkeypatch, capsys):
    def compile(function, dynamic):
        def fails(*arguments):
            raise RuntimeError("not in this Python")
        return fails

    monkeypatch.setattr(torch, "compile", compile)
    s = train.Settings(compile="true")
    losses_of = train.maybe_compiled(s, torch.device("cpu"))
    model = small_model("ar")
    x = torch.zeros(2, 8, dtype=torch.long)
    batch = objectives.training_batch(model.config, x, None)
    for _ in range(2):
        assert torch.equal(losses_of(model, batch), objectives.weighted_losses(model, batch))
    assert capsys.readouterr().err.count("going on without it") == 1


# ---- Everywhere ----------------------------------------------------------------------------------

def test_a_poor_machine(trained, tmp_path):
    """All that a newcomer runs, on a path with spaces, with source that can't be written, no home,
    display, compiler or network, one thread and 40 columns."""
    source, work = tmp_path / "the source", tmp_path / "my work"
    source.mkdir()
    work.mkdir()
    for name in os.listdir(ROOT):
        if name.endswith(".py"):
            shutil.copy(os.path.join(ROOT, name), source)
            (source / name).chmod(0o444)
    source.chmod(0o555)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "40",
        "LC_ALL": "C",
        "CXX": "none",
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "a cache"),
        "PYTHONDONTWRITEBYTECODE": "1"}

    def poor(script, *arguments):
        command = [sys.executable, str(source / script), *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    poor("prepare_data.py", "--name=my words", "--max_tokens=30000")
    tiny = [*TINY, "--data=my words"]
    assert "going on without" in poor("train.py", "--mode=mdlm", *tiny, "--compile=auto")
    environment["MPLCONFIGDIR"] = str(tmp_path / "fonts")       # else they are listed each time
    poor("train.py", "--mode=ar", *tiny, "--out_dir=my ar")
    poor("sample.py", "--out_dir=my ar", "--num_samples=20", "--show")
    poor("compare.py", "ar=my ar", "mdlm=out/my words-mdlm", "--plot=a plot.png")
    poor("diversity.py", "ar=my ar/shown.jsonl", "--data=my words", "--judge=my ar")
