"""The samplers: their laws, plain and fast forms of the same, and the command as a user runs it."""
import collections
import functools
import itertools
import json
import math
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
from conftest import ROOT, Running, run, small_model
from extras import cache
from samplers import ancestral
from variants import blocks, infill
from extras.prompts import pattern_of
from model import Config, Drawing, draw, mask_batch, probabilities
from tokenizer import Tokenizer
from sample import SampleOptions, generate, noise_of, rows_of
from support.flags import InputError, build, parse_flags, plugin
from worlds.toy import TOY

CPU = torch.device("cpu")
WORDS = Tokenizer("words", words=TOY.words())


def setting(case, make=small_model):
    """The arguments of `generate` for a case like "aogpt/infill 1..2 --sampler=drafts --draft=2".

    That is a mode, maybe a variant, a text whose blanks are points, and flags of sample.py."""
    what, text, *arguments = case.split()
    mode, _, name = what.partition("/")
    name, _, N = name.partition(":")
    variant = plugin("variants", name) if name else plain
    fields = {"block_length": int(N)} if N else {}
    model = make(mode, variant=variant, **fields)
    blank = model.config.mask_id
    pattern = torch.tensor([blank if token == "." else int(token) for token in text])
    with mock.patch.object(sys, "argv", ["sample.py", *arguments]):
        flags = parse_flags("", SampleOptions, plugins={"sampler": "samplers"})
    o = build(SampleOptions, {"full_length": True} | flags)
    write = None
    if o.sampler:
        write = plugin("samplers", o.sampler).sampler(model.config, o, flags)
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
mdlm ....
mdlm .1.2
mdlm .... --order=2,0,3,1
mdlm .... --sampler=ancestral --steps=100
mdlm .... --sampler=adaptive --risk=0
mdlm/blocks:2 ....
mdlm/blocks:3 1.2.
mdlm/blocks:3 1.2. --sampler=adaptive --risk=0
aogpt ....
aogpt .1.2
aogpt .... --order=2,0,3,1
aogpt .... --sampler=adaptive --risk=0
aogpt/blocks:2 ....
aogpt/infill 1..2
aogpt .... --sampler=drafts --draft=4
aogpt ..0. --sampler=drafts --draft=2
aogpt .... --sampler=drafts --draft=3 --order=blocks:3
aogpt/infill 1..2 --sampler=drafts --draft=2
"""


@pytest.mark.parametrize("case", FOLLOW_THE_LAW.strip().splitlines())
def test_one_token_a_pass_follows_the_exact_law(case):
    assert p_value(case) > 1e-3


@pytest.mark.parametrize("case", [
    "mdlm .... --steps=2",
    "mdlm .... --sampler=ancestral --steps=4",
    "mdlm .... --sampler=adaptive --risk=1.5",
    "mdlm .... --sampler=confidence",
    "aogpt .... --steps=2"])
def test_several_tokens_a_pass_do_not(case):
    assert p_value(case) < 1e-6


def test_drafts_have_the_law_of_one_token_a_pass():
    """With top_p and temperature, too: samples of the one and of the other come from one law."""
    make = functools.partial(small_model, vocab_size=K, block_size=L)
    case = "aogpt .... --top_p=0.7 --temperature=0.8"
    one, _ = write(case, range(20_000), make, seed=5)
    drafted, _ = write(f"{case} --sampler=drafts --draft=4", range(20_000), make, seed=6)
    table = np.array([counts_of(one), counts_of(drafted)])
    occur = table.sum(axis=0) > 0
    assert chi2_contingency(table[:, occur]).pvalue > 1e-3


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


def test_the_penalty_makes_repetitions_rarer():
    def repetitions(flags):
        tokens, _ = write(f"mdlm ........ --sampler=confidence {flags}", range(200))
        return sum(8 - len(row.unique()) for row in tokens)

    assert repetitions("--repetition_penalty=1.3") < repetitions("")


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
    """The tail has 2e-6 of the probability. Uniform float32 numbers near 1 have steps of 6e-8, so
    those of a story are in float64."""
    logits = torch.full((4, 1000), -20.0)
    logits[:, 0] = 0.0
    each = math.exp(-20)
    above = [998 * each, 499.5 * each, 2e-9, 1e-3]
    u = 1 - torch.tensor(above, dtype=torch.float64)
    assert draw(probabilities(logits, Drawing()), u).tolist() == [1, 500, 999, 0]
    assert noise_of(1, [0], CPU)(9).dtype == torch.float64

# ---- The same stories ----------------------------------------------------------------------------

@pytest.mark.parametrize("case", [
    "ar 427.....",
    "ar ........ --temperature=0.7",
    "aogpt ........ --temperature=0.7 --top_p=0.8",
    "aogpt 4..2...7 --steps=3",
    "aogpt .....427 --steps=5 --order=7,1,0,2,6,5,3,4",
    "aogpt/infill 42...917",
    "aogpt/infill 4......7 --steps=3",
    "mdlm/blocks:1 427.....",
    "mdlm/blocks:2 ........",
    "mdlm/blocks:3 .2...... --steps=3",
    "mdlm/blocks:5 42.....",
    "mdlm/blocks:7 .2....7. --steps=3"])
def test_a_memory_gives_what_the_network_gives(monkeypatch, case):
    """In every pass the logits are those of model.py's read_slots, which reads all slots anew."""
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
    tokens, appeared = write(case, make=make)
    assert len(checked) == appeared.max() + 1
    again, _ = write(f"{case} --cache=false", make=make)
    assert torch.equal(tokens, again)
    assert len(checked) == appeared.max() + 1       # the second time nobody asked the memory


@pytest.mark.parametrize("flags", [
    "--steps=3", "--sampler=ancestral --steps=8", "--sampler=adaptive --risk=2"])
def test_one_block_after_another(flags):
    _, appeared = write(f"mdlm/blocks:3 .2...... {flags}")
    first, second, third = appeared.split(3, dim=1)                 # (20, 3) each, the last (20, 2)
    assert (first.amax(dim=1) < second.amin(dim=1)).all()
    assert (second.amax(dim=1) < third.amin(dim=1)).all()


@pytest.mark.parametrize("case", [
    "ar 42......",
    "aogpt 4...27..",
    "aogpt 4...27.. --sampler=drafts --draft=3",
    "mdlm 4...27..",
    "mdlm 4...27.. --sampler=ancestral",
    "mdlm 4...27.. --sampler=adaptive",
    "mdlm 4...27.. --sampler=confidence --steps=3",
    "mdlm/blocks:3 42...... --sampler=adaptive"])
def test_a_story_is_the_same_whatever_the_batch(case):
    """And it is complete, and keeps what was given."""
    together, appeared = write(case, range(6))
    alone, _ = write(case, [4])
    others, _ = write(case, range(6), seed=6)
    assert torch.equal(together[4:5], alone)
    assert not torch.equal(together, others)
    assert (together < 11).all()
    pattern = setting(case)[1].expand(6, -1)
    given = pattern < 11
    assert torch.equal(together[given], pattern[given])
    assert torch.equal(appeared < 0, given)


@pytest.mark.parametrize("case, flags", [
    ("ar", ""),
    ("aogpt", "--sampler=drafts --draft=3"),
    ("aogpt", "--steps=11"),
    ("aogpt", "--order=7,1,0,2,6,5,3,4"),
    ("mdlm", "--sampler=confidence --steps=9"),
    ("mdlm/blocks:3", "")])
def test_a_text_longer_than_the_window_goes_on(case, flags):
    """Half a window at a time: what is new is written as after a prompt of the half before."""
    tokens, _ = write(f"{case} 42................. {flags}", range(6))
    assert (tokens < 11).all()
    model, pattern, o, variant, sampler = setting(f"{case} ........ {flags}")
    o = replace(o, seed=5 + 12 * 10 ** 6, steps=math.ceil(o.steps * 4 / 17))
    prompts = torch.cat([tokens[:, 4:8], pattern[:4].expand(6, -1)], dim=1)
    again, _ = generate(model, range(6), prompts, o, variant, sampler)
    assert torch.equal(again, tokens[:, 4:12])


@pytest.mark.parametrize("text", ["aogpt ........", "aogpt .....427", "aogpt/infill 42...917"])
@pytest.mark.parametrize("draft", [1, 2, 20])
def test_drafts(draft, text):
    """Greedy ones are the tokens of one token a pass. A story takes no more passes than tokens."""
    greedy, _ = write(f"{text} --temperature=0")
    drafted, _ = write(f"{text} --temperature=0 --sampler=drafts --draft={draft}")
    assert torch.equal(greedy, drafted)
    _, appeared = write(f"{text} --sampler=drafts --draft={draft} --top_p=0.9")
    assert appeared.max() < text.count(".")
    assert ((appeared == 0).sum(dim=1) == 1).all()      # of the first draft, one is final


@pytest.mark.parametrize("case, expected", [
    ("mdlm .... --order=3,1,0,2", [2, 1, 3, 0]),
    ("aogpt .... --order=3,1,0,2", [2, 1, 3, 0]),
    ("aogpt .2.. --order=left_to_right", [0, -1, 1, 2]),
    ("mdlm/blocks:1 .2..", [0, -1, 1, 2])])
def test_orders(case, expected):
    """When each place is written: a list has the first place first."""
    _, appeared = write(case)
    assert appeared.unique(dim=0).tolist() == [expected]


@pytest.mark.parametrize("text", ["........", "0......."])
def test_ar_stops_when_every_story_has_ended(text):
    """And the passes of each are those to its own end, though its batch goes on."""
    make = functools.partial(small_model, vocab_size=2)
    whole, _ = write(f"ar {text}", range(4), make)
    model, pattern, o, *_ = setting(f"ar {text} --full_length=false", make)
    tokens, appeared = generate(model, range(4), pattern, replace(o, seed=5))
    prompt = 8 - text.count(".")
    ends = [[*row, 1].index(1, prompt) for row in whole.tolist()]
    n = max(ends) + 1
    assert n < 8
    assert torch.equal(tokens[:, :n], whole[:, :n])
    assert (tokens[:, n:] == 2).all()
    written = tokens, appeared, model.config, Tokenizer("words", words=["a"]), o
    for row, end in zip(rows_of(range(4), *written), ends):
        assert row["passes"] == row["written"] == end + 1 - prompt


def test_an_end_of_text_in_a_blank_ends_no_story():
    tokens = torch.tensor([[0, 1, 0, 1]])       # 1 is end-of-text
    appeared = torch.tensor([[-1, 0, -1, 1]])   # -1 was given
    a = Tokenizer("words", words=["a"])
    config = Config("mdlm", vocab_size=2)
    [row] = rows_of([0], tokens, appeared, config, a, SampleOptions())
    assert row["tokens"] == [0, 1, 0]


@torch.no_grad()
def test_mdlm_reads_whole_windows():
    """It writes a shorter text as if the rest of the window were masked, as in training."""
    model = small_model("mdlm")
    short = torch.tensor([[4, 7, 11]])              # 11 is [MASK]
    whole = F.pad(short, (0, 5), value=11)
    order = torch.arange(8)[None]
    [expected] = plain.read_slots(model, whole, order, 2, 3)                    # (1, V)
    [found] = plain.read_slots(model, short, order[:, :3], 2, 3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ancestral.logits_where(model, short, short == 11), expected)


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
        logits = model(*batch[:3], select=torch.arange(20 * 9))                     # (180, V)
        p = probabilities(logits.view(20, 9, 11)[:, 1:], o)
        nats = torch.special.entr(p / p.sum(dim=-1, keepdim=True)).sum(dim=-1)      # (20, 8)
        hidden &= block == block[hidden.any(dim=0)].min()
        surer = (nats[:, None] < nats[:, :, None]) & hidden[:, None]                # (20, 8, 8)
        nats_ahead = (surer * nats[:, None]).sum(dim=2)                             # (20, 8)
        assert torch.equal(appeared == step, hidden & (nats_ahead <= risk))


@pytest.mark.parametrize("case", [
    "aogpt ........ --sampler=drafts --draft=3", "mdlm/blocks:3 ........ --sampler=adaptive"])
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


@pytest.mark.parametrize("mode", ["ar", "aogpt"])
def test_passes_wait_for_no_gpu(mode):
    """A tensor on the device meta has no values, so who asks for one is refused."""
    net = small_model(mode).to("meta")
    tokens = torch.full((4, 8), net.config.mask_id, device="meta")
    order = torch.arange(8, device="meta").expand(4, -1)
    u = torch.zeros(4, 8, dtype=torch.float64, device="meta")
    for read in plain.read_slots, cache.Cache(net):
        passes = plain.write(net, tokens, order, [0, 2, 4, 6, 8], u, Drawing(), read)
        assert [after.shape for after in passes] == 4 * [tokens.shape]


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
    (INFILL, "One ___ day", 0, "x..x"),
    (INFILL, "___ day", 0, NOT_ONE),
    (INFILL, "One ___ day ___ a", 0, NOT_ONE),
    (INFILL, "One ___ day", 8, NOT_ONE),
    (MDLM, "One _ day __, _.", 0, "x.x..x.x"),
    (MDLM, "One ____ day", 0, "x...x"),
    (MDLM, "______", 0, "...."),
    (MDLM, "One___day", 0, "x..x"),
    (MDLM, "One____day_______", 0, "x..x.."),
    (MDLM, "One d_y", 0, "the word 'd_y' is none of"),
    (MDLM, "One _day", 0, "the word '_day' is none of"),
    (BLOCKS, "One day, a", 0, "xxxx....."),
    (BLOCKS, "One day ___", 0, "xx.."),
    (BLOCKS, "___ day", 0, "..x"),
    (BLOCKS, "One ___ day", 0, "words in a later block than a blank")])
def test_what_is_to_be_written(config, prompt, length, expected):
    o = SampleOptions(prompt=prompt, length=length, blank=2)
    try:
        variant = sys.modules[type(config).__module__]
        pattern = pattern_of(o, config, WORDS, "aligned", variant)
        assert "".join("." if i == config.mask_id else "x" for i in pattern.tolist()) == expected
    except InputError as e:
        assert expected in str(e)

# ---- The command ---------------------------------------------------------------------------------

def stories_in(path):
    """The stories' lines of a file."""
    first, *rows = map(json.loads, open(path))
    assert first["settings"]["seed"] == 1337
    return rows


def test_sample_command(trained):
    flags = ["--num_samples=5", "--steps=4", "--batch_size=2", "--out=s.jsonl", "--json=s.json"]
    done = run("sample.py", "--out_dir=out/mdlm", *flags, cwd=trained)
    assert done.returncode == 0, done.stderr
    summary = json.loads((trained / "s.json").read_text())
    assert summary["grammatical"] == 0          # it has hardly been trained
    assert summary["steps"] == 4
    rows = stories_in(trained / "s.jsonl")
    assert [row["story"] for row in rows] == list(range(5))
    assert rows[2]["text"] in done.stdout
    for row in rows:
        assert WORDS.decode(row["tokens"]) == row["text"]
        assert len(row["pieces"]) == len(row["tokens"]) == len(row["appeared"])
        assert set(row["appeared"]) <= {0, 1, 2, 3}


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
    """A new file of samplers/ is chosen by its name, and brings flags of its own."""
    for part in "extras", "samplers", "support", "variants", "worlds":
        shutil.copytree(Path(ROOT, part), tmp_path / part)
    for file in Path(ROOT).glob("*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "samplers/mine.py").write_text(MINE)
    flags = ["--out_dir=out/ar", "--sampler=mine", "--word=5", "--out=mine.jsonl"]
    done = run(tmp_path / "sample.py", *flags, cwd=trained, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    for row in stories_in(trained / "mine.jsonl"):
        assert row["tokens"] == [5] * 48


def test_an_interrupted_command_keeps_what_it_wrote(trained):
    arguments = ["--out_dir=out/mdlm", "--num_samples=100000", "--batch_size=4", "--out=i.jsonl"]
    process = Running("sample.py", *arguments, cwd=trained)
    old, new = trained / "i.jsonl", trained / "i.jsonl.tmp"
    old.write_text("an earlier call\n")
    process.wait_for(new.exists)
    process.wait_for(lambda: new.stat().st_size)
    other = run("sample.py", "--out_dir=out/mdlm", "--out=i.jsonl", cwd=trained)
    assert "another process is writing i.jsonl" in other.stderr
    done = process.end(signal.SIGINT)
    assert done.returncode == 2
    assert "ends in .tmp" in done.stderr
    assert "Traceback" not in done.stderr
    assert old.read_text() == "an earlier call\n"
    rows = stories_in(new)
    assert [row["story"] for row in rows] == list(range(len(rows)))
    assert len(rows) % 4 == 0
