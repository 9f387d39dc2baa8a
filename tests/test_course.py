"""The lab of course/: the grader tells wrong answers from right ones, and survives any hand-in."""
import ast
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import course_answers
from conftest import ROOT
from course import hand_out as course
from support.flags import InputError

sys.path.append(str(Path(ROOT, "course")))
import grade  # noqa: E402
from properties import CHECKS, TASKS, Wrong  # noqa: E402

RIGHT = [name for name in vars(course_answers) if name.split("_")[0] in TASKS]
WRONG = [(place, *edit) for place, edits in course_answers.WRONG.items() for edit in edits]
# Where a function stands in the folder of students; the others stand in model.py.
HOME = {"gpt": "gpt", "together": "together", "adaptive": "samplers.adaptive",
        "drafts": "samplers.drafts"}


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


def problems(place, students, other):
    """What the checks of the function's task say, if another one takes its place."""
    task, function = place.split(":")
    function = "GPT" if function == "attend" else function
    student = students[task in ("write", "drafts")]
    student.other = {f"{HOME.get(task, 'model')}.{function}": other.format(function)}
    return [row["output"] for row in grade.grade_task(task, 1, student) if not row["score"]]


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
    assert problems(place, students, edited(lab["solutions"], place, pairs) + ".{}")


@pytest.mark.parametrize("name", RIGHT)
def test_the_grader_lets_right_answers_pass(students, name):
    [place] = [place for place in course_answers.WRONG if name.startswith(place.replace(":", "_"))]
    began = time.time()
    assert not problems(place, students, f"course_answers.{name}")
    assert time.time() - began < 60


@pytest.mark.parametrize("task", TASKS)
def test_the_solutions_have_all_points(students, task):
    assert not problems(f"{task}:none", students, "no.{}")


# ---- Whole hand-ins ------------------------------------------------------------------------------

def graded(*arguments, cwd):
    """Rows of what Gradescope reads, the exit code, and what is printed."""
    done = subprocess.run([sys.executable, "grade.py", *arguments], cwd=cwd, capture_output=True,
                          text=True, env={"PYTHONIOENCODING": "ascii"})
    assert not done.stderr
    report = json.loads((cwd / "results.json").read_text())
    for row in report["tests"]:
        assert row.keys() == {"name", "max_score", "score", "output", "status"}
    assert report["score"] == sum(row["score"] for row in report["tests"])
    return report["tests"], done.returncode, done.stdout


@pytest.mark.parametrize("shape", ["{}", "lab/{}", "deep/in/a/lab/{}", "flat"])
def test_a_hand_in_has_any_shape(lab, tmp_path, shape):
    """Other files, empty ones or old ones elsewhere, do no harm."""
    for name in grade.FILES - {"gpt.py"}:
        path = tmp_path / shape.format(name) if shape != "flat" else tmp_path / Path(name).name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(lab["solutions"] / name, path)
    for name in "json.py", "old/old/old/old/old/model.py", "grade.py":
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    tasks = "together", "adaptive", "masks"
    rows, code, said = graded(*tasks, f"--folder={tmp_path}", cwd=lab["hand_out"])
    assert all(row["score"] for row in rows) and code == 0
    assert "not handed in: gpt.py\n" in said


def test_the_untouched_hand_out_has_no_point(lab):
    rows, code, _ = graded(cwd=lab["hand_out"])
    assert {row["name"].split(":")[0] for row in rows} == TASKS.keys() and code == 1
    assert not any(row["score"] for row in rows)
    rows = [row for row in rows if not row["name"].startswith("gpt")]
    assert all("is not done yet" in row["output"] for row in rows)


# Of a function: what it does, which is no work and so no point.
DISASTERS = [
    ("masks:draw_masks", "while True: print('again')"),
    ("masks:draw_masks", "return torch.ones_like(x).bool()"),
    ("masks:draw_masks", "return torch.rand(x.shape, generator=generator) < 0.5"),
    ("bound:losses", "import os; os.fork() or os.setsid() or os.system('sleep 99'); return 1 / 0"),
    ("bound:mask_batch", "raise ValueError('caf\\ud800 \\x1b[31m' * 10 ** 7)"),
    ("chain:order_batch", "torch.manual_seed(0); exit()"),
    ("draw:draw", "import os; os._exit(0)"),
    ("draw:draw", "return p.argmax(dim=-1)"),
    ("draw:probabilities", "return logits.softmax(dim=-1)"),
    ("write:write", "yield torch.zeros(2, 2, 2)"),
    ("write:write", "for start, end in itertools.pairwise(edges): yield tokens"),
    ("together:nats_lost", "return joint.sum() * 0"),
    ("together:nats_lost", "return {'size': object()}"),
    ("adaptive:within_risk", "return torch.zeros_like(nats).bool()"),
    ("adaptive:within_risk", "return nats.isfinite()"),
    ("drafts:confirm", "return F.pad(draft, (0, 1)), torch.full_like(draft[:, :1], 2)"),
    ("drafts:confirm", "return F.pad(draft, (0, 1)), torch.full_like(draft[:, :1], draft.size(1))"),
]


@pytest.mark.parametrize("place, does", DISASTERS)
def test_no_work_is_no_point(lab, tmp_path, place, does):
    shutil.copytree(lab["hand_out"], tmp_path / "bad")
    task, function = place.split(":")
    for where in TASKS[task]:
        file = tmp_path / "bad" / where.split(":")[0]
        file.write_text(file.read_text("utf-8").replace(
            f'raise NotImplementedError("{function}")', does), "utf-8")
    student = grade.Student(str(tmp_path / "bad"), task, 5)
    began = time.time()
    rows = grade.grade_task(task, 0, student)
    student.end()
    assert time.time() - began < 20
    assert not any(row["score"] for row in rows), rows
    assert all(row["output"].isprintable() and len(row["output"]) <= 500 for row in rows)


def test_a_grader_that_is_killed_has_named_every_task(lab, tmp_path):
    shutil.copytree(lab["hand_out"], tmp_path / "lab")
    results = tmp_path / "lab/results.json"
    results.write_text("those of another one")
    process = subprocess.Popen([sys.executable, "grade.py", "masks", "draw"], cwd=tmp_path / "lab",
                               stdout=subprocess.DEVNULL)
    while "another" in results.read_text() if results.exists() else True:
        time.sleep(0.01)
    process.kill()
    process.wait()
    rows = json.loads(results.read_text())["tests"]
    assert {row["name"].split(":")[0] for row in rows} == {"masks", "draw"}
    results.unlink()
    results.mkdir()         # where nothing can be written
    done = subprocess.run([sys.executable, "grade.py"], cwd=tmp_path / "lab", capture_output=True)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"results.json" in done.stderr


# ---- What is handed out --------------------------------------------------------------------------

def pairs_of_lines(code):
    """Each two lines that follow each other, without their comments."""
    lines = [line.split("#")[0].strip() for line in code.splitlines()
             if not line.startswith("import ")]
    return {pair for pair in itertools.pairwise(lines) if all(len(line) > 10 for line in pair)}


def test_nothing_of_the_solutions_is_handed_out(lab):
    handed = [path for path in lab["hand_out"].rglob("*") if path.is_file()]
    texts = {path.name: path.read_text("utf-8") for path in handed if path.suffix == ".py"}
    assert not {"diffusion.py", "hand_out.py"} & texts.keys()
    solved = pairs_of_lines(Path(ROOT, "course/diffusion.py").read_text("utf-8"))
    solved -= pairs_of_lines(Path(ROOT, "course/gpt.py").read_text("utf-8"))
    for place in itertools.chain(*TASKS.values()):
        file, name = place.split(":")
        if name:
            source = (lab["solutions"] / file).read_text("utf-8")
            _, first, *_, last = [*course.found(source, name).body] * 2
            solved |= pairs_of_lines(
                "\n".join(source.splitlines()[first.lineno - 1:last.end_lineno]))
    assert len(solved) > 60
    assert not solved & set().union(*map(pairs_of_lines, texts.values()))


def test_gradescope_grades_chosen_tasks(tmp_path):
    """As the platform does: unpacked as source/, with a hand-in beside it. Nothing is installed."""
    course.autograder(tmp_path / "lab.zip", ["together", "bound"])
    shutil.unpack_archive(tmp_path / "lab.zip", tmp_path / "source")
    for folder in "results", "submission", "venv/bin":
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "venv/bin/python").chmod(0o755)
    shutil.copy(Path(ROOT, "course/together.py"), tmp_path / "submission")
    (tmp_path / "submission/project.py").write_text("def write(*args): return args")
    done = subprocess.run(["bash", "source/run_autograder"], cwd=tmp_path, capture_output=True,
                          text=True, env={"AUTOGRADER": str(tmp_path)})
    assert done.returncode == 1 and not done.stderr
    report = json.loads((tmp_path / "results/results.json").read_text())
    assert report["score"] == 7
    assert {row["name"].split(":")[0] for row in report["tests"]} == {"bound", "together", "project"}
    chapters = re.findall(r"^## (\w+):", (tmp_path / "source/lab/tasks.md").read_text(), re.MULTILINE)
    assert chapters == ["bound", "together"]


@pytest.mark.parametrize("arguments", [
    ["hand_out"], ["hand_out", "x", "--tasks=mask"], ["hand_out", "."], ["autograder", "."]])
def test_bad_input_is_refused(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["course", *arguments])
    with pytest.raises(InputError):
        course.main()


def test_the_grader_says_what_it_takes(capsys, monkeypatch):
    for arguments in ["mask"], ["--folder=nowhere"], ["--seed=x"]:
        monkeypatch.setattr(sys, "argv", ["grade.py", *arguments])
        assert grade.main() == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_project_is_measured(lab):
    """The sampler that is handed out writes one word a pass, and is exact."""
    student = grade.Student(str(lab["solutions"]), "project")
    rng = grade.torch.Generator().manual_seed(0)
    passes, _, share = grade.measure(student, rng, stories=10, rows=10)
    student.end()
    assert (passes, share) == (47, 1)
