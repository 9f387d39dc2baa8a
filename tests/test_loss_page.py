"""What is-my-loss-right.md shows is what its snippets print."""
import itertools
import re
from pathlib import Path

import pytest
import torch

from conftest import ROOT, small_model
from prepare_data import PrepareOptions, Windows, prepare
from support.runs import save
from test_model import every_text

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
    for mean, error in zip(means[:2], errors):
        assert abs(mean - means[2]) < 5 * (error + errors[2])
    assert jumps[0] > jumps[2]
    assert numbers(texts)[0] == pytest.approx(0.004, abs=0.001)


@torch.no_grad()
def test_the_check_tells_right_from_wrong(capsys):
    names = {}
    exec(CHECK.replace("range(200)", "range(60)") + OURS, names)
    printed = capsys.readouterr().out
    assert numbers(printed) == pytest.approx(numbers(shown("sum of p", 5)), abs=0.006)
    right, *wrong = [numbers(line) for line in printed.splitlines()]
    assert is_right(*right)
    assert not any(is_right(*line) for line in wrong)

    # What it says of ours is the mean over all orders.
    x = every_text(4, 4)
    costs = []
    for order in itertools.permutations(range(4)):
        hidden, cost = torch.ones_like(x).bool(), 0.0
        for place in order:
            log_p = names["logits_of"](x, hidden).log_softmax(dim=-1)
            cost -= log_p[:, place].gather(1, x[:, place:place + 1])[:, 0]      # (V⁴,)
            hidden[:, place] = False
        costs.append(cost)
    costs = torch.stack(costs)                                                  # (24, V⁴)
    exact = -costs.neg().exp().mean(dim=0).log().mean() / 4
    assert right[1:3] == pytest.approx([exact.item(), costs.mean().item() / 4], abs=0.001)

    exec(GPT, names)
    causal, leak = numbers(capsys.readouterr().out)
    assert causal == 1
    assert [causal, leak] == pytest.approx(numbers(shown(r"\d\.\d", 2)), abs=0.006)


def is_right(total, exact, bound, loss) -> bool:
    """As the page says it."""
    return total == 1 and exact <= bound and abs(loss - bound) < 0.006
