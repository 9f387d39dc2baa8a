"""The numbers of the pages are those of the data, which were made by one version of the code."""
import ast
import json
import re
import subprocess

import pytest

from cli import ROOT
from experiments import report

FROZEN = ["model.py", "train.py", "sample.py", "toy.py", "prepare_data.py"]


@pytest.fixture(scope="module")
def found():
    return report.values()


def test_the_pages_have_the_numbers_of_the_data(found):
    """What `python -m experiments.report` writes is there already."""
    for page in report.pages():
        text = page.read_text()
        assert report.filled(text, found) == text, f"{page}: run python -m experiments.report"


def test_all_data_are_of_one_version_of_the_code():
    """Comments and docstrings may change."""
    def code_at(commit, file):
        git = ["git", "show", f"{commit}:{file}"]
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            pytest.skip("the history of git is not here")
        return re.sub(r'""".*?"""', "", ast.unparse(ast.parse(done.stdout)), flags=re.DOTALL)

    commits = {json.loads(path.read_text())["commit"] for path in report.DATA.glob("*.json")}
    for file in FROZEN:
        assert len({code_at(commit, file) for commit in [*commits, "HEAD"]}) == 1, file


def number(found, name: str) -> float:
    return float(found[name].rstrip("%").split(" ")[0])


@pytest.mark.parametrize("smaller, larger", [
    ("dial.mdlm.1.above-the-law", "dial.mdlm.48.above-the-law"),
    ("dial.aogpt.1.above-the-law", "dial.aogpt.48.above-the-law"),
    ("dial.the-law.8.2-a-pass", "dial.the-law.48.2-a-pass"),
    ("dial.mdlm.8.2-a-pass", "dial.mdlm.48.2-a-pass"),
    ("dial.mdlm.8.2-a-pass", "dial.mdlm.8.adaptive"),
    ("dial-stories.aogpt.1.bound", "dial-stories.aogpt.256.bound"),
    ("dial-stories.aogpt.16.bound", "dial-stories.mdlm.16.bound"),
    ("write.mdlm-adaptive.risk-0.1.trained.passes",
     "write.mdlm-threshold.surety-0.9.trained.passes"),
    ("write.mdlm-adaptive.risk-0.1.law.kl", "write.mdlm-confidence.steps-48.law.kl"),
    ("write.mdlm-remask.steps-12,-eta-0.1.law.grammatical",
     "write.mdlm-adaptive.risk-0.1.law.grammatical"),
    ("blanks-stories.aogpt.1", "blanks-stories.infill.1"),
    ("blanks-stories.infill.8", "blanks-stories.aogpt.8"),
    ("blanks-toy.infill.8", "blanks-toy.ar.8")])
def test_what_the_pages_say_of_the_numbers(found, smaller, larger):
    """Each pair is an inequality that a page states in words."""
    assert number(found, smaller) < number(found, larger)
