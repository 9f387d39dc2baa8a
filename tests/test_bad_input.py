"""Flags, and wrong calls of every command: one line that says why, exit code 2, no file touched."""
import importlib
import re
import sys
from dataclasses import dataclass, fields
from typing import Literal

import pytest

import variants.answers
import variants.bell
import variants.blocks
import variants.infill
import variants.paper
import variants.taught
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


def test_help_shows_every_flag(call, capsys):
    with pytest.raises(SystemExit) as end:
        call("--help")
    assert end.value.code == 0
    said = capsys.readouterr().out
    for words in "--top_k N", "how many (0)", "[true|false]", "--kind red|green", "of 100% (0.5)":
        assert words in said
    of_train = run("train.py", "--help").stdout
    share = variants.infill.Config.l2r_fraction
    assert f"infill (its l2r_fraction is {share})" in " ".join(of_train.split())
    shown = re.findall(r"^  --(\w+)", of_train, re.MULTILINE)
    expected = set()
    others = (variants.answers, variants.bell, variants.blocks, variants.paper, variants.taught)
    for options in train.Settings, *(variant.Config for variant in others):
        expected |= {f.name for f in fields(options)}
    assert sorted(shown) == sorted(expected)


def test_comments_of_a_config_are_its_help():
    """Also of a field that a variant has from model.py."""
    for variant in model, variants.blocks, variants.infill, variants.paper:
        comments = comments_of(variant.Config)
        assert comments["n_embd"] == "C, the width of the residual stream"
        assert comments["mode"]


# ---- Commands ------------------------------------------------------------------------------------

BAD = """
train.py      --data=tt                        did you mean t
train.py      --mode=gpt                       must be one of ar, mdlm, aogpt; did you mean ar?
train.py      --mode=MDLM                      did you mean mdlm?
train.py      --preset=lapto                   did you mean laptop?
train.py      --dtype=float16                  did you mean bfloat16?
train.py      --learning_rate=1e-3             did you mean --lr?
train.py      --gradient-accumulation-steps=4  did you mean --grad_accum?
train.py      --dataset=shakespeare            did you mean --data?
train.py      --n_layer=0                      --n_layer=0 must be at least 1
train.py      --n_embd=100 --n_head=16         --n_embd=100 must be a multiple of 32
train.py      --vocab_size=9                   data/t has 135; leave it out
train.py      --block_length=8                 it needs --variant=blocks
train.py      --variant=block                  no variants/block.py; did you mean blocks?
train.py      --variant=blocks.py              did you mean blocks?
train.py      --variant=muon                   no variants/muon.py
train.py      --preset=paper --variant=blocks  leave --variant out
train.py      --preset=paper --schedule=linear  must be one of uniform, cosine
train.py      --variant=blocks                 --variant=blocks is for --mode=mdlm or aogpt
train.py      --mode=mdlm --variant=infill     is for --mode=aogpt
train.py      --variant=paper --time_embedding=add                  for --mode=mdlm
train.py      --mode=mdlm --variant=paper --schedule=cosine         --schedule=cosine needs
train.py      --mode=mdlm --variant=blocks --block_length=0         must be at least 1
train.py      --preset=toy --variant=answers --mark=999     --mark=999 is no token; there are 135
train.py      --mode=mdlm --preset=laptop --objective=nelbo --bell=8  --bell=8 means nothing in
prepare_data.py     --text=toy.txt            data/toy is for --dataset=toy; give --name=NAME
train.py      --mode=mdlm --batch_size=7       --batch_size=7 must be a multiple of 2
train.py      --grad_accum=3       must be a multiple of 3: of --grad_accum times the processes
train.py      --device=cuda:77                 --device=cuda:77 is not usable here
train.py      --out_dir=out/ar                 out/ar holds a run already
train.py      --out_dir=out/new --resume       no checkpoint at out/new/ckpt.pt
sample.py     --start=Once                     did you mean --prompt?
sample.py     --max_new_tokens=10              did you mean --length?
sample.py     --out_dir=out/none               no checkpoint at out/none/best.pt
sample.py     --out_dir=out/mdlm --prompt=zebra         the word 'zebra' is none of
sample.py     --out_dir=out/ar --prompt=caf\udce9       must be valid UTF-8
sample.py     --out_dir=out/ar --prompt=One___day       mdlm and aogpt can fill such a blank
sample.py     --out_dir=out/ar --prompt=FILE:none.txt   none.txt
sample.py     --out_dir=out/ar --out=no/such/s.jsonl    or lies in one that does not
sample.py     --out_dir=out/ar --steps=4                means nothing for ar
sample.py     --out_dir=out/mdlm --temperature=-1       --temperature=-1.0 must be at least 0$
sample.py     --out_dir=out/mdlm --top_p=0              --top_p=0.0 must be above 0
sample.py     --out_dir=out/mdlm --cache=false          means nothing for mdlm
sample.py     --out_dir=out/aogpt --blank=3             means nothing without ___
sample.py     --out_dir=out/mdlm --steps=49             must not exceed the 48 tokens
sample.py     --out_dir=out/mdlm --order=2,1            must be random, left_to_right, blocks:N
sample.py     --out_dir=out/aogpt --order=0,1,1         positions 0 to 47 once
sample.py     --out_dir=out/aogpt --order=blocks:0      blocks:N with an N of 1 or more
sample.py     --out_dir=out/aogpt --protocol=paper      is for --mode=ar or mdlm
sample.py     --out_dir=out/mdlm --risk=0.1             it needs --sampler=adaptive
sample.py     --out_dir=out/mdlm --sampler=adptive      no samplers/adptive.py; did you mean adaptive
sample.py     --out_dir=out/mdlm --sampler=adaptive.py  did you mean adaptive?
sample.py     --out_dir=out/mdlm --sampler=blocks       no samplers/blocks.py
sample.py     --out_dir=out/ar --sampler=adaptive       adaptive is for mdlm and aogpt
sample.py     --out_dir=out/aogpt --sampler=ancestral   ancestral is for --mode=mdlm
sample.py     --out_dir=out/ar --sampler=confidence     confidence is for --mode=mdlm
sample.py     --out_dir=out/mdlm --sampler=drafts       drafts is for --mode=aogpt
sample.py     --out_dir=out/aogpt --sampler=drafts --steps=3            without --steps
sample.py     --out_dir=out/aogpt --sampler=drafts --cache=false        and --cache=false
sample.py     --out_dir=out/mdlm --sampler=adaptive --steps=3           without --steps and --order
sample.py     --out_dir=out/mdlm --sampler=ancestral --order=random     without --order
sample.py     --out_dir=out/mdlm --sampler=confidence --order=random    without --order
prepare_data.py     --text=none.txt            none.txt cannot be read
prepare_data.py     --vocab_size=300           sudoku have words of their own
prepare_data.py     --text=a.txt --tokenizer=bytes --vocab_size=300     there are 256 bytes
extras/compare.py   ar=out/ar --order=random   --order=random means nothing without --text
extras/compare.py   ar=out/ar --text=none.txt  none.txt cannot be read
extras/compare.py   ar=out/ar --text=t.txt --stride=49     --stride=49 must not exceed the window
extras/compare.py   ar=out/none                out/none holds no readable run
extras/compare.py   ar=out/ar ar=out/mdlm      every NAME once
extras/compare.py   ar=out/ar --text=t.txt --device=tpu                 --device=tpu is not usable
extras/show.py      ar=none.jsonl              none.jsonl
extras/show.py      ar.jsonl                   give NAME=FILE
extras/show.py      ar=t.txt                   t.txt is not a file that sample.py wrote
extras/show.py      ar=t.txt --picture=a.png   --picture=a.png must end in .svg
diversity.py  mine=t.txt --judge=out/ar --device=tpu              --device=tpu is not usable
bench.py            --batch_size=3             --batch_size=3 must be even
bench.py            --modes=ar,gpt             --mode=gpt must be one of ar, mdlm, aogpt
"""


def files_in(folder):
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_a_wrong_call_is_refused_in_one_line(trained, monkeypatch, line):
    script, arguments, said = re.split("  +", line)
    arguments = arguments.split()
    if script == "train.py":
        arguments = [*TINY, *arguments]
    (trained / "t.txt").write_text("One day, a girl")
    before = files_in(trained)
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    command = importlib.import_module(script.removesuffix(".py").replace("/", "."))
    with pytest.raises((InputError, OSError)) as e:
        command.main()
    assert said in f"{e.value}$"              # which marks its end
    assert "\n" not in str(e.value)
    assert files_in(trained) == before


@pytest.mark.parametrize("call, said", [
    ("train.py --data=t --n_embd=1000000000000", "not enough memory"),
    ("sample.py", "give --out_dir"),
    ("prepare_data.py --text=none.txt", "none.txt"),
    ("extras/show.py ar=none.jsonl", "none.jsonl"),
    ("extras/compare.py ar=out/none", "out/none"),
    ("diversity.py mine=none.jsonl", "none.jsonl"),
    ("bench.py --batch_size=3", "must be even")])
def test_a_command_says_so_and_exits_with_2(trained, call, said):
    script, *arguments = call.split()
    done = run(script, *arguments, cwd=trained)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"{script.split('/')[-1]}: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
