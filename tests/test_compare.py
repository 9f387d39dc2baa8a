"""extras/compare.py and score.py: runs side by side, and how likely a model finds a whole text."""
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch

import variants.blocks
import variants.infill
from conftest import small_model
from extras.compare import CompareOptions, score_files
from extras.score import part_batch, score_texts, score_writing
from model import read_next
from sample import SampleOptions, open_model, plain_sampler
from support.flags import InputError
from support.runs import random_numbers
from worlds.toy import TOY
from worlds import texts_of

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]


# ---- Texts ---------------------------------------------------------------------------------------

def in_order(model, ids, order, **more):
    """The Score of a text that is written one token a pass in this order, which is exact."""
    o = SampleOptions(order=order)
    [score] = score_writing(model, [ids], plain_sampler(model.config, o), o, **more)
    return score


def plain_score(model, ids: list, stride: int) -> float:
    """Token by token, as a model writes: the first window has no context, later parts what fits."""
    T = model.config.block_size
    order = torch.arange(T)[None]
    nats = 0.0
    for i, token in enumerate(ids):
        part_ends = T                       # of the part that this token belongs to
        while part_ends <= i:
            part_ends += stride
        known = ids[max(0, min(part_ends, len(ids)) - T):i]
        n = len(known)
        window = torch.tensor([known + [model.config.mask_id] * (T - n)])
        logits = read_next(model, window, order, n, n + 1)[0, 0]                # (V,)
        nats -= logits.log_softmax(dim=0)[token].item()
    return nats


@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
@pytest.mark.parametrize("length, stride", [(0, 4), (5, 1), (9, 8), (17, 3)])
@torch.no_grad()
def test_the_chain_rule_token_by_token(mode, length, stride):
    model = small_model(mode, dtype=torch.float64)
    found = in_order(model, TEXT[:length], "left_to_right", stride=stride)
    expected = plain_score(model, TEXT[:length], stride)
    assert found.nats == pytest.approx(expected, abs=1e-9)
    assert (found.tokens, found.variance) == (length, 0)
    if mode == "ar":
        [quick] = score_texts(model, [TEXT[:length]], stride=stride)
        assert quick.nats == pytest.approx(expected, abs=1e-9)


IN_BLOCKS = dict(variant=variants.blocks, block_length=2)


@pytest.mark.parametrize("mode, others, order", [
    ("mdlm", {}, "random"), ("mdlm", IN_BLOCKS, "random"), ("aogpt", IN_BLOCKS, "random"),
    ("aogpt", dict(variant=variants.infill), "left_to_right")])
def test_the_probabilities_of_all_texts_sum_to_one(mode, others, order):
    """Also of texts longer than the window."""
    model = small_model(mode, dtype=torch.float64, vocab_size=3, block_size=3, **others)
    texts = itertools.product(range(3), repeat=4)
    scores = [in_order(model, list(text), order, stride=2) for text in texts]
    assert sum(math.exp(-score.nats) for score in scores) == pytest.approx(1)


@pytest.mark.parametrize("mode, others", [("mdlm", {}), ("mdlm", IN_BLOCKS), ("aogpt", {})])
def test_the_bound_is_the_mean_of_exact_scores_over_orders(mode, others):
    """A text of seven tokens, in windows of four with a stride of three."""
    model = small_model(mode, dtype=torch.float64, block_size=4, **others)
    [bound] = score_texts(model, [TEXT[:7]], draws=100, stride=3)
    exact = in_order(model, TEXT[:7], "" if others else "random", draws=100, stride=3)
    error = math.sqrt(bound.variance + exact.variance)
    assert error < 0.22
    assert abs(bound.nats - exact.nats) < 4 * error


def test_what_is_known_comes_first():
    """In every order of aogpt: of eight tokens with two new ones the last two slots count."""
    config = small_model("aogpt").config
    batch = part_batch(config, torch.arange(8).expand(50, -1), 2, random_numbers(0))
    assert batch.weight.tolist() == [[0] * 6 + [1] * 2] * 50


def test_each_text_has_draws_of_its_own():
    """Else the errors of many texts would not average out, as score_files takes them to do."""
    first, second = score_texts(small_model("mdlm"), [TEXT[:5], TEXT[:5]])
    assert first.nats != second.nats


# ---- The command ---------------------------------------------------------------------------------

@pytest.fixture
def compare_runs(call):
    """A function that runs the command. It gives what is printed, and the runs in its JSON."""
    def compare(*arguments):
        done = call("extras/compare.py", *arguments, "--json=c.json")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout, json.loads(Path("c.json").read_text())["runs"]

    return compare


def test_whole_texts_are_scored(trained, compare_runs, monkeypatch):
    monkeypatch.chdir(trained)
    two = list(itertools.islice(texts_of(TOY, seed=5), 2))
    Path("two.txt").write_text("\r\n<|endoftext|>\r\n".join(two))
    printed, runs = compare_runs("ar=out/ar", "mdlm=out/mdlm", "--text=two.txt", "--device=cpu")
    model, tokenizer, _ = open_model("out/ar", "cpu")
    ids = [[*tokenizer.encode(story), tokenizer.eot] for story in two]
    nats = sum(plain_score(model, story, model.config.block_size // 2) for story in ids)
    tokens = sum(map(len, ids))
    found = runs["ar"]["text"]
    assert f"{nats / tokens:.4f}" in printed
    assert found["nats per token"] == pytest.approx(nats / tokens, rel=1e-5)
    bits = nats / math.log(2) / len("".join(two))
    assert found["bits per byte"] == pytest.approx(bits, rel=1e-5)
    assert [found[name] for name in ("texts", "tokens", "which is", "± s.e.")] == [
        2, tokens, "exact", 0]
    assert 0 < runs["mdlm"]["text"]["± s.e."] < 0.1


@pytest.mark.parametrize("scale, bits", [(0, math.log2(257)), (3e4, math.inf)])
def test_a_model_of_continuous_text_scores_every_character(trained, workdir, scale, bits):
    """White space at the ends too, and no end of the text. The larger weights have diverged."""
    best = torch.load(trained / "out/ar/best.pt") | {"windows": "random"}
    best |= {"tokenizer": {"kind": "bytes"}}
    best["config"]["vocab_size"] = 257
    for name in "embed.weight", "head.weight":
        best["model"][name] = scale * torch.randn(320, 16)
    torch.save(best, "best.pt")
    Path("short.txt").write_bytes("\ufeff naïve \r\n".encode())
    found = score_files(".", CompareOptions(text="short.txt"), {})
    assert found["tokens"] == len(" naïve \n".encode())
    assert math.log2(found["perplexity"]) == pytest.approx(bits, abs=1e-5)
    assert scale or found["bits per byte"] == pytest.approx(bits, abs=1e-5)
    Path("short.txt").write_text("")
    with pytest.raises(InputError, match="is empty"):
        score_files(".", CompareOptions(text="short.txt"), {})


def write_run(name, curve, data="t", **final):
    """What is read of a run: each evaluation's step, seconds and loss, and what is said at the end.
    """
    folder = Path(name)
    folder.mkdir()
    run = {"seed": 1, "config": {"block_size": 8, "mode": "ar"},
           "settings": {"data": data, "windows": "aligned"}}
    (folder / "config.json").write_text(json.dumps(run))
    names = "step", "seconds", "val_nll", "val_nll_se", "val_floor"
    lines = [dict(zip(names, [*entry, 0.1, 1.5])) for entry in curve] + [final]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_equal_steps_and_equal_seconds(workdir, compare_runs):
    """The best loss is that of the last evaluation, which has many draws, where there was one.
    A run that has diverged is short, and the legend has any name as it is."""
    write_run("$$", [(10, 1, 4.0), (20, 3, 2.0)], final_nll=2.25, final_nll_se=0.01)
    write_run("_b", [(10, 1, 6.0), (30, 2, 5.0)], data="elsewhere")
    write_run("a$b$c", [(1, 1, 7e11), (20, 2, 3e300)])
    arguments = [f"{name}={name}" for name in ("$$", "_b", "a$b$c")]
    printed, runs = compare_runs(*arguments, "--plot=c.svg")
    assert list(runs["$$"]["table"].values()) == [2.25, 0.01, "final", 2, 3, 1.5]
    assert list(runs["_b"]["table"].values()) == [5, 0.1, "quick", 5.5, 5, 1.5]
    assert re.search(r"\n\$\$ +2.2500 +0.0100 +final +2.0000 +3.0000 +1.5000\n", printed)
    assert " 7e+11 " in printed
    assert "! losses on other data, windows or block_size cannot be compared" in printed
    texts = re.findall("<!-- +(.*) -->", Path("c.svg").read_text())
    assert {"$$ (exact)", "_b (exact)", "a$b$c (exact)"} <= set(texts)
