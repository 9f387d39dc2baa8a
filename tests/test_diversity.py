"""Each metric against worked examples, brute force and nltk; then the command as a user runs it."""
import json
import math
import os
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

import diversity
from cli import InputError
from conftest import experiment, run, small_model
from diversity import (
    bleu, closest_length, entropy, interval, largest_counts, longest_copies, measure, ngrams,
    of_counts, of_sums, read_samples, real_text, score, self_bleu)
from experiments.paper_diversity import paper_self_bleu
from model import evaluation_batch, losses_in_parts
from prepare_data import EOT, Tokenizer
from toy import TOY, toy_stories

WORDS = Tokenizer("words", words=TOY.words())


def random_samples(rng, samples, vocabulary=6, longest=14):
    result = []
    for length in rng.integers(longest + 1, size=samples):
        result.append([f"w{i}" for i in rng.integers(vocabulary, size=length)])
    return result


def values_of(metrics) -> dict:
    return {name: value for name, (value, _) in metrics.items()}


# ---- Self-BLEU -----------------------------------------------------------------------------------

def nltk_self_bleu(samples):
    from nltk.translate.bleu_score import sentence_bleu
    scores = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, words in enumerate(samples):
            others = samples[:i] + samples[i + 1:]
            scores.append(sentence_bleu(others, words))
    return np.array(scores)


def plain_self_bleu(samples):
    scores = []
    for i, words in enumerate(samples):
        others = samples[:i] + samples[i + 1:]
        length = closest_length(len(words), map(len, others))
        scores.append(bleu(words, largest_counts(others), length))
    return np.array(scores)


@pytest.mark.parametrize("seed", range(3))
def test_self_bleu_is_the_plain_one_and_nltks(seed):
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, samples=25, vocabulary=2 + seed)
    samples += [samples[3], samples[3], [], ["lonely"], ["w0"] * 14]
    scores = self_bleu(samples)
    assert scores.tolist() == plain_self_bleu(samples).tolist()
    assert scores == pytest.approx(nltk_self_bleu(samples), abs=1e-12)


def test_the_three_sentences_of_the_docstring():
    samples = ["a a a b".split(), "a b".split(), "a a c".split()]
    for words, matched in zip(samples, (3, 2, 2)):
        others = [other for other in samples if other is not words]
        assert (Counter(ngrams(words, 1)) & largest_counts(others)).total() == matched


def test_self_bleu_of_extremes():
    assert self_bleu(["a b c d e".split()] * 4).tolist() == [1] * 4
    disjoint = [[f"{i}{j}" for j in range(6)] for i in range(5)]
    assert self_bleu(disjoint).tolist() == [0] * 5
    assert self_bleu([[], []]).tolist() == [0, 0]


def test_the_papers_self_bleu():
    """Where all texts have one length and no more than 50 others, it is nltk's."""
    rng = np.random.default_rng(0)
    samples = [[f"w{i}" for i in rng.integers(4, size=12)] for _ in range(51)]
    scores = paper_self_bleu(samples)
    assert sorted(scores) == pytest.approx(sorted(nltk_self_bleu(samples)), abs=1e-12)
    assert scores.tolist() == paper_self_bleu(samples).tolist()
    longer = ["a b c d".split()] + ["a b c d a b c d".split()] * 3
    assert min(paper_self_bleu(longer)) == pytest.approx(math.exp(1 - 8 / 4))


def test_the_papers_self_bleu_is_of_200_against_50():
    """A sample that meets its twin scores 1, another 0; it meets 50 of 259 others."""
    twins = [[f"{i // 2}{letter}" for letter in "abcd"] for i in range(260)]
    scores = paper_self_bleu(twins)
    assert len(scores) == 200
    assert 0.1 < scores.mean() < 0.3


# ---- The other metrics of words ------------------------------------------------------------------

def test_hand_worked_example():
    texts = ["The cat sat on the mat", "the dog sat", "A cat"]
    words = np.array([3, 2, 2, 1, 1, 1, 1]) / 11
    assert values_of(measure(texts, {}, None)) == pytest.approx({
        "distinct-1": 7 / 11,
        "distinct-2": 8 / 8,
        "distinct-3": 5 / 5,
        "distinct-4": 3 / 3,
        "self-BLEU": 0,
        "vocabulary used": 7,
        "distinct first words": 2 / 3,
        "distinct 5-word openings": 1,
        "most common first word": 2 / 3,
        "entropy of openings": math.log(3),
        "entropy of words": -(words * np.log(words)).sum(),
        "repeated 4-grams": 0})


def test_edge_cases():
    same = values_of(measure(["a b c d e f"] * 30, {}, None))
    assert same["distinct-1"] == 1 / 30
    assert same["entropy of openings"] == 0
    assert same["self-BLEU"] == 1
    for texts in (["", ""], ["one", ""], ["a b"] * 2, [f"x{i} y{i}" for i in range(50)]):
        values = values_of(measure(texts, {}, None))
        assert math.isnan(values.pop("repeated 4-grams"))       # there are none
        assert all(map(math.isfinite, values.values()))
    repeats = measure(["a a a a a a a"] * 2, {}, None)
    assert repeats["repeated 4-grams"][0] == 3 / 4


def test_the_interval_of_a_mean_is_1_96_standard_errors():
    x = np.random.default_rng(0).random(20)
    expected = x.mean(), 1.96 * x.std(ddof=1) / math.sqrt(20)
    assert of_sums(x) == pytest.approx(expected)
    assert interval(lambda keep: x[keep].mean(), np.arange(20)) == pytest.approx(expected)


def test_95_of_100_intervals_hold_the_truth():
    rng = np.random.default_rng(0)
    weights = Counter({"a": 50, "b": 25, "c": 15, "d": 10})
    p = np.array([*weights.values()]) / 100
    inside = 0
    for _ in range(200):
        samples = rng.choice([*weights], size=(100, 20), p=p).tolist()
        value, half = of_counts(entropy, samples)
        inside += abs(value - entropy(weights)) < half
    assert 0.90 < inside / 200 < 0.99


def test_longest_copies_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    training = rng.integers(4, size=60).astype(np.uint16)
    samples = [rng.integers(4, size=n).tolist() for n in (0, 1, 5, 12, 30)]
    samples += [training[10:25].tolist() + [9] * 3, [9, 9], [0] * 20]
    text = "".join(map(str, training))
    expected = []
    for sample in samples:
        longest = 0
        for start in range(len(sample)):
            for end in range(start, len(sample) + 1):
                if "".join(map(str, sample[start:end])) in text:
                    longest = max(longest, end - start)
        expected.append(longest)
    assert longest_copies(samples, training).tolist() == expected
    assert expected[5] >= 15


# ---- Quality -------------------------------------------------------------------------------------

def test_a_judge_scores_what_evaluation_scores():
    model = small_model("ar", vocab_size=WORDS.vocab_size, block_size=48)
    stories = toy_stories(3)
    texts = [next(stories) for _ in range(40)]
    nats, count = score(model, [WORDS.encode(text) for text in texts])
    assert count.tolist() == [47] * 40
    judged = measure(texts, {"j": (model, WORDS)}, None)["nats/token, judge j"][0]
    assert judged == pytest.approx(nats.sum() / count.sum())
    x = torch.tensor([WORDS.encode(text) for text in texts])
    model.config.block_size = 47
    losses = losses_in_parts(model, evaluation_batch(model.config, x, None))
    assert nats == pytest.approx(47 * losses.numpy(), rel=1e-5)


def test_the_toys_own_metrics(trained, monkeypatch):
    monkeypatch.chdir(trained)
    training, fresh = toy_stories(1337), toy_stories(99)
    right = [next(training) for _ in range(10)]
    right += [next(fresh) for _ in range(30)]
    wrong = ["One day, a boy named Lily found a ball."] * 10
    values = values_of(measure(right + wrong, {}, diversity.load_corpus("t")))
    assert values["grammatical"] == 0.8
    assert values["copied stories"] == pytest.approx(0.2, abs=0.03)
    assert values["longest copied n-gram"] > 15
    log_p = np.concatenate([TOY.log_probs(text) for text in right])
    assert values["nats/token, true law, of those"] == pytest.approx(-log_p.mean())


# ---- Real text -----------------------------------------------------------------------------------

@pytest.fixture
def held_out(trained, monkeypatch):
    """The tokens of the toy's validation split."""
    monkeypatch.chdir(trained)
    return np.fromfile("data/t/val.bin", np.uint16)


def some_of(num_samples, length, start, full_length):
    settings = {"num_samples": num_samples, "length": length}
    return real_text("t", settings | {"start": start, "full_length": full_length}, WORDS)


def test_real_stories_are_spread_evenly(held_out):
    stories = [story.strip() for story in WORDS.decode(held_out).split(EOT)[1:]]
    even = np.linspace(0, len(stories) - 1, 5).astype(int)
    assert some_of(5, 48, "story", False) == [stories[i] for i in even]
    assert some_of(10 ** 6, None, "story", False) == stories
    assert some_of(10 ** 6, 10, "story", False)[0] == WORDS.decode(held_out[1:11])


def test_real_pieces_longer_than_a_story_do_not_overlap(held_out):
    texts = some_of(10 ** 6, 70, "story", True)
    assert 0.6 * len(held_out) < 70 * len(texts) < len(held_out) + 70
    assert texts[0] == WORDS.decode(held_out[1:71])


def test_real_pieces_from_anywhere(held_out):
    texts = some_of(10 ** 6, 20, "anywhere", True)
    assert len(texts) == len(held_out) // 20
    assert texts[1] == WORDS.decode(held_out[20:40])


# ---- The command ---------------------------------------------------------------------------------

def write_samples(path, texts, **settings):
    rows = [{"text": text} for text in texts]
    if settings:
        rows.insert(0, {"settings": settings})
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")     # a blank line is skipped


def test_samples_are_read_with_settings_and_without(workdir):
    write_samples(workdir / "a.jsonl", ["x", "y"], length=9, prompt="Once", seed=1)
    write_samples(workdir / "b.jsonl", ["x", "y"])
    (workdir / "c.txt").write_text(f"x\n{EOT}\ny")
    unsaid = {"length": None, "start": "story", "full_length": False, "prompt": "", "num_samples": 2}
    said = unsaid | {"length": 9, "prompt": "Once", "seed": 1}
    for file, settings in ("a.jsonl", said), ("b.jsonl", unsaid), ("c.txt", unsaid):
        assert read_samples(file) == (["x", "y"], settings)


@pytest.mark.parametrize("line", ["no json", "5", '{"words": "a b"}'])
def test_a_line_without_a_text_is_named(workdir, line):
    (workdir / "odd.jsonl").write_text('{"text": "a b"}\n\n' + line)
    with pytest.raises(InputError, match="odd.jsonl, line 3"):
        read_samples("odd.jsonl")


def test_diversity_command(trained):
    for mode in ("ar", "mdlm"):
        done = run("sample.py", f"--out_dir=out/{mode}", "--num_samples=30", cwd=trained)
        assert done.returncode == 0, done.stderr
    done = run("diversity.py", "ar=out/ar/samples.jsonl", "mdlm=out/mdlm/samples.jsonl", "--data=t",
               "--judge=out/ar", "--json=d.json", "--plot=d.png", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert "real text" in done.stdout
    assert "!" not in done.stdout
    columns = json.load(open(trained / "d.json"))["columns"]
    assert columns["real text"]["grammatical"] == [1, 0]
    assert columns["ar"]["grammatical"][0] < 0.1
    assert columns["ar"]["nats/token, judge out/ar"][0] > 0
    assert os.path.getsize(trained / "d.png") > 5000


def test_seeds_and_notes(trained):
    settings = {"length": 48, "vocab_size": WORDS.vocab_size}
    for seed in (1, 2):
        stories = toy_stories(seed)
        texts = [next(stories) for _ in range(20)]
        write_samples(trained / f"s{seed}.jsonl", texts, **settings)
    write_samples(trained / "p.jsonl", texts[:10], **settings, prompt="One day")
    done = run("diversity.py", "s=s1.jsonl,s2.jsonl", "p=p.jsonl", "--data=t", "--json=d.json",
               cwd=trained)
    assert done.returncode == 0, done.stderr
    results = json.load(open(trained / "d.json"))
    assert results["notes"] == ["p's num_samples is 10, not 20", "p's prompt is 'One day', not ''"]
    values = [values_of(measure(read_samples(trained / f"s{i}.jsonl")[0], {}, None)) for i in (1, 2)]
    both = [value["distinct-2"] for value in values]
    expected = np.mean(both), np.std(both, ddof=1)
    assert results["columns"]["s"]["distinct-2"] == pytest.approx(expected)


def test_the_papers_diversity_command(workdir):
    """It is diversity.py but for one line."""
    stories = ["a b c d e f.", "a b c d e g.", "a b c d e f a b c d e f."]
    (workdir / "s.txt").write_text(EOT.join(stories))
    ours = run("diversity.py", "s=s.txt")
    papers = experiment("paper_diversity", "s=s.txt", "--json=f.json")
    assert ours.returncode == papers.returncode == 0, papers.stderr
    lines = zip(ours.stdout.splitlines(), papers.stdout.splitlines())
    [different] = [paper for our, paper in lines if our != paper]
    assert different.startswith("self-BLEU")
    assert json.load(open("f.json"))["seed"] is None
