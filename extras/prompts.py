"""
Prompts: a text that the model goes on with, or whose blanks it fills; one, or a file of many.

Adds: ___ is a blank, <|endoftext|> is the end-of-text token, and FILE:name is what the file has.
Where tokens are words, _ is a blank of one token, and blanks need no spaces between them. What a
model cannot write is refused in one line. `pattern_of` says for every text of sample.py what is
given of it, also without a prompt. Of a file each line is a prompt; they are written in batches, in
which a text does not depend on the others. Costs: nothing; but only prompts of the same length, and
with equally many tokens to write, share a batch. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --prompt="One day, a ___ the park."
    python sample.py --out_dir=out/toy-mdlm --prompts=mine.txt --num_samples=2
"""
import collections
import os
import re
import sys
from dataclasses import replace

import torch

import model as plain
from support.flags import InputError
from support.rows import read_text


def text_ids(text: str, tokenizer) -> list:
    """Token ids of a text that goes on.

    GPT-2's tokens hold the blank before a word. So where a text ends in blanks, it is encoded with
    a letter after it, whose token, and the blank in it, is then left to the model."""
    if tokenizer.kind == "gpt2" and text[-1:].isspace():
        return tokenizer.encode_marked(f"{text}t")[:-1]
    return tokenizer.encode_marked(text)


def blanks_apart(run: re.Match) -> str:
    """A run of underscores as blanks of three and then of one, with spaces around each."""
    blanks, single = divmod(len(run[0]), 3)
    return f" {'___ ' * blanks}{'_ ' * single}"


def prompt_ids(prompt: str, blank: list, tokenizer) -> list:
    """Token ids of the prompt, with those of `blank` for each ___ in it. Raises InputError.

    Of a text of words an underscore is a blank too, unless it touches a letter or a digit."""
    if prompt.startswith("FILE:"):
        prompt = read_text(os.path.expanduser(prompt.removeprefix("FILE:")))
    blanks = "(_{3,})"
    if tokenizer.kind == "words":
        prompt = re.sub(r"(?<!\w)_+(?!\w)", blanks_apart, prompt)
        blanks = r"(_{3,}|(?<!\w)_(?!\w))"
    ids = []
    for i, piece in enumerate(re.split(blanks, prompt)):
        if i % 2 == 0:
            ids += text_ids(piece, tokenizer)
        else:
            ids += blank if len(piece) > 1 else blank[:1]
    if tokenizer.kind == "gpt2" and prompt.endswith(" "):
        print("the blank at the end of --prompt is left to the model, because GPT-2's tokens hold "
              "the blank before a word", file=sys.stderr)
    if ids[:1] == [tokenizer.eot]:      # it begins every window anyway
        ids = ids[1:]
    return ids


# ---- What is given, and what is to be written ----------------------------------------------------

def pattern_of(o, config, tokenizer, windows: str, variant=plain) -> torch.Tensor:
    """(L,) the tokens that are given, and [MASK] where one is to be written.

    Raises InputError for what this model cannot do."""
    ids = []
    if o.prompt:
        ids = prompt_ids(o.prompt, [config.mask_id] * o.blank, tokenizer)
    blanks = ids.count(config.mask_id)
    T = config.block_size
    can_go_on = windows == "random" and not blanks      # beyond the window
    length = o.length or (min(len(ids), T) if blanks else T)
    if length > T and not can_go_on:
        raise InputError(f"--length={length} must not exceed the window, {T}; a text can go on "
                         "only if it has no blanks and windows began anywhere")
    n = length - len(ids) + blanks                      # tokens to write
    if n < max(1, blanks):
        of_blanks = f", {blanks} of them in blanks (--blank={o.blank})" if blanks else ""
        remedy = "give a larger --length" if len(ids) < T or can_go_on else "take fewer"
        raise InputError(f"--prompt has {len(ids)} tokens{of_blanks}, which leaves nothing to "
                         f"write in a text of {length}; {remedy}")
    if o.steps > n and o.sampler != "ancestral":
        raise InputError(f"--steps={o.steps} must not exceed the {n} tokens to write")
    pattern = torch.tensor(ids + [config.mask_id] * (length - len(ids)))            # (L,)
    getattr(variant, "check_pattern", check_pattern)(config, pattern)
    return pattern


def check_pattern(config, pattern: torch.Tensor):
    """Raises InputError where ar would have to go back."""
    free = pattern == config.mask_id                                                # (L,)
    if config.mode == "ar" and (free[:-1] & ~free[1:]).any():
        raise InputError("--prompt has words where ar should have written before; mdlm and aogpt "
                         "can fill such a blank")


def check_flags_for(o, config):
    """Raises InputError for a flag that would do nothing."""
    useless = {}
    if config.mode == "ar":
        useless = dict.fromkeys(["steps", "order"], "for ar")
    elif config.mode == "mdlm" and hasattr(config, "block_length"):
        useless["order"] = "for a model that was trained in blocks"
    elif config.mode == "mdlm":
        useless["cache"] = "for mdlm"
    if not o.prompts and "___" not in o.prompt and not o.prompt.startswith("FILE:"):
        useless["blank"] = "without ___ in --prompt"
    for name, where in useless.items():
        if getattr(o, name) != getattr(type(o), name):
            raise InputError(f"--{name}={getattr(o, name)} means nothing {where}; leave it out")


# ---- A file of prompts ----------------------------------------------------------------------------

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
