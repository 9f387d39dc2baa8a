"""variants/paper.py against the published code's formulas, written again as plainly as can be.

All is in float64: the network, the losses, the schedule, and the sampler, its bug included."""
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest
from torch.testing import assert_close      # in float64 within 1e-7

import model as plain
from conftest import small_model
from prepare_data import open_windows
from sample import SampleOptions, generate
from samplers import confidence
from support.flags import build
from test_model import in_float64, predict, rng, row_losses, tokens
from train import Settings, learning_rate, resolve
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


def norm(x, gain):
    """RMSNorm of x (T, C)."""
    square = x.pow(2).mean(dim=1, keepdim=True)
    return gain * x / (square + 1e-6).sqrt()


def attention(x, qkv, n_head, causal):
    """What the heads find for x (T, C), side by side. Queries turn by where they stand."""
    T, C = x.shape
    D = C // n_head
    parts = qkv(x).view(T, 3, n_head, D)
    q, k, v = parts.permute(1, 2, 0, 3)                                         # (H, T, D) each
    angle = angles(torch.arange(T), D)
    q = turn(q, angle)
    k = turn(k, angle)
    score = q @ k.mT / math.sqrt(D)                                             # (H, T, T)
    if causal:
        score += torch.full((T, T), -math.inf).triu(1)
    heads = score.softmax(dim=2) @ v                                            # (H, T, D)
    return heads.transpose(0, 1).reshape(T, C)


def time_embedding(linear, t):
    """(1, C) of one timestep."""
    angle = angles(torch.tensor([t]), linear.in_features)
    waves = torch.cat([angle.sin(), angle.cos()], dim=1)
    return F.silu(linear(waves))


def network(model, tokens, t=None):
    """Logits (T, V) of one sequence (T,), by the weights of a Transformer."""
    config = model.config
    causal = config.mode == "ar"
    x = model.embed(tokens)                                                     # (T, C)
    if t is not None:
        x = x + time_embedding(model.embed_time.linear, t)
    for block in model.blocks:
        y = norm(x, block.norm1.weight)
        y = attention(y, block.attention.qkv, config.n_head, causal)
        x = x + block.attention.proj(y)
        y = norm(x, block.norm2.weight)
        gate, up = block.mlp.gate_up(y).chunk(2, dim=1)
        x = x + block.mlp.proj(F.silu(gate) * up)
    x = norm(x, model.norm.weight)
    logits = model.head(x)
    return logits[:, :config.vocab_size]


def exact_model(mode, **fields):
    """Random weights in float64, and the table of positions too."""
    model = small_model(
        mode, dtype=torch.float64, variant=paper, target_embedding=False, **fields)
    config = model.config
    angle = angles(torch.arange(-1, config.block_size), config.n_embd // config.n_head)
    table = torch.stack([angle.cos(), angle.sin()])
    assert_close(model.rotary, table, atol=1e-6, rtol=0)
    model.rotary = table
    return model


@torch.no_grad()
def test_ar_is_the_papers_network():
    """Its queries turn by where they stand; ours do with target_rotation=False."""
    model = exact_model("ar", target_rotation=False)
    x = tokens(model)
    batch = model.config.row.training_batch(model.config, x, rng())
    ours = predict(model, batch)                                                # (3, 8, V)
    for row, logits, loss, targets in zip(batch.tokens, ours, row_losses(model, batch), x):
        theirs = network(model, row)                                            # (8, V)
        assert_close(logits, theirs)
        assert_close(loss, F.cross_entropy(theirs, targets))


@torch.no_grad()
def test_mdlm_is_the_papers_network():
    """With an untied head and the timestep; BOS is one more visible token at its left."""
    model = exact_model("mdlm", **paper.OF_MDLM)
    batch = in_float64(paper.training_batch(model.config, tokens(model, rows=8), rng(2)))
    rows = zip(batch.tokens, batch.t.tolist())
    theirs = torch.stack([network(model, row, t) for row, t in rows])           # (8, 9, V)
    masked = batch.tokens == model.config.mask_id                               # (8, 9)
    slots = masked.flatten().nonzero()[:, 0]
    assert_close(model(*batch[:3], slots, t=batch.t), theirs[masked])
    loss = F.cross_entropy(theirs[masked], batch.targets[masked])       # pooled over the batch
    assert_close(row_losses(model, batch).mean(), loss, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_without_flags_it_is_the_plain_network(mode):
    found = []
    for variant in paper, plain:
        torch.manual_seed(0)
        config = variant.Config(mode, vocab_size=11, n_layer=1, block_size=8)
        model = config.row.network(config)
        batch = config.row.training_batch(config, tokens(model, rows=2), rng())
        found.append(torch.cat([p.flatten() for p in model.parameters()]))
        found.append(predict(model, batch))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])

OF_AR = dict(target_embedding=False)


def test_parameter_counts():
    with torch.device("meta"):      # which takes no memory
        sizes = [paper.Transformer(paper.Config(mode, **fields)).count_parameters()
                 for mode, fields in (("ar", OF_AR), ("mdlm", OF_AR | paper.OF_MDLM))]
    assert sizes == [123_551_232, 162_739_968]


# ---- Training ------------------------------------------------------------------------------------

def test_its_masks_and_what_the_network_is_told():
    config = paper.Config("mdlm", vocab_size=11, **paper.OF_MDLM)
    x = torch.zeros(2000, 512, dtype=torch.long)
    batch = paper.timed_batch(config, x, rng())
    assert kstest(batch.t.numpy(), "uniform").pvalue > 1e-3
    share = (batch.tokens == config.mask_id)[:, 1:].double().mean(dim=1)
    ratio = torch.sin(math.pi / 2 * batch.t).square()
    assert (share - ratio).abs().max() < 0.12       # 5 standard deviations at a ratio of one half
    assert_close(paper.timestep(config, ratio), batch.t, atol=1e-3, rtol=0)
    for found, expected in zip(batch, plain.cosine_batch(config, x, rng())):
        assert torch.equal(found, expected)


def test_its_windows(trained, monkeypatch):
    """A random 5% of the chunks of the training split are held out."""
    monkeypatch.chdir(trained)
    s = Settings(data="t", windows="paper")
    train, val = [open_windows(s, split, 48) for split in ("train", "val")]
    text = np.fromfile("data/t/train.bin", np.uint16)
    text = text[text != text.max()]             # without end-of-text
    chunks = text[:len(text) // 48 * 48].reshape(-1, 48)
    assert len(val) == len(chunks) // 20
    found = np.concatenate([train.batch(0, len(train)), val.spread(len(val))])
    assert sorted(map(tuple, found)) == sorted(map(tuple, chunks))


def test_the_preset_and_its_schedule(trained, monkeypatch):
    """500 steps of warm-up, counted from 1, then a cosine to 5%, in which ours is a step behind."""
    monkeypatch.chdir(trained)
    s, config = resolve({"preset": "paper", "mode": "mdlm", "data": "t"})
    assert type(config) is paper.Config
    expected = dict(paper.OF_MDLM, init="paper", shared_init=False, target_embedding=False)
    assert vars(config) | expected == vars(config)
    recipe = dict(dtype="float32", windows="paper", batch_size=32, weight_decay=0.01, grad_clip=1.0)
    assert vars(s) | recipe == vars(s)
    for step in (0, 1, 250, 498, 499):
        assert learning_rate(s, step) == pytest.approx(3e-4 * (step + 1) / 500)
    for step in (500, 501, 10_000, 19_999):
        cosine = 0.5 * (1 + math.cos(math.pi * (step - 500) / (20_000 - 500)))
        assert learning_rate(s, step) == pytest.approx(3e-4 * (0.05 + 0.95 * cosine))

# ---- Its sampler ---------------------------------------------------------------------------------

def papers_logits(model, tokens, t):
    """(L, V) of the tokens (L,) at time t; the more often a token has been written, the smaller."""
    config = model.config
    slots = F.pad(tokens, (1, 0), value=config.bos_id)      # and nothing beyond
    logits = network(model, slots, t)[1:]
    for token in range(config.vocab_size):
        penalty = 1.3 ** tokens.tolist().count(token)
        logits[:, token] /= min(penalty, 5.0)       # whatever their sign, which is the bug
    return logits


def papers_sampler(model, seed, story, length, steps):
    """Its loop, for one story. The random numbers are ours, of which the first two rows go to what
    other samplers need."""
    rng = np.random.default_rng((seed, story))
    rng.random(2 * length)
    tokens = torch.full((length,), model.config.mask_id)
    for step in range(steps):
        t = 1 - step / steps
        temperature = max(0.8 * (0.4 + 0.6 * t), 0.1)
        p = (papers_logits(model, tokens, t) / temperature).softmax(dim=1)      # (L, V)
        u = torch.from_numpy(rng.random((length, 1)))
        cdf = p.cumsum(dim=1)
        new = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)              # (L, 1)
        masked = tokens == model.config.mask_id
        confidence = p.gather(1, new)[:, 0].where(masked, -1)
        keep = max(1, int(masked.sum()) // (steps - step))
        surest = confidence.argsort(descending=True)[:keep]
        tokens[surest] = new[surest, 0]
    return tokens


@torch.no_grad()
@pytest.mark.parametrize("steps, kept", [(12, [1] * 8 + [2] * 4), (3, [5, 5, 6])])
def test_its_sampler(steps, kept):
    model = exact_model("mdlm", block_size=20, vocab_size=5, **paper.OF_MDLM)
    blank = torch.full((16,), model.config.mask_id)
    flags = dict(temperature=0.8, final_temperature=0.32, repetition_penalty=1.3,
                 by_the_paper=True, full_length=True, steps=steps)
    o = build(SampleOptions, flags)
    make_sampler = partial(confidence.sampler, flags=flags)
    theirs = [papers_sampler(model, o.seed, story, 16, steps) for story in range(20)]
    model.float()
    ours, appeared = generate(model, range(20), blank, o, make_sampler)
    assert torch.equal(ours, torch.stack(theirs))
    assert torch.bincount(appeared[0]).tolist() == kept
    flags["by_the_paper"] = False       # without the bug
    changed, _ = generate(model, range(20), blank, o, make_sampler)
    assert not torch.equal(ours, changed)
