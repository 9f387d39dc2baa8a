"""
Prompts: a text that the model goes on with, or whose blanks it fills.

Adds: ___ is a blank, <|endoftext|> is the end-of-text token, and FILE:name is what the file has.
Costs: nothing. Plugs in as

    python sample.py --out_dir=out/toy-mdlm --prompt="One day, a ___ the park."
"""
import os
import re
import sys

from support.rows import read_text


def text_ids(text: str, tokenizer) -> list:
    """Token ids of a text that goes on.

    GPT-2's tokens hold the blank before a word. So where a text ends in blanks, it is encoded with
    a letter after it, whose token, and the blank in it, is then left to the model."""
    if tokenizer.kind == "gpt2" and text[-1:].isspace():
        return tokenizer.encode_marked(f"{text}t")[:-1]
    return tokenizer.encode_marked(text)


def prompt_ids(prompt: str, blank: list, tokenizer) -> list:
    """Token ids of the prompt, with those of `blank` for each ___ in it. Raises InputError."""
    if prompt.startswith("FILE:"):
        prompt = read_text(os.path.expanduser(prompt.removeprefix("FILE:")))
    ids = []
    for i, piece in enumerate(re.split("_{3,}", prompt)):
        if i > 0:
            ids += blank
        ids += text_ids(piece, tokenizer)
    if tokenizer.kind == "gpt2" and prompt.endswith(" "):
        print("the blank at the end of --prompt is left to the model, because GPT-2's tokens hold "
              "the blank before a word", file=sys.stderr)
    if ids[:1] == [tokenizer.eot]:      # it begins every window anyway
        ids = ids[1:]
    return ids
