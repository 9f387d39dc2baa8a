"""
What do aogpt and mdlm score in which order, and what does mixing orders take off?

    python -m experiments.orders aogpt=out/a,out/b mdlm=out/c --data=toy --json=F

NAME=FOLDER,FOLDER,… are runs of one mode, one for each seed. Each order has an exact likelihood of
its own, that of writing in it one token a pass: from left to right, from right to left, in blocks
of neighbours that are shuffled, or at random. Scored are validation stories, in nats per token.

Training minimizes the mean of −log p over random orders, which is the bound. The model's p is the
mean of p over orders, and its −log is lower (Jensen). That of K orders lies between the two, and
falls as K grows (Burda et al. 2016, arXiv 1509.00519).

aogpt reads a window in one pass for each order, while mdlm takes a pass for each of its tokens: on
the toy the one takes seconds, the other a quarter of an hour.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from cli import (
    InputError, build, check_flags, command, flag, parse_flags, print_table, provenance, write_json)
from experiments.held_out import check_tokenizer, mean_of
from model import losses_in_parts, mask_generator, masking_batch, order_batch
from prepare_data import Windows
from runs import open_model

BLOCKS = (4, 16, 64)        # tokens of a block


@dataclass
class OrdersOptions:
    """what to score"""
    data: str = flag("", "data set whose validation stories are scored")
    windows: int = flag(150, "windows of them")
    orders: int = flag(64, "random orders for each window: the largest K")
    seed: int = flag(1337, "of the orders")
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for the results", file=(".json",))

    def __post_init__(self):
        check_flags(self)


# ---- Orders and their scores ---------------------------------------------------------------------

def in_blocks(x, size: int, generator):
    """An order (N, T) for x (N, T) that shuffles blocks of `size` neighbours, but not inside."""
    N, T = x.shape
    blocks = math.ceil(T / size)
    noise = torch.rand(N, blocks, generator=generator)
    rank = noise.argsort(dim=1)                                                 # (N, blocks)
    rank_of_token = rank.repeat_interleave(size, dim=1)[:, :T]                  # (N, T)
    turn = rank_of_token * T + torch.arange(T)
    return turn.argsort(dim=1)


def nats(model, x, order):
    """(N,) nats per token of the windows x (N, T), written in the order (N, T) one by one."""
    config = model.config
    if config.mode != "mdlm":
        return losses_in_parts(model, order_batch(config, x, order))
    T = x.size(1)
    rank = order.argsort(dim=1)             # when the turn of each position comes
    total = torch.zeros(len(x), dtype=torch.float64)
    for turn in tqdm(range(T), leave=False, disable=None):
        batch = masking_batch(config, x, rank >= turn)
        slot = 1 + order[:, turn, None]                                         # (N, 1)
        batch = batch._replace(
            select=slot,
            targets=batch.targets.gather(1, slot),
            weight=torch.full(slot.shape, 1 / T))
        total += losses_in_parts(model, batch)
    return total


def mixture(scores, T: int) -> dict:
    """{K: (N,) nats per token of the mean probability over K orders}, for K = 1, 2, 4, …

    scores (orders, N) are nats per token. The orders are cut into groups of K, and what the groups
    give is averaged."""
    orders, N = scores.shape
    log_p = -T * scores
    result = {}
    K = 1
    while K <= orders:
        whole = orders // K * K
        groups = log_p[:whole].reshape(-1, K, N)                                # (groups, K, N)
        log_mean = np.logaddexp.reduce(groups, axis=1) - math.log(K)            # (groups, N)
        result[K] = -log_mean.mean(axis=0) / T
        K *= 2
    return result


def measure(folder: str, o: OrdersOptions) -> dict:
    """Nats per token of a run in each kind of order, and of the mixture of K random ones."""
    model, tokenizer, _ = open_model(folder, o.device)
    check_tokenizer(folder, tokenizer.to_dict(), o.data)
    if model.config.mode == "ar":
        raise InputError(f"{folder} is ar, which has one order")
    val = Windows(o.data, "val", model.config.block_size)
    x = torch.from_numpy(val.spread(o.windows))                                 # (N, T)
    T = x.size(1)
    generator = mask_generator(o.seed)
    scores = []
    for _ in range(o.orders):
        noise = torch.rand(x.shape, generator=generator)
        order = noise.argsort(dim=1)                                            # (N, T)
        scores.append(nats(model, x, order).numpy())
    forwards = torch.arange(T).expand_as(x)
    kinds = {"left to right": forwards, "right to left": forwards.flip(1)}
    for size in BLOCKS:
        if size < T:
            kinds[f"blocks of {size}"] = in_blocks(x, size, generator)
    found = {}
    for kind, order in kinds.items():
        found[kind] = nats(model, x, order).mean().item()
    for K, of_mixture in mixture(np.stack(scores), T).items():
        found[f"{K} at random"] = of_mixture.mean()
    law = val.law(o.windows)
    if law is not None:
        found["the true law"] = law.mean()
    return found


def main():
    flags = parse_flags(__doc__, OrdersOptions, named="NAME=FOLDER")
    o = build(OrdersOptions, flags)
    if not o.data:
        raise InputError("which stories? give --data=NAME")
    found = {}
    for name, folders in flags["named"].items():
        found[name] = [measure(folder, o) for folder in folders.split(",")]
    rows = [["nats per token, ± s.d. of seeds", *found]]
    for kind in found[name][0]:
        row = [kind]
        for runs in found.values():
            seeds = [run[kind] for run in runs]
            row.append(mean_of(seeds))
        rows.append(row)
    print_table(rows)
    if o.json:
        write_json(o.json, provenance(o.seed) | {"runs": found})


if __name__ == "__main__":
    command(main, "nothing was written")
