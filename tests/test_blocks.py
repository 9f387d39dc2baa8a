"""variants/blocks.py, besides what test_model.py asks of every variant: fast is plain."""
import collections
import math

import pytest
import torch
from scipy.stats import chisquare
from torch.testing import assert_close

import model as plain
from test_model import assert_mean, make, predict, rng, row_losses, tokens
from variants import blocks


@torch.no_grad()
@pytest.mark.parametrize("N", [1, 3])
def test_two_streams_are_one_block_after_another(N):
    """Each slot predicts the same; so does the bound on average, but it varies less."""
    model = make("mdlm/blocks", vocab_size=3, block_size=7, block_length=N)
    x = tokens(model, rows=5)
    block = torch.arange(7) // N
    masked = torch.rand(x.shape, generator=rng(7)) < 0.6
    batch = blocks.two_streams(model.config, plain.mask_batch(model.config, x, masked))
    assert batch.tokens.size(1) == 1 + int(block[-1]) * N + 7
    logits = predict(model, batch)[:, -7:]
    for b in block.unique():
        hidden = (masked & (block == b)) | (block > b)
        alone = predict(model, plain.mask_batch(model.config, x, hidden))[:, 1:]
        assert_close(logits[:, block == b], alone[:, block == b])
    x = x[:1].expand(5000, -1)
    one, every = (row_losses(model, batch_of(model.config, x, rng(3)))
                  for batch_of in (blocks.one_block_batch, blocks.all_blocks_batch))
    pairs = every.view(-1, 2).mean(dim=1)
    assert_mean(one, pairs.mean())
    assert pairs.var() < one.var() / 2


@pytest.mark.parametrize("length, N", [(8, 4), (7, 3), (7, 1)])
def test_every_order_in_blocks_is_equally_likely_and_no_other_comes(length, N):
    u = torch.rand(20_000, length, generator=rng())
    order = blocks.times_in_blocks(N, u).argsort(dim=1)
    assert torch.equal(order // N, (torch.arange(length) // N).expand_as(u))
    counts = collections.Counter(map(tuple, order[:, :N].tolist()))
    assert len(counts) == math.factorial(N)
    assert N == 1 or chisquare(list(counts.values())).pvalue > 1e-3


def test_all_tokens_are_no_block():
    with pytest.raises(ValueError, match="^--block_length=8 .+$"):
        make("mdlm/blocks", block_length=8)
