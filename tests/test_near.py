"""extras/near.py: which hidden tokens masked diffusion learns from."""
import pytest
import torch

import model as plain
from extras import near
from support.flags import InputError


def batches_of(objective="masked_ce", **values):
    """A batch of near tokens, and the same of model.py."""
    config = near.Config("mdlm", vocab_size=9, block_size=16, n_layer=1, n_head=1, n_embd=4,
                         objective=objective, **values)
    x = torch.zeros(400, 16, dtype=torch.long)
    return [training_batch(config, x, torch.Generator().manual_seed(0))
            for training_batch in (near.training_batch, plain.training_batch)]


def test_distances_by_hand():
    hidden = torch.tensor([[0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 1]]) > 0
    expected = [[0, 1, 2, 1, 0, 1], [0, 1, 2, 3, 4, 5]]
    assert near.distance_to_visible(hidden).tolist() == expected


@pytest.mark.parametrize("objective", ["masked_ce", "nelbo"])
def test_near_tokens_alone_have_a_weight(objective):
    found, plain_batch = batches_of(objective, reach=2)
    hidden = plain_batch.weight > 0
    is_near = near.distance_to_visible(hidden) <= 2
    assert ((found.weight > 0) == (hidden & is_near)).all()
    assert 0.5 < (hidden & is_near).sum() / hidden.sum() < 0.95
    # Among each other they count as before, and all of them as much as all did.
    ratio = (found.weight / plain_batch.weight)[found.weight > 0]
    assert torch.allclose(ratio, ratio[:1])
    assert found.weight.sum().isclose(plain_batch.weight.sum())


def test_alike_leaves_as_many_in_each_row_but_any():
    (found, plain_batch), (of_near, _) = batches_of(alike=True), batches_of()
    assert ((found.weight > 0).sum(dim=1) == (of_near.weight > 0).sum(dim=1)).all()
    hidden = plain_batch.weight > 0
    kept = found.weight > 0
    assert not (kept & ~hidden).any()
    far = hidden & (near.distance_to_visible(hidden) > 2)
    share_of_far = (kept & far).sum() / far.sum()
    # In rows where all are hidden most are far, and few are kept.
    assert 0.1 < share_of_far < 0.9


def test_it_is_for_masked_diffusion():
    with pytest.raises(InputError, match="--mode=mdlm"):
        near.Config("ar")
