"""
Is what runs on a GPU right?

    python -m experiments.gpu_smoke --json=results/gpu-smoke.json
    python -m experiments.gpu_smoke --device=cpu --preset=small --n_layer=1 --steps=20   a rehearsal

It prints which attention kernels PyTorch chooses. It trains small models here and on the CPU, in
float32 and as train.py does by default, and prints how far their losses are apart. And it prints
what TF32 does to an evaluation, its seconds and its result. This takes minutes on one GPU. Run it
first, then the tests; bench.py says how fast training is.
"""
import time
from dataclasses import dataclass, replace
from typing import Literal

import torch

from bench import begin
from cli import build, check_flags, command, flag, parse_flags, provenance, write_json
from model import Config, Transformer, training_batch
from sample import SampleOptions, generate
from train import Settings, evaluate, make_optimizers, maybe_compiled, prepare_machine, train_step


@dataclass
class SmokeOptions:
    """what to look at"""
    preset: Literal["auto", "small", "paper"] = flag(
        "auto", "sizes of the evaluation where no flag says otherwise; auto: paper with CUDA")
    steps: int = flag(200, "that bfloat16 compiled is compared with float32 eager for")
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for what was found", file=(".json",))

    def __post_init__(self):
        check_flags(self)


# ---- Each part yields (what it is, what was found) -----------------------------------------------

def what_attention_runs(device: torch.device):
    """The kernel that PyTorch chooses, in training and for a step with a cache."""
    kernels = {-1: "none", 0: "math", 1: "flash", 2: "memory-efficient", 3: "cuDNN"}
    shapes = {
        "ar": (torch.bfloat16, 512, 512),
        "mdlm": (torch.bfloat16, 513, 513),
        "ar in float32": (torch.float32, 512, 512),
        "a cached step": (torch.bfloat16, 1, 512)}
    for name, (dtype, queries, keys) in shapes.items():
        q = torch.zeros(2, 12, queries, 64).to(device, dtype)
        k = torch.zeros(2, 12, keys, 64).to(device, dtype)
        mask = None
        if queries == 1:
            mask = torch.ones(1, keys).to(device, torch.bool)
        causal = name.startswith("ar")
        kernel = torch._fused_sdp_choice(q, k, k, mask, 0.0, causal)
        yield f"attention, {name}", kernels[kernel]


def train_small(mode: str, device: torch.device, steps: int, **settings):
    """The losses (steps,) of a small model on a small language, and the model."""
    torch.manual_seed(0)
    config = Config(
        mode, vocab_size=200, block_size=64,
        n_layer=2, n_embd=128, n_head=4, n_hidden=128)
    s = Settings(batch_size=16, **settings)
    prepare_machine(s, device)
    torch.set_float32_matmul_precision("highest")       # what is compared is no TF32
    model = Transformer(config).to(device)
    optimizers = make_optimizers(model, s)
    losses_of = maybe_compiled(s, device)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        moves = torch.randint(3, (16, 64), generator=generator)
        start = torch.randint(199, (16, 1), generator=generator)
        x = (start + moves.cumsum(dim=1)) % 199                                 # (16, 64)
        batch = training_batch(config, x, generator)
        loss, _ = train_step(model, losses_of, optimizers, batch, s, lr=1e-3)
        losses.append(loss)
    return torch.stack(losses).cpu(), model


def whether_it_is_right(device: torch.device, steps: int):
    """How far the device is from the CPU, and compiled bfloat16 from float32."""
    exact = dict(dtype="float32", compile="false")
    fast = dict(dtype="bfloat16", compile="true")
    cpu = torch.device("cpu")
    first = min(20, steps)
    for mode in "ar", "mdlm", "aogpt":
        on_cpu, _ = train_small(mode, cpu, first, **exact)
        here, _ = train_small(mode, device, steps, **exact)
        compiled, model = train_small(mode, device, steps, **fast)
        gap = (here[:first] - on_cpu).abs()
        yield f"{mode}: float32, here − CPU, {first} steps", gap.max().item()
        gap = (compiled - here).abs()
        yield f"{mode}: bfloat16 compiled − float32", gap.max().item()
        o = SampleOptions(full_length=True)
        pattern = torch.full((64,), model.config.mask_id)
        written_here, _ = generate(model.eval(), range(4), pattern, o)
        written_there, _ = generate(model.cpu(), range(4), pattern, o)
        same = (written_here.cpu() == written_there).float()
        share = same.mean().item()
        yield f"{mode}: sampled tokens equal to the CPU's", share


def what_tf32_does(config: Config, batch_size: int, device: torch.device):
    """The seconds of an evaluation with and without TF32, and how far the results are apart."""
    model = Transformer(config).to(device)
    shape = 4 * batch_size, config.block_size
    x = torch.randint(config.vocab_size, shape)                                 # (N, T)
    losses = []
    for precision in "highest", "high":
        torch.set_float32_matmul_precision(precision)
        evaluate(model, x[:batch_size], seed=1)     # kernels are chosen and loaded
        began = time.perf_counter()
        result = evaluate(model, x, seed=1)
        seconds = time.perf_counter() - began
        losses.append(result["val_nll"])
        yield f"evaluation, {len(x)} windows, precision {precision}, s", seconds
    exact, fast = losses
    yield "val_nll, high − highest (below 0.001)", abs(fast - exact)


def main():
    flags = parse_flags(__doc__, SmokeOptions, Config)
    o = build(SmokeOptions, flags)
    device, config, batch_size = begin(o, flags)
    config = replace(config, mode="mdlm")
    results = provenance(0)
    if device.type == "cuda":
        results["device"] = torch.cuda.get_device_name()
    results["found"] = {}
    parts = [
        what_attention_runs(device),
        whether_it_is_right(device, o.steps),
        what_tf32_does(config, batch_size, device)]
    for part in parts:
        for name, value in part:
            results["found"][name] = value
            if isinstance(value, float):
                value = f"{value:.5g}"
            print(f"{name:52}", value, flush=True)
            if o.json:
                write_json(o.json, results)         # as far as it came


if __name__ == "__main__":
    command(main, "what was found so far is in the file of --json")
