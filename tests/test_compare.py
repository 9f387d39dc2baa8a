"""compare.py: runs beside each other, and how likely a model finds a text of any length."""
import itertools
import json
import math
import shutil

import pytest
import torch

import compare
from support.flags import InputError
from compare import score_text, score_texts
from conftest import read_log, run, small_model
from objectives import masking_batch, order_batch, weighted_losses
from runs import open_model
from test_show import texts_of
from toy import toy_stories

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]


# ---- Texts ---------------------------------------------------------------------------------------

def nats_of_next(model, known: list, token: int) -> float:
    """−log p of a token after the known ones, from one pass of the network and nothing else."""
    config = model.config
    n = len(known)
    if config.mode == "mdlm":
        tokens = [config.bos_id, *known] + [config.mask_id] * (config.block_size - n)
        position = torch.arange(-1, config.block_size)[None]
        logits = model(torch.tensor([tokens]), position, position)[0, 1 + n]
    else:
        position = torch.arange(-1, n)[None]
        logits = model(torch.tensor([[config.bos_id, *known]]), position, position + 1)[0, -1]
    return -logits.log_softmax(dim=0)[token].item()


def plain_score(model, ids: list, stride: int) -> float:
    """Token by token: the first window has no context, later parts what fits."""
    T = model.config.block_size
    nats = 0.0
    for i in range(len(ids)):
        part_ends = T                       # of the part that this token belongs to
        while part_ends <= i:
            part_ends += stride
        begins = max(0, min(part_ends, len(ids)) - T)
        nats += nats_of_next(model, ids[begins:i], ids[i])
    return nats


@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
@pytest.mark.parametrize("length, stride", [(1, 4), (5, 1), (8, 8), (9, 8), (17, 1), (17, 3)])
@torch.no_grad()
def test_the_chain_rule_token_by_token(mode, length, stride):
    model = small_model(mode, dtype=torch.float64)
    found = score_text(model, TEXT[:length], "left_to_right", stride=stride)
    assert found.nats == pytest.approx(plain_score(model, TEXT[:length], stride), abs=1e-9)
    assert found.tokens == length
    assert found.variance == 0


@pytest.mark.parametrize("mode, orders", [
    ("ar", "random"), ("mdlm", "random"), ("aogpt", "random"), ("mdlm", "blocks:2"),
    ("aogpt", "blocks:2"), ("aogpt", "infill")])
@pytest.mark.parametrize("order", ["left_to_right", "random"])
def test_the_probabilities_of_all_texts_sum_to_one(mode, orders, order):
    """Also of texts longer than the window."""
    model = small_model(mode, dtype=torch.float64, vocab_size=3, block_size=3, orders=orders)
    texts = [list(text) for text in itertools.product(range(3), repeat=5)]
    scores = [score_text(model, text, order, stride=2) for text in texts]    # in the same order
    assert sum(math.exp(-score.nats) for score in scores) == pytest.approx(1)


def mean_over_masks(model, x, places: list) -> float:
    """The bound on −log p(the tokens at these places | those before), all later ones masked."""
    config = model.config
    later = torch.arange(x.size(1)) > max(places)
    means = []
    for k in range(1, len(places) + 1):
        losses = []
        for chosen in itertools.combinations(places, k):
            masked = later.clone()[None]
            masked[0, list(chosen)] = True
            batch = masking_batch(config, x, masked)
            weight = torch.zeros_like(batch.weight)
            weight[0, [1 + place for place in chosen]] = 1 / k
            losses.append(weighted_losses(model, batch._replace(weight=weight)).item())
        means.append(sum(losses) / len(losses))
    return len(places) * sum(means) / len(means)


def mean_over_orders(model, x, known: int) -> float:
    """The bound of an any-order GPT on −log p(the tokens after the known ones)."""
    L = x.size(1)
    losses = []
    for first in itertools.permutations(range(known)):
        for last in itertools.permutations(range(known, L)):
            batch = order_batch(model.config, x, torch.tensor([[*first, *last]]))
            weight = torch.zeros(1, L)
            weight[0, known:] = 1
            losses.append(weighted_losses(model, batch._replace(weight=weight)).item())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("mode, orders", [
    ("mdlm", "random"), ("mdlm", "blocks:3"), ("aogpt", "random")])
@torch.no_grad()
def test_the_bound_is_the_mean_over_all_masks_or_orders(mode, orders):
    """A text of seven tokens, in windows of four with a stride of three."""
    model = small_model(mode, dtype=torch.float64, block_size=4, orders=orders)
    first = torch.tensor([TEXT[:4]])
    second = torch.tensor([TEXT[3:7]])
    if mode == "aogpt":
        bound = mean_over_orders(model, first, 0) + mean_over_orders(model, second, 1)
    elif orders == "random":
        bound = mean_over_masks(model, first, [0, 1, 2, 3])
        bound += mean_over_masks(model, second, [1, 2, 3])
    else:
        bound = mean_over_masks(model, first, [0, 1, 2]) + mean_over_masks(model, first, [3])
        bound += mean_over_masks(model, second, [1, 2]) + mean_over_masks(model, second, [3])
    found = score_text(model, TEXT[:7], draws=6000, stride=3)
    error = math.sqrt(found.variance)
    assert error < 0.05
    assert abs(found.nats - bound) < 4 * error


def test_each_text_has_draws_of_its_own():
    """Else the errors of many texts would not average out, as score_files takes them to do."""
    model = small_model("mdlm")
    first, second = score_texts(model, [TEXT[:5], TEXT[:5]])
    assert first.nats != second.nats


def test_what_cannot_be_scored():
    model = small_model("ar")
    with pytest.raises(InputError, match="without tokens"):
        score_text(model, [])
    with pytest.raises(InputError, match="--stride=9 must not exceed the window, 8"):
        score_text(model, TEXT, stride=9)


# ---- The command ---------------------------------------------------------------------------------

def compare_runs(*arguments, cwd):
    """What the command prints, and the runs in its JSON."""
    done = run("compare.py", *arguments, "--json=c.json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((cwd / "c.json").read_text())["runs"]


def test_whole_texts_are_scored(trained):
    stories = toy_stories(seed=5)
    two = [next(stories), next(stories)]
    path = trained / "two.txt"
    path.write_text("\r\n<|endoftext|>\r\n".join(two))
    printed, runs = compare_runs("ar=out/ar", "mdlm=out/mdlm", "--text=two.txt", cwd=trained)
    model, tokenizer, _ = open_model(str(trained / "out/ar"), "cpu")
    T = model.config.block_size
    ids = [[*tokenizer.encode(story), tokenizer.eot] for story in two]
    nats = sum(plain_score(model, story, T // 2) for story in ids)
    tokens = sum(map(len, ids))
    ar = runs["ar"]["text"]
    assert ar["texts"] == 2
    assert ar["tokens"] == tokens
    assert ar["nats per token"] == pytest.approx(nats / tokens, abs=1e-5)
    assert ar["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    size = sum(len(story) for story in two)
    assert ar["bits per byte"] == pytest.approx(nats / math.log(2) / size, abs=1e-5)
    assert ar["± s.e."] == 0
    assert 0 < runs["mdlm"]["text"]["± s.e."] < 0.1
    assert f"{ar['nats per token']:.4f}" in printed


def test_a_model_of_continuous_text_scores_every_character(trained):
    """White space at the ends too, and no end of the text."""
    checkpoint = torch.load(trained / "out/ar/best.pt")
    checkpoint["windows"] = "random"
    checkpoint["tokenizer"] = {"kind": "bytes"}
    checkpoint["config"]["vocab_size"] = 257
    for name in "embed.weight", "head.weight":
        checkpoint["model"][name] = torch.zeros(320, 16)
    (trained / "out/bytes").mkdir()
    torch.save(checkpoint, trained / "out/bytes/best.pt")
    path = trained / "short.txt"
    path.write_bytes("\ufeff naïve \r\n".encode())
    o = compare.CompareOptions(text=str(path))
    found = compare.score_files(str(trained / "out/bytes"), o)
    assert found["tokens"] == len(" naïve \n".encode())
    assert found["nats per token"] == pytest.approx(math.log(257), abs=1e-5)
    path.write_text("")
    with pytest.raises(InputError, match="is empty"):
        compare.score_files(str(trained / "out/bytes"), o)


def write_run(folder, curve):
    """What compare.py reads of a run; curve: each evaluation's step, seconds and loss."""
    folder.mkdir()
    config = {"seed": 1,
              "config": {"block_size": 8},
              "settings": {"data": "t", "windows": "aligned"}}
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "log.jsonl", "w") as file:
        for step, seconds, loss in curve:
            entry = {"step": step,
                     "seconds": seconds,
                     "val_nll": loss,
                     "val_nll_se": 0.1}
            print(json.dumps(entry), file=file)


def test_equal_steps_and_equal_seconds(tmp_path):
    write_run(tmp_path / "a", [(10, 1, 4), (20, 3, 2)])
    write_run(tmp_path / "b", [(10, 1, 6), (30, 2, 5)])
    _, runs = compare_runs("a=a", "b=b", cwd=tmp_path)
    a = runs["a"]["table"]
    b = runs["b"]["table"]
    assert a["at 20 steps"] == 2
    assert a["at 2 s"] == 3
    assert b["at 20 steps"] == 5.5
    assert b["at 2 s"] == 5
    assert a["true law"] is None        # unknown


def test_compare_command(trained):
    printed, runs = compare_runs("ar=out/ar", "mdlm=out/mdlm", "--plot=c.svg", cwd=trained)
    assert "cannot be compared" not in printed
    *_, evaluation, final = read_log(trained / "out/mdlm")
    mdlm = runs["mdlm"]["table"]
    assert mdlm["best"] == final["final_nll"]
    assert mdlm["true law"] == evaluation["val_floor"]
    assert runs["ar"]["table"]["at 30 steps"] is not None
    texts = texts_of(trained / "c.svg")
    for label in ("ar (exact)", "mdlm (upper bound)", "the true law"):
        assert texts.count(label) == 1


def test_losses_on_other_data_are_not_compared_in_silence(trained):
    shutil.copytree(trained / "out/ar", trained / "out/far")
    path = trained / "out/far/config.json"
    config = json.loads(path.read_text())
    config["settings"]["data"] = "elsewhere"
    path.write_text(json.dumps(config))
    printed, _ = compare_runs("ar=out/ar", "far=out/far", cwd=trained)
    assert "! losses on other data, windows or block_size cannot be compared" in printed
