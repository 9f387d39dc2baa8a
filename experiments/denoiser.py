"""
What does a sampler lose by its own rule, and what by its network?

    python -m experiments.denoiser ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt --plot=F

Each NAME=FOLDER is a run of the toy. Every sampler of its mode writes 10,000 stories with it, and
as many with the perfect network, which is the law itself. There only the rule can be at fault. Two
of the rules for mdlm, threshold and remask, are not in samplers.py but below. A row has

    passes, tokens a pass       of a story, on average; a story has 48 tokens
    grammatical, kl, surprise   how far the stories are from the law, see `distance` in oracle.py
    s a story                   with --seconds=N: seconds for a story, of N that are written one at
                                a time, and of N written 64 at a time

The networks share the random numbers of each sampler. In the figure a sampler has the same colour
with all of them.

The expected answer: with one token a pass the law breaks no story, so what a trained network breaks
there is its own fault. With several tokens a pass the law breaks nearly as many stories as a
trained network, so that is the fault of the rule. Rules that ask how sure the network is break few.
But a rule without broken stories may still be wrong: confidence looks at what it drew, and its kl
is large. The answer would be refuted if the law broke few stories where trained networks break
many, or if confidence had no larger kl than adaptive has.

The four networks of run_all.sh take two hours on one core of a busy CPU. More than half of that are
mdlm's samplers without blocks.
"""
import itertools
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from support.flags import InputError, build, command, flag, parse_flags, provenance, write_json
from experiments.held_out import Output, finished_run
from experiments.oracle import distance, toy_oracle
from model import Config
from objectives import masking_batch
from runs import open_model
from samplers import SampleOptions, draw_masked, invert, states, uniforms
from show import figure
from toy import TOY

# For each mode {sampler: {flag: its values}}; each combination of the values is a row.
SAMPLERS = {
    "ar": {
        "left_to_right": {}},
    "mdlm": {
        "first_hitting": {"steps": [48, 24, 12, 6]},
        "ancestral": {"steps": [48]},
        "confidence": {"steps": [48, 24]},
        "adaptive": {"risk": [0.01, 0.03, 0.1, 1.0]},
        "threshold": {"surety": [0.5, 0.7, 0.9]},
        "remask": {"steps": [24, 12], "eta": [0.05, 0.1, 0.2]}},
    "aogpt": {
        "any_order": {"steps": [48, 24, 12, 6]},
        "draft": {"draft": [4, 16, 48]}}}

FOR_BLOCKS = "first_hitting", "adaptive"        # of runs of mdlm with --orders=blocks:N
SEED = 1337                                     # of the stories
AT_ONCE = 1, 64                                 # stories whose writing is timed
LAW = "the law"


@dataclass
class DenoiserOptions(Output):
    """what to write"""
    num_samples: int = flag(10000, "stories of each row", low=1)
    seconds: int = flag(0, "stories to time in each row of a trained network", low=0)


# ---- Two more rules for mdlm ---------------------------------------------------------------------
# Each yields the tokens (B, L) after every pass. Before the first all of them are [MASK].

def reveal_the_sure(model, tokens, generators: list, surety: float):
    """Each pass reveals every token of which some value has at least this probability.

    Where no token has one, it reveals the token that comes nearest. That is the rule of Fast-dLLM
    (Wu et al. 2025, arXiv 2505.22618) and LLaDA2. They take the likeliest value, but then all
    stories would be the same. Ours draws one, by which it does not choose what to reveal."""
    mask_id = model.config.mask_id
    u = uniforms(generators, tokens.size(1), tokens.device)                     # (B, L)
    while (tokens == mask_id).any():
        masked = tokens == mask_id                                              # (B, L)
        batch = masking_batch(model.config, tokens, masked)
        select = F.pad(masked, (1, 0)).flatten().nonzero().T                    # (1, N)
        [logits] = model(
            batch.tokens, batch.key_pos, batch.target_pos, batch.t, select)     # (N, V)
        p = logits.softmax(dim=-1)                                              # (N, V)
        largest = torch.zeros(tokens.shape)
        largest = largest.masked_scatter(masked, p.amax(dim=-1))                # (B, L)
        nearest = largest.argmax(dim=1, keepdim=True)                           # (B, 1)
        sure = (largest >= surety).scatter(1, nearest, True)                    # (B, L)
        drawn = invert(p, u[masked])                                            # (N,)
        new = tokens.masked_scatter(masked, drawn)      # (B, L), and the known ones as they were
        tokens = new.where(sure, tokens)
        yield tokens


def mask_again(model, tokens, generators: list, steps: int, eta: float):
    """Each pass masks a share eta of the known tokens again, and reveals as many more.

    So a later pass can mend what an earlier one broke (ReMDM, Wang et al. 2025, arXiv 2503.00307),
    and after each pass as many tokens are known as with first_hitting. With eta = 0 the stories are
    those of first_hitting."""
    mask_id = model.config.mask_id
    L = tokens.size(1)

    def first_of(some, count: int):
        """Which `count` tokens of some (B, L) come first, by their times."""
        place = times.masked_fill(~some, 2).argsort(dim=1)[:, :count]
        return torch.zeros_like(some).scatter(1, place, True)

    for step in range(steps):
        known = L * step // steps
        known_after = L * (step + 1) // steps
        again = min(round(eta * known), L - known_after)        # the others are revealed already
        if again or step == 0:
            times = uniforms(generators, L, tokens.device)                      # (B, L)
            u = uniforms(generators, L, tokens.device)                          # (B, L)
        masked = tokens == mask_id                                              # (B, L)
        now = first_of(masked, known_after - known + again)
        new, _ = draw_masked(model, tokens, now, u, SampleOptions())
        tokens = new.masked_fill(first_of(~masked, again), mask_id)
        yield tokens


# ---- Writing, measured ---------------------------------------------------------------------------

@torch.no_grad()
def passes_of(model, stories, sampler: str, settings: dict):
    """Yields the tokens (B, T) of the stories with these numbers after every pass."""
    generators = [np.random.default_rng((SEED, story)) for story in stories]
    tokens = torch.full((len(stories), model.config.block_size), model.config.mask_id)
    if sampler == "threshold":
        yield from reveal_the_sure(model, tokens, generators, **settings)
    elif sampler == "remask":
        yield from mask_again(model, tokens, generators, **settings)
    else:
        o = SampleOptions(seed=SEED, **settings)
        if model.config.mode == "mdlm":
            o = replace(o, sampler=sampler)
        yield from states(model, stories, tokens[0], o)


def write(model, tokenizer, num_samples: int, sampler: str, settings: dict) -> dict:
    """Passes of so many stories, and how far they are from the law."""
    T = model.config.block_size
    texts = []
    passes = 0
    for first in range(0, num_samples, 100):
        stories = range(first, min(first + 100, num_samples))
        before = torch.full((len(stories), T), model.config.mask_id)
        for tokens in passes_of(model, stories, sampler, settings):
            changed = (tokens != before).any(dim=1)     # what is finished waits for its batch
            passes += int(changed.sum())
            before = tokens
        texts += [tokenizer.decode_story(ids) for ids in tokens.tolist()]
    return {
        "passes": passes / num_samples,
        "tokens_per_pass": T * num_samples / passes,
        **distance(texts)}


def seconds_a_story(model, at_once: int, sampler: str, settings: dict, o: DenoiserOptions):
    """The median over batches of o.seconds stories in all, or a few more. The first warms up."""
    ticks = []
    for first in range(0, at_once + o.seconds, at_once):
        stories = range(first, first + at_once)
        for tokens in passes_of(model, stories, sampler, settings):
            pass
        ticks.append(time.perf_counter())
    return float(np.median(np.diff(ticks))) / at_once


def ways(config: Config):
    """Yields the samplers for such a network, each with each of its settings."""
    for sampler, values in SAMPLERS[config.mode].items():
        if config.in_blocks and sampler not in FOR_BLOCKS:
            continue
        for combination in itertools.product(*values.values()):
            settings = dict(zip(values, combination))
            yield sampler, settings


def measure(network: str, model, tokenizer, o: DenoiserOptions):
    """Yields a row for each way to write."""
    config = model.config
    kind = config.mode
    if config.block_length < config.block_size:
        kind += f" {config.orders}"
    for sampler, settings in ways(config):
        row = {
            "network": network,
            "sampler": f"{kind} {sampler}",
            "settings": settings}
        row |= write(model, tokenizer, o.num_samples, sampler, settings)
        row["seconds"] = []
        if o.seconds and network != LAW:
            for at_once in AT_ONCE:
                seconds = seconds_a_story(model, at_once, sampler, settings, o)
                row["seconds"].append(seconds)
        yield row


# ---- All rows, and the figure --------------------------------------------------------------------

def draw(rows: list, path: str):
    """Grammatical stories against tokens a pass, with the law left, with trained networks right."""
    left_out = "ancestral", "threshold", "remask"       # those that the table is enough for
    lines = {}          # {sampler: {network: its points}}
    for row in rows:
        if not row["sampler"].endswith(left_out):
            of_sampler = lines.setdefault(row["sampler"], {})
            points = of_sampler.setdefault(row["network"], [])
            points.append((row["tokens_per_pass"], 100 * row["grammatical"]))
    with figure(path, (8.5, 5), columns=2) as (left, right):
        for i, (sampler, of_sampler) in enumerate(lines.items()):
            for network, points in of_sampler.items():
                axes = left if network == LAW else right
                axes.plot(*zip(*points), "so^"[i % 3], ls="-", color=f"C{i}", ms=5, label=sampler)
        left.set(title=LAW, xlabel="tokens a pass", ylabel="grammatical stories, %")
        right.set(title="trained networks", xlabel="tokens a pass")


def main():
    flags = parse_flags(__doc__, DenoiserOptions, named="NAME=FOLDER")
    o = build(DenoiserOptions, flags)
    networks = []
    commits = {}
    for name, folder in flags["named"].items():
        commits[name] = {"folder": folder, "commit": finished_run(folder)["commit"]}
        model, tokenizer, _ = open_model(folder, "cpu")
        if tokenizer.words != TOY.words():
            raise InputError(f"{folder} is no run of the toy, whose law is known")
        law = toy_oracle(model.config.mode, model.config.orders)
        networks += [(name, model), (LAW, law)]
    rows = []
    for name, model in networks:
        for row in measure(name, model, tokenizer, o):
            print(row, flush=True)
            rows.append(row)
            if o.json:
                write_json(o.json, provenance(SEED) | {"runs": commits, "rows": rows})
    if o.plot:
        draw(rows, o.plot)


if __name__ == "__main__":
    command(main, "with --json, what was measured is in its file")
