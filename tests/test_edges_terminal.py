"""What people type at a terminal, and what a terminal gets to see."""
import json
import sys
import unicodedata
from xml.etree import ElementTree

import pytest

import train
from conftest import TINY, run
from extras.prompts import pattern_of, prompt_ids
from model import Config
from tokenizer import Tokenizer
from sample import SampleOptions
from support.flags import InputError, parse_flags, printable, text_width
from support.pictures import layout
from test_show import write_samples
from worlds.toy import TOY

WORDS = Tokenizer("words", words=TOY.words())
BYTES = Tokenizer("bytes")


# ---- Flags ---------------------------------------------------------------------------------------

def test_paths_are_read_as_a_shell_reads_them(monkeypatch):
    """A ~ is the home folder, and a script that was edited on Windows gives the same values."""
    monkeypatch.setenv("HOME", "/home/me")

    def read(*arguments, **kwargs):
        monkeypatch.setattr(sys, "argv", ["x.py", *arguments])
        return parse_flags("", train.Settings, SampleOptions, **kwargs)

    assert read("--out_dir=~/x\r", "--data=a,~/b, c", "--resume\r", "--seed=3\r", "\r") == {
        "out_dir": "/home/me/x", "data": "a,/home/me/b, c", "resume": True, "seed": 3}
    assert read("a=~/x\r", "b=y", named="NAME=FILE") == {"named": {"a": "/home/me/x", "b": "y"}}
    assert read("--data=a~b", "--prompt= ~ a,~ ") == {"data": "a~b", "prompt": " ~ a,~ "}


# ---- What reaches the terminal -------------------------------------------------------------------

# BEL, ESC, CR, DEL, C1's CSI, a bidi override and an isolate, half a surrogate pair.
HOSTILE = "\x00\x07\x1b[31m\r\x7f\x9b2J\u202e\u2066\ud83d\ufffe"


def is_harmless(text):
    kinds = {unicodedata.category(character) for character in text if character not in "\t\n"}
    return not kinds & {"Cc", "Cs"} and not set(text) & set("\u202e\u2066\ufffe")


def test_printable():
    assert is_harmless(printable(HOSTILE))
    assert len(printable(HOSTILE)) == len(HOSTILE)
    fine = "a\tb\n↵ é 你好 👩‍🚀 می‌خواهم"
    assert printable(fine) == fine


def test_no_text_of_a_model_commands_the_terminal(workdir):
    def said(script, *flags):
        done = run(script, *flags)
        assert done.returncode == 0, done.stderr
        assert is_harmless(done.stdout)
        return done.stdout

    (workdir / "a.txt").write_text("To be, or not to be. " * 500)
    said("prepare_data.py", "--text=a.txt", "--tokenizer=bytes", "--name=t")
    short = [*TINY, "--block_size=200", "--max_steps=1", "--quiet=false", "--out_dir=out"]
    assert "before training" in said("train.py", *short)
    said("sample.py", "--out_dir=out", "--show")
    said("sample.py", "--out_dir=out")
    lines = (workdir / "out/samples.jsonl").read_text().splitlines()
    texts = "".join(json.loads(line)["text"] for line in lines[1:])
    assert not is_harmless(texts)           # the file has what the model wrote


def test_no_file_commands_the_terminal(tmp_path):
    write_samples(tmp_path / "a.jsonl", ["One", HOSTILE, "\n", "\tday"], [0, 1, 2, 2], mode=HOSTILE,
                  order=HOSTILE)
    done = run("extras/show.py", "a=a.jsonl", "--story=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert is_harmless(done.stdout)
    done = run("extras/show.py", "a=a.jsonl", "--story=1", "--picture=a.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ElementTree.parse(tmp_path / "a.svg")


def test_a_message_cannot_command_the_terminal(tmp_path):
    done = run("extras/show.py", "--\x1b]0;title\x07", cwd=tmp_path)
    assert done.returncode == 2
    assert is_harmless(done.stderr)

# ---- Columns -------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, width", [
    ("abc", 3), ("你好", 4), ("e\u0301", 1), ("👍", 2), ("░↵", 2)])
def test_text_width(text, width):
    assert text_width(text) == width


@pytest.mark.parametrize("pieces", [
    list("你好，世界。" * 20), list("abcdefghij" * 9), ["Tom", " said", ":", *"你好世界" * 9, " ok"]])
def test_lines_are_as_wide_as_the_panel(pieces):
    """No piece begins where another one is, or ends beyond the line; and lines are filled."""
    ends = {}
    for line, column, text in layout(pieces, 21):
        assert column >= ends.get(line, 0)
        ends[line] = column + text_width(text)
    assert max(ends.values()) <= 21
    *whole, _ = ends.values()
    assert min(whole[-2:]) >= 20            # a wide character does not fit into the last column

# ---- Prompts -------------------------------------------------------------------------------------

def ids_of(prompt, tokenizer=WORDS):
    """The tokens of a prompt; a blank is one token, -1."""
    return prompt_ids(prompt, [-1], tokenizer)


@pytest.mark.parametrize("beginning", [
    "Once upon a ", "Once upon a", "He said: ", "The end.\n\n", "The end.\n", "a\n ", "a  ", " ",
    "a <|endoftext|> "])
def test_a_prompt_is_cut_where_tokens_are(gpt2, beginning):
    """Its tokens are those with which the whole text begins."""
    tokenizer = Tokenizer("gpt2", 4096)
    ids = ids_of(beginning, tokenizer)
    word = " time" if beginning.endswith("a") else "time"
    whole = tokenizer.encode_marked(beginning + word)
    assert ids == whole[:len(ids)]
    assert len(tokenizer.decode(ids)) >= len(beginning) - 1


def test_blanks_around_a_gap(gpt2, capsys):
    """One at the end is left to the model, and that is said."""
    tokenizer = Tokenizer("gpt2", 4096)

    def tokens(prompt):
        return ["?" if i < 0 else tokenizer.decode([i]) for i in ids_of(prompt, tokenizer)]

    assert tokens("One day ___ the end.") == ["One", " day", "?", " the", " end", "."]
    assert capsys.readouterr().err == ""
    assert tokens("___ ___ day ") == ["?", "?", " day"]
    assert "blank at the end of --prompt" in capsys.readouterr().err


def test_a_single_underscore_is_a_blank_between_words_alone():
    one, day = WORDS.encode("One day")
    assert prompt_ids("One __ day_______.", [-1, -1], WORDS)[:5] == [one, -1, -1, day, -1]
    assert prompt_ids("_ One _______ day", [-1, -1], WORDS) == [-1, one, -1, -1, -1, -1, -1, day]
    assert ids_of("a _ b", BYTES) == list(b"a _ b")


def test_end_of_text_in_a_prompt():
    """Every window begins with it, so at the beginning it says nothing new."""
    one, day = WORDS.encode("One day")
    assert ids_of("<|endoftext|>") == []
    assert ids_of("<|endoftext|>One day") == [one, day]
    assert ids_of("One <|endoftext|> day") == [one, WORDS.eot, day]
    assert ids_of("<|endoftext|>a b", BYTES) == list(b"a b")


def test_a_prompt_in_a_file(workdir):
    (workdir / "prompt.txt").write_text("One day, a\n")
    assert ids_of("FILE:prompt.txt") == WORDS.encode("One day, a")


@pytest.mark.parametrize("flags, windows, said", [
    ({"prompt": "a" * 20}, "random", "20 tokens.* in a text of 9; give a larger --length"),
    ({"prompt": "a" * 20}, "aligned", "20 tokens.* in a text of 9; take fewer"),
    ({"prompt": "a" * 20, "length": 30}, "aligned", "30 must not exceed the window, 9"),
    ({"prompt": "a___b", "blank": 8}, "random", "10 tokens, 8 of them in blanks .*of 9; take")])
def test_a_prompt_that_leaves_nothing_to_write(flags, windows, said):
    """One that is longer than the window may go on, if windows begin anywhere."""
    config = Config("mdlm", vocab_size=257, block_size=9)
    with pytest.raises(InputError, match=said):
        pattern_of(SampleOptions(**flags), config, BYTES, windows)
    o = SampleOptions(prompt="a" * 20, length=30)
    assert pattern_of(o, config, BYTES, "random").tolist() == [97] * 20 + [257] * 10
