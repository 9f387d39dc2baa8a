"""variants/bell.py: other mask ratios, whose weights keep the bound."""
import numpy as np
import pytest
import torch

from variants import bell
from model import bound_batch
from support.flags import InputError


def config_of(T=7, **values):
    return bell.Config("mdlm", vocab_size=9, block_size=T, n_layer=1, n_head=1, n_embd=4, **values)


def masks_of(config, draws, seed=0):
    x = torch.zeros(draws, config.block_size, dtype=torch.long)
    return bell.draw_masks(config, x, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("T", [1, 2, 7, 8])
@pytest.mark.parametrize("a", [1, 2, 16])
def test_counts_have_their_chances(T, a):
    config = config_of(T, bell=a)
    p = bell.chances(config).numpy()
    k = np.arange(1, T + 1)
    assert np.allclose(p / p[0], (k * (T + 1 - k) / T) ** (a - 1.0))
    masked = masks_of(config, 20_000)
    counts = masked.sum(dim=1)
    assert (counts[::2] + counts[1::2] == T + 1).all()
    # The numbers are spread evenly, so the counts are as expected but for rounding.
    found = np.bincount(counts, minlength=T + 1)[1:]
    assert np.abs(found - 20_000 * p).max() <= 3
    # Each place is as often masked as any other.
    assert (masked.float().mean(dim=0) - (T + 1) / (2 * T)).abs().max() < 0.015


def test_a_share_of_the_rows_is_uniform():
    """A bell that always hides 5 of 9, and a tenth of uniform numbers."""
    p = bell.chances(config_of(9, bell=10 ** 6, uniform=0.1))
    expected = torch.full((9,), 0.1 / 9, dtype=torch.float64)
    expected[4] += 0.9
    assert torch.allclose(p, expected)


@pytest.mark.parametrize("a", [1, 3])
@pytest.mark.parametrize("draws, uniform", [(1, 0.0), (2, 0.3)])
def test_the_weights_keep_the_bound(a, draws, uniform):
    """The mean weight of a hidden token, k for k, is that of the bound."""
    config = config_of(bell=a, draws=draws, uniform=uniform)
    x = torch.zeros(40_000 // draws, config.block_size, dtype=torch.long)
    means = []
    for batch in (bell.training_batch(config, x, torch.Generator()),
                  bound_batch(config, x.repeat(draws, 1), torch.Generator())):
        k = (batch.weight > 0).sum(dim=1)
        sums = torch.zeros(config.block_size + 1).scatter_add(0, k, batch.weight.sum(dim=1))
        means.append(sums / len(k))
    assert torch.allclose(*means, rtol=0.01)
    assert means[0].sum().isclose(torch.tensor(1.0), rtol=1e-3)


def test_equal_weights_stay_equal():
    config = config_of(bell=4, objective="masked_ce")
    batch = bell.training_batch(config, torch.zeros(64, 7, dtype=torch.long), torch.Generator())
    assert len(batch.weight.unique()) == 2                  # 0, and one other
    assert batch.weight.sum(dim=1).mean().isclose(torch.tensor(1.0))


def test_two_masks_of_a_window_are_complements():
    config = config_of(8, draws=2)
    first, second = masks_of(config, 200).view(100, 2, 8).unbind(1)
    assert (first | second).all()
    assert ((first & second).sum(dim=1) == 1).all()


def test_the_narrowest_bell_hides_half():
    counts = masks_of(config_of(9, bell=10 ** 6), 100).sum(dim=1)
    assert (counts == 5).all()


def test_it_is_for_masked_diffusion():
    with pytest.raises(InputError, match="--mode=mdlm"):
        bell.Config("ar")
