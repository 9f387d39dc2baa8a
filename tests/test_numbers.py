"""The numbers of the pages are those of the data, which were made by one version of the code."""
import ast
import re
import subprocess

import pytest

from cli import ROOT
from experiments import report

FROZEN = "model objectives samplers train sample toy prepare_data"
MAY_DIFFER = "bfloat16_is_faster"       # it chooses a dtype, which every run has on record


@pytest.fixture(scope="module")
def found():
    return report.values()


def test_the_pages_have_the_numbers_of_the_data(found):
    for page in report.pages():
        text = page.read_text()
        assert report.filled(text, found) == text, f"{page}: run python -m experiments.report"


def code_of(read) -> list:
    """All statements but imports, without docstrings: code may move from file to file."""
    found = []
    for name in FROZEN.split():
        for statement in ast.parse(read(f"{name}.py")).body[1:]:    # the first is a docstring
            name = getattr(statement, "name", "")
            if not isinstance(statement, ast.Import | ast.ImportFrom) and name != MAY_DIFFER:
                found.append(re.sub('""".*?"""', "", ast.unparse(statement), flags=re.DOTALL))
    return sorted(found)


def test_all_data_are_of_this_version_of_the_code():
    def git(*command):
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True).stdout
    if not git("show", "066f0fe"):
        pytest.skip("the history of git is not here")
    now = code_of(lambda file: (ROOT / file).read_text())
    data = "".join(path.read_text() for path in report.DATA.glob("*.json"))
    for commit in set(re.findall(r'"commit": "(.*?)"', data)):
        assert commit and code_of(lambda file: git("show", f"{commit}:{file}")) == now, commit


@pytest.mark.parametrize("smaller, larger", [
    ("dial.mdlm.1.above-the-law", "dial.mdlm.48.above-the-law"),
    ("write.mdlm-adaptive.risk-0.1.law.kl", "write.mdlm-confidence.steps-48.law.kl"),
    ("real.stories.ar.nats", "real.stories.aogpt-left-to-right.nats"),
    ("real.long.ar.nats", "real.long.masked_ce.nats"), ("shakespeare.ar", "shakespeare.nanoGPT"),
    ("blanks-stories.masked_ce.4", "blanks-stories.infill.4"),
    ("orders.ar.left-to-right", "orders.mdlm.left-to-right"),
    ("few.ar.both.nats", "few.masked_ce.dropout.nats"), ("paper.adamw.ar", "paper.adamw.mdlm"),
    ("large.masked_ce.plain.nats", "large.ar.plain.nats"),
    ("large.ar.eight.nats", "large.masked_ce.eight.nats")])
def test_inequalities_that_a_page_states_in_words(found, smaller, larger):
    small, large = (float(found[name].rstrip("%").split(" ")[0]) for name in (smaller, larger))
    assert small < large
