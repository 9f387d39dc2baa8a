"""
A page in which the network itself runs, so that a hand can hide words and see what it guesses.

Adds: one HTML file with the weights of trained runs and the network in JavaScript, which opens in
any browser, without a server or a connection. Costs: nothing elsewhere. One of the toy's networks
takes 1.2 MB, and answers at once; 1.4M weights with windows of 256 tokens take 3.7 MB, and the page
says that it is reading for a second. Plugs in as

    python -m extras.page mdlm=out/toy-mdlm
    python -m extras.page mdlm=out/toy-mdlm ar=out/toy-ar --out=toy.html
    python -m extras.page mdlm=out/sudoku-mdlm --out=sudoku.html

Networks of one page have learned the same data. page.js is model.py told again.
"""
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from model import Transformer
from prepare_data import Windows, prepare_if_missing
from sample import open_model
from support.flags import InputError, build, command, flag, parse_flags
from support.pictures import on_one_line
from support.runs import as_plain, read_run
from worlds import world_of
from worlds.toy import TOY

EXAMPLES = 20


@dataclass
class PageOptions:
    """what is written"""
    out: str = flag("page.html", "file of the page", file=(".html",))


def fits(row) -> bool:
    """Whether page.js has the network of this row of the table of modes."""
    return row.network is Transformer and (not row.causal or row.orders == "one")


def say_page(config, folder: str):
    """What train.py, and sample.py --show, say at the end of a run that a page can show."""
    if fits(config.row) and config.row.whole:
        print("hide words yourself, in a browser: "
              f"python -m extras.page {config.mode}={shlex.quote(folder)}")


def windows_of(folder: str, T: int) -> list:
    """Texts to begin with, as tokens, from what the run in this folder has not trained on."""
    data = read_run(folder)["settings"]["data"]
    prepare_if_missing(data)
    return Windows(data, "val", T).spread(EXAMPLES).tolist()


def page_of(runs: dict) -> str:
    """The page of the networks of {name: folder}. Raises OSError, InputError."""
    networks = []
    shared = None
    for name, folder in runs.items():
        model, tokenizer, _ = open_model(folder, "cpu")
        if not fits(model.config.row):
            raise InputError(f"{folder} has not the network of ar or mdlm in model.py, which is "
                             "all that runs in a page; give another run")
        facts = tokenizer.to_dict() | {"T": model.config.block_size}
        if shared not in (None, facts):
            raise InputError(f"{folder} has other words or windows than the first run; give it "
                             "a page of its own")
        shared = facts
        networks.append(as_plain(model) | {"name": name})
    pieces = [tokenizer.pieces([i])[0] for i in range(tokenizer.eot)]
    world = world_of(tokenizer)
    grid = world if getattr(world, "columns", 0) else None
    content = {
        "vocabulary": [on_one_line(piece) for piece in pieces] + [" ∎"],
        "toy": world is TOY,
        "box": grid and [grid.height, grid.width],
        "units": grid and grid.units_of,
        "examples": grid.examples(EXAMPLES) if grid else windows_of(folder, shared["T"]),
        "networks": networks,
    }
    page, network = [Path(__file__).with_suffix(end).read_text("utf-8") for end in (".html", ".js")]
    # In a page "</script>" would end the data, wherever it stands.
    data = json.dumps(content).replace("<", r"\u003c")
    return page.replace("NETWORK", network).replace("DATA", data)


def main():
    flags = parse_flags(__doc__, PageOptions, named="NAME=DIR")
    o = build(PageOptions, flags)
    page = page_of(flags["named"])
    Path(o.out).write_text(page, encoding="utf-8")
    print(f"{o.out}, {len(page.encode()) / 1e6:.1f} MB; open it in a browser")


if __name__ == "__main__":
    command(main, "nothing was written")
