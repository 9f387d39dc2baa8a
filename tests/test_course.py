"""The lab of course/: the grader tells wrong answers from right ones, and survives any hand-in."""
import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import course_answers
from conftest import ROOT
from course import hand_out as course
from support.flags import InputError

sys.path.append(str(Path(ROOT, "course")))
import grade  # noqa: E402
from properties import TASKS  # noqa: E402

WRONG = [(place, edit) for place, edits in course_answers.WRONG.items() for edit in edits]
RIGHT = [name for name in vars(course_answers) if name.split("_")[0] in TASKS]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The folders of both kinds, whose names have a space and an ü."""
    folder = tmp_path_factory.mktemp("lab")
    folders = {kind: folder / f"{kind} für uns" for kind in ("hand_out", "solutions")}
    for kind in folders:
        course.WHAT[kind](folders[kind], list(TASKS))
    shutil.copy(course_answers.__file__, folders["solutions"])
    return folders


class WithAnswer(grade.Student):
    """The solutions, but some functions are taken from elsewhere: {name: name}."""

    def __call__(self, name, *args):
        def other(arg):
            if isinstance(arg, list) and arg[0] == "made":
                return ["made", self.other.get(arg[1], arg[1]), arg[2]]
            return arg

        return super().__call__(self.other.get(name, name), *map(other, args))


@pytest.fixture(scope="module")
def students(lab):
    """A process for all answers, and one for those that need a stand-in."""
    both = [WithAnswer(str(lab["solutions"]), task, 600) for task in ("masks", "drafts")]
    yield both
    for student in both:
        student.end()


def rows_of(task, students, functions=(), begins=""):
    """All rows of a task, and those that fail, if functions are others, whose names begin so."""
    student = students[task == "drafts"]
    home = TASKS[task][0].split(".py")[0].replace("/", ".")
    student.other = {f"{home}.{function}": begins + function for function in functions}
    rows = grade.grade_task(task, "1", student)
    return rows, [row for row in rows if not row["score"]]


def rows_of_edited(folder, students, place, pairs, empty=False):
    """The same of a copy of the file in which the pairs (old, new) of a function are replaced."""
    task, function = place.split(":")
    files, functions = zip(*[place.split(":") for place in TASKS[task]])
    source = (folder / files[0]).read_text("utf-8")
    for name in functions * empty:
        source = course.emptied(source, name)
    body = ast.get_source_segment(source, course.found(source, function))
    new_body = body
    for old, new in zip(pairs[::2], pairs[1::2]):
        assert body.count(old) == 1, f"{place} has {body.count(old)} of: {old}"
        new_body = new_body.replace(old, new)
    copy = folder / f"edited_{len(list(folder.glob('edited_*')))}.py"
    copy.write_text(source.replace(body, new_body), "utf-8")
    if task == "gpt":
        functions = "GPT", "loss", "write"
    return rows_of(task, students, functions, f"{copy.stem}.")


@pytest.mark.parametrize("place, edit", WRONG, ids=lambda part: part if part in TASKS else part[0])
def test_the_grader_finds_what_is_wrong(lab, students, place, edit):
    says, *pairs = edit
    _, failed = rows_of_edited(lab["solutions"], students, place, pairs)
    assert failed


@pytest.mark.parametrize("place, does", course_answers.STUBS)
def test_no_work_is_no_point(lab, students, place, does):
    raises = f'raise NotImplementedError("{place.split(":")[1]}")'
    rows, failed = rows_of_edited(lab["solutions"], students, place, [raises, does], empty=True)
    assert failed == rows
    assert all(row["output"].isprintable() and len(row["output"]) <= 500 for row in rows)


@pytest.mark.parametrize("name", [*TASKS, *RIGHT])
def test_the_grader_lets_right_answers_pass(students, name):
    """The solution of a task, and answers that are written differently."""
    began = time.time()
    task, *functions = name.split("_", 1)
    _, failed = rows_of(task, students, functions, f"course_answers.{task}_")
    assert not failed
    assert time.time() - began < 150


# ---- Whole hand-ins ------------------------------------------------------------------------------

def graded(*arguments, cwd):
    """The process, on a terminal of ASCII alone, and the rows that Gradescope reads."""
    done = subprocess.run([sys.executable, "grade.py", *arguments], cwd=cwd, capture_output=True,
                          text=True, env={"PYTHONIOENCODING": "ascii"})
    assert not done.stderr
    return done, json.loads((cwd / "results.json").read_text())["tests"]


def tasks_of(rows):
    return {row["name"].split(":")[0] for row in rows}


@pytest.mark.parametrize("shape", ["{}", "deep/in/a/lab/{}", "flat"])
def test_a_hand_in_has_any_shape(lab, tmp_path, shape):
    """Other files, empty ones or old ones elsewhere, do no harm."""
    for name in "model.py", "samplers/adaptive.py":
        path = tmp_path / shape.format(name) if shape != "flat" else tmp_path / Path(name).name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(lab["solutions"] / name, path)
    (tmp_path / "old/old/old/old/old").mkdir(parents=True)
    for name in "json.py", "old/old/old/old/old/model.py", "grade.py":
        (tmp_path / name).touch()
    tasks = "adaptive", "bound", "together"
    done, rows = graded(*tasks, f"--folder={tmp_path}", cwd=lab["hand_out"])
    assert [row["score"] for row in rows] == [4, 3, 3, 4, 3, 0, 0] and done.returncode == 1
    assert "not handed in: together.py\n" in done.stdout


def test_the_untouched_hand_out_has_no_point(lab):
    done, rows = graded(cwd=lab["hand_out"])
    assert tasks_of(rows) == TASKS.keys() and done.returncode == 1
    assert not any(row["score"] for row in rows)
    assert all("is not done yet" in row["output"] for row in rows[4:])      # gpt.py works


@pytest.mark.parametrize("does, says", [
    ("while True: print('again')", "takes longer than the 5 seconds"),
    ("import os; os._exit(0)", "ends the process"),
    ("import os; os.fork() or os.setsid() or os.system('sleep 99'); os._exit(0)", "takes longer")])
def test_a_hand_in_cannot_outlive_its_time(lab, does, says):
    """Not even if a child that left its group holds the line."""
    (lab["solutions"] / "bad.py").write_text(f"def order_batch(*args):\n    {does}")
    student = WithAnswer(str(lab["solutions"]), "chain", 5)
    rows, failed = rows_of("chain", [student], ["order_batch"], "bad.")
    student.end()
    assert failed == rows and all(says in row["output"] for row in rows)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_no_process_of_another_user_stays():
    """Not even one that ends whoever could end it."""
    bad = subprocess.Popen(["sh", "-c", "while :; do kill -9 -1; done"], **grade.APART)
    subprocess.run([sys.executable, "-c", grade.END_ALL])
    assert bad.wait(5) == -9


def has_ended(process):
    """It may wait for somebody who asks how it ended."""
    stat = Path("/proc", process, "stat")
    return not stat.exists() or ") Z " in stat.read_text()


def test_a_grader_that_is_stopped_stops_its_student_and_has_named_every_task(lab, tmp_path):
    shutil.copytree(lab["hand_out"], tmp_path / "lab")
    (tmp_path / "lab/together.py").write_text("while True: pass")
    results = tmp_path / "lab/results.json"
    results.write_text("those of another one")
    process = subprocess.Popen([sys.executable, "grade.py", "together", "draw"],
                               cwd=tmp_path / "lab", stdout=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not any("answering.py" in Path(f"/proc/{child}/cmdline").read_text()
                  for child in children.read_text().split()):
        time.sleep(0.1)
    [child] = children.read_text().split()
    process.terminate()
    assert process.wait() == 2 and has_ended(child)
    rows = json.loads(results.read_text())["tests"]
    assert tasks_of(rows) == {"together", "draw"}
    results.unlink()
    results.mkdir()         # where nothing can be written
    done = subprocess.run([sys.executable, "grade.py"], cwd=tmp_path / "lab", capture_output=True)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"results.json" in done.stderr


def test_a_grader_without_a_user_for_the_hand_in_says_so_or_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grade, "apart", lambda folder: {})
    with pytest.raises(OSError, match="--apart"):
        grade.grade(["together"], tmp_path, "1", only_apart=True)
    report = json.loads(Path("results.json").read_text())
    assert "runs as you" in report["output"] and report["score"] == 0


# ---- What is handed out --------------------------------------------------------------------------

def test_nothing_of_the_solutions_is_handed_out(lab):
    """No two lines that follow each other; some single ones are everywhere."""
    handed = [path.read_text("utf-8") for path in lab["hand_out"].rglob("*.py")]
    for place in itertools.chain(*TASKS.values()):
        file, name = place.split(":")
        if not name:        # gpt.py
            continue
        source = (lab["solutions"] / file).read_text("utf-8")
        _, first, *_, last = [*course.found(source, name).body] * 2
        lines = source.splitlines()[first.lineno - 1:last.end_lineno]
        for pair in itertools.pairwise(lines):
            if min(map(len, pair)) > 20:
                assert not any("\n".join(pair) in text for text in handed), pair


def test_gradescope_grades_chosen_tasks(tmp_path):
    """As the platform does: unpacked as source/, with a hand-in beside it. Nothing is installed."""
    course.autograder(tmp_path / "lab.zip", ["together", "bound"])
    shutil.unpack_archive(tmp_path / "lab.zip", tmp_path / "source")
    for folder in "results", "submission", "venv/bin":
        (tmp_path / folder).mkdir(parents=True)
    python = tmp_path / "venv/bin/python"       # which another user may not be able to run
    python.write_text(f'#!/bin/sh\nexec {sys.executable} $(echo "$@" | sed s/--apart//)\n')
    python.chmod(0o755)
    shutil.copy(Path(ROOT, "course/together.py"), tmp_path / "submission")
    (tmp_path / "submission/project.py").write_text("def write(*args): return args")
    done = subprocess.run(["bash", "source/run_autograder"], cwd=tmp_path, capture_output=True,
                          text=True, env={"AUTOGRADER": str(tmp_path)})
    assert done.returncode == 0 and not done.stderr
    report = json.loads((tmp_path / "results/results.json").read_text())
    for row in report["tests"]:
        assert row.keys() == {"name", "max_score", "score", "output"}
    assert report["score"] == 7
    assert tasks_of(report["tests"]) == {"bound", "together", "project"}
    chapters = (tmp_path / "source/lab/tasks.md").read_text()
    assert re.findall(r"^## (\w+):", chapters, re.M) == ["bound", "together"]


@pytest.mark.parametrize("arguments", [
    ["hand_out", "x", "--tasks=mask"], ["autograder", "."]])
def test_bad_input_is_refused(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["course", *arguments])
    with pytest.raises(InputError):
        course.main()


@pytest.mark.parametrize("argument", ["mask", "--folder=nowhere", "--seed=x"])
def test_the_grader_says_what_it_takes(argument, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["grade.py", argument])
    with pytest.raises(SystemExit):
        grade.main()
    assert capsys.readouterr().err.count("\n") == 1


def test_the_project_is_measured(lab):
    """The sampler that is handed out writes one word a pass, and is exact."""
    student = grade.Student(str(lab["solutions"]), "project")
    passes, _, share = grade.measure(student, np.random.default_rng(0), stories=10, rows=10)
    student.end()
    assert (passes, share) == (47, 1)
