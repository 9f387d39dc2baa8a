"""What people bring as text, and where they keep it: read right, or refused in one line."""
import gc
import json
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np
import pytest

import diversity
import prepare_data
from cli import InputError
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
    reads = [lambda: prepare(PrepareOptions(text="rows.jsonl", tokenizer="bytes")),
             lambda: prepare_data.read_texts(["rows.jsonl"]),
             lambda: diversity.read_samples("rows.jsonl")]
    for read in reads:
        with pytest.raises(InputError, match="rows.jsonl, line 4 is not an object with a field text"):
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


def test_utf_16_is_refused(workdir):
    for name in "a.txt", "a.jsonl":
        Path(name).write_text(LONG, encoding="utf-16")
        with pytest.raises(InputError, match="UTF-8"):
            prepare(PrepareOptions(text=name, tokenizer="bytes"))


def test_a_short_continuous_text(workdir):
    """What is said of it does not speak of stories."""
    Path("a.txt").write_text(LONG)
    prepare(PrepareOptions(text="a.txt", tokenizer="bytes", max_tokens=15))
    counts = load_meta("a-bytes")["splits"]
    assert counts["train"]["tokens"] == 15
    assert counts["val"]["tokens"] == 1
    Path("b.txt").write_text("b")
    with pytest.raises(InputError, match="b.txt holds no text for train; give more"):
        prepare(PrepareOptions(text="b.txt", tokenizer="bytes"))


# ---- Where data sets are kept --------------------------------------------------------------------

@pytest.fixture
def other_disk(workdir):
    """A folder from which no file can be moved to this one."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == Path(".").stat().st_dev:
        pytest.skip("there is only one disk")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield folder


def test_a_data_set_may_be_a_link_to_another_disk(workdir, other_disk):
    Path("data").mkdir()
    target = Path(other_disk, "mine")
    Path("data/x").symlink_to(target)
    for seed in 1, 2:
        prepare(PrepareOptions(name="x", max_tokens=5000, seed=seed))
        assert load_meta("x")["seed"] == seed
        assert sorted(os.listdir(target)) == ["meta.json", "train.bin", "val.bin"]
    assert os.listdir("data") == ["x"]
    assert os.listdir(other_disk) == ["mine"]


def test_the_data_set_of_another_text_is_not_lost(workdir, monkeypatch):
    """Two files of one name have data sets of one name."""
    for folder in "a", "b":
        Path(folder).mkdir()
        Path(folder, "x.txt").write_text(f"from {folder}: {LONG}")

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["prepare_data.py", "--tokenizer=bytes", *arguments])
        prepare_data.main()
        beginning = Path("data/x-bytes/train.bin").read_bytes()[:14:2]      # of two bytes a token
        return beginning.decode()

    for _ in range(2):
        assert call("--text=a/x.txt", "--max_tokens=200") == "from a:"
    with pytest.raises(InputError, match="was made of .*a/x.txt; give another --name, or"):
        call("--text=b/x.txt")
    assert call("--text=a/x.txt") == "from a:"
    assert call("--text=b/x.txt", "--name=x-bytes") == "from b:"


# ---- Real text beside samples --------------------------------------------------------------------

def test_samples_that_the_data_has_no_real_text_for(workdir, monkeypatch):
    """A continuous text has no stories, and its pieces may be too short."""
    Path("t.txt").write_text(LONG)
    prepare(PrepareOptions(text="t.txt", tokenizer="bytes"))
    Path("s.txt").write_text(f"A cat.{EOT}A dog.")
    settings = {"settings": {"start": "anywhere", "length": 1000, "full_length": True}}
    rows = [settings, {"text": "a b"}, {"text": "c d"}]
    Path("s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for file, texts in ("s.txt", "marked stories"), ("s.jsonl", "texts of 1000 tokens"):
        monkeypatch.setattr("sys.argv", ["diversity.py", f"mine={file}", "--data=t-bytes"])
        with pytest.raises(InputError, match=f"data/t-bytes holds fewer than 2 {texts}"):
            diversity.main()
