"""What people type at a terminal, what a terminal gets to see, and moving pictures."""
import json
import math
import re
import shutil
import sys
import unicodedata
from xml.etree import ElementTree

import pytest
import torch

from conftest import TINY
from extras.show import draw_moving
from model import Config
from sample import SampleOptions, pattern_of, prompt_ids
from support.flags import InputError, printable, text_width
from support.pictures import layout, play
from support.rows import files_of
from tokenizer import Tokenizer
from worlds.toy import TOY

WORDS = Tokenizer("words", words=TOY.words())
BYTES = Tokenizer("bytes")


# ---- Prompts, and names of files -----------------------------------------------------------------

def test_a_comma_may_be_part_of_a_file_s_name(workdir):
    assert files_of("a,b.txt") == ["a", "b.txt"]
    (workdir / "a,b.txt").write_text("")
    assert files_of("a,b.txt") == ["a,b.txt"]


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
    assert ids == tokenizer.encode_marked(beginning + word)[:len(ids)]
    assert len(tokenizer.decode(ids)) >= len(beginning) - 1


def test_blanks_around_a_gap(gpt2):
    """One at the end is left to the model."""
    tokenizer = Tokenizer("gpt2", 4096)
    expected = [-1, *tokenizer.encode(" One day"), -1, *tokenizer.encode(" the end.")]
    assert ids_of("___ One day ___ the end. ", tokenizer) == expected


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


@pytest.mark.parametrize("prompt, length, windows, expected", [
    ("<|endoftext|>a b", 4, "random", [*b"a b", 257]),      # every window begins with end-of-text
    ("a" * 20, 30, "random", [97] * 20 + [257] * 10),       # beyond the window
    ("a" * 20, 30, "aligned", "--length"),
    ("a" * 20, 0, "aligned", "--prompt"),
    ("a" * 10, 10, "random", "--prompt")])
def test_what_a_prompt_leaves_to_be_written(prompt, length, windows, expected):
    config = Config("mdlm", vocab_size=257, block_size=9)
    o = SampleOptions(prompt=prompt, length=length)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            pattern_of(o, config, BYTES, windows)
    else:
        assert pattern_of(o, config, BYTES, windows).tolist() == expected


# ---- What reaches the terminal -------------------------------------------------------------------

# BEL, ESC, CR, DEL, C1's CSI, a bidi override and an isolate, half a surrogate pair.
HOSTILE = "\x00\x07\x1b[31m\r\x7f\x9b2J\u202e\u2066\ud83d\ufffe"


def is_harmless(text):
    kinds = {unicodedata.category(character) for character in text if character not in "\t\n"}
    return not kinds & {"Cc", "Cs"} and not set(text) & set("\u202e\u2066\ufffe")


def write_samples(path, pieces, appeared, **settings):
    """A file as sample.py writes it, whose story 1 has these pieces."""
    how = {"mode": "ar", "sampler": "", "order": "", "steps": 0}
    lines = [{"settings": how | settings},
             {"story": 0, "pieces": ["No"], "appeared": [0]},
             {"story": 1, "pieces": pieces, "appeared": appeared}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_nothing_commands_the_terminal(workdir, call):
    """Not what a model of bytes writes, and not the words of files; but a file has what it wrote.
    """
    assert len(printable(HOSTILE)) == len(HOSTILE)
    fine = "a\tb\n↵ é 你好 👩‍🚀 می‌خواهم"
    assert printable(fine) == fine
    (workdir / "a.txt").write_text("To be, or not to be. " * 500)
    call("prepare_data.py", "--text=a.txt", "--tokenizer=bytes", "--name=t")
    done = call("train.py", *TINY, "--block_size=200", "--max_steps=1", "--quiet=false",
                "--out_dir=out")
    assert "before training" in done.stdout and is_harmless(done.stdout)
    shutil.copytree("out", "other")
    saved = torch.load("other/ckpt.pt")
    saved["settings"] |= {"preset": HOSTILE, "max_steps": 2}
    torch.save(saved, "other/ckpt.pt")
    write_samples(workdir / "s.jsonl", ["One", HOSTILE, "\n", "\tday"], [0, 1, 2, 2], mode=HOSTILE,
                  order=HOSTILE)
    for code, line in [
            (0, "sample.py --out_dir=out --show"),
            (0, "sample.py --out_dir=out --out=a.jsonl"),
            (0, "extras/show.py a=s.jsonl --story=1"),
            (0, "extras/show.py a=s.jsonl --story=1 --picture=a.svg"),
            (0, "train.py --out_dir=other --resume --quiet"),
            (2, "extras/show.py --\x1b]0;title\x07"),
            (2, "train.py --data=\x1b[31m\nx")]:
        done = call(*line.split(" "))
        assert done.returncode == code, done.stderr
        assert is_harmless(done.stdout + done.stderr)
        assert done.stderr.count("\n") == (code == 2)
    ElementTree.parse("a.svg")
    _, *lines = (workdir / "a.jsonl").read_text().splitlines()
    assert not is_harmless("".join(json.loads(line)["text"] for line in lines))


# ---- Where the pieces of a story stand -----------------------------------------------------------

def test_text_width():
    assert text_width("ab你好e\u0301👍░") == 2 + 4 + 1 + 2 + 1


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
    lines = [""] * 4
    for line, column, text in layout(["ab", " cd", " e", "f", " ghijkl", ".", " m"], 7):
        lines[line] = lines[line].ljust(column) + text
    assert lines == ["ab cd", "ef", "ghijkl.", "m"]


@pytest.fixture
def terminal(monkeypatch):
    """A function that makes stdout a terminal of this size and kind."""
    def be(columns, lines, kind="xterm"):
        for name, value in dict(COLUMNS=columns, LINES=lines, TERM=kind).items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return be


@pytest.mark.parametrize("columns, lines, kind, count", [
    (1, 24, "xterm", 1), (80, 24, "xterm", 41), (80, 1, "xterm", 1), (80, 24, "dumb", 2)])
def test_a_terminal_in_which_nothing_can_move(terminal, capsys, columns, lines, kind, count):
    """It shows the stories alone, with their line breaks, and grids in their shape."""
    terminal(columns, lines, kind)
    play([("", ["One", " day", "↵", "So"], [0, 1, 1, 2], 0)] * count)
    assert capsys.readouterr().out == "One day\nSo\n\n" * count
    play([("", [" 1", " 2", " 3", " 4"], [0] * 4, 3)] * count)
    assert capsys.readouterr().out == "1 2\n3 4\n\n" * count


def test_show_in_a_terminal(workdir, terminal, call):
    """Each token has its place in its panel, is hidden before its step, and then marked as new."""
    write_samples(workdir / "ar.jsonl", ["One", " day", ","], [0, 1, 2])
    mdlm = ["A", " <b>", "↵", "So", " it", "."], [-1, 3, 0, 2, 1, 0]
    write_samples(workdir / "mdlm.jsonl", *mdlm, mode="mdlm", steps=4)
    terminal(60, 20)
    done = call("extras/show.py", "x=ar.jsonl", "y=mdlm.jsonl", "--story=1")
    *moving, last = done.stdout.split("\x1b[J")
    titles = [("1", "x"), ("31", "y")]
    assert re.findall(r"\x1b\[(\d+)G([^\x1b\r\n]+)", last) == titles + [
        ("1", "One"), ("5", "day"), ("8", ","),
        ("31", "A"), ("33", "<b>"), ("36", "↵"), ("37", "So"), ("40", "it"), ("42", ".")]
    assert not re.search("\x1b\\[7m|░", last)
    hidden = [len(re.findall("░+", picture)) for picture in moving]
    new = [picture.count("\x1b[7m") for picture in moving]
    assert hidden == [5, 3, 1, 0]       # of the steps 0, 1, 2 and 3
    assert new == [3, 2, 2, 1]


def test_a_story_longer_than_the_terminal(terminal, capsys):
    """As much of it moves as can be redrawn, and at last all of it is there."""
    words = [f" word{i:03}" for i in range(120)]        # 7 in a line
    terminal(60, 20)
    play([("title", words, [0, 1] * 60, 0)])
    *moving, last = capsys.readouterr().out.split("\x1b[J")
    assert [picture.count("\n") for picture in moving] == [18, 18]
    assert re.findall(r"word\d+", last) == [word.strip() for word in words]
    play([("", [" 1", " 2", " 3", " 4"], [0] * 4, 3)])          # a grid
    *_, last = capsys.readouterr().out.split("\x1b[J")
    assert re.findall(r"G(\d)", last) == list("1234") and last.count("\n") == 4


# ---- Moving pictures -----------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def moving(path, *panels):
    """The moving picture of the panels; and of each token its box, its text, and when it comes."""
    draw_moving(panels, str(path))
    root = ElementTree.parse(path).getroot()
    return root, [[token.find(f"{SVG}{part}") for part in ("rect", "text", "animate")]
                  for token in root.iter(f"{SVG}g")]


def test_a_moving_picture(tmp_path):
    """A token comes at its step of the longest story's; what is given, and the first, at once."""
    root, tokens = moving(tmp_path / "f.svg", ("ar & co", ["One", " <b>", "!"], [0, 1, 2], 0),
                          ("mdlm", ["a", " b", "."], [4, -1, 0], 0))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["ar & co", "One", "<b>", "!", "mdlm", "a", "b", "."]
    times = [animation.get("keyTimes") for *_, animation in tokens]
    assert times == [f"0;0.{digits}00" for digits in "024800"]
    colours = [box.get("fill") for box, *_ in tokens]
    blue, *_, green = colours
    assert colours == [blue, blue, blue, green, "#e4e4e4", green]


WRONG = "1 2 3 4 5 6 4 5 6 1 2 3 2 3 1 5 6 4 5 6 4 2 3 1 3 1 2 6 4 5 6 4 5 3 1 1"
OF_9 = "534678912672195348198342567859761423426853791713924856961537284287419635345286197"


@pytest.mark.parametrize("digits, columns, written, wrong", [
    (WRONG.split(), 11, {35}, {35}),            # the last digit should be a 2
    (list(OF_9), 17, {78, 79, 80}, {79, 80})])  # the last two digits are exchanged
def test_a_moving_picture_of_grids(tmp_path, digits, columns, written, wrong):
    """Each digit has its place. Where the model's digits clash with others, they turn red."""
    given = [-1] * len(digits)
    steps = [i if i in written else -1 for i in range(len(digits))]
    _, tokens = moving(tmp_path / "g.svg", ("a", digits, steps, columns),
                       ("b", digits, given, columns))
    red = [text.text for box, text, _ in tokens if box.get("fill") == "#f08a80"]
    assert red == [digits[i] for i in sorted(wrong)]
    by_place = {(int(box.get("y")), int(box.get("x"))): text.text for box, text, _ in tokens}
    n = math.isqrt(len(digits))
    rows = [digits[i:i + n] * 2 for i in range(0, n * n, n)]
    assert [by_place[place] for place in sorted(by_place)] == sum(rows, [])
