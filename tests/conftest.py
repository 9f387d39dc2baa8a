"""Tests run in a folder of their own, on small models of random weights, with fixed seeds."""
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from importlib import import_module

os.environ.setdefault("OMP_NUM_THREADS", "1")     # torch reads it once, and two tests run at a time
TESTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(TESTS)
os.environ["PYTHONPATH"] = f"{TESTS}{os.pathsep}{ROOT}"
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME="/nonexistent")

import pytest  # noqa: E402
import torch  # noqa: E402

sys.path.insert(0, ROOT)


def pytest_collection_modifyitems(items):
    """The notebook takes longest, so it is not left to one process at the end."""
    items.sort(key=lambda item: "test_tour" not in item.nodeid)


@pytest.fixture(autouse=True)
def arithmetic_as_it_was():
    """machine.prepare changes how this process computes; no test shall depend on another."""
    yield
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def gpt2():
    """The GPT-2 vocabulary; skips where neither a cache nor the network has it."""
    import tiktoken
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as e:
        kind = type(e).__name__
        pytest.skip(f"no GPT-2 vocabulary ({kind}); set TIKTOKEN_CACHE_DIR to tiktoken's cache")


def small_model(mode="ar", seed=0, dtype=torch.float32, variant=None, **fields):
    """Random weights, large enough that every input matters visibly in the output.

    variant is a module of variants/, if it is not model.py."""
    sizes = dict(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, n_hidden=24)
    torch.manual_seed(seed)
    config = (variant or import_module("model")).Config(mode, **sizes | fields)
    model = config.row.network(config).to(dtype)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model.eval()

# ---- Commands, as a user runs them ---------------------------------------------------------------

TINY = ["--preset=toy", "--data=t", "--n_layer=1", "--n_embd=16", "--n_head=2", "--n_hidden=16",
        "--batch_size=8", "--max_steps=30", "--warmup=5", "--eval_interval=10", "--eval_windows=20",
        "--save_minutes=0", "--compile=false", "--device=cpu", "--dtype=float32", "--quiet"]

# A command is a fork of a process that has imported torch, which takes most of a short one's time.
# It has imported nothing of the project, so that a copy of the project can be run in the same way.
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["conftest", "torch._dynamo", "matplotlib.figure"])


def become(script, arguments, folder, output, tree):
    """In a fork: `python script arguments` in that folder. Its words go to output1 and output2."""
    sys.path[:] = [tree, *(path for path in sys.path if path not in (ROOT, TESTS))]
    os.chdir(folder)
    for stream in (1, 2):
        file = os.open(f"{output}{stream}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)    # background jobs ignore it
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def run(script, *arguments, cwd=".", tree=ROOT):
    """What `python script arguments` has done, as subprocess.run gives it; maybe in a copy."""
    script = os.path.join(tree, script)
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "")
        given = (script, arguments, os.path.abspath(cwd), output, str(tree))
        process = forks.Process(target=become, args=given)
        process.start()
        process.join()
        said = [open(f"{output}{stream}").read() for stream in (1, 2)]
    return subprocess.CompletedProcess(script, process.exitcode, *said)


@pytest.fixture
def call(monkeypatch, capsys):
    """As run(), but in this process: quicker, and what the command imports can be replaced."""
    def here(script, *arguments):
        monkeypatch.setattr(sys, "argv", [os.path.join(ROOT, script), *map(str, arguments)])
        signal.signal(signal.SIGINT, signal.default_int_handler)    # background jobs ignore it
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as e:
            code = e.code
        return subprocess.CompletedProcess(sys.argv, code, *capsys.readouterr())

    return here


CLOCK = ("seconds", "tok_per_s")


def read_log(folder):
    """A run's log without what depends on the clock."""
    log = list(map(json.loads, open(folder / "log.jsonl")))
    return [{name: entry[name] for name in entry if name not in CLOCK} for entry in log]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with data/t and one short run per mode."""
    folder = tmp_path_factory.mktemp("runs")
    assert run("prepare_data.py", "--name=t", "--max_tokens=30000", cwd=folder).returncode == 0
    for mode in ("ar", "mdlm", "aogpt"):
        done = run("train.py", f"--mode={mode}", f"--out_dir=out/{mode}", *TINY, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert f"sample.py --out_dir=out/{mode}" in done.stdout     # the next command
    return folder
