"""
Write stories with a trained model, or fill the blanks of one.

    python sample.py --out_dir=out/toy-mdlm --num_samples=1000 --steps=24
    python sample.py --out_dir=out/tinystories-mdlm --prompt="Once upon a time ___ lived happily." --show
    python sample.py --out_dir=out/toy-ar,out/toy-mdlm,out/toy-aogpt --picture=modes.png

All samplers reveal tokens step by step; they differ in who chooses the next positions. ar: left to right. aogpt: a random or
given order, one position a step, or several that do not see each other. mdlm: any masked positions may come next, and every
step is a pass over the whole window. Stories are cut at the first end-of-text.

--out_dir, --sampler, --steps and --temperature take several values separated by commas; every combination is run.
"""
import itertools
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from model import Config, Transformer, load, masking_batch, new_cache, timestep
from prepare_data import TOY, Tokenizer, command, fail, parse_flags, provenance
from show import Screen, draw_picture, draw_steps, token_texts


@dataclass
class Options:
    """what to write, and how"""
    out_dir: str = ""           # the run to sample from; its best.pt is read (commas: see above)
    num_samples: int = 3        # stories
    length: int = None          # tokens of a story before it is cut; default: block_size, or the prompt's if it has blanks
    prompt: str = ""            # begin with this text; ___ in it is a blank to be filled (mdlm, aogpt)
    blank: int = 8              # tokens of a blank
    start: Literal["auto", "story", "anywhere"] = "auto"  # begin at a story's start, or where training windows began
    sampler: Literal["ancestral", "first_hitting", "confidence"] = "ancestral"  # mdlm: each masked token by chance, equally many a step, or the surest
    order: str = "random"       # aogpt: random, left_to_right, or all positions in the order wanted: 2,0,1
    steps: int = None           # network passes per story; default: as many as tokens. Fewer (mdlm, aogpt) is faster and worse
    temperature: float = 1.0    # 1 samples the model's own distribution, 0 takes the likeliest token
    top_p: float = 1.0          # keep the likeliest tokens with this much probability
    final_temperature: float = None     # confidence: temperature falls linearly to this one; default: it does not fall
    repetition_penalty: float = 1.0     # confidence: log p of a token is multiplied by this for each time it occurs, up to 5
    protocol: Literal["own", "paper"] = "own"   # paper: the values of its code, for whatever is not given here
    kv_cache: bool = True       # ar, aogpt: keep keys and values; without, the same stories more slowly
    batch_size: int = 64        # stories at a time; changes speed, not stories
    full_length: bool = False   # keep what comes after the end of the story
    show: bool = False          # watch the tokens appear
    picture: str = ""           # file for a picture (.png) of each setting's first story, shaded by step
    out: str = ""               # where the stories go; default: samples.jsonl in out_dir
    json: str = ""              # file for summaries: settings, seconds and, for the toy, the share that obeys the grammar
    plot: str = ""              # toy: file for a figure (.png) of that share against the tokens revealed per step
    seed: int = 1337            # of the stories
    device: str = "auto"        # auto, cpu, cuda or mps
    dtype: Literal["float32", "bfloat16"] = "float32"   # of the weights; bfloat16 is faster, and rounds probabilities


# What the paper's code did (arXiv 2603.22075), but that its repetition penalty raised the tokens with negative logits
PAPER = {"ar": dict(length=128, temperature=0.8, prompt="Once"),
         "mdlm": dict(length=128, temperature=0.8, final_temperature=0.32, sampler="confidence", steps=100, repetition_penalty=1.3),
         "aogpt": dict(length=128, temperature=0.8)}     # not in the paper

# ----------------------------------------------------------------------------------------------------------------------
# Randomness: two float64 uniforms per story and position, whatever the sampler and the batch


def story_noise(seed: int, stories, length: int, device: torch.device):
    """(B, L) when: the time in [0, 1) at which a position is revealed, and (B, L) u: which token it gets."""
    noise = torch.stack([torch.from_numpy(np.random.default_rng((seed, story)).random((2, length))) for story in stories])
    return noise.to("cpu" if device.type == "mps" else device).unbind(dim=1)          # mps has no float64


def draw(logits, u, temperature: float, top_p: float):
    """Tokens (N,) from logits (N, V) and uniforms u (N,), and the probability (N,) of each, by inverting the distribution
    function in float64.

    Exact: float32 noise would cut off the tail and so lower the real temperature (Zheng et al., arXiv 2409.02908).
    temperature 0 takes the likeliest token; top_p keeps the smallest set of likeliest tokens with that probability.
    """
    drawn = []
    rows = max(1, 2 ** 23 // logits.size(-1))                                       # bounds memory: V float64 a row
    for row, u_row in zip(logits.split(rows), u.split(rows)):
        p = torch.softmax(row.to(u.device).double() / (temperature or 1), dim=-1)   # (n, V)
        if temperature == 0:
            drawn.append(p.max(dim=-1)[::-1])
            continue
        if top_p < 1:
            ranked, index = p.sort(dim=-1, descending=True)
            keep = ranked.cumsum(dim=-1) - ranked < top_p                           # mass of likelier tokens
            p = torch.zeros_like(p).scatter(-1, index, ranked * keep)
        cdf = p.cumsum(dim=-1)
        token = torch.searchsorted(cdf, u_row[:, None] * cdf[:, -1:], right=True)
        token = token.clamp(max=p.size(-1) - 1)                                     # rounding could reach the very end
        drawn.append((token[:, 0], p.gather(-1, token)[:, 0]))
    tokens, probability = map(torch.cat, zip(*drawn))
    return tokens.to(logits.device), probability.float().to(logits.device)


# ----------------------------------------------------------------------------------------------------------------------
# Samplers: each yields its state after every step, (B, L) tokens with [MASK] where nothing is revealed yet


def sample_in_order(model, tokens, order, u, first: int, steps: int, o: Options):
    """ar and aogpt: reveal the positions order[:, first:] of order (B, L), in `steps` groups of neighbours in that order.

    Slot j holds token order[j-1] and predicts order[j] (slot 0 holds BOS). A group of m positions is predicted by m copies
    of one slot, which differ in their targets and do not see each other; then each revealed token gets its own slot.
    """
    (B, L), device = order.shape, order.device
    position = torch.cat([torch.full_like(order[:, :1], -1), order], dim=1)         # (B, L+1) of the token in slot j
    held = torch.cat([torch.full_like(order[:, :1], model.config.bos_id), tokens.gather(1, order)], dim=1)      # (B, L+1)
    cache, cached = new_cache(model, B, L), 0                                       # slots that are cached for good
    for start, end in itertools.pairwise(first + (L - first) * step // steps for step in range(steps + 1)):
        slots = torch.arange(cached, end, device=device)                            # slots up to `start`, then its copies
        holds = slots.clamp(max=start)
        visible = torch.arange(end, device=device)
        visible = (visible < holds[:, None]) | (visible == slots[:, None])          # (S, end)
        select = torch.arange(start - cached, end - cached, device=device).expand(B, -1)
        logits = model(held[:, holds], position[:, holds], order[:, slots], select, cache=cache, slots=slots, visible=visible)
        u_now = u.gather(1, order[:, start:end].to(u.device))
        new = draw(logits.flatten(0, 1), u_now.flatten(), o.temperature, o.top_p)[0].view(B, -1)
        held[:, start + 1:end + 1] = new
        tokens = tokens.scatter(1, order[:, start:end], new)
        cached = start + 1 if o.kv_cache else 0
        yield tokens


def draw_masked(model, tokens, now, u, temperature: float, o: Options):
    """mdlm: draw tokens for the masked positions `now` (B, L), boolean; new (B, L), and their probability, 0 elsewhere.

    Logits are computed only where they are read, and only for rows that read some; a gigabyte of them at a time.
    """
    config, new, probability = model.config, tokens.clone(), torch.zeros(tokens.shape, device=tokens.device)
    for rows in now.any(dim=1).nonzero()[:, 0].split(max(1, 2 ** 28 // (config.vocab_size * int(now.sum(dim=1).max())))):
        masked, here = tokens[rows] == config.mask_id, now[rows]
        batch = masking_batch(config, tokens[rows], masked, timestep(config, masked.float().mean(dim=1)))
        select = torch.nn.functional.pad(here, (1, 0)).flatten().nonzero().T        # (1, N) over all rows at once
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, select, batch.t)[0]                       # (N, V)
        row, column = here.nonzero(as_tuple=True)
        if o.repetition_penalty != 1:       # on log p, which is negative: it always lowers
            times = torch.zeros(len(rows), config.vocab_size + 1, device=tokens.device)
            times = times.scatter_add_(1, tokens[rows], torch.ones_like(times[:, :1]).expand(tokens[rows].shape))
            logits = logits.log_softmax(dim=-1) * o.repetition_penalty ** times[row, :-1].clamp(max=5)
        u_now = u[rows[row].to(u.device), column.to(u.device)]
        new[rows[row], column], probability[rows[row], column] = draw(logits, u_now, temperature, o.top_p)
    return new, probability


def sample_masked(model, tokens, reveal, u, o: Options):
    """mdlm: in step s reveal the positions where reveal (B, L) equals s, all at once."""
    for step in range(int(reveal.max()) + 1):
        if (now := reveal == step).any():
            tokens, _ = draw_masked(model, tokens, now, u, o.temperature, o)
        yield tokens


def sample_confident(model, tokens, when, u, steps: int, o: Options):
    """mdlm: in each step draw a token for every masked position, but keep only the likeliest of them (MaskGIT, Chang et al.
    2022; the paper's sampler). Equally many are kept in every step."""
    free = int((tokens[0] == model.config.mask_id).sum())
    final = o.temperature if o.final_temperature is None else o.final_temperature
    for step in range(steps):
        temperature = o.temperature + (final - o.temperature) * step / max(1, steps - 1)
        masked = tokens == model.config.mask_id
        fresh = (u + step * when) % 1       # pairwise independent uniforms from two
        new, probability = draw_masked(model, tokens, masked, fresh, temperature, o)
        keep = free * (step + 1) // steps - free * step // steps
        chosen = probability.masked_fill(~masked, -1).topk(keep, dim=1).indices                                 # (B, keep)
        tokens = tokens.scatter(1, chosen, new.gather(1, chosen))
        yield tokens


def states(model: Transformer, stories, pattern, o: Options):
    """Yield (B, L) tokens after every step of writing the stories with these numbers, [MASK] where nothing is revealed yet.
    Story i does not depend on which others are in the batch.

    pattern  (L,) the tokens given, [MASK] where the model writes
    steps    aogpt and mdlm: the number of groups of positions, one position each where it is the number of free ones,
             which is exact: tokens of one group are drawn independently of each other. mdlm's ancestral sampler gives each
             position a uniform time in [0, 1) and cuts time into equal steps, so that in every step each masked token is
             revealed with the probability that the masking process has; groups differ in size.
    """
    config, device = model.config, model.head.weight.device
    L, pattern = len(pattern), pattern.to(device)
    when, u = story_noise(o.seed, stories, L, device)
    free = pattern == config.mask_id
    n = int(free.sum())
    steps = o.steps or n
    tokens = pattern.expand(len(stories), L)
    if config.mode == "mdlm" and o.sampler == "confidence":
        return sample_confident(model, tokens, when, u, steps, o)
    left_to_right = torch.arange(L, device=when.device) / L
    if config.mode == "ar" or o.order == "left_to_right":
        place = left_to_right.expand_as(when)
    elif o.order == "random":
        place = when
    else:
        place = torch.tensor([int(i) for i in o.order.split(",")], device=when.device).argsort().expand_as(when) / L
    order = torch.where(free.to(when.device), place, left_to_right - 1).argsort(dim=1).to(device)               # given first
    if config.mode != "mdlm":
        return sample_in_order(model, tokens, order, u, L - n, steps, o)
    group = (when * steps).long().to(device) if o.sampler == "ancestral" else (order.argsort(dim=1) - (L - n)) * steps // n
    return sample_masked(model, tokens, torch.where(free, group, -1), u, o)


@torch.no_grad()
def generate(model: Transformer, stories, pattern, o: Options, watch=None):
    """(B, L) tokens of the stories with these numbers, and (B, L) the step at which each appeared, -1 where given.
    watch(tokens), if given, sees every state. See states."""
    mask_id, given = model.config.mask_id, int((pattern != model.config.mask_id).sum())
    appeared = torch.full((len(stories), len(pattern)), -1, device=model.head.weight.device)
    before = pattern.to(appeared.device).expand_as(appeared)
    for step, tokens in enumerate(states(model, stories, pattern, o)):
        appeared[(tokens != mask_id) & (before == mask_id)] = step
        before = tokens
        if watch:
            watch(tokens)
        if model.config.mode == "ar" and not o.full_length and (tokens[:, given:] == model.config.bos_id).any(dim=1).all():
            break                                       # every story has ended
    return tokens, appeared


# ----------------------------------------------------------------------------------------------------------------------
# The command


def pick_device(name: str) -> torch.device:
    """auto: cuda, else mps, else cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as e:
        fail(f"--device={name} is not usable here ({str(e).splitlines()[0]}); leave it out to choose automatically")
    return torch.device(name)


def with_weights_in(model: Transformer, dtype: torch.dtype) -> Transformer:
    """The model, its weights in this type; the table of positions stays float32."""
    rotary = model.rotary
    model.to(dtype).rotary = rotary
    return model


def open_model(folder: str, device: str, dtype: str = "float32"):
    """The best model of a run, ready to sample; its tokenizer, and how its training windows were cut."""
    try:
        model, checkpoint = load(os.path.join(folder, "best.pt"), pick_device(device))
    except (OSError, ValueError) as e:
        fail(str(e))
    return with_weights_in(model, getattr(torch, dtype)).eval(), Tokenizer(**checkpoint["tokenizer"]), checkpoint["windows"]


# flags that mean nothing to a mode: refused, or where several models are sampled, ignored
NOT_FOR = {"ar": ("sampler", "order", "steps", "final_temperature", "repetition_penalty"),
           "aogpt": ("sampler", "final_temperature", "repetition_penalty"), "mdlm": ("order", "kv_cache")}
SWEEP = ("out_dir", "sampler", "steps", "temperature")


def prompt_ids(o: Options, tokenizer: Tokenizer, mask_id: int) -> list:
    """The prompt's tokens, [MASK] in its blanks."""
    ids = []
    pieces = re.split("_{3,}", o.prompt)
    try:
        for i, piece in enumerate(pieces):
            # in GPT-2's tokens a space belongs to the word after it
            ids += ([mask_id] * o.blank if i else []) + tokenizer.encode(piece.rstrip() if i < len(pieces) - 1 else piece)
    except ValueError as e:
        fail(f"--prompt: {e}")
    return ids


def pattern_of(o: Options, config: Config, tokenizer: Tokenizer, windows: str):
    """The story's tokens as far as they are given, [MASK] where the model writes: (L,). Fills in o's defaults that depend on
    the model; one clear line for what cannot be."""
    def need(condition, name, what):
        if not condition:
            fail(f"--{name}={getattr(o, name)} {what}")

    for name in NOT_FOR[config.mode]:
        need(getattr(o, name) == getattr(Options, name), name, f"is not for this model, which is {config.mode}; leave it out")
    for name, low in (("num_samples", 1), ("batch_size", 1), ("blank", 1), ("seed", 0), ("temperature", 0), ("repetition_penalty", 1)):
        need(getattr(o, name) >= low, name, f"must be at least {low}")
    need(0 < o.top_p <= 1, "top_p", "must lie in (0, 1]")
    need(o.final_temperature is None or o.final_temperature >= 0, "final_temperature", "must be at least 0")
    for name in ("json", "picture", "plot"):
        need(os.path.isdir(os.path.dirname(getattr(o, name)) or "."), name, "lies in a folder that does not exist")
    if o.sampler != "confidence":
        for name in ("final_temperature", "repetition_penalty"):
            need(getattr(o, name) == getattr(Options, name), name, "is for --sampler=confidence; leave it out")
    own = "story" if windows == "aligned" else "anywhere"
    o.start = own if o.start == "auto" else o.start
    need(o.start == own or windows == "random", "start", f"is not for this model, whose windows were {windows}; leave it out")

    ids = prompt_ids(o, tokenizer, config.mask_id)
    if o.start == "story" and windows == "random":      # a story starts where one ends
        ids = [tokenizer.eot, *ids]
    if o.length is None:
        o.length = len(ids) if config.mask_id in ids else config.block_size
    need(1 <= o.length <= config.block_size, "length", f"must lie between 1 and the model's block_size, {config.block_size}")
    need(len(ids) <= o.length, "prompt", f"has {len(ids)} tokens, its blanks included; the length is {o.length}")
    pattern = torch.tensor(ids + [config.mask_id] * (o.length - len(ids)))
    free = (pattern == config.mask_id).nonzero()[:, 0].tolist()
    need(free, "prompt", f"fills all {o.length} tokens; leave something to write")
    need(config.mode != "ar" or len(pattern) - free[0] == len(free), "prompt",
         "has a blank before other words; ar writes from left to right and cannot fill it, mdlm and aogpt can")
    o.steps = len(free) if o.steps is None else o.steps
    need(1 <= o.steps and (o.steps <= len(free) or o.sampler == "ancestral" and config.mode == "mdlm"), "steps",
         f"must lie between 1 and the tokens to write, {len(free)}")
    need(o.order in ("random", "left_to_right") or sorted(o.order.split(",")) == sorted(map(str, range(o.length))), "order",
         f"is not random, left_to_right or each of the positions 0 to {o.length - 1} once, separated by commas")
    return pattern


def has_grammar(tokenizer: Tokenizer, config: Config, o: Options) -> bool:
    """Whether these are whole stories of the toy, whose grammar is known."""
    return tokenizer.kind == "words" and o.length == config.block_size and not o.full_length


def write_stories(model: Transformer, tokenizer: Tokenizer, pattern, o: Options, name: str):
    """Generate o.num_samples stories, each a line of o.out as soon as its batch is done. Returns a summary, the settings
    among it, and (title, pieces, steps) of the first story for a picture."""
    config, n = model.config, int((pattern == model.config.mask_id).sum())
    begin = int(pattern[0] == tokenizer.eot)                        # an end-of-text given to start a story isn't part of it
    given = max((i + 1 for i, token in enumerate(pattern.tolist()) if token != config.mask_id), default=0)
    settings = {**asdict(o), "mode": config.mode, "tokens_per_step": n / o.steps, **provenance(o.seed)}
    screen = Screen(tokenizer, config.mask_id) if o.show else None
    texts, total_seconds, panel = [], 0.0, None
    size = 1 if o.show else o.batch_size
    with open(o.out, "w") as f, tqdm(total=o.num_samples, unit="story", desc=name, leave=False, disable=True if o.show else None) as bar:
        for first in range(0, o.num_samples, size):
            stories = range(first, min(first + size, o.num_samples))
            began = time.perf_counter()
            tokens, appeared = (part.tolist() for part in generate(model, stories, pattern, o, screen and screen.draw))
            seconds = time.perf_counter() - began
            total_seconds += seconds
            for story, ids, steps in zip(stories, tokens, appeared):
                end = len(ids) if o.full_length or tokenizer.eot not in ids[given:] else ids.index(tokenizer.eot, given)
                texts.append(tokenizer.decode(ids[begin:end]))
                f.write(json.dumps({"story": story, "text": texts[-1], "tokens": ids[begin:end], "appeared": steps[begin:end],
                                    "seconds_per_batch": seconds, **settings}) + "\n")
                if screen:
                    screen.finish(texts[-1])
                panel = panel or (name, token_texts(tokenizer, ids[begin:end], config.mask_id), steps[begin:end])
            f.flush()
            bar.update(len(stories))
    summary = {**settings, "first_stories": texts[:3], "seconds": total_seconds}
    if has_grammar(tokenizer, config, o):
        summary["grammatical"] = sum(TOY.log_probs(text) is not None for text in texts) / len(texts)
    return summary, panel


def main():
    flags = parse_flags(__doc__, Options, sweep=SWEEP)
    folders = flags.pop("out_dir", [])
    if not folders:
        fail("which model? give --out_dir=DIR, the folder that train.py wrote")
    jobs = []       # everything is checked before anything is written
    for folder in folders:
        model, tokenizer, windows = open_model(folder, flags.get("device", "auto"), flags.get("dtype", "float32"))
        mine = {k: v for k, v in flags.items() if len(folders) == 1 or k not in NOT_FOR[model.config.mode]}
        if flags.get("protocol") == "paper":
            paper = PAPER[model.config.mode] | {"length": mine.get("length", min(128, model.config.block_size))}
            if "sampler" in mine:
                paper = {k: v for k, v in paper.items() if k not in ("final_temperature", "repetition_penalty")}
            if "steps" in paper:
                paper["steps"] = min(paper["steps"], paper["length"])
            mine = {k: [v] if k in SWEEP else v for k, v in paper.items()} | mine
        swept = [k for k in SWEEP if k in mine]
        combinations = list(itertools.product(*(mine[k] for k in swept)))
        for values in combinations:
            o = Options(**mine | dict(zip(swept, values)) | {"out_dir": folder})
            pattern = pattern_of(o, model.config, tokenizer, windows)
            varied = [str(v) for k, v in zip(swept, values) if len(mine[k]) > 1]
            o.out = o.out or os.path.join(folder, "-".join(["samples", *varied]) + ".jsonl")
            how = {"ar": "left to right", "mdlm": o.sampler.replace("_", " "), "aogpt": f"{o.order.replace('_', ' ')} order"}[model.config.mode]
            jobs.append((model, tokenizer, pattern, o, f"{model.config.mode}, {how}, {o.steps} steps"))
    if "out" in flags and len(jobs) > 1:
        fail(f"--out={flags['out']} is for one model and one setting, these are {len(jobs)}; leave it out")
    if flags.get("plot") and not all(has_grammar(tokenizer, model.config, o) for model, tokenizer, _, o, _ in jobs):
        fail(f"--plot={flags['plot']} is for whole stories of the toy, whose grammar is known")

    summaries, panels = [], []
    for job in jobs:
        summary, panel = write_stories(*job)
        o, name = job[3:]
        if not o.show:
            print(*([f"{name}:"] if len(jobs) > 1 else summary["first_stories"]), sep="\n\n", end="\n\n" if len(jobs) == 1 else " ")
        grammatical = f", {summary['grammatical']:.1%} obey the grammar" if "grammatical" in summary else ""
        print(f"{o.num_samples} stories in {o.out}, {summary['seconds']:.1f} s, {summary['tokens_per_step']:.3g} tokens a step{grammatical}")
        summaries.append(summary)
        panels.append(panel)
    if o.json:
        with open(o.json, "w") as f:
            json.dump(summaries, f, indent=1)
    if o.picture:
        draw_picture(panels, o.picture)
    if o.plot:
        draw_steps(summaries, o.plot)


if __name__ == "__main__":
    command(main, "the stories written so far are kept")
