"""
How long should a block be? The dial from left to right to random order, on the toy.

    python -m experiments.dial --seeds=1,2,3 --json=F --plot=G

For blocks of N = 1, 2, 4, 8, 16 and 48 tokens and both architectures, mdlm (block diffusion) and
aogpt (the same orders, one causal stream), it trains the toy preset with --orders=blocks:N. Runs
that are in out/dial already are not made again. Of every run it measures

    above the law   nats per token that its bound, or for N = 1 its exact loss, has above the law's.
                    It is the mean KL of its predictions from the exact ones of the same slots,
                    which is the difference of the losses without the noise of the text
    grammatical     the share of 1,000 stories that obey the grammar, at 1, 2 and 4 tokens a pass.
                    mdlm cannot write more tokens a pass than a block has. The same for mdlm with
                    --sampler=adaptive, and how many tokens a pass that is
    step, story     seconds of a training step, and of a story at one token a pass

A perfect network, the law itself, writes with the same samplers. The expected answer: short blocks
are nearer to the law, but what they reveal together are neighbours, so several tokens a pass break
more stories, with the perfect network too; unless the sampler looks at what the network is sure of.
It would be refuted if the bound did not fall with N, or if at two tokens a pass short blocks were
as grammatical as long ones. Where a trained network is worse than the perfect one, more training
could help; else only the order or the sampler could.

On two CPU cores a run takes two to four minutes to train and one to measure, the law six minutes.
"""
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import torch

from cli import (
    ROOT, build, check_flags, command, flag, parse_flags, print_table, provenance, write_json)
from experiments.denoiser import write
from experiments.oracle import toy_oracle
from model import evaluation_batch, mask_generator
from prepare_data import Tokenizer, Windows, load_meta
from runs import open_model, read_run
from show import figure
from train import mean_and_error

PER_PASS = (1, 2, 4)        # tokens of the samplers that write equally many in each pass


@dataclass
class DialOptions:
    """what to train and to measure"""
    blocks: str = flag("1,2,4,8,16,48", "lengths of blocks: N,N,…")
    seeds: str = flag("1", "a run for each of them: S,S,…")
    train: str = flag("", "further flags of train.py, with spaces between")
    num_samples: int = flag(1000, "stories of each, and for the distance from the law", low=2)
    json: str = flag("", "file for the results", file=(".json",))
    plot: str = flag("", "file for the figure", file=(".png", ".svg", ".pdf"))

    def __post_init__(self):
        check_flags(self)


def train(mode: str, N: int, seed: str, o: DialOptions) -> str:
    """The folder of the run, which is trained if there is none."""
    folder = f"out/dial/{mode}-{N}-{seed}"
    flags = ["--preset=toy", "--quiet", f"--mode={mode}", f"--orders=blocks:{N}", f"--seed={seed}",
             f"--out_dir={folder}", *o.train.split()]
    if not os.path.exists(folder):
        subprocess.run([sys.executable, ROOT / "train.py", *flags], check=True)
    return folder


@torch.no_grad()
def above_law(model, orders: str, x) -> tuple:
    """Nats per token that the model's bound on stories x (N, T) is above the law's, and the s.e.

    Both read the same batch, so each slot of both knows the same tokens."""
    law = toy_oracle(model.config.mode, orders)
    losses = []
    for part in evaluation_batch(model.config, x, mask_generator(0)).split(16):
        reads = part.tokens, part.key_pos, part.target_pos, part.t, part.select
        log_p = law(*reads, stage=part.stage).double()                          # (G, S, V)
        log_q = model(*reads, stage=part.stage).double().log_softmax(dim=-1)
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1)                        # (G, S)
        losses.append((kl * part.weight).sum(dim=1))
    return mean_and_error(torch.cat(losses))


def sampled(model, tokenizer, o: DialOptions) -> dict:
    """Shares of stories that obey the grammar, sampler by sampler; seconds of one at 1 a pass."""
    config = model.config
    found = {}
    for per in PER_PASS:
        if config.mode == "aogpt" or per <= config.block_length:
            began = time.perf_counter()
            steps = {"steps": config.block_size // per}
            stories = write(model, tokenizer, o.num_samples, "first_hitting", steps)
            found[f"{per} a pass"] = stories["grammatical"]
            seconds = (time.perf_counter() - began) / o.num_samples
            found.setdefault("story, s", seconds)
    if config.mode == "mdlm":
        stories = write(model, tokenizer, o.num_samples, "adaptive", {})
        found |= {"adaptive": stories["grammatical"], "its tokens": stories["tokens_per_pass"]}
    return found


def measure(mode: str, N: int, seed: str, o: DialOptions) -> dict:
    """The row of one run."""
    folder = train(mode, N, seed, o)
    model, tokenizer, _ = open_model(folder, "cpu")
    x = Windows("toy", "val", model.config.block_size).spread(o.num_samples)
    above, error = above_law(model, f"blocks:{N}", torch.from_numpy(x))
    curve = read_run(folder)["curve"]
    first, last = curve[0], curve[-1]       # compiling takes place before the first
    seconds = (last["seconds"] - first["seconds"]) / max(1, last["step"] - first["step"])
    row = {"network": mode, "N": N, "above the law": above, "± s.e.": error, "step, s": seconds}
    return row | sampled(model, tokenizer, o)


def draw_dial(rows: list, path: str):
    """The share of grammatical stories against N, with one and with two tokens a pass."""
    with figure(path, (9, 4), columns=2) as panels:
        for axes, per in zip(panels, ("1 a pass", "2 a pass")):
            for network in "the law", "mdlm", "aogpt":
                of_network = [row for row in rows if row["network"] == network and per in row]
                lengths = [row["N"] for row in of_network]
                shares = [100 * row[per] for row in of_network]
                axes.plot(lengths, shares, "o", ms=4, label=network)
            axes.set(xscale="log", xlabel="N, tokens of a block", title=per)
        panels[0].set_ylabel("grammatical stories, %")


def main():
    o = build(DialOptions, parse_flags(__doc__, DialOptions))
    lengths = [int(N) for N in o.blocks.split(",")]
    rows = []
    for N in lengths:
        for mode in "mdlm", "aogpt":
            for seed in o.seeds.split(","):
                rows.append(measure(mode, N, seed, o))
                print(rows[-1], flush=True)
    tokenizer = Tokenizer(**load_meta("toy")["tokenizer"])
    for N in lengths:
        law = toy_oracle("mdlm", f"blocks:{N}")
        rows.append({"network": "the law", "N": N} | sampled(law, tokenizer, o))
    heads = ["above the law", "± s.e.", "1 a pass", "2 a pass", "4 a pass", "adaptive",
             "its tokens", "step, s", "story, s"]
    table = [["", "N", *heads]]
    for row in rows:
        numbers = [f"{row[head]:.5f}" if head in row else "–" for head in heads]
        table.append([row["network"], str(row["N"]), *numbers])
    print_table(table)
    if o.json:
        write_json(o.json, provenance(o.seeds) | asdict(o) | {"rows": rows})
    if o.plot:
        draw_dial(rows, o.plot)


if __name__ == "__main__":
    command(main, "finished runs are kept")
