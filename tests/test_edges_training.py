"""The edges of training: closed outputs, signals, resuming, seeds, compilers and memory."""
import gc
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import pytest
import torch

import objectives
import runs
import train
from conftest import ROOT, TINY, read_log, run, small_model
from model import Config

ALWAYS = ["--max_steps=100000", "--save_minutes=100", "--eval_interval=1", "--eval_windows=2"]


# ---- Outputs that nobody reads any more ----------------------------------------------------------

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
    """`| tee log` is sent the same signal, so what is said before the checkpoint is read by nobody."""
    flags = " ".join([*TINY, *ALWAYS, "--out_dir=out/teed"])
    process, codes = in_shell(f"$PYTHON {ROOT}/train.py {flags} | tee teed.log", trained)
    for line in process.stdout:
        if line.startswith("step 3:"):
            break
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert codes.read().split()[0] == "130"
    assert "Traceback" not in errors
    assert errors.endswith(" --resume\n")
    saved = runs.read_checkpoint(trained / "out/teed/ckpt.pt")["step"]
    assert saved == read_log(trained / "out/teed")[-1]["step"] >= 3


@pytest.mark.parametrize("command", [
    f"train.py {' '.join(TINY)} --out_dir=out/head",
    "sample.py --out_dir=out/ar --num_samples=3 --out=head.jsonl",
    "prepare_data.py --name=head --max_tokens=30000",
    "bench.py --help"])
def test_a_command_ends_its_work_after_its_reader(trained, command):
    process, codes = in_shell(f"$PYTHON {ROOT}/{command} 2>&1 | true", trained)
    said, errors = process.communicate(timeout=100)
    assert codes.read().split()[0] == "0"
    assert errors == ""
    for result in "train.py out/head/loss.png", "sample.py head.jsonl", "prepare data/head/val.bin":
        script, path = result.split()
        if command.startswith(script):
            assert (trained / path).exists()


# ---- Signals -------------------------------------------------------------------------------------

def fresh_run(folder):
    s = train.Settings(out_dir=str(folder / "r"), quiet=True)
    return runs.Run(s, small_model(), [], {}, None)


def test_the_end_of_the_terminal_saves(tmp_path):
    """A terminal that closes sends its signal twice; only a second Ctrl-C stops at once."""
    run = fresh_run(tmp_path)
    with run.training():
        for kind in signal.SIGHUP, signal.SIGHUP, signal.SIGTERM:
            os.kill(os.getpid(), kind)
        assert run.asked_to_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    run.log_file.close()


def test_a_signal_that_nohup_ignores_stays_ignored(tmp_path):
    run = fresh_run(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with run.training():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not run.asked_to_stop()
    finally:
        signal.signal(signal.SIGHUP, before)
    run.log_file.close()


def test_training_in_a_thread(trained, monkeypatch):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "argv", ["train.py", *TINY, "--out_dir=out/thread"])
    thread = threading.Thread(target=train.main)
    thread.start()
    thread.join()
    assert read_log(trained / "out/thread") == read_log(trained / "out/ar")


# ---- A run goes on -------------------------------------------------------------------------------

def test_auto_on_resume_decides_anew(trained, monkeypatch):
    """And what is not given stays as it was; a setting that may not change stays in any case."""
    monkeypatch.chdir(trained)
    again = {"out_dir": "out/mdlm", "resume": True}
    auto = {"device": "auto", "dtype": "auto", "compile": "auto"}
    began = {"device": "cpu", "dtype": "float32", "compile": "false"}
    _, s, _, checkpoint = train.resolve(again | auto | {"windows": "auto", "preset": "auto"})
    assert auto.items() <= asdict(s).items()
    assert (s.windows, s.preset) == ("aligned", "toy")
    began["dtype"] = checkpoint["settings"]["dtype"]
    _, s, _, _ = train.resolve(again)
    assert began.items() <= asdict(s).items()


def test_a_resumed_run_does_not_keep_its_checkpoint_in_memory(trained, monkeypatch):
    left = []
    evaluate = train.evaluate

    def look(*arguments):
        names = set(runs.CHECKPOINT_NEEDS)
        left.extend(o for o in gc.get_objects() if type(o) is dict and names <= o.keys())
        return evaluate(*arguments)

    monkeypatch.chdir(trained)
    monkeypatch.setattr(train, "evaluate", look)
    flags = [*TINY, "--out_dir=out/light"]
    monkeypatch.setattr(sys, "argv", ["train.py", *flags, "--max_steps=10"])
    train.main()
    monkeypatch.setattr(sys, "argv", ["train.py", *flags, "--max_steps=20", "--resume"])
    train.main()
    assert left == []


# ---- Seeds, and what each step is given ----------------------------------------------------------

def test_no_two_seeds_share_their_noise(trained, monkeypatch):
    """Nor do two processes, nor dropout and masks: no generator has the seed of another."""
    drawn = []
    monkeypatch.chdir(trained)

    def note(model, losses_of, optimizers, batch, s, lr):
        drawn.append(torch.initial_seed())
        return torch.zeros(()), torch.zeros(())

    monkeypatch.setattr(train, "train_step", note)
    monkeypatch.setattr(train, "finish", lambda *_: None)
    for seed in 1, 2:
        for rank in 0, 1:
            monkeypatch.setattr(train, "RANK", rank)
            out = f"--out_dir=out/seeds-{seed}-{rank}"
            monkeypatch.setattr(sys, "argv", ["train.py", *TINY, out, f"--seed={seed}"])
            train.main()
        drawn.extend(objectives.mask_generator(seed, step).initial_seed() for step in range(30))
    assert len(drawn) == len(set(drawn)) == 180


def test_every_group_gets_the_learning_rate():
    model = small_model()
    s = train.Settings(batch_size=8, dtype="float32")
    parameters = list(model.parameters())
    groups = [{"params": parameters[:3]}, {"params": parameters[3:]}]
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    batch = objectives.training_batch(model.config, torch.zeros(8, 8, dtype=torch.long), None)
    train.train_step(model, objectives.weighted_losses, [optimizer], batch, s, lr=0.01)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]


def test_infill_has_one_default_everywhere():
    """What was given stays, also that of an old checkpoint."""
    assert Config("aogpt", orders="infill").l2r_fraction == 0.5
    assert Config("aogpt").l2r_fraction == Config("ar").l2r_fraction == 0.1
    for config in Config("ar"), Config("aogpt", orders="infill", l2r_fraction=0.1):
        assert Config(**asdict(config)) == config
        assert replace(config, dropout=0.1).l2r_fraction == 0.1


# ---- Compilers and memory ------------------------------------------------------------------------

def losses_with_compiler(monkeypatch, compile):
    """What maybe_compiled makes of a torch.compile that is another; a model and a batch."""
    monkeypatch.setattr(torch, "compile", compile)
    losses_of = train.maybe_compiled(train.Settings(compile="true"), torch.device("cpu"))
    model = small_model("ar")
    x = torch.zeros(2, 8, dtype=torch.long)
    return losses_of, model, objectives.training_batch(model.config, x, None)


def test_a_python_that_the_compiler_does_not_know(monkeypatch, capsys):
    def compile(function, dynamic):
        raise RuntimeError("torch.compile is not supported on Python 3.99+")

    losses_of, model, batch = losses_with_compiler(monkeypatch, compile)
    for _ in range(2):
        assert torch.equal(losses_of(model, batch), objectives.weighted_losses(model, batch))
    assert capsys.readouterr().err.count("going on without it") == 1


@pytest.mark.parametrize("at_call, error", [
    (1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")),
    (1, RuntimeError("DefaultCPUAllocator: can't allocate memory")),
    (2, RuntimeError("a fault of this code"))])
def test_only_a_first_step_that_fails_is_a_failed_compilation(monkeypatch, capsys, at_call, error):
    """And too little memory is none, at any step."""
    calls = []

    def compile(function, dynamic):
        def compiled(*arguments):
            calls.append(arguments)
            if len(calls) == at_call:
                raise error
            return function(*arguments)
        return compiled

    losses_of, model, batch = losses_with_compiler(monkeypatch, compile)
    with pytest.raises(RuntimeError) as raised:
        for _ in range(2):
            losses_of(model, batch)
    assert raised.value is error
    assert capsys.readouterr().err == ""


def test_if_one_process_cannot_compile_none_does(monkeypatch, capsys):
    def compile(function, dynamic):
        return lambda *arguments: function(*arguments) + 1

    losses_of, model, batch = losses_with_compiler(monkeypatch, compile)
    monkeypatch.setattr(train, "mean_over_processes", lambda failed: failed + 0.5)
    for _ in range(2):
        assert torch.equal(losses_of(model, batch), objectives.weighted_losses(model, batch))
