"""
Training on a machine that is not idle: the toy's mdlm, by how long a waiting thread spins before it sleeps.

    python -m experiments.contention --json=results/contention.json

Threads meet at the end of every parallel region, hundreds of times a step. Who waits spins at first, and
takes a core from the one it waits for where another program wants one too. GOMP_SPINCOUNT says for how many
turns, 300,000 by default; train.py sets fewer, where nobody has set it, before torch is imported. Measured
by turns: the machine idle, beside a busy process for each core, and beside another training like it.
"""
import contextlib
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from cli import ROOT, build, command, parse_flags, pick_device, print_table, provenance, write_json

@dataclass
class ContentionOptions:
    """what to measure"""
    spins: tuple[int, ...] = (300000, 30000, 10000, 3000, 1000)     # values of GOMP_SPINCOUNT
    repeats: int = 15           # measurements of each
    seconds: float = 1.5        # of a measurement
    json: str = ""              # file for the results

BESIDE = "nothing", "a busy process per core", "another training"

def train_when_asked():
    """In a process of its own: for each line of input, train so many seconds and print tokens per second."""
    from bench import training_step
    from model import Config
    from train import PRESETS
    values = PRESETS["toy"]
    sizes = {name: values[name] for name in ("block_size", "n_layer", "n_head", "n_embd", "n_hidden")}
    config = Config("mdlm", vocab_size=135, **sizes)
    step, _ = training_step(config, values["batch_size"], pick_device("cpu"))
    print("ready", flush=True)
    for line in sys.stdin:
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < float(line):
            step()
            steps += 1
        speed = steps * values["batch_size"] * config.block_size / (time.perf_counter() - began)
        print(speed, flush=True)

@contextlib.contextmanager
def process(code: str, spin=0):
    """Python with this GOMP_SPINCOUNT, killed in the end."""
    started = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env=os.environ | {"GOMP_SPINCOUNT": str(spin)})
    try:
        yield started
    finally:
        started.kill()
        started.wait()

def speed_of(workers: list, seconds: float) -> float:
    """Tokens per second of each, on average, all at the same time."""
    for worker in workers:
        print(seconds, file=worker.stdin, flush=True)
    return statistics.mean(float(worker.stdout.readline()) for worker in workers)

def main():
    o = build(ContentionOptions, parse_flags(__doc__, ContentionOptions))
    code = "from experiments.contention import train_when_asked; train_when_asked()"
    found = {beside: {spin: [] for spin in o.spins} for beside in BESIDE}
    with contextlib.ExitStack() as stack:
        workers = {spin: [stack.enter_context(process(code, spin)) for _ in range(2)] for spin in o.spins}
        for worker in sum(workers.values(), []):
            if worker.stdout.readline() != "ready\n":
                raise OSError("a training process failed; its message is above")
        for repeat in range(o.repeats):
            for beside in BESIDE:
                with contextlib.ExitStack() as busy:
                    for _ in range(os.cpu_count() if beside == BESIDE[1] else 0):
                        busy.enter_context(process("while True: pass"))
                    for spin, pair in workers.items():
                        speed = speed_of(pair if beside == BESIDE[2] else pair[:1], o.seconds)
                        found[beside][spin].append(speed)
            print(f"{repeat + 1} of {o.repeats}", file=sys.stderr)
    rows = [["GOMP_SPINCOUNT", *(f"beside {beside}" for beside in BESIDE), f"÷ {o.spins[0]:,}"]]
    for spin in o.spins:
        idle = [new / old for new, old in zip(found["nothing"][spin], found["nothing"][o.spins[0]])]
        rows.append([f"{spin:,}", *(f"{statistics.median(found[beside][spin]):,.0f}" for beside in BESIDE),
                     f"{statistics.median(idle):.3f}"])
    print_table(rows)
    if o.json:
        write_json(o.json, provenance(0) | {"tokens_per_second": found})

if __name__ == "__main__":
    command(main, "nothing was written")
