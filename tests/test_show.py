"""Stories in the terminal and as a moving picture."""
import json
import os
import pty
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from conftest import run
from extras.show import draw_moving


def write_samples(path, pieces, appeared, **settings):
    """A file as sample.py writes it, whose story 1 has these pieces."""
    how = {"mode": "ar", "sampler": "", "order": "", "steps": 0}
    first = {"settings": how | settings}
    other = {"story": 0, "pieces": ["No"], "appeared": [0]}
    story = {"story": 1, "pieces": pieces, "appeared": appeared}
    lines = [json.dumps(line) for line in (first, other, story)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def samples(tmp_path):
    """A folder with two files."""
    write_samples(tmp_path / "ar.jsonl", ["One", " day", ","], [0, 1, 2])
    mdlm = ["A", " <b>", "↵", "So", " it", "."], [-1, 3, 0, 2, 1, 0]
    write_samples(tmp_path / "mdlm.jsonl", *mdlm, mode="mdlm", steps=4)
    return tmp_path


def show_in_a_terminal(*arguments, cwd, terminal="xterm") -> list:
    """The pictures that show.py draws, one over another, in a terminal of 60 columns, 20 lines."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": "60", "LINES": "20", "TERM": terminal}
    command = [sys.executable, "-m", "extras.show", *arguments]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=follower)
    os.close(follower)
    written = b""
    while True:
        try:
            written += os.read(leader, 4096)
        except OSError:             # nobody writes any more
            break
    os.close(leader)
    assert process.wait() == 0
    return written.decode().split("\x1b[J")


def test_where_nothing_can_move_it_prints_the_stories_alone(samples):
    """That is a pipe, or a terminal that obeys no codes. The stories keep their line breaks."""
    files = ["ar=ar.jsonl", "mdlm=mdlm.jsonl", "--story=1"]
    [shown] = show_in_a_terminal(*files, cwd=samples, terminal="dumb")
    done = run("extras/show.py", *files, cwd=samples)
    assert done.stdout == shown.replace("\r\n", "\n") == "One day,\n\nA <b>\nSo it.\n\n"


def test_show_in_a_terminal(samples):
    """Each token has its place in its panel, is hidden before its step, and then marked as new."""
    pictures = show_in_a_terminal("x=ar.jsonl", "y=mdlm.jsonl", "--story=1", cwd=samples)
    *moving, last = pictures
    titles = [("1", "x, left to right, one by one"), ("31", "y, 4 steps")]
    assert re.findall(r"\x1b\[(\d+)G([^\x1b\r\n]+)", last) == titles + [
        ("1", "One"), ("5", "day"), ("8", ","),
        ("31", "A"), ("33", "<b>"), ("36", "↵"), ("37", "So"), ("40", "it"), ("42", ".")]
    assert "\x1b[7m" not in last
    assert "░" not in last
    hidden = [len(re.findall("░+", picture)) for picture in moving]
    new = [picture.count("\x1b[7m") for picture in moving]
    assert hidden == [5, 3, 1, 0]       # of the steps 0, 1, 2 and 3
    assert new == [3, 2, 2, 1]


def test_a_story_longer_than_the_terminal(tmp_path):
    """As much of it moves as can be redrawn, and at last all of it is there."""
    words = [f" word{i:03}" for i in range(120)]        # 7 in a line
    write_samples(tmp_path / "a.jsonl", words, [0, 1] * 60)
    *moving, last = show_in_a_terminal("a=a.jsonl", "--story=1", cwd=tmp_path)
    assert [picture.count("\n") for picture in moving] == [18, 18]
    assert re.findall(r"word\d+", last) == [word.strip() for word in words]


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
    steps = [i if i in written else -1 for i in range(len(digits))]
    pieces = [f" {digit}" for digit in digits]
    panels = ("a", pieces, steps, columns), ("b", pieces, [-1] * len(digits), columns)
    _, tokens = moving(tmp_path / "g.svg", *panels)
    red = [token for token in tokens if token[0].get("fill") == "#f08a80"]
    assert [text.text for _, text, _ in red] == [digits[i] for i in sorted(wrong)]
    by_place = []
    for box, text, _ in (token for token in tokens if token not in red):
        x, y = int(box.get("x")), int(box.get("y"))
        by_place.append((x >= 52 * len(digits) ** 0.5, y, x, text.text))
    assert [digit for *_, digit in sorted(by_place)] == digits * 2


def test_grids_keep_their_shape(tmp_path):
    pieces = [f" {digit}" for digit in WRONG.split()]
    write_samples(tmp_path / "a.jsonl", pieces, list(range(36)), columns=11)
    lines = [WRONG[start:start + 11] for start in range(0, 72, 12)]
    done = run("extras/show.py", "a=a.jsonl", "--story=1", cwd=tmp_path)
    assert done.stdout.split("\n")[:6] == lines
    *_, last = show_in_a_terminal("a=a.jsonl", "b=a.jsonl", "--story=1", cwd=tmp_path)
    shown = [re.findall(r"\d+G(\d)", line) for line in last.splitlines()[1:7]]
    assert shown == [line.split() * 2 for line in lines]


def test_what_sample_writes_can_be_shown(trained):
    """The settings of every kind of file have what the title needs."""
    for mode, sampler in ("ar", ""), ("mdlm", "adaptive"), ("aogpt", "drafts"):
        flags = [f"--out_dir=out/{mode}", f"--out={mode}.jsonl", f"--sampler={sampler}"]
        done = run("sample.py", *flags, cwd=trained)
        assert done.returncode == 0, done.stderr
        done = run("extras/show.py", f"{mode}={mode}.jsonl", "--story=1", cwd=trained)
        assert done.returncode == 0, done.stderr
