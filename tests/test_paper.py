"""Against the published code's formulas (arXiv 2603.22075), written again as plainly as can be.

All is in float64: the network, the losses, the schedule, and the sampler, its bug included."""
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close      # in float64 within 1e-7

from support.flags import InputError, build
from conftest import small_model
from model import PAPER_MDLM, Config, Transformer
from objectives import order_batch, paper_batch, weighted_losses
from prepare_data import Windows
from sample import PAPER
from samplers import SampleOptions, generate
from train import PRESETS, Settings, learning_rate, resolve


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
    fields |= dict(dtype=torch.float64, target_embedding=False)
    model = small_model(mode, **fields)
    config = model.config
    position = torch.arange(-1, config.block_size)
    angle = angles(position, config.n_embd // config.n_head)
    table = torch.stack([angle.cos(), angle.sin()])
    assert_close(model.rotary, table, atol=1e-6, rtol=0)
    model.rotary = table
    return model


def some_tokens(rows):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(11, (rows, 8), generator=generator)


@torch.no_grad()
def test_ar_is_the_papers_network():
    """Its queries turn by where they stand; ours do with target_rotation=False."""
    model = exact_model("ar", target_rotation=False)
    x = some_tokens(3)
    order = torch.arange(8).expand_as(x)
    batch = order_batch(model.config, x, order)
    ours = model(batch.tokens, batch.key_pos, batch.target_pos)                 # (3, 8, V)
    losses = weighted_losses(model, batch)
    for i in range(3):
        theirs = network(model, batch.tokens[i])                                # (8, V)
        assert_close(ours[i], theirs)
        assert_close(losses[i], F.cross_entropy(theirs, x[i]))


@torch.no_grad()
def test_mdlm_is_the_papers_network():
    """With an untied head and the timestep; BOS is one more visible token at its left."""
    model = exact_model("mdlm", **PAPER_MDLM)
    generator = torch.Generator().manual_seed(2)
    x = some_tokens(4)
    batch = paper_batch(model.config, x, generator)
    batch = batch._replace(t=batch.t.double())
    ours = model(batch.tokens, batch.key_pos, batch.target_pos, batch.t)
    rows = zip(batch.tokens, batch.t.tolist())
    theirs = torch.stack([network(model, row, t) for row, t in rows])           # (4, 9, V)
    assert_close(ours, theirs)
    masked = batch.tokens == model.config.mask_id
    assert masked.any()
    loss = F.cross_entropy(theirs[masked], batch.targets[masked])       # pooled over the batch
    losses = weighted_losses(model, batch)
    assert_close(losses.mean(), loss, atol=1e-6, rtol=0)


# ---- Initial weights -----------------------------------------------------------------------------

SIZES = dict(vocab_size=500, block_size=16, n_layer=2, n_head=4, n_embd=256, n_hidden=64)


@torch.no_grad()
@pytest.mark.parametrize("init, expected", [("paper", 16), ("scaled", 1)])
def test_the_first_logits_of_a_tied_head(init, expected):
    """By PyTorch's own initial weights their standard deviation is √C, by ours 1."""
    torch.manual_seed(0)
    config = Config("ar", init=init, shared_init=False, **SIZES)
    model = Transformer(config)
    x = torch.randint(500, (8, 16))
    position = torch.arange(16)[None]
    logits = model(x, position, position)                                       # (8, 16, V)
    own = F.one_hot(x, 500).bool()
    assert logits[~own].std() == pytest.approx(expected, rel=0.1)


@torch.no_grad()
def test_the_papers_initial_weights_are_pytorchs_own():
    torch.manual_seed(0)
    config = Config("ar", init="paper", shared_init=False, **SIZES)
    model = Transformer(config)
    qkv = model.blocks[0].attention.qkv.weight
    largest = 1 / math.sqrt(256)
    assert qkv.abs().max() <= largest
    assert qkv.std() == pytest.approx(largest / math.sqrt(3), rel=0.02)     # uniform


@torch.no_grad()
def test_the_time_does_not_drown_the_tokens():
    torch.manual_seed(0)
    config = Config("mdlm", vocab_size=99, time_embedding="add", shared_init=False, n_layer=1)
    model = Transformer(config)
    time = model.embed_time(torch.rand(50)).norm(dim=2)
    token = model.embed.weight.norm(dim=1)
    assert time.max() < token.mean()


# ---- Training ------------------------------------------------------------------------------------

def test_the_papers_schedule():
    """500 steps of warm-up, counted from 1, then a cosine to 5%, in which ours is a step behind."""
    s = build(Settings, PRESETS["paper"])

    def theirs(step):
        if step < 500:
            return 3e-4 * step / 500
        progress = (step - 500) / (20_000 - 500)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return 3e-4 * (0.05 + 0.95 * cosine)

    for step in (0, 1, 250, 498, 499):
        assert learning_rate(s, step) == pytest.approx(theirs(step + 1), rel=1e-12)
    for step in (500, 501, 10_000, 19_999):
        assert learning_rate(s, step) == pytest.approx(theirs(step), rel=1e-12)
    assert s.batch_size == 32
    assert s.weight_decay == 0.01
    assert s.grad_clip == 1
    assert s.eval_windows == 1600


def test_the_papers_validation_is_on_its_first_held_out_chunks(trained, monkeypatch):
    monkeypatch.chdir(trained)
    val = Windows("t", "val", 48, "paper")
    assert len(val) > 5
    for window, start in zip(val.spread(5), val.starts):
        chunk = val.tokens[start:start + 48]
        assert np.array_equal(window, chunk)


ASKED = {"mode": "mdlm", "data": "t", "block_size": 48}


def test_the_preset_paper_is_what_it_says(trained, monkeypatch):
    monkeypatch.chdir(trained)
    config, s, _, _ = resolve(ASKED | {"preset": "paper"})
    for name, value in PAPER_MDLM.items():
        assert getattr(config, name) == value
    assert config.init == "paper"
    assert not config.shared_init
    assert s.dtype == "float32"
    assert s.windows == "paper"


def test_only_rows_of_the_uniform_schedule_come_in_pairs(trained, monkeypatch):
    monkeypatch.chdir(trained)
    flags = ASKED | {"preset": "paper", "grad_accum": 32}
    resolve(flags)
    with pytest.raises(InputError, match="a multiple of 64"):
        resolve(flags | {"schedule": "uniform"})


def test_where_no_preset_is_asked_the_machine_decides(trained, monkeypatch):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config, s, why, _ = resolve(ASKED)
    assert s.preset == "controlled"
    assert why == "CUDA is present"
    assert config.objective == "nelbo"
    _, s, _, _ = resolve(ASKED | {"device": "cpu"})
    assert s.preset == "toy"


# ---- Its sampler ---------------------------------------------------------------------------------

def papers_logits(model, tokens, t):
    """(L, V) of the tokens (L,) at time t; the more often a token has been written, the smaller."""
    config = model.config
    slots = F.pad(tokens, (1, 0), value=config.bos_id)      # and nothing beyond
    position = torch.arange(-1, len(tokens))[None]
    times = torch.tensor([t]).double()
    [logits] = model(slots[None], position, position, times)
    logits = logits[1:]
    for token in range(config.vocab_size):
        count = tokens.tolist().count(token)
        penalty = min(1.3 ** count, 5.0)
        logits[:, token] /= penalty     # whatever their sign, which is the bug
    return logits


def papers_sampler(model, seed, story, length, steps):
    """Its loop, for one story. The random numbers are ours, of which a story's first two rows are
    for other samplers."""
    rng = np.random.default_rng((seed, story))
    rng.random(2 * length)
    tokens = torch.full((length,), model.config.mask_id)
    for step in range(steps):
        t = 1 - step / steps
        logits = papers_logits(model, tokens, t)
        temperature = max(0.8 * (0.4 + 0.6 * t), 0.1)
        p = (logits / temperature).softmax(dim=1)                               # (L, V)
        u = torch.from_numpy(rng.random((length, 1)))
        cdf = p.cumsum(dim=1)
        new = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)              # (L, 1)
        masked = tokens == model.config.mask_id
        confidence = p.gather(1, new)[:, 0]
        confidence[~masked] = -1
        left = masked.sum().item()
        keep = max(1, left // (steps - step))
        surest = confidence.argsort(descending=True)[:keep]
        tokens[surest] = new[surest, 0]
    return tokens


@torch.no_grad()
@pytest.mark.parametrize("steps, kept", [
    (12, [1] * 8 + [2] * 4),
    (16, [1] * 16),
    (3, [5, 5, 6])])
def test_the_papers_sampler(steps, kept):
    model = exact_model("mdlm", block_size=20, vocab_size=5, **PAPER_MDLM)
    blank = torch.full((16,), model.config.mask_id)
    o = SampleOptions(
        **PAPER["mdlm"], protocol="paper", steps=steps, final_temperature=0.32)
    ours, appeared = generate(model, range(20), blank, o)
    for story in range(20):
        theirs = papers_sampler(model, o.seed, story, 16, steps)
        assert torch.equal(ours[story], theirs)
    first = appeared[0].tolist()
    assert [first.count(step) for step in range(steps)] == kept
    o.protocol = "own"      # without the bug
    changed, _ = generate(model, range(20), blank, o)
    assert not torch.equal(ours, changed)
