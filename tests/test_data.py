"""The tokenizer, the preparation of data, and the windows that training reads.

What must hold of any text is tested on texts that hypothesis makes up."""
import functools
import http.client
import itertools
import json
import os
import re
import shutil
import subprocess
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
import tokenizer
from conftest import ROOT
from prepare_data import PrepareOptions, Windows, load_meta, prepare
from support import downloads
from support.flags import InputError
from tokenizer import EOT, Tokenizer, cut_between_words
from worlds import WORLDS, texts_of, world_named, world_of
from worlds.toy import TOY

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
settings.load_profile("repeatable")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\ufeff"))
seeds = st.integers(0, 2 ** 31)


def prepared(name="x", **options) -> tuple:
    """The meta.json of a data set that is made with these options, and {split: its text}."""
    prepare(PrepareOptions(name=name, **{"tokenizer": "bytes"} | options))
    meta = load_meta(name)
    words = Tokenizer(**meta["tokenizer"])
    tokens = {split: np.fromfile(f"data/{name}/{split}.bin", np.uint16) for split in meta["splits"]}
    return meta, {split: words.decode(ids.tolist()) for split, ids in tokens.items()}


def prepare_toy(max_tokens=5000, seed=1337):
    prepare(PrepareOptions(name="x", max_tokens=max_tokens, seed=seed))


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


# ---- The tokenizer -------------------------------------------------------------------------------

@given(texts, st.sampled_from(["bytes", 257, 300, 4096, 50257]))
def test_any_text_comes_back(gpt2, text, size):
    words = Tokenizer("bytes") if size == "bytes" else Tokenizer("gpt2", size)
    words = Tokenizer(**json.loads(json.dumps(words.to_dict())))
    ids = words.encode(text)
    assert words.decode(ids) == text == words.decode_story([*ids, words.eot, 65])
    assert words.decode(words.encode_marked(f"{text}{EOT}a")) == f"{text}{EOT}a"
    assert max(ids, default=0) < words.eot == words.vocab_size - 1
    assert size != "bytes" or ids == list(text.encode())
    for part in ids, ids[1:]:       # the second may begin within a character
        pieces = words.pieces(part)
        assert len(pieces) == len(part)
        assert "".join(pieces) == words.decode(part)


@given(texts, st.text(st.characters(categories=["Mn", "Mc", "Me"]), min_size=1), texts)
def test_words_keep_their_marks(before, marks, after):
    """Nothing but white space is lost, and a mark is of the word that it stands on."""
    text = f"{before}{marks}{after}"
    words = tokenizer.split_words(text)
    assert "".join(words) == re.sub(r"\s", "", text)
    assert words == tokenizer.split_words(" ".join(words))
    if before[-1:].strip():
        assert len(tokenizer.split_words(before)) == len(tokenizer.split_words(before + marks))
    if before.isascii():
        assert tokenizer.split_words(before) == re.findall(r"\w+|[^\w\s]", before)


@pytest.mark.parametrize("text", [
    "हिन्दी", "ภาษาไทยที่นี่", "مُحَمَّدٌ", "cafe\u0301", "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪"])
def test_a_word_with_marks_is_one_word(text):
    assert tokenizer.split_words(f"{text} {text}") == [text, text]


@pytest.mark.parametrize("character", [" ", "\n", "a", "é"])
def test_a_million_times_the_same_character(gpt2, character):
    """tiktoken alone fails on so many blanks. On fewer of them the tokens are GPT-2's."""
    words = Tokenizer("gpt2", 50257)
    text = f"One{character * 1_000_000}day."
    assert words.decode(words.encode(text)) == text
    short = f"One{character * 20_000}day." if character.isspace() else "One day, " * 5000
    assert words.encode(short) == gpt2.encode_ordinary(short)
    assert words.eot == gpt2.eot_token


@given(st.lists(st.sampled_from(["a", " ", "\n", "b" * 9000, " " * 17000]), max_size=9))
def test_pieces_end_where_words_do(parts):
    text = "".join(parts)
    pieces = cut_between_words(text)
    assert "".join(pieces) == text and max(map(len, pieces), default=0) <= 2 ** 14
    for piece, after in itertools.pairwise(pieces):
        assert len(piece) == 2 ** 14 or not piece[-1].isspace() and after[0].isspace()


# ---- Where texts come from -----------------------------------------------------------------------

def write_file(name: str, parts: list, marked: bool) -> str:
    """A file as people bring it: with byte order marks, and line ends of Windows."""
    if name.endswith("l"):
        rows = [json.dumps({"text": part.replace("\n", "\r\n"), "id": 5}) for part in parts]
        Path(name).write_text("\ufeff" + "\n\n".join(['{"settings": {}}', *rows]))
    else:
        text = (f"\r\n{EOT}\r\n\ufeff" if marked else "\ufeff").join(parts)
        Path(name).write_bytes(text.replace("\n", "\r\n").replace("\r\r", "\r").encode())
    return name


stories = st.lists(st.text("ab é\n", min_size=1), min_size=1, max_size=60)


@given(stories, stories, st.sampled_from(["txt", "jsonl"]), st.booleans())
def test_stories(workdir, some, others, ending, has_val):
    """A mark comes before each. Every 20th is held out, unless there is a file for that, and what
    validation has is kept out of training."""
    text = ",".join([write_file("a.txt", ["", *some], True),
                     write_file(f"b.{ending}", ["", *others], True)])
    told = [story.strip() for story in [*some, *others]]
    told = [story for story in told if story]
    val = told[19::20]
    options = {}
    if has_val:
        options["val"] = write_file("v.txt", ["", *others], True)
        val = [story for story in map(str.strip, others) if story]
    train = [story for story in told if story not in val]
    if not train or not val:
        with pytest.raises(InputError, match="no text for"):
            prepared(text=text, **options)
        return
    meta, found = prepared(text=text, **options)
    assert meta["kind"] == "stories"
    for split, expected in ("train", train), ("val", val):
        assert found[split] == EOT + EOT.join(expected)
        size = sum(len(story.encode()) for story in expected)
        counts = {"stories": len(expected), "bytes": size, "tokens": size + len(expected)}
        assert meta["splits"][split] | counts == meta["splits"][split]


@given(st.text("ab é\n", min_size=30), st.integers(0, 30), st.booleans(),
       st.sampled_from(["bytes", "words"]), st.sampled_from([0, 40]))
@example("north south east west " * 9 + "sparrow", 9, False, "words", 0)
def test_a_text_without_marks(workdir, text, cut, has_val, kind, max_tokens):
    """Its last tenth is held out, but no part of a word; or the text of another file."""
    assume(text[:cut].strip() and text[cut:].strip() and text[cut:] not in text[:cut])
    Path("a.txt").write_text(text[:cut], encoding="utf-8")
    Path("b.txt").write_text(text[cut:], encoding="utf-8")
    options = {"text": "a.txt", "val": "b.txt"} if has_val else {"text": "a.txt,b.txt"}
    if not has_val:
        text = f"{text[:cut]}\n{text[cut:]}"         # so that no word is made of two
    end = cut if has_val else len(text) * 9 // 10
    while kind == "words" and not has_val and text[end:end + 1].strip():
        end += 1
    parts = {"train": text[:end], "val": text[end:]}
    known = tokenizer.split_words(parts["train"] if has_val else text)
    if kind == "words":
        words = [tokenizer.split_words(part) for part in parts.values()]
        if not all(words) or not set(words[1]) <= set(known):
            with pytest.raises(InputError, match="no text|is none of the"):
                prepared(tokenizer=kind, **options)
            return
    meta, found = prepared(tokenizer=kind, max_tokens=max_tokens, **options)
    assert meta["kind"] == "continuous"
    counts = list(map(known.count, meta["tokenizer"]["words"]))     # the most frequent come first
    assert counts == sorted(counts, reverse=True) and sum(counts) == len(known) * (kind == "words")
    words = Tokenizer(**meta["tokenizer"])
    for split, most in ("train", max_tokens), ("val", max_tokens // 20):
        ids = words.encode(parts[split])[:most or None]
        assert found[split] == words.decode(ids)
        counts = {"stories": 0, "tokens": len(ids), "bytes": len(found[split].encode())}
        assert meta["splits"][split] | counts == meta["splits"][split]


UTF_16 = 9 * "Once upon a time there was".encode("utf-16-le")


@pytest.mark.parametrize("named, content, val", [
    ("a.jsonl, line 2", b'{"text": "x"}\n{"txt": "x"}', b""),
    ("a.jsonl, line 1", b'["text"]', b""),
    ("a.jsonl, line 1", b'{"text": 5}', b""),
    ("a.jsonl, line 1", b'{"settings": 5, "text": "x"}', b""),
    ("a.jsonl, line 1", b'{"settings": ["x"]}', b""),
    ("a.jsonl, line 1", rb'{"text": "half of a character \ud83d"}', b""),
    ("a.jsonl, line 1", b"[" * 100_000, b""),
    ("a.csv", b"text,label\nOnce,1\n", b""),
    ("a.txt", b"caf\xe9 <|endoftext|> x", b""),
    ("a.txt", UTF_16, b""),
    ("--text", b"", b""),
    ("--text", b"x", b""),
    ("--text", b"One day", b"One day"),
    ("--text", b"One day", b"day\n"),
    ("--text", b"x<|endoftext|>y", b"x<|endoftext|>y"),
    ("a.txt", b"x", b"y<|endoftext|>z"),
    ("v.txt", b"x<|endoftext|>z", b"y")])
def test_what_cannot_be_read_is_named(workdir, named, content, val):
    name = named.split(",")[0].replace("--text", "a.txt")
    name = "a.txt" if name == "v.txt" else name
    Path(name).write_bytes(content)
    Path("v.txt").write_bytes(val)
    with pytest.raises(InputError, match=f"^[^\n]*{named}[^\n]*$"):
        prepared(text=name, val="v.txt" if val else "")
    assert not Path("data/x").exists()


def test_a_name_may_have_commas_and_is_given_once(workdir):
    for name in "a,b.txt", "c.txt":
        Path(name).write_text(f"This is {name}. " * 9)
    _, found = prepared(text="a,b.txt", val="c.txt")
    assert found["train"].startswith("This is a,b") and found["val"].startswith("This is c.")
    with pytest.raises(InputError, match="--text"):     # held out would be what is in the other
        prepared(text="c.txt,c.txt")


def test_what_words_cannot_do(workdir):
    Path("t.txt").write_text(" ".join(f"w{i}" for i in range(73_000)))
    with pytest.raises(InputError, match="73,000 different words.*at most 65,535"):
        prepared(text="t.txt", tokenizer="words")


@pytest.mark.parametrize("breaks", [
    OSError("no network"), http.client.IncompleteRead(b"To be"), b"<html>Log in</html>"], ids=repr)
def test_shakespeare_is_downloaded_once_and_whole(workdir, monkeypatch, breaks):
    calls = []

    def read():
        calls.append(1)
        if len(calls) > 1:
            return b"To be, or not to be, " * 50
        if isinstance(breaks, bytes):
            return breaks
        raise breaks

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
    assert len(calls) == 2
    assert contents("disk").keys() == {"input.txt", "meta.json", "train.bin", "val.bin"}


@pytest.fixture
def call(workdir, monkeypatch, capsys):
    """What prepare_data.py prints, which lies in a folder beside this one."""
    def main(*arguments):
        monkeypatch.setattr("sys.argv", ["../code/prepare_data.py", *arguments])
        prepare_data.main()
        return capsys.readouterr().out

    return main


def test_the_data_set_of_another_text_is_not_lost(call):
    """Two files of one name have data sets of one name."""
    for folder in "a", "b":
        Path(folder).mkdir()
        Path(folder, "x.txt").write_text(f"from {folder}: some words. " * 100)

    def begins(*arguments):
        call("--tokenizer=bytes", *arguments)
        return bytes(np.fromfile("data/x-bytes/train.bin", np.uint16)[:7].tolist())

    for _ in range(2):
        assert begins("--text=a/x.txt", "--max_tokens=200") == b"from a:"
    with pytest.raises(InputError, match="--name"):
        begins("--text=b/x.txt")
    assert begins("--text=a/x.txt") == b"from a:"
    assert begins("--text=b/x.txt", "--name=x-bytes") == b"from b:"


@pytest.mark.parametrize("arguments, next_one", [
    (["--text=games.txt", "--tokenizer=words", "--name=my games"],
     "--mode=mdlm '--data=my games' --preset=toy --block_size=4"),
    (["--text=book.txt", "--tokenizer=words"], "--mode=mdlm --data=book-words --preset=toy"),
    (["--text=book.txt", "--tokenizer=bytes"],
     "--mode=mdlm --data=book-bytes --preset=shakespeare"),
    (["--dataset=toy", "--max_tokens=900"], "--mode=mdlm --data=toy --preset=toy"),
    (["--dataset=sudoku-moves", "--max_tokens=900"],
     "--mode=aogpt --data=sudoku-moves --preset=sudoku-moves")])
def test_the_next_command_fits_the_data_and_works_from_any_folder(call, arguments, next_one):
    Path("games.txt").write_text(EOT.join(f"e{i} f{i} g{i}" for i in range(50)))
    Path("book.txt").write_text(" ".join(f"word{i}" for i in range(200)))
    assert call(*arguments).endswith(f"next: python ../code/train.py {next_one}\n")


def test_a_thousand_files_are_not_named_and_begin_lines(call):
    for i in range(1000):
        Path(f"t{i}.txt").write_text(f"naïve {i}", encoding="utf-8")
    names = ",".join(f"t{i}.txt" for i in range(1000))
    said = call(f"--text={names}", "--tokenizer=bytes", "--max_tokens=15")
    assert len(said) < 900 and "train.bin: 0 stories, 15 tokens, 15 bytes" in said


WORLD = """
class Sums:
    columns = 0
    def words(self): return [*"0123456789+="]
    def draw(self, rng): return " ".join("5+{0}={0}".format(rng.randrange(1000)))
    def is_right(self, text): return True
    def log_probs(self, text): return None
    def entropy(self): return None
    def mean_words(self): return 9.0
SUMS = Sums()
"""


def test_a_world_of_ones_own_is_one_file(tmp_path):
    """The window is as long as the longest text, of nine words, and its end."""
    for folder in "support", "worlds":
        shutil.copytree(Path(ROOT, folder), tmp_path / "code" / folder)
    for file in "prepare_data.py", "presets.py", "tokenizer.py":
        shutil.copy(Path(ROOT, file), tmp_path / "code")
    (tmp_path / "code/worlds/sums.py").write_text(WORLD)
    done = subprocess.run(
        [sys.executable, "code/prepare_data.py", "--dataset=sums", "--max_tokens=3000"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.stdout.endswith("next: python code/train.py --mode=mdlm --data=sums --preset=toy "
                                "--block_size=10\n"), done.stderr


# ---- Whole or not at all -------------------------------------------------------------------------

class Broken(Exception):
    """What `datasets` raises is no OSError."""


@pytest.mark.parametrize("breaks, says", [("download", "downloaded"), (0, None), (1, None)])
def test_what_breaks_off_leaves_what_was_there(workdir, monkeypatch, breaks, says):
    """Within the download, or when so many files are written. The next try starts anew. The folder
    may be a link, and other files in it are left alone."""
    Path("data").mkdir()
    Path("data/x").symlink_to(workdir / "mine")
    prepare_toy()
    Path("mine/notes.txt").write_text("mine")
    before = contents("mine")
    write_bytes, calls = Path.write_bytes, []

    def load_dataset(path, split, streaming):
        assert (path, streaming) == ("roneneldan/TinyStories", True)
        for i in range(1000):
            if i == 400 and breaks == "download" and len(calls) == 0:
                calls.append(1)
                raise Broken
            yield {"text": f"Story {i} of {split}."}

    def killed(path, content):
        calls.append(path)
        if len(calls) == breaks + 1:
            raise KeyboardInterrupt
        return write_bytes(path, content)

    package = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", package)
    ranks = {bytes([i]): i for i in range(256)}
    monkeypatch.setattr(tokenizer, "gpt2_tokens", lambda n: (ranks, "."))
    if breaks != "download":
        monkeypatch.setattr(Path, "write_bytes", killed)
    options = PrepareOptions("tinystories", vocab_size=257, max_tokens=5000, name="x")
    with pytest.raises((InputError, KeyboardInterrupt), match=says):
        prepare(options)
    assert contents("mine") == before
    prepare(options)
    splits = load_meta("x")["splits"]
    assert 5000 <= splits["train"]["tokens"] < 5030 and 250 <= splits["val"]["tokens"] < 280
    assert contents("mine").keys() == before.keys()


def with_entry(*keys, value=None):
    """A change of meta.json: another value at its end of these keys, or none at all."""
    def change(content):
        meta = json.loads(content)
        inner = functools.reduce(dict.__getitem__, keys[:-1], meta)
        inner[keys[-1]] = value
        return json.dumps(meta).encode()

    return change


@pytest.mark.parametrize("file, damage", [
    ("train.bin", lambda content: content + b"\0\0"),
    ("train.bin", lambda content: np.random.default_rng(0).bytes(len(content))),
    ("train.bin", lambda content: content[::-1]),
    ("val.bin", lambda content: content[:-2]),
    ("val.bin", lambda content: content[:-1]),
    ("val.bin", lambda content: b""),
    *[("meta.json", lambda content, text=text: text)
      for text in (b"", b"[]", b"5", b"{}", b"null", b"{", b"[" * 100_000, b"\xff")],
    *[("meta.json", with_entry(*keys, value=value)) for keys in [
        ("format",), ("kind",), ("eot",), ("splits",), ("splits", "val"), ("tokenizer",),
        ("splits", "train", "tokens"), ("tokenizer", "words")] for value in (None, [5])]])
def test_a_damaged_data_set_is_refused_in_one_line(workdir, file, damage):
    prepare_toy()
    path = Path("data/x", file)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="^[^\n]*data/x[^\n]*$"):
        for split in "train", "val":
            windows = Windows("x", split, 48)
            windows.law(2)


# ---- Windows -------------------------------------------------------------------------------------

EOT_ID = 300


def write_data(lengths):
    """Makes data/x of stories with so many words, all words different. Returns its tokens."""
    word = itertools.count()
    tokens = []
    for length in lengths:
        tokens += [EOT_ID, *itertools.islice(word, length)]
    Path("data/x").mkdir(parents=True, exist_ok=True)
    content = np.array(tokens, dtype=np.uint16)
    content.tofile("data/x/train.bin")
    split = {"tokens": len(tokens), "bytes": 1, "crc32": zlib.crc32(content)}
    meta = prepare_data.META | {"eot": EOT_ID, "splits": {"train": split, "val": split}}
    Path("data/x/meta.json").write_text(json.dumps(meta))
    return tokens


@given(st.lists(st.integers(1, 9), min_size=4, max_size=30), st.integers(2, 12),
       st.sampled_from(["aligned", "random"]), seeds, st.integers(1, 7), st.integers(0, 9))
def test_every_window_is_read_once_an_epoch(workdir, lengths, T, kind, seed, batch_size, at_most):
    """Of at most so many windows the same ones in each, and all of a larger number."""
    tokens = write_data(lengths)
    place = {tuple(tokens[i:i + T]): i for i in range(len(tokens) - T + 1)}
    aligned = [i for i in place.values() if i and tokens[i - 1] == EOT_ID]
    n = len(aligned) if kind == "aligned" else len(tokens) // T - 1
    if n < 2:
        with pytest.raises(InputError, match=f"has {max(0, n)} {kind} train windows of {T}"):
            Windows("x", "train", T, kind, seed)
        return
    windows = Windows("x", "train", T, kind, seed, at_most)
    n = min(at_most or n, n)
    assert len(windows) == n
    batches = [windows.batch(step, batch_size) for step in range(3 * n)]
    epochs = [sorted(place[tuple(row)] for row in epoch)
              for epoch in np.split(np.concatenate(batches)[:3 * n], 3)]
    for starts in epochs:
        if at_most:
            assert starts == epochs[0]
            more = Windows("x", "train", T, kind, seed, at_most + 1)
            assert set(starts) <= set(more.starts.tolist())
        elif kind == "aligned":
            assert starts == aligned
        else:
            assert (np.diff(starts) > 0).all() and (np.diff(starts) % T == 0).all()
    assert all(tuple(row) in place for row in windows.spread(5))


def test_windows_depend_on_the_seed_and_random_ones_start_anywhere(workdir):
    prepare_toy(max_tokens=30_000)
    one, other = (Windows("x", "train", 48, "random", seed) for seed in (1, 2))
    first = {min(one.starts_of_epoch(epoch)) for epoch in range(20)}
    assert len(first) > 10 and max(first) < 48
    assert (one.batch(0, 8) != other.batch(0, 8)).any()
    few = [set(Windows("x", "train", 48, "aligned", seed, 20).starts) for seed in (1, 2)]
    assert few[0] != few[1] and len(few[0]) == 20


@pytest.mark.parametrize("T", [20, 48, 70])
def test_law_is_the_true_nll_of_each_window(workdir, T):
    """A window shows a part of a story, a whole one, or one and a part of the next."""
    prepare_toy(max_tokens=40_000)
    words = Tokenizer(**load_meta("x")["tokenizer"])
    windows = Windows("x", "val", T)
    law = windows.law(10)
    assert law.shape == (10,)
    for row, nats in zip(windows.spread(10), law):
        start = next(s for s in windows.starts if (windows.tokens[s:s + T] == row).all())
        text = words.decode(windows.tokens[start:start + 3 * 48])
        log_p = []
        for story in text.split(EOT)[:2]:
            log_p += [*TOY.log_probs(story.strip()), 0.0]
        assert nats == pytest.approx(-np.mean(log_p[:T]))
    assert Windows("x", "val", T, "random").law(2) is None


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_is_known_by_its_words(name):
    world = world_named(name)
    assert world_of(PrepareOptions(name).make_tokenizer()) is world
    words = Tokenizer("words", words=world.words())
    for text in itertools.islice(texts_of(world, 3), 5):
        assert world.is_right(text) and not world.is_right(text + " " + text)
        ids = words.encode(text)
        assert len(ids) == world.mean_words() and words.decode(ids) == text
    assert world_of(Tokenizer("bytes")) is None and world_named("shakespeare") is None
