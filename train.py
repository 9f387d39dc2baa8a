"""
Train a language model: left to right (ar), by masked diffusion (mdlm) or in any order (aogpt).

    python train.py --mode=mdlm                     on a CPU the toy, with CUDA 124M parameters
    python train.py --mode=ar --preset=laptop       TinyStories, a vocabulary of 4,096
    python train.py --mode=mdlm --resume            go on with a run; --max_steps=N makes it longer
    torchrun --standalone --nproc_per_node=8 train.py --mode=mdlm       eight GPUs train as one

The run's folder holds ckpt.pt, with which a run can go on, best.pt (the best weights), config.json,
log.jsonl and loss.png. val_nll, in nats per token, is exact for ar, and an upper bound for mdlm and
aogpt. The network and its losses are in model.py.
"""
import math
import shlex
import textwrap
import zlib
from dataclasses import dataclass, fields
from typing import Literal

from support import machine     # before torch, because it sets how torch's threads wait
import torch

from model import Batch, Config, Transformer, generate, losses
from prepare_data import open_windows, prepare_if_missing, vocabulary_of
from support.flags import (
    InputError, build, command, flag, names_in, parse_flags, printable, script_here)
from support.pictures import in_shape
from presets import IMPLIED, PRESETS, with_preset
from support.processes import (
    RANK, WORLD_SIZE, average_gradients, join_processes, leave_processes, wait_for_processes)
from support.runs import Run, check_folder, config_class, load, past_of, random_numbers
from tokenizer import Tokenizer
from worlds import columns_of


# ---- Settings ------------------------------------------------------------------------------------

@dataclass
class Settings:
    """training (the defaults are the preset controlled, of the size of the smallest GPT-2)"""
    preset: Literal["auto", *PRESETS, "paper"] = flag(
        "auto", "sizes and settings to start from; auto: controlled with CUDA, else toy")
    data: str = flag("tinystories", "folder under data/, made by prepare_data.py")
    windows: Literal["auto", "aligned", "random", "paper"] = flag(
        "auto", "windows start where stories do, anywhere, or as in the paper; auto: by the data")
    train_stories: int = flag(0, "train on so many windows only, drawn by seed; 0: on all", low=0)
    variant: str = flag(
        "", "file of variants/ that trains something else; infill's l2r_fraction is 0.5")
    out_dir: str = flag("", "folder of the run; default: out/DATA-MODE")
    resume: bool = flag(False, "go on with the run in out_dir, by the settings it has")
    init_from: str = flag("", "folder of a run, of any mode, whose best weights to start from")
    max_steps: int = flag(20000, "optimizer steps", low=1)
    batch_size: int = flag(32, "windows per optimizer step", low=1)
    grad_accum: int = flag(1, "read a batch in so many parts: less memory, the same loss", low=1)
    lr: float = flag(3e-4, "peak learning rate", low=0)
    warmup: int = flag(1000, "steps in which the learning rate rises linearly to lr", low=0)
    final_lr: float = flag(
        0.1, "the cosine after the warm-up ends at this fraction of lr", low=0, high=1)
    optimizer: Literal["adamw", "muon"] = flag(
        "adamw", "what trains the matrices of the blocks; all else is trained by AdamW")
    weight_decay: float = flag(0.01, "of either optimizer", low=0)
    beta2: float = flag(0.999, "of AdamW", low=0, high=0.99999)
    grad_clip: float = flag(1.0, "largest norm of the gradient", low=1e-9)
    token_noise: float = flag(
        0.0, "share of the tokens read in training that are replaced by random ones", low=0, high=1)
    eval_interval: int = flag(500, "steps between evaluations", low=1)
    eval_windows: int = flag(512, "validation windows, the same ones each time", low=2)
    save_minutes: float = flag(
        2.0, "minutes between writes of ckpt.pt, which is written at the end too", low=0)
    quiet: bool = flag(False, "print no story of the model at every evaluation")
    seed: int = flag(1337, "of weights, data order and masks", low=0, high=10 ** 15)
    device: str = flag("auto", "auto, cpu, cuda or mps")
    dtype: Literal["auto", "float32", "bfloat16"] = flag(
        "auto", "of the matrix products in training; auto: the faster, decided once for a run")
    compile: Literal["auto", "true", "false"] = flag(
        "auto", "torch.compile; auto: yes, but not on mps")


# ---- A training step -----------------------------------------------------------------------------

def learning_rate(s: Settings, step: int) -> float:
    """A linear warm-up, then a cosine from lr to final_lr · lr."""
    if step < s.warmup:
        return s.lr * (step + 1) / s.warmup
    progress = (step - s.warmup) / max(1, s.max_steps - s.warmup)
    cosine = (1 + math.cos(math.pi * progress)) / 2         # from 1 to 0
    return s.lr * (s.final_lr + (1 - s.final_lr) * cosine)


def make_optimizers(model: Transformer, s: Settings) -> list:
    """AdamW for all weights; with --optimizer=muon, Muon for the matrices of the blocks."""
    if s.optimizer == "muon":
        from extras.muon import make_optimizers as with_muon
        return with_muon(model, s)
    return [torch.optim.AdamW(model.parameters(), betas=(0.9, s.beta2),
                              weight_decay=s.weight_decay, fused=True)]


def parts_of(batch: Batch, rows: int) -> list:
    """Batches of so many rows; the last has the rest."""
    return [type(batch)(*part) for part in zip(*(field.split(rows) for field in batch))]


def on(device: torch.device, batch: Batch) -> Batch:
    return type(batch)(*(field.to(device) for field in batch))


def train_step(model, losses_of, optimizers: list, batch: Batch, s: Settings, lr: float):
    """One step of the optimizers on a Batch. With torchrun each process computes a share of it.

    losses_of is model.py's `losses`, maybe compiled. Returns the loss of this process's share
    and the norm of the whole gradient before it is clipped. Both stay on the device, so a GPU may
    still be computing them."""
    model.train()
    device = model.head.weight.device
    rows = len(batch.tokens) // (s.grad_accum * WORLD_SIZE)
    parts = parts_of(batch, rows)[RANK::WORLD_SIZE]             # of this process
    autocast = torch.autocast(device.type, getattr(torch, s.dtype), enabled=s.dtype != "float32")
    total = torch.zeros((), device=device)
    for part in parts:
        select = part.select().to(device)
        with autocast:
            # The parts are equal, so the mean over the batch is the mean of their means.
            loss = losses_of(model, on(device, part), select).mean() / len(parts)
        loss.backward()
        total += loss.detach()
    average_gradients(model)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        with autocast:      # Muon multiplies matrices here; AdamW does not, and is not affected
            optimizer.step()
        optimizer.zero_grad()
    return total, norm


# ---- Evaluation ----------------------------------------------------------------------------------

@torch.no_grad()
def losses_in_parts(model, batch: Batch) -> torch.Tensor:
    """The losses (B,) of a batch as float64 on the CPU, a few rows at a time."""
    device = model.eval().head.weight.device
    found = []
    numbers = batch.tokens.size(1) * model.config.vocab_size
    for part in parts_of(batch, machine.rows_at_once(numbers, device)):
        of_rows = losses(model, on(device, part), part.select().to(device))
        found.append(of_rows.cpu().double())
    return torch.cat(found)


def window_losses(model, x: torch.Tensor, seed: int, draws: int = 1) -> torch.Tensor:
    """Nats per token of each window of x (N, T): (N,), computed without gradients.

    Exact, or the mean over so many draws of what the bound draws, which estimates it: of aogpt an
    order, of mdlm a pair of masks, of k and T+1−k tokens. They are drawn from the seed alone, so
    every evaluation has the same ones."""
    generator = random_numbers(seed)
    row = model.config.row
    total = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(draws):
        repeated = x.repeat_interleave(row.together, dim=0)
        batch = row.bound_batch(model.config, repeated, generator)
        total += losses_in_parts(model, batch).view(len(x), row.together).mean(dim=1)
    return total / draws


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """The mean of values (N,), and its standard error if they are independent."""
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


def evaluate(model, x: torch.Tensor, seed: int, tokens_per_byte: float, law=None) -> dict:
    """The validation losses of windows x (N, T), in nats per token.

    val_nll is exact for ar, else an estimate of the upper bound; val_nll_se is its standard error
    over windows; val_bpb is the same in bits per byte, and val_floor the mean of the true law (N,),
    if it is known. aogpt has the exact val_nll_l2r, from left to right, too. mdlm has
    val_masked_ce, the loss of arXiv 2603.22075, which is no bound."""
    config = model.config
    result = {}
    result["val_nll"], result["val_nll_se"] = mean_and_error(window_losses(model, x, seed))
    for name, batch_of in config.row.reported.items():
        batch = batch_of(config, x, random_numbers(seed, 1))        # other draws than the bound's
        result[name] = losses_in_parts(model, batch).mean().item()
    if config.row.whole:        # else these are the nats of some of the tokens alone
        result["val_bpb"] = result["val_nll"] / math.log(2) * tokens_per_byte
    if law is not None:
        result["val_floor"] = float(law.mean())
    return result


# ---- The command, and its loop -------------------------------------------------------------------

MOST_USED = ("mode", "preset", "data", "out_dir", "resume", "max_steps", "batch_size", "lr", "seed")


def resolve(flags: dict):
    """What the flags ask for: Settings and Config.

    The Config is that of model.py, or with --variant that of a file of variants/. A flag wins over
    the preset. A resumed run keeps most of its settings. Raises InputError."""
    values = with_preset(flags)
    values.setdefault("data", Settings.data)
    if not values.get("out_dir"):
        mode = values.get("mode", config_class(values.get("variant", "")).mode)
        values["out_dir"] = f"out/{values['data']}-{mode}"
    if flags.get("resume"):
        values = past_of(values["out_dir"], flags)
    vocab_size = vocabulary_of(values["data"])
    if values.get("vocab_size", vocab_size) != vocab_size:
        raise InputError(f"--vocab_size={values['vocab_size']}: data/{values['data']} has "
                         f"{vocab_size}; leave it out")
    values["vocab_size"] = vocab_size
    s = build(Settings, values)
    config = build(config_class(s.variant), values)
    known = {f.name for options in (s, config) for f in fields(options)}
    for name in flags.keys() - known:
        raise InputError(f"--{name}={flags[name]} means nothing in this run, whose --variant is "
                         f"{s.variant or 'none'}; leave it out")
    check_batch_size(s, config)
    return s, config


def check_batch_size(s: Settings, config: Config):
    """Raises InputError where a batch cannot be cut into equal parts."""
    together = config.row.together
    rows = s.grad_accum * WORLD_SIZE * together
    if s.batch_size % rows:
        raise InputError(f"--batch_size={s.batch_size} must be a multiple of {rows}: --grad_accum "
                         f"times the processes, times {together}, the rows drawn together")


def main():
    flags = parse_flags(__doc__, Config, Settings, first=MOST_USED,
                        plugins={"variant": "variants"}, implied=IMPLIED)
    s, config = resolve(flags)
    device = join_processes(s.device)           # the one of this process, if there are several
    check_folder(s.out_dir, s.resume)           # no run is overwritten
    machine.prepare(s, device)

    # The data, which is made first if it is not there.
    if RANK == 0:
        prepare_if_missing(s.data)
    wait_for_processes()
    windows = open_windows(s, "train", config.block_size, s.train_stories)
    s.windows = windows.kind                    # what auto meant
    val = open_windows(s, "val", config.block_size)
    x_val = torch.from_numpy(val.spread(s.eval_windows))                            # (N, T)
    law = val.law(s.eval_windows)       # (N,) nats per token by the true law, or None
    tokenizer = Tokenizer(**val.meta["tokenizer"])

    # The model and its optimizers.
    torch.manual_seed(s.seed)
    model = config.row.network(config).to(device)
    if s.init_from and not s.resume:
        from extras.start_from import start_from
        start_from(s.init_from, model, tokenizer)
    model.softmax_attention = machine.attention_for(device)
    model.cross_entropy = machine.cross_entropy
    batch_of = config.row.training_batch
    if s.token_noise:
        from extras.noise import noisy
        batch_of = noisy(batch_of, s.token_noise)
    optimizers = make_optimizers(model, s)
    losses_of = machine.compiled(losses, s, device)

    # The run: its folder, its log, and with --resume its past.
    trained_on = {"variant": type(config).__module__, "tokenizer": tokenizer.to_dict(),
                  "windows": s.windows, "data": val.meta["splits"],
                  "checksum": zlib.crc32(windows.tokens, zlib.crc32(val.tokens))}
    run = Run(s, model, optimizers, trained_on)
    announce(run, windows, law)
    if run.step == 0:
        print_story(run, tokenizer, "before training: ")

    with run.training():        # a progress bar; and Ctrl-C only asks to stop
        for step in range(run.step, s.max_steps):
            # All that is random depends on the number of the step, so a run can be resumed. Dropout
            # is drawn by torch itself, and differs from process to process.
            torch.manual_seed(random_numbers(s.seed, step, 1 + RANK).initial_seed())
            generator = random_numbers(s.seed, step)
            x = torch.from_numpy(windows.batch(step, s.batch_size))             # (B, T)
            batch = batch_of(config, x, generator)
            lr = learning_rate(s, step)
            loss, norm = train_step(model, losses_of, optimizers, batch, s, lr)
            run.record(loss, norm, lr)          # counts the step, logs every tenth
            if run.evaluation_due():
                with run.paused():
                    result = evaluate(model, x_val, s.seed, val.tokens_per_byte, law)
                    run.record_evaluation(result)       # log, and best.pt
                    print_story(run, tokenizer)
            stop = run.asked_to_stop()          # by Ctrl-C, SIGTERM or the terminal's end
            if stop or run.checkpoint_due():
                with run.paused():
                    run.checkpoint()            # ckpt.pt, all that --resume needs
            if stop:
                break
    leave_processes()           # all but the first process end here
    run.draw_curve()
    if run.step < s.max_steps:
        run.exit_stopped()      # this does not return
    finish(run, tokenizer, x_val, law)


# ---- What is said before, during and after -------------------------------------------------------

def announce(run: Run, windows, law):
    """What is about to happen, on the screen and in config.json."""
    s, config = run.s, run.model.config
    parameters = run.model.count_parameters()
    epochs = s.max_steps * s.batch_size / len(windows)
    run.say(f"preset {s.preset}: {config.mode} on data/{s.data}, {s.max_steps:,} steps of "
            f"{s.batch_size} windows of {config.block_size} tokens, {epochs:.1f} epochs")
    print(f"{parameters:,} parameters; {WORLD_SIZE} x {run.device_name()}, {s.dtype}")
    if s.windows != "aligned":
        print("windows and samples begin anywhere in the text")
    if law is not None:
        run.say(f"the true law of data/{s.data} itself scores {law.mean():.4f} nats per token")
    if run.step:
        print(f"going on after step {run.step:,}, at a learning rate of "
              f"{learning_rate(s, run.step):.2g}")
    run.write_config(parameters=parameters, train_windows=len(windows))


def sample_stories(model, tokenizer, count: int, s: Settings, steps: int = 0) -> list:
    """Stories of the model as it is now, from the same noise each time, in so many passes."""
    texts = generate(model.eval(), count, steps, generator=random_numbers(s.seed))
    return [tokenizer.decode_story(ids) for ids in texts.tolist()]


def print_story(run: Run, tokenizer: Tokenizer, title: str = "    "):
    """The beginning of what the model writes now; nothing with --quiet."""
    config = run.model.config
    if run.s.quiet or not config.row.whole:
        return
    steps = 0 if config.row.causal else min(64, config.block_size)
    [story] = sample_stories(run.model, tokenizer, 1, run.s, steps)
    beginning, *rest = textwrap.wrap(" ".join(story.split()), 300) or [""]
    beginning = in_shape(beginning, columns_of(tokenizer)).replace("\n", "\n" + " " * len(title))
    run.say(f"{title}{beginning}{' …' if rest else ''}\n")


FINAL_DRAWS = 16        # pairs of masks, or orders, for each window in the last evaluation


def finish(run: Run, tokenizer: Tokenizer, x_val: torch.Tensor, law):
    """What the best model is worth, three of its stories and the next command."""
    s, row = run.s, run.model.config.row
    model, best = load(run.path("best.pt"), run.model.head.weight.device)
    draws = FINAL_DRAWS if row.drawn else 1
    of_windows = window_losses(model, x_val, s.seed, draws)                     # (N,)
    nll, error = mean_and_error(of_windows)
    final = {"best_step": best["step"], "final_nll": nll, "final_nll_se": error}
    kind = f", an upper bound from {draws} {row.drawn} a window" if row.drawn else ""
    print(f"the best model, of step {best['step']:,}, has {nll:.4f} ± {error:.4f} nats per token"
          f"{kind}")
    if law is not None:
        above, error = mean_and_error(of_windows - torch.from_numpy(law))
        final |= {"above_law": above, "above_law_se": error}
        print(f"that is {above:.4f} ± {error:.4f} above the true law")
    print("(± is the standard error over windows)\n")
    run.log(**final)
    for story in sample_stories(model, tokenizer, 3, s) if row.whole else ():
        print(in_shape(printable(story), columns_of(tokenizer)), end="\n\n")
    print(f"{s.out_dir} holds best.pt, log.jsonl and loss.png")
    if "page" in names_in("extras"):
        from extras.page import say_page
        say_page(model.config, s.out_dir)
    print(f"next: python {script_here('sample.py')} --out_dir={shlex.quote(s.out_dir)} --show")


if __name__ == "__main__":
    command(main, "a checkpoint saved before, if any, is kept")
