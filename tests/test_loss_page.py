"""What is-my-loss-right.md shows is what its snippets print."""
import re
from pathlib import Path

import pytest

from conftest import ROOT, small_model
from prepare_data import PrepareOptions, Windows, prepare
from support.runs import save

PAGE = Path(ROOT, "is-my-loss-right.md").read_text("utf-8")
ON_A_BATCH, CHECK, OURS, GPT = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)


def shown(begins: str, lines: int) -> str:
    """The lines of output that the page shows, from the one that begins so."""
    [output] = re.findall(rf"^((?:    {begins}.*\n){{{lines}}})", PAGE, re.MULTILINE)
    return output


def numbers(text: str) -> list:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_1_by_t_and_1_by_k_have_the_same_mean(workdir, capsys):
    prepare(PrepareOptions(max_tokens=70_000))
    data = Windows("toy", "val", 48)
    model = small_model("mdlm", vocab_size=135, block_size=48)
    Path("out/toy-mdlm").mkdir(parents=True)
    save("out/toy-mdlm/best.pt", model, tokenizer=data.meta["tokenizer"], windows="aligned",
         variant="model")
    exec(ON_A_BATCH.replace("times=500", "times=50"), {})
    *lines, texts = capsys.readouterr().out.splitlines()
    means, errors, jumps = zip(*map(numbers, lines))
    assert max(means) - min(means) < 5 * max(errors) and jumps[0] > jumps[2]
    assert numbers(texts)[0] == pytest.approx(0.004, abs=0.001)


def test_the_check_tells_right_from_wrong(capsys):
    names = {}
    exec(CHECK.replace("range(200)", "range(60)") + OURS, names)
    right, *wrong = [numbers(line) for line in capsys.readouterr().out.splitlines()]
    assert sum([right, *wrong], []) == pytest.approx(numbers(shown("sum of p", 5)), abs=0.02)
    for total, exact, bound, loss in [right, *wrong]:
        is_right = total == 1 and exact <= bound and abs(loss - bound) < 0.006
        assert is_right == ([total, exact, bound, loss] == right)
    exec(GPT, names)
    assert capsys.readouterr().out == re.sub("^    ", "", shown(r"\d\.\d", 2), flags=re.MULTILINE)
