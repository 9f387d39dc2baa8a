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

import numpy as np
import pytest
import torch
from pytest import approx

from conftest import TINY, run, small_model
from experiments import blanks, cost, held_out, learning, shakespeare, texts, uniform
from experiments.oracle import distance, exact_conditionals, toy_conditionals, toy_oracle
from extras.score import cost_of_writing
from model import diffusion_batch, losses
from prepare_data import PrepareOptions, prepare
from support.flags import ROOT, InputError
from support.runs import random_numbers
from test_toy import close, enumerate_stories
from tokenizer import Tokenizer, split_words
from worlds.toy import TOY, Grammar, choice

WORDS = Tokenizer("words", words=TOY.words())
FOLDERS = "out/ar,out/mdlm,out/aogpt"


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
    drawn = stories(4000)
    found = distance(drawn)
    assert (found["grammatical"], found["kl"]) == (1, approx(0, abs=0.01))
    balls = [text for text in drawn if " ball " in text]
    assert distance(balls * 2 + drawn)["kl"] > 0.05
    assert distance(["Lily ."] * 300 + drawn[:100])["grammatical"] == 0.25


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


def test_what_a_way_of_writing_loses_with_a_perfect_network():
    """Nothing with one token a pass, or where a pass writes what is certain."""
    x = as_tokens(stories(30))
    hidden = torch.ones_like(x, dtype=torch.bool)
    ways = cost.ways_of(toy_oracle().config, 48, few=False)

    def lost(way):
        """Nats a story, and passes."""
        sampler, o = ways[way]
        nats, passes = cost_of_writing(toy_oracle(), x, hidden, sampler, o, range(len(x)))
        return (nats.numpy() - 48 * nats_of(x)).mean(), passes.mean().item()

    assert lost("random") == (approx(0, abs=1e-3), 48)
    assert lost("risk 0.1") == (approx(0, abs=1e-3), approx(14.6, abs=0.5))
    assert lost("random, 8 a pass") == (approx(3.2, abs=1.5), 6)
    assert lost("surest 8 a pass") == (approx(13.5, abs=2), 6)


def test_a_perfect_network_fills_a_blank_by_the_law():
    x = as_tokens(stories(12))
    expected = np.zeros(len(x))
    for place in range(10, 15):
        known = x.numpy().copy()
        known[:, place:15] = 135                # no word has this number
        p = toy_conditionals(known)                                             # (N, T, V)
        expected -= np.log(p[np.arange(len(x)), place, x[:, place]]) / 5
    found = blanks.nats(toy_oracle(), x, 10, 5)
    assert found.numpy() == approx(expected, abs=1e-4)


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


# ---- Runs on other stories -----------------------------------------------------------------------

def test_scores_of_neighbours():
    """Neighbours share text, so ten of them count as one."""
    scores = torch.rand(99, generator=random_numbers(0))
    expected = scores[:90].view(9, 10).mean(dim=1).tolist()
    assert held_out.of_neighbours(scores) == approx(expected, abs=1e-5)


def test_held_out(trained, workdir, monkeypatch):
    """Each run has its bound, and an any-order GPT is exact from left to right too."""
    for folder in "out", "data":
        shutil.copytree(trained / folder, folder)
    run_main("held_out", monkeypatch, f"--runs={FOLDERS}", "--data=t", "--windows=20", "--draws=1",
             "--json=held.json")
    found = json.load(open("held.json"))["runs"].values()
    kinds = [list(run["scores"]) for run in found]
    assert kinds == [["bound"], ["bound"], ["bound", "left to right"]]


# ---- The very stories ----------------------------------------------------------------------------

def test_stories_are_picked_out_of_a_corpus(gpt2, workdir, monkeypatch):
    """Where they stand among others, and some twice; what is missing is said."""
    wanted = [f"Story {i}.\nIt ends." for i in range(710)]
    mixed = [f"Another {i}." for i in range(2000)] + wanted + wanted[:50]
    random.Random(0).shuffle(mixed)
    for name, part in ("a", mixed[:1000]), ("b", mixed[1000:]):
        (workdir / f"{name}.txt").write_text(texts.joined(part))
    (workdir / "stories.txt").write_text("\n".join(map(texts.fingerprint, wanted)))
    monkeypatch.setattr(texts, "FINGERPRINTS", workdir / "stories.txt")
    monkeypatch.setattr(texts, "WHOLE", texts.sha256(texts.joined(wanted)))
    run_main("texts", monkeypatch, "--corpus=a.txt,b.txt")
    unseen = (workdir / "data/stories-unseen.txt").read_text()
    assert unseen == texts.joined(wanted[10:410])
    with pytest.raises(InputError, match="stories are not in this corpus"):
        run_main("texts", monkeypatch, "--corpus=a.txt")


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
    (workdir / "data/stories-unseen.txt").touch()

    def call(*arguments):
        (workdir / "asked").unlink(missing_ok=True)
        path = f"{workdir}/bin:{os.environ['PATH']}"
        listed = subprocess.check_output(
            ["bash", ROOT / "experiments/run_all.sh", *arguments], text=True,
            env=os.environ | {"PATH": path})
        if "--list" in arguments:
            return listed
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
    run_all("rates", "real")
    first = json.loads((workdir / "results/data/real.json").read_text())
    run_all("rates", "overfits")
    then = json.loads((workdir / "results/data/real.json").read_text())
    assert then == first | {"overfits": then["overfits"]}


# ---- Every command runs --------------------------------------------------------------------------

def run_main(name, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *flags])
    importlib.import_module(f"experiments.{name}").main()


COMMANDS = {
    "cost": "mdlm=out/mdlm ar=out/ar aogpt=out/aogpt --windows=3 --json=f.json",
    "blanks": f"--models={FOLDERS} --data=t --windows=20 --json=f.json --plot=f.png",
    "learning": "--runs=out/mdlm --windows=20 --json=f.json",
    "oracle": "law=law.jsonl --json=f.json",
    "uniform": "law=law x=out/mdlm --num_samples=2 --windows=2 --stories=1 --json=f.json",
    "first_steps": "ar=out/ar mdlm=out/mdlm aogpt=out/aogpt --plot=f.png"}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(trained, workdir, monkeypatch, name):
    """Each writes its file and its figure."""
    for folder in "out", "data":
        shutil.copytree(trained / folder, folder)
    lines = [json.dumps({"text": text}) for text in stories(200)]
    (workdir / "law.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(blanks, "LENGTHS", (1, 3))
    monkeypatch.setattr(uniform, "PASSES", [2])
    flags = COMMANDS[name].split()
    run_main(name, monkeypatch, *flags)
    if "--json=f.json" in flags:
        assert {"command", "commit", "machine"} <= json.load(open("f.json")).keys()
    if "--plot=f.png" in flags:
        assert os.path.getsize("f.png") > 5000


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
