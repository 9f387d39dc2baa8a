"""The experiments: a perfect network has no error, errors are what they are called, all commands run."""
import itertools
import json
import math
import random
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from cli import InputError
from conftest import experiment, small_model
from experiments import confounds, gpu_smoke, held_out, infill, orders, planners, steps
from experiments.held_out import HeldOutOptions
from experiments.oracle import choices_of, distance, toy_conditionals, toy_oracle
from model import evaluation_batch, losses_in_parts, mask_generator
from prepare_data import PrepareOptions, Tokenizer, Windows, prepare
from runs import load
from sample import SampleOptions, generate
from toy import TOY

WORDS = Tokenizer("words", words=TOY.words())


def stories(n):
    rng = random.Random(0)
    return [TOY.draw(rng) for _ in range(n)]


def as_tokens(texts):
    """(N, 48) with the end-of-text."""
    return torch.tensor([[*WORDS.encode(text), WORDS.eot] for text in texts])


def nats_of(x):
    """(N, 48) −log p of every token under the toy's law."""
    rows = []
    for ids in x.tolist():
        log_p = TOY.log_probs(WORDS.decode_story(ids))
        rows.append([*-log_p, 0.0])
    return np.array(rows)


def grammatical(x) -> float:
    good = [TOY.log_probs(WORDS.decode_story(ids)) is not None for ids in x.tolist()]
    return np.mean(good)


# ---- The perfect network -------------------------------------------------------------------------

def test_the_distance_of_the_law_from_itself_is_nil():
    figures = distance(stories(4000))
    assert figures["grammatical"] == 1
    assert abs(figures["kl"]) < 0.01
    assert abs(figures["surprise"]) < 0.15
    balls = [text for text in stories(4000) if " ball " in text]
    assert distance(balls * 2 + stories(4000))["kl"] > 0.05
    assert distance(["Lily ."] * 300 + stories(100))["grammatical"] == 0.25


def test_choices_tell_the_story_again():
    for text in stories(50):
        chosen = choices_of(text)
        assert TOY.tell(lambda name, before: chosen[name]) == text
        weights = [TOY.weights[name][i] for name, i in chosen.items()]
        assert np.log(weights).sum() == pytest.approx(TOY.log_probs(text).sum())


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
    tokens, _ = generate(oracle, range(20), blank, SampleOptions(**flags))
    if "steps" in flags:
        assert grammatical(tokens) < 1
    else:
        assert grammatical(tokens) == 1


@pytest.mark.parametrize("length", [1, 5])
def test_a_perfect_network_fills_blanks_by_the_law(length):
    x = as_tokens(stories(12))
    exact = infill.exact_nats(x, 10, length)
    left_alone = nats_of(x)[:, 10:10 + length].mean(axis=1)
    for mode in "mdlm", "aogpt", "ar":
        oracle = toy_oracle(mode)
        expected = left_alone if mode == "ar" else exact
        assert infill.nats(oracle, x, 10, length) == pytest.approx(expected, abs=1e-4)
        filled = infill.fill(oracle, x, 10, length, seed=1)
        changed = filled != x
        assert changed.sum() == changed[:, 10:10 + length].sum()
        assert grammatical(filled) == 1 or mode == "ar"


@pytest.mark.parametrize("rule, per_step, passes", [
    ("entropy", 1, 48),
    ("margin", 1, 48),
    ("confidence", 1, 48),
    ("bounded", 0.0, 15)])
def test_a_rule_that_looks_at_the_token_it_drew_is_biased_and_others_are_not(rule, per_step, passes):
    x, took = planners.write(toy_conditionals, rule, per_step, 100, seed=1)
    figures = distance([WORDS.decode_story(ids) for ids in x.tolist()])
    assert took.mean() == pytest.approx(passes, abs=3)
    assert figures["grammatical"] == 1
    if rule == "confidence":
        assert figures["kl"] > 1
    else:
        assert abs(figures["kl"]) < 0.2


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_a_perfect_network_knows_the_conditionals_and_scores_alike_in_any_order(mode):
    x = as_tokens(stories(5))
    for kl, error in planners.errors(toy_oracle(mode), x.numpy(), seed=1).values():
        assert abs(kl) < 1e-5
    blocks = orders.in_blocks(x, 16, mask_generator(0))
    backwards = torch.arange(47, -1, -1).expand(5, 48)
    for order in blocks, backwards:
        nats = orders.nats(toy_oracle(mode), x, order)
        assert nats == pytest.approx(nats_of(x).mean(axis=1), abs=1e-5)


# ---- Orders --------------------------------------------------------------------------------------

def test_blocks_are_shuffled_and_their_tokens_are_not():
    blocks = orders.in_blocks(torch.zeros(5, 48), 16, mask_generator(0))
    assert sorted(blocks[0].tolist()) == list(range(48))
    firsts = blocks[:, ::16]
    assert set(firsts.flatten().tolist()) == {0, 16, 32}
    assert len(set(blocks[:, 0].tolist())) > 1
    assert ((blocks.diff(dim=1) == 1).sum(dim=1) >= 45).all()


def test_the_mixture_over_orders():
    """Against the definition, order by order."""
    scores = np.random.default_rng(0).uniform(0.5, 1.5, size=(5, 3))
    p = np.exp(-4 * scores)
    found = orders.mixture(scores, T=4)
    assert list(found) == [1, 2, 4]
    pairs = np.stack([p[0] + p[1], p[2] + p[3]]) / 2
    assert found[1] == pytest.approx(scores.mean(axis=0))
    assert found[2] == pytest.approx(-np.log(pairs).mean(axis=0) / 4)
    assert found[4] == pytest.approx(-np.log(p[:4].mean(axis=0)) / 4)


def test_mdlm_order_by_order():
    """The mean over all orders is the bound that training estimates."""
    model = small_model("mdlm", block_size=4)
    x = torch.randint(model.config.bos_id, (2, 4))
    scores = []
    for order in itertools.permutations(range(4)):
        scores.append(orders.nats(model, x, torch.tensor([order, order])).numpy())
    batch = evaluation_batch(model.config, x.repeat_interleave(5000, dim=0), mask_generator(0))
    losses = losses_in_parts(model, batch).view(2, -1).numpy()
    error = losses.std(axis=1) / math.sqrt(5000)
    assert (abs(losses.mean(axis=1) - np.mean(scores, axis=0)) < 5 * error).all()
    assert (error < 0.02).all()
    assert np.std(scores, axis=0).min() > 1e-3


# ---- held_out: errors of stories and of seeds ----------------------------------------------------

def test_runs_are_compared_with_the_error_of_stories_and_seeds():
    rng = np.random.default_rng(0)
    of_stories = rng.normal(size=100)
    seeds = 0.1 * rng.normal(size=5)

    def runs(shift, of_seeds, noise=0):
        nats = [of_stories + noise + shift + seed for seed in of_seeds]
        return [{"nats": scores, "nats_l2r": scores - 1, "epochs": 1} for scores in nats]

    # Where stories differ alike, only seeds make an error, and it is Welch's.
    first, second = runs(0, seeds[:3]), runs(1, seeds[2:])
    found = held_out.compare(second, first)
    means = [[run["nats"].mean() for run in several] for several in (second, first)]
    welch = stats.ttest_ind(*means, equal_var=False)
    assert found["above"] / found["error"] == pytest.approx(welch.statistic)
    low, high = welch.confidence_interval()
    assert found["half"] == pytest.approx((high - low) / 2)

    # Networks beside themselves, and a run without other seeds.
    assert held_out.compare(first, first, "nats_l2r")["error"] < 1e-9
    assert held_out.compare(second[:1], first)["error"] > found["error"]

    # Where stories make most of the error, it is known better.
    noise = rng.normal(size=100)
    noisy = held_out.compare(runs(1, seeds[2:], noise), first)
    assert 1.96 * noisy["error"] < noisy["half"] < noisy["error"] * stats.t.ppf(0.975, welch.df)

    # Stories alone: ten neighbours make a group.
    alone = held_out.compare(runs(1, seeds[:1], noise), runs(0, seeds[:1]))
    groups = noise.reshape(10, 10).mean(axis=1)
    assert alone["error"] == pytest.approx(stats.sem(groups))
    assert alone["half"] == pytest.approx(alone["error"] * stats.t.ppf(0.975, 9))


@pytest.mark.parametrize("mode", ["ar", "mdlm"])
def test_stories_without_their_end(mode):
    """Nothing changes where there is no end-of-text; its nats are left out where there is one."""
    model = small_model(mode)
    config = model.config
    with_end, without = [HeldOutOptions(draws=3, without_end=flag) for flag in (False, True)]
    x = torch.randint(config.bos_id, (6, 8))
    assert held_out.score(model, x, without) == pytest.approx(held_out.score(model, x, with_end))
    x[:, 2] = config.bos_id
    found = held_out.score(model, x, without)
    assert not np.allclose(found, held_out.score(model, x, with_end))
    if mode == "ar":
        batch = evaluation_batch(config, x, None)
        with torch.no_grad():
            logits = model(batch.tokens, batch.key_pos, batch.target_pos)
        nll = F.cross_entropy(logits.mT, x, reduction="none")                   # (6, 8)
        expected = (nll.sum(dim=1) - nll[:, 2]) / 7
        assert found == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.fixture(scope="session")
def with_others(trained):
    """The runs, and stories by which nothing was chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(trained)
        prepare(PrepareOptions(name="others", max_tokens=30_000, seed=9))
    return trained


def test_held_out(with_others, monkeypatch):
    """The numbers of best.pt on other stories, which are stored; what is above itself is nothing."""
    flags = ["--report=others", "--block_size=48", "--draws=2", "--json=held.json"]
    done = experiment("held_out", "ar=out/ar,out/ar", "mdlm=out/mdlm", "aogpt=out/aogpt",
                      "--plot=g.png", *flags, cwd=with_others)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(with_others)
    content = json.load(open("held.json"))
    model, _ = load("out/ar/best.pt")
    x = torch.from_numpy(Windows("others", "val", 48).spread(10 ** 9))
    exact = losses_in_parts(model, evaluation_batch(model.config, x, None)).mean().item()
    compared = content["compared"]
    assert list(compared) == ["ar", "mdlm", "aogpt", "aogpt, left to right"]
    assert compared["ar"]["seeds"] == pytest.approx([exact, exact])
    assert compared["ar"]["above"] == 0

    # A run whose folder is gone is compared by the scores in the file.
    content["runs"]["out/gone"] = content["runs"]["out/ar"] | {"nats": [9.0] * len(x)}
    json.dump(content, open("held.json", "w"))
    done = experiment("held_out", "ar=out/ar", "gone=out/gone", *flags, cwd=with_others)
    assert done.returncode == 0, done.stderr
    assert json.load(open("held.json"))["runs"] == content["runs"]
    assert "9.0000" in done.stdout

    done = experiment("held_out", "ar=out/ar", "--report=t", "--block_size=48", cwd=with_others)
    assert done.returncode == 2
    assert "the stories of data/t chose out/ar/best.pt" in done.stderr


def test_confounds(tmp_path, monkeypatch, capsys):
    """The gap is between a variant of both modes, with its partner's, or with what ar is otherwise."""
    levels = {
        "mdlm": {"as it is": 3, "AdamW": 3.5, "masked_ce": 3.2, "its init, untied head": 4},
        "ar": {"as it is": 2, "AdamW": 2.1, "its init": 3.75}}
    for mode, variants in levels.items():
        names = {}
        runs = {}
        for name, nats in variants.items():
            folders = [f"{nats}-{seed}" for seed in range(3)]
            names[name] = ",".join(folders)
            for seed, folder in enumerate(folders):
                runs[folder] = {"nats": [nats + seed / 100] * 20, "epochs": 1}
        (tmp_path / f"{mode}.json").write_text(json.dumps({"names": names, "runs": runs}))
    monkeypatch.chdir(tmp_path)
    run_main(confounds, monkeypatch, "--mdlm=mdlm.json", "--ar=ar.json", "--json=gaps.json")
    gaps = json.load(open("gaps.json"))["gaps"]
    found = {name: gap["above"] for name, gap in gaps.items()}
    expected = {"as it is": 1, "AdamW": 1.4, "masked_ce": 1.2, "its init, untied head": 0.25}
    assert found == pytest.approx(expected)
    assert "3.510 ± 0.010  2.110 ± 0.010          1.400 ± 0.008" in capsys.readouterr().out


# ---- Every command runs --------------------------------------------------------------------------

def run_main(module, monkeypatch, *flags):
    name = module.__name__.removeprefix("experiments.")
    monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *flags])
    module.main()


def test_estimator(trained):
    done = experiment("estimator", "--models=out/mdlm", "--repeats=2", "--json=e.json", cwd=trained)
    assert done.returncode == 0, done.stderr
    content = json.load(open(trained / "e.json"))
    assert content["command"].startswith("python -m experiments.estimator")
    assert len(content["results"]["out/mdlm"]) == 3
    done = experiment("estimator", "--models=out/ar", cwd=trained)
    assert done.returncode == 2
    assert "out/ar is a run of ar" in done.stderr


@pytest.mark.parametrize("module, small, flags", [
    (steps, dict(STEPS=(6,), DRAFTS=(4,)), ["--models=out/ar,out/mdlm,out/aogpt", "--num_samples=5",
                                            "--plot=f.png"]),
    (planners, dict(PER_STEP=(16,), BOUNDS=(0.5,), MASKED=(4, 47)), ["--models=out/mdlm,out/aogpt",
                                                                     "--num_samples=5"]),
    (infill, dict(LENGTHS=(1, 3)), ["--models=out/ar,out/mdlm,out/aogpt", "--data=t", "--windows=9",
                                    "--plot=f.png"]),
    (orders, dict(BLOCKS=(16,)), ["a=out/aogpt,out/aogpt", "--data=t", "--windows=9",
                                  "--orders=2"]),
    (gpu_smoke, {}, ["--device=cpu", "--preset=small", "--n_layer=1", "--n_embd=16",
                     "--n_hidden=16", "--steps=2"])])
def test_the_others(trained, monkeypatch, capsys, module, small, flags):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(torch, "compile", lambda of, **_: of)
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    run_main(module, monkeypatch, *flags, "--json=f.json")
    assert capsys.readouterr().out
    assert json.load(open("f.json"))["command"].startswith(f"python -m {module.__name__}")
    if "--plot=f.png" in flags:
        assert (trained / "f.png").stat().st_size > 5000
    if module in (steps, planners, infill):
        with pytest.raises(InputError, match="which models"):
            run_main(module, monkeypatch)
