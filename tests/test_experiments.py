"""The experiments: a perfect network makes no error, and all commands run."""
import importlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from pytest import approx
from scipy import stats

from conftest import TINY, run, small_model
from experiments import blanks, denoiser, dial, held_out, learning, shakespeare, texts
from experiments.oracle import distance, exact_conditionals, toy_conditionals, toy_oracle
from model import diffusion_batch, losses
from prepare_data import PrepareOptions, prepare
from support.flags import ROOT, InputError
from support.runs import ORIGIN, random_numbers
from test_toy import close, enumerate_stories
from tokenizer import Tokenizer, split_words
from train import window_losses
from worlds.toy import TOY, Grammar, choice

WORDS = Tokenizer("words", words=TOY.words())


def stories(n):
    rng = random.Random(0)
    return [TOY.draw(rng) for _ in range(n)]


def as_tokens(texts):
    """(N, 48) with the end-of-text."""
    rows = []
    for text in texts:
        rows.append([*WORDS.encode(text), WORDS.eot])
    return torch.tensor(rows)


def nats_of(x):
    """(N,) −log p per token of the stories of x (N, 48), which are all grammatical."""
    log_p = [TOY.log_probs(WORDS.decode_story(ids)) for ids in x.tolist()]
    return np.array([-log_p_of_words.sum() / 48 for log_p_of_words in log_p])


# ---- The perfect network -------------------------------------------------------------------------

def test_the_distance_of_the_law_from_itself_is_nil():
    figures = distance(stories(4000))
    assert figures["grammatical"] == 1
    assert abs(figures["kl"]) < 0.01
    assert abs(figures["surprise"]) < 0.15
    balls = [text for text in stories(4000) if " ball " in text]
    with_more_balls = distance(balls * 2 + stories(4000))
    assert with_more_balls["kl"] > 0.05
    mostly_wrong = distance(["Lily ."] * 300 + stories(100))
    assert mostly_wrong["grammatical"] == 0.25


SMALL = {               # every story has nine words
    "story": choice("1 {who} saw a {thing}. {Pronoun} {did}."),
    "who": choice("3 Ann | 1 Bob"),
    "thing": choice("2 cat | 1 {wrap}"),        # a choice that is named by what is named
    "wrap": choice("1 {fruit}"),
    "fruit": choice("1 fig | 3 plum"),
    "Pronoun": ("who", ["She", "He"]),
    "did": choice("1 hid {=thing} | 4 ran {how}"),
    "how": choice("1 fast | 2 home"),
}


def test_the_perfect_network_knows_every_word_given_any_others():
    """Against every story of a small grammar. Where none fits, it takes the nearest ones."""
    grammar = Grammar(SMALL)
    vocabulary = grammar.words()
    stories = enumerate_stories(grammar)
    law = np.array([*stories.values()])                                         # (18,)
    x = []
    for story in stories:
        x.append([vocabulary.index(word) for word in split_words(story)])
    x = np.array(x)                                                             # (18, 9)
    one_hot = np.eye(len(vocabulary))[x]                                        # (18, 9, V)

    def law_of(some):
        """(9, V) of a word at each place, if the story is one of some (18,)."""
        p = law * some
        return np.einsum("k,kwv->wv", p / p.sum(), one_hot)

    known = np.array(list(itertools.product([False, True], repeat=9)))          # (512, 9)
    for story in x:
        found = exact_conditionals(grammar, np.where(known, story, -1))         # (512, 9, V)
        for subset, p in zip(known, found):
            fits = (x[:, subset] == story[subset]).all(axis=1)                  # (18,)
            assert close(p, law_of(fits))
    bob_is_no_she = [vocabulary.index(word) for word in "Bob saw a cat . She".split()]
    given = np.array([*bob_is_no_she, -1, -1, -1])
    agree = (x == given).sum(axis=1)                                            # (18,)
    [p] = exact_conditionals(grammar, given[None])
    assert agree.max() == 5
    assert close(p, law_of(agree == 5))


@pytest.mark.parametrize("mode, N, sampler, settings, passes", [
    ("mdlm", None, "first_hitting", {}, 48),
    ("mdlm", None, "first_hitting", {"steps": 12}, 12),
    ("mdlm", None, "ancestral", {"steps": 48}, 32),
    ("mdlm", None, "confidence", {}, 48),
    ("mdlm", None, "adaptive", {"risk": 0.01}, 15),
    ("mdlm", 8, "adaptive", {"risk": 0.01}, 15),
    ("aogpt", None, "draft", {"draft": 16}, 9)])
def test_what_a_perfect_network_writes(mode, N, sampler, settings, passes):
    """Broken stories are the fault of several tokens a pass that do not know of each other.

    And a rule that looks at the token it drew is biased."""
    oracle = toy_oracle(mode, N)
    found = denoiser.write(oracle, WORDS, 100, sampler, settings)
    assert found["passes"] == approx(passes, abs=3)
    assert found["tokens_per_pass"] == approx(48 / found["passes"])
    breaks = sampler == "ancestral" or settings.get("steps", 48) < 48
    assert (found["grammatical"] < 0.95) == breaks
    if not breaks:
        assert (abs(found["kl"]) > 0.2) == (sampler == "confidence")


@pytest.mark.parametrize("length", [1, 5])
def test_a_perfect_network_fills_blanks_by_the_law(length):
    x = as_tokens(stories(12))
    expected = np.zeros(len(x))
    for place in range(10, 10 + length):
        known = x.numpy().copy()
        known[:, place:10 + length] = 135       # no word has this number
        p = toy_conditionals(known)                                             # (N, T, V)
        expected -= np.log(p[np.arange(len(x)), place, x[:, place]]) / length
    for mode in "mdlm", "aogpt":
        found = blanks.nats(toy_oracle(mode), x, 10, length)
        assert found.numpy() == approx(expected, abs=1e-4)
    # ar sees the left side alone.
    expected = []
    for ids in x.tolist():
        log_p = TOY.log_probs(WORDS.decode_story(ids))
        expected.append(-log_p[10:10 + length].mean())
    found = blanks.nats(toy_oracle("ar"), x, 10, length)
    assert found.numpy() == approx(expected, abs=1e-4)


@pytest.mark.parametrize("mode", ["mdlm", "aogpt"])
def test_in_any_order_and_in_blocks_the_law_is_the_law(mode):
    x = as_tokens(stories(5))
    order = torch.rand(x.shape, generator=random_numbers(0)).argsort(dim=1)
    in_order = held_out.nats(toy_oracle(mode), x, order)
    in_blocks_of_one = window_losses(toy_oracle(mode, 1), x, seed=0)
    for losses in in_order, in_blocks_of_one:
        assert losses.numpy() == approx(nats_of(x), abs=1e-5)
    for N in 1, 7:
        assert abs(dial.above_law(toy_oracle(mode, N), x)) < 1e-6
    unknowing = toy_oracle(mode)
    unknowing.conditionals = lambda x: np.full((*x.shape, 135), 1 / 135)
    assert dial.above_law(unknowing, x) == approx(np.log(135) - 0.39, abs=0.2)


def test_distances_and_the_bound():
    """Beside a loop; and the bound is that of the same masks."""
    hidden = torch.rand(50, 24, generator=torch.Generator().manual_seed(0)) < 0.8
    hidden[:, 0] = False
    found = learning.distance_to_visible(hidden)
    for row, distances in zip(hidden.tolist(), found.tolist()):
        visible = [slot for slot, is_hidden in enumerate(row) if not is_hidden]
        assert distances == [min(abs(slot - other) for other in visible) for slot in range(24)]
    model = small_model("mdlm")
    x = torch.randint(model.config.vocab_size - 1, (4, 8), generator=random_numbers(1))
    found = learning.measure(model, x, draws=2)
    batch = diffusion_batch(model.config, x.repeat_interleave(4, dim=0), random_numbers(1337))
    bound = losses(model, batch, batch.select()).mean().item()
    assert found["bound"] == approx(bound, rel=1e-5)
    assert sum(found["how often"].values()) == approx(1)


# ---- Runs on other stories, in other orders ------------------------------------------------------

def test_the_mean_over_orders():
    """Against the definition, order by order."""
    scores = torch.rand(4, 3, generator=random_numbers(0)).double()
    p = torch.exp(-4 * scores)
    found = held_out.of_the_mean(scores, T=4)
    assert found.numpy() == approx((-p.mean(dim=0).log() / 4).numpy())
    assert (found < scores.mean(dim=0)).all()


def test_scores_of_neighbours_and_their_error():
    """Neighbours share text, so ten of them count as one."""
    scores = torch.rand(100, generator=random_numbers(0))
    of_tens = held_out.of_neighbours(scores)
    assert of_tens == approx(scores.view(10, 10).mean(dim=1).tolist(), abs=1e-5)
    assert held_out.of_neighbours(scores[:99]) == of_tens[:9]
    with pytest.raises(InputError, match="too few"):
        held_out.of_neighbours(scores[:19])
    assert held_out.error_of(of_tens) == approx(stats.sem(of_tens))


def test_held_out(trained, monkeypatch):
    """Exact from left to right, each run has one score, whichever way is asked for."""
    monkeypatch.chdir(trained)
    flags = ["--runs=out/ar,out/mdlm,out/aogpt", "--data=t", "--windows=20", "--draws=2"]

    def scores(*more):
        run_main("held_out", monkeypatch, *flags, *more, "--json=held.json")
        return [run["scores"] for run in json.load(open("held.json"))["runs"].values()]

    ar, _, aogpt = scores()
    assert (list(ar), list(aogpt)) == (["bound"], ["bound", "left to right"])
    ar_in_order, _, in_orders = scores("--orders=2")
    assert ar_in_order == {"left to right": ar["bound"]}
    assert in_orders["left to right"] == aogpt["left to right"]
    assert list(in_orders) == ["left to right", "random", "mean of 2"]
    for in_this_order, in_all in zip(scores("--left_to_right=true"), scores("--orders=1")):
        assert in_this_order == {"left to right": in_all["left to right"]}


# ---- The very stories ----------------------------------------------------------------------------

@pytest.fixture
def corpus(workdir, monkeypatch):
    """A corpus in two files, in which the stories to be found stand among others, and some twice.

    `datasets` gives its lines, as of a text file."""
    wanted = [f"Story {i}.\nIt ends." for i in range(710)]
    mixed = [f"Another {i}." for i in range(2000)] + wanted + wanted[:50]
    random.Random(0).shuffle(mixed)
    files = {"valid": texts.joined(mixed[:1000]), "train": texts.joined(mixed[1000:])}
    for name, text in files.items():
        (workdir / f"{name}.txt").write_text(text)

    def load_dataset(path, split, streaming, data_files=""):
        for name, text in files.items():
            if data_files.endswith(f"-{name}.txt"):
                yield from [{"text": line} for line in text.split("\n")]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    fingerprints = workdir / "stories.txt"
    fingerprints.write_text("\n".join(map(texts.fingerprint, wanted)))
    monkeypatch.setattr(texts, "FINGERPRINTS", fingerprints)
    monkeypatch.setattr(texts, "WHOLE", texts.sha256(texts.joined(wanted)))
    return wanted


def test_stories_are_picked_out_of_a_corpus(gpt2, corpus, workdir, monkeypatch):
    """Downloaded or in files, they make the same data, and what is missing or differs is said."""
    made = []
    for flags in [], ["--corpus=valid.txt,train.txt"]:
        run_main("texts", monkeypatch, *flags)
        files = [*workdir.glob("data/*.txt"), *workdir.glob("data/*/*.bin")]
        made.append({file: file.read_bytes() for file in files})
    assert made[0] == made[1]
    assert len(made[0]) == 7
    assert made[0][workdir / "data/stories-unseen.txt"].decode() == texts.joined(corpus[10:410])
    with pytest.raises(InputError, match="stories are not in this corpus"):
        run_main("texts", monkeypatch, "--corpus=valid.txt")
    monkeypatch.setattr(texts, "WHOLE", "0")
    with pytest.raises(InputError, match="differ"):
        run_main("texts", monkeypatch, "--corpus=train.txt,valid.txt")


# ---- Made again ----------------------------------------------------------------------------------

# It writes what it was asked for into a file, and leaves what run_all.sh looks for. What run_all.sh
# itself says in Python is done.
STUB = f"""#!/bin/sh
case "$2" in *json*) [ "$1" = -c ] && exec {sys.executable} "$@" ;; esac
[ "$1" = -c ] && exit
echo "$*" >> asked
for argument; do
    file=${{argument#*=}}
    case $argument in
        --out_dir=*) mkdir -p $file; [ $1 = train.py ] && echo final_nll > $file/log.jsonl ;;
        --json=*) echo "{{\\"asked\\": $(cat asked | wc -l)}}" > $file ;;
        --out=* | --picture=*) touch $file ;;
    esac
done
exit 0
"""


@pytest.fixture
def run_all(workdir):
    """Calls run_all.sh with a python that only notes how it was called, and returns these notes."""
    (workdir / "bin").mkdir()
    (workdir / "bin/python").write_text(STUB)
    (workdir / "bin/python").chmod(0o755)
    for folder in "nanoGPT", "data/toy", "data/unseen", "results/data":
        (workdir / folder).mkdir(parents=True)

    def call(*arguments, fails=False):
        (workdir / "asked").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", ROOT / "experiments/run_all.sh", *arguments], capture_output=True, text=True,
            env=os.environ | {"PATH": f"{workdir}/bin:{os.environ['PATH']}"})
        assert bool(done.returncode) == fails, done.stderr
        if fails or "--list" in arguments:
            return done.stdout + done.stderr
        return (workdir / "asked").read_text().splitlines()

    return call


def test_a_group_trains_what_it_measures(run_all, workdir):
    """Each alone, from nothing; and all together make no other runs."""
    def from_nothing(*groups):
        for folder in "out", "results":
            shutil.rmtree(workdir / folder, ignore_errors=True)
        return run_all(*groups)

    _, *lines = run_all("--list").split("\n\n")[0].splitlines()
    asked = set()
    for line in lines:
        group, *_ = line.split()
        calls = from_nothing(group)
        trained = {re.search(r"--out_dir=(\S+)", call)[1] for call in calls if "train.py" in call}
        for call in calls:
            used = set(re.findall(r"\bout/(?!written)[\w/.-]+[\w]", call))
            assert used <= trained, (group, call)
        asked |= set(calls)
    assert set(from_nothing()) == asked | {"-m experiments.report"}


def test_numbers_are_made_again_only_if_that_is_asked_for(run_all, workdir):
    """A page's file keeps what others have measured."""
    run_all("rates", "orders")
    first = json.loads((workdir / "results/data/real.json").read_text())
    assert list(first) == ["rates", "orders"]
    run_all("rates", "overfits")
    then = json.loads((workdir / "results/data/real.json").read_text())
    assert then == first | {"overfits": then["overfits"]}
    run_all("rates", "--again")
    assert list(json.loads((workdir / "results/again/real.json").read_text())) == ["rates"]
    assert "no group ratess" in run_all("ratess", fails=True)


# ---- Every command runs --------------------------------------------------------------------------

def run_main(name, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *flags])
    importlib.import_module(f"experiments.{name}").main()


@pytest.fixture
def runs_of_each(trained, workdir):
    """A folder with a run of each mode, which dial.py finds, too, on the toy."""
    shutil.copytree(trained / "out", "out")
    for name in "t", "toy":
        shutil.copytree(trained / "data/t", f"data/{name}")
    for mode in "mdlm", "aogpt":
        shutil.copytree(f"out/{mode}", f"out/dial-toy/{mode}-48-1")
    lines = [json.dumps({"text": text}) for text in stories(200)]
    (workdir / "law.jsonl").write_text("\n".join(lines))


RUNS = ["ar=out/ar", "mdlm=out/mdlm", "aogpt=out/aogpt"]
FOLDERS = "out/ar,out/mdlm,out/aogpt"
COMMANDS = {
    "denoiser": [*RUNS, "--num_samples=1", "--seconds=1", "--plot=f.png"],
    "blanks": [f"--models={FOLDERS}", "--data=t", "--windows=20", "--plot=f.png"],
    "learning": ["--runs=out/mdlm", "--windows=20"],
    "held_out": [f"--runs={FOLDERS}", "--data=t", "--windows=20", "--draws=1", "--plot=f.png"],
    "dial": ["--num_samples=2", "--plot=f.png"],
    "oracle": ["law=law.jsonl"],
    "first_steps": [*RUNS, "--plot=f.png"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(runs_of_each, monkeypatch, name):
    """Each writes its file and its figure, and without its runs says what is missing."""
    monkeypatch.setattr(denoiser, "AT_ONCE", (1, 2))
    monkeypatch.setattr(blanks, "LENGTHS", (1, 3))
    monkeypatch.setitem(denoiser.SAMPLERS, "mdlm", {"first_hitting": {"steps": [12, 6]}})
    flags = COMMANDS[name]
    with_json = [] if name == "first_steps" else ["--json=f.json"]
    run_main(name, monkeypatch, *flags, *with_json)
    if with_json:
        content = json.load(open("f.json"))
        origins = [] if name == "oracle" else content["runs"].values()
        assert all(set(ORIGIN) <= origin.keys() for origin in origins)
    if "--plot=f.png" in flags:
        assert os.path.getsize("f.png") > 5000
    shutil.rmtree("out/dial-toy")
    with pytest.raises((InputError, SystemExit)):
        run_main(name, monkeypatch)


# ---- Tiny Shakespeare ----------------------------------------------------------------------------

NANOGPT = """
from dataclasses import dataclass
import torch

@dataclass
class GPTConfig:
    block_size: int

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.next = torch.nn.Embedding(26, 26)      # logits of the next letter
    def forward(self, x, y):
        logits = self.next(x)
        return logits, torch.nn.functional.cross_entropy(logits.mT, y, ignore_index=-1)
"""
NANOGPT_TRAIN = """
import os, sys, torch
from model import GPT, GPTConfig
torch.manual_seed(1337)
out_dir = sys.argv[-1].partition("=")[2]
assert sys.argv[1] == "config/train_shakespeare_char.py" and "--max_iters=2000" in sys.argv
os.makedirs(out_dir)
net = GPT(GPTConfig(16))
torch.save({"model_args": {"block_size": 16}, "model": net.state_dict()}, f"{out_dir}/ckpt.pt")
"""
NANOGPT_PREPARE = """
import numpy as np
letters = np.fromfile("input.txt", np.uint8).astype(np.uint16) - ord("a")
letters[:900].tofile("train.bin")
letters[900:].tofile("val.bin")
"""


def test_nanogpt_and_ours_take_turns(workdir, monkeypatch):
    """On a thousand letters, with made-up code of the same shape as nanoGPT's."""
    letters = np.random.default_rng(0).integers(26, size=1000)
    text = bytes((letters + ord("a")).tolist())
    for path, content in {
            "nanoGPT/data/shakespeare_char/prepare.py": NANOGPT_PREPARE,
            "nanoGPT/model.py": NANOGPT,
            "nanoGPT/train.py": NANOGPT_TRAIN,
            shakespeare.TEXT: text.decode()}.items():
        (workdir / path).parent.mkdir(parents=True, exist_ok=True)
        (workdir / path).write_text(content)
    prepare(PrepareOptions("shakespeare"))
    flags = [*TINY, "--preset=shakespeare", "--data=shakespeare", "--block_size=16"]
    monkeypatch.setattr(shakespeare, "OUR_FLAGS", flags)
    python = shakespeare.python

    def sooner(arguments, folder):
        """train.py as a fork."""
        if folder != ".":
            return python(arguments, folder)
        assert run("train.py", *arguments[1:]).returncode == 0

    monkeypatch.setattr(shakespeare, "python", sooner)
    run_main("shakespeare", monkeypatch, "--json=f.json", "--seeds=1")
    results = json.load(open("f.json"))["results"]
    assert list(results) == ["nanoGPT", "ar", "mdlm", "aogpt"]
    [found] = results["nanoGPT"]
    torch.manual_seed(1337)
    log_p = torch.nn.Embedding(26, 26).weight.log_softmax(dim=1)
    nll = -log_p[letters[:-1], letters[1:]]     # of all letters but the first
    windows = nll[899:979].view(5, 16)          # as Windows cuts 100 letters
    assert found["nats"] == approx(windows.mean().item(), abs=1e-5)
    assert found["second half"] == approx(windows[:, 8:].mean().item(), abs=1e-5)
    (workdir / "nanoGPT/train.py").write_text("raise ValueError('twice')")
    run_main("shakespeare", monkeypatch, "--json=f.json", "--seeds=1")      # is not made again
    assert json.load(open("f.json"))["results"] == results
