"""extras/noise.py replaces what is read, and nothing else."""
import pytest
import torch

from extras.noise import noisy
from test_model import make, modes, rng


@modes
def test_token_noise(kind):
    config = make(kind, vocab_size=60, block_size=40).config
    x = torch.randint(59, (400, 40), generator=rng())
    clean = config.row.training_batch(config, x, rng())
    changed_some = noisy(config.row.training_batch, 0.25)(config, x, rng())
    for before, after in zip(clean[1:], changed_some[1:]):
        assert torch.equal(before, after)
    words = clean.tokens < 59       # neither BOS nor [MASK]
    changed = changed_some.tokens != clean.tokens
    assert not changed[~words].any()
    assert (changed_some.tokens[words] < 59).all()
    share = changed[words].double().mean()
    assert share == pytest.approx(0.25 * 58 / 59, abs=0.02)     # 1 in 59 is drawn again
