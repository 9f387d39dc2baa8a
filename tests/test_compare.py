"""extras/compare.py and score.py: runs side by side, and how likely a model finds a whole text.

That every way to write is scored by its own law is tested in test_sample.py."""
import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from extras.compare import CompareOptions, score_files
from extras.score import cost_of_writing, score_texts, score_writing
from model import read_masked
from sample import SampleOptions, open_model, plain_sampler
from support.flags import InputError
from test_sample import WRITERS, make
from train import window_losses
from worlds import texts_of
from worlds.toy import TOY

TEXT = [3, 1, 4, 1, 5, 9, 2]


# ---- Texts longer than the window ----------------------------------------------------------------

def in_order(model, ids, order="", **more):
    """The Score of a text as it is written one token a pass, for given draws in one order."""
    o = SampleOptions(order=order)
    [score] = score_writing(model, [ids], plain_sampler(model.config, o), o, **more)
    return score


def small(kind, **sizes):
    return make(kind, **sizes, **{"block_length": 2} if "blocks" in kind else {})


@pytest.mark.parametrize("kind", WRITERS.values())
def test_the_probabilities_of_all_texts_sum_to_one(kind):
    model = small(kind, vocab_size=3, block_size=3)
    texts = itertools.product(range(3), repeat=4)
    scores = [in_order(model, list(text), stride=2) for text in texts]
    assert sum(math.exp(-score.nats) for score in scores) == pytest.approx(1)


@pytest.mark.parametrize("kind", ["mdlm", "mdlm/blocks", "aogpt"])
def test_the_bound_is_the_mean_of_exact_scores_over_orders(kind):
    """Of seven tokens, in windows of four with a stride of three. Each text has its own draws."""
    model = small(kind, block_size=4)
    bound, other = score_texts(model, [TEXT, TEXT], draws=50, stride=3)
    exact = in_order(model, TEXT, draws=50, stride=3)
    error = math.sqrt(bound.variance + exact.variance)
    assert bound.nats != other.nats and error < 0.32
    assert abs(bound.nats - exact.nats) < 4 * error


@torch.no_grad()
@pytest.mark.parametrize("fault", ["in place", "twice", "ends early", "takes back"])
def test_a_sampler_of_ones_own(fault):
    """It may change its tokens in place. Where it does not decide on each place once, it is refused
    in a line."""
    model = small("mdlm", block_size=4)
    x = torch.tensor([TEXT[:4]])                                                # (1, T)

    def sampler(model, tokens, times, decide, noise):
        tokens = tokens.clone()
        for place in range(3 if fault == "ends early" else 4):
            row = torch.tensor([0])
            here = torch.tensor([place])
            logits = read_masked(model, tokens, row, here)                      # (1, V)
            tokens[row, here] = decide(logits, row, here)
            if fault == "twice":
                tokens[row, here] = decide(logits, row, here)
            if fault == "takes back" and place == 2:
                tokens[0, 0] = model.config.mask_id
            yield tokens

    args = model, x, x >= 0, sampler, SampleOptions(), [0]
    if fault == "in place":
        nats, passes = cost_of_writing(*args)
        assert nats.item() == pytest.approx(in_order(model, TEXT[:4], "0,1,2,3").nats)
        assert passes.item() == 4
    else:
        with pytest.raises(InputError, match="^this sampler .+$"):
            cost_of_writing(*args)


# ---- The command ---------------------------------------------------------------------------------

def test_whole_texts_are_scored(trained, call, monkeypatch):
    """Two stories, each as long as the window with the end that a model of stories predicts."""
    monkeypatch.chdir(trained)
    two = list(itertools.islice(texts_of(TOY, seed=5), 2))
    Path("two.txt").write_text("\r\n<|endoftext|>\r\n".join(two))
    done = call("extras/compare.py", "ar=out/ar", "mdlm=out/mdlm", "--text=two.txt",
                "--device=cpu", "--json=two.json")
    ar, mdlm = (run["text"] for run in json.loads(Path("two.json").read_text())["runs"].values())
    model, tokenizer, _ = open_model("out/ar", "cpu")
    x = torch.tensor([[*tokenizer.encode(story), tokenizer.eot] for story in two])
    nats = window_losses(model, x, seed=0).mean().item()
    bits = nats / math.log(2) * 2 * 48 / len("".join(two))
    assert f"{nats:.4f}" in done.stdout
    assert [ar["nats per token"], ar["bits per byte"]] == pytest.approx([nats, bits], rel=1e-5)
    assert [ar[name] for name in ("texts", "tokens", "which is", "± s.e.")] == [2, 96, "exact", 0]
    assert 0 < mdlm["± s.e."] < 0.1


def test_a_model_of_continuous_text_scores_every_character(trained, workdir):
    """White space at the ends too, and no end of the text."""
    best = torch.load(trained / "out/ar/best.pt") | {
        "windows": "random", "tokenizer": {"kind": "bytes"}}
    best["config"]["vocab_size"] = 257
    for name in "embed.weight", "head.weight":
        best["model"][name] = torch.zeros(320, 16)      # so all bytes are equally likely
    torch.save(best, "best.pt")
    Path("short.txt").write_bytes("\ufeff naïve \r\n".encode())
    found = score_files(".", CompareOptions(text="short.txt"), {})
    assert found["tokens"] == len(" naïve \n".encode())
    assert found["perplexity"] == pytest.approx(257)
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


def test_equal_steps_and_equal_seconds(workdir, call):
    """The best loss is that of the last evaluation, which has many draws, where there was one.
    A run that has diverged is short, and the legend has any name as it is."""
    write_run("$$", [(10, 1, 4.0), (20, 3, 2.0)], final_nll=2.25, final_nll_se=0.01)
    write_run("_b", [(10, 1, 6.0), (30, 2, 5.0)], data="elsewhere")
    write_run("wild", [(1, 1, 7e11), (20, 2, 3e300)])
    arguments = "$$=$$", "_b=_b", "wild=wild", "--plot=c.svg", "--json=c.json"
    printed = call("extras/compare.py", *arguments).stdout
    assert " 7e+11 " in printed and "! losses on other data" in printed
    runs = json.loads(Path("c.json").read_text())["runs"]
    assert list(runs["$$"]["table"].values()) == [2.25, 0.01, "final", 2, 3, 1.5]
    assert list(runs["_b"]["table"].values()) == [5, 0.1, "quick", 5.5, 5, 1.5]
    assert "$$ (exact) -->" in Path("c.svg").read_text()
