"""Quality against diversity: samples of each model over several temperatures, one token a step.

    python -m experiments.frontier --models=out/toy-ar,out/toy-mdlm --data=toy --judge=out/toy-ar --plot=f.png

A model aogpt may stand there twice, as out/toy-aogpt:left_to_right too.
"""
import os
from dataclasses import asdict, dataclass, replace

import sample
from cli import InputError, build, command, parse_flags, provenance, write_json
from diversity import DiversityOptions, columns_of, load_corpus, open_judges, read_samples, show_table
from show import figure

@dataclass
class FrontierOptions:
    """what to sample, and what to compare with"""
    models: str = ""            # folders of the runs: A,B,…, of aogpt also A:left_to_right
    data: str = ""              # data set whose stories are the real text
    judge: str = ""             # folder of an ar model that scores the stories
    temperatures: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1)    # of the samples
    num_samples: int = 200      # stories per model and temperature
    json: str = ""              # file for the results
    plot: str = ""              # file for a figure (.png)
    seed: int = 1337            # of the stories
    device: str = "auto"        # auto, cpu, cuda or mps

def sample_all(o: FrontierOptions) -> dict:
    """What each model writes at each temperature: {"folder, temperature t": [samples]}, for columns_of. What
    an earlier call has written since the model's best.pt stays."""
    flags = dict(temperature=o.temperatures, num_samples=o.num_samples, seed=o.seed, device=o.device)
    jobs, sets = [], {}
    for name in o.models.split(","):
        folder, _, order = name.partition(":")
        more = {"order": order} if order else {}
        jobs += [(name, *job) for job in sample.plan([folder], flags | more)]
    for name, *model, pattern, s, title in jobs:
        s = replace(s, out=os.path.join(s.out_dir, f"samples-{s.order}-t{s.temperature:g}.jsonl"))
        since = os.path.getmtime(os.path.join(s.out_dir, "best.pt"))
        if not (os.path.exists(s.out) and os.path.getmtime(s.out) > since
                and asdict(s).items() <= read_samples(s.out)[1].items()):
            sample.write_stories(*model, pattern, s, title)
        sets[f"{name}, temperature {s.temperature:g}"] = [read_samples(s.out)]
    return sets

def draw_frontier(curves: dict, path: str):
    """One line per model; curves: {folder: {temperature: metrics}, "real text": metrics}."""
    models = dict(curves)
    real = models.pop("real text")
    diversity, quality = "distinct-4", next(metric for metric in real if "judge" in metric)
    with figure(path, (7, 4.5)) as axes:
        for folder, points in models.items():
            x, y = ([metrics[name][0] for metrics in points.values()] for name in (diversity, quality))
            axes.plot(x, y, marker="o", ms=4, label=os.path.basename(folder))
            for t, *place in zip(points, x, y):
                axes.annotate(f"{t:g}", place, xytext=(4, -9), textcoords="offset points", fontsize=7)
        axes.plot(real[diversity][0], real[quality][0], "k*", ms=14, label="real text", zorder=3)
        axes.set(xlabel="distinct 4-grams (more diverse →); numbers: temperature",
                 ylabel=f"{quality} (lower: likelier)")

def main():
    o = build(FrontierOptions, parse_flags(__doc__, FrontierOptions))
    if not (o.models and o.data and o.judge):
        raise InputError("give --models=DIR,DIR, the real text's --data=NAME, and --judge=DIR, an ar model")
    options, corpus = DiversityOptions(data=o.data, judge=o.judge, device=o.device), load_corpus(o.data)
    judges = open_judges(options, corpus)
    columns, notes = columns_of(sample_all(o), options, corpus, judges)
    real = columns.pop("real text")
    curves = {folder: {t: columns[f"{folder}, temperature {t:g}"] for t in o.temperatures}
              for folder in o.models.split(",")}
    for folder, points in curves.items():
        print(folder)
        show_table({f"{t:g}": metrics for t, metrics in points.items()} | {"real text": real}, notes)
    curves["real text"] = real
    if o.json:
        write_json(o.json, {**provenance(o.seed), "curves": curves, "notes": notes})
    if o.plot:
        draw_frontier(curves, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
