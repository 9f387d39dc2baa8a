"""
Text in, tokens out: makes data/<name>/ with train.bin, val.bin and meta.json.

    python prepare_data.py                          the toy of toy.py, its entropy known exactly
    python prepare_data.py --dataset=tinystories    TinyStories, by `datasets`; 50M tokens
    python prepare_data.py --dataset=tinystories --vocab_size=4096      the same, for laptops
    python prepare_data.py --dataset=shakespeare    1.1 MB of plays, as bytes
    python prepare_data.py --text=book.txt          your own text, also with --tokenizer=bytes
    python prepare_data.py --text=a.txt,b.jsonl --val=c.txt --name=mine     several files of stories

Text is of one of two kinds. Where <|endoftext|> stands between stories, or each line of a .jsonl
file has one in its field "text", every 20th story is held out for validation, and no story is in
both splits. All else is one continuous text, and its last tenth is held out.

A .bin file is a row of tokens as uint16 numbers, with an end-of-text token before every story. The
class Windows cuts it into rows for training and evaluation.
"""
import codecs
import http.client
import itertools
import json
import os
import re
import shlex
import tempfile
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tiktoken
from tqdm import tqdm

from support.flags import (InputError, build, check_flags, command, did_you_mean, flag, parse_flags,
                 provenance, write_json)
from toy import TOY, join_words, split_words, toy_stories

EOT = "<|endoftext|>"
DATA_DIR = "data"
FORMAT = 1              # of these files; it changes when older files can no longer be read


# ---- The tokenizer -------------------------------------------------------------------------------

class Tokenizer:
    """Turns text into token ids and back. The last id is end-of-text.

    kind    gpt2    GPT-2's byte-level BPE, cut to its first vocab_size - 1 tokens. Each token is a
                    byte or made of two earlier tokens, so it works wherever it is cut. A vocab_size
                    of 50257 is GPT-2's own.
            bytes   the 256 bytes of UTF-8: no download, and any language
            words   a list of words and punctuation marks"""

    def __init__(self, kind: str = "gpt2", vocab_size: int = 50257, words=()):
        self.kind = kind
        self.words = list(words)
        if kind == "words":
            vocab_size = len(self.words) + 1
            self.id = {word: i for i, word in enumerate(self.words)}
        elif kind == "bytes":
            vocab_size = 257
            self.bpe = make_bpe({bytes([i]): i for i in range(256)})
        else:
            self.bpe = cut_gpt2(vocab_size)
        self.vocab_size = vocab_size
        self.eot = vocab_size - 1

    def to_dict(self) -> dict:
        """What it takes to make this tokenizer again: Tokenizer(**to_dict())."""
        return {"kind": self.kind, "vocab_size": self.vocab_size, "words": self.words}

    def encode(self, text: str) -> list:
        """The ids of a text. An end-of-text mark in it is plain text. Raises InputError."""
        [ids] = self.encode_batch([text])
        return ids

    def encode_marked(self, text: str) -> list:
        """The ids of a text in which each <|endoftext|> stands for the end-of-text token.

        A prompt is such a text, and so is what a model has written. Raises InputError."""
        ids = []
        for story in text.split(EOT):
            ids += [self.eot, *self.encode(story)]
        return ids[1:]

    def encode_batch(self, texts: list) -> list:
        """The ids of each text. Raises InputError."""
        if self.kind == "bytes":
            return [list(text.encode()) for text in texts]
        if self.kind == "words":
            return [self.encode_words(text) for text in texts]
        pieces = [list(cut_between_words([text])) for text in texts]
        ids = self.bpe.encode_ordinary_batch(list(itertools.chain(*pieces)))    # on several threads
        next_ids = iter(ids)
        return [[i for _ in of_text for i in next(next_ids)] for of_text in pieces]

    def encode_words(self, text: str) -> list:
        try:
            return [self.id[word] for word in split_words(text)]
        except KeyError as e:
            raise InputError(f"the word {e} is not in the vocabulary of data/toy") from e

    def decode(self, ids) -> str:
        """The text of these ids. Bytes that are no UTF-8 become the character U+FFFD."""
        if self.kind == "words":
            words = self.words + [EOT]
            return join_words(words[i] for i in ids)
        return self.bpe.decode(list(ids))

    def decode_story(self, ids) -> str:
        """The text up to the first end-of-text."""
        return self.decode(itertools.takewhile(lambda i: i != self.eot, ids))

    def pieces(self, ids) -> list:
        """What each token adds to the text. A character of several comes with its last one."""
        if self.kind == "words":
            texts = [self.decode([i]) for i in ids]
            return [text if text in ".," else f" {text}" for text in texts]
        pieces = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in self.bpe.decode_tokens_bytes(ids):
            pieces.append(decoder.decode(token))
        if pieces:
            pieces[-1] += decoder.decode(b"", final=True)       # a character that was cut off
        return pieces


def cut_gpt2(vocab_size: int) -> tiktoken.Encoding:
    """GPT-2's tokens up to this number, end-of-text included. Raises InputError."""
    try:
        gpt2 = tiktoken.get_encoding("gpt2")
    except Exception as e:      # tiktoken downloads it, and raises whatever `requests` raises
        raise InputError(f"the GPT-2 vocabulary could not be loaded ({type(e).__name__}); connect "
                         f"once, or point TIKTOKEN_CACHE_DIR at a copy of tiktoken's cache") from e
    eot = vocab_size - 1
    ranks = {token: rank for token, rank in gpt2._mergeable_ranks.items() if rank < eot}
    return make_bpe(ranks, gpt2._pat_str)


def make_bpe(ranks: dict, pattern: str = "") -> tiktoken.Encoding:
    """The tokens {bytes: id} and end-of-text. The pattern cuts text into words to be encoded."""
    eot = len(ranks)
    return tiktoken.Encoding(
        f"bpe-{eot + 1}",
        pat_str=pattern,
        mergeable_ranks=ranks,
        special_tokens={EOT: eot})


def cut_between_words(blocks, longest: int = 2 ** 14):
    """The text that the blocks make together, in pieces of at most so many characters.

    tiktoken fails on a million blanks in a row. So it gets pieces that end where a word does, which
    is where GPT-2's tokens end too. Only a word, or a run of blanks, that is longer than a piece is
    cut. Where the cuts are does not depend on how the text comes in blocks."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > longest:
            # The longest beginning that ends in a word and is followed by a blank.
            words = re.match(r"(?s).*\S(?=[ \n])", rest[:longest + 1])
            end = words.end() if words else longest
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


# ---- Where texts come from -----------------------------------------------------------------------

BLOCK = 2 ** 20             # characters that are read at a time
LONGEST_STORY = 2 ** 20     # characters; a longer one is cut into several


def read_blocks(path: str):
    """The text of a UTF-8 file, about a million characters at a time. Raises InputError.

    Line ends become "\\n". A byte order mark is dropped, also where files were joined."""
    suffix = Path(path).suffix.lower()
    if suffix in (".json", ".csv", ".tsv"):
        raise InputError(f"{path} is {suffix[1:].upper()}; make a .txt of its text, or a .jsonl "
                         'with a line {"text": "…"} for each text')
    try:
        with open(path, encoding="utf-8-sig") as file:
            while block := file.read(BLOCK):
                if block.count("\0") > 20 + len(block) // 20:
                    raise UnicodeError("UTF-16, in which every Latin letter has a zero byte")
                yield block.replace("\ufeff", "")
    except UnicodeError as e:
        raise InputError(f"{path} is not UTF-8 text; convert it first, for example by iconv") from e
    except OSError as e:
        raise InputError(f"{path} cannot be read ({e.strerror}); give an existing text file") from e


def read_rows(path: str):
    """The objects of a .jsonl file, one a line, each with a text. Raises InputError.

    The first line may have settings instead, as in the files of sample.py."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = json.loads(line)
                    if row.keys() != {"settings"}:
                        row["text"].encode()        # raises for what is no text
                    yield row
    except OSError as e:
        raise InputError(f"{path} cannot be read ({e.strerror}); give an existing file") from e
    except UnicodeEncodeError as e:
        half = ascii(e.object[e.start])
        raise InputError(f"{path}, line {number} has half of a character, {half}; write it whole, "
                         "or leave it out") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{path}, line {number} is not an object with a field text, which is a "
                         "string in UTF-8") from e


def read_jsonl(path: str):
    """The texts of a .jsonl file, and a mark after each. Raises InputError."""
    for row in read_rows(path):
        if "text" in row:
            yield row["text"].replace("\r\n", "\n")
            yield EOT


def read_stories(*paths):
    """The stories of text files, one after the other. Raises InputError.

    It keeps little in memory, however large the files are. To that end it cuts a story of more than
    a million characters."""
    for path in paths:
        blocks = read_jsonl(path) if is_jsonl(path) else read_blocks(path)
        for text in split_at_marks(blocks):
            story = text.strip()
            if story:
                yield story


def split_at_marks(blocks):
    """What stands between the end-of-text marks of a text that comes in blocks."""
    rest = ""                   # what comes after the last mark
    for block in blocks:
        *whole, rest = (rest + block).split(EOT)
        for story in whole:
            for start in range(0, max(1, len(story)), LONGEST_STORY):
                yield story[start:start + LONGEST_STORY]
        # A mark may have begun at the end, so a little more than a piece is kept.
        while len(rest) >= LONGEST_STORY + len(EOT):
            yield rest[:LONGEST_STORY]
            rest = rest[LONGEST_STORY:]
    yield rest[:LONGEST_STORY]
    yield rest[LONGEST_STORY:]


def is_jsonl(path: str) -> bool:
    return Path(path).suffix.lower() in (".jsonl", ".ndjson")


def measure(paths: list) -> tuple:
    """How many characters the files have, and whether stories are marked in them.

    If they are, 0 stands for the number, which is not needed. Raises InputError where only some
    have marks."""
    counts = {path: count_without_marks(path) for path in paths}
    marked = [path for path, count in counts.items() if count is None]
    if not marked:
        return sum(counts.values()), False
    for path in paths:
        if path not in marked:
            raise InputError(f"{path} has no {EOT}, but {marked[0]} has marked stories; mark the "
                             f"ends of its stories too, or prepare it alone")
    return 0, True


def count_without_marks(path: str):
    """The characters of a file in which no stories are marked; None where they are.

    Raises InputError, also for a pipe, because files are read twice."""
    if Path(path).exists() and not Path(path).is_file():
        raise InputError(f"{path} is no file but a folder or a pipe; give a text file")
    if is_jsonl(path):
        return None
    count = 0
    end = ""                    # of the block before, in which a mark may have begun
    for block in read_blocks(path):
        if EOT in end + block:
            return None
        count += len(block)
        end = block[-len(EOT):]
    return count


def read_part(paths: list, first: int, last: int):
    """The characters first … last - 1 of the files' joint text, in pieces."""
    blocks = itertools.chain.from_iterable(map(read_blocks, paths))
    place = 0
    for block in blocks:
        yield block[max(0, first - place):max(0, last - place)]
        place += len(block)
        if place >= last:
            return


def download_stories(split: str):
    """The stories of TinyStories (Eldan & Li 2023, arXiv 2305.07759). Raises InputError."""
    try:
        import datasets
        rows = datasets.load_dataset("roneneldan/TinyStories", split=split, streaming=True)
        for row in rows:
            story = row["text"].strip()
            if story:
                yield story
    except Exception as e:      # what `datasets` raises when the network fails differs by version
        raise InputError(f"TinyStories could not be downloaded ({type(e).__name__}); connect, or "
                         f"prepare a file you have with --text=FILE") from e


SHAKESPEARE = ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
               "input.txt")


def download_shakespeare() -> str:
    """The file with the text that char-rnn and nanoGPT use, downloaded once. Raises InputError."""
    path = Path(DATA_DIR, "shakespeare", "input.txt")
    if not path.exists():
        try:
            with urllib.request.urlopen(SHAKESPEARE, timeout=60) as response:
                content = response.read()
        except (OSError, http.client.HTTPException) as e:
            raise InputError(f"Tiny Shakespeare could not be downloaded ({e}); connect, or prepare "
                             f"a copy with --dataset=shakespeare --text=input.txt") from e
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(content)
        unfinished.replace(path)
    return str(path)


# ---- Preparing a data set ------------------------------------------------------------------------

# Data sets that train.py prepares by itself, by their names.
KNOWN = re.compile(r"(toy|shakespeare|tinystories)(-bytes|-\d+)?")


@dataclass
class PrepareOptions:
    """which text, and how much of it"""
    dataset: Literal["toy", "tinystories", "shakespeare"] = flag("toy", "made here, or downloaded")
    text: str = flag("", "your own text instead: .txt or .jsonl files, with commas")
    val: str = flag("", "files to validate on; without it, a part of --text is held out")
    name: str = flag("", "folder under data/; left out, it is named after the text")
    tokenizer: Literal["auto", "gpt2", "bytes"] = flag(
        "auto", "what a token is; auto: gpt2, but bytes for shakespeare, and words for the toy")
    vocab_size: int = flag(
        50257, "how many of GPT-2's tokens; 4096 suits laptops", low=257, high=50257)
    max_tokens: int = flag(
        0, "of training; of validation a 20th of it; 0 means 50M, of the toy 4M", low=0)
    seed: int = flag(1337, "of the toy's stories", low=0)

    def __post_init__(self):
        check_flags(self)
        own_text = self.text and self.dataset == "toy"      # which is the default of --dataset
        self.toy = self.dataset == "toy" and not self.text
        self.source = self.text or self.dataset
        if self.val and not self.text:
            raise InputError("--val needs --text")
        usual = "bytes" if self.dataset == "shakespeare" else "gpt2"
        if self.tokenizer == "auto":
            self.tokenizer = usual
        cut = self.vocab_size != 50257
        if self.toy and (cut or self.tokenizer != usual):
            raise InputError("the toy has a tokenizer of its own; leave --tokenizer and "
                             "--vocab_size out, or give --text")
        if cut and self.tokenizer == "bytes":
            raise InputError("--vocab_size is for --tokenizer=gpt2; there are 256 bytes")
        if not self.name:
            self.name = Path(self.text.split(",")[0]).stem if own_text else self.dataset
            if cut:
                self.name += f"-{self.vocab_size}"
            elif self.tokenizer != usual:
                self.name += f"-{self.tokenizer}"
        known = KNOWN.fullmatch(self.name)
        if known and (own_text or known[1] != self.dataset):
            raise InputError(f"data/{self.name} is for --dataset={known[1]}; give another --name")
        if Path(self.name).name != self.name or self.name == "..":
            raise InputError(f"--name={self.name} must be a plain name, of a folder in data/")
        if not self.max_tokens:
            self.max_tokens = 4_000_000 if self.toy else 50_000_000

    def make_tokenizer(self) -> Tokenizer:
        if self.toy:
            return Tokenizer("words", words=TOY.words())
        return Tokenizer(self.tokenizer, self.vocab_size)


def open_source(o: PrepareOptions) -> tuple:
    """The texts that the options ask for: their kind, and iterators for training and validation.

    These give the stories, or the pieces of one continuous text. Raises InputError."""
    if o.toy:
        return "stories", toy_stories(o.seed), toy_stories(o.seed + 1)
    if o.dataset == "tinystories" and not o.text:
        return "stories", download_stories("train"), download_stories("validation")
    train = o.text.split(",") if o.text else [download_shakespeare()]
    val = o.val.split(",") if o.val else []
    characters, marked = measure(train)
    val_characters, val_marked = measure(val)
    if val and val_marked != marked:
        raise InputError(f"--text={o.text} and --val={o.val} are of two kinds; mark the stories of "
                         f"both by {EOT}, or of none")
    if marked and val:
        return "stories", read_stories(*train), read_stories(*val)
    if marked:
        every_20th = itertools.islice(read_stories(*train), 19, None, 20)
        return "stories", read_stories(*train), every_20th
    train_ends = characters if val else characters * 9 // 10
    train_part = read_part(train, 0, train_ends)
    val_part = read_part(train, train_ends, characters)
    if val:
        val_part = read_part(val, 0, val_characters)
    return "continuous", cut_between_words(train_part), cut_between_words(val_part)


def data_to_prepare(name: str):
    """The options that make data/<name>, if it is missing and the name says what it is."""
    known = KNOWN.fullmatch(name)
    if not known or Path(DATA_DIR, name, "meta.json").exists():
        return None
    dataset, suffix = known.groups()
    options = {}
    if suffix == "-bytes":
        options["tokenizer"] = "bytes"
    elif suffix:
        options |= {"tokenizer": "gpt2", "vocab_size": int(suffix[1:])}
    return PrepareOptions(dataset, name=name, **options)


def prepare(o: PrepareOptions) -> Path:
    """Makes data/<name> and returns that folder. Raises InputError.

    All is written in another folder and then moved. If anything fails, what was there stays."""
    folder = Path(DATA_DIR, o.name)
    tokenizer = o.make_tokenizer()
    kind, train, val = open_source(o)
    mark = [tokenizer.eot] if kind == "stories" else []     # before each story
    # Files are moved on one disk only, and data/<name> may be a link to another one.
    target = folder.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    same_disk = target if target.exists() else target.parent
    with tempfile.TemporaryDirectory(dir=same_disk, prefix="unfinished-") as unfinished:
        new = Path(unfinished)
        if kind == "stories":
            # Validation is written first, and its stories are remembered. Training gets the others.
            held_out = set()
            val = remember(val, held_out)
            train = (story for story in train if story not in held_out)
        splits = {}
        most_val = max(1, o.max_tokens // 20)
        splits["val"] = write_split(new / "val.bin", val, tokenizer, mark, most_val)
        splits["train"] = write_split(new / "train.bin", train, tokenizer, mark, o.max_tokens)
        for split, counts in splits.items():
            if not counts["tokens"]:
                source_of_split = o.val if split == "val" and o.val else o.source
                advice = "; give a longer one"
                if kind == "stories":
                    advice = (", or none that is not in val; every 20th story is held out, so give "
                              "20 or more, or --val=FILE")
                raise InputError(f"{source_of_split} holds no text for {split}{advice}")
        meta = {"format": FORMAT, "kind": kind, "splits": splits, "eot": tokenizer.eot}
        meta |= {"source": o.source, "tokenizer": tokenizer.to_dict()}
        if o.toy:
            meta["entropy"] = TOY.entropy() / (TOY.mean_words() + 1)    # nats per token
        write_json(new / "meta.json", meta | provenance(o.seed))

        # A folder without meta.json is no data set, so it goes first and comes last.
        target.mkdir(exist_ok=True)
        (target / "meta.json").unlink(missing_ok=True)
        for file in "train.bin", "val.bin", "meta.json":
            (new / file).replace(target / file)
    return folder


def other_source(o: PrepareOptions):
    """What data/<name> was made of; None if that is o.source too, or if there is no data set."""
    try:
        before = load_meta(o.name).get("source", o.source)
    except InputError:
        return None
    is_same = full_paths(before) == full_paths(o.source)
    return None if is_same else before


def full_paths(files: str) -> list:
    return [os.path.abspath(path) for path in files.split(",")]


def remember(stories, seen: set):
    """The same stories. Each is added to the set `seen` when it is read."""
    for story in stories:
        seen.add(story)
        yield story


def write_split(path: Path, texts, tokenizer: Tokenizer, mark: list, max_tokens: int) -> dict:
    """Writes texts as tokens, with the mark before each, until there are max_tokens or more.

    Returns what it counted: stories, tokens, bytes of text, and crc32, by which a resumed run knows
    its data again."""
    counts = {"stories": 0, "tokens": 0, "bytes": 0, "crc32": 0}
    bar = tqdm(total=max_tokens, desc=path.stem, unit="tok", unit_scale=True, leave=False,
               disable=None)        # None hides the bar where nobody looks, as in a log file
    with open(path, "wb") as file, bar:
        for text, ids in encode_all(texts, tokenizer):
            if not mark and len(ids) > max_tokens - counts["tokens"]:
                ids = ids[:max_tokens - counts["tokens"]]       # a story is kept whole, this is not
                text = tokenizer.decode(ids)
            tokens = np.array(mark + ids, dtype=np.uint16)
            file.write(tokens)
            counts["stories"] += len(mark)
            counts["tokens"] += len(tokens)
            counts["bytes"] += len(text.encode())
            counts["crc32"] = zlib.crc32(tokens, counts["crc32"])
            bar.update(len(tokens))
            if counts["tokens"] >= max_tokens:
                break
    return counts


def encode_all(texts, tokenizer: Tokenizer):
    """(text, its ids) of each text. 512 of them are read and encoded at a time."""
    while some := list(itertools.islice(texts, 512)):
        yield from zip(some, tokenizer.encode_batch(some))


# ---- Reading a data set --------------------------------------------------------------------------

def load_meta(name: str) -> dict:
    """meta.json of data/<name>. Raises InputError where it or the size of a .bin file is wrong."""
    path = Path(DATA_DIR, name, "meta.json")
    if not path.exists():
        others = [found.parent.name for found in Path(DATA_DIR).glob("*/meta.json")]
        guess = did_you_mean(name, others)
        raise InputError(f"no data set at {path}{guess}; see python prepare_data.py --help")
    try:
        meta = json.loads(path.read_text())
        usable = meta["format"] == FORMAT and {"splits", "eot", "tokenizer"} <= meta.keys()
    except (ValueError, KeyError, TypeError):
        usable = False
    if not usable:
        raise InputError(f"{path} is damaged, or of another version; prepare it again")
    for split, counts in meta["splits"].items():
        file = path.with_name(f"{split}.bin")
        size = file.stat().st_size if file.exists() else 0
        if size != 2 * counts["tokens"]:        # two bytes a token
            raise InputError(f"{file} should have {counts['tokens']:,} tokens; prepare it again")
    return meta


def usual_windows(meta: dict) -> str:
    """The kind of windows for a data set: they start where stories do, if it has any."""
    continuous = meta.get("kind") == "continuous"
    return "random" if continuous else "aligned"


class Windows:
    """Windows of block_size tokens from one split of data/<name>, the same ones for the same seed.

    kind    auto        aligned where the data set has stories, random where it is continuous
            aligned     A window starts at the first word of a story. Where the story is the shorter
                        of the two, the next story follows.
            random      Windows follow one another from end to end. Where the first one starts is
                        drawn anew in each epoch, so in time a window starts anywhere.
            paper       As in arXiv 2603.22075: without end-of-text, the training split is cut into
                        chunks, and a random 5% of the chunks are held out. So a story may lie in
                        both training and validation.
    at_most             Only so many windows, drawn by the seed; 0 takes all.

    Below, T is block_size, and tokens are int64. Raises InputError where there is no such data set
    or no window of that length in it."""

    def __init__(self, name: str, split: str, block_size: int, kind="auto", seed=1337,
                 at_most=0):
        self.meta = load_meta(name)
        if kind == "auto":
            kind = usual_windows(self.meta)
        self.block_size = block_size
        self.kind = kind
        self.seed = seed
        file = "train" if kind == "paper" else split
        self.tokens = np.memmap(Path(DATA_DIR, name, f"{file}.bin"), dtype=np.uint16, mode="r")
        is_eot = self.tokens == self.meta["eot"]
        if kind == "paper":
            self.tokens = self.tokens[~is_eot]
        self.tokens_per_byte = len(self.tokens) / self.meta["splits"][file]["bytes"]

        if kind == "aligned" and not is_eot.any():
            raise InputError(f"{DATA_DIR}/{name} has no marked stories; leave --windows out")
        end_to_end = np.arange(len(self.tokens) // block_size) * block_size
        self.phases = 1         # in each epoch all windows move by 0 … phases - 1 tokens
        if kind == "aligned":
            first_words = np.flatnonzero(is_eot) + 1
            self.starts = first_words[first_words + block_size <= len(self.tokens)]
        elif kind == "random":
            self.starts = end_to_end[:-1]       # so there is room to move
            self.phases = 1 if at_most else block_size
        elif kind == "paper":
            chunks = np.random.default_rng(42).permutation(end_to_end)
            held_out = len(chunks) // 20
            self.starts = chunks[:held_out] if split == "val" else chunks[held_out:]
        needed = 2 if split == "val" else 1     # a standard error takes two
        if len(self.starts) < needed:
            raise InputError(f"block_size {block_size} is too long for {DATA_DIR}/{name}: "
                             f"{len(self.starts)} {kind} {split} windows; take a smaller one, "
                             f"more text or other --windows")
        if at_most:
            self.starts = np.random.default_rng(seed).permutation(self.starts)[:at_most]
        self.epoch = None       # of which starts_of_epoch has drawn the order

    def __len__(self):
        return len(self.starts)

    def starts_of_epoch(self, epoch: int):
        """(N,) where the windows start, in the order in which this epoch reads them."""
        if epoch != self.epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self.epoch_starts = rng.integers(self.phases) + rng.permutation(self.starts)
            self.epoch = epoch
        return self.epoch_starts

    def batch(self, step: int, batch_size: int):
        """(batch_size, T): what training step `step` reads. An epoch reads each window once."""
        starts = []
        for row in range(step * batch_size, (step + 1) * batch_size):
            epoch, place = divmod(row, len(self))
            starts.append(self.starts_of_epoch(epoch)[place])
        places = np.array(starts)[:, None] + np.arange(self.block_size)     # (batch_size, T)
        return self.tokens[places].astype(np.int64)

    def spread_places(self, n: int):
        """(n, T): where in the split the tokens of spread(n) stand."""
        n = min(n, len(self))
        if self.kind == "paper":
            starts = self.starts[:n]            # they are shuffled, so the first ones will do
        else:
            starts = self.starts[np.linspace(0, len(self) - 1, n).astype(int)]
        return starts[:, None] + np.arange(self.block_size)

    def spread(self, n: int):
        """(n, T): windows for evaluation, spread evenly over the split; all, if there are not n."""
        return self.tokens[self.spread_places(n)].astype(np.int64)

    def law(self, n: int):
        """(n,) nats per token of each window of spread(n) under the toy's true law; None elsewhere.

        On average no model has fewer. Windows must be aligned, for the law begins with a story."""
        if self.kind != "aligned" or "entropy" not in self.meta:
            return None
        text = Tokenizer(**self.meta["tokenizer"]).decode(self.tokens)
        log_p = []              # of every token of the split
        for story in text.split(EOT)[1:]:
            log_p_of_words = TOY.log_probs(story.strip())
            if log_p_of_words is None:          # the grammar was changed since then
                return None
            log_p += [0.0, *log_p_of_words]     # 0 of end-of-text, as a story's end is certain
        return -np.array(log_p)[self.spread_places(n)].mean(axis=1)


def open_windows(s, split, block_size, at_most=0):
    return Windows(s.data, split, block_size, s.windows, s.seed, at_most)


def prepare_if_missing(name):
    missing = data_to_prepare(name)
    if missing:
        print(f"preparing data/{name} first")
        prepare(missing)


def vocabulary_of(name):
    missing = data_to_prepare(name)
    if missing:
        return missing.make_tokenizer().vocab_size
    return load_meta(name)["eot"] + 1


def main():
    flags = parse_flags(__doc__, PrepareOptions)
    o = build(PrepareOptions, flags)
    before = other_source(o)
    if before and "name" not in flags:
        raise InputError(f"{DATA_DIR}/{o.name} was made of {before}; give another --name, or "
                         f"--name={o.name} to replace it")
    folder = prepare(o)
    meta = load_meta(o.name)
    if before:
        print(f"{folder} was made of {before} before")
    stories = meta["kind"] == "stories"
    if not stories:
        print(f"{o.source} is one continuous text, without {EOT} between stories; "
              f"{o.val or 'its last tenth'} is for validation")
    for split, n in meta["splits"].items():
        texts = f"{n['stories']:,} stories, " if stories else ""
        print(f"{folder}/{split}.bin: {texts}{n['tokens']:,} tokens, {n['bytes']:,} bytes")
    if o.text and meta["splits"]["train"]["tokens"] >= o.max_tokens:
        print(f"--max_tokens={o.max_tokens:,} ended it; the text may be longer")
    if o.toy:
        print(f"entropy {meta['entropy']:.4f} nats per token")
    beginning = np.fromfile(folder / "val.bin", np.uint16, count=33)
    print(f"it begins: {o.make_tokenizer().decode_story(beginning[stories:])} …")
    preset = {"words": "toy", "bytes": "shakespeare"}.get(meta["tokenizer"]["kind"], "laptop")
    print(f"next: python train.py --mode=mdlm --data={shlex.quote(o.name)} --preset={preset}")


if __name__ == "__main__":
    command(main, "nothing was kept of this run")
