"""extras/local.py: orders in which neighbours are written in succession."""
import pytest
import torch

import model as plain
from extras import local
from support.flags import InputError


def rng():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("T, N", [(1, 1), (7, 3), (8, 4), (5, 9)])
def test_orders_are_of_stretches(T, N):
    order = local.local_orders(N, torch.zeros(300, T, dtype=torch.long), rng())
    assert (order.sort(dim=1).values == torch.arange(T)).all()
    offsets = set()
    for row in order.tolist():
        # Where a token does not follow the one on its left, a stretch begins.
        begins = {place for before, place in zip([-1, *row], row) if place != before + 1} - {0}
        assert len({place % N for place in begins}) <= 1
        offsets |= {place % N for place in begins}
    assert offsets == {place % N for place in range(1, T)}      # stretches begin anywhere


def test_stretches_of_one_token_are_random_orders():
    order = local.local_orders(1, torch.zeros(6000, 3, dtype=torch.long), rng())
    kinds, counts = order.unique(dim=0, return_counts=True)
    assert len(kinds) == 6 and (counts - 1000).abs().max() < 150


def test_a_share_of_the_rows_is_local():
    config = local.Config("aogpt", vocab_size=9, block_size=64, n_layer=1, n_head=1, n_embd=4,
                          l2r_fraction=0.0, local=0.3, stretch=16)
    x = torch.zeros(2000, 64, dtype=torch.long)
    order = local.training_batch(config, x, rng()).target_pos
    in_succession = (order.diff(dim=1) == 1).float().mean(dim=1)
    assert abs((in_succession > 0.5).float().mean() - 0.3) < 0.03
    # The loss that is reported is of random orders.
    assert local.bound_batch is plain.bound_batch


def test_it_is_for_any_order():
    with pytest.raises(InputError, match="--mode=aogpt"):
        local.Config("mdlm")
