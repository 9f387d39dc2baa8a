"""How texts are written and what they cost: every sampler of samplers/ with every kind of model.

What holds of every way to write is tested of all that are there; those that a sampler refuses for a
kind of model are left out."""
import collections
import functools
import itertools
import json
import math
import operator
import os
import signal
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.testing import assert_close

import extras.cache
import model as plain
from conftest import run
from extras import score
from model import Config, Drawing, draw, draw_with, probabilities, read_masked, read_next
from sample import (
    SampleOptions, check_flags, check_pattern, generate, noise_of, pattern_of, rows_of, sampler_of,
    summary_of, times_of)
from samplers import adaptive
from support.flags import InputError, build, names_in, parse_flags
from support.rows import open_locked
from test_model import T, every_text, kinds, make, p_value, rng
from tokenizer import EOT, Tokenizer
from variants import blocks
from worlds.toy import TOY

CPU = torch.device("cpu")
make_float32 = functools.partial(make, dtype=torch.float32)
WORDS = Tokenizer("words", words=TOY.words())


def setting(case, make=make):
    """A case like "aogpt/infill 1..2 --sampler=drafts --draft=2": its model, pattern and flags, and
    what makes its sampler. That is a kind of model, a text whose blanks are points, and flags."""
    kind, text, *arguments = case.split()
    model = make(kind)
    blank = model.config.mask_id
    pattern = torch.tensor([blank if token == "." else int(token) for token in text])
    with mock.patch.object(sys, "argv", ["sample.py", *arguments]):
        flags = parse_flags("", SampleOptions, plugins={"sampler": "samplers"})
    o = build(SampleOptions, {"full_length": True} | flags)
    return model, pattern, o, sampler_of(model.config, o, flags)[0]


def write(case, stories=range(20), make=make, seed=5):
    """The tokens (B, L) of the stories, and the pass (B, L) at which each appeared."""
    model, pattern, o, make_sampler = setting(case, make)
    o = replace(o, seed=seed)
    return generate(model, stories, pattern, o, make_sampler)


def is_accepted(case):
    try:
        model, pattern, o, make_sampler = setting(case)
        make_sampler(model.config, o)
        check_flags(o, model.config)
        check_pattern(model.config, pattern)
    except InputError:
        return False
    return True


# Each sampler with flags by which it may write several tokens in a pass, and without.
FLAGS = {
    "": ["", "--steps=2"],
    "adaptive": ["--risk=0", "--risk=0.1", "--risk=1"],
    "ancestral": ["", "--steps=3"],
    "drafts": ["--draft=1", "--draft=3"]}
WRITERS = {}                    # kinds that write in different ways
for kind in kinds().args[1]:
    row = make(kind).config.row
    WRITERS.setdefault((row.causal, row.orders, row.times, row.plan, row.network), kind)
WAYS, FEW = [], {}              # all, and one for each sampler and kind
for kind, name in itertools.product(WRITERS.values(), ["", *names_in("samplers")]):
    for flags in FLAGS.get(name, [""]):
        way = f"{kind} .... {name and '--sampler='}{name} {flags}"
        if is_accepted(way):
            WAYS.append(way)
            FEW[kind, name] = way
every_way = pytest.mark.parametrize("way", FEW.values())


# ---- The law of a way to write -------------------------------------------------------------------

def four_tokens(kind):
    """Of four words, so that there are 256 texts."""
    return make(kind, vocab_size=4, block_size=T)


def costs(case):
    """−ln p (256,) of every text under the sampler, all written at the same times."""
    model, _, o, make_sampler = setting(case, four_tokens)
    x = every_text(4, T)
    sampler = make_sampler(model.config, o)
    return score.cost_of_writing(model, x, x >= 0, sampler, o, [7] * len(x))[0]


def law_of(case, rule):
    """(256,) the probability of each text, if a pass draws a token for every place that is left,
    and rule(nats, chances), of the place and of what was drawn there, says which are kept."""
    model, blank, o, _ = setting(case, four_tokens)
    law = torch.zeros(4 ** T, dtype=torch.float64)

    def go_on(written, chance):
        """From {place: token} in the order written, which is reached with this chance."""
        left = [place for place in range(T) if place not in written]
        if hasattr(model.config, "block_length"):
            left = [place for place in left if place // 3 == left[0] // 3]
        tokens = blank.clone()
        for place, token in written.items():
            tokens[place] = token
        if not left:
            law[(tokens * 4 ** torch.arange(T - 1, -1, -1)).sum()] += chance
            return
        order = torch.tensor([[*written, *left]])
        logits = read_next(model, tokens[None], order, len(written), order.size(1))[0]  # (n, V)
        nats = torch.special.entr(logits.softmax(dim=1)).sum(dim=1).tolist()
        p = probabilities(logits, o).tolist()
        after = collections.Counter()
        for drawn in itertools.product(range(4), repeat=len(left)):
            chances = list(map(operator.getitem, p, drawn))
            new = itertools.compress(zip(left, drawn), rule(nats, chances))
            after[tuple(new)] += math.prod(chances)
        for new in after:
            go_on(written | dict(new), chance * after[new] / after.total())

    go_on({}, 1.0)
    return law


def the_likeliest(nats, chances):
    return [chance == max(chances) for chance in chances]


def read_alike_once(model):
    """From now on the network reads rows that are alike once, for there are few different ones."""
    forward = model.forward

    def read(tokens, key_pos, target_pos, select, **more):
        B, S = tokens.shape
        slots = torch.stack([tokens, key_pos.expand(B, S), target_pos.expand(B, S)])    # (3, B, S)
        slots, which = slots.unique(dim=1, return_inverse=True)                 # (3, n, S), (B,)
        logits = forward(*slots, torch.arange(slots[0].numel()))                # (n·S, V)
        return logits[which[select // S] * S + select % S]

    model.forward = read


def within_risk(nats, chances, risk):
    """A token is kept if the entropies of all surer ones sum to at most the risk."""
    return [sum(other for other in nats if other < own) <= risk for own in nats]


SHARPER = "--temperature=0.7 --top_p=0.9"


@torch.no_grad()
@pytest.mark.parametrize("way", [way for way in WAYS if "/" not in way or way in FEW.values()])
def test_texts_are_written_as_often_as_their_score_says(way):
    """And the scores of all texts are those of a law. What looks at what it drew has no score, but
    drafts have the law of one token a pass. That of uniform is asked for in test_uniform.py."""
    case = f"{way} {SHARPER}"
    model, pattern, o, make_sampler = setting(case, four_tokens)
    if "adaptive" in way:
        rule = functools.partial(within_risk, risk=float(way.partition("risk=")[2]))
        law = law_of(case, rule)
        assert_close(costs(case).neg().exp(), law)
    elif "confidence" in way or "drafts" in way or "=uniform" in way:
        with pytest.raises(InputError, match="^.+$"):
            costs(case)
        if "=uniform" in way:
            return
        plainly = f"{way.split(' ')[0]} .... {SHARPER}"
        law = costs(plainly).neg().exp() if "drafts" in way else law_of(case, the_likeliest)
    else:
        law = costs(case).neg().exp()
    assert law.sum().item() == pytest.approx(1, abs=1e-9)
    numbers = rng()
    remembers = model.config.row.causal and "sampler" in way      # each row of its own
    if not remembers:
        read_alike_once(model)
    N = 2_000 if remembers else 10_000
    times = times_of(model.config, o, noise_of(o.seed, [7], CPU)(T)).expand(N, -1)

    def noise(n):
        return torch.rand(N, n, dtype=torch.float64, generator=numbers)

    written = []
    for _ in range(10):
        sampler = make_sampler(model.config, replace(o, cache=remembers))
        for tokens in sampler(model, pattern.expand(N, -1), times, draw_with(noise(T), o), noise):
            pass
        written.append(tokens)
    assert p_value(torch.cat(written), law) > 1e-3


# ---- Drawing a token -----------------------------------------------------------------------------

@pytest.mark.parametrize("drawing, expected", [
    (Drawing(), [500, 300, 150, 50]),
    (Drawing(top_p=0.7), [625, 375]),
    (Drawing(temperature=0.5), [685, 247, 62, 7]),      # in proportion to p²
    (Drawing(temperature=0), [1000])])
def test_draw_obeys_temperature_and_top_p(drawing, expected):
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(1000, 4)
    u = torch.arange(1000, dtype=torch.float64) / 1000
    tokens = draw(probabilities(logits, drawing), u)
    assert torch.bincount(tokens).tolist() == pytest.approx(expected, abs=1)


def test_draw_is_exact_in_the_tail():
    """float32 would cut off the last tokens, and uniform float32 numbers near 1 are too coarse."""
    each = math.exp(-20)
    logits = torch.tensor([0.0] + 999 * [-20.0])
    u = 1 - torch.tensor([998 * each, 499.5 * each, 2e-9], dtype=torch.float64)
    assert draw(probabilities(logits, Drawing()), u).tolist() == [1, 500, 999]
    assert noise_of(1, [0], CPU)(9).dtype == torch.float64


@every_way
def test_any_temperature_ends_and_the_smallest_are_zero(way):
    coldest, when = write(f"{way} --temperature=0", range(5), make_float32)
    for temperature, top_p in itertools.product([1e-45, 1e-9, 0.1, 1e4], [1, 0.5]):
        case = f"{way} --temperature={temperature} --top_p={top_p}"
        tokens, appeared = write(case, range(5), make_float32)
        assert (tokens < 11).all()
        if temperature < 1e-6:
            assert torch.equal(tokens, coldest)
            assert torch.equal(appeared, when)


# ---- The same texts ------------------------------------------------------------------------------

TEXTS = ["........", "427.....", "4..2...7", "42....", ".2....7.", "42...917"]


def ways_with(texts, ways=FEW.values()):
    """Of these ways all that can write these texts."""
    cases = [way.replace("....", text) for way in ways for text in texts]
    return pytest.mark.parametrize("case", list(filter(is_accepted, cases)))


def has_memory(way):
    row = setting(way)[0].config.row
    return "sampler" not in way and (row.causal or row.reader)


@ways_with(TEXTS, list(filter(has_memory, WAYS)))
def test_a_memory_gives_what_the_network_gives(monkeypatch, case):
    """In every pass the logits are those of model.py's read_next, which reads all slots anew. With
    --cache=false nobody asks the memory."""
    checked = []
    for memory in extras.cache.Cache, blocks.BlockReader:
        def read(self, model, *slots, fast=memory.__call__):
            logits = fast(self, model, *slots)
            assert_close(logits, read_next(model, *slots))
            checked.append(slots)
            return logits

        monkeypatch.setattr(memory, "__call__", read)
    tokens, appeared = write(case)
    again, _ = write(f"{case} --cache=false")
    assert torch.equal(tokens, again)
    assert len(checked) == appeared.max() + 1


@ways_with(["........", "42......"])
def test_a_text_is_complete_and_the_same_whatever_the_batch(case):
    """And it keeps what was given; also where autocast rounds the numbers."""
    together, appeared = write(case, range(6), make_float32)
    alone, _ = write(case, [4], make_float32)
    others, _ = write(case, range(6), make_float32, seed=6)
    assert torch.equal(together[4:5], alone)
    assert not torch.equal(together, others)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = write(case, range(6), make_float32)
    pattern = setting(case)[1].expand(6, -1)
    given = pattern < 11
    assert torch.equal(appeared < 0, given)
    for tokens in together, rounded:
        assert (tokens < 11).all()
        assert torch.equal(tokens[given], pattern[given])
    if torch.cuda.is_available():
        on_gpu, _ = write(case, range(6), lambda kind: make_float32(kind).cuda())
        assert torch.equal(together, on_gpu.cpu())


@pytest.mark.parametrize("kind", WRITERS.values())
def test_a_text_longer_than_the_window_goes_on(kind):
    """Half a window at a time: what is new is written as after a prompt of the half before."""
    tokens, _ = write(f"{kind} 42...............", range(6))
    assert (tokens < 11).all()
    model, blank, o, make_sampler = setting(f"{kind} ........")
    prompts = torch.cat([tokens[:, 4:8], blank[:4].expand(6, -1)], dim=1)
    again, _ = generate(model, range(6), prompts, replace(o, seed=5 + 12 * 10 ** 6), make_sampler)
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
    ("mdlm ...... --order=blocks:3 --steps=2", [0, 0, 0, 1, 1, 1]),
    ("mdlm/blocks .2...... --steps=3", [-1, 0, 0, 1, 1, 2, 3, 3])])
def test_when_each_place_is_written(case, expected):
    """A list has the first place first, but inside a block any order will do."""
    _, appeared = write(case)
    if "blocks " in case:
        block = torch.arange(8) // 3
        appeared = (appeared + 9 * block).sort(dim=1).values - 9 * block
    assert appeared.unique(dim=0).tolist() == [expected]


def test_ancestral_reveals_each_token_in_the_step_of_its_time():
    """And a step that reveals nothing of a text is no pass of it."""
    _, appeared = write("mdlm ........ --sampler=ancestral --steps=5")
    steps = (noise_of(5, range(20), CPU)(8) * 5).long()                         # (20, 8)
    passes = [row.unique(return_inverse=True)[1] for row in steps]
    assert torch.equal(appeared, torch.stack(passes))


def test_the_penalty_makes_repetitions_rarer():
    def repetitions(flags):
        tokens, _ = write(f"mdlm ........ --sampler=confidence {flags}", range(200))
        return sum(8 - len(row.unique()) for row in tokens)

    assert repetitions("--repetition_penalty=1.3") < repetitions("")


@pytest.mark.parametrize("text", ["........", "1......."])
def test_ar_stops_when_every_story_has_ended(text):
    """And the passes of each are those to its own end, though its batch goes on. An end-of-text
    in the prompt, which here is 1, ends no story."""
    two_words = functools.partial(make_float32, vocab_size=2)
    whole, _ = write(f"ar {text}", range(4), two_words)
    case = f"ar {text} --full_length=false"
    tokens, appeared = write(case, range(4), two_words)
    prompt = 8 - text.count(".")
    ends = [[*row, 1].index(1, prompt) for row in whole.tolist()]
    n = max(ends) + 1
    assert prompt < n < 8
    assert torch.equal(tokens[:, :n], whole[:, :n])
    assert (tokens[:, n:] == 2).all()
    model, _, o, _ = setting(case, two_words)
    a = Tokenizer("words", words=["a"])
    for row, end in zip(rows_of(range(4), tokens, appeared, model.config, a, o), ends):
        assert row["passes"] == row["written"] == end + 1 - prompt


def test_an_end_of_text_in_a_blank_ends_no_story():
    tokens, appeared = torch.tensor([[7, 256, 7, 256]]), torch.tensor([[-1, 0, -1, 1]])
    config, words = Config("mdlm", vocab_size=257), Tokenizer("bytes")
    [row] = rows_of([0], tokens, appeared, config, words, SampleOptions())
    assert row["tokens"] == [7, 256, 7]


@torch.no_grad()
def test_a_short_text_is_read_as_if_the_rest_of_the_window_were_masked():
    model, whole = make("mdlm"), torch.tensor([[4, 7] + 6 * [11]])          # 11 is [MASK]
    row, place = torch.tensor([0]), torch.tensor([2])
    found, expected = (read_masked(model, x, row, place) for x in (whole[:, :3], whole))
    assert torch.equal(found, expected)


# ---- What is asked for ---------------------------------------------------------------------------

WRITTEN = """
mdlm:  = ? ? ? ? ? ? ? ? ?
mdlm: One day = One day ? ? ? ? ? ? ?
mdlm: One ___ day ___ = One ? ? day ? ?
mdlm: One _ day __, _. = One ? day ? ? , ? .
mdlm: _ One _______ day = ? One ? ? ? ? ? day
mdlm: ______ = ? ? ? ?
mdlm: One___day___. = One ? ? day ? ? .
mdlm: One <|endoftext|> day = One <|endoftext|> day ? ? ? ? ? ?
mdlm: <|endoftext|>One day = One day ? ? ? ? ? ? ?
mdlm: FILE:prompt.txt = One day , a ? ? ? ? ?
mdlm: One d_y = refused
mdlm: One _day = refused
ar: One ___ day = refused
ar: One day ___ = One day ? ?
aogpt/infill: One ___ day = One ? ? day
aogpt/infill: ___ day = refused
aogpt/infill: One ___ day ___ a = refused
mdlm/blocks: One day, a = One day , a ? ? ? ? ?
mdlm/blocks: One day ___ = One day ? ?
mdlm/blocks: ___ day = ? ? day
mdlm/blocks: One ___ day = refused
"""


@pytest.mark.parametrize("line", WRITTEN.strip().splitlines())
def test_what_is_to_be_written(workdir, line):
    """What is a question mark, after a prompt, or in the blanks of one. A blank has two tokens, or
    between words one for each _ less than three."""
    kind, rest = line.split(": ")
    prompt, expected = rest.split(" = ")
    (workdir / "prompt.txt").write_text("One day, a\n")
    config = make(kind, vocab_size=WORDS.vocab_size, block_size=9).config
    o = SampleOptions(prompt=prompt, blank=2)
    if expected == "refused":
        with pytest.raises(InputError, match="^.+$"):
            pattern_of(o, config, WORDS, "aligned")
    else:
        words = [*WORDS.words, EOT, "?"]
        found = pattern_of(o, config, WORDS, "aligned").tolist()
        assert [words[i] for i in found] == expected.split()


def test_blanks_between_bytes():
    config = Config("mdlm", vocab_size=257, block_size=9)
    o = SampleOptions(prompt="x_ ___ a ", blank=2)
    found = pattern_of(o, config, Tokenizer("bytes"), "random")
    assert found.tolist() == [*b"x_ ", 257, 257, *b" a "]


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
    assert (summary["grammatical"], summary["steps"]) == (0, 4)     # it has hardly been trained
    rows = stories_in(trained / "s.jsonl")
    assert [row["story"] for row in rows] == list(range(5))
    assert rows[2]["text"] in done.stdout
    for row in rows:
        assert WORDS.decode(row["tokens"]) == row["text"]
        assert len(row["pieces"]) == len(row["tokens"]) == len(row["appeared"])
        assert set(row["appeared"]) <= {0, 1, 2, 3}


def test_an_interrupted_command_keeps_what_it_wrote(trained, call, monkeypatch):
    """In a file of its own, which meanwhile no other call can write."""
    monkeypatch.chdir(trained)
    old, new = trained / "i.jsonl", trained / "i.jsonl.tmp"
    old.write_text("an earlier call\n")
    batches, write = [], plain.write

    def write_and_stop(*given):
        batches.append(given)
        if len(batches) == 3:
            with pytest.raises(InputError, match="i.jsonl"):
                open_locked(new)
            os.kill(os.getpid(), signal.SIGINT)
        return write(*given)

    monkeypatch.setattr(plain, "write", write_and_stop)
    done = call("sample.py", "--out_dir=out/mdlm", "--num_samples=99", "--batch_size=4",
                "--out=i.jsonl")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and ".tmp" in done.stderr
    assert old.read_text() == "an earlier call\n"
    assert [row["story"] for row in stories_in(new)] == list(range(8))


def test_tokens_a_pass_are_those_of_all_stories():
    rows = [{"passes": 1, "written": 4}, {"passes": 3, "written": 3}]
    found = summary_of(rows, Tokenizer("bytes"), SampleOptions(), "anywhere")
    assert (found["passes"], found["tokens_per_pass"]) == (2, 7 / 4)


def test_the_risk_is_the_sum_of_all_that_is_surer():
    nats = torch.tensor([[0.5, torch.inf, 0.3, 0.4]])       # the second is known
    found = [adaptive.within_risk(nats, risk)[0].tolist() for risk in (0.6, 0.8)]
    assert found == [[False, False, True, True], [True, False, True, True]]
