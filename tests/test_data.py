"""Tokenizer, toy grammar, preparation and windows."""
import json
import os
import random
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import pytest

import prepare_data
from cli import InputError
from prepare_data import PrepareOptions, Tokenizer, Windows, load_meta, prepare
from test_toy import SMALL
from toy import TOY

def test_toy_corpus_is_the_same_byte_for_byte(workdir):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        prepare(PrepareOptions(name=name, seed=seed, max_tokens=20_000))
    read = {name: open(f"data/{name}/train.bin", "rb").read() for name in "abc"}
    assert read["a"] == read["b"] != read["c"]
    meta = load_meta("a")
    assert meta["entropy"] == pytest.approx(TOY.entropy() / (TOY.mean_words() + 1))
    assert meta["splits"]["train"]["tokens"] * 2 == os.path.getsize("data/a/train.bin")

def test_floor_is_the_true_nll_of_the_windows(workdir):
    prepare(PrepareOptions(name="t", max_tokens=40_000))
    tokenizer = Tokenizer(**load_meta("t")["tokenizer"])
    for T in (20, 48, 70):              # truncated, exact and several stories in a window
        windows = Windows("t", "val", T)
        x = windows.spread(10)
        expected = []
        for row in x:       # find the row's place again, to know all of the stories that it shows a part of
            start = next(s for s in windows.starts if np.array_equal(windows.tokens[s:s + T], row))
            log_p = []
            for story in tokenizer.decode(windows.tokens[start:start + T + 200]).split(prepare_data.EOT):
                if len(log_p) < T:
                    log_p += [*TOY.log_probs(story.strip()), 0.0]
            expected.append(np.mean(log_p[:T]))
        assert windows.floor(10) == pytest.approx(-np.mean(expected), abs=1e-6)

# ------------------------------------------------------------------------------------------------ tokenizers

def test_bpe_cut_at_50257_is_gpt2(gpt2, stories_file):
    text = open(stories_file, encoding="utf-8").read()[:100_000]
    ours = Tokenizer("gpt2", 50257)
    assert ours.encode(text) == gpt2.encode_ordinary(text) and ours.eot == gpt2.eot_token
    assert ours.decode([*ours.encode(text), ours.eot]) == text + prepare_data.EOT

@pytest.mark.parametrize("size", [257, 1000, 4096])
def test_cut_bpe_is_lossless_and_within_its_vocabulary(gpt2, size):
    tokenizer = Tokenizer("gpt2", size)
    for text in ("Once upon a time, there was a little girl.", "naïve café 😀\n\t  x", ""):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and all(i < size - 1 for i in ids)
        if size == 257:
            assert len(ids) == len(text.encode())

def test_end_of_text_inside_a_story_is_plain_text(gpt2):
    tokenizer = Tokenizer("gpt2", 4096)
    assert tokenizer.eot not in tokenizer.encode("a <|endoftext|> b")

def test_words_tokenizer():
    tokenizer = Tokenizer("words", words=TOY.words())
    story = TOY.draw(random.Random(0))
    ids = tokenizer.encode(story)
    assert tokenizer.decode(ids) == story and tokenizer.decode_story([*ids, tokenizer.eot, *ids]) == story
    again = Tokenizer(**json.loads(json.dumps(tokenizer.to_dict())))
    assert again.encode(story) == ids and again.vocab_size == len(TOY.words()) + 1
    with pytest.raises(ValueError, match="dragon"):
        tokenizer.encode("One day, a dragon")

# ------------------------------------------------------------------------------------------ files and windows

def write_text(path, n, seed=0):
    rng = random.Random(seed)
    words = ["the", "cat", "sat", "on", "a", "mat"]
    stories = [" ".join(rng.choices(words, k=rng.randint(5, 60))) + f" {seed}-{i}" for i in range(n)]
    path.write_text(f"\n{prepare_data.EOT}\n".join(stories), encoding="utf-8")
    return stories

def test_text_files_become_split_stories(gpt2, workdir):
    stories = write_text(workdir / "s.txt", 200)
    prepare(PrepareOptions(text="s.txt", vocab_size=1000))
    meta = load_meta("s-1000")
    tokenizer = Tokenizer(**meta["tokenizer"])
    found = {}
    for split in ("train", "val"):
        ids = np.fromfile(f"data/s-1000/{split}.bin", dtype=np.uint16)
        assert ids[0] == tokenizer.eot                              # every story is preceded by end-of-text
        found[split] = tokenizer.decode(ids).split(prepare_data.EOT)[1:]
        assert meta["splits"][split]["bytes"] == sum(len(s.encode()) for s in found[split])
    assert found["train"] + found["val"] != [] and set(found["train"]) | set(found["val"]) == set(stories)
    assert not set(found["train"]) & set(found["val"])

def test_a_story_in_both_files_is_kept_out_of_training(gpt2, workdir):
    write_text(workdir / "a.txt", 30)
    (workdir / "b.txt").write_text((workdir / "a.txt").read_text() + f"{prepare_data.EOT}one more")
    prepare(PrepareOptions(text="b.txt", val="a.txt", vocab_size=300, name="x"))
    assert load_meta("x")["splits"]["train"]["stories"] == 1
    with pytest.raises(InputError, match="a.txt holds no story for train, or none that is not in val"):
        prepare(PrepareOptions(text="a.txt", val="a.txt", vocab_size=300, name="y"))

def test_the_next_command_is_quoted(gpt2, workdir, monkeypatch, capsys):
    write_text(workdir / "my stories.txt", 30)
    monkeypatch.setattr("sys.argv", ["prepare_data.py", "--text=my stories.txt", "--vocab_size=300"])
    prepare_data.main()
    assert "--data='my stories-300' --preset=laptop" in capsys.readouterr().out

def test_another_text_under_the_same_name_leaves_no_floor_behind(gpt2, workdir):
    prepare(PrepareOptions(name="x", max_tokens=20_000))
    assert Windows("x", "val", 20).floor(5) > 0
    write_text(workdir / "s.txt", 200)
    prepare(PrepareOptions(text="s.txt", name="x", vocab_size=300))
    assert Windows("x", "val", 20).floor(5) is None

def test_reading_is_independent_of_block_boundaries(workdir):
    """EOT marks and many-byte characters across the reader's blocks of a million characters."""
    stories = [("é" * 700_001) + str(i) for i in range(5)] + ["end"]
    (workdir / "s.txt").write_text(prepare_data.EOT.join(stories), encoding="utf-8")
    assert list(prepare_data.read_stories("s.txt")) == stories
    # a story too long to be kept whole, whose end-of-text lies across the place where it is cut
    (workdir / "s.txt").write_text("a" * (2 ** 21 - 5) + prepare_data.EOT + "b b b", encoding="utf-8")
    *long, last = prepare_data.read_stories("s.txt")
    assert "".join(long) == "a" * (2 ** 21 - 5) and last == "b b b"

def test_tinystories_comes_through_datasets(gpt2, workdir, monkeypatch):
    """The package's own call, with its rows; only the network is replaced."""
    calls = []

    def load_dataset(path, split, streaming):
        calls.append((path, split, streaming))
        return ({"text": f"Story {split} {i} of a cat. "} for i in range(1000))

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    prepare(PrepareOptions(dataset="tinystories", vocab_size=500, max_tokens=5000))
    meta = load_meta("tinystories-500")
    assert 5000 <= meta["splits"]["train"]["tokens"] < 5030 and meta["splits"]["val"]["tokens"] >= 250
    assert sorted(calls) == [("roneneldan/TinyStories", "train", True),
                             ("roneneldan/TinyStories", "validation", True)]

def test_a_download_that_breaks_off_leaves_what_was_there(gpt2, workdir, monkeypatch):
    """`datasets` raises what its libraries do, here no OSError; the next try starts anew."""
    class Broken(Exception):
        pass

    def load_dataset(path, split, streaming):
        rows = [{"text": f"Story {i} of {split}."} for i in range(1000)]
        yield from rows[:700]
        if broken:
            raise Broken("connection lost")
        yield from rows[700:]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    broken, options = True, PrepareOptions(dataset="tinystories", vocab_size=500, name="x")
    prepare(PrepareOptions(name="x", max_tokens=5000))
    before = {f: Path(f"data/x/{f}").read_bytes() for f in os.listdir("data/x")}
    with pytest.raises(InputError, match=r"could not be downloaded \(Broken\)"):
        prepare(options)
    assert os.listdir("data") == ["x"]
    assert {f: Path(f"data/x/{f}").read_bytes() for f in os.listdir("data/x")} == before
    broken = False
    prepare(options)
    assert load_meta("x")["splits"]["val"]["stories"] == 1000

def test_interrupted_preparation_leaves_what_was_there(workdir, monkeypatch):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    before = {f: open(f"data/x/{f}", "rb").read() for f in os.listdir("data/x")}
    draw, count = TOY.draw, [0]

    def interrupted(rng):
        count[0] += 1
        if count[0] > 700:
            raise KeyboardInterrupt
        return draw(rng)

    monkeypatch.setattr(TOY, "draw", interrupted)
    for name in ("x", "new"):
        count[0] = 0
        with pytest.raises(KeyboardInterrupt):
            prepare(PrepareOptions(name=name, max_tokens=500_000))
    assert {f: open(f"data/x/{f}", "rb").read() for f in os.listdir("data/x")} == before
    assert not os.path.exists("data/new")

@pytest.mark.parametrize("moved", range(3))
def test_a_run_killed_while_its_files_are_moved_leaves_no_data_set(workdir, monkeypatch, moved):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    replace, calls = Path.replace, []

    def killed(path, target):
        calls.append(target)
        if len(calls) > moved:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        prepare(PrepareOptions(name="x", max_tokens=9000, seed=2))
    assert not os.path.exists("data/x/meta.json") and os.listdir("data") == ["x"]
    prepare(PrepareOptions(name="x", max_tokens=9000, seed=2))
    assert load_meta("x")["seed"] == 2

def test_other_files_in_the_folder_are_left_alone(workdir):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    Path("data/x/notes.txt").write_text("mine")
    prepare(PrepareOptions(name="x", max_tokens=9000))
    assert sorted(os.listdir("data/x")) == ["meta.json", "notes.txt", "train.bin", "val.bin"]

def refused(name) -> str:
    """The line that load_meta raises."""
    with pytest.raises(InputError, match="prepare it again") as e:
        load_meta(name)
    line, = str(e.value).splitlines()
    return line

@pytest.mark.parametrize("split", ["train", "val"])
def test_a_changed_byte_is_found(workdir, split):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    file = Path(f"data/x/{split}.bin")
    whole = file.read_bytes()
    assert load_meta("x")["splits"][split]["crc32"] == zlib.crc32(whole)
    last_bit = whole[:-1] + bytes([whole[-1] ^ 1])
    for damaged in (last_bit, whole[2:] + whole[:2], whole + b"\0\0", whole[:-2], b""):
        file.write_bytes(damaged)
        assert str(file) in refused("x")
    file.unlink()
    assert str(file) in refused("x")

def test_an_id_beyond_the_vocabulary_is_found(workdir):
    """Even where size and checksum are right."""
    prepare(PrepareOptions(name="x", max_tokens=5000))
    meta = json.loads(Path("data/x/meta.json").read_text())
    tokens = np.fromfile("data/x/val.bin", dtype=np.uint16)
    tokens[7] = meta["tokenizer"]["vocab_size"]
    tokens.tofile("data/x/val.bin")
    meta["splits"]["val"]["crc32"] = zlib.crc32(tokens)
    Path("data/x/meta.json").write_text(json.dumps(meta))
    assert "data/x/val.bin" in refused("x")

def test_a_damaged_meta_json_is_found(workdir):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    file = Path("data/x/meta.json")
    whole = file.read_text()
    keys = ("format", "tokenizer", "vocab_size", "eot", "splits", "val", "train", "stories", "tokens",
            "bytes", "crc32")
    lacking = [whole.replace(f'"{key}"', f'"not {key}"', 1) for key in keys]
    wrong = [whole.replace('"format": 1', '"format": 2'), whole.replace("134", "null")]
    for text in ("", whole[:200], "[]", "3", *wrong, *lacking):
        file.write_text(text)
        assert text != whole and str(file) in refused("x")

def test_stories_of_another_grammar_have_no_floor(workdir, monkeypatch):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    monkeypatch.setattr(prepare_data, "TOY", SMALL)
    assert Windows("x", "val", 20).floor(5) is None

def test_windows(workdir):
    prepare(PrepareOptions(name="x", max_tokens=30_000))
    T, eot = 48, load_meta("x")["eot"]
    aligned = Windows("x", "train", T)
    n = len(aligned)
    assert all(aligned.tokens[s - 1] == eot for s in aligned.starts)
    first, second = aligned.batch(0, n), aligned.batch(1, n)                # an epoch each
    assert sorted(map(tuple, first)) == sorted(map(tuple, second)) and not np.array_equal(first, second)
    halves = np.concatenate([aligned.batch(0, n // 2), aligned.batch(1, n // 2)])
    assert np.array_equal(halves, first[:n // 2 * 2])
    assert np.array_equal(Windows("x", "train", T).batch(3, 5), aligned.batch(3, 5))
    assert not np.array_equal(Windows("x", "train", T, seed=2).batch(0, 5), aligned.batch(0, 5))

    few, fewer, others = (Windows("x", "train", T, seed=seed, at_most=at_most)
                          for seed, at_most in ((1, 60), (1, 20), (2, 20)))
    assert len(few) == 60 and set(fewer.starts) < set(few.starts) < set(aligned.starts)
    assert sorted(map(tuple, few.batch(0, 60))) == sorted(map(tuple, few.batch(7, 60)))
    assert set(fewer.starts) != set(others.starts)
    assert len(Windows("x", "train", T, at_most=10 ** 6)) == n

    anywhere = Windows("x", "train", T, "random")
    rows = anywhere.batch(0, len(anywhere))
    places = {tuple(anywhere.tokens[i:i + T].tolist()): i for i in range(len(anywhere.tokens) - T + 1)}
    starts = sorted(places[tuple(row)] for row in rows.tolist())
    assert all(b - a == T for a, b in zip(starts, starts[1:]))              # tiles, at a phase drawn anew
    firsts = (anywhere.batch(epoch * len(anywhere), 1)[0].tolist() for epoch in range(20))
    assert len({places[tuple(row)] % T for row in firsts}) > 10
    few = Windows("x", "train", T, "random", at_most=5)
    assert len({tuple(row) for row in few.batch(0, 50).tolist()}) == 5      # the same ones in every epoch

    paper = {split: Windows("x", split, T, "paper") for split in ("train", "val")}
    assert not set(paper["train"].starts) & set(paper["val"].starts)
    assert len(paper["val"]) == (len(paper["train"]) + len(paper["val"])) // 20
    assert not (paper["train"].spread(10_000) == eot).any()
