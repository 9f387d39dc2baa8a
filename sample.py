"""
Write stories with a trained model, or fill the blanks of one.

    python sample.py --out_dir=out/toy-mdlm --num_samples=1000 --steps=24
    python sample.py --out_dir=out/toy-mdlm --prompt="One day, a ___ the park." --show
    python sample.py --out_dir=out/toy-mdlm --num_samples=1000 --sampler=adaptive
    python sample.py --out_dir=out/toy-aogpt --sampler=drafts --draft=16
    python sample.py --out_dir=out/toy-mdlm --prompts=mine.txt

A pass is one run of the network. Several tokens in one pass are drawn independently of each other,
which is faster but not exact. How a model writes is in model.py; other ways are files of
samplers/, which --sampler chooses. A story ends at the first end-of-text after its prompt.
"""
import os
import time
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch

from model import Drawing, draw_with, read_next, write
from support.flags import (
    InputError, build, command, flag, names_in, parse_flags, pick_device, plugin, printable,
    provenance, write_json)
from support.pictures import in_shape, on_one_line, play, token_texts
from support.rows import usable, write_rows
from support.runs import load
from tokenizer import Tokenizer
from worlds import columns_of, world_of


@dataclass
class SampleOptions(Drawing):
    """what to write, and how"""
    temperature: float = flag(
        1.0, "1 draws from the model's distribution, 0 takes the likeliest token", low=0)
    top_p: float = flag(
        1.0, "keep the likeliest tokens with this much probability", low=1e-9, high=1)
    out_dir: str = flag("", "the run to sample from; its best.pt is read")
    num_samples: int = flag(3, "stories; with --prompts of each, and default 1", low=1)
    length: int = flag(
        0, "tokens a story; default: the window, or the prompt if it has blanks", low=0)
    prompt: str = flag(
        "", "begin with this text, or with that of FILE:name; ___ in it is a blank to be filled "
        "(mdlm, aogpt); where tokens are words, _ is a blank of one")
    prompts: str = flag("", "file with a prompt in each line, all of which are written")
    blank: int = flag(8, "tokens of a blank", low=1)
    steps: int = flag(
        0, "passes a story (mdlm, aogpt), or a few more in blocks and beyond the window; default: "
        "one a token", low=0)
    order: str = flag(
        "", "mdlm, aogpt: random, left_to_right, blocks:N, or all positions as wanted: 2,0,1; "
        "default: as in training")
    sampler: str = flag(
        "", "file of samplers/ that writes in another way")
    cache: bool = flag(True, "ar, aogpt: keep what the network has computed for earlier tokens")
    batch_size: int = flag(64, "stories at a time; changes speed, not stories", low=1)
    full_length: bool = flag(False, "keep what comes after the end of the story")
    show: bool = flag(False, "watch the tokens appear")
    out: str = flag(
        "", "file of stories; default: in out_dir samples.jsonl, with --show shown.jsonl",
        file=(".jsonl",))
    json: str = flag("", "file for settings, seconds, passes, grammatical share", file=(".json",))
    seed: int = flag(1337, "of the stories", low=0, high=10 ** 15)
    device: str = flag("auto", "auto, cpu, cuda or mps")


MOST_USED = ("out_dir", "num_samples", "prompt", "steps", "sampler", "temperature", "top_p", "show")


# ---- Writing -------------------------------------------------------------------------------------

def noise_of(seed: int, stories, device: torch.device):
    """A function that gives (B, n) new uniform numbers in [0, 1) for these B stories, in float64.

    Every story has numbers of its own, so it does not depend on what else is in its batch."""
    generators = [np.random.default_rng((seed, story)) for story in stories]

    def noise(n: int) -> torch.Tensor:
        u = torch.from_numpy(np.stack([generator.random(n) for generator in generators]))
        return u.to("cpu" if device.type == "mps" else device)      # mps has no float64

    return noise


def times_of(config, o, u: torch.Tensor) -> torch.Tensor:
    """When each place is to be written (B, L), the smallest first, from uniform u (B, L)."""
    if o.order:
        from extras.orders import times_in_order
        return times_in_order(o.order, u)
    return config.row.times(config, u)


def plain_sampler(config, o):
    """The sampler where none is named: `write` of model.py, with equally many tokens a pass.

    A sampler gets the model, tokens (B, L) with [MASK]s, times (B, L) as in `plan`, decide as in
    `write`, and noise as in `noise_of`; it yields the tokens after each pass."""
    def sampler(model, tokens, times, decide, noise):
        order, edges = config.row.plan(config, tokens, times, o.steps)
        read = read_next
        if o.cache and config.row.reader:
            read = config.row.reader(model)
        elif o.cache and config.row.causal:
            from extras.cache import Cache
            read = Cache(model)
        return write(model, tokens, order, edges, decide, read)

    return sampler


def sampler_of(config, o, flags: dict) -> tuple:
    """What makes a sampler, the plain one or that of --sampler, and the values of its own flags.

    Raises InputError where that cannot write with this model and these options."""
    if not o.sampler:
        return plain_sampler, {}
    file = plugin("samplers", o.sampler)
    file.sampler(config, o, flags)      # raises now what it would later
    own = asdict(build(file.Options, flags)) if hasattr(file, "Options") else {}
    return partial(file.sampler, flags=flags), own


def generate(model, stories, pattern: torch.Tensor, o: SampleOptions, make_sampler=plain_sampler):
    """Tokens (B, L) of the stories with these numbers, and the pass (B, L) at which each appeared.

    The latter is -1 where a token was given. pattern (L,) or (B, L) has the tokens that are given,
    and [MASK] elsewhere. The sampler is make_sampler(config, o), and a new one for each part of a
    text beyond the window. Without o.full_length a GPT stops when every story has ended, and leaves
    [MASK] from there on."""
    config, device = model.config, model.head.weight.device
    if pattern.size(-1) > config.block_size:
        from extras.long import generate_in_parts
        return generate_in_parts(generate, model, stories, pattern, o, make_sampler)
    noise = noise_of(o.seed, stories, device)
    tokens = pattern.to(device).expand(len(stories), -1)                            # (B, L)
    times = times_of(config, o, noise(tokens.size(1)))                              # (B, L)
    decide = draw_with(noise(tokens.size(1)), o)
    free = tokens == config.mask_id                                                 # (B, L)
    appeared = torch.where(free, 0, -1)                                             # (B, L)
    for tokens in make_sampler(config, o)(model, tokens, times, decide, noise):
        masked = tokens == config.mask_id                                           # (B, L)
        appeared += masked          # it counts the passes that left a token masked
        if config.row.orders == "one" and not o.full_length:
            # A story has ended if it has an end-of-text, and no [MASK] before that.
            end = free & (tokens == config.bos_id) & (masked.cumsum(dim=1) == 0)    # (B, L)
            if end.any(dim=1).all():
                break
    return tokens, appeared


# ---- What is given, and what is to be written ----------------------------------------------------

def prompt_ids(o: SampleOptions, config, tokenizer) -> list:
    """Token ids of --prompt, with [MASK]s for its blanks. Raises InputError."""
    if "_" in o.prompt or o.prompt.startswith("FILE:"):
        from extras.prompts import with_blanks
        return with_blanks(o, config, tokenizer)
    return tokenizer.encode_open(o.prompt)


def pattern_of(o: SampleOptions, config, tokenizer, windows: str) -> torch.Tensor:
    """(L,) the tokens that are given, and [MASK] where one is to be written.

    Raises InputError for what this model cannot do."""
    ids = prompt_ids(o, config, tokenizer)
    if ids[:1] == [tokenizer.eot]:      # it begins every window anyway
        ids = ids[1:]
    if not ids and not config.row.whole:
        raise InputError("give --prompt; this model has not learned to write what comes before it")
    blanks = ids.count(config.mask_id)
    T = config.block_size
    can_go_on = windows == "random" and not blanks      # beyond the window
    length = o.length or (min(len(ids), T) if blanks else T)
    if length > T and not can_go_on:
        raise InputError(f"--length={length} must not exceed the window, {T}; a text can go on "
                         "only if it has no blanks and windows began anywhere")
    n = length - len(ids) + blanks                      # tokens to write
    if n < max(1, blanks):
        raise InputError(f"--prompt has {len(ids)} tokens, {blanks} of them in blanks, which "
                         f"leaves nothing to write in a text of {length}; change --length")
    if o.steps > n and o.sampler != "ancestral":        # whose steps may be empty
        raise InputError(f"--steps={o.steps} must not exceed the {n} tokens to write")
    pattern = torch.tensor(ids + [config.mask_id] * (length - len(ids)))            # (L,)
    check_pattern(config, pattern)
    times_of(config, o, torch.zeros(1, min(length, T)))     # raises now what it would later
    return pattern


def check_pattern(config, pattern: torch.Tensor):
    """Raises InputError where a model would have to go back in its order."""
    row = config.row
    if row.check_prompt:
        row.check_prompt(config, pattern)
    if row.orders == "one":
        times = row.times(config, torch.zeros(1, len(pattern)))[0]                  # (L,)
        free = (pattern == config.mask_id)[times.argsort()]     # (L,) in turn
        if (free[:-1] & ~free[1:]).any():
            raise InputError("--prompt has words where the model should have written before; mdlm "
                             "and aogpt can fill such a blank")


def check_flags(o: SampleOptions, config):
    """Raises InputError for a flag that would do nothing."""
    in_vain = {"steps": config.row.orders == "one", "order": config.row.orders != "any"}
    for name in in_vain:
        if in_vain[name] and getattr(o, name):
            raise InputError(f"--{name}={getattr(o, name)} means nothing for this model, which "
                             "has an order of its own; leave it out")
    if o.blank != SampleOptions.blank and not o.prompts:
        from extras.prompts import check_blank
        check_blank(o, [o.prompt])


# ---- The command ---------------------------------------------------------------------------------

def open_model(folder: str, device: str = "auto"):
    """The best model of a run, its tokenizer, and its kind of windows. Raises OSError, InputError.
    """
    path = os.path.join(folder, "best.pt")
    model, saved = load(path, pick_device(device))
    with usable(path):
        return model, Tokenizer(**saved["tokenizer"]), saved["windows"]


def rows_of(stories, tokens, appeared, config, tokenizer, o: SampleOptions):
    """Yields what the file has of each story, from what `generate` returns.

    Only an end-of-text after the last token of the prompt ends a story; one that was written into a
    blank does not."""
    for story, ids, steps in zip(stories, tokens.tolist(), appeared.tolist()):
        given = max((i for i, step in enumerate(steps, 1) if step < 0), default=0)
        end = [*ids, tokenizer.eot].index(tokenizer.eot, given)     # of the story, at most L
        kept = len(ids) if o.full_length else end
        written = len(ids)
        if config.row.orders == "one" and not o.full_length:
            written = end + 1       # a GPT stops here; the others have written the rest too
        passes = [step for step in steps[:written] if step >= 0]
        yield {
            "story": story,
            "text": tokenizer.decode(ids[:kept]),
            "tokens": ids[:kept],
            "pieces": token_texts(tokenizer, ids[:kept], config.mask_id),
            "appeared": steps[:kept],
            "passes": max(passes) + 1,
            "written": len(passes),
        }


def summary_of(rows: list, tokenizer, o: SampleOptions, start: str) -> dict:
    """Passes and tokens of the stories; of a world, the share of them that obeys its rules."""
    passes = sum(row["passes"] for row in rows)
    written = sum(row["written"] for row in rows)
    summary = {"passes": passes / len(rows), "tokens_per_pass": written / passes}
    # What begins in the middle or is cut off cannot obey the rules. All texts of a world have
    # equally many words, so the mean is the length of each.
    world = world_of(tokenizer)
    if world and start == "story" and o.length >= world.mean_words() and not o.full_length:
        right = [world.is_right(row["text"]) for row in rows]
        summary["grammatical"] = sum(right) / len(rows)
    return summary


def main():
    flags = parse_flags(__doc__, SampleOptions, first=MOST_USED,
                        plugins={"sampler": "samplers"})
    if "out_dir" not in flags:
        raise InputError("which model? give --out_dir=DIR, the folder that train.py wrote")
    model, tokenizer, windows = open_model(flags["out_dir"], flags.get("device", "auto"))
    config = model.config
    if flags.get("prompts"):
        flags = {"num_samples": 1} | flags
    o = build(SampleOptions, flags)
    check_flags(o, config)
    # The stories of each batch, and what is given of them.
    if o.prompts:
        from extras.prompts import batches_of, in_order
        batches = batches_of(o, config, lambda o: pattern_of(o, config, tokenizer, windows))
    else:
        pattern = pattern_of(o, config, tokenizer, windows)
        batches = [(range(o.num_samples)[first:first + o.batch_size], pattern)
                   for first in range(0, o.num_samples, o.batch_size)]
    make_sampler, own = sampler_of(config, o, flags)
    out = o.out or os.path.join(o.out_dir, "shown.jsonl" if o.show else "samples.jsonl")
    length = min(pattern.size(-1) for _, pattern in batches)
    o = replace(o, out=out, length=length, full_length=o.full_length or windows == "paper")

    start = "story" if windows == "aligned" else "anywhere"
    columns = columns_of(tokenizer)             # of a text that has a shape
    settings = asdict(o) | own | provenance(o.seed) | {
        "start": start, "mode": config.mode, "vocab_size": config.vocab_size, "columns": columns}
    began = time.perf_counter()

    def each_row():
        for stories, pattern in batches:
            tokens, appeared = generate(model, stories, pattern, o, make_sampler)
            yield from rows_of(stories, tokens, appeared, config, tokenizer, o)

    in_turn = in_order(each_row(), o) if o.prompts else each_row()
    rows = write_rows(o.out, settings, in_turn, sum(len(stories) for stories, _ in batches))
    summary = settings | summary_of(rows, tokenizer, o, start)
    summary["seconds"] = time.perf_counter() - began

    for row in rows if o.show or o.prompts else rows[:3]:
        if o.show:
            play([(config.mode, row["pieces"], row["appeared"], columns)])
        elif o.prompts:
            print(on_one_line(row["text"]))
        else:
            print(in_shape(printable(row["text"]), columns), end="\n\n")
    print("{} stories in {out}, {seconds:.1f} s, {passes:.3g} passes of {tokens_per_pass:.3g} "
          "tokens each".format(len(rows), **summary))
    if "grammatical" in summary:
        print(f"{summary['grammatical']:.1%} of them obey the rules")
    if o.show and "page" in names_in("extras"):
        from extras.page import say_page
        say_page(config, o.out_dir)
    if o.json:
        write_json(o.json, summary)


if __name__ == "__main__":
    command(main, "a file of stories that is not complete ends in .tmp")
