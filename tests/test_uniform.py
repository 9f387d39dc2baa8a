"""variants/uniform.py and samplers/uniform.py, by enumeration of all texts of three words."""
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from experiments.uniform import cost_of_pass
from extras.score import misfits
from model import losses
from sample import SampleOptions
from samplers.uniform import write
from test_model import every_text, in_float64, make, p_value, rng
from variants import uniform

T = 3
TEXTS = every_text(3, T)                                                        # (27, T)
WORDS = F.one_hot(TEXTS).double()                                               # (27, T, 3)


def q(same, t):
    """The chance that a word is this one at time t, where the text's was the same or another."""
    return (1 - t) * same.double() + t / 3


class Exact(torch.nn.Module):
    """The network that knows the law (27,) of all texts, and the time."""
    logits, cross_entropy = uniform.Transformer.logits, staticmethod(F.cross_entropy)

    def __init__(self, law):
        super().__init__()
        self.law, self.config = law, make("mdlm/uniform", vocab_size=3, block_size=T).config

    def guess(self, batch, select):
        each = q(batch.tokens[:, None, 1:] == TEXTS, batch.t[:, None, None].double())   # (B, 27, T)
        others = each.prod(dim=-1, keepdim=True) / each * self.law[:, None]
        return torch.einsum("bxi,xiv->biv", others, WORDS).log().flatten(0, 1)


def law_of_passes(model, K):
    """(27,) of the texts that K passes write, by Bayes' rule for each word w that may be there."""
    law = torch.full((27,), 1 / 27).double()
    for k in range(K, 0, -1):
        t, s = k / K, (k - 1) / K
        batch = uniform.noisy_batch(model.config, TEXTS, TEXTS, torch.full((27,), t))
        p = model.guess(batch, batch.select()).softmax(dim=-1).view(27, T, 3) * q(WORDS, t)
        p = p / p.sum(dim=-1, keepdim=True) / q(WORDS, t)
        between = q(WORDS, (t - s) / (1 - s))
        p = torch.einsum("xiw,wv,xiv->xiv", p, q(torch.eye(3), s), between)
        law = law @ p[:, torch.arange(T), TEXTS].prod(dim=-1)
    return law


def bound(model, points=100):
    """(27,) nats of each text: the mean over times, which lie closer near 0, and all noise."""
    x, z = TEXTS.repeat_interleave(27, dim=0), TEXTS.repeat(27, 1)
    nats = torch.zeros(27).double()
    for u in (torch.arange(points).double() + 0.5) / points:
        t = (u ** 2).expand(729)
        batch = in_float64(uniform.noisy_batch(model.config, x, z, t))
        of_noise = losses(model, batch, batch.select()) * q(x == z, u ** 2).prod(dim=-1)
        nats += 2 * u / points * T * of_noise.view(27, 27).sum(dim=1)
    return nats


def written(model, steps, risk=0, given=()):
    """10,000 texts after each pass, which begin with what is given."""
    pattern = torch.tensor([*given, *[model.config.mask_id] * (T - len(given))])        # (T,)
    numbers = rng()
    return list(write(model, pattern.expand(10_000, T), None, None,
                      lambda n: torch.rand(10_000, n, generator=numbers),
                      SampleOptions(steps=steps), risk))


@torch.no_grad()
def test_the_bound_is_above_what_is_written_and_exact_for_the_right_law():
    law = torch.randn(27, generator=rng()).double().mul(2).softmax(dim=0)
    assert_close(bound(Exact(law)), -law.log(), atol=5e-3, rtol=0)
    assert_close(law_of_passes(Exact(law), 100), law, atol=2e-3, rtol=0)
    model = make("mdlm/uniform", vocab_size=3, block_size=T)
    slack = bound(model) + law_of_passes(model, 100).log()
    assert slack.min() > 0 and slack.mean() < 0.1


@torch.no_grad()
@pytest.mark.parametrize("K", [1, 2, 5])
def test_passes_have_their_law(K):
    model = make("mdlm/uniform", vocab_size=3, block_size=T)
    assert p_value(written(model, K)[-1], law_of_passes(model, K)) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("K", [1, 3])
def test_what_passes_cost_is_above_what_they_write(K):
    """On average over noise, because of Jensen's inequality."""
    model = make("mdlm/uniform", vocab_size=3, block_size=T)
    nats = sum(cost_of_pass(model, TEXTS.repeat(1000, 1), k / K, (k - 1) / K, rng(k))
               for k in range(K, 0, -1))
    slack = T * nats.view(1000, 27).mean(dim=0) + law_of_passes(model, K).log()  # (27,)
    assert slack.min() > -0.1 and 0.01 < slack.mean() < 0.2


@torch.no_grad()
def test_what_is_sure_is_kept_and_no_pass_follows_one_that_changes_nothing():
    """Where one text is certain, the first pass writes it, and the second one changes nothing.

    One text of 27 is so by chance before, and has one pass. A text's last word waits for its last
    pass, so that passes can be counted."""
    law = torch.full((27,), 1e-12).double()
    law[19] = 1
    first, second = written(Exact(law), 3, risk=0.1)
    assert torch.equal(second.unique(dim=0), TEXTS[19:20])
    waits = (first == 3).any(dim=1)                                             # (10,000,)
    assert waits.double().mean().item() == pytest.approx(26 / 27, abs=0.01)


@torch.no_grad()
def test_what_is_given_costs_no_risk():
    """So the one word that is left is the surest, although all are as likely, and few texts are not
    done before the last pass."""
    passes = written(Exact(torch.full((27,), 1 / 27).double()), 9, risk=0.5, given=[0, 1])
    assert (passes[-1][:, :2] == torch.tensor([0, 1])).all()
    assert (passes[-2] == 3).any(dim=1).double().mean() < 0.01


def test_misfits():
    """The network is sure of the words 0 1 2 0 1 2 …"""
    network = make("mdlm", vocab_size=3, block_size=6)
    network.logits = lambda batch, select: 9.0 * F.one_hot(
        batch.target_pos.flatten()[select] % 3, 3)
    assert [misfits(network, ids) for ids in ([0, 1, 2, 0], [0, 2, 2, 1], [1, 2])] == [0, 2, 2]
