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
import ast
import itertools
import re
import shutil
import sys
import tempfile
from pathlib import Path

from course.properties import TASKS
from support.flags import ROOT, InputError, command, did_you_mean

# No other file goes into the copy, so none that does the same as a function to be written.
FILES = """
    model.py train.py sample.py tokenizer.py prepare_data.py support/*.py worlds/*.py
    extras/__init__.py extras/cache.py extras/long.py extras/muon.py extras/noise.py
    extras/prompts.py extras/show.py extras/start_from.py
    samplers/__init__.py samplers/adaptive.py samplers/ancestral.py samplers/drafts.py
    variants/__init__.py variants/answers.py variants/infill.py
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
    first = node.body[0]
    if ast.get_docstring(node):
        start = first.end_lineno        # comments before the first statement go too
    else:
        start = first.lineno - 1
    indent = " " * first.col_offset
    body = f'{indent}raise NotImplementedError("{function}")\n'
    return replaced(source, start, node.end_lineno, body)


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
    others = [task for task in TASKS if task not in tasks]      # these are neither told nor graded
    properties = folder / "properties.py"
    lines = properties.read_text("utf-8").splitlines(keepends=True)
    begins = tuple(f'    "{task}": [' for task in others)
    properties.write_text("".join(line for line in lines if not line.startswith(begins)), "utf-8")
    text = folder / "tasks.md"
    chapters = re.split("^(?=## )", text.read_text("utf-8"), flags=re.MULTILINE)
    begins = tuple(f"## {task}:" for task in others)
    text.write_text("".join(part for part in chapters if not part.startswith(begins)), "utf-8")
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


def main():
    words = sys.argv[1:]
    tasks = list(TASKS)
    for word in [word for word in words if word.startswith("--")]:
        words.remove(word)
        name, _, value = word.partition("=")
        if name == "--help":
            print(__doc__.strip())
            return
        tasks = value.split(",")
        for task in tasks:
            if name != "--tasks" or task not in TASKS:
                raise InputError(f"{word}: --tasks may have {', '.join(TASKS)}"
                                 + did_you_mean(task, TASKS))
    if len(words) != 2 or words[0] not in WHAT:
        raise InputError("say hand_out DIR or solutions DIR; --help says more")
    folder = Path(words[1])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; name a new folder")
    WHAT[words[0]](folder, tasks)


if __name__ == "__main__":
    command(main, "the copy is not complete; delete it")
