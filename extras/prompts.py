"""
Many prompts: a file with one in each line, each with its own blanks and its own length.

Adds: all prompts of a file are written in batches, in which a text does not depend on the others.
Costs: nothing; but only prompts of the same length, and with equally many tokens to write, share a
batch. A line has what --prompt may have, and lines without a word are skipped. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --prompts=mine.txt --num_samples=2
"""
import collections
from dataclasses import replace

import torch

import model as plain
from extras.prompt import pattern_of
from support.flags import InputError
from support.rows import read_text


def read_prompts(o) -> dict:
    """{number of the line: prompt} of the file. Raises InputError."""
    if o.prompt:
        raise InputError("--prompt and --prompts name two sources; give one of them")
    lines = enumerate(read_text(o.prompts).split("\n"), 1)
    prompts = {number: line for number, line in lines if line.strip()}
    if not prompts:
        raise InputError(f"{o.prompts} has no prompt; write one in each line")
    uses_blank = any("___" in prompt or prompt.startswith("FILE:") for prompt in prompts.values())
    if o.blank != type(o).blank and not uses_blank:
        raise InputError(f"--blank={o.blank} means nothing without ___ in --prompts; leave it out")
    return prompts


def patterns_of(o, *model_and_data) -> list:
    """The pattern (L,) of each prompt. Raises InputError."""
    patterns = []
    for number, prompt in read_prompts(o).items():
        try:
            pattern = pattern_of(replace(o, prompt=prompt), *model_and_data)
            if o.order:
                from extras.orders import times_of
                times_of(o.order, torch.zeros(1, len(pattern)))     # raises what it would later
        except InputError as e:
            raise InputError(f"{o.prompts}, line {number}: {e}") from e
        patterns.append(pattern)
    return patterns


def batches_of(o, config, tokenizer, windows, variant) -> list:
    """The stories of each batch, as (prompt, sample), and their patterns (B, L).

    The random numbers of a story are those of its (prompt, sample), both counted from 0, whatever
    else is in the file. Raises InputError."""
    patterns = patterns_of(o, config, tokenizer, windows, variant)
    stories_like = collections.defaultdict(list)
    for number, pattern in enumerate(patterns):
        free = pattern == config.mask_id                                            # (L,)
        alike = len(free), int(free.sum())
        if variant is not plain:        # its plan may go by where the blanks of the first row are
            alike = tuple(free.tolist())
        stories_like[alike] += [(number, sample) for sample in range(o.num_samples)]
    batches = []
    for stories in stories_like.values():
        for first in range(0, len(stories), o.batch_size):
            batch = stories[first:first + o.batch_size]
            batches.append((batch, torch.stack([patterns[number] for number, _ in batch])))
    return batches


def in_order(rows, o):
    """Yields the rows in the order of the file, each as soon as those before it are there."""
    waiting = {}
    story = 0
    for row in rows:
        number, sample = row["story"]
        waiting[number * o.num_samples + sample] = row
        while story in waiting:
            yield waiting.pop(story) | {"story": story}
            story += 1
