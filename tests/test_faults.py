"""What happens to runs: they are killed, the disk is full, files are damaged, the machine lacks things."""
import os
import pickle
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from conftest import ROOT, TINY, Running, read_log, run, small_model
from runs import load, save

def same_run(a, b):
    """Log, final state of everything, and best weights, bit for bit; nothing else lies about."""
    assert read_log(a) == read_log(b)
    for name in ("ckpt.pt", "best.pt"):
        one, two = (torch.load(folder / name, weights_only=True) for folder in (a, b))
        for entry in (one, two):        # seconds, and so the length of the log in bytes, depend on the clock
            entry.update(seconds=None, wall_seconds=None, log=None)
            entry.get("settings", {}).update(resume=None, out_dir=None)
        assert torch.equal(*(torch.cat([t.flatten() for t in tensors(entry)]) for entry in (one, two)))
        assert plain(one) == plain(two)
    names = ["best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"]
    assert sorted(os.listdir(a)) == sorted(os.listdir(b)) == names

def tensors(entry):
    if isinstance(entry, torch.Tensor):
        yield entry.double()
    elif isinstance(entry, (dict, list)):
        for value in entry.values() if isinstance(entry, dict) else entry:
            yield from tensors(value)

def plain(entry):
    """Without its tensors."""
    if isinstance(entry, list):
        return [plain(v) for v in entry]
    if not isinstance(entry, dict):
        return entry
    return {k: plain(v) for k, v in entry.items() if not isinstance(v, torch.Tensor)}

def test_killed_at_random_moments(trained):
    """A run of each mode is killed with SIGKILL twice, in between now and then stopped with SIGTERM or
    Ctrl-C, and resumed each time; it ends as one that was left alone. It saves every 30 ms, so that many
    signals come while it writes."""
    killed = []

    def arguments(mode, name):
        return [f"--mode={mode}", *TINY, "--max_steps=300", "--eval_interval=5", "--save_minutes=0.0005",
                f"--grad_accum={2 if mode == 'mdlm' else 1}", f"--out_dir=out/{name}-{mode}",
                *{"ar": ["--dropout=0.1", "--token_noise=0.1"], "mdlm": ["--optimizer=muon"]}.get(mode, [])]

    def leave_alone(mode):
        return run("train.py", *arguments(mode, "alone"), cwd=trained).returncode

    def kill_and_resume(mode):
        rng, kills, checkpoint = random.Random(mode), [], trained / f"out/killed-{mode}/ckpt.pt"
        while kills.count(signal.SIGKILL) < 2:
            process = Running("train.py", *arguments(mode, "killed"), *["--resume"] * checkpoint.exists(),
                              cwd=trained)
            if rng.random() < 0.8:          # while it trains; else at any moment, perhaps while it starts
                process.wait_for(lambda: process.said()[0].startswith("preset"))
            time.sleep(rng.uniform(0, 0.3))
            kills.append(rng.choice([signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGINT]))
            done = process.end(kills[-1])
            if done.returncode == 0:        # it was at its end: the others must do
                break
            if done.returncode == 128 + kills[-1]:
                again = f"stopped and saved; go on with: python {shlex.join(done.args[:2])}"
                assert done.stdout.endswith("--resume\n") and again in done.stdout
            elif kills[-1] == signal.SIGKILL:
                assert done.returncode == -signal.SIGKILL
                killed.append(mode)
                assert not checkpoint.exists() or load(str(checkpoint))[1]["step"] < 300
                if not checkpoint.exists():         # a best.pt without one is not written over
                    checkpoint.with_name("best.pt").unlink(missing_ok=True)
            else:
                interrupted = done.returncode == 2 and "interrupted" in done.stderr
                early = done.returncode == -kills[-1] or done.stderr.endswith("KeyboardInterrupt\n")
                assert interrupted or early, done
        return run("train.py", *arguments(mode, "killed"), *["--resume"] * checkpoint.exists(),
                   cwd=trained).returncode

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(task, mode)
                for task in (kill_and_resume, leave_alone) for mode in ("mdlm", "aogpt", "ar")]
        assert [future.result() for future in done] == [0] * 6 and killed
    for mode in ("mdlm", "aogpt", "ar"):
        same_run(trained / f"out/alone-{mode}", trained / f"out/killed-{mode}")

def test_the_disk_is_full_while_a_checkpoint_is_written(trained):
    """The system's limit on a file's size stands in for a full disk: the largest file, ckpt.pt, is above."""
    arguments = ["--mode=mdlm", *TINY, "--max_steps=400", "--out_dir=out/full"]
    checkpoint = trained / "out/full/ckpt.pt"
    limit = (trained / "out/mdlm/ckpt.pt").stat().st_size * 9 // 10

    def run_on_full_disk(*more):
        done = Running("train.py", *arguments, *more, cwd=trained, largest_file=limit).end()
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "out/full/ckpt.pt could not be written" in done.stderr

    run_on_full_disk()
    assert not checkpoint.exists()
    checkpoint.with_name("best.pt").unlink()        # smaller, so there was room for it
    process = Running("train.py", *arguments, cwd=trained)
    process.wait_for(checkpoint.exists)
    process.end(signal.SIGTERM)
    before = checkpoint.read_bytes()
    run_on_full_disk("--resume")
    assert checkpoint.read_bytes() == before and not os.path.exists(f"{checkpoint}.tmp")
    assert run("train.py", *arguments, "--resume", cwd=trained).returncode == 0
    assert run("train.py", *arguments[:-1], "--out_dir=out/roomy", cwd=trained).returncode == 0
    same_run(trained / "out/full", trained / "out/roomy")

def test_preparing_data_is_stopped(workdir):
    process = Running("prepare_data.py", "--name=t", "--max_tokens=10000000", cwd=workdir)
    process.wait_for(lambda: list(workdir.glob("data/*/train.bin")))
    done = process.end(signal.SIGTERM)
    assert "nothing was kept" in done.stderr and done.returncode == 2
    assert os.listdir(workdir / "data") == []

# ---------------------------------------------------------------------------------- damaged and foreign files

def test_every_flipped_bit_of_a_checkpoint_is_found_or_changes_nothing(tmp_path):
    """500 random bits, one at a time. (In torch's zip file, the files' dates and padding carry nothing.)"""
    model, path = small_model("mdlm", n_layer=1), tmp_path / "m.pt"
    save(str(path), model, step=7, recent=[0.25])
    whole, rng, found = path.read_bytes(), random.Random(0), 0
    for _ in range(500):
        damaged, bit = bytearray(whole), rng.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            again, rest = load(str(path))
        except OSError as e:
            assert f"{path} is not a usable checkpoint" in str(e) and "\n" not in str(e)
            found += 1
        else:
            assert rest == {"format": 1, "step": 7, "recent": [0.25]} and again.config == model.config
            states = zip(model.state_dict().values(), again.state_dict().values())
            assert all(torch.equal(a, b) for a, b in states)
    assert found > 450

class Malice:
    def __reduce__(self):
        return os.mkdir, ("stolen",)

def test_foreign_checkpoints_get_one_clear_line(trained):
    whole = torch.load(trained / "out/mdlm/best.pt", weights_only=True)
    files = {"malicious": whole | {"step": Malice()}, "newer": whole | {"format": 2, "news": 1},
             "unknown": {"model": whole["model"]},
             "other-size": whole | {"config": whole["config"] | {"n_embd": 32}}, "list": [1, 2],
             "mode": whole | {"config": {"mode": "mlm"}}}
    contents = {"truncated": (trained / "out/mdlm/best.pt").read_bytes()[:-100],
                "pickle": pickle.dumps(Malice())}
    words = {"malicious": "it holds code", "newer": "format 2, this code reads 1", "unknown": "format",
             "other-size": "size mismatch", "list": "usable", "mode": "ar, mdlm, aogpt",
             "truncated": "not a zip file", "pickle": "not a zip file"}
    for name in words:
        (trained / f"foreign-{name}").mkdir()
        path = trained / f"foreign-{name}/best.pt"
        if name in files:
            torch.save(files[name], path)
        else:
            path.write_bytes(contents[name])
        with pytest.raises(OSError, match="is not a usable checkpoint") as e:
            load(str(path))
        assert words[name] in str(e.value) and "\n" not in str(e.value), e.value
    done = run("sample.py", "--out_dir=foreign-malicious", cwd=trained)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "it holds code" in done.stderr
    assert not os.path.exists(trained / "stolen") and not os.path.exists("stolen")
    torch.save({k: v for k, v in whole.items() if k != "tokenizer"}, trained / "foreign-list/best.pt")
    done = run("sample.py", "--out_dir=foreign-list", cwd=trained)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "it lacks tokenizer" in done.stderr

def test_resume_is_refused_for_another_run_and_for_other_data(trained):
    """Another mode, size, setting: each is named. Data prepared anew under the same name is noticed too."""
    shutil.copytree(trained / "out/ar", trained / "out/mine")
    run("prepare_data.py", "--name=t2", "--max_tokens=20000", "--seed=2", cwd=trained)
    done = run("train.py", "--mode=mdlm", *TINY, "--out_dir=out/mine", "--resume", "--data=t2", "--n_embd=32",
               "--lr=0.5", "--train_stories=20", cwd=trained)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert ("mode was ar, is now mdlm; n_embd was 16, is now 32; data was t, is now t2; "
            "train_stories was 0, is now 20; lr was 0.002, is now 0.5") in done.stderr
    for name, damage, words in (
            ("log.jsonl", lambda whole: whole[:-80], "has lost lines"),
            ("best.pt", lambda _: (trained / "out/mdlm/best.pt").read_bytes(), "belongs to another run"),
            ("best.pt", lambda _: None, "best.pt is gone")):
        path = trained / f"out/mine/{name}"
        whole = path.read_bytes()
        path.unlink() if (damaged := damage(whole)) is None else path.write_bytes(damaged)
        done = run("train.py", "--mode=ar", *TINY, "--out_dir=out/mine", "--resume", cwd=trained)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
        path.write_bytes(whole)
    (trained / "data/t").rename(trained / "data/kept")
    try:
        shutil.copytree(trained / "data/t2", trained / "data/t")
        done = run("train.py", "--mode=ar", *TINY, "--out_dir=out/mine", "--resume", cwd=trained)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "data/t is not what" in done.stderr, done.stderr
    finally:
        shutil.rmtree(trained / "data/t")
        (trained / "data/kept").rename(trained / "data/t")

# ------------------------------------------------------------------------------------------------ everywhere

def test_a_poor_machine(trained, tmp_path):
    """Another working directory, a path with spaces, source that can't be written, one thread, no display, no
    compiler, no network, 40 columns, no home: everything a newcomer would run."""
    source, work = tmp_path / "the source", tmp_path / "my work"
    source.mkdir()
    work.mkdir()
    for name in os.listdir(ROOT):
        if name.endswith(".py"):
            shutil.copy(os.path.join(ROOT, name), source)
    before = {p: p.read_bytes() for p in source.iterdir()}
    for path in (*before, source):
        path.chmod(0o555 if path == source else 0o444)
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "OMP_NUM_THREADS": "1",
                   "COLUMNS": "40", "LC_ALL": "C", "CXX": "none",
                   "HTTPS_PROXY": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1",
                   "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "a cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def poor(script, *arguments):
        done = subprocess.run([sys.executable, str(source / script), *arguments], cwd=work, env=environment,
                              capture_output=True, text=True)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    poor("prepare_data.py", "--name=my words", "--max_tokens=30000")
    tiny = [*TINY, "--data=my words", "--compile=auto"]
    assert "going on without it" in poor("train.py", "--mode=mdlm", *tiny)
    environment["MPLCONFIGDIR"] = str(tmp_path / "fonts")       # else they are listed anew each time
    poor("train.py", "--mode=ar", *TINY, "--data=my words", "--out_dir=my ar")
    poor("sample.py", "--out_dir=out/my words-mdlm,my ar", "--num_samples=20", "--show",
         "--picture=a picture.png")
    poor("compare.py", "ar=my ar", "mdlm=out/my words-mdlm", "--plot=a plot.png", "--json=a table.json")
    poor("diversity.py", "ar=my ar/shown.jsonl", "--data=my words", "--judge=my ar", "--plot=b plot.png")
    assert {p: p.read_bytes() for p in source.iterdir()} == before
