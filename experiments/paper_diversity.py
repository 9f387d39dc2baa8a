"""
diversity.py with Self-BLEU as the paper measures it (arXiv 2603.22075), which is another number: of
200 random samples, each against 50 random others and their mean length. The flags are the same.

    python -m experiments.paper_diversity ar=A.jsonl mdlm=B.jsonl --data=toy --judge=out/toy-ar
"""
import numpy as np

import diversity
from cli import command


def paper_self_bleu(samples, seed=1337) -> np.ndarray:
    """BLEU-4 of 200 random samples, (200,); of all of them where there are fewer."""
    rng = np.random.default_rng(seed)
    scores = []
    for i in rng.permutation(len(samples))[:200]:
        all_others = np.delete(np.arange(len(samples)), i)
        others = [samples[j] for j in rng.permutation(all_others)[:50]]
        elsewhere = diversity.largest_counts(others)
        mean_length = np.mean([len(words) for words in others])
        scores.append(diversity.bleu(samples[i], elsewhere, mean_length))
    return np.array(scores)


def main():
    diversity.main(__doc__, paper_self_bleu)


if __name__ == "__main__":
    command(main, "nothing was written")
