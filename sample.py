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
from typing import Literal

import numpy as np
import torch

import model as plain
from support.flags import (
    InputError, build, command, flag, parse_flags, pick_device, plugin, printable, provenance,
    write_json)
from support.pictures import in_shape, on_one_line, play, token_texts
from support.rows import usable, write_rows
from support.runs import load
from tokenizer import Tokenizer
from worlds import columns_of, world_of


@dataclass
class SampleOptions(plain.Drawing):
    """what to write, and how"""
    out_dir: str = flag("", "the run to sample from; its best.pt is read")
    num_samples: int = flag(3, "stories; with --prompts of each, and default 1", low=1)
    length: int = flag(
        0, "tokens a story; default: the window, or the prompt if it has blanks", low=0)
    prompt: str = flag(
        "", "begin with this text, or with that of FILE:name; ___ in it is a blank to be filled "
        "(mdlm, aogpt); where tokens are words, _ is a blank of one", as_typed=True)
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
    protocol: Literal["own", "paper"] = flag(
        "own", "paper: what arXiv 2603.22075 did, for flags that are not given")
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


def generate(model, stories, pattern: torch.Tensor, o: SampleOptions, variant=plain, sampler=None):
    """Tokens (B, L) of the stories with these numbers, and the pass (B, L) at which each appeared.

    The latter is -1 where a token was given. pattern (L,) or (B, L) has the tokens that are given,
    and [MASK] elsewhere. `write` of model.py fills them, unless there is a sampler, which takes
    (model, tokens, times, noise, o) and yields tokens as `write` does. Without o.full_length ar
    stops when every story has ended, and leaves [MASK] from there on."""
    config, device = model.config, model.head.weight.device
    if pattern.size(-1) > config.block_size:
        from extras.long import generate_in_parts
        return generate_in_parts(generate, model, stories, pattern, o, variant, sampler)
    noise = noise_of(o.seed, stories, device)
    tokens = pattern.to(device).expand(len(stories), -1)                            # (B, L)
    u = noise(tokens.size(1))                                                       # (B, L)
    times = config.times(u)                                                         # (B, L)
    if o.order:
        from extras.orders import times_of
        times = times_of(o.order, u)
    if sampler:
        states = sampler(model, tokens, times, noise, o)
    else:
        read = variant.read_slots
        if o.cache:
            from extras import cache
            read = getattr(variant, "reader", cache.reader)(model, read)
        # A variant's plan may have an order of its own, but one that is asked for is kept.
        plan = plain.plan if o.order else variant.plan
        order, edges = plan(config, tokens, times, o.steps)
        u = noise(tokens.size(1))                                                   # (B, L)
        states = plain.write(model, tokens, order, edges, u, o, read)
    free = tokens == config.mask_id                                                 # (B, L)
    appeared = torch.where(free, 0, -1)                                             # (B, L)
    for tokens in states:
        appeared += tokens == config.mask_id        # it counts the passes that left a token masked
        ended = (free & (tokens == config.bos_id)).any(dim=1)                       # (B,)
        if config.mode == "ar" and not o.full_length and ended.all():
            break
    return tokens, appeared


# ---- The command ---------------------------------------------------------------------------------

def open_model(folder: str, device: str = "auto"):
    """The best model of a run, the module of its variant, its tokenizer, and its kind of windows.

    Raises OSError, InputError."""
    path = os.path.join(folder, "best.pt")
    model, variant, saved = load(path, pick_device(device))
    with usable(path):
        return model, variant, Tokenizer(**saved["tokenizer"]), saved["windows"]


def rows_of(stories, tokens, appeared, config, tokenizer, o: SampleOptions):
    """Yields what the file has of each story, from what `generate` returns.

    Only an end-of-text after the last token of the prompt ends a story; one that was written into a
    blank does not."""
    for story, ids, steps in zip(stories, tokens.tolist(), appeared.tolist()):
        given = max((i for i, step in enumerate(steps, 1) if step < 0), default=0)
        end = [*ids, tokenizer.eot].index(tokenizer.eot, given)
        kept = len(ids) if o.full_length else end
        written = len(ids)
        if config.mode == "ar" and not o.full_length:
            written = end + 1       # ar stops here; the others have written the rest too
        passes = [step for step in steps[:written] if step >= 0]
        yield {
            "story": story,
            "text": tokenizer.decode(ids[:kept]),
            "tokens": ids[:kept],
            "pieces": token_texts(tokenizer, ids[:kept], config.mask_id),
            "appeared": steps[:kept],
            "passes": len(set(passes)),
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
                        plugins={"sampler": "samplers"}, implied={"--protocol=paper": "confidence"})
    if "out_dir" not in flags:
        raise InputError("which model? give --out_dir=DIR, the folder that train.py wrote")
    model, variant, tokenizer, windows = open_model(flags["out_dir"], flags.get("device", "auto"))
    config = model.config
    if flags.get("prompts"):
        flags = {"num_samples": 1, "prompt": ""} | flags
    if flags.get("protocol") == "paper":
        from variants.paper import protocol_of
        flags = protocol_of(config) | flags
    o = build(SampleOptions, flags)
    from extras import prompts
    prompts.check_flags_for(o, config)
    # The stories of each batch, and what is given of them.
    if o.prompts:
        batches = prompts.batches_of(o, config, tokenizer, windows, variant)
    else:
        pattern = prompts.pattern_of(o, config, tokenizer, windows, variant)
        batches = [(range(o.num_samples)[first:first + o.batch_size], pattern)
                   for first in range(0, o.num_samples, o.batch_size)]
    sampler = None
    if o.sampler:
        sampler = plugin("samplers", o.sampler).sampler(config, o, flags)
        if not sampler:
            raise InputError(f"sampler() of samplers/{o.sampler}.py must return a function")
    out = o.out or os.path.join(o.out_dir, "shown.jsonl" if o.show else "samples.jsonl")
    length = min(pattern.size(-1) for _, pattern in batches)
    o = replace(o, out=out, length=length, full_length=o.full_length or windows == "paper")

    start = "story" if windows == "aligned" else "anywhere"
    columns = columns_of(tokenizer)             # of a text that has a shape
    own = getattr(sampler, "keywords", {})      # a sampler with flags of its own is a partial
    settings = asdict(o) | own | provenance(o.seed) | {
        "start": start, "mode": config.mode, "vocab_size": config.vocab_size, "columns": columns}
    began = time.perf_counter()

    def each_row():
        for stories, pattern in batches:
            tokens, appeared = generate(model, stories, pattern, o, variant, sampler)
            yield from rows_of(stories, tokens, appeared, config, tokenizer, o)

    in_turn = prompts.in_order(each_row(), o) if o.prompts else each_row()
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
    if o.json:
        write_json(o.json, summary)


if __name__ == "__main__":
    command(main, "a file of stories that is not complete ends in .tmp")
