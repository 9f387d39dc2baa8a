"""The samplers against an oracle whose law is known, against the plain forward pass, and the command as a
user runs it."""
import collections
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

import experiments.oracle
import sample
from conftest import ROOT, Running, plain_samplers, run, small_model
from cli import InputError
from model import Config, order_batch
from prepare_data import Tokenizer
from runs import open_model
from sample import SampleOptions, complete, draw, generate, plan, uniforms
from show import draw_moving, layout
from toy import TOY

MODES = ["ar", "mdlm", "aogpt"]

def asked(model, stories, pattern=None, **flags):
    """What generate and states take."""
    pattern = torch.full((model.config.block_size,), model.config.mask_id) if pattern is None else pattern
    return model, stories, pattern, SampleOptions(**{"seed": 5, "full_length": True, **flags})

def write(*what, **flags):
    return generate(*asked(*what, **flags))[0]

@torch.no_grad()
def states(*what, **flags):
    """The tokens after every step."""
    return list(sample.states(*asked(*what, **flags)))

# ------------------------------------------------------------------------------------------------ the law

class Oracle(experiments.oracle.Oracle):
    """Stands in for the network: exact conditionals, given any subset, of a Markov chain of L tokens."""

    def __init__(self, mode, K=3, L=4, seed=0):
        rng = np.random.default_rng(seed)
        start, move = rng.dirichlet(np.full(K, 4)), rng.dirichlet(np.full(K, 2), size=K)
        x = np.array(list(itertools.product(range(K), repeat=L)))
        moves = np.prod([move[x[:, i], x[:, i + 1]] for i in range(L - 1)], axis=0)
        self.law, self.L = start[x[:, 0]] * moves, L                # (K^L,)
        table = np.zeros((K + 1,) * L + (L, K))                 # [pattern, K unknown][position] -> p(token)
        for pattern in itertools.product(range(K + 1), repeat=L):
            fits = np.all([(x[:, i] == p) | (p == K) for i, p in enumerate(pattern)], axis=0)
            for i, v in itertools.product(range(L), range(K)):
                table[pattern][i, v] = self.law[fits & (x[:, i] == v)].sum() / self.law[fits].sum()
        config = Config(mode, vocab_size=K, block_size=L, n_layer=1, n_head=1, n_embd=2)
        super().__init__(config, lambda known: table[tuple(known.T)])

def p_value(oracle, law=None, **flags):
    """Of 100,000 samples under the exact law of the chain, or another."""
    N, K, L = 100_000, oracle.config.vocab_size, oracle.L
    tokens = write(oracle, range(N), **flags)
    counts = torch.bincount((tokens * K ** torch.arange(L - 1, -1, -1)).sum(dim=1), minlength=K ** L).numpy()
    return chisquare(counts, (oracle.law if law is None else law) * N).pvalue

@pytest.mark.parametrize("mode, flags", [
    ("ar", {}), ("mdlm", dict(sampler="ancestral", steps=500)), ("mdlm", dict(sampler="first_hitting")),
    ("aogpt", {}), ("aogpt", dict(order="left_to_right")), ("aogpt", dict(order="2,0,3,1")),
    ("aogpt", dict(draft=2)), ("aogpt", dict(draft=4)), ("aogpt", dict(draft=2, order="left_to_right")),
    ("aogpt", dict(draft=4, order="left_to_right"))])
def test_one_token_a_step_follows_the_exact_law(mode, flags):
    assert p_value(Oracle(mode), **flags) > 1e-3

@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_confirmed_drafts_follow_the_law_of_top_p_and_temperature_too(order):
    """That of one token at a time, which is sampled for the purpose: two samples of one law."""
    oracle, flags, N = Oracle("aogpt"), dict(top_p=0.7, temperature=0.8, order=order), 100_000
    numbers = []
    for seed, draft in ((5, None), (6, 4)):
        tokens = write(oracle, range(N), seed=seed, draft=draft, **flags)
        numbers.append((tokens * 3 ** torch.arange(3, -1, -1)).sum(dim=1))
    table = np.array([torch.bincount(number, minlength=81).numpy() for number in numbers])
    assert chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-3

@pytest.mark.parametrize("mode, flags", [
    ("mdlm", dict(sampler="ancestral", steps=4)), ("mdlm", dict(sampler="first_hitting", steps=2)),
    ("aogpt", dict(steps=2)), ("mdlm", dict(sampler="confidence"))])
def test_several_tokens_a_step_do_not(mode, flags):
    assert p_value(Oracle(mode), **flags) < 1e-6

@pytest.mark.parametrize("broken", ["all kept", "the rest from p"])
def test_a_broken_rule_of_acceptance_is_told_apart(monkeypatch, broken):
    def rule(p, q, draft, u):
        new, count = confirm(p, q, draft, u)
        if broken == "all kept":
            new[:, :-1], count[:] = draft, draft.size(1) + 1
        # not max(0, p - q)
        last_p = p.gather(1, (count - 2)[:, :, None].expand(-1, -1, p.size(2)))[:, 0]
        return new.scatter(1, count - 1, sample.invert(last_p, u[:, -1])[:, None]), count

    confirm = sample.confirm
    monkeypatch.setattr(sample, "confirm", rule)
    assert p_value(Oracle("aogpt"), draft=4) < 1e-6

@pytest.mark.parametrize("mode, pattern, N, flags", [
    ("mdlm", [3, 1, 3, 2], 20_000, {}), ("aogpt", [3, 1, 3, 2], 20_000, {}),
    ("aogpt", [3, 3, 0, 3], 100_000, dict(draft=2)),
    ("aogpt", [1, 3, 3, 3], 100_000, dict(draft=4, order="left_to_right"))])
def test_blanks_and_what_follows_a_prompt_have_the_law_given_the_rest(mode, pattern, N, flags):
    oracle, pattern = Oracle(mode), torch.tensor(pattern)
    K, free = oracle.config.vocab_size, pattern == oracle.config.mask_id
    tokens = write(oracle, range(N), pattern=pattern, sampler="first_hitting", **flags)
    assert (tokens[:, ~free] == pattern[~free]).all()
    given = tuple(slice(None) if i == K else i for i in pattern.tolist())
    law = oracle.law.reshape((K,) * oracle.L)[given].ravel()
    number = (tokens[:, free] * K ** torch.arange(int(free.sum()) - 1, -1, -1)).sum(dim=1)
    assert chisquare(torch.bincount(number, minlength=len(law)).numpy(), law / law.sum() * N).pvalue > 1e-3

def test_ancestral_reveals_each_masked_token_with_the_probability_of_the_step():
    after = states(Oracle("mdlm"), range(20_000), sampler="ancestral", steps=4)
    masked = [(tokens == 3).double().mean().item() for tokens in after]
    assert masked == pytest.approx([0.75, 0.5, 0.25, 0], abs=0.01)

def test_draw_is_exact_in_the_tail_and_obeys_temperature_and_top_p():
    V = 1000
    logits = torch.full((1, V), -20.0)
    logits[0, 0] = 0.0
    tail = float((V - 1) * np.exp(-20.0))               # 2.06e-6: a float32 uniform near 1 has steps of 6e-8
    inside = torch.tensor([1.0 - tail * 0.999, 1.0 - tail * 0.5, 1.0 - 2e-9, 1.0 - 1e-3], dtype=torch.float64)
    drawn = draw(logits.expand(4, V), inside, 1.0, 1.0)
    assert drawn[0].tolist() == [1, 500, 999, 0]
    assert drawn[1].tolist() == pytest.approx([np.exp(-20.0)] * 3 + [1.0], rel=1e-5)
    assert draw(logits, torch.tensor([1 - 1e-9], dtype=torch.float64), 0, 1.0)[0].item() == 0
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(1000, 4)
    u = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    assert torch.bincount(draw(p, u, 1.0, 1.0)[0]).tolist() == pytest.approx([500, 300, 150, 50], abs=1)
    assert torch.bincount(draw(p, u, 1.0, 0.7)[0]).tolist() == pytest.approx([625, 375], abs=1)
    squared = np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365
    assert torch.bincount(draw(p, u, 0.5, 1.0)[0]).tolist() == pytest.approx(list(squared * 1000), abs=1.5)

def test_a_samplers_rare_tokens_are_as_frequent_as_they_should_be():
    """99,999 tokens of 1e-9 each beside one of nearly 1. Gumbel noise of float32 uniforms ends at 16.6 =
    -ln(2^-24), 4.1 below what it takes to win against ln(1e9) = 20.7, so it would never draw any of them; nor
    would a float32 uniform see them apart."""
    logits = torch.full((1, 100_000), np.log(1e-9))
    logits[0, 0] = np.log(1 - 99_999e-9)
    generators = [np.random.default_rng(story) for story in range(20)]
    _, u = (uniforms(generators, 1 << 20, torch.device("cpu")).flatten() for _ in range(2))     # as states
    rare = u[u > 0.9998]                        # a rare token is drawn by a u above 1 - 99,999e-9 = 0.99990
    drawn = draw(logits.expand(len(rare), -1), rare, 1.0, 1.0)[0]
    expected = len(u) * 99_999e-9
    assert abs((drawn > 0).sum() - expected) < 5 * expected ** 0.5
    assert len(drawn[drawn > 0].unique()) > 0.97 * (drawn > 0).sum()        # few twice: 2,097 of 99,999

# ------------------------------------------------------------------------------------------- the same stories

@pytest.mark.parametrize("mode, flags", [
    ("ar", {}), ("ar", dict(temperature=0)), ("ar", dict(temperature=0.7, top_p=0.8)), ("mdlm", {}),
    ("mdlm", dict(steps=3)), ("mdlm", dict(sampler="ancestral", temperature=0.7, top_p=0.8)),
    ("mdlm", dict(sampler="ancestral", steps=3)), ("mdlm", dict(time_embedding="add"))])
@pytest.mark.parametrize("prompt", [0, 3])
def test_the_plain_samplers_write_what_the_fast_ones_write(mode, flags, prompt):
    flags = dict(flags)
    model = small_model(mode, **{name: flags.pop(name) for name in ("time_embedding",) if name in flags})
    pattern = torch.tensor([4, 2, 7][:prompt] + [model.config.mask_id] * (8 - prompt))
    o = SampleOptions(seed=5, full_length=True, **flags)
    fast, when = generate(model, range(20), pattern, o)
    with plain_samplers():
        plain, when_plainly = generate(model, range(20), pattern, o)
    assert torch.equal(fast, plain) and torch.equal(when, when_plainly)

@pytest.mark.parametrize("mode", MODES)
def test_story_i_is_the_same_whatever_the_batch(mode):
    model = small_model(mode)
    together = write(model, range(6))
    assert torch.equal(together[4:5], write(model, [4]))
    assert not torch.equal(together, write(model, range(6), seed=6))
    if mode != "mdlm":      # as on CUDA, every step looks at the whole cache
        assert torch.equal(together, write(model, range(6), compile=True))
    assert (together < model.config.vocab_size).all()

@pytest.mark.parametrize("mode, flags", [
    ("ar", {}), ("aogpt", {}), ("aogpt", dict(steps=3)), ("aogpt", dict(order="left_to_right")),
    ("aogpt", dict(order="7,1,0,2,6,5,3,4", steps=5))])
@pytest.mark.parametrize("prompt", [0, 1, 3])
@pytest.mark.parametrize("temperature", [0, 1])
def test_cached_equals_uncached(mode, flags, prompt, temperature):
    model = small_model(mode)
    pattern = torch.tensor([4, 2, 7][:prompt] + [model.config.mask_id] * (8 - prompt))
    if mode == "aogpt":
        pattern = pattern.flip(0)                                   # given at the end, written before
    flags = {**flags, "temperature": temperature, "full_length": False}     # so ar stops when all have ended
    cached = write(model, range(9), pattern, **flags)
    with plain_samplers():
        plain = write(model, range(9), pattern, **flags)
    assert torch.equal(cached, plain) and (cached[:, pattern < 11] == pattern[pattern < 11]).all()

@torch.no_grad()
def test_greedy_samples_are_the_argmax_of_the_plain_forward_pass():
    for mode, steps in (("ar", 8), ("aogpt", 8), ("aogpt", 3), ("aogpt", 1)):
        model = small_model(mode)
        tokens = write(model, range(3), steps=steps, seed=1, temperature=0)
        order = torch.arange(8).expand(3, 8)
        if mode == "aogpt":
            generators = [np.random.default_rng((1, story)) for story in range(3)]
            order = uniforms(generators, 8, torch.device("cpu")).argsort(dim=1)
        bounds = [8 * s // steps for s in range(steps + 1)]
        for start, end in zip(bounds, bounds[1:]):      # each of a group is predicted as if it were its first
            for j in range(start, end):
                swapped = order.clone()
                swapped[:, [start, j]] = order[:, [j, start]]
                batch = order_batch(model.config, tokens, swapped)
                logits = model(batch.tokens, batch.key_pos, batch.target_pos)[:, start]
                assert torch.equal(logits.argmax(dim=-1), tokens.gather(1, order[:, j:j + 1])[:, 0])

@pytest.mark.parametrize("prompt", [0, 1, 3])
@pytest.mark.parametrize("draft", [1, 2, 5, 20])
def test_confirmed_drafts(draft, prompt):
    """Greedy ones are the tokens of one token a step; a story's are its own, and take no more passes than
    tokens; bfloat16 works too."""
    model = small_model("aogpt")
    pattern = torch.tensor([model.config.mask_id] * (8 - prompt) + [4, 2, 7][:prompt])
    greedy = write(model, range(9), pattern, temperature=0)
    assert torch.equal(write(model, range(9), pattern, temperature=0, draft=draft), greedy)

    calls, forward = [], model.forward
    model.forward = lambda *inputs, **named: calls.append(0) or forward(*inputs, **named)
    together = write(model, range(9), pattern, draft=draft, top_p=0.9)
    assert (together < model.config.vocab_size).all()
    for story in range(9):
        calls.clear()
        alone = write(model, [story], pattern, draft=draft, top_p=0.9)
        assert torch.equal(alone[0], together[story]) and len(calls) <= 8 - prompt
    assert torch.equal(write(model, range(9), pattern, draft=draft, top_p=0.9, compile=True), together)
    assert (write(model.bfloat16(), range(9), pattern, draft=draft) < model.config.vocab_size).all()

def test_ar_stops_when_every_story_has_ended():
    model, pattern = small_model("ar", vocab_size=2), torch.full((8,), 2)
    tokens, appeared = generate(model, range(4), pattern, SampleOptions(seed=5))
    whole, n = write(model, range(4)), appeared.max()           # what never appears has stayed masked n steps
    assert n < 8 and torch.equal(tokens[:, :n], whole[:, :n])
    assert (tokens[:, n:] == model.config.mask_id).all()
    ends = whole == model.config.bos_id
    assert ends[:, :n].any(dim=1).all() and not ends[:, :n - 1].any(dim=1).all()

@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_a_pattern_that_leaves_nothing_to_write_is_refused(mode):
    with pytest.raises(InputError, match="no .MASK."):
        generate(small_model(mode), range(2), torch.zeros(8, dtype=torch.long), SampleOptions())

# ------------------------------------------------------------------------------------------------ confidence

def confidence_law(oracle):
    """(K^L,): p of every sequence if each step draws all masked tokens and keeps the likeliest."""
    K, L = oracle.config.vocab_size, oracle.L
    reached = {(K,) * L: 1.0}                                       # pattern, K for masked -> probability
    for _ in range(L):
        after = collections.defaultdict(float)
        for pattern, p in reached.items():
            conditional = oracle.conditionals(np.array([pattern]))[0]                               # (L, K)
            masked = [i for i in range(L) if pattern[i] == K]
            for drawn in itertools.product(range(K), repeat=len(masked)):
                each = [conditional[i, v].item() for i, v in zip(masked, drawn)]
                best = int(np.argmax(each))
                revealed = list(pattern)
                revealed[masked[best]] = drawn[best]
                after[tuple(revealed)] += p * np.prod(each)
        reached = after
    return np.array([reached[x] for x in itertools.product(range(K), repeat=L)])

def test_confidence_follows_its_own_law_and_needs_fresh_noise_for_it(monkeypatch):
    """Exact by enumeration; noise that is reused, though any two steps are independent, is told apart."""
    oracle = Oracle("mdlm")
    law = confidence_law(oracle)
    assert law.sum() == pytest.approx(1) and abs(law - oracle.law).max() > 0.01
    assert p_value(oracle, law, sampler="confidence") > 1e-3
    fresh, given = sample.uniforms, []

    def pairwise_independent(generators, length, device):
        given.append(fresh(generators, length, device) if len(given) < 2 else None)
        return given[-1] if len(given) < 3 else (given[1] + (len(given) - 3) * given[0]) % 1

    monkeypatch.setattr(sample, "uniforms", pairwise_independent)
    assert p_value(oracle, law, sampler="confidence") < 1e-6

def test_confidence_keeps_the_likeliest_and_the_penalty_lowers_what_occurs():
    model = small_model("mdlm")
    flags = dict(sampler="confidence", steps=3, temperature=0.8, final_temperature=0.3,
                 repetition_penalty=1.3)
    written = states(model, range(4), **flags)
    assert [(s < 11).sum(dim=1).tolist() for s in written] == [[2] * 4, [5] * 4, [8] * 4]
    assert all((after[before < 11] == before[before < 11]).all()
               for before, after in itertools.pairwise(written))

    first, *_ = states(model, range(4), sampler="confidence", temperature=0)
    position = torch.arange(-1, 8)[None]
    logits = model(torch.tensor([[10] + [11] * 8]), position, position)[0, 1:]
    sure = logits.softmax(dim=-1).amax(dim=-1).argmax()
    assert (first[:, sure] < 11).all()              # at temperature 0 too

    def repeats(**flags):
        tokens = write(model, range(200), sampler="confidence", **flags)
        return sum(8 - len(row.unique()) for row in tokens)
    assert repeats(repetition_penalty=1.3) < repeats() < repeats(final_temperature=0.1)

# ------------------------------------------------------------------------------------------------ the command

def stories(path, folder=""):
    """The stories' lines of a samples file, each with the settings of the first line."""
    first, *rows = map(json.loads, open(os.path.join(folder, path)))
    return [row | first["settings"] for row in rows]

def test_sample_command(trained):
    done = run("sample.py", "--out_dir=out/mdlm", "--num_samples=5", "--steps=4", "--batch_size=2",
               "--json=s.json", "--out=s.jsonl", cwd=trained)
    assert done.returncode == 0 and "obey the grammar" in done.stdout, done.stderr
    summary, = json.load(open(trained / "s.json"))
    assert summary["grammatical"] == 0          # hardly trained
    assert summary["steps"] == 4 and len(summary["first_stories"]) == 3
    rows = stories(trained / "s.jsonl")
    assert [r["story"] for r in rows] == list(range(5))
    assert all(r["steps"] == 4 and r["seed"] == 1337 for r in rows)
    tokenizer = Tokenizer("words", words=TOY.words())
    assert all(tokenizer.decode(r["tokens"]) == r["text"] for r in rows)
    assert all(len(r["tokens"]) == len(r["appeared"]) for r in rows)
    assert all(0 <= step < 4 for r in rows for step in r["appeared"])

def test_what_is_said_of_drafts(trained):
    done = run("sample.py", "--out_dir=out/aogpt", "--num_samples=5", "--full_length", "--draft=3,100",
               "--json=s.json", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert "drafts of 3" in done.stdout
    for summary in json.load(open(trained / "s.json")):
        rounds = [np.bincount(row["appeared"]).tolist() for row in stories(summary["out"], trained)]
        passes = [2 * len(tokens) - (tokens[-1] == 1) for tokens in rounds]
        assert summary["passes"] == pytest.approx(np.mean(passes)) and max(passes) <= 48
        assert summary["tokens_per_pass"] >= 1
        assert all(tokens <= summary["draft"] + 1 for row in rounds for tokens in row)
        os.remove(trained / summary["out"])

@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_prompts_and_blanks(trained, mode):
    done = run("sample.py", f"--out_dir=out/{mode}", "--prompt=One day, a ___ found ___ park.", "--blank=3",
               f"--out={mode}-p.jsonl", cwd=trained)
    assert done.returncode == 0, done.stderr
    tokenizer = Tokenizer("words", words=TOY.words())
    one, found, park = (tokenizer.encode(text) for text in ("One day, a", "found", "park."))
    for row in stories(trained / f"{mode}-p.jsonl"):
        ids = row["tokens"]
        assert ids[:4] == one and ids[7:8] == found and ids[11:] == park and len(ids) == 13
        given = [True] * 4 + [False] * 3 + [True] + [False] * 3 + [True] * 2
        assert [step == -1 for step in row["appeared"]] == given
    done = run("sample.py", f"--out_dir=out/{mode}", "--prompt=One day, a", "--full_length",
               f"--out={mode}-p.jsonl", cwd=trained)
    rows = stories(trained / f"{mode}-p.jsonl")
    assert all(row["tokens"][:4] == one and len(row["tokens"]) == 48 for row in rows)

def test_where_a_story_starts():
    tokenizer = Tokenizer("words", words=TOY.words())
    config = Config("mdlm", vocab_size=len(TOY.words()) + 1, block_size=9)

    def start(windows, **flags):
        return complete(SampleOptions(**flags), config, tokenizer, windows)[1].tolist()
    free = config.mask_id
    one, day = tokenizer.encode("One"), tokenizer.encode("day")
    prompt = tokenizer.encode("One day")
    assert start("aligned") == start("random") == start("paper") == [free] * 9
    assert start("random", prompt="One day") == [*prompt] + [free] * 7
    assert start("aligned", prompt="One ___ day ___", blank=2) == [*one, free, free, *day, free, free]
    for windows in ("aligned", "random", "paper"):      # the last knows no end
        assert complete(SampleOptions(), config, tokenizer, windows)[0].full_length == (windows == "paper")

def test_several_models_and_settings_in_one_call(trained):
    done = run("sample.py", "--out_dir=out/ar,out/mdlm,out/aogpt", "--sampler=ancestral,first_hitting",
               "--steps=48,6", "--num_samples=4", "--json=sweep.json", "--picture=modes.png", cwd=trained)
    assert done.returncode == 0, done.stderr
    summaries = json.load(open(trained / "sweep.json"))
    got = [(s["mode"], s["sampler"], s["steps"], os.path.basename(s["out"])) for s in summaries]
    assert got == [
        ("ar", "first_hitting", 48, "shown.jsonl"),
        *(("mdlm", sampler, steps, f"shown-{sampler}-{steps}.jsonl")
          for sampler in ("ancestral", "first_hitting") for steps in (48, 6)),
        *(("aogpt", "first_hitting", steps, f"shown-{steps}.jsonl") for steps in (48, 6))]
    assert os.path.getsize(trained / "modes.png") > 5000
    os.remove(trained / "modes.png")
    assert all(s["tokens_per_pass"] == pytest.approx(48 / s["steps"]) for s in summaries
               if s["mode"] == "aogpt" or s["sampler"] == "first_hitting")
    for s in summaries:
        os.remove(trained / s["out"])

def test_the_title_says_what_varies(trained, monkeypatch):
    monkeypatch.chdir(trained)
    titles = [job[-1] for job in plan(["out/ar"], {"temperature": [0.5, 1.0]})]
    assert titles == [f"ar, left to right, 48 steps, temperature {t}" for t in ("0.5", "1")]

def test_the_papers_protocol(trained):
    done = run("sample.py", "--out_dir=out/mdlm", "--protocol=paper", "--steps=10", "--json=s.json",
               "--out=s.jsonl", cwd=trained)
    assert done.returncode == 0, done.stderr
    summary, = json.load(open(trained / "s.json"))
    expected = {"sampler": "confidence", "steps": 10, "temperature": 0.8, "final_temperature": 0.32,
                "repetition_penalty": 1.3, "length": 48, "full_length": True}
    assert {k: summary[k] for k in expected} == expected
    cold = SampleOptions(protocol="paper", sampler="confidence", temperature=0.0)
    cold, _ = complete(cold, Config("mdlm"), Tokenizer("words", words=TOY.words()), "paper")
    assert cold.final_temperature == 0      # it falls from the temperature
    done = run("sample.py", "--out_dir=out/mdlm", "--protocol=paper", "--sampler=ancestral", "--json=s.json",
               "--out=s.jsonl", cwd=trained)
    assert done.returncode == 0, done.stderr
    summary, = json.load(open(trained / "s.json"))
    assert summary | {"sampler": "ancestral", "temperature": 0.8, "final_temperature": None} == summary
    words = Tokenizer("words", words=TOY.words())
    config = Config("mdlm", vocab_size=words.vocab_size, block_size=512)
    o, pattern = complete(SampleOptions(protocol="paper", sampler="confidence"), config, words, "paper")
    assert (o.length, o.steps, len(pattern)) == (128, 100, 128)

def test_a_compiled_step_writes_the_same(trained):
    for name, more in (("a", []), ("b", ["--compile"])):
        done = run("sample.py", "--out_dir=out/aogpt", "--num_samples=2", f"--out={name}.jsonl", *more,
                   cwd=trained)
        assert done.returncode == 0, done.stderr
    a, b = ([row["tokens"] for row in stories(trained / f"{name}.jsonl")] for name in "ab")
    assert a == b

def test_what_is_compiled(trained, monkeypatch):
    monkeypatch.chdir(trained)
    jobs = list(plan(["out/ar", "out/mdlm"], {"compile": True}))
    assert [job[0]._compiled_call_impl is not None for job in jobs] == [True, False]
    assert [job[4].compile for job in jobs] == [True, False]
    with pytest.raises(InputError, match="--compile=True means nothing for mdlm"):
        list(plan(["out/mdlm", "out/mdlm"], {"compile": True}))
    done = run("sample.py", "--out_dir=out/ar", "--compile", "--out=c.jsonl", cwd=trained,
               CXX="none", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert done.returncode == 2 and "--compile does not work here" in done.stderr.splitlines()[-1]

def test_bfloat16_weights(trained):
    model = open_model(str(trained / "out/ar"), "cpu", "bfloat16")[0]
    assert (model.head.weight.dtype, model.rotary.dtype) == (torch.bfloat16, torch.float32)
    done = run("sample.py", "--out_dir=out/ar", "--dtype=bfloat16", "--num_samples=2", "--out=s.jsonl",
               cwd=trained)
    assert done.returncode == 0 and len(stories(trained / "s.jsonl")) == 2, done.stderr

def test_an_interrupted_run_keeps_what_it_wrote(trained):
    process = Running("sample.py", "--out_dir=out/mdlm", "--num_samples=100000", "--batch_size=4",
                      "--out=i.jsonl", cwd=trained)
    (trained / "i.jsonl").write_text("an earlier run\n")
    process.wait_for((trained / "i.jsonl.tmp").exists)
    process.wait_for(lambda: (trained / "i.jsonl.tmp").stat().st_size)
    other = run("sample.py", "--out_dir=out/mdlm", "--num_samples=4", "--out=i.jsonl", cwd=trained)
    assert other.returncode == 2 and "another process is writing i.jsonl.tmp" in other.stderr
    done = process.end(signal.SIGINT)
    assert done.returncode == 2 and "ends in .tmp" in done.stderr and "Traceback" not in done.stderr
    assert (trained / "i.jsonl").read_text() == "an earlier run\n"
    rows = stories(trained / "i.jsonl.tmp")
    assert len(rows) % 4 == 0 and [row["story"] for row in rows] == list(range(len(rows)))

def test_show_in_a_pipe_and_in_a_terminal(trained):
    """Several models side by side: at last all of their stories' words, each at its column."""
    command = ["--out_dir=out/mdlm,out/ar", "--num_samples=1", "--show"]
    piped = run("sample.py", *command, cwd=trained)
    assert piped.returncode == 0 and "\x1b" not in piped.stdout and "░" not in piped.stdout
    texts = [stories(trained / f"out/{mode}/shown.jsonl")[0]["text"] for mode in ("mdlm", "ar")]
    assert piped.stdout.endswith("\n\n".join(texts) + "\n\n")
    plain = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    for extra, colour in (({}, True), ({"NO_COLOR": "1"}, False)):
        leader, follower = pty.openpty()
        environment = {**plain, "TERM": "xterm", "COLUMNS": "40", **extra}
        process = subprocess.Popen([sys.executable, os.path.join(ROOT, "sample.py"), *command], cwd=trained,
                                   env=environment, stdout=follower)
        os.close(follower)
        shown = b""
        try:
            while part := os.read(leader, 4096):
                shown += part
        except OSError:                                             # a closed terminal
            pass
        assert process.wait() == 0
        *_, before, last = shown.decode().split("\x1b[J")
        assert "░" not in last and ("\x1b[1;32m" in before) == colour and shown.count("░".encode()) > 100
        words = [[], []]                                            # of each half of the 40 columns
        for column, text in re.findall(r"\x1b\[(\d+)G([^\x1b\r\n]*)", last):
            words[int(column) > 20] += text.split()
        for half, text in zip(words, texts):                        # the title, then the story
            assert "".join(half).endswith(text.replace(" ", "")), last

def test_a_moving_picture(tmp_path):
    """Each token comes at its step of the longest story's; what is given, and the first, at once."""
    panels = [("ar & co", ["One", " <b>", "\n"], [0, 1, 2]), ("mdlm", ["a", " b", "."], [4, -1, 0])]
    draw_moving(panels, str(tmp_path / "f.svg"))
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(tmp_path / "f.svg").getroot()
    texts = [text.text for text in root.iter(svg + "text")]
    assert texts == ["ar & co", "One", "<b>", None, "mdlm", "a", "b", "."]
    when = [float(a.get("keyTimes").removeprefix("0;")) for a in root.iter(svg + "animate")]
    assert when == [0, 0.2, 0.4, 0.8, 0, 0]
    colours = [group.find(svg + "rect").get("fill") for group in root.iter(svg + "g")]
    assert colours == [colours[0]] * 3 + [colours[3], "#e4e4e4", colours[3]] and colours[0] != colours[3]

def test_layout_breaks_between_tokens():
    assert list(layout(["ab", " cd", " ef", " ghijkl", ".", " m"], 7)) == \
        [(0, 0, "ab"), (0, 2, " cd"), (1, 0, "ef"), (2, 0, "ghijkl"), (2, 6, "."), (3, 0, "m")]

@torch.no_grad()
def test_the_sampler_that_one_reads_first_writes_the_same_stories():
    """write_left_to_right, which has no cache."""
    model = small_model("ar")
    for given in (0, 3):
        pattern = torch.tensor([1] * given + [model.config.mask_id] * (8 - given))
        o = SampleOptions(full_length=True, temperature=0.8, top_p=0.9)
        generators = [np.random.default_rng((o.seed, story)) for story in range(20)]
        _, u = (uniforms(generators, 8, torch.device("cpu")) for _ in range(2))     # the first are an order's
        *_, plain = sample.write_left_to_right(model, pattern.expand(20, -1), u, o)
        assert plain.equal(generate(model, range(20), pattern, o)[0])

@torch.no_grad()
def test_mdlm_reads_whole_windows():
    """It writes a shorter text as if the rest of the window were masked, as it has learned to."""
    model = small_model("mdlm")
    hidden = model.config.mask_id
    short = torch.randint(hidden, (20, 5))
    short[:, 2] = hidden
    whole = torch.nn.functional.pad(short, (0, 3), value=hidden)
    now = (torch.arange(8) == 2).expand(20, -1)
    u = torch.rand(20, 8, dtype=torch.float64)
    (a, p), (b, q) = (sample.draw_masked(model, x, now[:, :n], u[:, :n], 1.0, SampleOptions())
                      for x, n in ((short, 5), (whole, 8)))
    assert a.equal(b[:, :5]) and p.equal(q[:, :5]) and (p > 0).sum() == 20
