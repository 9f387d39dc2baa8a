"""The perfect denoiser of experiments/oracle.py, against every story of a small grammar."""
import itertools

import numpy as np

from experiments.oracle import exact_conditionals
from test_toy import close, enumerate_stories
from toy import TOY, Grammar, choice, split_words, toy_stories

FIXED = {               # every story has nine words
    "story": choice("1 {who} saw a {thing}. {Pronoun} {did}."),
    "who": choice("3 Ann | 1 Bob"),
    "thing": choice("2 cat | 1 {wrap}"),        # a choice that is named by what is named
    "wrap": choice("1 {fruit}"),
    "fruit": choice("1 fig | 3 plum"),
    "Pronoun": ("who", ["She", "He"]),
    "did": choice("1 hid {=thing} | 4 ran {how}"),
    "how": choice("1 fast | 2 home"),
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


def test_it_knows_every_word_given_any_others():
    grammar = Grammar(FIXED)
    law = Law(grammar)
    assert law.x.shape == (18, 9)
    known = np.array(list(itertools.product([False, True], repeat=9)))          # (512, 9)
    for story in law.x:
        found = exact_conditionals(grammar, np.where(known, story, -1))         # (512, 9, V)
        for subset, p in zip(known, found):
            agrees = law.x[:, subset] == story[subset]
            assert close(p, law.given(agrees.all(axis=1)))


def test_on_the_toy():
    """Left to right it is log_probs. In any order its conditionals have the same product."""
    rng = np.random.default_rng(3)
    for story in itertools.islice(toy_stories(3), 5):
        x = numbers(TOY, story)
        for order in np.arange(47), rng.permutation(47):
            known = np.full((47, 47), -1)
            for step, place in enumerate(order):
                known[step + 1:, place] = x[place]
            p = exact_conditionals(TOY, known)                                  # (47, 47, V)
            assert close(p.sum(axis=2), 1)
            log_p = np.log(p[range(47), order, x[order]])
            assert abs(log_p.sum() - TOY.log_probs(story).sum()) < 1e-9
