"""Solving Sudokus: the law in every order, what is scored, and what is refused."""
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import model as plain
from conftest import small_model
from extras import solve
from model import Config, draw_with, read_next
from prepare_data import PrepareOptions, Windows, prepare
from sample import SampleOptions, generate
from samplers import adaptive
from support.flags import InputError
from support.runs import save
from tokenizer import Tokenizer
from variants import answers, taught
from worlds.sudoku import SUDOKU, AllGrids
from worlds.sudoku_9 import SUDOKU_9
from worlds.sudoku_moves import SUDOKU_MOVES
from worlds.sudoku_pairs import SUDOKU_PAIRS

KNOWN_OF_9 = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SMALL = AllGrids(2, 2)
GRIDS_OF_4 = list(SMALL.solutions([0] * 16))


class Perfect(torch.nn.Module):
    """Masked diffusion that knows the law of 4 x 4 Sudokus: all 288 grids are equally likely."""

    def __init__(self):
        super().__init__()
        self.config = Config("mdlm", vocab_size=5, block_size=16, n_head=1, n_embd=2)
        self.head = torch.nn.Linear(1, 1)
        grids = torch.nn.functional.one_hot(torch.tensor(GRIDS_OF_4) - 1, 4)        # (288, 16, 4)
        self.grids = grids.flatten(1).double()                                      # (288, 64)

    def forward(self, tokens, key_pos, target_pos, select):
        cells = tokens[:, 1:]                                                       # (B, 16)
        shown = torch.nn.functional.one_hot(cells, 6)[:, :, :4].flatten(1).double()
        agree = shown @ self.grids.T == shown.sum(dim=1, keepdim=True)              # (B, 288)
        counts = (agree.double() @ self.grids).view(-1, 16, 4)
        law = torch.nn.functional.pad(counts, (0, 1, 1, 0))                         # (B, 17, 5)
        return law.flatten(0, 1)[select].log()


@pytest.mark.parametrize("way", ["left to right", "random order", "surest first"])
def test_every_order_keeps_the_law(way):
    model = Perfect()
    flags, make_sampler = solve.ways_of(model.config, SUDOKU, [], 0)[way]
    blank = torch.full((16,), model.config.mask_id)
    o = SampleOptions(full_length=True, **flags)
    tokens, _ = generate(model, range(20 * 288), blank, o, make_sampler)
    number = {grid: i for i, grid in enumerate(GRIDS_OF_4)}
    found = [number[tuple(grid)] for grid in (tokens + 1).tolist()]     # KeyError: not a grid
    assert chisquare(np.bincount(found, minlength=288)).pvalue > 0.001


def test_the_surest_cell_comes_first():
    """Of a puzzle that needs no guess, a perfect network fills only cells without a choice."""
    model = Perfect()
    rng = random.Random(0)
    for solution in rng.sample(GRIDS_OF_4, 20):
        tokens = solve.patterns_of(SMALL, [SMALL.draw_puzzle(solution, 6, rng)], model.config)
        u = torch.rand(tokens.shape, dtype=torch.float64)
        decide = draw_with(u, SampleOptions(temperature=0))
        *_, last = adaptive.write(model, tokens, u, decide, None, risk=0.0)
        assert solve.grid_of(SMALL, last[0].tolist()) == solution


def test_aogpt_reads_all_places_that_are_left_in_one_pass():
    model = small_model("aogpt")
    config = model.config
    L = config.block_size
    generator = torch.Generator().manual_seed(1)
    appeared = torch.stack([torch.randperm(L, generator=generator) for _ in range(3)]).float()
    tokens = torch.randint(config.vocab_size - 1, (3, L), generator=generator)
    masked = appeared >= torch.tensor([[2.0], [0.0], [L - 1.0]])        # rows know different many
    tokens[masked] = config.mask_id
    with torch.no_grad():
        at = masked.nonzero(as_tuple=True)
        found = adaptive.logits_of(model, tokens, *at, appeared).split(masked.sum(dim=1).tolist())
        for row in range(3):
            order = appeared[row:row + 1].long().argsort(dim=1)
            known = int((~masked[row]).sum())
            expected = read_next(model, tokens[row:row + 1], order, known, L)[0]
            place = order[0, known:].argsort()
            torch.testing.assert_close(found[row], expected[place], atol=1e-5, rtol=1e-5)


def test_a_taught_model_learns_the_order_of_its_text():
    """The loss is that of a chain rule in the order of the moves, on the cells after the mark."""
    rng = random.Random(2)
    ids = {word: i for i, word in enumerate(SUDOKU_MOVES.words())}
    x = torch.tensor([[ids[word] for word in SUDOKU_MOVES.draw(rng).split()] for _ in range(5)])
    for order in "solver", "left_to_right":
        config = taught.Config("aogpt", vocab_size=218, block_size=37, mark=216, taught=order,
                               n_embd=8, n_head=1)
        batch = config.row.training_batch(config, x, None)
        for row, tokens, pos, target, weight in zip(x.tolist(), *batch[:1], *batch[2:]):
            given = row.index(216)
            moves = [divmod(word, 6) for word in row if word != 216]
            if order == "left_to_right":
                moves[given:] = sorted(moves[given:])
            assert list(zip(pos.tolist(), target.tolist())) == moves
            assert tokens.tolist() == [config.bos_id, *(digit for _, digit in moves[:-1])]
            expected = torch.tensor([0.0] * given + [1 / (36 - given)] * (36 - given))
            torch.testing.assert_close(weight, expected)


# ---- Files of puzzles ----------------------------------------------------------------------------

@pytest.mark.parametrize("blank", ".0_-")
@pytest.mark.parametrize("between", ["", " "])
def test_a_file_of_puzzles(workdir, blank, between):
    line = between.join(KNOWN_OF_9.replace(".", blank))
    Path("p.txt").write_text(f"{line}\r\n\r\n{line}")
    (puzzle, solution), again = solve.read_puzzles("p.txt", SUDOKU_9)
    assert puzzle[:5] == (5, 3, 0, 0, 7) and again == (puzzle, solution)
    assert list(SUDOKU_9.solutions(puzzle)) == [solution]


RIGHT = ".23456456123231564564231312645645312"


@pytest.mark.parametrize("name, text", [
    ("p.txt", "12345x" + "." * 30), ("p.txt", "7" * 36), ("p.txt", "." * 35), ("p.txt", "." * 36),
    ("p.txt", "11" + "." * 34), ("p.txt", "123456\n" * 6), ("p.txt", ""),
    ("p.txt", RIGHT.replace(".", "1")), ("p.txt", f"{RIGHT}\n{RIGHT}.")]
    + [(f"p.{ending}", RIGHT) for ending in ("csv", "tsv", "json", "jsonl", "ndjson", "CSV")])
def test_what_is_no_puzzle_is_refused(workdir, name, text):
    Path(name).write_text(text)
    with pytest.raises(InputError, match=f"^{name}[^\n]*$"):
        solve.read_puzzles(name, SUDOKU)


# ---- The command ---------------------------------------------------------------------------------

RUNS = {
    "mdlm": ("mdlm", plain, SUDOKU, {}),
    "aogpt": ("aogpt", plain, SUDOKU, {}),
    "ar": ("ar", plain, SUDOKU, {}),
    "pairs": ("ar", answers, SUDOKU_PAIRS, {"mark": 7}),
    "taught": ("aogpt", taught, SUDOKU_MOVES, {"mark": 216}),
    "first": ("aogpt", taught, SUDOKU_MOVES, {"mark": 216, "taught": "left_to_right"}),
    "untaught": ("aogpt", plain, SUDOKU_MOVES, {}),
    "nine": ("mdlm", plain, SUDOKU_9, {}),
    "bytes": ("ar", plain, None, {})}
OF_6 = ["mdlm", "aogpt", "ar", "pairs", "taught", "first"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with grids held out, and a small model of random weights for each of RUNS."""
    folder = tmp_path_factory.mktemp("sudoku")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        prepare(PrepareOptions("sudoku", max_tokens=3000))
        prepare(PrepareOptions("sudoku-9", max_tokens=3000))
        for name, (mode, variant, world, fields) in RUNS.items():
            tokenizer = Tokenizer("words", words=world.words()) if world else Tokenizer("bytes")
            model = small_model(mode, variant=variant, vocab_size=tokenizer.vocab_size,
                                block_size=int(world.mean_words()) if world else 9, **fields)
            Path("out", name).mkdir(parents=True)
            save(f"out/{name}/best.pt", model, variant=variant.__name__, windows="aligned",
                 tokenizer=tokenizer.to_dict())
    return folder


@pytest.fixture
def call(models, monkeypatch, capsys):
    """What `python -m extras.solve` prints, and writes, of these runs with these flags."""
    monkeypatch.chdir(models)

    def run(runs, *flags):
        named = [f"{name}=out/{name}" for name in runs]
        monkeypatch.setattr("sys.argv", ["solve.py", *named, *flags, "--json=s.json"])
        solve.main()
        return capsys.readouterr().out, json.loads(Path("s.json").read_text())

    return run


def test_puzzles_are_of_grids_that_training_has_not(models, monkeypatch):
    monkeypatch.chdir(models)
    train = Windows("sudoku", "train", 36)
    grids = solve.held_out_grids()
    trained = {tuple(digit + 1 for digit in grid) for grid in train.spread(99).tolist()}
    assert len(grids) > 1 and len(trained) > 50 and not trained & set(grids)
    for puzzle, solution in solve.drawn_puzzles(grids, 12, 10, seed=1):
        assert puzzle.count(0) == 24 and solution in grids
        assert list(SUDOKU.solutions(puzzle)) == [solution]


@pytest.mark.parametrize("runs, cells, givens, rows", [
    (OF_6, 36, "12,16", 22), (["nine"], 81, "28,32", 8)])
def test_the_table_has_every_model_in_every_order(call, runs, cells, givens, rows):
    _, found = call(runs, "--num_puzzles=5", f"--givens={givens}", "--risks=5")
    assert found["runs"].keys() == set(runs)
    table = {(row["run"], row["way"], row["givens"]): row for row in found["solved"]}
    assert len(table) == len(found["solved"]) == rows
    for (name, way, givens), row in table.items():
        passes = 36 if name == "pairs" else cells - givens
        assert row["passes"] == passes or "risk" in way and 1 <= row["passes"] <= passes
        assert row["puzzles"] == 5 and row["solved"][0] < 1
    of_grids = set(runs) & {"mdlm", "aogpt", "ar", "nine"}
    assert {row["run"] for row in found["grids"]} == found["losses"].keys() == of_grids
    assert all(losses["loss"][0] > 1 for losses in found["losses"].values())


def test_own_puzzles_are_answered_in_the_terminal(call):
    Path("p.txt").write_text(KNOWN_OF_9)
    said, _ = call(["nine"], "--puzzles=p.txt", "--risks=")
    assert said.count(" ".join(KNOWN_OF_9)) == 3 == said.count(": wrong")


@pytest.mark.parametrize("runs, flag, named", [
    (["mdlm"], "--risks=-1", "--risks"), (["mdlm"], "--risks=nan", "--risks"),
    (["mdlm"], "--givens=x", "--givens"), (["mdlm"], "--givens=7", "--givens"),
    (["nine", "mdlm"], "--risks=", "sizes"), (["bytes"], "--risks=", "out/bytes"),
    (["untaught"], "--risks=", "out/untaught")])
def test_what_means_nothing_is_refused(call, runs, flag, named):
    with pytest.raises(InputError, match=f"^[^\n]*{named}[^\n]*$"):
        call(runs, flag)
