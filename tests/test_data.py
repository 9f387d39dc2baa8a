"""The tokenizer, the preparation of data, and the windows that training reads."""
import functools
import itertools
import json
import random
import re
import shutil
import sys
import types
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import prepare_data
from conftest import ROOT, run
from prepare_data import PrepareOptions, Windows, load_meta, prepare, training_command
from support import downloads
from support.flags import InputError
from tokenizer import EOT, Tokenizer, cut_between_words, join_words, split_words
from worlds import WORLDS, texts_of, world_named, world_of
from worlds.toy import TOY

rng = random.Random(0)
LETTERS = [*"aB1_ .,'\n\té你ß\x00\xa0\u3000", "नि", "กี", "👩\u200d👧", "👍🏽", "🇩🇪", "<|endoftext|>"]
TEXTS = ["".join(rng.choices(LETTERS, k=k)) for k in range(60)]


def prepared(**options) -> tuple:
    """The meta.json of a data set that is made with these options, and {split: its text}."""
    prepare(PrepareOptions(**{"name": "x", "tokenizer": "bytes"} | options))
    meta = load_meta("x")
    words = Tokenizer(**meta["tokenizer"])
    tokens = {split: np.fromfile(f"data/x/{split}.bin", np.uint16) for split in meta["splits"]}
    return meta, {split: words.decode(ids.tolist()) for split, ids in tokens.items()}


def prepare_toy(max_tokens=5000):
    prepare(PrepareOptions(name="x", max_tokens=max_tokens))


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


# ---- The tokenizer -------------------------------------------------------------------------------

@functools.cache
def tokenizer_of(*kind):
    return Tokenizer(**json.loads(json.dumps(Tokenizer(*kind).to_dict())))


@pytest.mark.parametrize("kind", [("bytes",), *[("gpt2", size) for size in (257, 4096, 50257)]])
def test_any_text_comes_back(gpt2, kind):
    words = tokenizer_of(*kind)
    for text in TEXTS:
        ids = words.encode(text)
        assert words.decode(ids) == text == words.decode_story([*ids, words.eot, 65])
        assert words.decode(words.encode_marked(f"{text}{EOT}a")) == f"{text}{EOT}a"
        assert max(ids, default=0) < words.eot == words.vocab_size - 1
        assert 50257 not in kind or ids == gpt2.encode_ordinary(text)
        for part in ids, ids[1:]:       # the second may begin within a character
            pieces = words.pieces(part)
            assert len(pieces) == len(part) and "".join(pieces) == words.decode(part)


def test_words_leave_nothing_out_but_white_space():
    for text in TEXTS:
        assert "".join(split_words(text)) == re.sub(r"\s", "", text)
    assert split_words("a_b c, d'e!?") == ["a_b", "c", ",", "d", "'", "e", "!", "?"]


@pytest.mark.parametrize("text", [
    "हिन्दी", "ภาษาไทยที่นี่", "مُحَمَّدٌ", "cafe\u0301", "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪"])
def test_a_word_with_marks_is_one_word(text):
    assert split_words(f"{text} {text}.") == [text, text, "."]


@pytest.mark.parametrize("beginning", [
    "Once upon a ", "Once upon a", "He said: ", "The end.\n\n", "The end.\n", "a\n ", "a  ", " ",
    "a <|endoftext|> "])
def test_a_prompt_is_cut_where_tokens_are(gpt2, beginning):
    """Its tokens are those with which the whole text begins."""
    words = tokenizer_of("gpt2", 4096)
    ids = words.encode_open(beginning)
    whole = beginning + (" time" if beginning.endswith("a") else "time")
    assert ids == words.encode_marked(whole)[:len(ids)]
    assert len(words.decode(ids)) >= len(beginning) - 1


def test_pieces_end_where_words_do():
    """But none is longer than 16,384 characters, because tiktoken fails on a million blanks."""
    text = "a" * 9000 + " b\n" + "c" * 9000 + " " * 17000 + "d" * 17000
    pieces = cut_between_words(text)
    assert "".join(pieces) == text
    assert list(map(len, pieces)) == [9002, 9001, 16384, 16384, 1232]


# ---- Where texts come from -----------------------------------------------------------------------

def write_stories(name: str, parts: list) -> str:
    """A file as people bring it: with byte order marks, and line ends of Windows."""
    parts = [part.replace("\n", "\r\n") for part in parts]
    text = f"\r\n{EOT}\r\n\ufeff".join(["", *parts])
    if name.endswith("l"):
        rows = [json.dumps({"text": part, "id": 5}) for part in parts]
        text = "\ufeff" + "\n\n".join(['{"settings": {}}', *rows])
    Path(name).write_text(text, newline="")
    return name


@pytest.mark.parametrize("name", ["b.txt", "b.jsonl"])
@pytest.mark.parametrize("has_val", [False, True])
def test_stories(workdir, name, has_val):
    """A mark comes before each. Every 20th is held out, unless there is a file for that, and what
    validation has is kept out of training."""
    some, others = [f" {i}\n\né " for i in range(15)], ["", "a\nb", " ", *map(str, range(7, 40))]
    files = [write_stories("a.txt", some), write_stories(name, others)]
    told, val = (list(filter(None, map(str.strip, part))) for part in ([*some, *others], others))
    if not has_val:
        val = told[19::20]
    meta, found = prepared(text=",".join(files), val=name * has_val)
    assert meta["kind"] == "stories"
    for split, told in ("val", val), ("train", [story for story in told if story not in val]):
        assert found[split] == EOT + EOT.join(told)
        bytes = len("".join(told).encode())
        counts = dict(stories=len(told), tokens=len(told) + bytes, bytes=bytes)
        assert meta["splits"][split].items() >= counts.items()


@pytest.mark.parametrize("kind, max_tokens", [("bytes", 0), ("words", 0), ("bytes", 40)])
def test_a_text_without_marks(workdir, kind, max_tokens):
    """Its last tenth is held out, but no part of a word."""
    text = "north é\nsouth east west " * 9 + "sparrow"
    end = len(text) * 9 // 10
    if kind == "words":
        end = text.index(" ", end)
    Path("a,b.txt").write_text(text)
    meta, found = prepared(text="a,b.txt", tokenizer=kind, max_tokens=max_tokens)
    assert meta["kind"] == "continuous"
    words = Tokenizer(**meta["tokenizer"])
    for split, part, most in ("train", text[:end], 1), ("val", text[end:], 20):
        ids = words.encode(part)[:max_tokens // most or None]
        assert found[split] == words.decode(ids)
        assert meta["splits"][split]["tokens"] == len(ids)


@pytest.mark.parametrize("named, content, val", [
    ("a.jsonl, line 2", '{"text": "x"}\n{"txt": "x"}', ""),
    *[("a.jsonl, line 1", row, "") for row in (
        '["text"]', '{"text": 5}', '{"settings": 5, "text": "x"}', r'{"text": "\ud83d"}')],
    ("a.csv", "text,label\nOnce,1\n", ""),
    ("a.txt", b"caf\xe9 <|endoftext|> x", ""),
    ("a.txt", 9 * "Once upon a time there was".encode("utf-16-le"), ""),
    ("a.txt", "x", "y<|endoftext|>z"),
    ("--text", "x", ""),
    ("--text", "One day", "day\n"),
    ("--text", "x<|endoftext|>y", "x<|endoftext|>y"),
    ("--tokenizer", " ".join(map(str, range(66_000))), "x"),
    ("'dog'", "One day", "One dog")])
def test_what_cannot_be_read_is_named(workdir, named, content, val):
    name = named.split(",")[0] if named.startswith("a.") else "b.txt"
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    Path("v.txt").write_text(val)
    kind = "words" if val and name == "b.txt" else "bytes"
    with pytest.raises(InputError, match=f"^[^\n]*{named}[^\n]*$"):
        prepared(text=name, val="v.txt" if val else "", tokenizer=kind)
    assert not Path("data").exists()


def test_shakespeare_is_downloaded_once_and_whole(workdir, monkeypatch):
    """Where it is not, the line says where a copy of it may be put."""
    answers = iter([OSError("no network"), b"<html>Log in", b"To be, or not to be, " * 50])

    def read():
        answer = next(answers)
        if isinstance(answer, bytes):
            return answer
        raise answer

    monkeypatch.setattr(downloads, "BYTES", 1050)
    monkeypatch.setattr(urllib.request, "urlopen",
                        lambda address, timeout: types.SimpleNamespace(read=read))
    for _ in range(2):
        with pytest.raises(InputError, match="^[^\n]*data/shakespeare/input.txt[^\n]*$"):
            prepare(PrepareOptions("shakespeare"))
    for _ in range(2):      # a fourth call would have no answer
        prepare(PrepareOptions("shakespeare"))
        assert load_meta("shakespeare")["splits"]["val"]["tokens"] == 105


def test_the_data_set_of_another_text_is_not_lost(workdir, monkeypatch):
    """Two files of one name have data sets of one name."""
    def begins(text, *flags):
        Path(text).parent.mkdir(exist_ok=True)
        Path(text).write_text(f"from {text}: some words. " * 9)
        monkeypatch.setattr("sys.argv", ["x", "--tokenizer=bytes", f"--text={text}", *flags])
        prepare_data.main()
        return Path("data/x-bytes/train.bin").read_bytes()[10:11]       # two bytes a token

    assert begins("a/x.txt") == begins("a/x.txt") == b"a"
    with pytest.raises(InputError, match="--name"):
        begins("b/x.txt")
    assert begins("b/x.txt", "--name=x-bytes") == b"b"


@pytest.mark.parametrize("options, kind, next_one", [
    ({"text": "games.txt", "tokenizer": "words", "name": "my games"}, "stories",
     "--mode=mdlm '--data=my games' --preset=toy --block_size=4"),
    ({"text": "book.txt", "tokenizer": "bytes"}, "continuous",
     "--mode=mdlm --data=book-bytes --preset=shakespeare"),
    ({"dataset": "sudoku-moves"}, "stories",
     "--mode=aogpt --data=sudoku-moves --preset=sudoku-moves")])
def test_the_next_command_fits_the_data_and_works_from_any_folder(
        workdir, monkeypatch, options, kind, next_one):
    monkeypatch.setattr("sys.argv", ["../code/prepare_data.py"])
    o = PrepareOptions(**options)
    if kind == "stories" and o.text:
        Path(o.text).write_text(EOT.join(["e2 f2"] * 18 + ["e4 f4", "e5 f5 g5"]))
        prepare(o)
    assert training_command(o, kind) == f"python ../code/train.py {next_one}"


WORLD = "from worlds.sudoku import *\nclass World(AllGrids): words = lambda self: [*'123456|']\n" \
        "SUMS = World(2, 3)"


def test_a_world_of_ones_own_is_one_file(tmp_path):
    """The window is as long as the longest text, of 36 words, and its end."""
    tree = tmp_path / "code"
    for folder in "support", "worlds":
        shutil.copytree(Path(ROOT, folder), tree / folder)
    for file in "prepare_data.py", "presets.py", "tokenizer.py":
        shutil.copy(Path(ROOT, file), tree)
    (tree / "worlds/sums.py").write_text(WORLD)
    done = run("prepare_data.py", "--dataset=sums", "--max_tokens=99", cwd=tmp_path, tree=tree)
    assert done.stdout.endswith("--data=sums --preset=toy --block_size=37\n"), done.stderr


# ---- Whole or not at all -------------------------------------------------------------------------

@pytest.mark.parametrize("breaks", ["train", "val.bin"])
def test_what_breaks_off_leaves_what_was_there(workdir, monkeypatch, breaks):
    """Within the download, or when a file is written. The next try starts anew. The folder may be a
    link to another disk."""
    Path("data").mkdir()
    Path("data/x").symlink_to(workdir / "mine")
    prepare_toy()
    before = contents("mine")
    write_bytes, broken = Path.write_bytes, {breaks}

    def load_dataset(path, split, streaming):
        assert (path, streaming) == ("roneneldan/TinyStories", True)
        for i in range(1000):
            yield {"text": f"Story {i} of {split}."}
            if split in broken:
                raise Exception         # what `datasets` raises is no OSError

    def write(path, content):
        if path.name in broken:
            raise KeyboardInterrupt
        return write_bytes(path, content)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(Path, "write_bytes", write)
    o = PrepareOptions("tinystories", tokenizer="bytes", max_tokens=5000, name="x")
    with pytest.raises((InputError, KeyboardInterrupt)):
        prepare(o)
    assert contents("mine") == before
    broken.clear()
    prepare(o)
    assert 5000 <= load_meta("x")["splits"]["train"]["tokens"] < 5030
    assert contents("mine").keys() == before.keys()


@pytest.mark.parametrize("file, damage", [
    ("train.bin", lambda content: content[2:] + content[:2]),
    ("val.bin", lambda content: b""),
    ("meta.json", lambda content: content.replace(b'"format": 1', b'"format": 0')),
    ("meta.json", lambda content: content.replace(b'"words": [', b'"words": [5, '))])
def test_a_damaged_data_set_is_refused_in_one_line(workdir, file, damage):
    prepare_toy()
    path = Path("data/x", file)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="^[^\n]*data/x[^\n]*$"):
        for split in "train", "val":
            Windows("x", split, 48)


# ---- Windows -------------------------------------------------------------------------------------

@pytest.mark.parametrize("T", [5, 12])
@pytest.mark.parametrize("kind, at_most", [("aligned", 0), ("random", 0), ("aligned", 7)])
def test_every_window_is_read_once_an_epoch(workdir, kind, at_most, T):
    """Of at most so many windows the same ones in each, and all of a larger number."""
    words = map(str, itertools.count())         # no two are equal, so a window tells its place
    stories = [" ".join(itertools.islice(words, 1 + i % 9)) for i in range(60)]
    Path("a.txt").write_text(EOT.join(stories))
    prepare(PrepareOptions(text="a.txt", tokenizer="words", name="x"))
    windows = Windows("x", "train", T, kind, 5, at_most)
    n, tokens = len(windows), windows.tokens.tolist()
    place = {tuple(tokens[i:i + T]): i for i in range(len(tokens) - T + 1)}
    rows = np.concatenate([windows.batch(step, 4) for step in range(n)])
    epochs = [sorted(place[tuple(row)] for row in rows[i:i + n]) for i in (0, n, 2 * n)]
    if at_most:
        more = Windows("x", "train", T, kind, 5, at_most + 1)
        assert n == at_most and epochs == 3 * [epochs[0]] and set(epochs[0]) <= set(more.starts)
    elif kind == "aligned":
        starts = [i for i in place.values() if i and tokens[i - 1] == max(tokens)]
        assert epochs == 3 * [starts]
    else:
        assert n == len(tokens) // T - 1
        for starts in epochs:
            assert starts == list(range(starts[0], starts[0] + n * T, T))


def test_windows_depend_on_the_seed_and_random_ones_start_anywhere(workdir):
    prepare_toy(max_tokens=30_000)
    one, other = (Windows("x", "train", 48, "random", seed).starts_of_epoch for seed in (1, 2))
    assert {min(one(epoch)) for epoch in range(600)} == set(range(48))
    assert (one(0) != other(0)).any() and (one(0) != one(1)).any()
    few = [set(Windows("x", "train", 48, "aligned", seed, 20).starts) for seed in (1, 2)]
    assert few[0] != few[1]


@pytest.mark.parametrize("T", [20, 48, 70])
def test_law_is_the_true_nll_of_each_window(workdir, T):
    """A window shows a part of a story, a whole one, or one and a part of the next."""
    prepare_toy(max_tokens=40_000)
    words = Tokenizer(**load_meta("x")["tokenizer"])
    windows = Windows("x", "val", T)
    for places, nats in zip(windows.spread_places(10), windows.law(10), strict=True):
        told = words.decode(windows.tokens[places[0]:][:3 * 48]).split(EOT)[:2]
        log_p = [x for story in told for x in [*TOY.log_probs(story.strip()), 0.0]]
        assert nats == pytest.approx(-np.mean(log_p[:T]))
    assert Windows("x", "val", T, "random").law(2) is None


# ---- Worlds --------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", WORLDS)
def test_a_world_knows_its_words_and_what_is_wrong(name):
    """A word that is left out, comes twice, or has another digit."""
    world = world_named(name)
    tokenizer = PrepareOptions(name).make_tokenizer()
    assert world_of(tokenizer) is world and world_of(Tokenizer("bytes")) is None
    for text in itertools.islice(texts_of(world, 3), 5):
        words = split_words(text)
        assert world.is_right(text) and len(words) == world.mean_words()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        for i, word in enumerate(words):
            wrong = [[], [word, word]]
            if word[-1] in "123456":
                wrong.append([word[:-1] + str(int(word[-1]) % 6 + 1)])
            for edit in wrong:
                changed = join_words([*words[:i], *edit, *words[i + 1:]])
                assert not world.is_right(changed) and world.log_probs(changed) is None
