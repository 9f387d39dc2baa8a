"""
Text in, tokens out: makes data/<name>/ with train.bin, val.bin and meta.json.

    python prepare_data.py                          the toy of toy.py, its entropy known exactly
    python prepare_data.py --dataset=tinystories    TinyStories, by `datasets`; 50M tokens
    python prepare_data.py --dataset=tinystories --vocab_size=4096      the same, for laptops
    python prepare_data.py --text=a.txt --val=b.txt --name=mine         split at <|endoftext|>

A .bin file is a row of tokens as uint16 numbers, with an end-of-text token before every story. No
story is in both files. The class Windows cuts them into rows for training and evaluation.
"""
import codecs
import functools
import itertools
import json
import re
import shlex
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tiktoken
from tqdm import tqdm

from cli import (InputError, build, check_flags, command, did_you_mean, flag, parse_flags,
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
            words   a list of words and punctuation marks"""

    def __init__(self, kind: str = "gpt2", vocab_size: int = 50257, words=()):
        self.kind = kind
        self.words = list(words)
        self.vocab_size = len(self.words) + 1 if kind == "words" else vocab_size
        self.eot = self.vocab_size - 1
        if kind == "words":
            self.id = {word: i for i, word in enumerate(self.words)}
        else:
            self.bpe = cut_gpt2(vocab_size)

    def to_dict(self) -> dict:
        """What it takes to make this tokenizer again: Tokenizer(**to_dict())."""
        return {"kind": self.kind, "vocab_size": self.vocab_size, "words": self.words}

    def encode(self, text: str) -> list:
        """The ids of a text. An end-of-text mark in it is plain text. Raises InputError."""
        if self.kind == "gpt2":
            return self.bpe.encode_ordinary(text)
        try:
            return [self.id[word] for word in split_words(text)]
        except KeyError as e:
            raise InputError(f"the word {e} is not in the vocabulary of data/toy") from e

    def encode_batch(self, texts: list) -> list:
        """The ids of each text."""
        if self.kind == "gpt2":
            return self.bpe.encode_ordinary_batch(texts)        # on several threads
        return [self.encode(text) for text in texts]

    def decode(self, ids) -> str:
        """The text of these ids."""
        if self.kind == "gpt2":
            return self.bpe.decode([int(i) for i in ids])
        words = self.words + [EOT]
        return join_words(words[i] for i in ids)

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
        for i in ids:
            pieces.append(decoder.decode(self.bpe.decode_single_token_bytes(i)))
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
    return tiktoken.Encoding(
        f"gpt2-{vocab_size}",
        pat_str=gpt2._pat_str,
        mergeable_ranks=ranks,
        special_tokens={EOT: eot})


# ---- Where stories come from ---------------------------------------------------------------------

def read_stories(path: str):
    """The stories of a UTF-8 text file, one after the other. Raises InputError.

    It keeps little in memory, however large the file is. To that end it may cut a story of more
    than a million characters."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            for text in split_at_marks(file, 1 << 20):
                story = text.strip()
                if story:
                    yield story
    except UnicodeDecodeError as e:
        raise InputError(f"{path} is not UTF-8 text; convert it first, for example by iconv") from e
    except OSError as e:
        raise InputError(f"{path} cannot be read ({e.strerror}); give an existing text file") from e


def split_at_marks(file, block: int):
    """What stands between the end-of-text marks of a file, which is read a block at a time."""
    rest = ""                   # what comes after the last mark
    while text := file.read(block):
        *whole, rest = (rest + text).split(EOT)
        yield from whole
        if len(rest) > block:
            # It is too long to keep. A mark may have begun at its end, so the end waits.
            yield rest[:-len(EOT)]
            rest = rest[-len(EOT):]
    yield rest


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


# ---- Preparing a data set ------------------------------------------------------------------------

@dataclass
class PrepareOptions:
    """which text, and how much of it"""
    dataset: Literal["toy", "tinystories"] = flag("toy", "made here, or downloaded")
    text: str = flag("", "a text file instead, its stories split at <|endoftext|>")
    val: str = flag("", "a text file to validate on; without it, every 20th story of --text")
    name: str = flag("", "folder under data/; left out, it is named after the text")
    vocab_size: int = flag(
        50257, "how many of GPT-2's tokens; 4096 suits laptops", low=257, high=50257)
    max_tokens: int = flag(
        0, "of training; of validation a 20th of it; 0 means 50M, of the toy 4M", low=0)
    seed: int = flag(1337, "of the toy's stories", low=0)

    def __post_init__(self):
        check_flags(self)
        self.toy = self.dataset == "toy" and not self.text
        cut = "" if self.vocab_size == 50257 else f"-{self.vocab_size}"
        if self.val and not self.text:
            raise InputError("--val needs --text")
        if self.toy and cut:
            raise InputError("--vocab_size means nothing for the toy; leave it out, or give --text")
        if not self.name:
            self.name = (Path(self.text).stem or self.dataset) + cut
        if self.name == "toy" and not self.toy:
            raise InputError("data/toy is the grammar's; give another --name=NAME")
        if Path(self.name).name != self.name:
            raise InputError(f"--name={self.name} must be a plain name, of a folder in data/")
        if not self.max_tokens:
            self.max_tokens = 4_000_000 if self.toy else 50_000_000

    def tokenizer(self) -> Tokenizer:
        if self.toy:
            return Tokenizer("words", words=TOY.words())
        return Tokenizer("gpt2", self.vocab_size)

    def stories(self) -> tuple:
        """Two iterators of stories: for training, and for validation."""
        if self.toy:
            return toy_stories(self.seed), toy_stories(self.seed + 1)
        if not self.text:
            return download_stories("train"), download_stories("validation")
        if self.val:
            return read_stories(self.text), read_stories(self.val)
        every_20th = itertools.islice(read_stories(self.text), 19, None, 20)
        return read_stories(self.text), every_20th


def data_to_prepare(name: str):
    """The options that make data/<name>, if it is missing and the name says what it is."""
    match = re.fullmatch(r"toy|tinystories(-\d+)?", name)
    if not match or Path(DATA_DIR, name, "meta.json").exists():
        return None
    dataset, _, size = name.partition("-")
    return PrepareOptions(dataset, name=name, vocab_size=int(size or 50257))


def prepare(o: PrepareOptions) -> Path:
    """Makes data/<name> and returns that folder. Raises InputError.

    All is written in a folder beside it and then moved. If anything fails, what was there stays."""
    folder = Path(DATA_DIR, o.name)
    tokenizer = o.tokenizer()
    train, val = o.stories()
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as unfinished:
        new = Path(unfinished)
        splits = {}
        # Validation is written first, and its stories are remembered. Training gets the others.
        held_out = set()
        val = remember(val, held_out)
        splits["val"] = write_split(new / "val.bin", val, tokenizer, o.max_tokens // 20)
        others = (story for story in train if story not in held_out)
        splits["train"] = write_split(new / "train.bin", others, tokenizer, o.max_tokens)
        for split, counts in splits.items():
            if not counts["stories"]:
                raise InputError(f"{o.text or o.dataset} holds no story for {split}, or none that "
                                 f"is not in val; give more stories (split at {EOT}) or --val=FILE")
        meta = {"format": FORMAT, "splits": splits, "eot": tokenizer.eot}
        meta["tokenizer"] = tokenizer.to_dict()
        if o.toy:
            meta["entropy"] = TOY.entropy() / (TOY.mean_words() + 1)    # nats per token
        write_json(new / "meta.json", meta | provenance(o.seed))

        # A folder without meta.json is no data set, so it goes first and comes last.
        folder.mkdir(exist_ok=True)
        (folder / "meta.json").unlink(missing_ok=True)
        for file in "train.bin", "val.bin", "meta.json":
            (new / file).replace(folder / file)
    return folder


def remember(stories, seen: set):
    """The same stories. Each is added to the set `seen` when it is read."""
    for story in stories:
        seen.add(story)
        yield story


def write_split(path: Path, stories, tokenizer: Tokenizer, max_tokens: int) -> dict:
    """Writes whole stories as tokens until there are max_tokens or more. Returns what it counted:
    stories, tokens, bytes of text, and crc32, by which a resumed run knows its data again."""
    counts = {"stories": 0, "tokens": 0, "bytes": 0, "crc32": 0}
    bar = tqdm(total=max_tokens, desc=path.stem, unit="tok", unit_scale=True, leave=False,
               disable=None)        # None hides the bar where nobody looks, as in a log file
    with open(path, "wb") as file, bar:
        for story, ids in encode_all(stories, tokenizer):
            tokens = np.array([tokenizer.eot, *ids], dtype=np.uint16)
            file.write(tokens)
            counts["stories"] += 1
            counts["tokens"] += len(tokens)
            counts["bytes"] += len(story.encode())
            counts["crc32"] = zlib.crc32(tokens, counts["crc32"])
            bar.update(len(tokens))
            if counts["tokens"] >= max_tokens:
                break
    return counts


def encode_all(stories, tokenizer: Tokenizer):
    """(story, its ids) of each story. 512 of them are read and encoded at a time."""
    while texts := list(itertools.islice(stories, 512)):
        yield from zip(texts, tokenizer.encode_batch(texts))


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


class Windows:
    """Windows of block_size tokens from one split of data/<name>, the same ones for the same seed.

    kind    aligned     A window starts at the first word of a story. Where the story is the shorter
                        of the two, the next story follows.
            random      Windows follow one another from end to end. Where the first one starts is
                        drawn anew in each epoch, so in time a window starts anywhere.
            paper       As in arXiv 2603.22075: without end-of-text, the training split is cut into
                        chunks, and a random 5% of the chunks are held out. So a story may lie in
                        both training and validation.
    at_most             Only so many windows, drawn by the seed; 0 takes all.

    Below, T is block_size, and tokens are int64. Raises InputError where there is no such data set
    or no window of that length in it."""

    def __init__(self, name: str, split: str, block_size: int, kind="aligned", seed=1337,
                 at_most=0):
        self.meta = load_meta(name)
        self.block_size = block_size
        self.kind = kind
        self.seed = seed
        file = "train" if kind == "paper" else split
        self.tokens = np.memmap(Path(DATA_DIR, name, f"{file}.bin"), dtype=np.uint16, mode="r")
        is_eot = self.tokens == self.meta["eot"]
        if kind == "paper":
            self.tokens = self.tokens[~is_eot]
        self.tokens_per_byte = len(self.tokens) / self.meta["splits"][file]["bytes"]

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

    def __len__(self):
        return len(self.starts)

    @functools.lru_cache(maxsize=2)             # a batch may lie in two epochs
    def starts_of_epoch(self, epoch: int):
        """(N,) where the windows start, in the order in which this epoch reads them."""
        rng = np.random.default_rng((self.seed, epoch))
        return rng.integers(self.phases) + rng.permutation(self.starts)

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


def main():
    o = build(PrepareOptions, parse_flags(__doc__, PrepareOptions))
    folder = prepare(o)
    meta = load_meta(o.name)
    for split, n in meta["splits"].items():
        print(f"{folder}/{split}.bin: {n['stories']:,} stories, {n['tokens']:,} tokens")
    if o.toy:
        print(f"entropy {meta['entropy']:.4f} nats per token")
    beginning = np.fromfile(folder / "val.bin", np.uint16, count=33)
    print(f"first story: {o.tokenizer().decode_story(beginning[1:])} …")
    preset = "toy" if o.toy else "laptop"
    print(f"next: python train.py --mode=mdlm --data={shlex.quote(o.name)} --preset={preset}")


if __name__ == "__main__":
    command(main, "nothing was kept of this run")
