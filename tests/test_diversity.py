"""Each metric against worked examples, brute force and nltk; then the command as a user runs it."""
import itertools
import json
import math
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import diversity
from support.flags import InputError
from conftest import run, small_model
from diversity import (
    bleu, closest_length, entropy, interval, largest_counts, measure, ngrams,
    of_counts, of_sums, pieces, read_samples, real_text, score, self_bleu)
from objectives import evaluation_batch, losses_in_parts
from prepare_data import EOT, PrepareOptions, Tokenizer, prepare
from toy import TOY, toy_stories

WORDS = Tokenizer("words", words=TOY.words())


def random_samples(rng, samples, vocabulary=6, longest=14):
    result = []
    for length in rng.integers(longest + 1, size=samples):
        ids = rng.integers(vocabulary, size=length)
        result.append([f"w{i}" for i in ids])
    return result


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
    samples = random_samples(rng, 25, vocabulary=2 + seed)
    samples += [samples[3], samples[3]]
    samples += [[], ["lonely"], ["w0"] * 14]
    scores = self_bleu(samples)
    assert scores.tolist() == plain_self_bleu(samples).tolist()
    assert scores == pytest.approx(nltk_self_bleu(samples), abs=1e-12)


def test_the_three_sentences_of_the_docstring():
    sentences = ["a a a b", "a b", "a a c"]
    samples = [sentence.split() for sentence in sentences]
    for i, expected in enumerate([3, 2, 2]):
        others = samples[:i] + samples[i + 1:]
        mine = Counter(ngrams(samples[i], 1))
        matched = mine & largest_counts(others)
        assert matched.total() == expected


def test_self_bleu_of_extremes():
    same = ["a b c d e".split()] * 3
    assert list(self_bleu(same)) == [1, 1, 1]
    disjoint = ["a b c d e".split(), "f g h i j".split()]
    assert list(self_bleu(disjoint)) == [0, 0]
    empty = [[], []]
    assert list(self_bleu(empty)) == [0, 0]


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


def test_edge_cases():
    texts = ["a b c d e f"] * 30
    same = values_of(measure(texts, {}, None))
    assert same["distinct-1"] == 1 / 30
    assert same["entropy of openings"] == 0
    assert same["self-BLEU"] == 1


@pytest.mark.parametrize("text", ["", "one", "a b"])
def test_texts_of_less_than_four_words(text):
    values = values_of(measure([text, ""], {}, None))
    assert all(map(math.isfinite, values.values()))


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
    model = small_model("ar", vocab_size=WORDS.vocab_size, block_size=48)
    texts = list(itertools.islice(toy_stories(3), 40))
    encoded = [WORDS.encode(text) for text in texts]
    nats, count = score(model, encoded)
    assert count.tolist() == [47] * 40
    x = torch.tensor(encoded)       # (40, 47), which is shorter than block_size
    batch = evaluation_batch(model.config, x, None)
    expected = 47 * losses_in_parts(model, batch).numpy()
    assert nats == pytest.approx(expected, rel=1e-5)
    judges = {"j": (model, WORDS)}
    values = values_of(measure(texts, judges, None))
    mean = nats.sum() / count.sum()
    assert values["nats/token, judge j"] == pytest.approx(mean)


def test_the_toys_own_metrics(trained, monkeypatch):
    monkeypatch.chdir(trained)
    right = list(itertools.islice(toy_stories(1337), 10))       # copied from training
    right += itertools.islice(toy_stories(99), 30)
    wrong = ["One day, a boy named Lily found a ball."] * 10
    corpus = diversity.load_corpus("t")
    values = values_of(measure(right + wrong, {}, corpus))
    assert values["grammatical"] == 0.8
    assert values["copied stories"] == pytest.approx(0.2, abs=0.03)
    assert values["new words"] == 0
    log_p = np.concatenate([TOY.log_probs(text) for text in right])
    nats = values["nats/token, true law, of those"]
    assert nats == pytest.approx(-log_p.mean())


def test_words_that_the_training_text_does_not_have():
    corpus = diversity.Corpus(Tokenizer("bytes"), set(), {"the", "cat", "sat"})
    texts = ['"The cat," sat — the catter! T', "The cat zat. The c"]
    values = values_of(measure(texts, {}, corpus))
    assert values["new words"] == 2 / 9


# ---- Real text -----------------------------------------------------------------------------------

@pytest.fixture
def held_out(trained, monkeypatch):
    """The tokens of the toy's validation split."""
    monkeypatch.chdir(trained)
    return np.fromfile("data/t/val.bin", np.uint16)


def all_of(**settings) -> list:
    return pieces("t", "val", 10 ** 6, settings, WORDS)


def test_real_stories_are_spread_evenly(held_out):
    whole = {"length": None, "start": "story", "full_length": False}
    stories = WORDS.decode(held_out).split(EOT)[1:]
    stories = [story.strip() for story in stories]
    assert all_of(**whole) == stories
    first, middle, last = pieces("t", "val", 3, whole, WORDS)
    halfway = (len(stories) - 1) // 2
    assert first == stories[0]
    assert middle == stories[halfway]
    assert last == stories[-1]
    cut = all_of(**whole | {"length": 10})
    expected = WORDS.decode(held_out[1:11])
    assert cut[0] == expected


def test_real_pieces_longer_than_a_story_do_not_overlap(held_out):
    texts = all_of(length=70, start="story", full_length=True)
    covered = 70 * len(texts) / len(held_out)
    assert 0.6 < covered < 1.01
    assert texts[0] == WORDS.decode(held_out[1:71])


def test_training_text_makes_up_for_what_is_not_held_out(held_out):
    settings = {"length": None, "start": "story", "full_length": False}
    stories = all_of(**settings)
    count = len(stories) + 3
    settings["num_samples"] = count
    texts, number = real_text("t", settings, WORDS)
    assert len(texts) == count
    assert texts[:number] == stories


def test_real_pieces_from_anywhere(held_out):
    texts = all_of(length=20, start="anywhere", full_length=True)
    assert len(texts) == len(held_out) // 20
    assert texts[1] == WORDS.decode(held_out[20:40])


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


@pytest.mark.parametrize("line", ["no json", "5", '{"words": "a b"}'])
def test_a_line_without_a_text_is_named(workdir, line):
    odd = workdir / "odd.jsonl"
    odd.write_text('{"text": "a b"}\n\n' + line)
    with pytest.raises(InputError, match="odd.jsonl, line 3"):
        read_samples("odd.jsonl")


def test_diversity_command(trained):
    for mode in ("ar", "mdlm"):
        done = run("sample.py", f"--out_dir=out/{mode}", "--num_samples=30", cwd=trained)
        assert done.returncode == 0, done.stderr
    done = run("diversity.py", "ar=out/ar/samples.jsonl", "mdlm=out/mdlm/samples.jsonl", "--data=t",
               "--judge=out/ar", "--json=d.json", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert "real text" in done.stdout
    assert "!" not in done.stdout
    results = json.loads((trained / "d.json").read_text())
    columns = results["columns"]
    assert columns["real text"]["grammatical"] == [1, 0]
    assert columns["ar"]["grammatical"][0] < 0.1
    assert columns["ar"]["nats/token, judge out/ar"][0] > 0


def test_seeds_and_notes():
    """The first set has two seeds; the second has fewer samples, and a prompt."""
    settings = {"num_samples": 3, "length": 48, "prompt": ""}
    first = ["a b", "a b", "a b"], settings         # distinct-1 is 1/3
    second = ["a b", "c d", "e f"], settings        # distinct-1 is 1
    changed = {"num_samples": 2, "prompt": "a"}
    odd = ["a b", "c d"], settings | changed
    sets = {"ours": [first, second], "odd": [odd]}
    options = diversity.DiversityOptions()
    columns, notes = diversity.columns_of(sets, options, None, {})
    mean, deviation = columns["ours"]["distinct-1"]
    assert mean == pytest.approx(2 / 3)
    expected = np.std([1 / 3, 1], ddof=1)
    assert deviation == pytest.approx(expected)
    assert notes == ["odd's num_samples is 2, not 3", "odd's prompt is 'a', not ''"]


# ---- Real text beside samples --------------------------------------------------------------------

def test_samples_that_the_data_has_no_real_text_for(workdir, monkeypatch):
    """A continuous text has no stories, and its pieces may be too short."""
    Path("t.txt").write_text("Hello there. " * 100)
    prepare(PrepareOptions(text="t.txt", tokenizer="bytes"))
    Path("s.txt").write_text(f"A cat.{EOT}A dog.")
    settings = {"settings": {"start": "anywhere", "length": 1000, "full_length": True}}
    rows = [settings, {"text": "a b"}, {"text": "c d"}]
    Path("s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for file, texts in ("s.txt", "marked stories"), ("s.jsonl", "texts of 1000 tokens"):
        monkeypatch.setattr("sys.argv", ["diversity.py", f"mine={file}", "--data=t-bytes"])
        with pytest.raises(InputError, match=f"data/t-bytes holds fewer than 2 {texts}"):
            diversity.main()
