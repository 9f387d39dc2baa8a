"""
Prompts: a text that the model goes on with, or whose blanks it fills.

Adds: ___ is a blank, <|endoftext|> is the end-of-text token, and FILE:name is what the file has.
Where tokens are words, _ is a blank of one token, and blanks need no spaces between them.
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
