"""What must hold for any text, window, mask, sampler setting and set of samples, tried on cases that
hypothesis makes up."""
import collections
import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cli import InputError
from conftest import plain_samplers, small_model
from diversity import distinct, entropy, interval, longest_copies, ngrams, of_counts, of_sums, self_bleu
from model import (Batch, Config, aogpt_batch, evaluation_batch, nelbo_batch, paper_batch, training_batch)
from prepare_data import EOT, Tokenizer, Windows, read_stories, write_split
from sample import SampleOptions, draw, generate, states
from test_diversity import flat, nltk_self_bleu

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=60,
                          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
settings.load_profile("repeatable")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))
seeds = st.integers(0, 2 ** 31)

# ------------------------------------------------------------------------------------------------ text

@given(texts, st.sampled_from([257, 300, 4096, 50257]))
def test_bpe_gives_any_text_back(gpt2, text, size):
    tokenizer = Tokenizer("gpt2", size)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and all(0 <= i < tokenizer.eot for i in ids)
    assert tokenizer.encode_batch([text, "x"])[0] == ids and len(tokenizer.pieces(ids)) == len(ids)
    for part in ids, ids[1:]:       # which may begin within a character
        assert "".join(tokenizer.pieces(part)) == tokenizer.decode(part)

@given(st.lists(st.sampled_from(["a", "b", "Ann", ".", ","])), st.lists(st.integers(0, 5)))
def test_words_tokenizer_gives_any_tokens_back(words, more):
    tokenizer = Tokenizer("words", words=["a", "b", "Ann", ".", ","])
    ids = [tokenizer.words.index(word) for word in words]
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.decode_story([*ids, tokenizer.eot, *more]) == tokenizer.decode(ids)
    assert "".join(tokenizer.pieces(ids)).strip() == tokenizer.decode(ids)

@given(st.lists(texts.map(str.strip).filter(bool), min_size=1))
def test_any_stories_are_read_back(workdir, stories):
    assume(not any(EOT in story for story in stories))
    (workdir / "s.txt").write_text(f"\n{EOT}\n".join(stories), encoding="utf-8")
    assert list(read_stories("s.txt")) == stories

# ------------------------------------------------------------------------------------------------ windows

@given(st.lists(st.integers(1, 9), min_size=4, max_size=30), st.integers(2, 12),
       st.sampled_from(["aligned", "random", "paper"]), seeds, st.integers(1, 7))
def test_every_window_is_read_once_an_epoch(workdir, lengths, T, kind, seed, batch_size):
    tokenizer = Tokenizer("words", words=[f"w{i}" for i in range(300)])
    number = itertools.count()                                      # every word once
    stories = [" ".join(f"w{next(number)}" for _ in range(length)) for length in lengths]
    folder = workdir / "data/x"
    folder.mkdir(parents=True, exist_ok=True)
    splits = {split: write_split(folder / f"{split}.bin", iter(stories), tokenizer, 10 ** 6)
              for split in ("train", "val")}
    meta = {"format": 1, "tokenizer": tokenizer.to_dict(), "eot": 300, "splits": splits}
    (folder / "meta.json").write_text(json.dumps(meta))
    tokens = np.fromfile(folder / "train.bin", dtype=np.uint16).tolist()
    if kind == "paper":
        tokens = [token for token in tokens if token != 300]
    try:
        windows = Windows("x", "train", T, kind, seed)
    except InputError:          # no window is as long
        if kind == "aligned":
            n = sum(tokens[i - 1] == 300 for i in range(1, len(tokens) - T + 1))
        else:
            n = len(tokens) // T - (kind == "random")
        assert n <= 0
        return
    n = len(windows)
    batches = [windows.batch(step, batch_size) for step in range(math.ceil(3 * n / batch_size))]
    rows = np.concatenate(batches)[:3 * n].tolist()
    places = {tuple(tokens[i:i + T]): i for i in range(len(tokens) - T + 1)}
    for epoch in (rows[:n], rows[n:2 * n], rows[2 * n:]):
        starts = sorted(places[tuple(row)] for row in epoch)
        if kind == "aligned":
            assert starts == [i for i in range(1, len(tokens) - T + 1) if tokens[i - 1] == 300]
        else:
            assert all(b - a >= T and (b - a) % T == 0 for a, b in zip(starts, starts[1:]))
            assert n == len(tokens) // T - (1 if kind == "random" else len(tokens) // T // 20)
    again = Windows("x", "train", T, kind, seed)
    assert np.array_equal(again.batch(3, batch_size), windows.batch(3, batch_size))
    assert len(windows.spread(5)) == min(5, n)
    assert {tuple(row) for row in windows.spread(5).tolist()} <= places.keys()

# ------------------------------------------------------------------------------------------- masks and orders

shapes = st.tuples(st.integers(1, 6), st.integers(1, 17))       # rows, tokens

def some_tokens(B, T, seed):
    return torch.randint(0, 11, (B, T), generator=torch.Generator().manual_seed(seed))

@given(shapes, seeds)
def test_masks_of_the_bound(shape, seed):
    P, T = shape
    config, x = Config("mdlm", vocab_size=11, block_size=T), some_tokens(2 * P, T, seed)
    batch = nelbo_batch(config, x, torch.Generator().manual_seed(seed))
    masked = batch.tokens[:, 1:] == config.mask_id
    k = masked.sum(dim=1).view(P, 2)
    assert (k >= 1).all() and (k <= T).all() and (k.sum(dim=1) == T + 1).all()
    assert (batch.tokens[:, 0] == config.bos_id).all()
    assert torch.equal(batch.tokens[:, 1:][~masked], x[~masked])
    assert batch.weight.sum(dim=1).tolist() == pytest.approx([1] * P)
    masked_ce = dataclasses.replace(config, objective="masked_ce")
    alike = training_batch(masked_ce, x, torch.Generator().manual_seed(seed))
    for name in set(Batch._fields) - {"weight"}:
        assert torch.equal(getattr(alike, name), getattr(batch, name))
    assert alike.weight.flatten().tolist() == pytest.approx([1 / (T + 1)] * (T + 1) * P)
    for pair in range(P):
        rows = range(2 * pair, 2 * pair + 2)
        expected = [(i * (T + 1) + 1 + j, x[r, j].item(), 0.5 / k[pair, i].item())
                    for i, r in enumerate(rows) for j in range(T) if masked[r, j]]
        found = zip(batch.select[pair].tolist(), batch.targets[pair].tolist(), batch.weight[pair].tolist())
        assert [(s, t) for s, t, _ in found] == [(s, t) for s, t, _ in expected]
        assert batch.weight[pair].tolist() == pytest.approx([w for *_, w in expected])

@given(shapes, seeds, st.floats(0, 1))
def test_orders(shape, seed, fraction):
    B, T = shape
    config, x = Config("aogpt", vocab_size=11, block_size=T), some_tokens(B, T, seed)
    batch = aogpt_batch(config, x, torch.Generator().manual_seed(seed), fraction)
    assert torch.equal(batch.target_pos.sort(dim=1).values, torch.arange(T).expand(B, T))
    assert torch.equal(batch.targets, x.gather(1, batch.target_pos))
    assert torch.equal(batch.key_pos[:, 1:], batch.target_pos[:, :-1])
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert (batch.tokens[:, 0] == 10).all() and (batch.key_pos[:, 0] == -1).all()
    assert (fraction < 1) or torch.equal(batch.target_pos, torch.arange(T).expand(B, T))

@given(shapes, seeds)
def test_masks_of_the_papers_loss(shape, seed):
    B, T = shape
    config, x = Config("mdlm", vocab_size=11, block_size=T), some_tokens(B, T, seed)
    batch = paper_batch(config, x, torch.Generator().manual_seed(seed))
    masked = batch.tokens == config.mask_id
    assert torch.equal(batch.weight > 0, masked) and not masked[:, 0].any()
    assert torch.equal(batch.targets[:, 1:], x)
    assert torch.equal(batch.tokens[~masked], batch.targets[~masked])
    assert batch.weight.sum().item() == pytest.approx(B if masked.any() else 0)

@given(shapes, seeds, st.sampled_from(["ar", "mdlm", "aogpt"]), st.integers(1, 7))
def test_a_batch_in_parts_is_the_batch(shape, seed, mode, units):
    config, x = Config(mode, vocab_size=11, block_size=shape[1]), some_tokens(*shape, seed)
    batch = evaluation_batch(config, x, torch.Generator().manual_seed(seed))
    parts = batch.split(units)
    assert [len(part.targets) for part in parts[:-1]] == [units] * (len(parts) - 1)
    assert 1 <= len(parts[-1].targets) <= units
    for name in Batch._fields:
        whole, pieces = getattr(batch, name), [getattr(part, name) for part in parts]
        assert (whole is None and pieces[0] is None) or torch.equal(torch.cat(pieces), whole)

# ------------------------------------------------------------------------------------------------ samplers

MODELS = {mode: small_model(mode) for mode in ("ar", "mdlm", "aogpt")}

@given(st.data(), st.sampled_from(["ar", "aogpt", "ancestral", "first_hitting", "confidence"]), seeds)
def test_any_sampler_reveals_every_position_once_and_keeps_what_it_has(data, how, seed):
    model = MODELS[how if how in MODELS else "mdlm"]
    L = data.draw(st.integers(1, 8), "length")
    given_ones = data.draw(st.lists(st.booleans(), min_size=L, max_size=L), "given")
    if how == "ar":
        given_ones = sorted(given_ones, reverse=True)
    assume(not all(given_ones))
    n = given_ones.count(False)
    pattern = torch.where(torch.tensor(given_ones), some_tokens(1, L, seed)[0], model.config.mask_id)
    steps = n if how == "ar" else data.draw(st.integers(1, 3 * n if how == "ancestral" else n), "steps")
    o = SampleOptions(seed=seed, steps=steps, full_length=True,
                      sampler=how if how not in MODELS else "first_hitting",
                      temperature=data.draw(st.sampled_from([0, 0.5, 1.0, 3.0]), "temperature"),
                      top_p=data.draw(st.sampled_from([0.1, 0.9, 1.0]), "top_p"))
    if how == "aogpt":
        listed = ",".join(map(str, np.random.default_rng(seed).permutation(L)))
        o.order = data.draw(st.sampled_from(["random", "left_to_right", listed]), "order")
    with torch.no_grad():
        written = [state.clone() for state in states(model, range(3), pattern, o)]
    tokens, appeared = generate(model, range(3), pattern, o)
    hidden, before = pattern == model.config.mask_id, pattern.expand(3, L)
    for state in written:
        assert torch.equal(state[before != model.config.mask_id], before[before != model.config.mask_id])
        if how != "ancestral":
            revealed = (before == model.config.mask_id) & (state != model.config.mask_id)
            assert revealed.sum(dim=1).max() <= math.ceil(n / steps)
        before = state
    assert len(written) <= steps and torch.equal(tokens, written[-1])
    assert (tokens < model.config.vocab_size).all()
    assert (appeared[:, ~hidden] == -1).all() and (appeared[:, hidden] >= 0).all()
    assert (appeared < steps).all()
    assert torch.equal(generate(model, [1], pattern, o)[0][0], tokens[1])       # whatever is in the batch
    if how in ("ar", "aogpt"):
        with plain_samplers():
            assert torch.equal(generate(model, range(3), pattern, o)[0], tokens)

@given(st.lists(st.floats(-20, 20), min_size=2, max_size=9), st.floats(0, 1, exclude_max=True),
       st.floats(0.1, 5), st.floats(0.01, 1))
def test_draw_inverts_the_distribution_function(logits, u, temperature, top_p):
    p = torch.tensor(logits).double().div(temperature).softmax(dim=-1).numpy()
    likelier = np.array([p[p > q].sum() for q in p])            # the mass of the tokens likelier than each
    assume(len(set(p)) == len(p) and abs(likelier - top_p).min() > 1e-9)
    kept = np.where(likelier < top_p, p, 0)
    logits, uniform = torch.tensor([logits]), torch.tensor([u], dtype=torch.float64)
    token, probability = draw(logits, uniform, temperature, top_p)
    below, u = kept[:token].sum(), u * kept.sum()
    assert kept[token] > 0 and below - 1e-9 <= u <= below + kept[token] + 1e-9
    assert probability.item() == pytest.approx(kept[token], rel=1e-5)
    greedy, _ = draw(logits, torch.tensor([u], dtype=torch.float64), 0, 1.0)
    assert greedy.item() == p.argmax()

# ------------------------------------------------------------------------------------------------ metrics

stories = st.lists(st.lists(st.sampled_from("abcd"), max_size=9), min_size=2, max_size=9)

@given(stories)
def test_self_bleu_is_nltks_for_any_samples(words):
    assert self_bleu(*flat(words), len(words)) == pytest.approx(nltk_self_bleu(words), abs=1e-12)

@given(stories, st.integers(1, 4))
def test_ngrams_are_those_of_each_sample(words, n):
    gram, owner = ngrams(*flat(words), n)
    expected = [(tuple(w[i:i + n]), who) for who, w in enumerate(words) for i in range(len(w) - n + 1)]
    assert owner.tolist() == [who for _, who in expected]
    pairs = set(zip(gram.tolist(), (g for g, _ in expected)))
    assert len(pairs) == len(set(gram.tolist())) == len({g for g, _ in expected})
    counts = np.bincount(gram, minlength=1)
    assert distinct(counts) == len({g for g, _ in expected}) / max(1, len(expected))
    frequency = np.array(list(collections.Counter(g for g, _ in expected).values())) / max(1, len(expected))
    assert entropy(counts) == pytest.approx(-(frequency * np.log(frequency)).sum() if len(frequency) else 0)

@given(st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=5),
       st.lists(st.integers(0, 2), max_size=40))
def test_longest_copies_are_those_of_brute_force(samples, training):
    stretches = {tuple(training[i:j]) for i in range(len(training)) for j in range(i + 1, len(training) + 1)}

    def longest(s):
        return max((j - i for i in range(len(s)) for j in range(i + 1, len(s) + 1)
                    if tuple(s[i:j]) in stretches), default=0)
    expected = [longest(s) for s in samples]
    assert longest_copies(samples, np.array(training, dtype=np.uint16)).tolist() == expected

@given(st.lists(st.floats(-100, 100), min_size=21, max_size=80))
def test_interval_of_a_mean_is_the_usual_one(values):
    """With groups of one, the jackknife of a mean is its standard error."""
    value, half = of_sums(values, np.arange(len(values)))
    assert value == pytest.approx(np.mean(values), abs=1e-9)
    assert half == pytest.approx(1.96 * np.std(values, ddof=1) / math.sqrt(len(values)), abs=1e-6)
    items = np.array([int(v) % 7 for v in values])
    group = np.arange(len(items)) % 5
    count, _ = of_counts(np.count_nonzero, items, group)
    direct, _ = interval(lambda keep: len(set(items[keep].tolist())), group)
    assert count == len(set(items.tolist())) == direct
