"""The pages have the numbers of the data, which today's code makes, as test_golden.py says."""
import pytest

from experiments import report


@pytest.fixture(scope="module")
def found():
    return report.values()


def test_the_pages_have_the_numbers_of_the_data(found):
    for page in report.pages():
        text = page.read_text()
        assert report.filled(text, found) == text, f"{page}: run python -m experiments.report"


@pytest.mark.parametrize("smaller, larger", [
    ("dial.mdlm.1.above-the-law", "dial.mdlm.48.above-the-law"),
    ("write.mdlm-adaptive.risk-0.1.law.kl", "write.mdlm-confidence.steps-48.law.kl"),
    ("real.stories.ar.nats", "real.stories.aogpt-left-to-right.nats"),
    ("real.long.ar.nats", "real.long.masked_ce.nats"), ("shakespeare.ar", "shakespeare.nanoGPT"),
    ("blanks-stories.masked_ce.4", "blanks-stories.infill.4"),
    ("orders.ar.left-to-right", "orders.mdlm.left-to-right"),
    ("few.ar.both.nats", "few.masked_ce.dropout.nats"), ("paper.adamw.ar", "paper.adamw.mdlm"),
    ("sudoku.pairs.left-to-right.12", "sudoku.mdlm.left-to-right.12"),
    ("sudoku.mdlm.left-to-right.12", "sudoku.taught.a-solver's-order.12"),
    ("sudoku.taught.a-solver's-order.9", "sudoku.mdlm.surest-first.9"),
    ("nine.left-to-right.28", "nine.surest-first.28"),
    ("few.aogpt-left-to-right.plain.nats", "few.ar.plain.nats"),
    ("few.ar.both.nats", "few.aogpt-left-to-right.dropout.nats"),
    ("speed.mdlm.plain", "speed.ar.plain"), ("speed.ar.tuned", "speed.mdlm.tuned"),
    ("diversity.mdlm-by-the-paper.distinct-4", "diversity.ar-by-the-paper.distinct-4"),
    ("few.masked_ce.plain.40", "few.masked_ce.plain.80")])
def test_inequalities_that_a_page_states_in_words(found, smaller, larger):
    def number(name):
        return float(found[name].replace(",", "").rstrip("%").split(" ")[0])

    assert number(smaller) < number(larger)
