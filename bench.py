"""
How fast training is, with random weights and random tokens.

    python bench.py                                 every mode, tuned beside a baseline
    python bench.py --mode=mdlm --preset=laptop     one mode, of a preset; train.py's flags are here
    python bench.py --board=out/toy-mdlm            what a finished run of the toy has spent and reached

"tuned" is what train.py does by default. "baseline" is eager float32 with logits of every slot, as
in the code of arXiv 2603.22075. All of it is measured in one process, by turns, because a machine
is not equally fast all the time. So six models and their optimizers are in memory, which takes 9 GB
at 124M parameters; --mode=mdlm takes a third of that. It takes minutes. How long writing takes is
said by sample.py.
"""
import math
import statistics
import time
from dataclasses import asdict, dataclass, replace

from support import machine     # before torch, because it sets how torch's threads wait
import torch

from model import MODES, Config, losses
from presets import IMPLIED, with_preset
from support.flags import (
    build, command, flag, parse_flags, pick_device, print_table, provenance, write_json)
from support.rows import usable
from support.runs import config_class, read_run
from train import Settings, check_batch_size, make_optimizers, train_step


# ---- What is asked for ---------------------------------------------------------------------------

@dataclass
class BenchOptions:
    """what to measure"""
    repeats: int = flag(5, "measurements of each; the table has their median", low=1)
    json: str = flag("", "file for the results", file=(".json",))
    board: str = flag("", "folder of a finished run of the toy: its line for results/README.md")


def settings_of(flags: dict) -> tuple:
    """The Settings and the Config that train.py would have by these flags, but with the vocabulary
    of GPT-2, unless --vocab_size says otherwise. Raises InputError."""
    values = with_preset(flags)
    s = build(Settings, values)
    config = build(config_class(s.variant), values)
    check_batch_size(s, config)
    return s, config


# ---- Time, and what the machine could do ---------------------------------------------------------

def by_turns(steps: dict, repeats: int, device: torch.device) -> dict:
    """{name: seconds per step in each repeat} of the functions {name: step}.

    In a repeat every function has its turn, which lasts half a second or one step. Before them
    comes a turn that tells how many steps that is, and does not count."""
    count = dict.fromkeys(steps, 1)
    seconds = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            wait_for(device)
            began = time.perf_counter()
            for _ in range(count[name]):
                step()
            wait_for(device)
            took = (time.perf_counter() - began) / count[name]
            if repeat == 0:
                count[name] = max(1, int(0.5 / took))
            else:
                seconds[name].append(took)
    return seconds


def wait_for(device: torch.device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def flops_of_product(s: Settings, device: torch.device) -> float:
    """FLOP/s of a large matrix product in the dtype of the settings."""
    n = 2048 if device.type == "cpu" else 8192
    a = torch.randn(n, n, device=device, dtype=getattr(torch, s.dtype))
    seconds = by_turns({"product": lambda: a @ a}, 5, device)
    return 2 * n ** 3 / min(seconds["product"])


def flops_per_token(config) -> float:
    """FLOPs of training on one token: 6 for each multiply-add of the forward matrix products."""
    C, T = config.n_embd, config.block_size
    reach, predicted = T / 2, 1     # the slots that attention sees, and the share that is predicted
    if not config.row.causal:
        reach, predicted = T, (T + 1) / (2 * T)
    attention = config.n_layer * (4 * C * C + 2 * C * reach)
    mlp = (config.n_layer - 1 + predicted) * 3 * C * config.n_hidden
    head = predicted * C * config.vocab_size
    return 6 * (attention + mlp + head)


def entry_of(folder: str) -> str:
    """What a finished run has spent, in multiply-adds, and what it has above the law.

    Raises OSError."""
    run = read_run(folder)
    with usable(folder, "run of the toy"):
        s, final = run["settings"], run["final"]
        config = config_class(s["variant"])(**run["config"])
        tokens = s["max_steps"] * s["batch_size"] * config.block_size
        return (f"{tokens * flops_per_token(config) / 2e12:.2f} million million multiply-adds, "
                f"{final['above_law']:.4f} ± {final['above_law_se']:.4f} nats above the law")


# ---- Training steps, and the table ---------------------------------------------------------------

def losses_of_every_slot(model, batch, select):
    """The same losses; but the last MLP and the head run on all slots, as in the paper's code."""
    every_slot = torch.arange(batch.tokens.numel(), device=select.device)
    return losses(model, batch, every_slot)


def training_step(s: Settings, config: Config, device: torch.device, tuned=True):
    """A function that takes a step of train.py, compiled and warm, on new masks each time.

    It returns the loss and the norm of the gradient."""
    torch.manual_seed(0)
    make_batch = config.row.training_batch
    if not tuned:
        s = replace(s, dtype="float32", compile="false")
        make_batch = config.row.reported.get("val_masked_ce", make_batch)
    machine.prepare(s, device)
    torch.set_float32_matmul_precision("highest")       # the baseline's float32 is no TF32
    model = config.row.network(config).to(device)
    model.softmax_attention = machine.attention_for(device)
    model.cross_entropy = machine.cross_entropy
    optimizers = make_optimizers(model, s)
    losses_of = machine.compiled(losses if tuned else losses_of_every_slot, s, device)
    x = torch.randint(config.vocab_size, (s.batch_size, config.block_size))     # (B, T)
    generator = torch.Generator().manual_seed(0)

    def step():
        batch = make_batch(config, x, generator)
        return train_step(model, losses_of, optimizers, batch, s, s.lr)

    step()                  # this one compiles
    return step


COLUMNS = {             # of the table, and how their figures are shown
    "tok_per_s": ",.0f",
    "baseline_tok_per_s": ",.0f",
    "speedup": ".2f",
    "ratio_to_ar": ".2f",
    "ms_per_step": ".1f",
    "mflop_per_token": ".1f",
    "of_a_product": ".1%"}      # FLOP/s, as a share of those of a large matrix product


def bench_train(flags: dict, repeats: int, device: torch.device) -> dict:
    """{mode: its figures}."""
    asked, steps = {}, {}
    for mode in [flags["mode"]] if "mode" in flags else MODES:
        asked[mode] = s, config = settings_of(flags | {"mode": mode})
        steps[mode] = training_step(s, config, device)
        steps[f"{mode}, baseline"] = training_step(s, config, device, tuned=False)
    seconds = by_turns(steps, repeats, device)
    median = {name: statistics.median(of_steps) for name, of_steps in seconds.items()}
    peak = flops_of_product(s, device)
    figures = {}
    for mode, (s, config) in asked.items():
        took, baseline = median[mode], median[f"{mode}, baseline"]
        tokens = s.batch_size * config.block_size
        flops = flops_per_token(config)
        figures[mode] = {
            "tok_per_s": tokens / took,
            "baseline_tok_per_s": tokens / baseline,
            "speedup": baseline / took,
            "ratio_to_ar": median.get("ar", math.nan) / took,
            "ms_per_step": 1000 * took,
            "mflop_per_token": flops / 1e6,
            "of_a_product": flops * tokens / took / peak,
            "dtype": s.dtype,
            "seconds": seconds[mode],
            "sizes": asdict(config)}
    return figures


def main():
    flags = parse_flags(__doc__, BenchOptions, Config, Settings,
                        plugins={"variant": "variants"}, implied=IMPLIED)
    o = build(BenchOptions, flags)
    if o.board:
        print(entry_of(o.board))
        return
    device = pick_device(flags.get("device", "auto"))
    figures = bench_train(flags, o.repeats, device)
    rows = [["", *COLUMNS]]
    for mode, f in figures.items():
        cells = [format(f[name], form).replace("nan", "–") for name, form in COLUMNS.items()]
        rows.append([f"{mode}, {f['dtype']}", *cells])
    print_table(rows)
    if o.json:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        write_json(o.json, provenance(0) | {
            "device": name, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "train": figures})


if __name__ == "__main__":
    command(main, "nothing was written")
