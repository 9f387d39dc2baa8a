"""
Text in, tokens out: data/<name>/{train.bin, val.bin, meta.json}.

    python prepare_data.py                                        the toy: stories of a small grammar, entropy known exactly
    python prepare_data.py --dataset=tinystories                  TinyStories through the `datasets` package, 50M tokens
    python prepare_data.py --dataset=tinystories --vocab_size=4096        the same with a vocabulary for laptops
    python prepare_data.py --text=stories.txt --val=more.txt --name=mine  any UTF-8 text, stories split at <|endoftext|>

A .bin file is a row of uint16 tokens in which every story is preceded by end-of-text. Train and val share no story.
"""
import argparse
import dataclasses
import datetime
import difflib
import functools
import hashlib
import inspect
import itertools
import json
import math
import os
import platform
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import tiktoken
from tqdm import tqdm

EOT = "<|endoftext|>"
DATA_DIR = "data"
FORMAT = 1

# ----------------------------------------------------------------------------------------------------------------------
# The command line, for all scripts: a flag --name=value for each field of a dataclass, its comment the help


def fail(message: str):
    """One line that says what is wrong and what to do; exit code 2."""
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    raise SystemExit(2)


def command(main, interrupted: str):
    """Run a script's main: what the user or the machine got wrong is one line, not a traceback."""
    try:
        main()
    except KeyboardInterrupt:
        fail(f"interrupted; {interrupted}")
    except OSError as e:    # no such folder, no permission, disk full
        fail(str(e))


def nearest(word: str, words) -> str:
    match = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {match[0]}?" if match else ""


def read_value(field: dataclasses.Field, text: str):
    choices = get_args(field.type)
    if choices and text not in choices:
        fail(f"--{field.name}={text} is not one of {', '.join(choices)}{nearest(text, choices)}")
    if field.type is bool and text.lower() not in ("true", "false"):
        fail(f"--{field.name}={text} must be true or false")
    try:
        value = text.lower() == "true" if field.type is bool else text if choices else field.type(text)
    except ValueError:
        fail(f"--{field.name}={text} is not {'a whole number' if field.type is int else 'a number'}")
    if field.type is float and not math.isfinite(value):
        fail(f"--{field.name}={text} is not a finite number")
    return value


def parse_flags(doc: str, *classes, positional: str = "", sweep=()) -> dict:
    """The flags given on the command line, {name: value}; what was not given is not in it. positional: what the other
    arguments are, where there may be some; they are returned under "positional". sweep: flags that take several values,
    separated by commas, and give a list."""
    def read(field, text):
        return [read_value(field, part) for part in text.split(",")] if field.name in sweep else read_value(field, text)

    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [--name=value ...]", allow_abbrev=False,
                                     argument_default=argparse.SUPPRESS)
    parser.error = fail
    flags = {}
    for cls in classes:
        comments = dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(cls), re.MULTILINE))
        group = parser.add_argument_group(cls.__doc__ if not cls.__doc__.startswith(cls.__name__ + "(") else cls.__name__)
        for f in dataclasses.fields(cls):
            flags[f.name] = f
            values = "|".join(get_args(f.type)) or {bool: "true|false", int: "N", float: "X", str: "TEXT"}[f.type]
            default = "" if f.default in ("", None) or (f.type is int and f.default == 0) else f" ({str(f.default).lower()})"
            group.add_argument(f"--{f.name}", metavar=values, type=functools.partial(read, f),
                               help=(comments[f.name] + default).replace("%", "%%"),
                               **({"nargs": "?", "const": True} if f.type is bool else {}))
    if positional:
        parser.add_argument("positional", metavar=positional, nargs="*", default=[])
    given, unknown = parser.parse_known_args()
    if unknown:
        fail(f"unknown argument {unknown[0]}{nearest(unknown[0].split('=')[0], [f'--{name}' for name in flags])} "
             f"(--help lists all)")
    return vars(given)


def provenance(seed: int) -> dict:
    """What it takes to make a number again: command, seed, date, machine, Python version, commit."""
    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True, cwd=os.path.dirname(os.path.abspath(__file__)))
        return done.stdout.strip()
    try:
        commit = run("git", "rev-parse", "--short", "HEAD") + ("-dirty" if run("git", "status", "--porcelain", "-uno") else "")
    except OSError:
        commit = ""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), cpu)
    return {"command": " ".join(["python", os.path.basename(sys.argv[0]), *sys.argv[1:]]), "seed": seed,
            "date": datetime.datetime.now().isoformat(timespec="seconds"), "machine": f"{cpu}, {os.cpu_count()} cores",
            "python": platform.python_version(), "commit": commit}


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
        ids = [int(i) for i in ids]
        if self.kind == "gpt2":
            return self.bpe.decode(ids)
        marks = [EOT if i == self.eot else self.words[i] for i in ids]
        return re.sub(r" ([.,])", r"\1", " ".join(marks))

    def pieces(self, ids) -> list:
        """What each token adds to the text; a token that is part of a character shows as �."""
        if self.kind == "gpt2":
            return [self.bpe.decode([i]) for i in ids]
        return [text if text in ".," else f" {text}" for text in map(self.decode, zip(ids))]

    def decode_story(self, ids) -> str:
        """The text up to the first end-of-text."""
        ids = list(ids)
        return self.decode(ids[:ids.index(self.eot)] if self.eot in ids else ids)

    def to_dict(self) -> dict:
        return {"kind": self.kind, "vocab_size": self.vocab_size, "words": self.words}


def split_words(text: str) -> list:
    """Words and punctuation marks, white space dropped."""
    return re.findall(r"\w+|[^\w\s]", text)


# ----------------------------------------------------------------------------------------------------------------------
# The toy corpus: a story grammar whose law is known exactly


class Grammar:
    """Stories of independent weighted choices, some of which come back later.

    rules: {name: {text: weight}} is a choice; {name: (owner, [text, …])} follows the owner's choice. In a text, {name}
    expands a rule and {=name} repeats what it gave before. The alternatives of a choice differ in their first word, so a
    choice is revealed by one token, which carries its whole information: every other token is certain.
    """

    REFERENCE = re.compile(r"{(=?)(\w+)}")

    def __init__(self, rules: dict):
        self.rules = rules
        self.weights = {name: [w / sum(rule.values()) for w in rule.values()]
                        for name, rule in rules.items() if isinstance(rule, dict)}
        self.pattern = re.compile(self._expression("{story}"))

    def _owner_and_texts(self, name):
        rule = self.rules[name]
        return (None, list(rule)) if isinstance(rule, dict) else rule

    def draw(self, rng: random.Random) -> str:
        """One story."""
        chosen, given = {}, {}                          # rule -> index of its alternative, text it gave

        def expand(match):
            repeat, name = match.groups()
            if not repeat:
                owner, texts = self._owner_and_texts(name)
                index = chosen[owner] if owner else rng.choices(range(len(texts)), self.weights[name])[0]
                chosen[name], given[name] = index, self.REFERENCE.sub(expand, texts[index])
            return given[name]

        return self.REFERENCE.sub(expand, "{story}")

    def _expression(self, text: str) -> str:
        """The grammar as one regular expression: group name_i is the i-th alternative of a choice, a repetition is a
        back-reference, and what follows an owner's choice is conditional on the owner's groups."""
        def expand(match):
            repeat, name = match.groups()
            if repeat:
                return f"(?P={name})"
            owner, texts = self._owner_and_texts(name)
            parts = [self._expression(t) for t in texts]
            if owner is None:
                return f"(?P<{name}>{'|'.join(f'(?P<{name}_{i}>{part})' for i, part in enumerate(parts))})"
            *conditions, last = [f"(?({owner}_{i}){part}|" for i, part in enumerate(parts[:-1])] + [parts[-1]]
            return "".join(conditions) + last + ")" * len(conditions)

        return self.REFERENCE.sub(expand, re.sub(r"([.,])", r"\\\1", text))

    def log_probs(self, story: str):
        """ln p of every word given the words before it, (len(split_words(story)),), or None if this is no story."""
        match = self.pattern.fullmatch(story)
        if match is None:
            return None
        starts = [word.start() for word in re.finditer(r"\w+|[^\w\s]", story)]
        log_p = np.zeros(len(starts))
        for name, weights in self.weights.items():
            for i, weight in enumerate(weights):
                if len(weights) > 1 and match.start(f"{name}_{i}") >= 0:
                    log_p[starts.index(match.start(f"{name}_{i}"))] += math.log(weight)
        return log_p

    def _mean(self, text: str, measure, follow_repeats: bool) -> float:
        """Expectation of measure(literal text, weights of the choice), summed over everything that `text` expands to."""
        total = measure(self.REFERENCE.sub("", text), [1])
        for repeat, name in self.REFERENCE.findall(text):
            if not repeat or follow_repeats:
                owner, texts = self._owner_and_texts(name)
                weights = self.weights[owner or name]
                total += measure("", [1] if owner else weights)
                total += sum(w * self._mean(t, measure, follow_repeats) for w, t in zip(weights, texts))
        return total

    def entropy(self) -> float:
        """Nats per story, exact."""
        return self._mean("{story}", lambda text, weights: -sum(w * math.log(w) for w in weights), follow_repeats=False)

    def mean_words(self) -> float:
        """Expected words and punctuation marks per story, exact."""
        return self._mean("{story}", lambda text, weights: len(split_words(text)), follow_repeats=True)

    def words(self) -> list:
        texts = itertools.chain.from_iterable(self._owner_and_texts(name)[1] for name in self.rules)
        return sorted({word for text in texts for word in split_words(self.REFERENCE.sub(" ", text))})


TOY = Grammar({
    "story": {"{opening}, a {hero} {got} a {look} {thing} {where} the {place}. {She} took it to {her} {friend}, but it {trouble}. "
              "{Her} {=friend} {rescue}. {Ending}.": 1},
    "opening": {"One day": 5, "Last summer": 3, "Long ago": 1, "That morning": 1},
    "hero": {"girl named {girl}": 1, "boy named {boy}": 1},
    "girl": {"Lily": 4, "Mia": 3, "Anna": 2, "Sue": 2, "Zoe": 2, "Emma": 1, "Rose": 1, "Lucy": 1},
    "boy": {"Tom": 4, "Ben": 3, "Max": 2, "Sam": 2, "Tim": 2, "Jack": 1, "Leo": 1, "Bob": 1},
    "She": ("hero", ["She", "He"]),
    "her": ("hero", ["her", "his"]),
    "Her": ("hero", ["Her", "His"]),
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
        with open(path, encoding="utf-8") as f:
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
    except (OSError, RuntimeError, ImportError, ValueError) as e:  # what `datasets` raises offline differs by version
        fail(f"TinyStories could not be downloaded ({type(e).__name__}); connect, or prepare a file you have with --text=FILE")


def write_split(path: str, stories, tokenizer: Tokenizer, max_tokens: int, log_prob=None) -> dict:
    """Encode stories into path until max_tokens are reached; log_prob(story), where given, goes to path.logp beside it."""
    counts = {"stories": 0, "tokens": 0, "bytes": 0}
    with open(path, "wb") as f, open(f"{path}.logp" if log_prob else os.devnull, "wb") as f_log_prob, \
            tqdm(total=max_tokens, unit="tok", unit_scale=True, desc=os.path.basename(path).split(".")[0], leave=False,
                 disable=None) as bar:
        while counts["tokens"] < max_tokens and (texts := list(itertools.islice(stories, 512))):
            for text, ids in zip(texts, tokenizer.encode_batch(texts)):
                if counts["tokens"] >= max_tokens:
                    break
                np.array([tokenizer.eot, *ids], dtype=np.uint16).tofile(f)
                if log_prob:                            # a story ends for certain, so the end-of-text before the next is free
                    np.array([0, *log_prob(text)], dtype=np.float32).tofile(f_log_prob)
                counts["stories"] += 1
                counts["tokens"] += len(ids) + 1
                counts["bytes"] += len(text.encode())
                bar.update(len(ids) + 1)
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
        if self.max_tokens < 0:
            fail(f"--max_tokens={self.max_tokens} must be positive")
        if self.seed < 0:
            fail(f"--seed={self.seed} must be 0 or more")
        self.toy = self.dataset == "toy" and not self.text
        if not self.name:
            cut = "" if self.toy or self.vocab_size == 50257 else f"-{self.vocab_size}"
            self.name = (os.path.splitext(os.path.basename(self.text))[0] or self.dataset) + cut
        self.max_tokens = self.max_tokens or (4_000_000 if self.toy else 50_000_000)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer("words", words=TOY.words()) if self.toy else Tokenizer("gpt2", self.vocab_size)


def prepare(o: Options) -> str:
    """Write data/<name>, whole or not at all; returns the folder. Raises nothing a user can cause: see fail."""
    tokenizer = o.tokenizer()
    if o.toy:
        stories = {"train": toy_stories(o.seed), "val": toy_stories(o.seed + 1)}
    elif o.val:
        stories = {"train": read_stories(o.text), "val": read_stories(o.val)}
    elif o.text:
        stories = {"train": (s for i, s in enumerate(read_stories(o.text)) if i % 20 != 19),
                   "val": (s for i, s in enumerate(read_stories(o.text)) if i % 20 == 19)}
    else:
        stories = {"train": download_stories("train"), "val": download_stories("validation")}

    held_out = set()                                    # digests of the validation stories, kept out of training

    def digest(story):
        return hashlib.blake2b(story.encode(), digest_size=8).digest()

    def remember(stories):
        for story in stories:
            held_out.add(digest(story))
            yield story

    folder = os.path.join(DATA_DIR, o.name)
    os.makedirs(folder, exist_ok=True)
    temporary = {split: os.path.join(folder, f"{split}.{os.getpid()}.tmp") for split in ("val", "train")}
    try:
        splits = {"val": write_split(temporary["val"], remember(stories["val"]), tokenizer, max(1, o.max_tokens // 20),
                                     TOY.log_probs if o.toy else None)}
        splits["train"] = write_split(temporary["train"], (s for s in stories["train"] if digest(s) not in held_out),
                                      tokenizer, o.max_tokens)
        for split, file in (("train", o.text), ("val", o.val or o.text)):
            if not splits[split]["stories"]:
                fail(f"{file or o.dataset} holds no story for {split}; give more text (stories are split at {EOT})")
        meta = {"format": FORMAT, "name": o.name, "source": os.path.basename(o.text) or o.dataset,
                "tokenizer": tokenizer.to_dict(), "eot": tokenizer.eot, "splits": splits, **provenance(o.seed)}
        if o.toy:
            meta["entropy"] = TOY.entropy() / (TOY.mean_words() + 1)    # nats per token, one end-of-text a story
        for old in ("meta.json", "val_logp.bin"):                       # a folder without meta.json is not a data set
            if os.path.exists(os.path.join(folder, old)):
                os.remove(os.path.join(folder, old))
        if o.toy:
            os.replace(f"{temporary['val']}.logp", os.path.join(folder, "val_logp.bin"))
        for split in splits:
            os.replace(temporary[split], os.path.join(folder, f"{split}.bin"))
        with open(f"{temporary['val']}", "w") as f:
            json.dump(meta, f, indent=1)
        os.replace(temporary["val"], os.path.join(folder, "meta.json"))
    finally:
        for path in (*temporary.values(), f"{temporary['val']}.logp"):
            if os.path.exists(path):
                os.remove(path)
        if not os.listdir(folder):
            os.rmdir(folder)
    return folder


# ----------------------------------------------------------------------------------------------------------------------
# Reading a data set


class Windows:
    """Windows of T tokens from one split of data/<name>, as int64 arrays; the same for the same seed.

    kind  aligned   a window starts at a story's first word: a model of a story from its beginning
          random    windows follow one another from a random phase, drawn anew in each epoch: from anywhere in a story
          paper     as the paper cut its data (arXiv 2603.22075): end-of-text dropped, the training split cut into chunks
                    of T, shuffled, 5% of the *chunks* held out; a story can lie in both splits
    """

    def __init__(self, name: str, split: str, block_size: int, kind: str = "aligned", seed: int = 1337):
        folder = os.path.join(DATA_DIR, name)
        self.block_size, self.kind, self.seed = block_size, kind, seed
        self.meta = load_meta(name)
        self.tokens = np.memmap(os.path.join(folder, f"{'train' if kind == 'paper' else split}.bin"), dtype=np.uint16, mode="r")
        if kind == "paper":
            self.tokens = self.tokens[self.tokens != self.meta["eot"]]
            starts = np.arange(len(self.tokens) // block_size) * block_size
            starts, held_out = np.random.default_rng(42).permutation(starts), len(starts) // 20
            self.starts = starts[:held_out] if split == "val" else starts[held_out:]
        elif kind == "random":
            self.starts = np.arange(max(0, len(self.tokens) // block_size - 1)) * block_size
        else:
            starts = np.flatnonzero(self.tokens == self.meta["eot"]) + 1
            self.starts = starts[starts + block_size <= len(self.tokens)]
        if not len(self.starts):
            fail(f"block_size {block_size} is longer than any {kind} window of {folder} ({split}: {len(self.tokens):,} tokens); "
                 f"take a smaller --block_size or more text")
        counts = self.meta["splits"]["train" if kind == "paper" else split]
        self.tokens_per_byte = len(self.tokens) / counts["bytes"]
        self.log_p = None
        if split == "val" and kind == "aligned" and os.path.exists(os.path.join(folder, "val_logp.bin")):
            self.log_p = np.memmap(os.path.join(folder, "val_logp.bin"), dtype=np.float32, mode="r")

    def __len__(self):
        return len(self.starts)

    def _rows(self, starts):
        return self.tokens[starts[:, None] + np.arange(self.block_size)].astype(np.int64)

    @functools.lru_cache(maxsize=2)
    def _epoch(self, epoch: int):
        rng = np.random.default_rng((self.seed, epoch))
        phase = rng.integers(self.block_size) if self.kind == "random" else 0
        return rng.permutation(self.starts) + phase

    def batch(self, step: int, batch_size: int):
        """(batch_size, T): the rows that training step `step` reads. Every window is read once an epoch."""
        rows = np.arange(step * batch_size, (step + 1) * batch_size)
        return self._rows(np.array([self._epoch(int(r) // len(self))[r % len(self)] for r in rows]))

    def first(self, n: int):
        """(up to n, T): fixed windows for evaluation, spread evenly over the split."""
        return self._rows(self._spread(n))

    def floor(self, n: int):
        """For the toy: nats per token of first(n) under the true law; no model can do better on average. Else None."""
        if self.log_p is None:
            return None
        return -float(self.log_p[self._spread(n)[:, None] + np.arange(self.block_size)].mean(dtype=np.float64))

    def _spread(self, n: int):
        return self.starts[np.linspace(0, len(self) - 1, min(n, len(self))).astype(int)]


def load_meta(name: str) -> dict:
    """meta.json of data/<name>, its files checked against it."""
    path = os.path.join(DATA_DIR, name, "meta.json")
    if not os.path.exists(path):
        have = sorted(os.listdir(DATA_DIR)) if os.path.isdir(DATA_DIR) else []
        fail(f"no data set at {path}{nearest(name, have)}; make one with python prepare_data.py --help")
    with open(path) as f:
        meta = json.load(f)
    if meta.get("format") != FORMAT:
        fail(f"{path} has format {meta.get('format')}, this code reads {FORMAT}; prepare it again")
    for split, counts in meta["splits"].items():
        file = os.path.join(DATA_DIR, name, f"{split}.bin")
        if not os.path.exists(file) or os.path.getsize(file) != 2 * counts["tokens"]:
            fail(f"{file} does not hold the {counts['tokens']:,} tokens that meta.json promises; prepare it again")
    return meta


def load_tokenizer(name: str) -> Tokenizer:
    return Tokenizer(**load_meta(name)["tokenizer"])


def main():
    options = Options(**parse_flags(__doc__, Options))
    folder = prepare(options)
    meta = load_meta(options.name)
    for split, n in meta["splits"].items():
        print(f"{folder}/{split}.bin: {n['stories']:,} stories, {n['tokens']:,} tokens, {n['bytes']:,} bytes of text")
    print(f"vocabulary {meta['tokenizer']['vocab_size']:,}" + (f", entropy {meta['entropy']:.4f} nats per token" if "entropy" in meta else ""))
    first = np.fromfile(os.path.join(folder, "val.bin"), dtype=np.uint16, count=33)[1:]
    print(f"first story: {load_tokenizer(options.name).decode_story(first)} …")
    print(f"next: python train.py --mode=mdlm --data={options.name}")


if __name__ == "__main__":
    command(main, "nothing was kept of this run")
