"""What must hold for any text, window, mask, sampler setting and set of samples.

hypothesis makes up the cases."""
import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from conftest import plain_samplers, small_model
from diversity import distinct, entropy, interval, ngrams, of_counts, of_sums, self_bleu
from model import Config
from objectives import (
    draw_orders, evaluation_batch, nelbo_batch, order_batch, pack_pairs, paper_batch)
from prepare_data import EOT, Tokenizer, Windows, read_texts, split_stories
from samplers import SampleOptions, draw, generate, states
from test_diversity import nltk_self_bleu, plain_self_bleu

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
settings.load_profile("repeatable")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))
seeds = st.integers(0, 2 ** 31)


# ---- Text ----------------------------------------------------------------------------------------

@given(texts, st.sampled_from([257, 300, 4096, 50257]))
def test_bpe_gives_any_text_back(gpt2, text, size):
    tokenizer = Tokenizer("gpt2", size)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < tokenizer.eot
    for part in ids, ids[1:]:       # the second may begin within a character
        pieces = tokenizer.pieces(part)
        assert len(pieces) == len(part)
        assert "".join(pieces) == tokenizer.decode(part)


WORDS = ["a", "b", "Ann", ".", ","]
word_ids = st.lists(st.integers(0, 4))


@given(word_ids, word_ids)
def test_words_tokenizer_gives_any_tokens_back(ids, more):
    tokenizer = Tokenizer("words", words=WORDS)
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode_story([*ids, tokenizer.eot, *more]) == text
    pieces = tokenizer.pieces(ids)
    assert "".join(pieces).strip() == text


some_texts = st.lists(texts.map(str.strip).filter(bool), min_size=1)


@given(some_texts)
def test_any_stories_are_read_back(workdir, stories):
    text = f"\n{EOT}\n".join(stories)
    assume(text.count(EOT) == len(stories) - 1)
    (workdir / "s.txt").write_text(text, encoding="utf-8")
    read, _ = read_texts(["s.txt"])
    assert split_stories(read) == stories


# ---- Windows -------------------------------------------------------------------------------------

EOT_ID = 300


def write_data(folder, lengths):
    """Makes data/x of stories with so many words, all words different. Returns its tokens."""
    word = itertools.count()
    tokens = []
    for length in lengths:
        tokens.append(EOT_ID)
        tokens += itertools.islice(word, length)
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"tokens": len(tokens), "bytes": 1}
    meta = {"format": 1, "eot": EOT_ID, "tokenizer": {}, "splits": {"train": counts}}
    (folder / "meta.json").write_text(json.dumps(meta))
    np.array(tokens, dtype=np.uint16).tofile(folder / "train.bin")
    return tokens


def starts_at(kind, tokens, T):
    """Where windows may start, and how many there are."""
    if kind == "aligned":
        starts = [i + 1 for i, token in enumerate(tokens) if token == EOT_ID]
        starts = [i for i in starts if i + T <= len(tokens)]
        return starts, len(starts)
    return range(len(tokens) - T + 1), len(tokens) // T - 1


some_lengths = st.lists(st.integers(1, 9), min_size=4, max_size=30)
kinds = st.sampled_from(["aligned", "random"])


@given(some_lengths, st.integers(2, 12), kinds, seeds, st.integers(1, 7))
def test_every_window_is_read_once_an_epoch(workdir, lengths, T, kind, seed, batch_size):
    tokens = write_data(workdir / "data/x", lengths)
    allowed, n = starts_at(kind, tokens, T)
    assume(n >= 2)
    windows = Windows("x", "train", T, kind, seed)
    assert len(windows) == n
    place = {}
    for i in allowed:
        place[tuple(tokens[i:i + T])] = i
    batches = [windows.batch(step, batch_size) for step in range(3 * n)]
    rows = np.concatenate(batches)[:3 * n]
    for epoch in np.split(rows, 3):
        starts = sorted(place[tuple(row)] for row in epoch)
        gaps = np.diff(starts)
        if kind == "aligned":
            assert starts == allowed
        else:
            assert (gaps > 0).all()
            assert (gaps % T == 0).all()
    for row in windows.spread(5):
        assert tuple(row) in place


# ---- Masks and orders ----------------------------------------------------------------------------

shapes = st.tuples(st.integers(1, 6), st.integers(1, 17))       # rows, tokens


def rng(seed):
    return torch.Generator().manual_seed(seed)


def make(mode, shape, seed):
    """A config, and tokens x (rows, T). Rows of mdlm are pairs."""
    rows, T = shape
    if mode == "mdlm":
        rows *= 2
    config = Config(mode, vocab_size=11, block_size=T)
    x = torch.randint(11, (rows, T), generator=rng(seed))
    return config, x


def masked_in(batch, x):
    """What is masked, (B, T). The batch must predict just that, from all of the rest."""
    tokens = batch.tokens[:, 1:]
    masked = tokens == 11
    assert torch.equal(batch.targets[:, 1:], x)
    assert torch.equal(tokens[~masked], x[~masked])
    weighted = batch.weight > 0
    assert torch.equal(weighted[:, 1:], masked)
    assert not weighted[:, 0].any()
    assert (batch.tokens[:, 0] == 10).all()     # BOS
    return masked


@given(shapes, seeds)
def test_masks_of_the_bound(shape, seed):
    config, x = make("mdlm", shape, seed)
    batch = nelbo_batch(config, x, rng(seed))
    masked = masked_in(batch, x)
    k = masked.sum(dim=1, keepdim=True)                                         # (B, 1)
    assert k.min() >= 1
    assert_close(batch.weight[:, 1:], masked / k)
    both = k[0::2] + k[1::2]
    assert (both == x.size(1) + 1).all()


@given(shapes, seeds)
def test_masks_of_the_papers_loss(shape, seed):
    config, x = make("mdlm", shape, seed)
    batch = paper_batch(config, x, rng(seed))
    masked = masked_in(batch, x)
    share = len(x) / masked.sum().clamp(min=1)
    assert_close(batch.weight[:, 1:], masked * share)


@given(shapes, seeds)
def test_pairs_list_what_is_masked(shape, seed):
    config, x = make("mdlm", shape, seed)
    batch = nelbo_batch(config, x, rng(seed))
    pairs = len(x) // 2
    weights = batch.weight.view(pairs, -1)                                      # (pairs, 2T+2)
    targets = batch.targets.view(pairs, -1)
    packed = pack_pairs(batch)
    for pair in range(pairs):
        weight = weights[pair]
        masked = weight.nonzero()[:, 0]
        assert torch.equal(packed.select[pair], masked)
        assert torch.equal(packed.targets[pair], targets[pair, masked])
        assert torch.equal(packed.weight[pair], weight[masked] / 2)


@given(shapes, seeds, st.floats(0, 1))
def test_orders(shape, seed, fraction):
    config, x = make("aogpt", shape, seed)
    order = draw_orders(config, x, rng(seed), fraction)
    positions = list(range(x.size(1)))
    for row in order.tolist():
        assert sorted(row) == positions
        if fraction == 1:
            assert row == positions


@given(shapes, seeds)
def test_a_slot_holds_what_the_one_before_it_predicts(shape, seed):
    config, x = make("aogpt", shape, seed)
    order = draw_orders(config, x, rng(seed), 0.5)
    batch = order_batch(config, x, order)
    assert torch.equal(batch.target_pos, order)
    assert torch.equal(batch.targets, x.gather(1, order))
    held = torch.full((len(x),), config.bos_id)
    position = torch.full((len(x),), -1)
    for j in range(x.size(1)):
        assert torch.equal(batch.tokens[:, j], held)
        assert torch.equal(batch.key_pos[:, j], position)
        held = batch.targets[:, j]
        position = order[:, j]


modes = st.sampled_from(["ar", "mdlm", "aogpt"])


@given(shapes, seeds, modes, st.integers(1, 7))
def test_a_batch_in_parts_is_the_batch(shape, seed, mode, losses):
    config, x = make(mode, shape, seed)
    batch = evaluation_batch(config, x, rng(seed))
    parts = batch.split(losses)
    *full, last = [len(part.targets) for part in parts]
    assert all(size == losses for size in full)
    assert 1 <= last <= losses
    for whole, *pieces in zip(batch, *parts):
        if whole is None:
            assert pieces[0] is None
        else:
            assert torch.equal(torch.cat(pieces), whole)


# ---- Samplers ------------------------------------------------------------------------------------

MODELS = {mode: small_model(mode) for mode in ("ar", "mdlm", "aogpt")}


@st.composite
def tasks(draw_from):
    """A model, a pattern (L,) with something to write, and options for it."""
    how = draw_from(st.sampled_from(["ar", "aogpt", "ancestral", "first_hitting", "confidence"]))
    seed = draw_from(seeds)
    o = SampleOptions(seed=seed, full_length=True)
    o.temperature = draw_from(st.sampled_from([0, 0.5, 1.0, 3.0]))
    o.top_p = draw_from(st.sampled_from([0.1, 0.9, 1.0]))
    hidden = draw_from(st.lists(st.booleans(), min_size=1, max_size=8).filter(any))
    L = len(hidden)
    n = sum(hidden)
    most = n
    mode = how
    if how == "ar":
        hidden.sort()       # it writes from left to right
        o.steps = n
    elif how == "aogpt":
        listed = draw_from(st.permutations(range(L)))
        orders = ["random", "left_to_right", "blocks:3", ",".join(map(str, listed))]
        o.order = draw_from(st.sampled_from(orders))
    else:
        mode = "mdlm"
        o.sampler = how
    if how == "ancestral":
        most = 3 * n
    if how != "ar":
        o.steps = draw_from(st.integers(1, most))
    model = MODELS[mode]
    text = torch.randint(0, 11, (L,), generator=rng(seed))
    return model, text.masked_fill(torch.tensor(hidden), model.config.mask_id), o


@given(tasks())
def test_any_sampler_reveals_every_position_once_and_keeps_what_it_has(task):
    model, pattern, o = task
    mask_id = model.config.mask_id
    hidden = pattern == mask_id
    at_most = math.ceil(hidden.sum() / o.steps)
    with torch.no_grad():
        written = list(states(model, range(3), pattern, o))
    assert len(written) <= o.steps
    before = pattern.expand(3, -1)
    for state in written:
        kept = before != mask_id
        assert torch.equal(state[kept], before[kept])
        revealed = (state != mask_id) & ~kept
        if o.sampler != "ancestral":
            assert revealed.sum(dim=1).max() <= at_most
        before = state
    tokens, appeared = generate(model, range(3), pattern, o)
    assert torch.equal(tokens, written[-1])
    assert tokens.max() < mask_id
    assert (appeared[:, ~hidden] == -1).all()
    assert appeared[:, hidden].min() >= 0
    assert appeared.max() < o.steps


@given(tasks())
def test_any_story_is_the_same_alone_and_written_plainly(task):
    model, *rest = task
    tokens, _ = generate(model, range(3), *rest)
    [alone], _ = generate(model, [1], *rest)
    assert torch.equal(alone, tokens[1])
    with plain_samplers():
        plain, _ = generate(model, range(3), *rest)
    assert torch.equal(plain, tokens)


some_logits = st.lists(st.integers(-20, 20), min_size=2, max_size=9, unique=True)


@given(some_logits, st.integers(0, 8), st.floats(0.01, 0.99), st.floats(0.1, 5),
       st.floats(0.01, 1))
def test_draw_inverts_the_distribution_function(logits, number, place, temperature, top_p):
    """A number that lies at this place in a token's stretch of [0, 1) draws that token."""
    logits = torch.tensor(logits).float()
    p = (logits.double() / temperature).softmax(dim=0)                          # (V,)
    likelier = p > p[:, None]                                                   # (V, V)
    mass = (likelier * p).sum(dim=1)        # of all tokens that are likelier than each
    assume((mass - top_p).abs().min() > 1e-5)
    kept = p.where(mass < top_p, 0)
    possible = torch.nonzero(kept > 1e-3).flatten()
    token = possible[number % len(possible)]
    below = kept[:token].sum()
    inside = place * kept[token]
    u = (below + inside) / kept.sum()
    o = SampleOptions(temperature=temperature, top_p=top_p)
    drawn, probability = draw(logits[None], u[None], o)
    assert drawn == token
    assert_close(probability[0].double(), kept[token], atol=1e-5, rtol=1e-5)


# ---- Metrics -------------------------------------------------------------------------------------

story = st.lists(st.sampled_from("abcd"), max_size=9)
stories = st.lists(story, min_size=2, max_size=9)


@given(stories)
def test_self_bleu_is_nltks_for_any_samples(samples):
    scores = self_bleu(samples)
    assert scores == pytest.approx(nltk_self_bleu(samples), abs=1e-12)
    assert scores.tolist() == plain_self_bleu(samples).tolist()


@given(stories, st.integers(1, 4))
def test_statistics_of_ngrams(samples, n):
    grams = [ngrams(words, n) for words in samples]
    counts = Counter()
    for words in samples:
        for start in range(len(words) - n + 1):
            gram = tuple(words[start:start + n])
            counts[gram] += 1
    total = max(1, counts.total())
    share, _ = of_counts(distinct, grams)
    assert share == len(counts) / total
    nats, _ = of_counts(entropy, grams)
    expected = 0.0
    for count in counts.values():
        p = count / total
        expected -= p * math.log(p)
    assert nats == pytest.approx(expected)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_interval_of_a_mean_is_the_usual_one(values):
    """With groups of one, the jackknife of a mean is its standard error."""
    x = np.array(values)

    def mean(keep):
        return x[keep].mean()

    error = scipy.stats.sem(x)
    groups = np.arange(len(x))
    for value, half in (interval(mean, groups), of_sums(values)):
        assert value == pytest.approx(x.mean(), abs=1e-9)
        assert half == pytest.approx(1.96 * error, abs=1e-6)
