"""
Texts that are longer than the window.

Adds: a model of continuous text, such as Shakespeare, goes on writing: one window, then half a
window at a time. Costs: a token sees between half a window and a window of what comes before.
Plugs in where `generate` of sample.py is asked for more than T tokens.
"""
import math
from dataclasses import replace

import torch


def generate_in_parts(generate, model, stories, pattern, o, make_sampler):
    """What `generate` returns, for a pattern of more than T tokens.

    Rotary positions and target embeddings end with the window. So each part after the first is the
    second half of a window whose first half is written already, and whose positions begin at 0."""
    mask_id = model.config.mask_id
    L, T = pattern.size(-1), model.config.block_size
    tokens = pattern.to(model.head.weight.device).expand(len(stories), L).clone()   # (B, L)
    appeared = torch.where(tokens == mask_id, 0, -1)                                # (B, L)
    n = int((tokens[0] == mask_id).sum())
    passes = torch.zeros_like(tokens[:, :1])        # (B, 1) of each story, in the parts before
    for end in [*range(T, L, max(1, T // 2)), L]:
        window = slice(end - T, end)
        new = int((tokens[0, window] == mask_id).sum())
        if new:
            steps = math.ceil(o.steps * new / n)
            seed = (o.seed + 10 ** 6 * end) % 10 ** 15      # other random numbers for each part
            part = replace(o, steps=steps, seed=seed)
            tokens[:, window], when = generate(
                model, stories, tokens[:, window], part, make_sampler)
            appeared[:, window] = torch.where(when < 0, appeared[:, window], passes + when)
            passes += when.amax(dim=1, keepdim=True) + 1
        if (tokens[:, window] == mask_id).any():            # ar has ended
            break
    return tokens, appeared
