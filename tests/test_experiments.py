"""The commands behind the figures on sampling: a perfect network has no error, and each of them runs."""
import dataclasses
import itertools
import json
import math
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
import torch.nn.functional as F
from scipy import stats

import sample
from cli import InputError
from conftest import ROOT, TINY, experiment, read_log, run, small_model
from experiments import few_stories, first_command, first_minute, held_out, orders, plateau, weighted
from experiments.by_ratio import RatioOptions, nats_by_masked
from experiments.few_stories import Trial
from experiments.infill import InfillOptions, exact_nats, fill, nats
from experiments.oracle import choices_of, distance, toy_conditionals, toy_oracle
from experiments.planners import write
from experiments.speculative import SpeculativeOptions, measure, record
from model import (Config, Transformer, evaluation_batch, flops_per_token, group_losses, losses_in_parts,
                   mask_generator, training_batch)
from prepare_data import PrepareOptions, Tokenizer, Windows, prepare
from runs import load
from sample import SampleOptions, generate
from toy import TOY
from train import PRESETS

WORDS = Tokenizer("words", words=TOY.words())

def stories(n, seed=0):
    rng = random.Random(seed)
    return [TOY.draw(rng) for _ in range(n)]

def as_tokens(texts):
    return torch.tensor([[*WORDS.encode(text), WORDS.eot] for text in texts])

def test_the_distance_of_the_law_from_itself_is_nil():
    figures = distance(stories(4000))
    assert figures["grammatical"] == 1 and abs(figures["kl"]) < 0.01 and abs(figures["surprise"]) < 0.15
    mostly = [text for text in stories(4000) if " ball " in text] * 2 + stories(4000)
    assert distance(mostly)["kl"] > 0.05
    assert distance(["Lily ."] * 300 + stories(100))["grammatical"] == 0.25

def test_choices_tell_the_story_again():
    for text in stories(50):
        chosen = choices_of(text)
        assert TOY.tell(lambda name, before: chosen[name]) == text
        weights = [TOY.weights[name][i] for name, i in chosen.items()]
        assert np.log(weights).sum() == pytest.approx(TOY.log_probs(text).sum())

@pytest.mark.parametrize("mode, flags", [
    ("ar", {}), ("mdlm", dict(sampler="first_hitting")), ("mdlm", dict(sampler="confidence")), ("aogpt", {}),
    ("aogpt", dict(draft=4)), ("mdlm", dict(sampler="first_hitting", steps=12))])
def test_a_perfect_network_writes_grammatical_stories_unless_in_parallel(mode, flags):
    oracle = toy_oracle(mode)
    blank = torch.full((48,), oracle.config.mask_id)
    tokens, _ = generate(oracle, range(20), blank, SampleOptions(**flags))
    good = sum(TOY.log_probs(WORDS.decode_story(row)) is not None for row in tokens.tolist())
    assert good < 20 if "steps" in flags else good == 20

@pytest.mark.parametrize("length", [1, 5])
def test_a_perfect_networks_blanks(length):
    """Its −log p is the exact one; the bound is not below; what it fills in is grammatical."""
    x, o = as_tokens(stories(12)), InfillOptions(draws=16)
    exact = exact_nats(x, 10, length)
    assert abs(nats(toy_oracle("aogpt"), x, 10, length, o) - exact).max() < 1e-4
    bound = nats(toy_oracle("mdlm"), x, 10, length, o)      # here tight: all orders have one probability
    assert bound.mean() == pytest.approx(exact.mean().item(), abs=1e-4 if length == 1 else 0.1)
    in_order = nats(toy_oracle("mdlm"), x, 10, length, InfillOptions(in_order=True))
    assert abs(in_order - exact).max() < 1e-4
    left = nats(toy_oracle("ar"), x, 10, length, o)
    log_p = [TOY.log_probs(WORDS.decode_story(row))[10:10 + length].mean() for row in x.tolist()]
    assert left.tolist() == pytest.approx([-value for value in log_p], abs=1e-4)
    for mode in ("mdlm", "aogpt"):
        filled = fill(toy_oracle(mode), x, 10, length, o)
        assert (filled != x).sum() == (filled != x)[:, 10:10 + length].sum()
        assert all(TOY.log_probs(WORDS.decode_story(row)) is not None for row in filled.tolist())

def test_a_rule_that_looks_at_the_token_it_drew_is_biased_and_others_are_not():
    for rule, per_step, passes in (("entropy", 1, 48), ("margin", 1, 48), ("bounded", 0.0, None),
                                   ("confidence", 1, 48)):
        x, took = write(toy_conditionals, rule, per_step, 100, seed=1)
        figures = distance([WORDS.decode_story(row) for row in x.tolist()])
        assert figures["grammatical"] == 1
        assert (took == passes).all() if passes else 12 < took.mean() < 18
        assert figures["kl"] > 1 if rule == "confidence" else abs(figures["kl"]) < 0.2

@pytest.mark.parametrize("name, flags", [
    ("steps", ["--models=out/ar,out/mdlm,out/aogpt", "--steps=6", "--drafts=4", "--num_samples=20",
               "--plot=f.png"]),
    ("planners", ["--mdlm=out/mdlm", "--aogpt=out/aogpt", "--per_step=16", "--bounds=0.5", "--masked=4,47",
                  "--num_samples=10"]),
    ("infill", ["--models=out/ar,out/mdlm,out/aogpt", "--windows=20", "--data=t", "--lengths=1,3",
                "--plot=f.png"]),
    ("by_ratio", ["a=out/mdlm,out/mdlm", "--data=t", "--windows=9", "--masked=1,48", "--plot=f.png",
                  "--md=f.md"]),
    ("orders", ["a=out/aogpt,out/aogpt", "--data=t", "--windows=9", "--orders=3", "--plot=f.png",
                "--md=f.md"]),
    ("speculative", ["--models=out/aogpt", "--drafts=2,8", "--total=4", "--stories=1,2", "--repeats=1",
                     "--plot=f.png"])])
def test_commands(trained, name, flags):
    done = experiment(name, *flags, "--json=f.json", cwd=trained)
    assert done.returncode == 0, done.stderr
    content = json.load(open(trained / "f.json"))
    assert content["command"].startswith(f"python -m experiments.{name}")
    if "--plot=f.png" in flags:
        assert (trained / "f.png").stat().st_size > 5000
    done = experiment(name, cwd=trained)
    assert done.returncode == 2 and re.search("which models|give NAME", done.stderr)
    assert "Traceback" not in done.stderr

@pytest.fixture
def few(workdir, monkeypatch):
    """The toy's data, and experiments/few_stories.py made small."""
    prepare(PrepareOptions(max_tokens=30_000))
    small = dict(n_layer=1, n_head=1, n_embd=16, n_hidden=16, batch_size=8, compile="false", dtype="float32")
    monkeypatch.setattr(few_stories, "PRESETS", {"toy": PRESETS["toy"] | small})
    monkeypatch.setattr(few_stories, "STEPS", 30)
    monkeypatch.setattr(few_stories, "LONG", 30)
    monkeypatch.setattr(few_stories, "FIGURE", 20)
    monkeypatch.setattr(few_stories, "SIZES", (20, 40))
    monkeypatch.setattr(few_stories, "HELPED", (20,))
    monkeypatch.setattr(few_stories, "FEW", (20,))
    monkeypatch.setattr(few_stories, "WIDTHS", (8, 16, 24))
    monkeypatch.setattr(few_stories, "ENDS", {8: (1e-3, 3e-3), 24: (3e-3,)})
    monkeypatch.setattr(few_stories, "SEEDS", (1, 2))
    monkeypatch.setattr(few_stories, "CHOOSING", (0, 3))
    return workdir

@pytest.mark.parametrize("trial", [Trial("ar"), Trial("aogpt"), Trial("aogpt", orders=3), Trial("mdlm")])
def test_a_perfect_network_has_no_distance_from_the_law(trial):
    """And what it scores with any masks is the law's own loss, on average."""
    x, oracle = as_tokens(stories(64)), toy_oracle(trial.mode)
    batches, law = few_stories.held_out(trial, oracle.config, x, WORDS, draws=4)
    mean, error = few_stories.distance(oracle, batches, law)
    assert abs(mean) < 1e-5 and error < 1e-5
    noise = law - few_stories.law_of(x, WORDS)
    assert abs(noise.mean()) <= 4 * noise.std() / 8 and (noise.std() > 0.01) == (trial.mode == "mdlm")

def test_fewer_orders():
    x, config = torch.arange(40).view(1, 40).repeat(200, 1), Config("aogpt", vocab_size=60, block_size=40)
    batch = few_stories.batch_of(Trial("aogpt", orders=3), config, x, mask_generator(0))
    assert len(set(map(tuple, batch.target_pos.tolist()))) == 3

def test_copies_are_counted():
    oracle, seen = toy_oracle("ar"), {}
    for share in (0, 1):
        found = few_stories.copies(oracle, WORDS, seen, seed=1, samples=100)
        assert (found["grammatical"], found["copied"], found["new"]) == (1, share, 1 - share)
        blank = torch.full((48,), oracle.config.mask_id)
        tokens, _ = generate(oracle, range(100), blank, SampleOptions(seed=1))
        texts = [WORDS.decode_story(row) for row in tokens.tolist()]
        seen = {text: -TOY.log_probs(text).sum() for text in texts}
    assert 0 < found["copied_by_law"] < 1e-3

def test_few_stories(few, monkeypatch, capsys):
    """Every part, resumed, then its tables and figures: small sizes."""
    def sweep(stories):
        for mode in ("ar", "aogpt", "mdlm"):
            yield Trial(mode, 20, seed=0, steps=30)
        yield Trial("ar", 20, seed=0, steps=30, dropout=0.5, noise=0.5)

    def other_tasks(done):
        yield Trial("aogpt", 20, steps=30, orders=2)
        yield Trial("mdlm", 20, steps=30, repeat=1)

    monkeypatch.setattr(few_stories, "sweep", sweep)
    monkeypatch.setattr(few_stories, "other_tasks", other_tasks)

    def command(*flags):
        monkeypatch.setattr(sys, "argv", ["few_stories.py", "--samples=10", "--stories=50", *flags])
        few_stories.main()
        return capsys.readouterr().out

    kinds = {"sizes": ["sweep", "sizes"], "not_told": [], "why": ["why"],
             "widths": ["rates", "widths"]}
    for part, tables in kinds.items():
        text = command(f"--part={part}")
        assert "above the law at step" in text and all(f"\n{kind}\n" in text for kind in tables)
        assert "above the law at step" not in command(f"--part={part}")         # what is there stays
    command("--json=f.json", "--md=f.md", "--plot=f.png")
    assert sorted(re.findall("## (.+)", open("f.md").read())) == sorted(sum(kinds.values(), []))
    trials = json.load(open("f.json"))["trials"]
    # three modes, two sizes, two seeds; ar and mdlm not told positions; ar with remedies, if they were better
    assert len([name for name in trials if "samples" in trials[name]]) in (16, 18)
    shutil.rmtree("out/few-stories")
    assert "above the law at step" not in command("--part=why", "--json=f.json")    # the file has them
    with pytest.raises(InputError, match="other.json has other results"):
        json.dump({"runs": {}}, open("other.json", "w"))
        command("--json=other.json")
    for t in trials.values():
        chosen_by, step = min(zip(t["curve"]["bound"], t["curve"]["step"]))
        assert t["best"]["chosen_by"] == pytest.approx(chosen_by, rel=1e-4) and t["best"]["step"] == step
        assert t["best"]["distance"] > 0
    assert min(os.path.getsize(f) for f in ("f.png", "f-sizes.png", "f-widths.png")) > 5000

def test_a_trial_trains_as_the_command_does(few):
    """The same seed, settings and stories: the model that train.py leaves."""
    trial = Trial("ar", 20, seed=3, steps=25)
    result = few_stories.run(trial, few_stories.FewStoriesOptions(stories=50))
    done = run("train.py", "--mode=ar", "--preset=toy", "--n_layer=1", "--n_head=1", "--n_embd=16",
               "--n_hidden=16", "--batch_size=32", "--compile=false", "--dtype=float32", "--train_stories=20",
               "--seed=3", "--max_steps=25", "--final_lr=1", "--lr=1.5e-3", cwd=few)
    assert done.returncode == 0 and "40.0 epochs of 20" in done.stdout, done.stderr
    x = torch.from_numpy(Windows("toy", "val", 48).spread(10 ** 6))[::2][:50]
    model, _ = load("out/toy-ar/best.pt")
    distance, _ = few_stories.distance(model, *few_stories.held_out(trial, model.config, x, WORDS))
    assert result["curve"]["bound"][-1] == pytest.approx(distance, rel=1e-4)

def test_first_minute(few, monkeypatch, capsys):
    """With AdamW, with Muon for the matrices, and with averaged weights."""
    size = dict(steps=3, n_layer=1, n_head=1, n_embd=16, batch_size=4)
    monkeypatch.setattr(first_minute, "PRESETS", few_stories.PRESETS)
    monkeypatch.setattr(first_minute, "trials", lambda: [
        first_minute.Trial(**size, **changed) for changed in ({}, dict(optimizer="muon"), dict(ema=0.5))])
    flags = ["--stories=20", "--samples=5", "--json=f.json", "--md=f.md"]
    monkeypatch.setattr(sys, "argv", ["first_minute.py", *flags])
    first_minute.main()
    assert "optimizer=muon: " in capsys.readouterr().out and "| grammatical |" in open("f.md").read()
    done = json.load(open("f.json"))["trials"].values()
    assert len({trial["distance"] for trial in done}) == 3 and len({trial["flops"] for trial in done}) == 1

def test_first_command(trained, tmp_path, monkeypatch):
    """From nothing: the data, the run, its stories. And a first step (its data are there), all ways."""
    in_turn, told = [], []

    def in_a_fork(line, cwd, env, **_):
        assert env["TMPDIR"] == cwd     # precompiled headers of earlier runs are not there
        if line[1] != "-c":
            told.append(env["TORCHINDUCTOR_VEC_ISA_OK"])
            run(*line[1:], cwd=cwd).check_returncode()
        elif "train" in line[2]:
            subprocess.run(line, cwd=cwd, env=env, check=True)
            in_turn.append("train.subprocess = Mock()" in line[2])

    monkeypatch.setattr(first_command, "MODES", ("mdlm",))
    monkeypatch.setattr(first_command, "ROUNDS", 1)
    monkeypatch.setattr(first_command, "ONE_STEP", ["--max_steps=1", f"--data={trained}/data/t"])
    train = [f"{ROOT}/train.py", *(flag for flag in TINY if flag != "--data=t")]
    monkeypatch.setattr(first_command, "TRAIN", train)
    monkeypatch.setattr(first_command, "subprocess", types.SimpleNamespace(DEVNULL=None, run=in_a_fork))
    monkeypatch.setattr(first_command, "STORIES", 3)
    monkeypatch.setattr(first_command, "SEEDS", (1,))
    monkeypatch.setattr(sys, "argv", ["first_command.py", str(tmp_path / "f.json")])
    first_command.main()
    found = json.load(open(tmp_path / "f.json"))
    [made] = found["runs"]
    assert 0 < made["of_steps"] < made["seconds"] and made["mode"] == "mdlm" and made["seed"] == 1
    assert 0 <= made["grammatical"] <= 1 and made["of_one_story"] > 0 and made["of_import_torch"] > 0
    monkeypatch.setattr(first_command, "measure", lambda mode, seed: {"mode": mode, "seed": seed})
    monkeypatch.setattr(first_command, "MODES", ("ar", "mdlm"))
    monkeypatch.setattr(sys, "argv", ["first_command.py", str(tmp_path / "g.json"), "mdlm"])
    first_command.main()
    found = json.load(open(tmp_path / "g.json"))    # a mode alone
    assert found["runs"] == [{"mode": "mdlm", "seed": 1}] and not any(found["first_step"].values())
    monkeypatch.setattr(sys, "argv", ["first_command.py", str(tmp_path / "g.json"), "mdml"])
    with pytest.raises(InputError, match="maybe modes"):
        first_command.main()
    monkeypatch.setattr(sys, "argv", ["first_command.py", str(tmp_path / "h.json"), "step"])
    first_command.main()
    found = json.load(open(tmp_path / "h.json"))
    assert not found["runs"] and [len(of) for of in found["first_step"].values()] == [1] * 3    # rounds
    assert all(s > 0 for of in found["first_step"].values() for s in of[0]) and in_turn == [True, True]
    assert told[-4:] == ["1", "1", "", ""]

def test_held_out(trained, monkeypatch):
    """The numbers of best.pt on other stories; what is above itself is nothing."""
    run("prepare_data.py", "--name=others", "--max_tokens=30000", "--seed=9", cwd=trained)
    done = experiment("held_out", "ar=out/ar,out/ar", "mdlm=out/mdlm", "aogpt=out/aogpt", "--draws=2",
                      "--report=others", "--block_size=48", "--json=held.json", "--plot=f.png",
                      "--forest=g.png", "--md=f.md", cwd=trained)
    assert done.returncode == 0, done.stderr
    content = found = json.load(open(trained / "held.json"))
    model, _ = load(trained / "out/ar/best.pt")
    monkeypatch.chdir(trained)
    x = torch.from_numpy(Windows("others", "val", 48).spread(10 ** 9))
    with torch.no_grad():
        exact = group_losses(model, training_batch(model.config, x, None)).mean().item()
    compared = content["compared"]
    assert compared["ar"]["seeds"] == pytest.approx([exact, exact]) and compared["ar"]["above"] == 0
    assert list(compared) == ["ar", "mdlm", "aogpt", "aogpt, left to right"] and content["windows"] == len(x)
    assert f"\n| ar | {exact:.4f} ± 0.0000 | {exact:.4f}, {exact:.4f} | 0.0000 ± 0.0000 |" in \
        (trained / "f.md").read_text()
    assert min(os.path.getsize(trained / name) for name in ("f.png", "g.png")) > 5000
    content["runs"]["out/gone"] = content["runs"]["out/ar"] | {"nats": [9.0] * len(x)}
    json.dump(content, open(trained / "held.json", "w"))
    done = experiment("held_out", "ar=out/ar", "gone=out/gone", "--report=others", "--block_size=48",
                      "--draws=2", "--json=held.json", cwd=trained)
    assert json.load(open(trained / "held.json"))["runs"] == content["runs"]       # nothing is lost
    assert done.returncode == 0 and re.search("gone +9.0000", done.stdout), done.stderr
    done = experiment("held_out", "ar=out/ar", "--report=t", "--block_size=48", cwd=trained)
    assert done.returncode == 2 and "the stories of data/t chose out/ar/best.pt" in done.stderr
    done = experiment("held_out", "gone=out/gone", "--report=others", "--block_size=48", "--json=held.json",
                      cwd=trained)
    assert done.returncode == 2 and "has scores made another way" in done.stderr    # with as many draws only
    found_before = json.load(open(trained / "held.json"))
    without = found_before["runs"].keys() - {"out/mdlm"}
    json.dump(found_before | {"runs": {name: found_before["runs"][name] for name in without}},
              open(trained / "held.json", "w"))
    done = experiment("held_out", "more=out/mdlm", "--report=others", "--block_size=48", "--draws=2",
                      "--json=held.json", "--only_score", cwd=trained)
    content = json.load(open(trained / "held.json"))
    assert done.returncode == 0 and content == found_before, done.stderr            # the comparison stays
    (trained / "other.json").write_text('{"runs": {}}')
    done = experiment("held_out", "ar=out/ar", "--report=others", "--json=other.json", cwd=trained)
    assert done.returncode == 2 and "--json=other.json has other results" in done.stderr
    # of a run with --windows=paper a row of its own, on windows cut as it knows them
    flags = "--report=others", "--block_size=48", "--without_end", "--json=cut.json"
    done = experiment("held_out", "ar=out/ar", *flags, cwd=trained)
    assert done.returncode == 0 and "paper's windows" not in done.stdout, done.stderr
    content = json.load(open(trained / "cut.json"))
    words = Windows("others", "val", 48).tokens
    words = torch.from_numpy(words[words != model.config.bos_id].astype(int))[:48 * 20].view(20, 48)
    with torch.no_grad():
        exact = group_losses(model, training_batch(model.config, words, None))
    content["runs"]["out/cut"] = content["runs"]["out/ar"] | {"windows": "paper"}
    assert content["runs"]["out/cut"]["nats_cut"][:20] == pytest.approx(exact.tolist(), abs=1e-5)
    json.dump(content, open(trained / "cut.json", "w"))
    done = experiment("held_out", "ar=out/ar", "cut=out/cut", *flags, cwd=trained)
    assert re.search(r"cut, on the paper's windows .* 0\.0000 ± 0\.0000", done.stdout), done.stdout

    curve = found["runs"]["out/mdlm"]["curve"][-1]
    assert curve["predicted tokens"] == curve["steps"] * 8 * 49 / 2

def test_runs_are_compared_with_the_error_of_stories_and_seeds():
    rng = np.random.default_rng(0)
    stories, seeds = rng.normal(size=100), rng.normal(size=(5, 1))

    def runs(shift, of_seeds):
        return [{"nats": stories + shift + seed, "nats_l2r": stories - 1 + seed, "epochs": 1}
                for seed in of_seeds]

    first, second = runs(0, 0.1 * seeds[:3]), runs(1, 0.1 * seeds[2:])
    found = held_out.compare(second, first)
    means = ([np.mean(run["nats"]) for run in several] for several in (second, first))
    welch = stats.ttest_ind(*means, equal_var=False)        # stories differ alike
    assert found["above"] / found["error"] == pytest.approx(welch.statistic)
    low, high = welch.confidence_interval()
    assert found["half"] == pytest.approx((high - low) / 2)
    assert held_out.compare(first, first, "nats_l2r")["error"] < 1e-9               # each below itself
    assert held_out.compare(second[:1], first)["error"] > found["error"]            # a lone run
    noise = rng.normal(size=100)        # where stories make most of the error, it is known better
    found = held_out.compare([run | {"nats": run["nats"] + noise} for run in second], first)
    assert 1.96 * found["error"] < found["half"] < found["error"] * stats.t.ppf(0.975, welch.df)
    found = held_out.compare([{"nats": stories + noise, "epochs": 1}], first[:1])   # stories alone
    means = (noise + stories - first[0]["nats"]).reshape(10, 10).mean(axis=1)       # ten windows a group
    assert found["error"] == pytest.approx(stats.sem(means))
    assert found["half"] == pytest.approx(found["error"] * stats.t.ppf(0.975, 9))

def test_confounds(tmp_path):
    """The gap is between a variant of both modes, with its partner's, or with what ar is otherwise."""
    level = {"mdlm": {"as it is": 3, "AdamW": 3.5, "masked_ce": 3.2, "its init, untied head": 4},
             "ar": {"as it is": 2, "AdamW": 2.1, "its init": 3.75}}
    for mode, variants in level.items():
        made = {name: [{"nats": [nats + seed / 100] * 20, "epochs": 1} for seed in range(3)]
                for name, nats in variants.items()}
        names = {name: ",".join(f"{name.replace(',', '')}{i}" for i in range(3)) for name in made}
        content = {"names": names,
                   "compared": {name: held_out.compare(of, made["as it is"]) for name, of in made.items()}}
        content["runs"] = {folder: run for name, of in made.items()
                           for folder, run in zip(names[name].split(","), of)}
        (tmp_path / f"{mode}.json").write_text(json.dumps(content))
    done = experiment("confounds", "--mdlm=mdlm.json", "--ar=ar.json", "--json=gaps.json", "--plot=f.png",
                      cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    gaps = json.load(open(tmp_path / "gaps.json"))["gaps"]
    assert {name: of["above"] for name, of in gaps.items()} == pytest.approx(
        {"as it is": 1, "AdamW": 1.4, "masked_ce": 1.2, "its init, untied head": 0.25})
    lines = [line.split() for line in done.stdout.splitlines()]
    row = "AdamW 3.510 ± 0.010 +0.500 ± 0.008 2.110 ± 0.010 +0.100 ± 0.008 1.400 ± 0.008"
    assert row.split() in lines
    assert "its init 3.760 ± 0.010 +1.750 ± 0.008".split() in lines
    assert os.path.getsize(tmp_path / "f.png") > 5000
    done = experiment("confounds", "--mdlm=mdlm.json", "--ar=gone.json", cwd=tmp_path)
    assert done.returncode == 2 and "give --mdlm=F and --ar=F" in done.stderr

def test_what_training_took_counts_the_run_it_started_from(monkeypatch):
    """An mdlm from an ar: steps and FLOPs add up, and all tokens of the ar's steps were predicted."""
    def run(mode, init_from=""):
        config = Config(mode, 60, 8, n_layer=1, n_head=1, n_embd=16, n_hidden=16)
        return {"config": dataclasses.asdict(config), "curve": [{"step": 5, "seconds": 2.0}],
                "settings": {"batch_size": 4, "init_from": init_from}}, flops_per_token(config)

    (ar, of_ar), (mdlm, of_mdlm) = run("ar"), run("mdlm", "out/ar")
    monkeypatch.setattr(held_out, "read_run", {"out/ar": ar}.get)
    assert held_out.spent(mdlm, 3, 1.5) == {
        "steps": 8, "predicted tokens": 5 * 32 + 3 * 4 * 9 / 2, "seconds of training": 3.5,
        "training FLOPs": 5 * 32 * of_ar + 3 * 32 * of_mdlm}

@pytest.mark.parametrize("mode", ["ar", "mdlm"])
def test_stories_without_their_end(mode):
    """Nothing changes where there is none; where there is one, its nats are left out of a mean over fewer."""
    model = small_model(mode)
    c = model.config
    x = torch.randint(c.bos_id, (6, c.block_size))
    full, without = (held_out.score(model, x, 3, 0, False, flag) for flag in (False, True))
    assert without == pytest.approx(full)
    x[:, 2] = c.bos_id
    if mode == "ar":
        with torch.no_grad():
            logits = model(*training_batch(c, x, None)[:3])
        nll = torch.nn.functional.cross_entropy(logits.mT, x, reduction="none")
        expected = (nll.sum(dim=1) - nll[:, 2]) / (c.block_size - 1)
        assert held_out.score(model, x, 1, 0, False, True) == pytest.approx(expected.numpy(), abs=1e-5)
    else:
        assert not np.allclose(*(held_out.score(model, x, 3, 0, False, flag) for flag in (False, True)))

def test_weights_by_how_much_is_masked():
    """power 0 is the bound, 1 a mean of all masked tokens; a group's weights sum to 1 over all k, and those
    of a random share of its tokens over draws too."""
    config, x = small_model("mdlm").config, torch.randint(10, (400, 8))
    plain = training_batch(config, x, mask_generator(1))
    for power in (0, 0.5, 1, 2):
        batch = weighted.weighted_batch(config, x, mask_generator(1), weighted.Weights(power))
        k, mean = 0.5 / plain.weight, sum(k ** power for k in range(1, 9)) / 8
        assert torch.allclose(batch.weight, plain.weight * k ** power / mean)
        assert batch.weight.sum(dim=1).mean().item() == pytest.approx(1, abs=1e-6)  # strata: each k as often
        assert torch.equal(batch.tokens, plain.tokens) and torch.equal(batch.targets, plain.targets)
        part = weighted.weighted_batch(config, x, mask_generator(1), weighted.Weights(power, share=0.25))
        assert part.weight.sum(dim=1).mean().item() == pytest.approx(1, abs=0.15)
        assert (part.weight > 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    alike, least = (weighted.weighted_batch(config, x, mask_generator(1), w).weight
                    for w in (weighted.Weights(1), weighted.Weights(least=3)))
    assert torch.allclose(alike, torch.tensor(1 / 9))
    few, of_three = k < 3, least[k == 3].max()
    assert torch.allclose(least[few], of_three)
    assert torch.allclose(least[~few] / plain.weight[~few], 6 * of_three)           # else as the bound
    three = weighted.weighted_batch(config, x[:4], mask_generator(1), weighted.Weights(draws=3))
    assert torch.equal(three.weight, training_batch(config, x[:4].repeat(3, 1), mask_generator(1)).weight)
    assert three.weight.shape == (3 * 2, 9) and len(three.tokens) == 3 * 4

def test_a_run_with_other_weights(trained):
    """power 0 learns what train.py does."""
    flags = [*TINY, "--mode=mdlm", "--out_dir=out/weighted"]
    done = experiment("weighted", *flags, cwd=trained)
    assert done.returncode == 0, done.stderr
    ours, its = (read_log(trained / "out" / name) for name in ("weighted", "mdlm"))
    assert ours[-1]["val_nll"] == pytest.approx(its[-1]["val_nll"], abs=1e-4)
    shutil.rmtree(trained / "out/weighted")
    assert experiment("weighted", "--power=2", "--share=0.5", "--draws=2", *flags,
                      cwd=trained).returncode == 0
    assert abs(read_log(trained / "out/weighted")[-1]["val_nll"] - its[-1]["val_nll"]) > 0.001
    assert json.load(open(trained / "out/weighted/config.json"))["command"].startswith(
        "python -m experiments.weighted --power=2 --share=0.5 --draws=2 ")
    done = experiment("weighted", "--power=1", "--share=0.5", "--draws=2", *flags, "--resume",
                      cwd=trained)
    assert done.returncode == 2 and "power was 2.0, is now 1.0" in done.stderr
    done = experiment("weighted", "--mode=ar", cwd=trained)
    assert done.returncode == 2 and "give --mode=mdlm" in done.stderr

def test_the_bound_is_the_mean_over_how_much_is_masked():
    model, x = small_model("mdlm"), torch.randint(10, (40, 8))
    by_masked = nats_by_masked(model, x.repeat(20, 1), RatioOptions(masked=tuple(range(1, 9))))
    batch = evaluation_batch(model.config, x.repeat(100, 1), mask_generator(3))
    bound = losses_in_parts(model, batch)
    assert np.mean(by_masked) == pytest.approx(bound.mean().item(), abs=0.02)

def test_the_mixture_over_orders():
    """Against the definition, order by order; and a perfect network scores alike in any of them."""
    rng = np.random.default_rng(0)
    scores, T = rng.uniform(0.5, 1.5, size=(5, 3)), 4
    p = np.exp(-T * scores)
    found, by_hand = orders.mixture(scores, T), {
        1: scores.mean(axis=0), 2: -np.log((p[:4:2] + p[1:4:2]) / 2).mean(axis=0) / T,
        4: -np.log(p[:4].mean(axis=0)) / T}
    assert found.keys() == by_hand.keys() and all(found[K] == pytest.approx(by_hand[K]) for K in by_hand)
    differ, alike = (orders.spread(of, T) for of in (scores, scores[:1].repeat(5, axis=0)))
    assert differ["orders that count"] == pytest.approx((p.sum(axis=0) ** 2 / (p ** 2).sum(axis=0)).mean())
    assert differ["variance of ln p over orders"] == pytest.approx(np.var(T * scores, axis=0, ddof=1).mean())
    assert (alike["orders that count"], alike["variance of ln p over orders"]) == pytest.approx((5, 0))
    x, generator = as_tokens(stories(5)), mask_generator(0)
    blocks = orders.in_blocks(x, 16, generator)
    assert sorted(blocks[0].tolist()) == list(range(48)) and len(set(blocks[:, 0].tolist())) > 1
    assert ((blocks.diff(dim=1) == 1).sum(dim=1) >= 45).all() and set(blocks[:, 0].tolist()) <= {0, 16, 32}
    exact = [-TOY.log_probs(WORDS.decode_story(row)).sum() / 48 for row in x.tolist()]
    for mode in ("aogpt", "mdlm"):
        for of_order in orders.nats(toy_oracle(mode), x, [blocks, torch.arange(47, -1, -1).expand(5, 48)]):
            assert of_order == pytest.approx(exact, abs=1e-5)

def test_mdlm_order_by_order():
    """The mean over all orders is the bound that nelbo_batch estimates."""
    model = small_model("mdlm", block_size=4)
    x = torch.randint(model.config.bos_id, (2, 4))
    permuted = itertools.permutations(range(4))
    scores = orders.nats(model, x, [torch.tensor([order, order]) for order in permuted])
    batch = evaluation_batch(model.config, x.repeat_interleave(5000, dim=0), mask_generator(0))
    losses = losses_in_parts(model, batch).view(2, -1).numpy()
    error = losses.std(axis=1) / math.sqrt(losses.shape[1])
    assert (abs(losses.mean(axis=1) - scores.mean(axis=0)) < 5 * error).all() and (error < 0.02).all()
    assert scores.std(axis=0).min() > 1e-3

def test_a_model_that_repeats_how_many_drafts_another_kept_takes_as_many_passes(monkeypatch):
    options = SpeculativeOptions(drafts=(2, 4), stories=(1, 3), total=5, repeats=2)
    law, kept = record(small_model("aogpt"), options, 8)
    assert [row["draft"] for row in law] == [2, 4] and all(row["tokens_per_pass"] >= 1 for row in law)
    mine, theirs = (measure(small_model("aogpt", seed=seed), options, 8, record_of)
                    for seed, record_of in ((0, None), (1, kept)))
    assert [row["passes"] for row in theirs] == [row["passes"] for row in mine]
    assert [row["passes"] for row in theirs if not row["draft"]] == [8, 8]
    assert sample.confirm.__module__ == "sample"            # restored
    options = dataclasses.replace(options, order="left_to_right")
    assert record(small_model("aogpt"), options, 8)[0] != law
    orders, write = set(), sample.generate
    monkeypatch.setattr(sample, "generate", lambda *given: orders.add(given[-1].order) or write(*given))
    measure(small_model("aogpt"), options, 8)
    assert orders == {"left_to_right"}

def test_plateau(workdir, monkeypatch, capsys):
    """Every thing that can be added, a step or two; c ends up where its name says."""
    prepare(PrepareOptions(max_tokens=30_000))
    small = dict(n_layer=2, n_head=1, n_embd=16, n_hidden=16, batch_size=8, compile="false", dtype="float32")
    monkeypatch.setattr(plateau, "NARROW", PRESETS["toy"] | small)
    monkeypatch.setattr(plateau, "PARTS", {"where": lambda: [
        dataclasses.replace(probe, block_size=48, steps=200) for probe in plateau.where() if probe.seed < 3]})
    monkeypatch.setattr(sys, "argv", ["plateau.py", "--part=where", "--data=toy", "--windows=8", "--md=f.md"])
    monkeypatch.setattr(plateau, "make_update", lambda model, s: (None, lambda batch, lr: None))
    plateau.main()
    assert "| c to [MASK]-" in open("f.md").read()
    found = {}
    for added, change in plateau.ADDED.items():
        torch.manual_seed(0)
        model = Transformer(Config("mdlm", 60, 8, n_layer=2, n_head=1, n_embd=16, n_hidden=16))
        before = model.embed.weight.clone()
        change(model, torch.ones(16), 2 * torch.ones(16))
        added_to = (model.embed.weight - before).mean(dim=1)
        found[added] = round(added_to[0].item()), round(added_to[60].item())
        biases = [p for name, p in model.named_parameters() if "probe" in name]
        assert len(biases) == 4 * ("biases" in added) + ("plain bias of" in added)
    rows = {"all embeddings": (1, 1), "real tokens": (1, 0), "[MASK]": (0, 1),
            "real tokens, -c to [MASK]": (1, -1), "real tokens, another to [MASK]": (1, 2)}
    assert {what: found[f"c to {what}"] for what in rows} == rows
    assert all(found[added] == (0, 0) for added in found if "c to" not in added)

def test_when_the_plateau_ended():
    losses = {25: 6.0, 50: 5.8, 75: 5.4, 100: 5.3}
    run = {"unigram": 5.8, "curve": [{"step": step, "val_nll": loss} for step, loss in losses.items()]}
    assert plateau.ended(run) == pytest.approx(50 + 25 * 0.3 / 0.4)
    assert plateau.ended(run | {"unigram": 5.5}) == math.inf
    assert plateau.ended(run | {"unigram": 6.5}) == -math.inf

def test_where_the_first_layer_looks():
    """Evenly where all scores are 0; at words alone with a head that tells them from [MASK]."""
    model = Transformer(Config("mdlm", 60, 8, n_layer=1, n_head=2, n_embd=16, n_hidden=16))
    qkv, x = model.blocks[0].attention.qkv.weight, torch.randint(59, (64, 8))
    with torch.no_grad():
        qkv[:32] = 0        # q and k
        found = plateau.looks(model, x, mask_generator(1))
        assert found == pytest.approx({"visible": 1, "near": 1}, abs=1e-5)
        model.rotary[0], model.rotary[1] = 1, 0                 # nothing turns
        model.embed.weight[:] = 0
        model.embed.weight[:, 0], model.embed.weight[60, 0] = 1, -1
        qkv[0, 0], qkv[16, 0] = -50, 50                         # of head 1: from [MASK] to words
        found = plateau.looks(model, x, mask_generator(1))
        masked = torch.rand(x.shape, generator=mask_generator(1)) < 0.5
        visible = F.pad(~masked, (1, 0), value=True).float().mean(dim=1)        # of each window's 9 slots
        words = masked.sum(dim=1)
        assert found["visible"] == pytest.approx((words.sum() / (words * visible).sum()).item(), rel=1e-3)
        assert found["near"] == pytest.approx(1, abs=1e-3)

def test_what_a_linear_layer_does_to_c():
    """In the plateau's probes: nothing at first of what is learned; then what the change of W does to c."""
    torch.manual_seed(0)
    model = Transformer(Config("mdlm", 60, 8, n_layer=2, n_head=1, n_embd=16, n_hidden=16))
    x, c, qkv = torch.randn(3, 16), torch.randn(16), model.blocks[0].attention.qkv
    u = math.sqrt(8) * c / c.norm()
    before = [qkv(x), model.blocks[1].attention.qkv(x)]
    plateau.through(model, c, initial=0, learned=1, layers=(0,), parts="k", mlp=False)
    assert torch.equal(qkv(x), before[0])
    with torch.no_grad():
        qkv.weight += 1
    added = qkv(x) - before[0] - x.sum(dim=1, keepdim=True)
    assert added[:, 16:32].detach() == pytest.approx(u.sum().expand(3, 16), abs=1e-4)
    assert added[:, :16].abs().max() < 1e-5 and added[:, 32:].abs().max() < 1e-5
    assert torch.equal(model.blocks[1].attention.qkv(x), before[1])
    put_back = plateau.without_mean_key(model)
    now, mean_key = qkv(x[None]), before[0][:, 16:32].mean(dim=0)
    assert now[0, :, 16:32].mean(dim=0).abs().max() < 1e-5 and mean_key.abs().max() > 0.01
    put_back()
    assert torch.equal(qkv(x), qkv(x[None])[0]) and qkv(x)[:, 16:32].mean(dim=0).abs().max() > 0.01
    plateau.without_the_mean(model)
    second, x = model.blocks[1].attention.qkv, torch.randn(2, 3, 16)
    first = second(x)
    with torch.no_grad():
        second.weight += 1
    assert torch.allclose(second(x) - first, (x - x.mean(dim=(0, 1))).sum(dim=2, keepdim=True), atol=1e-4)
