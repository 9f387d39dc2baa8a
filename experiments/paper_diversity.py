"""
diversity.py with Self-BLEU as the paper measures it (arXiv 2603.22075), which is another number: of 200
random samples, each against 50 random others and their mean length. The flags are the same.

    python -m experiments.paper_diversity ar=A.jsonl mdlm=B.jsonl --data=toy --judge=out/toy-ar
"""
import collections
import math

import numpy as np

import diversity
from cli import command

def paper_self_bleu(ids: np.ndarray, owner: np.ndarray, samples: int, seed=1337) -> np.ndarray:
    """BLEU-4 of 200 random samples, (200,): as diversity.self_bleu, but against few."""
    words = np.split(ids, np.searchsorted(owner, np.arange(1, samples)))
    rng, scores = np.random.default_rng(seed), []
    for i in rng.permutation(len(words))[:200]:
        others = rng.permutation(np.delete(np.arange(len(words)), i))[:50]
        log_precision = 0.0
        for n in range(1, 5):
            grams = [zip(*(words[j][k:] for k in range(n))) for j in (i, *others)]
            mine, *theirs = map(collections.Counter, grams)
            matched = sum(min(count, max(other[gram] for other in theirs)) for gram, count in mine.items())
            log_precision += math.log(matched / (len(words[i]) - n + 1)) / 4 if matched else -math.inf
        mean = np.mean([len(words[j]) for j in others])
        scores.append(math.exp(log_precision + min(0, 1 - mean / max(1, len(words[i])))))
    return np.array(scores)

def main():
    diversity.main(__doc__, paper_self_bleu)

if __name__ == "__main__":
    command(main, "nothing was written")
