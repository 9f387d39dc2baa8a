"""
The toy: short stories of a small grammar, which tells the exact probability of every story.

So two questions have exact answers here. How low can a model's loss get? To the entropy of the
stories, and no lower. Is a story that a model wrote right? It is, if the grammar can tell it.
"""
import bisect
import itertools
import math
import random
import re

import numpy as np

from tokenizer import WORD, join_words, split_words


# ---- A grammar and its law -----------------------------------------------------------------------

class Grammar:
    """Stories that come from independent random choices, some of which show again later on.

    rules: {name: rule}. A rule is one of two things:
        {text: weight, …}       a choice between texts. It is made once in a story.
        (name, [text, …])       a rule that follows the choice of that name: where the choice took
                                its second text, this is the second text too. So a boy is a "He".

    A story is told from the rule "story". In a text, {name} stands for what that rule gives, the
    same text every time. Where a choice shows again it is written {=name}, so that entropy() counts
    it once.

    The texts of a choice begin with different words. So the first word tells which text was chosen,
    and the words after it are certain until the next choice."""

    columns = 0             # a story has no shape on the screen
    REFERENCE = re.compile(r"{(=?)(\w+)}")
    PART = re.compile(rf"{REFERENCE.pattern}|({WORD})")

    def __init__(self, rules: dict):
        self.rules = rules
        # of each rule:
        self.owner = {}         # the choice that it follows; a choice follows itself
        self.texts = {}         # its texts
        self.parts = {}         # its texts as lists of ("=" or "", name, "") and ("", "", word)
        self.weights = {}       # the probability of each text
        self.edges = {}         # where 0 … 1 is cut into pieces as wide as these probabilities
        for name, rule in rules.items():
            if isinstance(rule, dict):
                owner, texts = name, list(rule)
            else:
                owner, texts = rule
            weights = rules[owner].values()
            self.owner[name] = owner
            self.texts[name] = texts
            self.parts[name] = [self.PART.findall(text) for text in texts]
            self.weights[name] = [weight / sum(weights) for weight in weights]
            self.edges[name] = list(itertools.accumulate(self.weights[name][:-1]))

    def tell(self, choose) -> str:
        """The story in which every choice takes its text number choose(name, the words so far)."""
        words = []
        chosen = {}             # {choice: number of the text it took}

        def expand(name):
            owner = self.owner[name]
            if owner not in chosen:
                chosen[owner] = choose(owner, words)
            for _, reference, word in self.parts[name][chosen[owner]]:
                if reference:
                    expand(reference)
                else:
                    words.append(word)

        expand("story")
        return join_words(words)

    def draw(self, rng: random.Random) -> str:
        """One random story."""
        def choose(name, before):
            return bisect.bisect(self.edges[name], rng.random())

        return self.tell(choose)

    def log_probs(self, story: str):
        """(words,) ln p of every word given the words before it; None if no story is like this."""
        words = split_words(story)
        log_p = np.zeros(len(words))

        # The grammar tells the story again. At each choice, the next word says what to take.
        def choose(name, before):
            place = len(before)
            for number, text in enumerate(self.texts[name]):
                if split_words(text)[:1] == words[place:place + 1]:
                    log_p[place] = math.log(self.weights[name][number])
                    return number
            return 0            # the only text there is; or none fits, and another story comes out

        told = self.tell(choose)
        return log_p if told == story else None

    def is_right(self, story: str) -> bool:
        """Whether the grammar can tell this story."""
        return self.log_probs(story) is not None

    def entropy(self, name: str = "story") -> float:
        """Nats per story, exact: of the choice itself, and on average of those inside its texts."""
        weights = self.weights[name]
        nats = 0.0
        if self.owner[name] == name:        # a rule that follows another choice is certain
            nats -= sum(weight * math.log(weight) for weight in weights)
        for weight, parts in zip(weights, self.parts[name]):
            for repeats, reference, _ in parts:
                if reference and not repeats:
                    nats += weight * self.entropy(reference)
        return nats

    def mean_words(self, name: str = "story") -> float:
        """The expected number of words and punctuation marks of a story, exact."""
        mean = 0.0
        for weight, parts in zip(self.weights[name], self.parts[name]):
            length = 0.0
            for _, reference, _ in parts:
                length += self.mean_words(reference) if reference else 1
            mean += weight * length
        return mean

    def words(self) -> list:
        """The vocabulary, sorted."""
        found = set()
        for texts in self.parts.values():
            for parts in texts:
                found.update(word for _, _, word in parts if word)
        return sorted(found)


# ---- The grammar of the toy ----------------------------------------------------------------------

def choice(alternatives: str) -> dict:
    """The rule {text: weight} of a line like "2 river | 1 pond": twice as many rivers as ponds."""
    rule = {}
    for alternative in alternatives.split(" | "):
        weight, text = alternative.split(" ", 1)
        rule[text] = int(weight)
    return rule


TOY = Grammar({
    "story": choice(
        "1 {opening}, a {hero} {got} a {look} {thing} {where} the {place}. "
        "{She} took it to {her} {friend}, but it {trouble}. "
        "{Her} {=friend} {rescue}. "
        "{Ending}."),
    "opening": choice("5 One day | 3 Last summer | 1 Long ago | 1 That morning"),
    "hero": choice("1 girl named {girl} | 1 boy named {boy}"),
    "girl": choice("4 Lily | 3 Mia | 2 Anna | 2 Sue | 2 Zoe | 1 Emma | 1 Rose | 1 Lucy"),
    "boy": choice("4 Tom | 3 Ben | 2 Max | 2 Sam | 2 Tim | 1 Jack | 1 Leo | 1 Bob"),
    "She": ("hero", ["She", "He"]),
    "her": ("hero", ["her", "his"]),
    "Her": ("hero", ["Her", "His"]),
    "Name": ("hero", ["{=girl}", "{=boy}"]),
    "got": choice("4 found | 2 saw | 1 made | 1 hid"),
    "look": choice("4 red | 4 big | 2 small | 2 shiny | 1 soft | 1 blue | 1 funny | 1 pretty"),
    "thing": choice(
        "4 ball | 2 kite | 2 boat | 2 doll | 2 drum | 2 hat | "
        "1 cup | 1 key | 1 bell | 1 book | 1 ring | 1 shell"),
    "where": choice("2 in | 1 near | 1 behind"),
    "place": choice(
        "4 park | 2 garden | 2 house | 2 school | 2 forest | 1 farm | 1 shop | 1 lake"),
    "friend": choice(
        "4 mom | 3 dad | 2 sister | 2 brother | 1 grandma | 1 uncle | 1 teacher | 1 neighbor"),
    "trouble": choice(
        "3 was taken by a {thief} | 2 fell into the deep {water} | "
        "2 broke and lost its {part} | 1 got stuck in the {tree}"),
    "rescue": ("trouble", [
        "asked the {=thief} for it politely",
        "swam into the {=water} for it",
        "made a new {=part} from wood",
        "climbed up the {=tree} for it"]),
    "thief": choice("3 bird | 2 fox | 2 monkey | 1 goat"),
    "water": choice("2 river | 1 pond | 1 sea"),
    "part": choice("2 handle | 1 string | 1 lid"),
    "tree": choice("2 oak | 1 pine"),
    "Ending": choice(
        "2 Then {Name} hugged {her} {=friend} and {feeling} | "
        "2 They played with the {=thing} until {time} | "
        "1 So {Name} kept the {=thing} very {safe}"),
    "feeling": choice("2 smiled | 1 laughed | 1 danced"),
    "time": choice("2 dinner | 1 bedtime | 1 dark"),
    "safe": choice("2 safe | 1 clean | 1 near"),
})
