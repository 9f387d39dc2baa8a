"""The tokenizer, the preparation of data, and the windows that training reads.

What must hold of any text is tested on texts that hypothesis makes up."""
import functools
import http.client
import itertools
import json
import re
import shutil
import sys
import types
import urllib.request
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import prepare_data
from conftest import ROOT, run
from prepare_data import PrepareOptions, Windows, load_meta, prepare, training_command
from support import downloads
from support.flags import InputError
from tokenizer import EOT, Tokenizer, cut_between_words, join_words, split_words
from worlds import WORLDS, texts_of, world_named, world_of
from worlds.toy import TOY

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None,
                          max_examples=60, suppress_health_check=HealthCheck)
settings.load_profile("repeatable")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\ufeff"))


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


@given(texts, st.sampled_from([("bytes",), *[("gpt2", size) for size in (257, 4096, 50257)]]))
def test_any_text_comes_back(gpt2, text, kind):
    words = tokenizer_of(*kind)
    ids = words.encode(text)
    assert words.decode(ids) == text == words.decode_story([*ids, words.eot, 65])
    assert words.decode(words.encode_marked(f"{text}{EOT}a")) == f"{text}{EOT}a"
    assert max(ids, default=0) < words.eot == words.vocab_size - 1
    assert words.vocab_size in (257, *kind)
    assert 50257 not in kind or ids == gpt2.encode_ordinary(text)
    for part in ids, ids[1:]:       # the second may begin within a character
        pieces = words.pieces(part)
        assert len(pieces) == len(part) and "".join(pieces) == words.decode(part)


@given(texts)
def test_words_leave_nothing_out_but_white_space(text):
    assert "".join(split_words(text)) == re.sub(r"\s", "", text)
    if text.isascii():
        assert split_words(text) == re.findall(r"\w+|[^\w\s]", text)


@pytest.mark.parametrize("text", [
    "हिन्दी", "ภาษาไทยที่นี่", "مُحَمَّدٌ", "cafe\u0301", "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪"])
def test_a_word_with_marks_is_one_word(text):
    assert split_words(f"{text} {text}.") == [text, text, "."]


def test_a_million_blanks(gpt2):
    """tiktoken alone fails on them."""
    text = f"One{' ' * 1_000_000}day."
    words = tokenizer_of("gpt2", 50257)
    assert words.decode(words.encode(text)) == text


@given(st.lists(st.sampled_from(["a", " ", "\n", "b" * 9000, " " * 17000]), max_size=9))
def test_pieces_end_where_words_do(parts):
    text = "".join(parts)
    pieces = cut_between_words(text)
    assert "".join(pieces) == text and max(map(len, pieces), default=0) <= 2 ** 14
    for piece, after in itertools.pairwise(pieces):
        assert len(piece) == 2 ** 14 or not piece[-1].isspace() and after[0].isspace()


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


def check_split(meta, found, split, **counts):
    """Of this split, also how many bytes the text that was found has."""
    counts["bytes"] = len(found[split].replace(EOT, "").encode())
    assert meta["splits"][split].items() >= counts.items()


stories = st.lists(st.text("ab é\n", min_size=1, max_size=4), min_size=1, max_size=60)


@given(stories, stories, st.sampled_from(["b.txt", "b.jsonl"]), st.booleans())
@example([*"abcdefghijklm"], [*"nopqrstuvwxyz"], "b.txt", False)
def test_stories(workdir, some, others, name, has_val):
    """A mark comes before each. Every 20th is held out, unless there is a file for that, and what
    validation has is kept out of training."""
    files = [write_stories("a.txt", some), write_stories(name, others)]
    told, val = (list(filter(None, map(str.strip, part))) for part in ([*some, *others], others))
    if not has_val:
        val = told[19::20]
    expected = {"val": val, "train": [story for story in told if story not in val]}
    options = {"text": ",".join(files), "val": files[1] * has_val}
    if not all(expected.values()):
        with pytest.raises(InputError):
            prepared(**options)
        return
    meta, found = prepared(**options)
    assert meta["kind"] == "stories"
    for split, told in expected.items():
        text = EOT + EOT.join(told)
        assert found[split] == text
        tokens = len(told) + len("".join(told).encode())
        check_split(meta, found, split, stories=len(told), tokens=tokens)


@given(st.text("ab é\n", min_size=30), st.sampled_from(["bytes", "words"]),
       st.sampled_from([0, 40]))
@example("north south east west " * 9 + "sparrow", "words", 0)
def test_a_text_without_marks(workdir, text, kind, max_tokens):
    """Its last tenth is held out, but no part of a word."""
    end = len(text) * 9 // 10
    while kind == "words" and text[end:end + 1].strip():
        end += 1
    assume(text[:end].strip() and text[end:].strip())
    Path("a.txt").write_text(text)
    meta, found = prepared(text="a.txt", tokenizer=kind, max_tokens=max_tokens)
    assert meta["kind"] == "continuous"
    counts = list(map(split_words(text).count, meta["tokenizer"]["words"]))
    assert counts == sorted(counts, reverse=True) and 0 not in counts
    words = Tokenizer(**meta["tokenizer"])
    for split, part, most in ("train", text[:end], 1), ("val", text[end:], 20):
        ids = words.encode(part)[:max_tokens // most or None]
        assert found[split] == words.decode(ids)
        check_split(meta, found, split, stories=0, tokens=len(ids))


@pytest.mark.parametrize("named, content, val", [
    ("a.jsonl, line 2", '{"text": "x"}\n{"txt": "x"}', ""),
    *[("a.jsonl, line 1", row, "") for row in (
        '["text"]', '{"text": 5}', '{"settings": 5, "text": "x"}', '{"settings": ["x"]}',
        r'{"text": "half of a character \ud83d"}', "[" * 100_000)],
    ("a.csv", "text,label\nOnce,1\n", ""),
    ("a.txt", b"caf\xe9 <|endoftext|> x", ""),
    ("a.txt", 9 * "Once upon a time there was".encode("utf-16-le"), ""),
    ("--text", "", ""),
    ("--text", "x", ""),
    ("--text", "One day", "One day"),
    ("--text", "One day", "day\n"),
    ("--text", "x<|endoftext|>y", "x<|endoftext|>y"),
    ("--tokenizer", " ".join(map(str, range(66_000))), "x"),
    ("'dog'", "One day", "One dog"),
    ("a.txt", "x", "y<|endoftext|>z"),
    ("v.txt", "x<|endoftext|>z", "y")])
def test_what_cannot_be_read_is_named(workdir, named, content, val):
    name = re.findall(r"a\.\w+|$", named)[0] or "a.txt"
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    Path("v.txt").write_text(val)
    kind = "words" if named[0] in "-'" and val else "bytes"
    with pytest.raises(InputError, match=f"^[^\n]*{named}[^\n]*$"):
        prepared(text=name, val="v.txt" if val else "", tokenizer=kind)
    assert not Path("data").exists()


def test_a_name_may_have_commas_and_is_given_once(workdir):
    Path("a,b.txt").write_text("One day. " * 9)
    Path("c.txt").write_text("Once upon a time. ")
    assert prepared(text="a,b.txt", val="c.txt")[1] == {"train": "One day. " * 9,
                                                        "val": "Once upon a time. "}
    with pytest.raises(InputError, match="--text"):     # held out would be what is in the other
        prepared(text="c.txt,c.txt")


@pytest.mark.parametrize("breaks", [
    OSError("no network"), http.client.IncompleteRead(b"To be"), b"<html>Log in</html>"], ids=repr)
def test_shakespeare_is_downloaded_once_and_whole(workdir, monkeypatch, breaks):
    answers = iter([breaks, b"To be, or not to be, " * 50])      # and none to a third call

    def read():
        answer = next(answers)
        if isinstance(answer, bytes):
            return answer
        raise answer

    monkeypatch.setattr(downloads, "BYTES", 1050)
    monkeypatch.setattr(urllib.request, "urlopen",
                        lambda address, timeout: types.SimpleNamespace(read=read))
    Path("data").mkdir()
    Path("data/shakespeare").symlink_to(workdir / "disk")
    with pytest.raises(InputError, match="^[^\n]*data/shakespeare/input.txt[^\n]*$"):
        prepare(PrepareOptions("shakespeare"))
    for _ in range(2):
        prepare(PrepareOptions("shakespeare"))
        assert load_meta("shakespeare")["splits"]["val"]["tokens"] == 105
    assert contents("disk").keys() == {"input.txt", "meta.json", "train.bin", "val.bin"}


def test_the_data_set_of_another_text_is_not_lost(workdir, monkeypatch):
    """Two files of one name have data sets of one name."""
    def begins(text, *flags):
        Path(text).parent.mkdir(exist_ok=True)
        Path(text).write_text(f"from {text}: some words. " * 9)
        monkeypatch.setattr("sys.argv", ["x", "--tokenizer=bytes", f"--text={text}", *flags])
        prepare_data.main()
        return bytes(np.fromfile("data/x-bytes/train.bin", np.uint16)[:6].tolist())

    for _ in range(2):
        assert begins("a/x.txt") == b"from a"
        with pytest.raises(InputError, match="--name"):
            begins("b/x.txt")
    assert begins("b/x.txt", "--name=x-bytes") == b"from b"


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

@pytest.mark.parametrize("breaks", ["train", "train.bin", "val.bin"])
def test_what_breaks_off_leaves_what_was_there(workdir, monkeypatch, breaks):
    """Within the download, or when a file is written. The next try starts anew. The folder may be a
    link, and other files in it are left alone."""
    Path("data").mkdir()
    Path("data/x").symlink_to(workdir / "mine")
    prepare_toy()
    Path("mine/notes.txt").write_text("mine")
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
    with pytest.raises(InputError if breaks == "train" else KeyboardInterrupt):
        prepare(o)
    assert contents("mine") == before
    broken.clear()
    prepare(o)
    sizes = [split["tokens"] for split in load_meta("x")["splits"].values()]
    assert 250 <= sizes[0] < 280 and 5000 <= sizes[1] < 5030
    assert contents("mine").keys() == before.keys()


@pytest.mark.parametrize("file, damage", [
    ("train.bin", lambda content: content + b"\0\0"),
    ("train.bin", lambda content: content[2:] + content[:2]),
    ("val.bin", lambda content: content[:-1]),
    ("val.bin", lambda content: b""),
    *[("meta.json", lambda content, text=text: text)
      for text in (b"[]", b"{", b"[" * 100_000, b"\xff")],
    *[("meta.json", lambda content, key=key, new=new: content.replace(b'"%s":' % key, new))
      for key in (b"format", b"kind", b"eot", b"splits", b"val", b"tokenizer", b"tokens", b"words")
      for new in (b'"x":', b'"%s": [5], "x":' % key)]])
def test_a_damaged_data_set_is_refused_in_one_line(workdir, file, damage):
    prepare_toy()
    path = Path("data/x", file)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="^[^\n]*data/x[^\n]*$"):
        for split in "train", "val":
            Windows("x", split, 48)


# ---- Windows -------------------------------------------------------------------------------------

def write_data(lengths):
    """Makes data/x of stories with so many words, all words different. Returns its tokens."""
    word = itertools.count()
    content = np.array([token for length in lengths
                        for token in [300, *itertools.islice(word, length)]], np.uint16)
    Path("data/x").mkdir(parents=True, exist_ok=True)
    content.tofile("data/x/train.bin")
    split = {"tokens": len(content), "bytes": 1, "crc32": zlib.crc32(content)}
    meta = prepare_data.META | {"eot": 300, "splits": {"train": split, "val": split}}
    Path("data/x/meta.json").write_text(json.dumps(meta))
    return content.tolist()


@given(st.lists(st.integers(1, 9), min_size=4, max_size=30), st.integers(2, 12),
       st.sampled_from(["aligned", "random"]), st.integers(0), st.integers(1, 7), st.integers(0, 9))
def test_every_window_is_read_once_an_epoch(workdir, lengths, T, kind, seed, batch_size, at_most):
    """Of at most so many windows the same ones in each, and all of a larger number."""
    tokens = write_data(lengths)
    place = {tuple(tokens[i:i + T]): i for i in range(len(tokens) - T + 1)}
    aligned = [i for i in place.values() if i and tokens[i - 1] == 300]
    n = len(aligned) if kind == "aligned" else len(tokens) // T - 1
    if n < 2:
        with pytest.raises(InputError, match="--block_size"):
            Windows("x", "train", T, kind)
        return
    windows = Windows("x", "train", T, kind, seed, at_most)
    n = min(at_most or n, n)
    assert len(windows) == n and all(tuple(row) in place for row in windows.spread(5))
    rows = np.concatenate([windows.batch(step, batch_size) for step in range(3 * n)])
    epochs = [sorted(place[tuple(row)] for row in epoch) for epoch in np.split(rows[:3 * n], 3)]
    for starts in epochs:
        if at_most:
            more = Windows("x", "train", T, kind, seed, at_most + 1)
            assert starts == epochs[0] and set(starts) <= set(more.starts)
        elif kind == "aligned":
            assert starts == aligned
        else:
            assert len({start % T for start in starts}) == 1 and len(set(starts)) == n


def test_windows_depend_on_the_seed_and_random_ones_start_anywhere(workdir):
    prepare_toy(max_tokens=30_000)
    starts = [Windows("x", "train", 48, "random", seed).starts_of_epoch for seed in (1, 2)]
    first = {min(starts[0](epoch)) for epoch in range(20)}
    assert len(first) > 10 and max(first) < 48 and (starts[0](0) != starts[1](0)).any()
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
    assert world_of(PrepareOptions(name).make_tokenizer()) is world
    tokenizer = Tokenizer("words", words=world.words())
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
    for text in "", "²", "a":
        assert not world.is_right(text)
    assert world_of(Tokenizer("bytes")) is None and world_named("shakespeare") is None
