"""What goes wrong: calls are mistyped, runs are stopped, the disk is full, files are foreign."""
import json
import os
import resource
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from unittest import mock

import pytest
import torch

import prepare_data
from conftest import ROOT, TINY, read_log, run, small_model
from model import Config
from sample import SampleOptions
from support import runs
from support.flags import InputError, names_in, options_of, parse_flags
from support.rows import open_locked
from support.runs import Run, read_checkpoint
from train import Settings

FILES = ["best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"]


def refused(done):
    """What a command says, in one line, when it refuses something."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


@pytest.fixture
def copy(trained, workdir):
    """A folder of its own with data/t, out/ar and a file that sample.py wrote of it."""
    shutil.copytree(trained / "data", "data")
    shutil.copytree(trained / "out/ar", "out/ar")
    if not (trained / "s.jsonl").exists():
        run("sample.py", "--out_dir=out/ar", "--out=s.jsonl", "--num_samples=4", cwd=trained)
    shutil.copy(trained / "s.jsonl", "s.jsonl")


# ---- Flags ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("call, expected", [
    ("--resume --quiet=false --seed 3", dict(resume=True, quiet=False, seed=3)),
    ("--dropout=0.5 --lr=1e-3 --n_hidden=7", dict(dropout=0.5, lr=1e-3, n_hidden=7)),
    ("--mode=MDLM --batch_size=3", dict(mode="mdlm", batch_size=3)),
    ("--out_dir=~/x", dict(out_dir="/home/me/x")),
    ("--data=a~b", dict(data="a~b")),
    ("a=~/x b=y", dict(named={"a": "/home/me/x", "b": "y"}))])
def test_flags(monkeypatch, call, expected):
    """A ~ is the home folder where a path begins."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "argv", ["x.py", *call.split()])
    named = "NAME=FILE" if "named" in expected else ""
    given = parse_flags("", Settings, Config, named=named)
    assert given == expected


@pytest.mark.parametrize("script, folder, options", [
    ("train.py", "variants", Settings), ("sample.py", "samplers", SampleOptions)])
def test_help_shows_every_flag(call, monkeypatch, script, folder, options):
    """With its default and what it is; and those of the files in a folder, with their names."""
    monkeypatch.setenv("COLUMNS", "1000")
    said = " ".join(call(script, "--help").stdout.split())
    assert "(1337)" in said and ", ".join(names_in(folder)) in said
    for f in fields(options):
        assert f" --{f.name} " in said and f.metadata["help"] in said
    for name in names_in(folder):
        for f in fields(options_of(folder, name) or options):
            assert f" --{f.name} " in said
    assert script != "train.py" or "the width of the residual stream" in said


BAD = """
train.py --data=tt
train.py --mode=gpt    ar?
train.py --preset=lapto    laptop?
train.py --dtype=float16    bfloat16?
train.py --learning_rate=1e-3    --lr?
train.py --gradient-accumulation-steps=4    --grad_accum?
train.py --dataset=shakespeare    --data?
train.py --n_layer=0
train.py --n_embd=100 --n_head=16
train.py --vocab_size=9
train.py --max_steps=five
train.py --max_steps=0
train.py --lr=nan
train.py --lr=inf
train.py --beta2=1
train.py --resume=maybe
train.py five
train.py --data=t --n_embd=1000000000000    memory
train.py --block_length=8    --variant=blocks
train.py --variant=block    blocks?
train.py --variant=blocks.py    blocks?
train.py --variant=muon
train.py --preset=paper --variant=blocks
train.py --preset=paper --schedule=linear
train.py --mode=ar --variant=blocks    --mode
train.py --mode=mdlm --variant=infill    --mode
train.py --variant=paper --time_embedding=add
train.py --mode=mdlm --variant=paper --schedule=cosine
train.py --mode=mdlm --variant=blocks --block_length=0
train.py --preset=toy --variant=answers --mark=999
train.py --mode=mdlm --preset=laptop --objective=nelbo --bell=8
prepare_data.py --text=toy.txt    data/toy
train.py --mode=mdlm --batch_size=7
train.py --grad_accum=3
train.py --device=cuda:77
train.py --out_dir=out/ar
train.py --out_dir=out/new --resume    out/new
train.py --mode=aogpt --init_from=out/ar --n_hidden=32    --n_hidden
sample.py
sample.py --start=Once    --prompt?
sample.py --max_new_tokens=10    --length?
sample.py --out_dir=out/none
sample.py --out_dir=out/mdlm --prompt=zebra
sample.py --out_dir=out/ar --prompt=caf\udce9
sample.py --out_dir=out/ar --prompt=One___day
sample.py --out_dir=out/ar --prompt=FILE:none.txt    none.txt
sample.py --out_dir=out/ar --out=no/such/s.jsonl
sample.py --out_dir=out/ar --steps=4
sample.py --out_dir=out/mdlm --blank=3
sample.py --out_dir=out/mdlm --temperature=-1
sample.py --out_dir=out/mdlm --top_p=0
sample.py --out_dir=out/mdlm --steps=49
sample.py --out_dir=out/mdlm --order=2,1
sample.py --out_dir=out/aogpt --order=0,1,1
sample.py --out_dir=out/aogpt --order=blocks:0
sample.py --out_dir=out/aogpt --by_the_paper
sample.py --out_dir=out/mdlm --risk=0.1    --sampler=adaptive
sample.py --out_dir=out/mdlm --sampler=adptive
sample.py --out_dir=out/mdlm --sampler=adaptive.py    adaptive?
sample.py --out_dir=out/mdlm --sampler=blocks
sample.py --out_dir=out/ar --sampler=adaptive
sample.py --out_dir=out/aogpt --sampler=ancestral
sample.py --out_dir=out/ar --sampler=confidence
sample.py --out_dir=out/mdlm --sampler=drafts
sample.py --out_dir=out/aogpt --sampler=drafts --steps=3
sample.py --out_dir=out/aogpt --sampler=drafts --cache=false
sample.py --out_dir=out/mdlm --sampler=adaptive --steps=3
sample.py --out_dir=out/mdlm --sampler=ancestral --order=random
sample.py --out_dir=out/mdlm --sampler=confidence --order=random
prepare_data.py --text=none.txt
prepare_data.py --vocab_size=300
prepare_data.py --text=a.txt --tokenizer=bytes --vocab_size=300
extras/compare.py ar=out/ar --order=random
extras/compare.py ar=out/ar --text=none.txt
extras/compare.py ar=out/ar --text=t.txt --stride=49
extras/compare.py ar=out/none
extras/compare.py ar=out/ar ar=out/mdlm    NAME
extras/compare.py ar=out/ar --text=t.txt --device=tpu
extras/show.py ar=none.jsonl
extras/show.py ar.jsonl    NAME
extras/show.py ar=t.txt
extras/show.py ar=t.txt --picture=a.png
diversity.py mine=t.txt --judge=out/ar --device=tpu
diversity.py a=none.jsonl
bench.py --batch_size=3
bench.py --mode=gpt
"""


def files_in(folder):
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_a_wrong_call_is_refused_in_one_line(trained, call, monkeypatch, line):
    """No file is touched. The line names the second column, or the last flag, or its value."""
    words, _, named = line.partition("    ")
    script, *arguments = words.split()
    last = words.split()[-1].removeprefix("--").split("=")
    if script == "train.py":
        arguments = [*TINY, *arguments]
    monkeypatch.chdir(trained)
    Path("t.txt").write_text("One day, a girl")
    before = files_in(trained)
    said = refused(call(script, *arguments))
    assert said.startswith(f"{os.path.basename(script)}: ")
    assert any(name in said for name in ([named] if named else last))
    assert files_in(trained) == before


# ---- Runs that are stopped -----------------------------------------------------------------------

KINDS = {
    "ar": "--mode=ar --dropout=0.1 --token_noise=0.1",
    "mdlm": "--mode=mdlm --optimizer=muon --grad_accum=2",
    "paper": "--mode=mdlm --variant=paper --time_embedding=add --objective=masked_ce "
             "--schedule=cosine"}


def contents(path):
    """A checkpoint as a text, without what depends on the clock or the command."""
    checkpoint = torch.load(path, weights_only=True)
    for name in "seconds", "log", "origin", "settings":     # log is the length of the log in bytes
        checkpoint.pop(name, None)
    return json.dumps(checkpoint, default=torch.Tensor.tolist)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_as_one_that_was_left_alone(copy, call, monkeypatch, kind):
    """Ctrl-C saves, and prints the command that goes on; a kill loses what came after a checkpoint.
    The log, the state of everything and the best weights agree in every bit."""
    command = ["train.py", *TINY, *KINDS[kind].split(), "--eval_interval=15"]
    assert call(*command, "--out_dir=out/alone").returncode == 0
    command.append("--out_dir=out/stopped")
    killed = kind == "mdlm"
    stops = [20, 30] if killed else [3, 13]
    record = Run.record

    def record_and_stop(run, *given):
        record(run, *given)
        if run.step in stops:
            stops.remove(run.step)
            if killed:
                raise SystemExit(-signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "record", record_and_stop)
    while stops:
        done = call(*command)
        if killed:
            command.append("--resume")
            continue
        assert done.returncode == 128 + signal.SIGINT
        command = shlex.split(done.stderr.rpartition("python ")[2])
        assert command.count("--resume") == 1
    assert call(*command).returncode == 0
    alone, stopped = Path("out/alone"), Path("out/stopped")
    assert read_log(alone) == read_log(stopped)
    assert sorted(os.listdir(alone)) == sorted(os.listdir(stopped)) == FILES
    for name in "ckpt.pt", "best.pt":
        assert contents(alone / name) == contents(stopped / name)


def test_checkpoints_come_by_the_clock(copy, call, monkeypatch):
    """One comes at once, so that the folder is taken, then none for minutes, and one at the end.
    Until then no other process can train in the folder."""
    steps = []

    def checkpoint(run):
        steps.append(run.step)
        run.last_save = runs.time.perf_counter()
        with pytest.raises(InputError, match="out/clock"):
            open_locked(run.path("log.jsonl"))

    monkeypatch.setattr(Run, "checkpoint", checkpoint)
    call("train.py", *TINY, "--save_minutes=100", "--out_dir=out/clock")
    assert steps == [10, 30]


def test_the_disk_is_full_while_a_checkpoint_is_written(copy, call):
    """The limit on a file's size stands in for a full disk; ckpt.pt, the largest file, is above."""
    command = "train.py", "--out_dir=out/ar", "--resume", "--max_steps=40"
    checkpoint = Path("out/ar/ckpt.pt")
    before = checkpoint.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) * 9 // 10, limits[1]))
    done = call(*command)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "out/ar/ckpt.pt" in refused(done)
    assert checkpoint.read_bytes() == before
    assert call(*command).returncode == 0
    assert read_checkpoint(checkpoint)["step"] == 40


def test_what_a_signal_does(tmp_path, monkeypatch):
    """The end of a terminal is signalled twice, and then nobody reads what is said; only a second
    Ctrl-C stops at once. Before the first step there is nothing to save. nohup's stays ignored."""
    def send(*kinds):
        for kind in kinds:
            os.kill(os.getpid(), kind)

    run = Run(Settings(out_dir=str(tmp_path / "r")), small_model(), [], {})
    monkeypatch.setattr(runs.os, "write", mock.Mock(side_effect=BrokenPipeError))
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with run.training(), pytest.raises(KeyboardInterrupt):
        send(signal.SIGHUP)
        assert not run.asked_to_stop()
        send(signal.SIGINT)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    run.last_tick = 0.0                             # the first step is done
    with run.training(), pytest.raises(KeyboardInterrupt):
        send(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)
        assert run.asked_to_stop()
        send(signal.SIGINT)
    for kind, handler in before.items():
        signal.signal(kind, handler)
    run.log_file.close()


# ---- Streams -------------------------------------------------------------------------------------

@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("line", [
    "prepare_data.py --name=done --max_tokens=2000",
    "train.py --out_dir=out/done " + " ".join(TINY),
    "sample.py --out_dir=out/ar --out=done.jsonl",
    "extras/compare.py ar=out/ar --json=done.json",
    "extras/show.py ar=s.jsonl --picture=done.svg",
    "diversity.py ar=s.jsonl --data=t --json=done.json"])
def test_a_command_does_its_work_though_nobody_listens(copy, call, monkeypatch, line, unread):
    """Its streams were closed, as by `2>&-`; or the reader of its pipes has ended."""
    with monkeypatch.context() as patch:
        for name in "stdin", "stdout", "stderr":
            ours, theirs = os.pipe()
            os.close(ours)
            stream = open(theirs, "w")
            patch.setattr(sys, name, stream if unread else None)
        done = call(*line.split())
    assert done.returncode == 0
    assert list(Path().rglob("done*"))


# ---- Damaged and foreign files -------------------------------------------------------------------

READERS = {
    "out/ar/config.json": ["train.py --resume", "extras/compare.py x=out/ar"],
    "out/ar/log.jsonl": ["extras/compare.py x=out/ar"],
    "out/ar/ckpt.pt": ["train.py --resume", "train.py"],
    "out/ar/best.pt": ["sample.py --num_samples=1 --out_dir=out/ar", "train.py --resume",
                       "train.py --init_from=out/ar --out_dir=out/new"],
    "s.jsonl": ["extras/show.py x=s.jsonl", "diversity.py x=s.jsonl --data=t"]}

DAMAGE = {
    "gone": lambda whole: None,
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[:len(whole) // 2],
    "noise": lambda whole: bytes(range(256)) * 9}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("path", READERS)
def test_a_damaged_file_gets_one_line_or_is_not_needed(copy, call, path, damage):
    """The line names the file or its folder. What is whole stays as it is."""
    content = DAMAGE[damage](Path(path).read_bytes())
    for reader in READERS[path]:
        Path(path).unlink(missing_ok=True)
        if content is not None:
            Path(path).write_bytes(content)
        before = files_in(Path()) | {Path(path): content or b""}
        command, *arguments = reader.split()
        if command == "train.py":
            arguments = [*TINY, "--out_dir=out/ar", "--max_steps=40", *arguments]
        done = call(command, *arguments)
        if done.returncode:
            said = refused(done)
            assert path in said or os.path.dirname(path) in said
            assert files_in(Path()) | {Path(path): content or b""} == before
        assert done.returncode or "ckpt" not in path


class Malice:
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("stolen",)


@pytest.mark.parametrize("entry", [
    {"step": Malice()}, {"format": 1}, {"variant": "variants.none"}, {"variant": 3}, {"model": {}},
    {"n_embd": "16"}, {"config": "ar"}, {"tokenizer": None}, {"settings": []},
    {"optimizers": 0}])
def test_a_foreign_checkpoint_gets_one_line(copy, call, entry):
    for name, *command in ("best.pt", "sample.py"), ("ckpt.pt", "train.py", "--resume"):
        path = f"out/ar/{name}"
        checkpoint = torch.load(path, weights_only=True)
        for part in checkpoint, checkpoint["config"]:
            if entry.keys() <= part.keys():
                part |= entry
                torch.save(checkpoint, path)
                refused(call(*command, "--out_dir=out/ar"))
                break
    assert not os.path.exists("stolen")


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_ended_meanwhile_is_not_overwritten(copy, call, monkeypatch, resume):
    """Another process begins and ends between this one's first look at the folder and its lock."""
    command = "train.py", *TINY, "--max_steps=40", *["--resume"] * resume
    if resume:
        shutil.copytree("out/ar", "out/raced")
        call(*command, "--out_dir=out/ar")

    def meanwhile(_):
        shutil.copytree("out/ar", "out/raced", dirs_exist_ok=True)

    monkeypatch.setattr(prepare_data, "prepare_if_missing", meanwhile)
    done = call(*command, "--out_dir=out/raced")
    assert done.returncode == (0 if resume else 2)
    assert read_log(Path("out/raced")) == read_log(Path("out/ar"))


@pytest.mark.parametrize("change", ["data/t", "train.bin"])
def test_a_run_goes_on_only_with_what_it_was_trained_on(copy, call, change):
    if change == "train.bin":
        file = Path("data/t/train.bin")
        file.write_bytes(file.read_bytes()[::-1])
    if change == "data/t":
        call("prepare_data.py", "--name=t", "--max_tokens=30000", "--seed=2")
    before = files_in(Path("out"))
    said = refused(call("train.py", "--out_dir=out/ar", "--resume"))
    assert "data/t" in said
    assert files_in(Path("out")) == before


# ---- Machines ------------------------------------------------------------------------------------

@pytest.mark.parametrize("variables", [
    {}, {"RANK": "3", "WORLD_SIZE": "1", "LOCAL_RANK": "3"}, {"WORLD_SIZE": "two"},
    {"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "none"}])
def test_variables_of_a_cluster(monkeypatch, variables):
    """Alone a process is the first one, which saves; others that can't be met are one line."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    processes = runpy.run_path(f"{ROOT}/support/processes.py")
    if variables.get("WORLD_SIZE") == "2":
        with pytest.raises(InputError, match="^WORLD_SIZE=2.*$"):
            processes["join_processes"]("cpu")
    else:
        assert processes["RANK"] == 0
        assert processes["join_processes"]("cpu") == torch.device("cpu")


def test_a_poor_machine(tmp_path, call, monkeypatch):
    """In a folder with a blank in its name, without a home, a compiler or a network."""
    work = tmp_path / "my work"
    work.mkdir()
    environment = dict(PATH=os.environ["PATH"], HOME="/nonexistent", LC_ALL="C", CXX="none",
                       TORCHINDUCTOR_CACHE_DIR=str(work), HTTPS_PROXY="http://127.0.0.1:1",
                       OMP_NUM_THREADS="1")
    monkeypatch.chdir(work)
    assert call("prepare_data.py", "--name=my words", "--max_tokens=30000").returncode == 0
    command = [sys.executable, f"{ROOT}/train.py", *TINY, "--data=my words", "--compile=auto"]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 0
    assert b"going on without" in done.stderr
    script, *arguments = shlex.split(done.stdout.decode().partition("next: python ")[2])
    assert call(os.path.abspath(script), *arguments, "--num_samples=20").returncode == 0
