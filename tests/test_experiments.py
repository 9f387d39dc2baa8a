"""The experiments: a perfect network makes no error, and all commands run."""
import importlib
import itertools
import json
import math
import random
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytest import approx
from scipy import stats

from cli import InputError
from conftest import TINY, experiment, run, small_model
from experiments import denoiser, dial, gradient, held_out, infill, orders, shakespeare
from experiments.denoiser import DenoiserOptions
from experiments.held_out import HeldOutOptions
from experiments.oracle import choices_of, distance, toy_oracle
from model import evaluation_batch, losses_in_parts, mask_generator, masking_batch
from prepare_data import PrepareOptions, Tokenizer, Windows, prepare
from runs import load
from sample import SampleOptions, generate
from toy import TOY
from train import PRESETS

WORDS = Tokenizer("words", words=TOY.words())


def stories(n):
    rng = random.Random(0)
    return [TOY.draw(rng) for _ in range(n)]


def as_tokens(texts):
    """(N, 48) with the end-of-text."""
    rows = []
    for text in texts:
        rows.append([*WORDS.encode(text), WORDS.eot])
    return torch.tensor(rows)


def log_p_of(x) -> list:
    """ln p of the words of each story of x (N, 48), or None where it is not grammatical."""
    texts = [WORDS.decode_story(ids) for ids in x.tolist()]
    return [TOY.log_probs(text) for text in texts]


def all_grammatical(x) -> bool:
    return all(log_p is not None for log_p in log_p_of(x))


# ---- The perfect network -------------------------------------------------------------------------

def test_the_distance_of_the_law_from_itself_is_nil():
    figures = distance(stories(4000))
    assert figures["grammatical"] == 1
    assert abs(figures["kl"]) < 0.01
    assert abs(figures["surprise"]) < 0.15
    balls = [text for text in stories(4000) if " ball " in text]
    with_more_balls = distance(balls * 2 + stories(4000))
    assert with_more_balls["kl"] > 0.05
    mostly_wrong = distance(["Lily ."] * 300 + stories(100))
    assert mostly_wrong["grammatical"] == 0.25


def test_choices_tell_the_story_again():
    for text in stories(50):
        chosen = choices_of(text)
        assert TOY.tell(lambda name, before: chosen[name]) == text
        log_p = 0.0
        for name, i in chosen.items():
            log_p += math.log(TOY.weights[name][i])
        assert log_p == approx(TOY.log_probs(text).sum())


@pytest.mark.parametrize("mode, flags", [
    ("ar", {}),
    ("mdlm", dict(sampler="first_hitting")),
    ("mdlm", dict(sampler="confidence")),
    ("mdlm", dict(sampler="first_hitting", steps=12)),
    ("aogpt", {}),
    ("aogpt", dict(draft=4))])
def test_a_perfect_network_writes_grammatical_stories_unless_in_parallel(mode, flags):
    oracle = toy_oracle(mode)
    blank = torch.full((48,), oracle.config.mask_id)
    o = SampleOptions(**flags)
    tokens, _ = generate(oracle, range(20), blank, o)
    in_parallel = "steps" in flags
    assert all_grammatical(tokens) != in_parallel


@pytest.mark.parametrize("length", [1, 5])
def test_a_perfect_network_fills_blanks_by_the_law(length):
    x = as_tokens(stories(12))
    expected = infill.exact_nats(x, 10, length)
    for mode in "mdlm", "aogpt":
        oracle = toy_oracle(mode)
        found = infill.nats(oracle, x, 10, length)
        assert found == approx(expected, abs=1e-4)
        filled = infill.fill(oracle, x, 10, length, seed=1)
        assert all_grammatical(filled)
        filled[:, 10:10 + length] = x[:, 10:10 + length]
        assert torch.equal(filled, x)
    # ar sees the left side alone.
    expected = []
    for log_p in log_p_of(x):
        blank = log_p[10:10 + length]
        expected.append(-blank.mean())
    found = infill.nats(toy_oracle("ar"), x, 10, length)
    assert found.numpy() == approx(expected, abs=1e-4)


@pytest.mark.parametrize("sampler, settings, passes", [
    ("first_hitting", {"steps": 48}, 48),
    ("confidence", {"steps": 48}, 48),
    ("adaptive", {"risk": 0.0}, 15),
    ("threshold", {"surety": 1.0}, 21)])
def test_a_rule_that_looks_at_the_token_it_drew_is_biased(sampler, settings, passes):
    oracle = toy_oracle("mdlm")
    found = denoiser.write(oracle, WORDS, 100, sampler, settings, seed=1)
    assert found["passes"] == approx(passes, abs=3)
    assert found["tokens_per_pass"] == approx(48 / found["passes"])
    assert found["grammatical"] == 1
    biased = found["kl"] > 1
    assert biased == (sampler == "confidence")
    assert biased or abs(found["kl"]) < 0.2


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_a_perfect_network_knows_the_conditionals_in_any_order(mode):
    x = as_tokens(stories(5))
    oracle = toy_oracle(mode)
    expected = []
    for log_p in log_p_of(x):
        expected.append(-log_p.sum() / 48)
    blocks = orders.in_blocks(x, 16, mask_generator(0))
    for order in blocks, blocks.flip(1):
        found = orders.nats(oracle, x, order)
        assert found.numpy() == approx(expected, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_block_by_block_the_law_is_the_law(mode):
    x = as_tokens(stories(5))
    for N in 1, 7:
        law = toy_oracle(mode, f"blocks:{N}")
        above, _ = dial.above_law(law, law.config.orders, x)
        assert abs(above) < 1e-6
    one_by_one = toy_oracle(mode, "blocks:1")
    losses = losses_in_parts(one_by_one, evaluation_batch(one_by_one.config, x, mask_generator(0)))
    expected = [-log_p.sum() / 48 for log_p in log_p_of(x)]
    assert losses.numpy() == approx(expected, abs=1e-5)


def test_dial(workdir, monkeypatch, capsys):
    tiny = " ".join(flag for flag in TINY if "preset" not in flag and "data=" not in flag)
    prepare(PrepareOptions(max_tokens=30_000))
    flags = ["--blocks=8", f"--train={tiny}", "--num_samples=4", "--json=f.json", "--plot=f.png"]
    run_main("dial", monkeypatch, *flags)
    rows = json.load(open("f.json"))["rows"]
    assert [row["network"] for row in rows] == ["mdlm", "aogpt", "the law"]
    assert rows[2]["1 a pass"] == 1
    for row in rows[:2]:
        assert 1 < row["above the law"] < 6
    assert (workdir / "f.png").stat().st_size > 5000
    log = (workdir / "out/dial-toy/mdlm-8-1/log.jsonl").read_text()
    run_main("dial", monkeypatch, *flags)
    assert (workdir / "out/dial-toy/mdlm-8-1/log.jsonl").read_text() == log     # not trained again


def test_the_noise_scale_is_the_batch_whose_noise_is_as_large_as_its_mean(workdir, monkeypatch):
    """Gradients of known mean, norm 5, and noise of variance 8 in all."""
    generator = torch.Generator().manual_seed(0)

    def noisy(model, batch):
        return torch.tensor([3.0, 4.0]) + 2 * torch.randn(2, generator=generator)

    monkeypatch.setattr(gradient, "gradient", noisy)
    model = small_model("mdlm", vocab_size=135, block_size=48)
    prepare(PrepareOptions(max_tokens=30_000))
    windows = Windows("toy", "train", 48)
    found = gradient.measure(model, windows, gradient.GradientOptions(batch_size=10, draws=4000))
    expected = approx(10 * 8 / 25, rel=0.05)
    assert found == {"nelbo": expected, "masked_ce": expected, "cosine": approx(1, abs=0.01)}


# ---- denoiser: two more rules, and what is counted -----------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("surety", [1.0, 0.155])
def test_what_the_threshold_reveals(surety):
    """What is sure enough, and the likeliest; with 1.0 and random weights that one alone."""
    model = small_model("mdlm")
    before = torch.full((20, 8), model.config.mask_id)
    counts = set()
    for tokens in denoiser.passes_of(model, range(20), "threshold", {"surety": surety}, seed=1):
        masked = before == model.config.mask_id
        batch = masking_batch(model.config, before, masked)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, batch.t)
        p = logits.softmax(dim=-1)[:, 1:].amax(dim=-1)                          # (20, 8)
        p = p.masked_fill(~masked, 0)
        likeliest = p == p.amax(dim=1, keepdim=True)
        expected = masked & ((p >= surety) | likeliest)
        assert torch.equal(tokens != before, expected)
        counts |= set(expected.sum(dim=1).tolist())
        before = tokens
    one_a_pass = max(counts) == 1
    assert one_a_pass == (surety == 1)


def test_masking_nothing_again_is_first_hitting():
    """Pass by pass. What is masked again does not change how many tokens are known."""
    model = small_model("mdlm")
    settings = {"steps": 4}
    plain = list(denoiser.passes_of(model, range(20), "first_hitting", settings, seed=1))
    same = denoiser.passes_of(model, range(20), "remask", settings | {"eta": 0.0}, seed=1)
    assert all(map(torch.equal, plain, same))
    other = denoiser.passes_of(model, range(20), "remask", settings | {"eta": 0.5}, seed=1)
    before = torch.full((20, 8), model.config.mask_id)
    hidden = []
    for tokens, expected in zip(other, plain, strict=True):
        masked = tokens == model.config.mask_id                                 # (20, 8)
        number = (expected == model.config.mask_id).sum(dim=1)                  # (20,)
        assert torch.equal(masked.sum(dim=1), number)
        again = masked & (before != model.config.mask_id)
        hidden.append(again.sum(dim=1).unique().tolist())
        before = tokens
    assert hidden == [[0], [1], [2], [0]]


def test_what_a_mode_writes_with():
    def names(config, **flags):
        o = DenoiserOptions(**flags)
        return {sampler for sampler, _ in denoiser.ways(config, o)}

    blocks = toy_oracle("mdlm", "blocks:8").config
    assert names(blocks) == {"first_hitting", "adaptive"}
    random_order = toy_oracle("mdlm").config
    assert names(random_order, samplers="remask,draft,threshold") == {"remask", "threshold"}
    ways = list(denoiser.ways(random_order, DenoiserOptions()))
    assert ("remask", {"steps": 12, "eta": 0.05}) in ways
    assert len(ways) == 29


@pytest.mark.parametrize("at_once", [1, 64])
def test_the_first_batch_of_stories_is_not_timed(monkeypatch, at_once):
    """By a clock of our own."""
    now = [0.0]
    slow = [100.0]

    def passes_of(model, stories, *_):
        assert len(stories) == at_once
        now[0] += slow.pop() if slow else 0.5
        yield torch.zeros(at_once, 48)

    monkeypatch.setattr(denoiser, "passes_of", passes_of)
    monkeypatch.setattr(denoiser.time, "perf_counter", lambda: now[0])
    o = DenoiserOptions(seconds=100)
    assert denoiser.seconds_a_story(None, at_once, "adaptive", {}, o) == 0.5 / at_once


# ---- Orders --------------------------------------------------------------------------------------

def test_blocks_are_shuffled_and_their_tokens_are_not():
    x = torch.zeros(5, 48)
    blocks = orders.in_blocks(x, 16, mask_generator(0))
    first = blocks[:, ::16]                     # the first token of each block
    for of_one_row in first.tolist():
        assert sorted(of_one_row) == [0, 16, 32]
    assert len(first[:, 0].unique()) > 1
    inside = torch.arange(48) % 16
    expected = first.repeat_interleave(16, dim=1) + inside
    assert torch.equal(blocks, expected)


def test_the_mixture_over_orders():
    """Against the definition, order by order."""
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.5, 1.5, size=(5, 3))
    p = np.exp(-4 * scores)
    found = orders.mixture(scores, T=4)
    assert list(found) == [1, 2, 4]
    assert found[1] == approx(scores.mean(axis=0))
    of_pairs = []
    for pair in p[0:2], p[2:4]:
        mean = pair.mean(axis=0)
        of_pairs.append(-np.log(mean) / 4)
    assert found[2] == approx(np.mean(of_pairs, axis=0))
    mean_of_four = p[:4].mean(axis=0)
    assert found[4] == approx(-np.log(mean_of_four) / 4)


def test_mdlm_order_by_order():
    """The mean over all orders is the bound that training estimates."""
    model = small_model("mdlm", block_size=4)
    x = torch.randint(model.config.bos_id, (1, 4))
    scores = []
    for order in itertools.permutations(range(4)):
        order = torch.tensor([order])
        score = orders.nats(model, x, order)
        scores.append(score.item())
    many = x.expand(10_000, 4)
    batch = evaluation_batch(model.config, many, mask_generator(0))
    losses = losses_in_parts(model, batch)
    error = losses.std().item() / 100
    expected = np.mean(scores)
    assert losses.mean().item() == approx(expected, abs=5 * error)
    assert error < 0.02
    assert np.std(scores) > 1e-3


# ---- held_out: errors of stories and of seeds ----------------------------------------------------

def test_runs_are_compared_with_the_error_of_stories_and_seeds():
    rng = np.random.default_rng(0)
    of_stories = rng.normal(size=100)
    noise = rng.normal(size=100)
    seeds = 0.1 * rng.normal(size=5)

    def runs(stories, of_seeds):
        results = []
        for seed in of_seeds:
            nats = stories + seed
            result = {"nats": nats, "nats_l2r": nats - 1, "epochs": 1}
            results.append(result)
        return results

    # Where stories differ alike, only seeds make an error, and it is Welch's.
    first = runs(of_stories, seeds[:3])
    second = runs(of_stories + 1, seeds[2:])
    found = held_out.compare(second, first)
    means = [run["nats"].mean() for run in second]
    means_of_first = [run["nats"].mean() for run in first]
    welch = stats.ttest_ind(means, means_of_first, equal_var=False)
    low, high = welch.confidence_interval()
    assert found["above"] / found["error"] == approx(welch.statistic)
    assert found["half"] == approx((high - low) / 2)

    # Networks beside themselves, and a run without other seeds.
    assert held_out.compare(first, first, "nats_l2r")["error"] < 1e-9
    lone = held_out.compare(second[:1], first)
    variance = np.var(means_of_first, ddof=1)
    expected = math.sqrt(variance / 3 + variance)
    assert lone["error"] == approx(expected)

    # Where stories make most of the error, it is known better.
    second = runs(of_stories + noise, seeds[2:])
    noisy = held_out.compare(second, first)
    of_seeds_alone = noisy["error"] * stats.t.ppf(0.975, welch.df)
    assert 1.96 * noisy["error"] < noisy["half"] < of_seeds_alone

    # Stories alone: ten neighbours make a group.
    one = runs(of_stories + noise, [0])
    other = runs(of_stories, [0])
    alone = held_out.compare(one, other)
    groups = noise.reshape(10, 10).mean(axis=1)
    assert alone["error"] == approx(stats.sem(groups))
    quantile = stats.t.ppf(0.975, 9)
    assert alone["half"] == approx(alone["error"] * quantile)


@pytest.mark.parametrize("mode", ["ar", "mdlm"])
def test_stories_without_their_end(mode):
    """Nothing changes where there is no end-of-text; its nats are left out where there is one."""
    model = small_model(mode)
    bos_id = model.config.bos_id
    with_end = HeldOutOptions(draws=3)
    without = HeldOutOptions(draws=3, without_end=True)
    x = torch.randint(bos_id, (6, 8))
    expected = held_out.score(model, x, with_end)
    assert held_out.score(model, x, without) == approx(expected)
    x[:, 2] = bos_id
    found = held_out.score(model, x, without)
    assert found != approx(held_out.score(model, x, with_end))
    if mode == "ar":
        batch = evaluation_batch(model.config, x, None)
        with torch.no_grad():
            logits = model(batch.tokens, batch.key_pos, batch.target_pos)
        nll = F.cross_entropy(logits.mT, x, reduction="none")                   # (6, 8)
        nll[:, 2] = 0
        expected = nll.sum(dim=1) / 7
        assert found == approx(expected.tolist(), abs=1e-5)


def test_held_out(trained, monkeypatch):
    """The numbers of best.pt on other stories, which are stored and then found again."""
    monkeypatch.chdir(trained)
    prepare(PrepareOptions(name="others", max_tokens=30_000, seed=9))
    flags = ["--report=others", "--block_size=48", "--draws=2", "--json=held.json"]
    done = experiment(
        "held_out", "ar=out/ar,out/ar", "mdlm=out/mdlm", "aogpt=out/aogpt", "--plot=g.png", *flags)
    assert done.returncode == 0, done.stderr
    content = json.load(open("held.json"))
    compared = content["compared"]
    assert list(compared) == ["ar", "mdlm", "aogpt", "aogpt, left to right"]
    model, _ = load("out/ar/best.pt")
    windows = Windows("others", "val", 48)
    x = torch.from_numpy(windows.spread(len(windows)))
    batch = evaluation_batch(model.config, x, None)
    exact = losses_in_parts(model, batch).mean().item()
    assert compared["ar"]["seeds"] == approx([exact, exact])
    assert compared["ar"]["above"] == 0

    # A run whose folder is gone is compared by the scores in the file.
    runs = content["runs"]
    nines = [9.0] * len(x)
    runs["out/gone"] = runs["out/ar"] | {"nats": nines}
    with open("held.json", "w") as file:
        json.dump(content, file)
    done = experiment("held_out", "ar=out/ar", "gone=out/gone", *flags)
    assert done.returncode == 0, done.stderr
    assert json.load(open("held.json"))["runs"] == runs
    assert "9.0000" in done.stdout

    done = experiment("held_out", "ar=out/ar", "--report=t", "--block_size=48")
    assert done.returncode == 2
    assert "the stories of data/t chose out/ar/best.pt" in done.stderr


# ---- Every command runs --------------------------------------------------------------------------

def run_main(name, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *flags])
    importlib.import_module(f"experiments.{name}").main()


ALL = "--models=out/ar,out/mdlm,out/aogpt"


@pytest.mark.parametrize("name, constants, flags", [
    ("estimator",
     {},
     ["--models=out/mdlm", "--repeats=2"]),
    ("denoiser",
     {"AT_ONCE": [1, 2]},
     ["ar=out/ar", "mdlm=out/mdlm", "aogpt=out/aogpt", "--num_samples=2", "--seconds=1",
      "--samplers=left_to_right,first_hitting,remask,draft", "--plot=f.png"]),
    ("infill",
     {"LENGTHS": [1, 3]},
     [ALL, "--data=t", "--windows=9", "--plot=f.png"]),
    ("gradient",
     {},
     ["a=out/mdlm", "--draws=3"]),
    ("orders",
     {"BLOCKS": [16]},
     ["a=out/aogpt,out/aogpt", "--data=t", "--windows=9", "--orders=2"])])
def test_commands(trained, monkeypatch, capsys, name, constants, flags):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(torch, "compile", lambda of, **_: of)
    for constant, value in constants.items():
        monkeypatch.setattr(f"experiments.{name}.{constant}", value)
    run_main(name, monkeypatch, *flags, "--json=f.json")
    content = json.load(open("f.json"))
    assert content["command"].startswith(f"python -m experiments.{name}")
    assert capsys.readouterr().out
    if "--plot=f.png" in flags:
        assert (trained / "f.png").stat().st_size > 5000
    if flags[0].startswith("--models"):
        with pytest.raises(InputError, match="which models"):
            run_main(name, monkeypatch)


# ---- Tiny Shakespeare ----------------------------------------------------------------------------

NANOGPT = """
from dataclasses import dataclass
import torch

@dataclass
class GPTConfig:
    block_size: int

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.next = torch.nn.Embedding(26, 26)      # logits of the next letter
    def forward(self, x, y):
        logits = self.next(x)
        return logits, torch.nn.functional.cross_entropy(logits.mT, y, ignore_index=-1)
"""
NANOGPT_TRAIN = """
import os, sys, torch
from model import GPT, GPTConfig
torch.manual_seed(1337)
out_dir = sys.argv[-1].partition("=")[2]
assert sys.argv[1] == "config/train_shakespeare_char.py" and "--max_iters=2000" in sys.argv
os.makedirs(out_dir)
net = GPT(GPTConfig(16))
torch.save({"model_args": {"block_size": 16}, "model": net.state_dict()}, f"{out_dir}/ckpt.pt")
print("step 250: train loss 3.0000, val loss 3.0000")
for step in range(249, 252):
    print(f"iter {step}: loss 3.0000, time 500.00ms, mfu -100.00%")
"""
NANOGPT_PREPARE = """
import numpy as np
letters = np.fromfile("input.txt", np.uint8).astype(np.uint16) - ord("a")
letters[:900].tofile("train.bin")
letters[900:].tofile("val.bin")
"""


@pytest.fixture
def tiny_shakespeare(workdir, monkeypatch):
    """A thousand letters, a tiny recipe, and made-up code of the same shape as nanoGPT's."""
    letters = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, size=1000)
    text = bytes(letters.tolist())
    data = workdir / "nanoGPT/data/shakespeare_char"
    data.mkdir(parents=True)
    (data / "prepare.py").write_text(NANOGPT_PREPARE)
    (workdir / "nanoGPT/model.py").write_text(NANOGPT)
    (workdir / "nanoGPT/train.py").write_text(NANOGPT_TRAIN)
    (workdir / "input.txt").write_bytes(text)
    prepare(PrepareOptions("shakespeare", text="input.txt"))
    recipe = dict(
        n_layer=1, n_head=2, n_embd=16, n_hidden=16, block_size=16, batch_size=8, max_steps=20,
        warmup=5, eval_interval=10, compile="false")
    flags = [f"--{name}={value}" for name, value in recipe.items()]
    preset = PRESETS["shakespeare"]
    monkeypatch.setitem(PRESETS, "shakespeare", preset | recipe)
    monkeypatch.setattr(shakespeare, "OUR_FLAGS", [
        "--preset=shakespeare", "--device=cpu", "--dtype=bfloat16", "--quiet", *flags])

    def timed(arguments, folder):
        if folder != ".":
            return in_new_process(arguments, folder)
        done = run("train.py", *arguments[1:])      # a fork, which starts sooner
        assert done.returncode == 0, done.stderr
        return done.stdout, 1.0

    in_new_process = shakespeare.timed
    monkeypatch.setattr(shakespeare, "timed", timed)
    return workdir


def test_nanogpt_and_ours_take_turns(tiny_shakespeare, monkeypatch, capsys):
    """The first row of take_away is what train.py does. A finished run is not made again."""
    flags = ["--text=input.txt", "--json=f.json", "--seeds=1"]
    run_main("shakespeare", monkeypatch, *flags)
    results = json.load(open("f.json"))["results"]
    assert list(results) == ["nanoGPT", "ar", "mdlm", "aogpt"]
    [found] = results["nanoGPT"]
    assert found["training"] == 1.0
    torch.manual_seed(1337)
    table = torch.nn.Embedding(26, 26).weight
    letters = torch.tensor(list(open("input.txt", "rb").read())) - ord("a")
    log_p = table.log_softmax(dim=1)
    nll = -log_p[letters[:-1], letters[1:]]     # of all letters but the first
    windows = nll[899:979].view(5, 16)          # as Windows cuts 100 letters
    assert found["nats"] == approx(windows.mean().item(), abs=1e-5)
    assert found["second half"] == approx(windows[:, 8:].mean().item(), abs=1e-5)
    [ar], [aogpt] = results["ar"], results["aogpt"]
    assert "left to right" in aogpt
    again = shakespeare.run_without(set(), 1337)
    assert again["nats"] == approx(ar["nats"], abs=1e-6)

    (tiny_shakespeare / "nanoGPT/train.py").write_text(NANOGPT_TRAIN + "raise ValueError('twice')")
    run_main("shakespeare", monkeypatch, *flags)
    assert json.load(open("f.json"))["results"] == results
    with pytest.raises(InputError, match="ValueError: twice"):
        run_main("shakespeare", monkeypatch, *flags, "--seed=1", "--out=other")
    one_seed, other_seed = (
        torch.load(f"{out}/ckpt.pt")["model"]["next.weight"]
        for out in ("out/shakespeare/nanoGPT-1337", "other/nanoGPT-1"))
    assert not torch.equal(one_seed, other_seed)
    with pytest.raises(InputError, match="elsewhere/data/shakespeare_char is not there"):
        run_main("shakespeare", monkeypatch, *flags, "--nanogpt=elsewhere")


def test_differences_are_taken_away(tiny_shakespeare, monkeypatch):
    """Each of them changes the result."""
    run_main("shakespeare", monkeypatch, "--table=take_away", "--json=f.json", "--seeds=1")
    results = json.load(open("f.json"))["results"]
    nats = [found["nats"] for [found] in results.values()]
    assert len(nats) == len(set(nats)) == 12
    model = shakespeare.model_without(shakespeare.ALL, seed=1)
    kinds = {type(module).__name__ for module in model.modules()}
    assert {"LayerNorm", "GeluMLP"} <= kinds
    assert not {"RMSNorm", "MLP"} & kinds
    assert model.embed.weight.std().item() == approx(0.02, rel=0.1)
