"""
What aogpt and mdlm score in which order, nats per token, and what mixing orders takes off (Jensen's
inequality).

    python -m experiments.orders aogpt=out/a,out/b --data=toy --json=F --md=G --plot=H

NAME=FOLDER,FOLDER,… are runs of one mode, one for each seed. Each order gives an exact likelihood of its
own, that of writing in it one token a step: from left to right, from right to left, in blocks (of neighbours,
each read from left to right; the blocks shuffled), or any at random. aogpt reads a window in one pass, mdlm
takes one for each token. Training minimizes the mean of −log p over random orders (and in aogpt over
l2r_fraction of rows left to right). The −log of the mean p, the mixture's, is lower; that of K random
orders lies between the two and falls towards it as K grows (Burda et al. 2016, arXiv 1509.00519).
The law is scored on the same stories; ± is the standard deviation over runs.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from experiments.held_out import demand_tokenizer, difference
from experiments.report import mean_of, write_markdown
from model import losses_in_parts, mask_generator, masking_batch, order_batch
from prepare_data import Windows
from runs import open_model
from show import figure

@dataclass
class OrdersOptions:
    """what to score"""
    data: str = ""              # data set whose validation stories are scored
    windows: int = 150          # of them
    orders: int = 64            # random ones for each window: the largest K
    blocks: tuple[int, ...] = (4, 16, 64)   # tokens of a block
    seed: int = 1337            # of the orders
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for the results
    md: str = ""                # file for the tables
    plot: str = ""              # file for a figure (.png): nats against K

def in_blocks(x, size: int, generator):
    """(B, T): blocks of `size` neighbours in a random order, each read from left to right."""
    B, T = x.shape
    rank = torch.rand(B, math.ceil(T / size), generator=generator).argsort(dim=1)   # of each block
    key = rank.repeat_interleave(size, dim=1)[:, :T] * T + torch.arange(T)
    return key.argsort(dim=1)

def one_by_one(config, x, order):
    """mdlm: T batches, in the j-th of which order[:, j:] is masked and the token at order[:, j] predicted."""
    N, T = x.shape
    rank = order.argsort(dim=1)
    for j in range(T):
        batch = masking_batch(config, x, rank >= j)
        slot = 1 + order[:, j, None]                                                # (N, 1), after BOS's
        target, weight = batch.targets.gather(1, slot), torch.full((N, 1), 1 / T)
        yield batch._replace(select=slot, targets=target, weight=weight)

def nats(model, x, orders: list):
    """(K, N) nats per token of the windows x (N, T) in each of K orders, (N, T) each."""
    config, rows = model.config, []
    for order in tqdm(orders, leave=False, disable=None):
        batches, score = [order_batch(config, x, order)], 0
        if config.mode == "mdlm":
            batches = tqdm(one_by_one(config, x, order), total=x.size(1), leave=False, disable=None)
        for batch in batches:
            score += losses_in_parts(model, batch)
        rows.append(score)
    return torch.stack(rows).numpy()

def mixture(scores, T: int) -> dict:
    """{K: (N,) −log of the mean probability over K orders, per token} for K = 1, 2, 4, … from scores
    (orders, N) in nats per token: orders are cut into groups of K, and the groups averaged."""
    result, K = {}, 1
    while K <= len(scores):
        groups = -T * scores[:len(scores) // K * K].reshape(-1, K, scores.shape[1])     # ln p, (groups, K, N)
        highest = groups.max(axis=1, keepdims=True)
        log_mean = np.log(np.exp(groups - highest).mean(axis=1)) + highest[:, 0]        # (groups, N)
        result[K], K = -log_mean.mean(axis=0) / T, 2 * K
    return result

def spread(scores, T: int) -> dict:
    """How far the mixture can still be from its limit: the variance over orders of a window's ln p, which
    takes off half of it where it is normal; and how many of the orders count, 1 / Σ (share of the sum)²."""
    log_p = -T * scores                                                             # (orders, N)
    share = np.exp(log_p - log_p.max(axis=0))
    share /= share.sum(axis=0)
    variance = float(log_p.var(axis=0, ddof=1).mean()) if len(scores) > 1 else math.nan
    return {"variance of ln p over orders": variance, "half of it per token": variance / 2 / T,
            "orders that count": float((1 / (share ** 2).sum(axis=0)).mean())}

def measure(folder: str, o: OrdersOptions) -> dict:
    """Of a run: nats per token in each kind of order, and of the mixture over K."""
    model, tokenizer, _ = open_model(folder, o.device)
    demand_tokenizer(folder, tokenizer.to_dict(), o.data)
    if model.config.mode == "ar":
        raise InputError(f"{folder} is ar, which has one order")
    val, generator = Windows(o.data, "val", model.config.block_size), mask_generator(o.seed)
    x = torch.from_numpy(val.spread(o.windows))                                     # (N, T)
    forwards = torch.arange(x.size(1)).expand_as(x)
    shuffled = [torch.rand(x.shape, generator=generator).argsort(dim=1) for _ in range(o.orders)]
    scores = nats(model, x, shuffled)                                               # (orders, N)
    of_mixture = mixture(scores, x.size(1))
    below, error = difference(of_mixture[1], of_mixture[max(of_mixture)])
    kinds = {"left to right": forwards, "right to left": forwards.flip(1)}
    kinds |= {f"blocks of {size}": in_blocks(x, size, generator) for size in o.blocks if size < x.size(1)}
    found = {kind: float(nats(model, x, [order]).mean()) for kind, order in kinds.items()}
    found["random (the bound)"], law = float(of_mixture[1].mean()), val.floor(o.windows)
    if law is not None:
        found["the true law"] = law
    of_spread = spread(scores, x.size(1)) | {"bound above the largest mixture": below, "its s.e.": error}
    return {"orders": found, "mixture": {str(K): float(of.mean()) for K, of in of_mixture.items()},
            "spread": of_spread, "law": law}

def table_of(found: dict, key: str) -> list:
    """A row for each order or K, a column for each NAME: mean ± standard deviation over seeds."""
    rows = [["", *found]]
    for name in next(iter(found.values()))[0][key]:
        values = [[run[key].get(name, math.nan) for run in runs] for runs in found.values()]
        rows.append([name, *map(mean_of, values)])
    return rows

def draw(found: dict, path: str):
    """The mixture against K: a line for each seed; and what left to right alone scores."""
    with figure(path, (7, 4.5)) as axes:
        for i, (name, runs) in enumerate(found.items()):
            for j, run in enumerate(runs):
                K, value = zip(*((int(K), value) for K, value in run["mixture"].items()))
                axes.plot(K, value, marker="o", ms=3, color=f"C{i}",
                          label=None if j else f"{name}, each seed")
                axes.axhline(run["orders"]["left to right"], color=f"C{i}", ls=":", lw=1,
                             label=None if j else f"{name}, left to right alone")
        if run["law"] is not None:
            axes.axhline(run["law"], color="k", ls="--", lw=1, label="the true law")
        axes.set(xscale="log", xlabel="orders in the mixture, K",
                 ylabel="−log of the orders' mean probability, nats per token")
        axes.set_xticks(K, K)
        axes.minorticks_off()

def main():
    flags = parse_flags(__doc__, OrdersOptions, named="NAME=FOLDER")
    o = build(OrdersOptions, flags)
    if not o.data:
        raise InputError("whose stories? give --data=NAME")
    found = {name: [measure(folder, o) for folder in folders.split(",")]
             for name, folders in flags["named"].items()}
    tables = {"in this order": table_of(found, "orders"), "mixture of K orders": table_of(found, "mixture"),
              "how much orders differ": table_of(found, "spread")}
    for title, rows in tables.items():
        print(f"\n{title}")
        print_table(rows)
    made = provenance(o.seed)
    if o.json:
        write_json(o.json, made | {"runs": found})
    if o.md:
        write_markdown(o.md, "Orders", made, __doc__, tables)
    if o.plot:
        draw(found, o.plot)

if __name__ == "__main__":
    command(main, "nothing was written")
