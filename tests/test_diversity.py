"""Each metric against worked examples, brute force and nltk; then the command as a user runs it."""
import itertools
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import diversity
import model as plain
from conftest import run, small_model
from diversity import (
    entropy, interval, measure, of_counts, of_sums, read_samples, self_bleu)
from extras.real_text import Corpus
from prepare_data import EOT, PrepareOptions, Tokenizer, prepare
from support.flags import InputError
from toy import TOY, toy_stories
from train import window_losses

WORDS = Tokenizer("words", words=TOY.words())


def values_of(metrics) -> dict:
    return {name: metric[0] for name, metric in metrics.items()}


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


@pytest.mark.parametrize("vocabulary", [2, 4])
def test_self_bleu_is_nltks(vocabulary):
    rng = np.random.default_rng(vocabulary)
    samples = []
    for length in rng.integers(15, size=25):
        ids = rng.integers(vocabulary, size=length)
        samples.append([f"w{i}" for i in ids])
    samples += [samples[3], [], ["lonely"], ["w0"] * 14]
    assert self_bleu(samples) == pytest.approx(nltk_self_bleu(samples), abs=1e-12)

# ---- The other metrics of words ------------------------------------------------------------------

def test_hand_worked_example():
    texts = ["The cat sat on the mat", "the dog sat", "A cat"]
    counts = np.array([3, 2, 2, 1, 1, 1, 1])
    p = counts / 11
    nats = -sum(p * np.log(p))
    values = values_of(measure(texts, {}, None))
    assert values == pytest.approx({
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
        "entropy of words": nats})


def test_the_interval_of_a_mean_is_1_96_standard_errors():
    x = np.random.default_rng(0).random(20)
    error = x.std(ddof=1) / math.sqrt(20)
    expected = x.mean(), 1.96 * error
    assert of_sums(x) == pytest.approx(expected)

    def mean(keep):
        return x[keep].mean()

    assert interval(mean, np.arange(20)) == pytest.approx(expected)


def test_95_of_100_intervals_hold_the_truth():
    rng = np.random.default_rng(0)
    p = [0.5, 0.25, 0.15, 0.1]
    truth = -sum(p * np.log(p))
    inside = 0
    for _ in range(200):
        samples = rng.choice(4, size=(100, 20), p=p)
        value, half = of_counts(entropy, samples.tolist())
        inside += abs(value - truth) < half
    assert 0.90 < inside / 200 < 0.99


# ---- Quality -------------------------------------------------------------------------------------

def test_a_judge_scores_what_evaluation_scores():
    """Of an empty text nothing, and of a long one as much as the window holds."""
    model = small_model("ar", vocab_size=WORDS.vocab_size, block_size=47)
    texts = list(itertools.islice(toy_stories(3), 40))
    x = torch.tensor([WORDS.encode(text) for text in texts])                    # (40, 47)
    expected = window_losses(model, plain, x, seed=0).mean().item()
    longer = [f"{text} She took it" for text in texts]
    values = values_of(measure([*longer, ""], {"j": (model, plain, WORDS)}, None))
    assert values["nats/token, judge j"] == pytest.approx(expected, rel=1e-5)


def test_the_toys_own_metrics(corpus):
    right = list(itertools.islice(toy_stories(1337), 10))       # copied from training
    right += itertools.islice(toy_stories(99), 30)
    wrong = ["One day, a boy named Lily found a ball."] * 10
    values = values_of(measure(right + wrong, {}, corpus))
    assert values["grammatical"] == 0.8
    assert values["copied stories"] == pytest.approx(0.2, abs=0.03)
    assert values["new words"] == 0
    log_p = np.concatenate([TOY.log_probs(text) for text in right])
    assert values["nats/token, true law, of those"] == pytest.approx(-log_p.mean())


def test_words_that_the_training_text_does_not_have(corpus):
    corpus.words = {"the", "cat", "sat"}
    corpus.tokenizer = Tokenizer("bytes")
    texts = ['"The cat," sat — the catter! T', "The cat zat. The c"]
    assert values_of(measure(texts, {}, corpus))["new words"] == 2 / 9


# ---- Real text -----------------------------------------------------------------------------------

@pytest.fixture
def corpus(trained, monkeypatch):
    """The toy."""
    monkeypatch.chdir(trained)
    return Corpus("t")


def settings(length=None, start="story", full_length=False, num_samples=10 ** 6) -> dict:
    return dict(length=length, start=start, full_length=full_length, num_samples=num_samples)


def test_real_stories_are_spread_evenly(corpus):
    tokens = corpus.read("val")
    stories = [story.strip() for story in WORDS.decode(tokens).split(EOT)[1:]]
    halfway = (len(stories) - 1) // 2
    assert corpus.pieces("val", 3, settings()) == [stories[0], stories[halfway], stories[-1]]
    assert corpus.pieces("val", 3, settings(10))[0] == WORDS.decode(tokens[1:11])
    # Training text makes up for what is not held out.
    texts, held_out = corpus.texts_like(settings(num_samples=len(stories) + 3))
    assert len(texts) == len(stories) + 3
    assert texts[:held_out] == stories


def test_real_pieces_do_not_overlap(corpus):
    """They may be longer than a story, or begin anywhere."""
    tokens = corpus.read("val")
    texts = corpus.pieces("val", 10 ** 6, settings(70, full_length=True))
    assert 0.6 < 70 * len(texts) / len(tokens) < 1.01
    assert texts[0] == WORDS.decode(tokens[1:71])
    texts = corpus.pieces("val", 10 ** 6, settings(20, "anywhere", True))
    assert len(texts) == len(tokens) // 20
    assert texts[1] == WORDS.decode(tokens[20:40])


@pytest.mark.parametrize("start, texts", [
    ("story", "marked stories"), ("anywhere", "texts of 1000 tokens")])
def test_data_without_such_a_text(workdir, start, texts):
    """A continuous text has no stories, and its pieces may be too short."""
    Path("t.txt").write_text("Hello there. " * 100)
    prepare(PrepareOptions(text="t.txt", tokenizer="bytes"))
    with pytest.raises(InputError, match=f"data/t-bytes holds fewer than 2 {texts}"):
        Corpus("t-bytes").texts_like(settings(1000, start, True))


# ---- The command ---------------------------------------------------------------------------------

def write_samples(path, texts, **settings):
    rows = [{"text": text} for text in texts]
    if settings:
        rows.insert(0, {"settings": settings})
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n\n".join(lines))     # blank lines are skipped


def test_samples_are_read_with_settings_and_without(workdir):
    texts = ["x", "y"]
    said = {"length": 9, "seed": 1}
    write_samples(workdir / "a.jsonl", texts, **said)
    write_samples(workdir / "b.jsonl", texts)
    (workdir / "c.txt").write_text(f"x\n{EOT}\ny")
    found, unsaid = read_samples("b.jsonl")
    assert found == texts
    assert unsaid["length"] is None
    assert read_samples("c.txt") == (texts, unsaid)
    assert read_samples("a.jsonl") == (texts, unsaid | said)


def test_diversity_command(trained):
    for mode in ("ar", "mdlm"):
        done = run("sample.py", f"--out_dir=out/{mode}", "--num_samples=30", cwd=trained)
        assert done.returncode == 0, done.stderr
    done = run("diversity.py", "ar=out/ar/samples.jsonl", "mdlm=out/mdlm/samples.jsonl", "--data=t",
               "--judge=out/ar", "--json=d.json", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert "real text" in done.stdout
    assert "!" not in done.stdout
    columns = json.loads((trained / "d.json").read_text())["columns"]
    assert columns["real text"]["grammatical"] == [1, 0]
    assert columns["ar"]["grammatical"][0] < 0.1
    assert columns["ar"]["nats/token, judge out/ar"][0] > 0


def test_seeds_and_notes():
    """The first set has two seeds; the second has fewer samples, and a prompt."""
    said = {"num_samples": 3, "length": 48, "prompt": ""}
    first = ["a b", "a b", "a b"], said         # distinct-1 is 1/3
    second = ["a b", "c d", "e f"], said        # distinct-1 is 1
    odd = ["a b", "c d"], said | {"num_samples": 2, "prompt": "a"}
    sets = {"ours": [first, second], "odd": [odd]}
    columns, notes = diversity.columns_of(sets, None, {})
    mean, deviation = columns["ours"]["distinct-1"]
    assert mean == pytest.approx(2 / 3)
    expected = np.std([1 / 3, 1], ddof=1)
    assert deviation == pytest.approx(expected)
    assert notes == ["odd's num_samples is 2, not 3", "odd's prompt is 'a', not ''"]
