"""What people type at a terminal, and what a terminal gets to see."""
import json
import shutil
import sys
import unicodedata
from xml.etree import ElementTree

import pytest
import torch

import train
from conftest import TINY, run
from model import Config
from tokenizer import Tokenizer
from sample import SampleOptions, pattern_of, prompt_ids
from support.flags import InputError, parse_flags, printable, text_width
from support.pictures import layout, play
from support.rows import files_of
from test_show import write_samples
from worlds.toy import TOY

WORDS = Tokenizer("words", words=TOY.words())
BYTES = Tokenizer("bytes")
OF_BYTES = Config("mdlm", vocab_size=257, block_size=9)


# ---- Flags ---------------------------------------------------------------------------------------

def test_paths_are_read_as_a_shell_reads_them(monkeypatch):
    """A ~ is the home folder, and a comma may be part of a file's name."""
    monkeypatch.setenv("HOME", "/home/me")

    def read(*arguments, **kwargs):
        monkeypatch.setattr(sys, "argv", ["x.py", *arguments])
        return parse_flags("", train.Settings, SampleOptions, **kwargs)

    assert read("--out_dir=~/x", "--data=a,~/b", "--resume", "--seed", "3") == {
        "out_dir": "/home/me/x", "data": "a,/home/me/b", "resume": True, "seed": 3}
    assert read("a=~/x", "b=y", named="NAME=FILE") == {"named": {"a": "/home/me/x", "b": "y"}}
    assert read("--data=a~b", "--prompt= ~ a,~ ") == {"data": "a~b", "prompt": " ~ a,~ "}


def test_a_comma_may_be_part_of_a_file_s_name(workdir):
    assert files_of("a,b.txt") == ["a", "b.txt"]
    (workdir / "a,b.txt").write_text("")
    assert files_of("a,b.txt") == ["a,b.txt"]


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


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder with a model of bytes, which writes anything, and files that have hostile texts."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "a.txt").write_text("To be, or not to be. " * 500)
    assert run("prepare_data.py", "--text=a.txt", "--tokenizer=bytes", "--name=t",
               cwd=folder).returncode == 0
    flags = [*TINY, "--block_size=200", "--max_steps=1", "--quiet=false", "--out_dir=out"]
    done = run("train.py", *flags, cwd=folder)
    assert "before training" in done.stdout and is_harmless(done.stdout)
    for name in "config", "log":                # compare shows what these have
        shutil.copytree(folder / "out", folder / name)
    config = json.loads((folder / "out/config.json").read_text())
    config["settings"] |= {"data": HOSTILE, "windows": HOSTILE}
    config["config"]["mode"] = HOSTILE
    (folder / "config/config.json").write_text(json.dumps(config))
    entry = {"step": 1, "seconds": 1, "val_nll": 1, "val_nll_se": 1, "val_floor": HOSTILE}
    (folder / "log/log.jsonl").write_text(json.dumps(entry) + "\n")
    saved = torch.load(folder / "out/ckpt.pt")
    saved["settings"] |= {"preset": HOSTILE, "max_steps": 2}
    (folder / "preset").mkdir()
    torch.save(saved, folder / "preset/ckpt.pt")
    shutil.copy(folder / "out/log.jsonl", folder / "preset")
    write_samples(folder / "s.jsonl", ["One", HOSTILE, "\n", "\tday"], [0, 1, 2, 2], mode=HOSTILE,
                  order=HOSTILE)
    return folder


@pytest.mark.parametrize("code, call", [
    (0, "sample.py --out_dir=out --show"), (0, "sample.py --out_dir=out --out=a.jsonl"),
    (0, "extras/show.py a=s.jsonl --story=1"), (0, "train.py --out_dir=preset --resume --quiet"),
    (0, "extras/compare.py a=config b=out"), (2, "extras/compare.py a=log b=out"),
    (2, "extras/show.py --\x1b]0;title\x07"), (2, "train.py --data=\x1b[31m\nx")])
def test_nothing_commands_the_terminal(hostile, code, call):
    script, *arguments = call.split(" ")
    done = run(script, *arguments, cwd=hostile)
    assert done.returncode == code, done.stderr
    assert is_harmless(done.stdout + done.stderr)
    if code:
        assert done.stderr.count("\n") == 1


def test_the_file_has_what_the_model_wrote(hostile):
    assert run("sample.py", "--out_dir=out", "--out=b.jsonl", cwd=hostile).returncode == 0
    _, *lines = (hostile / "b.jsonl").read_text().splitlines()
    assert not is_harmless("".join(json.loads(line)["text"] for line in lines))


def test_a_moving_picture_is_well_formed(hostile):
    done = run("extras/show.py", "a=s.jsonl", "--story=1", "--picture=a.svg", cwd=hostile)
    assert done.returncode == 0, done.stderr
    ElementTree.parse(hostile / "a.svg")


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


def test_lines_break_between_words():
    lines = ["", "", "", ""]
    for line, column, text in layout(["ab", " cd", " e", "f", " ghijkl", ".", " m"], 7):
        lines[line] = lines[line].ljust(column) + text
    assert lines == ["ab cd", "ef", "ghijkl.", "m"]

@pytest.mark.parametrize("size, count", [((1, 24), 1), ((80, 24), 41), ((80, 1), 1), ((9, 3), 2)])
def test_a_terminal_that_is_too_small_shows_the_text_alone(monkeypatch, capsys, size, count):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: size)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    play([("title", ["One", " day"], [0, 1], 0)] * count)
    assert capsys.readouterr().out == "One day\n\n" * count


# ---- Prompts -------------------------------------------------------------------------------------

def ids_of(prompt, tokenizer=WORDS, blank=1):
    """The tokens of a prompt; what is to be filled is -1."""
    config = Config("mdlm", vocab_size=tokenizer.vocab_size)
    ids = prompt_ids(SampleOptions(prompt=prompt, blank=blank), config, tokenizer)
    return [-1 if i == config.mask_id else i for i in ids]


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


def test_blanks_around_a_gap(gpt2):
    """One at the end is left to the model."""
    tokenizer = Tokenizer("gpt2", 4096)

    def tokens(prompt):
        return ["?" if i < 0 else tokenizer.decode([i]) for i in ids_of(prompt, tokenizer)]

    assert tokens("One day ___ the end.") == ["One", " day", "?", " the", " end", "."]
    assert tokens("___ ___ day ") == ["?", "?", " day"]


@pytest.mark.parametrize("prompt, expected", [
    ("One __ day___.", "One ? ? day ? ? ."),                # between words _ is a blank of one
    ("_ One _______ day", "? One ? ? ? ? ? day"),
    ("One <|endoftext|> day", "One <|endoftext|> day"),
    ("FILE:prompt.txt", "One day , a")])
def test_a_prompt_of_words(workdir, prompt, expected):
    (workdir / "prompt.txt").write_text("One day, a\n")
    ids = {"?": -1, "<|endoftext|>": WORDS.eot}
    expected = [ids.get(word) or WORDS.encode(word)[0] for word in expected.split()]
    assert ids_of(prompt, blank=2) == expected


def test_a_prompt_of_bytes():
    assert ids_of("a _ b", BYTES) == list(b"a _ b")
    o = SampleOptions(prompt="<|endoftext|>a b", length=4)
    pattern = pattern_of(o, OF_BYTES, BYTES, "random")
    assert pattern.tolist() == [*b"a b", 257]       # every window begins with end-of-text


@pytest.mark.parametrize("flags, windows, named", [
    ({"prompt": "a" * 20}, "random", "--prompt"),
    ({"prompt": "a" * 20}, "aligned", "--prompt"),
    ({"prompt": "a" * 20, "length": 30}, "aligned", "--length"),
    ({"prompt": "a" * 10, "length": 10}, "random", "--prompt")])
def test_a_prompt_that_leaves_nothing_to_write(flags, windows, named):
    """One that is longer than the window may go on, if windows begin anywhere."""
    with pytest.raises(InputError, match=named):
        pattern_of(SampleOptions(**flags), OF_BYTES, BYTES, windows)
    o = SampleOptions(prompt="a" * 20, length=30)
    assert pattern_of(o, OF_BYTES, BYTES, "random").tolist() == [97] * 20 + [257] * 10
