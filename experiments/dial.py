"""
How long should a block be? The dial from left to right to random order.

    python -m experiments.dial --json=F --plot=G                        the toy
    python -m experiments.dial --text=stories --json=F --plot=G         real text, of texts.py

Its numbers are in results/sampling.md. It measures all runs out/dial-TEXT/MODE-N-SEED. run_all.sh
trains them: mdlm (block diffusion) and aogpt (the same orders, one causal stream) with
--variant=blocks --block_length=N. Where N is the whole window there is one block, which takes no
variant.

On the toy, 2,000 steps of 64 stories of 48 tokens, a row has

    above the law   nats per token that its bound, or for N = 1 its exact loss, has above the law's.
                    It is the mean KL of its predictions from the exact ones of the same slots,
                    which is the difference of the losses without the noise of the text
    1, 2, 4 a pass  the share of 1,000 stories that obey the grammar, with so many tokens a pass.
                    mdlm cannot write more tokens a pass than a block has
    adaptive        the same of mdlm with --sampler=adaptive, and how many tokens a pass that is
    drafts          the same of aogpt with --sampler=drafts --draft=16

and the same samplers write with a perfect network, the law. On real text, 1,250 steps of 8 windows
of 256 tokens, it has the bound on 400 stories that chose nothing, the exact loss from left to right
of aogpt, and the tokens a pass of the adaptive sampler and of drafts of 16 tokens.

The expected answer: short blocks are nearer to the law, but what they reveal together are
neighbours, so several tokens a pass break more stories, with the perfect network too; unless the
sampler looks at what the network is sure of. It would be refuted if the bound did not fall with N,
or if at two tokens a pass short blocks were as grammatical as long ones. Where a trained network is
worse than the perfect one, more training could help; else only the order or the sampler could.

On one core of a CPU a run takes two to five minutes to train and half a minute to measure, on real
text four to eleven and one. The law takes four minutes in all.
"""
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from experiments.denoiser import LAW, write
from experiments.held_out import (
    COLOURS, Output, error_of, finished_run, left_to_right, of_neighbours)
from experiments.oracle import toy_oracle
from prepare_data import Windows, load_meta
from tokenizer import Tokenizer
from sample import SampleOptions, generate, open_model
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.pictures import figure
from samplers import adaptive, drafts
from support.runs import origin_of, random_numbers
from train import parts_of, window_losses
from worlds.toy import TOY

PER_PASS = 1, 2, 4          # tokens of the samplers that write equally many in each pass
DRAFT = 16                  # tokens that aogpt guesses at once with --sampler=drafts
STORIES = 8                 # of real text that are written, to count passes
DRAWS = 8                   # masks or orders of a bound on real text


@dataclass
class DialOptions(Output):
    """what to measure"""
    text: Literal["toy", "stories"] = flag("toy", "what the runs were trained on")
    num_samples: int = flag(1000, "stories of each, and for the distance from the law", low=2)


# ---- A run and its row ---------------------------------------------------------------------------

def block_length(config) -> int:
    """N, which without blocks is the window."""
    return getattr(config, "block_length", config.block_size)


@torch.no_grad()
def above_law(model, x) -> float:
    """Nats per token that the model's bound on stories x (N, T) is above the law's.

    Both read the same batch, so each slot of both knows the same tokens."""
    config = model.config
    law = toy_oracle(config.mode, getattr(config, "block_length", None))
    x = x.repeat_interleave(config.row.together, dim=0)                       # (B, T)
    total = 0.0
    for part in parts_of(config.row.bound_batch(config, x, random_numbers(0)), 32):
        select = part.select()                                                  # (n,)
        reads = part.tokens, part.key_pos, part.target_pos, select
        log_p = law(*reads).double()                                            # (n, V)
        log_q = model(*reads).double().log_softmax(dim=-1)                      # (n, V)
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1)                        # (n,)
        total += (kl * part.weight.flatten()[select]).sum().item()
    return total / len(x)


def written(model, tokenizer, o: DialOptions) -> dict:
    """Shares of toy stories that obey the grammar, sampler by sampler."""
    config = model.config

    def stories(sampler, settings):
        return write(model, tokenizer, o.num_samples, sampler, settings)

    found = {}
    for per in PER_PASS:
        if config.mode == "aogpt" or per <= block_length(config):
            steps = {"steps": config.block_size // per}
            found[f"{per} a pass"] = stories("own", steps)["grammatical"]
    if config.mode == "mdlm":
        row = stories("adaptive", {})
        found |= {"adaptive": row["grammatical"], "its tokens": row["tokens_per_pass"]}
    if config.mode == "aogpt":
        row = stories("draft", {"draft": DRAFT})
        found |= {"drafts": row["grammatical"], "their tokens": row["tokens_per_pass"]}
    return found


def on_toy(model, tokenizer, o: DialOptions) -> dict:
    x = Windows("toy", "val", model.config.block_size).spread(o.num_samples)
    above = above_law(model, torch.from_numpy(x))
    return {"above the law": above} | written(model, tokenizer, o)


def on_stories(model, o: DialOptions) -> dict:
    """The losses on unseen stories, and the tokens a pass of a few that it writes."""
    config = model.config
    stories = Windows("unseen", "val", config.block_size)
    x = torch.from_numpy(stories.spread(min(len(stories), o.num_samples)))
    draws = 1 if block_length(config) == 1 else DRAWS
    losses = window_losses(model, x, seed=0, draws=draws)              # (N,)
    found = {"bound": losses.mean().item(), "± s.e.": error_of(of_neighbours(losses))}
    way, faster = "adaptive", adaptive
    if config.mode == "aogpt":
        found["left to right"] = left_to_right(model, x).mean().item()
        way, faster = str(DRAFT), drafts
    o = SampleOptions()
    blank = torch.full((config.block_size,), config.mask_id)
    make_sampler = partial(faster.sampler, flags={"draft": DRAFT})
    _, appeared = generate(model, range(STORIES), blank, o, make_sampler)
    passes = [len(set(steps)) for steps in appeared.tolist()]
    return found | {f"{way}: tokens a pass": config.block_size / float(np.mean(passes))}


def measure(folder: Path, o: DialOptions) -> dict:
    """The row of one run."""
    finished_run(folder)
    model, tokenizer, _ = open_model(folder, "cpu")
    mode, N, seed = folder.name.split("-")
    row = {"network": mode, "N": int(N), "seed": int(seed)}
    if o.text == "toy":
        return row | on_toy(model, tokenizer, o)
    return row | on_stories(model, o)


# ---- All rows, and the figure --------------------------------------------------------------------

def law_row(N: int, o: DialOptions) -> dict:
    tokenizer = Tokenizer(**load_meta("toy")["tokenizer"])
    whole_window = int(TOY.mean_words()) + 1
    law = toy_oracle("mdlm", N if N < whole_window else None)
    return {"network": LAW, "N": N} | written(law, tokenizer, o)


def means(rows: list, column: str) -> dict:
    """{network: ([N, …], [mean over seeds, …], [standard deviation, …])} of a column."""
    found = {}
    for row in sorted(rows, key=lambda row: row["N"]):
        if column in row:
            found.setdefault(row["network"], {}).setdefault(row["N"], []).append(row[column])
    lines = {}
    for network, of_network in found.items():
        values = of_network.values()
        spread = [np.std(of_seeds, ddof=len(of_seeds) > 1) for of_seeds in values]
        lines[network] = list(of_network), [np.mean(of_seeds) for of_seeds in values], spread
    return lines


def draw_dial(rows: list, path: str):
    """Each column against N, in a panel of its own; bars are standard deviations over seeds."""
    columns = {
        "above the law": "nats per token above the law",
        "1 a pass": "grammatical, 1 token a pass",
        "2 a pass": "grammatical, 2 tokens a pass",
        "adaptive": "grammatical, adaptive"}
    if "bound" in rows[0]:
        columns = {"bound": "bound, nats per token", "left to right": "left to right, exact"}
    every_length = sorted({row["N"] for row in rows})
    one_scale = "bound" in columns
    with figure(path, (3 * len(columns), 3.4), len(columns), one_scale=one_scale) as panels:
        for axes, (column, label) in zip(panels, columns.items()):
            for network, (lengths, mean, spread) in means(rows, column).items():
                axes.errorbar(
                    lengths, mean, spread, color=COLOURS.get(network, "k"), fmt="o-", ms=4,
                    capsize=3, label=network)
            axes.set(xscale="log", xlabel="N, tokens of a block")
            axes.set_ylim(0, 1.04 if label.startswith("grammatical") else None)
            axes.set_title(label, fontsize=9)
            axes.set_xticks(every_length, every_length)
            axes.minorticks_off()


def main():
    o = build(DialOptions, parse_flags(__doc__, DialOptions))
    folders = sorted(Path(f"out/dial-{o.text}").glob("*"))
    if not folders:
        raise InputError(f"there are no runs in out/dial-{o.text}; run_all.sh trains them")
    runs = {str(folder): origin_of(folder) for folder in folders}
    rows = []

    def add(row):
        rows.append(row)
        print(row, flush=True)
        if o.json:
            write_json(o.json, provenance(0) | {"runs": runs, "rows": rows})

    for folder in folders:
        add(measure(folder, o))
    if o.text == "toy":
        for N in sorted({row["N"] for row in rows}):
            add(law_row(N, o))
    if o.plot:
        draw_dial(rows, o.plot)


if __name__ == "__main__":
    command(main, "with --json, what was measured is in its file")
