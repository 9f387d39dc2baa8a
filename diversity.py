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
import math
import string
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from support.flags import InputError, build, command, flag, parse_flags, print_table, provenance, write_json
from objectives import evaluation_batch, losses_in_parts
from prepare_data import DATA_DIR, EOT, Tokenizer, load_meta, read_rows, read_stories
from runs import open_model
from toy import TOY

GROUPS = 20     # an interval comes from leaving out each of this many groups of samples


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
    return [tuple(words[i:i + n]) for i in range(len(words) - n + 1)]


def count_ngrams(words) -> Counter:
    """How often each n-gram of one to four words occurs."""
    counts = Counter()
    for n in range(1, 5):
        counts.update(ngrams(words, n))
    return counts


def largest_counts(texts) -> Counter:
    """The count of each n-gram in the text that has it most often."""
    largest = Counter()
    for words in texts:
        largest |= count_ngrams(words)      # of two counts | takes the larger, and & the smaller
    return largest


def bleu(words, elsewhere, reference_length) -> float:
    """BLEU-4 of a text, 0 to 1, without smoothing (Papineni et al. 2002).

    elsewhere           the largest count of each n-gram in another text
    reference_length    a text shorter than this loses some of its BLEU

    It is the geometric mean of four precisions, for n = 1, 2, 3 and 4: the share of the text's
    n-grams that are elsewhere too. An n-gram that the text repeats is matched as often as it is
    elsewhere, not more often. A text that matches nothing for some n has a BLEU of 0."""
    score = 1.0
    for n in range(1, 5):
        mine = Counter(ngrams(words, n))
        matched = mine & elsewhere
        precision = matched.total() / max(1, mine.total())
        score *= precision ** (1 / 4)
    longer = reference_length / max(1, len(words))
    return score * math.exp(min(0, 1 - longer))


def closest_length(length: int, others) -> int:
    """The one of the other lengths that is closest; of two equally close the shorter."""
    return min(others, key=lambda other: (abs(other - length), other))


def self_bleu(samples) -> np.ndarray:
    """BLEU-4 of each sample against all others, with the closest of their lengths, (samples,).

    The plain way takes largest_counts(all others) anew for each sample. But it is enough to know
    how often each n-gram occurs in the sample that has it most often, and in the one that has it
    second most often. Three sentences show it, with single words:

        a a a b     a occurs 3, 1 and 2 times in them: the largest count is 3, the second largest 2
        a b         b occurs 1, 1 and 0 times: the largest count is 1, the second largest 1 too
        a a c       c occurs 0, 0 and 1 times: the largest count is 1, the second largest 0

    For the sample that has the largest count, the second largest is the most that another one has.
    For any other sample it is the largest. So the first sentence matches 2 of its 3 a's and its b,
    3 words of 4. The second matches its a and its b, 2 of 2. The third matches its 2 a's but not
    its c, 2 of 3."""
    counts = [count_ngrams(words) for words in samples]
    largest, second = Counter(), Counter()
    for mine in counts:
        for gram, count in mine.items():
            second[gram] = max(second[gram], min(count, largest[gram]))
            largest[gram] = max(largest[gram], count)
    lengths = Counter(len(words) for words in samples)
    scores = []
    for words, mine in zip(samples, counts):
        elsewhere = Counter()
        for gram, count in mine.items():
            has_most = count == largest[gram]
            elsewhere[gram] = second[gram] if has_most else largest[gram]
        others = lengths - Counter([len(words)])
        reference_length = closest_length(len(words), others)
        scores.append(bleu(words, elsewhere, reference_length))
    return np.array(scores)


# ---- A value and its interval --------------------------------------------------------------------

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
    known = {}          # a number for each distinct item
    ids, group = [], []
    for i, sample in enumerate(samples):
        for item in sample:
            ids.append(known.setdefault(item, len(known)))
            group.append(i % GROUPS)
    ids = np.array(ids, dtype=int)

    def of_kept(keep):
        return statistic(np.bincount(ids[keep], minlength=1))

    return interval(of_kept, np.array(group))


def of_sums(above, below=1) -> tuple:
    """The interval of Σ above / Σ below over samples; without `below` it is the mean of `above`.

    The value is NaN where Σ below is 0."""
    above, below = np.broadcast_arrays(np.array(above, float), below)

    def ratio(keep):
        total = below[keep].sum()
        return above[keep].sum() / total if total else math.nan

    return interval(ratio, np.arange(len(above)) % GROUPS)


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


# ---- The likelihood under a judge ----------------------------------------------------------------

def score(model, encoded) -> tuple:
    """-log p of each sample in nats under an ar model, and its number of tokens, (N,) each.

    A sample is cut at block_size. The end of a story is not scored: it may have been cut off."""
    config = model.config
    T = config.block_size
    rows, count = [], []
    for ids in encoded:
        ids = ids[:T]
        count.append(len(ids))
        rows.append(ids + [config.bos_id] * (T - len(ids)))     # of no weight below
    batch = evaluation_batch(config, torch.tensor(rows), None)
    count = torch.tensor(count)
    is_token = torch.arange(T) < count[:, None]                 # (N, T)
    batch = batch._replace(weight=is_token.float())
    return losses_in_parts(model, batch).numpy(), count.numpy()


def open_judges(o: DiversityOptions, corpus) -> dict:
    """{folder: (model, tokenizer)}. Raises InputError where a likelihood would not be exact."""
    judges = {}
    for folder in filter(None, o.judge.split(",")):
        model, tokenizer, windows = open_model(folder, o.device)
        mode = model.config.mode
        if mode != "ar" or windows != "aligned":
            raise InputError(f"--judge={folder} is {mode} on {windows} windows; only an ar on "
                             f"aligned ones has an exact likelihood")
        if corpus and tokenizer.to_dict() != corpus.tokenizer.to_dict():
            raise InputError(f"--judge={folder} has another tokenizer than data/{o.data}")
        judges[folder] = model, tokenizer
    return judges


# ---- Real text -----------------------------------------------------------------------------------

class Corpus(NamedTuple):
    """The training split of a data set."""
    tokenizer: Tokenizer
    stories: set        # each story as the bytes of its tokens
    words: set          # of the first ten million tokens


def load_corpus(name: str) -> Corpus:
    """The training split of data/<name>. Raises InputError."""
    meta = load_meta(name)
    tokens = np.fromfile(f"{DATA_DIR}/{name}/train.bin", dtype=np.uint16)
    marks = np.flatnonzero(tokens == meta["eot"])       # one before every story
    stories = {story[1:].tobytes() for story in np.split(tokens, marks)[1:]}
    tokenizer = Tokenizer(**meta["tokenizer"])
    text = tokenizer.decode(tokens[:10_000_000])
    return Corpus(tokenizer, stories, set(bare_words(text.replace(EOT, " "))))


def bare_words(text: str) -> list:
    """The words of a text in lower case, without the punctuation around them."""
    words = [word.strip(string.punctuation + "“”‘’—…") for word in text.lower().split()]
    return [word for word in words if word]


def real_text(name: str, settings: dict, tokenizer) -> tuple:
    """Real texts cut like the samples, as many as there are samples; and how many are held out.

    settings    the samples' num_samples, length, start and full_length, as read_samples has them

    The first come from the validation split of data/<name>. Where it has too few, others come from
    the training split."""
    count = settings["num_samples"]
    held_out = pieces(name, "val", count, settings, tokenizer)
    more = pieces(name, "train", count - len(held_out), settings, tokenizer)
    return held_out + more, len(held_out)


def pieces(name, split, at_most, settings, tokenizer) -> list:
    """Texts that are spread evenly over a split; no two overlap.

    They begin where stories begin or, with start "anywhere", one after the other. A text ends after
    `length` tokens, or with its story, unless full_length lets it go on."""
    tokens = np.fromfile(f"{DATA_DIR}/{name}/{split}.bin", dtype=np.uint16)
    length = settings["length"]
    if settings["start"] == "story":
        starts = np.flatnonzero(tokens == tokenizer.eot) + 1
    else:
        starts = np.arange(0, len(tokens) - length + 1, length)
    decode = tokenizer.decode_story
    if settings["full_length"]:
        starts = without_overlap(starts, length)
        decode = tokenizer.decode
    count = min(at_most, len(starts))
    texts = []
    for i in np.linspace(0, len(starts) - 1, count).astype(int):
        piece = tokens[starts[i]:][:length]
        texts.append(decode(piece))
    return texts


def without_overlap(starts, length: int) -> list:
    """Those of the starts that lie behind the piece of the one before."""
    kept = []
    for start in starts:
        if not kept or start >= kept[-1] + length:
            kept.append(start)
    return kept


# ---- All metrics: {name: (value, half of its 95% interval)} --------------------------------------

def measure(texts, judges, corpus) -> dict:
    """All metrics of a set of texts.

    judges      {name: (model, tokenizer)}
    corpus      a Corpus, or None"""
    samples = [text.replace(EOT, " ").lower().split() for text in texts]
    metrics = {}
    for n in range(1, 5):
        grams = [ngrams(words, n) for words in samples]
        metrics[f"distinct-{n}"] = of_counts(distinct, grams)
    # the interval of this mean takes the others, with which a sample is compared, as given
    metrics["self-BLEU"] = of_sums(self_bleu(samples))
    metrics["vocabulary used"] = of_counts(np.count_nonzero, samples)
    first = [[tuple(words[:1])] for words in samples]
    opening = [[tuple(words[:5])] for words in samples]
    metrics["distinct first words"] = of_counts(distinct, first)
    metrics["distinct 5-word openings"] = of_counts(distinct, opening)
    metrics["most common first word"] = of_counts(largest_share, first)
    metrics["entropy of openings"] = of_counts(entropy, opening)
    metrics["entropy of words"] = of_counts(entropy, samples)
    for name, (model, tokenizer) in judges.items():
        encoded = [tokenizer.encode_marked(text) for text in texts]
        metrics[f"nats/token, judge {name}"] = of_sums(*score(model, encoded))
    if corpus:
        metrics |= measure_quality(corpus, texts)
    return metrics


def measure_quality(corpus, texts) -> dict:
    """What is copied from the training text, what it has not and, on the toy, what is right."""
    encoded = [corpus.tokenizer.encode_marked(text) for text in texts]
    metrics = {}
    if corpus.stories:          # a continuous text has none
        copied = []
        for ids in encoded:
            story = np.array(ids, dtype=np.uint16).tobytes()
            copied.append(story in corpus.stories)
        metrics["copied stories"] = of_sums(copied)
    new, words = [], []
    for text in texts:
        of_text = bare_words(text.replace(EOT, " "))[:-1]
        new.append(len([word for word in of_text if word not in corpus.words]))
        words.append(len(of_text))
    metrics["new words"] = of_sums(new, words)
    if corpus.tokenizer.kind == "words":
        grammatical, nats, count = [], [], []
        for text in texts:
            log_p = TOY.log_probs(text)         # None where the grammar cannot make the text
            grammatical.append(log_p is not None)
            if log_p is None:
                log_p = np.zeros(0)
            nats.append(-log_p.sum())
            count.append(len(log_p))
        metrics["grammatical"] = of_sums(grammatical)
        metrics["nats/token, true law, of those"] = of_sums(nats, count)
    return metrics


# ---- The table: a column for each set of samples -------------------------------------------------

# Samples can be compared where these settings agree.
COMPARED = "num_samples", "length", "start", "full_length", "prompt", "vocab_size"


def read_samples(path: str) -> tuple:
    """The texts of a file, and the settings they were made with. Raises InputError."""
    texts = []
    # what a file that says nothing is taken for
    settings = {"length": None, "start": "story", "full_length": False, "prompt": ""}
    if path.endswith(".txt"):
        texts = list(read_stories(path))
    else:
        for row in read_rows(path):
            if "text" in row:
                texts.append(row["text"])
            else:
                settings |= row["settings"]
    if len(texts) < 2:
        raise InputError(f"{path} holds {len(texts)} samples; at least 2 are needed")
    settings["num_samples"] = len(texts)
    return texts, settings


def over_seeds(runs: list) -> dict:
    """The mean and the standard deviation of each metric; a single run keeps its intervals."""
    if len(runs) == 1:
        return runs[0]
    column = {}
    for metric in runs[0]:
        values = [run[metric][0] for run in runs]
        deviation = np.std(values, ddof=1)
        column[metric] = float(np.mean(values)), float(deviation)
    return column


def columns_of(sets, o, corpus, judges) -> tuple:
    """({name: metrics}, notes) of the sets {name: [(texts, settings) of each seed]}.

    With a corpus the last column is "real text", cut like the samples of the first set. The notes
    say what makes a column incomparable with it, or with the first set where there is no corpus."""
    columns, notes = {}, []
    _, first = next(iter(sets.values()))[0]
    expected = dict(first)
    if corpus:
        real, held_out = real_text(o.data, first, corpus.tokenizer)
        if len(real) < 2:
            whole = first["start"] == "story"
            texts = "marked stories" if whole else f"texts of {first['length']} tokens"
            raise InputError(f"{DATA_DIR}/{o.data} holds fewer than 2 {texts} to compare with; "
                             "leave --data out")
        if held_out < len(real):
            notes.append(f"only {held_out} of the {len(real)} real texts are not from training")
        expected["num_samples"] = len(real)
        expected["prompt"] = ""
        expected["vocab_size"] = corpus.tokenizer.vocab_size
    for name, seeds in sets.items():
        runs = []
        for texts, settings in seeds:
            runs.append(measure(texts, judges, corpus))
            for key in COMPARED:
                if key in settings and settings[key] != expected.get(key):
                    notes.append(f"{name}'s {key} is {settings[key]!r}, not {expected.get(key)!r}")
        columns[name] = over_seeds(runs)
    if corpus:
        columns["real text"] = measure(real, judges, corpus)
    return columns, notes


def show_table(columns: dict, notes: list):
    """Prints a row for each metric, and the notes below."""
    rows = [["", *columns]]
    for metric in next(iter(columns.values())):
        row = [metric]
        for column in columns.values():
            value, error = column[metric]
            digits = 0 if abs(value) >= 1000 else 4
            plus_minus = f" ± {error:<6.{digits}f}" if math.isfinite(error) else " " * 9
            row.append(f"{value:,.{digits}f}{plus_minus}")
        rows.append(row)
    print_table(rows)
    for note in notes:
        print(f"  ! {note}")


def main():
    flags = parse_flags(__doc__, DiversityOptions, named="NAME=FILE")
    o = build(DiversityOptions, flags)
    corpus = load_corpus(o.data) if o.data else None
    judges = open_judges(o, corpus)
    sets = {}
    for name, files in flags["named"].items():
        sets[name] = [read_samples(path) for path in files.split(",")]
    columns, notes = columns_of(sets, o, corpus, judges)
    show_table(columns, notes)
    if o.json:
        write_json(o.json, {**provenance(None), "columns": columns, "notes": notes})


if __name__ == "__main__":
    command(main, "nothing was written")
