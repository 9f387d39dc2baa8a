"""Heavy loads: seconds and peak memory of each command at two sizes.

    python -m experiments.try_load stories.txt out/toy-ar results/load.json     any text; a run on the toy
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import torch

from cli import ROOT, print_table, provenance, write_json
from model import Config, Transformer
from prepare_data import EOT, Tokenizer, read_stories
from runs import save

def measure(*arguments) -> tuple:
    """Seconds, and the most memory in use at once in MB, of a command that must succeed."""
    began, peak = time.perf_counter(), 0
    call = [sys.executable, ROOT / arguments[0], *arguments[1:]]
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status") as f:
            peak = max([peak, *(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM"))])
        time.sleep(0.01)
    assert process.returncode == 0, arguments
    return time.perf_counter() - began, peak

def main():
    text, run, path = sys.argv[1:]
    stories, rng, rows = list(read_stories(text)), random.Random(0), []

    def add(what, size, *arguments):
        seconds, mb = measure(*arguments)
        rows.append({"what": what, "size": size, "seconds": seconds, "peak_mb": mb})

    with tempfile.TemporaryDirectory(dir="data") as folder:
        name = os.path.basename(folder)
        for size in (50, 200):
            with open(f"{folder}/text.txt", "w", encoding="utf-8") as f:
                n = 0
                while f.tell() < size * 10 ** 6:    # no two alike: training leaves out validation stories
                    f.writelines(f"{story} {n}\n{EOT}\n" for story in stories)
                    n += 1
            add("prepare_data.py, 4,096 tokens", f"{size} MB of text", "prepare_data.py",
                f"--text={folder}/text.txt", f"--name={name}", "--vocab_size=4096", "--max_tokens=1000000000")
        for size in (10_000, 50_000):
            with open(f"{folder}/samples.jsonl", "w") as f:
                for words in (rng.choice(stories).split() for _ in range(size)):
                    first = rng.randrange(max(1, len(words) - 128))
                    f.write(json.dumps({"text": " ".join(words[first:first + 128])}) + "\n")
            add("diversity.py", f"{size:,} samples of 128 words", "diversity.py",
                f"mine={folder}/samples.jsonl")
        for size in (10_000, 50_000):
            stories_of = f"{size:,} stories of 48 tokens"
            add("sample.py, the toy's model", stories_of, "sample.py", f"--out_dir={run}",
                f"--num_samples={size}", "--batch_size=256", f"--out={folder}/toy.jsonl")
            add("diversity.py --data=toy", stories_of, "diversity.py", f"toy={folder}/toy.jsonl",
                "--data=toy")
        for mode, flags in (("ar", []), ("aogpt", []), ("mdlm", ["--steps=64"])):
            for length in (1024, 4096):
                torch.manual_seed(0)
                model = Transformer(Config(mode, vocab_size=4096, block_size=length, n_layer=4, n_head=4,
                                           n_embd=256, n_hidden=704))
                tokenizer = Tokenizer(vocab_size=4096).to_dict()
                save(f"{folder}/best.pt", model, tokenizer=tokenizer, windows="aligned")
                add(f"sample.py, {mode}{', 64 steps' if flags else ''}, 4M random weights",
                    f"4 stories of {length:,} tokens", "sample.py", f"--out_dir={folder}", "--num_samples=4",
                    "--full_length", f"--out={folder}/long.jsonl", *flags)
    table = [["", "size", "seconds", "peak MB"]]
    for row in rows:
        table.append([row["what"], row["size"], f"{row['seconds']:.1f}", f"{row['peak_mb']:,.0f}"])
    print_table(table)
    write_json(path, {**provenance(0), "rows": rows})

if __name__ == "__main__":
    main()
