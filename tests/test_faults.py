"""What happens to runs: they are stopped, the disk is full, files are damaged, nobody reads."""
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import train
from conftest import ROOT, TINY, Running, read_log, run, small_model
from support import runs
from support.flags import command
from support.runs import Run, load, read_checkpoint
from train import Settings

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
    return as_lists(checkpoint)


def as_lists(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: as_lists(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [as_lists(entry) for entry in value]
    return value


def refused(*arguments, cwd):
    """What a command says, in one line, when it refuses."""
    done = run(*arguments, cwd=cwd)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    return done.stderr


# ---- Runs that are stopped -----------------------------------------------------------------------

KINDS = {
    "ar": "--mode=ar --dropout=0.1 --token_noise=0.1",
    "mdlm": "--mode=mdlm --optimizer=muon --grad_accum=2",
    "infill": "--mode=aogpt --variant=infill",
    "paper": "--mode=mdlm --variant=paper --time_embedding=add --objective=masked_ce "
             "--schedule=cosine"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_as_one_that_was_left_alone(trained, kind):
    """Ctrl-C saves the step that it interrupts; a kill loses what came after a checkpoint."""
    flags = [*TINY, *KINDS[kind].split(), "--max_steps=200", "--eval_interval=100"]
    alone, stopped = trained / f"out/alone-{kind}", trained / f"out/stopped-{kind}"
    assert run("train.py", *flags, f"--out_dir={alone}", cwd=trained).returncode == 0
    flags.append(f"--out_dir={stopped}")
    process = Running("train.py", *flags, cwd=trained)
    process.wait_for((stopped / "ckpt.pt").exists)
    if kind == "mdlm":
        assert process.end(signal.SIGKILL).returncode == -signal.SIGKILL
    else:
        done = process.end(signal.SIGINT)
        assert done.returncode == 128 + signal.SIGINT
        assert "stopped and saved; go on with: python " in done.stderr
        assert done.stderr.endswith(" --resume\n")
    assert read_checkpoint(stopped / "ckpt.pt")["step"] < 200
    done = run("train.py", *flags, "--resume", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert_same_run(alone, stopped)


def test_the_disk_is_full_while_a_checkpoint_is_written(trained):
    """The limit on a file's size stands in for a full disk; ckpt.pt, the largest file, is above."""
    arguments = ["--mode=mdlm", *TINY, "--max_steps=200", "--out_dir=out/full"]
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


# ---- Signals, and outputs that nobody reads any more ---------------------------------------------

def test_the_end_of_the_terminal_saves(tmp_path, monkeypatch):
    """It sends its signal twice, and then nobody reads what is said; only a second Ctrl-C stops at
    once. A signal that nohup ignores stays ignored."""
    def write(*_):
        raise BrokenPipeError

    run = Run(Settings(out_dir=str(tmp_path / "r"), quiet=True), small_model(), [], {}, None)
    monkeypatch.setattr(runs.os, "write", write)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)   # background jobs ignore it
    with run.training():
        os.kill(os.getpid(), signal.SIGHUP)
        assert not run.asked_to_stop()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with run.training():
        for kind in signal.SIGHUP, signal.SIGHUP, signal.SIGTERM:
            os.kill(os.getpid(), kind)
        assert run.asked_to_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGHUP, before)
    signal.signal(signal.SIGINT, ctrl_c)
    run.log_file.close()


def in_shell(line, cwd):
    """A line of bash, started in a process group of its own, as a terminal does it.

    PYTHON stands for the interpreter. The line ends with the exit codes of its pipeline."""
    line = f"trap : INT; PYTHON={sys.executable}; {line}; echo ${{PIPESTATUS[@]}} >&3"
    codes, ours = os.pipe()
    process = subprocess.Popen(
        ["bash", "-c", line.replace("&3", f"&{ours}")], cwd=cwd, text=True, pass_fds=[ours],
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    os.close(ours)
    return process, os.fdopen(codes)


def test_ctrl_c_saves_when_it_ends_the_reader_too(trained):
    """`| tee log` is sent the same signal, so nobody reads what is said before the checkpoint."""
    always = "--max_steps=100000 --save_minutes=100 --eval_interval=1 --eval_windows=2"
    flags = " ".join([*TINY, always, "--out_dir=out/teed"])
    process, codes = in_shell(f"$PYTHON {ROOT}/train.py {flags} | tee teed.log", trained)
    for line in process.stdout:
        if line.startswith("step 3:"):
            break
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert codes.read().split()[0] == "130"
    assert "Traceback" not in errors
    assert errors.endswith(" --resume\n")
    saved = read_checkpoint(trained / "out/teed/ckpt.pt")["step"]
    assert saved == read_log(trained / "out/teed")[-1]["step"] >= 3


def test_a_command_ends_its_work_after_its_reader(trained):
    flags = " ".join([*TINY, "--out_dir=out/head"])
    process, codes = in_shell(f"$PYTHON {ROOT}/train.py {flags} 2>&1 | true", trained)
    _, errors = process.communicate(timeout=100)
    assert codes.read().split()[0] == "0"
    assert errors == ""
    assert (trained / "out/head/loss.png").exists()


# ---- Damaged and foreign files -------------------------------------------------------------------

class Malice:
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("stolen",)


@pytest.mark.parametrize("name, value, said", [
    ("step", Malice(), "holds code"),
    ("format", 1, "format 1, this code reads 2; train again"),
    ("variant", "variants.none", "there is no variants/none.py"),
    ("config", {"heads": 2}, "unexpected keyword"),
    ("model", {}, "Missing key")])
def test_a_foreign_checkpoint_gets_one_line(trained, workdir, name, value, said):
    checkpoint = torch.load(trained / "out/mdlm/best.pt", weights_only=True)
    torch.save(checkpoint | {name: value}, "m.pt")
    with pytest.raises(OSError, match=f"m.pt is not a usable checkpoint: .*{said}") as e:
        load("m.pt")
    assert "\n" not in str(e.value)
    assert not os.path.exists("stolen")


def test_a_damaged_checkpoint_is_named(trained, workdir):
    whole = (trained / "out/mdlm/best.pt").read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:]
    for damaged in flipped, whole[:-100], b"", b"a text":
        Path("best.pt").write_bytes(damaged)
        with pytest.raises(OSError, match="best.pt is not a usable checkpoint"):
            load("best.pt")
    said = refused("sample.py", "--out_dir=.", cwd=workdir)
    assert "best.pt is not a usable checkpoint" in said


def test_lost_lines_and_other_data_are_noticed(trained, workdir):
    shutil.copytree(trained / "out/ar", "out/mine")
    shutil.copytree(trained / "data/t", "data/t")
    resume = ["train.py", "--out_dir=out/mine", "--resume", "--device=cpu"]
    log = workdir / "out/mine/log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-800])
    assert "has lost lines" in refused(*resume, cwd=workdir)
    log.write_bytes(whole)
    run("prepare_data.py", "--name=t", "--max_tokens=30000", "--seed=2")
    assert "data/t is not what" in refused(*resume, cwd=workdir)
    assert log.read_bytes() == whole


# ---- Everywhere ----------------------------------------------------------------------------------

def test_a_poor_machine(tmp_path):
    """In a folder with a blank in its name, without a home, a compiler or a network."""
    work = tmp_path / "my work"
    work.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C",
        "CXX": "none",
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "TORCHINDUCTOR_CACHE_DIR": str(work)}

    def poor(script, *arguments):
        command = [sys.executable, f"{ROOT}/{script}", *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    poor("prepare_data.py", "--name=my words", "--max_tokens=30000")
    tiny = [*TINY, "--data=my words", "--out_dir=my ar"]
    assert "going on without" in poor("train.py", *tiny, "--compile=auto")
    poor("sample.py", "--out_dir=my ar", "--num_samples=20", "--show")


@pytest.mark.parametrize("error, said", [
    (FileNotFoundError(2, "No such file or directory"),
     r"No such file or directory \(at test_faults.py:\d+\)\n"),
    (OSError("the disk is full; free some space"), "x.py: the disk is full; free some space\n"),
    (ModuleNotFoundError("…", name="extras.orders"), r"x.py: .* no extras/orders.py, .*\n")])
def test_an_error_of_the_system_says_where(error, said, monkeypatch, capsys):
    def main():
        raise error

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["x.py"])
    with pytest.raises(SystemExit):
        command(main, "")
    assert re.search(f"{said}$", capsys.readouterr().err)


def test_training_in_a_thread(trained, monkeypatch):
    """Where no signal can be waited for."""
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "argv", ["train.py", *TINY, "--out_dir=out/thread"])
    thread = threading.Thread(target=train.main)
    thread.start()
    thread.join()
    assert read_log(trained / "out/thread") == read_log(trained / "out/ar")
