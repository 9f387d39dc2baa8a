"""Minutes on one GPU: what runs there, whether it is right, and what stands beside training. Run it first,
then the tests; bench.py, step_parts.py and try_speed.py say how fast it trains.

    python -m experiments.gpu_smoke --json=results/gpu-smoke.json
    python -m experiments.gpu_smoke --device=cpu --preset=small --n_layer=1 --steps=20      a rehearsal
    python -m experiments.gpu_smoke --device=cpu --preset=small --what=cached       one part, on a CPU
"""
import os

# a kernel from an earlier process may hold another attention backend than the one asked for
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import itertools  # noqa: E402
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Literal

import torch

import sample
from bench import begin, by_turns
from cli import build, command, parse_flags, write_json
from model import Config, Transformer, group_losses, training_batch
from runs import save
from train import Settings, evaluate, make_update

def what_attention_runs(o, sizes: dict, batch_size: int, device, say):
    """The kernel that PyTorch chooses, for training and for a cached step."""
    kernels = {0: "math", 1: "flash", 2: "memory-efficient", 3: "cuDNN"}
    for name, dtype, queries, keys in (("ar", torch.bfloat16, 512, 512), ("mdlm", torch.bfloat16, 513, 513),
                                       ("float32", torch.float32, 512, 512),
                                       ("cached step", torch.bfloat16, 1, 512)):
        q, k = (torch.zeros(2, 12, n, 64, device=device, dtype=dtype) for n in (queries, keys))
        mask = torch.ones(1, keys, dtype=torch.bool, device=device) if queries == 1 else None
        causal = name in ("ar", "float32")
        say(f"attention, {name}", kernels.get(torch._fused_sdp_choice(q, k, k, mask, 0.0, causal)))

def losses_of(mode: str, device, steps: int, **settings):
    """The losses of so many steps of a small model on a small language, and the model."""
    torch.manual_seed(0)
    config = Config(mode, vocab_size=200, block_size=64, n_layer=2, n_embd=128, n_head=4, n_hidden=128)
    model, generator = Transformer(config).to(device), torch.Generator().manual_seed(1)
    _, update = make_update(model, Settings(batch_size=16, **settings))
    losses = []
    for _ in range(steps):
        x = torch.randint(3, (16, 64), generator=generator).cumsum(1)
        x = (x + torch.randint(199, (16, 1), generator=generator)) % 199            # (16, 64)
        losses.append(update(training_batch(config, x, generator), 1e-3)[0])
    return torch.stack(losses).cpu(), model

def whether_it_is_right(o, sizes: dict, batch_size: int, device, say):
    """Small models, trained here and on the CPU, in float32 and as train.py does it by default."""
    for mode in ("ar", "mdlm", "aogpt"):
        exact = dict(dtype="float32", compile="false")
        on_cpu, _ = losses_of(mode, torch.device("cpu"), 20, **exact)
        slow, _ = losses_of(mode, device, o.steps, **exact)
        fast, model = losses_of(mode, device, o.steps, dtype="bfloat16", compile="true")
        first = min(20, o.steps)
        say(f"{mode}: float32, here − CPU, 20 steps", (slow[:first] - on_cpu[:first]).abs().max().item())
        say(f"{mode}: bfloat16 compiled − float32", (fast - slow).abs().max().item())
        whole = sample.SampleOptions(full_length=True)
        pattern = torch.full((64,), model.config.mask_id)
        here = sample.generate(model, range(4), pattern, whole)[0].cpu()
        there = sample.generate(model.cpu(), range(4), pattern, whole)[0]
        say(f"{mode}: sampled tokens equal to the CPU's", (here == there).float().mean().item())
    x = torch.randint(200, (8, 64))
    batch = training_batch(model.config, x, torch.Generator()).to(device)
    with torch.no_grad():
        model.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(batch.tokens, batch.key_pos, batch.target_pos)
            losses = group_losses(model, batch)
        plain = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), batch.targets.flatten())
    say("loss in bfloat16 autocast − in float64", (losses.mean().double() - plain).abs().item())

def what_stands_beside_training(o, sizes: dict, batch_size: int, device, say):
    """Evaluation with and without TF32, and writing a checkpoint."""
    torch.manual_seed(0)
    model = Transformer(Config("mdlm", **sizes)).to(device)
    x, found = torch.randint(model.config.vocab_size, (4 * batch_size, model.config.block_size)), {}
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        evaluate(model, x[:batch_size], batch_size // 2, 1)
        began = time.perf_counter()
        found[precision] = evaluate(model, x, batch_size // 2, 1)["val_nll"]
        say(f"evaluation, {len(x)} windows, precision {precision}, s", time.perf_counter() - began)
    torch.set_float32_matmul_precision("highest")
    difference = abs(found["high"] - found["highest"])
    say("val_nll, high − highest (below 0.001)", difference)
    moments = [p.detach().clone() for _ in range(2) for p in model.parameters()]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        save(f"{folder}/a.pt", model, moments=moments)
        say("checkpoint, s", time.perf_counter() - began)

def what_masks_cost(o, sizes: dict, batch_size: int, device, say):
    """Making mdlm's masks of a batch, on the CPU, while the device is at the step before."""
    config, generator = Config("mdlm", **sizes), torch.Generator().manual_seed(0)
    for rows in (batch_size, 8 * batch_size):
        x = torch.randint(config.vocab_size, (rows, config.block_size))
        step = {"": lambda: training_batch(config, x, generator)}
        seconds = statistics.median(by_turns(step, 5, torch.device("cpu"))[""])
        say(f"masks of {rows} windows, {torch.get_num_threads()} threads, ms", 1000 * seconds)

@torch.no_grad()
def what_a_cached_step_costs(o, sizes: dict, batch_size: int, device, say):
    """Milliseconds of a step, the first time, when kernels are planned or compiled, and again."""
    torch.set_float32_matmul_precision("high")          # as sample.py does
    types, backends = (torch.float32, torch.bfloat16), [False, True] if device.type == "cuda" else [False]
    for mode, stories, dtype, cudnn, compiled in itertools.product(("ar", "aogpt"), (1, 16), types, backends,
                                                                  (False, True)):
        torch._dynamo.reset()
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        torch.manual_seed(0)
        model = Transformer(Config(mode, **sizes)).to(device)
        for p in model.parameters():
            p.data = p.data.to(dtype)
        if compiled:
            model.compile(dynamic=False, mode="reduce-overhead")
        length, ms = model.config.block_size, []
        pattern, whole = torch.full((length,), model.config.mask_id), sample.SampleOptions(compile=compiled)
        for _ in range(2):
            began = time.perf_counter()
            for tokens in sample.states(model, range(stories), pattern, whole):
                pass
            tokens[0, 0].item()
            ms.append(1000 * (time.perf_counter() - began) / length)
        how = f"cuDNN {cudnn}, compiled {compiled}"
        say(f"{mode}, {str(dtype)[6:]}, {stories} stories, {how}: ms", dict(first=ms[0], again=ms[1]))

PARTS = {"attention": what_attention_runs, "right": whether_it_is_right,
         "beside": what_stands_beside_training, "masks": what_masks_cost, "cached": what_a_cached_step_costs}

@dataclass
class SmokeOptions:
    """what to look at"""
    what: tuple[Literal[tuple(PARTS)], ...] = tuple(PARTS)  # parts
    preset: Literal["auto", "small", "paper"] = "auto"  # sizes, where no flag says otherwise; with CUDA paper
    batch_size: int | None = None   # windows per training step; default: 8, paper 32
    steps: int = 200            # that bfloat16 compiled is compared with float32 eager for
    device: str = "auto"        # auto, cpu, cuda or mps
    json: str = ""              # file for what was found

def main():
    flags = parse_flags(__doc__, SmokeOptions, Config)
    o = build(SmokeOptions, flags)
    device, sizes, batch_size, results = begin(o, flags)
    found = results["found"] = {}

    def say(name, value):
        found[name] = value
        values = value.items() if isinstance(value, dict) else [("", value)]
        texts = [f"{key} {v:.5g}" if isinstance(v, float) else f"{key} {v}" for key, v in values]
        print(f"{name:52}", ", ".join(texts), flush=True)
        if o.json:
            write_json(o.json, results)         # as far as it came

    for part in o.what:
        PARTS[part](o, sizes, batch_size, device, say)

if __name__ == "__main__":
    command(main, "what was found so far is in the file of --json")
