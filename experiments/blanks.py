"""
What is gained by seeing both sides of a blank?

    python -m experiments.blanks --models=out/toy-ar,out/toy-mdlm,out/toy-aogpt --data=toy --json=F

A span of a window is hidden, and the rest is known. Every model is scored exactly by the chain
rule, −log p of the span from left to right, in nats per token: ar sees the left side only, while
mdlm and aogpt see both. The file of --json has the mean over windows and places, and also the loss
of whole windows from left to right, but for mdlm. Its numbers are those of results/blanks.md.

On the toy the exact −log p of the span, given both sides, is subtracted. What is left is the KL
of the exact law from the model's, and for ar also all that the right side tells.

mdlm takes a pass for each token of a blank, the others take one. Three models of the toy take some
minutes on one core of a CPU.
"""
from dataclasses import dataclass
from pathlib import Path

import torch

import model as plain
from experiments.held_out import COLOURS, Output, error_of, of_neighbours, open_run
from experiments.oracle import toy_oracle
from extras.score import costs_of_writing
from sample import SampleOptions, plain_sampler
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.pictures import figure, in_legend
from support.runs import origin_of
from tokenizer import Tokenizer
from train import losses_in_parts
from variants import infill
from worlds import world_of
from worlds.toy import TOY

LENGTHS = (1, 2, 4, 8, 16, 32)      # tokens of a blank, as far as a window has room for them
PLACES = 4                          # blanks of a window, evenly spaced, the ends left out


@dataclass
class InfillOptions(Output):
    """what to hide"""
    models: str = flag("", "folders of runs on the same kind of data: A,B,…")
    data: str = flag("", "data set whose validation stories are hidden in part")
    windows: int = flag(300, "windows of them", low=20)


# ---- Scores: x (N, T) are windows; the blank begins at `start` and has `length` tokens -----------

@torch.no_grad()
def nats(model, x, start: int, length: int):
    """(N,) −log p of the blank under the model, per token of it."""
    config = model.config
    place = torch.arange(x.size(1))
    inside = (place >= start) & (place < start + length)                        # (T,)
    order = place
    if config.mode != "ar":
        again = place[start - 1:start] if isinstance(config, infill.Config) else place[:0]
        order = torch.cat([place[~inside], again, place[inside]])               # (T or T+1,)
    order = order.expand(len(x), -1)
    if config.mode == "mdlm":
        o = SampleOptions(order="left_to_right")
        found, _ = costs_of_writing(model, x, inside.expand_as(x), plain_sampler(config, o), o)
        return found / length
    batch = plain.order_batch(config, x, order)
    batch = batch._replace(weight=inside[order] / length)
    return losses_in_parts(model, batch)


# ---- A run ---------------------------------------------------------------------------------------

def starts_of(length: int, T: int) -> list:
    """Where the blanks begin."""
    return [round((T - length) * i / (PLACES + 1)) for i in range(1, PLACES + 1)]


def mean_over(starts: list, score):
    """(N,) the mean over the places of a blank of what score(start) returns."""
    scores = [score(start) for start in starts]
    return torch.stack(scores).mean(dim=0)


def measure(folder: str, o: InfillOptions) -> dict:
    """What the file of --json has of a run. Raises InputError."""
    _, model, windows = open_run(folder, o.data, device="cpu")
    toy = world_of(Tokenizer(**windows.meta["tokenizer"])) is TOY
    x = torch.from_numpy(windows.spread(o.windows))                             # (N, T)
    T = x.size(1) - toy         # the toy's last token is the end-of-text
    law = toy_oracle()    # which is given both sides
    blanks = {}
    for length in LENGTHS:
        if length > T - 2:
            break
        starts = starts_of(length, T)
        scores = mean_over(starts, lambda start: nats(model, x, start, length))
        if toy:
            scores -= mean_over(starts, lambda start: nats(law, x, start, length))
        blanks[length] = {
            "nats": scores.mean().item(),
            "nats_se": error_of(of_neighbours(scores))}
    found = origin_of(folder) | {"blanks": blanks}
    if model.config.mode != "mdlm":
        found["left to right"] = nats(model, x, 0, x.size(1)).mean().item()
    return found


def draw_infill(runs: dict, path: str):
    """Nats per token against the length of the blank, a line for each run; bars: ± 2 s.e."""
    with figure(path, (6.5, 4)) as axes:
        for i, (folder, run) in enumerate(runs.items()):
            lengths = list(run["blanks"])
            blanks = run["blanks"].values()
            name = Path(folder).name
            mode = name.split("-")[0]
            axes.errorbar(
                [int(length) * 1.03 ** i for length in lengths],    # or bars would hide each other
                [blank["nats"] for blank in blanks],
                [2 * blank["nats_se"] for blank in blanks],
                capsize=3, color=COLOURS.get(mode),
                label=mode if mode in COLOURS else in_legend(name))
            axes.set_xscale("log")
            axes.set_xticks([int(length) for length in lengths], lengths)
        axes.minorticks_off()
        axes.set(xlabel="tokens of the blank", ylabel="nats per token (± 2 s.e.)")


def main():
    o = build(InfillOptions, parse_flags(__doc__, InfillOptions))
    if not o.models or not o.data:
        raise InputError("which models? give --models=DIR,DIR and --data=NAME")
    runs = {}
    for folder in o.models.split(","):
        runs[folder] = measure(folder, o)
        print(folder, runs[folder], flush=True)
    if o.json:
        write_json(o.json, provenance(0) | {"data": o.data, "runs": runs})
    if o.plot:
        draw_infill(runs, o.plot)


if __name__ == "__main__":
    command(main, "nothing was written")
