"""Each metric against worked examples, brute force and nltk; then the command as a user runs it."""
import itertools
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import sentence_bleu

import diversity
from conftest import small_model
from diversity import entropy, measure, of_counts, of_sums, read_samples, self_bleu
from extras.real_text import Corpus
from prepare_data import PrepareOptions, prepare
from support.flags import InputError
from support.runs import save
from tokenizer import EOT, Tokenizer
from train import window_losses
from worlds import texts_of
from worlds.toy import TOY

WORDS = Tokenizer("words", words=TOY.words())


def values_of(texts, corpus=None) -> dict:
    return {name: value for name, (value, _) in measure(texts, {}, corpus).items()}


# ---- Metrics -------------------------------------------------------------------------------------

@pytest.mark.parametrize("vocabulary", [2, 4])
def test_self_bleu_is_nltks(vocabulary):
    rng = np.random.default_rng(vocabulary)
    samples = [[f"w{i}" for i in rng.integers(vocabulary, size=length)]
               for length in rng.integers(15, size=25)]
    samples += [samples[3], [], ["lonely"], ["w0"] * 14]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = [sentence_bleu(samples[:i] + samples[i + 1:], words)
                  for i, words in enumerate(samples)]
    assert self_bleu(samples) == pytest.approx(wanted, abs=1e-12)


def test_hand_worked_example():
    p = np.array([3, 2, 2, 1, 1, 1, 1]) / 11
    values = values_of(["The cat sat on the mat", "the dog sat", "A cat"])
    assert values == pytest.approx({
        "distinct-1": 7 / 11,
        "distinct-2": 1,
        "distinct-3": 1,
        "distinct-4": 1,
        "self-BLEU": 0,
        "vocabulary used": 7,
        "distinct first words": 2 / 3,
        "distinct 5-word openings": 1,
        "most common first word": 2 / 3,
        "entropy of openings": math.log(3),
        "entropy of words": -sum(p * np.log(p))})


def test_intervals_are_of_95_per_cent():
    """Of a mean they are 1.96 standard errors. Words of one sample may depend on each other."""
    rng = np.random.default_rng(0)
    x = rng.random(20)
    error = x.std(ddof=1) / math.sqrt(20)
    assert of_sums(x) == pytest.approx((x.mean(), 1.96 * error))
    p = [0.5, 0.25, 0.15, 0.1]
    inside = 0
    for _ in range(200):
        samples = rng.choice(4, size=(100, 1), p=p).repeat(20, axis=1)
        value, half = of_counts(entropy, samples.tolist())
        inside += abs(value + sum(p * np.log(p))) < half
    assert 0.90 < inside / 200 < 0.99


# ---- Real text -----------------------------------------------------------------------------------

@pytest.fixture
def corpus(workdir):
    """The toy."""
    prepare(PrepareOptions(name="t", max_tokens=30_000))
    return Corpus("t")


def test_the_toys_own_metrics(corpus):
    right = list(itertools.islice(texts_of(TOY, 1337), 10))       # copied from training
    right += itertools.islice(texts_of(TOY, 99), 30)
    values = values_of(right + ["One day, a boy named Lily found a ball."] * 10, corpus)
    log_p = np.concatenate([TOY.log_probs(text) for text in right])
    found = [values[name]
             for name in ("grammatical", "new words", "nats/token, true law, of those")]
    assert found == pytest.approx([0.8, 0, -log_p.mean()])
    assert values["copied stories"] == pytest.approx(0.2, abs=0.03)


def test_words_that_the_training_text_does_not_have(corpus):
    """With marks they are whole: the letters of हिन्दी without its vowel signs are new."""
    corpus.words = {"the", "cat", "sat", "हिन्दी"}
    corpus.tokenizer = Tokenizer("bytes")
    texts = ['"The cat," sat — the catter! T', "The cat zat. The c", "हिन्दी, हनद T"]
    assert values_of(texts, corpus)["new words"] == 3 / 11


def settings(length=None, start="story", full_length=False, num_samples=10 ** 6) -> dict:
    return dict(length=length, start=start, full_length=full_length, num_samples=num_samples)


def test_real_stories_are_spread_evenly(corpus):
    """Training text makes up for what is not held out."""
    tokens = corpus.read("val")
    stories = [story.strip() for story in WORDS.decode(tokens).split(EOT)[1:]]
    halfway = (len(stories) - 1) // 2
    assert corpus.pieces("val", 3, settings()) == [stories[0], stories[halfway], stories[-1]]
    assert corpus.pieces("val", 3, settings(10))[0] == WORDS.decode(tokens[1:11])
    texts, held_out = corpus.texts_like(settings(num_samples=len(stories) + 3))
    assert len(texts) == len(stories) + 3 and texts[:held_out] == stories


def test_real_pieces_do_not_overlap(corpus):
    """They may be longer than a story, or begin anywhere."""
    tokens = corpus.read("val")
    for start, length, first in ("story", 70, 1), ("anywhere", 20, 0):
        texts = corpus.pieces("val", 10 ** 6, settings(length, start, full_length=True))
        assert 0.6 < length * len(texts) / len(tokens) < 1.01
        assert texts[0] == WORDS.decode(tokens[first:first + length])


# ---- The command ---------------------------------------------------------------------------------

STORIES = '{"text": "x"}\n\n{"text": "y"}'


@pytest.mark.parametrize("file, content, length", [
    ("a.jsonl", '{"settings": {"length": 9}}\n' + STORIES, 9), ("c.txt", f"x\n{EOT}\ny", 10 ** 9)])
def test_samples_are_read_with_settings_and_without(workdir, file, content, length):
    Path(file).write_text(content)
    texts, said = read_samples(file)
    assert texts == ["x", "y"] and said["length"] == length


@pytest.mark.parametrize("said", [
    "5", '["start"]', '{"length": "x"}', '{"length": 0}', '{"start": "anywhere"}'])
def test_settings_of_another_shape_are_refused_in_one_line(corpus, said):
    """And so is a start that real text does not have at this length."""
    Path("s.jsonl").write_text('{"settings": %s}\n{"text": "Tom"}\n{"text": "Lily"}' % said)
    with pytest.raises(InputError, match="^[^\n]*(s.jsonl|data/t )[^\n]*$"):
        diversity.columns_of({"mine": [read_samples("s.jsonl")]}, corpus, {})


def test_diversity_command(corpus, call):
    """A judge scores what evaluation scores: of a long text as much as the window holds."""
    model = small_model(vocab_size=WORDS.vocab_size, block_size=47)
    save("best.pt", model, variant="model", windows="aligned", tokenizer=WORDS.to_dict())
    texts = list(itertools.islice(texts_of(TOY, 3), 30))
    Path("mine.txt").write_text(EOT.join(f"{text} She took it" for text in texts))
    call("diversity.py", "mine=mine.txt", "--data=t", "--judge=.", "--json=d.json")
    found = json.loads(Path("d.json").read_text())
    assert not found["notes"] and found["runs"].keys() == {"."}
    mine, real = found["columns"].values()
    assert real["grammatical"] == [1, 0] and mine["grammatical"] == [0, 0]
    x = torch.tensor([WORDS.encode(text) for text in texts])                    # (30, 47)
    nats = window_losses(model, x, seed=0).mean().item()
    assert mine["nats/token, judge ."][0] == pytest.approx(nats, rel=1e-5)


def test_of_several_seeds_the_mean_and_deviation_are_shown():
    """And it is noted what of the settings differs from set to set."""
    said = {"num_samples": 3, "prompt": ""}
    seeds = [(["a b"] * 3, said), (["a b", "c d", "e f"], said)]    # distinct-1 is 1/3, and 1
    sets = {"ours": seeds, "odd": [(["a b", "c d"], said | {"prompt": "a"})]}
    columns, notes = diversity.columns_of(sets, None, {})
    assert columns["ours"]["distinct-1"] == pytest.approx((2 / 3, np.std([1 / 3, 1], ddof=1)))
    assert len(notes) == 1 and "prompt" in notes[0]
