"""
What writing costs, with random weights: every sampler, one story and many.

    python -m experiments.sampling_cost --preset=paper                  64 to 1,024 tokens, one story
    python -m experiments.sampling_cost --stories=16 --lengths=256,512

The speed of the speculative sampler depends on what a model has learned: experiments/speculative.py.
"""
import functools
import itertools
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

import sample
from bench import begin
from cli import InputError, build, command, parse_flags, print_table, write_json
from model import Config, Transformer

@dataclass
class CostOptions:
    """what to measure"""
    preset: Literal["auto", "small", "paper"] = "auto"  # sizes, where no flag says otherwise; with CUDA paper
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)    # tokens of a story
    stories: tuple[int, ...] = (1,)     # written at a time
    few: int = 64               # steps per story of the samplers that reveal several tokens a step
    places: int = 4             # steps are timed at so many places of a story
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for the results

# Whole stories would take hours without a cache, so a story's cost is the mean of steps timed at evenly
# spaced places in it, times the number of steps

@torch.no_grad()
def story_seconds(model, length: int, stories: int, places: int, few=None, plain=False, **flags) -> float:
    """Seconds to write so many stories at once, one token a step or in `few` steps: three steps at each of
    the places, after three that do not count: on a GPU kernels are chosen and loaded then. plain: by
    write_left_to_right, without a cache."""
    steps, seconds = min(few or length, length), []
    for place in (0, *range(places)):
        given = length * (2 * place + 1) // (2 * places)
        pattern = torch.full((length,), model.config.mask_id)
        pattern[:given] = torch.randint(model.config.vocab_size, (given,))
        o = sample.SampleOptions(steps=max(1, round(steps * (length - given) / length)), **flags)
        ticks = []
        written = sample.states(model, range(stories), pattern, o)
        if plain:
            tokens = pattern.expand(stories, -1).to(model.head.weight.device)
            generators = [np.random.default_rng(story) for story in range(stories)]
            u = sample.uniforms(generators, length, tokens.device)
            written = sample.write_left_to_right(model, tokens, u, o)
        for tokens in itertools.islice(written, 4):
            tokens[0, 0].item()                                     # waits for the device
            ticks.append(time.perf_counter())                       # the first of them read the prompt
        if len(ticks) > 1:                                          # a short rest may be over after one step
            seconds.append(np.mean(np.diff(ticks)))
    return steps * float(np.mean(seconds[1:]))

def columns(few: int) -> dict:
    """{column: (mode, weights, what story_seconds takes)}"""
    return {"ar": ("ar", torch.float32, {}),
            "ar, no cache": ("ar", torch.float32, dict(plain=True)),
            "ar, bf16": ("ar", torch.bfloat16, {}),
            "aogpt": ("aogpt", torch.float32, {}),
            "mdlm": ("mdlm", torch.float32, {}),
            "aogpt, few steps": ("aogpt", torch.float32, dict(few=few)),
            "ancestral, few": ("mdlm", torch.float32, dict(sampler="ancestral", few=few)),
            "confidence, few": ("mdlm", torch.float32, dict(sampler="confidence", few=few))}

RATIOS = {"÷ cache": ("ar, no cache", "ar"), "mdlm ÷ aogpt": ("mdlm", "aogpt")}

@functools.lru_cache(maxsize=4)
def random_model(mode: str, dtype, device, **sizes) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(Config(mode, **sizes)).to(device)
    for p in model.parameters():                                    # the table of positions stays float32
        p.data = p.data.to(dtype)
    return model

def bench_sample(o: CostOptions, sizes: dict, device) -> list:
    """Prints a table; a dict for each number of stories and length. Windows are as long as the stories: in
    mdlm a pass reads the whole window, whatever is to be written in it."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")                  # as sample.py does
    results, rows = [], [["tokens", "stories", *columns(o.few), *RATIOS]]
    for stories, length in tqdm(list(itertools.product(o.stories, o.lengths)), leave=False, disable=None):
        seconds = {name: story_seconds(
            random_model(mode, dtype, device, **sizes | {"block_size": length}), length, stories, o.places,
            **flags) for name, (mode, dtype, flags) in columns(o.few).items()}
        ratios = {name: seconds[above] / seconds[below] for name, (above, below) in RATIOS.items()}
        results.append({"length": length, "stories": stories, "seconds": seconds, "ratios": ratios})
        rows.append([str(length), str(stories), *(f"{value:.3g}" for value in seconds.values()),
                     *(f"{value:.2f}" for value in ratios.values())])
    print(f"\nsampling, seconds to write a batch of stories, one token a step, or in {o.few}; and ratios")
    print_table(rows)
    return results

def main():
    flags = parse_flags(__doc__, CostOptions, Config)
    o = build(CostOptions, flags)
    if min(o.lengths) < 4 * o.places:
        raise InputError(f"--places={o.places} must be at most a quarter of every length, {min(o.lengths)}")
    device, sizes, _, results = begin(o, flags)
    results["sample"] = bench_sample(o, sizes, device)
    if o.json:
        write_json(o.json, results)

if __name__ == "__main__":
    command(main, "nothing was written")
