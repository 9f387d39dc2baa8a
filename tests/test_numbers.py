"""The pages have the numbers of the data, which today's code makes, as test_golden.py says."""
import pytest

from experiments import report
from support.flags import InputError


@pytest.mark.parametrize("page", report.pages(), ids=lambda page: page.name)
def test_a_page_has_the_numbers_of_the_data(page):
    text = page.read_text()
    assert report.filled(text) == text, "run python -m experiments.report"


def test_questions_are_answered():
    """A number that is wrong is mended, an empty cell is one that was not measured, and what no
    file has is an error."""
    wrong = """<!--mapping["bound"] : .3f-->9<!--end-->
<!--table: rows(cost_law["rows"], col, way=row) : .0f
way || passes | nats := nats : cost("toy", row) : .3f | none
random
risk 1 := second
-->gone<!--end-->"""
    text = report.filled(wrong)
    assert text.startswith('<!--mapping["bound"] : .3f-->1.967<!--end-->')
    for line in ("| way | passes | nats | none |", "| random | 48 | 0.002 ± 0.000 |  |",
                 "| second | 14 | 0.032 |  |"):
        assert line in text
    with pytest.raises(InputError, match="no answer"):
        report.answer('mapping["gap"]')
