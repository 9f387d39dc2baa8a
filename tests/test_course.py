"""The lab of course/: the grader tells wrong answers from right ones, and survives any hand-in."""
import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import course_answers
from conftest import ROOT
from course import grade       # it finds properties.py, which lies beside it
from course import hand_out as course
from support.flags import InputError

import properties  # noqa: E402, I001

RIGHT = [name for name in vars(course_answers)
         if name.startswith(tuple(f"{task}_" for task in properties.TASKS))]
WRONG = [(place, *edit) for place, edits in course_answers.WRONG.items() for edit in edits]
# Where a function stands in the folder of students; the others stand in model.py.
HOME = {"gpt": "gpt", "together": "together", "adaptive": "samplers.adaptive",
        "drafts": "samplers.drafts"}


def python(*command, cwd=ROOT, code=0):
    """What it prints."""
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The folders of both kinds, whose names have a space and an ü."""
    folder = tmp_path_factory.mktemp("lab")
    folders = {}
    for kind, make in course.WHAT.items():
        folders[kind] = folder / f"{kind} für uns"
        make(folders[kind], list(properties.TASKS))
    shutil.copy(course_answers.__file__, folders["solutions"])
    return folders


class WithAnswer(grade.Student):
    """The solutions, but some functions are taken from elsewhere: {name: name}."""

    def __call__(self, name, *args):
        if isinstance(name, str):
            name = self.other.get(name, name)
        return super().__call__(name, *args)


@pytest.fixture(scope="module")
def students(lab):
    """A process for all answers, and one for those that need a stand-in."""
    both = [WithAnswer(str(lab["solutions"]), task, 600) for task in ("masks", "write")]
    yield both
    for student in both:
        student.end()


def first_problem(task, student):
    """What the first check says that fails, but nothing is trained."""
    for of, _, _, function in properties.CHECKS:
        if of == task and function is not properties.learns_the_toy:
            try:
                function(student, grade.torch.Generator().manual_seed(1))
            except properties.Wrong as e:
                return str(e)
    return ""


def edited(folder, place: str, pairs: list) -> str:
    """The name of a copy of the function's file in which the pairs (old, new) are replaced."""
    task, function = place.split(":")
    path = folder / (HOME.get(task, "model").replace(".", "/") + ".py")
    source = path.read_text("utf-8")
    body = ast.get_source_segment(source, course.found(source, function))
    new_body = body
    for old, new in zip(pairs[::2], pairs[1::2]):
        assert body.count(old) == 1, f"{place} has {body.count(old)} of: {old}"
        new_body = new_body.replace(old, new)
    copy = folder / f"edited_{len(list(folder.glob('edited_*')))}.py"
    copy.write_text(source.replace(body, new_body), "utf-8")
    return copy.stem


@pytest.mark.parametrize("place, says, pairs", [(place, says, pairs) for place, says, *pairs in WRONG],
                         ids=[f"{place}, {says}" for place, says, *_ in WRONG])
def test_the_grader_finds_what_is_wrong(lab, students, place, says, pairs):
    task, function = place.split(":")
    function = "GPT" if function == "attend" else function
    student = students[task in grade.STAND_INS]
    module = edited(lab["solutions"], place, pairs)
    student.other = {f"{HOME.get(task, 'model')}.{function}": f"{module}.{function}"}
    assert first_problem(task, student)


@pytest.mark.parametrize("name", RIGHT)
def test_the_grader_lets_right_answers_pass(students, name):
    task, *words = name.split("_")
    [function] = [place.split(":")[1] for place in course_answers.WRONG
                  if name.startswith(place.replace(":", "_"))]
    student = students[task in grade.STAND_INS]
    student.other = {f"{HOME.get(task, 'model')}.{function}": f"course_answers.{name}"}
    assert first_problem(task, student) == ""


# ---- Whole hand-ins ------------------------------------------------------------------------------

def results(folder):
    """Points, and the report, which has what Gradescope asks for."""
    report = json.loads((folder / "results.json").read_text("utf-8"))
    for row in report["tests"]:
        assert row.keys() == {"name", "max_score", "score", "output", "status"}
    assert report["score"] == sum(row["score"] for row in report["tests"])
    assert report["execution_time"] > 0
    return report["score"], report["tests"]


def test_the_untouched_hand_out_has_no_point_and_no_traceback(lab):
    said = python("grade.py", "gpt", "bound", cwd=lab["hand_out"], code=1)
    assert said.count("is not done yet") == 2
    assert results(lab["hand_out"])[0] == 0
    student = grade.Student(str(lab["hand_out"]), "draw", 60)
    for task in set(properties.TASKS) - {"gpt", "bound"}:
        rows = grade.grade_task(task, student, number=0)
        assert all("is not done yet" in row["output"] for row in rows)
    student.end()


def test_the_first_solution_has_all_points(lab):
    """It is trained too. A lecturer grades another folder by the files beside the grader."""
    python("grade.py", f"--folder={lab['solutions']}", "gpt", cwd=lab["hand_out"])
    assert results(lab["hand_out"])[0] == 12


@pytest.mark.parametrize("task", [task for task in properties.TASKS if task != "gpt"])
def test_the_other_solutions_have_all_points(students, task):
    student = students[task in grade.STAND_INS]
    student.other = {}
    assert all(row["output"] == "ok" for row in grade.grade_task(task, student, number=2))


DISASTERS = {       # of the task: what its function does, and what the grader says
    "masks": ("while True: print('again')", "takes longer than the 4 seconds"),
    "bound": ("return 1 / 0", "raises ZeroDivisionError at model.py:"),
    "chain": ("torch.manual_seed(0); exit()", "raises SystemExit"),
    "draw": ("import os; os._exit(0)", "ends the process"),
    "write": ("yield torch.zeros(2, 2, 2)", "it should yield the tokens after each pass"),
    "together": ("return joint.sum() * float('nan')", "there is NaN"),
}


def test_a_hand_in_can_do_its_worst(lab, tmp_path):
    shutil.copytree(lab["hand_out"], tmp_path / "bad")
    for task, (does, says) in DISASTERS.items():
        file = tmp_path / "bad" / properties.TASKS[task][0].split(":")[0]
        code = re.sub(rf'raise NotImplementedError\("task {task}.*', does, file.read_text("utf-8"))
        file.write_text(code, "utf-8")
    (tmp_path / "bad/json.py").write_text("raise RuntimeError('a file of the name of a module')")
    for task, (does, says) in DISASTERS.items():
        student = grade.Student(str(tmp_path / "bad"), task, 4 if task == "masks" else 60)
        rows = grade.grade_task(task, student, number=0)
        student.end()
        assert sum(row["score"] for row in rows) == 0
        assert any(says in row["output"] for row in rows), rows


# ---- What is handed out --------------------------------------------------------------------------

def pairs_of_lines(code):
    """Each two lines that follow each other, without their comments."""
    lines = [line.split("#")[0].strip() for line in code.splitlines()
             if not line.startswith("import ")]
    return {pair for pair in itertools.pairwise(lines) if all(len(line) > 10 for line in pair)}


def test_nothing_of_the_solutions_is_handed_out(lab):
    handed = [path for path in lab["hand_out"].rglob("*") if path.is_file()]
    texts = {path.name: path.read_text("utf-8") for path in handed if path.suffix != ".pyc"}
    assert not {"diffusion.py", "teaching.md", "hand_out.py"} & texts.keys()
    assert not {".git", "tests", "__pycache__"} & {*os.listdir(lab["hand_out"])}
    given = set().union(*map(pairs_of_lines, texts.values()))
    solved = pairs_of_lines(Path(ROOT, "course/diffusion.py").read_text("utf-8"))
    solved -= pairs_of_lines(Path(ROOT, "course/gpt.py").read_text("utf-8"))
    for place in itertools.chain(*properties.TASKS.values()):
        file, name = place.split(":")
        path = Path(ROOT, "course", file) if file == "together.py" else Path(ROOT, file)
        source = path.read_text("utf-8")
        [body] = [node.body for node in ast.parse(source).body if getattr(node, "name", "") == name]
        solved |= pairs_of_lines("\n".join(
            source.splitlines()[body[1].lineno - 1:body[-1].end_lineno]))
    assert len(solved) > 60
    assert not solved & given


def test_a_body_is_emptied_and_the_rest_stays():
    source = ("def f(x):\n    \"\"\"Why.\"\"\"\n    # How.\n    return x\n\n\n"
              "def g():\n    return 1\n")
    assert course.emptied(source, "f", "task t: f") == (
        "def f(x):\n    \"\"\"Why.\"\"\"\n    raise NotImplementedError(\"task t: f\")\n\n\n"
        "def g():\n    return 1\n")
    assert "return x" in course.emptied(source, "g", "")
    with pytest.raises(InputError):
        course.emptied(source, "h", "")


def test_tasks_can_be_chosen(tmp_path):
    course.hand_out(tmp_path / "x", ["masks", "together"])
    code = (tmp_path / "x/model.py").read_text("utf-8")
    assert code.count("NotImplementedError") == 1
    compile(code, "model.py", "exec")
    said = python("grade.py", "together", cwd=tmp_path / "x", code=1)
    assert "0 of 7 points" in said
    done = subprocess.run([sys.executable, "grade.py", "bound"], cwd=tmp_path / "x",
                          capture_output=True, text=True)
    assert done.stderr.startswith("grade.py: bound is no task; there are masks, together, and")


@pytest.mark.parametrize("arguments, says", [
    (["hand_out"], "say hand_out DIR"),
    (["hand_out", "x", "--tasks=mask"], "did you mean masks?"),
    (["hand_out", "."], "is not empty")])
def test_bad_input_says_what_to_do(arguments, says, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["course", *arguments])
    with pytest.raises(InputError, match=re.escape(says)):
        course.main()


def test_grade_py_says_what_there_is(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["grade.py", "mask"])
    assert grade.main() == 2
    assert "mask is no task; there are gpt, masks," in capsys.readouterr().err


def test_the_project_is_measured(lab):
    """The sampler that is handed out writes one word a pass, and is exact."""
    passes, _, share = grade.project(
        str(lab["solutions"]), grade.torch.Generator().manual_seed(0), stories=10, rows=10)
    assert (passes, share) == (47, 1)
