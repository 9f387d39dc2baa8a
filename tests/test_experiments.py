"""The experiments: a perfect network makes no error, and all commands run."""
import importlib
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from pytest import approx
from scipy import stats

import model as plain
from conftest import TINY, run, small_model
from experiments import (
    blanks, denoiser, dial, gradient, held_out, learning, mapping, report, shakespeare,
    texts)
from experiments.oracle import (
    choices_of, distance, exact_conditionals, toy_conditionals, toy_oracle)
from variants import blocks
from prepare_data import PrepareOptions, Windows, prepare
from tokenizer import Tokenizer
from sample import SampleOptions
from support.flags import ROOT, InputError
from support.runs import ORIGIN, random_numbers
from test_toy import close, enumerate_stories
from tokenizer import split_words
from worlds.toy import TOY, Grammar, choice
from train import PRESETS, window_losses

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


def nats_of(x):
    """(N,) −log p per token of the stories of x (N, 48), which are all grammatical."""
    log_p = [TOY.log_probs(WORDS.decode_story(ids)) for ids in x.tolist()]
    return np.array([-log_p_of_words.sum() / 48 for log_p_of_words in log_p])


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


SMALL = {               # every story has nine words
    "story": choice("1 {who} saw a {thing}. {Pronoun} {did}."),
    "who": choice("3 Ann | 1 Bob"),
    "thing": choice("2 cat | 1 {wrap}"),        # a choice that is named by what is named
    "wrap": choice("1 {fruit}"),
    "fruit": choice("1 fig | 3 plum"),
    "Pronoun": ("who", ["She", "He"]),
    "did": choice("1 hid {=thing} | 4 ran {how}"),
    "how": choice("1 fast | 2 home"),
}


def test_the_perfect_network_knows_every_word_given_any_others():
    """Against every story of a small grammar. Where none fits, it takes the nearest ones."""
    grammar = Grammar(SMALL)
    vocabulary = grammar.words()
    stories = enumerate_stories(grammar)
    law = np.array([*stories.values()])                                         # (18,)
    x = []
    for story in stories:
        x.append([vocabulary.index(word) for word in split_words(story)])
    x = np.array(x)                                                             # (18, 9)
    one_hot = np.eye(len(vocabulary))[x]                                        # (18, 9, V)

    def law_of(some):
        """(9, V) of a word at each place, if the story is one of some (18,)."""
        p = law * some
        return np.einsum("k,kwv->wv", p / p.sum(), one_hot)

    known = np.array(list(itertools.product([False, True], repeat=9)))          # (512, 9)
    for story in x:
        found = exact_conditionals(grammar, np.where(known, story, -1))         # (512, 9, V)
        for subset, p in zip(known, found):
            fits = (x[:, subset] == story[subset]).all(axis=1)                  # (18,)
            assert close(p, law_of(fits))
    bob_is_no_she = [vocabulary.index(word) for word in "Bob saw a cat . She".split()]
    given = np.array([*bob_is_no_she, -1, -1, -1])
    agree = (x == given).sum(axis=1)                                            # (18,)
    [p] = exact_conditionals(grammar, given[None])
    assert agree.max() == 5
    assert close(p, law_of(agree == 5))


def test_choices_tell_the_story_again():
    for text in stories(50):
        chosen = choices_of(text)
        assert TOY.tell(lambda name, before: chosen[name]) == text
        log_p = 0.0
        for name, i in chosen.items():
            log_p += math.log(TOY.weights[name][i])
        assert log_p == approx(TOY.log_probs(text).sum())


@pytest.mark.parametrize("mode, N, sampler, settings, passes", [
    ("mdlm", None, "first_hitting", {}, 48),
    ("mdlm", None, "first_hitting", {"steps": 12}, 12),
    ("mdlm", None, "ancestral", {"steps": 48}, 32),
    ("mdlm", None, "confidence", {}, 48),
    ("mdlm", None, "adaptive", {"risk": 0.01}, 15),
    ("mdlm", None, "threshold", {"surety": 1.0}, 21),
    ("mdlm", None, "remask", {"steps": 48, "eta": 0.1}, 48),
    ("mdlm", 8, "adaptive", {"risk": 0.01}, 15),
    ("aogpt", None, "draft", {"draft": 16}, 9)])
def test_what_a_perfect_network_writes(mode, N, sampler, settings, passes):
    """Broken stories are the fault of several tokens a pass that do not know of each other.

    And a rule that looks at the token it drew is biased."""
    oracle = toy_oracle(mode, N)
    found = denoiser.write(oracle, blocks if N else plain, WORDS, 100, sampler, settings)
    assert found["passes"] == approx(passes, abs=3)
    assert found["tokens_per_pass"] == approx(48 / found["passes"])
    breaks = sampler in ("ancestral", "remask") or settings.get("steps", 48) < 48
    assert (found["grammatical"] < 0.95) == breaks
    if not breaks:
        assert (abs(found["kl"]) > 0.2) == (sampler == "confidence")


@pytest.mark.parametrize("length", [1, 5])
def test_a_perfect_network_fills_blanks_by_the_law(length):
    x = as_tokens(stories(12))
    expected = np.zeros(len(x))
    for place in range(10, 10 + length):
        known = x.numpy().copy()
        known[:, place:10 + length] = 135       # no word has this number
        p = toy_conditionals(known)                                             # (N, T, V)
        expected -= np.log(p[np.arange(len(x)), place, x[:, place]]) / length
    for mode in "mdlm", "aogpt":
        found = blanks.nats(toy_oracle(mode), plain, x, 10, length)
        assert found.numpy() == approx(expected, abs=1e-4)
    # ar sees the left side alone.
    expected = []
    for ids in x.tolist():
        log_p = TOY.log_probs(WORDS.decode_story(ids))
        expected.append(-log_p[10:10 + length].mean())
    found = blanks.nats(toy_oracle("ar"), plain, x, 10, length)
    assert found.numpy() == approx(expected, abs=1e-4)


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_a_perfect_network_knows_the_conditionals_in_any_order(mode):
    x = as_tokens(stories(5))
    shuffled = torch.rand(x.shape, generator=random_numbers(0)).argsort(dim=1)
    for order in shuffled, shuffled.sort(dim=1, descending=True).values:
        found = held_out.nats(toy_oracle(mode), x, order)
        assert found.numpy() == approx(nats_of(x), abs=1e-5)


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_block_by_block_the_law_is_the_law(mode):
    x = as_tokens(stories(5))
    for N in 1, 7:
        assert abs(dial.above_law(toy_oracle(mode, N), blocks, x)) < 1e-6
    losses = window_losses(toy_oracle(mode, 1), blocks, x, seed=0)
    assert losses.numpy() == approx(nats_of(x), abs=1e-5)


def test_dial(workdir, monkeypatch):
    prepare(PrepareOptions(max_tokens=30_000))
    for mode in "mdlm", "aogpt":
        flags = [*TINY, "--data=toy", f"--mode={mode}", "--variant=blocks", "--block_length=8"]
        done = run("train.py", *flags, f"--out_dir=out/dial-toy/{mode}-8-1")
        assert done.returncode == 0, done.stderr
    flags = ["--num_samples=4", "--json=f.json", "--plot=f.png"]
    run_main("dial", monkeypatch, *flags)
    content = json.load(open("f.json"))
    assert list(content["runs"]) == ["out/dial-toy/aogpt-8-1", "out/dial-toy/mdlm-8-1"]
    assert content["runs"]["out/dial-toy/mdlm-8-1"]["dtype"] in ("float32", "bfloat16")
    rows = content["rows"]
    assert [row["network"] for row in rows] == ["aogpt", "mdlm", "the law"]
    assert rows[2]["1 a pass"] == 1
    for row in rows[:2]:
        assert 1 < row["above the law"] < 6
    assert (workdir / "f.png").stat().st_size > 5000
    with pytest.raises(InputError, match="there are no runs"):
        run_main("dial", monkeypatch, "--text=stories")


def test_the_noise_scale_is_the_batch_whose_noise_is_as_large_as_its_mean(workdir, monkeypatch):
    """Gradients of known mean, norm 5, and noise of variance 8 in all."""
    generator = torch.Generator().manual_seed(0)

    def noisy(model, losses, batch):
        return torch.tensor([3.0, 4.0]) + 2 * torch.randn(2, generator=generator)

    monkeypatch.setattr(gradient, "gradient", noisy)
    model = small_model("mdlm", vocab_size=135, block_size=48)
    prepare(PrepareOptions(max_tokens=30_000))
    windows = Windows("toy", "train", 48)
    found = gradient.measure(
        model, plain, windows, gradient.GradientOptions(batch_size=10, draws=4000))
    expected = {"noise scale": approx(10 * 8 / 25, rel=0.05), "cosine": approx(1, abs=0.01)}
    assert found == {recipe: expected for recipe in gradient.RECIPES}


def test_distances_and_shares(monkeypatch):
    """Beside a loop; and the mean over shares is the bound of the same masks."""
    hidden = torch.rand(50, 24, generator=torch.Generator().manual_seed(0)) < 0.8
    hidden[:, 0] = False
    found = learning.distance_to_visible(hidden)
    for row, distances in zip(hidden.tolist(), found.tolist()):
        visible = [slot for slot, is_hidden in enumerate(row) if not is_hidden]
        assert distances == [min(abs(slot - other) for other in visible) for slot in range(24)]
    model = small_model("mdlm")
    x = torch.randint(model.config.vocab_size - 1, (4, 8), generator=random_numbers(1))
    found = learning.measure(model, x, draws=2)
    batch = plain.bound_batch(model.config, x.repeat_interleave(4, dim=0), random_numbers(1337))
    bound = plain.losses(model, batch, batch.select()).mean().item()
    assert np.mean(found["by share"]) == approx(bound, rel=1e-5)
    assert found["bound"] == approx(bound, rel=1e-5)
    assert sum(found["how often"].values()) == approx(1)


def test_what_is_masked_again():
    """As many tokens are known after each pass as without, and of the known ones half are new."""
    model = small_model("mdlm")
    generator = random_numbers(0)
    tokens = torch.full((20, 8), model.config.mask_id)
    for eta, expected in (0.0, [0, 0, 0, 0]), (0.5, [0, 1, 2, 0]):
        u = torch.rand(9, 20, 8, generator=generator).double()
        noise = iter(u[1:])
        passes = denoiser.mask_again(
            model, tokens, u[0], lambda n: next(noise), SampleOptions(steps=4), eta)
        masked = torch.stack([tokens, *passes]) == model.config.mask_id         # (5, 20, 8)
        again = masked[1:] & ~masked[:-1]                                       # (4, 20, 8)
        for story in range(20):
            assert masked[:, story].sum(dim=1).tolist() == [8, 6, 4, 2, 0]
            assert again[:, story].sum(dim=1).tolist() == expected


# ---- Runs on other stories, in other orders, and on few ------------------------------------------

def test_the_mean_over_orders():
    """Against the definition, order by order."""
    scores = torch.rand(4, 3, generator=random_numbers(0)).double()
    p = torch.exp(-4 * scores)
    found = held_out.of_the_mean(scores, T=4)
    assert found.numpy() == approx((-p.mean(dim=0).log() / 4).numpy())
    assert (found < scores.mean(dim=0)).all()


def test_scores_of_neighbours_and_their_error():
    """Neighbours share text, so ten of them count as one."""
    scores = torch.rand(100, generator=random_numbers(0))
    of_tens = held_out.of_neighbours(scores)
    assert of_tens == approx(scores.view(10, 10).mean(dim=1).tolist(), abs=1e-5)
    assert held_out.of_neighbours(scores[:99]) == of_tens[:9]
    with pytest.raises(InputError, match="too few"):
        held_out.of_neighbours(scores[:19])
    assert held_out.error_of(of_tens) == approx(stats.sem(of_tens))


def test_held_out(trained, monkeypatch):
    """Exact from left to right, each run has one score, whichever way is asked for."""
    monkeypatch.chdir(trained)
    flags = ["--runs=out/ar,out/mdlm,out/aogpt", "--data=t", "--windows=20", "--draws=2"]

    def scores(*more):
        run_main("held_out", monkeypatch, *flags, *more, "--json=held.json")
        runs = json.load(open("held.json"))["runs"]
        assert all(set(ORIGIN) <= run.keys() for run in runs.values())
        return [run["scores"] for run in runs.values()]

    ar, _, aogpt = scores("--plot=h.png")
    assert (list(ar), list(aogpt)) == (["bound"], ["bound", "left to right"])
    ar_in_order, _, in_orders = scores("--orders=2")
    assert ar_in_order == {"left to right": ar["bound"]}
    assert in_orders["left to right"] == aogpt["left to right"]
    assert list(in_orders) == ["left to right", "right to left", "random", "mean of 2"]
    for in_this_order, in_all in zip(scores("--left_to_right=true"), scores("--orders=1")):
        assert in_this_order == {"left to right": in_all["left to right"]}


def test_the_best_of_few_stories_are_those_of_the_lowest_loss_at_the_end():
    lowest = {}         # {(mode, help): (loss that chooses, run)} of seed 1
    for folder, run in report.DATA["few"]["runs"].items():
        name, _, seed = folder.split("/")[-1].rpartition("-")
        mode, help, _ = name.split("-")
        losses = [loss for _, loss in run["curve"]]
        if seed == "1" and run["scores"] and losses[-1] == min(losses):
            of_mode = mode, help == "plain"
            lowest[of_mode] = min(lowest.get(of_mode, (10, "")), (losses[-1], name))
    assert {name for _, name in lowest.values()} == {f"{name}-{steps}" for name, steps in report.BEST.items()}


def test_openings(trained, monkeypatch):
    """Texts that begin with the same word are told from those that are free, real ones too."""
    monkeypatch.chdir(trained)
    os.mkdir("openings")
    for seed in "1", "2":
        for start in "", "One":
            done = run("sample.py", "--out_dir=out/ar", "--num_samples=30", "--length=9",
                       "--full_length=true", f"--prompt={start}", f"--seed={seed}",
                       f"--out=openings/{start}{seed}.jsonl", cwd=trained)
            assert done.returncode == 0, done.stderr
    run_main("openings", monkeypatch, "--folder=openings", "--data=t", "--json=o.json")
    facts = json.load(open("o.json"))
    cells = facts["cells"]
    assert list(facts["runs"]) == ["out/ar"]
    assert sorted(cells) == [
        "aligned, One, plain, ar", "aligned, One, real text",
        "aligned, free, plain, ar", "aligned, free, real text"]
    most_common = {name: cell["most common first word"] for name, cell in cells.items()}
    # By ar a letter may follow the word.
    assert max(most_common["aligned, free, plain, ar"]) < 0.5
    assert min(most_common["aligned, One, plain, ar"]) > 0.5
    assert most_common["aligned, One, real text"] == [1]
    assert most_common["aligned, free, real text"][0] < 1
    assert facts["real texts"]["aligned, One, real text"] == 30


def test_the_luck_of_masks():
    """Taken out, what few masks say is what endless ones would, if a token costs s²."""
    many = mapping.draw_shares(10 ** 6, random_numbers(0))
    assert mapping.luck(many) == approx(1, abs=0.01)
    few = mapping.draw_shares(20, random_numbers(0))
    loss = (few ** 3).sum() / few.sum()
    logged = [{"val_nll": 1 / 3, "val_masked_ce": float(loss)}]
    assert mapping.pairs(logged, mapping.luck(few)) == [(0.625, 0.3333)]


def test_mapping(trained, monkeypatch, capsys):
    """On a notebook whose runs lie on a parabola, up to the luck of each seed."""
    def run_of(seed):
        factor = mapping.luck(mapping.shares_of_notebook(seed))
        curve = []
        for loss in 3.0, 4.0, 5.0, 6.0:
            bound = loss ** 2 / 6
            curve.append({"val_nll": bound, "val_masked_ce": bound + factor * (loss - bound)})
        return {"command": f"train.py --seed={seed}", "curve": curve}

    runs = {f"out/mdlm-{seed}": run_of(seed) for seed in (1, 2)}
    runs["out/ar-1"] = {"curve": [{"val_nll": 2.0}]}
    monkeypatch.setattr(mapping, "git", lambda *_: json.dumps({"runs": runs}))
    monkeypatch.chdir(trained)
    run_main("mapping", monkeypatch, "--runs=out/mdlm", "--json=f.json", "--plot=f.png")
    found = json.load(open("f.json"))
    assert found["bound"] == approx(3.412 ** 2 / 6, abs=1e-3)
    assert found["spread"] == approx(0, abs=1e-3)
    assert len(found["notebook"]) == 2
    assert set(ORIGIN) <= found["runs"]["out/mdlm"].keys()
    assert "is a bound of 1.94" in capsys.readouterr().out
    with pytest.raises(InputError, match="no run of mdlm"):
        run_main("mapping", monkeypatch, "--runs=out/ar")
    monkeypatch.setattr(mapping, "git", lambda *_: "")
    with pytest.raises(InputError, match="history"):
        run_main("mapping", monkeypatch)


# ---- The very stories ----------------------------------------------------------------------------

def test_each_story_has_a_fingerprint_of_its_own():
    fingerprints = texts.FINGERPRINTS.read_text().split()
    assert len(set(fingerprints)) == len(fingerprints) == 5717
    assert {len(mark) for mark in fingerprints} == {texts.DIGITS}


@pytest.fixture
def corpus(workdir, monkeypatch):
    """A corpus in two files, in which the stories to be found stand among others, and some twice.

    `datasets` gives its lines, as of a text file."""
    wanted = [f"Story {i}.\nIt ends." for i in range(710)]
    mixed = [f"Another {i}." for i in range(2000)] + wanted + wanted[:50]
    random.Random(0).shuffle(mixed)
    files = {"valid": texts.joined(mixed[:1000]), "train": texts.joined(mixed[1000:])}
    for name, text in files.items():
        (workdir / f"{name}.txt").write_text(text)

    def load_dataset(path, split, streaming, data_files=""):
        for name, text in files.items():
            if data_files.endswith(f"-{name}.txt"):
                yield from [{"text": line} for line in text.split("\n")]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    fingerprints = workdir / "stories.txt"
    fingerprints.write_text("\n".join(map(texts.fingerprint, wanted)))
    monkeypatch.setattr(texts, "FINGERPRINTS", fingerprints)
    monkeypatch.setattr(texts, "WHOLE", texts.sha256(texts.joined(wanted)))
    (workdir / "first.txt").write_text(texts.joined(wanted[:410]))
    (workdir / "last.txt").write_text(texts.joined(wanted[410:]))
    return wanted


def test_stories_are_picked_out_of_a_corpus(gpt2, corpus, workdir, monkeypatch):
    """Downloaded, in files, or by themselves, they make the same data."""
    made = []
    for flags in [], ["--corpus=valid.txt,train.txt"], ["--train=first.txt", "--valid=last.txt"]:
        run_main("texts", monkeypatch, *flags)
        files = [*workdir.glob("data/*.txt"), *workdir.glob("data/*/*.bin")]
        made.append({file: file.read_bytes() for file in files})
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 7
    assert made[0][workdir / "data/stories-unseen.txt"].decode() == texts.joined(corpus[10:410])


def test_what_is_missing_is_said(corpus, monkeypatch):
    with pytest.raises(InputError, match="300 of 710 stories .* first with the fingerprint"):
        run_main("texts", monkeypatch, "--corpus=first.txt")
    monkeypatch.setattr(texts, "WHOLE", "0")
    with pytest.raises(InputError, match="the stories differ"):
        run_main("texts", monkeypatch, "--corpus=train.txt,valid.txt")
    with pytest.raises(InputError, match="give both"):
        run_main("texts", monkeypatch, "--train=first.txt")


# ---- Made again ----------------------------------------------------------------------------------

# It writes what it was asked for into a file, and leaves what run_all.sh looks for.
STUB = """#!/bin/sh
[ "$1" = -c ] && exit
echo "$*" >> asked
for argument; do
    file=${argument#*=}
    case $argument in
        --out_dir=*) mkdir -p $file; [ $1 = train.py ] && echo final_nll > $file/log.jsonl ;;
        --json=* | --out=* | --picture=*) touch $file ;;
    esac
done
exit 0
"""


@pytest.fixture
def run_all(workdir):
    """Calls run_all.sh with a python that only notes how it was called, and returns these notes."""
    (workdir / "bin").mkdir()
    (workdir / "bin/python").write_text(STUB)
    (workdir / "bin/python").chmod(0o755)
    for folder in "nanoGPT", "arche", "data/toy", "data/unseen", "results/data":
        (workdir / folder).mkdir(parents=True)

    def call(*arguments, fails=False):
        (workdir / "asked").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", ROOT / "experiments/run_all.sh", *arguments], capture_output=True, text=True,
            env=os.environ | {"PATH": f"{workdir}/bin:{os.environ['PATH']}"})
        assert bool(done.returncode) == fails, done.stderr
        if fails or "--list" in arguments:
            return done.stdout + done.stderr
        return (workdir / "asked").read_text().splitlines()

    return call


def test_a_group_trains_what_it_measures(run_all, workdir):
    """Each alone, from nothing; and all together make no other runs."""
    def from_nothing(*groups):
        for folder in "out", "results":
            shutil.rmtree(workdir / folder, ignore_errors=True)
        return run_all(*groups)

    _, *lines = run_all("--list").split("\n\n")[0].splitlines()
    asked = set()
    for line in lines:
        group, *_ = line.split()
        calls = from_nothing(group)
        trained = {re.search(r"--out_dir=(\S+)", call)[1] for call in calls if "train.py" in call}
        for call in calls:
            used = set(re.findall(r"\bout/(?!written)[\w/.-]+[\w]", call))
            assert used <= trained, (group, call)
        asked |= set(calls)
    assert set(from_nothing()) == asked | {"-m experiments.report"}
    assert len([call for call in asked if call.startswith("train.py")]) > 160


def test_a_file_is_made_again_only_if_that_is_asked_for(run_all, workdir):
    old = "results/data/gradient.json"
    assert old.replace(".json", ".part.json") in run_all("gradient")[-1]
    run_all("gradient", "rates")
    assert all("gradient" not in call for call in run_all("rates", "orders"))
    *_, made, compared = run_all("gradient", "--again")
    assert "--json=results/again/gradient.part.json" in made
    assert compared == f"-m experiments.agree {old}=results/again/gradient.json"
    assert "no group gradients" in run_all("gradients", fails=True)


def test_numbers_agree_within_their_errors(workdir, monkeypatch, capsys):
    def content(bound, nats, scores, seconds, solved):
        rows = [
            {"network": "ar", "N": 1, "bound": bound, "± s.e.": 0.1, "step, s": seconds},
            {"network": "ar", "N": 2, "solved": [solved, 0.01]}]
        runs = {}
        for seed in 1, 2, 3:
            runs[f"out/few/ar-{seed}"] = {"nats": nats + seed, "scores": {"x": scores}}
        return {"seed": 1, "machine": "a", "rows": rows, "runs": runs}

    def compared(*new):
        for name, values in ("old", [2.0, 5.0, [1.0, 2.0, 3.0], 7, 0.5]), ("new", new):
            (workdir / f"{name}.json").write_text(json.dumps(content(*values)))
        run_main("agree", monkeypatch, "old.json=new.json")
        return capsys.readouterr().out

    # The errors are 0.1, 1 over the seeds, 0.577 and 0.01, and of a difference √2 times as much.
    assert "8 of 8 numbers" in compared(2.42, 9.2, [3.4, 4.4, 5.4], 70, 0.54)
    assert "7 of 8" in compared(2.43, 5.0, [1.0, 2.0, 3.0], 7, 0.5)
    assert "5 of 8" in compared(2.0, 9.3, [1.0, 2.0, 3.0], 7, 0.5)
    assert "5 of 8" in compared(2.0, 5.0, [3.5, 4.5, 5.5], 7, 0.5)
    lines = compared(2.0, 5.0, [1.0, 2.0, 3.0], 7, 0.6).splitlines()
    assert lines[0] == "new.json: 7 of 8 numbers agree, and 0 are in one file alone"
    assert lines[1].startswith("  rows / ar, 2 / solved: 0.5, now 0.6, 2.4 of")


# ---- Every command runs --------------------------------------------------------------------------

def run_main(name, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *flags])
    importlib.import_module(f"experiments.{name}").main()


RUNS = "ar=out/ar", "mdlm=out/mdlm", "aogpt=out/aogpt"
FEW_SAMPLERS = {
    "ar": {"left_to_right": {}},
    "mdlm": {"first_hitting": {"steps": [12]}, "remask": {"steps": [12], "eta": [0.1]}},
    "aogpt": {"draft": {"draft": [16]}}}


@pytest.mark.parametrize("name, constants, flags, refused", [
    ("denoiser", {"AT_ONCE": [1, 2], "SAMPLERS": FEW_SAMPLERS},
     [*RUNS, "--num_samples=2", "--seconds=1", "--plot=f.png"], "give NAME=FOLDER"),
    ("blanks", {"LENGTHS": [1, 3]},
     ["--models=out/ar,out/mdlm,out/aogpt", "--data=t", "--windows=20", "--plot=f.png"],
     "which models"),
    ("gradient", {}, ["a=out/mdlm", "b=out/ar", "--draws=3"], "give NAME=FOLDER"),
    ("learning", {}, ["--runs=out/mdlm", "--windows=20"], "which runs")])
def test_commands(trained, monkeypatch, name, constants, flags, refused):
    monkeypatch.chdir(trained)
    for constant, value in constants.items():
        monkeypatch.setattr(f"experiments.{name}.{constant}", value)
    run_main(name, monkeypatch, *flags, "--json=f.json")
    content = json.load(open("f.json"))
    assert content["command"].startswith(f"python -m experiments.{name}")
    assert "--plot=f.png" not in flags or (trained / "f.png").stat().st_size > 5000
    with pytest.raises(InputError, match=refused):
        run_main(name, monkeypatch)


def test_first_steps(trained, monkeypatch, capsys):
    """Who knows more of the text has fewer nats, and the first loss lies near ln V."""
    monkeypatch.chdir(trained)
    run_main("first_steps", monkeypatch, "mdlm=out/mdlm", "ar=out/ar", "--plot=steps.png")
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    nats = [float(said[name]) for name in ("nothing", "frequencies", "places", "law")]
    assert nats == sorted(nats, reverse=True)
    assert nats == pytest.approx([4.905, 4.30, 0.99, 0.39], abs=0.1)
    for name in "ar", "mdlm":
        first, *_ = map(float, said[name].split())
        assert first == pytest.approx(nats[0], abs=1)
    assert (trained / "steps.png").stat().st_size > 5000


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
    (workdir / "data/shakespeare").mkdir(parents=True)
    (workdir / shakespeare.TEXT).write_bytes(text)
    prepare(PrepareOptions("shakespeare"))
    recipe = dict(
        n_layer=1, n_head=2, n_embd=16, n_hidden=16, block_size=16, batch_size=8, max_steps=20,
        warmup=5, eval_interval=10, compile="false")
    flags = [f"--{name}={value}" for name, value in recipe.items()]
    preset = PRESETS["shakespeare"]
    monkeypatch.setitem(PRESETS, "shakespeare", preset | recipe)
    monkeypatch.setattr(shakespeare, "OUR_FLAGS", [
        "--preset=shakespeare", "--device=cpu", "--dtype=bfloat16", "--quiet", *flags])

    def python(arguments, folder):
        if folder != ".":
            return in_new_process(arguments, folder)
        done = run("train.py", *arguments[1:])      # a fork, which starts sooner
        assert done.returncode == 0, done.stderr

    in_new_process = shakespeare.python
    monkeypatch.setattr(shakespeare, "python", python)
    return workdir


def test_nanogpt_and_ours_take_turns(tiny_shakespeare, monkeypatch):
    """A finished run is not made again."""
    flags = ["--json=f.json", "--seeds=1"]
    run_main("shakespeare", monkeypatch, *flags)
    results = json.load(open("f.json"))["results"]
    assert list(results) == ["nanoGPT", "ar", "mdlm", "aogpt"]
    [found] = results["nanoGPT"]
    torch.manual_seed(1337)
    table = torch.nn.Embedding(26, 26).weight
    letters = torch.tensor(list(open(shakespeare.TEXT, "rb").read())) - ord("a")
    log_p = table.log_softmax(dim=1)
    nll = -log_p[letters[:-1], letters[1:]]     # of all letters but the first
    windows = nll[899:979].view(5, 16)          # as Windows cuts 100 letters
    assert found["nats"] == approx(windows.mean().item(), abs=1e-5)
    assert found["second half"] == approx(windows[:, 8:].mean().item(), abs=1e-5)
    (tiny_shakespeare / "nanoGPT/train.py").write_text("raise ValueError('twice')")
    run_main("shakespeare", monkeypatch, *flags)
    assert json.load(open("f.json"))["results"] == results


def test_differences_are_taken_away(tiny_shakespeare, monkeypatch):
    """The first row is what train.py does, and each difference changes the result."""
    run_main("shakespeare", monkeypatch, "--table=take_away", "--json=f.json", "--seeds=1")
    results = json.load(open("f.json"))["results"]
    nats = [found["nats"] for [found] in results.values()]
    assert len(nats) == len(set(nats)) == 12
    ours = shakespeare.run_ours(shakespeare.ShakespeareOptions(), "ar", 1337)
    assert nats[0] == approx(ours["nats"], abs=1e-6)
