"""
Write stories with a trained model, or fill the blanks of one.

    python sample.py --out_dir=out/toy-mdlm --num_samples=1000 --steps=24
    python sample.py --out_dir=out/tinystories-mdlm --prompt="Once upon a time ___ lived happily." --show
    python sample.py --out_dir=out/toy-ar,out/toy-mdlm,out/toy-aogpt --picture=modes.png

All samplers reveal tokens step by step. ar: left to right. aogpt: in a random or given order, one position
a step, or several that do not see each other, or (--draft) several that a second pass confirms. mdlm: any
masked positions may come next (first_hitting: equally many in each step; ancestral: by chance; confidence:
the surest), and every pass reads the whole window. Stories are cut at the first end-of-text.

Of --out_dir, --sampler, --steps, --draft and --temperature all combinations are run: give A,B,… for each.
"""
import itertools
import json
import os
import re
import time
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from cli import InputError, build, command, parse_flags, provenance, write_json
from model import Cache, Config, Transformer, masking_batch, new_keys_values
from runs import open_locked, open_model
from show import draw_moving, draw_picture, play, token_texts
from toy import TOY

@dataclass
class SampleOptions:
    """what to write, and how"""
    out_dir: str = ""           # the run to sample from; its best.pt is read (commas: see above)
    num_samples: int = 3        # stories
    length: int | None = None   # tokens per story; default: block_size, or a prompt's with blanks; paper 128
    prompt: str = ""            # begin with this text; ___ in it is a blank to be filled (mdlm, aogpt)
    blank: int = 8              # tokens of a blank
    sampler: Literal["first_hitting", "ancestral", "confidence"] = "first_hitting"  # mdlm: which come next
    order: str = "random"       # aogpt: random, left_to_right, or all positions in the order wanted: 2,0,1
    steps: int | None = None    # per story; default: one for each token. Fewer: faster, worse
    temperature: float = 1.0    # 1 samples the model's own distribution, 0 takes the likeliest token
    top_p: float = 1.0          # keep the likeliest tokens with this much probability
    final_temperature: float | None = None  # confidence: falls linearly towards this one; paper: to 2/5
    repetition_penalty: float = 1.0   # confidence: log p times it per occurrence (≤ 5); paper: logits ÷ it
    protocol: Literal["own", "paper"] = "own"   # paper: its code's settings, for flags that are not given
    draft: int | None = None    # aogpt: draft so many tokens at once, keep what a second pass confirms: exact
    compile: bool = False       # ar, aogpt: compile a step (on CUDA as a graph), which takes a while first
    batch_size: int = 64        # stories at a time; changes speed, not stories
    full_length: bool = False   # keep what comes after the end of the story
    show: bool = False          # watch the tokens appear, several models side by side
    picture: str = ""           # file for a picture of each setting's first story: .png, .pdf, moving .svg
    out: str = ""               # file; default: samples[-VALUE].jsonl in out_dir; --show, --picture: shown…
    json: str = ""              # file for summaries: settings, seconds, and the grammatical share on the toy
    seed: int = 1337            # of the stories
    device: str = "auto"        # auto, cpu, cuda or mps
    dtype: Literal["float32", "bfloat16"] = "float32"   # of the weights; bfloat16 is faster and rounds

    def __post_init__(self):
        self.need(self.repetition_penalty >= 1, "repetition_penalty", "must be at least 1")
        self.need(0 < self.top_p <= 1, "top_p", "must lie in (0, 1]")

    def need(self, condition, name: str, what: str):
        if not condition:
            raise InputError(f"--{name}={getattr(self, name)} {what}")

# ---- Randomness: float64 uniforms of each story's own generator, whatever else is in the batch -------------

def uniforms(generators: list, length: int, device: torch.device) -> torch.Tensor:
    """(B, L) in [0, 1), the next ones of each generator."""
    u = torch.from_numpy(np.stack([generator.random(length) for generator in generators]))
    return u.to("cpu" if device.type == "mps" else device)      # mps has no float64

def probabilities(logits, temperature: float, top_p: float):
    """(…, V) at this temperature. top_p keeps the smallest set of likeliest tokens of its mass, temperature
    0 the likeliest alone (with its probability at temperature 1); others get 0, and the sum is at most 1."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / (temperature or 1)
    p = logits.softmax(dim=-1)
    if temperature == 0 or top_p < 1:
        ranked, index = p.sort(dim=-1, descending=True) if temperature else p.max(dim=-1, keepdim=True)
        keep = ranked.cumsum(dim=-1) - ranked < top_p                               # mass of likelier tokens
        p = torch.zeros_like(p).scatter(-1, index, ranked * keep)
    return p

def invert(p, u):
    """Tokens (…) from weights p (…, V) of any sum and uniforms u (…). The sums are taken in float64:
    float32 would cut off the tail and lower the real temperature (Zheng et al., arXiv 2409.02908)."""
    cdf = p.cumsum(dim=-1, dtype=torch.float64)
    token = torch.searchsorted(cdf, u[..., None] * cdf[..., -1:], right=True)
    return token.clamp(max=p.size(-1) - 1)[..., 0]          # searchsorted gives V where all weights are 0

def draw(logits, u, temperature: float, top_p: float):
    """Tokens (N,) from logits (N, V) and uniforms u (N,), and the probability (N,) of each."""
    drawn, rows = [], max(1, 2 ** (19 if u.is_cpu else 23) // logits.size(-1))      # fits a CPU's cache
    for part, u_part in zip(logits.split(rows), u.split(rows)):
        p = probabilities(part.to(u.device), temperature, top_p)                    # (n, V)
        token = invert(p, u_part)                                                   # (n,)
        drawn.append((token, p.gather(-1, token[:, None])[:, 0]))
    tokens, probability = map(torch.cat, zip(*drawn))
    return tokens.to(logits.device), probability.float().to(logits.device)

# ---- Samplers (the first, plain, only to be read: states, below, takes faster ones) ------------------------
# write_… and unmask… yield B stories of L tokens (B, L) after each step; u, generators: their randomness.

def write_left_to_right(model, tokens, u, o: SampleOptions):
    """ar as one first writes it: after the given tokens each new one takes a pass over all before it."""
    given = int((tokens[0] != model.config.mask_id).sum())
    for j in range(given, tokens.size(1)):
        known = F.pad(tokens[:, :j], (1, 0), value=model.config.bos_id)     # (B, j+1): BOS, x_0 … x_{j-1}
        position = torch.arange(-1, j, device=tokens.device)[None]          # (1, j+1)
        logits = model(known, key_pos=position, target_pos=position + 1)    # (B, j+1, V)
        new, _ = draw(logits[:, -1], u[:, j], o.temperature, o.top_p)       # (B,)
        tokens = tokens.select_scatter(new, dim=1, index=j)
        yield tokens

def slots_in_order(model, tokens, order, o: SampleOptions, spare: int = 0):
    """Returns held (B, L+1+spare), the tokens in the slots of an order (B, L), for the caller to fill in, and
    predict, which runs the network on some slots, with a cache. Slot 0 holds BOS, slot j the token at
    order[j-1]; it predicts the one at order[j], and sees slots 0 to j. Spare slots follow the last."""
    (B, L), device = order.shape, order.device
    held = F.pad(tokens.gather(1, order), (1, spare), value=model.config.bos_id)    # (B, L+1+spare)
    order = F.pad(order, (0, spare))                                                # (B, L+spare)
    position = F.pad(order, (1, 0), value=-1)                                       # (B, L+1+spare)
    keys_values = new_keys_values(model, B, L + spare)
    if o.compile:
        for kept in itertools.chain(*keys_values):      # a CUDA graph may write into them
            torch._dynamo.mark_static_address(kept, guard=False)

    def predict(slots, filled, m: int):
        """(B, m, V), logits of the last m of slots (B, S). Slot `filled` (B, 1) is the last with a token;
        those after copy it, with targets of their own: each sees itself and the slots before `filled`."""
        # all slots, one shape, where kernels are planned for it; else no more than is needed
        n = L + spare if o.compile or device.type == "cuda" else int(slots.max()) + 1
        original, others = slots.minimum(filled), torch.arange(n, device=device)
        visible = (others < original[:, :, None]) | (others == slots[:, :, None])   # (B, S, n)
        select = torch.arange(slots.size(1) - m, slots.size(1), device=device).expand(B, -1)
        return model(held.gather(1, original), position.gather(1, original), order.gather(1, slots), select,
                     cache=Cache(keys_values, slots, visible[:, None]))

    return held, predict

def write_in_order(model, tokens, order, u, given: int, steps: int, o: SampleOptions):
    """ar and aogpt: reveal the positions order[:, given:] of order (B, L), in `steps` consecutive groups.

    A group of m is predicted by slot `start` and m-1 copies of it; then each revealed token gets its own
    slot. For 4 tokens at 2 a step, who sees (x) the slots 0 to 3:

        step 0     slot 0             x              step 1     slot 1             x x
                   slot 1, copy of 0  . x                       slot 2             x x x
                                                                slot 3, copy of 2  x x . x
    """
    B, L = order.shape
    held, predict = slots_in_order(model, tokens, order, o)
    slots, first = torch.arange(L, device=order.device).expand(B, -1), 0        # slots before first are final
    for start, end in itertools.pairwise(given + (L - given) * step // steps for step in range(steps + 1)):
        logits = predict(slots[:, first:end], slots[:, start, None], end - start)   # (B, m, V)
        revealed = order[:, start:end]                                              # (B, m) positions
        u_now = u.gather(1, revealed.to(u.device)).flatten()
        new = draw(logits.flatten(0, 1), u_now, o.temperature, o.top_p)[0].view(B, -1)
        held[:, start + 1:end + 1] = new
        tokens = tokens.scatter(1, revealed, new)
        first = start + 1
        yield tokens

def confirm(p, q, draft, u):
    """Tokens (B, m+1) and count (B, 1): the first `count` of them follow the law of one token at a time.

    Drafts 0 … m-1, draft (B, m), were drawn independently from q (B, m, V). Draft 0 is kept: none comes
    before it. p (B, m, V): the laws of drafts 1 … m-1 and of one token more, given all drafts before. Each
    is kept with probability min(1, p / q) of its token, up to the first that is not: in its place a token
    drawn from max(0, p − q) makes up for that exactly (Leviathan et al. 2023). Where all are kept, one more
    is drawn from the last p. u (B, m): uniforms."""
    p, q = (law / law.sum(dim=-1, keepdim=True) for law in (p, q))                  # top_p leaves less than 1
    q = F.pad(q[:, 1:], (0, 0, 0, 1))       # of drafts 1 … m-1; the one token more had no draft: 0
    p_own, q_own = (law[:, :-1].gather(2, draft[:, 1:, None])[:, :, 0] for law in (p, q))       # (B, m-1)
    kept = 1 + (u[:, :-1] * q_own < p_own).cumprod(dim=1).sum(dim=1, keepdim=True)  # (B, 1) from 1 to m
    p_last, q_last = (law.take_along_dim(kept[:, :, None] - 1, dim=1)[:, 0] for law in (p, q))  # (B, V)
    last = invert((p_last - q_last).clamp(min=0), u[:, -1])[:, None]                # (B, 1)
    return F.pad(draft, (0, 1)).scatter(1, kept, last), kept + 1

def write_and_confirm(model, tokens, order, generators: list, given: int, o: SampleOptions):
    """aogpt: as write_in_order one token a step, by the same law, in fewer passes (any-subset speculative
    decoding, Guo & Ermon 2025, arXiv 2504.20456). Each round drafts the next o.draft tokens at once, and by
    a second pass learns how many of them to keep. With 2 tokens known and 3 to draft:

        first pass     slot 2, and copies of it as slots 3, 4    draft the tokens at order[2], [3], [4]
        second pass    slots 3, 4, 5, which hold these drafts    give the laws at order[3], [4], [5]"""
    (B, L), m, device = order.shape, min(o.draft, order.size(1) - given), order.device
    held, predict = slots_in_order(model, tokens, order, o, spare=m + 1)
    order = F.pad(order, (0, m + 1), value=L)                   # what goes beyond the end goes into a bin
    known = torch.full((B, 1), given, device=device)            # tokens known
    first = -given              # the first round reads the prompt's slots too, others begin at slot known
    while (known < L).any():
        u = uniforms(generators, 2 * m, device)                                     # (B, 2m)
        logits = predict(known + torch.arange(first, m, device=device), known, m)
        q = probabilities(logits.to(u.device), o.temperature, o.top_p)              # (B, m, V)
        draft = invert(q, u[:, :m])                                                 # (B, m)
        ahead = known + torch.arange(m + 1, device=device)                          # (B, m+1)
        new, count = F.pad(draft, (0, 1)).to(device), 1         # the last token needs no second pass
        if (known < L - 1).any():
            held.scatter_(1, ahead[:, 1:], draft.to(device))
            logits = predict(ahead[:, 1:], ahead[:, -1:], m)
            p = probabilities(logits.to(u.device), o.temperature, o.top_p)          # (B, m, V)
            new, count = (x.to(device) for x in confirm(p, q, draft, u[:, m:]))     # (B, m+1), (B, 1)
        held.scatter_(1, ahead + 1, new)
        where = order.gather(1, ahead).where(ahead < known + count, L)
        tokens = F.pad(tokens, (0, 1)).scatter(1, where, new)[:, :L]
        known, first = (known + count).clamp(max=L), 0
        yield tokens

def draw_masked(model, tokens, now, u, temperature: float, o: SampleOptions, t: float | None = None):
    """mdlm: tokens (B, L), drawn where now (B, L) is true (all [MASK]), and each draw's probability (B, L),
    else 0. t: the timestep told to the network, by default that of the share masked.

    It reads block_size tokens (protocol=paper: L); logits are of `now` alone, a gigabyte at a time."""
    config = model.config if o.protocol == "own" else replace(model.config, block_size=tokens.size(1))
    new, probability = tokens.clone(), torch.zeros(tokens.shape, device=tokens.device)
    stories_at_once = max(1, 2 ** 28 // (config.vocab_size * int(now.sum(dim=1).max())))
    for stories in now.any(dim=1).nonzero()[:, 0].split(stories_at_once):
        x, here = tokens[stories], now[stories]                                     # (b, L) each
        times = None if t is None else torch.full((len(stories),), t, device=tokens.device)
        batch = masking_batch(config, x, x == config.mask_id, times)
        select = F.pad(here, (1, config.block_size - here.size(1))).flatten().nonzero().T   # (1, N), a group
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, select, batch.t)[0]           # (N, V)
        row, column = here.nonzero(as_tuple=True)
        if o.repetition_penalty != 1:
            count = torch.zeros(len(stories), config.vocab_size + 1, device=tokens.device)
            count.scatter_add_(1, x, torch.ones(here.shape, device=tokens.device))
            penalty = (o.repetition_penalty ** count).clamp(max=5)[row, :-1]        # (N, V); as the paper's
            # log p is negative: ours always lowers. The paper's code raises a token whose logit is negative
            logits = logits / penalty if o.protocol == "paper" else logits.log_softmax(dim=-1) * penalty
        story = stories[row]                                                        # (N,)
        u_now = u[story.to(u.device), column.to(u.device)]
        new[story, column], probability[story, column] = draw(logits, u_now, temperature, o.top_p)
    return new, probability

def unmask(model, tokens, reveal_step, u, o: SampleOptions):
    """mdlm: step s draws the tokens where reveal_step (B, L) equals s; if there are none, it takes no pass.
    first_hitting: a random order cut into equal groups; ancestral: (rand(B, L) * steps).long(); given: -1."""
    for step in range(int(reveal_step.max()) + 1):
        if (now := reveal_step == step).any():
            tokens, _ = draw_masked(model, tokens, now, u, o.temperature, o)
        yield tokens

def unmask_surest(model, tokens, generators: list, steps: int, o: SampleOptions):
    """mdlm: in each step draw a token anew for every masked position, but keep only the likeliest of them
    (MaskGIT, Chang et al. 2022; the paper's sampler). 100 steps for 128 tokens keep 72 × 1, then 28 × 2."""
    final = o.temperature if o.final_temperature is None else o.final_temperature
    left = int((tokens[0] == model.config.mask_id).sum())       # as many in every row
    for step in range(steps):
        masked, t = (tokens == model.config.mask_id), (1 - step / steps if o.protocol == "paper" else None)
        u = uniforms(generators, tokens.size(1), tokens.device)
        temperature = o.temperature + (final - o.temperature) * step / steps
        new, probability = draw_masked(model, tokens, masked, u, temperature, o, t)
        keep = left // (steps - step)
        left -= keep
        chosen = probability.masked_fill(~masked, -1).topk(keep, dim=1).indices     # (B, keep)
        tokens = tokens.scatter(1, chosen, new.gather(1, chosen))
        yield tokens

# ---- Who is revealed when, and by which sampler ------------------------------------------------------------

def reveal_order(time_of, free, o: SampleOptions, mode: str):
    """The order (B, L) in which positions are revealed; those given, where free (B, L) is false, come first.
    time_of (B, L): uniforms, which make a random order."""
    if mode == "ar" or o.order == "left_to_right":
        key = torch.arange(time_of.size(1))
    elif o.order == "random":
        key = time_of
    else:
        key = torch.tensor([int(position) for position in o.order.split(",")]).argsort()
    key = key.to(time_of.device).expand(time_of.shape)
    return key.masked_fill(~free.to(key.device), -1).argsort(dim=1, stable=True).to(free.device)

def states(model: Transformer, stories, pattern, o: SampleOptions):
    """Yield (B, L) tokens after every step of writing the stories with these numbers, [MASK] where nothing
    is revealed yet. Story i does not depend on others in its batch. pattern (L,): tokens given, else [MASK].

    Tokens of one step are drawn independently of each other, so one token a step is exact (not confidence,
    which looks at what it drew) and several are not, unless confirmed. All steps reveal equally many, but
    for drafts and mdlm's ancestral sampler: that gives each position a uniform time in [0, 1) and cuts time
    into equal steps, so that each masked token is revealed with the probability of the masking process."""
    config, device, L = model.config, model.head.weight.device, len(pattern)
    generators = [np.random.default_rng((o.seed, story)) for story in stories]
    time_of, u = (uniforms(generators, L, device) for _ in range(2))                # (B, L) each
    tokens = pattern.to(device).expand(time_of.shape)
    free, n = tokens == config.mask_id, int((pattern == config.mask_id).sum())      # n: tokens to write
    o.need(n, "prompt", "leaves nothing to write: the pattern has no [MASK]")
    steps, order = o.steps or n, reveal_order(time_of, free, o, config.mode)
    if config.mode == "mdlm":
        if o.sampler == "confidence":
            return unmask_surest(model, tokens, generators, steps, o)
        if o.sampler == "ancestral":
            reveal_step = (time_of * steps).long().to(device)
        else:   # first_hitting: the rank among those that are free, cut into steps
            reveal_step = (order.argsort(dim=1) - (L - n)) * steps // n
        return unmask(model, tokens, reveal_step.where(free, -1), u, o)
    if o.draft:
        return write_and_confirm(model, tokens, order, generators, L - n, o)
    return write_in_order(model, tokens, order, u, L - n, steps, o)

@torch.no_grad()
def generate(model: Transformer, stories, pattern, o: SampleOptions):
    """(B, L) tokens of the stories with these numbers, and (B, L) the step at which each appeared, -1 where
    given. ar stops when every story has ended, and leaves [MASK] from there on. See states."""
    config, free = model.config, (pattern == model.config.mask_id).to(model.head.weight.device)
    appeared = torch.where(free, 0, -1).repeat(len(stories), 1)
    for tokens in states(model, stories, pattern, o):
        appeared += tokens == config.mask_id            # counts the steps that left it masked
        if config.mode == "ar" and not o.full_length and (tokens[:, free] == config.bos_id).any(dim=1).all():
            break                                       # every story has ended
    return tokens, appeared

# ---- The command: flags, completed for a model; the pattern they ask for; the stories ----------------------

SWEEP = ("out_dir", "sampler", "steps", "draft", "temperature")      # flags that take several values here
CONFIDENCE = ("final_temperature", "repetition_penalty")    # flags of the sampler confidence alone
# flags that mean nothing to a mode: refused, or where several models are sampled, ignored
NOT_FOR = {"ar": ("sampler", "order", "steps", "draft", *CONFIDENCE), "mdlm": ("order", "draft", "compile"),
           "aogpt": ("sampler", "protocol", *CONFIDENCE)}
# what the paper's code did (arXiv 2603.22075); length, steps and final_temperature: see complete
PAPER = {"ar": dict(temperature=0.8, full_length=True, prompt="Once"),
         "mdlm": dict(temperature=0.8, full_length=True, sampler="confidence", repetition_penalty=1.3)}

def complete(o: SampleOptions, config: Config, tokenizer, windows: str):
    """o with values for length and steps, and (L,) the tokens it gives, [MASK] where the model writes.
    Raises InputError for what this model cannot do."""
    unused = dict.fromkeys(CONFIDENCE, "without --sampler=confidence") if o.sampler != "confidence" else {}
    unused |= dict.fromkeys(NOT_FOR[config.mode], f"for {config.mode}")
    unused |= {"steps": "with --draft"} if o.draft else {}
    unused |= {} if "___" in o.prompt else {"blank": "without ___ in --prompt"}
    for name, where in unused.items():
        o.need(getattr(o, name) == getattr(SampleOptions, name), name, f"means nothing {where}; leave it out")
    o = replace(o, full_length=o.full_length or windows == "paper")     # such a model knows no end-of-text
    ids = []
    for i, piece in enumerate(re.split(r"\s*_{3,}", o.prompt)):     # GPT-2's words bring their own space
        ids += [config.mask_id] * (o.blank if i else 0) + tokenizer.encode(piece)
    blanks, paper = ids.count(config.mask_id), o.protocol == "paper"
    most = len(ids) if blanks else 128 if paper else config.block_size
    o = replace(o, length=o.length or min(most, config.block_size))
    o.need(o.length <= config.block_size, "length", f"must not exceed block_size, {config.block_size}")
    n = blanks + o.length - len(ids)                                                # tokens to write
    o.need(len(ids) <= o.length and n, "prompt",
           f"has {len(ids)} tokens, its blanks included, of {o.length} in all; leave something to write")
    o.need(config.mode != "ar" or config.mask_id not in ids[:len(ids) - blanks], "prompt",  # or at end
           "has a blank before words; ar writes from left to right and cannot fill it, mdlm and aogpt can")
    o = replace(o, steps=o.steps or (min(100, n) if paper and config.mode == "mdlm" else n))
    if paper and o.sampler == "confidence" and o.final_temperature is None:
        o = replace(o, final_temperature=o.temperature * 2 / 5)
    o.need(o.steps <= n or (config.mode, o.sampler) == ("mdlm", "ancestral"), "steps",
           f"must not exceed the {n} tokens to write")
    each_once = sorted(o.order.split(",")) == sorted(map(str, range(o.length)))
    o.need(o.order in ("random", "left_to_right") or each_once, "order",
           f"is not random, left_to_right or each of the positions 0 to {o.length - 1} once, with commas")
    return o, torch.tensor(ids + [config.mask_id] * (o.length - len(ids)))

def write_stories(model, tokenizer, windows: str, pattern, o: SampleOptions, title: str):
    """Stories into o.out: a line of settings, then a line for each as soon as its batch is done. Returns a
    summary, the settings in it, and (title, pieces, steps) of the first story, or of all that are shown."""
    config, eot, free = model.config, tokenizer.eot, (pattern == model.config.mask_id).tolist()
    given = max((i for i, f in enumerate(free, 1) if not f), default=0)     # after these a story may end
    settings = {**asdict(o), "start": "story" if windows == "aligned" else "anywhere", "mode": config.mode,
                "vocab_size": config.vocab_size, **provenance(o.seed)}
    began, texts, panels, rounds = time.perf_counter(), [], [], []  # rounds: tokens of each revealing step
    bar = tqdm(total=o.num_samples, unit="story", desc=title, leave=False, disable=None)
    with open_locked(f"{o.out}.tmp") as f, bar:
        f.truncate(0)
        print(json.dumps({"settings": settings}), file=f)
        for first in range(0, o.num_samples, o.batch_size):
            stories = range(o.num_samples)[first:first + o.batch_size]
            tokens, appeared = generate(model, stories, pattern, o)
            for story, ids, steps in zip(stories, tokens.tolist(), appeared.tolist()):
                end = len(ids) if o.full_length else [*ids, eot].index(eot, given)
                shown = [step for i, step in zip(ids, steps) if step >= 0 and i != config.mask_id]
                rounds.append(np.unique(shown, return_counts=True)[1].tolist())
                ids, steps = ids[:end], steps[:end]
                texts.append(tokenizer.decode(ids))
                row = {"story": story, "text": texts[-1], "tokens": ids, "appeared": steps}
                print(json.dumps(row), file=f)
                if o.show or not panels:        # with drafts a token appears at its round's second pass
                    panels.append((title, token_texts(tokenizer, ids, config.mask_id),
                                   [2 * step + 1 for step in steps] if o.draft else steps))     # -1 stays -1
            f.flush()
            bar.update(len(stories))
    os.replace(f"{o.out}.tmp", o.out)
    # with drafts two passes a round, but for a last token that comes alone
    passes = sum(2 * len(counts) - (counts[-1] == 1) if o.draft else len(counts) for counts in rounds)
    summary = {**settings, "first_stories": texts[:3], "seconds": time.perf_counter() - began,
               "passes": passes / len(texts), "tokens_per_pass": sum(map(sum, rounds)) / passes}
    whole = windows == "aligned" and o.length >= TOY.mean_words() and not o.full_length
    if whole and tokenizer.kind == "words":             # stories of the toy, whose grammar is known
        summary["grammatical"] = sum(TOY.log_probs(text) is not None for text in texts) / len(texts)
    return summary, panels

def plan(folders: list, flags: dict):
    """What write_stories takes, for every combination of the flags that take several values. Flags that mean
    nothing to a model's mode are ignored if they mean something to another's."""
    device, dtype = (flags.get(name, getattr(SampleOptions, name)) for name in ("device", "dtype"))
    opened = [(folder, *open_model(folder, device, dtype)) for folder in folders]
    for folder, model, tokenizer, windows in opened:
        config = model.config
        mine = {k: v for k, v in flags.items() if k not in NOT_FOR[config.mode]
                or all(k in NOT_FOR[other.config.mode] for _, other, *_ in opened)}
        if mine.get("compile"):
            torch._dynamo.config.recompile_limit = 64   # a shape each for prompts, steps, the last batch
            model.compile(dynamic=False, mode="reduce-overhead")
        swept = [name for name in SWEEP if name in mine]
        for values in itertools.product(*(mine[name] for name in swept)):
            given = mine | dict(zip(swept, values))
            if given.get("protocol") == "paper":
                skipped = CONFIDENCE if given.get("sampler", "confidence") != "confidence" else ()
                given = {k: v for k, v in PAPER.get(config.mode, {}).items() if k not in skipped} | given
            o = build(SampleOptions, given | {"out_dir": folder})
            o, pattern = complete(o, config, tokenizer, windows)
            varied = [str(value) for name, value in zip(swept, values) if len(mine[name]) > 1]
            name = "-".join(["shown" if o.show or o.picture else "samples", *varied]) + ".jsonl"
            o = replace(o, out=o.out or os.path.join(folder, name))
            how = {"ar": "left to right", "mdlm": o.sampler, "aogpt": f"{o.order:.20} order"}[config.mode]
            how = how.replace("_", " ") + (f", drafts of {o.draft}" if o.draft else f", {o.steps} steps")
            how += f", temperature {o.temperature:g}" if len(mine.get("temperature", ())) > 1 else ""
            yield model, tokenizer, windows, pattern, o, f"{config.mode}, {how}"

def main():
    flags = parse_flags(__doc__, SampleOptions, several=SWEEP)
    if "out_dir" not in flags:
        raise InputError("which model? give --out_dir=DIR, the folder that train.py wrote")
    jobs = list(plan(flags.pop("out_dir"), flags))      # everything is checked before anything is written
    if "out" in flags and len(jobs) > 1:
        raise InputError(f"--out={flags['out']} is for one model and one setting, not for {len(jobs)}")
    if jobs[0][0].head.weight.device.type == "cuda":
        torch.set_float32_matmul_precision("high")      # TF32
    done = []
    for job in jobs:
        try:
            summary, panels = write_stories(*job)
        except torch._dynamo.exc.TorchDynamoException as e:
            raise InputError(f"--compile does not work here ({type(e).__name__}); leave it out") from e
        if len(jobs) == 1 and not summary["show"]:
            print(*summary["first_stories"], sep="\n\n", end="\n\n")
        good = f", {summary['grammatical']:.1%} obey the grammar" if "grammatical" in summary else ""
        print(f"{job[-1]}: {summary['num_samples']} stories in {summary['out']}, {summary['seconds']:.1f} s "
              f"({summary['passes']:.3g} passes of {summary['tokens_per_pass']:.3g} tokens){good}")
        done.append((summary, panels))
        if flags.get("json"):       # after each: Ctrl-C loses none
            write_json(flags["json"], [summary for summary, _ in done])
    if flags.get("picture"):
        draw_panels = draw_moving if flags["picture"].endswith(".svg") else draw_picture
        draw_panels([panels[0] for _, panels in done], flags["picture"])
    if flags.get("show"):
        for panels in zip(*(panels for _, panels in done)):
            play(panels)

if __name__ == "__main__":
    command(main, "a file of stories that is not complete ends in .tmp")
