"""What experiments/ measures, by hand or by brute force: a published number rests on each."""
import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from conftest import experiment, read_log, small_model
from experiments import few_stories, held_out, infill, orders
from experiments.few_stories import Trial
from experiments.oracle import Oracle, choices_of, distance, toy_conditionals, toy_oracle
from experiments.planners import PlannerOptions, judge
from experiments.speculative import SpeculativeOptions, measure, record
from model import Config, evaluation_batch, losses_in_parts, mask_generator, masking_batch, order_batch
from prepare_data import PrepareOptions, Windows, prepare
from runs import load
from test_experiments import WORDS, as_tokens, few, stories  # noqa: F401  (few is a fixture)
from toy import TOY

# ------------------------------------------------------------------------------------------- runs, held out

def test_what_held_out_measures(trained, monkeypatch):
    """The mean of its draws; aogpt's exact score from left to right; and when it was best."""
    monkeypatch.chdir(trained)
    prepare(PrepareOptions(name="fresh", max_tokens=30_000, seed=7))
    o = held_out.HeldOutOptions(report="fresh", block_size=48, draws=3)
    fresh, train = Windows("fresh", "val", 48), Windows("t", "train", 48)
    x = torch.from_numpy(fresh.spread(10 ** 9))
    for mode in ("ar", "mdlm", "aogpt"):
        found, (model, _) = held_out.measure(f"out/{mode}", fresh, o), load(f"out/{mode}/best.pt")
        generator = mask_generator(o.seed)
        draws = [losses_in_parts(model, evaluation_batch(model.config, x, generator)) for _ in range(3)]
        assert found["nats"] == pytest.approx(torch.stack(draws).mean(dim=0).tolist(), abs=1e-5)
        if mode == "aogpt":
            exact = losses_in_parts(model, order_batch(model.config, x))
            assert found["nats_l2r"] == pytest.approx(exact.tolist(), abs=1e-5)
        log = [entry for entry in read_log(trained / "out" / mode) if "val_nll" in entry]
        best = min(log, key=lambda entry: entry["val_nll"])["step"]
        assert found["step"] == best and found["epochs"] == pytest.approx(best * 8 / len(train))
    done = experiment("held_out", "a=out/aogpt", "b=out/aogpt", "--draws=2", "--report=fresh",
                      "--block_size=48", "--json=same.json", cwd=trained)
    assert done.returncode == 0, done.stderr
    same = json.load(open(trained / "same.json"))["compared"]
    assert list(same) == ["a", "a, left to right", "b", "b, left to right"]
    assert all(of["above"] == 0 for of in same.values())        # beside the same order

def test_the_orders_that_have_a_name(trained, monkeypatch):
    monkeypatch.chdir(trained)
    o = orders.OrdersOptions(data="t", windows=9, orders=2, blocks=(16,))
    found, (model, _) = orders.measure("out/aogpt", o)["orders"], load("out/aogpt/best.pt")
    x = torch.from_numpy(Windows("t", "val", 48).spread(9))
    for name, order in ("left to right", range(48)), ("right to left", range(47, -1, -1)):
        batch = order_batch(model.config, x, torch.tensor(list(order)).expand(9, -1))
        assert found[name] == pytest.approx(losses_in_parts(model, batch).mean().item(), abs=1e-5)

def test_what_a_trial_of_few_stories_reports(few, monkeypatch):   # noqa: F811
    """The weights that one half likes best, on the other; turned if both last evaluations are far above."""
    told = {"bound": iter([0.2, 0.1, 0.14, 0.2, 0.3]), "left_to_right": iter([0.1, 0.3, 0.16, 0.2, 0.4])}
    asked = {way: [] for way in told}

    def distance_as_told(model, batches, law):
        forwards = (batches[0].target_pos.diff(dim=1) == 1).all()
        way = "left_to_right" if forwards else "bound"
        asked[way].append((model.head.weight.detach().clone(), batches[0].targets))
        return next(told[way]), 0.0

    monkeypatch.setattr(few_stories, "distance", distance_as_told)
    trial = Trial("aogpt", 20, seed=0, steps=100)       # evaluated at 25, 50, 75 and 100
    found = few_stories.run(trial, few_stories.FewStoriesOptions(stories=50))
    best, forwards = found["best"], found["left_to_right"]
    assert (best["step"], best["distance"], best["turned"]) == (50, 0.3, False)
    assert (forwards["step"], forwards["distance"], forwards["turned"]) == (25, 0.4, True)
    x = torch.from_numpy(Windows("toy", "val", 48).spread(10 ** 6))
    (weights, chose), *_, (reported, others) = asked["left_to_right"]
    assert torch.equal(weights, reported)
    assert torch.equal(asked["bound"][1][0], asked["bound"][4][0])
    assert torch.equal(chose, x[::2][:50]) and torch.equal(others, x[1::2])

# ------------------------------------------------------------------------------------- beside the exact law

def test_kl_of_conditionals():
    """Of the law itself nil, however it is asked; of an even guess log V less the law's entropy."""
    x, mdlm, aogpt = as_tokens(stories(12)).numpy(), toy_oracle("mdlm"), toy_oracle("aogpt")
    for row in judge(x, {"mdlm": mdlm}, {"aogpt": aogpt}, PlannerOptions(masked=(1, 8, 47))):
        assert abs(row["kl"]) < 1e-5
    law = toy_conditionals(np.full((1, 48), 135))[0]            # (48, V), where nothing is known
    for model in (mdlm, aogpt):
        model.conditionals = lambda x: np.full((*x.shape, 135), 1 / 135)
    even = judge(x, {"mdlm": mdlm}, {"aogpt": aogpt}, PlannerOptions(masked=(48,)))
    expected = math.log(135) - stats.entropy(law, axis=1).mean()
    assert [row["kl"] for row in even] == pytest.approx([expected] * 2, rel=1e-5)

def test_the_distance_of_one_story_told_again_and_again():
    [text] = stories(1)
    found, nats_of = distance([text] * 200), -TOY.log_probs(text).sum()
    by_chance = sum(len(TOY.weights[name]) - 1 for name in choices_of(text)) / 2 / 200
    assert found["kl"] == pytest.approx(nats_of - by_chance)
    assert found["surprise"] == pytest.approx(nats_of - TOY.entropy())

def test_the_law_stands_in_for_networks(trained):
    done = experiment("steps", "--models=out/mdlm,out/aogpt", "--steps=48", "--drafts=4",
                      "--num_samples=5", "--json=law.json", cwd=trained)
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.load(open(trained / "law.json"))["rows"] if row["sampler"] != "ancestral"]
    assert len(rows) > 5 and all(row["grammatical"] == (row["network"] == "exact") for row in rows)

# --------------------------------------------------------------------------------------- blanks and drafts

@torch.no_grad()
def test_the_bound_of_a_blank_is_the_chain_rule_over_all_orders():
    # of 30 seeds one where it matters most how many are hidden
    model = small_model("mdlm", seed=28)
    x = torch.randint(10, (1, 8), generator=torch.Generator().manual_seed(28))

    def one(hidden, place):
        masked = torch.zeros(1, 8, dtype=torch.bool)
        masked[0, list(hidden)] = True
        batch = masking_batch(model.config, x, masked)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos)[0, 1 + place]
        return -logits.log_softmax(dim=0)[x[0, place]].item()

    every = itertools.permutations((2, 3, 4))
    expected = np.mean([[one(order[j:], order[j]) for j in range(3)] for order in every])
    found = infill.nats(model, x.repeat(2000, 1), 2, 3, infill.InfillOptions())
    assert abs(found.mean().item() - expected) < 5 * found.std().item() / math.sqrt(2000)
    in_order = infill.nats(model, x, 2, 3, infill.InfillOptions(in_order=True)).item()
    assert in_order == pytest.approx(np.mean([one(range(j, 5), j) for j in (2, 3, 4)]), abs=1e-6)

def test_what_blanks_cost_a_perfect_network():
    o = infill.InfillOptions(lengths=(1, 4), places=2, draws=2)
    found = infill.measure(toy_oracle("aogpt"), WORDS, as_tokens(stories(6)), True, {}, o)
    assert all(abs(of["nats"]) < 1e-4 and of["grammatical"] == 1 for of in found.values())
    assert infill.starts_of(4, 24, 4) == [4, 8, 12, 16]         # the ends left out

def test_drafts_that_are_all_kept():
    """Where tokens are independent: rounds of 3, 3 and 2; of 7, and of one, which takes a single pass."""
    config = Config("aogpt", vocab_size=3, block_size=8, n_layer=1, n_head=1, n_embd=2)
    model = Oracle(config, lambda known: np.full((*known.shape, 3), 1 / 3))
    o = SpeculativeOptions(drafts=(2, 6), stories=(1,), total=5, repeats=2)
    law, _ = record(model, o, 8)
    assert [row["tokens_per_pass"] for row in law] == pytest.approx([8 / 6, 8 / 3])
    assert [row["drafts_kept"] for row in law] == pytest.approx([1, 1])
    plain, *drafted = measure(model, o, 8)
    assert [row["passes"] for row in (plain, *drafted)] == [8, 6, 3]
    for row in drafted:
        ratio = np.median(np.divide(plain["seconds"], row["seconds"]))
        assert row["times_faster"] == pytest.approx(ratio)
