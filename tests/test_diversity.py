"""Each metric against hand-worked examples, brute force and nltk; the command as a user runs it."""
import json
import math
import os
import warnings

import numpy as np
import pytest
import torch

import diversity
from cli import InputError
from conftest import experiment, run, small_model
from diversity import (entropy, score, longest_copies, measure, as_ids,
                       of_counts, of_sums, self_bleu)
from experiments.paper_diversity import paper_self_bleu
from model import evaluation_batch, group_losses
from prepare_data import EOT, Tokenizer
from toy import TOY, toy_stories

def flat(words):
    owner = np.repeat(np.arange(len(words)), [len(w) for w in words])
    return as_ids([w for sample in words for w in sample]), owner

def random_words(rng, samples, vocabulary=6, longest=14):
    return [[f"w{i}" for i in rng.integers(vocabulary, size=rng.integers(longest + 1))]
            for _ in range(samples)]

# ------------------------------------------------------------------------------------------------ Self-BLEU

def nltk_self_bleu(words):
    from nltk.translate.bleu_score import sentence_bleu
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.array([sentence_bleu(words[:i] + words[i + 1:], words[i]) for i in range(len(words))])

@pytest.mark.parametrize("seed", range(3))
def test_self_bleu_is_nltks(seed):
    rng = np.random.default_rng(seed)
    words = random_words(rng, samples=25, vocabulary=2 + seed)
    words += [words[3], words[3], [], ["lonely"], ["w0"] * 14]
    assert self_bleu(*flat(words), len(words)) == pytest.approx(nltk_self_bleu(words), abs=1e-12)

def test_self_bleu_of_extremes():
    same = ["a b c d e".split()] * 4
    assert self_bleu(*flat(same), 4) == pytest.approx([1] * 4)
    disjoint = [[f"{i}{j}" for j in range(6)] for i in range(5)]
    assert self_bleu(*flat(disjoint), 5).tolist() == [0] * 5
    assert self_bleu(*flat([[], []]), 2).tolist() == [0, 0]
    repeated = [["a"] * 8, ["a"] * 4]
    assert self_bleu(*flat(repeated), 2) == pytest.approx(nltk_self_bleu(repeated), abs=1e-12)

def test_self_bleu_does_not_depend_on_the_order_of_samples():
    rng = np.random.default_rng(1)
    words = random_words(rng, 40)
    order = rng.permutation(40)
    shuffled = self_bleu(*flat([words[i] for i in order]), 40)
    assert shuffled == pytest.approx(self_bleu(*flat(words), 40)[order], abs=1e-15)

def test_self_bleu_of_a_thousand_samples_is_fast():
    import time
    rng = np.random.default_rng(0)
    words = [[f"w{i}" for i in (rng.zipf(1.3, 128) % 5000)] for _ in range(1000)]
    began = time.perf_counter()
    assert len(self_bleu(*flat(words), 1000)) == 1000
    assert time.perf_counter() - began < 5

def test_the_papers_self_bleu():
    """Candidates and references of one length: its brevity penalty is 1, and all 50 references are nltk's."""
    rng = np.random.default_rng(0)
    words = [[f"w{i}" for i in rng.integers(4, size=12)] for _ in range(51)]    # each meets all the others
    scores = paper_self_bleu(*flat(words), len(words))
    assert sorted(scores) == pytest.approx(sorted(nltk_self_bleu(words)), abs=1e-12)
    assert scores.tolist() == paper_self_bleu(*flat(words), len(words)).tolist()
    long_references = [["a", "b", "c", "d"]] + [["a", "b", "c", "d"] * 2] * 3
    assert min(paper_self_bleu(*flat(long_references), 4)) == pytest.approx(math.exp(1 - 8 / 4))
    assert min(paper_self_bleu(*flat([[], ["a", "b"], []]), 3)) == 0

def test_the_papers_self_bleu_is_of_200_against_50():
    twins = [[f"{i // 2}{c}" for c in "abcd"] for i in range(260)]      # 1 if it meets its twin, else 0
    scores = paper_self_bleu(*flat(twins), 260)
    assert len(scores) == 200 and 0.1 < scores.mean() < 0.3             # 50 of 259 others

def test_the_papers_diversity_command(workdir):
    """As diversity.py, but for one line."""
    stories = ["a b c d e f.", "a b c d e g.", "a b c d e f a b c d e f."]
    (workdir / "s.txt").write_text("<|endoftext|>".join(stories))
    tables = [run("diversity.py", "s=s.txt"), experiment("paper_diversity", "s=s.txt", "--json=f.json")]
    assert all(done.returncode == 0 for done in tables), tables
    ours, papers = (done.stdout.splitlines() for done in tables)
    [[_, other]] = [pair for pair in zip(ours, papers) if pair[0] != pair[1]]
    assert other.startswith("self-BLEU") and json.load(open("f.json"))["seed"] is None

# ------------------------------------------------------------------------------------------------ counting

def test_hand_worked_example():
    # 11 words, 7 distinct; 8 bigrams, 8 distinct
    texts = ["The cat sat on the mat", "the dog sat", "A cat"]
    got = {k: v for k, (v, _) in measure(texts, {}, None).items()}
    words = np.array([3, 2, 2, 1, 1, 1, 1]) / 11
    assert got == pytest.approx({
        "distinct-1": 7 / 11, "distinct-2": 8 / 8, "distinct-3": 5 / 5, "distinct-4": 3 / 3, "self-BLEU": 0,
        "vocabulary used": 7, "distinct first words": 2 / 3, "distinct 5-word openings": 1,
        "most common first word": 2 / 3, "entropy of openings": math.log(3),
        "entropy of words": -(words * np.log(words)).sum(), "repeated 4-grams": 0}, abs=1e-12)

def test_edge_cases():
    same = {k: v for k, (v, _) in measure(["a b c d e f"] * 30, {}, None).items()}
    assert same["distinct-1"] == 1 / 30 and str(same["entropy of openings"]) == "0.0"
    assert same["self-BLEU"] == pytest.approx(1)
    for texts in (["", ""], ["one", ""], ["a b"] * 2, [f"x{i} y{i}" for i in range(50)]):
        values = {k: v for k, (v, _) in measure(texts, {}, None).items()}
        assert math.isnan(values.pop("repeated 4-grams"))       # there are none
        assert all(map(math.isfinite, values.values()))
    assert measure(["a a a a a a a"] * 2, {}, None)["repeated 4-grams"][0] == 3 / 4

def test_values_do_not_depend_on_the_order_of_samples():
    texts = [" ".join(w) for w in random_words(np.random.default_rng(5), 60)]
    a, b = (measure(t, {}, None) for t in (texts, texts[::-1]))
    assert {k: v for k, (v, _) in a.items()} == pytest.approx({k: v for k, (v, _) in b.items()}, abs=1e-12)

def test_intervals():
    """Of a mean, one sample a group, the jackknife is the standard error; 95% of intervals hold the truth."""
    rng = np.random.default_rng(0)
    x, group = rng.random(20), np.arange(20)
    assert of_sums(x, group) == pytest.approx((x.mean(), 1.96 * x.std(ddof=1) / math.sqrt(20)))
    p = np.array([0.5, 0.25, 0.15, 0.1])
    truth, inside = entropy(p * 1e9), 0
    for _ in range(300):
        value, half = of_counts(entropy, rng.choice(4, size=2000, p=p), np.arange(2000) % 20)
        inside += abs(value - truth) < half
    assert 0.90 < inside / 300 < 0.99
    assert math.isnan(of_sums([1.0], np.zeros(1, dtype=int))[1])

def test_longest_copies_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    training = rng.integers(4, size=60).astype(np.uint16)
    samples = [rng.integers(4, size=n).tolist() for n in (0, 1, 5, 12, 30)]
    samples += [training[10:25].tolist() + [9] * 3, [9, 9], [0] * 20]
    text = "".join(map(str, training))

    def longest(s):
        return max((b - a for a in range(len(s)) for b in range(a + 1, len(s) + 1)
                    if "".join(map(str, s[a:b])) in text), default=0)
    plain = [longest(s) for s in samples]
    assert longest_copies(samples, training).tolist() == plain and plain[5] >= 15

# ------------------------------------------------------------------------------------------------ quality

def test_a_judge_scores_what_evaluation_scores():
    tokenizer = Tokenizer("words", words=TOY.words())
    model = small_model("ar", vocab_size=tokenizer.vocab_size, block_size=48)
    stories = toy_stories(3)
    texts = [next(stories) for _ in range(40)]
    nats, count = score(model, [tokenizer.encode(text) for text in texts])
    assert (count == 47).all()
    x = torch.tensor([tokenizer.encode(text) for text in texts])
    judged = measure(texts, {"j": (model, tokenizer)}, None)["nats/token, judge j"][0]
    assert judged == pytest.approx(nats.sum() / count.sum())
    model.config.block_size = 47
    with torch.no_grad():
        plain = group_losses(model, evaluation_batch(model.config, x, None)) * 47
    assert nats == pytest.approx(plain.numpy(), rel=1e-5)

def test_the_toys_own_metrics(trained, monkeypatch):
    monkeypatch.chdir(trained)
    corpus = diversity.load_corpus("t")
    training, fresh = toy_stories(1337), toy_stories(99)
    copies, new = [next(training) for _ in range(10)], [next(fresh) for _ in range(30)]
    wrong = ["One day, a boy named Lily found a ball."] * 10
    got = measure(copies + new + wrong, {}, corpus)
    assert got["grammatical"][0] == 0.8 and got["copied stories"][0] == pytest.approx(0.2, abs=0.03)
    true = [TOY.log_probs(text) for text in copies + new]
    nats = -sum(p.sum() for p in true) / sum(map(len, true))
    assert got["nats/token, true law, of those"][0] == pytest.approx(nats)
    assert got["longest copied n-gram"][0] > 15

# ------------------------------------------------------------------------------------------------ the command

@pytest.fixture(scope="module")
def sampled(trained):
    for mode in ("ar", "mdlm"):
        done = run("sample.py", f"--out_dir=out/{mode}", "--num_samples=30", f"--out={mode}-d.jsonl",
                   cwd=trained)
        assert done.returncode == 0
    return trained

def test_diversity_command(sampled):
    done = run("diversity.py", "ar=ar-d.jsonl", "mdlm=mdlm-d.jsonl", "--data=t", "--judge=out/ar",
               "--json=d.json", "--plot=d.png", cwd=sampled)
    assert done.returncode == 0 and "real text" in done.stdout, done.stdout + done.stderr
    assert "!" not in done.stdout, done.stdout + done.stderr
    columns = json.load(open(sampled / "d.json"))["columns"]
    assert columns["real text"]["grammatical"] == [1, 0] and columns["ar"]["grammatical"][0] < 0.1
    assert columns["ar"]["nats/token, judge out/ar"][0] > 0 and os.path.getsize(sampled / "d.png") > 5000

def test_seeds_text_files_and_warnings(sampled):
    own = ["One day, a boy.", "One day, a girl.", "Long ago, a fox."]
    (sampled / "own.txt").write_text("<|endoftext|>".join(own))
    done = run("sample.py", "--out_dir=out/ar", "--num_samples=30", "--prompt=One day", "--seed=2",
               "--out=ar-e.jsonl", cwd=sampled)
    assert done.returncode == 0
    done = run("diversity.py", "ar=ar-d.jsonl,ar-e.jsonl", "own=own.txt", "--data=t", "--json=d.json",
               cwd=sampled)
    assert done.returncode == 0, done.stderr
    assert "! ar was written after the prompt 'One day'" in done.stdout, done.stderr
    assert "! the sets differ in size" in done.stdout, done.stderr
    columns = json.load(open(sampled / "d.json"))["columns"]
    assert columns["own"]["distinct first words"][0] == 2 / 3 and columns["ar"]["distinct-1"][1] > 0

def test_real_text(trained, monkeypatch):
    """Held-out stories, evenly spread; from anywhere piece by piece; training text if too few."""
    monkeypatch.chdir(trained)
    words = Tokenizer("words", words=TOY.words())
    val, train = (np.fromfile(f"data/t/{split}.bin", np.uint16) for split in ("val", "train"))
    held_out = [story.strip() for story in words.decode(val).split(EOT)[1:]]
    even = np.linspace(0, len(held_out) - 1, 5).astype(int)
    assert diversity.real_text("t", 5, 48, "story", False, words) == ([held_out[i] for i in even], 5)
    texts, count = diversity.real_text("t", 10 ** 6, 70, "story", True, words)      # more than a story
    assert 0.6 * len(val) < 70 * count < len(val) + 70                              # and none of it twice
    assert texts[0] == words.decode(val[1:71])
    texts, count = diversity.real_text("t", 10 ** 6, 20, "anywhere", True, words)
    assert count == len(val) // 20 and len(texts) == count + len(train) // 20
    assert texts[:2] == [words.decode(val[:20]), words.decode(val[20:40])]

def test_real_text_of_another_kind(sampled):
    """In another vocabulary as many tokens are another length; and there may be none so long."""
    first, *rows = (sampled / "ar-d.jsonl").read_text().splitlines(keepends=True)
    for changed, words in ({"vocab_size": 300}, "! real text: data/t has another vocabulary"), \
                          ({"length": 10 ** 6, "start": "anywhere"}, "data/t holds 0 pieces of that length"):
        settings = json.dumps({"settings": json.loads(first)["settings"] | changed})
        (sampled / "other.jsonl").write_text("".join([settings + "\n", *rows]))
        done = run("diversity.py", "other=other.jsonl", "--data=t", cwd=sampled)
        assert words in done.stdout + done.stderr and "Traceback" not in done.stderr
        assert done.returncode == (2 if "pieces" in words else 0)

def test_samples_are_read_with_settings_and_without(sampled, monkeypatch):
    """sample.py writes settings in a line of their own. A user's file may have none."""
    monkeypatch.chdir(sampled)
    first, *rows = map(json.loads, open("ar-d.jsonl"))
    settings = first["settings"]
    assert settings["num_samples"] == len(rows) == 30
    assert set(rows[0]) == {"story", "text", "tokens", "appeared"}
    with open("ar-plain.jsonl", "w") as f:
        f.writelines(json.dumps({"text": row["text"]}) + "\n" for row in rows)
    texts = [row["text"] for row in rows]
    for name, expected in (("ar-d", settings), ("ar-plain", {})):
        got, found = diversity.read_samples(f"{name}.jsonl")
        assert got == texts and found == expected
    with open("mine.jsonl", "w") as f:      # settings of one's own, beside the text
        f.writelines(json.dumps({"text": text, "settings": {"a": 1}}) + "\n" for text in texts)
    assert diversity.read_samples("mine.jsonl")[0] == texts
    (sampled / "odd.jsonl").write_text('{"settings": [1]}\n{"text": "a b"}\n{"text": "c d"}\n')
    with pytest.raises(InputError, match="odd.jsonl, line 1 is not an object with a text"):
        diversity.read_samples("odd.jsonl")

def test_frontier_command(sampled):
    models = ["out/ar", "out/mdlm", "out/aogpt", "out/aogpt:left_to_right"]
    flags = ["--temperatures=0.5,1", "--num_samples=8", "--data=t", "--judge=out/ar"]
    done = experiment("frontier", f"--models={','.join(models)}", *flags, "--json=f.json", "--plot=f.png",
                      cwd=sampled)
    assert done.returncode == 0, done.stderr
    written = {file: file.stat().st_mtime_ns for file in sampled.glob("out/*/samples-*-t*.jsonl")}
    assert len(written) == 8
    kept, other = sampled / "out/ar/samples-random-t1.jsonl", sampled / "out/ar/samples-random-t0.5.jsonl"
    other.write_text(other.read_text().replace('"num_samples": 8', '"num_samples": 9'))
    assert experiment("frontier", "--models=out/ar", *flags, cwd=sampled).returncode == 0
    assert kept.stat().st_mtime_ns == written[kept] and '"num_samples": 8' in other.read_text()
    curves = json.load(open(sampled / "f.json"))["curves"]
    assert list(curves) == [*models, "real text"] and list(curves["out/ar"]) == ["0.5", "1.0"]
    assert curves["out/aogpt"] != curves["out/aogpt:left_to_right"]
    cold, warm = (curves["out/ar"][t]["nats/token, judge out/ar"][0] for t in ("0.5", "1.0"))
    assert cold < warm
