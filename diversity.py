"""
How diverse a set of stories is, how good it is, and how close it comes to real text.

    python diversity.py ar=A.jsonl mdlm=B.jsonl --data=toy --judge=out/toy-ar
    python diversity.py mine=stories.txt --data=tinystories

A .jsonl file is one that sample.py wrote; in a .txt file <|endoftext|> separates the stories.
NAME=FILE,FILE gives the samples of several seeds, and the table shows their mean ± their standard
deviation. For one file it shows the value ± half of its 95% interval.

The last column is real text: as many stories as there are samples, of the same length and with the
same start. A set of samples is good where it comes close to that column, not where its numbers
are high. Words are what white space separates, in lower case.

"new words" is the share of words that the training text does not have, or its first ten million
tokens. Real text has some too, such as names; what a set of samples has beyond that are words that
do not exist. The last word of a text does not count, because it may have been cut.
"""
import itertools
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from prepare_data import read_stories
from sample import open_model
from support.flags import (
    InputError, build, command, flag, parse_flags, print_table, provenance, write_json)
from support.rows import files_of, has_shape, read_rows
from support.runs import origin_of
from tokenizer import EOT


@dataclass
class DiversityOptions:
    """what to compare with, and what to write"""
    data: str = flag("", "data set whose stories are the real text")
    judge: str = flag("", "folder of an ar model that scores the stories, or several: A,B")
    json: str = flag("", "file for the table", file=(".json",))
    device: str = flag("auto", "of the judge: auto, cpu, cuda or mps")


# ---- Self-BLEU -----------------------------------------------------------------------------------
# A sample is a list of words. Samples that resemble each other have a high BLEU against each other.

def ngrams(words, n: int) -> list:
    """All runs of n words, as tuples."""
    return list(zip(*(words[i:] for i in range(n))))


def bleu(words, elsewhere, lengths) -> float:
    """BLEU-4 of a text, 0 to 1, without smoothing (Papineni et al. 2002).

    elsewhere   how often each n-gram of one to four words occurs in another text; in the one that
                has it most often
    lengths     of the other texts

    It is the geometric mean of four precisions, for n = 1, 2, 3 and 4: the share of the text's
    n-grams that are elsewhere too. An n-gram that the text repeats is matched as often as it is
    elsewhere, not more often. A text that matches nothing for some n has a BLEU of 0, and one that
    is shorter than the text of the closest length loses some of its BLEU."""
    score = 1.0
    for n in range(1, 5):
        mine = Counter(ngrams(words, n))
        matched = mine & elsewhere          # of two counts & takes the smaller
        precision = matched.total() / max(1, mine.total())
        score *= precision ** (1 / 4)
    closest = min(lengths, key=lambda length: (abs(length - len(words)), length))
    return score * math.exp(min(0, 1 - closest / max(1, len(words))))


def self_bleu(samples) -> np.ndarray:
    """BLEU-4 of each sample against all others, (samples,).

    The plain way looks anew for each sample how often another one has each n-gram. It is enough to
    know of each n-gram the second largest count over all samples. Three sentences show it:

        a a a b     a occurs 3, 1 and 2 times in them: the second largest count is 2
        a b         b occurs 1, 1 and 0 times: the second largest count is 1
        a a c       c occurs 0, 0 and 1 times: the second largest count is 0

    Where a sample alone has the largest count, the second largest is what another one has. Else
    another one has at least as many as the sample itself; then all of its own are matched, and the
    second largest is no smaller than these. So the first sentence matches 2 of its 3 a's and its b,
    3 words of 4. The second matches its a and its b. The third matches its 2 a's but not its c."""
    largest, second = Counter(), Counter()
    for words in samples:
        counts = Counter(gram for n in range(1, 5) for gram in ngrams(words, n))
        for gram, count in counts.items():
            second[gram] = max(second[gram], min(count, largest[gram]))
            largest[gram] = max(largest[gram], count)
    lengths = Counter(map(len, samples))
    return np.array([
        bleu(words, second, lengths - Counter([len(words)])) for words in samples])


# ---- A value and its interval --------------------------------------------------------------------

GROUPS = 20     # an interval comes from leaving out each of this many groups of samples


def interval(statistic, group) -> tuple:
    """A statistic of all items, and half of its 95% interval, which is 1.96 standard errors.

    statistic   a function of a mask (items,) that says which items to take
    group       (items,) the group of each item

    The standard error comes from leaving out each group in turn (the jackknife). The bootstrap
    would not do: it draws some items twice, and duplicates are what we count."""
    value = float(statistic(np.full(len(group), True)))
    left_out = [statistic(group != g) for g in np.unique(group)]
    if len(left_out) < 2:
        return value, math.nan
    variance = (len(left_out) - 1) * np.var(left_out)
    return value, 1.96 * math.sqrt(variance)


def of_counts(statistic, samples) -> tuple:
    """The interval of a statistic of how often each item occurs; a sample is a list of items.

    statistic   a function of counts (items,), some of which may be 0"""
    number = {}         # one for each distinct item
    items = itertools.chain(*samples)
    ids = np.array([number.setdefault(item, len(number)) for item in items], dtype=int)
    group = np.repeat(np.arange(len(samples)) % GROUPS, list(map(len, samples)))
    return interval(lambda keep: statistic(np.bincount(ids[keep], minlength=1)), group)


def of_sums(above, below=1) -> tuple:
    """The interval of Σ above / Σ below over samples; without `below` it is the mean of `above`.

    The value is NaN where Σ below is 0."""
    above, below = np.broadcast_arrays(np.array(above, float), below)
    group = np.arange(len(above)) % GROUPS
    return interval(lambda keep: above[keep].sum() / (below[keep].sum() or math.nan), group)


def distinct(counts) -> float:
    """Distinct items as a share of all items. Of n-grams it is distinct-n (arXiv 1510.03055)."""
    return np.count_nonzero(counts) / max(1, counts.sum())


def entropy(counts) -> float:
    """The entropy, in nats, of items that occur this often."""
    p = counts[counts > 0] / max(1, counts.sum())
    return (p * np.log(1 / p)).sum()


def largest_share(counts) -> float:
    """The share of the most common item."""
    return counts.max() / counts.sum()


# ---- All metrics: {name: (value, half of its 95% interval)} --------------------------------------

def measure(texts, judges, corpus) -> dict:
    """All metrics of a set of texts.

    judges      {name: (model, tokenizer)}
    corpus      a Corpus of extras/real_text.py, or None"""
    samples = [text.replace(EOT, " ").lower().split() for text in texts]
    first = [[tuple(words[:1])] for words in samples]
    opening = [[tuple(words[:5])] for words in samples]
    metrics = {}
    for n in range(1, 5):
        metrics[f"distinct-{n}"] = of_counts(distinct, [ngrams(words, n) for words in samples])
    metrics |= {
        # the interval of this mean takes the others, with which a sample is compared, as given
        "self-BLEU": of_sums(self_bleu(samples)),
        "vocabulary used": of_counts(np.count_nonzero, samples),
        "distinct first words": of_counts(distinct, first),
        "distinct 5-word openings": of_counts(distinct, opening),
        "most common first word": of_counts(largest_share, first),
        "entropy of openings": of_counts(entropy, opening),
        "entropy of words": of_counts(entropy, samples),
    }
    for name, judge in judges.items():
        metrics[f"nats/token, judge {name}"] = of_sums(*nats_under(judge, texts))
    if corpus:
        metrics |= {name: of_sums(*sums) for name, sums in corpus.quality(texts).items()}
    return metrics


def open_judges(o: DiversityOptions) -> dict:
    """{folder: (model, tokenizer)}. Raises InputError where one gives mere bounds."""
    judges = {}
    for folder in filter(None, o.judge.split(",")):
        *judge, windows = open_model(folder, o.device)
        config = judge[0].config
        if config.row.drawn or not config.row.whole or windows != "aligned":
            raise InputError(f"--judge={folder} is {config.mode} on {windows} windows; only an ar "
                             "on aligned ones has an exact likelihood")
        judges[folder] = judge
    return judges


def nats_under(judge, texts) -> tuple:
    """−log p of each text under a judge, in nats, and its number of tokens.

    A text is cut at the window. The end of a story is not scored: it may have been cut off."""
    from extras.score import score_texts
    model, tokenizer = judge
    encoded = [tokenizer.encode_marked(text)[:model.config.block_size] for text in texts]
    nats, _, tokens, _ = zip(*score_texts(model, encoded))
    return nats, tokens


# ---- The table: a column for each set of samples -------------------------------------------------

# Samples can be compared where these settings agree.
COMPARED = "num_samples", "length", "start", "full_length", "prompt", "prompts", "vocab_size"


# What a file is taken for that says nothing of its samples: stories of any length.
UNSAID = {"length": 10 ** 9, "start": "story", "full_length": False, "prompt": "", "prompts": "",
          "out_dir": ""}


def read_samples(path: str) -> tuple:
    """The texts of a file, and the settings they were made with. Raises InputError."""
    settings = UNSAID
    if path.endswith(".txt"):
        texts = read_stories(path)
    else:
        rows = list(read_rows(path))
        texts = [row["text"] for row in rows if "text" in row]
        settings = UNSAID | (rows[0].get("settings", {}) if rows else {})
    if not has_shape(settings, UNSAID) or settings["length"] < 1:
        raise InputError(f"{path} has settings in its first line that sample.py does not write")
    if len(texts) < 2:
        raise InputError(f"{path} holds {len(texts)} samples; at least 2 are needed")
    return texts, settings | {"num_samples": len(texts)}


def over_seeds(runs: list) -> dict:
    """The mean and the standard deviation of each metric; a single run keeps its intervals."""
    if len(runs) == 1:
        return runs[0]
    column = {}
    for metric in runs[0]:
        values = [run[metric][0] for run in runs]
        column[metric] = float(np.mean(values)), float(np.std(values, ddof=1))
    return column


def columns_of(sets, corpus, judges) -> tuple:
    """({name: metrics}, notes) of the sets {name: [(texts, settings) of each seed]}.

    With a corpus the last column is "real text", cut like the samples of the first set. The notes
    say what makes a column incomparable with it, or with the first set where there is no corpus."""
    columns, notes = {}, []
    _, first = next(iter(sets.values()))[0]
    expected = first
    if corpus:
        real, held_out = corpus.texts_like(first)
        if held_out < len(real):
            notes.append(f"only {held_out} of the {len(real)} real texts are not from training")
        expected = first | {"num_samples": len(real), "prompt": "", "prompts": "",
                            "vocab_size": corpus.tokenizer.vocab_size}
    for name, seeds in sets.items():
        columns[name] = over_seeds([measure(texts, judges, corpus) for texts, _ in seeds])
        for _, settings in seeds:
            for key in COMPARED:
                if key in settings and settings[key] != expected.get(key):
                    notes.append(f"{name}'s {key} is {settings[key]!r}, not {expected.get(key)!r}")
    if corpus:
        columns["real text"] = measure(real, judges, corpus)
    return columns, notes


def cell(value: float, error: float) -> str:
    digits = 0 if abs(value) >= 1000 else 4
    plus_minus = f" ± {error:<6.{digits}f}" if math.isfinite(error) else " " * 9
    return f"{value:,.{digits}f}{plus_minus}"


def main():
    flags = parse_flags(__doc__, DiversityOptions, named="NAME=FILE")
    o = build(DiversityOptions, flags)
    corpus = None
    if o.data:
        from extras.real_text import Corpus
        corpus = Corpus(o.data)
    judges = open_judges(o)
    sets = {}
    for name, files in flags["named"].items():
        sets[name] = [read_samples(path) for path in files_of(files)]
    columns, notes = columns_of(sets, corpus, judges)
    metrics = next(iter(columns.values()))
    rows = [["", *columns]]
    for metric in metrics:
        rows.append([metric, *[cell(*column[metric]) for column in columns.values()]])
    print_table(rows)
    for note in notes:
        print(f"  ! {note}")
    if o.json:
        writers = [settings["out_dir"] for seeds in sets.values() for _, settings in seeds]
        runs = {folder: origin_of(folder) for folder in filter(None, [*judges, *writers])}
        write_json(o.json, provenance(None) | {"runs": runs, "columns": columns, "notes": notes})


if __name__ == "__main__":
    command(main, "nothing was written")
