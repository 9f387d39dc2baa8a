"""Tests run in a folder of their own, on small models of random weights, with fixed seeds."""
import contextlib
import json
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")     # two tests at a time, of small models; torch reads it once
TESTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(TESTS)
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME="/nonexistent", PYTHONPATH=f"{TESTS}{os.pathsep}{ROOT}")

import pytest  # noqa: E402
import torch  # noqa: E402

sys.path.insert(0, ROOT)

import sample  # noqa: E402
from model import Config, Transformer, masking_batch, order_batch  # noqa: E402

@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path

@pytest.fixture(scope="session")
def gpt2():
    """The GPT-2 vocabulary; skips where it can be had neither from a cache nor from the network."""
    import tiktoken
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as e:
        pytest.skip(f"no GPT-2 vocabulary here ({type(e).__name__}); set TIKTOKEN_CACHE_DIR to a copy of "
                    "tiktoken's cache")

@pytest.fixture
def stories_file():
    """A real text with stories split at <|endoftext|>."""
    path = os.path.join(os.environ.get("NANOMDLM_TEXT", ""), "valid.txt")
    if not os.path.exists(path):
        pytest.skip("no real text here; set NANOMDLM_TEXT to a folder with valid.txt (stories split at "
                    "<|endoftext|>)")
    return path

def small_model(mode="ar", seed=0, dtype=torch.float32, **fields):
    """Random weights, large enough that every input matters visibly in the output."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16, "n_hidden": 24}
    model = Transformer(Config(mode, **sizes | fields)).to(dtype)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model.eval()

def write_plainly(model, tokens, order, u, given, steps, o):
    """sample.write_in_order as one first writes it: a whole pass for every token, none is kept."""
    L = order.size(1)
    for step in range(steps):
        start, end = (given + (L - given) * s // steps for s in (step, step + 1))
        new = tokens.clone()
        for j in range(start, end):                     # as if it were the first of its group
            swapped = order.clone()
            swapped[:, [start, j]] = order[:, [j, start]]
            batch = order_batch(model.config, tokens, swapped)
            logits = model(batch.tokens, batch.key_pos, batch.target_pos)[:, start]
            position = order[:, j:j + 1]
            drawn, _ = sample.draw(logits, u.gather(1, position)[:, 0], o.temperature, o.top_p)
            new.scatter_(1, position, drawn[:, None])
        tokens = new
        yield tokens

def unmask_plainly(model, tokens, reveal_step, u, o):
    """sample.unmask as one first writes it: every step predicts all tokens."""
    for step in range(int(reveal_step.max()) + 1):
        masked = tokens == model.config.mask_id
        batch = masking_batch(model.config, tokens, masked)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, t=batch.t)
        logits = logits[:, 1:1 + tokens.size(1)]        # without BOS's, and what lies beyond
        now = reveal_step == step
        new, _ = sample.draw(logits[now], u[now], o.temperature, o.top_p)
        tokens = tokens.masked_scatter(now, new)
        yield tokens

@contextlib.contextmanager
def plain_samplers():
    """In this block sample.py takes the two above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "write_in_order", write_plainly)
        patch.setattr(sample, "unmask", unmask_plainly)
        yield

TINY = ["--preset=toy", "--data=t", "--n_layer=1", "--n_embd=16", "--n_head=2", "--n_hidden=16",
        "--batch_size=8", "--max_steps=30", "--warmup=5", "--eval_interval=10", "--eval_windows=20",
        "--save_minutes=0", "--compile=false", "--device=cpu", "--quiet"]

# Commands are forks of a process that has imported torch, which is most of what a short one does
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["conftest", "torch._dynamo", "matplotlib.figure"])    # by way of PYTHONPATH

def become(script, arguments, folder, output, largest_file):
    """In a fork: `python script arguments` in that folder; its words go to the files output1 and output2."""
    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(os.open(f"{output}{stream}", os.O_WRONLY | os.O_CREAT), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell's background jobs ignore Ctrl-C
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")

class Running:
    """`python script arguments`, begun. Its output comes line by line."""

    def __init__(self, script, *arguments, cwd=".", largest_file=resource.RLIM_INFINITY):
        self.folder, self.line = tempfile.TemporaryDirectory(), [os.path.join(ROOT, script), *arguments]
        self.process = forks.Process(target=become, args=(
            self.line[0], arguments, os.path.abspath(cwd), os.path.join(self.folder.name, ""), largest_file))
        self.process.start()

    def said(self):
        """Its output and its errors, up to now."""
        paths = [os.path.join(self.folder.name, stream) for stream in "12"]
        return [open(path).read() if os.path.exists(path) else "" for path in paths]

    def wait_for(self, condition):
        """Until the condition holds; it must not end before."""
        while not condition():
            assert self.process.exitcode is None, self.said()
            time.sleep(0.01)

    def end(self, kill=None):
        """What it has done when it ends, maybe by a signal, as subprocess.run gives it."""
        if kill and self.process.exitcode is None:
            os.kill(self.process.pid, kill)
        self.process.join()
        done = subprocess.CompletedProcess(self.line, self.process.exitcode, *self.said())
        self.folder.cleanup()
        return done

def run(script, *arguments, cwd=".", **environment):
    """What `python script arguments` has done, as subprocess.run gives it."""
    if not environment:
        return Running(script, *arguments, cwd=cwd).end()
    # some of it is read when torch is imported, so not in a fork
    return subprocess.run([sys.executable, os.path.join(ROOT, script), *arguments], cwd=cwd,
                          capture_output=True, text=True, env={**os.environ, **environment})

def experiment(name, *arguments, **kwargs):
    return run(f"experiments/{name}.py", *arguments, **kwargs)

CLOCK = ("seconds", "wall_seconds", "tok_per_s")

def read_log(folder):
    """A run's log without what depends on the clock."""
    entries = [json.loads(line) for line in open(folder / "log.jsonl")]
    return [{k: v for k, v in entry.items() if k not in CLOCK} for entry in entries]

@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with data/t and one short run per mode."""
    folder = tmp_path_factory.mktemp("runs")
    assert run("prepare_data.py", "--name=t", "--max_tokens=30000", cwd=folder).returncode == 0
    for mode in ("ar", "mdlm", "aogpt"):
        done = run("train.py", f"--mode={mode}", f"--out_dir=out/{mode}", *TINY, cwd=folder)
        assert done.returncode == 0, done.stderr
        (folder / f"{mode}.txt").write_text(done.stdout + done.stderr)
    return folder
