"""The toy's law, against every story of a grammar that is small enough to tell them all."""
import itertools
import math
import random
import re

import numpy as np
import pytest

from experiments.oracle import exact_conditionals
from prepare_data import Tokenizer
from toy import TOY, Grammar, split_words

SMALL = Grammar({
    "story": {"{who} saw a {thing}. {Pronoun} {did}.": 1},
    "who": {"Ann": 3, "Bob": 1},
    "thing": {"cat": 2, "red {fruit}": 1},
    "fruit": {"fig": 1, "plum": 3},
    "Pronoun": ("who", ["She", "He"]),
    "did": {"hid the {=thing}": 1, "ran": 4},
})

def enumerate_stories(grammar):
    """Every story with its probability: a walk over all combinations of choices, without Grammar's sums."""
    def expand(text, state):
        match = grammar.REFERENCE.search(text)
        if not match:
            yield text, 1.0, state
            return
        repeat, name = match.groups()
        if repeat:
            options = [(state[name][1], 1.0, state)]
        else:
            rule = grammar.rules[name]
            if isinstance(rule, dict):
                picks = [(i, t, w / sum(rule.values())) for i, (t, w) in enumerate(rule.items())]
            else:
                picks = [(state[rule[0]][0], rule[1][state[rule[0]][0]], 1.0)]
            options = []
            for i, t, p in picks:
                before = {**state, name: (i, None)}
                options += [(sub, p * q, {**after, name: (i, sub)}) for sub, q, after in expand(t, before)]
        for sub, p, after in options:
            for rest, q, final in expand(text[match.end():], after):
                yield text[:match.start()] + sub + rest, p * q, final
    return [(s, p) for s, p, _ in expand("{story}", {})]

def test_toy_law_on_a_grammar_small_enough_to_enumerate():
    stories = enumerate_stories(SMALL)
    assert len({s for s, _ in stories}) == len(stories) == 12
    assert sum(p for _, p in stories) == pytest.approx(1)
    assert -sum(p * math.log(p) for _, p in stories) == pytest.approx(SMALL.entropy())
    assert sum(p * len(split_words(s)) for s, p in stories) == pytest.approx(SMALL.mean_words())
    for story, p in stories:
        assert SMALL.log_probs(story).sum() == pytest.approx(math.log(p))
    # each word's log-probability by its definition: mass of stories that agree so far, next word included
    for story, _ in stories:
        words = split_words(story)
        for j, log_p in enumerate(SMALL.log_probs(story)):
            def mass(n):
                return sum(p for s, p in stories if split_words(s)[:n] == words[:n])
            assert log_p == pytest.approx(math.log(mass(j + 1) / mass(j)))

def test_toy_stories_follow_the_law():
    rng = random.Random(0)
    stories = [TOY.draw(rng) for _ in range(4000)]
    log_p = [TOY.log_probs(s).sum() for s in stories]               # None would fail: every story matches
    assert abs(-np.mean(log_p) - TOY.entropy()) < 5 * np.std(log_p) / math.sqrt(4000)
    lengths = [len(split_words(s)) for s in stories]
    assert abs(np.mean(lengths) - TOY.mean_words()) <= 5 * np.std(lengths) / math.sqrt(4000)
    assert len(set(stories)) > 3990
    rng = random.Random(0)      # the same stories as by the standard library's weighted choice
    assert stories[:500] == [TOY.tell(lambda name, _: rng.choices(
        range(len(TOY.weights[name])), TOY.weights[name])[0]) for _ in range(500)]

def test_there_are_thousands_of_times_more_stories_than_are_drawn():
    def count(name):
        """Different texts of a rule: alternatives add up, independent choices within one multiply."""
        references = [TOY.REFERENCE.findall(text) for text in TOY.rules[name]]
        inner = [[n for repeat, n in found if not repeat and isinstance(TOY.rules[n], dict)]
                 for found in references]
        return sum(math.prod(count(n) for n in names) for names in inner)
    # tied rules (pronouns, the rescue) add no choice in this grammar
    tied = [text for rule in TOY.rules.values() if isinstance(rule, tuple) for text in rule[1]]
    assert all("{" not in re.sub(r"{(=\w+|her)}", "", text) for text in tied)
    assert count("story") == 509_607_936 > 5000 * 83_334

def test_alternatives_differ_in_their_first_word():
    """What log_probs relies on."""
    for name, rule in TOY.rules.items():
        if isinstance(rule, dict):
            first = [re.split(r"[\s,.]", TOY.REFERENCE.sub("X", text))[0] for text in rule]
            assert len(set(first)) == len(first), name
            assert len(first) == 1 or "X" not in first, name

def test_corrupted_stories_do_not_match():
    rng = random.Random(1)
    caught = 0
    for _ in range(300):
        words = split_words(TOY.draw(rng))
        i, j = rng.sample(range(len(words)), 2)
        changed = list(words)
        changed[i], changed[j] = changed[j], changed[i]
        tokenizer = Tokenizer("words", words=TOY.words())
        if changed != words:
            caught += TOY.log_probs(tokenizer.decode(tokenizer.encode(" ".join(changed)))) is None
        else:
            caught += 1
    assert caught == 300
    story = TOY.draw(random.Random(2))
    girl, boy = story, story
    for she, he in (("She", "He"), ("Her", "His"), ("her", "his")):
        girl, boy = re.sub(rf"\b{he}\b", she, girl), re.sub(rf"\b{she}\b", he, boy)
    assert (TOY.log_probs(girl) is None) != (TOY.log_probs(boy) is None)    # pronouns agree with the name
    for text in (story[:-1], story + " " + story, ""):
        assert TOY.log_probs(text) is None

FIXED = {       # like SMALL, but every story has nine words
    "story": {"{who} saw a {thing}. {Pronoun} {did}.": 1},
    "who": {"Ann": 3, "Bob": 1},
    "thing": {"cat": 2, "{fruit}": 1},
    "fruit": {"fig": 1, "plum": 3},
    "Pronoun": ("who", ["She", "He"]),
    "did": {"hid {=thing}": 1, "ran {how}": 4},
    "how": {"fast": 1, "home": 2},
}
WRAPPED = FIXED | {"thing": {"cat": 2, "{wrap}": 1}, "wrap": {"{fruit}": 1}}    # named by what is named

@pytest.mark.parametrize("rules", [FIXED, WRAPPED])
def test_the_perfect_denoiser_on_a_grammar_small_enough_to_enumerate(rules):
    """p of each word given every subset of every story's words, and given some that no story has together."""
    grammar = Grammar(rules)
    words, told = grammar.words(), enumerate_stories(grammar)
    x = np.array([[words.index(word) for word in split_words(story)] for story, _ in told])     # (18, 9)
    p = np.array([p for _, p in told])
    law = np.zeros((*x.shape, len(words)))
    law[np.arange(len(x))[:, None], np.arange(x.shape[1]), x] = 1                               # (18, 9, V)
    known = np.array(list(itertools.product([False, True], repeat=x.shape[1])))                 # (512, 9)
    for row in x:
        y = np.where(known, row, -1)
        fits = ((x == y[:, None]) | ~known[:, None]).all(axis=2)                                # (512, 18)
        expected = np.einsum("ns,s,sjv->njv", fits, p, law) / (fits @ p)[:, None, None]
        assert abs(exact_conditionals(grammar, y) - expected).max() < 1e-12
    # She is Ann, and two say so; "cat" was seen, "plum" was hidden, and "hid" needs some fruit or cat
    clash = dict(enumerate(["Bob", "saw", "a", None, ".", "She"]))
    y = np.array([[words.index(clash[j]) if clash.get(j) else -1 for j in range(x.shape[1])]])
    agree = ((x == y) & (y >= 0)).sum(axis=1)
    fits = agree == agree.max()
    assert agree.max() == (y >= 0).sum() - 1
    expected = np.einsum("s,s,sjv->jv", fits, p, law) / p[fits].sum()
    assert abs(exact_conditionals(grammar, y)[0] - expected).max() < 1e-12

def test_the_perfect_denoiser_on_the_toy():
    """Left to right it is log_probs; the conditionals of any order multiply to the same probability."""
    rng, order = random.Random(3), np.random.default_rng(3)
    number = {word: i for i, word in enumerate(TOY.words())}
    for _ in range(5):
        story = TOY.draw(rng)
        x = np.array([number[word] for word in split_words(story)])                             # (W,)
        W = len(x)
        for sigma in (np.arange(W), *(order.permutation(W) for _ in range(3))):
            known = np.full((W, W), -1)
            for j in range(W):
                known[j, sigma[:j]] = x[sigma[:j]]
            p = exact_conditionals(TOY, known)
            log_p = np.log(p[np.arange(W), sigma, x[sigma]])
            assert abs(p.sum(axis=2) - 1).max() < 1e-12
            assert log_p.sum() == pytest.approx(TOY.log_probs(story).sum(), abs=1e-9)
            if (sigma == np.arange(W)).all():
                assert abs(log_p - TOY.log_probs(story)).max() < 1e-12

@pytest.mark.parametrize("change, words", [
    ({"thing": {"cat": 2, "red {fruit}": 1}}, "length"),                    # a story grows
    ({"story": {"{a} {b}": 1}, "a": {"x": 1, "y z": 1}, "b": ("a", ["u v", "w"])}, ""),     # one group
    ({"story": {"{a} {thing} {b}": 1}, "a": {"x": 1, "y z": 1}, "b": ("a", ["u v", "w"])}, "places")])
def test_the_perfect_denoiser_needs_fixed_places(change, words):
    grammar = Grammar(FIXED | change)
    W = len(split_words(grammar.draw(random.Random(0))))
    if not words:
        assert (exact_conditionals(grammar, np.full((1, W), -1)).sum(axis=2) == 1).all()
    else:
        with pytest.raises(ValueError, match=words):
            exact_conditionals(grammar, np.full((1, W), -1))
