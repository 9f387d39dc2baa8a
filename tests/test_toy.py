"""The toy's law, against every story of a grammar that is small enough to tell them all."""
import collections
import itertools
import math
import random
import re
import zlib

import numpy as np
import pytest

from experiments.oracle import exact_conditionals
from prepare_data import Tokenizer
from toy import TOY, Grammar, choice, split_words, toy_stories

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

def test_a_small_grammar_tells_these_stories():
    stories = enumerate_stories(SMALL)
    assert len(stories) == 12
    assert close(sum(stories.values()), 1)
    ran = "Ann saw a cat. She ran."
    assert close(stories[ran], 3/4 * 2/3 * 4/5)
    hid = "Bob saw a red plum. He hid the red plum."
    assert close(stories[hid], 1/4 * 1/3 * 3/4 * 1/5)


def test_entropy_and_mean_words_are_exact():
    entropy = 0.0
    mean_words = 0.0
    for story, p in enumerate_stories(SMALL).items():
        entropy -= p * math.log(p)
        mean_words += p * len(split_words(story))
    assert close(SMALL.entropy(), entropy)
    assert close(SMALL.mean_words(), mean_words)


def test_log_probs_are_exact():
    """By definition: how likely is a story that begins so, with the next word and without it?"""
    stories = enumerate_stories(SMALL)
    begins = collections.Counter()
    for story, p in stories.items():
        words = tuple(split_words(story))
        for n in range(len(words) + 1):
            begins[words[:n]] += p
    for story in stories:
        words = tuple(split_words(story))
        for n, log_p in enumerate(SMALL.log_probs(story)):
            without = begins[words[:n]]
            with_it = begins[words[:n + 1]]
            assert close(log_p, math.log(with_it / without))


def test_toy_stories_follow_the_law():
    stories = list(itertools.islice(toy_stories(0), 4000))
    assert len(set(stories)) > 3990
    surprises = []
    for story in stories:
        log_p = TOY.log_probs(story)
        assert len(log_p) == TOY.mean_words() == 47
        surprises.append(-log_p.sum())
    error = np.std(surprises) / math.sqrt(4000)
    assert abs(np.mean(surprises) - TOY.entropy()) < 5 * error


def test_toy_stories_are_the_same_byte_for_byte():
    stories = itertools.islice(toy_stories(1337), 1000)
    assert zlib.crc32("\n".join(stories).encode()) == 1545226684


def test_a_choice_is_drawn_as_the_standard_library_draws_it():
    rng = random.Random(0)

    def choose(name, before):
        texts = TOY.texts[name]
        [text] = rng.choices(texts, TOY.weights[name])
        return texts.index(text)

    for story in itertools.islice(toy_stories(0), 500):
        assert TOY.tell(choose) == story


def test_there_are_thousands_of_times_more_stories_than_are_drawn():
    def count(name):
        """Different texts of a rule: its texts add up, and choices inside one of them multiply."""
        total = 0
        for text in TOY.texts[name]:
            inside = 1
            for repeats, other in TOY.REFERENCE.findall(text):
                if TOY.owner[other] == other and not repeats:
                    inside *= count(other)
            total += inside
        return total

    assert count("story") == 509_607_936 > 5000 * 83_334


def test_texts_of_a_choice_differ_in_their_first_word():
    """What log_probs relies on."""
    for name, rule in TOY.rules.items():
        if isinstance(rule, dict) and len(rule) > 1:
            first = {split_words(text)[0] for text in rule}
            assert "{" not in first
            assert len(first) == len(rule)


def test_two_swapped_words_are_noticed():
    rng = random.Random(1)
    tokenizer = Tokenizer("words", words=TOY.words())
    for _ in range(300):
        ids = tokenizer.encode(TOY.draw(rng))
        i, j = rng.sample(range(len(ids)), 2)
        swapped = list(ids)
        swapped[i] = ids[j]
        swapped[j] = ids[i]
        log_p = TOY.log_probs(tokenizer.decode(swapped))
        assert (log_p is None) == (swapped != ids)


def test_wrong_pronouns_and_ends_are_noticed():
    story = TOY.draw(random.Random(2))
    assert story.startswith("That morning, a girl named Lily")
    wrong = [story[:-1], story + " " + story, ""]
    for she, he in ("She", "He"), ("Her", "His"), ("her", "his"):
        wrong.append(re.sub(rf"\b{she}\b", he, story))
    for text in wrong:
        assert text != story
        assert TOY.log_probs(text) is None


# ---- The perfect denoiser of experiments/oracle.py -----------------------------------------------

FIXED = {               # like SMALL, but every story has nine words
    "story": choice("1 {who} saw a {thing}. {Pronoun} {did}."),
    "who": choice("3 Ann | 1 Bob"),
    "thing": choice("2 cat | 1 {fruit}"),
    "fruit": choice("1 fig | 3 plum"),
    "Pronoun": ("who", ["She", "He"]),
    "did": choice("1 hid {=thing} | 4 ran {how}"),
    "how": choice("1 fast | 2 home"),
}
WRAPPED = FIXED | {     # a choice that is named by what is named
    "thing": choice("2 cat | 1 {wrap}"),
    "wrap": choice("1 {fruit}"),
}
UNEQUAL = {             # together they have three words
    "a": choice("1 x | 1 y z"),
    "b": ("a", ["u v", "w"]),
}


def numbers(grammar, story):
    """The story's words as numbers."""
    vocabulary = grammar.words()
    return np.array([vocabulary.index(word) for word in split_words(story)])


class Law:
    """K stories of W words: probabilities p (K,), words x (K, W), the same one-hot (K, W, V)."""

    def __init__(self, grammar):
        stories = enumerate_stories(grammar)
        self.p = np.array([*stories.values()])
        self.x = np.stack([numbers(grammar, story) for story in stories])
        self.one_hot = np.eye(len(grammar.words()))[self.x]

    def given(self, fits):
        """(W, V) probabilities of words, if the story is one of those that fit (K,)."""
        p = self.p * fits
        return np.einsum("k,kwv->wv", p / p.sum(), self.one_hot)


@pytest.mark.parametrize("rules", [FIXED, WRAPPED])
def test_the_perfect_denoiser_knows_every_word_given_any_others(rules):
    grammar = Grammar(rules)
    law = Law(grammar)
    assert law.x.shape == (18, 9)
    subsets = itertools.product([False, True], repeat=9)
    known = np.array(list(subsets))                                     # (512, 9)
    for story in law.x:
        given = np.where(known, story, -1)
        found = exact_conditionals(grammar, given)                      # (512, 9, V)
        for subset, p in zip(known, found):
            agrees = law.x[:, subset] == story[subset]
            assert close(p, law.given(agrees.all(axis=1)))


def test_the_perfect_denoiser_takes_the_nearest_stories_where_none_fits():
    """Bob is no She, so every story has another word at one of these places at least."""
    grammar = Grammar(WRAPPED)
    law = Law(grammar)
    given = numbers(grammar, "Bob saw a cat. She ran home.")
    given[6:8] = -1
    agree = (law.x == given).sum(axis=1)
    assert agree.max() == 6
    [p] = exact_conditionals(grammar, given[None])
    assert close(p, law.given(agree == 6))


def log_p_in_order(x, order):
    """(W,) ln p of a toy story's words x (W,), each given those before it in the order (W,)."""
    W = len(x)
    known = np.full((W, W), -1)
    for step, place in enumerate(order):
        known[step + 1:, place] = x[place]
    p = exact_conditionals(TOY, known)                                  # (W, W, V)
    assert close(p.sum(axis=2), 1)
    return np.log(p[range(W), order, x[order]])


def test_the_perfect_denoiser_on_the_toy():
    """Left to right it is log_probs. In any order its conditionals have the same product."""
    rng = np.random.default_rng(3)
    for story in itertools.islice(toy_stories(3), 5):
        x = numbers(TOY, story)
        expected = TOY.log_probs(story)
        assert close(log_p_in_order(x, np.arange(47)), expected)
        for _ in range(3):
            log_p = log_p_in_order(x, rng.permutation(47))
            assert abs(log_p.sum() - expected.sum()) < 1e-9


@pytest.mark.parametrize("change, words, problem", [
    ({"thing": choice("2 cat | 1 red {fruit}")}, 9, "length"),
    ({"story": choice("1 {a} {thing} {b}"), **UNEQUAL}, 4, "places")])
def test_the_perfect_denoiser_needs_fixed_places(change, words, problem):
    grammar = Grammar(FIXED | change)
    with pytest.raises(ValueError, match=problem):
        exact_conditionals(grammar, np.full((1, words), -1))


def test_the_perfect_denoiser_allows_lengths_that_make_up_for_each_other():
    grammar = Grammar({"story": choice("1 {a} {b}"), **UNEQUAL})
    p = exact_conditionals(grammar, np.full((1, 3), -1))
    assert close(p.sum(axis=2), 1)
