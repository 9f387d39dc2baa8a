"""The page in which a network runs: it computes what model.py does, and a hand can drive it."""
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import model as plain
from conftest import ROOT, small_model
from extras import page
from model import read_next
from prepare_data import PrepareOptions, prepare
from support.flags import InputError
from support.runs import as_plain, save
from tokenizer import Tokenizer
from variants import paper
from worlds.sudoku import SUDOKU

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(not NODE, reason="no node here, which runs the page's JavaScript")


def in_node(script, given):
    """What the script prints as JSON, given this on its standard input."""
    done = subprocess.run([NODE, *script], input=json.dumps(given), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rounded(model):
    """The model with the weights that the page has."""
    for p in model.parameters():
        p.data = p.data.half().float()
    return model


def write_run(folder, mode, words, variant=plain, **sizes):
    """A run of random weights in this folder, as the page reads it."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    tokenizer = Tokenizer("words", words=words)
    sizes = {"vocab_size": tokenizer.vocab_size, "variant": variant} | sizes
    model = rounded(small_model(mode, **sizes))
    save(folder / "best.pt", model, variant=variant.__name__, windows="aligned",
         tokenizer=tokenizer.to_dict())
    settings = {"data": "t", "windows": "aligned"}
    config = {"mode": mode, "block_size": model.config.block_size}
    run = {"seed": 1, "settings": settings, "config": config}
    (folder / "config.json").write_text(json.dumps(run))
    (folder / "log.jsonl").write_text(
        '{"step": 1, "seconds": 1, "val_nll": 1, "val_nll_se": 1}\n')
    return model


# ---- The network ---------------------------------------------------------------------------------

LOGITS = """
const {saved, texts} = JSON.parse(require("fs").readFileSync(0, "utf8"));
const network = new Network(saved), plain = ([place, logits]) => [place, [...logits]];
console.log(JSON.stringify(texts.map(text => [...network.logits(text)].map(plain))));
"""


@needs_node
@pytest.mark.parametrize("mode", ["ar", "mdlm"])
def test_logits_are_those_of_torch(mode):
    """Of 20 random texts, each with other hidden places; a GPT predicts the first of them."""
    model = rounded(small_model(mode))
    config = model.config
    texts = torch.randint(config.vocab_size, (20, config.block_size))
    texts[torch.rand(texts.shape).argsort(dim=1) < torch.arange(20)[:, None] % 8 + 1] = -1
    source = (Path(ROOT) / "extras/page.js").read_text()
    given = {"saved": as_plain(model), "texts": texts.tolist()}
    for text, answer in zip(texts, in_node(["-e", source + LOGITS], given)):
        [hidden] = (text < 0).nonzero(as_tuple=True)
        if mode == "ar":
            hidden = hidden[:1]
        tokens = text.where(text >= 0, config.mask_id)
        known = torch.arange(int(hidden[0]))
        order = torch.cat([known, hidden])[None]
        logits = read_next(model, tokens[None], order, len(known), order.size(1))[0]
        assert [place for place, _ in answer] == hidden.tolist()
        found = torch.tensor([logits for _, logits in answer])
        assert (found - logits).abs().max() < 1e-4


# ---- The page ------------------------------------------------------------------------------------

ODD = ["<script>", "\"", "'", "</script>", "<b>", "&amp;", "\\", "NETWORK", "DATA", "you"]


@pytest.fixture
def odd_page(workdir):
    """A page of both networks on a text of odd words, and these networks."""
    (workdir / "t.txt").write_text("\n".join(["one two three , four ."] * 400))
    prepare(PrepareOptions(text="t.txt", name="t", tokenizer="words"))
    words = json.loads((workdir / "data/t/meta.json").read_text())["tokenizer"]["words"]
    words = ODD + [f"w{i}" for i in range(len(words))]
    for mode in "mdlm", "ar":
        write_run(f"out/{mode}", mode, words)
    return page.page_of({"<i>": "out/mdlm", "ar": "out/ar"})


def drive(html, *lines):
    """What these lines of JavaScript give in the page, each when the page has come to rest."""
    return in_node([Path(ROOT) / "tests/page.js"], {"page": html, "lines": ["0", *lines]})[1:]


def test_words_are_shown_as_text(odd_page):
    """Nothing in a vocabulary or a name can end the data, or begin a tag."""
    data = re.search('type="application/json">(.*?)</script>', odd_page)[1]
    assert "<" not in data
    content = json.loads(data)
    assert [piece.strip() for piece in content["vocabulary"]][:len(ODD)] == ODD
    assert odd_page.count("<script") == odd_page.count("</script") == 3
    assert "innerHTML" not in odd_page and "connect-src" not in odd_page
    assert "default-src 'none'" in odd_page


KEY = "$('places').onkeydown({{key: '{}', preventDefault() {{}}}})".format
LAWS = "JSON.stringify(rows.map(row => row.cells.map(cell => cell.style['--p'])))"


@needs_node
def test_a_hand_hides_words_and_the_list_changes(odd_page):
    """By keyboard alone. The list of both networks is of the place where the hand is."""
    show_all = "change(() => text.fill(0)); pinned = 4; show()"
    said = drive(odd_page, show_all, LAWS, KEY("ArrowRight"), KEY(" "), KEY("ArrowLeft"), LAWS,
                 "text.indexOf(-1)", "places[5].ariaLabel", KEY("ArrowRight"), KEY(" "),
                 "text.includes(-1)", "$('do').children[4].click()", "text.indexOf(-1)")
    before, after = json.loads(said[1]), json.loads(said[5])
    assert said[6] == said[12] == 5 and said[10] is False
    assert said[7].startswith("gap: ") and said[7].count("%") == 3
    mdlm, ar = zip(*before)
    assert mdlm != list(zip(*after))[0]             # it sees what is right of the place
    assert sorted(ar)[-3:] == sorted(list(zip(*after))[1])[-3:]     # and a GPT does not


ORACLE = """
Network.prototype.logits = function (text) {     // it knows the rules, and looks one step ahead
  const taken = i => text.filter((_, j) => UNITS[i].some(unit => UNITS[j].includes(unit)));
  const logit = (i, word) => word > 5 || taken(i).includes(word) ? -30 : 0;
  const law = i => Float64Array.from({length: 7}, (_, word) => logit(i, word));
  return new Map([...text.keys()].filter(i => text[i] < 0).map(i => [i, law(i)]));
};
"""


@needs_node
@pytest.mark.parametrize("way, solved", [("surest first", True), ("left to right", False)])
def test_surest_first_solves_what_left_to_right_does_not(workdir, monkeypatch, way, solved):
    """By a network that has not learned it, but computes which digits the rules leave to a cell."""
    grid = [1 + (column + 3 * row + row // 2) % 6 for row in range(6) for column in range(6)]
    assert SUDOKU.is_grid(grid)
    puzzle = [digit - 1 for digit in SUDOKU.draw_puzzle(grid, 16, random.Random(0))]
    write_run("out/s", "mdlm", SUDOKU.words(), block_size=36)
    monkeypatch.setattr(type(SUDOKU), "examples", lambda rules, count: [puzzle])
    html = page.page_of({"mdlm": "out/s"})
    oracle = ORACLE.replace("UNITS", json.dumps(SUDOKU.units_of))
    html = html.replace("/** Nats of a law", oracle + "\n/** Nats of a law")
    press = "$('{}').children.find(button => button.textContent == '{}').click()".format
    passes = [press("do", "Write one pass")] * 20
    *_, text, status = drive(html, press("ways", way), *passes, "text", "$('status').textContent")
    assert -1 not in text
    assert SUDOKU.is_grid([digit + 1 for digit in text]) == solved
    assert ("✗" in status) != solved


# ---- Refusals ------------------------------------------------------------------------------------

def test_what_cannot_share_a_page_is_refused(workdir):
    """Other words, other windows, another network, no run: in one line that names the folder."""
    words = list("abcdefghij")
    write_run("out/first", "mdlm", words)
    write_run("out/words", "mdlm", words[::-1])
    write_run("out/windows", "mdlm", words, block_size=9)
    write_run("out/order", "aogpt", words)
    write_run("out/paper", "mdlm", words, variant=paper)
    for name in "words", "windows", "order", "paper", "none":
        with pytest.raises((InputError, OSError), match=f"out/{name}") as refusal:
            page.page_of({"mdlm": "out/first", "other": f"out/{name}"})
        assert "\n" not in str(refusal.value)
