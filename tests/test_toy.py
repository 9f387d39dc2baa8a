"""The toy's law, against every story of a grammar that is small enough to tell them all."""
import collections
import itertools
import math
import zlib

import numpy as np

from tokenizer import split_words
from worlds import texts_of
from worlds.toy import TOY, Grammar, choice

SMALL = Grammar({
    "story": choice("1 {who} saw a {thing}. {Pronoun} {did}."),
    "who": choice("3 Ann | 1 Bob"),
    "thing": choice("2 cat | 1 red {fruit}"),
    "fruit": choice("1 fig | 3 plum"),
    "Pronoun": ("who", ["She", "He"]),
    "did": choice("1 hid the {=thing} | 4 ran"),
})


def close(a, b):
    return np.abs(a - b).max() < 1e-12


def enumerate_stories(grammar):
    """{story: its probability}: every choice is made in every way, without Grammar's own sums."""
    rules = {name: rule for name, rule in grammar.rules.items() if isinstance(rule, dict)}
    found = collections.Counter()
    for texts in itertools.product(*rules.values()):
        took = dict(zip(rules, texts))
        story = grammar.tell(lambda name, before: list(rules[name]).index(took[name]))
        found[story] += math.prod(
            rule[took[name]] / sum(rule.values()) for name, rule in rules.items())
    return found


def test_entropy_mean_words_and_log_probs_are_exact():
    """A word's probability: how likely is a story that begins so, with the word and without it?"""
    stories = enumerate_stories(SMALL)
    assert len(stories) == 12 and close(sum(stories.values()), 1)
    assert close(stories["Bob saw a red plum. He hid the red plum."], 1/4 * 1/3 * 3/4 * 1/5)
    begins = collections.Counter()
    for story, p in stories.items():
        words = split_words(story)
        begins.update({tuple(words[:n]): p for n in range(len(words) + 1)})
    for story in stories:
        words = split_words(story)
        p = [begins[tuple(words[:n + 1])] / begins[tuple(words[:n])] for n in range(len(words))]
        assert close(SMALL.log_probs(story), np.log(p))
    assert close(SMALL.entropy(), -sum(p * math.log(p) for p in stories.values()))
    mean_words = sum(p * len(split_words(story)) for story, p in stories.items())
    assert close(SMALL.mean_words(), mean_words)


def test_texts_follow_the_law_and_are_the_same_byte_for_byte():
    stories = list(itertools.islice(texts_of(TOY, 1337), 1000))
    assert zlib.crc32("\n".join(stories).encode()) == 1545226684
    nats = -np.array([TOY.log_probs(story) for story in stories]).sum(axis=1)   # (1000,)
    assert abs(nats.mean() - TOY.entropy()) < 5 * nats.std() / math.sqrt(1000)
