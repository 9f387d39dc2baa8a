"""
What does masked diffusion predict well, and what badly? Its bound, and its loss by how far away the
nearest visible token is.

    python -m experiments.learning --runs=out/a,out/b --json=F

Its numbers are in results/learning.md. Runs are of mdlm, trained by any recipe of mask ratios
(variants/bell.py). Each is scored on its own validation windows, or on those of data/DATA, with
masks as model.py's bound has them: k of the T tokens are hidden, every k from 1 to T equally often.
For each run there are

    bound           nats per token, and its standard error over windows
    law             what the true law has on these windows, where it is known
    by distance     nats per hidden token whose nearest visible token, or BOS, is one place away,
                    two, 3 to 4, 5 to 8, 9 to 16, or more
    how often       the share of the hidden tokens that lie so far away

If learning is slow because language is local, what is far from all that is visible should be
predicted no better than by the frequencies of words, whatever the recipe, and so teach nothing. A
run takes a minute or two on a core.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tqdm import tqdm

from experiments.held_out import SEED, open_run
from model import diffusion_batch
from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from support.runs import origin_of, random_numbers, read_run
from train import mean_and_error

DISTANCES = 1, 2, 4, 8, 16          # the largest of each group but the last
GROUPS = ["1", "2", "3-4", "5-8", "9-16", "17-"]


@dataclass
class LearningOptions:
    """what to score"""
    data: str = flag("", "data set whose validation windows are scored; default: each run's own")
    runs: str = flag("", "folders of the runs: A,B,…")
    windows: int = flag(400, "at most so many windows of it", low=2)
    draws: int = flag(4, "pairs of masks for each window", low=1)
    json: str = flag("", "file for the results", file=(".json",))


def distance_to_visible(hidden) -> torch.Tensor:
    """For each slot of hidden (B, S), how far away the nearest slot that is not hidden is: (B, S).

    BOS, in slot 0, is never hidden."""
    slots = torch.arange(hidden.size(1)).expand_as(hidden)                      # (B, S)
    far = 2 * hidden.size(1)
    left = slots.masked_fill(hidden, -far).cummax(dim=1).values
    right = slots.masked_fill(hidden, far).flip(1).cummin(dim=1).values.flip(1)
    return torch.minimum(slots - left, right - slots)


@torch.no_grad()
def measure(model, x, draws: int) -> dict:
    """What the top of this file lists, but for the law, of the windows x (N, T)."""
    T = x.size(1)
    generator = random_numbers(SEED)
    losses = []                                                     # of each row
    by_distance = torch.zeros(len(GROUPS), 2, dtype=torch.float64)  # sums, and of how many tokens
    for part in tqdm(x.repeat_interleave(2 * draws, dim=0).split(16), leave=False, disable=None):
        batch = diffusion_batch(model.config, part, generator)
        select = batch.select()                                                 # (n,)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, select)   # (n, V)
        nll = F.cross_entropy(logits.float(), batch.targets.flatten()[select], reduction="none")
        hidden = batch.weight > 0                                               # (B, T+1)
        k = hidden.sum(dim=1)                                                   # (B,)
        row = select // (T + 1)                                                 # (n,)
        of_row = torch.zeros(len(k)).scatter_add(0, row, nll) / k               # (B,)
        losses.append(of_row)
        distance = distance_to_visible(hidden).flatten()[select]                # (n,)
        add(by_distance, torch.bucketize(distance, torch.tensor(DISTANCES)), nll)
    sums, counts = by_distance.unbind(dim=1)
    bound, error = mean_and_error(torch.cat(losses).view(len(x), -1).mean(dim=1))
    return {
        "bound": bound,
        "bound_se": error,
        "by distance": dict(zip(GROUPS, (sums / counts).tolist())),
        "how often": dict(zip(GROUPS, (counts / counts.sum()).tolist()))}


def add(table, index, numbers):
    """Adds each number (n,) to the row of the table that its index (n,) says, and counts it."""
    pairs = torch.stack([numbers.double(), torch.ones(len(numbers)).double()], dim=1)
    table.index_add_(0, index, pairs)


def main():
    o = build(LearningOptions, parse_flags(__doc__, LearningOptions))
    if not o.runs:
        raise InputError("which runs? give --runs=FOLDER,FOLDER,…")
    facts = provenance(SEED) | {"draws": o.draws, "runs": {}}
    for folder in o.runs.split(","):
        data = o.data or read_run(folder)["settings"]["data"]
        _, model, windows = open_run(folder, data, "cpu")
        if model.config.mode != "mdlm" or hasattr(model.config, "block_length"):
            raise InputError(f"{folder} is no run of mdlm, or one in blocks; its masks are others")
        found = measure(model, torch.from_numpy(windows.spread(o.windows)), o.draws)
        law = windows.law(o.windows)            # (N,), or None
        if law is not None:
            found["law"] = float(law.mean())
        facts["runs"][folder] = origin_of(folder) | found
        text = f"{found['bound']:.3f} ± {found['bound_se']:.3f} nats per token"
        print(f"{folder}: {text}", flush=True)
    if o.json:
        write_json(o.json, facts)


if __name__ == "__main__":
    command(main, "nothing was written")
