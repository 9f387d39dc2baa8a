"""Runs and samples of every kind that run_all.sh makes, written down by the version of the data.

    python tests/golden.py RUNS.json        writes golden.json beside this file

golden.json says what each run has: its commands, its losses, a sum over its weights, and the first
stories that it writes. test_golden.py does it all again.
"""
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1")
GOLDEN = Path(__file__).with_name("golden.json")
COMMON = ("--n_layer=2 --n_embd=32 --n_head=4 --n_hidden=48 --batch_size=8 --max_steps=20 --warmup=5 "
          "--eval_interval=10 --eval_windows=20 --compile=false --device=cpu --quiet --seed=1").split()


def is_number(value) -> bool:
    return isinstance(value, float)


def train(folder: Path, name: str, flags: list, run) -> dict:
    """What a run of 20 steps has: its losses by name and step, and the sum of |weights|."""
    import torch
    words = ["--dtype=float32", *COMMON, *flags]
    given = {word.split("=")[0]: word for word in words}        # the last one of each counts
    run("train.py", f"--out_dir=out/{name}", *given.values(), cwd=folder)
    losses = {}
    for line in (folder / "out" / name / "log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for key, value in entry.items():
            if key not in ("seconds", "tok_per_s", "lr", "step", "best_step"):
                losses[f"{key} {entry['step']}"] = value
    best = torch.load(folder / "out" / name / "best.pt", weights_only=True)
    weights = sum(p.double().abs().sum().item() for p in best["model"].values())
    return {"losses": losses, "weights": weights}


def sample(folder: Path, name: str, flags: list, run) -> list:
    """The tokens of the first three stories that the run writes with these flags."""
    run("sample.py", f"--out_dir=out/{name}", "--out=s.jsonl", "--device=cpu", *flags, cwd=folder)
    rows = [json.loads(line) for line in (folder / "s.jsonl").read_text().splitlines()[1:]]
    return [row["tokens"] for row in rows]


def prepare(folder: Path, run):
    """The toy, and Shakespeare's place is taken by a text without marks of stories, as bytes."""
    run("prepare_data.py", "--name=t", "--max_tokens=30000", cwd=folder)
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from toy import TOY
    import random
    rng = random.Random(0)
    text = "\n\n".join(TOY.draw(rng) for _ in range(200))
    (folder / "play.txt").write_text(text)
    run("prepare_data.py", "--text=play.txt", "--tokenizer=bytes", "--name=c", cwd=folder)


def main():
    kinds = json.loads(Path(sys.argv[1]).read_text())

    def run(script, *arguments, cwd):
        command = [sys.executable, str(Path(__file__).parent.parent / script), *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)

    runs = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        prepare(folder, run)
        for kind in kinds["runs"]:
            name, flags = kind["name"], kind["flags"]
            made = {"name": name, "flags": flags} | train(folder, name, flags.split(), run)
            made["samples"] = []
            for words in kind["samples"]:
                made["samples"].append({"flags": words,
                                        "tokens": sample(folder, name, words.split("|"), run)})
            runs.append(made)
            print(name, flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            cwd=Path(__file__).parent).stdout.strip()
    facts = {"command": "python tests/golden.py", "seed": 1, "commit": commit,
             "date": datetime.datetime.now().isoformat(timespec="seconds")}
    GOLDEN.write_text(json.dumps(facts | {"runs": runs}, indent=None).replace('{"name"', '\n{"name"'))


if __name__ == "__main__":
    main()
