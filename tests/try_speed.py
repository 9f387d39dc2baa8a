"""What makes a training step fast, tried one change at a time, by turns in one run. Not a test; results/speed.md has its figures.

    python tests/try_speed.py ar                        all variants at bench.py's small sizes
    python tests/try_speed.py mdlm tuned,fused_attention --preset=toy
"""
import os
import statistics
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import model as model_module  # noqa: E402
import train  # noqa: E402
from bench import SIZES, by_turns, memory_mb  # noqa: E402
from model import Config, Transformer, training_batch, unit_losses  # noqa: E402
from train import PRESETS, Settings, make_update, numerics  # noqa: E402

CPU = torch.device("cpu")
torch._dynamo.config.recompile_limit = 64       # all variants share a few functions
written_out = model_module.attend


def fused_attention(q, k, v, visible, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def with_loss(loss_of):
    """unit_losses with another end, for a model whose head was taken off: loss_of(hidden, weight of the head, targets)."""
    def losses(model, batch):
        hidden = model(batch.tokens, batch.key_pos, batch.target_pos, batch.select, batch.t)     # (U, N, C)
        nll = loss_of(hidden.flatten(0, 1), model.embed.weight, batch.targets.flatten())         # (U·N,)
        return (nll.view_as(batch.weight) * batch.weight).sum(dim=1)
    return losses


class NanoGPT(nn.Module):
    """The architecture, loss and optimizer step of karpathy/nanoGPT (LayerNorm, learned positions, GELU), without dropout."""

    class Block(nn.Module):
        def __init__(self, C, heads):
            super().__init__()
            self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(C, bias=False), nn.LayerNorm(C, bias=False)
            self.qkv, self.proj = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
            self.up, self.down = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
            x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    def __init__(self, c):
        super().__init__()
        self.token, self.position = nn.Embedding(c.padded_vocab, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.blocks = nn.ModuleList(self.Block(c.n_embd, c.n_head) for _ in range(c.n_layer))
        self.norm, self.head = nn.LayerNorm(c.n_embd, bias=False), nn.Linear(c.n_embd, c.padded_vocab, bias=False)
        self.token.weight = self.head.weight

    def forward(self, x, targets):
        h = self.token(x) + self.position(torch.arange(x.size(1)))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), targets.flatten(), ignore_index=-1)


def nanogpt_step(c, rows):
    net = NanoGPT(c)
    x, y = torch.randint(c.vocab_size, (2, rows, c.block_size))
    optimizer, loss = torch.optim.AdamW(net.parameters(), fused=True), torch.compile(net, dynamic=False)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(x, y)
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def linear_cross_entropy(h, weight, y):
    return F.linear_cross_entropy(h.bfloat16(), weight.bfloat16(), y, reduction="none")


VARIANTS = {                # what differs from train.py's way
    "tuned": dict(),
    "eager_float32": dict(settings=dict(dtype="float32", compile="false")),
    "eager": dict(settings=dict(compile="false")),
    "blocks_compiled": dict(settings=dict(compile="false"), blocks=True),
    "float32": dict(settings=dict(dtype="float32")),
    "head_on_every_slot": dict(full=True),
    "float32_logits": dict(losses=with_loss(lambda h, weight, y: F.cross_entropy(F.linear(h, weight).float(), y, reduction="none"))),
    "padded_logits": dict(losses=with_loss(lambda h, weight, y: F.cross_entropy(F.linear(h, weight), y, reduction="none"))),
    "linear_cross_entropy": dict(losses=with_loss(linear_cross_entropy)),
    "fused_attention": dict(attend=fused_attention),
    "max_autotune": dict(mode="max-autotune"),
    "not_deterministic": dict(deterministic=False),
    "nanogpt": dict(deterministic=False),
}


def make_step(name, mode, sizes, rows):
    v = VARIANTS[name]
    config = Config(mode, **sizes, **(dict(objective="masked_ce", schedule="cosine") if v.get("full") and mode == "mdlm" else {}))
    torch.manual_seed(0)
    if name == "nanogpt":
        step = nanogpt_step(config, rows)
    else:
        net, x = Transformer(config), torch.randint(config.vocab_size, (rows, config.block_size))
        train.unit_losses = v.get("losses", unit_losses)
        if "mode" in v:
            train.unit_losses = torch.compile(unit_losses, mode=v["mode"], dynamic=False)
        s = Settings(**v.get("settings", {}) | ({"compile": "false"} if "mode" in v else {}))
        _, update = make_update(net, s)
        if "losses" in v:
            net.head = nn.Identity()
        if v.get("blocks"):
            for block in net.blocks:
                block.compile()
        generator = torch.Generator().manual_seed(0)

        def step():
            update(training_batch(config, x, generator), 1e-4)

    def run():
        model_module.attend = v.get("attend", written_out)
        torch.use_deterministic_algorithms(v.get("deterministic", True))
        step()

    run()
    run()
    before = memory_mb(CPU, reset=True)
    run()
    return run, memory_mb(CPU) - before


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--preset=")]
    if not arguments:
        raise SystemExit(__doc__)
    mode, names = arguments[0], arguments[1].split(",") if len(arguments) > 1 else list(VARIANTS)
    preset = sys.argv[-1].removeprefix("--preset=") if sys.argv[-1].startswith("--preset=") else "small"
    values = dict(SIZES["paper"], batch_size=2) if preset == "paper" else SIZES.get(preset) or {k: v for k, v in PRESETS[preset].items() if k in Config.__dataclass_fields__ or k == "batch_size"}
    sizes = {"vocab_size": {"toy": 135, "laptop": 4096}.get(preset, 50257), **values}
    rows = sizes.pop("batch_size")
    steps, memory = {}, {}
    for name in names:
        if mode != "mdlm" and name == "head_on_every_slot":
            continue
        steps[name], memory[name] = make_step(name, mode, sizes, rows)
        print(f"{name} is ready", file=sys.stderr)
    seconds = by_turns(steps, 6, CPU)
    print(f"{mode}, {preset} sizes, {torch.get_num_threads()} threads, {numerics(Settings(), CPU)[0]}: time of a step, of the first's, and MB on top")
    for name, took in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(took, seconds[names[0]]))
        print(f"{name:24}{1000 * statistics.median(took):9.1f} ms{ratio:8.2f}{memory[name]:8,.0f}")


if __name__ == "__main__":
    main()
