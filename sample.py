"""
Write stories with a trained model, or fill the blanks of one.

    python sample.py --out_dir=out/toy-mdlm --num_samples=1000 --steps=24
    python sample.py --out_dir=out/toy-mdlm --prompt="One day, a ___ the park." --show
    python sample.py --out_dir=out/toy-mdlm --num_samples=1000 --sampler=adaptive
    python sample.py --out_dir=out/toy-aogpt --draft=16

A pass is one run of the network. Several tokens in one pass are drawn independently of each other,
which is faster but not exact; with --draft it is exact, because a second pass checks them. How each
mode writes is in samplers.py. Stories are cut at the first end-of-text.
"""
import json
import math
import os
import re
import sys
import time
from dataclasses import asdict, replace

import torch
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, printable, provenance, write_json
from model import Config
from objectives import draw_orders
from prepare_data import read_text
from runs import open_locked, open_model
from samplers import SampleOptions, generate, left_of_blank, times_of
from show import play, token_texts
from toy import TOY

MOST_USED = ("out_dir", "num_samples", "prompt", "steps", "draft", "temperature", "top_p", "show")

# The modes for which these flags mean something; the last two are for the sampler confidence.
ONLY_FOR = {
    "protocol": ["ar", "mdlm"],
    "steps": ["mdlm", "aogpt"],
    "order": ["aogpt"],
    "draft": ["aogpt"],
    "sampler": ["mdlm"],
    "final_temperature": ["mdlm"],
    "repetition_penalty": ["mdlm"],
}

# What the paper's code did (arXiv 2603.22075); `complete` has its length, steps, final temperature.
PAPER = {
    "ar": dict(temperature=0.8, full_length=True, prompt="Once"),
    "mdlm": dict(
        temperature=0.8, full_length=True, sampler="confidence", repetition_penalty=1.3),
}


def check_flags_for(o: SampleOptions, mode: str):
    """Raises InputError for a flag that would do nothing."""
    useless = {}
    for name, modes in ONLY_FOR.items():
        if mode not in modes:
            useless[name] = f"for {mode}"
    if o.sampler != "confidence":
        useless |= dict.fromkeys(["final_temperature", "repetition_penalty"],
                                 "without --sampler=confidence")
    if o.sampler != "adaptive":
        useless["risk"] = "without --sampler=adaptive"
    if o.draft or o.sampler == "adaptive":
        useless["steps"] = "with --draft" if o.draft else "with --sampler=adaptive"
    if "___" not in o.prompt:
        useless["blank"] = "without ___ in --prompt"
    for name, where in useless.items():
        value = getattr(o, name)
        if value != getattr(SampleOptions, name):
            raise InputError(f"--{name}={value} means nothing {where}; leave it out")


def prompt_ids(o: SampleOptions, config: Config, tokenizer) -> list:
    """Token ids of the prompt, with so many [MASK] for each blank."""
    ids = []
    for i, piece in enumerate(re.split("_{3,}", o.prompt)):
        if i > 0:
            ids += [config.mask_id] * o.blank
        ids += text_ids(piece, tokenizer)
    if tokenizer.kind == "gpt2" and o.prompt.endswith(" "):
        print("the blank at the end of --prompt is left to the model, because GPT-2's tokens hold "
              "the blank before a word", file=sys.stderr)
    if ids[:1] == [tokenizer.eot]:      # it begins every window anyway
        ids = ids[1:]
    return ids


def text_ids(text: str, tokenizer) -> list:
    """Token ids of a text that goes on.

    GPT-2's tokens hold the blank before a word. So where a text ends in blanks, it is encoded with
    a letter after it, whose token, and the blank in it, is then left to the model."""
    if tokenizer.kind == "gpt2" and text[-1:].isspace():
        return tokenizer.encode_marked(f"{text}t")[:-1]
    return tokenizer.encode_marked(text)


def read_prompt(prompt: str) -> str:
    """The prompt, or what the file has that it names. Raises InputError."""
    if not prompt.startswith("FILE:"):
        return prompt
    path = os.path.expanduser(prompt.removeprefix("FILE:"))
    return read_text(path)


def complete(o: SampleOptions, config: Config, tokenizer, windows: str):
    """The options with values for length and steps, and the pattern (L,): tokens given, or [MASK].

    Raises InputError for what this model cannot do."""
    o = replace(o, prompt=read_prompt(o.prompt))
    check_flags_for(o, config.mode)
    ids = prompt_ids(o, config, tokenizer)
    blanks = ids.count(config.mask_id)
    paper = o.protocol == "paper"

    # What was not given.
    usual_length = config.block_size
    if blanks:
        usual_length = len(ids)
    elif paper:
        usual_length = min(128, config.block_size)
    # Only where windows began anywhere, and without blanks, a text can go on beyond the window.
    longest = config.block_size if windows == "aligned" or blanks or paper else math.inf
    o = replace(o, length=o.length or usual_length)
    room = min(o.length, longest)
    n = blanks + room - len(ids)                    # tokens to write
    if n < max(1, blanks):
        of_blanks = f", {blanks} of them by --blank={o.blank}" if blanks else ""
        remedy = "give a larger --length" if len(ids) < longest else "take fewer"
        raise InputError(f"--prompt has {len(ids)} tokens{of_blanks}, which leaves nothing to "
                         f"write in a text of {room}; {remedy}")
    usual_steps = min(100, n) if paper and config.mode == "mdlm" else n
    o = replace(o, steps=o.steps or usual_steps, full_length=o.full_length or windows == "paper")
    o = replace(o, order=o.order or config.orders)
    if paper and o.sampler == "confidence" and o.final_temperature is None:
        o = replace(o, final_temperature=o.temperature * 2 / 5)

    # What cannot be.
    if o.length > longest:
        raise InputError(f"--length={o.length} must not exceed the window, {config.block_size}; a "
                         "text can go on only if it has no blanks and windows began anywhere")
    if o.steps > n and o.sampler != "ancestral":
        raise InputError(f"--steps={o.steps} must not exceed the {n} tokens to write")
    length_at_once = min(o.length, config.block_size)
    times_of(o.order, torch.zeros(1, length_at_once))       # raises for what is no order
    pattern = torch.tensor(ids + [config.mask_id] * (o.length - len(ids)))      # (L,)
    if config.in_blocks and o.sampler == "confidence":
        raise InputError(f"--sampler=confidence is not for --orders={config.orders}, by which this "
                         "model was trained; take another")
    is_given = pattern != config.mask_id
    if config.orders == "infill":
        has_gap = len(left_of_blank(~is_given)) > 0     # raises for what it cannot write
        if has_gap and o.order != "infill":
            raise InputError(f"--order={o.order:.40} cannot fill a blank with a model that was "
                             "trained with --orders=infill; leave it out")
    elif o.order == "infill":
        raise InputError("--order=infill is for a model that was trained with --orders=infill")
    # Unlike config.in_blocks this is true for aogpt too. left_to_right is blocks of one token.
    in_blocks = config.block_length < config.block_size and config.orders != "infill"
    if config.mode != "ar" and in_blocks:
        block = torch.arange(o.length) // config.block_length
        last_given = block.where(is_given, 0).max()
        if (~is_given & (block < last_given)).any():
            raise InputError("--prompt has words in a later block than a blank; a model that was "
                             f"trained with --orders={config.orders} cannot make use of them")
    if config.mode not in ("mdlm", "aogpt"):
        [own_order] = draw_orders(config, pattern[None], None, l2r_fraction=0.0)
        free = pattern[own_order] == config.mask_id
        if (free[:-1] & ~free[1:]).any():
            raise InputError(f"--prompt has words where {config.mode} should have written before; "
                             "mdlm and aogpt can fill such a blank")
    return o, pattern


def story_row(story: int, ids: list, appeared: list, given: int, model, tokenizer, o):
    """The line of the file for a story, and the pass of each token that was written for it.

    Only an end-of-text after the first `given` tokens, up to the last one of the prompt, ends the
    story; one that was written into a blank does not."""
    end = [*ids, tokenizer.eot].index(tokenizer.eot, given)
    kept = len(ids) if o.full_length else end
    written = len(ids)
    if model.config.mode == "ar" and not o.full_length:
        written = end + 1       # ar can stop at the end-of-text; the others have written the rest
    row = {
        "story": story,
        "text": tokenizer.decode(ids[:kept]),
        "tokens": ids[:kept],
        "pieces": token_texts(tokenizer, ids[:kept], model.config.mask_id),
        "appeared": appeared[:kept],
    }
    return row, [step for step in appeared[:written] if step >= 0]


def write_stories(model, tokenizer, windows: str, pattern, o: SampleOptions):
    """Stories into the file o.out: a line of settings, then one a story, written batch by batch.

    Returns a summary, and the lines of the first three stories, with o.show of all."""
    start = "story" if windows == "aligned" else "anywhere"
    settings = asdict(o) | provenance(o.seed)
    settings |= {"start": start, "mode": model.config.mode, "vocab_size": model.config.vocab_size}
    places = (pattern != model.config.mask_id).nonzero()                        # (given, 1)
    given = int(places[-1]) + 1 if len(places) else 0
    rows, right, passes, written = [], 0, 0, 0
    began = time.perf_counter()
    bar = tqdm(total=o.num_samples, unit="story", leave=False, disable=None)
    with open_locked(f"{o.out}.tmp") as f, bar:
        f.truncate(0)
        print(json.dumps({"settings": settings}), file=f)
        for first in range(0, o.num_samples, o.batch_size):
            stories = range(first, min(first + o.batch_size, o.num_samples))
            tokens, appeared = generate(model, stories, pattern, o)
            for story, ids, steps in zip(stories, tokens.tolist(), appeared.tolist()):
                row, steps = story_row(story, ids, steps, given, model, tokenizer, o)
                print(json.dumps(row), file=f)
                passes += len(set(steps))
                written += len(steps)
                if tokenizer.kind == "words" and TOY.log_probs(row["text"]) is not None:
                    right += 1
                if o.show or story < 3:
                    rows.append(row)
            f.flush()
            bar.update(len(stories))
    os.replace(f"{o.out}.tmp", o.out)
    seconds = time.perf_counter() - began
    summary = settings | {"seconds": seconds, "passes": passes / o.num_samples,
                          "tokens_per_pass": written / passes}
    # What begins in the middle or is cut off cannot obey the grammar. All stories of the toy have
    # equally many words, so the mean is the length of each.
    whole = start == "story" and o.length >= TOY.mean_words() and not o.full_length
    if tokenizer.kind == "words" and whole:         # of the toy, whose grammar is known
        summary["grammatical"] = right / o.num_samples
    return summary, rows


def main():
    flags = parse_flags(__doc__, SampleOptions, first=MOST_USED)
    if "out_dir" not in flags:
        raise InputError("which model? give --out_dir=DIR, the folder that train.py wrote")
    model, tokenizer, windows = open_model(flags["out_dir"], flags.get("device", "auto"))
    if model.head.weight.device.type == "cuda":
        torch.set_float32_matmul_precision("high")      # TF32
    if flags.get("protocol") == "paper":
        usual = PAPER.get(model.config.mode, {})
        if flags.get("sampler", "confidence") != "confidence":
            usual = usual | {"repetition_penalty": 1.0}     # which is for that sampler alone
        flags = usual | flags
    o, pattern = complete(build(SampleOptions, flags), model.config, tokenizer, windows)
    if not o.out:
        o = replace(o, out=os.path.join(o.out_dir, "shown.jsonl" if o.show else "samples.jsonl"))
    summary, rows = write_stories(model, tokenizer, windows, pattern, o)
    for row in rows:
        if o.show:
            play([(model.config.mode, row["pieces"], row["appeared"])])
        else:
            print(printable(row["text"]), end="\n\n")
    print("{num_samples} stories in {out}, {seconds:.1f} s, {passes:.3g} passes of "
          "{tokens_per_pass:.3g} tokens each".format(**summary))
    if "grammatical" in summary:
        print(f"{summary['grammatical']:.1%} of them obey the grammar")
    if o.json:
        write_json(o.json, summary)


if __name__ == "__main__":
    command(main, "a file of stories that is not complete ends in .tmp")
