"""What people bring as text, and where they keep it: read right, or refused in one line."""
import gc
import json
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np
import pytest

import compare
import diversity
from cli import InputError
from conftest import run
from prepare_data import EOT, PrepareOptions, Tokenizer, Windows, load_meta, prepare
from toy import TOY

# ---- The tokenizer -------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["words", "bytes", "gpt2"])
def test_a_mark_in_a_prompt_is_the_end_of_text(request, kind):
    """In a text of the data it is not."""
    if kind == "gpt2":
        gpt2 = request.getfixturevalue("gpt2")
    tokenizer = Tokenizer(kind, words=TOY.words())
    eot = tokenizer.eot
    story = "One day, a girl"
    ids = tokenizer.encode(story)
    assert tokenizer.encode_marked(story) == ids
    assert tokenizer.encode_marked(EOT) == [eot]
    assert tokenizer.encode_marked("") == []
    marked = f"{EOT}{story}{EOT}{EOT}{story}"
    assert tokenizer.encode_marked(marked) == [eot, *ids, eot, eot, *ids]
    if kind == "gpt2":
        text = f"{EOT}\n{story} {EOT} x"
        assert tokenizer.encode_marked(text) == gpt2.encode(text, allowed_special={EOT})


def test_windows_are_not_kept_in_memory(workdir):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    windows = Windows("x", "train", 48)
    windows.batch(0, 4)
    gone = weakref.ref(windows)
    del windows
    gc.collect()
    assert gone() is None


# ---- Reading text --------------------------------------------------------------------------------

HALF = r'{"text": "x \ud83d"}'      # the first half of a character of UTF-16
LONG = "Hello there. " * 100


@pytest.mark.parametrize("row", [HALF, '{"text": null}', '{"text": 5}', '{"text": ["a"]}'])
def test_a_row_whose_text_is_none_is_named(workdir, row):
    lines = ['{"text": "a b"}', "", '{"text": "whole: \\ud83d\\ude00"}', row]
    Path("rows.jsonl").write_text("\n".join(lines))
    said = r"half of a character, '\\ud83d'" if row == HALF else "not an object with a field text"
    reads = [lambda: prepare(PrepareOptions(text="rows.jsonl", tokenizer="bytes")),
             lambda: compare.read_texts("rows.jsonl", whole=False),
             lambda: diversity.read_samples("rows.jsonl")]
    for read in reads:
        with pytest.raises(InputError, match=f"rows.jsonl, line 4.*{said}"):
            read()


def test_samples_can_be_prepared_as_data(workdir):
    """Their first line holds settings. Rows may also be in .ndjson, and begin with a mark."""
    rows = [{"settings": {"length": 9}}, *[{"text": f"Story {i}"} for i in range(40)]]
    lines = [json.dumps(row) for row in rows]
    Path("s.ndjson").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    prepare(PrepareOptions(text="s.ndjson", tokenizer="bytes"))
    counts = load_meta("s-bytes")["splits"]
    assert counts["val"]["stories"] == 2
    assert counts["train"]["stories"] == 38


@pytest.mark.parametrize("name, said", [
    ("a.csv", "is CSV; make a .txt"), ("a.TSV", "is TSV; make a .txt"), ("a.json", "is JSON;")])
def test_tables_are_refused(workdir, name, said):
    Path(name).write_text(LONG)
    with pytest.raises(InputError, match=f"{name} {said}"):
        prepare(PrepareOptions(text=name, tokenizer="bytes"))
    assert not Path("data").exists()


@pytest.mark.parametrize("text", [LONG, "Привет, как дела? " * 100])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_utf_16_is_refused(workdir, text, encoding):
    """Without a mark at its beginning it may be valid UTF-8, full of zero bytes."""
    for name in "a.txt", "a.jsonl":
        Path(name).write_bytes(text.encode(encoding))
        with pytest.raises(InputError, match="UTF-8"):
            prepare(PrepareOptions(text=name, tokenizer="bytes"))


def test_a_zero_byte_is_text(workdir):
    text = "a\0b" + LONG
    Path("a.txt").write_text(text)
    prepare(PrepareOptions(text="a.txt", tokenizer="bytes"))
    counts = load_meta("a-bytes")["splits"]
    assert counts["train"]["bytes"] + counts["val"]["bytes"] == len(text)


def test_a_short_continuous_text(workdir):
    """What is said of it does not speak of stories."""
    Path("a.txt").write_text(LONG)
    prepare(PrepareOptions(text="a.txt", tokenizer="bytes", max_tokens=15))
    counts = load_meta("a-bytes")["splits"]
    assert counts["train"]["tokens"] == 15
    assert counts["val"]["tokens"] == 1
    Path("b.txt").write_text("b")
    with pytest.raises(InputError, match="b.txt holds no text for train; give a longer one"):
        prepare(PrepareOptions(text="b.txt", tokenizer="bytes"))
