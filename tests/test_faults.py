"""What goes wrong: calls are mistyped, runs are stopped, the disk is full, files are foreign."""
import json
import os
import resource
import runpy
import shlex
import shutil
import signal
import sys
from dataclasses import fields
from pathlib import Path
from unittest import mock

import pytest
import torch

from conftest import ROOT, TINY, read_log, run, small_model
from model import Config
from sample import SampleOptions
from support import runs
from support.flags import InputError, names_in, options_of, parse_flags
from support.rows import open_locked
from support.runs import Run, save
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
    ("--mode=MDLM --lr=1e-3", dict(mode="mdlm", lr=1e-3)),
    ("--out_dir=~/x --data=a~b", dict(out_dir="/home/me/x", data="a~b"))])
def test_flags(monkeypatch, call, expected):
    """A ~ is the home folder where a path begins."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "argv", ["x.py", *call.split()])
    assert parse_flags("", Settings, Config) == expected


@pytest.mark.parametrize("script, folder, options, help", [
    ("train.py", "variants", Settings, "C, the width of the residual stream"),
    ("sample.py", "samplers", SampleOptions, "keep the likeliest tokens")])
def test_help_shows_every_flag(call, monkeypatch, script, folder, options, help):
    """Also those of the files in a folder; and defaults, names of files, and what a flag is."""
    monkeypatch.setenv("COLUMNS", "1000")
    said = " ".join(call(script, "--help").stdout.split())
    assert "(1337)" in said and ", ".join(names_in(folder)) in said and help in said
    for name in names_in(folder):
        for f in *fields(options), *fields(options_of(folder, name) or options):
            assert f" --{f.name} " in said


BAD = """
train.py --data=tt
train.py --mode=gpt    ar?
train.py --preset=lapto    laptop?
train.py --dtype=float16    bfloat16?
train.py --learning_rate=1e-3    --lr?
train.py --gradient-accumulation-steps=4    --grad_accum?
train.py --dataset=shakespeare    --data?
train.py --n_layer=0
train.py --block_size=30000
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
train.py --variant=blocks --block_lenght=8    --block_length?
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
sample.py --out_dir=out/mdlm --sampler=adaptive --rsik=1    --risk?
sample.py --out_dir=out/mdlm --length=49
sample.py --out_dir=out/mdlm --length=1 --prompt=One
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
    "stopped": "--mode=ar --dropout=0.1 --token_noise=0.1",
    "killed": "--mode=mdlm --variant=paper --time_embedding=add --objective=masked_ce "
              "--schedule=cosine --optimizer=muon --grad_accum=2"}


def contents(path):
    """A checkpoint as a text, without what depends on the clock or the command."""
    checkpoint = torch.load(path, weights_only=True)
    for name in "seconds", "log", "origin", "settings":     # log is the length of the log in bytes
        checkpoint.pop(name, None)
    return json.dumps(checkpoint, default=torch.Tensor.tolist)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_as_one_that_was_left_alone(copy, call, monkeypatch, kind):
    """Ctrl-C saves, and prints the command that goes on; a kill loses what came after a checkpoint.
    The log, the state of everything and the best weights agree in every bit. And it changes nothing
    that stories are told on the way."""
    command = ["train.py", *TINY, *KINDS[kind].split(), "--eval_interval=15"]
    told = call(*command, "--out_dir=out/alone", "--quiet=false").stdout
    assert told.count("before training: ") == 1 and told.count("\n    ") == 2
    command.append("--out_dir=out/my run")
    stops = [20, 30] if kind == "killed" else [3, 13]
    record = Run.record

    def record_and_stop(run, *given):
        record(run, *given)
        if run.step in stops:
            stops.remove(run.step)
            if kind == "killed":
                raise SystemExit(-signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "record", record_and_stop)
    while stops:
        done = call(*command)
        if kind == "killed":
            command.append("--resume")
            continue
        assert done.returncode == 128 + signal.SIGINT
        command = shlex.split(done.stderr.rpartition("python ")[2])
        assert command.count("--resume") == 1
    assert call(*command).returncode == 0
    alone, again = Path("out/alone"), Path("out/my run")
    assert read_log(alone) == read_log(again)
    assert sorted(os.listdir(alone)) == sorted(os.listdir(again)) == FILES
    for name in "ckpt.pt", "best.pt":
        assert contents(alone / name) == contents(again / name)


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


def test_the_disk_is_full_while_a_checkpoint_is_written(tmp_path):
    """The older one stays. The limit on a file's size stands in for a full disk."""
    path = tmp_path / "ckpt.pt"
    save(path, small_model())
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    with pytest.raises(OSError, match="^.*ckpt.pt.*$"):
        save(path, small_model(seed=1))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_in(tmp_path) == {path: before}


def test_what_a_signal_does(tmp_path, monkeypatch):
    """Before the first step Ctrl-C stops at once, for nothing could be saved. Later only a second
    one does. A terminal that ends signals twice, and reads no more; what nohup ignores stays so."""
    run = Run(Settings(out_dir=str(tmp_path / "r")), small_model(), [], {})
    monkeypatch.setattr(runs.os, "write", mock.Mock(side_effect=BrokenPipeError))
    before = [signal.signal(signal.SIGINT, signal.default_int_handler),
              signal.signal(signal.SIGHUP, signal.SIG_IGN)]
    for asks in [], [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM]:
        with run.training(), pytest.raises(KeyboardInterrupt):
            for kind in asks or [signal.SIGHUP]:
                os.kill(os.getpid(), kind)
            assert run.asked_to_stop() == bool(asks)
            os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        run.last_tick = 0.0                             # the first step is done
    for kind, handler in zip((signal.SIGINT, signal.SIGHUP), before):
        signal.signal(kind, handler)


# ---- Streams -------------------------------------------------------------------------------------

@pytest.mark.parametrize("unread", [False, True])
def test_a_command_does_its_work_though_nobody_listens(copy, call, monkeypatch, unread):
    """Its streams were closed, as by `2>&-`; or the reader of its pipes has ended."""
    with monkeypatch.context() as patch:
        for name in "stdin", "stdout", "stderr":
            ours, theirs = os.pipe()
            os.close(ours)
            stream = open(theirs, "w")
            patch.setattr(sys, name, stream if unread else None)
        done = call("train.py", *TINY, "--out_dir=out/done")
    assert done.returncode == 0
    assert Path("out/done/loss.png").exists()


# ---- Damaged and foreign files -------------------------------------------------------------------

READERS = {
    "out/ar/config.json": ["extras/compare.py x=out/ar"],
    "out/ar/log.jsonl": ["extras/compare.py x=out/ar"],
    "out/ar/ckpt.pt": ["train.py --resume", "train.py"],
    "out/ar/best.pt": ["sample.py --out_dir=out/ar", "train.py --init_from=out/ar --out_dir=out/b"],
    "s.jsonl": ["extras/show.py x=s.jsonl", "diversity.py x=s.jsonl --data=t"]}

DAMAGE = {
    "cut": lambda whole: whole[:len(whole) // 2],
    "noise": lambda whole: bytes(range(256)) * 9}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("path", READERS)
def test_a_damaged_file_gets_one_line_or_is_not_needed(copy, call, path, damage):
    """The line names the file or its folder. What is whole stays as it is."""
    content = DAMAGE[damage](Path(path).read_bytes())
    for reader in READERS[path]:
        Path(path).write_bytes(content)
        before = files_in(Path())
        command, *arguments = reader.split()
        if command == "train.py":
            arguments = [*TINY, "--out_dir=out/ar", "--max_steps=40", *arguments]
        done = call(command, *arguments)
        if done.returncode:
            said = refused(done)
            assert path in said or os.path.dirname(path) in said
            assert files_in(Path()) == before
        assert done.returncode or "ckpt" not in path


class Malice:
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("stolen",)


@pytest.mark.parametrize("entry", [
    {"step": Malice()}, {"format": 1}, {"variant": "variants.none"},
    {"n_embd": "16"}, {"tokenizer": None}])
def test_a_foreign_checkpoint_gets_one_line(copy, call, entry):
    path = "out/ar/best.pt"
    checkpoint = torch.load(path, weights_only=True)
    part = checkpoint["config"] if "n_embd" in entry else checkpoint
    part |= entry
    torch.save(checkpoint, path)
    refused(call("sample.py", "--out_dir=out/ar"))
    assert not os.path.exists("stolen")


def test_a_run_that_ended_meanwhile_is_not_overwritten(copy):
    """As after another process began and ended in a folder between this one's two looks at it."""
    before = files_in(Path())
    with pytest.raises(InputError, match="out/ar"):
        Run(Settings(out_dir="out/ar"), small_model(), [], {})
    assert files_in(Path()) == before


def test_a_run_goes_on_only_with_what_it_was_trained_on(copy, call):
    call("prepare_data.py", "--name=t", "--max_tokens=30000", "--seed=2")
    before = files_in(Path())
    assert "data/t" in refused(call("train.py", "--out_dir=out/ar", "--resume"))
    assert files_in(Path()) == before


# ---- Machines ------------------------------------------------------------------------------------

@pytest.mark.parametrize("size", ["1", "2"])
def test_variables_of_a_cluster(monkeypatch, size):
    """Alone a process is the first one, which saves. Others that can't be met are one line."""
    monkeypatch.setenv("RANK", "x" if size == "2" else "3")
    monkeypatch.setenv("WORLD_SIZE", size)
    processes = runpy.run_path(f"{ROOT}/support/processes.py")
    if size == "2":
        with pytest.raises(InputError, match="^WORLD_SIZE=2.*$"):
            processes["join_processes"]("cpu")
    else:
        assert processes["RANK"] == 0
        assert processes["join_processes"]("cpu") == torch.device("cpu")
