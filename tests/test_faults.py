"""What happens to runs: they are stopped, the disk is full, files are foreign, nobody reads."""
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import train
from conftest import ROOT, TINY, Running, read_log, run, small_model
from support import runs
from support.flags import InputError
from support.runs import Run, load, read_checkpoint
from train import Settings

FILES = ["best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"]


def contents(path):
    """A checkpoint as a text, without what depends on the clock or the command."""
    checkpoint = torch.load(path, weights_only=True)
    for name in "seconds", "log", "origin", "settings":     # log is the length of the log in bytes
        checkpoint.pop(name, None)
    return json.dumps(checkpoint, default=torch.Tensor.tolist)


def call(monkeypatch, command, *arguments):
    """Runs a command here, and returns what it refuses, in one line; nothing if all went well."""
    monkeypatch.setattr(sys, "argv", [command, *map(str, arguments)])
    module = importlib.import_module(command.removesuffix(".py").replace("/", "."))
    try:
        module.main()
    except (InputError, OSError) as e:
        assert "\n" not in str(e)
        return str(e)


@pytest.fixture
def copy(trained, workdir):
    """A folder of its own with data/t and out/ar."""
    shutil.copytree(trained / "data", "data")
    shutil.copytree(trained / "out/ar", "out/ar")
    return workdir


# ---- Runs that are stopped -----------------------------------------------------------------------

KINDS = {
    "ar": "--mode=ar --dropout=0.1 --token_noise=0.1",
    "mdlm": "--mode=mdlm --optimizer=muon --grad_accum=2",
    "infill": "--mode=aogpt --variant=infill",
    "paper": "--mode=mdlm --variant=paper --time_embedding=add --objective=masked_ce "
             "--schedule=cosine"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_as_one_that_was_left_alone(trained, kind):
    """Ctrl-C saves, and prints the command that goes on; a kill loses what came after a checkpoint.
    The log, the state of everything and the best weights agree in every bit."""
    flags = [*TINY, *KINDS[kind].split(), "--max_steps=200", "--eval_interval=100"]
    alone, stopped = trained / f"out/alone-{kind}", trained / f"out/stopped-{kind}"
    assert run("train.py", *flags, f"--out_dir={alone}", cwd=trained).returncode == 0
    flags.append(f"--out_dir={stopped}")
    process = Running("train.py", *flags, cwd=trained)
    process.wait_for((stopped / "ckpt.pt").exists)
    if kind == "mdlm":
        assert process.end(signal.SIGKILL).returncode == -signal.SIGKILL
        again = ["train.py", *flags, "--resume", "true"]
    else:
        done = process.end(signal.SIGINT)
        assert done.returncode == 128 + signal.SIGINT
        *_, said = done.stderr.splitlines()
        again = shlex.split(said.partition("python ")[2])
    assert read_checkpoint(stopped / "ckpt.pt")["step"] < 200
    done = run(*again, cwd=trained)
    assert done.returncode == 0, done.stderr
    assert read_log(alone) == read_log(stopped)
    assert sorted(os.listdir(alone)) == sorted(os.listdir(stopped)) == FILES
    for name in "ckpt.pt", "best.pt":
        assert contents(alone / name) == contents(stopped / name)


@pytest.mark.parametrize("argument", ["--resume", "--resume=true", "--resume=false", "--seed=1"])
def test_the_command_that_goes_on_asks_for_it_once(monkeypatch, tmp_path, capsys, argument):
    monkeypatch.setattr(sys, "argv", ["train.py", argument])
    resumed = argument in ("--resume", "--resume=true")
    s = Settings(out_dir=str(tmp_path / "r"), resume=resumed)
    with pytest.raises(SystemExit):
        Run(s, small_model(), [], {}).exit_stopped()
    *_, last = capsys.readouterr().err.split()
    assert last == argument if resumed else "--resume"


def test_the_disk_is_full_while_a_checkpoint_is_written(trained):
    """The limit on a file's size stands in for a full disk; ckpt.pt, the largest file, is above."""
    arguments = ["--mode=mdlm", *TINY, "--max_steps=200", "--out_dir=out/full"]
    checkpoint = trained / "out/full/ckpt.pt"
    limit = (trained / "out/mdlm/ckpt.pt").stat().st_size * 9 // 10

    def run_on_full_disk(*more):
        done = Running("train.py", *arguments, *more, cwd=trained, largest_file=limit).end()
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "out/full/ckpt.pt" in done.stderr

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


# ---- Signals -------------------------------------------------------------------------------------

def test_what_a_signal_does(tmp_path, monkeypatch):
    """The end of a terminal is signalled twice, and then nobody reads what is said; only a second
    Ctrl-C stops at once. Before the first step there is nothing to save. nohup's stays ignored."""
    def write(*_):
        raise BrokenPipeError

    run = Run(Settings(out_dir=str(tmp_path / "r")), small_model(), [], {})
    monkeypatch.setattr(runs.os, "write", write)
    before = {signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
              signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with run.training():
        os.kill(os.getpid(), signal.SIGHUP)
        assert not run.asked_to_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    run.last_tick = 0.0                             # the first step is done
    with run.training():
        for kind in signal.SIGHUP, signal.SIGHUP, signal.SIGTERM:
            os.kill(os.getpid(), kind)
        assert run.asked_to_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    for kind, handler in before.items():
        signal.signal(kind, handler)
    run.log_file.close()


def test_ctrl_c_in_the_first_step_is_no_failed_compilation(trained, monkeypatch, capsys):
    """A terminal sends it to the compiler too, which then dies."""
    def compiler(*_):
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("the compiler was interrupted")

    monkeypatch.chdir(trained)
    monkeypatch.setattr(torch, "compile", lambda function: compiler)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        call(monkeypatch, "train.py", *TINY, "--out_dir=out/early", "--compile=true")
    signal.signal(signal.SIGINT, before)
    assert "torch.compile" not in capsys.readouterr().err
    assert read_log(trained / "out/early") == []


# ---- Streams that are closed, or that nobody reads any more --------------------------------------

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


CLOSED = """
import os, runpy, sys
stream, script, *arguments = sys.argv[1:]
os.close(getattr(sys, stream).fileno())
setattr(sys, stream, None)
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize("stream, line", [
    ("stdin", "train.py {tiny} --out_dir={out}"),
    ("stdout", "train.py {tiny} --out_dir={out}"),
    ("stderr", "train.py {tiny} --out_dir={out}"),
    ("stderr", "sample.py --out_dir=out/ar --out={out}.jsonl"),
    ("stderr", "prepare_data.py --name={out} --max_tokens=2000"),
    ("stderr", "extras/compare.py ar=out/ar --json={out}.json"),
    ("stdout", "extras/show.py ar={samples} --picture={out}.svg"),
    ("stderr", "diversity.py ar={samples} --data=t --json={out}.json")])
def test_a_command_does_its_work_with_a_closed_stream(trained, workdir, samples, line, stream):
    (workdir / "closed.py").write_text(CLOSED)
    line = line.format(tiny=" ".join(TINY), out=workdir / "done", samples=samples)
    script, *arguments = line.split()
    assert run(str(workdir / "closed.py"), stream, f"{ROOT}/{script}", *arguments,
               cwd=trained).returncode == 0
    assert list(workdir.glob("done*"))


@pytest.fixture(scope="module")
def samples(trained):
    """A file that sample.py wrote."""
    path = trained / "samples.jsonl"
    done = run("sample.py", "--out_dir=out/ar", f"--out={path}", "--num_samples=4", cwd=trained)
    assert done.returncode == 0, done.stderr
    return path


# ---- Damaged and foreign files -------------------------------------------------------------------

READERS = {
    "out/ar/config.json": ["train.py --resume", "extras/compare.py x=out/ar"],
    "out/ar/log.jsonl": ["train.py --resume", "extras/compare.py x=out/ar"],
    "out/ar/ckpt.pt": ["train.py --resume", "train.py"],
    "out/ar/best.pt": ["sample.py --num_samples=1", "train.py --resume",
                       "train.py --init_from=out/ar --out_dir=out/new"],
    "s.jsonl": ["extras/show.py x=s.jsonl", "diversity.py x=s.jsonl --data=t"]}

DAMAGE = {
    "gone": lambda whole: None,
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[:len(whole) // 2],
    "noise": lambda whole: bytes(range(256)) * 9,
    "nothing in it": lambda whole: b"{}\n",
    "other kinds": lambda whole: re.sub(rb': ("[^"]*"|[\d.]+)', rb': ["\\u001b[31m"]', whole)}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("path", READERS)
def test_a_damaged_file_gets_one_line_or_is_not_needed(copy, samples, monkeypatch, path, damage):
    """The line names the file or its folder. What is whole stays as it is."""
    shutil.copy(samples, "s.jsonl")
    content = DAMAGE[damage](Path(path).read_bytes())
    for reader in READERS[path]:
        Path(path).unlink(missing_ok=True)
        if content is not None:
            Path(path).write_bytes(content)
        checkpoint = Path("out/ar/ckpt.pt")
        before = checkpoint.exists() and checkpoint.read_bytes()
        command, *arguments = reader.split()
        if command == "train.py":
            arguments = [*TINY, "--out_dir=out/ar", "--max_steps=40", *arguments]
        if command == "sample.py":
            arguments = ["--out_dir=out/ar", *arguments]
        said = call(monkeypatch, command, *arguments)
        if said:
            assert path in said or os.path.dirname(path) in said
            assert before == (checkpoint.exists() and checkpoint.read_bytes())


class Malice:
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("stolen",)


@pytest.mark.parametrize("entry", [
    {"step": Malice()}, {"format": 1}, {"variant": "variants.none"}, {"variant": 3}, {"model": {}},
    {"config": {"n_embd": "16"}}, {"config": {"n_layer": 10 ** 9}}, {"config": "ar"},
    {"tokenizer": None}, {"settings": []}, {"optimizers": 0}])
def test_a_foreign_checkpoint_gets_one_line(copy, monkeypatch, entry):
    for name, arguments in ("best.pt", ["sample.py", "--num_samples=1"]), (
            "ckpt.pt", ["train.py", "--resume", "--max_steps=40", "--device=cpu"]):
        path = f"out/ar/{name}"
        checkpoint = torch.load(path, weights_only=True)
        if isinstance(entry.get("config"), dict):
            entry = {"config": checkpoint["config"] | entry["config"]}
        if entry.keys() <= checkpoint.keys():
            torch.save(checkpoint | entry, path)
            assert call(monkeypatch, *arguments, "--out_dir=out/ar")
    assert not os.path.exists("stolen")


def test_the_best_model_alone_is_no_dead_end(copy, monkeypatch):
    """A new run is refused, the old one can't go on, and the first line says what to do."""
    Path("out/ar/ckpt.pt").unlink()
    start = ["train.py", *TINY, "--out_dir=out/ar"]
    assert "ckpt.pt" in call(monkeypatch, *start, "--resume")
    said = call(monkeypatch, *start)
    assert "best.pt" in said and "--resume" not in said
    Path("out/ar/best.pt").unlink()
    assert call(monkeypatch, *start) is None


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_ended_meanwhile_is_not_overwritten(copy, monkeypatch, resume):
    """Another process begins and ends between this one's first look at the folder and its lock."""
    if resume:
        shutil.copytree("out/ar", "out/raced")
        call(monkeypatch, "train.py", "--out_dir=out/ar", "--resume", "--max_steps=40")

    def meanwhile(_):
        shutil.copytree("out/ar", "out/raced", dirs_exist_ok=True)

    monkeypatch.setattr(train, "prepare_if_missing", meanwhile)
    said = call(monkeypatch, "train.py", *TINY, "--out_dir=out/raced", "--max_steps=40",
                *["--resume"] * resume)
    assert bool(said) == (not resume)
    log = read_log(Path("out/raced"))
    assert log == read_log(Path("out/ar"))


@pytest.mark.parametrize("change", ["other data", "other bytes", "lost lines"])
def test_a_run_goes_on_only_with_what_it_was_trained_on(copy, monkeypatch, change):
    log = Path("out/ar/log.jsonl")
    whole = log.read_bytes()
    if change == "lost lines":
        log.write_bytes(whole[:-800])
    if change == "other bytes":
        file = Path("data/t/train.bin")
        file.write_bytes(file.read_bytes()[::-1])
    if change == "other data":
        run("prepare_data.py", "--name=t", "--max_tokens=30000", "--seed=2")
    before = log.read_bytes()
    said = call(monkeypatch, "train.py", "--out_dir=out/ar", "--resume", "--device=cpu")
    assert "data/t" in said or "log.jsonl" in said
    assert log.read_bytes() == before


# ---- Everywhere ----------------------------------------------------------------------------------

@pytest.mark.parametrize("variables, alone", [
    ({}, True),
    ({"RANK": "1"}, True),
    ({"RANK": "", "WORLD_SIZE": ""}, True),
    ({"RANK": "3", "WORLD_SIZE": "1", "LOCAL_RANK": "3", "MASTER_ADDR": "none"}, True),
    ({"WORLD_SIZE": "two"}, True),
    ({"WORLD_SIZE": "2"}, False),
    ({"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "none", "MASTER_PORT": "1"}, False),
    ({"WORLD_SIZE": "2", "RANK": "0"}, False),
    ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "", "MASTER_PORT": ""}, False)])
def test_variables_of_a_cluster(monkeypatch, variables, alone):
    """Alone a process is the first one, which saves; others that can't be met are one line."""
    for name in "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT":
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    processes = runpy.run_path(f"{ROOT}/support/processes.py")
    if alone:
        assert processes["RANK"] == 0
        assert processes["join_processes"]("cpu") == torch.device("cpu")
        return
    with pytest.raises(InputError, match="WORLD_SIZE=2") as e:
        processes["join_processes"]("cpu")
    assert "\n" not in str(e.value)


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
        return done

    poor("prepare_data.py", "--name=my words", "--max_tokens=30000")
    done = poor("train.py", *TINY, "--data=my words", "--out_dir=my ar", "--compile=auto")
    assert "going on without" in done.stderr
    script, *arguments = shlex.split(done.stdout.partition("next: python ")[2])
    poor(os.path.relpath(work / script, ROOT), *arguments, "--num_samples=20")
