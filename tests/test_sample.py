"""How texts are written and what they cost: every sampler of samplers/ with every kind of model.

What holds of every way to write is tested of all that are there; those that a sampler refuses for a
kind of model are left out."""
import collections
import functools
import itertools
import json
import math
import operator
import signal
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.testing import assert_close

import extras.cache
import model as plain
from conftest import Running, run
from extras import score
from model import Config, Drawing, draw, draw_with, probabilities, read_masked, read_next
from sample import (
    SampleOptions, check_flags, check_pattern, generate, noise_of, pattern_of, rows_of, sampler_of,
    summary_of, times_of)
from samplers import adaptive
from support.flags import InputError, build, names_in, options_of, parse_flags, plugin
from test_model import T, every_text, kinds, make, p_value, rng
from tokenizer import Tokenizer
from train import Settings
from variants import blocks
from worlds.toy import TOY

CPU = torch.device("cpu")
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


def costs(case, x=every_text(4, T), new=T):
    """−ln p (B,) of the last tokens of texts under the sampler, all written at the same times."""
    model, _, o, make_sampler = setting(case, four_tokens)
    hidden = torch.arange(T).expand_as(x) >= T - new
    sampler = make_sampler(model.config, o)
    nats, _ = score.cost_of_writing(model, x, hidden, sampler, o, [7] * len(x))
    return nats


def law_of(case, rule):
    """(256,) the probability of each text, if a pass draws a token for every place that is left,
    and rule(logits (n, V), p) gives the function that says which of the drawn ones are kept."""
    model, blank, o, _ = setting(case, four_tokens)
    reached = {(): 1.0}         # {(place, token) in the order written: the probability}
    for _ in range(T):
        after = collections.defaultdict(float)
        for written, chance in reached.items():
            known = len(written)
            left = [place for place in range(T) if place not in dict(written)]
            if not left:
                after[written] += chance
                continue
            if hasattr(model.config, "block_length"):
                left = [place for place in left if place // 3 == left[0] // 3]
            order = torch.tensor([[*dict(written), *left]])
            tokens = blank.clone()[None]
            for place, token in written:
                tokens[0, place] = token
            logits = read_next(model, tokens, order, known, order.size(1))[0]       # (n, V)
            p = probabilities(logits, o)
            keep = rule(logits, p.tolist())
            p = (p / p.sum(dim=1, keepdim=True)).tolist()
            for drawn in itertools.product(range(4), repeat=len(left)):
                new = [pair for pair, kept in zip(zip(left, drawn), keep(drawn)) if kept]
                after[*written, *new] += chance * math.prod(map(operator.getitem, p, drawn))
        reached = after
    law = collections.defaultdict(float)
    for written, chance in reached.items():
        law[tuple(token for _, token in sorted(written))] += chance
    texts = itertools.product(range(4), repeat=T)
    return torch.tensor([law[text] for text in texts], dtype=torch.float64)


def the_likeliest(logits, p):
    def keep(drawn):
        chances = list(map(operator.getitem, p, drawn))
        return [chance == max(chances) for chance in chances]

    return keep


def within_risk(logits, p, risk):
    """A token is kept if the entropies of all surer ones sum to at most the risk."""
    nats = torch.special.entr(logits.softmax(dim=1)).sum(dim=1)
    sure = [nats[nats < own].sum() <= risk for own in nats]
    return lambda drawn: sure


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
        for case in f"{way} --temperature=9 --top_p=0.5", case:
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
    N, numbers = 5000, rng()
    times = times_of(model.config, o, noise_of(o.seed, [7], CPU)(T)).expand(N, -1)

    def noise(n):
        return torch.rand(N, n, dtype=torch.float64, generator=numbers)

    sampler = make_sampler(model.config, o)
    for tokens in sampler(model, pattern.expand(N, -1), times, draw_with(noise(T), o), noise):
        pass
    assert p_value(tokens, law) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mdlm", "aogpt"])
def test_random_order_is_a_bound_and_the_mean_over_orders(kind):
    """Of the last three tokens after the first, both as a sampler writes and by the quick way. What
    top_p forbids costs infinitely much."""
    assert costs(f"{kind} .... --top_p=0.5").isinf().any()
    texts = every_text(4, T)
    orders = list(itertools.permutations(range(1, T)))
    nats = torch.stack([costs(f"{kind} .... --order=0,{','.join(map(str, order))}", new=3)
                        for order in orders])                                   # (6, 256)
    assert (nats.mean(dim=0) > -nats.neg().exp().mean(dim=0).log()).all()       # Jensen
    model, _, o, make_sampler = setting(f"{kind} ....", four_tokens)
    x, sampler = texts[77].expand(8000, -1), make_sampler(model.config, o)
    hidden = torch.arange(T).expand_as(x) > 0
    found, passes = score.cost_of_writing(model, x, hidden, sampler, o, range(8000))
    assert (passes == 3).all()
    for values in found, score.losses_in_parts(model, score.part_batch(model.config, x, 3, rng())):
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - nats[:, 77].mean()) < 5 * error


def test_a_text_longer_than_the_window_is_scored_in_parts():
    """By the chain rule: two new tokens after the two before, again and again, the last alone."""
    model, _, o, make_sampler = setting("ar ....", four_tokens)
    ids = [0, 3, 1, 2, 2, 0, 1]
    [whole] = score.score_writing(model, [ids], make_sampler(model.config, o), o)
    parts = [(ids[:4], 4), (ids[2:6], 2), (ids[3:7], 1)]
    expected = sum(costs("ar ....", x=torch.tensor([part]), new=new) for part, new in parts).item()
    assert whole == pytest.approx((expected, 0, 7, 7))
    [quick] = score.score_texts(model, [ids])
    assert quick[:3] == pytest.approx(whole[:3])


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
    """The tail has 2e-6 of the probability. Uniform float32 numbers near 1 have steps of 6e-8, so
    those of a story are in float64."""
    logits = torch.full((4, 1000), -20.0)
    logits[:, 0] = 0.0
    each = math.exp(-20)
    above = [998 * each, 499.5 * each, 2e-9, 1e-3]
    u = 1 - torch.tensor(above, dtype=torch.float64)
    assert draw(probabilities(logits, Drawing()), u).tolist() == [1, 500, 999, 0]
    assert noise_of(1, [0], CPU)(9).dtype == torch.float64


@every_way
def test_any_temperature_ends_and_the_smallest_are_zero(way):
    make_any = functools.partial(make, dtype=torch.float32)
    coldest, when = write(f"{way} --temperature=0", range(5), make_any)
    for temperature, top_p in itertools.product([1e-45, 1e-38, 1e-9, 0.1, 30, 1e4], [1, 0.5]):
        case = f"{way} --temperature={temperature} --top_p={top_p}"
        tokens, appeared = write(case, range(5), make_any)
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
    """In every pass the logits are those of model.py's read_next, which reads all slots anew."""
    checked = []
    for module, name in (extras.cache, "Cache"), (blocks, "BlockReader"):
        def read(self, model, *slots, fast=getattr(module, name).__call__):
            logits = fast(self, model, *slots)
            assert_close(logits, read_next(model, *slots))
            checked.append(slots)
            return logits

        monkeypatch.setattr(getattr(module, name), "__call__", read)
    tokens, appeared = write(case)
    assert len(checked) == appeared.max() + 1
    again, _ = write(f"{case} --cache=false")
    assert torch.equal(tokens, again)
    assert len(checked) == appeared.max() + 1       # the second time nobody asked the memory


@ways_with(["........", "42......"])
def test_a_text_is_complete_and_the_same_whatever_the_batch(case):
    """And it keeps what was given; also where autocast rounds the numbers."""
    make_any = functools.partial(make, dtype=torch.float32)
    together, appeared = write(case, range(6), make_any)
    alone, _ = write(case, [4], make_any)
    others, _ = write(case, range(6), make_any, seed=6)
    assert torch.equal(together[4:5], alone)
    assert not torch.equal(together, others)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = write(case, range(6), make_any)
    pattern = setting(case)[1].expand(6, -1)
    given = pattern < 11
    assert torch.equal(appeared < 0, given)
    for tokens in together, rounded:
        assert (tokens < 11).all()
        assert torch.equal(tokens[given], pattern[given])
    if torch.cuda.is_available():
        on_gpu, _ = write(case, range(6), lambda kind: make_any(kind).cuda())
        assert torch.equal(together, on_gpu.cpu())


@every_way
def test_a_text_longer_than_the_window_goes_on(way):
    """Half a window at a time: what is new is written as after a prompt of the half before."""
    tokens, _ = write(way.replace("....", "42................."), range(6))
    assert (tokens < 11).all()
    model, pattern, o, make_sampler = setting(way.replace("....", "........"))
    prompts = torch.cat([tokens[:, 4:8], pattern[:4].expand(6, -1)], dim=1)
    o = replace(o, seed=5 + 12 * 10 ** 6, steps=math.ceil(o.steps * 4 / 17))
    if is_accepted(way.replace("....", "4444....")):
        again, _ = generate(model, range(6), prompts, o, make_sampler)
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
    ("mdlm/blocks .2...... --steps=3", [0, -1, 0, 1, 1, 2, 3, 3])])
def test_when_each_place_is_written(case, expected):
    """A list has the first place first, but inside a block any order will do."""
    _, appeared = write(case)
    parts = zip(appeared.split(3, dim=1), torch.tensor(expected).split(3))
    if "blocks" in case:
        for found, wanted in parts:
            assert torch.equal(found.sort(dim=1).values, wanted.sort().values.expand_as(found))
    else:
        assert appeared.unique(dim=0).tolist() == [expected]


def test_ancestral_reveals_each_token_in_the_step_of_its_time():
    _, appeared = write("mdlm ........ --sampler=ancestral --steps=3")
    u = noise_of(5, range(20), CPU)(8)
    assert torch.equal(appeared, (u * 3).long())


def test_the_penalty_makes_repetitions_rarer():
    def repetitions(flags):
        tokens, _ = write(f"mdlm ........ --sampler=confidence {flags}", range(200))
        return sum(8 - len(row.unique()) for row in tokens)

    assert repetitions("--repetition_penalty=1.3") < repetitions("")


@pytest.mark.parametrize("text", ["........", "1......."])
def test_ar_stops_when_every_story_has_ended(text):
    """And the passes of each are those to its own end, though its batch goes on. An end-of-text
    in the prompt, which here is 1, ends no story."""
    make_any = functools.partial(make, vocab_size=2, dtype=torch.float32)
    whole, _ = write(f"ar {text}", range(4), make_any)
    model, pattern, o, _ = setting(f"ar {text} --full_length=false", make_any)
    tokens, appeared = generate(model, range(4), pattern, replace(o, seed=5))
    prompt = 8 - text.count(".")
    ends = [[*row, 1].index(1, prompt) for row in whole.tolist()]
    n = max(ends) + 1
    assert prompt < n < 8
    assert torch.equal(tokens[:, :n], whole[:, :n])
    assert (tokens[:, n:] == 2).all()
    written = tokens, appeared, model.config, Tokenizer("words", words=["a"]), o
    for row, end in zip(rows_of(range(4), *written), ends):
        assert row["passes"] == row["written"] == end + 1 - prompt


def test_an_end_of_text_in_a_blank_ends_no_story():
    tokens = torch.tensor([[0, 1, 0, 1]])       # 1 is end-of-text
    appeared = torch.tensor([[-1, 0, -1, 1]])   # -1 was given
    a = Tokenizer("words", words=["a"])
    [row] = rows_of([0], tokens, appeared, Config("mdlm", vocab_size=2), a, SampleOptions())
    assert row["tokens"] == [0, 1, 0]


@torch.no_grad()
def test_a_short_text_is_read_as_if_the_rest_of_the_window_were_masked():
    model, whole = make("mdlm"), torch.tensor([[4, 7] + 6 * [11]])          # 11 is [MASK]
    row, place = torch.tensor([0]), torch.tensor([2])
    found, expected = (read_masked(model, x, row, place) for x in (whole[:, :3], whole))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", ["ar", "aogpt"])
def test_passes_wait_for_no_gpu(kind):
    """A tensor on the device meta has no values, so who asks for one is refused."""
    net = make(kind).to("meta")
    tokens = torch.full((4, 8), net.config.mask_id, device="meta")
    order = torch.arange(8, device="meta").expand(4, -1)
    decide = draw_with(torch.zeros(4, 8, dtype=torch.float64, device="meta"))
    for read in read_next, extras.cache.Cache(net):
        passes = plain.write(net, tokens, order, [0, 2, 4, 6, 8], decide, read)
        assert [after.shape for after in passes] == 4 * [tokens.shape]


# ---- What is asked for ---------------------------------------------------------------------------

REFUSED = "refused in one line"


@pytest.mark.parametrize("line", """
mdlm||.........
mdlm|One day|xx.......
mdlm|One ___ day ___|x..x..
mdlm|One _ day __, _.|x.x..x.x
mdlm|One ____ day|x...x
mdlm|______|....
mdlm|One___day|x..x
mdlm|One____day_______|x..x..
mdlm|One d_y|refused in one line
mdlm|One _day|refused in one line
ar|One ___ day|refused in one line
ar|One day ___|xx..
aogpt/infill|One ___ day|x..x
aogpt/infill|___ day|refused in one line
aogpt/infill|One ___ day ___ a|refused in one line
mdlm/blocks|One day, a|xxxx.....
mdlm/blocks|One day ___|xx..
mdlm/blocks|___ day|..x
mdlm/blocks|One ___ day|refused in one line
""".split("\n")[1:-1])
def test_what_is_to_be_written(line):
    kind, prompt, expected = line.split("|")
    config = make(kind, vocab_size=WORDS.vocab_size, block_size=9).config
    try:
        pattern = pattern_of(SampleOptions(prompt=prompt, blank=2), config, WORDS, "aligned")
        found = "".join("." if i == config.mask_id else "x" for i in pattern.tolist())
    except InputError as e:
        found = REFUSED if "\n" not in str(e) else str(e)
    assert found == expected


@pytest.mark.parametrize("folder, classes", [
    ("variants", [Config, Settings]), ("samplers", [SampleOptions])])
def test_a_mistyped_name_or_flag_is_refused_in_one_line_with_a_guess(folder, classes):
    name = folder[:-1]
    for file in names_in(folder):
        own = vars(options_of(folder, file) or object).get("__annotations__", {})
        wrong = {f"--{field}{field[-1]}=1": f"--{field}" for field in own}
        for typed, right in {f"--{name}={file}{file[-1]}": file, **wrong}.items():
            with mock.patch.object(sys, "argv", ["x.py", f"--{name}={file}", typed]):
                with pytest.raises(InputError, match=f"^.+{right}\\b.*$"):
                    flags = parse_flags("", *classes, plugins={name: folder})
                    plugin(folder, flags[name])


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


def test_an_interrupted_command_keeps_what_it_wrote(trained):
    arguments = ["--out_dir=out/mdlm", "--num_samples=100000", "--batch_size=4", "--out=i.jsonl"]
    process = Running("sample.py", *arguments, cwd=trained)
    old, new = trained / "i.jsonl", trained / "i.jsonl.tmp"
    old.write_text("an earlier call\n")
    process.wait_for(new.exists)
    process.wait_for(lambda: new.stat().st_size)
    other = run("sample.py", "--out_dir=out/mdlm", "--out=i.jsonl", cwd=trained)
    assert "i.jsonl" in other.stderr and other.returncode == 2
    done = process.end(signal.SIGINT)
    assert done.returncode == 2
    assert ".tmp" in done.stderr and "Traceback" not in done.stderr
    assert old.read_text() == "an earlier call\n"
    rows = stories_in(new)
    assert [row["story"] for row in rows] == list(range(len(rows)))
    assert len(rows) % 4 == 0


def test_tokens_a_pass_are_those_of_all_stories():
    rows = [{"passes": 1, "written": 4}, {"passes": 3, "written": 3}]
    found = summary_of(rows, Tokenizer("bytes"), SampleOptions(), "anywhere")
    assert (found["passes"], found["tokens_per_pass"]) == (2, 7 / 4)


def test_the_risk_is_the_sum_of_all_that_is_surer():
    nats = torch.tensor([[0.5, torch.inf, 0.3, 0.4]])       # the second is known
    assert adaptive.within_risk(nats, 0.6).tolist() == [[False, False, True, True]]
    assert adaptive.within_risk(nats, 0.8).tolist() == [[True, False, True, True]]
