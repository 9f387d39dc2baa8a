"""
What does writing cost, with random weights: every sampler, one story or many?

    python -m experiments.sampling_cost --preset=paper --length=512
    python -m experiments.sampling_cost --stories=16 --length=256

Whole stories would take hours without a cache. So three steps are timed at each of four places in a
story, and their mean, times the number of steps, is what the table has: seconds to write a batch of
stories. Windows are as long as the stories, because mdlm reads the whole window in each pass.

At the small sizes it takes a minute on a CPU, at the paper's a quarter of an hour.
"""
import itertools
import time
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch

from bench import begin
from cli import (
    InputError, build, check_flags, command, flag, parse_flags, print_table, provenance, write_json)
from model import Config, Transformer
from sample import SampleOptions, states, uniforms, write_left_to_right

PLACES = 4          # of a story, where steps are timed


@dataclass
class CostOptions:
    """what to measure"""
    preset: Literal["auto", "small", "paper"] = flag(
        "auto", "sizes where no flag says otherwise; auto: paper with CUDA, else small")
    length: int = flag(256, "tokens of a story")
    stories: int = flag(1, "stories that are written at a time")
    few: int = flag(64, "steps a story of the samplers that reveal several tokens a step")
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for the results", file=(".json",))

    def __post_init__(self):
        check_flags(self)
        if self.length < 4 * PLACES:
            raise InputError(f"--length={self.length} must be at least {4 * PLACES}")


@torch.no_grad()
def story_seconds(model, stories: int, steps: int, plain=False, **flags) -> float:
    """Seconds to write so many stories at once in so many steps. plain: without a cache.

    Before the first place, three steps are taken that do not count: on a GPU kernels are chosen and
    loaded in them."""
    config = model.config
    length = config.block_size
    seconds = []
    for place in (0, *range(PLACES)):
        given = length * (2 * place + 1) // (2 * PLACES)
        pattern = torch.full((length,), config.mask_id)
        pattern[:given] = torch.randint(config.vocab_size, (given,))
        steps_left = round(steps * (length - given) / length)
        o = SampleOptions(steps=max(1, steps_left), **flags)
        if plain:
            generators = [np.random.default_rng(story) for story in range(stories)]
            tokens = pattern.expand(stories, -1).to(model.head.weight.device)
            u = uniforms(generators, length, tokens.device)
            passes = write_left_to_right(model, tokens, given, u, o)
        else:
            passes = states(model, range(stories), pattern, o)
        ticks = []
        for tokens in itertools.islice(passes, 4):      # the first of them reads the prompt
            tokens[0, 0].item()                         # waits for the device
            ticks.append(time.perf_counter())
        if len(ticks) > 1:      # where little is left, a few steps may be over after one
            seconds.append(np.mean(np.diff(ticks)))
    return steps * float(np.mean(seconds[1:]))


def bench_sample(config: Config, o: CostOptions, device: torch.device) -> dict:
    """{what is written how: seconds}"""
    few = min(o.few, o.length)
    all_steps = o.length
    ways = {
        "ar": ("ar", all_steps, {}),
        "ar, no cache": ("ar", all_steps, dict(plain=True)),
        "aogpt": ("aogpt", all_steps, {}),
        "mdlm": ("mdlm", all_steps, {}),
        f"aogpt, {few} steps": ("aogpt", few, {}),
        f"mdlm, ancestral, {few} steps": ("mdlm", few, dict(sampler="ancestral")),
        f"mdlm, confidence, {few} steps": ("mdlm", few, dict(sampler="confidence"))}
    seconds = {}
    for name, (mode, steps, flags) in ways.items():
        of_mode = replace(config, mode=mode, block_size=o.length)
        model = Transformer(of_mode).to(device).eval()
        seconds[name] = story_seconds(model, o.stories, steps, **flags)
    return seconds


def main():
    flags = parse_flags(__doc__, CostOptions, Config)
    o = build(CostOptions, flags)
    device, config, _ = begin(o, flags)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")      # as sample.py does
    seconds = bench_sample(config, o, device)
    rows = [[f"{o.stories} stories of {o.length} tokens", "seconds", "÷ ar"]]
    for name, value in seconds.items():
        rows.append([name, f"{value:.3g}", f"{value / seconds['ar']:.2f}"])
    print_table(rows)
    if o.json:
        facts = provenance(0) | asdict(o)
        write_json(o.json, facts | {"sizes": asdict(config), "seconds": seconds})


if __name__ == "__main__":
    command(main, "nothing was written")
