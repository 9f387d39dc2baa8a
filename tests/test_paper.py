"""variants/paper.py against the published code's formulas, written again as plainly as can be.

Its windows and its sampler, with its bug, are held by the golden runs."""
import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close      # in float64 within 1e-7

import model as plain
from conftest import small_model
from sample import generate
from test_model import in_float64, predict, rng, row_losses, tokens
from test_sample import setting
from train import resolve
from variants import paper


# ---- The network ---------------------------------------------------------------------------------

def angles(positions, width):
    """Of rotary positions and of timesteps alike: (positions, width / 2)."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    return torch.outer(positions.double(), frequency)


def turn(x, angle):
    """x (H, T, D) turned by angle (T, D/2): x1 + i·x2, times cos + i·sin."""
    x1, x2 = x.chunk(2, dim=2)
    unit = torch.polar(torch.ones_like(angle), angle)
    turned = torch.complex(x1, x2) * unit
    return torch.cat([turned.real, turned.imag], dim=2)


def attention(x, qkv, n_head, causal):
    """What the heads find for x (T, C), side by side. Queries turn by where they stand."""
    T, C = x.shape
    q, k, v = qkv(x).view(T, 3, n_head, -1).permute(1, 2, 0, 3)                 # (H, T, D) each
    angle = angles(torch.arange(T), C // n_head)
    heads = F.scaled_dot_product_attention(turn(q, angle), turn(k, angle), v, is_causal=causal)
    return heads.transpose(0, 1).reshape(T, C)


def time_embedding(linear, t):
    """(1, C) of one timestep."""
    angle = angles(torch.tensor([t]), linear.in_features)
    waves = torch.cat([angle.sin(), angle.cos()], dim=1)
    return F.silu(linear(waves))


def network(model, tokens, t=None):
    """Logits (T, V) of one sequence (T,), by the weights of a Transformer."""
    config = model.config
    x = model.embed(tokens)                                                     # (T, C)

    def norm(x, layer):
        return layer.weight * x / (x.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()

    if t is not None:
        x = x + time_embedding(model.embed_time.linear, t)
    for block in model.blocks:
        y = norm(x, block.norm1)
        y = attention(y, block.attention.qkv, config.n_head, config.mode == "ar")
        x = x + block.attention.proj(y)
        gate, up = block.mlp.gate_up(norm(x, block.norm2)).chunk(2, dim=1)
        x = x + block.mlp.proj(F.silu(gate) * up)
    return model.head(norm(x, model.norm))[:, :config.vocab_size]


@torch.no_grad()
@pytest.mark.parametrize("mode, fields", [
    ("ar", dict(target_rotation=False)), ("mdlm", paper.OF_MDLM)])
def test_it_is_the_papers_network(mode, fields):
    """A GPT's queries turn by where they stand. mdlm is told the time, its head is not tied, and
    BOS is one more visible token at its left; its loss is pooled over the batch."""
    sizes = dict(variant=paper, dtype=torch.float64, target_embedding=False)
    model = small_model(mode, **sizes, **fields)
    batch = in_float64(model.config.row.training_batch(model.config, tokens(model, 8), rng(2)))
    times = batch.t.tolist() if mode == "mdlm" else [None] * 8
    theirs = torch.stack([network(model, row, t) for row, t in zip(batch.tokens, times)])
    ours = predict(model, batch)                                                # (8, S, V)
    assert_close(ours, theirs, atol=1e-5, rtol=0)       # positions are in float32
    counts = batch.weight > 0                                                   # (8, S)
    loss = F.cross_entropy(theirs[counts], batch.targets[counts])
    assert_close(row_losses(model, batch).mean(), loss, atol=1e-6, rtol=0)


def test_parameter_counts():
    of_ar = dict(target_embedding=False)
    with torch.device("meta"):          # which takes no memory
        sizes = [paper.Transformer(paper.Config(mode, **fields)).count_parameters()
                 for mode, fields in (("ar", of_ar), ("mdlm", of_ar | paper.OF_MDLM))]
    assert sizes == [123_551_232, 162_739_968]


# ---- Training ------------------------------------------------------------------------------------

def test_its_masks_and_what_the_network_is_told():
    """The masks are those that val_masked_ce has, and the time is what the sampler would tell."""
    config = paper.Config("mdlm", vocab_size=11, **paper.OF_MDLM)
    x = torch.zeros(2000, 512, dtype=torch.long)
    batch = paper.timed_batch(config, x, rng())
    share = (batch.tokens == config.mask_id)[:, 1:].double().mean(dim=1)
    ratio = torch.sin(math.pi / 2 * batch.t).square()
    assert (share - ratio).abs().max() < 0.12       # 5 standard deviations at a ratio of one half
    assert_close(paper.timestep(config, ratio), batch.t, atol=1e-3, rtol=0)
    assert_close(batch[:5], plain.cosine_batch(config, x, rng())[:], rtol=0, atol=0)


def test_the_preset_is_its_table(workdir):
    s, config = resolve({"preset": "paper", "mode": "mdlm", "data": "toy"})
    assert type(config) is paper.Config
    of_network = dict(paper.OF_MDLM, init="paper", shared_init=False, target_embedding=False)
    recipe = dict(dtype="float32", windows="paper", batch_size=32, weight_decay=0.01, grad_clip=1.0,
                  lr=3e-4, warmup=500, max_steps=20_000, final_lr=0.05)
    for found, expected in (vars(config), of_network), (vars(s), recipe):
        assert expected.items() <= found.items()


def test_its_sampler_tells_the_network_the_time():
    way = "mdlm/paper ........ --sampler=confidence --by_the_paper --steps=4"
    model, blank, o, make_sampler = setting(way)
    told = []
    model.register_forward_pre_hook(
        lambda model, slots, flags: told.append(flags["t"].tolist()), with_kwargs=True)
    generate(model, range(2), blank, o, make_sampler)
    assert told == [[1.0] * 2, [0.75] * 2, [0.5] * 2, [0.25] * 2]
