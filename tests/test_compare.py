"""extras/compare.py and score.py: runs side by side, and how likely a model finds a whole text."""
import itertools
import json
import math
import re

import numpy as np
import pytest
import torch

import variants.blocks
import variants.infill
from conftest import run, small_model
from extras.compare import CompareOptions, score_files
from extras.score import part_batch, score_texts, score_writing
from model import Config, read_next
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
    texts = itertools.product(range(3), repeat=5)
    scores = [in_order(model, list(text), order, stride=2) for text in texts]
    assert sum(math.exp(-score.nats) for score in scores) == pytest.approx(1)


@pytest.mark.parametrize("mode, others", [("mdlm", {}), ("mdlm", IN_BLOCKS), ("aogpt", {})])
def test_the_bound_is_the_mean_of_exact_scores_over_orders(mode, others):
    """A text of seven tokens, in windows of four with a stride of three."""
    model = small_model(mode, dtype=torch.float64, block_size=4, **others)
    [bound] = score_texts(model, [TEXT[:7]], draws=200, stride=3)
    exact = in_order(model, TEXT[:7], "" if others else "random", draws=200, stride=3)
    error = math.sqrt(bound.variance + exact.variance)
    assert error < 0.15
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

def compare_runs(*arguments, cwd):
    """What the command prints, and the runs in its JSON."""
    done = run("extras/compare.py", *arguments, "--json=c.json", cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, json.loads((cwd / "c.json").read_text())["runs"]


def test_whole_texts_are_scored(trained):
    two = list(itertools.islice(texts_of(TOY, seed=5), 2))
    (trained / "two.txt").write_text("\r\n<|endoftext|>\r\n".join(two))
    printed, runs = compare_runs("ar=out/ar", "mdlm=out/mdlm", "--text=two.txt", "--device=cpu",
                                 cwd=trained)
    model, tokenizer, _ = open_model(trained / "out/ar", "cpu")
    ids = [[*tokenizer.encode(story), tokenizer.eot] for story in two]
    nats = sum(plain_score(model, story, model.config.block_size // 2) for story in ids)
    tokens = sum(map(len, ids))
    found = runs["ar"]["text"]
    per_token = found["nats per token"]
    assert f"{per_token:.4f}" in printed
    expected = {
        "texts": 2,
        "tokens": tokens,
        "nats per token": nats / tokens,
        "± s.e.": 0,
        "bits per byte": nats / math.log(2) / len("".join(two)),
        "perplexity": math.exp(nats / tokens)}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert found["which is"] == "exact"
    assert 0 < runs["mdlm"]["text"]["± s.e."] < 0.1


def copy_of_run(source, folder, scale, **changes):
    """A best.pt whose embeddings are random with this scale, and with other entries."""
    checkpoint = torch.load(source) | changes
    width = checkpoint["config"]["n_embd"]
    rows = Config(vocab_size=checkpoint["config"]["vocab_size"]).padded_vocab
    for name in "embed.weight", "head.weight":
        checkpoint["model"][name] = scale * torch.randn(rows, width)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, folder / "best.pt")


def test_a_model_of_continuous_text_scores_every_character(trained, tmp_path):
    """White space at the ends too, and no end of the text."""
    best = trained / "out/ar/best.pt"
    config = torch.load(best)["config"] | {"vocab_size": 257}
    copy_of_run(best, tmp_path, 0, windows="random", tokenizer={"kind": "bytes"}, config=config)
    path = tmp_path / "short.txt"
    path.write_bytes("\ufeff naïve \r\n".encode())
    found = score_files(tmp_path, CompareOptions(text=str(path)), {})
    assert found["tokens"] == len(" naïve \n".encode())
    assert found["bits per byte"] == pytest.approx(math.log2(257), abs=1e-5)
    path.write_text("")
    with pytest.raises(InputError, match="is empty"):
        score_files(tmp_path, CompareOptions(text=str(path)), {})


def write_run(folder, curve, data="t", **final):
    """What is read of a run: each evaluation's step, seconds and loss, and what is said at the end.
    """
    folder.mkdir(parents=True)
    config = {"seed": 1,
              "config": {"block_size": 8, "mode": "ar"},
              "settings": {"data": data, "windows": "aligned"}}
    (folder / "config.json").write_text(json.dumps(config))
    entries = []
    for step, seconds, loss in curve:
        losses = dict(val_nll=float(loss), val_nll_se=0.1, val_floor=1.5)
        entries.append(dict(step=step, seconds=seconds, **losses))
    lines = map(json.dumps, [*entries, final])
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def test_equal_steps_and_equal_seconds(tmp_path):
    """The best loss is that of the last evaluation, which has many draws, where there was one."""
    write_run(tmp_path / "a", [(10, 1, 4), (20, 3, 2)], final_nll=2.25, final_nll_se=0.01)
    write_run(tmp_path / "b", [(10, 1, 6), (30, 2, 5)], data="elsewhere")
    printed, runs = compare_runs("a=a", "b=b", cwd=tmp_path)
    assert list(runs["a"]["table"].values()) == [2.25, 0.01, "final", 2, 3, 1.5]
    assert list(runs["b"]["table"].values()) == [5, 0.1, "quick", 5.5, 5, 1.5]
    assert re.search("\na +2.2500 +0.0100 +final +2.0000 +3.0000 +1.5000\n", printed)
    assert "! losses on other data, windows or block_size cannot be compared" in printed


def test_any_name_stands_in_the_legend(tmp_path):
    names = "$$", "_x", "a$b$c"
    for i in range(3):
        write_run(tmp_path / str(i), [(1, 1, 2), (2, 2, 1)])
    compare_runs(*[f"{name}={i}" for i, name in enumerate(names)], "--plot=c.svg", cwd=tmp_path)
    texts = re.findall("<!-- +(.*) -->", (tmp_path / "c.svg").read_text())
    assert {f"{name} (exact)" for name in names} <= set(texts)


def test_a_run_that_has_diverged_is_shown(trained, tmp_path):
    write_run(tmp_path / "bad", [(1, 1, 7e11), (2, 2, 3e300)])
    copy_of_run(trained / "out/ar/best.pt", tmp_path / "bad", 3e4)
    (tmp_path / "t.txt").write_text("One day, a girl named Anna found a blue ball.")
    printed, runs = compare_runs("bad=bad", "--text=t.txt", cwd=tmp_path)
    assert max(map(len, printed.splitlines())) < 110
    assert " 7e+11 " in printed
    assert " inf " in printed
    assert runs["bad"]["text"]["nats per token"] > 1000
    assert runs["bad"]["text"]["perplexity"] is None
