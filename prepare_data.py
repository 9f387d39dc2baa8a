"""
Text in, tokens out: data/<name>/{train.bin, val.bin, meta.json}.

    python prepare_data.py                          the toy: stories of a small grammar, entropy known exactly
    python prepare_data.py --dataset=tinystories    TinyStories through the `datasets` package, 50M tokens
    python prepare_data.py --dataset=tinystories --vocab_size=4096    the same in tokens for laptops
    python prepare_data.py --text=a.txt --val=b.txt --name=mine       any UTF-8 text, split at <|endoftext|>

A .bin file is a row of uint16 tokens, end-of-text before every story. Train and val share no story.
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

from cli import InputError, build, command, nearest, parse_flags, provenance, write_json
from toy import TOY, join_words, split_words, toy_stories

EOT = "<|endoftext|>"
DATA_DIR = "data"
FORMAT = 1

# ---- The tokenizer -----------------------------------------------------------------------------------------

class Tokenizer:
    """Text <-> token ids. The last id is end-of-text.

    kind "gpt2": GPT-2's byte-level BPE, cut to its first vocab_size-1 ranks. Merges are ordered by rank, so
    any prefix is a valid BPE, and 50,257 is GPT-2's own. kind "words": a list, with punctuation."""

    def __init__(self, kind: str = "gpt2", vocab_size: int = 50257, words=()):
        self.kind, self.words = kind, list(words)
        self.vocab_size = len(self.words) + 1 if kind == "words" else vocab_size
        self.eot = self.vocab_size - 1
        if kind == "words":
            self.id = {word: i for i, word in enumerate(self.words)}
            return
        if not 257 <= vocab_size <= 50257:
            raise InputError(f"--vocab_size={vocab_size} must be 257 (all bytes) to 50257 (all of GPT-2's)")
        try:
            gpt2 = tiktoken.get_encoding("gpt2")
        except Exception as e:  # tiktoken downloads it on first use, and lets requests' errors through
            raise InputError(f"the GPT-2 vocabulary could not be loaded ({type(e).__name__}); connect once, "
                             f"or point TIKTOKEN_CACHE_DIR at a copy of tiktoken's cache") from e
        ranks = {token: rank for token, rank in gpt2._mergeable_ranks.items() if rank < self.eot}
        self.bpe = tiktoken.Encoding(f"gpt2-{vocab_size}", pat_str=gpt2._pat_str, mergeable_ranks=ranks,
                                     special_tokens={EOT: self.eot})

    def encode(self, text: str) -> list:
        """Ids of the text; an end-of-text mark counts as plain text. Raises InputError: unknown word."""
        if self.kind == "gpt2":
            return self.bpe.encode_ordinary(text)
        try:
            return [self.id[word] for word in split_words(text)]
        except KeyError as e:
            raise InputError(f"the word {e} is not in the vocabulary of data/toy and its models") from None

    def encode_batch(self, texts: list) -> list:
        if self.kind == "gpt2":
            return self.bpe.encode_ordinary_batch(texts)        # on several threads
        return [self.encode(text) for text in texts]

    def decode(self, ids) -> str:
        if self.kind == "gpt2":
            return self.bpe.decode([int(i) for i in ids])
        return join_words(EOT if i == self.eot else self.words[i] for i in ids)

    def pieces(self, ids) -> list:
        """What each token adds to the text; a character of several tokens comes with its last."""
        if self.kind == "gpt2":
            add = codecs.getincrementaldecoder("utf-8")("replace").decode
            return [add(self.bpe.decode_single_token_bytes(i), n == len(ids)) for n, i in enumerate(ids, 1)]
        return [text if text in ".," else f" {text}" for text in (self.decode([i]) for i in ids)]

    def decode_story(self, ids) -> str:
        """The text up to the first end-of-text."""
        return self.decode(itertools.takewhile(lambda i: i != self.eot, ids))

    def to_dict(self) -> dict:
        return {"kind": self.kind, "vocab_size": self.vocab_size, "words": self.words}

# ---- Preparing a data set ----------------------------------------------------------------------------------

def read_stories(path: str):
    """Stories of a UTF-8 text file, in bounded memory: one of over a million characters may be cut."""
    try:
        with open(path, encoding="utf-8-sig") as f:
            text = ""
            while block := f.read(1 << 20):
                *whole, text = (text + block).split(EOT)
                if len(text) > 1 << 20:                 # what may be the beginning of a mark waits
                    whole, text = [*whole, text[:-len(EOT)]], text[-len(EOT):]
                yield from filter(None, map(str.strip, whole))
            yield from filter(None, [text.strip()])
    except UnicodeDecodeError as e:
        byte = f"byte 0x{e.object[e.start]:02x}"
        raise InputError(f"{path} is not UTF-8 text ({byte}); convert it first, e.g. with iconv") from e
    except OSError as e:
        raise InputError(f"{path} cannot be read ({e.strerror}); give an existing text file") from e

def download_stories(split: str):
    try:
        import datasets
        for row in datasets.load_dataset("roneneldan/TinyStories", split=split, streaming=True):
            if text := row["text"].strip():
                yield text
    except Exception as e:      # what `datasets` raises when the network fails differs by version
        raise InputError(f"TinyStories could not be downloaded ({type(e).__name__}); connect, or prepare a "
                         f"file you have with --text=FILE") from e

def write_split(path: Path, stories, tokenizer: Tokenizer, max_tokens: int) -> dict:
    """Encode stories into path until max_tokens are reached."""
    counts = {"stories": 0, "tokens": 0, "bytes": 0, "crc32": 0}    # bytes: of text; crc32: of the file
    bar = tqdm(total=max_tokens, unit="tok", unit_scale=True, desc=path.stem, leave=False, disable=None)
    with open(path, "wb") as f, bar:
        while texts := list(itertools.islice(stories, 512)):
            for text, ids in zip(texts, tokenizer.encode_batch(texts)):
                tokens = np.array([tokenizer.eot, *ids], dtype=np.uint16)
                f.write(tokens)
                counts["stories"] += 1
                counts["tokens"] += len(tokens)
                counts["bytes"] += len(text.encode())
                counts["crc32"] = zlib.crc32(tokens, counts["crc32"])
                bar.update(len(tokens))
                if counts["tokens"] >= max_tokens:
                    return counts
    return counts

@dataclass
class PrepareOptions:
    """which text, and how much of it"""
    dataset: Literal["toy", "tinystories"] = "toy"  # made here without a network, or downloaded
    text: str = ""              # a text file instead, stories split at <|endoftext|>
    val: str = ""               # text file to validate on; without it every 20th story of --text is held out
    name: str = ""              # folder under data/; default: the data set's, and -VOCAB_SIZE if it was cut
    vocab_size: int = 50257     # cut GPT-2's BPE to this many tokens; 4096 suits a laptop (not for the toy)
    max_tokens: int = 0         # of training, and a 20th of it of validation; default 50M, for the toy 4M
    seed: int = 1337            # of the toy's stories

    def __post_init__(self):
        if self.val and not self.text:
            raise InputError("--val needs --text")
        self.toy = self.dataset == "toy" and not self.text
        what, unused = ("the toy", ["vocab_size"]) if self.toy else ("text", ["seed"])
        for name in unused + (["dataset"] if self.text else []):
            if getattr(self, name) != getattr(PrepareOptions, name):
                raise InputError(f"--{name}={getattr(self, name)} means nothing for {what}; leave it out")
        if not self.name:
            cut = "" if self.toy or self.vocab_size == 50257 else f"-{self.vocab_size}"
            self.name = (Path(self.text).stem or self.dataset) + cut
        if self.name == "toy" and not self.toy:
            raise InputError("data/toy is the grammar's; give another --name=NAME")
        if Path(self.name).name != self.name or self.name == "..":
            raise InputError(f"--name={self.name} must be the plain name of a folder, made under {DATA_DIR}/")
        self.max_tokens = self.max_tokens or (4_000_000 if self.toy else 50_000_000)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer("words", words=TOY.words()) if self.toy else Tokenizer("gpt2", self.vocab_size)

def data_to_prepare(name: str):
    """How to make data/<name>, if it isn't there and the name says how; else None."""
    match = re.fullmatch(r"toy|tinystories(?:-(\d+))?", name)
    if match and not Path(DATA_DIR, name, "meta.json").exists():
        return PrepareOptions(dataset=name.split("-")[0], vocab_size=int(match[1] or 50257), name=name)

def prepare(o: PrepareOptions) -> Path:
    """Make data/<name>, whole in a folder beside it and then moved: until then the old one stays."""
    tokenizer, folder = o.tokenizer(), Path(DATA_DIR, o.name)
    if o.toy:
        train, val = toy_stories(o.seed), toy_stories(o.seed + 1)
    elif not o.text:
        train, val = download_stories("train"), download_stories("validation")
    else:
        train = read_stories(o.text)
        val = read_stories(o.val) if o.val else itertools.islice(read_stories(o.text), 19, None, 20)
    held_out = {}       # the validation stories, known once they are read, kept out of training
    val = (held_out.setdefault(story, story) for story in val)
    train = (story for story in train if story not in held_out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as temporary:
        new = Path(temporary)
        splits = {"val": write_split(new / "val.bin", val, tokenizer, max(1, o.max_tokens // 20)),
                  "train": write_split(new / "train.bin", train, tokenizer, o.max_tokens)}
        for split, file in (("train", o.text), ("val", o.val or o.text)):
            if not splits[split]["stories"]:
                raise InputError(f"{file or o.dataset} holds no story for {split}, or none that is not in "
                                 f"val; give more stories (they are split at {EOT}), or --val=FILE")
        meta = {"format": FORMAT, "name": o.name, "source": Path(o.text).name or o.dataset, "splits": splits,
                "tokenizer": tokenizer.to_dict(), "eot": tokenizer.eot, **provenance(o.seed)}
        if o.toy:       # nats per token, one end-of-text a story
            meta["entropy"] = TOY.entropy() / (TOY.mean_words() + 1)
        write_json(new / "meta.json", meta)
        folder.mkdir(exist_ok=True)
        (folder / "meta.json").unlink(missing_ok=True)  # a folder without meta.json is not a data set
        for file in ("train.bin", "val.bin", "meta.json"):
            (new / file).replace(folder / file)
    return folder

# ---- Reading a data set ------------------------------------------------------------------------------------

def load_meta(name: str) -> dict:
    """meta.json of data/<name>, its files checked against it. Raises InputError."""
    path = Path(DATA_DIR, name, "meta.json")
    if not path.exists():
        have = [found.parent.name for found in Path(DATA_DIR).glob("*/meta.json")]
        raise InputError(f"no data set at {path}{nearest(name, have)}; see python prepare_data.py --help")
    try:
        meta = json.loads(path.read_text())
        if meta["format"] != FORMAT:
            raise ValueError(f"it has format {meta['format']}, this code reads {FORMAT}")
        numbers = [meta["splits"][split][key] for split in ("train", "val")
                   for key in ("stories", "tokens", "bytes", "crc32")]
        if min(numbers) < 1 or meta["eot"] != meta["tokenizer"]["vocab_size"] - 1:
            raise ValueError("its numbers can't be right")
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(f"{path} is not usable ({type(e).__name__}: {e}); prepare it again") from e
    for split in ("train", "val"):
        file, counts = path.with_name(f"{split}.bin"), meta["splits"][split]
        if not (file.exists() and file.stat().st_size == 2 * counts["tokens"]
                and zlib.crc32(tokens := np.memmap(file, np.uint16, "r")) == counts["crc32"]
                and tokens.max() <= meta["eot"]):
            raise InputError(f"{file} is not the {counts['tokens']:,} tokens of meta.json; prepare it again")
    return meta

class Windows:
    """Windows of T tokens from one split of data/<name>, as int64 arrays; the same for the same seed.

    kind  aligned   a window starts at a story's first word; where the story is shorter, the next one follows
          random    windows follow one another from a random phase, drawn anew in each epoch: from anywhere
          paper     as the paper cut its data (arXiv 2603.22075): end-of-text dropped, the training split cut
                    into chunks of T, shuffled, 5% of the *chunks* held out; a story can lie in both splits

    With at_most, no more than so many of them, drawn by the seed. Raises InputError where there is no such
    data set, or no window of that length in it."""

    def __init__(self, name: str, split: str, block_size: int, kind="aligned", seed=1337, at_most=0):
        self.block_size, self.kind, self.seed, self.meta = block_size, kind, seed, load_meta(name)
        file = "train" if kind == "paper" else split
        self.tokens = np.memmap(Path(DATA_DIR, name, f"{file}.bin"), dtype=np.uint16, mode="r")
        if kind == "paper":
            self.tokens = self.tokens[self.tokens != self.meta["eot"]]
        side_by_side = np.arange(len(self.tokens) // block_size) * block_size
        if kind == "aligned":
            starts = np.flatnonzero(self.tokens == self.meta["eot"]) + 1
            self.starts = starts[starts + block_size <= len(self.tokens)]
        elif kind == "random":
            self.starts = side_by_side[:-1]             # room for the phase
        elif kind == "paper":
            starts, held_out = np.random.default_rng(42).permutation(side_by_side), len(side_by_side) // 20
            self.starts = starts[:held_out] if split == "val" else starts[held_out:]
        if len(self.starts) < (2 if split == "val" else 1):     # a standard error takes two
            raise InputError(f"block_size {block_size} is too long for {DATA_DIR}/{name}: {len(self.starts)} "
                             f"{kind} {split} windows; take a smaller one, more text or other --windows")
        self.phases = self.block_size if kind == "random" and not at_most else 1
        if at_most:
            self.starts = np.random.default_rng(seed).permutation(self.starts)[:at_most]
        self.tokens_per_byte = len(self.tokens) / self.meta["splits"][file]["bytes"]

    def __len__(self):
        return len(self.starts)

    @functools.lru_cache(maxsize=2)
    def _epoch(self, epoch: int):
        rng = np.random.default_rng((self.seed, epoch))
        return rng.integers(self.phases) + rng.permutation(self.starts)

    def batch(self, step: int, batch_size: int):
        """(batch_size, T): the rows that training step `step` reads. Every window is read once an epoch."""
        rows = range(step * batch_size, (step + 1) * batch_size)
        starts = np.array([self._epoch(row // len(self))[row % len(self)] for row in rows])
        return self.tokens[starts[:, None] + np.arange(self.block_size)].astype(np.int64)

    def spread(self, n: int, values=None):
        """(up to n, T): fixed windows for evaluation, spread evenly over the split (paper: its first n, for
        they are shuffled); of the tokens, or of other values, one for each token."""
        even = np.linspace(0, len(self) - 1, min(n, len(self))).astype(int)
        starts = self.starts[:n] if self.kind == "paper" else self.starts[even]
        rows = starts[:, None] + np.arange(self.block_size)
        return self.tokens[rows].astype(np.int64) if values is None else values[rows]

    def floor(self, n: int):
        """For the toy, nats per token of spread(n) under the true law, which no model beats but by chance."""
        if self.kind != "aligned" or "entropy" not in self.meta:
            return None
        stories = Tokenizer(**self.meta["tokenizer"]).decode(self.tokens).split(EOT)[1:]
        log_probs = [TOY.log_probs(story.strip()) for story in stories]
        if any(p is None for p in log_probs):   # drawn from another grammar than this file's
            return None
        # a story ends for certain, so the end-of-text before the next is free
        return -float(self.spread(n, np.concatenate([[0, *p] for p in log_probs])).mean())

def main():
    o = build(PrepareOptions, parse_flags(__doc__, PrepareOptions))
    folder = prepare(o)
    meta, tokenizer = load_meta(o.name), o.tokenizer()
    for split, n in meta["splits"].items():
        print(f"{folder}/{split}.bin: {n['stories']:,} stories, {n['tokens']:,} tokens, {n['bytes']:,} bytes")
    entropy = f", entropy {meta['entropy']:.4f} nats per token" if o.toy else ""
    first = np.fromfile(folder / "val.bin", np.uint16, count=33)[1:]
    print(f"vocabulary {tokenizer.vocab_size:,}{entropy}\nfirst story: {tokenizer.decode_story(first)} …")
    preset = "toy" if o.toy else "laptop"
    print(f"next: python train.py --mode=mdlm --data={shlex.quote(o.name)} --preset={preset}")

if __name__ == "__main__":
    command(main, "nothing was kept of this run")
