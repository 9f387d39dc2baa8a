"""
Write stories with a trained model.

    python sample.py --out_dir=out/toy-mdlm --num_samples=1000 --steps=32
    python sample.py --out_dir=out/tinystories-ar --temperature=0.8 --top_p=0.95

All three samplers reveal tokens step by step; they differ in who chooses the next position. ar: left to right. aogpt: a
random order, one position a step, or several that do not see each other. mdlm: any masked position may come next, and
every step is a pass over the whole window. Stories begin at their beginning and end at the first end-of-text.
"""
import itertools
import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from model import Transformer, load, masking_batch, new_cache, timestep
from prepare_data import TOY, Tokenizer, command, fail, parse_flags, provenance

# ----------------------------------------------------------------------------------------------------------------------
# Randomness: two float64 uniforms per story and position, whatever the sampler and the batch


def story_noise(seed: int, stories, length: int, device: torch.device):
    """(B, L) when: the order in which positions are revealed, and (B, L) u: which token each of them gets."""
    noise = torch.stack([torch.from_numpy(np.random.default_rng((seed, story)).random((2, length))) for story in stories])
    return noise.to("cpu" if device.type == "mps" else device).unbind(dim=1)          # mps has no float64


def draw(logits, u, temperature: float, top_p: float):
    """Tokens (N,) from logits (N, V) and uniforms u (N,), by inverting the distribution function in float64.

    Exact: float32 noise would cut off the tail and so lower the real temperature (Zheng et al., arXiv 2409.02908).
    temperature 0 takes the likeliest token; top_p keeps the smallest set of likeliest tokens with that probability.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    drawn = []
    for row, u_row in zip(logits.split(256), u.split(256)):                         # bounds memory: V float64 a row
        p = torch.softmax(row.to(u.device).double() / temperature, dim=-1)          # (n, V)
        if top_p < 1:
            ranked, index = p.sort(dim=-1, descending=True)
            keep = ranked.cumsum(dim=-1) - ranked < top_p                           # mass of likelier tokens
            p = torch.zeros_like(p).scatter(-1, index, ranked * keep)
        cdf = p.cumsum(dim=-1)
        drawn.append(torch.searchsorted(cdf, u_row[:, None] * cdf[:, -1:], right=True)[:, 0])
    return torch.cat(drawn).clamp(max=logits.size(-1) - 1).to(logits.device)        # rounding could reach the very end


# ----------------------------------------------------------------------------------------------------------------------
# Samplers: (B, L) tokens from the noise


def sample_in_order(model, order, u, steps: int, temperature: float, top_p: float):
    """ar and aogpt: reveal the positions in the given order (B, L), in `steps` groups of neighbours in that order.

    Slot j holds token order[j-1] and predicts order[j] (slot 0 holds BOS). A group of m positions is predicted by m copies
    of one slot, which differ in their targets and do not see each other; then each revealed token gets its own slot.
    """
    (B, L), device = order.shape, order.device
    position = torch.cat([torch.full_like(order[:, :1], -1), order], dim=1)         # (B, L+1) of the token in slot j
    held = torch.full_like(position, model.config.bos_id)                           # (B, L+1) the token in slot j
    cache, cached = new_cache(model, B, L), 0                                       # slots that are cached for good
    for start, end in itertools.pairwise(L * step // steps for step in range(steps + 1)):
        slots = torch.arange(cached, end, device=device)                            # slots up to `start`, then its copies
        holds = slots.clamp(max=start)
        visible = torch.arange(end, device=device)
        visible = (visible < holds[:, None]) | (visible == slots[:, None])          # (S, end)
        select = torch.arange(start - cached, end - cached, device=device).expand(B, -1)
        logits = model(held[:, holds], position[:, holds], order[:, slots], select, cache=cache, slots=slots, visible=visible)
        u_now = u.gather(1, order[:, start:end].to(u.device))
        held[:, start + 1:end + 1] = draw(logits.flatten(0, 1), u_now.flatten(), temperature, top_p).view(B, -1)
        cached = start + 1
    return torch.empty_like(order).scatter(1, order, held[:, 1:])


def sample_masked(model, reveal, u, temperature: float, top_p: float):
    """mdlm: start from all [MASK]; in step s reveal the positions where reveal (B, L) equals s, all at once.

    Only rows that reveal something are computed, and logits only where they are read.
    """
    config, (B, L) = model.config, reveal.shape
    tokens = torch.full_like(reveal, config.mask_id)
    for step in range(int(reveal.max()) + 1):
        now = reveal == step
        rows = now.any(dim=1).nonzero()[:, 0]
        if len(rows):
            masked = tokens[rows] == config.mask_id
            batch = masking_batch(config, tokens[rows], masked, timestep(config, masked.float().mean(dim=1)))
            select = F.pad(now[rows], (1, 0)).flatten().nonzero().T                 # (1, N) over all rows at once
            logits = model(batch.tokens, batch.key_pos, batch.target_pos, select, batch.t)
            tokens[now] = draw(logits[0], u[now.to(u.device)], temperature, top_p)
    return tokens


@torch.no_grad()
def generate(model: Transformer, stories, length: int, steps: int, seed: int, temperature=1.0, top_p=1.0,
             sampler="first_hitting"):
    """(B, L) tokens of the stories with these numbers. Story i does not depend on which others are in the batch.

    steps  ar: must be `length`. aogpt and mdlm: the number of groups of positions, one position each where steps = length,
           which is exact: tokens of one group are drawn independently of each other. mdlm's ancestral sampler gives each
           position a uniform time in [0, 1] and cuts time into equal steps, so groups differ in size, whatever `steps` is.
    """
    device = model.head.weight.device
    when, u = story_noise(seed, stories, length, device)
    order = when.argsort(dim=1).to(device)                                          # (B, L)
    if model.config.mode == "mdlm":
        reveal = (when * steps).long().to(device) if sampler == "ancestral" else order.argsort(dim=1) * steps // length
        return sample_masked(model, reveal, u, temperature, top_p)
    if model.config.mode == "ar":
        order = torch.arange(length, device=device).expand_as(order)
    return sample_in_order(model, order, u, steps, temperature, top_p)


# ----------------------------------------------------------------------------------------------------------------------
# The command


@dataclass
class Options:
    """what to write, and how"""
    out_dir: str = ""           # the run to sample from; its best.pt is read
    num_samples: int = 3        # stories
    length: int = 0             # tokens per story, before it is cut at its end; default: block_size, as trained
    steps: int = 0              # network passes per story; default: one per token. Fewer, for mdlm and aogpt, is faster
    temperature: float = 1.0    # 1 samples the model's own distribution, 0 takes the likeliest token
    top_p: float = 1.0          # keep the likeliest tokens with this much probability
    sampler: Literal["first_hitting", "ancestral"] = "first_hitting"  # mdlm: equally many tokens a step, or a random number
    batch_size: int = 64        # stories at a time; changes speed, not stories
    out: str = ""               # where the stories go; default: samples.jsonl in out_dir
    json: str = ""              # file for a summary: settings, seconds and, for the toy, the share that obeys the grammar
    full_length: bool = False   # keep what comes after the end of the story
    seed: int = 1337            # of the stories
    device: str = "auto"        # auto, cpu, cuda or mps


def pick_device(name: str) -> torch.device:
    """auto: cuda, else mps, else cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as e:
        fail(f"--device={name} is not usable here ({str(e).splitlines()[0]}); leave it out to choose automatically")
    return torch.device(name)


def check(o: Options, config):
    """Fill in the defaults that depend on the model; one clear line for what cannot be."""
    o.length = o.length or config.block_size
    o.steps = o.steps or o.length
    if not 1 <= o.length <= config.block_size:
        fail(f"--length={o.length} must lie between 1 and the model's block_size, {config.block_size}")
    if o.steps < 1 or (o.steps > o.length and o.sampler != "ancestral"):
        fail(f"--steps={o.steps} must lie between 1 and the length, {o.length}")
    if config.mode == "ar" and o.steps != o.length:
        fail(f"--steps={o.steps} is not for ar, which takes one step a token; leave it out")
    if config.mode != "mdlm" and o.sampler == "ancestral":
        fail(f"--sampler=ancestral is for mdlm; this model is {config.mode}")
    if o.temperature < 0:
        fail(f"--temperature={o.temperature} must be 0 or more")
    if not 0 < o.top_p <= 1:
        fail(f"--top_p={o.top_p} must lie in (0, 1]")
    if o.num_samples < 1 or o.batch_size < 1 or o.seed < 0:
        fail("--num_samples and --batch_size must be at least 1, --seed at least 0")


def main():
    o = Options(**parse_flags(__doc__, Options))
    if not o.out_dir:
        fail("which model? give --out_dir=DIR, the folder that train.py wrote")
    try:
        model, checkpoint = load(os.path.join(o.out_dir, "best.pt"), pick_device(o.device))
    except (OSError, ValueError) as e:
        fail(str(e))
    check(o, model.config)
    model.eval()
    tokenizer = Tokenizer(**checkpoint["tokenizer"])
    o.out = o.out or os.path.join(o.out_dir, "samples.jsonl")
    settings = {**asdict(o), "mode": model.config.mode, "windows": checkpoint["windows"], **provenance(o.seed)}
    texts, total_seconds = [], 0.0
    with open(o.out, "w") as f, tqdm(total=o.num_samples, unit="story", leave=False, disable=None) as bar:
        for first in range(0, o.num_samples, o.batch_size):
            stories = range(first, min(first + o.batch_size, o.num_samples))
            began = time.perf_counter()
            tokens = generate(model, stories, o.length, o.steps, o.seed, o.temperature, o.top_p, o.sampler).tolist()
            seconds = time.perf_counter() - began
            total_seconds += seconds
            for story, ids in zip(stories, tokens):
                texts.append(tokenizer.decode(ids) if o.full_length else tokenizer.decode_story(ids))
                f.write(json.dumps({"story": story, "text": texts[-1], "tokens": ids, "seconds_per_batch": seconds, **settings}) + "\n")
            f.flush()
            bar.update(len(stories))
    for text in texts[:3]:
        print(text, end="\n\n")
    summary = {**settings, "first_stories": texts[:3], "seconds": total_seconds}
    if tokenizer.kind == "words" and o.length == model.config.block_size and not o.full_length:
        summary["grammatical"] = sum(TOY.log_probs(text) is not None for text in texts) / len(texts)
        print(f"{summary['grammatical']:.1%} of {len(texts)} stories obey the grammar")
    if o.json:
        with open(o.json, "w") as f:
            json.dump(summary, f, indent=1)
    print(f"{len(texts)} stories in {o.out}")


if __name__ == "__main__":
    command(main, "the stories written so far are kept")
