"""Each metric against worked examples, brute force and nltk; then the command as a user runs it."""
import itertools
import json
import math
import warnings

import numpy as np
import pytest
import torch

from conftest import run, small_model
import diversity
from diversity import (
    entropy, interval, measure, of_counts, of_sums, read_samples, self_bleu)
from extras.real_text import Corpus
from prepare_data import PrepareOptions, prepare
from support.flags import InputError
from tokenizer import EOT, Tokenizer
from worlds.toy import TOY
from train import window_losses
from worlds import texts_of

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
    found = interval(lambda keep: x[keep].mean(), np.arange(20))
    assert found == of_sums(x) == pytest.approx((x.mean(), 1.96 * error))


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
    texts = list(itertools.islice(texts_of(TOY, 3), 40))
    x = torch.tensor([WORDS.encode(text) for text in texts])                    # (40, 47)
    expected = window_losses(model, x, seed=0).mean().item()
    longer = [f"{text} She took it" for text in texts]
    values = values_of(measure([*longer, ""], {"j": (model, WORDS)}, None))
    assert values["nats/token, judge j"] == pytest.approx(expected, rel=1e-5)


def test_the_toys_own_metrics(corpus):
    right = list(itertools.islice(texts_of(TOY, 1337), 10))       # copied from training
    right += itertools.islice(texts_of(TOY, 99), 30)
    wrong = ["One day, a boy named Lily found a ball."] * 10
    values = values_of(measure(right + wrong, {}, corpus))
    assert values["grammatical"] == 0.8
    assert values["copied stories"] == pytest.approx(0.2, abs=0.03)
    assert values["new words"] == 0
    log_p = np.concatenate([TOY.log_probs(text) for text in right])
    assert values["nats/token, true law, of those"] == pytest.approx(-log_p.mean())


def test_words_that_the_training_text_does_not_have(corpus):
    """With marks they are whole: the letters of हिन्दी without its vowel signs are new."""
    corpus.words = {"the", "cat", "sat", "हिन्दी"}
    corpus.tokenizer = Tokenizer("bytes")
    texts = ['"The cat," sat — the catter! T', "The cat zat. The c", "हिन्दी, हनद T"]
    assert values_of(measure(texts, {}, corpus))["new words"] == 3 / 11


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


@pytest.mark.parametrize("start, length", [("story", 70), ("anywhere", 20)])
def test_real_pieces_do_not_overlap(corpus, start, length):
    """They may be longer than a story, or begin anywhere."""
    tokens = corpus.read("val")
    texts = corpus.pieces("val", 10 ** 6, settings(length, start, full_length=True))
    assert 0.6 < length * len(texts) / len(tokens) < 1.01
    first = 1 if start == "story" else 0
    assert texts[0] == WORDS.decode(tokens[first:first + length])


def test_a_continuous_text_has_no_stories(workdir):
    (workdir / "t.txt").write_text("Hello there. " * 100)
    prepare(PrepareOptions(text="t.txt", tokenizer="bytes"))
    with pytest.raises(InputError, match="data/t-bytes holds fewer than 2 marked stories"):
        Corpus("t-bytes").texts_like(settings())


# ---- The command ---------------------------------------------------------------------------------

STORIES = '{"text": "x"}\n\n{"text": "y"}'


@pytest.mark.parametrize("file, content, length", [
    ("a.jsonl", '{"settings": {"length": 9}}\n' + STORIES, 9),
    ("a,b.jsonl", STORIES, 10 ** 9), ("c.txt", f"x\n{EOT}\ny", 10 ** 9)])
def test_samples_are_read_with_settings_and_without(workdir, file, content, length):
    (workdir / file).write_text(content)
    texts, said = read_samples(file)
    assert texts == ["x", "y"] and said["length"] == length


@pytest.mark.parametrize("said", [
    "5", "[]", "null", '["start"]', '{"length": "x"}', '{"length": 0}', '{"length": null}',
    '{"start": 5}', '{"out_dir": 7}', '{"full_length": "x"}', '{"start": "anywhere"}'])
def test_settings_of_another_shape_are_refused_in_one_line(corpus, said):
    with open("s.jsonl", "w") as file:
        print('{"settings": %s}\n{"text": "Tom"}\n{"text": "Lily"}' % said, file=file)
    with pytest.raises(InputError, match="^[^\n]*(s.jsonl|data/t )[^\n]*$"):
        diversity.columns_of({"mine": [read_samples("s.jsonl")]}, corpus, {})


def test_diversity_command(trained):
    for mode in ("ar", "mdlm"):
        done = run("sample.py", f"--out_dir=out/{mode}", "--num_samples=30", cwd=trained)
        assert done.returncode == 0, done.stderr
    sets = [f"{mode}=out/{mode}/samples.jsonl" for mode in ("ar", "mdlm")]
    flags = ["--data=t", "--judge=out/ar", "--json=d.json"]
    done = run("diversity.py", *sets, *flags, cwd=trained)
    assert done.returncode == 0, done.stderr
    assert "real text" in done.stdout
    assert "!" not in done.stdout
    found = json.loads((trained / "d.json").read_text())
    assert [run["seed"] for run in found["runs"].values()] == [1337, 1337]
    columns = found["columns"]
    assert columns["real text"]["grammatical"] == [1, 0]
    assert columns["ar"]["grammatical"][0] < 0.1
    assert columns["ar"]["nats/token, judge out/ar"][0] > 0


def test_of_several_seeds_the_mean_and_deviation_are_shown():
    """And it is noted what of the settings differs from set to set."""
    said = {"num_samples": 3, "prompt": ""}
    first = ["a b", "a b", "a b"], said         # distinct-1 is 1/3
    second = ["a b", "c d", "e f"], said        # distinct-1 is 1
    sets = {"ours": [first, second], "odd": [(["a b", "c d"], said | {"prompt": "a"})]}
    columns, notes = diversity.columns_of(sets, None, {})
    expected = 2 / 3, np.std([1 / 3, 1], ddof=1)
    assert columns["ours"]["distinct-1"] == pytest.approx(expected)
    assert notes == ["odd's prompt is 'a', not ''"]
