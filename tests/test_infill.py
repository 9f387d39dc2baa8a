"""variants/infill.py: reading a word twice is still a likelihood."""
import math

import pytest
import torch

from conftest import small_model
from variants import infill
from test_model import assert_mean, check_step, every_text, rng, row_losses, tokens

T = 4


def infill_model(**fields):
    return small_model("aogpt", dtype=torch.float64, variant=infill, **fields)


def order_of(start, length, T=T):
    """(1, T+1) the order in which so many places from `start` on come last."""
    place = torch.arange(T)
    hidden = (place >= start) & (place < start + length)
    return infill.infill_order(hidden[None], torch.tensor([[start - 1]]))


def test_the_example_of_the_docstring():
    assert order_of(2, 2, T=6).tolist() == [[0, 1, 4, 5, 1, 2, 3]]


@torch.no_grad()
@pytest.mark.parametrize("start, length", [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_probabilities_of_all_texts_sum_to_one(start, length):
    model = infill_model(vocab_size=3, block_size=T)
    x = every_text(3, T)
    batch = infill.order_batch(model.config, x, order_of(start, length).expand(len(x), -1))
    nll = row_losses(model, batch)
    assert torch.exp(-T * nll).sum().item() == pytest.approx(1, abs=1e-6)


@torch.no_grad()
def test_the_bound_is_the_mean_over_spans():
    model = infill_model(vocab_size=5, block_size=T)
    x = tokens(model, rows=1)
    bound = 0.0
    for length in range(1, T):
        chance = math.log((length + 1) / length) / math.log(T)
        for start in range(1, T - length + 1):
            batch = infill.order_batch(model.config, x, order_of(start, length))
            bound += chance / (T - length) * row_losses(model, batch).item()
    batch = infill.bound_batch(model.config, x.expand(20_000, T), rng(3))
    assert_mean(row_losses(model, batch), bound)
    half = infill.draw_orders(model.config, x.expand(4000, T), rng(), l2r_fraction=0.5)
    assert_mean((half[:, :T] == torch.arange(T)).all(dim=1).double(), 0.5)


def test_a_step_is_the_same_in_parts_and_compiled():
    model = infill_model()
    check_step(model, infill.training_batch(model.config, tokens(model, rows=8), rng()))


def test_half_of_the_rows_are_left_to_right_wherever_it_is_asked_for():
    assert infill.Config("aogpt").l2r_fraction == 0.5
