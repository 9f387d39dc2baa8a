"""
Text in, tokens out: data/<name>/{train.bin, val.bin, meta.json}.

    python prepare_data.py                                        the toy: stories of a small grammar, entropy known exactly
    python prepare_data.py --dataset=tinystories                  TinyStories through the `datasets` package, 50M tokens
    python prepare_data.py --dataset=tinystories --vocab_size=4096        the same with a vocabulary for laptops
    python prepare_data.py --text=stories.txt --val=more.txt --name=mine  any UTF-8 text, stories split at <|endoftext|>

A .bin file is a row of uint16 tokens in which every story is preceded by end-of-text. Train and val share no story.
"""
import argparse
import datetime
import difflib
import functools
import inspect
import itertools
import json
import math
import os
import platform
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import zlib
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import tiktoken
from tqdm import tqdm

EOT = "<|endoftext|>"
DATA_DIR = "data"
FORMAT = 1
OUR_FILES = ("best.pt", "ckpt.pt", "config.json", "log.jsonl", "meta.json", "train.bin", "val.bin")     # no flag replaces them

# ----------------------------------------------------------------------------------------------------------------------
# The command line, for all scripts: a flag --name=value for each field of a dataclass, its comment the help


def fail(message: str):
    """One line that says what is wrong and what to do; exit code 2."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(2)


def command(main, interrupted: str):
    """Run a script's main: what the user or the machine got wrong is one line, not a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # like Ctrl-C: it cleans up
    for stream in filter(None, (sys.stdout, sys.stderr)):       # a terminal may not know all characters
        stream.reconfigure(errors="backslashreplace")
    try:
        main()
    except KeyboardInterrupt:
        fail(f"interrupted; {interrupted}")
    except OSError as e:    # no such folder, no permission, disk full
        fail(str(e))
    except (MemoryError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and "out of memory" not in str(e) and "allocate memory" not in str(e):
            raise
        fail(f"not enough memory for these sizes ({str(e)[:100]}); take smaller ones, or in training a larger --grad_accum")


def nearest(word: str, words) -> str:
    match = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {match[0]}?" if match else ""


def read_value(field: Field, several: bool, text: str):
    """What --field=text stands for; where the flag takes several values, separated by commas, the list of them."""
    if several:
        return [read_value(field, False, part) for part in text.split(",")]
    allowed = {"true": True, "false": False} if field.type is bool else {choice: choice for choice in get_args(field.type)}
    if allowed:
        if text.lower() not in allowed:
            fail(f"--{field.name}={text} must be {' or '.join(allowed)}{nearest(text, allowed)}")
        return allowed[text.lower()]
    # no number may be negative, and counts are at least 1
    least = 1 if field.type is int and field.name not in ("seed", "warmup", "max_tokens") else 0
    try:
        value = field.type(text)
        if field.type is not str and not least <= value < (1e15 if field.type is int else math.inf):
            raise ValueError
        return value
    except ValueError:
        kind = "whole number below 1e15" if field.type is int else "finite number"
        fail(f"--{field.name}={text} must be a {kind}, at least {least}")


def check_outputs(flags: dict):
    """Files that could not be written, or should not be, are refused before the work, not after it."""
    outputs = {name: Path(flags[name]) for name in ("out", "json", "plot", "picture") if flags.get(name)}
    inputs = [Path(path) for text in flags.get("positional", []) for path in text.split("=", 1)[-1].split(",")]
    for name, path in outputs.items():
        if not path.parent.is_dir() or path.is_dir():
            fail(f"--{name}={path} lies in a folder that does not exist, or is one itself")
        if name == "out" and path.exists() and not path.is_file():
            fail(f"--out={path} is not a plain file, which could be replaced when all stories are written; name one")
        if path.name in OUR_FILES or [*outputs.values(), *inputs].count(path) > 1:
            fail(f"--{name}={path} would replace what is needed; choose another name")
        if name in ("plot", "picture") and path.suffix not in (".png", ".svg", ".pdf"):
            fail(f"--{name}={path} must end in .png, .svg or .pdf")


def parse_flags(doc: str, *classes, positional: str = "", sweep=()) -> dict:
    """The flags given on the command line, {name: value}; what was not given is not in it. positional: what the other
    arguments are, where there may be some; they are returned under "positional". sweep: flags that take several values."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [--name=value ...]", allow_abbrev=False,
                                     argument_default=argparse.SUPPRESS)
    parser.error = fail
    for cls in classes:
        comments = dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(cls), re.MULTILINE))
        group = parser.add_argument_group(cls.__name__ if cls.__doc__.startswith(f"{cls.__name__}(") else cls.__doc__)
        for f in fields(cls):
            values = "|".join(get_args(f.type)) or {bool: "true|false", int: "N", float: "X", str: "TEXT"}[f.type]
            default = ",".join(map(str, f.default)) if isinstance(f.default, tuple) else str(f.default).lower()
            default = "" if default in ("", "0", "none") else f" ({default})"
            group.add_argument(f"--{f.name}", metavar=values, type=functools.partial(read_value, f, f.name in sweep),
                               help=(comments[f.name] + default).replace("%", "%%"),
                               **({"nargs": "?", "const": True} if f.type is bool else {}))
    if positional:
        parser.add_argument("positional", metavar=positional, nargs="*", default=[])
    given, unknown = parser.parse_known_args()
    if unknown:
        names = [f"--{f.name}" for cls in classes for f in fields(cls)]
        fail(f"unknown argument {unknown[0]}{nearest(unknown[0].split('=')[0], names)} (--help lists all)")
    check_outputs(vars(given))
    return vars(given)


def provenance(seed: int) -> dict:
    """What it takes to make a number again: command, seed, date, machine, Python version, commit."""
    try:
        commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True,
                                cwd=Path(__file__).parent).stdout.strip()
    except OSError:     # no git here
        commit = ""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    cpu = model[1] if model else platform.processor() or platform.machine()
    return {"command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]), "seed": seed,
            "date": datetime.datetime.now().isoformat(timespec="seconds"), "machine": f"{cpu}, {os.cpu_count()} cores",
            "python": platform.python_version(), "commit": commit}


def write_json(path: str, content):
    """NaN, a figure that could not be had, becomes null."""
    with open(path, "w") as f:
        json.dump(json.loads(json.dumps(content), parse_constant=lambda _: None), f, indent=1)


def print_table(rows: list):
    """Rows of texts in aligned columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *rest in rows:
        print(first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(rest, widths[1:])), sep="  ", flush=True)


# ----------------------------------------------------------------------------------------------------------------------
# The tokenizer


class Tokenizer:
    """Text <-> token ids. The last id is end-of-text.

    kind "gpt2": GPT-2's byte-level BPE, cut to its first vocab_size-1 ranks. Merges are ordered by rank, so any prefix is
    a valid BPE, and 50,257 is GPT-2's own. kind "words": a closed list of words and punctuation marks.
    """

    def __init__(self, kind: str = "gpt2", vocab_size: int = 50257, words=()):
        self.kind, self.words = kind, list(words)
        self.vocab_size = len(self.words) + 1 if kind == "words" else vocab_size
        self.eot = self.vocab_size - 1
        if kind == "words":
            self.id = {word: i for i, word in enumerate(self.words)}
            return
        if not 257 <= vocab_size <= 50257:
            fail(f"--vocab_size={vocab_size} must lie between 257 (all bytes) and 50257 (all of GPT-2's; "
                 f"over 65,536 would not fit the uint16 files either)")
        try:
            gpt2 = tiktoken.get_encoding("gpt2")
        except Exception as e:  # tiktoken downloads the vocabulary on first use, and lets requests' errors through
            fail(f"the GPT-2 vocabulary could not be loaded ({type(e).__name__}); connect once, or point TIKTOKEN_CACHE_DIR "
                 f"at a copy of tiktoken's cache")
        ranks = {token: rank for token, rank in gpt2._mergeable_ranks.items() if rank < self.eot}
        self.bpe = tiktoken.Encoding(f"gpt2-{vocab_size}", pat_str=gpt2._pat_str, mergeable_ranks=ranks,
                                     special_tokens={EOT: self.eot})

    def encode(self, text: str) -> list:
        """Ids of plain text (an end-of-text mark in it is plain text too). Raises ValueError at an unknown word."""
        if self.kind == "gpt2":
            return self.bpe.encode_ordinary(text)
        try:
            return [self.id[word] for word in split_words(text)]
        except KeyError as e:
            raise ValueError(f"the word {e.args[0]!r} is not in the vocabulary of {len(self.words)} words") from None

    def encode_batch(self, texts: list) -> list:
        return self.bpe.encode_ordinary_batch(texts) if self.kind == "gpt2" else [self.encode(text) for text in texts]

    def decode(self, ids) -> str:
        if self.kind == "gpt2":
            return self.bpe.decode([int(i) for i in ids])
        return join_words(EOT if i == self.eot else self.words[i] for i in ids)

    def pieces(self, ids) -> list:
        """What each token adds to the text; a token that is part of a character shows as �."""
        texts = [self.decode([i]) for i in ids]
        return texts if self.kind == "gpt2" else [text if text in ".," else f" {text}" for text in texts]

    def decode_story(self, ids) -> str:
        """The text up to the first end-of-text."""
        return self.decode(itertools.takewhile(lambda i: i != self.eot, ids))

    def to_dict(self) -> dict:
        return {"kind": self.kind, "vocab_size": self.vocab_size, "words": self.words}


def split_words(text: str) -> list:
    """Words and punctuation marks, white space dropped."""
    return re.findall(r"\w+|[^\w\s]", text)


def join_words(words) -> str:
    return re.sub(r" ([.,])", r"\1", " ".join(words))


# ----------------------------------------------------------------------------------------------------------------------
# The toy corpus: a story grammar whose law is known exactly


class Grammar:
    """Stories of independent weighted choices, some of which come back later.

    rules: {name: {text: weight}} is a choice, made once; {name: (owner, [text, …])} follows the owner's choice. In a text,
    {name} expands a rule and {=name} repeats what it gave before. The alternatives of a choice begin with different words,
    so a choice is revealed by one token, which carries its whole information: every other token is certain.
    """

    REFERENCE = re.compile(r"{(=?)(\w+)}")
    PART = re.compile(rf"{REFERENCE.pattern}|(\w+|[^\w\s])")    # a reference, or a word or punctuation mark

    def __init__(self, rules: dict):
        self.rules, self.owner, self.texts, self.weights = rules, {}, {}, {}
        for name, rule in rules.items():
            # a choice is its own owner; what follows it has its weights
            self.owner[name], self.texts[name] = (name, list(rule)) if isinstance(rule, dict) else rule
            weights = rules[self.owner[name]].values()
            self.weights[name] = [w / sum(weights) for w in weights]

    def _tell(self, choose) -> str:
        """The story in which each choice takes its alternative number choose(name, words so far)."""
        words, chosen = [], {}

        def expand(text):
            for _, name, word in self.PART.findall(text):
                if word:
                    words.append(word)
                else:
                    owner = self.owner[name]
                    if owner not in chosen:
                        chosen[owner] = choose(owner, words)
                    expand(self.texts[name][chosen[owner]])

        expand("{story}")
        return join_words(words)

    def draw(self, rng: random.Random) -> str:
        """One story."""
        return self._tell(lambda name, words: rng.choices(range(len(self.texts[name])), self.weights[name])[0])

    def log_probs(self, story: str):
        """ln p of every word given the words before it, (len(split_words(story)),), or None if this is no story."""
        words = split_words(story)
        log_p = np.zeros(len(words))

        def choose(name, before):                       # tell the story again: the next word reveals the alternative
            j = len(before)
            for i, text in enumerate(self.texts[name]):
                if split_words(text)[:1] == words[j:j + 1]:
                    log_p[j] += math.log(self.weights[name][i])
                    return i
            return 0                                    # the only one, or none fits and it will be another story

        return log_p if self._tell(choose) == story else None

    def entropy(self, text: str = "{story}") -> float:
        """Nats per story, exact: those of a choice and, with their probabilities, those inside its alternatives."""
        nats = 0.0
        for repeat, name in self.REFERENCE.findall(text):
            if not repeat:
                if self.owner[name] == name:
                    nats -= sum(w * math.log(w) for w in self.weights[name])
                nats += sum(w * self.entropy(t) for w, t in zip(self.weights[name], self.texts[name]))
        return nats

    def mean_words(self, text: str = "{story}") -> float:
        """Expected words and punctuation marks per story, exact."""
        mean = len(split_words(self.REFERENCE.sub("", text)))
        for _, name in self.REFERENCE.findall(text):
            mean += sum(w * self.mean_words(t) for w, t in zip(self.weights[name], self.texts[name]))
        return mean

    def words(self) -> list:
        return sorted({word for texts in self.texts.values() for text in texts for *_, word in self.PART.findall(text) if word})


TOY = Grammar({
    "story": {"{opening}, a {hero} {got} a {look} {thing} {where} the {place}. {She} took it to {her} {friend}, "
              "but it {trouble}. {Her} {=friend} {rescue}. {Ending}.": 1},
    "opening": {"One day": 5, "Last summer": 3, "Long ago": 1, "That morning": 1},
    "hero": {"girl named {girl}": 1, "boy named {boy}": 1},
    "girl": {"Lily": 4, "Mia": 3, "Anna": 2, "Sue": 2, "Zoe": 2, "Emma": 1, "Rose": 1, "Lucy": 1},
    "boy": {"Tom": 4, "Ben": 3, "Max": 2, "Sam": 2, "Tim": 2, "Jack": 1, "Leo": 1, "Bob": 1},
    "She": ("hero", ["She", "He"]), "her": ("hero", ["her", "his"]), "Her": ("hero", ["Her", "His"]),
    "Name": ("hero", ["{=girl}", "{=boy}"]),
    "got": {"found": 4, "saw": 2, "made": 1, "hid": 1},
    "look": {"red": 4, "big": 4, "small": 2, "shiny": 2, "soft": 1, "blue": 1, "funny": 1, "pretty": 1},
    "thing": {"ball": 4, "kite": 2, "boat": 2, "doll": 2, "drum": 2, "hat": 2, "cup": 1, "key": 1, "bell": 1, "book": 1,
              "ring": 1, "shell": 1},
    "where": {"in": 2, "near": 1, "behind": 1},
    "place": {"park": 4, "garden": 2, "house": 2, "school": 2, "forest": 2, "farm": 1, "shop": 1, "lake": 1},
    "friend": {"mom": 4, "dad": 3, "sister": 2, "brother": 2, "grandma": 1, "uncle": 1, "teacher": 1, "neighbor": 1},
    "trouble": {"was taken by a {thief}": 3, "fell into the deep {water}": 2, "broke and lost its {part}": 2,
                "got stuck in the {tree}": 1},
    "rescue": ("trouble", ["asked the {=thief} for it politely", "swam into the {=water} for it",
                           "made a new {=part} from wood", "climbed up the {=tree} for it"]),
    "thief": {"bird": 3, "fox": 2, "monkey": 2, "goat": 1},
    "water": {"river": 2, "pond": 1, "sea": 1},
    "part": {"handle": 2, "string": 1, "lid": 1},
    "tree": {"oak": 2, "pine": 1},
    "Ending": {"Then {Name} hugged {her} {=friend} and {feeling}": 2, "They played with the {=thing} until {time}": 2,
               "So {Name} kept the {=thing} very {safe}": 1},
    "feeling": {"smiled": 2, "laughed": 1, "danced": 1},
    "time": {"dinner": 2, "bedtime": 1, "dark": 1},
    "safe": {"safe": 2, "clean": 1, "near": 1},
})


def toy_stories(seed: int):
    rng = random.Random(seed)
    while True:
        yield TOY.draw(rng)


# ----------------------------------------------------------------------------------------------------------------------
# Preparing a data set


def read_stories(path: str):
    """Stories of a UTF-8 text file, in bounded memory; what runs on for over a million characters is cut there."""
    try:
        with open(path, encoding="utf-8-sig") as f:
            text = ""
            while block := f.read(1 << 20):
                *whole, text = (text + block).split(EOT)
                if len(text) > 1 << 20:
                    whole, text = [*whole, text], ""
                yield from filter(None, map(str.strip, whole))
            yield from filter(None, [text.strip()])
    except UnicodeDecodeError as e:
        fail(f"{path} is not UTF-8 text (byte 0x{e.object[e.start]:02x}); convert it first, e.g. with iconv")
    except OSError as e:
        fail(f"{path} cannot be read ({e.strerror}); give an existing text file")


def download_stories(split: str):
    try:
        import datasets
        for row in datasets.load_dataset("roneneldan/TinyStories", split=split, streaming=True):
            if text := row["text"].strip():
                yield text
    except Exception as e:      # what `datasets` raises when the network fails differs by version
        fail(f"TinyStories could not be downloaded ({type(e).__name__}); connect, or prepare a file you have with --text=FILE")


def write_split(path: Path, stories, tokenizer: Tokenizer, max_tokens: int) -> dict:
    """Encode stories into path until max_tokens are reached."""
    counts = {"stories": 0, "tokens": 0, "bytes": 0, "crc32": 0}    # bytes: of text; crc32: of the file
    with open(path, "wb") as f, tqdm(total=max_tokens, unit="tok", unit_scale=True, desc=path.stem, leave=False,
                                     disable=None) as bar:
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
class Options:
    """which text, and how much of it"""
    dataset: Literal["toy", "tinystories"] = "toy"  # made here without a network, or downloaded
    text: str = ""              # a text file instead, stories split at <|endoftext|>
    val: str = ""               # text file to validate on; without it every 20th story of --text is held out
    name: str = ""              # folder under data/; default: the data set's name, and the vocabulary size if not GPT-2's
    vocab_size: int = 50257     # cut GPT-2's BPE to this many tokens; 4096 suits a laptop. The toy has its own words
    max_tokens: int = 0         # stop after so many training tokens; default 50M, for the toy 4M
    seed: int = 1337            # of the toy's stories

    def __post_init__(self):
        if self.val and not self.text:
            fail("--val needs --text")
        if not self.val and Path(self.text).is_fifo():
            fail(f"--text={self.text} is a pipe, but is read twice to hold out stories; give a file, or --val too")
        self.toy = self.dataset == "toy" and not self.text
        if not self.name:
            cut = "" if self.toy or self.vocab_size == 50257 else f"-{self.vocab_size}"
            self.name = (Path(self.text).stem or self.dataset) + cut
        if Path(self.name).name != self.name or self.name == "..":
            fail(f"--name={self.name} must be the plain name of a folder, to be made under {DATA_DIR}/")
        self.max_tokens = self.max_tokens or (4_000_000 if self.toy else 50_000_000)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer("words", words=TOY.words()) if self.toy else Tokenizer("gpt2", self.vocab_size)


def prepare(o: Options) -> Path:
    """Make data/<name>, in a folder beside it and then moved: what was there before stays until the new one is whole."""
    tokenizer, folder = o.tokenizer(), Path(DATA_DIR, o.name)
    if o.toy:
        train, val = toy_stories(o.seed), toy_stories(o.seed + 1)
    elif not o.text:
        train, val = download_stories("train"), download_stories("validation")
    else:
        train = read_stories(o.text)
        val = read_stories(o.val) if o.val else itertools.islice(read_stories(o.text), 19, None, 20)
    held_out = {}                                       # the validation stories, kept out of training
    val = (held_out.setdefault(story, story) for story in val)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as temporary:
        new = Path(temporary)
        splits = {"val": write_split(new / "val.bin", val, tokenizer, max(1, o.max_tokens // 20)),
                  "train": write_split(new / "train.bin", (s for s in train if s not in held_out), tokenizer, o.max_tokens)}
        for split, file in (("train", o.text), ("val", o.val or o.text)):
            if not splits[split]["stories"]:
                fail(f"{file or o.dataset} holds no story for {split}; give more text (stories are split at {EOT})")
        meta = {"format": FORMAT, "name": o.name, "source": Path(o.text).name or o.dataset,
                "tokenizer": tokenizer.to_dict(), "eot": tokenizer.eot, "splits": splits, **provenance(o.seed)}
        if o.toy:
            meta["entropy"] = TOY.entropy() / (TOY.mean_words() + 1)    # nats per token, one end-of-text a story
        (new / "meta.json").write_text(json.dumps(meta, indent=1))
        folder.mkdir(exist_ok=True)
        (folder / "meta.json").unlink(missing_ok=True)  # a folder without meta.json is not a data set
        for file in ("train.bin", "val.bin", "meta.json"):
            (new / file).replace(folder / file)
    return folder


# ----------------------------------------------------------------------------------------------------------------------
# Reading a data set


def load_meta(name: str) -> dict:
    """meta.json of data/<name>, its files checked against it."""
    path = Path(DATA_DIR, name, "meta.json")
    if not path.exists():
        have = [found.parent.name for found in Path(DATA_DIR).glob("*/meta.json")]
        fail(f"no data set at {path}{nearest(name, have)}; make one with python prepare_data.py --help")
    try:
        meta = json.loads(path.read_text())
        if meta["format"] != FORMAT:
            raise ValueError(f"it has format {meta['format']}, this code reads {FORMAT}")
        numbers = [meta["tokenizer"]["vocab_size"], meta["eot"]]
        numbers += [meta["splits"][split][key] for split in ("train", "val") for key in ("stories", "tokens", "bytes", "crc32")]
        if min(numbers) < 1 or meta["eot"] != meta["tokenizer"]["vocab_size"] - 1:
            raise ValueError("its numbers can't be right")
    except (ValueError, KeyError, TypeError) as e:
        fail(f"{path} is not usable ({type(e).__name__}: {e}); prepare it again")
    for split in ("train", "val"):
        file, counts = path.with_name(f"{split}.bin"), meta["splits"][split]
        whole = file.exists() and file.stat().st_size == 2 * counts["tokens"]
        if not whole or zlib.crc32(tokens := np.memmap(file, np.uint16, "r")) != counts["crc32"] or tokens.max() > meta["eot"]:
            fail(f"{file} does not hold the {counts['tokens']:,} tokens that meta.json promises; prepare it again")
    return meta


class Windows:
    """Windows of T tokens from one split of data/<name>, as int64 arrays; the same for the same seed.

    kind  aligned   a window starts at a story's first word: a model of a story from its beginning
          random    windows follow one another from a random phase, drawn anew in each epoch: from anywhere in a story
          paper     as the paper cut its data (arXiv 2603.22075): end-of-text dropped, the training split cut into chunks
                    of T, shuffled, 5% of the *chunks* held out; a story can lie in both splits
    """

    def __init__(self, name: str, split: str, block_size: int, kind: str = "aligned", seed: int = 1337):
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
        else:
            starts, held_out = np.random.default_rng(42).permutation(side_by_side), len(side_by_side) // 20
            self.starts = starts[:held_out] if split == "val" else starts[held_out:]
        if not len(self.starts):
            fail(f"block_size {block_size} is longer than any {kind} window of {DATA_DIR}/{name} ({split}: {len(self.tokens):,} "
                 f"tokens); take a smaller --block_size or more text")
        self.tokens_per_byte = len(self.tokens) / self.meta["splits"][file]["bytes"]

    def __len__(self):
        return len(self.starts)

    @functools.lru_cache(maxsize=2)
    def _epoch(self, epoch: int):
        rng = np.random.default_rng((self.seed, epoch))
        phase = rng.integers(self.block_size) if self.kind == "random" else 0
        return rng.permutation(self.starts) + phase

    def _rows(self, values, starts):                    # values: one for each token
        return values[starts[:, None] + np.arange(self.block_size)]

    def batch(self, step: int, batch_size: int):
        """(batch_size, T): the rows that training step `step` reads. Every window is read once an epoch."""
        rows = range(step * batch_size, (step + 1) * batch_size)
        starts = np.array([self._epoch(row // len(self))[row % len(self)] for row in rows])
        return self._rows(self.tokens, starts).astype(np.int64)

    def _spread(self, n: int):
        return self.starts[np.linspace(0, len(self) - 1, min(n, len(self))).astype(int)]

    def first(self, n: int):
        """(up to n, T): fixed windows for evaluation, spread evenly over the split."""
        return self._rows(self.tokens, self._spread(n)).astype(np.int64)

    def floor(self, n: int):
        """For the toy: nats per token of first(n) under the true law; no model can do better on average. Else None."""
        if self.kind != "aligned" or "entropy" not in self.meta:
            return None
        stories = Tokenizer(**self.meta["tokenizer"]).decode(self.tokens).split(EOT)[1:]
        log_probs = [TOY.log_probs(story.strip()) for story in stories]
        if any(p is None for p in log_probs):   # drawn from another grammar than this file's
            return None
        # a story ends for certain, so the end-of-text before the next is free
        return -float(self._rows(np.concatenate([[0, *p] for p in log_probs]), self._spread(n)).mean())


def main():
    options = Options(**parse_flags(__doc__, Options))
    folder = prepare(options)
    meta, tokenizer = load_meta(options.name), options.tokenizer()
    for split, n in meta["splits"].items():
        print(f"{folder}/{split}.bin: {n['stories']:,} stories, {n['tokens']:,} tokens, {n['bytes']:,} bytes of text")
    entropy = f", entropy {meta['entropy']:.4f} nats per token" if options.toy else ""
    print(f"vocabulary {tokenizer.vocab_size:,}{entropy}")
    first = np.fromfile(folder / "val.bin", dtype=np.uint16, count=33)[1:]
    print(f"first story: {tokenizer.decode_story(first)} …")
    print(f"next: python train.py --mode=mdlm --data={options.name}")


if __name__ == "__main__":
    command(main, "nothing was kept of this run")
