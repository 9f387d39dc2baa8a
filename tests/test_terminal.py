"""What a terminal gets to see, and moving pictures."""
import json
import re
import sys
import unicodedata
from xml.etree import ElementTree

import pytest

from conftest import TINY
from extras.show import draw_moving
from support.flags import printable, text_width
from support.pictures import layout, play


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
    """Neither what a model of bytes writes nor the words of files and flags do, but a file has what
    the model wrote."""
    fine = "a\tb\n↵ é 你好 👩‍🚀 می‌خواهم"
    assert printable(fine) == fine and is_harmless(printable(HOSTILE))
    (workdir / "a.txt").write_text("To be, or not to be. " * 500)
    call("prepare_data.py", "--text=a.txt", "--tokenizer=bytes", "--name=t")
    write_samples(workdir / "s.jsonl", ["One", HOSTILE, "\n", "\tday"], [0, 1, 2, 2], mode=HOSTILE)
    train = " ".join(["train.py", *TINY, "--block_size=200", "--max_steps=1"])
    for code, line in [
            (0, f"{train} --quiet=false --out_dir=out"),
            (0, "sample.py --out_dir=out --show --out=a.jsonl"),
            (0, "extras/show.py a=s.jsonl --story=1"),
            (2, "extras/show.py --\x1b]0;title\x07"),
            (2, "train.py --data=\x1b[31m\nx")]:
        done = call(*line.split(" "))
        assert done.returncode == code, done.stderr
        assert is_harmless(done.stdout + done.stderr)
        assert done.stderr.count("\n") == (code == 2)
    assert not is_harmless(json.loads((workdir / "a.jsonl").read_text().splitlines()[1])["text"])


# ---- Where the pieces of a story stand -----------------------------------------------------------

def test_text_width():
    assert text_width("ab你好e\u0301👍░") == 2 + 4 + 1 + 2 + 1


@pytest.mark.parametrize("pieces", [
    list("你好，世界。" * 20), ["Tom", " said", ":", *"你好世界" * 9, " ok"]])
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
    mdlm = ["A", " <b>", "↵", "So"], [-1, 3, 0, 2]
    write_samples(workdir / "mdlm.jsonl", *mdlm, mode="mdlm", steps=4)
    terminal(60, 20)
    done = call("extras/show.py", "x=ar.jsonl", "y=mdlm.jsonl", "--story=1")
    *moving, last = done.stdout.split("\x1b[J")
    titles = [("1", "x"), ("31", "y")]
    assert re.findall(r"\x1b\[(\d+)G([^\x1b\r\n]+)", last) == titles + [
        ("1", "One"), ("5", "day"), ("8", ","),
        ("31", "A"), ("33", "<b>"), ("36", "↵"), ("37", "So")]
    assert not re.search("\x1b\\[7m|░", last)
    hidden = [len(re.findall("░+", picture)) for picture in moving]
    new = [picture.count("\x1b[7m") for picture in moving]
    assert hidden == [4, 3, 1, 0]       # of the steps 0, 1, 2 and 3
    assert new == [2, 1, 2, 1]


def test_a_story_longer_than_the_terminal(terminal, capsys):
    """As much of it moves as can be redrawn, and at last all of it is there."""
    words = [f" word{i:03}" for i in range(120)]        # 7 in a line
    terminal(60, 20)
    play([("title", words, [0, 1] * 60, 0)])
    *moving, last = capsys.readouterr().out.split("\x1b[J")
    assert [picture.count("\n") for picture in moving] == [18, 18]
    assert re.findall(r"word\d+", last) == [word.strip() for word in words]


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


def test_a_moving_picture_of_grids(tmp_path):
    """Each digit has its place. Where the model's digits clash with others, they turn red."""
    digits = "1 2 3 4 5 6 4 5 6 1 2 3 2 3 1 5 6 4 5 6 4 2 3 1 3 1 2 6 4 5 6 4 5 3 1 1".split()
    steps = 35 * [-1] + [0]         # the model wrote the last 1, which should be a 2
    _, tokens = moving(tmp_path / "g.svg", ("a", digits, steps, 11))
    *grid, (red, text, _) = tokens
    assert (red.get("fill"), text.text) == ("#f08a80", "1")
    by_place = {(int(box.get("y")), int(box.get("x"))): text.text for box, text, _ in grid}
    assert [by_place[place] for place in sorted(by_place)] == digits
