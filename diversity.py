"""
How diverse a set of stories is, how good, and how close to real text.

    python diversity.py ar=A.jsonl mdlm=B.jsonl --data=toy --judge=out/toy-ar   files that sample.py wrote
    python diversity.py mine=stories.txt --data=tinystories                     stories split at <|endoftext|>

NAME=FILE,FILE,… are samples of several seeds; the table then shows mean ± standard deviation over them,
else the value and its 95% interval. The last column is real text of the same number, length and starting
rule: closer to it is better, not higher. Words are what white space separates, lower-cased. Quality against
diversity over temperatures: experiments/frontier.py.
"""
import collections
import itertools
import json
import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from model import losses_in_parts, order_batch
from prepare_data import DATA_DIR, EOT, Tokenizer, load_meta, read_stories
from runs import open_model
from show import draw_distances
from toy import TOY

GROUPS = 20     # intervals come from leaving out each of this many groups of samples

@dataclass
class DiversityOptions:
    """what to compare with, and what to write"""
    data: str = ""              # data set whose stories are the real text
    judge: str = ""             # folder of an ar model that scores the stories; several: A,B
    json: str = ""              # file for the results
    plot: str = ""              # file for a figure (.png, .svg or .pdf): distances to real text
    device: str = "auto"        # auto, cpu, cuda or mps

# ---- Counting. All samples' words in one row: ids (M,), and owner (M,), the sample each belongs to ---------

def as_ids(items) -> np.ndarray:
    """Each distinct item as a number, (len(items),)."""
    known = collections.defaultdict(lambda: len(known))
    return np.fromiter((known[item] for item in items), dtype=np.int64, count=len(items))

def ngrams(ids: np.ndarray, owner: np.ndarray, n: int):
    """The n-grams within samples, numbered by identity, and their owners."""
    gram = ids
    for shift in range(1, n):
        gram = np.unique(gram[:-1] * (ids.max(initial=0) + 1) + ids[shift:], return_inverse=True)[1]
    inside = owner[:len(gram)] == owner[n - 1:]
    return gram[inside], owner[:len(gram)][inside]

def self_bleu(ids: np.ndarray, owner: np.ndarray, samples: int) -> np.ndarray:
    """BLEU-4 (Papineni et al. 2002) of each sample against all others, (samples,): clipped counts, no
    smoothing, the closest reference length (the shorter of two equally close). 0 where some n has no match.

    A count is clipped by the largest of that n-gram in another sample: for who holds it, by the second."""
    length = np.bincount(owner, minlength=samples)
    log_precision = np.zeros(samples)
    for n in range(1, 5):
        gram, who = ngrams(ids, owner, n)
        pair, count = np.unique(gram * samples + who, return_counts=True)
        order = np.lexsort((-count, pair // samples))               # gram by gram, the largest count first
        gram, who, count = pair[order] // samples, pair[order] % samples, count[order]
        first = np.diff(gram, prepend=-1) > 0
        largest = count[first][np.cumsum(first) - 1]                # of the same gram
        second = np.where(np.diff(gram, append=-1) == 0, np.roll(count, -1), 0)     # the next row's, if any
        matched = np.bincount(who, np.minimum(count, np.where(first, second, largest)), samples)
        with np.errstate(divide="ignore"):
            log_precision += np.log(matched / np.maximum(1, length - n + 1)) / 4
    lengths, among, times = np.unique(length, return_inverse=True, return_counts=True)
    gap = abs(lengths[:, None] - lengths).astype(float)
    gap[np.diag(times == 1)] = np.inf                               # not with oneself
    closest = lengths[gap.argmin(axis=1)][among]                    # of two equally close the shorter
    brevity = np.minimum(0, 1 - closest / np.maximum(1, length))
    return np.where(length > 0, np.exp(brevity + log_precision), 0.0)

def longest_copies(samples: list, training: np.ndarray) -> np.ndarray:
    """Tokens of each sample's longest stretch that occurs in the training tokens, (len(samples),). Stretches
    of n = 1, 2, … tokens are numbered as in ngrams; a place stays while what begins there is in both."""
    tokens = np.concatenate([*samples, training], dtype=np.int64, casting="unsafe")     # of [] too
    vocabulary = tokens.max(initial=0) + 1
    # training is the last but one owner, an end mark the last
    owner = np.repeat(np.arange(len(samples) + 2), [*map(len, samples), len(training), 1])
    place, gram = np.arange(len(tokens)), np.zeros_like(tokens)
    longest = np.zeros(len(samples) + 1, dtype=int)
    for n in range(1, max(map(len, samples), default=0) + 1):
        inside = owner[place] == owner.take(place + n - 1, mode="clip")
        place, gram = place[inside], gram[inside]
        gram = np.unique(gram * vocabulary + tokens[place + n - 1], return_inverse=True)[1]
        theirs = owner[place] == len(samples)
        shared = np.isin(gram, gram[theirs]) & np.isin(gram, gram[~theirs])
        place, gram = place[shared], gram[shared]
        longest[owner[place]] = n
    return longest[:-1]

# ---- Metrics: {name: (value, half of the 95% interval)} ----------------------------------------------------

def interval(statistic, group) -> tuple:
    """statistic(keep), where keep is a mask of items, for all of them; and 1.96 standard errors from leaving
    out each group in turn (the jackknife; the bootstrap makes duplicates, and those are what we count)."""
    left_out = [statistic(group != g) for g in np.unique(group)]
    error = math.sqrt((len(left_out) - 1) * np.var(left_out)) if len(left_out) > 1 else math.nan
    return float(statistic(np.full(len(group), True))), 1.96 * error

def of_counts(statistic, items, group) -> tuple:
    """A statistic of how often each distinct item occurs."""
    return interval(lambda keep: statistic(np.bincount(items[keep], minlength=1)), group)

def of_sums(above, group, below=1) -> tuple:
    """Σ above / Σ below over samples, nan where there is nothing below; without below, the mean."""
    above, below = np.broadcast_arrays(np.asarray(above, dtype=float), below)
    return interval(lambda keep: above[keep].sum() / (below[keep].sum() or math.nan), group)

def distinct(counts):
    return np.count_nonzero(counts) / max(1, counts.sum())

def entropy(counts):
    p = counts[counts > 0] / max(1, counts.sum())
    return (p * np.log(1 / p)).sum()

def encode(tokenizer: Tokenizer, text: str) -> list:
    """Ids of a text with end-of-text marks in it, as --full_length leaves them. Raises InputError."""
    return [i for part in text.split(EOT) for i in (tokenizer.eot, *tokenizer.encode(part))][1:]

def score(model, encoded: list):
    """For each sample, cut at block_size: −log p in nats under an ar, and its number of tokens, (N,) each.
    The end of a story is not scored: it may have been cut off."""
    config = model.config
    ids = [row[:config.block_size] for row in encoded]
    x = torch.tensor([row + [config.bos_id] * (config.block_size - len(row)) for row in ids])       # (N, T)
    place, count = torch.arange(config.block_size), torch.tensor([len(row) for row in ids])     # (T,), (N,)
    batch = order_batch(config, x)._replace(weight=(place < count[:, None]).float())
    return losses_in_parts(model, batch).numpy(), count.numpy()

def measure(texts: list, judges: dict, corpus, bleu_of=self_bleu) -> dict:
    """{metric: (value, half of its 95% interval)}; judges: {name: (model, tokenizer)}."""
    words = [[*map(sys.intern, text.replace(EOT, " ").lower().split())] for text in texts]  # each kept once
    samples = len(words)
    group = np.arange(samples) % GROUPS
    owner = np.repeat(np.arange(samples), [len(w) for w in words])
    ids = as_ids(list(itertools.chain.from_iterable(words)))
    metrics = {}
    for n in range(1, 5):
        gram, who = ngrams(ids, owner, n)
        metrics[f"distinct-{n}"] = of_counts(distinct, gram, group[who])
    total = np.bincount(who, minlength=samples)         # the loop's last, 4-grams: how many, how many kinds
    different = np.bincount(np.unique(gram * samples + who) % samples, minlength=samples)
    bleu = bleu_of(ids, owner, samples)
    # its interval takes the references as given: groups are left out of the mean only; the paper scores 200
    metrics["self-BLEU"] = of_sums(bleu, np.arange(len(bleu)) % GROUPS)
    metrics["vocabulary used"] = of_counts(np.count_nonzero, ids, group[owner])
    first, opening = (as_ids([" ".join(w[:n]) for w in words]) for n in (1, 5))
    metrics["distinct first words"] = of_counts(distinct, first, group)
    metrics["distinct 5-word openings"] = of_counts(distinct, opening, group)
    metrics["most common first word"] = of_counts(lambda counts: counts.max() / counts.sum(), first, group)
    metrics["entropy of openings"] = of_counts(entropy, opening, group)
    metrics["entropy of words"] = of_counts(entropy, ids, group[owner])
    for name, (model, tokenizer) in judges.items():
        nats, count = score(model, [encode(tokenizer, text) for text in texts])
        metrics[f"nats/token, judge {name}"] = of_sums(nats, group, below=count)
    metrics["repeated 4-grams"] = of_sums(total - different, group, below=total)
    if corpus is None:
        return metrics
    encoded = [encode(corpus.tokenizer, text) for text in texts]
    whole = [np.array(row, dtype=np.uint16).tobytes() in corpus.stories for row in encoded]
    metrics["copied stories"] = of_sums(whole, group)
    metrics["longest copied n-gram"] = of_sums(longest_copies(encoded, corpus.tokens), group)
    if corpus.tokenizer.kind == "words":         # the toy
        log_p = [TOY.log_probs(text) for text in texts]
        metrics["grammatical"] = of_sums([p is not None for p in log_p], group)
        nats, count = zip(*((0, 0) if p is None else (-p.sum(), len(p)) for p in log_p))
        metrics["nats/token, true law, of those"] = of_sums(nats, group, below=count)
    return metrics

# ---- Samples and real text ---------------------------------------------------------------------------------

def read_samples(path: str):
    """Texts, and the settings they were made with, {} if the file doesn't say."""
    texts, settings = [], {}
    if path.endswith(".txt"):
        texts = list(read_stories(path))
    else:
        try:
            with open(path, "rb") as f:
                for line, text in enumerate(f, 1):
                    row = json.loads(text)
                    if "text" not in row:               # a line of their own
                        settings = dict(row["settings"])
                    else:
                        texts.append("" + row["text"])      # raises where it is no text
        except OSError as e:
            raise InputError(f"{path} cannot be read ({e.strerror}); give one of sample.py or a .txt") from e
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise InputError(f"{path}, line {line} is not an object with a text, as sample.py writes") from e
    if len(texts) < 2:
        raise InputError(f"{path} holds {len(texts)} samples; at least 2 are needed to compare them")
    return texts, settings

class Corpus(NamedTuple):
    tokens: np.ndarray              # of training
    tokenizer: Tokenizer
    stories: set                    # of training, their tokens' bytes

def load_corpus(name: str) -> Corpus:
    meta = load_meta(name)
    tokens = np.fromfile(f"{DATA_DIR}/{name}/train.bin", dtype=np.uint16)
    _, *stories = np.split(tokens, np.flatnonzero(tokens == meta["eot"]))       # each begins with end-of-text
    return Corpus(tokens, Tokenizer(**meta["tokenizer"]), {story[1:].tobytes() for story in stories})

def real_text(name: str, samples: int, length, start: str, full_length: bool, tokenizer: Tokenizer):
    """(texts, how many of them are from the validation split): pieces of `length` tokens from story starts,
    or one after the other from anywhere. None overlap. What validation text lacks, training text has."""
    texts, held_out = [], 0
    for split in ("val", "train"):
        tokens, free = np.fromfile(f"{DATA_DIR}/{name}/{split}.bin", dtype=np.uint16), 0
        ends = np.append(np.flatnonzero(tokens == tokenizer.eot), len(tokens))
        starts = ends[:-1] + 1 if start == "story" else np.arange(0, len(tokens) - length + 1, length)
        if full_length:     # past a story's end, into the next
            starts = np.array([a for a in starts if a >= free and (free := a + length)])
        for a in starts[np.linspace(0, len(starts) - 1, min(samples - len(texts), len(starts))).astype(int)]:
            b = len(tokens) if full_length else ends[np.searchsorted(ends, a)]
            texts.append(tokenizer.decode(tokens[a:min(b, a + length) if length else b]))
        held_out = len(texts) if split == "val" else held_out
    return texts, held_out

def sampled_from(settings: dict) -> tuple:
    """What of a sample's settings the real text must match, and its prompt, which it can't."""
    defaults = {"length": None, "start": "story", "full_length": False, "prompt": ""}
    return tuple(settings.get(name, default) for name, default in defaults.items())

def incomparable(sets: dict) -> list:
    """What makes a column incomparable, for the table itself."""
    ways = dict.fromkeys((name, sampled_from(s)) for name, seeds in sets.items() for _, s in seeds)
    lines = [f"{name} was written after the prompt {prompt!r}; real text begins freely"
             for name, (_, _, _, prompt) in ways if prompt]
    if len({way for _, way in ways}) > 1:
        made = (f"{name}: length {length}, start {start}, {'not cut' if full else 'cut'} at the end, "
                f"prompt {prompt!r}" for name, (length, start, full, prompt) in ways)
        lines.append(f"the samples were made with different settings: {'; '.join(made)}")
    if len({len(texts) for seeds in sets.values() for texts, _ in seeds}) > 1:
        lines.append("the sets differ in size, on which most of these metrics depend")
    return lines

def show_table(columns: dict, notes: list):
    def cell(value, error):
        digits = 0 if abs(value) >= 1000 else 4
        return f"{value:,.{digits}f}" + (f" ± {error:<6.{digits}f}" if math.isfinite(error) else " " * 9)

    print_table([["", *columns], *([metric, *(cell(*column[metric]) for column in columns.values())]
                                   for metric in next(iter(columns.values())))])
    print(*(f"  ! {note}" for note in notes), sep="\n")

def open_judges(o: DiversityOptions, corpus) -> dict:
    """{folder: (model, tokenizer)}. Raises InputError where likelihoods would not be exact or comparable."""
    judges = {}
    for folder in filter(None, o.judge.split(",")):
        model, tokenizer, windows = open_model(folder, o.device)
        if (model.config.mode, windows) != ("ar", "aligned"):
            how = f"{model.config.mode} on {windows} windows"
            raise InputError(f"--judge={folder} is {how}; only an ar on aligned ones has an exact likelihood")
        if corpus and tokenizer.to_dict() != corpus.tokenizer.to_dict():
            raise InputError(f"--judge={folder} has another tokenizer than data/{o.data}")
        judges[folder] = model, tokenizer
    return judges

def columns_of(sets: dict, o: DiversityOptions, corpus, judges: dict, bleu_of=self_bleu) -> tuple:
    """({name: metrics}, notes) of the sets {name: [(texts, settings) of each seed]}, and of "real text"
    where o.data names some. Over several seeds a metric is (mean, standard deviation)."""
    notes, columns = incomparable(sets), {}
    if corpus:
        texts, settings = next(iter(sets.values()))[0]
        reference, held_out = real_text(o.data, len(texts), *sampled_from(settings)[:3], corpus.tokenizer)
        if more := len(reference) - held_out:
            notes.append(f"real text: {held_out} pieces were held out; {more} more are training text")
        if len(reference) < 2:
            raise InputError(f"data/{o.data} holds {len(reference)} pieces of that length; choose another")
        if settings.get("vocab_size", corpus.tokenizer.vocab_size) != corpus.tokenizer.vocab_size:
            notes.append(f"real text: data/{o.data} has another vocabulary, so its lengths in tokens differ")
        if len(reference) < len(texts):
            notes.append(f"real text: data/{o.data} holds {len(reference)} pieces only")
    for name, seeds in sets.items():
        runs = [measure(texts, judges, corpus, bleu_of) for texts, _ in seeds]
        columns[name] = runs[0]
        if len(runs) > 1:
            values = {metric: [run[metric][0] for run in runs] for metric in runs[0]}
            columns[name] = {k: (np.mean(v).item(), np.std(v, ddof=1).item()) for k, v in values.items()}
    if corpus:
        columns["real text"] = measure(reference, judges, corpus, bleu_of)
    return columns, notes

def main(doc=__doc__, bleu_of=self_bleu):
    flags = parse_flags(doc, DiversityOptions, named="NAME=FILE")
    o = build(DiversityOptions, flags)
    if o.plot and not o.data:
        raise InputError(f"--plot={o.plot} draws distances to real text; give --data=NAME")
    if "real text" in flags["named"]:
        raise InputError("NAME=real text is the last column's; choose another NAME")
    corpus = load_corpus(o.data) if o.data else None
    judges = open_judges(o, corpus)
    sets = {name: [read_samples(path) for path in files.split(",")] for name, files in flags["named"].items()}
    columns, notes = columns_of(sets, o, corpus, judges, bleu_of)
    show_table(columns, notes)
    if o.json:
        write_json(o.json, {**provenance(None), "columns": columns, "notes": notes})
    if o.plot:
        draw_distances(columns, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
