"""
Which token should mdlm reveal next, and where do the networks err?

    python -m experiments.planners --models=out/toy-mdlm,out/toy-aogpt --json=F

First it compares rules that choose the next tokens, with the toy's exact law and with every mdlm:
how many passes a story takes, how many stories are grammatical, and how far they are from the law
(see `distance` in oracle.py). Then it measures the KL of the exact conditional from each network's,
for a masked token, by how many of a story's 48 tokens are masked.

Each rule writes 1,000 stories. All rules together take a quarter of an hour with the law, and ten
minutes with an mdlm.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch

from cli import (
    InputError, build, check_flags, command, flag, parse_flags, print_table, provenance, write_json)
from experiments.oracle import distance, toy_conditionals
from model import masking_batch
from prepare_data import Windows
from runs import open_model, read_run
from sample import slots_in_order

RULES = ("random", "left_to_right", "confidence", "entropy", "margin")
PER_STEP = (1, 2, 4, 8)                             # tokens that these rules reveal in a step
BOUNDS = (0.0, 0.5, 1.0, 2.0, 4.0)                  # nats that a step of "bounded" may risk
MASKED = (1, 2, 4, 8, 16, 24, 32, 40, 47)           # tokens, for the KL of conditionals
T, MASK = 48, 135                                   # the toy's tokens in a story, and [MASK]


@dataclass
class PlannerOptions:
    """what to compare"""
    models: str = flag("", "folders of mdlms and aogpts of the toy: A,B,…")
    num_samples: int = flag(1000, "stories for each rule, and for each number of masked tokens")
    seed: int = flag(1337, "of the stories")
    json: str = flag("", "file for the results", file=(".json",))

    def __post_init__(self):
        check_flags(self)


# ---- Rules ---------------------------------------------------------------------------------------

def network(model):
    """A function from stories x (N, T) to the model's conditionals (N, T, V), like oracle.py's."""
    @torch.no_grad()
    def conditionals(x):
        tokens = torch.from_numpy(x)
        masked = tokens == MASK
        batch = masking_batch(model.config, tokens, masked)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, batch.t,
                       stage=batch.stage)                                       # (N, T+1, V)
        p = logits.double().softmax(dim=-1)
        return p[:, 1:].numpy()

    return conditionals


def entropy_of(p):
    """(N, T) nats of p (N, T, V)."""
    log_p = np.log(np.maximum(p, 1e-300))
    nats = -p * log_p
    return nats.sum(axis=-1)


def reluctance(rule: str, p, drawn, noise):
    """(N, T) numbers: a rule reveals the places first that have the smallest ones.

    p (N, T, V) are the conditionals, drawn (N, T) tokens drawn from them."""
    if rule == "random":
        return noise
    if rule == "left_to_right":
        return np.broadcast_to(np.arange(T), noise.shape)
    if rule == "confidence":
        p_of_drawn = np.take_along_axis(p, drawn[..., None], axis=-1)           # (N, T, 1)
        return -p_of_drawn[..., 0]
    if rule == "margin":
        ascending = np.sort(p, axis=-1)
        return ascending[..., -2] - ascending[..., -1]
    return entropy_of(p)            # for "entropy" and "bounded"


def write(conditionals, rule: str, per_step, stories: int, seed: int) -> tuple:
    """Stories (N, T), and the passes that each took (N,).

    In each step a token is drawn for every masked place, and those are kept that the rule likes
    best: per_step of them, or with "bounded" so many that all but the last together have an
    entropy of per_step nats at most (Ben-Hamu et al. 2025, arXiv 2505.24857)."""
    rng = np.random.default_rng(seed)
    x = np.full((stories, T), MASK)
    noise = rng.random((stories, T))
    passes = np.zeros(stories)
    while (x == MASK).any():
        unfinished = (x == MASK).any(axis=1)
        rows = np.flatnonzero(unfinished)                                       # (n,)
        passes[rows] += 1
        masked = x[rows] == MASK                                                # (n, T)
        p = conditionals(x[rows])                                               # (n, T, V)
        cdf = p.cumsum(axis=-1)
        u = rng.random((len(rows), T, 1))
        below = cdf < u * cdf[..., -1:]
        drawn = below.sum(axis=-1)                                              # (n, T)
        chance = noise[rows]
        last = reluctance(rule, p, drawn, chance)
        last = last + 1e-9 * chance             # chance decides between equals
        last = np.where(masked, last, np.inf)
        order = last.argsort(axis=1)
        rank = order.argsort(axis=1)                                            # (n, T)
        if rule == "bounded":
            nats = np.where(masked, entropy_of(p), 0)
            nats = np.take_along_axis(nats, order, axis=1)
            before = nats.cumsum(axis=1) - nats             # of those that the rule likes better
            risk = np.take_along_axis(before, rank, axis=1)
            now = masked & (risk <= per_step + 1e-9)
        else:
            now = masked & (rank < per_step)
        x[rows] = np.where(now, drawn, x[rows])
    return x, passes


def try_rule(conditionals, rule: str, per_step, tokenizer, o: PlannerOptions) -> dict:
    """How far o.num_samples stories are from the law, and the passes they took on average."""
    texts = []
    passes = []
    for first in range(0, o.num_samples, 100):
        count = min(100, o.num_samples - first)
        x, took = write(conditionals, rule, per_step, count, o.seed + first)
        texts += [tokenizer.decode_story(ids) for ids in x.tolist()]
        passes += took.tolist()
    found = distance(texts)
    found["passes"] = float(np.mean(passes))
    return found


# ---- Conditionals --------------------------------------------------------------------------------

@torch.no_grad()
def conditionals_of_last(model, known, order, count: int):
    """(N, count, V) of the last `count` places of the order (N, T); known (N, T) has the others."""
    if model.config.mode == "mdlm":
        places = order[:, -count:, None]
        conditionals = network(model)
        return np.take_along_axis(conditionals(known), places, axis=1)
    known, order = torch.from_numpy(known), torch.from_numpy(order)
    _, predict = slots_in_order(model, known, order)
    N = len(known)
    slots = torch.arange(T).expand(N, -1)
    last_known = torch.full((N, 1), T - count)
    logits = predict(slots, last_known, count)
    return logits.double().softmax(dim=-1).numpy()


def errors(model, x, seed: int) -> dict:
    """{masked tokens: (KL(exact ‖ model), its standard error)} of stories x (N, T), in nats."""
    noise = np.random.default_rng(seed).random(x.shape)
    order = noise.argsort(axis=1)           # the masked places come last
    found = {}
    for count in MASKED:
        places = order[:, -count:]
        known = x.copy()
        np.put_along_axis(known, places, MASK, axis=1)
        exact = toy_conditionals(known)                                         # (N, T, V)
        exact = np.take_along_axis(exact, places[..., None], axis=1)            # (N, count, V)
        p = conditionals_of_last(model, known, order, count)                    # (N, count, V)
        cross_entropy = -(exact * np.log(p)).sum(axis=-1)                       # (N, count)
        kl = cross_entropy - entropy_of(exact)
        kl = kl.mean(axis=1)                                                    # (N,)
        error = kl.std() / math.sqrt(len(kl))
        found[count] = kl.mean(), error
    return found


def open_planner(folder: str):
    """The model and the tokenizer of an mdlm or aogpt of the toy. Raises InputError."""
    model, tokenizer, _ = open_model(folder, "cpu")
    config = model.config
    if config.mode == "ar" or config.mask_id != MASK or config.block_size != T:
        raise InputError(f"{folder} is no mdlm or aogpt of the toy's whole stories")
    return model, tokenizer


def main():
    o = build(PlannerOptions, parse_flags(__doc__, PlannerOptions))
    if not o.models:
        raise InputError("which models? give --models=DIR,DIR, runs of the toy")
    networks = {"the law": toy_conditionals}
    conditionals = {}
    table = [["KL of a conditional, nats", *map(str, MASKED)]]
    for folder in o.models.split(","):
        model, tokenizer = open_planner(folder)
        if model.config.mode == "mdlm":
            networks[folder] = network(model)
        settings = read_run(folder)["settings"]
        x = Windows(settings["data"], "val", T).spread(o.num_samples)           # (N, T)
        found = errors(model, x, o.seed)
        conditionals[folder] = found
        texts = [f"{kl:.4f}" for kl, _ in found.values()]
        table.append([folder, *texts])
    print_table(table)

    ways = [(rule, n) for rule in RULES for n in PER_STEP]
    ways += [("bounded", bound) for bound in BOUNDS]
    rules = []
    for name, conditionals_of in networks.items():
        for rule, per_step in ways:
            row = {"network": name, "rule": rule, "per_step": per_step}
            row |= try_rule(conditionals_of, rule, per_step, tokenizer, o)
            rules.append(row)
            print("{network}, {rule} {per_step}: {passes:.1f} passes, {grammatical:.1%}, "
                  "KL {kl:.3f}, surprise {surprise:+.3f}".format(**row), flush=True)
    if o.json:
        facts = provenance(o.seed)
        write_json(o.json, facts | {"rules": rules, "conditionals": conditionals})


if __name__ == "__main__":
    command(main, "nothing was written")
