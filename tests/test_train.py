"""Training, sampling and comparing as a user runs them: real processes in a folder of their own."""
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from conftest import ROOT, small_model
from model import load, order_batch, unit_losses
from prepare_data import TOY, Tokenizer, Windows
from sample import draw, generate
from train import evaluate

TINY = ["--preset=toy", "--data=t", "--n_layer=1", "--n_embd=16", "--n_head=2", "--n_hidden=16", "--batch_size=8", "--max_steps=30",
        "--warmup=5", "--eval_interval=10", "--eval_windows=20", "--compile=false", "--device=cpu"]


def run(script, *arguments, **kwargs):
    return subprocess.run([sys.executable, os.path.join(ROOT, script), *arguments], capture_output=True, text=True, **kwargs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with data/t and one short run per mode."""
    folder = tmp_path_factory.mktemp("runs")
    assert run("prepare_data.py", "--name=t", "--max_tokens=30000", cwd=folder).returncode == 0
    for mode in ("ar", "mdlm", "aogpt"):
        done = run("train.py", f"--mode={mode}", f"--out_dir=out/{mode}", *TINY, cwd=folder)
        assert done.returncode == 0, done.stderr
        (folder / f"{mode}.txt").write_text(done.stdout + done.stderr)
    return folder


def read_log(folder):
    """Without what depends on the clock."""
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "tok_per_s")} for line in open(folder / "log.jsonl")]


@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_a_run_leaves_what_it_promises(trained, mode):
    out = trained / "out" / mode
    assert sorted(os.listdir(out)) == ["best.pt", "ckpt.pt", "config.json", "log.jsonl", "loss.png"]
    log = read_log(out)
    assert [e["step"] for e in log if "train_loss" in e] == [e["step"] for e in log if "val_nll" in e] == [10, 20, 30]
    final = log[-1]
    assert final["val_nll"] < log[1]["val_nll"] < 6 and final["val_floor"] == pytest.approx(0.386, abs=0.05)
    counts = json.load(open(trained / "data/t/meta.json"))["splits"]["val"]
    assert final["val_bpb"] == pytest.approx(final["val_nll"] / np.log(2) * counts["tokens"] / counts["bytes"])
    assert ("val_masked_ce" in final) == (mode == "mdlm") and ("val_nll_l2r" in final) == (mode == "aogpt")
    config = json.load(open(out / "config.json"))
    assert config["config"]["mode"] == mode and all(config[k] for k in ("command", "date", "seed", "machine"))
    text = (trained / f"{mode}.txt").read_text()
    assert text.startswith("preset toy (as asked)") and "float" in text and "not compiled" in text and "python sample.py" in text


def test_best_checkpoint_scores_what_the_log_says(trained, monkeypatch):
    for mode in ("ar", "mdlm", "aogpt"):
        model, checkpoint = load(str(trained / "out" / mode / "best.pt"))
        assert checkpoint["val_nll"] == min(e["val_nll"] for e in read_log(trained / "out" / mode) if "val_nll" in e)
        monkeypatch.chdir(trained)
        x = torch.from_numpy(Windows("t", "val", 48).first(20))
        assert evaluate(model, x, 4, seed=1337)["val_nll"] == pytest.approx(checkpoint["val_nll"], abs=1e-5)
        assert "optimizer" not in checkpoint and Tokenizer(**checkpoint["tokenizer"]).words == TOY.words()


def test_same_seed_same_bits_and_resume_is_exact(trained):
    """A run stopped by SIGTERM at some step and resumed ends with the log and the bits of one never interrupted."""
    arguments = ["--mode=mdlm", *TINY, "--grad_accum=2", "--max_steps=300", "--eval_interval=100"]
    assert run("train.py", *arguments, "--out_dir=out/whole", cwd=trained).returncode == 0
    process = subprocess.Popen([sys.executable, os.path.join(ROOT, "train.py"), *arguments, "--out_dir=out/broken"], cwd=trained,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = trained / "out/broken/log.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 128 + signal.SIGTERM and "--resume" in output.splitlines()[-1]
    _, checkpoint = load(str(trained / "out/broken/ckpt.pt"))
    assert 0 < checkpoint["step"] < 300
    assert run("train.py", *arguments, "--out_dir=out/broken", "--resume", cwd=trained).returncode == 0
    a, b = (torch.load(trained / "out" / name / "ckpt.pt", weights_only=True) for name in ("whole", "broken"))
    assert all(torch.equal(a["model"][k], b["model"][k]) for k in a["model"]) and a["best"] == b["best"]
    assert read_log(trained / "out/whole") == read_log(trained / "out/broken")


def test_evaluation_is_repeatable_and_leaves_training_alone():
    model = small_model("mdlm").train()
    x = torch.randint(0, 11, (12, 8))
    state, before = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    first = evaluate(model, x, 4, seed=1)
    assert first == evaluate(model, x, 4, seed=1) != evaluate(model, x, 4, seed=2)
    assert torch.equal(state, torch.get_rng_state()) and model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_evaluation_gives_every_window_every_mask_ratio():
    """The bound of fixed windows is the mean over all k for each of them: no stratum may stick to a row."""
    from model import nelbo_batch
    model = small_model("mdlm")
    masked = torch.stack([(nelbo_batch(model.config, torch.zeros(8, 8, dtype=torch.long), torch.Generator().manual_seed(s)).tokens
                           == 11).sum(dim=1) for s in range(400)])           # (400, 8) numbers of masked tokens
    assert all(len(set(masked[:, row].tolist())) >= 4 for row in range(8))
    assert (masked[:, 0::2].float().mean(dim=0) - masked[:, 0::2].float().mean()).abs().max() < 5 * 2.3 / 20


def test_bfloat16_compiled_follows_float32_eager_and_is_repeatable(trained):
    """The fast path and the exact one, 60 steps of the same run; compiled code on two threads gives the same bits again."""
    loss, fast = {}, ["--dtype=bfloat16", "--compile=true"]
    for name, flags in (("slow", ["--dtype=float32"]), ("fast", fast), ("again", fast)):
        done = run("train.py", "--mode=mdlm", *TINY, "--max_steps=60", "--n_embd=32", f"--out_dir=out/{name}", *flags, cwd=trained)
        assert done.returncode == 0 and "torch.compile failed" not in done.stderr, done.stderr
        loss[name] = np.array([e["train_loss"] for e in read_log(trained / "out" / name) if "train_loss" in e])
    assert np.abs(loss["slow"] - loss["fast"]).max() < 0.03 and (loss["fast"] == loss["again"]).all()


def test_without_a_compiler_training_goes_on(trained):
    environment = {**os.environ, "CXX": "/nonexistent/c++", "TORCHINDUCTOR_CACHE_DIR": str(trained / "cache")}
    done = run("train.py", "--mode=ar", *TINY, "--out_dir=out/nocompiler", "--compile=true", cwd=trained, env=environment)
    assert done.returncode == 0 and "torch.compile failed" in done.stderr and "going on without it" in done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_cuda_follows_cpu(trained, mode):
    done = run("train.py", f"--mode={mode}", *TINY, f"--out_dir=out/cuda-{mode}", "--device=cuda", "--dtype=bfloat16", cwd=trained)
    assert done.returncode == 0, done.stderr
    a, b = (read_log(trained / "out" / name)[-1]["val_nll"] for name in (mode, f"cuda-{mode}"))
    assert abs(a - b) < 0.02


# ------------------------------------------------------------------------------------------------ samples


@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_story_i_is_the_same_whatever_the_batch(mode):
    model = small_model(mode)
    together = generate(model, range(6), 8, 8, seed=5)
    assert torch.equal(together[4:5], generate(model, [4], 8, 8, seed=5))
    assert not torch.equal(together, generate(model, range(6), 8, 8, seed=6))
    assert (together < model.config.vocab_size).all()


@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_samplers_at_one_token_a_step_follow_the_models_own_law(mode):
    """Chi-square over all 3^3 sequences against the exact law, mixed over all orders for mdlm and aogpt."""
    import itertools
    from scipy.stats import chisquare
    model = small_model(mode, vocab_size=3, block_size=3, seed=3)
    x = torch.tensor(list(itertools.product(range(3), repeat=3)))
    law = torch.zeros(27, dtype=torch.float64)
    orders = [(0, 1, 2)] if mode == "ar" else list(itertools.permutations(range(3)))
    for order in orders:
        if mode == "mdlm":
            from test_model import masked_nll
            nll = torch.stack([sum(masked_nll(model, row, torch.tensor([order.index(p) >= j for p in range(3)]))[i]
                                   for j, i in enumerate(order)) for row in x])
        else:
            nll = unit_losses(model, order_batch(model.config, x, torch.tensor([order]).expand_as(x))) * 3
        law += torch.exp(-nll.double()) / len(orders)
    assert abs(law.sum() - 1) < 1e-5
    N = 20_000
    tokens = generate(model, range(N), 3, 3, seed=1)
    counts = torch.bincount(tokens @ torch.tensor([9, 3, 1]), minlength=27).numpy()
    assert chisquare(counts, (law / law.sum()).numpy() * N).pvalue > 1e-3
    if mode != "ar":        # three tokens at once are drawn independently: another law, and the test sees it
        counts = torch.bincount(generate(model, range(N), 3, 1, seed=1) @ torch.tensor([9, 3, 1]), minlength=27)
        assert chisquare(counts.numpy(), (law / law.sum()).numpy() * N).pvalue < 1e-6


@torch.no_grad()
def test_greedy_samples_are_the_argmax_of_the_plain_forward_pass():
    for mode, steps in (("ar", 8), ("aogpt", 8), ("aogpt", 3), ("aogpt", 1)):
        model = small_model(mode)
        tokens = generate(model, range(3), 8, steps, seed=1, temperature=0)
        order = torch.arange(8).expand(3, 8)
        if mode == "aogpt":
            from sample import story_noise
            order = story_noise(1, range(3), 8, torch.device("cpu"))[0].argsort(dim=1)
        bounds = [8 * s // steps for s in range(steps + 1)]
        for start, end in zip(bounds, bounds[1:]):          # each of a group is predicted as if it were the first of it
            for j in range(start, end):
                swapped = order.clone()
                swapped[:, [start, j]] = order[:, [j, start]]
                batch = order_batch(model.config, tokens, swapped)
                logits = model(batch.tokens, batch.key_pos, batch.target_pos)[:, start]
                assert torch.equal(logits.argmax(dim=-1), tokens.gather(1, order[:, j:j + 1])[:, 0])


def test_draw_is_exact_in_the_tail_and_obeys_temperature_and_top_p():
    V = 1000
    logits = torch.full((1, V), -20.0)
    logits[0, 0] = 0.0
    tail = float((V - 1) * np.exp(-20.0))                   # 2.06e-6: a float32 uniform near 1 has steps of 6e-8
    inside = torch.tensor([1.0 - tail * 0.999, 1.0 - tail * 0.5, 1.0 - 2e-9, 1.0 - 1e-3], dtype=torch.float64)
    drawn = draw(logits.expand(4, V), inside, 1.0, 1.0).tolist()
    assert drawn == [1, 500, 999, 0]
    assert draw(logits, torch.tensor([1 - 1e-9], dtype=torch.float64), 0, 1.0).item() == 0
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(1000, 4)
    u = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    assert torch.bincount(draw(p, u, 1.0, 1.0)).tolist() == pytest.approx([500, 300, 150, 50], abs=1)
    assert torch.bincount(draw(p, u, 1.0, 0.7)).tolist() == pytest.approx([625, 375], abs=1)
    squared = np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365
    assert torch.bincount(draw(p, u, 0.5, 1.0)).tolist() == pytest.approx(list(squared * 1000), abs=1.5)


def test_sample_command(trained):
    done = run("sample.py", "--out_dir=out/mdlm", "--num_samples=5", "--steps=4", "--batch_size=2", "--json=s.json", cwd=trained)
    assert done.returncode == 0 and "obey the grammar" in done.stdout
    summary = json.load(open(trained / "s.json"))
    assert summary["steps"] == 4 and summary["grammatical"] == 0 and len(summary["first_stories"]) == 3     # hardly trained
    rows = [json.loads(line) for line in open(trained / "out/mdlm/samples.jsonl")]
    assert [r["story"] for r in rows] == list(range(5)) and all(r["steps"] == 4 and r["seed"] == 1337 for r in rows)
    tokenizer = Tokenizer("words", words=TOY.words())
    assert all(tokenizer.decode_story(r["tokens"]) == r["text"] for r in rows)


def test_compare_command(trained):
    done = run("compare.py", "ar=out/ar", "mdlm=out/mdlm", "--json=c.json", "--plot=c.png", cwd=trained)
    assert done.returncode == 0, done.stderr
    content = json.load(open(trained / "c.json"))
    log = [e for e in read_log(trained / "out/mdlm") if "val_nll" in e]
    assert content["runs"]["mdlm"]["table"]["best"] == min(e["val_nll"] for e in log)
    assert content["runs"]["ar"]["table"]["at_equal_steps"] is not None and os.path.getsize(trained / "c.png") > 5000


# ------------------------------------------------------------------------------------------------ bad input


BAD = [
    ("train.py", ["--mode=mdml"], ["--mode=mdml", "mdlm"]),
    ("train.py", ["--mod=ar"], ["unknown argument --mod", "--mode"]),
    ("train.py", ["--preset=lap"], ["laptop"]),
    ("train.py", ["--data=none"], ["no data set at data/none/meta.json", "prepare_data.py"]),
    ("train.py", ["--data=tt"], ["did you mean t"]),
    ("train.py", ["--mode=ar", "--time_embedding=add", *TINY], ["time_embedding is add", "mdlm"]),
    ("train.py", [*TINY, "--seed=-1"], ["--seed=-1", "at least 0"]),
    ("train.py", [*TINY, "--beta2=1.5"], ["--beta2=1.5", "at most 1"]),
    ("train.py", [*TINY, "--n_embd=100", "--n_head=12"], ["n_embd 100", "n_head 12", "n_embd=96"]),
    ("train.py", [*TINY, "--block_size=100000"], ["block_size 100000", "smaller"]),
    ("train.py", [*TINY, "--vocab_size=70"], ["vocab_size=70", "leave it out"]),
    ("train.py", [*TINY, "--mode=mdlm", "--batch_size=7"], ["batch_size=7", "even"]),
    ("train.py", [*TINY, "--batch_size=8", "--grad_accum=3"], ["grad_accum=3", "whole"]),
    ("train.py", [*TINY, "--max_steps=0"], ["max_steps=0", "at least 1"]),
    ("train.py", [*TINY, "--max_steps=ten"], ["max_steps=ten", "whole number"]),
    ("train.py", [*TINY, "--lr=nan"], ["lr=nan", "finite"]),
    ("train.py", [*TINY, "--resume=maybe"], ["true or false"]),
    ("train.py", [*TINY, "--device=cuda:77"], ["cuda:77", "not usable"]),
    ("train.py", [*TINY, "--out_dir=out/ar"], ["already holds a run", "--resume", "--out_dir"]),
    ("train.py", [*TINY, "--out_dir=out/new", "--resume"], ["no checkpoint at out/new/ckpt.pt"]),
    ("train.py", [*TINY, "--out_dir=out/ar", "--resume", "--lr=0.5"], ["lr was 0.003, is now 0.5"]),
    ("train.py", [*TINY, "--mode=mdlm", "--schedule=cosine"], ["schedule", "nelbo"]),
    ("train.py", ["--data=damaged", *TINY[2:]], ["data/damaged/train.bin", "prepare it again"]),
    ("sample.py", [], ["--out_dir"]),
    ("sample.py", ["--out_dir=out/none"], ["no checkpoint at out/none/best.pt", "train.py"]),
    ("sample.py", ["--out_dir=out/bad"], ["out/bad/best.pt is not a usable checkpoint"]),
    ("sample.py", ["--out_dir=out/ar", "--steps=4"], ["--steps=4", "ar"]),
    ("sample.py", ["--out_dir=out/mdlm", "--steps=-1"], ["--steps=-1"]),
    ("sample.py", ["--out_dir=out/aogpt", "--steps=100"], ["--steps=100", "48"]),
    ("sample.py", ["--out_dir=out/mdlm", "--length=1000"], ["--length=1000", "48"]),
    ("sample.py", ["--out_dir=out/mdlm", "--temperature=-1"], ["--temperature=-1"]),
    ("sample.py", ["--out_dir=out/mdlm", "--top_p=0"], ["--top_p=0", "(0, 1]"]),
    ("sample.py", ["--out_dir=out/mdlm", "--num_samples=-3"], ["--num_samples"]),
    ("sample.py", ["--out_dir=out/ar", "--sampler=ancestral"], ["mdlm", "ar"]),
    ("sample.py", ["--out_dir=out/ar", "--out=no/such/folder/s.jsonl"], ["no/such/folder"]),
    ("prepare_data.py", ["--dataset=toys"], ["toys", "toy"]),
    ("prepare_data.py", ["--text=none.txt"], ["none.txt cannot be read"]),
    ("prepare_data.py", ["--text=latin1.txt"], ["latin1.txt is not UTF-8"]),
    ("prepare_data.py", ["--text=empty.txt"], ["empty.txt holds no story"]),
    ("prepare_data.py", ["--text=empty.txt", "--vocab_size=70000"], ["70000", "65,536"]),
    ("prepare_data.py", ["--val=empty.txt"], ["--val needs --text"]),
    ("prepare_data.py", ["--max_tokens=-5"], ["--max_tokens=-5"]),
    ("prepare_data.py", ["--dataset=tinystories"], ["could not be downloaded", "--text"]),
    ("compare.py", [], ["NAME=FOLDER"]),
    ("compare.py", ["ar=out/none"], ["out/none holds no readable run"]),
    ("compare.py", ["ar=out/ar", "--json=no/such/folder/c.json"], ["no/such/folder"]),
]


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def broken(trained):
    (trained / "latin1.txt").write_bytes("caf\xe9 <|endoftext|> x".encode("latin-1"))
    (trained / "empty.txt").write_text("\n")
    (trained / "out/bad").mkdir()
    (trained / "out/bad/best.pt").write_bytes((trained / "out/ar/best.pt").read_bytes()[:3000])
    (trained / "data/damaged").mkdir()
    for name in ("meta.json", "train.bin", "val.bin"):
        (trained / "data/damaged" / name).write_bytes((trained / "data/t" / name).read_bytes())
    with open(trained / "data/damaged/train.bin", "r+b") as f:
        f.truncate(1000)
    return trained


@pytest.mark.parametrize("script, arguments, words", BAD, ids=[f"{s} {' '.join(a[-2:])}" for s, a, _ in BAD])
def test_bad_input_gets_one_line_and_changes_nothing(broken, request, script, arguments, words):
    if script == "prepare_data.py":
        request.getfixturevalue("gpt2")     # skips where there is none
    before = files(broken)
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(broken / "hf")} if "--dataset=tinystories" in arguments else {}
    done = run(script, *arguments, cwd=broken, env={**os.environ, **offline})
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "Traceback" not in done.stderr and all(w in done.stderr for w in words), done.stderr
    after = {k: v for k, v in files(broken).items() if not k.startswith("hf")}
    assert after == before
