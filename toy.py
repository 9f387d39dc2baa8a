"""
The toy: stories of a small grammar whose law is known exactly, so that a model's loss has a floor to be read
against, and every story is right or wrong.
"""
import bisect
import functools
import math
import random
import re

import numpy as np

def split_words(text: str) -> list:
    """Words and punctuation marks, white space dropped."""
    return re.findall(r"\w+|[^\w\s]", text)

def join_words(words) -> str:
    return " ".join(words).replace(" .", ".").replace(" ,", ",")

class Grammar:
    """Stories of independent weighted choices, some of which come back later.

    rules: {name: {text: weight}} is a choice, made once; {name: (owner, [text, …])} follows the owner's
    choice. In a text, {name} expands a rule, in one story always to the same; {=name} says that it repeats,
    so that entropy() counts it once. The alternatives of a choice begin with different words, so that one
    token reveals it, and all others are certain."""

    REFERENCE = re.compile(r"{(=?)(\w+)}")

    def __init__(self, rules: dict):
        self.rules, self.owner, self.texts, self.weights, self.cumulative = rules, {}, {}, {}, {}
        for name, rule in rules.items():
            # a choice is its own owner; what follows it has its weights
            self.owner[name], self.texts[name] = (name, list(rule)) if isinstance(rule, dict) else rule
            weights = rules[self.owner[name]].values()
            self.weights[name] = [w / sum(weights) for w in weights]
            self.cumulative[name] = np.cumsum(self.weights[name][:-1]).tolist()     # the last one's is 1
        self.parts = functools.cache(re.compile(rf"{self.REFERENCE.pattern}|(\w+|[^\w\s])").findall)

    def tell(self, choose) -> str:
        """The story in which each choice takes its alternative number choose(name, words so far)."""
        words, chosen = [], {}

        def expand(text):
            for _, name, word in self.parts(text):  # a reference or a word; {=name} repeats: chosen has it
                if word:
                    words.append(word)
                else:
                    owner = self.owner[name]
                    if owner not in chosen:
                        chosen[owner] = choose(owner, words)
                    expand(self.texts[name][chosen[owner]])

        expand("{story}")
        return join_words(words)

    def draw(self, rng: random.Random) -> str:
        """One story."""
        return self.tell(lambda name, _: bisect.bisect(self.cumulative[name], rng.random()))

    def log_probs(self, story: str):
        """(words,) ln p of every word given the words before it, or None if this is no story."""
        words = split_words(story)
        log_p = np.zeros(len(words))

        def choose(name, before):                       # tell it again: the next word reveals the alternative
            j = len(before)
            for i, text in enumerate(self.texts[name]):
                if split_words(text)[:1] == words[j:j + 1]:
                    log_p[j] += math.log(self.weights[name][i])
                    return i
            return 0                                    # the only one; or none fits: another story

        return log_p if self.tell(choose) == story else None

    def entropy(self, text: str = "{story}") -> float:
        """Nats per story, exact: of each choice and, with their probabilities, of those inside it."""
        nats = 0.0
        for repeat, name in self.REFERENCE.findall(text):
            if not repeat:
                if self.owner[name] == name:
                    nats -= sum(w * math.log(w) for w in self.weights[name])
                nats += sum(w * self.entropy(t) for w, t in zip(self.weights[name], self.texts[name]))
        return nats

    def mean_words(self, text: str = "{story}") -> float:
        """Expected words and punctuation marks per story, exact."""
        mean = len(split_words(self.REFERENCE.sub("", text)))
        for _, name in self.REFERENCE.findall(text):
            mean += sum(w * self.mean_words(t) for w, t in zip(self.weights[name], self.texts[name]))
        return mean

    def words(self) -> list:
        """The vocabulary, sorted."""
        return sorted({word for t in sum(self.texts.values(), []) for *_, word in self.parts(t) if word})

TOY = Grammar({
    "story": {"{opening}, a {hero} {got} a {look} {thing} {where} the {place}. {She} took it to {her} "
              "{friend}, but it {trouble}. {Her} {=friend} {rescue}. {Ending}.": 1},
    "opening": {"One day": 5, "Last summer": 3, "Long ago": 1, "That morning": 1},
    "hero": {"girl named {girl}": 1, "boy named {boy}": 1},
    "girl": {"Lily": 4, "Mia": 3, "Anna": 2, "Sue": 2, "Zoe": 2, "Emma": 1, "Rose": 1, "Lucy": 1},
    "boy": {"Tom": 4, "Ben": 3, "Max": 2, "Sam": 2, "Tim": 2, "Jack": 1, "Leo": 1, "Bob": 1},
    "She": ("hero", ["She", "He"]), "her": ("hero", ["her", "his"]), "Her": ("hero", ["Her", "His"]),
    "Name": ("hero", ["{=girl}", "{=boy}"]),
    "got": {"found": 4, "saw": 2, "made": 1, "hid": 1},
    "look": {"red": 4, "big": 4, "small": 2, "shiny": 2, "soft": 1, "blue": 1, "funny": 1, "pretty": 1},
    "thing": {"ball": 4, "kite": 2, "boat": 2, "doll": 2, "drum": 2, "hat": 2, "cup": 1, "key": 1, "bell": 1,
              "book": 1, "ring": 1, "shell": 1},
    "where": {"in": 2, "near": 1, "behind": 1},
    "place": {"park": 4, "garden": 2, "house": 2, "school": 2, "forest": 2, "farm": 1, "shop": 1, "lake": 1},
    "friend": {"mom": 4, "dad": 3, "sister": 2, "brother": 2, "grandma": 1, "uncle": 1, "teacher": 1,
               "neighbor": 1},
    "trouble": {"was taken by a {thief}": 3, "fell into the deep {water}": 2, "broke and lost its {part}": 2,
                "got stuck in the {tree}": 1},
    "rescue": ("trouble", ["asked the {=thief} for it politely", "swam into the {=water} for it",
                           "made a new {=part} from wood", "climbed up the {=tree} for it"]),
    "thief": {"bird": 3, "fox": 2, "monkey": 2, "goat": 1}, "water": {"river": 2, "pond": 1, "sea": 1},
    "part": {"handle": 2, "string": 1, "lid": 1}, "tree": {"oak": 2, "pine": 1},
    "Ending": {"Then {Name} hugged {her} {=friend} and {feeling}": 2,
               "They played with the {=thing} until {time}": 2,
               "So {Name} kept the {=thing} very {safe}": 1},
    "feeling": {"smiled": 2, "laughed": 1, "danced": 1},
    "time": {"dinner": 2, "bedtime": 1, "dark": 1}, "safe": {"safe": 2, "clean": 1, "near": 1},
})

def toy_stories(seed: int):
    """An endless row of stories."""
    rng = random.Random(seed)
    while True:
        yield TOY.draw(rng)
