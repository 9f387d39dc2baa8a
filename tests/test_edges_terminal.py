"""What people type at a terminal, and what a terminal gets to see."""
import json
import re
import signal
import sys
import unicodedata
from dataclasses import fields
from typing import Literal, get_args, get_origin
from xml.etree import ElementTree

import pytest

import bench
import compare
import diversity
import prepare_data
import sample
import samplers
import show
import train
from support.flags import InputError, command, parse_flags, print_table, printable, text_width
from conftest import TINY, run
from model import Config
from prepare_data import Tokenizer
from sample import complete, prompt_ids
from samplers import SampleOptions
from show import draw_moving, layout
from test_show import show_in_a_terminal, write_samples
from toy import TOY

WORDS = Tokenizer("words", words=TOY.words())
BYTES = Tokenizer("bytes")

# ---- Flags ---------------------------------------------------------------------------------------

COMMANDS = [
    (train, [Config, train.Settings], []),
    (sample, [samplers.SampleOptions], []),
    (prepare_data, [prepare_data.PrepareOptions], []),
    (bench, [bench.BenchOptions, Config], []),
    (compare, [compare.CompareOptions], ["a=b"]),
    (diversity, [diversity.DiversityOptions], ["a=b"]),
    (show, [show.ShowOptions], ["a=b"])]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0].__name__)
def test_a_mistyped_choice_is_guessed_in_every_command(command, monkeypatch):
    module, classes, named = command
    for options in classes:
        for f in fields(options):
            choices = get_args(f.type) if get_origin(f.type) is Literal else []
            for choice in choices:
                monkeypatch.setattr(sys, "argv", ["x.py", f"--{f.name}={choice}x", *named])
                with pytest.raises(InputError, match=f"--{f.name}=.*; did you mean {choice}\\?"):
                    module.main()


@pytest.mark.parametrize("script, typed, meant", [
    ("train.py", "--mode=gpt", "ar"),
    ("train.py", "--mode=MDLM", "mdlm"),
    ("train.py", "--dtype=float16", "bfloat16"),
    ("train.py", "--learning_rate=1e-3", "--lr"),
    ("train.py", "--max_iters=10", "--max_steps"),
    ("train.py", "--gradient-accumulation-steps=4", "--grad_accum"),
    ("train.py", "--batch-size=4", "--batch_size"),
    ("train.py", "--eval_iters=4", "--eval_windows"),
    ("train.py", "--dataset=shakespeare", "--data"),
    ("sample.py", "--start=Once", "--prompt"),
    ("sample.py", "--max_new_tokens=10", "--length"),
    ("sample.py", "--top_k=10", "--top_p"),
    ("sample.py", "--out-dir=out", "--out_dir")])
def test_names_that_people_know_from_elsewhere(script, typed, meant, monkeypatch):
    module = {"train.py": train, "sample.py": sample}[script]
    monkeypatch.setattr(sys, "argv", [script, typed])
    with pytest.raises(InputError, match=f"did you mean {meant}\\?"):
        module.main()


def test_paths_are_read_as_a_shell_reads_them(monkeypatch):
    """A ~ is the home folder, and a script that was edited on Windows gives the same values."""
    monkeypatch.setenv("HOME", "/home/me")

    def read(*arguments, **kwargs):
        monkeypatch.setattr(sys, "argv", ["x.py", *arguments])
        return parse_flags("", Config, train.Settings, **kwargs)

    def read_prompt(prompt):
        monkeypatch.setattr(sys, "argv", ["x.py", f"--prompt={prompt}"])
        return parse_flags("", SampleOptions)["prompt"]

    assert read("--out_dir=~/x\r", "--init_from= ~/y ", "--data=a,~/b, c", "\r") == {
        "out_dir": "/home/me/x", "init_from": "/home/me/y", "data": "a,/home/me/b, c"}
    assert read("--resume\r", "--seed=3\r", "--mode=ar\r") == {
        "resume": True, "seed": 3, "mode": "ar"}
    assert read("a=~/x\r", "b=y", named="NAME=FILE") == {"named": {"a": "/home/me/x", "b": "y"}}
    assert read("--data=a~b") == {"data": "a~b"}
    assert read_prompt(" ~ a,~ ") == " ~ a,~ "


@pytest.mark.parametrize("error, said", [
    (FileNotFoundError(2, "No such file or directory"),
     r"No such file or directory \(at test_edges_terminal.py:\d+\)\n"),
    (OSError("the disk is full; free some space"), "x.py: the disk is full; free some space\n")])
def test_an_error_of_the_system_says_where(error, said, monkeypatch, capsys):
    def main():
        raise error

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["x.py"])
    with pytest.raises(SystemExit):
        command(main, "")
    assert re.search(f"{said}$", capsys.readouterr().err)


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
    (workdir / "a.txt").write_text("To be, or not to be. " * 500)
    done = run("prepare_data.py", "--text=a.txt", "--tokenizer=bytes", "--name=t")
    assert done.returncode == 0, done.stderr
    short = [*TINY, "--block_size=200", "--max_steps=1", "--quiet=false", "--out_dir=out"]
    done = run("train.py", *short)
    assert done.returncode == 0, done.stderr
    assert "before training" in done.stdout
    assert is_harmless(done.stdout)
    for more in [], ["--show"]:
        done = run("sample.py", "--out_dir=out", *more)
        assert done.returncode == 0, done.stderr
        assert is_harmless(done.stdout)
    lines = (workdir / "out/samples.jsonl").read_text().splitlines()
    texts = "".join(json.loads(line)["text"] for line in lines[1:])
    assert not is_harmless(texts)           # the file has what the model wrote


def test_no_file_commands_the_terminal(tmp_path):
    write_samples(tmp_path / "a.jsonl", ["One", HOSTILE, "\n", "\tday"], [0, 1, 2, 2], mode=HOSTILE)
    done = run("show.py", "a=a.jsonl", "--story=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert is_harmless(done.stdout)
    *_, last = show_in_a_terminal("a=a.jsonl", "--story=1", cwd=tmp_path)
    assert is_harmless(re.sub(r"\x1b\[\d+G", "", last).replace("\r\n", "\n"))
    done = run("show.py", "a=a.jsonl", "--story=1", "--picture=a.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ElementTree.parse(tmp_path / "a.svg")


def test_a_message_cannot_command_the_terminal(tmp_path):
    done = run("show.py", "--\x1b]0;title\x07", cwd=tmp_path)
    assert done.returncode == 2
    assert is_harmless(done.stderr)


GOOD_LINE = {"story": 1, "pieces": ["a"], "appeared": [0]}


@pytest.mark.parametrize("line", [
    b"\xff\xfe", b"[]", b"null", b'"text"',
    GOOD_LINE | {"pieces": [None]}, GOOD_LINE | {"pieces": [["a"]]}, GOOD_LINE | {"pieces": None},
    GOOD_LINE | {"appeared": ["x"]}, GOOD_LINE | {"appeared": [None]}, GOOD_LINE | {"appeared": 3},
    GOOD_LINE | {"appeared": [float("inf")]}, GOOD_LINE | {"appeared": [0, 1]}])
def test_a_damaged_file_of_samples(tmp_path, line):
    write_samples(tmp_path / "a.jsonl", [], [])
    good, *_ = (tmp_path / "a.jsonl").read_bytes().splitlines()
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + text + b"\n")
    with pytest.raises(InputError, match="a.jsonl is not a file that sample.py wrote") as e:
        show.read_panel("a", str(tmp_path / "a.jsonl"), 1)
    assert len(str(e.value)) < 300


@pytest.mark.parametrize("settings", [3, {}, {"mode": "mdlm", "sampler": 3, "order": "x"}])
def test_damaged_settings_of_samples(tmp_path, settings):
    (tmp_path / "a.jsonl").write_text(json.dumps({"settings": settings}))
    with pytest.raises(InputError, match="a.jsonl is not a file that sample.py wrote"):
        show.read_panel("a", str(tmp_path / "a.jsonl"), 1)


# ---- Columns -------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, width", [
    ("abc", 3), ("你好", 4), ("ｱ", 1), ("Ａ", 2),
    ("e\u0301", 1), ("👍", 2), ("░↵", 2), ("", 0)])
def test_text_width(text, width):
    assert text_width(text) == width


@pytest.mark.parametrize("pieces", [list("你好，世界。" * 20), list("abcdefghij" * 9),
                                    ["Tom", " said", ":", *"你好世界" * 9, " ok"]])
def test_lines_are_as_wide_as_the_panel(pieces):
    """No piece begins where another one is, or ends beyond the line; and lines are filled."""
    ends = {}
    for line, column, text in layout(pieces, 21):
        assert column >= ends.get(line, 0)
        ends[line] = column + text_width(text)
    assert max(ends.values()) <= 21
    *whole, _ = ends.values()
    assert min(whole[-2:]) >= 20            # a wide character does not fit into the last column


def test_a_long_word_is_one_panel_of_a_picture(tmp_path):
    draw_moving([("a", list("abcdefghij" * 21), [0] * 210)], str(tmp_path / "a.svg"))
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    *_, height = root.get("viewBox").split()
    assert int(height) < 150                # three lines


def test_chinese_in_a_terminal(tmp_path):
    write_samples(tmp_path / "a.jsonl", list("你好世界"), [0, 0, 1, 1])
    first, *_, last = show_in_a_terminal("你=a.jsonl", "b=a.jsonl", "--story=1", cwd=tmp_path)
    places = re.findall(r"\x1b\[(\d+)G([你好世界])", last)
    assert [int(column) for column, _ in places] == [1, 1, 3, 5, 7, 31, 33, 35, 37]
    assert first.count("░") == 8            # two characters of two columns, twice


def test_columns_of_a_table(capsys):
    print_table([["", "loss"], ["模型", "1.0"], ["gpt-2", "12.0"]])
    lines = capsys.readouterr().out.splitlines()
    assert len(set(map(text_width, lines))) == 1


def test_a_story_without_blanks_is_cut(monkeypatch):
    """Of a long word its beginning is shown, not only the sign that it was cut."""
    monkeypatch.setattr(train, "sample_stories", lambda *_, **__: ["你好" * 300])
    shown = train.one_story(None, None, train.Settings())
    assert re.fullmatch("(你好){100,150} …", shown)


# ---- Prompts -------------------------------------------------------------------------------------

@pytest.mark.parametrize("beginning", [
    "Once upon a ", "Once upon a", "He said: ", "The end.\n\n", "The end.\n", "a\n ", "a  ", " ",
    "a <|endoftext|> "])
def test_a_prompt_is_cut_where_tokens_are(gpt2, beginning):
    """Its tokens are those with which the whole text begins."""
    tokenizer = Tokenizer("gpt2", 4096)
    config = Config(vocab_size=4096)
    ids = prompt_ids(SampleOptions(prompt=beginning), config, tokenizer)
    whole = tokenizer.encode_marked(f"{beginning} time" if beginning.endswith("a") else
                                    f"{beginning}time")
    assert ids == whole[:len(ids)]
    assert len(tokenizer.decode(ids)) >= len(beginning) - 1


def test_blanks_around_a_gap(gpt2):
    tokenizer = Tokenizer("gpt2", 4096)
    config = Config("mdlm", vocab_size=4096)

    def tokens(prompt):
        ids = prompt_ids(SampleOptions(prompt=prompt, blank=1), config, tokenizer)
        return ["?" if i == 4096 else tokenizer.decode([i]) for i in ids]

    assert tokens("One day ___ the end.") == ["One", " day", "?", " the", " end", "."]
    assert tokens("One.\n\n___ day") == ["One", ".", "\n", "\n", "?", " day"]
    assert tokens("___ ___ day ") == ["?", "?", " day"]


def test_a_blank_at_the_end_is_left_to_the_model(gpt2, capsys):
    tokenizer = Tokenizer("gpt2", 4096)
    for prompt, said in ("One day ", True), ("One day", False), ("One day\n", False):
        prompt_ids(SampleOptions(prompt=prompt), Config(vocab_size=4096), tokenizer)
        assert capsys.readouterr().err.count("blank at the end of --prompt") == said


def test_end_of_text_in_a_prompt():
    """Every window begins with it, so at the beginning it says nothing new."""
    config = Config(vocab_size=WORDS.vocab_size, block_size=9)

    def ids(prompt, tokenizer=WORDS):
        return prompt_ids(SampleOptions(prompt=prompt), config, tokenizer)

    one, day = WORDS.encode("One day")
    assert ids("<|endoftext|>") == []
    assert ids("<|endoftext|>One day") == [one, day]
    assert ids("One <|endoftext|> day") == [one, WORDS.eot, day]
    assert ids("<|endoftext|>a b", BYTES) == list(b"a b")


def test_a_prompt_in_a_file(trained):
    (trained / "prompt.txt").write_text("One day, a\n")
    flags = ["--out_dir=out/ar", "--num_samples=1"]
    done = run("sample.py", *flags, "--prompt=FILE:prompt.txt", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("One day, a")
    done = run("sample.py", *flags, "--prompt=FILE:none.txt", cwd=trained)
    assert done.returncode == 2
    assert "sample.py: none.txt cannot be read (No such file" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flags, windows, said", [
    ({"prompt": "a" * 20}, "random", "20 tokens.* in a text of 9; give a larger --length"),
    ({"prompt": "a" * 9}, "random", "9 tokens.* in a text of 9; give a larger --length"),
    ({"prompt": "a" * 20}, "aligned", "20 tokens.* in a text of 9; take fewer"),
    ({"prompt": "a" * 20, "length": 30}, "aligned", "20 tokens.* in a text of 9; take fewer"),
    ({"prompt": "a" * 5, "length": 4}, "aligned", "in a text of 4; give a larger --length"),
    ({"prompt": "a___b", "blank": 8}, "random", "10 tokens, 8 of them by --blank=8.* of 9; take")])
def test_a_prompt_that_leaves_nothing_to_write(flags, windows, said):
    config = Config("mdlm", vocab_size=257, block_size=9)
    with pytest.raises(InputError, match=said):
        complete(SampleOptions(**flags), config, BYTES, windows)


def test_a_prompt_longer_than_the_window_can_go_on():
    config = Config("mdlm", vocab_size=257, block_size=9)
    o, pattern = complete(SampleOptions(prompt="a" * 20, length=30), config, BYTES, "random")
    assert len(pattern) == 30
    assert o.steps == 10
