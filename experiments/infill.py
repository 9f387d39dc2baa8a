"""
Blanks: what is gained by seeing both sides. A span of a held-out text is hidden, the rest is known.

    python -m experiments.infill --models=out/toy-ar,out/toy-mdlm,out/toy-aogpt --json=F.json --plot=F.png
    python -m experiments.infill --models=A,B --lengths=1,2,4,8,16,32 --json=F.json --plot=F.png

Scored is −log p(span | what the model sees), per token of the span. ar sees the left side only; exact.
aogpt gets the known tokens first, left to right, then the span; exact in that order. mdlm: an upper bound
over all orders, or with --in_order from left to right too, as exact, a pass a token.

On the toy the exact −log p(span | both sides) is subtracted. What is left is the KL of the exact
conditional from the model's; for mdlm the slack of its bound comes on top, for ar all that the right side
tells. (An estimate from some stories, so a value near zero may be negative.) And spans are filled in, one
token a step, mdlm's and aogpt's in a random order, and the whole story judged.
"""
import json
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

import sample
from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from experiments.held_out import demand_tokenizer, difference
from experiments.oracle import toy_conditionals
from model import Batch, losses_in_parts, masking_batch, order_batch
from prepare_data import Windows, load_meta
from runs import open_model, read_run
from toy import TOY

@dataclass
class InfillOptions:
    """what to hide"""
    models: str = ""            # folders of runs on the same data: A,B,…
    data: str = ""              # whose validation stories; default: the runs' own
    lengths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 10, 12)   # tokens of a blank
    windows: int = 300          # held-out windows
    places: int = 4             # blanks at so many places of each, evenly spaced, the ends left out
    draws: int = 16             # masks for each of mdlm's bounds
    in_order: bool = False      # mdlm: no bound, but the exact loss from left to right
    seed: int = 1337            # of masks, orders and fillings
    json: str = ""              # file for the results
    plot: str = ""              # file for the figure (.png)
    redraw: str = ""            # draw the figure of this file of results, measure nothing

def starts_of(length: int, T: int, places: int) -> list:
    """Where the blanks of so many tokens begin."""
    return [round((T - length) * (i + 1) / (places + 1)) for i in range(places)]

def losses(model, batch: Batch, slots, weight):
    """(G,) as group_losses, of these slots (n,) only, with weights (G, n)."""
    select = slots.expand(len(weight), -1)                                          # (G, n)
    batch = batch._replace(select=select, targets=batch.targets.gather(1, select), weight=weight)
    return losses_in_parts(model, batch)

def masks_in_order(N: int, length: int):
    """Masks of a span and weights, (N, length) each, of the chain rule: its next token from those before."""
    place = torch.arange(length)
    for i in range(length):
        yield (place >= i).expand(N, -1), (place == i).float().expand(N, -1) / length

def masks_at_random(N: int, length: int, o: InfillOptions):
    """The same of the span's NELBO: of `count` masked, count uniform, the mean; stratified over the draws."""
    generator, draws = torch.Generator().manual_seed(o.seed), 1 if length == 1 else o.draws
    for i in range(draws):
        u = (i + torch.rand(N, 1, generator=generator)) / draws
        count = 1 + (u * length).long()                                             # (N, 1)
        masked = torch.rand(N, length, generator=generator).argsort(dim=1) < count
        yield masked, masked.float() / count / draws

@torch.no_grad()
def nats(model, x, start: int, length: int, o: InfillOptions):
    """(N,) −log p(x[:, start:start+length] | what the model sees), per token."""
    config, (N, T) = model.config, x.shape
    place = torch.arange(T)
    inside = (place >= start) & (place < start + length)                            # (T,)
    if config.mode != "mdlm":
        order = place if config.mode == "ar" else torch.cat([place[~inside], place[inside]])
        batch, slots = order_batch(config, x, order.expand(N, -1)), inside[order].nonzero()[:, 0]
        return losses(model, batch, slots, torch.ones(N, length) / length)
    total, slots = 0.0, 1 + place[inside]                                           # after BOS's
    for masked, weight in masks_in_order(N, length) if o.in_order else masks_at_random(N, length, o):
        hidden = torch.zeros(N, T, dtype=torch.bool)
        hidden[:, inside] = masked
        total = total + losses(model, masking_batch(config, x, hidden), slots, weight)
    return total

def exact_nats(x, start: int, length: int):
    """(N,) the same under the toy's law, given both sides: the chain rule, left to right."""
    total = 0.0
    for j in range(start, start + length):
        known = x.numpy().copy()
        known[:, j:start + length] = 135
        p = toy_conditionals(known)[np.arange(len(x)), j, x[:, j].numpy()]
        total = total - torch.from_numpy(np.log(p)) / length
    return total

@torch.no_grad()
def fill(model, x, start: int, length: int, o: InfillOptions):
    """x with its span written anew, a token a step; ar's from the left alone."""
    config, (N, T) = model.config, x.shape
    hidden = torch.zeros(T, dtype=torch.bool)
    hidden[start:start + length] = True
    generators = [np.random.default_rng((o.seed, start, i)) for i in range(N)]
    time_of, u = (sample.uniforms(generators, T, torch.device("cpu")) for _ in range(2))
    tokens, options = x.masked_fill(hidden, config.mask_id), sample.SampleOptions()
    if config.mode == "ar":
        end = start + length
        order = torch.arange(end).expand(N, -1)
        *_, filled = sample.write_in_order(model, tokens[:, :end], order, u[:, :end], start, length, options)
        return torch.cat([filled, x[:, end:]], dim=1)
    order = time_of.masked_fill(~hidden, -1).argsort(dim=1, stable=True)            # known tokens first
    if config.mode == "aogpt":
        *_, filled = sample.write_in_order(model, tokens, order, u, T - length, length, options)
    else:
        reveal_step = order.argsort(dim=1) - (T - length)
        *_, filled = sample.unmask(model, tokens, reveal_step.where(hidden, -1), u, options)
    return filled

def measure(model, tokenizer, x, toy: bool, first: dict, o: InfillOptions) -> dict:
    """{length: nats per token; how far that is above the first model's, whose {length: (N,)} this function
    puts into `first`; standard errors of both over windows; on the toy the grammatical share}."""
    T, results = x.size(1) - toy, {}                    # the toy's last token is its end-of-text
    for length in o.lengths:
        starts = starts_of(length, T, o.places)
        value = torch.stack([nats(model, x, start, length, o) for start in starts])             # (places, N)
        if toy:
            value -= torch.stack([exact_nats(x, start, length) for start in starts])
        value = value.mean(dim=0).numpy()
        (nats_of, error), (above, gap_error) = (
            difference(value, other) for other in (np.zeros(len(x)), first.setdefault(length, value)))
        results[length] = {"nats": nats_of, "nats_se": error, "above_first": above,
                           "above_first_se": gap_error}
        if toy:
            good = [TOY.log_probs(tokenizer.decode_story(row)) is not None
                    for start in starts for row in fill(model, x, start, length, o).tolist()]
            results[length]["grammatical"] = float(np.mean(good))
    return results

def draw_infill(runs: dict, toy: bool, path: str):
    """Nats per token against the blank's length, on the toy also the grammatical share. Of several runs of a
    mode each is a dot, their mean a line; bars: ± 2 s.e. over windows."""
    how = ", left to right" if any(run.get("in_order") for run in runs.values()) else " (bound)"
    labels = {"ar": "ar, the left side", "mdlm": f"mdlm, both sides{how}", "aogpt": "aogpt, both sides"}
    canvas = Figure((10, 4) if toy else (6.5, 4), layout="constrained")
    panels = canvas.subplots(1, 2 if toy else 1, squeeze=False)[0]
    x = [int(length) for length in next(iter(runs.values()))["blanks"]]
    for axes, key in zip(panels, ("nats", "grammatical")):
        for i, (mode, label) in enumerate(labels.items()):
            y = np.array([[blank[key] for blank in run["blanks"].values()]
                          for run in runs.values() if run["mode"] == mode])         # (runs, lengths)
            if len(y):
                style = dict(color=f"C{i}", ls="--" if mode == "aogpt" else "-", capsize=3, label=label)
                axes.plot(x, y.T, color=f"C{i}", ls="", marker="o", ms=4)
                error = np.mean([[2 * blank["nats_se"] for blank in run["blanks"].values()]
                                 for run in runs.values() if run["mode"] == mode], axis=0)
                axes.errorbar(x, y.mean(axis=0), error if key == "nats" else None, **style)
        nats = "KL from the exact conditional" if toy else "−log p of the blank"
        axes.set(xscale="log", xticks=x, xticklabels=x, xlabel="tokens of the blank",
                 ylabel=f"{nats},\nnats per token (± 2 s.e.)" if key == "nats" else "grammatical stories")
        if toy:
            if key == "nats":
                axes.set_yscale("symlog", linthresh=1e-3)
            else:
                axes.set_ylim(0, 1.03)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[-1].legend()
    canvas.savefig(path, dpi=110)

def main():
    o = build(InfillOptions, parse_flags(__doc__, InfillOptions))
    if o.redraw:
        if not o.plot:
            raise InputError("--redraw draws a figure; give its file, --plot=F.png")
        with open(o.redraw) as f:
            results = json.load(f)
        return draw_infill(results["runs"], "entropy" in load_meta(results["data"]), o.plot)
    if not o.models:
        raise InputError("which models? give --models=DIR,DIR, runs on the same data")
    folders = o.models.split(",")
    made = [(run["settings"]["data"], run["config"]["block_size"]) for run in map(read_run, folders)]
    if len(set(made)) > 1:
        raise InputError(f"--models={o.models} were not trained on the same data and windows")
    data, T = made[0]
    if max(o.lengths) > T - 2:
        raise InputError(f"--lengths={max(o.lengths)} leaves nothing of a window of {T} tokens to be known")
    data = o.data or data
    toy, x = "entropy" in load_meta(data), torch.from_numpy(Windows(data, "val", T).spread(o.windows))
    runs, first, rows = {}, {}, [["", *map(str, o.lengths)]]
    for folder in folders:
        model, tokenizer, _ = open_model(folder, "cpu")
        demand_tokenizer(folder, tokenizer.to_dict(), data)
        runs[folder] = {"mode": model.config.mode, "in_order": o.in_order,
                        "blanks": measure(model, tokenizer, x, toy, first, o)}
        for key in ("nats", "grammatical")[:1 + toy]:
            values = [blank[key] for blank in runs[folder]["blanks"].values()]
            rows.append([f"{folder}, {key}", *(f"{value:.4f}" for value in values)])
        print(f"{folder} done", flush=True)
    print_table(rows)
    if o.json:
        write_json(o.json, {**provenance(o.seed), "data": data, "windows": len(x), "runs": runs})
    if o.plot:
        draw_infill(runs, toy, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
