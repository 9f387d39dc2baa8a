"""
How many tokens can a pass write, and what does it cost in quality?

    python -m experiments.steps --models=out/toy-ar,out/toy-mdlm,out/toy-aogpt --json=F --plot=G

Runs of the toy write 1,000 stories with every sampler: one token a pass, several that do not see
each other, and several that are drafted and confirmed. The same samplers then write with a perfect
network, the toy's own law, which tells what is lost by the sampler and what by the network. A row
says how many stories are grammatical, and how far they are from the law (see oracle.py). In the
figure the runs of a mode are one line, their mean.

A trained network takes a few minutes, and the law a quarter of an hour.
"""
from dataclasses import dataclass

import numpy as np
import torch

from cli import (
    InputError, build, check_flags, command, flag, parse_flags, print_table, provenance, write_json)
from experiments.oracle import distance, toy_oracle
from runs import open_model
from sample import SampleOptions, generate
from show import figure
from toy import TOY

STEPS = (48, 24, 12, 6, 3)              # of the samplers that reveal several tokens in a step
DRAFTS = (1, 2, 4, 8, 16, 48)           # tokens, of the sampler that confirms them
SAMPLERS = ("ancestral", "first_hitting", "confidence")


@dataclass
class StepsOptions:
    """what to sample"""
    models: str = flag("", "folders of runs of the toy: A,B,…")
    num_samples: int = flag(1000, "stories of each")
    seed: int = flag(1337, "of the stories")
    json: str = flag("", "file for the results", file=(".json",))
    plot: str = flag("", "file for a figure", file=(".png", ".svg", ".pdf"))

    def __post_init__(self):
        check_flags(self)


def settings_of(mode: str) -> dict:
    """{name of a sampler: its flags, for different numbers of tokens a pass}"""
    if mode == "ar":
        return {"ar": [{}]}
    if mode == "aogpt":
        return {"aogpt": [dict(steps=steps) for steps in STEPS],
                "aogpt, drafts": [dict(draft=draft) for draft in DRAFTS]}
    ways = {}
    for sampler in SAMPLERS:
        name = f"mdlm, {sampler.replace('_', ' ')}"
        ways[name] = [dict(sampler=sampler, steps=steps) for steps in STEPS]
    return ways


def write(model, tokenizer, o: StepsOptions, flags: dict) -> dict:
    """Tokens a pass of the stories, and how far they are from the law."""
    T = model.config.block_size
    blank = torch.full((T,), model.config.mask_id)
    how = SampleOptions(seed=o.seed, **flags)
    texts = []
    passes = 0
    for first in range(0, o.num_samples, 100):
        stories = range(first, min(first + 100, o.num_samples))
        tokens, appeared = generate(model, stories, blank, how)                 # (100, T) each
        texts += [tokenizer.decode_story(ids) for ids in tokens.tolist()]
        passes += sum(len(set(steps)) for steps in appeared.tolist())
    return {"tokens_per_pass": T * len(texts) / passes} | distance(texts)


def measure(network: str, model, tokenizer, o: StepsOptions) -> list:
    """A row for each way to sample."""
    rows = []
    for sampler, settings in settings_of(model.config.mode).items():
        for flags in settings:
            found = write(model, tokenizer, o, flags)
            rows.append({"network": network, "sampler": sampler} | flags | found)
            print(f"{network}, {sampler}, {flags}", flush=True)
    return rows


def draw_steps(rows: list, path: str):
    """Grammatical stories against tokens a pass, a line for each sampler, dashed with the law."""
    lines = {}          # {label: {setting: rows of all runs}}
    for row in rows:
        label = row["sampler"]
        if row["network"] == "the law":
            label += ", perfect network"
        setting = row.get("steps"), row.get("draft")
        lines.setdefault(label, {}).setdefault(setting, []).append(row)
    with figure(path, (8, 4.6)) as axes:
        for label, settings in lines.items():
            points = []
            for runs in settings.values():
                x = np.mean([row["tokens_per_pass"] for row in runs])
                y = np.mean([row["grammatical"] for row in runs])
                points.append((x, 100 * y))
            style = "o--" if "perfect" in label else "o-"
            axes.plot(*zip(*sorted(points)), style, ms=4, label=label)
        axes.set(xscale="log", xlabel="tokens a pass", ylabel="grammatical stories, %")


def main():
    o = build(StepsOptions, parse_flags(__doc__, StepsOptions))
    if not o.models:
        raise InputError("which models? give --models=DIR,DIR, runs of the toy")
    models = {}
    for folder in o.models.split(","):
        model, tokenizer, _ = open_model(folder, "cpu")
        if tokenizer.words != TOY.words():
            raise InputError(f"{folder} is no run of the toy, whose law is known")
        models[folder] = model
    rows = []
    for folder, model in models.items():
        rows += measure(folder, model, tokenizer, o)
    modes = {model.config.mode for model in models.values()}
    for mode in sorted(modes):
        rows += measure("the law", toy_oracle(mode), tokenizer, o)
    table = [["", "tokens a pass", "grammatical", "KL of choices", "surprise"]]
    for row in rows:
        table.append([
            f"{row['network']}, {row['sampler']}",
            f"{row['tokens_per_pass']:.2f}",
            f"{row['grammatical']:.1%}",
            f"{row['kl']:.3f}",
            f"{row['surprise']:+.3f}"])
    print_table(table)
    if o.json:
        write_json(o.json, provenance(o.seed) | {"rows": rows})
    if o.plot:
        draw_steps(rows, o.plot)


if __name__ == "__main__":
    command(main, "nothing was written")
