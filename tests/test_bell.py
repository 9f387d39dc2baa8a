"""variants/bell.py: other mask ratios. That they keep the bound is asked in test_model.py."""
import numpy as np
import pytest
import torch

from test_model import make, rng
from variants import bell


@pytest.mark.parametrize("T, a", [(1, 2), (2, 16), (7, 2), (8, 1), (8, 16)])
def test_counts_have_their_chances(T, a):
    """And the mean weight of the tokens that are hidden, k for k, is that of the bound, 1/T."""
    config = make("mdlm/bell", block_size=T, bell=a).config
    p = bell.chances(config).numpy()
    k = np.arange(1, T + 1)
    assert np.allclose(p / p[0], (k * (T + 1 - k) / T) ** (a - 1.0))
    batch = bell.training_batch(config, torch.zeros(20_000, T, dtype=torch.long), rng())
    hidden = batch.weight > 0
    counts = hidden.sum(dim=1)
    assert (counts[::2] + counts[1::2] == T + 1).all()
    # The numbers are spread evenly, so the counts are as expected but for rounding.
    found = np.bincount(counts, minlength=T + 1)[1:]
    assert np.abs(found - 20_000 * p).max() <= 3
    expected = 1 / (T * p[counts - 1])
    assert np.allclose(batch.weight.sum(dim=1), expected, rtol=1e-4)
