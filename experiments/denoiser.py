"""
What does a sampler lose by its own rule, and what by its network?

    python -m experiments.denoiser ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt --plot=F

It is the first table of results/sampling.md. Each NAME=FOLDER is a run of the toy. Every sampler of
its mode writes 10,000 stories with it, and as many with the perfect network, which is the law
itself. There only the rule can be at fault. A row has

    passes, tokens a pass       of a story, on average; a story has 48 tokens
    grammatical, kl, surprise   how far the stories are from the law, see `distance` in oracle.py
    s a story                   with --seconds=N: seconds for a story, of N that are written one at
                                a time, and of N written 64 at a time

The networks share the random numbers of each sampler. In the figure a sampler has the same colour
with all of them.

The expected answer: with one token a pass the law breaks no story, so what a trained network breaks
there is its own fault. With several tokens a pass the law breaks nearly as many stories as a
trained network, so that is the fault of the rule. Rules that ask how sure the network is break few.
But a rule without broken stories may still be wrong: confidence looks at what it drew, and its kl
is large. The answer would be refuted if the law broke few stories where trained networks break
many, or if confidence had no larger kl than adaptive has.

The four networks of run_all.sh take two hours on one core of a busy CPU. More than half of that are
mdlm's samplers without blocks.
"""
import itertools
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from experiments.held_out import Output, finished_run
from experiments.oracle import distance, toy_oracle
from samplers import adaptive, ancestral, confidence, drafts
from sample import SampleOptions, generate, open_model, plain_sampler
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.pictures import figure
from support.runs import origin_of
from worlds.toy import TOY

# For each mode {sampler: {flag: its values}}; each combination of the values is a row.
SAMPLERS = {
    "ar": {
        "left_to_right": {}},
    "mdlm": {
        "first_hitting": {"steps": [48, 24, 12, 6]},
        "ancestral": {"steps": [48]},
        "confidence": {"steps": [48, 24]},
        "adaptive": {"risk": [0.01, 0.03, 0.1, 1.0]}},
    "aogpt": {
        "any_order": {"steps": [48, 24, 12, 6]},
        "draft": {"draft": [4, 16, 48]}}}

EXTRAS = {"ancestral": ancestral, "confidence": confidence, "adaptive": adaptive, "draft": drafts}
FOR_BLOCKS = "first_hitting", "adaptive"        # of runs of mdlm with --variant=blocks
SEED = 1337                                     # of the stories
AT_ONCE = 1, 64                                 # stories whose writing is timed
LAW = "the law"


@dataclass
class DenoiserOptions(Output):
    """what to write"""
    num_samples: int = flag(10000, "stories of each row", low=1)
    seconds: int = flag(0, "stories to time in each row of a trained network", low=0)


# ---- Writing, measured ---------------------------------------------------------------------------

def written_by(model, stories, sampler: str, settings: dict) -> tuple:
    """What `generate` returns of the stories with these numbers."""
    o = build(SampleOptions, settings | {"seed": SEED, "full_length": True})
    make_sampler = plain_sampler
    if sampler in EXTRAS:
        make_sampler = partial(EXTRAS[sampler].sampler, flags=settings)
    blank = torch.full((model.config.block_size,), model.config.mask_id)
    return generate(model, stories, blank, o, make_sampler)


def write(model, tokenizer, num_samples: int, sampler: str, settings: dict) -> dict:
    """Passes of so many stories, and how far they are from the law."""
    T = model.config.block_size
    texts = []
    passes = 0
    for first in range(0, num_samples, 100):
        stories = range(first, min(first + 100, num_samples))
        tokens, appeared = written_by(model, stories, sampler, settings)
        texts += [tokenizer.decode_story(ids) for ids in tokens.tolist()]
        for steps in appeared.tolist():
            passes += len(set(steps))       # what is finished waits for its batch
    return {
        "passes": passes / num_samples,
        "tokens_per_pass": T * num_samples / passes,
        **distance(texts)}


def seconds_a_story(model, at_once: int, sampler: str, settings: dict, o) -> float:
    """The median over batches of o.seconds stories in all, or a few more. The first warms up."""
    ticks = []
    for first in range(0, at_once + o.seconds, at_once):
        written_by(model, range(first, first + at_once), sampler, settings)
        ticks.append(time.perf_counter())
    return float(np.median(np.diff(ticks))) / at_once


def ways(config):
    """Yields the samplers for such a network, each with each of its settings."""
    in_blocks = not config.row.causal and hasattr(config, "block_length")
    for sampler, values in SAMPLERS[config.mode].items():
        if in_blocks and sampler not in FOR_BLOCKS:
            continue
        for combination in itertools.product(*values.values()):
            settings = dict(zip(values, combination))
            yield sampler, settings


def measure(network: str, model, tokenizer, o: DenoiserOptions):
    """Yields a row for each way to write."""
    config = model.config
    in_blocks = hasattr(config, "block_length")
    orders = f"blocks:{config.block_length}" if in_blocks else ""
    for sampler, settings in ways(config):
        how = sampler, settings
        row = {
            "network": network,
            "sampler": " ".join(filter(None, [config.mode, orders, sampler])),
            "settings": settings}
        row |= write(model, tokenizer, o.num_samples, *how)
        row["seconds"] = []
        if o.seconds and network != LAW:
            for at_once in AT_ONCE:
                row["seconds"].append(seconds_a_story(model, at_once, *how, o))
        yield row


# ---- All rows, and the figure --------------------------------------------------------------------

def draw_denoiser(rows: list, path: str):
    """Grammatical stories against tokens a pass, with the law left, with trained networks right."""
    lines = {}          # {sampler: {network: its points}}
    for row in rows:
        if not row["sampler"].endswith("ancestral"):        # a single point
            of_sampler = lines.setdefault(row["sampler"], {})
            points = of_sampler.setdefault(row["network"], [])
            points.append((row["tokens_per_pass"], 100 * row["grammatical"]))
    with figure(path, (8.5, 5), columns=2) as (left, right):
        for i, (sampler, of_sampler) in enumerate(lines.items()):
            for network, points in of_sampler.items():
                axes = left if network == LAW else right
                axes.plot(*zip(*points), "so^"[i % 3], ls="-", color=f"C{i}", ms=5, label=sampler)
        left.set(title=LAW, xlabel="tokens a pass", ylabel="grammatical stories, %")
        right.set(title="trained networks", xlabel="tokens a pass")


def main():
    flags = parse_flags(__doc__, DenoiserOptions, named="NAME=FOLDER")
    o = build(DenoiserOptions, flags)
    networks = []
    runs = {}
    for name, folder in flags["named"].items():
        finished_run(folder)
        runs[name] = {"folder": folder} | origin_of(folder)
        model, tokenizer, _ = open_model(folder, "cpu")
        if tokenizer.words != TOY.words():
            raise InputError(f"{folder} is no run of the toy, whose law is known")
        law = toy_oracle(model.config.mode, getattr(model.config, "block_length", None))
        networks += [(name, model), (LAW, law)]
    rows = []
    for name, model in networks:
        for row in measure(name, model, tokenizer, o):
            print(row, flush=True)
            rows.append(row)
            if o.json:
                write_json(o.json, provenance(SEED) | {"runs": runs, "rows": rows})
    if o.plot:
        draw_denoiser(rows, o.plot)


if __name__ == "__main__":
    command(main, "with --json, what was measured is in its file")
