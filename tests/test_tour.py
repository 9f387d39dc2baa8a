"""tour.ipynb runs from top to bottom, and what it prints is right. Here models train for a step."""
import os
import re
import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest
from conftest import ROOT
from prepare_data import PrepareOptions, prepare

TOUR = Path(ROOT, "tour.ipynb")
LINES = "ROMEO:\nBut, soft! what light through yonder window breaks?\n\n"


@pytest.fixture
def folder(workdir, monkeypatch):
    """A folder with the project's files and a small toy, for a kernel that has one core."""
    for path in Path(ROOT).glob("*.py"):
        shutil.copy(path, workdir)
    for name in "extras", "samplers", "support", "variants", "worlds":
        shutil.copytree(Path(ROOT, name), workdir / name)
    prepare(PrepareOptions(max_tokens=20000))
    monkeypatch.setenv("NANOMDLM_TOUR_STEPS", "1")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")      # so nothing is compiled
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return workdir


def printed(cell):
    """What a cell has printed, and the HTML that it shows."""
    shown = [output.get("text") or output.get("data", {}).get("text/html", "")
             for output in cell.outputs]
    return "".join(shown)


def execute(folder, *names):
    """What the cells of these names print, {name: text}; by default all. None of them may fail."""
    notebook = nbformat.read(TOUR, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if names:
        cells = [cell for cell in cells if cell.id in names]
    notebook.cells = cells
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
    return {cell.id: printed(cell) for cell in cells}


def test_every_cell_runs(folder):
    shakespeare = folder / "data" / "shakespeare" / "input.txt"     # so nothing is downloaded
    shakespeare.parent.mkdir()
    shakespeare.write_text(300 * LINES)
    prepare(PrepareOptions("sudoku", max_tokens=40000))
    said = execute(folder)

    # The files are there, so nothing is fetched or installed; and no command or library complains.
    assert said["set-up"] == ""
    for text in said.values():
        assert "warning" not in text.lower()

    # One token a pass: after 6 of 48 passes there are 42 blanks, and at the end there is none.
    steps = said["watch"].split("after ")[1:]
    assert [step.count("░░░") for step in steps] == [42, 36, 30, 24, 18, 12, 6, 0]

    # Only the three tokens of the blank change.
    assert len(re.findall(r"^ +One day, a .+ found a red ball in the", said["blank"], re.M)) == 6

    # The page is inside the notebook, and what runs in it is text of an attribute.
    assert re.fullmatch(r'<div><iframe srcdoc="[^"]+"[^<>]*></iframe></div>', said["page"])

    # A network of one step knows no grammar, so only the passes are certain.
    passes = re.findall(r"(\d+\.\d) +\d+%", said["together"])
    assert passes[:2] == ["48.0", "24.0"] and 1 <= float(passes[2]) <= 48
    assert len(re.findall(r"\d+ of 50 solved", said["solve"])) == 2

    # A draft and its check take two passes and add at least two tokens.
    one_by_one, drafted = map(float, re.findall(r"(\d+\.\d) +\d+%", said["draft"]))
    assert one_by_one == 1 and drafted >= 1.9

    # After one step the model knows little, so every number is far above the law's.
    rows = re.findall(r"(\d+\.\d) +(\d+\.\d) +(\d+\.\d) +\d+\.\d$", said["law"], re.M)
    assert len(rows) == 8 + 1
    for law, left_to_right, bound in rows:
        assert float(law) + 20 < min(float(left_to_right), float(bound))

    # Both models learned from the text that was there, and stand in the table.
    assert said["train-two"].count("on data/shakespeare, 1 steps") == 2
    for mode in "ar", "mdlm":
        assert re.search(rf"^{mode} +\d\.\d{{4}}", said["compare"], re.MULTILINE)
    assert re.search(r"… river .+\d +possible\n… pond .+\d +impossible$", said["choose"])


def test_without_a_network_it_goes_on_with_the_toy(folder, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")     # where nobody listens
    said = execute(folder, "set-up", "shakespeare")
    assert said["shakespeare"].endswith("The next cells take the toy instead.\n")


def test_a_training_that_was_interrupted_goes_on(folder):
    """Wherever that was: it ends as if it had run through, and then is left alone."""
    names = {"os": os, "Path": Path}
    notebook = nbformat.read(TOUR, as_version=4)
    [source] = [cell.source for cell in notebook.cells if cell.id == "commands"]
    exec(source, names)
    run = folder / names["train"]("mdlm", "toy", 1)
    log = (run / "log.jsonl").read_text()
    for gone in [], ["ckpt.pt"], ["ckpt.pt", "best.pt"]:
        for name in gone:
            (run / name).unlink()
        (run / "log.jsonl").write_text("".join(log.splitlines(keepends=True)[:-1]))
        names["train"]("mdlm", "toy", 1)
        assert "final_nll" in (run / "log.jsonl").read_text() and (run / "best.pt").exists()
    names["python"] = None
    names["train"]("mdlm", "toy", 1)


def test_the_outputs_that_are_kept_are_small_and_of_one_execution():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert os.path.getsize(TOUR) < 150_000
    # From top to bottom, in one go. The page's output is not kept, so that cell may have no number.
    numbers = [cell.execution_count for cell in cells if cell.id != "page" or cell.execution_count]
    assert numbers == list(range(1, len(numbers) + 1))
    for cell in cells:
        assert all(output.output_type != "error" for output in cell.outputs)
        assert max(map(len, cell.source.splitlines())) <= 100
