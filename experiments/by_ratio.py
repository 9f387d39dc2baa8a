"""
Where is one mdlm better than another? Nats of a masked token against how many are masked.

    python -m experiments.by_ratio A=out/a,out/b B=out/c,out/d --data=DATA --json=F --md=G --plot=H

NAME=FOLDER,FOLDER,… are runs of train.py, one for each seed. Of each validation story k tokens at random
are masked, the same ones for all runs, and predicted at once from the others. The bound averages over all
k = 1 … T alike: it is the area under the curve.
"""
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from experiments.held_out import demand_tokenizer
from experiments.report import mean_of, write_markdown
from model import losses_in_parts, mask_generator, masking_batch
from prepare_data import Windows
from runs import load
from show import figure

@dataclass
class RatioOptions:
    """what to score"""
    data: str = ""              # data set whose validation stories are scored
    windows: int = 149          # of them
    masked: tuple[int, ...] = (1, 4, 16, 32, 64, 96, 128, 160, 192, 224, 240, 252, 256)     # k, of T
    seed: int = 1337            # of the masks
    json: str = ""              # file for the results
    md: str = ""                # file for the table
    plot: str = ""              # file for a figure (.png)

def nats_by_masked(model, x, o: RatioOptions) -> list:
    """For each k: nats per masked token of x (N, T), at least 16 of them a window."""
    found = []
    for k in o.masked:
        generator, draws = mask_generator(o.seed, k), max(1, 16 // k)
        rows = x.repeat_interleave(draws, dim=0)                                    # (N · draws, T)
        masked = torch.rand(rows.shape, generator=generator).argsort(dim=1) < k
        batch = masking_batch(model.config, rows, masked)
        found.append(losses_in_parts(model, batch._replace(weight=batch.weight / k)).mean().item())
    return found

def table_of(found: dict, masked, T: int) -> list:
    """A row for each number of masked tokens, a column for each NAME: mean ± s.d. over seeds."""
    return [[f"masked, of {T}", *found], *(
        [str(k), *(mean_of([nats[i] for nats in seeds], 3) for seeds in found.values())]
        for i, k in enumerate(masked))]

def main():
    flags = parse_flags(__doc__, RatioOptions, named="NAME=FOLDER")
    o = build(RatioOptions, flags)
    if not o.data:
        raise InputError("which stories? give --data=NAME")
    found = {}
    for name, folders in tqdm(flags["named"].items(), unit="model", disable=None):
        found[name] = []
        for folder in folders.split(","):
            model, checkpoint = load(f"{folder}/best.pt", needs=("tokenizer",))
            demand_tokenizer(folder, checkpoint["tokenizer"], o.data)
            T = model.config.block_size
            if model.config.mode != "mdlm" or max(o.masked) > T:
                raise InputError(f"{folder} is of mode {model.config.mode}, on {T} tokens; give mdlm's, "
                                 f"and no larger --masked")
            x = torch.from_numpy(Windows(o.data, "val", T).spread(o.windows))
            found[name].append(nats_by_masked(model, x, o))

    rows = table_of(found, o.masked, T)
    print_table(rows)
    facts = provenance(o.seed) | {"windows": len(x), "masked": o.masked, "block_size": T}
    if o.json:
        write_json(o.json, facts | {"names": flags["named"], "nats": found})
    if o.md:
        about = "Nats per masked token, mean ± s.d. of seeds, by how many tokens are masked."
        write_markdown(o.md, "By how much is masked", facts, about, {"": rows})
    if o.plot:
        with figure(o.plot, (8, 4.5)) as axes:
            first, share = next(iter(found)), np.divide(o.masked, T)
            above = {name: seeds - np.mean(found[first], axis=0) for name, seeds in found.items()}
            for i, (name, seeds) in enumerate(above.items()):                       # (seeds, k)
                axes.plot(share, seeds.mean(axis=0), "o-", ms=3, color=f"C{i}", label=name)
                axes.plot(share, seeds.T, color=f"C{i}", lw=0.5, alpha=0.5)
            axes.set(xlabel="share of tokens masked", ylabel=f"nats per masked token, above {first}")

if __name__ == "__main__":
    command(main, "nothing was written")
