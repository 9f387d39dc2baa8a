"""The samplers: their laws, plain and fast forms of the same, and the command as a user runs it."""
import collections
import itertools
import json
import math
import signal
from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chi2_contingency, chisquare

import experiments.oracle
import sample
import samplers
from support.flags import InputError, plain_type
from conftest import Running, plain_samplers, run, small_model
from model import Config
from objectives import infill_order, masking_batch
from prepare_data import Tokenizer
from sample import complete
from samplers import SampleOptions, draw, generate, uniforms
from toy import TOY

CPU = torch.device("cpu")
WORDS = Tokenizer("words", words=TOY.words())


def read_case(case: str):
    """("aogpt", {"draft": 4}) for "aogpt --draft=4"."""
    mode, *flags = case.split()
    kinds = {f.name: plain_type(f.type) for f in fields(SampleOptions)}
    values = {}
    for flag in flags:
        name, text = flag.removeprefix("--").split("=")
        values[name] = kinds[name](text)
    return mode, values


def setting(model, stories, pattern=None, **flags):
    """What generate and states take."""
    if pattern is None:
        pattern = torch.full((model.config.block_size,), model.config.mask_id)
    o = SampleOptions(**{"seed": 5, "full_length": True, **flags})
    return model, stories, pattern, o


def write(*what, **flags):
    """The tokens of the stories (B, L)."""
    tokens, _ = generate(*setting(*what, **flags))
    return tokens


@torch.no_grad()
def states(*what, **flags):
    """The tokens after every pass."""
    return list(samplers.states(*setting(*what, **flags)))


def pattern_of(model, given: str):
    """The pattern (L,) of a text like "4..": token 4 is given, two are blank."""
    blank = model.config.mask_id
    return torch.tensor([blank if token == "." else int(token) for token in given])


# ---- The law -------------------------------------------------------------------------------------

class Oracle(experiments.oracle.Oracle):
    """In place of a network: exact conditionals of a Markov chain of L tokens, given any of them.

    Each of its steps has a law of its own, so that no two tokens are equally likely by symmetry."""

    def __init__(self, mode, K=3, L=4, orders="random"):
        rng = np.random.default_rng(0)
        start = rng.dirichlet(np.full(K, 4))
        move = rng.dirichlet(np.full(K, 2), size=(L - 1, K))                        # (L-1, K, K)
        sequences = list(itertools.product(range(K), repeat=L))
        self.sequences = np.array(sequences)                                        # (K^L, L)
        first, *others = self.sequences.T
        self.law = start[first]                                                     # (K^L,)
        before = first
        for i, token in enumerate(others):
            self.law = self.law * move[i, before, token]
            before = token

        # table[pattern], where K means unknown, has p(token) at each place.
        table = np.zeros((K + 1,) * L + (L, K))
        for pattern in itertools.product(range(K + 1), repeat=L):
            fits = self.fits(pattern, K)
            for i in range(L):
                there = self.sequences[fits, i]
                shares = np.bincount(there, self.law[fits], minlength=K)
                table[pattern][i] = shares / shares.sum()
        def conditionals(known):
            return table[tuple(known.T)]

        sizes = dict(vocab_size=K, block_size=L, n_layer=1, n_head=1, n_embd=2)
        super().__init__(Config(mode, orders=orders, **sizes), conditionals)

    def fits(self, pattern, K=3):
        """(K^L,) which of the sequences have the pattern's tokens."""
        pattern = np.array(pattern)
        fits = (self.sequences == pattern) | (pattern == K)
        return fits.all(axis=1)


def counts_of(tokens, K=3):
    """(K^L,) how often each sequence is among the tokens (N, L)."""
    L = tokens.size(1)
    place_values = K ** torch.arange(L - 1, -1, -1)                                 # (L,)
    number = tokens @ place_values                                                  # (N,)
    return torch.bincount(number, minlength=K ** L).numpy()


def p_value(oracle, law=None, given="....", N=20_000, **flags):
    """Of N stories under the exact law of the chain, or another: the chi-square test."""
    if law is None:
        law = oracle.law
    pattern = pattern_of(oracle, given)
    law = law * oracle.fits(pattern.tolist())
    counts = counts_of(write(oracle, range(N), pattern, **flags))
    expected = law / law.sum() * N
    assert not counts[expected == 0].any()
    rare = expected < 5             # too few to be tested by themselves
    commonest = expected.argmax()
    counts[commonest] += counts[rare].sum()
    expected[commonest] += expected[rare].sum()
    return chisquare(counts[~rare], expected[~rare]).pvalue


@pytest.mark.parametrize("case", [
    "ar",
    "mdlm --sampler=ancestral --steps=200",
    "mdlm --sampler=first_hitting",
    "mdlm --sampler=adaptive --risk=0",
    "aogpt",
    "aogpt --order=left_to_right",
    "aogpt --order=2,0,3,1",
    "aogpt --order=blocks:2",
    "aogpt --draft=3 --order=blocks:3",
    "aogpt --draft=2",
    "aogpt --draft=4",
    "aogpt --draft=2 --order=left_to_right",
    "aogpt --draft=4 --order=left_to_right",
    "aogpt --draft=3 --order=infill"])
def test_one_token_a_step_follows_the_exact_law(case):
    mode, flags = read_case(case)
    assert p_value(Oracle(mode), **flags) > 1e-3


@pytest.mark.parametrize("case", [
    "mdlm --sampler=ancestral --steps=4",
    "mdlm --sampler=first_hitting --steps=2",
    "mdlm --sampler=adaptive --risk=1.5",
    "aogpt --steps=2",
    "mdlm --sampler=confidence"])
def test_several_tokens_a_step_do_not(case):
    mode, flags = read_case(case)
    assert p_value(Oracle(mode), **flags) < 1e-6


@pytest.mark.parametrize("case, given", [
    ("ar", "1..."),
    ("mdlm", ".1.2"),
    ("aogpt", ".1.2"),
    ("aogpt --draft=2", "..0."),
    ("aogpt --order=infill", "1..2"),
    ("aogpt --order=infill --draft=2", "1..2"),
    ("aogpt --draft=4 --order=left_to_right", "1...")])
def test_what_is_written_has_the_law_given_the_rest(case, given):
    mode, flags = read_case(case)
    assert p_value(Oracle(mode), given=given, **flags) > 1e-3


@pytest.mark.parametrize("order", ["random", "blocks:2", "left_to_right"])
@pytest.mark.parametrize("network", [False, True])
def test_drafts_have_the_law_of_one_token_a_pass(order, network):
    """With top_p and temperature, too: samples of the one and of the other come from one law."""
    model = Oracle("aogpt")
    if network:
        model = small_model("aogpt", vocab_size=3, block_size=4)
    flags = dict(top_p=0.7, temperature=0.8, order=order)
    stories = range(20_000)
    plain = write(model, stories, seed=5, **flags)
    drafted = write(model, stories, seed=6, draft=4, **flags)
    table = np.array([counts_of(plain), counts_of(drafted)])
    occur = table.sum(axis=0) > 0
    assert chi2_contingency(table[:, occur]).pvalue > 1e-3


@pytest.mark.parametrize("broken", ["keep all", "draw the last from p"])
def test_a_broken_rule_of_acceptance_is_told_apart(monkeypatch, broken):
    confirm = samplers.confirm

    def rule(p, q, draft, u):
        new, count = confirm(p, q, draft, u)                                # (B, m+1), (B, 1)
        if broken == "keep all":
            new[:, :-1] = draft
            count[:] = draft.size(1) + 1
        place = (count - 2)[:, :, None]
        law = p.take_along_dim(place, dim=1)[:, 0]                  # (B, V), and not p - q
        last = samplers.invert(law, u[:, -1])
        return new.scatter(1, count - 1, last[:, None]), count

    monkeypatch.setattr(samplers, "confirm", rule)
    assert p_value(Oracle("aogpt"), draft=4) < 1e-6


@pytest.mark.parametrize("N, case", [
    (1, "mdlm"),
    (2, "mdlm"),
    (3, "mdlm"),
    (3, "mdlm --sampler=adaptive --risk=0"),
    (2, "mdlm --sampler=ancestral --steps=400"),
    (3, "mdlm --sampler=ancestral --steps=400")])
@pytest.mark.parametrize("given", ["....", "1.2."])
def test_blocks_follow_the_exact_law(N, case, given):
    """Also given a token of the block of a blank; that of a later block would not be seen."""
    if given == "1.2.":
        given = {1: "12..", 2: ".1..", 3: "1.2."}[N]
    mode, flags = read_case(case)
    assert p_value(Oracle(mode, orders=f"blocks:{N}"), given=given, **flags) > 1e-3


def test_ancestral_reveals_each_masked_token_with_the_probability_of_the_step():
    oracle = Oracle("mdlm")
    after = states(oracle, range(20_000), sampler="ancestral", steps=4)
    shares = []
    for tokens in after:
        masked = tokens == oracle.config.mask_id
        shares.append(masked.double().mean().item())
    assert shares == pytest.approx([0.75, 0.5, 0.25, 0], abs=0.01)


def law_of_confidence(oracle, K=3, L=4):
    """(K^L,) if each step draws all masked tokens and keeps the likeliest of them."""
    reached = {(K,) * L: 1.0}                           # {pattern: its probability}
    for _ in range(L):
        after = collections.defaultdict(float)
        for pattern, p in reached.items():
            conditional = oracle.conditionals(np.array([pattern]))[0]               # (L, K)
            masked = [i for i in range(L) if pattern[i] == K]
            for drawn in itertools.product(range(K), repeat=len(masked)):
                chances = conditional[masked, drawn]
                best = chances.argmax()
                revealed = list(pattern)
                revealed[masked[best]] = drawn[best]
                after[tuple(revealed)] += p * chances.prod()
        reached = after
    sequences = oracle.sequences.tolist()
    return np.array([reached[tuple(sequence)] for sequence in sequences])


def test_confidence_follows_its_own_law():
    oracle = Oracle("mdlm")
    law = law_of_confidence(oracle)
    assert law.sum() == pytest.approx(1)
    assert abs(law - oracle.law).max() > 0.01
    assert p_value(oracle, law, sampler="confidence") > 1e-3


# ---- Drawing a token -----------------------------------------------------------------------------

def test_draw_obeys_temperature_and_top_p():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = p.log().expand(1000, 4)
    u = torch.arange(1000, dtype=torch.float64) / 1000

    def check(expected, at=None, **flags):
        tokens, _ = draw(logits, u, SampleOptions(**flags), at)
        counts = torch.bincount(tokens).tolist()
        assert counts == pytest.approx(expected, abs=1)

    check([500, 300, 150, 50])
    check([625, 375], top_p=0.7)
    check([685, 247, 62, 7], temperature=0.5)       # in proportion to p²
    check([1000], temperature=0)
    for smallest in 1e-38, 1e-45, 1e-300:           # in float32 some of these are 0
        check([1000], temperature=smallest)
        check([1000], top_p=max(smallest, 1e-9))
    check([250] * 4, temperature=1e300)             # in float32 this is infinite
    check([1000], at=0)                             # whatever the options say


def test_draw_is_exact_in_the_tail():
    """The tail has 2e-6 of the probability. Uniform float32 numbers near 1 have steps of 6e-8."""
    logits = torch.full((4, 1000), -20.0)
    logits[:, 0] = 0.0
    each = np.exp(-20.0)
    above = [998 * each, 499.5 * each, 2e-9, 1e-3]
    u = 1 - torch.tensor(above, dtype=torch.float64)
    tokens, chances = draw(logits, u, SampleOptions())
    assert tokens.tolist() == [1, 500, 999, 0]
    assert chances.tolist() == pytest.approx([each, each, each, 1.0], rel=1e-5)


def test_rare_tokens_come_as_often_as_they_should():
    """Each of 99,999 has 1e-9, in twenty million draws of the numbers that stories take."""
    logits = torch.full((1, 100_000), np.log(1e-9))
    logits[0, 0] = np.log(1 - 99_999e-9)
    generators = [np.random.default_rng(story) for story in range(20)]
    u = uniforms(generators, 2 ** 20, CPU).flatten()
    u_of_rare = u[u > 0.9998]                   # a rare token is drawn by a u above 0.99990
    logits = logits.expand(len(u_of_rare), -1)
    tokens, _ = draw(logits, u_of_rare, SampleOptions())
    rare = tokens[tokens > 0]
    expected = len(u) * 99_999e-9
    assert abs(len(rare) - expected) < 5 * expected ** 0.5
    assert len(rare.unique()) > 0.97 * len(rare)


# ---- The same stories ----------------------------------------------------------------------------

def write_one_by_one(model, stories, pattern, o):
    """What samplers.states yields, but written by the plain samplers."""
    generators = [np.random.default_rng((o.seed, story)) for story in stories]
    time_of = uniforms(generators, len(pattern), CPU)                               # (B, L)
    u = uniforms(generators, len(pattern), CPU)                                     # (B, L)
    tokens = pattern.expand(len(stories), -1)
    is_given = pattern != model.config.mask_id
    given = int(is_given.sum())
    if model.config.mode == "ar":
        return samplers.write_left_to_right(model, tokens, given, u, o)
    times = samplers.times_of(o.order or model.config.orders, time_of)
    times = times.expand(len(stories), -1).masked_fill(is_given, -1)
    order = times.argsort(dim=1, stable=True)                                       # (B, L)
    if model.config.orders == "infill":
        before = samplers.left_of_blank(~is_given).expand(len(stories), -1)
        order = infill_order(tokens == model.config.mask_id, before)                # (B, L+1)
        given = order.size(1) - len(pattern) + given
    if model.config.mode == "aogpt":
        return samplers.write_in_any_order(model, tokens, order, given, u, o)
    return samplers.unmask_one_by_one(model, tokens, order, given, u, o)


@torch.no_grad()
@pytest.mark.parametrize("case", [
    "ar",
    "ar --temperature=0.7 --top_p=0.8",
    "aogpt",
    "aogpt --temperature=0.7 --top_p=0.8",
    "aogpt --order=7,1,0,2,6,5,3,4",
    "aogpt --order=blocks:3",
    "mdlm",
    "mdlm --temperature=0.7 --top_p=0.8"])
@pytest.mark.parametrize("orders", ["random", "blocks:3", "infill"])
def test_plain_and_fast_samplers_write_the_same(case, orders):
    """One token a pass, from the same random numbers, after every pass."""
    mode, flags = read_case(case)
    if mode == "ar" and orders != "random":
        pytest.skip("ar has one order only")
    if orders == "infill" and (mode == "mdlm" or "order" in flags):
        pytest.skip("infill is an order, of aogpt only")
    model = small_model(mode, orders=orders)
    texts = ["........", "427....."]
    if orders == "infill":
        texts += ["42...917", "4......7"]       # one blank between words
    elif mode == "aogpt" or (mode, orders) == ("mdlm", "random"):     # others see no later block
        texts.append("4..2...7")
    for given in texts:
        pattern = pattern_of(model, given)
        what = setting(model, range(20), pattern, **flags)
        fast = list(samplers.states(*what))
        plain = list(write_one_by_one(*what))
        assert len(fast) == len(plain) == given.count(".")
        for one, other in zip(fast, plain):
            assert torch.equal(one, other)


@pytest.mark.parametrize("case", [
    "aogpt --steps=3",
    "aogpt --steps=5 --order=7,1,0,2,6,5,3,4",
    "aogpt --steps=3 --temperature=0",
    "mdlm --steps=3",
    "mdlm --sampler=ancestral --steps=3",
    "mdlm --sampler=ancestral --temperature=0.7 --top_p=0.8"])
@pytest.mark.parametrize("given", ["........", ".......4", ".....427"])
def test_cached_equals_uncached(case, given):
    """Several tokens a pass. The given ones are at the end, but they are read first."""
    mode, flags = read_case(case)
    model = small_model(mode)
    pattern = pattern_of(model, given)
    what = setting(model, range(20), pattern, **flags)
    tokens, appeared = generate(*what)
    with plain_samplers():
        plain, appeared_plainly = generate(*what)
    assert torch.equal(tokens, plain)
    assert torch.equal(appeared, appeared_plainly)
    kept = pattern != model.config.mask_id
    assert (tokens == pattern)[:, kept].all()


@pytest.mark.parametrize("N", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("case", [
    "mdlm", "mdlm --steps=3", "mdlm --sampler=ancestral --steps=9",
    "mdlm --sampler=adaptive --risk=2"])
@pytest.mark.parametrize("given", ["........", "427.....", ".2......", "42....."])
def test_finished_blocks_are_cached(monkeypatch, N, case, given):
    """The logits of every pass, and the tokens, are those of whole windows without a cache."""
    mode, flags = read_case(case)
    model = small_model(mode, orders=f"blocks:{N}", dtype=torch.float64)
    what = setting(model, range(20), pattern_of(model, given), **flags)
    seen = []

    def spy(logits, *others):
        seen.append(logits)
        return draw(logits, *others)

    monkeypatch.setattr(samplers, "draw", spy)
    tokens, appeared = generate(*what)
    cached = seen.copy()
    seen.clear()
    monkeypatch.setattr(samplers, "cached_blocks", lambda *_: None)
    with plain_samplers():
        plain, appeared_plainly = generate(*what)
    assert torch.equal(tokens, plain)
    assert torch.equal(appeared, appeared_plainly)
    assert len(cached) == len(seen)
    for one, other in zip(cached, seen):
        assert (one - other).abs().max() < 1e-5
    block = torch.arange(len(given)) // N
    for row in appeared.tolist():
        blocks_at = collections.defaultdict(set)
        for step, b in zip(row, block.tolist()):
            blocks_at[step].add(b)
        blocks_at.pop(-1, None)         # given
        assert all(len(blocks) == 1 for blocks in blocks_at.values())
        in_time = [b for step, [b] in sorted(blocks_at.items())]
        assert in_time == sorted(in_time)


@pytest.mark.parametrize("case", [
    "ar",
    "aogpt",
    "aogpt --draft=3",
    "mdlm",
    "mdlm --sampler=ancestral",
    "mdlm --sampler=adaptive",
    "mdlm --sampler=confidence --steps=3"])
def test_a_story_is_the_same_whatever_the_batch(case):
    mode, flags = read_case(case)
    model = small_model(mode)
    together = write(model, range(6), **flags)
    alone = write(model, [4], **flags)
    others = write(model, range(6), seed=6, **flags)
    assert torch.equal(together[4:5], alone)
    assert not torch.equal(together, others)
    assert (together < model.config.vocab_size).all()


@pytest.mark.parametrize("case", [
    "ar", "aogpt --draft=3", "aogpt --steps=11", "aogpt --order=7,1,0,2,6,5,3,4", "mdlm",
    "mdlm --sampler=adaptive", "mdlm --sampler=confidence --steps=9"])
@pytest.mark.parametrize("orders", ["random", "blocks:3"])
def test_a_text_longer_than_the_window_goes_on(case, orders):
    """Half a window at a time: what is new is written as after a prompt of the half before."""
    mode, flags = read_case(case)
    if orders != "random" and (mode == "ar" or flags.get("sampler") == "confidence"):
        pytest.skip("not with this order")
    model = small_model(mode, orders=orders)
    pattern = torch.tensor([4, 2] + [model.config.mask_id] * 17)
    tokens = write(model, range(6), pattern, full_length=True, **flags)
    assert tokens.shape == (6, 19)
    assert (tokens < model.config.vocab_size).all()
    assert torch.equal(tokens[4:5], write(model, [4], pattern, full_length=True, **flags))
    half = tokens[:, 4:8]
    prompts = torch.cat([half, torch.full_like(half, model.config.mask_id)], dim=1)
    if "steps" in flags:
        flags["steps"] = math.ceil(flags["steps"] * 4 / 17)
    seed = 5 + 12 * 10 ** 6
    again = write(model, range(6), prompts, full_length=True, seed=seed, **flags)
    assert torch.equal(again, tokens[:, 4:12])


def test_only_a_text_that_could_begin_anywhere_is_longer_than_the_window():
    config = Config("ar", vocab_size=WORDS.vocab_size, block_size=9)
    long = SampleOptions(length=30)
    _, pattern = complete(long, config, WORDS, "random")
    assert len(pattern) == 30
    with pytest.raises(InputError, match="length=30 must not exceed the window, 9"):
        complete(long, config, WORDS, "aligned")


@pytest.mark.parametrize("given, orders", [
    ("........", "random"), (".......4", "random"), (".....427", "random"), ("42...917", "infill")])
@pytest.mark.parametrize("draft", [1, 2, 5, 20])
def test_drafts(draft, given, orders):
    """Greedy ones are the tokens of one token a pass. A story takes no more passes than tokens."""
    model = small_model("aogpt", orders=orders)
    pattern = pattern_of(model, given)
    greedy = write(model, range(9), pattern, temperature=0)
    drafted = write(model, range(9), pattern, temperature=0, draft=draft)
    assert torch.equal(greedy, drafted)
    together = write(model, range(9), pattern, draft=draft, top_p=0.9)
    for story in range(9):
        passes = states(model, [story], pattern, draft=draft, top_p=0.9)
        [alone] = passes[-1]
        assert torch.equal(alone, together[story])
        assert len(passes) <= given.count(".")
    model.bfloat16()
    tokens = write(model, range(9), pattern, draft=draft)
    assert (tokens < model.config.vocab_size).all()


def test_a_model_writes_in_its_own_orders():
    own = small_model("aogpt", orders="blocks:3")
    random = small_model("aogpt")
    assert torch.equal(write(own, range(9)), write(random, range(9), order="blocks:3"))
    assert torch.equal(write(own, range(9), order="random"), write(random, range(9)))
    first = states(own, range(9))[2]        # after three passes
    assert (first[:, :3] < own.config.mask_id).all()
    assert (first[:, 3:] == own.config.mask_id).all()


def test_ar_stops_when_every_story_has_ended():
    model = small_model("ar", vocab_size=2)
    whole = write(model, range(4))
    what = setting(model, range(4), full_length=False)
    tokens, appeared = generate(*what)
    n = int(appeared.max())             # what never appears has stayed masked for n passes
    assert n < 8
    assert torch.equal(tokens[:, :n], whole[:, :n])
    assert (tokens[:, n:] == model.config.mask_id).all()
    is_end = whole == model.config.bos_id
    first_end = is_end.int().argmax(dim=1)                      # (4,)
    assert is_end.any(dim=1).all()
    assert first_end.max() == n - 1


@torch.no_grad()
def test_mdlm_reads_whole_windows():
    """It writes a shorter text as if the rest of the window were masked, as in training."""
    model = small_model("mdlm")
    hidden = model.config.mask_id
    short = torch.randint(hidden, (20, 5))
    short[:, 2] = hidden
    u = torch.rand(20, 8, dtype=torch.float64)
    found = []
    whole = F.pad(short, (0, 3), value=hidden)
    for tokens in short, whole:
        L = tokens.size(1)
        now = (torch.arange(L) == 2).expand(20, -1)
        o = SampleOptions()
        new, chances = samplers.draw_masked(model, tokens, now, u[:, :L], o)
        assert (chances > 0).equal(now)
        found.append(new[:, :5])
    assert torch.equal(*found)


@torch.no_grad()
@pytest.mark.parametrize("orders, risk", [("random", 0.0), ("random", 3.0), ("blocks:4", 3.0)])
def test_adaptive_reveals_what_is_within_the_risk(orders, risk):
    """And no less: one token more of any story would exceed it."""
    model = small_model("mdlm", orders=orders)
    hidden = model.config.mask_id
    before = torch.full((30, 8), hidden)
    numbers = set()
    for after in states(model, range(30), sampler="adaptive", risk=risk):
        batch = masking_batch(model.config, before, before == hidden)
        logits = model(*batch[:3], stage=batch.stage)[:, 1:]
        p = logits.softmax(dim=-1)
        nats = -(p * p.log()).sum(dim=-1)                                       # (30, 8)
        for row, old, new in zip(nats, before, after):
            shown = row[(old == hidden) & (new != hidden)]
            if len(shown) > 0:
                numbers.add(len(shown))
                assert shown.sum() - shown.max() <= risk + 1e-4
                places = (old == hidden).nonzero()[:, 0]
                if orders != "random":
                    places = places[places // 4 == places[0] // 4]
                assert torch.equal(shown.sort().values, row[places].sort().values[:len(shown)])
                if len(shown) < len(places):
                    assert shown.sum() > risk - 1e-4
        before = after
    assert not (before == hidden).any()
    assert (numbers == {1}) == (risk == 0)


def test_confidence_keeps_what_it_wrote_and_the_penalty_lowers_what_occurs():
    model = small_model("mdlm")
    flags = dict(sampler="confidence", steps=3, temperature=0.8, final_temperature=0.3)
    written = states(model, range(4), repetition_penalty=1.3, **flags)
    counts = []
    for tokens in written:
        known = tokens != model.config.mask_id
        counts.append(known.sum(dim=1).tolist())
    assert counts == [[2] * 4, [5] * 4, [8] * 4]
    for before, after in itertools.pairwise(written):
        stays = (after == before) | (before == 11)
        assert stays.all()

    def repeats(**flags):
        tokens = write(model, range(200), sampler="confidence", **flags)
        return sum(8 - len(row.unique()) for row in tokens)

    assert repeats(repetition_penalty=1.3) < repeats() < repeats(final_temperature=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_cuda_writes_the_same(mode):
    what = setting(small_model(mode), range(20))
    plain = list(write_one_by_one(*what))
    what[0].cuda()
    fast = [tokens.cpu() for tokens in samplers.states(*what)]
    assert torch.equal(torch.stack(fast), torch.stack(plain))


# ---- The command ---------------------------------------------------------------------------------

def sample_command(trained, mode, *flags):
    """Runs it; returns the summary, and the stories' lines."""
    files = ["--json=s.json", "--out=s.jsonl"]
    done = run("sample.py", f"--out_dir=out/{mode}", *files, *flags, cwd=trained)
    assert done.returncode == 0, done.stderr
    summary = json.loads((trained / "s.json").read_text())
    rows = stories_in(trained / "s.jsonl")
    for row in rows[:3]:
        assert row["text"] in done.stdout
    return summary, rows


def stories_in(path):
    """The stories' lines of a file."""
    first, *rows = map(json.loads, open(path))
    assert first["settings"]["seed"] == 1337
    return rows


def test_sample_command(trained):
    flags = ["--num_samples=5", "--steps=4", "--batch_size=2"]
    summary, rows = sample_command(trained, "mdlm", *flags)
    assert summary["grammatical"] == 0          # it has hardly been trained
    assert summary["steps"] == 4
    assert [row["story"] for row in rows] == list(range(5))
    for row in rows:
        assert WORDS.decode(row["tokens"]) == row["text"]
        assert len(row["pieces"]) == len(row["tokens"])
        assert len(row["appeared"]) == len(row["tokens"])
        assert set(row["appeared"]) <= {0, 1, 2, 3}


def test_watching(trained):
    """In a pipe it is the story alone."""
    done = run("sample.py", "--out_dir=out/mdlm", "--num_samples=1", "--show", cwd=trained)
    [row] = stories_in(trained / "out/mdlm/shown.jsonl")
    assert row["text"] in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("draft", [3, 100])
def test_what_is_said_of_drafts(trained, draft):
    summary, rows = sample_command(trained, "aogpt", "--full_length", f"--draft={draft}")
    passes = []
    for row in rows:
        appeared = np.bincount(row["appeared"])         # tokens of each pass
        passes.append(np.count_nonzero(appeared))
        assert appeared[0] == 1                         # of the first draft, one is final
        assert len(appeared) <= 48
        assert appeared.max() <= draft
    assert summary["passes"] == pytest.approx(np.mean(passes))
    assert summary["tokens_per_pass"] == pytest.approx(48 / np.mean(passes))


@pytest.mark.parametrize("given", ["........", "012....."])
def test_the_passes_of_ar_do_not_depend_on_the_batch(workdir, given):
    """Each story's are those to its own end, though its batch goes on."""
    model = small_model("ar", vocab_size=4)
    tokenizer = Tokenizer("words", words=["a", "b", "c"])
    pattern = pattern_of(model, given)
    prompt = 8 - given.count(".")
    whole = write(model, range(10), pattern, seed=1337)
    passes = []
    for tokens in whole.tolist():
        end = [*tokens, 3].index(3, prompt)
        written = tokens[prompt:end + 1]            # its end-of-text too, if it has one
        passes.append(len(written))
    for batch_size in 1, 3, 10:
        o = SampleOptions(out="s.jsonl", num_samples=10, batch_size=batch_size, length=8)
        summary, _ = sample.write_stories(model, tokenizer, "aligned", pattern, o)
        assert summary["passes"] == pytest.approx(np.mean(passes))
        assert summary["tokens_per_pass"] == 1


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_blanks(trained, mode):
    _, rows = sample_command(trained, mode, "--prompt=One day, a ___ found ___ park.", "--blank=3")
    for row in rows:
        ids = row["tokens"]
        assert WORDS.decode(ids[:4]) == "One day, a"
        assert WORDS.decode(ids[7:8]) == "found"
        assert WORDS.decode(ids[11:]) == "park."
        given = [i for i, step in enumerate(row["appeared"]) if step == -1]
        assert given == [0, 1, 2, 3, 7, 11, 12]
    _, rows = sample_command(trained, mode, "--prompt=One day, a", "--full_length")
    for row in rows:
        assert row["text"].startswith("One day, a")
        assert len(row["tokens"]) == 48


def test_where_a_story_starts():
    config = Config("mdlm", vocab_size=WORDS.vocab_size, block_size=9)
    blank = config.mask_id
    one, day = WORDS.encode("One day")

    def start(**flags):
        _, pattern = complete(SampleOptions(**flags), config, WORDS, "aligned")
        return pattern.tolist()

    assert start() == [blank] * 9
    assert start(prompt="One day") == [one, day] + [blank] * 7
    two_blanks = start(prompt="One ___ day ___", blank=2)
    assert two_blanks == [one, blank, blank, day, blank, blank]
    for windows in "aligned", "random", "paper":
        o, _ = complete(SampleOptions(), config, WORDS, windows)
        assert o.full_length == (windows == "paper")        # such a model knows no end


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_what_blocks_cannot_write_is_refused(mode):
    config = Config(mode, vocab_size=WORDS.vocab_size, block_size=9, orders="blocks:3")

    def pattern_for(**flags):
        _, pattern = complete(SampleOptions(**flags), config, WORDS, "aligned")
        return (pattern == config.mask_id).int().tolist()

    assert pattern_for(prompt="One day, a") == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert pattern_for(prompt="One ___ day", blank=1) == [0, 1, 0]
    assert pattern_for(prompt="___", blank=5) == [1] * 5
    with pytest.raises(InputError, match="words in a later block than a blank"):
        pattern_for(prompt="One ___ day", blank=2)
    why = "is not for --orders=blocks:3" if mode == "mdlm" else "means nothing for aogpt"
    with pytest.raises(InputError, match=f"sampler=confidence {why}"):
        pattern_for(sampler="confidence")


@pytest.mark.parametrize("prompt, length", [
    ("___ day", None), ("One ___ day ___ a", None), ("One ___ day", 8)])
def test_infill_fills_one_blank_between_words(prompt, length):
    config = Config("aogpt", vocab_size=WORDS.vocab_size, block_size=9, orders="infill")
    one_blank = SampleOptions(prompt="One ___ day", blank=3)
    _, pattern = complete(one_blank, config, WORDS, "aligned")
    assert len(pattern) == 5
    with pytest.raises(InputError, match="must have words, one blank, and words"):
        complete(SampleOptions(prompt=prompt, blank=2, length=length), config, WORDS, "aligned")


@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_a_pattern_that_leaves_nothing_to_write_is_refused(mode):
    model = small_model(mode)
    pattern = pattern_of(model, "01234567")
    with pytest.raises(InputError, match="no .MASK."):
        write(model, range(2), pattern)


def test_the_papers_protocol(trained):
    summary, _ = sample_command(trained, "mdlm", "--protocol=paper", "--steps=10")
    expected = dict(sampler="confidence", steps=10, temperature=0.8, final_temperature=0.32,
                    repetition_penalty=1.3, length=48, full_length=True)
    assert summary | expected == summary
    summary, _ = sample_command(trained, "mdlm", "--protocol=paper", "--sampler=ancestral")
    assert summary | dict(sampler="ancestral", temperature=0.8, final_temperature=None) == summary

    config = Config("mdlm", vocab_size=WORDS.vocab_size, block_size=512)
    o = SampleOptions(protocol="paper", sampler="confidence", temperature=0.0)
    o, pattern = complete(o, config, WORDS, "paper")
    assert len(pattern) == o.length == 128
    assert o.steps == 100
    assert o.final_temperature == 0         # it falls from the temperature


def test_an_interrupted_command_keeps_what_it_wrote(trained):
    arguments = ["--out_dir=out/mdlm", "--num_samples=100000", "--batch_size=4", "--out=i.jsonl"]
    process = Running("sample.py", *arguments, cwd=trained)
    old, new = trained / "i.jsonl", trained / "i.jsonl.tmp"
    old.write_text("an earlier call\n")
    process.wait_for(new.exists)
    process.wait_for(lambda: new.stat().st_size)
    other = run("sample.py", "--out_dir=out/mdlm", "--out=i.jsonl", cwd=trained)
    assert other.returncode == 2
    assert "another process is writing i.jsonl" in other.stderr
    done = process.end(signal.SIGINT)
    assert done.returncode == 2
    assert "ends in .tmp" in done.stderr
    assert "Traceback" not in done.stderr
    assert old.read_text() == "an earlier call\n"
    rows = stories_in(new)
    assert len(rows) % 4 == 0
    for i, row in enumerate(rows):
        assert row["story"] == i


@pytest.mark.parametrize("sampler", ["first_hitting", "ancestral", "confidence"])
def test_stories_that_are_predicted_in_parts_are_the_same(monkeypatch, sampler):
    """As many at once as have a gigabyte of logits; here of 8 stories one, or two."""
    model = small_model("mdlm")
    blank = torch.full((8,), model.config.mask_id)
    o = SampleOptions(sampler=sampler, steps=3)
    whole, _ = generate(model, range(8), blank, o)
    for logits in 1, 2 * 8 * model.config.vocab_size:
        monkeypatch.setattr(samplers, "LOGITS_AT_ONCE", logits)
        parts, _ = generate(model, range(8), blank, o)
        assert torch.equal(parts, whole)
