"""
A lab on text diffusion that grades itself: course/tasks.md is for students, course/teaching.md for
whoever teaches.

Adds: a copy of the project in which some functions are to be written, and a grader that needs no
answers. Costs: nothing. Stands alone:

    python -m course.hand_out hand_out lab                        what students get
    python -m course.hand_out hand_out lab --tasks=gpt,bound      some of course/properties.py
    python -m course.hand_out solutions answers                   the same folder, solved
    python -m course.hand_out autograder lab.zip                  what Gradescope takes
"""
import argparse
import ast
import itertools
import re
import shutil
import tempfile
from pathlib import Path

from course.properties import TASKS
from support.flags import ROOT, InputError, command, did_you_mean

# No other file goes into the copy, so none that does the same as a function to be written.
FILES = """
    model.py presets.py train.py sample.py tokenizer.py prepare_data.py support/*.py worlds/*.py
    extras/__init__.py extras/cache.py extras/long.py extras/muon.py extras/noise.py
    extras/prompts.py extras/show.py extras/start_from.py
    samplers/__init__.py samplers/adaptive.py samplers/ancestral.py samplers/drafts.py
    variants/__init__.py
    experiments/oracle.py
    course/gpt.py course/together.py course/project.py
    course/grade.py course/answering.py course/properties.py course/tasks.md
    requirements.txt LICENSE
"""


def found(source: str, name: str):
    """The function or class of this name, as ast has it."""
    for node in ast.parse(source).body:
        if getattr(node, "name", "") == name:
            return node
    raise InputError(f"there is no function {name}; TASKS in course/properties.py names it")


def replaced(source: str, start: int, end: int, new: str) -> str:
    """The source with other text in the place of the lines from start to end, counted from 0."""
    lines = source.splitlines(keepends=True)
    return "".join(lines[:start]) + new + "".join(lines[end:])


def emptied(source: str, function: str) -> str:
    """The source without the body of a function: its docstring stays, then it raises its name."""
    node = found(source, function)
    says = node.body[0]         # comments after it go too
    body = f'{" " * says.col_offset}raise NotImplementedError("{function}")\n'
    return replaced(source, says.end_lineno, node.end_lineno, body)


def solved(source: str, solution: str) -> str:
    """The source with the functions of a solution in the place of those of their names."""
    for new in ast.parse(solution).body:
        if isinstance(new, ast.FunctionDef):
            old = found(source, new.name)
            body = ast.get_source_segment(solution, new)
            source = replaced(source, old.lineno - 1, old.end_lineno, body + "\n")
    return source


def copy_files(folder: Path):
    """What students need. The files of course/ come to the top of the folder."""
    for pattern in FILES.split():
        for path in sorted(Path(ROOT).glob(pattern)):
            inside = path.relative_to(ROOT)
            target = folder / (inside.name if inside.parts[0] == "course" else inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def hand_out(folder: Path, tasks: list):
    copy_files(folder)
    for place in itertools.chain(*[TASKS[task] for task in tasks]):
        file, function = place.split(":")
        if function:
            path = folder / file
            path.write_text(emptied(path.read_text("utf-8"), function), "utf-8")
    others = "|".join(task for task in TASKS if task not in tasks)      # neither told nor graded
    chapters = {"properties.py": rf'^    "({others})": [^\n]*\n',
                "tasks.md": rf"^## ({others}):.*?(?=^## )"}
    for name, part in chapters.items():
        text = (folder / name).read_text("utf-8")
        text = re.sub(part, "", text, flags=re.MULTILINE | re.DOTALL)
        (folder / name).write_text(text, "utf-8")
    print(f"{folder} is ready: tasks.md says what to do, and python grade.py how far it is done")


def solutions(folder: Path, tasks: list):
    copy_files(folder)
    if "gpt" in tasks:
        solution = Path(ROOT, "course/diffusion.py").read_text("utf-8")
        path = folder / "gpt.py"
        path.write_text(solved(path.read_text("utf-8"), solution), "utf-8")
    print(f"{folder} has the solutions; python grade.py in it finds nothing missing")


def autograder(path: Path, tasks: list):
    with tempfile.TemporaryDirectory() as folder:
        hand_out(Path(folder, "lab"), tasks)
        for name in "setup.sh", "run_autograder":
            shutil.copy(Path(ROOT, "course", name), folder)
        shutil.make_archive(str(path.with_suffix("")), "zip", folder)
    print(f"{path} is what Gradescope takes as an autograder")


WHAT = {"hand_out": hand_out, "solutions": solutions, "autograder": autograder}


def refuse(says):
    raise InputError(says)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.error = refuse
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("where", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    o = parser.parse_args()
    tasks = o.tasks.split(",")
    for task in tasks:
        if task not in TASKS:
            refuse(f"--tasks={task}: there are {', '.join(TASKS)}{did_you_mean(task, TASKS)}")
    if o.where.exists() and (not o.where.is_dir() or any(o.where.iterdir())):
        refuse(f"{o.where} is not empty; name a new one")
    WHAT[o.what](o.where, tasks)


if __name__ == "__main__":
    command(main, "the copy is not complete; delete it")
