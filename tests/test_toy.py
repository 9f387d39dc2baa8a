"""The toy's law, against every story of a grammar that is small enough to tell them all."""
import collections
import itertools
import math
import random
import re
import zlib

import numpy as np

from tokenizer import join_words, split_words
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
    names = []
    rules = []
    for name, rule in grammar.rules.items():
        if isinstance(rule, dict):
            names.append(name)
            rules.append(rule)
    found = collections.Counter()
    for texts in itertools.product(*rules):
        p = 1.0
        numbers = {}
        for name, rule, text in zip(names, rules, texts):
            p *= rule[text] / sum(rule.values())
            numbers[name] = list(rule).index(text)
        story = grammar.tell(lambda name, before: numbers[name])
        found[story] += p
    return found


# ---- Grammar and law -----------------------------------------------------------------------------

def test_entropy_mean_words_and_log_probs_are_exact():
    """A word's probability: how likely is a story that begins so, with the word and without it?"""
    stories = enumerate_stories(SMALL)
    assert len(stories) == 12
    assert close(sum(stories.values()), 1)
    assert close(stories["Ann saw a cat. She ran."], 3/4 * 2/3 * 4/5)
    assert close(stories["Bob saw a red plum. He hid the red plum."], 1/4 * 1/3 * 3/4 * 1/5)
    begins = collections.Counter()
    for story, p in stories.items():
        begins.update({tuple(words): p for words in itertools.accumulate(
            split_words(story), lambda before, word: [*before, word], initial=[])})
    entropy, mean_words = 0.0, 0.0
    for story, p in stories.items():
        words = tuple(split_words(story))
        entropy -= p * math.log(p)
        mean_words += p * len(words)
        for n, log_p in enumerate(SMALL.log_probs(story)):
            assert close(log_p, math.log(begins[words[:n + 1]] / begins[words[:n]]))
    assert close(SMALL.entropy(), entropy)
    assert close(SMALL.mean_words(), mean_words)


def test_texts_follow_the_law():
    stories = list(itertools.islice(texts_of(TOY, 0), 4000))
    assert len(set(stories)) > 3990
    log_p = np.array([TOY.log_probs(story) for story in stories])               # (4000, 47)
    assert log_p.shape[1] == TOY.mean_words() == 47
    nats = -log_p.sum(axis=1)
    assert abs(nats.mean() - TOY.entropy()) < 5 * nats.std() / math.sqrt(4000)


def test_texts_are_the_same_byte_for_byte():
    stories = itertools.islice(texts_of(TOY, 1337), 1000)
    assert zlib.crc32("\n".join(stories).encode()) == 1545226684


def test_texts_of_a_choice_differ_in_their_first_word():
    """What log_probs relies on."""
    for rule in TOY.rules.values():
        if isinstance(rule, dict) and len(rule) > 1:
            first = {split_words(text)[0] for text in rule}
            assert "{" not in first
            assert len(first) == len(rule)


def test_two_swapped_words_are_noticed():
    rng = random.Random(1)
    for _ in range(300):
        words = split_words(TOY.draw(rng))
        i, j = rng.sample(range(len(words)), 2)
        swapped = list(words)
        swapped[i], swapped[j] = words[j], words[i]
        log_p = TOY.log_probs(join_words(swapped))
        assert (log_p is None) == (swapped != words)


def test_wrong_pronouns_and_ends_are_noticed():
    story = TOY.draw(random.Random(2))
    assert story.startswith("That morning, a girl named Lily")
    wrong = [story[:-1], f"{story} {story}", ""]
    for she, he in ("She", "He"), ("Her", "His"), ("her", "his"):
        wrong.append(re.sub(rf"\b{she}\b", he, story))
    for text in wrong:
        assert text != story
        assert TOY.log_probs(text) is None
