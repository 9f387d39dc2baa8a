"""model.py alone: against the table at its top, and against brute force over masks and orders.

Whatever a variant must have too is a function here, which its own tests call."""
import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from torch.testing import assert_close      # in float64 within 1e-7
from torch.utils.flop_counter import FlopCounterMode

from conftest import ROOT, small_model
from model import (
    Config, Transformer, bound_batch, draw_masks, draw_orders, flops_per_token, losses,
    mask_batch, order_batch, training_batch)
from support.machine import attention_written_out

modes = pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
causal_modes = pytest.mark.parametrize("mode", ["ar", "aogpt"])


def exact_model(mode, **fields):
    return small_model(mode, dtype=torch.float64, **fields)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(model, rows=3):
    shape = (rows, model.config.block_size)
    return torch.randint(model.config.vocab_size, shape, generator=rng(1))


def every_text(words, length):
    """All texts of so many tokens, (words ** length, length)."""
    return torch.tensor(list(itertools.product(range(words), repeat=length)))


def an_order(mode, x):
    return draw_orders(Config(mode), x[:1], rng(2), l2r_fraction=0).expand_as(x)


def predict(model, batch):
    """The logits of all slots (B, S, V)."""
    every_slot = torch.arange(batch.tokens.numel())
    return model(*batch[:3], every_slot).view(*batch.tokens.shape, -1)


def row_losses(model, batch):
    weight = batch.weight.to(torch.promote_types(model.head.weight.dtype, torch.float32))
    return losses(model, batch._replace(weight=weight), batch.select())


def gradient(model, loss):
    """One long vector."""
    parts = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
    return torch.cat([part.flatten() for part in parts if part is not None])


def assert_mean(values, expected):
    """Within 5 standard errors, which fails for one seed in two million."""
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - expected) < 5 * error


# ---- Who sees whom -------------------------------------------------------------------------------

def moved(model, make_batch, x, j):
    """(S,) how far the logits of x (1, T) move when its token at j is another one."""
    other = x.clone()
    other[0, j] = (x[0, j] + 1) % model.config.vocab_size
    before = predict(model, make_batch(x))
    after = predict(model, make_batch(other))
    return (after - before).abs().amax(dim=-1)[0]


@torch.no_grad()
@causal_modes
def test_a_slot_sees_what_comes_before_in_its_order_and_nothing_else(mode):
    model = exact_model(mode)
    x = tokens(model, rows=1)
    order = an_order(mode, x)
    for j in range(8):
        distance = moved(model, lambda x: order_batch(model.config, x, order), x, order[0, j])
        assert (distance[:j + 1] == 0).all()
        assert (distance[j + 1:] > 1e-6).all()


@torch.no_grad()
def test_mdlm_sees_visible_tokens_on_both_sides_and_no_masked_one():
    model = exact_model("mdlm")
    x = tokens(model, rows=1)
    masked = torch.zeros(1, 8, dtype=torch.bool)
    masked[0, [2, 4]] = True
    for j in range(8):
        distance = moved(model, lambda x: mask_batch(model.config, x, masked), x, j)
        if masked[0, j]:
            assert (distance == 0).all()
        else:
            assert (distance > 1e-6).all()


@torch.no_grad()
def test_aogpt_from_left_to_right_is_ar():
    ar, aogpt = small_model("ar"), small_model("aogpt")
    x = tokens(ar)
    batch = order_batch(ar.config, x, an_order("ar", x))
    logits = predict(aogpt, batch)
    assert torch.equal(logits, predict(ar, batch))
    shuffled = order_batch(ar.config, x, an_order("aogpt", x))
    assert not torch.allclose(logits, predict(aogpt, shuffled), atol=0.1)


@torch.no_grad()
def test_a_slot_is_told_what_to_predict():
    """By rotation alone the first slot would not know, because it sees nothing but BOS."""
    model = exact_model("aogpt")
    x = tokens(model, rows=1)
    order = an_order("aogpt", x)
    batch = order_batch(model.config, x, order)
    away = predict(model, batch) - predict(model, batch._replace(target_pos=order.flip(1)))
    assert (away.abs().amax(dim=-1) > 1e-6).all()


# ---- Losses, by enumeration ----------------------------------------------------------------------

T = 4       # the length of the texts of which all masks and all orders are tried


def nll_of_every_mask(model, x):
    """{masked places: −ln p of every token of x (T,) given those that are not masked, (T,)}."""
    nll = {}
    position = torch.arange(-1, T)[None]
    for k in range(1, T + 1):
        for masked in itertools.combinations(range(T), k):
            slots = F.pad(x, (1, 0), value=model.config.bos_id)
            slots[[i + 1 for i in masked]] = model.config.mask_id
            logits = model(slots[None], position, position, torch.arange(1, T + 1))
            nll[masked] = F.cross_entropy(logits, x, reduction="none")
    return nll


@torch.no_grad()
def test_the_bound_over_all_masks_is_the_chain_rule_over_all_orders():
    model = exact_model("mdlm", vocab_size=5, block_size=T)
    x = tokens(model, rows=1)
    nll = nll_of_every_mask(model, x[0])
    by_orders = 0.0
    for order in itertools.permutations(range(T)):
        for j, place in enumerate(order):
            step = nll[tuple(sorted(order[j:]))][place]
            by_orders += step.item() / T / math.factorial(T)
    by_masks = 0.0
    pooled = 0.0        # the mean over all masked tokens: masks of k count k times
    for masked, values in nll.items():
        share = 1 / math.comb(T, len(masked))           # k is uniform, and then the mask
        of_mask = values[list(masked)]
        by_masks += of_mask.mean().item() * share / T
        pooled += of_mask.sum().item() * share / (T * (T + 1) / 2)
    assert by_masks == pytest.approx(by_orders, abs=1e-12)

    batch = bound_batch(model.config, x.expand(20_000, T), rng(3))
    assert_mean(row_losses(model, batch).view(-1, 2).mean(dim=1), by_orders)
    model.config.objective = "masked_ce"
    batch = training_batch(model.config, x.expand(20_000, T), rng(3))
    assert_mean(row_losses(model, batch), pooled)


def nats_in_order(model, x, order):
    """−ln p of x (1, T), read one token at a time in this order."""
    batch = order_batch(model.config, x, torch.tensor([order]))
    total = 0.0
    for j in range(T):
        seen = [field[:, :j + 1] for field in batch[:3]]    # tokens, key_pos, target_pos
        logits = model(*seen, torch.tensor([j]))                                # (1, V)
        total += F.cross_entropy(logits, batch.targets[:, j]).item()
    return total


@torch.no_grad()
def test_the_bound_of_aogpt_is_the_mean_over_all_orders():
    model = exact_model("aogpt", vocab_size=5, block_size=T)
    x = tokens(model, rows=1)
    exact = []
    for order in itertools.permutations(range(T)):
        exact.append(nats_in_order(model, x, order) / T)
    batch = bound_batch(model.config, x.expand(20_000, T), rng(3))
    assert_mean(row_losses(model, batch), sum(exact) / len(exact))
    [loss] = row_losses(model, bound_batch(model.config, x, rng(), l2r_fraction=1.0))
    assert loss.item() == pytest.approx(exact[0], abs=1e-12)


@torch.no_grad()
@causal_modes
def test_probabilities_of_all_texts_sum_to_one(mode):
    """A fixed order is an exact likelihood."""
    model = exact_model(mode, vocab_size=3, block_size=T)
    x = every_text(3, T)
    nll = row_losses(model, order_batch(model.config, x, an_order(mode, x)))
    assert torch.exp(-T * nll).sum().item() == pytest.approx(1, abs=1e-6)


@torch.no_grad()
def test_the_published_estimator_of_the_bound_has_our_mean_and_more_variance():
    """Each token is masked with a chance t, uniform on (0.001, 1), and has the weight 1/t.

    The t of the two rows of a window are half a period apart (arXiv 2406.07524)."""
    model = small_model("mdlm")
    x = tokens(model, rows=1).expand(8000, -1)
    t = torch.rand(4000, 1, generator=rng(2))
    t = torch.cat([t, (t + 0.5) % 1], dim=1)                                    # (4000, 2)
    chance = 0.001 + 0.999 * t.view(-1, 1)                                      # (8000, 1)
    masked = torch.rand(x.shape, generator=rng(4)) < chance
    batch = mask_batch(model.config, x, masked)
    published = batch._replace(weight=(batch.weight > 0) / chance / x.size(1))
    theirs = row_losses(model, published).view(-1, 2).mean(dim=1)               # (4000,)
    batch = bound_batch(model.config, x, rng(1))
    ours = row_losses(model, batch).view(-1, 2).mean(dim=1)                     # (4000,)
    assert_mean(theirs - ours, 0)       # the cut-off at 0.001 leaves out next to nothing
    assert theirs.var() > 2 * ours.var()


# ---- Masks and orders ----------------------------------------------------------------------------

@pytest.mark.parametrize("length", [7, 8])
def test_k_is_uniform_and_each_place_equally_likely(length):
    """And the rows are pairs of k and T+1−k."""
    x = torch.zeros(14, length)
    masked = torch.cat([draw_masks(x, rng(seed)) for seed in range(3000)])      # (42000, T)
    k = masked.sum(dim=1)
    assert (k[0::2] + k[1::2] == length + 1).all()
    # The strata make the counts closer to uniform than independent draws.
    counts = torch.bincount(k, minlength=length + 1)
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 0.01
    assert chisquare(masked[k == 2].sum(dim=0)).pvalue > 1e-4

# ---- A training step -----------------------------------------------------------------------------

def check_step(model, batch, losses=losses):
    """Its gradient is the same if all slots are predicted, or parts add up, or it is compiled."""
    def of(function, part, select):
        loss = function(model, part, select).mean()
        return loss, gradient(model, loss)

    batch = batch._replace(weight=batch.weight.double())
    loss, expected = of(losses, batch, batch.select())
    assert_close(of(losses, batch, torch.arange(batch.tokens.numel())), (loss, expected))
    parts = batch.split(len(batch.tokens) // 4)
    assert len(parts) == 4
    summed = sum(of(losses, part, part.select())[1] for part in parts)
    assert_close(summed / 4, expected)
    torch._dynamo.reset()
    compiled = torch.compile(losses, backend="aot_eager", fullgraph=True)
    assert_close(of(compiled, batch, batch.select()), (loss, expected))


@pytest.mark.parametrize("mode, objective", [
    ("ar", "nelbo"), ("mdlm", "nelbo"), ("mdlm", "masked_ce"), ("aogpt", "nelbo")])
def test_a_step_is_the_same_in_parts_and_compiled(mode, objective):
    model = exact_model(mode, objective=objective)
    check_step(model, training_batch(model.config, tokens(model, rows=8), rng()))


@torch.no_grad()
def test_the_loss_of_bfloat16_logits_is_in_float32():
    """As autocast leaves them on CUDA. To round a loss to bfloat16 would cost some 0.01."""
    model = small_model(dtype=torch.bfloat16)
    batch = training_batch(model.config, tokens(model, rows=64), rng())
    logits = predict(model, batch).double()
    nll = F.cross_entropy(logits.mT, batch.targets, reduction="none")           # (64, S)
    assert_close(row_losses(model, batch).double(), nll.mean(dim=1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("visible, is_causal", [
    (None, False), (None, True), (torch.eye(8).roll(1, 0) + torch.eye(8) > 0, False)])
def test_attention_written_out_is_the_librarys(visible, is_causal):
    """In bfloat16, as in training on a CPU. What is rounded stays below 0.03."""
    qkv = torch.randn(3, 2, 2, 8, 4, generator=rng()).bfloat16()
    exact, fast = qkv.float().requires_grad_(), qkv.requires_grad_()
    expected = F.scaled_dot_product_attention(*exact, visible, is_causal=is_causal)
    found = attention_written_out(*fast, visible, is_causal)
    assert_close(found.float(), expected, atol=0.03, rtol=0)
    for out in expected, found:
        out.float().square().sum().backward()
    assert_close(fast.grad.float(), exact.grad, atol=0.03, rtol=0.03)


# ---- Weights and sizes ---------------------------------------------------------------------------

@modes
def test_flops_per_token_counts_the_matrix_products(mode):
    sizes = dict(vocab_size=1023, block_size=32, n_layer=2, n_head=2, n_embd=64, n_hidden=128)
    model = Transformer(Config(mode, **sizes)).bfloat16()
    model.softmax_attention = attention_written_out     # in the library's own nothing is counted
    batch = training_batch(model.config, tokens(model, rows=2), rng())
    with FlopCounterMode(display=False) as counter:
        row_losses(model, batch).mean().backward()
    measured = counter.get_total_flops() / 64
    tolerance = 0.05        # for mdlm's BOS slot
    if mode != "mdlm":
        measured -= 6 * 2 * 64 * 32     # the masked half of attention is computed too
        tolerance = 1e-3                # for the row that pads the vocabulary
    assert measured == pytest.approx(flops_per_token(model.config), rel=tolerance)


def test_model_py_stands_alone(tmp_path):
    """Copied into an empty folder, it prints its table of sizes."""
    shutil.copy(Path(ROOT, "model.py"), tmp_path)
    command = [sys.executable, "-E", "model.py"]        # without PYTHONPATH
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    sizes = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()[2:]}
    table = 123_551_232 + 512 * 768         # a GPT and the embedding of targets
    assert sizes == {"ar": f"{table:,}", "mdlm": f"{table + 768:,}", "aogpt": f"{table:,}"}
