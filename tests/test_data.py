"""The tokenizer, the preparation of data, and the windows that training reads.

What must hold of any text is tested on texts that hypothesis makes up."""
import io
import itertools
import json
import sys
import types
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import prepare_data
import tokenizer
from conftest import run
from prepare_data import PrepareOptions, Windows, load_meta, prepare
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
    ids = words.encode(text)
    assert words.decode(ids) == text
    assert max(ids, default=0) < words.eot
    for part in ids, ids[1:]:       # the second may begin within a character
        pieces = words.pieces(part)
        assert len(pieces) == len(part)
        assert "".join(pieces) == words.decode(part)


@given(texts)
def test_bytes_need_no_vocabulary(text):
    words = Tokenizer(**json.loads(json.dumps(Tokenizer("bytes").to_dict())))
    ids = words.encode(text)
    assert ids == list(text.encode()) and words.decode(ids) == text and words.vocab_size == 257
    assert words.decode_story([*ids, 256, 65]) == text
    assert words.decode(words.encode_marked(f"{text}{EOT}a")) == f"{text}{EOT}a"
    assert "".join(words.pieces(ids)) == text and len(words.pieces(ids)) == len(ids)


@pytest.mark.parametrize("run", [" ", "\n", " \n", "a", "-", "é"])
def test_a_million_times_the_same_character(gpt2, run):
    """tiktoken alone fails on so many blanks. On fewer of them the tokens are GPT-2's."""
    words = Tokenizer("gpt2", 50257)
    text = f"One{run * 1_000_000}day."
    assert words.decode(words.encode(text)) == text
    short = f"One{run * 20_000}day." if run.isspace() else "One day, " * 5000
    assert words.encode(short) == gpt2.encode_ordinary(short)
    assert words.eot == gpt2.eot_token


@given(st.lists(st.sampled_from(["a", " ", "\n", "b" * 9000, " " * 17000]), max_size=9))
def test_pieces_end_where_words_do(parts):
    text = "".join(parts)
    pieces = cut_between_words(text)
    assert "".join(pieces) == text and max(map(len, pieces), default=0) <= 2 ** 14
    for piece, after in itertools.pairwise(pieces):
        assert len(piece) == 2 ** 14 or not piece[-1].isspace() and after[0].isspace()


def test_a_word_that_is_not_of_the_vocabulary():
    words = Tokenizer("words", words=TOY.words())
    assert words.vocab_size == 135
    with pytest.raises(InputError, match="the word 'dragon' is none of the 134 words"):
        words.encode("One day, a dragon")


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
    text = write_file("a.txt", ["", *some], True) + "," + write_file(f"b.{ending}", ["", *others], True)
    told = [story.strip() for story in [*some, *others]]
    told = [story for story in told if story]
    val = told[19::20]
    options = {}
    if has_val:
        options["val"] = write_file("v.txt", ["", *others], True)
        val = [story for story in map(str.strip, others) if story]
    train = [story for story in told if story not in val]
    if not train or not val:
        with pytest.raises(InputError, match="holds no text for .*, so give more"):
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
    assume(text[:cut].strip() and text[cut:].strip())
    Path("a.txt").write_text(text[:cut], encoding="utf-8")
    Path("b.txt").write_text(text[cut:], encoding="utf-8")
    options = {"text": "a.txt", "val": "b.txt"} if has_val else {"text": "a.txt,b.txt"}
    end = cut if has_val else len(text) * 9 // 10
    if kind == "words" and not has_val:
        while end < len(text) and not text[end].isspace():
            end += 1
    parts = {"train": text[:end], "val": text[end:]}
    if kind == "words":
        spelled = {split: tokenizer.split_words(part) for split, part in parts.items()}
        known = spelled["train"] if has_val else sum(spelled.values(), [])
        if not all(spelled.values()) or set(spelled["val"]) - set(known):
            with pytest.raises(InputError, match="holds no text|is none of the"):
                prepared(tokenizer=kind, **options)
            return
        meta, found = prepared(tokenizer=kind, **options)
        counts = [known.count(word) for word in meta["tokenizer"]["words"]]
        assert counts == sorted(counts, reverse=True) and sum(counts) == len(known)
        for split, expected in spelled.items():
            assert tokenizer.split_words(found[split]) == expected
        return
    meta, found = prepared(max_tokens=max_tokens, **options)
    assert meta["kind"] == "continuous"
    for split, most in ("train", max_tokens), ("val", max_tokens // 20):
        expected = parts[split].encode()[:most or None].decode(errors="replace")
        assert found[split] == expected
        assert meta["splits"][split]["tokens"] == len(parts[split].encode()[:most or None])
        assert meta["splits"][split]["bytes"] == len(expected.encode())
        assert meta["splits"][split]["stories"] == 0


@pytest.mark.parametrize("name, content, val, said", [
    ("a.jsonl", b'{"text": "x"}\n{"txt": "x"}', b"", "line 2 is not an object with a field text"),
    ("a.jsonl", b'["text"]', b"", "line 1 is not an object"),
    ("a.jsonl", b'{"text": 5}', b"", "line 1 is not an object"),
    ("a.jsonl", rb'{"text": "half of a character \ud83d"}', b"", "line 1 is not an object"),
    ("a.csv", b"text,label\nOnce,1\n", b"", "is a table or JSON"),
    ("a.txt", b"caf\xe9 <|endoftext|> x", b"", "is not UTF-8"),
    ("a.txt", 9 * "Once upon a time there was".encode("utf-16-le"), b"", "is not UTF-8"),
    ("a.txt", b"", b"", "holds no text"),
    ("a.txt", b"x", b"", "holds no text for train; it is too short"),
    ("a.txt", b"x", b"y<|endoftext|>z", "a.txt has no .* between stories, but another"),
    ("a.txt", b"x<|endoftext|>z", b"y", "v.txt has no .* between stories, but another")])
def test_what_cannot_be_read_is_named(workdir, name, content, val, said):
    Path(name).write_bytes(content)
    Path("v.txt").write_bytes(val)
    with pytest.raises(InputError, match=said):
        prepared(text=name, val="v.txt" if val else "")
    assert not Path("data/x").exists()


def test_what_words_cannot_do(workdir):
    Path("t.txt").write_text(" ".join(f"w{i}" for i in range(65_540)))
    with pytest.raises(InputError, match="65,540 different words.*at most 65,535"):
        prepared(text="t.txt", val="t.txt", tokenizer="words")


def test_shakespeare_is_downloaded_once(workdir, monkeypatch):
    calls = []

    def urlopen(address, timeout):
        calls.append(address)
        if len(calls) == 1:
            raise OSError("no network")
        return io.BytesIO(b"To be, or not to be, " * 50)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(InputError, match="put a copy at data/shakespeare/input.txt"):
        prepare(PrepareOptions("shakespeare"))
    for _ in range(2):
        prepare(PrepareOptions("shakespeare"))
        assert load_meta("shakespeare")["splits"]["val"]["tokens"] == 105
    assert len(calls) == 2
    assert contents("data/shakespeare").keys() == {"input.txt", "meta.json", "train.bin", "val.bin"}


def test_the_data_set_of_another_text_is_not_lost(workdir, monkeypatch, capsys):
    """Two files of one name have data sets of one name."""
    for folder in "a", "b":
        Path(folder).mkdir()
        Path(folder, "x.txt").write_text(f"from {folder}: some words. " * 100)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["prepare_data.py", "--tokenizer=bytes", *arguments])
        prepare_data.main()
        return bytes(np.fromfile("data/x-bytes/train.bin", np.uint16)[:7].tolist())

    for _ in range(2):
        assert call("--text=a/x.txt", "--max_tokens=200") == b"from a:"
    assert "20th" not in capsys.readouterr().out
    with pytest.raises(InputError, match="was made of .*a/x.txt; give another --name, or"):
        call("--text=b/x.txt")
    assert call("--text=a/x.txt") == b"from a:"
    assert call("--text=b/x.txt", "--name=x-bytes") == b"from b:"


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
    monkeypatch.setattr(tokenizer, "gpt2_tokens", lambda n: ({bytes([i]): i for i in range(256)}, "."))
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


@pytest.mark.parametrize("file, damage", [
    ("train.bin", lambda content: content + b"\0\0"),
    ("val.bin", lambda content: content[:-2]),
    ("meta.json", lambda content: content.replace(b'"format": 1', b'"format": 0'))])
def test_a_damaged_data_set_is_refused(workdir, file, damage):
    prepare_toy()
    path = Path("data/x", file)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="data/x is damaged.* prepare it again"):
        load_meta("x")


# ---- Windows -------------------------------------------------------------------------------------

EOT_ID = 300


def write_data(lengths):
    """Makes data/x of stories with so many words, all words different. Returns its tokens."""
    word = itertools.count()
    tokens = []
    for length in lengths:
        tokens += [EOT_ID, *itertools.islice(word, length)]
    Path("data/x").mkdir(parents=True, exist_ok=True)
    meta = {"format": 1, "eot": EOT_ID, "tokenizer": {},
            "splits": {"train": {"tokens": len(tokens), "bytes": 1}}}
    Path("data/x/meta.json").write_text(json.dumps(meta))
    np.array(tokens, dtype=np.uint16).tofile("data/x/train.bin")
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
    text = next(texts_of(world, 3))
    assert world.is_right(text) and not world.is_right(text + " " + text)
    assert world_of(Tokenizer("bytes")) is None and world_named("shakespeare") is None


def test_the_command_says_what_it_made(workdir):
    Path("t.txt").write_text("naïve " * 10, encoding="utf-8")
    done = run("prepare_data.py", "--text=t.txt", "--tokenizer=bytes", "--max_tokens=15")
    assert done.returncode == 0 and "20th" not in done.stdout + done.stderr
    assert "train.bin: 0 stories, 15 tokens, 15 bytes" in done.stdout
