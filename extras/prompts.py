"""
Blanks in a prompt, and files of prompts.

Adds: ___ is a blank, and FILE:name is what the file has. Where tokens are words, _ is a blank of
one token, and blanks need no spaces between them. Of a file each line is a prompt; they are written
in batches, in which a text does not depend on the others. Costs: nothing; but only prompts of the
same length, and with equally many tokens to write, share a batch. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --prompt="One day, a ___ the park."
    python sample.py --out_dir=out/toy-mdlm --prompts=mine.txt --num_samples=2
"""
import collections
import os
import re
from dataclasses import replace

import torch

from model import plan
from support.flags import InputError
from support.rows import read_text
from tokenizer import MARK


def blanks_apart(run: re.Match) -> str:
    """A run of underscores as blanks of three and then of one, with spaces around each."""
    blanks, single = divmod(len(run[0]), 3)
    return f" {'___ ' * blanks}{'_ ' * single}"


def with_blanks(o, config, tokenizer) -> list:
    """Token ids of --prompt, with o.blank [MASK]s for each ___ in it. Raises InputError.

    Of a text of words an underscore is a blank too, unless it is part of a word."""
    prompt = o.prompt
    if prompt.startswith("FILE:"):
        prompt = read_text(os.path.expanduser(prompt.removeprefix("FILE:")))
    blanks = "(_{3,})"
    if tokenizer.kind == "words":
        before, after = rf"(?<!\w)(?<!{MARK})", rf"(?!\w|{MARK})"      # no part of a word
        prompt = re.sub(f"{before}_+{after}", blanks_apart, prompt)
        blanks = f"(_{{3,}}|{before}_{after})"
    ids = []
    for i, piece in enumerate(re.split(blanks, prompt)):
        if i % 2 == 0:
            ids += tokenizer.encode_open(piece)
        else:
            ids += [config.mask_id] * (o.blank if len(piece) > 1 else 1)
    return ids


def check_blank(o, prompts):
    """Raises InputError where --blank was given, and no prompt has a blank of that length."""
    uses_blank = any("___" in prompt or prompt.startswith("FILE:") for prompt in prompts)
    if o.blank != type(o).blank and not uses_blank:
        raise InputError(f"--blank={o.blank} means nothing without ___ in a prompt; leave it out")


# ---- A file of prompts ---------------------------------------------------------------------------

def read_prompts(o) -> dict:
    """{number of the line: prompt} of the file. Raises InputError."""
    if o.prompt:
        raise InputError("--prompt and --prompts name two sources; give one of them")
    lines = enumerate(read_text(o.prompts).split("\n"), 1)
    prompts = {number: line for number, line in lines if line.strip()}
    if not prompts:
        raise InputError(f"{o.prompts} has no prompt; write one in each line")
    check_blank(o, prompts.values())
    return prompts


def patterns_of(o, pattern_of) -> list:
    """The pattern (L,) of each prompt, by sample.py's `pattern_of`. Raises InputError."""
    patterns = []
    for number, prompt in read_prompts(o).items():
        try:
            patterns.append(pattern_of(replace(o, prompt=prompt)))
        except InputError as e:
            raise InputError(f"{o.prompts}, line {number}: {e}") from e
    return patterns


def batches_of(o, config, pattern_of) -> list:
    """The stories of each batch, as (prompt, sample), and their patterns (B, L).

    pattern_of(o) is what sample.py makes of one prompt. The random numbers of a story are those of
    its (prompt, sample), both counted from 0, whatever else is in the file. Raises InputError."""
    patterns = patterns_of(o, pattern_of)
    stories_like = collections.defaultdict(list)
    for number, pattern in enumerate(patterns):
        free = pattern == config.mask_id                                            # (L,)
        alike = len(free), int(free.sum())
        if config.row.plan is not plan:     # it may go by where the blanks of the first row are
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
