"""Grammatical stories of the toy against tokens revealed per network pass, from the summaries of sample.py.

    python -m experiments.steps results/toy-steps.json results/toy-steps.png
"""
import collections
import json
import sys

import numpy as np

from show import figure

def draw_steps(summaries: list, path: str):
    """The toy: grammatical stories against tokens revealed per step, a line a model and sampler."""
    lines = collections.defaultdict(list)
    for s in summaries:
        name = f"mdlm, {s['sampler'].replace('_', ' ')}" if s["mode"] == "mdlm" else s["mode"]
        lines[name].append((s["tokens_per_pass"], s["grammatical"], s["num_samples"]))
    with figure(path, (7, 4)) as axes:
        for (name, points), marker in zip(lines.items(), "oDs^v" * len(lines)):
            per_step, share, stories = np.array(sorted(points)).T
            if name == "ar":
                axes.axhline(100 * share[0], color="k", ls="--", lw=1, label="ar, one token a step")
            else:
                axes.errorbar(per_step, 100 * share, 200 * np.sqrt(share * (1 - share) / stories), label=name,
                              marker=marker, ms=5, capsize=2, ls="--" if name == "aogpt" else "-")
        ticks = sorted({s["tokens_per_pass"] for s in summaries})
        axes.set(xscale="log", xticks=ticks, xticklabels=[f"{t:g}" for t in ticks], ylim=(-3, 103),
                 xlabel="tokens revealed per step (1: as many steps as tokens)",
                 ylabel="grammatical stories, % (± 2 s.e.)")
        axes.minorticks_off()

def main():
    source, path = sys.argv[1:]
    with open(source) as f:
        draw_steps(json.load(f), path)

if __name__ == "__main__":
    main()
