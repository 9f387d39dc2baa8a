"""
Prompts: a text that the model goes on with, or whose blanks it fills.

Adds: ___ is a blank, <|endoftext|> is the end-of-text token, and FILE:name is what the file has.
Where tokens are words, _ is a blank of one token, and blanks need no spaces between them. What a
model cannot write is refused in one line. Costs: nothing. `pattern_of` says for every text of
sample.py what is given of it, also without a prompt. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --prompt="One day, a ___ the park."
"""
import os
import re
import sys

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
