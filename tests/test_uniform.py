"""variants/uniform.py and samplers/uniform.py, by enumeration of all texts of three words."""
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from extras.score import misfits
from model import losses
from samplers.uniform import write
from sample import SampleOptions
from test_model import every_text, in_float64, make, p_value, rng
from variants import uniform

T = 3
TEXTS = every_text(3, T)                                                        # (27, T)


def noise(t):
    """The chance of each word to become each one: (3, 3)."""
    return (1 - t) * torch.eye(3).double() + t / 3


class Exact(torch.nn.Module):
    """The network that knows the law (27,) of all texts, and the time."""
    logits = uniform.Transformer.logits
    cross_entropy = staticmethod(F.cross_entropy)

    def __init__(self, law):
        super().__init__()
        self.law, self.config = law, make("mdlm/uniform", vocab_size=3, block_size=T).config

    def guess(self, batch, select):
        t = batch.t[:, None, None].double()
        agrees = batch.tokens[:, None, 1:] == TEXTS                             # (B, 27, T)
        q = (1 - t) * agrees + t / 3
        others = q.prod(dim=-1, keepdim=True) / q * self.law[:, None]
        return torch.einsum("bxi,xiv->biv", others, F.one_hot(TEXTS).double()).log().flatten(0, 1)


def step(model, t, s):
    """The law (27, 27) of the texts at s, of each one at t, from all words that a text may have."""
    batch = uniform.noisy_batch(model.config, TEXTS, TEXTS, torch.full((27,), t))
    p = model.guess(batch, batch.select()).softmax(dim=-1).view(27, T, 3)
    to_here = noise(t)[:, TEXTS].permute(1, 2, 0)       # (27, T, 3) of each word of the text
    p = p * to_here / (p * to_here).sum(dim=-1, keepdim=True)
    between = noise((t - s) / (1 - s))[:, TEXTS].permute(1, 2, 0)
    p = torch.einsum("xiw,wv,xiv->xiv", p / to_here, noise(s), between)
    return p[:, torch.arange(T), TEXTS].prod(dim=-1)


def law_of_passes(model, K):
    law = torch.full((27,), 1 / 27).double()
    for k in range(K, 0, -1):
        law = law @ step(model, k / K, (k - 1) / K)
    return law


def bound(model, points=100):
    """(27,) nats of each text: the mean over times, which lie closer near 0, and all noise."""
    nats = torch.zeros(27).double()
    x, z = TEXTS.repeat_interleave(27, dim=0), TEXTS.repeat(27, 1)
    for k in range(points):
        u = (k + 0.5) / points
        t = u ** 2
        chance = noise(t)[x, z].prod(dim=-1)                                    # (729,)
        batch = in_float64(uniform.noisy_batch(model.config, x, z, torch.full((729,), t)))
        nats += 2 * u / points * T * (chance * losses(model, batch, batch.select())).view(27, 27).sum(dim=1)
    return nats


def some_law():
    return torch.randn(27, generator=rng()).double().mul(2).softmax(dim=0)


@torch.no_grad()
def test_the_bound_is_above_what_is_written_and_exact_for_the_right_law():
    law = some_law()
    assert_close(bound(Exact(law)), -law.log(), atol=5e-3, rtol=0)
    assert_close(law_of_passes(Exact(law), 100), law, atol=2e-3, rtol=0)
    model = make("mdlm/uniform", vocab_size=3, block_size=T)
    print(bound(model) + law_of_passes(model, 100).log())
    assert (bound(model) > -law_of_passes(model, 100).log()).all()


@torch.no_grad()
@pytest.mark.parametrize("K", [1, 2, 5])
def test_passes_have_their_law(K):
    model = make("mdlm/uniform", vocab_size=3, block_size=T)
    blank = torch.full((10_000, T), model.config.mask_id)
    u = rng()
    *_, texts = write(model, blank, None, None, lambda n: torch.rand(10_000, n, generator=u),
                      SampleOptions(steps=K))
    assert p_value(texts, law_of_passes(model, K)) > 1e-3
