"""Against the published code's formulas (arXiv 2603.22075), written again here as plainly as they go, in
float64: the network, the losses, the schedule and the sampler, bug included."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cli import InputError
from conftest import small_model
from model import (PAPER_MDLM, Config, Transformer, group_losses, order_batch, paper_batch)
from prepare_data import Windows
from sample import PAPER, SampleOptions, generate
from train import PRESETS, Settings, learning_rate, resolve

def angles(positions, width):
    """Rotary and timestep frequencies alike: (len(positions), width / 2)."""
    return torch.outer(positions, 10000.0 ** (-torch.arange(0, width, 2).double() / width))

def network(weights, tokens, n_head, causal, t=None):
    """Logits (T, rows of the head) of one sequence (T,) with the weights of a Transformer, as the paper's
    code computes them: slots stand at 0 … T-1, queries turn by where they stand."""
    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weights[f"{name}.weight"]

    x = weights["embed.weight"][tokens]                                             # (T, C)
    T, C = x.shape
    if t is not None:
        angle = angles(torch.tensor([t], dtype=torch.float64), C)
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1)                       # (1, C)
        x = x + F.silu(waves @ weights["embed_time.linear.weight"].T + weights["embed_time.linear.bias"])
    angle = angles(torch.arange(T).double(), C // n_head)
    for i in range(sum(name.endswith("norm1.weight") for name in weights)):
        layer = {name.removeprefix(f"blocks.{i}."): w for name, w in weights.items()}
        q, k, v = (norm(x, f"blocks.{i}.norm1") @ w.T for w in layer["attention.qkv.weight"].chunk(3))
        heads = []
        for q, k, v in zip(*(part.chunk(n_head, dim=1) for part in (q, k, v))):     # (T, D) each
            (q1, q2), (k1, k2), cos, sin = q.chunk(2, dim=1), k.chunk(2, dim=1), angle.cos(), angle.sin()
            q = torch.cat([q1 * cos - q2 * sin, q2 * cos + q1 * sin], dim=1)
            k = torch.cat([k1 * cos - k2 * sin, k2 * cos + k1 * sin], dim=1)
            score = q @ k.T / math.sqrt(C // n_head)
            if causal:
                score += torch.full((T, T), -math.inf).triu(1)
            heads.append(score.softmax(-1) @ v)
        x = x + torch.cat(heads, dim=1) @ layer["attention.proj.weight"].T
        gate, up = (norm(x, f"blocks.{i}.norm2") @ layer["mlp.gate_up.weight"].T).chunk(2, dim=1)
        x = x + (F.silu(gate) * up) @ layer["mlp.proj.weight"].T
    return norm(x, "norm") @ weights["head.weight"].T

def exact_model(mode, **fields):
    """Random weights in float64, and the table of positions too."""
    model = small_model(mode, dtype=torch.float64, **fields)
    c = model.config
    angle = angles(torch.arange(-1, c.block_size).double(), c.n_embd // c.n_head)
    table = torch.stack([angle.cos(), angle.sin()])
    assert (table - model.rotary).abs().max() < 1e-6
    model.rotary = table
    return model

@torch.no_grad()
def test_ar_is_the_papers_network():
    """Its queries turn by their own position: ours do with target_rotation=False."""
    model = exact_model("ar", target_rotation=False, target_embedding=False)
    x = torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(1))
    batch = order_batch(model.config, x)
    ours = model(batch.tokens, batch.key_pos, batch.target_pos)                     # (3, 8, V)
    for row, tokens in zip(ours, batch.tokens):
        theirs = network(model.state_dict(), tokens, 2, causal=True)[:, :11]
        assert (row - theirs).abs().max() < 1e-12
    loss = torch.stack([F.cross_entropy(network(model.state_dict(), row, 2, True)[:, :11], targets)
                        for row, targets in zip(batch.tokens, x)])
    assert (group_losses(model, batch) - loss).abs().max() < 1e-12

@torch.no_grad()
def test_mdlm_is_the_papers_network():
    """With an untied head and the timestep; BOS is one more visible token at its left."""
    model = exact_model("mdlm", target_embedding=False, **PAPER_MDLM)
    x = torch.randint(11, (4, 8), generator=torch.Generator().manual_seed(1))
    batch = paper_batch(model.config, x, torch.Generator().manual_seed(2))
    ours = model(batch.tokens, batch.key_pos, batch.target_pos, t=batch.t.double())     # (4, 9, V)
    theirs = torch.stack([network(model.state_dict(), row, 2, causal=False, t=t.item())[:, :11]
                          for row, t in zip(batch.tokens, batch.t)])
    assert (ours - theirs).abs().max() < 1e-12
    masked = batch.tokens == model.config.mask_id
    loss = F.cross_entropy(theirs[masked], batch.targets[masked])       # pooled over the whole batch
    ours = group_losses(model, batch._replace(t=batch.t.double())).mean()
    assert masked.any() and ours.item() == pytest.approx(loss.item(), abs=1e-6)     # its weights are float32

def test_the_papers_initial_weights():
    """PyTorch's own. So the logits of its tied head begin with a standard deviation of √C, ours with 1."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=500, block_size=16, n_layer=2, n_head=4, n_embd=256, n_hidden=64)
    x = torch.randint(500, (8, 16))
    for init, expected in (("paper", 16), ("scaled", 1)):
        model = Transformer(Config("ar", init=init, shared_init=False, **sizes))
        logits = model(x, *2 * [torch.arange(16)[None]])                            # (8, 16, V)
        others = torch.ones_like(logits, dtype=torch.bool).scatter(2, x[:, :, None], False)     # not its own
        assert logits[others].std().item() == pytest.approx(expected, rel=0.1)
    model = Transformer(Config("mdlm", init="paper", shared_init=False, **PAPER_MDLM, **sizes))
    assert model.embed.weight.std().item() == pytest.approx(1, rel=0.02)
    qkv = model.blocks[0].attention.qkv.weight
    assert qkv.abs().max() <= 1 / 16 and qkv.std().item() == pytest.approx(1 / 16 / math.sqrt(3), rel=0.02)

def test_the_time_does_not_drown_the_tokens():
    torch.manual_seed(0)
    model = Transformer(Config("mdlm", vocab_size=99, time_embedding="add", shared_init=False, n_layer=1))
    time = model.embed_time(torch.rand(50)).norm(dim=-1)
    assert time.max() < model.embed.weight.norm(dim=-1).mean()

def test_the_papers_schedule():
    """500 steps of warm-up, counted from 1, then a cosine to 5%, in which ours is one step behind."""
    s = Settings(**{name: value for name, value in PRESETS["paper"].items() if name in vars(Settings())})

    def theirs(step):
        if step < 500:
            return 3e-4 * step / 500
        return 3e-4 * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - 500) / (20000 - 500))))

    for step in (0, 1, 250, 498, 499):
        assert learning_rate(s, step) == pytest.approx(theirs(step + 1), rel=1e-12)
    for step in (500, 501, 10000, 19999):
        assert learning_rate(s, step) == pytest.approx(theirs(step), rel=1e-12)
    assert (s.batch_size, s.lr, s.weight_decay, s.grad_clip, s.eval_windows) == (32, 3e-4, 0.01, 1.0, 1600)

def test_the_papers_validation_is_on_its_first_held_out_chunks(trained, monkeypatch):
    monkeypatch.chdir(trained)
    val = Windows("t", "val", 48, "paper")
    assert (val.spread(5) == val.tokens[val.starts[:5, None] + np.arange(48)]).all() and len(val) > 5

def test_its_mdlm_differs_where_it_says_so(trained, monkeypatch):
    monkeypatch.chdir(trained)
    paper, s, _ = resolve({"mode": "mdlm", "preset": "paper", "data": "t", "block_size": 48})
    assert {name: getattr(paper, name) for name in PAPER_MDLM} == PAPER_MDLM and s.dtype == "float32"
    assert (paper.init, paper.shared_init, s.windows, s.warmup) == ("paper", False, "paper", 500)
    odd = {"mode": "mdlm", "preset": "paper", "data": "t", "block_size": 48, "grad_accum": 32}
    resolve(odd)                                        # only rows of the uniform schedule come in pairs
    with pytest.raises(InputError, match="an even one for mdlm's uniform schedule"):
        resolve(odd | {"schedule": "uniform"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config, s, why = resolve({"mode": "mdlm", "data": "t", "block_size": 48})      # where nothing is asked
    assert s.preset == "controlled" and why == "CUDA is present" and config.objective == "nelbo"
    assert resolve({"mode": "mdlm", "data": "t", "device": "cpu"})[1].preset == "toy"   # nor asked of CUDA

# ------------------------------------------------------------------------------------------------ its sampler

def papers_sampler(model, seed, story, length, steps):
    """Its loop, one story at a time; u as ours draws it: after two rows for other samplers, fresh ones."""
    config, rng = model.config, np.random.default_rng((seed, story))
    rng.random(length), rng.random(length)
    tokens = torch.full((length,), config.mask_id)
    for step in range(steps):
        t, u = 1 - step / steps, torch.from_numpy(rng.random(length))
        masked, position = tokens == config.mask_id, torch.arange(-1, length)[None]
        slots = torch.cat([torch.tensor([config.bos_id]), tokens])[None]            # and nothing beyond
        logits = model(slots, position, position, t=torch.tensor([t]).to(torch.float64))[0, 1:]
        for token in tokens[~masked].unique():
            logits[:, token] /= min(1.3 ** int((tokens == token).sum()), 5.0)       # whatever its sign
        p = (logits / max(0.8 * (0.4 + 0.6 * t), 0.1)).softmax(-1)                  # (L, V)
        new = torch.searchsorted(p.cumsum(-1), u[:, None] * p.sum(-1, keepdim=True), right=True)
        confidence = p.gather(1, new)[:, 0].masked_fill(~masked, -1)
        for i in confidence.argsort(descending=True)[:max(1, int(masked.sum()) // (steps - step))]:
            tokens[i] = new[i, 0]
    return tokens

@torch.no_grad()
@pytest.mark.parametrize("steps", [12, 16, 3])
def test_the_papers_sampler(steps):
    model = exact_model("mdlm", block_size=20, vocab_size=5, **PAPER_MDLM)
    model.embed_time.double()
    o = SampleOptions(protocol="paper", seed=3, steps=steps, final_temperature=0.32, **PAPER["mdlm"])
    ours, appeared = generate(model, range(20), torch.full((16,), model.config.mask_id), o)
    theirs = torch.stack([papers_sampler(model, 3, story, 16, steps) for story in range(20)])
    assert torch.equal(ours, theirs)
    counts = np.bincount(appeared[0], minlength=steps).tolist()
    assert counts == {12: [1] * 8 + [2] * 4, 16: [1] * 16, 3: [5, 5, 6]}[steps]
    own = replace(o, protocol="own")
    assert not torch.equal(ours, generate(model, range(20), torch.full((16,), model.config.mask_id), own)[0])
