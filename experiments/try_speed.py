"""What makes a training step fast: one change at a time, by turns in one run. Figures: results/speed.md.

    python -m experiments.try_speed --mode=ar           all variants at bench.py's sizes
    python -m experiments.try_speed --mode=mdlm --variants=tuned,fused_attention --preset=toy
    python -m experiments.try_speed --mode=mdlm --variants=muon,pytorch_muon --preset=laptop --json=F
"""
import ctypes
import statistics
import sys
import types
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F

import model as model_module
import train
from bench import SIZES, by_turns, memory_mb
from cli import build, command, parse_flags, provenance, write_json
from model import Config, Transformer, group_losses, training_batch
from train import PRESETS, Muon, Settings, make_update, numerics

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch._dynamo.config.recompile_limit = 64       # all variants share a few functions
written_out, logits_of, baddbmm = model_module.attend, model_module.logits_of, torch.baddbmm
attention_forward, block_forward = model_module.Attention.forward, model_module.Block.forward

def fused_attention(q, k, v, visible, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

def no_head(x, weight, vocab_size):
    return x

def cut_logits(x, weight, vocab_size):
    return F.linear(x, weight)[..., :vocab_size]

def with_loss(loss_of):
    """group_losses with another end, for a model without head: loss_of(hidden, weight of the head, targets,
    vocabulary)."""
    def losses(model, batch):
        hidden = model(batch.tokens, batch.key_pos, batch.target_pos, batch.select, batch.t)     # (G, N, C)
        nll = loss_of(hidden.flatten(0, 1), model.embed.weight, batch.targets.flatten(),
                      model.config.vocab_size)                                      # (G·N,)
        return (nll.view_as(batch.weight) * batch.weight).sum(dim=1)
    return losses

class NanoGPT(nn.Module):
    """The architecture, loss and optimizer step of karpathy/nanoGPT (LayerNorm, learned positions, GELU),
    without dropout."""

    class Block(nn.Module):
        def __init__(self, C, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(C, bias=False), nn.LayerNorm(C, bias=False)
            self.qkv, self.proj = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
            self.up, self.down = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)

        def forward(self, x):
            parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(mixed.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    def __init__(self, c):
        super().__init__()
        self.token = nn.Embedding(c.padded_vocab, c.n_embd)
        self.position = nn.Embedding(c.block_size, c.n_embd)
        self.blocks = nn.ModuleList(self.Block(c.n_embd, c.n_head) for _ in range(c.n_layer))
        self.norm = nn.LayerNorm(c.n_embd, bias=False)
        self.head = nn.Linear(c.n_embd, c.padded_vocab, bias=False)
        self.token.weight = self.head.weight

    def forward(self, x, targets):
        h = self.token(x) + self.position(torch.arange(x.size(1), device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), targets.flatten(), ignore_index=-1)

def nanogpt_step(c, rows):
    net = NanoGPT(c).to(DEVICE)
    x, y = torch.randint(c.vocab_size, (2, rows, c.block_size), device=DEVICE)
    optimizer, loss = torch.optim.AdamW(net.parameters(), fused=True), torch.compile(net, dynamic=False)

    def step():
        with torch.autocast(DEVICE.type, torch.bfloat16):
            value = loss(x, y)
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step

def rotate_before_transpose(self, x, rotary_q, rotary_k, cache=None):
    """Attention.forward, rotating (B, S, H, D), so that attention's output need not be copied."""
    B, S, C = x.shape
    q, k, v = self.qkv(x).view(B, S, 3, self.n_head, -1).unbind(2)                  # (B, S, H, D)
    q, k = (model_module.rotate(a, r.transpose(2, 3)) for a, r in ((q, rotary_q), (k, rotary_k)))
    y = model_module.attend(*(a.transpose(1, 2) for a in (q, k, v)), None, self.causal)
    return self.proj(y.transpose(1, 2).reshape(B, S, C))

def mlp_on_every_slot(self, x, rotary_q, rotary_k, cache=None, select=None):
    """Block.forward, the head alone on the slots that are predicted."""
    x = block_forward(self, x, rotary_q, rotary_k, cache)
    if select is not None:
        x = x.view(len(select), -1, x.size(-1))
        x = x.gather(1, select[:, :, None].expand(-1, -1, x.size(-1)))
    return x

def cross_entropy(h, weight, y, V):
    logits = logits_of(h, weight, V)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y, reduction="none")

def padded_logits(h, weight, y, V):
    return F.cross_entropy(F.linear(h, weight), y, reduction="none")

def linear_cross_entropy(h, weight, y, V):
    return F.linear_cross_entropy(h.bfloat16(), weight.bfloat16(), y, reduction="none")

class LossWithGradient(torch.autograd.Function):
    """Σ weight · −log softmax(h Wᵀ)[target] of h (N, C), W (padded V, C) and its gradients in one go,
    so that backward need not take the softmax again. For losses that are this sum, times a number."""

    @staticmethod
    def forward(ctx, h, W, targets, weight, vocab_size):
        h, small = h.bfloat16(), W[:vocab_size].bfloat16()
        logits = (h @ small.T).float()                                              # (N, V)
        top, weight, targets = logits.amax(-1, keepdim=True), weight[:, None], targets[:, None]     # (N, 1)
        p = (logits - top).exp()                                                    # (N, V)
        total = p.sum(-1, keepdim=True)                                             # (N, 1)
        hit = torch.arange(vocab_size, dtype=torch.int32, device=h.device) == targets.int()     # (N, V)
        d_logits = p * (weight / total)
        d_logits = torch.where(hit, d_logits - weight, d_logits).bfloat16()
        d_W = F.pad((d_logits.T @ h).float(), (0, 0, 0, len(W) - vocab_size))
        ctx.save_for_backward(d_logits @ small, d_W)
        return ((total.log() + top - logits.gather(1, targets)) * weight).sum()

    @staticmethod
    def backward(ctx, d_loss):
        d_h, d_W = ctx.saved_tensors
        return d_h * d_loss, d_W * d_loss, None, None, None

def gradient_with_loss(model, batch):
    hidden = model(batch.tokens, batch.key_pos, batch.target_pos, batch.select, batch.t)     # (G, N, C)
    return LossWithGradient.apply(hidden.flatten(0, 1), model.embed.weight, batch.targets.flatten(),
                                  batch.weight.flatten(), model.config.vocab_size)[None] / len(batch.targets)

def separately(x, a, b, beta, alpha=1):
    """torch.baddbmm, one operation after the other."""
    return beta * x + (a if alpha == 1 else alpha * a) @ b

def pytorch_muon(matrices, how):
    return torch.optim.Muon(matrices, **how, adjust_lr_fn="match_rms_adamw")

VARIANTS = {                # what differs from train.py's way
    "tuned": dict(),
    "eager_float32": dict(settings=dict(dtype="float32", compile="false")),
    "eager": dict(settings=dict(compile="false")),
    "blocks_compiled": dict(settings=dict(compile="false"), blocks=True),
    "float32": dict(settings=dict(dtype="float32")),
    "bfloat16": dict(settings=dict(dtype="bfloat16")),      # also where train.py finds it slower
    "mlp_on_every_slot": dict(block=mlp_on_every_slot),
    "head_on_every_slot": dict(full=True),                  # and the last MLP
    "cut_logits": dict(logits=cut_logits),                  # of the padded head, as on a GPU
    "cross_entropy": dict(losses=with_loss(cross_entropy)),     # as model.py has it where it isn't compiled
    "padded_logits": dict(losses=with_loss(padded_logits)),     # of cross_entropy
    "linear_cross_entropy": dict(losses=with_loss(linear_cross_entropy)),
    "gradient_with_loss": dict(losses=gradient_with_loss),
    "fused_attention": dict(attend=fused_attention),
    "rotate_before_transpose": dict(attention=rotate_before_transpose),
    "bfloat16_residual": dict(settings=dict(dtype="bfloat16"), residual=torch.bfloat16),
    "max_autotune": dict(compile_mode="max-autotune"),
    "not_deterministic": dict(deterministic=False),
    "muon": dict(settings=dict(optimizer="muon")),
    "muon_separately": dict(settings=dict(optimizer="muon"), baddbmm=separately),
    "pytorch_muon": dict(settings=dict(optimizer="muon"), muon=pytorch_muon),   # always in bfloat16
    # what glibc comes to by itself: M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD; in a run of its own
    "memory_given_back": dict(mallopt=((-4, 65536), (-3, 2 ** 25), (-1, 2 ** 26))),
    "nanogpt": dict(deterministic=False),
}

def make_step(name, mode, sizes, rows):
    v = VARIANTS[name]
    papers_loss = dict(objective="masked_ce", schedule="cosine") if v.get("full") and mode == "mdlm" else {}
    config = Config(mode, **sizes, **papers_loss)
    torch.manual_seed(0)
    if name == "nanogpt":
        step = nanogpt_step(config, rows)
    else:
        net = Transformer(config).to(DEVICE)
        x = torch.randint(config.vocab_size, (rows, config.block_size))
        # what is compiled is kept with a function's code, and would serve a variant of a method too
        own = types.FunctionType(group_losses.__code__.replace(), group_losses.__globals__)
        train.group_losses, train.Muon = v.get("losses", own), v.get("muon", Muon)
        if "compile_mode" in v:
            train.group_losses = torch.compile(group_losses, mode=v["compile_mode"], dynamic=False)
        s = Settings(**v.get("settings", {}) | ({"compile": "false"} if "compile_mode" in v else {}))
        _, update = make_update(net, s)
        if "residual" in v:
            net.blocks[0].register_forward_pre_hook(lambda _, given: (given[0].to(v["residual"]), *given[1:]))
        if v.get("blocks"):
            for block in net.blocks:
                block.compile()
        for option in v.get("mallopt", ()):
            ctypes.CDLL(None).mallopt(*option)
        generator = torch.Generator().manual_seed(0)

        def step():
            update(training_batch(config, x, generator), 1e-4)

    def run():
        model_module.attend = v.get("attend", written_out)
        model_module.logits_of = v.get("logits", no_head if "losses" in v else logits_of)
        model_module.Attention.forward = v.get("attention", attention_forward)
        model_module.Block.forward = v.get("block", block_forward)
        torch.baddbmm = v.get("baddbmm", baddbmm)
        torch.use_deterministic_algorithms(v.get("deterministic", DEVICE.type == "cpu"))
        step()

    run()
    run()
    before = memory_mb(DEVICE, reset=True)
    run()
    return run, memory_mb(DEVICE) - before

@dataclass
class SpeedOptions:
    """what to try"""
    mode: Literal["ar", "mdlm", "aogpt"] = "ar"  # whose training step
    variants: tuple[Literal[tuple(VARIANTS)], ...] = tuple(VARIANTS)  # by turns, compared with the first
    preset: Literal["auto", "small", "paper", "toy", "laptop"] = "auto"  # sizes, of bench.py or train.py
    json: str = ""              # file for the results

def sizes_of(preset: str) -> tuple:
    """The preset, by its name, and sizes of a Config and batch_size: bench.py's small ones, the paper's, or
    those of one of train.py's."""
    preset = preset if preset != "auto" else "paper" if DEVICE.type == "cuda" else "small"
    if preset == "paper":
        values = SIZES["paper"] | {"batch_size": 32 if DEVICE.type == "cuda" else 2}
    elif preset in SIZES:
        values = SIZES[preset]
    else:
        names = (*Config.__dataclass_fields__, "batch_size")
        values = {name: value for name, value in PRESETS[preset].items() if name in names}
    vocab_size = {"toy": 135, "laptop": 4096}.get(preset, 50257)
    return preset, {"vocab_size": vocab_size, **values}

def conditions(preset: str) -> dict:
    """What a file of results says of where and at which sizes it was made."""
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    return provenance(0) | {"preset": preset, "device": name, "torch": torch.__version__,
                            "threads": torch.get_num_threads()}

def main():
    o = build(SpeedOptions, parse_flags(__doc__, SpeedOptions))
    preset, sizes = sizes_of(o.preset)
    rows = sizes.pop("batch_size")
    steps, memory = {}, {}
    for name in o.variants:
        if o.mode == "mdlm" or not name.endswith("_on_every_slot"):
            steps[name], memory[name] = make_step(name, o.mode, sizes, rows)
            print(f"{name} is ready", file=sys.stderr)
    seconds = by_turns(steps, 6, DEVICE)
    first, dtype = next(iter(seconds.values())), numerics(Settings(), DEVICE)[0]
    print(f"{o.mode}, {rows} x {Config(o.mode, **sizes).block_size}, {DEVICE.type}, "
          f"{torch.get_num_threads()} threads, {dtype}: time of a step, of the first's, and MB on top")
    for name, took in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(took, first))
        print(f"{name:24}{1000 * statistics.median(took):9.1f} ms{ratio:8.2f}{memory[name]:8,.0f}")
    if o.json:
        write_json(o.json, conditions(preset) | {"mode": o.mode, "dtype": str(dtype), "seconds": seconds})

if __name__ == "__main__":
    command(main, "nothing is kept")
