"""A perfect denoiser: an exact law in place of a Transformer, to tell a sampler's errors from a network's."""
import collections
import functools
import math

import numpy as np
import torch

from model import Config
from toy import TOY, Grammar, split_words

# ---- What the law says of a word, given any others ---------------------------------------------------------

def ways(grammar: Grammar, group: set):
    """Every way to choose in a group of choices while others take their first alternative: the stories
    (K, W) as numbers of words(), and the probability of each way (K,). Raises ValueError where their
    lengths differ."""
    stories, p, scripts = [], [], [{}]
    number = {word: i for i, word in enumerate(grammar.words())}
    for script in scripts:                              # grows: {choice: alternative}
        asked = []
        story = grammar.tell(lambda name, before: asked.append(name) or script.get(name, 0))
        left = [name for name in asked if name in group and name not in script]
        if left:
            scripts += [script | {left[0]: i} for i in range(len(grammar.texts[left[0]]))]
        else:
            stories.append([number[word] for word in split_words(story)])
            p.append(math.prod(grammar.weights[name][i] for name, i in script.items()))
    if len(set(map(len, stories))) > 1:
        raise ValueError(f"stories differ in length by the choice of {', '.join(sorted(group))}")
    return np.array(stories), np.array(p)

@functools.cache
def independent_groups(grammar: Grammar) -> list:
    """Choices form groups, so that a word depends on one group only and groups are independent. Of each:
    F pairs of a place (F,) and a word there (F,) that some ways have and others have not; which of them
    each of its K ways has (K, F); the ways' probabilities (K,). Raises ValueError: no fixed places."""
    groups = [{name} for name, rule in grammar.rules.items() if isinstance(rule, dict) and len(rule) > 1]
    for name, texts in grammar.texts.items():
        if len(texts) > 1:                              # its words depend on it, and on all that they name
            names = [name]
            for known in names:                         # grows
                found = grammar.REFERENCE.findall("".join(grammar.texts[known]))
                names += {other for _, other in found}.difference(names)
            joined = [group for group in groups if group & {grammar.owner[name] for name in names}]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    result = []
    for group in groups:
        stories, p = ways(grammar, group)
        pairs = {(j, i) for j in (stories != stories[0]).any(axis=0).nonzero()[0] for i in stories[:, j]}
        place, word = np.array(sorted(pairs), dtype=int).reshape(-1, 2).T        # (F,) each
        result.append((place, word, (stories[:, place] == word).astype(float), p))
    places = [place for place, *_ in result for place in set(place.tolist())]
    if len(set(places)) < len(places):
        raise ValueError("the places of words depend on choices that do not concern them")
    return result

def exact_conditionals(grammar: Grammar, x) -> np.ndarray:
    """(N, W, V): exact p(word | the known words) at every place of N stories of W words, V in all. x
    (N, W): numbers of the known words in words(), other numbers elsewhere. Of known words that no story
    has together, as many count as some story has. Raises ValueError where words have no fixed places."""
    p = np.zeros((*x.shape, len(grammar.words())))
    p[:, np.arange(x.shape[1]), ways(grammar, set())[0][0]] = 1                 # what differs comes next
    for place, word, has, prior in independent_groups(grammar):
        agree = (x[:, place] == word).astype(float) @ has.T                     # (N, K)
        posterior = prior * (agree == agree.max(axis=1, keepdims=True))         # (N, K), not normalized
        p[:, place, word] = posterior @ has / posterior.sum(axis=1, keepdims=True)
    return p

def toy_conditionals(x) -> np.ndarray:
    """Of the toy's stories x (N, 48) with their end-of-text, the last of the 135 tokens: (N, 48, 135)."""
    p = np.pad(exact_conditionals(TOY, x[:, :-1]), ((0, 0), (0, 1), (0, 1)))
    p[:, -1, -1] = 1
    return p

# ---- In place of a Transformer -----------------------------------------------------------------------------

class Oracle(torch.nn.Module):
    """Answers as a Transformer of this config that knew the law; forward is called alike.

    conditionals(x): (N, T, V) probabilities of the tokens of rows x (N, T) given those that are not [MASK]"""

    def __init__(self, config: Config, conditionals):
        super().__init__()
        self.config, self.conditionals = config, conditionals
        self.head = torch.nn.Linear(1, 1)           # whose device tells where the model is

    def forward(self, tokens, key_pos, target_pos, select=None, t=None, cache=None):
        config, (B, S) = self.config, tokens.shape
        key_pos, target_pos = key_pos.expand(B, S), target_pos.expand(B, S)
        if cache is not None:       # it keeps tokens and positions where others keep keys and values
            [kept], slots, visible = cache
            for numbers, new in zip(kept, (tokens, key_pos)):
                numbers[:, 0, :, 0].scatter_(1, slots, new.to(numbers.dtype))
            tokens, key_pos = (numbers[:, 0, :visible.size(-1), 0].long() for numbers in kept)      # (B, n)
            visible = visible[:, 0]                                                 # (B, S, n)
        elif config.mode == "mdlm":
            visible = (tokens != config.mask_id)[:, None]                           # (B, 1, S)
        else:
            visible = torch.ones(S, S, dtype=torch.bool).tril()                     # (S, S)
        seen = visible.expand(B, S, -1).flatten(0, 1)                               # (B·S, n)
        place, held = (x.repeat_interleave(S, dim=0) for x in (key_pos + 1, tokens))
        known = torch.full((B * S, config.block_size + 1), config.mask_id)
        known = known.scatter(1, place * seen, held)[:, 1:]     # (B·S, T); BOS and the unseen were in front
        rows = torch.arange(B * S).view(B, S)
        if select is not None:
            rows = rows.view(len(select), -1).gather(1, select)                     # (G, N)
        known, which = known[rows.flatten()].unique(dim=0, return_inverse=True)
        target = target_pos.flatten()[rows.flatten()].clamp(min=0)      # what slot 0 of mdlm says, none reads
        p = torch.from_numpy(self.conditionals(known.numpy())).clamp(min=1e-300)    # no infinities: 0 · inf
        return p.log().float()[which, target].view(*rows.shape, -1)                 # (G, N, V)

def toy_oracle(mode: str) -> Oracle:
    sizes = dict(vocab_size=len(TOY.words()) + 1, block_size=int(TOY.mean_words()) + 1)
    return Oracle(Config(mode, n_layer=1, n_head=1, n_embd=2, **sizes), toy_conditionals)

# ---- How far samples are from the law ----------------------------------------------------------------------

def choices_of(story: str) -> dict:
    """{choice: number of the alternative taken} of a story of the grammar."""
    words, chosen = split_words(story), {}

    def choose(name, before):
        first = [split_words(text)[0] for text in TOY.texts[name]]
        chosen[name] = first.index(words[len(before)]) if len(first) > 1 else 0
        return chosen[name]

    TOY.tell(choose)
    return chosen

def distance(texts: list) -> dict:
    """Of samples of the toy: the share that is grammatical; and of those, in nats per story,

    kl          from the true law, of each choice by itself: Σ over choices P(made) · KL(shares of it ‖
                weights), less what a perfect sampler has by chance; a lower bound of the whole KL
    surprise    mean −log p under the true law, minus that law's entropy; below zero: too typical"""
    log_p = [TOY.log_probs(text) for text in texts]
    good = [text for text, p in zip(texts, log_p) if p is not None]
    counts = collections.defaultdict(collections.Counter)
    for text in good:
        for name, i in choices_of(text).items():
            counts[name][i] += 1
    kl = 0.0
    for name, count in counts.items():
        n, weights = count.total(), TOY.weights[name]
        kl += sum(c / len(good) * math.log(c / n / weights[i]) for i, c in count.items())
        kl -= (len(weights) - 1) / 2 / len(good)        # the mean of a perfect sampler's, for many samples
    share, surprise = len(good) / len(texts), math.nan
    if len(good) < 100:         # too few to tell
        kl = math.nan
    else:
        surprise = float(-np.mean([p.sum() for p in log_p if p is not None]) - TOY.entropy())
    return {"samples": len(texts), "grammatical": share, "kl": kl, "surprise": surprise,
            "grammatical_se": math.sqrt(share * (1 - share) / len(texts))}
