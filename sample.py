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
import torch.nn.functional as F
from tqdm import tqdm

from model import Config, Transformer, load, masking_batch, new_cache, timestep
from prepare_data import TOY, Tokenizer, command, fail, parse_flags, provenance, write_json
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
    sampler: Literal["ancestral", "first_hitting", "confidence"] = "ancestral"  # mdlm: by chance, equally many a step, the surest
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

    def __post_init__(self):
        self.need(self.repetition_penalty >= 1, "repetition_penalty", "must be at least 1")
        self.need(0 < self.top_p <= 1, "top_p", "must lie in (0, 1]")

    def need(self, condition, name: str, what: str):
        if not condition:
            fail(f"--{name}={getattr(self, name)} {what}")


SWEEP = ("out_dir", "sampler", "steps", "temperature")      # flags that take several values
CONFIDENCE = ("final_temperature", "repetition_penalty")    # flags of the sampler confidence alone
# flags that mean nothing to a mode: refused, or where several models are sampled, ignored
NOT_FOR = {"ar": ("sampler", "order", "steps", *CONFIDENCE), "aogpt": ("sampler", *CONFIDENCE), "mdlm": ("order", "kv_cache")}
# what the paper's code did (arXiv 2603.22075), but that its repetition penalty raised the tokens with negative logits
# (length and steps: see pattern_of; aogpt is not in the paper)
PAPER = {"ar": dict(temperature=0.8, prompt="Once"), "mdlm": dict(temperature=0.8, sampler="confidence"),
         "aogpt": dict(temperature=0.8), "confidence": dict(final_temperature=0.32, repetition_penalty=1.3)}

# ----------------------------------------------------------------------------------------------------------------------
# Randomness: two float64 uniforms per story and position, whatever the sampler and the batch


def story_noise(seed: int, stories, length: int, device: torch.device):
    """(B, L) when: the time in [0, 1) at which a position is revealed, and (B, L) u: which token it gets."""
    noise = torch.stack([torch.from_numpy(np.random.default_rng((seed, story)).random((2, length))) for story in stories])
    return noise.to("cpu" if device.type == "mps" else device).unbind(dim=1)          # mps has no float64


def draw(logits, u, temperature: float, top_p: float):
    """Tokens (N,) from logits (N, V) and uniforms u (N,), and the probability (N,) of each, by inverting the distribution
    function in float64: float32 noise would cut off the tail and so lower the real temperature (Zheng et al., arXiv
    2409.02908). temperature 0 takes the likeliest token; top_p keeps the smallest set of likeliest tokens of that mass."""
    drawn, rows = [], max(1, 2 ** 23 // logits.size(-1))                            # bounds memory: V float64 a row
    for row, u_row in zip(logits.split(rows), u.split(rows)):
        p = torch.softmax(row.to(u.device).double() / (temperature or 1), dim=-1)   # (n, V)
        if top_p < 1:
            ranked, index = p.sort(dim=-1, descending=True)
            keep = ranked.cumsum(dim=-1) - ranked < top_p                           # mass of likelier tokens
            p = torch.zeros_like(p).scatter(-1, index, ranked * keep)
        if temperature == 0:
            token = p.argmax(dim=-1, keepdim=True)                                  # (n, 1)
        else:
            cdf = p.cumsum(dim=-1)
            token = torch.searchsorted(cdf, u_row[:, None] * cdf[:, -1:], right=True)
            token = token.clamp(max=p.size(-1) - 1)                                 # rounding could reach the very end
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
    held = F.pad(tokens.gather(1, order), (1, 0), value=model.config.bos_id)        # (B, L+1) the token in slot j
    position = F.pad(order, (1, 0), value=-1)                                       # (B, L+1) where that token stands
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
        select = F.pad(here, (1, 0)).flatten().nonzero().T                          # (1, N) over all rows at once
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, select, batch.t)[0]                       # (N, V)
        row, column = here.nonzero(as_tuple=True)
        if o.repetition_penalty != 1:       # on log p, which is negative: it always lowers
            times = torch.zeros(len(rows), config.vocab_size + 1, device=tokens.device)
            times.scatter_add_(1, tokens[rows], torch.ones(here.shape, device=tokens.device))
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
    Story i does not depend on which others are in the batch. pattern (L,) holds the tokens given, else [MASK].

    Tokens of one step are drawn independently of each other, so one token a step is exact and several are not. mdlm's
    ancestral sampler gives each position a uniform time in [0, 1) and cuts time into equal steps, so that in every step each
    masked token is revealed with the probability that the masking process has; all others reveal equally many in each.
    """
    config, device, L = model.config, model.head.weight.device, len(pattern)
    when, u = story_noise(o.seed, stories, L, device)
    tokens = pattern.to(device).expand(when.shape)
    free = tokens == config.mask_id
    n = int(free[0].sum())
    steps = o.steps or n
    if config.mode == "mdlm" and o.sampler == "confidence":
        return sample_confident(model, tokens, when, u, steps, o)
    place = when                                                                        # (B, L) of each position in the order
    if config.mode == "ar" or o.order != "random":
        listed = range(L) if config.mode == "ar" or o.order == "left_to_right" else map(int, o.order.split(","))
        place = torch.tensor([*listed], device=when.device).argsort().expand(when.shape)
    order = place.masked_fill(~free.to(when.device), -1).argsort(dim=1, stable=True).to(device)     # (B, L) given ones first
    if config.mode != "mdlm":
        return sample_in_order(model, tokens, order, u, L - n, steps, o)
    group = (when * steps).long().to(device) if o.sampler == "ancestral" else (order.argsort(dim=1) - (L - n)) * steps // n
    return sample_masked(model, tokens, torch.where(free, group, -1), u, o)


@torch.no_grad()
def generate(model: Transformer, stories, pattern, o: Options, watch=None):
    """(B, L) tokens of the stories with these numbers, and (B, L) the step at which each appeared, -1 where given.
    watch(tokens), if given, sees every state. See states."""
    config, given = model.config, int((pattern != model.config.mask_id).sum())
    appeared = torch.where(pattern == config.mask_id, 0, -1).to(model.head.weight.device).repeat(len(stories), 1)
    for tokens in states(model, stories, pattern, o):
        appeared += tokens == config.mask_id            # counts the steps that left it masked
        if watch:
            watch(tokens)
        if config.mode == "ar" and not o.full_length and (tokens[:, given:] == config.bos_id).any(dim=1).all():
            break                                       # every story has ended
    return tokens, appeared


# ----------------------------------------------------------------------------------------------------------------------
# The command


def pick_device(name: str) -> torch.device:
    """auto: cuda, else mps, else cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        if name.split(":")[0] not in ("cpu", "cuda", "mps"):
            raise RuntimeError("cpu, cuda and mps are known")
        return torch.empty(1, device=name).device       # with its index
    except (RuntimeError, AssertionError) as e:
        fail(f"--device={name} is not usable here ({str(e).splitlines()[0][:100]}); leave it out to choose automatically")


def open_model(folder: str, device: str, dtype: str = "float32"):
    """The best model of a run, ready to sample; its tokenizer, and how its training windows were cut."""
    model, checkpoint = load(os.path.join(folder, "best.pt"), pick_device(device), needs=("tokenizer", "windows"))
    for p in model.parameters():        # but the table of positions stays float32
        p.data = p.data.to(getattr(torch, dtype))
    return model, Tokenizer(**checkpoint["tokenizer"]), checkpoint["windows"]


def pattern_of(o: Options, config: Config, tokenizer: Tokenizer, windows: str):
    """The story's tokens as far as they are given, [MASK] where the model writes: (L,). Fills in o's defaults that depend on
    the model; one clear line for what cannot be."""
    unused = dict.fromkeys(CONFIDENCE, "without --sampler=confidence") if o.sampler != "confidence" else {}
    unused |= dict.fromkeys(NOT_FOR[config.mode], f"for {config.mode}")
    for name, where in unused.items():
        o.need(getattr(o, name) == getattr(Options, name), name, f"means nothing {where}; leave it out")
    own = "story" if windows == "aligned" else "anywhere"
    o.start = own if o.start == "auto" else o.start
    o.need(o.start == own or windows == "random", "start", f"is not for this model, whose windows were {windows}; leave it out")

    ids = [tokenizer.eot] if o.start == "story" and windows == "random" else []     # a story starts where one ends
    try:
        for i, piece in enumerate(re.split(r"\s*_{3,}", o.prompt)):     # in GPT-2's tokens a space belongs to the next word
            ids += [config.mask_id] * (o.blank if i else 0) + tokenizer.encode(piece)
    except ValueError as e:
        fail(f"--prompt: {e}")
    longest = min(128, config.block_size) if o.protocol == "paper" else config.block_size
    o.length = o.length or (len(ids) if config.mask_id in ids else longest)
    o.need(o.length <= config.block_size, "length", f"must not exceed the model's block_size, {config.block_size}")
    pattern = ids + [config.mask_id] * (o.length - len(ids))
    n = pattern.count(config.mask_id)
    o.need(len(ids) <= o.length and n, "prompt",
           f"has {len(ids)} tokens, its blanks included, and the length is {o.length}; leave something to write")
    o.need(config.mode != "ar" or config.mask_id not in pattern[:-n], "prompt",
           "has a blank before other words; ar writes from left to right and cannot fill it, mdlm and aogpt can")
    o.steps = o.steps or (min(100, n) if o.protocol == "paper" and config.mode == "mdlm" else n)
    o.need(o.steps <= n or (config.mode, o.sampler) == ("mdlm", "ancestral"), "steps", f"must not exceed the {n} tokens to write")
    o.need(o.order in ("random", "left_to_right") or sorted(o.order.split(",")) == sorted(map(str, range(o.length))), "order",
           f"is not random, left_to_right or each of the positions 0 to {o.length - 1} once, separated by commas")
    o.need(not o.plot or has_grammar(o, config, tokenizer), "plot", "is for whole stories of the toy, whose grammar is known")
    return torch.tensor(pattern)


def has_grammar(o: Options, config: Config, tokenizer: Tokenizer) -> bool:
    """Whether these are whole stories of the toy, whose grammar is known."""
    return tokenizer.kind == "words" and o.length == config.block_size and not o.full_length


def write_stories(model: Transformer, tokenizer: Tokenizer, pattern, o: Options, name: str):
    """Generate o.num_samples stories, each a line of o.out as soon as its batch is done. Returns a summary, the settings
    among it, and (title, pieces, steps) of the first story for a picture."""
    config, eot, free = model.config, tokenizer.eot, (pattern == model.config.mask_id).tolist()
    begin = int(pattern[0] == eot)                                  # an end-of-text given to start a story isn't part of it
    given = max((i + 1 for i in range(len(free)) if not free[i]), default=0)        # end-of-text counts after these
    settings = {**asdict(o), "mode": config.mode, "tokens_per_step": sum(free) / o.steps, **provenance(o.seed)}
    size, texts, panel, began = 1 if o.show else o.batch_size, [], None, time.perf_counter()
    bar = tqdm(total=o.num_samples, unit="story", desc=name, leave=False, disable=o.show or None)
    with open(f"{o.out}.tmp", "w") as f, bar:
        for first in range(0, o.num_samples, size):
            stories = range(o.num_samples)[first:first + size]
            screen = Screen(tokenizer, config.mask_id)
            tokens, appeared = generate(model, stories, pattern, o, screen.draw if o.show else None)
            for story, ids, steps in zip(stories, tokens.tolist(), appeared.tolist()):
                end = len(ids) if o.full_length else [*ids, eot].index(eot, given)
                ids, steps = ids[begin:end], steps[begin:end]
                texts.append(tokenizer.decode(ids))
                f.write(json.dumps({"story": story, "text": texts[-1], "tokens": ids, "appeared": steps, **settings}) + "\n")
                panel = panel or (name, token_texts(tokenizer, ids, config.mask_id), steps)
            f.flush()
            bar.update(len(stories))
            if o.show:
                screen.show([texts[-1], ""])
    os.replace(f"{o.out}.tmp", o.out)
    summary = {**settings, "first_stories": texts[:3], "seconds": time.perf_counter() - began}
    if has_grammar(o, config, tokenizer):
        summary["grammatical"] = sum(TOY.log_probs(text) is not None for text in texts) / len(texts)
    return summary, panel


def plan(folders: list, flags: dict, several: bool):
    """Model, tokenizer, pattern, options and title for every combination of the flags that take several values."""
    for folder in folders:
        model, tokenizer, windows = open_model(folder, flags.get("device", "auto"), flags.get("dtype", "float32"))
        config = model.config
        mine = {k: v for k, v in flags.items() if not several or k not in NOT_FOR[config.mode]}
        swept = [k for k in SWEEP if k in mine]
        for values in itertools.product(*(mine[k] for k in swept)):
            given = mine | dict(zip(swept, values))
            if given.get("protocol") == "paper":
                given = PAPER[config.mode] | given
                given = PAPER.get(given.get("sampler"), {}) | given
            o = Options(**given, out_dir=folder)
            pattern = pattern_of(o, config, tokenizer, windows)
            varied = [str(v) for k, v in zip(swept, values) if len(mine[k]) > 1]
            o.out = o.out or os.path.join(folder, "-".join(["samples", *varied]) + ".jsonl")
            how = {"ar": "left to right", "mdlm": o.sampler, "aogpt": f"{o.order} order"}[config.mode].replace("_", " ")
            yield model, tokenizer, pattern, o, f"{config.mode}, {how}, {o.steps} steps"


def main():
    flags = parse_flags(__doc__, Options, sweep=SWEEP)
    if "out_dir" not in flags:
        fail("which model? give --out_dir=DIR, the folder that train.py wrote")
    folders = flags.pop("out_dir")
    jobs = list(plan(folders, flags, len(folders) > 1))     # everything is checked before anything is written
    if "out" in flags and len(jobs) > 1:
        fail(f"--out={flags['out']} is for one model and one setting, these are {len(jobs)}; leave it out")
    summaries, panels = [], []
    for job in jobs:
        summary, panel = write_stories(*job)
        if len(jobs) == 1 and not summary["show"]:
            print(*summary["first_stories"], sep="\n\n", end="\n\n")
        grammatical = f", {summary['grammatical']:.1%} obey the grammar" if "grammatical" in summary else ""
        print(f"{panel[0]}: {summary['num_samples']} stories in {summary['out']}, {summary['seconds']:.1f} s, "
              f"{summary['tokens_per_step']:.3g} tokens a step{grammatical}")
        summaries.append(summary)
        panels.append(panel)
    if summary["json"]:
        write_json(summary["json"], summaries)
    if summary["picture"]:
        draw_picture(panels, summary["picture"])
    if summary["plot"]:
        draw_steps(summaries, summary["plot"])


if __name__ == "__main__":
    command(main, "the stories written so far are in a file that ends in .tmp")
