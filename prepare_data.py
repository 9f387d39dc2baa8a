"""
Text in, tokens out: makes data/<name>/ with train.bin, val.bin and meta.json.

    python prepare_data.py                          stories of worlds/toy.py, whose law is known
    python prepare_data.py --dataset=tinystories    TinyStories, by `datasets`; 50M tokens
    python prepare_data.py --dataset=tinystories --vocab_size=4096      the same, for laptops
    python prepare_data.py --dataset=shakespeare    1.1 MB of plays, as bytes
    python prepare_data.py --dataset=sudoku         grids of worlds/sudoku.py, their law known too
    python prepare_data.py --text=book.txt          your own text, also with --tokenizer=bytes
    python prepare_data.py --text=games.txt --tokenizer=words   every word of it is a token
    python prepare_data.py --text=a.txt,b.jsonl --val=c.txt --name=mine     several files of stories
    python prepare_data.py --dataset=mine           texts of worlds/mine.py, which you wrote

Text is of one of two kinds. Where <|endoftext|> stands between stories, or each line of a .jsonl
file has one in its field "text", every 20th story is held out for validation, and no story is in
both splits. All else is one continuous text, and its last tenth is held out. Your own text must fit
into memory; TinyStories is streamed.

A .bin file is a row of tokens as uint16 numbers, with an end-of-text token before every story. The
class Windows cuts it into rows for training and evaluation.
"""
import array
import collections
import functools
import itertools
import json
import re
import shlex
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from support.downloads import download_shakespeare, download_stories
from support.flags import (
    InputError, build, command, did_you_mean, flag, parse_flags, printable, provenance, write_json)
from support.rows import files_of, has_shape, read_rows, read_text
from tokenizer import EOT, Tokenizer, cut_between_words, split_words
from worlds import WORLDS, texts_of, world_named, world_of

DATA_DIR = "data"
FORMAT = 1              # of these files; it changes when older files can no longer be read


# ---- Reading a data set --------------------------------------------------------------------------

# An example of what meta.json must have.
SPLIT = {"tokens": 0, "bytes": 0, "crc32": 0}
META = {"format": FORMAT, "kind": "", "eot": 0, "source": "",
        "tokenizer": Tokenizer("words", words=[""]).to_dict(),
        "splits": {"train": SPLIT, "val": SPLIT}}


def load_meta(name: str) -> dict:
    """meta.json of data/<name>. Raises InputError."""
    path = Path(DATA_DIR, name, "meta.json")
    if not path.exists():
        others = [other.parent.name for other in Path(DATA_DIR).glob("*/meta.json")]
        guess = did_you_mean(name, others)
        raise InputError(f"no data set at {path}{guess}; see python prepare_data.py --help")
    try:
        meta = json.loads(path.read_text())
    except (ValueError, RecursionError):
        meta = None
    check_whole(name, has_shape(meta, META) and meta["format"] == FORMAT)
    return meta


def load_tokens(name: str, split: str) -> np.ndarray:
    """All tokens of a split of data/<name>. Raises InputError if they are not as once prepared."""
    try:
        tokens = np.memmap(Path(DATA_DIR, name, f"{split}.bin"), np.uint16, mode="r")
    except ValueError:          # it is empty, or has half a token
        tokens = np.zeros(0)
    check_whole(name, zlib.crc32(tokens) == load_meta(name)["splits"][split]["crc32"])
    return tokens


def check_whole(name: str, whole: bool):
    if not whole:
        raise InputError(f"{DATA_DIR}/{name} is damaged, or of another version; delete it, and "
                         "prepare it again")


class Windows:
    """Windows of block_size tokens from one split of data/<name>, the same ones for the same seed.

    kind    auto        aligned where the data set has stories, random where it is continuous
            aligned     A window starts at the first word of a story. Where the story is the shorter
                        of the two, the next story follows.
            random      Windows follow one another from end to end. Where the first one starts is
                        drawn anew in each epoch, so in time a window starts anywhere.
    at_most             Only so many windows, drawn by the seed; 0 takes all.

    Below, T is block_size, and tokens are int64. Raises InputError where there is no such data set
    or no window of that length in it."""

    def __init__(self, name: str, split: str, block_size: int, kind="auto", seed=1337, at_most=0):
        self.meta = load_meta(name)
        if kind == "auto":
            kind = "random" if self.meta["kind"] == "continuous" else "aligned"
        self.name = name
        self.block_size = block_size
        self.kind = kind
        self.seed = seed
        counts = self.meta["splits"][split]
        self.tokens_per_byte = counts["tokens"] / counts["bytes"]
        self.tokens, self.starts = self.cut(split)
        if len(self.starts) < 2:        # a standard error takes two
            raise InputError(f"{DATA_DIR}/{name} has {len(self.starts)} {kind} {split} windows of "
                             f"{block_size} tokens; take a smaller --block_size, more text or "
                             "other --windows")
        # In each epoch all windows move by 0 … phases - 1 tokens.
        self.phases = block_size if kind == "random" and not at_most else 1
        if at_most:
            self.starts = np.random.default_rng(seed).permutation(self.starts)[:at_most]

    def cut(self, split: str) -> tuple:
        """All tokens of the split, and where its windows start."""
        tokens = load_tokens(self.name, split)
        if self.kind == "aligned":
            first_words = np.flatnonzero(tokens == self.meta["eot"]) + 1
            return tokens, first_words[first_words + self.block_size <= len(tokens)]
        count = len(tokens) // self.block_size - 1      # one less, so there is room to move
        return tokens, np.arange(count) * self.block_size

    def __len__(self):
        return len(self.starts)

    @functools.lru_cache(maxsize=2)     # a batch may read the end of one and the next
    def starts_of_epoch(self, epoch: int):
        """(N,) where the windows start, in the order in which this epoch reads them."""
        rng = np.random.default_rng((self.seed, epoch))
        return rng.integers(self.phases) + rng.permutation(self.starts)

    def batch(self, step: int, batch_size: int):
        """(batch_size, T): what training step `step` reads. An epoch reads each window once."""
        rows = range(step * batch_size, (step + 1) * batch_size)
        starts = [self.starts_of_epoch(row // len(self))[row % len(self)] for row in rows]
        return self.tokens[self.places(starts)].astype(np.int64)

    def places(self, starts):
        """(N, T): where the tokens of the windows that start there stand in the split."""
        return np.add.outer(starts, np.arange(self.block_size))

    def spread_places(self, n: int):
        """(n, T): where in the split the tokens of spread(n) stand."""
        evenly = np.linspace(0, len(self) - 1, min(n, len(self))).astype(int)
        return self.places(self.starts[evenly])

    def spread(self, n: int):
        """(n, T): windows for evaluation, spread evenly over the split; all, if there are not n."""
        return self.tokens[self.spread_places(n)].astype(np.int64)

    def law(self, n: int):
        """(n,) nats per token of each window of spread(n) under the true law, if that is known.

        On average no model has fewer. Windows must be aligned, for the law begins with a story."""
        if self.kind != "aligned" or "entropy" not in self.meta:
            return None
        tokenizer = Tokenizer(**self.meta["tokenizer"])
        world = world_of(tokenizer)
        log_p = []              # of every token of the split
        for story in tokenizer.decode(self.tokens).split(EOT)[1:]:
            log_p_of_words = world.log_probs(story.strip()) if world else None
            if log_p_of_words is None:          # the world was changed since then
                return None
            log_p += [0.0, *log_p_of_words]     # 0 of end-of-text, as a story's end is certain
        return -np.array(log_p)[self.spread_places(n)].mean(axis=1)


def open_windows(s, split: str, block_size: int, at_most: int = 0) -> Windows:
    """The windows that the settings s ask for: by their data, windows and seed."""
    kind = Windows
    if s.windows == "paper":
        from variants.paper import PaperWindows as kind
    return kind(s.data, split, block_size, s.windows, s.seed, at_most)


# ---- Where texts come from -----------------------------------------------------------------------

def read_texts(paths: list) -> tuple:
    """The text of each file, and whether stories are marked in them. Raises InputError."""
    texts = []
    for path in paths:
        if path.lower().endswith((".jsonl", ".ndjson")):
            rows = [EOT + row["text"] for row in read_rows(path) if "text" in row]
            texts.append("".join(rows).replace("\r\n", "\n"))
        else:
            texts.append(read_text(path))
    marked = [EOT in text for text in texts]
    if len(set(marked)) > 1:
        path = paths[marked.index(False)]
        raise InputError(f"{path} has no {EOT} between stories, but another file has; mark the "
                         "stories of all files, or of none")
    return texts, any(marked)


def split_stories(texts: list) -> list:
    """The stories of texts in which they are marked."""
    stories = [story.strip() for text in texts for story in text.split(EOT)]
    return [story for story in stories if story]


def read_stories(path: str) -> list:
    """The stories of a file. Raises InputError."""
    return split_stories(read_texts([path])[0])


# ---- Preparing a data set ------------------------------------------------------------------------

# What a token is in the data sets that are made here or downloaded.
USUAL = dict.fromkeys(WORLDS, "words") | {"tinystories": "gpt2", "shakespeare": "bytes"}
MOST_WORDS = 65535      # so that the end-of-text token is a uint16 too


@dataclass
class PrepareOptions:
    """which text, and how much of it"""
    dataset: Literal[*USUAL] = flag("toy", "made here, or downloaded")
    text: str = flag("", "your own text instead: .txt or .jsonl files, with commas")
    val: str = flag("", "files to validate on; without it, a part of --text is held out")
    name: str = flag("", "folder under data/; left out, it is named after the text")
    tokenizer: Literal["auto", "gpt2", "bytes", "words"] = flag(
        "auto", "what a token is; auto: gpt2, but bytes for shakespeare, and words for the toy and "
        "sudoku; words: the words and punctuation marks of the text itself")
    vocab_size: int = flag(
        50257, "how many of GPT-2's tokens; 4096 suits laptops", low=257, high=50257)
    max_tokens: int = flag(
        0, "of training; of validation a 20th of it; 0 means 50M, of what is made here 4M", low=0)
    seed: int = flag(1337, "of what is made here", low=0)

    def __post_init__(self):
        self.source = self.text or self.dataset
        usual = "gpt2" if self.text else USUAL[self.dataset]
        if self.tokenizer == "auto":
            self.tokenizer = usual
        self.world = None if self.text else world_named(self.dataset)
        cut = self.vocab_size != 50257
        if cut and self.tokenizer != "gpt2":
            raise InputError("--vocab_size is for --tokenizer=gpt2; there are 256 bytes, and the "
                             "toy and sudoku have words of their own")
        if not self.text and (self.tokenizer == "words") != bool(self.world):
            raise InputError(f"--tokenizer={self.tokenizer} is not for {self.dataset}; leave it "
                             "out")
        if self.val and not self.text:
            raise InputError("--val needs --text")
        if self.text and self.dataset != "toy":
            raise InputError("--dataset and --text name two sources; give one of them")
        if not self.name:
            self.name = Path((files_of(self.text) or [self.dataset])[0]).stem
            kind = self.vocab_size if cut else self.tokenizer
            if kind != usual:
                self.name += f"-{kind}"
            if self.text and self.name in USUAL:
                raise InputError(f"data/{self.name} is for --dataset={self.name}; give --name=NAME")
        if not self.max_tokens:
            self.max_tokens = 4_000_000 if self.world else 50_000_000

    def make_tokenizer(self, texts=()) -> Tokenizer:
        """The tokenizer, for which --tokenizer=words takes the words of these texts.

        Raises InputError."""
        words = self.world.words() if self.world else ()
        if self.tokenizer == "words" and not self.world:
            words = words_of(texts)
        return Tokenizer(self.tokenizer, self.vocab_size, words)


def words_of(texts: list) -> list:
    """The words and punctuation marks of the texts, the most frequent first. Raises InputError."""
    counts = collections.Counter(word for text in texts for word in split_words(text))
    if len(counts) > MOST_WORDS:
        raise InputError(f"--text has {len(counts):,} different words, and --tokenizer=words takes "
                         f"at most {MOST_WORDS:,}; leave it out, or take --tokenizer=bytes")
    return [word for word, _ in counts.most_common()]


def open_source(o: PrepareOptions) -> tuple:
    """The texts that the options ask for: their kind, those to train on and those to validate on.

    They are stories, or the pieces of one continuous text. Raises InputError."""
    if o.world:
        return "stories", texts_of(o.world, o.seed), texts_of(o.world, o.seed + 1)
    if o.dataset == "tinystories" and not o.text:
        return "stories", download_stories("train"), download_stories("validation")
    paths = files_of(o.text) if o.text else [download_shakespeare(DATA_DIR)]
    texts, marked = read_texts(paths + files_of(o.val))
    train, val = texts[:len(paths)], texts[len(paths):]
    if marked:
        train, val = split_stories(train), split_stories(val)
        return "stories", train, val or train[19::20]
    train, val = "\n".join(train), "\n".join(val)
    if len(set(texts)) < len(texts) or (val and val.strip() in train):
        raise InputError("--text and --val have a text twice, so that validation would be on what "
                         "training has read; give it once")
    if not val:
        end = len(train) * 9 // 10
        if o.tokenizer == "words":
            end += len(re.match(r"\S*", train[end:])[0])        # not within a word
        train, val = train[:end], train[end:]
    return "continuous", cut_between_words(train), cut_between_words(val)


def prepare(o: PrepareOptions) -> Path:
    """Makes data/<name> and returns that folder. Raises InputError.

    All is read before it is written, and written before it takes the place of an older data set. So
    if a text is wrong, a download fails or the disk is full, what was there stays."""
    kind, train, val = open_source(o)
    # A --val has no words of its own, but what is held out of the same text may have some.
    tokenizer = o.make_tokenizer(train if o.val else itertools.chain(train, val))
    mark = [tokenizer.eot] if kind == "stories" else []         # before each story
    if mark:
        held_out = set()
        val = remember(iter(val), held_out)
        train = not_among(held_out, train)
    splits = {          # validation is read first, because training leaves out what that has read
        "val": encode_texts(val, tokenizer, mark, max(1, o.max_tokens // 20)),
        "train": encode_texts(train, tokenizer, mark, o.max_tokens)}
    meta = {"format": FORMAT, "kind": kind, "eot": tokenizer.eot, "source": o.source,
            "tokenizer": tokenizer.to_dict(), "splits": {}}
    if o.world and o.world.entropy():
        meta["entropy"] = o.world.entropy()         # nats of a text
    for split, (tokens, texts) in splits.items():
        if not tokens:
            raise InputError(f"there is no text for {split}; give more, because a part of --text "
                             "is held out, or give --val=FILE with texts that --text has not")
        meta["splits"][split] = {
            "stories": len(texts) * len(mark),
            "tokens": len(tokens),
            "bytes": sum(len(text.encode()) for text in texts),
            "crc32": zlib.crc32(tokens)}        # by which a resumed run knows its data again

    folder = Path(DATA_DIR, o.name)
    folder.resolve().mkdir(parents=True, exist_ok=True)     # it may be a link to another disk
    with tempfile.TemporaryDirectory(dir=folder, prefix="unfinished-") as unfinished:
        new = Path(unfinished)
        for split, (tokens, _) in splits.items():
            (new / f"{split}.bin").write_bytes(tokens)
        write_json(new / "meta.json", meta | provenance(o.seed))
        # A folder without meta.json is no data set, so it goes first and comes last.
        (folder / "meta.json").unlink(missing_ok=True)
        for file in "train.bin", "val.bin", "meta.json":
            (new / file).replace(folder / file)
    return folder


def remember(stories, seen: set):
    """The same stories. They are read, and added to the set `seen`, 512 at a time."""
    while some := list(itertools.islice(stories, 512)):
        seen.update(some)
        yield from some


def not_among(held_out: set, stories):
    """The stories that are not held out. Raises InputError where there seem to be no others."""
    in_a_row = 0
    for story in stories:
        if story not in held_out:
            in_a_row = 0
            yield story
        elif (in_a_row := in_a_row + 1) == 100_000:
            raise InputError("there are too few different texts: validation holds out the first "
                             "512, or as many as it needs, and there seem to be no others; give "
                             "more, or a smaller --max_tokens")


def encode_texts(texts, tokenizer: Tokenizer, mark: list, max_tokens: int) -> tuple:
    """The tokens of the texts, the mark before each, until there are max_tokens; and these texts.

    The last story is kept whole, the last piece of a continuous text is not."""
    tokens, used = array.array("H"), []
    for text in tqdm(texts, unit=" texts", leave=False, disable=None):  # no bar in a log file
        ids = tokenizer.encode(text)
        if not mark:
            ids = ids[:max_tokens - len(tokens)]
            text = tokenizer.decode(ids)
        tokens.extend(mark + ids)
        used.append(text)
        if len(tokens) >= max_tokens:
            break
    return tokens, used


def data_to_prepare(name: str):
    """The options that make data/<name>, if it is missing and the name says what it is."""
    known = re.fullmatch(rf"({'|'.join(USUAL)})(?:-(bytes|(\d{{4,5}})))?", name)
    if not known or Path(DATA_DIR, name, "meta.json").exists():
        return None
    dataset, tokenizer, size = known.groups()
    if size:
        tokenizer = "gpt2"
    return PrepareOptions(dataset, name=name, tokenizer=tokenizer or "auto",
                          vocab_size=int(size or 50257))


def prepare_if_missing(name: str):
    """Prepares a data set that is known by its name and is not there. Raises InputError."""
    missing = data_to_prepare(name)
    if missing:
        print(f"preparing {DATA_DIR}/{name} first")
        prepare(missing)


def vocabulary_of(name: str) -> int:
    """The vocabulary size of a data set, also of one that is still to be prepared."""
    missing = data_to_prepare(name)
    if missing:
        return missing.make_tokenizer().vocab_size
    return load_meta(name)["eot"] + 1


# ---- The command ---------------------------------------------------------------------------------

def training_command(o: PrepareOptions, kind: str) -> str:
    """What trains on data/<name>, called from the same folder as this script."""
    from presets import PRESETS
    preset = {"words": "toy", "bytes": "shakespeare", "gpt2": "laptop"}[o.tokenizer]
    if o.world and o.dataset in PRESETS:
        preset = o.dataset
    mode = {"sudoku-pairs": "ar", "sudoku-moves": "aogpt"}.get(preset, "mdlm")
    script = str(Path(sys.argv[0]).with_name("train.py"))
    words = ["python", script, f"--mode={mode}", f"--data={o.name}", f"--preset={preset}"]
    if preset == "toy" != o.source and kind == "stories":
        tokens = load_tokens(o.name, "val")
        starts = np.flatnonzero(tokens == tokens[0])
        longest = np.diff([*starts, len(tokens)]).max()         # of the texts, with its end
        words.append(f"--block_size={longest}")
    return shlex.join(words)


def main():
    flags = parse_flags(__doc__, PrepareOptions)
    o = build(PrepareOptions, flags)
    if "name" not in flags and Path(DATA_DIR, o.name, "meta.json").exists():
        if load_meta(o.name)["source"] != o.source:
            raise InputError(f"{DATA_DIR}/{o.name} was made of another text; give another --name, "
                             f"or --name={o.name} to replace it")
    folder = prepare(o)
    meta = load_meta(o.name)
    splits = meta["splits"]
    if meta["kind"] == "continuous":
        print(f"it is one continuous text, without {EOT} between stories; "
              f"{'--val' if o.val else 'its last tenth'} is for validation")
    for split, counts in splits.items():
        print(f"{folder}/{split}.bin: {counts['stories']:,} stories, {counts['tokens']:,} tokens, "
              f"{counts['bytes']:,} bytes")
    if o.text and splits["train"]["tokens"] >= o.max_tokens:
        print(f"--max_tokens={o.max_tokens:,} ended it; the text may be longer")
    text = Tokenizer(**meta["tokenizer"]).decode(load_tokens(o.name, "val")[:33])
    print(f"it begins: {printable(text.removeprefix(EOT).strip())} …")
    print(f"next: {training_command(o, meta['kind'])}")


if __name__ == "__main__":
    command(main, "nothing was kept of this run")
