"""The page in which a network runs: it computes what model.py does, and a hand can drive it."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import model as plain
from conftest import ROOT, small_model
from extras import page
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


def write_run(folder, mode, words, variant=plain, **sizes):
    """What the page reads of a run, with random weights."""
    tokenizer = Tokenizer("words", words=words)
    model = small_model(mode, variant=variant, vocab_size=tokenizer.vocab_size, **sizes)
    Path(folder).mkdir(parents=True)
    save(f"{folder}/best.pt", model, variant=variant.__name__, windows="aligned",
         tokenizer=tokenizer.to_dict())


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
    model = small_model(mode)
    for p in model.parameters():
        p.data = p.data.half().float()              # the page has these weights
    V, T = model.config.vocab_size, model.config.block_size
    texts = torch.randint(V, (20, T))
    rank = torch.rand(20, T).argsort(dim=1) if mode == "mdlm" else T - 1 - torch.arange(T)
    texts[rank < torch.arange(20)[:, None] % T + 1] = -1
    given = {"saved": as_plain(model), "texts": texts.tolist()}
    source = Path(ROOT, "extras/page.js").read_text()
    for text, answer in zip(texts, in_node(["-e", source + LOGITS], given)):
        order = (text < 0).int().argsort(stable=True)[None]             # the hidden ones last
        known = int((text >= 0).sum())
        end = T if mode == "mdlm" else known + 1
        tokens = text.where(text >= 0, V)[None]
        logits = plain.read_next(model, tokens, order[:, :end], known, end)[0]
        places, found = zip(*answer)
        assert list(places) == order[0, known:end].tolist()
        assert (torch.tensor(found) - logits).abs().max() < 1e-4


# ---- The page ------------------------------------------------------------------------------------

ODD = ["<script>", "\"", "'", "</script>", "<b>", "&amp;", "\\", "NETWORK", "DATA", "you"]


@pytest.fixture
def odd_page(workdir, monkeypatch):
    """A page of both networks on texts of odd words."""
    for mode in "mdlm", "ar":
        write_run(mode, mode, ODD)
    monkeypatch.setattr(page, "windows_of", lambda folder, T: [list(range(T))])
    return page.page_of({"<i>": "mdlm", "ar": "ar"})


def drive(html, *lines):
    """What these lines of JavaScript give in the page, each when the page has come to rest."""
    return in_node([Path(ROOT) / "tests/page.js"], {"page": html, "lines": ["0", *lines]})[1:]


def test_words_are_shown_as_text(odd_page):
    """Nothing in a vocabulary or a name can end the data, or begin a tag."""
    data = re.search('type="application/json">(.*?)</script>', odd_page)[1]
    assert "<" not in data
    assert set(ODD) <= {piece.strip() for piece in json.loads(data)["vocabulary"]}
    assert odd_page.count("<script") == odd_page.count("</script") == 3
    assert "default-src 'none'" in odd_page


KEY = "$('places').onkeydown({{key: '{}', preventDefault() {{}}}})".format
LAWS = "JSON.stringify(rows.map(row => row.cells.map(cell => cell.style['--p'])))"


@needs_node
def test_a_hand_hides_words_and_the_list_changes(odd_page):
    """By keyboard alone. The list of both networks is of the place where the hand is."""
    show_all = "change(() => text = [...examples[0]]); pinned = 4; show()"
    right, left, space = map(KEY, ["ArrowRight", "ArrowLeft", " "])
    said = drive(odd_page, show_all, LAWS, right, space, left, LAWS, "text.indexOf(-1)",
                 "places[5].ariaLabel", right, space, "text.indexOf(-1)")
    assert said[6] == 5 and said[10] == -1
    assert said[7].startswith("gap: ") and said[7].count("%") == 3
    (mdlm, ar), (mdlm_after, ar_after) = [zip(*json.loads(laws)) for laws in (said[1], said[5])]
    assert sorted(mdlm) != sorted(mdlm_after)       # it sees what is right of the place
    assert max(ar) == max(ar_after)                 # and a GPT does not


ORACLE = """
Network.prototype.logits = function (text) {     // it knows the rules, and looks one step ahead
  const taken = i => text.filter((_, j) => UNITS[i].some(unit => UNITS[j].includes(unit)));
  const logit = (i, word) => word > 5 || taken(i).includes(word) ? -30 : 0;
  const law = i => Float64Array.from({length: 7}, (_, word) => logit(i, word));
  return new Map([...text.keys()].filter(i => text[i] < 0).map(i => [i, law(i)]));
};
"""


@needs_node
def test_surest_first_solves_a_sudoku(workdir):
    """By a network that has not learned it, but computes which digits the rules leave to a cell."""
    write_run("s", "mdlm", SUDOKU.words(), block_size=36)
    oracle = ORACLE.replace("UNITS", json.dumps(SUDOKU.units_of))
    html = page.page_of({"mdlm": "s"}).replace("/** Nats of", oracle + "/** Nats of")
    passes = ["$('do').children[0].click()"] * 24
    *_, text = drive(html, *passes, "text")
    assert SUDOKU.is_grid([digit + 1 for digit in text])


# ---- Refusals ------------------------------------------------------------------------------------

def test_what_cannot_share_a_page_is_refused(odd_page):
    """Other words, other windows, another network, no run: in one line that names the folder."""
    write_run("words", "mdlm", ODD[::-1])
    write_run("windows", "mdlm", ODD, block_size=9)
    write_run("order", "aogpt", ODD)
    write_run("paper", "mdlm", ODD, variant=paper)
    for name in "words", "windows", "order", "paper", "none":
        with pytest.raises((InputError, OSError), match=f"^(no checkpoint at )?{name}.*$"):
            page.page_of({"first": "mdlm", "other": name})
