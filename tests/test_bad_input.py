"""Flags, and wrong calls of every command: exit code 2, one line that says why, no file touched."""
import re
import sys
from dataclasses import dataclass, fields
from typing import Literal

import pytest

import extras.blocks
import extras.infill
import extras.paper
import model
import train
from conftest import TINY, run
from support.flags import InputError, build, comments_of, flag, parse_flags

# ---- Flags ---------------------------------------------------------------------------------------

@dataclass
class Options:
    """a test's"""
    top_k: int = 0                  # how many
    rope_base: float = 10000.0
    watch: bool = False
    length: int | None = flag(None, "tokens", low=1)
    share: float = flag(0.5, "of 100%", low=0, high=1)
    kind: Literal["red", "green"] = flag("red", "a colour")


@pytest.fixture
def call(monkeypatch):
    """The options of a call with these arguments."""
    def options(*arguments):
        monkeypatch.setattr(sys, "argv", ["script.py", *arguments])
        return build(Options, parse_flags("A script.", Options))

    return options


def test_a_plain_field_is_a_flag(call):
    """It has no limits, and its help is the comment after it."""
    assert call() == Options()
    assert call("--top_k=-1", "--rope_base=-0.5") == Options(top_k=-1, rope_base=-0.5)
    assert call("--rope_base", "1e6") == Options(rope_base=1e6)
    assert call("--watch", "--length=3").watch
    assert not call("--watch=false").watch


@pytest.mark.parametrize("argument, said", [
    ("--top_k=five", "--top_k=five must be a whole number"),
    ("--rope_base=x", "--rope_base=x must be a number"),
    ("--rope_base=nan", "--rope_base=nan must be a finite number"),
    ("--watch=maybe", "--watch=maybe must be true or false"),
    ("--length=0", "--length=0 must be at least 1"),
    ("--share=1.5", "--share=1.5 must be at most 1"),
    ("--share=-1", "--share=-1.0 must be at least 0"),
    ("--kind=gren", "must be one of red, green; did you mean green?"),
    ("--top-k=5", "unknown argument --top-k=5; did you mean --top_k?"),
    ("five", "unknown argument five")])
def test_a_wrong_flag_is_named(call, argument, said):
    with pytest.raises(InputError) as e:
        call(argument)
    assert said in str(e.value)


def shown_by_help(script) -> dict:
    """{title: the flags below it}, in the order of --help."""
    done = run(script, "--help")
    assert done.returncode == 0, done.stderr
    groups = {}
    for title, flags in re.findall(r"^(\S.*):\n((?:  .*\n)+)", done.stdout, re.MULTILINE):
        groups[title] = re.findall(r"^  --(\w+)", flags, re.MULTILINE)
    return groups


def test_help_shows_every_flag(call, capsys):
    with pytest.raises(SystemExit) as end:
        call("--help")
    assert end.value.code == 0
    said = capsys.readouterr().out
    for words in "--top_k N", "how many (0)", "[true|false]", "--kind red|green", "of 100% (0.5)":
        assert words in said
    for script, groups in ("train.py", ["--variant=blocks", "--variant=paper"]), (
            "sample.py", ["--sampler=adaptive", "--sampler=confidence", "--sampler=drafts"]):
        shown = shown_by_help(script)
        first, *_ = [flags for title, flags in shown.items() if title == "what most people need"]
        assert 5 <= len(first) <= 10
        for group in groups:
            assert any(title.startswith(group) and flags for title, flags in shown.items())
    shown = sum(shown_by_help("train.py").values(), [])
    expected = set()
    for options in model.Config, train.Settings, extras.blocks.Config, extras.paper.Config:
        expected |= {f.name for f in fields(options)}
    assert sorted(shown) == sorted(expected)


def test_comments_of_a_config_are_its_help():
    """Also of a field that a variant has from model.py."""
    for variant in model, extras.blocks, extras.infill, extras.paper:
        comments = comments_of(variant.Config)
        assert comments["n_embd"] == "C, the width of the residual stream"
        assert comments["mode"]


# ---- Commands ------------------------------------------------------------------------------------

BAD = {
    "train.py --data=tt": "did you mean t",
    "train.py --data=t --mode=gpt": "--mode=gpt must be one of ar, mdlm, aogpt; did you mean ar?",
    "train.py --data=t --n_layer=0": "--n_layer=0 must be at least 1",
    "train.py --data=t --dropout=2": "--dropout=2.0 must be",
    "train.py --data=t --block_length=8": "it needs --variant=blocks",
    "train.py --data=t --tie_head=false": "it needs --variant=paper",
    "train.py --data=t --variant=block": "no extras/block.py; did you mean blocks?",
    "train.py --data=t --variant=muon": "extras/muon.py has no Config",
    "train.py --data=t --variant=blocks": "--variant=blocks is for --mode=mdlm or aogpt",
    "train.py --data=t --mode=mdlm --variant=blocks --block_length=0": "must be at least 1",
    "train.py --data=t --mode=mdlm --variant=paper --schedule=cosine": "--schedule=cosine needs",
    "train.py --data=t --mode=mdlm --batch_size=7": "--batch_size=7 must be a multiple of 2",
    "train.py --data=t --device=cuda:77": "--device=cuda:77 is not usable here",
    "train.py --data=t --out_dir=out/ar": "out/ar holds a run already",
    "train.py --data=t --out_dir=out/new --resume": "no checkpoint at out/new/ckpt.pt",
    "train.py --data=t --n_embd=1000000000000": "not enough memory",
    "sample.py": "--out_dir",
    "sample.py --out_dir=out/none": "no checkpoint at out/none/best.pt",
    "sample.py --out_dir=out/mdlm --risk=1": "it needs --sampler=adaptive",
    "sample.py --out_dir=out/mdlm --sampler=blocks": "extras/blocks.py has no sampler",
    "sample.py --out_dir=out/ar --steps=4": "--steps=4 means nothing for ar",
    "sample.py --out_dir=out/mdlm --steps=49": "--steps=49 must not exceed the 48",
    "sample.py --out_dir=out/mdlm --prompt=zebra": "'zebra' is not in the vocabulary",
    "sample.py --out_dir=out/ar --prompt=caf\udce9": "must be valid UTF-8",
    "sample.py --out_dir=out/ar --prompt=One___day": "mdlm and aogpt can fill such a blank",
    "sample.py --out_dir=out/aogpt --order=blocks:0": "blocks:N with an N of 1 or more",
    "sample.py --out_dir=out/aogpt --order=0,1,1": "positions 0 to 47 once",
    "sample.py --out_dir=out/ar --out=no/such/s.jsonl": "a folder, or lies in one that does not",
    "prepare_data.py --text=none.txt": "none.txt cannot be read",
    "prepare_data.py --vocab_size=300": "the toy has a tokenizer of its own",
    "prepare_data.py --text=a.txt --tokenizer=bytes --vocab_size=300": "there are 256 bytes",
    "extras/compare.py ar=out/ar --order=random": "--order=random means nothing without --text",
    "extras/compare.py ar=out/ar --text=none.txt": "none.txt cannot be read",
    "extras/compare.py ar=out/none": "out/none holds no readable run",
    "extras/compare.py ar=out/ar ar=out/mdlm": "every NAME once",
    "extras/show.py ar=none.jsonl": "none.jsonl",
    "diversity.py mine=none.jsonl": "none.jsonl",
    "bench.py --batch_size=3": "--batch_size=3 must be even",
    "bench.py --modes=ar,gpt": "--mode=gpt must be one of ar, mdlm, aogpt",
    "bench.py --n_embd=100 --n_head=16": "--n_embd=100 must be a multiple of 32"}


def files_in(folder):
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize("call", BAD)
def test_a_wrong_call_gets_one_line(trained, request, call):
    script, *arguments = call.split()
    if script == "train.py":
        arguments = [*TINY, *arguments]
    if "--text" in call:
        request.getfixturevalue("gpt2")         # skips where there is none
    before = files_in(trained)
    done = run(script, *arguments, cwd=trained)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{script.split('/')[-1]}: ")
    assert BAD[call] in done.stderr
    assert files_in(trained) == before
