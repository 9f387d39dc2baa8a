"""
Tokens per network pass and what they cost, on the toy: every sampler with trained networks and with a perfect
one, and the exact one that drafts and confirms.

    python -m experiments.steps --models=out/toy-ar,out/toy-mdlm,out/toy-aogpt --json=F.json --plot=F.png
    python -m experiments.steps --redraw=F.json --plot=F.png

Of several runs of a mode (seeds) the figure shows the mean.
"""
import collections
import json
import os
import tempfile
from dataclasses import dataclass, replace

import numpy as np

import sample
from cli import InputError, build, command, parse_flags, provenance, write_json
from diversity import read_samples
from experiments.oracle import distance, toy_oracle
from runs import read_run
from show import figure
from toy import TOY

@dataclass
class StepsOptions:
    """what to sample"""
    models: str = ""            # folders of runs of the toy: A,B,…
    steps: tuple[int, ...] = (48, 24, 12, 6, 3)     # of the samplers that reveal several tokens in a step
    drafts: tuple[int, ...] = (1, 2, 4, 8, 16, 48)  # of the one that confirms them
    num_samples: int = 1000     # stories of each
    seed: int = 1337            # of the stories
    json: str = ""              # file for the results
    plot: str = ""              # file for the figure (.png)
    redraw: str = ""            # draw the figure of this file of results, measure nothing

SAMPLERS = ["ancestral", "first_hitting", "confidence"]

def measure(models: list, exact: bool, o: StepsOptions) -> list:
    """A row of figures for each model and way to sample. exact: the law in place of the networks."""
    rows, batch = [], 100 if exact else 250
    common = dict(num_samples=o.num_samples, seed=o.seed, batch_size=batch, device="cpu")
    modes = {folder: read_run(folder)["config"]["mode"] for folder in models}
    samplers = dict(sampler=SAMPLERS) if "mdlm" in modes.values() else {}
    jobs = list(sample.plan(models, common | samplers | dict(steps=list(o.steps))))
    if drafting := [folder for folder, mode in modes.items() if mode == "aogpt"]:
        jobs += sample.plan(drafting, common | dict(draft=list(o.drafts)))
    with tempfile.TemporaryDirectory() as folder:
        for model, tokenizer, windows, pattern, s, title in jobs:
            if model.config.mode == "ar" and exact:
                continue
            s = replace(s, out=os.path.join(folder, "s.jsonl"))
            network = toy_oracle(model.config.mode) if exact else model
            summary, _ = sample.write_stories(network, tokenizer, windows, pattern, s, title)
            row = {"network": "exact" if exact else s.out_dir, "mode": model.config.mode,
                   "sampler": s.sampler, "steps": s.steps, "draft": s.draft}
            row |= {key: summary.get(key) for key in ("passes", "tokens_per_pass", "seconds")}
            row |= distance(read_samples(s.out)[0])
            rows.append(row)
            print(f"{row['network']}: {title}: {row['tokens_per_pass']:.2f} tokens a pass, "
                  f"{row['grammatical']:.1%} grammatical, KL of choices {row['kl']:.3f}, "
                  f"surprise {row['surprise']:+.3f}", flush=True)
    return rows

def name_of(row: dict) -> str:
    if row["draft"]:
        return "aogpt, drafted and confirmed"
    return {"ar": "ar, one token a pass", "aogpt": "aogpt",
            "mdlm": f"mdlm, {row['sampler'].replace('_', ' ')}"}[row["mode"]]

def draw_steps(rows: list, path: str):
    """Grammatical stories against tokens per pass, a line a sampler; with a perfect network it is dashed. A
    mode's colour is that of the other figures, a sampler's marker is its own."""
    lines = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        exact = row["network"] == "exact"
        if not exact or row["mode"] == "mdlm":          # with a perfect network aogpt does what mdlm does
            lines[name_of(row), exact][row["steps"], row["draft"]].append(row)
    markers = dict(zip(("mdlm, first hitting", "mdlm, ancestral", "mdlm, confidence"), "osD"))
    with figure(path, (8, 4.6)) as axes:
        for (name, exact), points in lines.items():
            x, y, error = np.array(sorted(
                (np.mean([row["tokens_per_pass"] for row in point]),
                 100 * np.mean([row["grammatical"] for row in point]),
                 200 * np.mean([row["grammatical_se"] for row in point]))     # all runs had the same draws
                for point in points.values())).T
            if name.startswith("ar"):
                axes.axhline(y[0], color="C0", ls=":", lw=1.5, label=name)
            elif exact:
                axes.plot(x, y, color="0.4", ls="--", lw=1, marker=markers[name], ms=4,
                          label=f"{name.removeprefix('mdlm, ')}, perfect network")
            else:
                axes.errorbar(x, y, error, color="C1" if name in markers else "C2", ms=5, capsize=2,
                              marker=markers.get(name, "o"), lw=3 if "confirmed" in name else 1.5, label=name)
        ticks = [1, 2, 4, 8, 16]
        axes.set(xscale="log", xticks=ticks, xticklabels=ticks, ylim=(-3, 103),
                 xlabel="tokens per network pass", ylabel="grammatical stories, %\n(± 2 s.e. of sampling)")
        axes.minorticks_off()

def main():
    o = build(StepsOptions, parse_flags(__doc__, StepsOptions))
    if o.redraw:
        with open(o.redraw) as f:
            rows = json.load(f)["rows"]
    elif not o.models:
        raise InputError("which models? give --models=DIR,DIR, runs of the toy")
    else:
        models = o.models.split(",")
        if {read_run(folder)["config"]["vocab_size"] for folder in models} != {len(TOY.words()) + 1}:
            raise InputError(f"--models={o.models} must be runs of the toy, whose law is known")
        rows = measure(models, False, o)
        # one folder of each mode, in which the law stands in for the network
        first = {read_run(folder)["config"]["mode"]: folder for folder in reversed(models)}
        rows += measure(list(first.values()), True, o)
    if o.json and not o.redraw:
        write_json(o.json, {**provenance(o.seed), "rows": rows})
    if o.plot:
        draw_steps(rows, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
