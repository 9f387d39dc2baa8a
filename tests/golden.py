"""Runs of every kind that run_all.sh makes, as the version of the code had them that made the data.

    python tests/golden.py      trains them again, and replaces what golden.json has of them

golden.json names the flags of each run, its losses, a sum over its weights, and the tokens of the
first stories that it writes with some flags. test_golden.py does it all again with today's code.
"""
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from support.flags import provenance  # noqa: E402
from worlds.toy import TOY  # noqa: E402

FILE = ROOT / "tests" / "golden.json"
COMMON = """--n_layer=2 --n_embd=32 --n_head=4 --n_hidden=48 --batch_size=8 --max_steps=20
    --warmup=5 --eval_interval=10 --eval_windows=20 --compile=false --device=cpu --dtype=float32
    --quiet --seed=1""".split()
NOT_COMPARED = ("step", "best_step", "lr", "seconds", "tok_per_s")


def prepare(folder: Path, run):
    """Two data sets: t has stories of the toy, and c is a continuous text of bytes."""
    run("prepare_data.py", "--name=t", "--max_tokens=30000", cwd=folder)
    rng = random.Random(0)
    text = "\n\n".join(TOY.draw(rng) for _ in range(200))
    (folder / "play.txt").write_text(text)
    run("prepare_data.py", "--text=play.txt", "--tokenizer=bytes", "--name=c", cwd=folder)


def train(folder: Path, name: str, flags: str, run) -> tuple:
    """What a run of 20 steps has: its losses by name and step, and the sum of |weights|."""
    given = {word.split("=")[0]: word for word in [*COMMON, *flags.split()]}  # the last counts
    run("train.py", f"--out_dir=out/{name}", *given.values(), cwd=folder)
    losses = {}
    for line in (folder / "out" / name / "log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for key, value in entry.items():
            if key not in NOT_COMPARED:
                losses[f"{key} {entry['step']}"] = value
    best = torch.load(folder / "out" / name / "best.pt", weights_only=True)
    weights = sum(p.double().abs().sum().item() for p in best["model"].values())
    return losses, weights


def sample(folder: Path, name: str, flags: str, run) -> list:
    """The tokens of the first three stories that the run writes with these flags."""
    file = f"{name}.jsonl"
    run("sample.py", f"--out_dir=out/{name}", f"--out={file}", "--device=cpu", *flags.split("|"),
        cwd=folder)
    rows = [json.loads(line) for line in (folder / file).read_text().splitlines()[1:]]
    return [row["tokens"] for row in rows]


def main():
    def run(script, *arguments, cwd):
        subprocess.run([sys.executable, ROOT / script, *arguments], cwd=cwd, check=True,
                       capture_output=True)

    runs = json.loads(FILE.read_text())["runs"]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        prepare(folder, run)
        for made in runs:
            made["losses"], made["weights"] = train(folder, made["name"], made["flags"], run)
            for story in made["samples"]:
                story["tokens"] = sample(folder, made["name"], story["flags"], run)
            print(made["name"], flush=True)
    content = json.dumps(provenance(1) | {"runs": runs})
    FILE.write_text(content.replace('{"name"', '\n{"name"'))       # a line for each run


if __name__ == "__main__":
    main()
