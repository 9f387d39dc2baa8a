"""What people type at a terminal, and what a terminal gets to see."""
import json
import re
import sys
import unicodedata
from xml.etree import ElementTree

import pytest

import sample
import train
from conftest import TINY, run
from extras.prompt import prompt_ids
from extras.show import read_panel
from model import Config
from prepare_data import Tokenizer
from sample import SampleOptions, pattern_of
from support.flags import InputError, parse_flags, print_table, printable, text_width
from support.pictures import layout
from test_show import show_in_a_terminal, write_samples
from toy import TOY

WORDS = Tokenizer("words", words=TOY.words())
BYTES = Tokenizer("bytes")


# ---- Flags ---------------------------------------------------------------------------------------

MEANT = """
train  --mode=gpt                       ar
train  --mode=MDLM                      mdlm
train  --dtype=float16                  bfloat16
train  --learning_rate=1e-3             --lr
train  --max_iters=10                   --max_steps
train  --gradient-accumulation-steps=4  --grad_accum
train  --batch-size=4                   --batch_size
train  --eval_iters=4                   --eval_windows
train  --dataset=shakespeare            --data
sample --start=Once                     --prompt
sample --max_new_tokens=10              --length
sample --top_k=10                       --top_p
sample --out-dir=out                    --out_dir
sample --protocol=papers                paper
"""


@pytest.mark.parametrize("line", MEANT.strip().splitlines())
def test_what_was_meant(line, monkeypatch):
    """A name that is known from elsewhere, or mistyped, is guessed."""
    module, typed, meant = line.split()
    monkeypatch.setattr(sys, "argv", ["x.py", typed])
    with pytest.raises(InputError, match=f"did you mean {meant}\\?"):
        sys.modules[module].main()


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
    *_, last = show_in_a_terminal("a=a.jsonl", "--story=1", cwd=tmp_path)
    assert is_harmless(re.sub(r"\x1b\[\d+G", "", last).replace("\r\n", "\n"))
    done = run("extras/show.py", "a=a.jsonl", "--story=1", "--picture=a.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ElementTree.parse(tmp_path / "a.svg")


def test_a_message_cannot_command_the_terminal(tmp_path):
    done = run("extras/show.py", "--\x1b]0;title\x07", cwd=tmp_path)
    assert done.returncode == 2
    assert is_harmless(done.stderr)


NOT_SAMPLES = "a.jsonl is not a file that sample.py wrote"


def damaged(**changes):
    """A line of a story with other values."""
    return json.dumps({"story": 1, "pieces": ["a"], "appeared": [0]} | changes).encode()


@pytest.mark.parametrize("line", [
    b"\xff\xfe", b"[]", damaged(pieces=[None]), damaged(appeared=["x"]), damaged(appeared=3),
    damaged(appeared=[float("inf")]), damaged(appeared=[0, 1])])
def test_a_damaged_file_of_samples(tmp_path, line):
    write_samples(tmp_path / "a.jsonl", [], [])
    good, *_ = (tmp_path / "a.jsonl").read_bytes().splitlines()
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + line + b"\n")
    with pytest.raises(InputError, match=NOT_SAMPLES) as e:
        read_panel("a", str(tmp_path / "a.jsonl"), 1)
    assert len(str(e.value)) < 300


@pytest.mark.parametrize("settings", [
    3, {}, {"mode": "mdlm", "sampler": 3, "order": "x"}, {"mode": "mdlm", "sampler": "drafts"}])
def test_damaged_settings_of_samples(tmp_path, settings):
    (tmp_path / "a.jsonl").write_text(json.dumps({"settings": settings}))
    with pytest.raises(InputError, match=NOT_SAMPLES):
        read_panel("a", str(tmp_path / "a.jsonl"), 1)


# ---- Columns -------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, width", [
    ("abc", 3), ("你好", 4), ("ｱ", 1), ("Ａ", 2), ("e\u0301", 1), ("👍", 2), ("░↵", 2), ("", 0)])
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
    assert tokens("One.\n\n___ day\n") == ["One", ".", "\n", "\n", "?", " day", "\n"]
    assert capsys.readouterr().err == ""
    assert tokens("___ ___ day ") == ["?", "?", " day"]
    assert "blank at the end of --prompt" in capsys.readouterr().err


def test_end_of_text_in_a_prompt():
    """Every window begins with it, so at the beginning it says nothing new."""
    one, day = WORDS.encode("One day")
    assert ids_of("<|endoftext|>") == []
    assert ids_of("<|endoftext|>One day") == [one, day]
    assert ids_of("One <|endoftext|> day") == [one, WORDS.eot, day]
    assert ids_of("<|endoftext|>a b", BYTES) == list(b"a b")


def test_a_prompt_in_a_file(trained):
    (trained / "prompt.txt").write_text("One day, a\n")
    flags = ["--out_dir=out/ar", "--num_samples=1"]
    done = run("sample.py", *flags, "--prompt=FILE:prompt.txt", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("One day, a")
    done = run("sample.py", *flags, "--prompt=FILE:none.txt", cwd=trained)
    assert done.returncode == 2
    assert "none.txt" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flags, windows, said", [
    ({"prompt": "a" * 20}, "random", "20 tokens.* in a text of 9; give a larger --length"),
    ({"prompt": "a" * 9}, "random", "9 tokens.* in a text of 9; give a larger --length"),
    ({"prompt": "a" * 20}, "aligned", "20 tokens.* in a text of 9; take fewer"),
    ({"prompt": "a" * 20, "length": 30}, "aligned", "30 must not exceed the window, 9"),
    ({"prompt": "a" * 5, "length": 4}, "aligned", "in a text of 4; give a larger --length"),
    ({"prompt": "a___b", "blank": 8}, "random", "10 tokens, 8 of them by --blank=8.* of 9; take")])
def test_a_prompt_that_leaves_nothing_to_write(flags, windows, said):
    config = Config("mdlm", vocab_size=257, block_size=9)
    with pytest.raises(InputError, match=said):
        pattern_of(SampleOptions(**flags), config, BYTES, windows)


def test_a_prompt_longer_than_the_window_can_go_on():
    config = Config("mdlm", vocab_size=257, block_size=9)
    o = SampleOptions(prompt="a" * 20, length=30)
    assert pattern_of(o, config, BYTES, "random").tolist() == [97] * 20 + [257] * 10
