"""Where the time of a training step goes, by PyTorch's profiler. Figures: results/speed.md.

    python -m experiments.step_parts                        every mode at bench.py's sizes
    python -m experiments.step_parts --modes=mdlm --preset=laptop
"""
import math
import re
import statistics
from dataclasses import dataclass
from typing import Literal

from bench import by_turns, peak_flops, training_step       # before torch: it sets how threads wait
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from cli import build, command, parse_flags, print_table, write_json
from experiments.try_speed import DEVICE, conditions, sizes_of
from model import Config, flops_per_token
from train import Settings, numerics

# part of a step: what the names of its kernels contain; the first that fits. Compiled kernels are named
# after the operations that they fuse; the products are told apart by their shapes
PARTS = {"softmax over the vocabulary, and its gradient": "arange_eq", "softmax of attention": "_softmax",
         "attention, fused": "cudnn_attention|flash_attention|efficient_attention",
         "SwiGLU": "silu", "gradient of the embeddings": "embedding_dense|index_put|fused__to_copy_add_[0-9]",
         "norms, residual stream, casts of weights": "rsqrt|_pow_|rms_norm|to_copy_(view|t)(_|$)",
         "rotations": "_index_", "AdamW": "adamw", "clipping": "vector_norm|mul_$|foreach"}

def part_of(event, config: Config) -> str:
    """The part of the step that an event of the profiler, with shapes, belongs to."""
    if event.key == "aten::bmm":
        return "products of attention"
    if event.key == "aten::mm":
        C, H = config.n_embd, config.n_hidden
        sizes = *event.input_shapes[0], event.input_shapes[1][-1]       # slots, and two widths or C and V
        widths = sum(size in (C, 3 * C, H, 2 * H) for size in sizes)
        return "products of the layers" if widths > 1 else "products of the head"
    return next((part for part, names in PARTS.items() if re.search(names, event.key)), "the rest")

def product_flops(event) -> float:
    """Of all calls of one product of matrices (…, a, b) and (…, b, c)."""
    left, right = event.input_shapes[:2]
    return 2 * event.count * math.prod(left) * right[-1]

def parts_of_step(step, config: Config, repeats: int, device) -> dict:
    """{part: (seconds a step, FLOP a step)}; FLOP of the products alone, 0 for all else."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with profile(activities=activities, record_shapes=True) as recorded:
        for _ in range(repeats):
            loss, _ = step()
        loss.item()                         # waits for the device
    parts = {}
    for event in recorded.key_averages(group_by_input_shape=True):
        if event.device_type != DeviceType.CPU:     # a kernel, which counts where it was called
            continue
        part = part_of(event, config)
        seconds, flops = parts.get(part, (0.0, 0.0))
        seconds += (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6 / repeats
        flops += product_flops(event) / repeats if part.startswith("products") else 0.0
        parts[part] = seconds, flops
    return dict(sorted(parts.items(), key=lambda item: -item[1][0]))

@dataclass
class PartsOptions:
    """what to profile"""
    modes: tuple[Literal["ar", "mdlm", "aogpt"], ...] = ("ar", "mdlm", "aogpt")  # whose training step
    preset: Literal["auto", "small", "paper", "toy", "laptop"] = "auto"  # sizes, of bench.py or train.py
    repeats: int = 10           # steps that are profiled
    json: str = ""              # file for the results

def main():
    o = build(PartsOptions, parse_flags(__doc__, PartsOptions))
    torch._inductor.config.cpp.enable_kernel_profile = True     # compiled kernels show up by their names
    preset, sizes = sizes_of(o.preset)
    rows, found = sizes.pop("batch_size"), {}
    for mode in o.modes:
        config = Config(mode, **sizes)
        step, _ = training_step(config, rows, DEVICE)
        [seconds] = by_turns({mode: step}, o.repeats, DEVICE).values()
        flops = flops_per_token(config) * rows * config.block_size
        peak = peak_flops(DEVICE, numerics(Settings(), DEVICE)[0])
        parts = parts_of_step(step, config, o.repeats, DEVICE)
        found[mode] = {"seconds": seconds, "flops": flops, "peak": peak, "parts": parts}
        whole, took = sum(part for part, _ in parts.values()), statistics.median(seconds)
        print(f"\n{mode}, {rows} x {config.block_size}: a step takes {1000 * took:.1f} ms, "
              f"{1000 * whole:.1f} with the profiler; {flops / took / peak:.0%} of {peak / 1e12:.2f} TFLOP/s")
        print_table([["", "ms", "share", "TFLOP/s"]] + [
            [part, f"{1000 * took:.1f}", f"{took / whole:.0%}", f"{work / took / 1e12:.2f}" if work else ""]
            for part, (took, work) in parts.items()])
    if o.json:
        write_json(o.json, conditions(preset) | {"modes": found})

if __name__ == "__main__":
    command(main, "nothing is kept")
