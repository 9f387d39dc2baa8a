"""
Keep the likeliest: the sampler of MaskGIT, and of arXiv 2603.22075 ("the paper").

Adds: each step draws a token for every masked place, and keeps the likeliest of them (Chang et al.
2022, arXiv 2202.04200). Costs: it looks at what it drew before it keeps it, so it does not follow
the model's law, and its text is monotonous (results/sampling.md). Plugs in as

    python sample.py --out_dir=out/toy-mdlm --sampler=confidence --steps=24
    python sample.py --out_dir=out/toy-mdlm --sampler=confidence --by_the_paper --temperature=0.8 \
        --final_temperature=0.32 --repetition_penalty=1.3 --full_length
"""
from dataclasses import dataclass, replace
from functools import partial

import torch

from model import draw, mask_batch, probabilities, read_masked
from support.flags import InputError, build, flag


@dataclass
class Options:
    """--sampler=confidence (mdlm): keep the likeliest of the tokens that were drawn"""
    final_temperature: float | None = flag(None, "the temperature falls to this one", low=0)
    repetition_penalty: float = flag(1.0, "tokens that occur become rarer", low=1)
    by_the_paper: bool = flag(False, "at most 100 steps, and what else the paper's code does")


def sampler(config, o, flags: dict):
    """The function that writes, for `generate` of sample.py. Raises InputError."""
    if config.row.causal or config.row.orders != "any" or o.order:
        raise InputError("--sampler=confidence is for --mode=mdlm, without blocks and --order")
    own = build(Options, flags)
    final = o.temperature if own.final_temperature is None else own.final_temperature
    return partial(
        write, o=o, final=final, penalty=own.repetition_penalty, paper=own.by_the_paper)


@torch.no_grad()
def write(model, tokens, times, decide, noise, o, final: float, penalty: float, paper: bool):
    """Yields tokens (B, L) after each step, which keeps equally many, but more in the last steps.

    By the paper the network reads these L tokens alone, and is told the time. It has at
    most 100 steps, which for 128 tokens keep one 72 times, then two 28 times."""
    left = int((tokens[0] == model.config.mask_id).sum())       # every row has as many
    steps = o.steps or (min(100, left) if paper else left)
    for step in range(steps):
        masked = tokens == model.config.mask_id                                 # (B, L)
        row, place = masked.nonzero(as_tuple=True)                              # (n,) each
        temperature = o.temperature + (final - o.temperature) * step / steps
        if paper:
            logits = logits_at_time(model, tokens, masked, 1 - step / steps)    # (n, V)
        else:
            logits = read_masked(model, tokens, row, place)                     # (n, V)
        if penalty != 1:
            logits = penalize(logits, tokens, row, penalty, paper)
        p = probabilities(logits, replace(o, temperature=temperature))          # (n, V)
        u = noise(tokens.size(1))                                               # (B, L)
        drawn = draw(p, u[row.to(u.device), place.to(u.device)])                # (n,)
        # Those that a low temperature makes certain are told apart by the model's own law.
        p = torch.where(p == 1, 1 + logits.softmax(dim=-1), p)                  # (n, V)
        chance = p.new_full(tokens.shape, -1.0)                                 # (B, L)
        chance[row, place] = p.gather(-1, drawn[:, None])[:, 0]
        keep = left // (steps - step)
        left -= keep
        surest = chance.topk(keep, dim=1).indices                               # (B, keep)
        new = tokens.index_put((row, place), drawn)                             # (B, L)
        tokens = tokens.scatter(1, surest, new.gather(1, surest))
        yield tokens


def logits_at_time(model, tokens, masked, t: float):
    """Logits (n, V) of the masked places, of a network that reads these tokens alone at time t."""
    batch = mask_batch(model.config, tokens, masked)
    if hasattr(model, "embed_time"):
        model = partial(model, t=torch.full((len(tokens),), t, device=tokens.device))
    return model(batch.tokens, batch.key_pos, batch.target_pos, batch.select())


def penalize(logits, tokens, row, penalty: float, paper: bool):
    """Logits (n, V) in these rows (n,), with tokens that occur in their text made less likely.

    The paper's code divides logits by the penalty, which makes a token with a negative logit
    likelier. Ours multiplies log p, which is never positive."""
    count = torch.zeros(len(tokens), logits.size(1) + 1, device=tokens.device)
    count.scatter_add_(1, tokens, torch.ones(tokens.shape, device=tokens.device))
    divisor = (penalty ** count).clamp(max=5)[row, :-1]                       # (n, V) not [MASK]
    if paper:
        return logits / divisor
    return logits.log_softmax(dim=-1) * divisor
