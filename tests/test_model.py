"""model.py and variants/: who sees whom, and each loss against all texts, masks and orders.

What holds of every model is tested of every row of model.py's table and of those of each file that
is in variants/, so a new file there has its tests. Such a kind is named like "mdlm/blocks"."""
import itertools
import math
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from torch.testing import assert_close      # in float64 within 1e-7

from bench import flops_per_token
from conftest import small_model
from model import (
    MODES, Config, Transformer, draw_counts, draw_masks, generate, left_to_right, losses, write)
from support import machine
from support.flags import names_in, plugin

# Without its own flags a variant would not differ, or ask for other sizes.
FIELDS = {"mdlm/paper": dict(tie_head=False, time_embedding="add")}
FIELDS |= dict.fromkeys(["mdlm/blocks", "aogpt/blocks"], dict(block_length=3))


def module_of(kind):
    name = kind.partition("/")[2]
    return plugin("variants", name) if name else import_module("model")


def kinds(holds=lambda kind, row: row.whole):
    """A test of all kinds of which this holds."""
    names = ["", *(f"/{name}" for name in names_in("variants"))]
    found = [mode + name for name in names for mode in module_of(name).Config.modes]
    rows = {kind: module_of(kind).Config.modes[kind.split("/")[0]] for kind in found}
    return pytest.mark.parametrize("kind", [kind for kind in found if holds(kind, rows[kind])])


modes = pytest.mark.parametrize("kind", MODES)


def make(kind, dtype=torch.float64, **fields):
    mode = kind.split("/")[0]
    return small_model(mode, dtype=dtype, variant=module_of(kind), **FIELDS.get(kind, {}) | fields)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(model, rows=3):
    shape = (rows, model.config.block_size)
    return torch.randint(model.config.vocab_size, shape, generator=rng(1))


def every_text(words, length):
    """All texts of so many tokens, (words ** length, length)."""
    return torch.tensor(list(itertools.product(range(words), repeat=length)))


def predict(model, batch):
    """The logits of all slots (B, S, V)."""
    return model.logits(batch, torch.arange(batch.tokens.numel())).view(*batch.tokens.shape, -1)


def in_float64(batch):
    fields = (field.double() if field.is_floating_point() else field for field in batch)
    return type(batch)(*fields)


def row_losses(model, batch):
    return losses(model, in_float64(batch), batch.select())


def assert_mean(values, expected):
    """Within 5 standard errors, which fails for one seed in two million."""
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - expected) < 5 * error + 1e-7


def p_value(texts, law):
    """The chi-square test of texts (N, T), by the law (words^T,) of every text."""
    words, (N, T) = round(len(law) ** (1 / texts.size(1))), texts.shape
    number = texts @ words ** torch.arange(T - 1, -1, -1)                       # (N,)
    counts, expected = torch.bincount(number, minlength=len(law)).double(), law.double() * N
    assert not counts[expected == 0].any()
    rare = (expected < 5) & (expected < expected.max())     # too few to be tested by themselves
    commonest = expected.argmax()
    for of_text in counts, expected:
        of_text[commonest] += of_text[rare].sum()
    return chisquare(counts[~rare], expected[~rare]).pvalue


# ---- Who sees whom -------------------------------------------------------------------------------

@torch.no_grad()
@kinds(lambda kind, row: row.whole and "uniform" not in kind)       # whose slots may hold noise
def test_a_slot_sees_what_it_may_and_nothing_else(kind):
    """It moves if a token becomes another one which it sees, or which a slot holds that it sees."""
    model = make(kind)
    config, T = model.config, model.config.block_size
    x = tokens(model, rows=2)
    batch = config.row.bound_batch(config, x, rng(2))
    before = predict(model, batch)
    seen = torch.ones(2 * [batch.tokens.size(1)])
    seen = getattr(model, "seen_twice", seen.tril() if config.row.causal else seen)      # (S, S)
    for j in range(T):
        other = x.clone()
        other[:, j] = (x[:, j] + 1) % config.vocab_size
        after = predict(model, config.row.bound_batch(config, other, rng(2)))
        distance = (after - before).abs().amax(dim=-1)                                  # (2, S)
        holds = (batch.key_pos == j) & (batch.tokens != config.mask_id)                 # (2, S)
        expected = holds.double() @ seen.double().T > 0                                 # (2, S)
        assert torch.equal(distance > 1e-6, expected)
        assert (distance[~expected] == 0).all()


@torch.no_grad()
def test_aogpt_is_told_what_to_predict():
    """By rotation alone the first slot would not know, because it sees nothing but BOS."""
    model = make("aogpt")
    batch = MODES["ar"].bound_batch(model.config, tokens(model), rng())
    other = batch._replace(target_pos=batch.target_pos.flip(1))
    away = predict(model, batch) - predict(model, other)
    assert (away.abs().amax(dim=-1) > 1e-6).all()


# ---- Losses, by enumeration ----------------------------------------------------------------------

T = 4       # the length of the texts of which all masks and all orders are tried
ORDERS = torch.tensor(list(itertools.permutations(range(T)))) / T                   # (T!, T)


def nats_of_writing(model, x, u):
    """−ln p (B,) of the texts x (B, T) written one token a pass, at times that u (B, T) makes."""
    row, nats = model.config.row, []

    def reveal(logits, row, place):
        nats.append(F.cross_entropy(logits.mT, x[row, place], reduction="none").sum(dim=1))
        return x[row, place]

    blank = torch.full_like(x, model.config.mask_id)
    order, edges = row.plan(model.config, blank, row.times(model.config, u))
    for _ in write(model, blank, order, edges, reveal):
        pass
    assert len(nats) == x.size(1)
    return sum(nats)


@torch.no_grad()
@kinds()
def test_a_loss_is_what_writing_costs_on_average_over_orders(kind):
    """In each order texts have probabilities, `generate` draws by their mean, and the loss that is
    reported, and without other flags the one that is trained on, is the mean of their −log."""
    fields = dict(l2r_fraction=0.0) if "aogpt" in kind else {}
    model = make(kind, vocab_size=3, block_size=T, n_embd=8, **fields)
    config, row = model.config, model.config.row
    every = every_text(3, T)
    nats = torch.stack([nats_of_writing(model, every, u.expand_as(every)) for u in ORDERS])
    assert_close(nats.neg().exp().sum(dim=1), torch.ones(len(ORDERS)).double())
    assert p_value(generate(model, 10_000, generator=rng()), nats.neg().exp().mean(dim=0)) > 1e-3
    if kind in ("aogpt/infill", "mdlm/uniform"):    # which learn not only to write from nothing
        return
    for batch_of in row.bound_batch, row.training_batch:
        batch = batch_of(config, every[20].expand(10_000, -1), rng(3))
        found = row_losses(model, batch).view(-1, row.together).mean(dim=1)
        assert_mean(found, nats[:, 20].mean() / T)


@kinds(lambda kind, row: row.whole and "aogpt" in kind)
def test_rows_from_left_to_right(kind):
    """All of them where that is reported, and of those that are trained on as many as asked for."""
    model = make(kind, l2r_fraction=0.5)
    config, row = model.config, model.config.row
    x = tokens(model, rows=4000)
    place = left_to_right(config, x)
    assert torch.equal(row.reported["val_nll_l2r"](config, x[:9], rng()).target_pos, place[:9])
    order = row.training_batch(config, x, rng()).target_pos[:, :8]
    assert_mean((order == place).all(dim=1).double(), 0.5)


@kinds(lambda kind, row: row.whole and "mdlm" in kind)
def test_masked_ce_is_the_plain_mean_over_the_same_predictions(kind):
    batches = []
    for objective in "nelbo", "masked_ce":
        model = make(kind, objective=objective)
        batches.append(model.config.row.training_batch(model.config, tokens(model, 8), rng()))
    bound, equal = batches
    assert torch.equal(bound.tokens, equal.tokens)
    predicted = (bound.weight > 0).float()
    assert_close(equal.weight, predicted * 8 / predicted.sum())


@pytest.mark.parametrize("length", [7, 8])
def test_k_is_uniform_and_each_place_equally_likely(length):
    """And the rows are pairs of k and T+1−k."""
    k = torch.cat([draw_counts(14, length, rng(seed)) for seed in range(3000)])    # (42000, 1)
    masked = draw_masks(torch.zeros(len(k), length), k, rng())                  # (42000, T)
    assert torch.equal(masked.sum(dim=1, keepdim=True), k)
    k = k[:, 0]
    assert (k[0::2] + k[1::2] == length + 1).all()
    # The strata make the counts closer to uniform than independent draws.
    counts = torch.bincount(k, minlength=length + 1)
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 0.01
    assert chisquare(masked[k == 2].sum(dim=0)).pvalue > 1e-4
    with pytest.raises(ValueError, match="^.+13 rows.+$"):      # one line
        draw_counts(13, length, rng())


# ---- A training step -----------------------------------------------------------------------------

@kinds()
def test_a_step_is_the_same_in_parts_and_compiled(kind):
    """Its gradient is, and where all slots are predicted; and a copy has the same loss."""
    def of(function, part, select):
        loss = function(model, part, select).mean()
        gradients = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
        return loss, torch.cat([part.flatten() for part in gradients if part is not None])

    model = make(kind)
    batch = in_float64(model.config.row.training_batch(model.config, tokens(model, 8), rng()))
    loss, expected = of(losses, batch, batch.select())
    assert_close(of(losses, batch, torch.arange(batch.tokens.numel())), (loss, expected))
    parts = [type(batch)(*fields) for fields in zip(*(field.split(2) for field in batch))]
    assert_close(sum(of(losses, part, part.select())[1] for part in parts) / 4, expected)
    torch._dynamo.reset()
    compiled = torch.compile(losses, backend="eager", fullgraph=True)
    assert_close(of(compiled, batch, batch.select()), (loss, expected))


@torch.no_grad()
def test_the_loss_of_bfloat16_logits_is_in_float32():
    """As autocast leaves them on CUDA. To round a loss to bfloat16 would cost some 0.01."""
    model = small_model(dtype=torch.bfloat16)
    batch = MODES["ar"].training_batch(model.config, tokens(model), rng())
    assert losses(model, batch, batch.select()).dtype == torch.float32


@pytest.mark.parametrize("visible, is_causal", [
    (None, False), (None, True), (torch.eye(8).roll(1, 0) + torch.eye(8) > 0, False)])
def test_attention_written_out_is_the_librarys(visible, is_causal):
    """In bfloat16, as in training on a CPU. What is rounded stays below 0.03."""
    qkv = torch.randn(3, 2, 2, 8, 4, generator=rng()).bfloat16().requires_grad_()
    expected = F.scaled_dot_product_attention(*qkv.float(), visible, is_causal=is_causal)
    found = machine.attention_written_out(*qkv, visible, is_causal)
    assert_close(found.float(), expected, atol=0.03, rtol=0)


# ---- Weights and sizes ---------------------------------------------------------------------------

def test_flops_per_token():
    """The matrix products of a step, as torch.utils.flop_counter counts them."""
    sizes = dict(vocab_size=1023, block_size=32, n_layer=2, n_head=2, n_embd=64, n_hidden=128)
    assert [flops_per_token(Config(mode, **sizes)) for mode in MODES] == [908_928, 671_802, 908_928]


def test_sizes():
    """A GPT-2, the embedding of targets, and mdlm's [MASK]."""
    with torch.device("meta"):          # which takes no memory
        sizes = [Transformer(Config(mode)).count_parameters() for mode in MODES]
    size = 123_551_232 + 512 * 768
    assert sizes == [size, size + 768, size]
