"""
A perfect denoiser: an exact law in the place of a Transformer.

    python -m experiments.oracle mdlm=out/toy-mdlm/samples.jsonl    how near samples come to the law

Exercises and the course print this table, and cost.py and blanks.py have this law in the network's
place. A sampler can be wrong in two ways, by its own rule and by the network that it asks. With the
law there only the first is left. The law is that of the toy, whose every word has a known
probability given any other words of its story. A pass over a story takes about a millisecond.
"""
import collections
import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

import model as plain
from support.flags import (
    build, command, flag, parse_flags, print_table, provenance, write_json)
from support.runs import origin_of
from tokenizer import split_words
from worlds.toy import TOY, Grammar


# ---- What the law says of a word, given any others -----------------------------------------------

def ways(grammar: Grammar, group: set) -> tuple:
    """Every way to choose in a group of choices, while the others take their first text.

    Returns the K stories (K, W) as numbers of grammar.words(), and the probability of each way
    (K,). Raises ValueError where their lengths differ."""
    vocabulary = grammar.words()
    number = {word: i for i, word in enumerate(vocabulary)}
    stories = []
    p = []
    scripts = [{}]                  # each is {choice: number of the text it takes}
    while scripts:
        script = scripts.pop(0)
        undecided = []              # choices of the group that the story asks for

        def choose(name, before):
            if name in group and name not in script:
                undecided.append(name)
            return script.get(name, 0)

        story = grammar.tell(choose)
        if undecided:
            name = undecided[0]
            for i in range(len(grammar.texts[name])):
                scripts.append(script | {name: i})
        else:
            words = split_words(story)
            stories.append([number[word] for word in words])
            taken = [grammar.weights[name][i] for name, i in script.items()]
            p.append(math.prod(taken))
    if len(set(map(len, stories))) > 1:
        names = ", ".join(sorted(group))
        raise ValueError(f"stories differ in length by the choice of {names}")
    return np.array(stories), np.array(p)


def groups_of_choices(grammar: Grammar) -> list:
    """Sets of choices, such that every word depends on one set only, and the sets are independent.

    The words of a rule depend on its own choice, and on the choices of all rules that it names."""
    groups = []
    for name, texts in grammar.texts.items():
        if len(texts) > 1:
            names = [name]
            for known in names:         # which grows
                text = "".join(grammar.texts[known])
                found = {other for _, other in grammar.REFERENCE.findall(text)}
                names += found.difference(names)
            owners = {grammar.owner[name] for name in names}
            joined = [group for group in groups if group & owners]
            groups = [group for group in groups if not group & owners]
            groups.append(owners.union(*joined))
    return groups


@functools.cache
def independent_groups(grammar: Grammar) -> list:
    """(place, word, has, p) of each group of choices.

    place, word     (F,) the pairs of a place and a word there that some of its K ways have, and
                    others have not
    has             (K, F) which way has which of them
    p               (K,) the probability of each way

    Raises ValueError where words have no fixed places."""
    result = []
    all_places = []
    for group in groups_of_choices(grammar):
        stories, p = ways(grammar, group)                                       # (K, W), (K,)
        differs = (stories != stories[0]).any(axis=0)                           # (W,)
        places = differs.nonzero()[0].tolist()
        pairs = set()
        for j in places:
            pairs |= {(j, word) for word in stories[:, j]}
        pairs = np.array(sorted(pairs), dtype=int).reshape(-1, 2)               # (F, 2)
        place, word = pairs.T
        has = stories[:, place] == word                                         # (K, F)
        result.append((place, word, has.astype(float), p))
        all_places += places
    if len(set(all_places)) < len(all_places):
        raise ValueError("the places of words depend on choices that do not concern them")
    return result


def exact_conditionals(grammar: Grammar, x, nats=1000.0) -> np.ndarray:
    """p(word | the known words) at every place of N stories of W words: (N, W, V).

    x (N, W) has the numbers of the known words in grammar.words(), and other numbers elsewhere. If
    no story has all known words, those count that have the most of them. Where words may be wrong,
    each that agrees makes a story likelier by so many nats, a number or one for each story (N, 1).
    Raises ValueError where words have no fixed places."""
    N, W = x.shape
    V = len(grammar.words())
    p = np.zeros((N, W, V))
    [one_story], _ = ways(grammar, set())                                       # (W,)
    p[:, np.arange(W), one_story] = 1       # this holds where no choice matters
    for place, word, has, prior in independent_groups(grammar):
        known = x[:, place] == word                                             # (N, F)
        agree = known.astype(float) @ has.T                                     # (N, K)
        fits = np.exp((agree - agree.max(axis=1, keepdims=True)) * nats)        # at most 1
        posterior = prior * fits                                                # (N, K), sum not 1
        posterior /= posterior.sum(axis=1, keepdims=True)
        p[:, place, word] = posterior @ has
    return p


def toy_conditionals(x) -> np.ndarray:
    """The same for the toy's stories x (N, 48) with their end-of-text: (N, 48, 135)."""
    p = exact_conditionals(TOY, x[:, :-1])                                      # (N, 47, 134)
    p = np.pad(p, ((0, 0), (0, 1), (0, 1)))
    p[:, -1, -1] = 1                        # end-of-text is the last token, and certain
    return p


# ---- In place of a Transformer -------------------------------------------------------------------

class Oracle(torch.nn.Module):
    """Answers as an mdlm of this config would that knew the law.

    conditionals(x)     p (N, T, V) of the tokens of x (N, T), given those that are not [MASK]"""

    def __init__(self, config, conditionals):
        super().__init__()
        self.config = config
        self.conditionals = conditionals
        self.head = config.row.network(config).head     # its device tells where the model is

    logits = plain.Transformer.logits
    cross_entropy = staticmethod(F.cross_entropy)

    def forward(self, tokens, key_pos, target_pos, select):
        """Log-probabilities (n, V); arguments and shapes are those of a Transformer."""
        row, slot = select // tokens.size(1), select % tokens.size(1)           # (n,) each
        p = torch.from_numpy(self.conditionals(tokens[:, 1:].numpy()))          # (B, T, V)
        p = p[row, slot - 1]                    # (n, V), as slot 0 has BOS
        return p.clamp(min=1e-300).log().float()        # 0 times an infinity would be NaN


def toy_oracle() -> Oracle:
    """The law of the toy, in the place of an mdlm."""
    config = plain.Config(
        "mdlm", n_layer=1, n_head=1, n_embd=2, n_hidden=1,
        vocab_size=len(TOY.words()) + 1,
        block_size=int(TOY.mean_words()) + 1)
    return Oracle(config, toy_conditionals)


# ---- How far samples are from the law ------------------------------------------------------------

def choices_of(story: str) -> dict:
    """{choice: number of the text that it took} of a story of the toy."""
    words = split_words(story)
    chosen = {}

    def choose(name, before):
        chosen[name] = 0
        for i, text in enumerate(TOY.texts[name]):
            if split_words(text)[0] == words[len(before)]:
                chosen[name] = i
        return chosen[name]

    TOY.tell(choose)
    return chosen


def kl_of_choices(stories: list) -> float:
    """Nats per story: the sum over choices of P(it is made) · KL(shares of its texts ‖ weights).

    What a perfect sampler would have by chance is subtracted. It is a lower bound of the KL of
    whole stories."""
    counts = collections.defaultdict(collections.Counter)
    for story in stories:
        for name, i in choices_of(story).items():
            counts[name][i] += 1
    kl = 0.0
    for name, count in counts.items():
        weights = TOY.weights[name]
        for i, n in count.items():
            share = n / count.total()
            kl += n / len(stories) * math.log(share / weights[i])
        kl -= (len(weights) - 1) / 2 / len(stories)         # its mean, for many samples
    return kl


def distance(texts: list) -> dict:
    """How far samples of the toy are from its law.

    grammatical     the share of the samples that the grammar can tell; grammatical_se is its
                    standard error
    kl              of those, see kl_of_choices; NaN where fewer than a hundred are"""
    good = [text for text in texts if TOY.log_probs(text) is not None]
    share = len(good) / len(texts)
    return {
        "grammatical": share,
        "kl": kl_of_choices(good) if len(good) >= 100 else math.nan,
        "grammatical_se": math.sqrt(share * (1 - share) / len(texts))}


@dataclass
class OracleOptions:
    """where the table goes, besides the screen"""
    json: str = flag("", "file for the results", file=(".json",))


def main():
    """A row for each file of samples of the toy; the columns are said at `distance`."""
    from diversity import read_samples
    flags = parse_flags(__doc__, OracleOptions, named="NAME=FILE")
    o = build(OracleOptions, flags)
    facts = provenance(None) | {"runs": {}, "rows": []}
    table = [["", "grammatical", "± s.e.", "kl"]]
    for name, path in flags["named"].items():
        texts, settings = read_samples(path)
        folder = settings.get("out_dir", "")
        facts["runs"][name] = {"folder": folder} | origin_of(folder)
        found = distance(texts)
        facts["rows"].append({"network": name, "texts": len(texts)} | found)
        table.append([
            name,
            f"{found['grammatical']:.1%}",
            f"{found['grammatical_se']:.1%}",
            f"{found['kl']:.3f}"])
    print_table(table)
    if o.json:
        write_json(o.json, facts)


if __name__ == "__main__":
    command(main, "nothing was written")
