"""What must hold for any text and any window. hypothesis makes up the cases."""
import itertools
import json

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from prepare_data import Windows
from tokenizer import Tokenizer

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
