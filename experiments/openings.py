"""
Why do a model's texts begin alike? Its openings and diversity by window, start and rule.

    python -m experiments.openings --folder=out/written/openings --json=F

The folder has files of sample.py, some for each seed. What made a file stands in its settings:

    windows     of training: they begin where stories do, or anywhere, as the paper's
    start       free, or every text begins with the word "Once"
    rule        plain draws; or the paper's, which for ar is a temperature of 0.8 and for mdlm that,
                the likeliest draws first, and a penalty on words that occur
    mode        ar or mdlm

If a paradigm makes texts alike, ar and mdlm differ where all else is the same. Real text is cut in
the same ways, from the stories held out of data/DATA and, where these are too few, of training.
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diversity import measure, read_samples
from extras.real_text import Corpus
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.runs import origin_of

KEPT = (
    "most common first word",
    "distinct first words",
    "distinct 5-word openings",
    "distinct-4",
    "self-BLEU",
    "new words",
)


@dataclass
class OpeningsOptions:
    """what to compare"""
    folder: str = flag("out/written/openings", "folder of files that sample.py wrote")
    data: str = flag("unseen", "data set of the real text")
    json: str = flag("", "file for the results", file=(".json",))


def cell_of(settings: dict) -> tuple:
    """(windows, start, rule, mode) of a file's settings."""
    windows = "aligned" if settings["start"] == "story" else "anywhere"
    rule = "paper" if settings["protocol"] == "paper" else "plain"
    return windows, settings["prompt"] or "free", rule, settings["mode"]


def kept_of(texts: list, corpus: Corpus) -> dict:
    """{metric: its value} of the texts, without intervals."""
    found = measure(texts, {}, corpus)
    return {name: found[name][0] for name in KEPT}


def real_text(corpus: Corpus, settings: dict) -> list:
    """As many texts as the settings say, cut as they say; at most so many with their first word."""
    if not settings["prompt"]:
        return corpus.texts_like(settings)[0]
    texts, _ = corpus.texts_like(settings | {"num_samples": 10 ** 9})       # all there are
    chosen = [text for text in texts if text.split()[:1] == [settings["prompt"]]]
    return chosen[:settings["num_samples"]]


def main():
    o = build(OpeningsOptions, parse_flags(__doc__, OpeningsOptions))
    files = sorted(Path(o.folder).glob("*.jsonl"))
    if not files:
        raise InputError(f"{o.folder} has no .jsonl file; run_all.sh openings makes them")
    corpus = Corpus(o.data)
    facts = provenance(None) | {"runs": {}, "cells": {}, "real texts": {}}
    for path in files:
        texts, settings = read_samples(str(path))
        windows, start, rule, mode = cell_of(settings)
        facts["runs"][settings["out_dir"]] = origin_of(settings["out_dir"])
        name = f"{windows}, {start}, {rule}, {mode}"
        cell = facts["cells"].setdefault(name, {metric: [] for metric in KEPT})
        for metric, value in kept_of(texts, corpus).items():
            cell[metric].append(value)
        real = f"{windows}, {start}, real text"
        if real not in facts["cells"]:
            pieces = real_text(corpus, settings)
            facts["cells"][real] = {
                metric: [value] for metric, value in kept_of(pieces, corpus).items()}
            facts["real texts"][real] = len(pieces)
    for name, cell in sorted(facts["cells"].items()):
        print(name, *(f"{metric} {np.mean(values):.3f};" for metric, values in cell.items()))
    if o.json:
        write_json(o.json, facts)


if __name__ == "__main__":
    command(main, "nothing was written")
