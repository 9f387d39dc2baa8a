"""Flags, and wrong calls of every command: one line that says why, exit code 2, no file touched."""
import importlib
import re
import sys
from dataclasses import dataclass, fields
from typing import Literal

import pytest

import model
import sample
import train
import variants.blocks
import variants.infill
import variants.paper
from conftest import TINY, run
from support.flags import (
    InputError, build, comments_of, flag, names_in, options_of, parse_flags)

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


@pytest.mark.parametrize("argument, named", [
    ("--top_k=five", "--top_k"), ("--rope_base=x", "--rope_base"), ("--length=0", "--length"),
    ("--rope_base=nan", "--rope_base"), ("--rope_base=-inf", "--rope_base"), ("five", "five"),
    ("--watch=maybe", "--watch"), ("--share=1.5", "--share"), ("--share=-1", "--share"),
    ("--kind=gren", "green?"), ("--top-k=5", "--top_k?"), ("--lenght=5", "--length?")])
def test_a_wrong_flag_is_named(call, argument, named):
    with pytest.raises(InputError) as e:
        call(argument)
    assert named in str(e.value)


@pytest.mark.parametrize("script, folder, classes", [
    ("train.py", "variants", [train.Settings, model.Config]),
    ("sample.py", "samplers", [sample.SampleOptions])])
def test_help_shows_every_flag(script, folder, classes):
    """Also those of the files in a folder, and the names of these; with defaults and what they are.
    """
    done = run(script, "--help", COLUMNS="1000")
    assert done.returncode == 0
    classes += filter(None, [options_of(folder, name) for name in names_in(folder)])
    shown = re.findall(r"^  --(\w+)", done.stdout, re.MULTILINE)
    assert sorted(shown) == sorted({f.name for options in classes for f in fields(options)})
    words = done.stdout.split()
    said = " ".join(words)
    assert ", ".join(names_in(folder)) in said
    for options in classes[:2]:
        for f in fields(options):
            assert f.metadata.get("help", comments_of(options).get(f.name, "")) in said
    assert "(1337)" in words


def test_comments_of_a_config_are_its_help():
    """Also of a field that a variant has from model.py."""
    for variant in model, variants.blocks, variants.infill, variants.paper:
        comments = comments_of(variant.Config)
        assert comments["n_embd"] == "C, the width of the residual stream"
        assert comments["mode"]


# ---- Commands ------------------------------------------------------------------------------------

BAD = """
train.py --data=tt
train.py --mode=gpt    ar?
train.py --preset=lapto    laptop?
train.py --dtype=float16    bfloat16?
train.py --learning_rate=1e-3    --lr?
train.py --gradient-accumulation-steps=4    --grad_accum?
train.py --dataset=shakespeare    --data?
train.py --n_layer=0
train.py --n_embd=100 --n_head=16
train.py --vocab_size=9
train.py --block_length=8    --variant=blocks
train.py --variant=block    blocks?
train.py --variant=blocks.py    blocks?
train.py --variant=muon
train.py --preset=paper --variant=blocks
train.py --preset=paper --schedule=linear
train.py --mode=ar --variant=blocks    --mode
train.py --mode=mdlm --variant=infill    --mode
train.py --variant=paper --time_embedding=add
train.py --mode=mdlm --variant=paper --schedule=cosine
train.py --mode=mdlm --variant=blocks --block_length=0
train.py --preset=toy --variant=answers --mark=999
train.py --mode=mdlm --preset=laptop --objective=nelbo --bell=8
prepare_data.py --text=toy.txt    data/toy
train.py --mode=mdlm --batch_size=7
train.py --grad_accum=3
train.py --device=cuda:77
train.py --out_dir=out/ar
train.py --out_dir=out/new --resume    out/new
sample.py --start=Once    --prompt?
sample.py --max_new_tokens=10    --length?
sample.py --out_dir=out/none
sample.py --out_dir=out/mdlm --prompt=zebra
sample.py --out_dir=out/ar --prompt=caf\udce9
sample.py --out_dir=out/ar --prompt=One___day
sample.py --out_dir=out/ar --prompt=FILE:none.txt    none.txt
sample.py --out_dir=out/ar --out=no/such/s.jsonl
sample.py --out_dir=out/ar --steps=4
sample.py --out_dir=out/mdlm --temperature=-1
sample.py --out_dir=out/mdlm --top_p=0
sample.py --out_dir=out/mdlm --cache=false
sample.py --out_dir=out/aogpt --blank=3
sample.py --out_dir=out/mdlm --steps=49
sample.py --out_dir=out/mdlm --order=2,1
sample.py --out_dir=out/aogpt --order=0,1,1
sample.py --out_dir=out/aogpt --order=blocks:0
sample.py --out_dir=out/aogpt --by_the_paper
sample.py --out_dir=out/mdlm --risk=0.1    --sampler=adaptive
sample.py --out_dir=out/mdlm --sampler=adptive
sample.py --out_dir=out/mdlm --sampler=adaptive.py    adaptive?
sample.py --out_dir=out/mdlm --sampler=blocks
sample.py --out_dir=out/ar --sampler=adaptive
sample.py --out_dir=out/aogpt --sampler=ancestral
sample.py --out_dir=out/ar --sampler=confidence
sample.py --out_dir=out/mdlm --sampler=drafts
sample.py --out_dir=out/aogpt --sampler=drafts --steps=3
sample.py --out_dir=out/aogpt --sampler=drafts --cache=false
sample.py --out_dir=out/mdlm --sampler=adaptive --steps=3
sample.py --out_dir=out/mdlm --sampler=ancestral --order=random
sample.py --out_dir=out/mdlm --sampler=confidence --order=random
prepare_data.py --text=none.txt
prepare_data.py --vocab_size=300
prepare_data.py --text=a.txt --tokenizer=bytes --vocab_size=300
extras/compare.py ar=out/ar --order=random
extras/compare.py ar=out/ar --text=none.txt
extras/compare.py ar=out/ar --text=t.txt --stride=49
extras/compare.py ar=out/none
extras/compare.py ar=out/ar ar=out/mdlm    NAME
extras/compare.py ar=out/ar --text=t.txt --device=tpu
extras/show.py ar=none.jsonl
extras/show.py ar.jsonl    NAME
extras/show.py ar=t.txt
extras/show.py ar=t.txt --picture=a.png
diversity.py mine=t.txt --judge=out/ar --device=tpu
bench.py --batch_size=3
bench.py --modes=ar,gpt    gpt
"""


def files_in(folder):
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_a_wrong_call_is_refused_in_one_line(trained, monkeypatch, line):
    """It names what is in the second column, or the last flag, or its value."""
    call, _, named = line.partition("    ")
    script, *arguments = call.split()
    *_, last = arguments
    if script == "train.py":
        arguments = [*TINY, *arguments]
    (trained / "t.txt").write_text("One day, a girl")
    before = files_in(trained)
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    command = importlib.import_module(script.removesuffix(".py").replace("/", "."))
    with pytest.raises((InputError, OSError)) as e:
        command.main()
    said = str(e.value)
    names = [named.strip()] if named else last.removeprefix("--").split("=")
    assert any(name in said for name in names)
    assert "\n" not in said
    assert files_in(trained) == before


@pytest.mark.parametrize("call", [
    "train.py --data=t --n_embd=1000000000000", "sample.py", "prepare_data.py --text=none.txt",
    "extras/show.py ar=none.jsonl", "extras/compare.py ar=out/none", "diversity.py a=none.jsonl",
    "bench.py --batch_size=3"])
def test_a_command_says_so_and_exits_with_2(trained, call):
    script, *arguments = call.split()
    done = run(script, *arguments, cwd=trained)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"{script.split('/')[-1]}: ")
    assert done.stderr.count("\n") == 1
