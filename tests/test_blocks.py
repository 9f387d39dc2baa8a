"""variants/blocks.py: the law of block diffusion, and its fast forms against the plain ones."""
import collections
import itertools
import math

import pytest
import torch
from scipy.stats import chisquare
from torch.testing import assert_close

import model as plain
from conftest import small_model
from variants import blocks
from model import mask_batch
from test_model import (
    assert_mean, check_step, every_text, moved, nats_in_order, predict, rng, row_losses, tokens)

sizes = pytest.mark.parametrize("length, N", [(4, 1), (4, 2), (4, 3)])


def block_model(length, N, mode="mdlm"):
    return small_model(
        mode, dtype=torch.float64, variant=blocks, vocab_size=3, block_size=length, block_length=N)


def orders_in_blocks(length, N):
    """All orders of so many tokens in blocks of N; the last block may be shorter."""
    places = range(length)
    parts = [itertools.permutations(places[start:start + N]) for start in places[::N]]
    return [tuple(itertools.chain(*parts)) for parts in itertools.product(*parts)]


# ---- The law -------------------------------------------------------------------------------------

def log_p_in_order(model, x, order):
    """ln p of the texts x (B, T), one token at a time in this order."""
    total = 0
    masked = torch.ones_like(x, dtype=torch.bool)
    for place in order:
        logits = predict(model, mask_batch(model.config, x, masked))
        log_p = logits[:, 1 + place].log_softmax(dim=-1)                        # (B, V)
        total = total + log_p.gather(1, x[:, place, None])[:, 0]
        masked[:, place] = False
    return total


@torch.no_grad()
@sizes
def test_block_diffusion_is_a_law_and_its_bound_is_the_mean_over_its_orders(length, N):
    model = block_model(length, N)
    every = every_text(3, length)
    orders = orders_in_blocks(length, N)
    nats = 0
    for order in orders:
        log_p = log_p_in_order(model, every, order)
        assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)
        nats = nats - log_p / len(orders) / length
    x, expected = every[20:21].expand(20_000, -1), nats[20]
    one_block = row_losses(model, blocks.one_block_batch(model.config, x, rng(3)))
    assert_mean(one_block, expected)
    all_blocks = row_losses(model, blocks.training_batch(model.config, x, rng(3)))
    if N == 1:          # only one mask is possible, so every draw is exact
        assert_close(all_blocks, expected.expand(20_000), atol=1e-6, rtol=0)
    else:
        pairs = all_blocks.view(-1, 2).mean(dim=1)
        assert_mean(pairs, expected)
        assert pairs.var() < one_block.var() / 2


@torch.no_grad()
@pytest.mark.parametrize("N", [3, 2, 1])
def test_the_bound_of_aogpt_is_the_mean_over_orders_in_blocks(N):
    model = block_model(4, N, "aogpt")
    x = tokens(model, rows=1)
    nats = [nats_in_order(model, x, order) / 4 for order in orders_in_blocks(4, N)]
    batch = blocks.bound_batch(model.config, x.expand(20_000, -1), rng(3))
    found = row_losses(model, batch)
    if N == 1:
        assert_close(found, torch.full_like(found, nats[0]))
    else:
        assert_mean(found, sum(nats) / len(nats))


# ---- Fast is plain -------------------------------------------------------------------------------

@torch.no_grad()
@sizes
def test_two_streams_predict_what_block_by_block_does(length, N):
    model = block_model(length, N)
    x = tokens(model, rows=5)
    block = torch.arange(length) // N
    masked = torch.rand(x.shape, generator=rng(7)) < 0.6
    batch = blocks.two_streams(model.config, mask_batch(model.config, x, masked))
    assert batch.tokens.size(1) == 1 + int(block[-1]) * N + length
    logits = predict(model, batch)[:, -length:]
    for b in block.unique():
        hidden = (masked & (block == b)) | (block > b)
        alone = predict(model, mask_batch(model.config, x, hidden))[:, 1:]
        assert_close(logits[:, block == b], alone[:, block == b])


@torch.no_grad()
def test_nothing_leaks_from_later_blocks_or_from_behind_a_mask():
    model = block_model(7, 3)
    x = tokens(model, rows=1)
    block = torch.arange(7) // 3
    masked = torch.tensor([[False, True, False, True, False, True, True]])

    def make_batch(x):
        return blocks.two_streams(model.config, mask_batch(model.config, x, masked))

    for j in range(7):
        of_block = moved(model, make_batch, x, j)[-7:][block == 1]
        if j < 3 or j == 4:         # the first block, masked or not, and what block 1 shows
            assert (of_block > 1e-6).all()
        else:
            assert (of_block == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("N", [8, 100])
def test_one_block_is_masked_diffusion_to_the_bit(N):
    results = []
    for variant, fields in (blocks, dict(block_length=N)), (plain, {}):
        model = small_model("mdlm", variant=variant, **fields)
        x = tokens(model, rows=8)
        of_each = [variant.training_batch, variant.bound_batch, variant.masked_ce_batch]
        found = [row_losses(model, make_batch(model.config, x, rng())) for make_batch in of_each]
        results.append(torch.cat(found))
    assert torch.equal(*results)


def test_a_step_is_the_same_in_parts_and_compiled():
    model = block_model(8, 3)
    check_step(model, blocks.training_batch(model.config, tokens(model, rows=8), rng()))


# ---- Orders --------------------------------------------------------------------------------------

@pytest.mark.parametrize("length, N", [(8, 4), (7, 3)])
def test_every_order_in_blocks_is_equally_likely_and_no_other_comes(length, N):
    config = blocks.Config("aogpt", block_length=N)
    x = torch.zeros(20_000, length)
    order = blocks.draw_orders(config, x, rng(), l2r_fraction=0.0)
    assert torch.equal(order // N, blocks.block_of(x, N).expand_as(x))
    counts = collections.Counter(map(tuple, order[:, :N].tolist()))
    assert len(counts) == math.factorial(N)
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_the_ends_of_the_dial():
    """One block is the random order, to the bit, and blocks of one token are that of ar."""
    x = torch.zeros(50, 8)
    random = plain.draw_orders(plain.Config("aogpt"), x, rng(), 0.1)
    left_to_right = torch.arange(8).expand(50, 8)
    for N, expected in (100, random), (8, random), (1, left_to_right):
        config = blocks.Config("aogpt", block_length=N)
        assert torch.equal(blocks.draw_orders(config, x, rng(), 0.1), expected)
