"""
Which token to reveal next, on the toy: rules at equally many tokens a step, with a perfect network and with
trained mdlms; and how far a trained network's conditionals are from the exact ones.

    python -m experiments.planners --mdlm=out/toy-mdlm,out/toy-mdlm-1 --aogpt=out/toy-aogpt --json=F.json
"""
import math
from dataclasses import dataclass

import numpy as np
import torch

import sample
from cli import InputError, build, command, parse_flags, print_table, provenance, write_json
from experiments.oracle import distance, toy_conditionals
from model import masking_batch
from prepare_data import Windows
from runs import open_model, read_run

@dataclass
class PlannerOptions:
    """what to compare"""
    mdlm: str = ""              # folders of mdlms of the toy: A,B,…
    aogpt: str = ""             # of aogpts
    per_step: tuple[int, ...] = (1, 2, 4, 8)    # tokens
    bounds: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0)   # nats that one step of the rule bounded may risk
    masked: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 40, 47)  # of a story's 48 tokens, for the conditionals
    num_samples: int = 1000     # stories a rule, and a number of masked tokens
    seed: int = 1337            # of the stories
    json: str = ""              # file for the results

RULES = ["random", "left_to_right", "confidence", "entropy", "margin"]

def network(model):
    """x (N, T) -> its conditionals (N, T, V), as toy_conditionals."""
    @torch.no_grad()
    def conditionals(x):
        masked = torch.from_numpy(x == model.config.mask_id)
        batch = masking_batch(model.config, torch.from_numpy(x), masked)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, t=batch.t)[:, 1:]
        return logits.double().softmax(dim=-1).numpy()

    return conditionals

def write(conditionals, rule: str, per_step, stories: int, seed: int, T=48, V=135, mask=135):
    """(stories, T) tokens, and (stories,) passes. In each step a token is drawn for every masked
    place, and the per_step places that the rule likes best are kept. bounded: as many of the least entropy
    as together risk at most per_step nats, the last one not counted (Ben-Hamu et al. 2025, arXiv
    2505.24857)."""
    rng, x = np.random.default_rng(seed), np.full((stories, T), mask)
    noise, passes = rng.random((stories, T)), np.zeros(stories)     # one order of places for rule random
    while (x == mask).any():
        rows = np.flatnonzero((x == mask).any(axis=1))
        passes[rows] += 1
        p, masked = conditionals(x[rows]), x[rows] == mask                          # (n, T, V), (n, T)
        cdf = p.cumsum(axis=-1)
        drawn = (cdf < rng.random((len(rows), T, 1)) * cdf[..., -1:]).sum(axis=-1)  # (n, T)
        top = np.sort(p, axis=-1)
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1)
        last = {"random": noise[rows], "left_to_right": np.broadcast_to(np.arange(T), (len(rows), T)),
                "confidence": -np.take_along_axis(p, drawn[..., None], axis=-1)[..., 0],
                "margin": top[..., -2] - top[..., -1]}.get(rule, entropy)
        last = np.where(masked, last + 1e-9 * noise[rows], np.inf)                  # ties by chance
        rank = last.argsort(axis=1).argsort(axis=1)
        if rule == "bounded":
            order = last.argsort(axis=1)
            ranked = np.take_along_axis(np.where(masked, entropy, 0), order, axis=1)
            before = np.take_along_axis(ranked.cumsum(axis=1) - ranked, rank, axis=1)
            now = masked & (before <= per_step + 1e-9)
        else:
            now = masked & (rank < per_step)
        x[rows] = np.where(now, drawn, x[rows])
    return x, passes

def compare_rules(networks: dict, tokenizer, o: PlannerOptions) -> list:
    results = []
    ways = [(rule, n) for rule in RULES for n in o.per_step] + [("bounded", bound) for bound in o.bounds]
    for name, conditionals in networks.items():
        for rule, per_step in ways:
            parts = [write(conditionals, rule, per_step, min(100, o.num_samples - i), o.seed + i)
                     for i in range(0, o.num_samples, 100)]
            texts = [tokenizer.decode_story(row) for x, _ in parts for row in x.tolist()]
            results.append({"network": name, "rule": rule, "per_step": per_step,
                            "passes": float(np.concatenate([n for _, n in parts]).mean()), **distance(texts)})
            row = results[-1]
            print(f"{name}, {rule} {per_step}: {row['passes']:.1f} passes, {row['grammatical']:.1%}, KL "
                  f"{row['kl']:.3f}, surprise {row['surprise']:+.3f}", flush=True)
    return results

@torch.no_grad()
def judge(x, mdlms: dict, aogpts: dict, o: PlannerOptions) -> list:
    """KL(exact ‖ network), nats, of a masked token's conditional, by the number of tokens masked at random:
    mean over the masked tokens of stories x (N, 48), and its standard error over stories. aogpt is given
    the known tokens in a random order."""
    order = np.random.default_rng(o.seed).random(x.shape).argsort(axis=1)           # those masked come last
    results = []
    for count in o.masked:
        place = order[:, -count:]
        known = x.copy()
        np.put_along_axis(known, place, 135, axis=1)
        exact = np.take_along_axis(toy_conditionals(known), place[..., None], axis=1)       # (N, count, V)
        answers = {name: np.take_along_axis(network(model)(known), place[..., None], axis=1)
                   for name, model in mdlms.items()}
        for name, model in aogpts.items():
            _, predict = sample.slots_in_order(model, torch.from_numpy(known), torch.from_numpy(order),
                                              sample.SampleOptions())
            slots = torch.arange(48).expand(len(x), -1)
            logits = predict(slots, torch.full((len(x), 1), 48 - count), count)
            answers[name] = logits.double().softmax(dim=-1).numpy()
        for name, p in answers.items():
            kl = (exact * (np.log(np.maximum(exact, 1e-300)) - np.log(p))).sum(axis=-1).mean(axis=1)
            results.append({"network": name, "masked": count, "kl": kl.mean(),
                            "se": kl.std() / math.sqrt(len(kl))})
    return results

def main():
    o = build(PlannerOptions, parse_flags(__doc__, PlannerOptions))
    if not (o.mdlm or o.aogpt):
        raise InputError("which models? give --mdlm=DIR,DIR and --aogpt=DIR,DIR, runs of the toy")
    opened = [{folder: open_model(folder, "cpu")[:2] for folder in filter(None, folders.split(","))}
              for folders in (o.mdlm, o.aogpt)]
    mdlms, aogpts = ({folder: model for folder, (model, _) in group.items()} for group in opened)
    for models, mode in ((mdlms, "mdlm"), (aogpts, "aogpt")):
        for folder, model in models.items():
            if (model.config.mode, model.config.vocab_size, model.config.block_size) != (mode, 135, 48):
                raise InputError(f"--{mode}={folder} is not an {mode} of the toy's whole stories")
    if max(o.masked) > 48:
        raise InputError(f"--masked={max(o.masked)} is more than a story's 48 tokens")
    tokenizer = next(tokenizer for group in opened for _, tokenizer in group.values())
    data = read_run(next(iter(mdlms | aogpts)))["settings"]["data"]
    errors = judge(Windows(data, "val", 48).spread(o.num_samples), mdlms, aogpts, o)
    rows = [["KL of a conditional, nats", *map(str, o.masked)]]
    for name in dict.fromkeys(row["network"] for row in errors):
        rows.append([name, *(f"{row['kl']:.4f}" for row in errors if row["network"] == name)])
    print_table(rows)
    networks = {"exact": toy_conditionals} | {folder: network(model) for folder, model in mdlms.items()}
    rules = compare_rules(networks, tokenizer, o)
    if o.json:
        write_json(o.json, {**provenance(o.seed), "rules": rules, "conditionals": errors})

if __name__ == "__main__":
    command(main, "nothing was written")
