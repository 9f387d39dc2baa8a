"""The samplers: their laws, plain and fast forms of the same, and the command as a user runs it."""
import collections
import functools
import itertools
import json
import math
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chi2_contingency, chisquare

import model as plain
import sample
from conftest import ROOT, Running, run, small_model
from extras import blocks, cache, drafts, infill, unmask
from model import Config, Drawing, draw, mask_batch, probabilities
from prepare_data import Tokenizer
from sample import SampleOptions, generate, noise_of, pattern_of, rows_of
from support.flags import InputError, build, extra_file, parse_flags
from toy import TOY

CPU = torch.device("cpu")
WORDS = Tokenizer("words", words=TOY.words())
SAMPLERS = ["adaptive", "ancestral", "confidence", "drafts"]


def setting(case, make=small_model):
    """The arguments of `generate` for a case like "aogpt/infill 1..2 --sampler=drafts --draft=2".

    That is a mode, maybe a variant, a text whose blanks are points, and flags of sample.py."""
    what, text, *arguments = case.split()
    mode, _, name = what.partition("/")
    name, _, N = name.partition(":")
    variant = extra_file(name, plain)
    fields = {"block_length": int(N)} if N else {}
    model = make(mode, variant=variant, **fields)
    blank = model.config.mask_id
    pattern = torch.tensor([blank if token == "." else int(token) for token in text])
    with mock.patch.object(sys, "argv", ["sample.py", *arguments]):
        flags = parse_flags("", SampleOptions, extras={"sampler": SAMPLERS})
    o = build(SampleOptions, {"full_length": True} | flags)
    write = None
    if o.sampler:
        write = extra_file(o.sampler).sampler(model.config, o, flags)
    return model, pattern, o, variant, write


def write(case, stories=range(20), make=small_model, seed=5):
    """The tokens (B, L) of the stories, and the pass (B, L) at which each appeared."""
    model, pattern, o, variant, sampler = setting(case, make)
    return generate(model, stories, pattern, replace(o, seed=seed), variant, sampler)


# ---- The law -------------------------------------------------------------------------------------
# A Markov chain of L tokens, K of them different. Each of its steps has a law of its own, so no
# two tokens are equally likely.

K, L = 3, 4
SEQUENCES = np.array(list(itertools.product(range(K), repeat=L)))                   # (K^L, L)
RNG = np.random.default_rng(0)
LAW = RNG.dirichlet(np.full(K, 4))[SEQUENCES[:, 0]]                                 # (K^L,)
MOVE = RNG.dirichlet(np.full(K, 2), size=(L - 1, K))                                # (L-1, K, K)
for i in range(L - 1):
    LAW = LAW * MOVE[i, SEQUENCES[:, i], SEQUENCES[:, i + 1]]


def fits(pattern):
    """(K^L,) which of the sequences have the pattern's tokens; K is a blank."""
    pattern = np.array(pattern)
    return ((SEQUENCES == pattern) | (pattern == K)).all(axis=1)


def conditionals(pattern):
    """(L, K) the law of the token at each place, given the pattern."""
    shares = LAW * fits(pattern) / LAW[fits(pattern)].sum()                         # (K^L,)
    return np.array([np.bincount(tokens, shares, K) for tokens in SEQUENCES.T])


PATTERNS = itertools.product(range(K + 1), repeat=L)
TABLE = torch.tensor(np.array([conditionals(pattern) for pattern in PATTERNS]))


def predict_by_the_law(model, tokens, key_pos, target_pos, select, attend=None):
    """Log-probabilities (n, K) of a network that knows the law of what its slots see.

    All keys are 0, so a slot gets the mean of the values that it sees. And each value is 1 at the
    token that the slot holds, and at its position, so the mean tells which tokens were seen."""
    held = (key_pos + 1) * (K + 1) + tokens                                         # (B, S)
    value = F.one_hot(held, (L + 1) * (K + 1)).float()[:, None]                     # (B, 1, S, D)
    seen = (attend or model.attend)(model, 0 * value, 0 * value, value) > 0
    seen = seen.view(-1, L + 1, K + 1)[select, 1:, :K]      # (n, L, K) not BOS, and not [MASK]
    known = torch.where(seen.any(dim=2), seen.int().argmax(dim=2), K)               # (n, L)
    number = known @ (K + 1) ** torch.arange(L - 1, -1, -1)                         # (n,)
    target = target_pos.expand_as(tokens).flatten()[select]                         # (n,)
    return TABLE[number, target].clamp(min=1e-300).log().float()


def oracle(mode, **fields):
    """A network of this variant, whose attention is its own, and all else is the law."""
    model = small_model(mode, vocab_size=K, block_size=L, **fields)
    model.forward = functools.partial(predict_by_the_law, model)
    return model


def counts_of(tokens):
    """(K^L,) how often each sequence is among the tokens (N, L)."""
    number = tokens @ K ** torch.arange(L - 1, -1, -1)                              # (N,)
    return torch.bincount(number, minlength=K ** L).numpy()


def p_value(case, law=LAW, N=20_000):
    """Of N stories under the exact law, given what the case gives: the chi-square test."""
    tokens, _ = write(case, range(N), oracle)
    _, text, *_ = case.split()
    law = law * fits([K if token == "." else int(token) for token in text])
    counts = counts_of(tokens)
    expected = law / law.sum() * N
    assert not counts[expected == 0].any()
    rare = expected < 5             # too few to be tested by themselves
    commonest = expected.argmax()
    counts[commonest] += counts[rare].sum()
    expected[commonest] += expected[rare].sum()
    return chisquare(counts[~rare], expected[~rare]).pvalue


FOLLOW_THE_LAW = """
ar ....
ar 1...
ar .... --cache=false
mdlm ....
mdlm .1.2
mdlm .... --order=left_to_right
mdlm .... --order=2,0,3,1
mdlm .... --sampler=ancestral --steps=200
mdlm .... --sampler=adaptive --risk=0
aogpt ....
aogpt .1.2
aogpt .... --cache=false
aogpt .... --order=left_to_right
aogpt .... --order=2,0,3,1
aogpt .... --order=blocks:2
aogpt/blocks:2 ....
aogpt/infill ....
aogpt/infill 1..2
aogpt .... --sampler=drafts --draft=2
aogpt .... --sampler=drafts --draft=4
aogpt ..0. --sampler=drafts --draft=2
aogpt .... --sampler=drafts --draft=3 --order=blocks:3
aogpt .... --sampler=drafts --draft=2 --order=left_to_right
aogpt 1... --sampler=drafts --draft=4 --order=left_to_right
aogpt/infill 1..2 --sampler=drafts --draft=2
mdlm/blocks:1 ....
mdlm/blocks:2 ....
mdlm/blocks:2 .1..
mdlm/blocks:3 ....
mdlm/blocks:3 1.2.
mdlm/blocks:3 1.2. --sampler=adaptive --risk=0
mdlm/blocks:2 .1.. --sampler=ancestral --steps=400
mdlm/blocks:3 .... --sampler=ancestral --steps=400
"""


@pytest.mark.parametrize("case", FOLLOW_THE_LAW.strip().splitlines())
def test_one_token_a_pass_follows_the_exact_law(case):
    assert p_value(case) > 1e-3


@pytest.mark.parametrize("case", [
    "mdlm .... --steps=2",
    "mdlm .... --sampler=ancestral --steps=4",
    "mdlm .... --sampler=adaptive --risk=1.5",
    "mdlm .... --sampler=confidence",
    "mdlm/blocks:2 .... --steps=2",
    "aogpt .... --steps=2"])
def test_several_tokens_a_pass_do_not(case):
    assert p_value(case) < 1e-6


@pytest.mark.parametrize("order", ["random", "blocks:2", "left_to_right"])
@pytest.mark.parametrize("make", [
    oracle, functools.partial(small_model, vocab_size=K, block_size=L)])
def test_drafts_have_the_law_of_one_token_a_pass(order, make):
    """With top_p and temperature, too: samples of the one and of the other come from one law."""
    case = f"aogpt .... --top_p=0.7 --temperature=0.8 --order={order}"
    one, _ = write(case, range(20_000), make, seed=5)
    drafted, _ = write(f"{case} --sampler=drafts --draft=4", range(20_000), make, seed=6)
    table = np.array([counts_of(one), counts_of(drafted)])
    occur = table.sum(axis=0) > 0
    assert chi2_contingency(table[:, occur]).pvalue > 1e-3


@pytest.mark.parametrize("broken", ["keep all", "draw the last from p"])
def test_a_broken_rule_of_acceptance_is_told_apart(monkeypatch, broken):
    confirm = drafts.confirm

    def rule(p, q, draft, u):
        new, count = confirm(p, q, draft, u)                                # (B, m+1), (B, 1)
        if broken == "keep all":
            new[:, :-1] = draft
            count[:] = draft.size(1) + 1
        law = p.take_along_dim((count - 2)[:, :, None], dim=1)[:, 0]        # (B, V), and not p - q
        return new.scatter(1, count - 1, draw(law, u[:, -1])[:, None]), count

    monkeypatch.setattr(drafts, "confirm", rule)
    assert p_value("aogpt .... --sampler=drafts --draft=4") < 1e-6


def test_ancestral_reveals_each_masked_token_with_the_probability_of_the_step():
    _, appeared = write("mdlm .... --sampler=ancestral --steps=4", range(20_000), oracle)
    masked = [(appeared > step).float().mean().item() for step in range(4)]
    assert masked == pytest.approx([0.75, 0.5, 0.25, 0], abs=0.01)


def law_of_confidence():
    """(K^L,) if each step draws all masked tokens and keeps the likeliest of them."""
    reached = {(K,) * L: 1.0}                           # {pattern: its probability}
    for _ in range(L):
        after = collections.defaultdict(float)
        for pattern, p in reached.items():
            masked = [i for i in range(L) if pattern[i] == K]
            for drawn in itertools.product(range(K), repeat=len(masked)):
                chances = conditionals(pattern)[masked, drawn]
                best = chances.argmax()
                revealed = list(pattern)
                revealed[masked[best]] = drawn[best]
                after[tuple(revealed)] += p * chances.prod()
        reached = after
    return np.array([reached[tuple(sequence)] for sequence in SEQUENCES.tolist()])


def test_confidence_follows_its_own_law():
    law = law_of_confidence()
    assert abs(law - LAW).max() > 0.01
    assert p_value("mdlm .... --sampler=confidence", law) > 1e-3


# ---- Drawing a token -----------------------------------------------------------------------------

@pytest.mark.parametrize("drawing, expected", [
    (Drawing(), [500, 300, 150, 50]),
    (Drawing(top_p=0.7), [625, 375]),
    (Drawing(temperature=0.5), [685, 247, 62, 7]),      # in proportion to p²
    (Drawing(temperature=0), [1000]),
    (Drawing(temperature=1e-38), [1000])])
def test_draw_obeys_temperature_and_top_p(drawing, expected):
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(1000, 4)
    u = torch.arange(1000, dtype=torch.float64) / 1000
    tokens = draw(probabilities(logits, drawing), u)
    assert torch.bincount(tokens).tolist() == pytest.approx(expected, abs=1)


def test_draw_is_exact_in_the_tail():
    """The tail has 2e-6 of the probability. Uniform float32 numbers near 1 have steps of 6e-8."""
    logits = torch.full((4, 1000), -20.0)
    logits[:, 0] = 0.0
    each = math.exp(-20)
    above = [998 * each, 499.5 * each, 2e-9, 1e-3]
    u = 1 - torch.tensor(above, dtype=torch.float64)
    assert draw(probabilities(logits, Drawing()), u).tolist() == [1, 500, 999, 0]


def test_rare_tokens_come_as_often_as_they_should():
    """Each of 99,999 has 1e-9, in twenty million draws of the numbers that stories take."""
    p = torch.full((1, 100_000), 1e-9)
    p[0, 0] = 1 - 99_999e-9
    u = noise_of(1, range(20), CPU)(2 ** 20).flatten()
    u_of_rare = u[u > 0.9998]                   # a rare token is drawn by a u above 0.99990
    tokens = draw(p.expand(len(u_of_rare), -1), u_of_rare)
    rare = tokens[tokens > 0]
    expected = len(u) * 99_999e-9
    assert abs(len(rare) - expected) < 5 * expected ** 0.5
    assert len(rare.unique()) > 0.97 * len(rare)


# ---- The same stories ----------------------------------------------------------------------------

@pytest.mark.parametrize("flags", [
    "", "--temperature=0.7 --top_p=0.8", "--steps=3", "--steps=5 --order=7,1,0,2,6,5,3,4"])
@pytest.mark.parametrize("text", [
    "ar ........", "ar 427.....", "aogpt ........", "aogpt 4..2...7", "aogpt .....427",
    "aogpt/infill 42...917", "aogpt/infill 4......7", "mdlm/blocks:1 427.....",
    "mdlm/blocks:2 ........", "mdlm/blocks:3 .2......", "mdlm/blocks:5 42.....",
    "mdlm/blocks:7 .2....7."])
def test_a_memory_gives_what_the_network_gives(monkeypatch, text, flags):
    """In every pass the logits are those of model.py's read_slots, which reads all slots anew."""
    if "order" in flags and not text.startswith("aogpt ") or "steps" in flags and "ar" in text:
        pytest.skip("means nothing here")
    checked = []
    for module, name in (cache, "Cache"), (blocks, "BlockReader"):
        class Checked(getattr(module, name)):
            def __call__(self, model, *slots):
                logits = super().__call__(model, *slots)
                torch.testing.assert_close(logits, plain.read_slots(model, *slots))
                checked.append(slots)
                return logits

        monkeypatch.setattr(module, name, Checked)
    make = functools.partial(small_model, dtype=torch.float64)
    tokens, appeared = write(f"{text} {flags}", make=make)
    assert len(checked) == appeared.max() + 1
    again, _ = write(f"{text} {flags} --cache=false", make=make)
    assert torch.equal(tokens, again)
    assert len(checked) == appeared.max() + 1


@pytest.mark.parametrize("N", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("flags", [
    "", "--steps=3", "--sampler=ancestral --steps=9", "--sampler=adaptive --risk=2"])
def test_one_block_after_another(N, flags):
    """Each pass writes into one block only, and none goes back."""
    _, appeared = write(f"mdlm/blocks:{N} .2...... {flags}")
    block = torch.arange(8) // N
    for row in appeared:
        pairs = torch.stack([row, block], dim=1)[row >= 0].unique(dim=0)            # sorted
        passes, in_time = pairs.T
        assert len(passes.unique()) == len(passes)
        assert (in_time.diff() >= 0).all()


@pytest.mark.parametrize("case", [
    "ar ........",
    "aogpt ........",
    "aogpt ........ --sampler=drafts --draft=3",
    "mdlm ........",
    "mdlm ........ --sampler=ancestral",
    "mdlm ........ --sampler=adaptive",
    "mdlm ........ --sampler=confidence --steps=3",
    "mdlm/blocks:3 ........ --sampler=adaptive"])
def test_a_story_is_the_same_whatever_the_batch(case):
    together, _ = write(case, range(6))
    alone, _ = write(case, [4])
    others, _ = write(case, range(6), seed=6)
    assert torch.equal(together[4:5], alone)
    assert not torch.equal(together, others)
    assert (together < 11).all()


@pytest.mark.parametrize("case, flags", [
    ("ar", ""),
    ("aogpt", "--sampler=drafts --draft=3"),
    ("aogpt", "--steps=11"),
    ("aogpt", "--order=7,1,0,2,6,5,3,4"),
    ("aogpt/blocks:3", ""),
    ("mdlm", "--sampler=adaptive"),
    ("mdlm", "--sampler=confidence --steps=9"),
    ("mdlm/blocks:3", "")])
def test_a_text_longer_than_the_window_goes_on(case, flags):
    """Half a window at a time: what is new is written as after a prompt of the half before."""
    tokens, _ = write(f"{case} 42................. {flags}", range(6))
    alone, _ = write(f"{case} 42................. {flags}", [4])
    assert tokens.shape == (6, 19)
    assert (tokens < 11).all()
    assert torch.equal(tokens[4:5], alone)
    model, pattern, o, variant, sampler = setting(f"{case} ........ {flags}")
    o = replace(o, seed=5 + 12 * 10 ** 6, steps=math.ceil(o.steps * 4 / 17))
    prompts = torch.cat([tokens[:, 4:8], pattern[:4].expand(6, -1)], dim=1)
    again, _ = generate(model, range(6), prompts, o, variant, sampler)
    assert torch.equal(again, tokens[:, 4:12])


@pytest.mark.parametrize("text", [
    "aogpt ........", "aogpt .....427", "aogpt/infill 42...917"])
@pytest.mark.parametrize("draft", [1, 2, 5, 20])
def test_drafts(draft, text):
    """Greedy ones are the tokens of one token a pass. A story takes no more passes than tokens."""
    greedy, _ = write(f"{text} --temperature=0")
    drafted, _ = write(f"{text} --temperature=0 --sampler=drafts --draft={draft}")
    assert torch.equal(greedy, drafted)
    _, appeared = write(f"{text} --sampler=drafts --draft={draft} --top_p=0.9")
    assert appeared.max() < text.count(".")
    assert ((appeared == 0).sum(dim=1) == 1).all()      # of the first draft, one is final


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_orders(mode):
    """A list says at which place the next token is to be; a variant has an order of its own."""
    _, appeared = write(f"{mode} ........ --order=7,1,0,2,6,5,3,4")
    assert appeared[0].argsort().tolist() == [7, 1, 0, 2, 6, 5, 3, 4]
    _, appeared = write(f"{mode} .2.....4 --order=left_to_right")
    assert appeared[0].tolist() == [0, -1, 1, 2, 3, 4, 5, -1]
    _, appeared = write(f"{mode}/blocks:3 ........")
    assert (appeared[:, :3] < 3).all()


def test_ar_stops_when_every_story_has_ended():
    make = functools.partial(small_model, vocab_size=2)
    whole, _ = write("ar ........", range(4), make)
    tokens, appeared = write("ar ........ --full_length=false", range(4), make)
    n = int(appeared.max())             # what never appears has stayed masked for n passes
    first_end = (whole == 1).int().argmax(dim=1)                # (4,)
    assert first_end.max() == n - 1 < 7
    assert torch.equal(tokens[:, :n], whole[:, :n])
    assert (tokens[:, n:] == 2).all()


@torch.no_grad()
def test_mdlm_reads_whole_windows():
    """It writes a shorter text as if the rest of the window were masked, as in training."""
    model = small_model("mdlm")
    short = torch.tensor([[4, 7, 11]])              # 11 is [MASK]
    order = torch.arange(8)[None]
    read = plain.read_slots(model, F.pad(short, (0, 5), value=11), order, 2, 3)[0]      # (1, 11)
    torch.testing.assert_close(plain.read_slots(model, short, order[:, :3], 2, 3)[0], read)
    torch.testing.assert_close(unmask.logits_where(model, short, short == 11), read)


@torch.no_grad()
@pytest.mark.parametrize("case, risk", [
    ("mdlm ........", 0),
    ("mdlm ........", 3),
    ("mdlm/blocks:4 ........", 3),
    ("mdlm ........ --temperature=0.5 --top_p=0.8", 3)])
def test_adaptive_reveals_what_is_within_the_risk(case, risk):
    """A token is, if the entropies of all surer ones are. They are those of what it draws from."""
    case = f"{case} --sampler=adaptive --risk={risk}"
    model, _, o, *_ = setting(case)
    tokens, appeared = write(case)
    block = torch.arange(8) // getattr(model.config, "block_length", 8)
    for step in range(int(appeared.max()) + 1):
        hidden = appeared >= step                                                   # (20, 8)
        batch = mask_batch(model.config, tokens, hidden)
        logits = model(*batch[:3], select=torch.arange(20 * 9)).view(20, 9, 11)[:, 1:]
        p = probabilities(logits, o)
        nats = torch.special.entr(p / p.sum(dim=-1, keepdim=True)).sum(dim=-1)      # (20, 8)
        hidden &= block == block[hidden.any(dim=0)].min()
        surer = (nats[:, None] < nats[:, :, None]) & hidden[:, None]                # (20, 8, 8)
        nats_ahead = (surer * nats[:, None]).sum(dim=2)                             # (20, 8)
        assert torch.equal(appeared == step, hidden & (nats_ahead <= risk))


def test_confidence_keeps_equally_many_and_the_penalty_lowers_what_occurs():
    def repeats(flags):
        tokens, _ = write(f"mdlm ........ --sampler=confidence {flags}", range(200))
        return sum(8 - len(row.unique()) for row in tokens)

    _, appeared = write("mdlm ........ --sampler=confidence --steps=3")
    assert {tuple(row.bincount().tolist()) for row in appeared} == {(2, 3, 3)}
    assert repeats("--repetition_penalty=1.3") < repeats("") < repeats("--final_temperature=0.1")


@pytest.mark.parametrize("case", [
    "ar ........", "mdlm ........", "aogpt ........", "aogpt ........ --sampler=drafts --draft=3",
    "mdlm/blocks:3 ........", "mdlm ........ --sampler=adaptive"])
def test_under_autocast(case):
    with torch.autocast("cpu", torch.bfloat16):
        tokens, _ = write(case)
    assert (tokens < 11).all()


def test_a_memory_takes_numbers_of_another_kind():
    """The first call fills it in float32, the next one comes in bfloat16."""
    memory = cache.Memory(2)
    x = torch.rand(1, 1, 1, 4)                  # as q, k and v
    for slot, kind in (0, torch.float32), (1, torch.bfloat16):
        attend = memory.attend_at(torch.tensor([[slot]]), torch.ones(1, 1, 1, slot + 1).bool())
        y = attend("a layer", *[x.to(kind)] * 3)
        torch.testing.assert_close(y, x.to(kind))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("case", [
    "ar ........", "mdlm ........", "aogpt ........ --steps=3", "mdlm/blocks:3 ........"])
def test_cuda_writes_the_same(case):
    tokens, _ = write(case)
    on_gpu, _ = write(case, make=lambda *what, **fields: small_model(*what, **fields).cuda())
    assert torch.equal(tokens, on_gpu.cpu())


# ---- What is asked for ---------------------------------------------------------------------------

SIZES = dict(vocab_size=WORDS.vocab_size, block_size=9)
MDLM = Config("mdlm", **SIZES)
INFILL = infill.Config("aogpt", **SIZES)
BLOCKS = blocks.Config("mdlm", block_length=3, **SIZES)
NOT_ONE = "must have words, one blank, and words"


@pytest.mark.parametrize("config, prompt, length, expected", [
    (MDLM, "", 0, "........."),
    (MDLM, "One day", 0, "xx......."),
    (MDLM, "One ___ day ___", 0, "x..x.."),
    (MDLM, "", 30, "length=30 must not exceed the window, 9"),
    (INFILL, "One ___ day", 0, "x..x"),
    (INFILL, "___ day", 0, NOT_ONE),
    (INFILL, "One ___ day ___ a", 0, NOT_ONE),
    (INFILL, "One ___ day", 8, NOT_ONE),
    (BLOCKS, "One day, a", 0, "xxxx....."),
    (BLOCKS, "One day ___", 0, "xx.."),
    (BLOCKS, "___ day", 0, "..x"),
    (BLOCKS, "One ___ day", 0, "words in a later block than a blank")])
def test_what_is_to_be_written(config, prompt, length, expected):
    o = SampleOptions(prompt=prompt, length=length, blank=2)
    try:
        pattern = pattern_of(o, config, WORDS, "aligned")
        variant = sys.modules[type(config).__module__]
        getattr(variant, "check_pattern", sample.check_pattern)(config, pattern)
        assert "".join("." if i == config.mask_id else "x" for i in pattern.tolist()) == expected
    except InputError as e:
        assert expected in str(e)


REFUSED = r"""
ar     --steps=2                               means nothing for ar
ar     --order=random                          means nothing for ar
mdlm   --cache=false                           means nothing for mdlm
aogpt  --blank=3                               means nothing without ___
ar     --sampler=adaptive                      adaptive is for --mode=mdlm
aogpt  --sampler=ancestral                     ancestral is for --mode=mdlm
aogpt  --sampler=confidence                    confidence is for --mode=mdlm
mdlm   --sampler=drafts                        drafts is for --mode=aogpt
mdlm   --sampler=adaptive --steps=3            without --steps and --order
mdlm   --sampler=ancestral --order=random      without --order
mdlm   --sampler=confidence --order=random     without --order
aogpt  --sampler=drafts --steps=3              without --steps
mdlm   --risk=0.1                              it needs --sampler=adaptive
aogpt  --draft=3                               it needs --sampler=drafts
mdlm   --final_temperature=0                   it needs --sampler=confidence
mdlm   --sampler=adptive                       no extras/adptive.py; did you mean adaptive\?
mdlm   --sampler=extras/adaptive.py            no extras/extras/adaptive.py.py
mdlm   --sampler=cache                         extras/cache.py has no sampler
aogpt  --protocol=paper                        is for --mode=ar or mdlm
mdlm   --order=2,1                             must be random, left_to_right, blocks:N
aogpt  --order=blocks:0                        must be .*blocks:N with an N of 1 or more
mdlm   --steps=49                              must not exceed the 48 tokens
ar     --prompt=One_____day                    words where ar should have written
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_means_nothing_is_refused_in_one_line(trained, monkeypatch, line):
    mode, flags, said = re.split("  +", line)
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "argv", ["sample.py", f"--out_dir=out/{mode}", *flags.split()])
    with pytest.raises(InputError, match=said) as e:
        sample.main()
    assert "\n" not in str(e.value)


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
        assert len(row["pieces"]) == len(row["tokens"]) == len(row["appeared"])
        assert set(row["appeared"]) <= {0, 1, 2, 3}


@pytest.mark.parametrize("text", ["........", "012....."])
def test_the_passes_of_ar_do_not_depend_on_the_batch(text):
    """Each story's are those to its own end, though its batch goes on."""
    make = functools.partial(small_model, vocab_size=4)
    case = f"ar {text} --num_samples=10"
    whole, _ = write(case, range(10), make, seed=1337)
    prompt = 8 - text.count(".")
    ends = [[*row, 3].index(3, prompt) for row in whole.tolist()]
    # Its end-of-text is written too, if it has one.
    expected = [min(8, end + 1) - prompt for end in ends]
    tokenizer = Tokenizer("words", words=["a", "b", "c"])
    for batch_size in 1, 3, 10:
        model, pattern, o, *_ = setting(f"{case} --full_length=false", make)
        found = []
        for first in range(0, 10, batch_size):
            stories = range(first, min(first + batch_size, 10))
            written = generate(model, stories, pattern, o)
            found += rows_of(stories, *written, pattern, model.config, tokenizer, o)
        assert [row["passes"] for row in found] == [row["written"] for row in found] == expected


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_blanks(trained, mode):
    _, rows = sample_command(trained, mode, "--prompt=One day, a ___ found ___ park.", "--blank=3")
    for row in rows:
        text = WORDS.decode(row["tokens"])
        assert re.fullmatch("One day, a.* found.* park.", text)
        given = [i for i, step in enumerate(row["appeared"]) if step == -1]
        assert given == [0, 1, 2, 3, 7, 11, 12]


MINE = """
from dataclasses import dataclass
from functools import partial
from support.flags import build

@dataclass
class Options:
    "what --sampler=mine writes"
    word: int = 7       # the token to write everywhere

def sampler(config, o, flags):
    return partial(write, word=build(Options, flags).word)

def write(model, tokens, times, noise, o, word):
    yield tokens * 0 + word
"""


def test_a_sampler_of_ones_own(trained, tmp_path):
    """A new file of extras/ is chosen by its name, and brings flags of its own."""
    for part in "extras", "support":
        shutil.copytree(Path(ROOT, part), tmp_path / part)
    for file in Path(ROOT).glob("*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "extras/mine.py").write_text(MINE)
    flags = ["--out_dir=out/ar", "--sampler=mine", "--word=5", "--out=mine.jsonl"]
    done = run(tmp_path / "sample.py", *flags, cwd=trained, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    for row in stories_in(trained / "mine.jsonl"):
        assert row["tokens"] == [5] * 48


def test_the_papers_protocol(trained):
    summary, _ = sample_command(trained, "mdlm", "--protocol=paper", "--steps=10")
    expected = dict(sampler="confidence", steps=10, temperature=0.8, final=0.32, penalty=1.3,
                    length=48, full_length=True)
    assert summary | expected == summary


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
    assert [row["story"] for row in rows] == list(range(len(rows)))
    assert len(rows) % 4 == 0
