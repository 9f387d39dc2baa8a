"""The tokenizer, the preparation of data, and the windows that training reads."""
import io
import json
import random
import sys
import types
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import prepare_data
import tokenizer
from conftest import run
from support.flags import InputError
from prepare_data import (
    PrepareOptions, Windows, load_meta, prepare, read_texts, split_stories)
from tokenizer import EOT, Tokenizer
from worlds.toy import TOY
from worlds import WORLDS, texts_of, world_named, world_of


def prepare_toy(name="x", max_tokens=5000, seed=1337):
    prepare(PrepareOptions(name=name, max_tokens=max_tokens, seed=seed))


def prepare_text(text, vocab_size=300, **options):
    prepare(PrepareOptions(text=text, vocab_size=vocab_size, **options))


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def tokens_of(name, split):
    return np.fromfile(f"data/{name}/{split}.bin", dtype=np.uint16)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def write_text(path, n):
    """A text file of n stories, no two of them equal; they are returned."""
    rng = random.Random(0)
    words = ["the", "cat", "sat", "in", "a", "café"]
    stories = []
    for i in range(n):
        text = rng.choices(words, k=rng.randint(5, 60))
        stories.append(f"{' '.join(text)} {i}")
    path.write_text(f"\n{EOT}\n".join(stories), encoding="utf-8")
    return stories


# ---- The tokenizer -------------------------------------------------------------------------------

def test_50257_tokens_are_those_of_gpt2(gpt2, stories_file):
    """Though a long text is read in pieces."""
    text = Path(stories_file).read_text(encoding="utf-8")[:100_000]
    pieces = list(tokenizer.cut_between_words(text))
    assert max(map(len, pieces)) <= 2 ** 14
    ours = Tokenizer("gpt2", 50257)
    ids = ours.encode(text)
    assert ids == gpt2.encode_ordinary(text)
    assert ours.eot == gpt2.eot_token
    assert ours.decode([*ids, ours.eot]) == text + EOT


def test_words_tokenizer():
    tokenizer = Tokenizer("words", words=TOY.words())
    assert tokenizer.vocab_size == 135
    story = TOY.draw(random.Random(0))
    again = Tokenizer(**json.loads(json.dumps(tokenizer.to_dict())))
    assert again.decode(tokenizer.encode(story)) == story
    with pytest.raises(InputError, match="dragon"):
        tokenizer.encode("One day, a dragon")

# ---- Where stories come from ---------------------------------------------------------------------

def test_text_files_become_split_stories(gpt2, workdir):
    stories = write_text(workdir / "s.txt", 200)
    prepare_text("s.txt", 1000)
    meta = load_meta("s-1000")
    tokenizer = Tokenizer(**meta["tokenizer"])
    found = []
    for split in "train", "val":
        text = tokenizer.decode(tokens_of("s-1000", split))
        nothing, *texts = text.split(EOT)           # a mark comes before every story
        assert nothing == ""
        size = sum(len(text.encode()) for text in texts)
        assert meta["splits"][split]["bytes"] == size
        found += texts
    assert sorted(found) == sorted(stories)
    assert texts == stories[19::20]


def test_a_story_in_both_files_is_kept_out_of_training(gpt2, workdir):
    write_text(workdir / "a.txt", 30)
    text = Path("a.txt").read_bytes()
    Path("b.txt").write_bytes(text + b"<|endoftext|>one more")
    prepare_text("b.txt", val="a.txt")
    assert load_meta("b-300")["splits"]["train"]["stories"] == 1
    with pytest.raises(InputError, match="a.txt holds no text for train; .* so give more"):
        prepare_text("a.txt", val="a.txt")


def test_what_people_bring(gpt2, workdir):
    """Line ends of Windows, byte order marks where files were joined, several files, and JSON."""
    Path("a.txt").write_bytes("\ufeffOne\r\nday.\r\n<|endoftext|>\r\n\ufeffTwo.".encode())
    texts = ["Three\r\nwords.", " ", "Four<|endoftext|>Five"]
    rows = [{"settings": {}}, *[{"text": text, "id": 5} for text in texts]]
    lines = [json.dumps(row) for row in rows]
    Path("b.ndjson").write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")
    texts, marked = read_texts(["a.txt", "b.ndjson"])
    assert marked
    assert split_stories(texts) == ["One\nday.", "Two.", "Three\nwords.", "Four", "Five"]
    prepare(PrepareOptions(text="a.txt,b.ndjson", val="a.txt", name="x", tokenizer="bytes"))
    meta = load_meta("x")
    assert meta["kind"] == "stories"
    assert meta["splits"]["train"]["stories"] == 3


@pytest.mark.parametrize("name, content, said", [
    ("a.jsonl", b'{"text": "x"}\n{"txt": "x"}', "line 2 is not an object with a field text"),
    ("a.jsonl", b'["text"]', "line 1 is not an object"),
    ("a.jsonl", b'{"text": 5}', "line 1 is not an object"),
    ("a.jsonl", rb'{"text": "half of a character \ud83d"}', "line 1 is not an object"),
    ("a.csv", b"text,label\nOnce,1\n", "is a table or JSON"),
    ("a.txt", b"caf\xe9 <|endoftext|> x", "is not UTF-8"),
    ("a.txt", 9 * "Once upon a time there was".encode("utf-16-le"), "is not UTF-8"),
    ("a.txt", b"", "holds no text"),
    ("a.txt", b"x", "holds no text for train")])
def test_what_cannot_be_read_is_named(workdir, name, content, said):
    Path(name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        prepare(PrepareOptions(text=name, name="x", tokenizer="bytes"))
    assert not Path("data/x").exists()


def test_a_text_without_marks_is_continuous(gpt2, workdir):
    """Its last tenth is held out, and its tokens are those of the whole text."""
    text = "\n".join(write_text(workdir / "s.txt", 200))
    ends = len(text) * 9 // 10
    Path("one.txt").write_text(text[:700], encoding="utf-8")
    Path("two.txt").write_text(text[700:], encoding="utf-8")
    prepare_text("one.txt,two.txt", 50257, name="x")
    meta = load_meta("x")
    assert meta["kind"] == "continuous"
    for split, part in ("train", text[:ends]), ("val", text[ends:]):
        assert tokens_of("x", split).tolist() == gpt2.encode_ordinary(part)
        assert meta["splits"][split]["bytes"] == len(part.encode())
    assert Windows("x", "train", 8).kind == "random"
    prepare(PrepareOptions(text="one.txt", val="two.txt", name="x", tokenizer="bytes"))
    assert bytes(tokens_of("x", "train").tolist()) == text[:700].encode()


def test_a_text_and_val_of_two_kinds_are_refused(workdir):
    write_text(workdir / "s.txt", 5)
    Path("t.txt").write_text("no marks")
    for files in dict(text="s.txt", val="t.txt"), dict(text="t.txt", val="s.txt"):
        with pytest.raises(InputError, match="t.txt has no .* between stories, but another"):
            prepare(PrepareOptions(**files, tokenizer="bytes"))


def test_a_continuous_text_ends_at_max_tokens(workdir):
    Path("t.txt").write_text("naïve " * 10_000, encoding="utf-8")
    prepare(PrepareOptions(text="t.txt", tokenizer="bytes", max_tokens=1000))
    splits = load_meta("t-bytes")["splits"]
    assert splits["train"]["tokens"] == splits["train"]["bytes"] == 1000
    assert splits["val"]["tokens"] == 50
    with pytest.raises(InputError, match="has 0 aligned train windows of 8"):
        Windows("t-bytes", "train", 8, "aligned")


def test_a_short_continuous_text_is_not_told_of_stories(workdir):
    Path("t.txt").write_text("naïve " * 10, encoding="utf-8")
    done = run("prepare_data.py", "--text=t.txt", "--tokenizer=bytes", "--max_tokens=15")
    assert done.returncode == 0 and "20th" not in done.stdout + done.stderr
    assert load_meta("t-bytes")["splits"]["train"]["tokens"] == 15


def test_bytes_need_no_vocabulary(monkeypatch):
    monkeypatch.setattr(tokenizer, "gpt2_tokens", None)
    bytes_only = PrepareOptions("shakespeare").make_tokenizer()
    assert bytes_only.vocab_size == 257
    text = "naïve 😀\n"
    ids = bytes_only.encode(text)
    assert ids == list(text.encode())
    assert bytes_only.decode(ids) == text
    assert bytes_only.decode_story([65, 256, 66]) == "A"
    assert bytes_only.pieces(ids[:4]) == ["n", "a", "", "ï"]


@pytest.mark.parametrize("run", [" ", "\n", " \n", "a", "-", "é"])
def test_a_million_times_the_same_character(gpt2, run):
    """tiktoken alone fails on so many blanks. On fewer of them the tokens are the same."""
    tokenizer = Tokenizer("gpt2", 50257)
    text = "One" + run * 1_000_000 + "day."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    if run.isspace():
        short = "One" + run * 20_000 + "day."
        assert tokenizer.encode(short) == gpt2.encode_ordinary(short)


def test_shakespeare_is_downloaded_once(workdir, monkeypatch):
    calls = []

    def urlopen(address, timeout):
        calls.append(address)
        if len(calls) == 1:
            raise OSError("no network")
        return io.BytesIO(b"To be, or not to be, " * 50)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    o = PrepareOptions("shakespeare")
    with pytest.raises(InputError, match="put a copy at data/shakespeare/input.txt"):
        prepare(o)
    for _ in range(2):
        prepare(o)
        assert load_meta("shakespeare")["splits"]["val"]["tokens"] == 105
    assert len(calls) == 2
    assert names("data/shakespeare") == ["input.txt", "meta.json", "train.bin", "val.bin"]

# ---- Whole or not at all -------------------------------------------------------------------------

def test_a_download_that_breaks_off_leaves_what_was_there(gpt2, workdir, monkeypatch):
    """What `datasets` raises is no OSError. The next try starts anew."""
    class Broken(Exception):
        pass

    def load_dataset(path, split, streaming):
        assert (path, streaming) == ("roneneldan/TinyStories", True)
        for i in range(1000):
            if i == 400 and broken:
                raise Broken
            yield {"text": f"Story {i} of {split}."}

    package = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", package)
    prepare_toy()
    before = contents("data/x")
    options = PrepareOptions("tinystories", vocab_size=500, max_tokens=5000, name="x")
    broken = True
    with pytest.raises(InputError, match=r"could not be downloaded \(Broken\)"):
        prepare(options)
    assert names("data") == ["x"]
    assert contents("data/x") == before
    broken = False
    prepare(options)
    splits = load_meta("x")["splits"]
    assert 5000 <= splits["train"]["tokens"] < 5030
    assert 250 <= splits["val"]["tokens"] < 280

@pytest.mark.parametrize("written", [0, 1])
def test_a_run_killed_while_it_writes_leaves_what_was_there(workdir, monkeypatch, written):
    prepare_toy()
    before = contents("data/x")
    write_bytes = Path.write_bytes
    calls = []

    def killed(path, content):
        calls.append(path)
        if len(calls) > written:
            raise KeyboardInterrupt
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_toy(max_tokens=9000, seed=2)
    assert contents("data/x") == before
    prepare_toy(max_tokens=9000, seed=2)
    assert load_meta("x")["seed"] == 2


def test_a_data_set_may_be_a_link(workdir):
    """Its files may be on another disk, and others beside them are left alone."""
    Path("data").mkdir()
    Path("data/x").symlink_to(workdir / "mine")
    prepare_toy()
    Path("mine/notes.txt").write_text("mine")
    prepare_toy(max_tokens=9000)
    assert names("mine") == ["meta.json", "notes.txt", "train.bin", "val.bin"]


def test_the_data_set_of_another_text_is_not_lost(workdir, monkeypatch):
    """Two files of one name have data sets of one name."""
    for folder in "a", "b":
        Path(folder).mkdir()
        Path(folder, "x.txt").write_text(f"from {folder}: some words. " * 100)

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


# ---- The toy's law on windows --------------------------------------------------------------------

@pytest.mark.parametrize("T", [20, 48, 70])
def test_law_is_the_true_nll_of_each_window(workdir, T):
    """A window shows a part of a story, a whole one, or one and a part of the next."""
    prepare_toy(max_tokens=40_000)
    tokenizer = Tokenizer(**load_meta("x")["tokenizer"])
    windows = Windows("x", "val", T)
    law = windows.law(10)
    assert law.shape == (10,)
    for row, nats in zip(windows.spread(10), law):
        start = next(s for s in windows.starts if (windows.tokens[s:s + T] == row).all())
        text = tokenizer.decode(windows.tokens[start:start + 3 * 48])
        log_p = []
        for story in text.split(EOT)[:2]:
            log_p += [*TOY.log_probs(story.strip()), 0.0]
        assert nats == pytest.approx(-np.mean(log_p[:T]))

# ---- Windows -------------------------------------------------------------------------------------

def test_at_most_so_many_windows(workdir):
    """A smaller number takes some of those of a larger one, and every epoch reads the same ones."""
    prepare_toy(max_tokens=30_000)

    def starts(at_most, seed=1):
        windows = Windows("x", "train", 48, "aligned", seed, at_most)
        return set(windows.starts)

    few = starts(20)
    assert len(few) == 20
    assert few < starts(60) < starts(0)
    assert few != starts(20, seed=2)
    for kind in "aligned", "random":
        windows = Windows("x", "train", 48, kind, at_most=5)
        first = windows.batch(0, 5)
        later = windows.batch(7, 5)
        assert sorted(first.tolist()) == sorted(later.tolist())


def test_random_windows_start_anywhere(workdir):
    """test_properties.py tests that they lie end to end."""
    prepare_toy(max_tokens=30_000)
    windows = Windows("x", "train", 48, "random")
    first = {min(windows.starts_of_epoch(epoch)) for epoch in range(20)}
    assert len(first) > 10
    assert max(first) < 48


def test_the_words_of_a_text_are_its_tokens(workdir):
    """Moves of chess, say: the most frequent word first, and blanks of any kind between them."""
    Path("games.txt").write_text("<|endoftext|>e4 e5 Nf3\ne4 c5 e4 <|endoftext|>  d4 e5".replace(
        " c5", "\tc5") * 30, encoding="utf-8")
    Path("val.txt").write_text("<|endoftext|>" + "e5 e4 " * 9)
    prepare(PrepareOptions(text="games.txt", tokenizer="words", val="val.txt"))
    meta = load_meta("games-words")
    words = Tokenizer(**meta["tokenizer"])
    assert words.words == ["e4", "e5", "Nf3", "c5", "d4"] and meta["eot"] == 5
    assert words.decode(words.encode("e4  Nf3\nd4")) == "e4 Nf3 d4"
    assert Windows("games-words", "train", 4).law(2) is None       # nobody knows it


def test_a_word_of_the_last_tenth_alone_is_a_word(workdir):
    """And the last tenth does not begin within a word."""
    Path("t.txt").write_text("north south east west " * 30 + "sparrow")
    prepare(PrepareOptions(text="t.txt", tokenizer="words"))
    words = load_meta("t-words")["tokenizer"]["words"]
    assert sorted(words) == ["east", "north", "south", "sparrow", "west"]


def test_a_word_that_only_val_has_is_told(workdir):
    Path("t.txt").write_text("e4 e5 " * 50)
    Path("v.txt").write_text("e4 e6")
    with pytest.raises(InputError, match="the word 'e6' is none of the 2 words"):
        prepare(PrepareOptions(text="t.txt", val="v.txt", tokenizer="words"))


def test_too_many_words_are_refused(workdir):
    Path("t.txt").write_text(" ".join(f"w{i}" for i in range(65_540)))
    with pytest.raises(InputError, match="65,540 different words.*at most 65,535"):
        prepare(PrepareOptions(text="t.txt", val="t.txt", tokenizer="words"))


def test_a_world_is_known_by_its_words():
    for name in WORLDS:
        world = world_named(name)
        assert world_of(PrepareOptions(name).make_tokenizer()) is world
        text = next(texts_of(world, 3))
        assert world.is_right(text) and not world.is_right(text + " " + text)
    assert world_of(Tokenizer("bytes")) is None and world_named("shakespeare") is None
