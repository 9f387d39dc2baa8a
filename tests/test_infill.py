"""variants/infill.py: reading a word twice is still a likelihood."""
import math

import pytest
import torch

from test_model import assert_mean, every_text, make, rng, row_losses
from variants import infill

T = 4


def order_of(start, length, T=T):
    """(1, T+1) the order in which so many places from `start` on come last."""
    place = torch.arange(T)
    hidden = (place >= start) & (place < start + length)
    return infill.infill_order(hidden[None], torch.tensor([[start - 1]]))


def losses_in(model, x, order, monkeypatch):
    """The losses of texts x (B, T) when all are read in this order."""
    monkeypatch.setattr(infill, "draw_orders", lambda config, x, *_: order.expand(len(x), -1))
    batch = infill.infill_batch(model.config, x, rng())
    monkeypatch.undo()
    return row_losses(model, batch)


def test_the_example_of_the_docstring():
    assert order_of(2, 2, T=6).tolist() == [[0, 1, 4, 5, 1, 2, 3]]


@torch.no_grad()
def test_each_span_has_a_law_and_the_bound_is_their_mean(monkeypatch):
    model = make("aogpt/infill", vocab_size=3, block_size=T)
    every, bound = every_text(3, T), 0.0
    for length in range(1, T):
        chance = math.log((length + 1) / length) / math.log(T)
        for start in range(1, T - length + 1):
            nll = losses_in(model, every, order_of(start, length), monkeypatch)
            assert torch.exp(-T * nll).sum().item() == pytest.approx(1, abs=1e-6)
            bound += chance / (T - length) * nll[20]
    batch = infill.infill_batch(model.config, every[20:21].expand(20_000, T), rng(3))
    assert_mean(row_losses(model, batch), bound)
