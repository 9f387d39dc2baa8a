"""How long exact Self-BLEU takes: against nltk's loop, and from 1,000 to 50,000 samples.

    python -m experiments.time_self_bleu results/self-bleu-speed.json
"""
import sys
import time
import warnings

import numpy as np
from nltk.translate.bleu_score import sentence_bleu

from cli import provenance, write_json
from diversity import self_bleu

warnings.filterwarnings("ignore")   # nltk's, on counts of zero

def samples(n: int, length=128, seed=0):
    """n samples of words with Zipf's frequencies, 5,000 of them."""
    p = 1 / np.arange(1, 5001)
    return np.random.default_rng(seed).choice(5000, size=(n, length), p=p / p.sum())

def seconds_of(function):
    began = time.perf_counter()
    value = function()
    return time.perf_counter() - began, value

def ours(words):
    return self_bleu(words.ravel(), np.repeat(np.arange(len(words)), words.shape[1]), len(words))

def main():
    [path] = sys.argv[1:]
    words = samples(1000)
    few = range(0, 1000, 100)           # nltk takes minutes for all of them, and as long for each
    theirs, expected = seconds_of(
        lambda: [sentence_bleu(np.delete(words, i, axis=0).tolist(), words[i].tolist()) for i in few])
    mine, got = seconds_of(lambda: ours(words))
    assert np.allclose(got[list(few)], expected, atol=1e-12)
    ratio = theirs / len(few) * 1000 / mine
    print(f"1,000 samples of 128 words: {mine:.2f} s; nltk {theirs / len(few):.2f} s a sample, "
          f"{ratio:,.0f} times as long for all")
    rows = []
    for words in map(samples, (1000, 5000, 10000, 50000)):
        fastest = min(seconds_of(lambda: ours(words))[0] for _ in range(2))
        rows.append({"samples": len(words), "seconds": fastest})
    for row in rows:
        micros = 1e6 * row["seconds"] / row["samples"]
        print(f"{row['samples']:,} samples: {row['seconds']:.2f} s, {micros:.0f} µs a sample")
    write_json(path, {**provenance(0), "nltk_over_ours": ratio, "rows": rows})

if __name__ == "__main__":
    main()
