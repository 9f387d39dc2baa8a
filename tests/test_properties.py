"""What must hold for any text, window, mask and sampler setting. hypothesis makes up the cases."""
import itertools
import json
import math

import numpy as np
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from conftest import fill, small_model
from extras import ancestral
from model import Config, Drawing, bound_batch, draw, masked_ce_batch, probabilities
from prepare_data import EOT, Tokenizer, Windows, read_texts, split_stories
from sample import SampleOptions, generate
from support.flags import extra_file
from test_model import rng

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


# ---- Masks ---------------------------------------------------------------------------------------

shapes = st.tuples(st.integers(1, 6), st.integers(1, 17))       # pairs of rows, tokens


@given(shapes, seeds)
def test_masks(shape, seed):
    """What is masked is predicted from all of the rest, and nothing else is."""
    pairs, T = shape
    config = Config("mdlm", vocab_size=11, block_size=T)
    x = torch.randint(11, (2 * pairs, T), generator=rng(seed))
    for make_batch in bound_batch, masked_ce_batch:
        batch = make_batch(config, x, rng(seed))
        masked = batch.tokens[:, 1:] == config.mask_id                          # (B, T)
        assert torch.equal(batch.targets[:, 1:], x)
        assert torch.equal(batch.tokens[:, 1:][~masked], x[~masked])
        k = masked.sum(dim=1, keepdim=True)                                     # (B, 1)
        if make_batch is bound_batch:
            assert k.min() >= 1
            assert (k[0::2] + k[1::2] == T + 1).all()
        else:
            k = k.sum().clamp(min=1) / len(x)       # all masked tokens count the same
        assert_close(batch.weight[:, 1:], masked / k)


# ---- Samplers ------------------------------------------------------------------------------------

MODELS = {mode: small_model(mode) for mode in ("ar", "mdlm", "aogpt")}


def write_plainly(model, tokens, times, noise, o):
    """Without a cache."""
    return fill(model, tokens, times, noise(tokens.size(1)), o.steps, o)


@st.composite
def tasks(draw_from):
    """A model, what writes, a pattern (L,) with something to write, and options for it."""
    how = draw_from(st.sampled_from(["ar", "aogpt", "mdlm", "ancestral", "confidence"]))
    o = SampleOptions(seed=draw_from(seeds), full_length=True)
    o.temperature = draw_from(st.sampled_from([0, 0.5, 1.0, 3.0]))
    o.top_p = draw_from(st.sampled_from([0.1, 0.9, 1.0]))
    hidden = draw_from(st.lists(st.booleans(), min_size=1, max_size=8).filter(any))
    L, n = len(hidden), sum(hidden)
    if how == "ar":
        hidden.sort()       # it writes from left to right
        o.steps = n
    else:
        o.steps = draw_from(st.integers(1, 3 * n if how == "ancestral" else n))
    if how in ("aogpt", "mdlm"):
        listed = draw_from(st.permutations(range(L)))
        orders = ["", "random", "left_to_right", "blocks:3", ",".join(map(str, listed))]
        o.order = draw_from(st.sampled_from(orders))
    model = MODELS.get(how, MODELS["mdlm"])
    sampler = write_plainly
    if how not in MODELS:
        sampler = extra_file(how).sampler(model.config, o, {})
    text = torch.randint(0, 11, (L,), generator=rng(o.seed))
    return model, sampler, text.masked_fill(torch.tensor(hidden), model.config.mask_id), o


@given(tasks())
def test_any_sampler_writes_every_place_once_and_keeps_what_it_has(task):
    model, sampler, pattern, o = task
    hidden = pattern == model.config.mask_id
    states = [pattern.expand(3, -1)]

    def watched(*arguments):
        for tokens in sampler(*arguments):
            states.append(tokens)
            yield tokens

    tokens, appeared = generate(model, range(3), pattern, o, sampler=watched)
    for before, after in itertools.pairwise(states):
        kept = before != model.config.mask_id
        assert torch.equal(after[kept], before[kept])
        most = len(hidden) if sampler is ancestral.write else math.ceil(hidden.sum() / o.steps)
        assert (after != before).sum(dim=1).max() <= most
    assert torch.equal(tokens, states[-1])
    assert tokens.max() < model.config.mask_id
    assert ((appeared == -1) == ~hidden).all()
    assert appeared.max() < o.steps


@given(tasks())
def test_any_story_is_the_same_alone_and_with_a_cache(task):
    model, sampler, pattern, o = task
    tokens, _ = generate(model, range(3), pattern, o, sampler=sampler)
    [alone], _ = generate(model, [1], pattern, o, sampler=sampler)
    assert torch.equal(alone, tokens[1])
    if sampler is write_plainly:
        cached, _ = generate(model, range(3), pattern, o)
        assert torch.equal(cached, tokens)


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
    weights = probabilities(logits, Drawing(temperature, top_p))
    assert_close(weights.double(), kept, atol=1e-5, rtol=1e-5)
    possible = torch.nonzero(kept > 1e-3).flatten()
    token = possible[number % len(possible)]
    u = (kept[:token].sum() + place * kept[token]) / kept.sum()
    assert draw(weights[None], u[None]) == token
