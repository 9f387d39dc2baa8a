"""
Train a language model: left to right (ar), by masked diffusion (mdlm) or in any order (aogpt).

    python train.py --mode=mdlm                        the toy on a CPU (minutes), the paper's model where CUDA is present
    python train.py --mode=ar --preset=laptop          TinyStories with 4,096 tokens
    python train.py --mode=mdlm --resume               go on with a run
    torchrun --standalone --nproc_per_node=8 train.py --mode=mdlm      several processes, a GPU each; the same batches

The run's folder holds ckpt.pt (everything, to go on), best.pt (the best weights), config.json, log.jsonl and loss.png.
Validation losses are in nats per token: exact for ar, upper bounds for mdlm and aogpt.
"""
import datetime
import json
import math
import os
import re
import shlex
import signal
import sys
import time
from dataclasses import asdict, dataclass, fields
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

import prepare_data
from compare import read_run
from model import (Batch, Config, Transformer, count_parameters, evaluation_batch, flops_per_token, load, masked_ce_batch, save,
                   training_batch, unit_losses)
from prepare_data import DATA_DIR, Tokenizer, Windows, command, fail, load_meta, parse_flags, provenance, write_json
from sample import Options as Sampling
from sample import generate, pick_device
from show import draw_losses

try:
    import fcntl
except ImportError:     # Windows: nothing keeps two processes out of one folder there
    fcntl = None

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))      # torchrun sets them

# ----------------------------------------------------------------------------------------------------------------------
# Settings


@dataclass
class Settings:
    """training (these defaults are the preset controlled's; the others change some)"""
    preset: Literal["auto", "toy", "laptop", "paper", "controlled"] = "auto"  # auto: paper where CUDA is present, else toy
    data: str = "toy"               # folder under data/, made by prepare_data.py
    windows: Literal["aligned", "random", "paper"] = "aligned"  # start at a story's start, anywhere, or as in the paper
    out_dir: str = ""               # folder of the run; default: out/DATA-MODE
    resume: bool = False            # go on with the run in out_dir
    max_steps: int = 20000          # optimizer steps
    batch_size: int = 32            # windows per optimizer step
    grad_accum: int = 1             # split each batch into so many micro-batches; same result, less memory
    lr: float = 3e-4                # peak learning rate
    warmup: int = 1000              # steps of linear warm-up to it
    final_lr: float = 0.1           # fraction of it that a cosine ends at
    weight_decay: float = 0.01      # of AdamW
    beta2: float = 0.999            # of AdamW
    grad_clip: float = 1.0          # largest norm of the gradient
    eval_interval: int = 500        # steps between evaluations
    eval_windows: int = 512         # validation windows, the same ones each time
    seed: int = 1337                # of weights, data order and masks
    device: str = "auto"            # auto, cpu, cuda or mps
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of the matrix products in training
    compile: Literal["auto", "true", "false"] = "auto"  # torch.compile; auto: yes, but not on mps

    def __post_init__(self):
        for name, low, high in (("eval_windows", 2, math.inf), ("grad_clip", 1e-9, math.inf), ("final_lr", 0, 1), ("beta2", 0, 0.99999)):
            if not low <= getattr(self, name) <= high:
                fail(f"--{name}={getattr(self, name)} must be at least {low} and at most {high}")


PRESETS = {
    # a window is one story and its end; what must be learned is to look far back, not next door
    "toy": dict(data="toy", block_size=48, n_layer=3, n_head=4, n_embd=128, n_hidden=384, shared_init=False, batch_size=64,
                max_steps=3000, lr=1.5e-3, warmup=100, final_lr=0.0, beta2=0.99, eval_interval=500, eval_windows=4096),
    "laptop": dict(data="tinystories-4096", block_size=256, n_layer=4, n_head=4, n_embd=256, n_hidden=704, batch_size=16,
                   max_steps=3000, lr=2e-3, warmup=100, final_lr=0.0, beta2=0.99, eval_interval=250, eval_windows=300),
    # the paper's Table 1, as its code ran it (arXiv 2603.22075)
    "paper": dict(data="tinystories", windows="paper", shared_init=False, dtype="float32", compile="false", eval_interval=2000),
    # the same sizes and budget without its confounds: aligned windows, end-of-text, tied head, a likelihood bound
    "controlled": dict(data="tinystories"),
}
PAPER_MDLM = dict(tie_head=False, time_embedding="add", objective="masked_ce", schedule="cosine")


def data_to_prepare(name: str):
    """How prepare_data.py would make data/<name>, if it isn't there and the name says how; else None."""
    match = re.fullmatch(r"(toy|tinystories)(?:-(\d+))?", name)
    if match and not os.path.exists(os.path.join(DATA_DIR, name, "meta.json")):
        return prepare_data.Options(dataset=match[1], vocab_size=int(match[2] or 50257), name=name)


def resolve(flags: dict):
    """Config and Settings from preset and flags (flags win), and why the preset was chosen."""
    preset, why = flags.get("preset", "auto"), "as asked"
    if preset == "auto":
        preset, why = ("paper", "CUDA is present") if torch.cuda.is_available() else ("toy", "no CUDA here")
    confounds = PAPER_MDLM if (preset, flags.get("mode")) == ("paper", "mdlm") else {}
    values = PRESETS[preset] | confounds | flags | {"preset": preset}
    settings = Settings(**{f.name: values[f.name] for f in fields(Settings) if f.name in values})
    missing = data_to_prepare(settings.data)
    vocab_size = missing.tokenizer().vocab_size if missing else load_meta(settings.data)["tokenizer"]["vocab_size"]
    if values.setdefault("vocab_size", vocab_size) != vocab_size:
        fail(f"--vocab_size={values['vocab_size']} is not that of data/{settings.data}, {vocab_size}; leave it out")
    try:
        config = Config(**{f.name: values[f.name] for f in fields(Config) if f.name in values})
    except ValueError as e:
        fail(str(e))
    settings.out_dir = settings.out_dir or os.path.join("out", f"{settings.data}-{config.mode}")
    parts = settings.grad_accum * WORLD
    if settings.batch_size % parts or (config.mode == "mdlm" and settings.batch_size // parts % 2):
        fail(f"--batch_size={settings.batch_size} over --grad_accum={settings.grad_accum}{f' and {WORLD} processes' * (WORLD > 1)} "
             f"must be a whole number, and an even one for mdlm (rows come in antithetic pairs)")
    return config, settings, why


def learning_rate(s: Settings, step: int) -> float:
    """Linear warm-up, then a cosine from lr to final_lr · lr."""
    if step < s.warmup:
        return s.lr * (step + 1) / s.warmup
    progress = (step - s.warmup) / max(1, s.max_steps - s.warmup)
    return s.lr * (s.final_lr + (1 - s.final_lr) * (1 + math.cos(math.pi * progress)) / 2)


def mask_generator(*seed) -> torch.Generator:
    """Masks and orders come from a generator of their own, made anew from (seed, step): a resumed run sees the same ones,
    and they are the same on every device."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))


# ----------------------------------------------------------------------------------------------------------------------
# Several processes: each makes the whole batch and trains on its share; the first one speaks and writes


def join_processes(device: str) -> torch.device:
    """This process's device, connected to the others."""
    if WORLD > 1 and device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    device = pick_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if WORLD > 1:       # an hour, for the others wait while the first one prepares the data
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=datetime.timedelta(hours=1))
    if RANK:
        sys.stdout = open(os.devnull, "w")
    return device


def part_processes():
    """Once all have done their share; the first one goes on."""
    if WORLD > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        if RANK:
            os._exit(0)     # an orderly end may abort in one of torch's threads, and torchrun would end the first process too


def total(x: torch.Tensor) -> torch.Tensor:
    """Σ over processes, in each of them."""
    if WORLD > 1:
        torch.distributed.all_reduce(x)
    return x


# ----------------------------------------------------------------------------------------------------------------------
# Evaluation


@torch.no_grad()
def evaluate(model: Transformer, x: torch.Tensor, rows: int, seed: int) -> dict:
    """Nats per token of the windows x (N, T), in float32, with masks and orders that depend on the seed alone.

    val_nll (exact for ar, else an estimate of the upper bound for each window) with its standard error over windows; for
    aogpt also the exact val_nll_l2r of its left-to-right order, for mdlm the paper's val_masked_ce.
    """
    config, device = model.config, model.head.weight.device

    def losses(batch):
        result = torch.zeros(len(x), device=device)                                     # (N,)
        for place, part in list(zip(result.split(rows), batch.split(rows)))[RANK::WORLD]:
            place.copy_(unit_losses(model, part.to(device)))
        return total(result).cpu().double()

    generator = mask_generator(seed)
    nll = losses(evaluation_batch(config, x, generator))                                # (N,)
    result = {"val_nll": nll.mean().item(), "val_nll_se": nll.std().item() / math.sqrt(len(nll))}
    if config.mode == "aogpt":
        result["val_nll_l2r"] = losses(evaluation_batch(config, x, generator, left_to_right=True)).mean().item()
    if config.mode == "mdlm":
        result["val_masked_ce"] = losses(masked_ce_batch(config, x, generator, "cosine")).mean().item()
    return result


# ----------------------------------------------------------------------------------------------------------------------
# A training step


def numerics(s: Settings, device: torch.device):
    """The type of the matrix products, bfloat16 where the hardware multiplies it fast, and whether to compile."""
    fast = {"cuda": lambda: torch.cuda.is_bf16_supported(including_emulation=False),
            "cpu": torch.cpu._is_avx512_bf16_supported}.get(device.type, lambda: False)
    dtype = getattr(torch, s.dtype) if s.dtype != "auto" else torch.bfloat16 if fast() else torch.float32
    return dtype, s.compile == "true" or (s.compile == "auto" and device.type != "mps")


class Loss(torch.nn.Module):
    """A batch's loss, compiled as one function where asked (eager, with a line of warning, where there is no C++ compiler or
    Triton); a module, as DistributedDataParallel wants it, around which PyTorch splits the compiled graph."""

    def __init__(self, model: Transformer, compile_it: bool):
        super().__init__()
        self.model = model      # every batch has the same shapes
        self.losses = torch.compile(unit_losses, dynamic=False) if compile_it else unit_losses

    def forward(self, batch: Batch):
        try:
            return self.losses(self.model, batch).mean()
        except (torch._dynamo.exc.TorchDynamoException, OSError) as e:
            print(f"warning: torch.compile failed ({type(e).__name__}); going on without it", file=sys.stderr)
        self.losses = unit_losses
        return self.forward(batch)


def make_update(model: Transformer, s: Settings):
    """The optimizer, and update(batch, lr), a step of it: gradients of the Batch in s.grad_accum micro-batches, clipped.
    update returns (2,): the loss of this process's share, and the norm of the gradient of all."""
    device = model.head.weight.device
    dtype, compile_it = numerics(s, device)
    torch.use_deterministic_algorithms(device.type == "cpu")    # else compiled code adds gradients up in any order
    loss_function = Loss(model, compile_it)
    if WORLD > 1:
        loss_function = torch.nn.parallel.DistributedDataParallel(loss_function, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, betas=(0.9, s.beta2), weight_decay=s.weight_decay, fused=True)
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)

    def update(batch: Batch, lr: float):
        parts, loss = batch.split(len(batch.targets) // (s.grad_accum * WORLD))[RANK::WORLD], 0.0
        for i, part in enumerate(parts, 1):
            loss_function.require_backward_grad_sync = i == len(parts)      # what no_sync() sets: gradients travel once a step
            with autocast:
                part_loss = loss_function(part.to(device)) / len(parts)
            part_loss.backward()
            loss += part_loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack([loss, norm])

    return optimizer, update


# ----------------------------------------------------------------------------------------------------------------------
# A run


def load_run(path: dict, config: Config, s: Settings, plain: dict, device):
    """Model and checkpoint of a run to go on with, if it is the run that these settings and this data describe, and whole."""
    needs = ("settings", "step", "best", "seconds", "recent", "log", "optimizer", *plain)
    model, checkpoint = load(path["ckpt.pt"], device, needs)
    old, new = {**asdict(model.config), **checkpoint["settings"]}, {**asdict(config), **asdict(s)}
    differs = {k: f"{k} was {old.get(k)}, is now {new[k]}" for k in new if old.get(k) != new[k]}
    if refused := differs.keys() - {"resume", "out_dir", "preset", "grad_accum", "device", "dtype", "compile"}:
        fail(f"{path['ckpt.pt']} was made with other settings: {'; '.join(differs[k] for k in differs if k in refused)}; give the "
             f"same flags again")
    if differs := [text for k, text in differs.items() if k not in ("resume", "out_dir", "preset")]:
        print(f"going on, though {'; '.join(differs)}")
    if changed := [k for k in plain if checkpoint[k] != plain[k]]:
        fail(f"data/{s.data} is no longer what {path['ckpt.pt']} was trained on ({' and '.join(changed)} changed); restore it")
    if os.path.getsize(path["log.jsonl"]) < checkpoint["log"]:
        fail(f"{path['log.jsonl']} has lost lines since {path['ckpt.pt']} was written; restore it")
    if checkpoint["best"] < math.inf and load(path["best.pt"])[0].config != model.config:
        fail(f"{path['best.pt']} is of another run; restore it")
    return model, checkpoint


def open_log(path: str):
    """The run's log, written line by line; locked, so that no second process trains here while it is open."""
    file = open(path, "a", buffering=1)
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fail(f"another process is training in {os.path.dirname(path)}; wait for it or choose another folder (--out_dir=DIR)")
    return file


def check_folder(path: dict, resume: bool):
    """A folder that holds a run is for --resume, and no other."""
    if os.path.exists(path["ckpt.pt"]) != resume:
        fail(f"there is no checkpoint at {path['ckpt.pt']}; begin without --resume" if resume else
             f"{path['ckpt.pt']}: there is a run already; go on with it (--resume) or choose another folder (--out_dir=DIR)")


def main():
    config, s, why = resolve(parse_flags(__doc__, Config, Settings))
    device = join_processes(s.device)
    dtype, compile_it = numerics(s, device)
    path = {name: os.path.join(s.out_dir, name) for name in ("ckpt.pt", "best.pt", "config.json", "log.jsonl", "loss.png")}
    check_folder(path, s.resume)
    if RANK == 0 and (missing := data_to_prepare(s.data)):
        print(f"preparing data/{s.data} first")
        prepare_data.prepare(missing)
    total(torch.zeros(1, device=device)).item()     # the others wait for the data

    # data, model, optimizer
    train, val = (Windows(s.data, split, config.block_size, s.windows, s.seed) for split in ("train", "val"))
    x_val, floor = torch.from_numpy(val.first(s.eval_windows)), val.floor(s.eval_windows)
    tokenizer = Tokenizer(**val.meta["tokenizer"])
    torch.manual_seed(s.seed)
    model = Transformer(config).to(device)
    if RANK == 0:
        os.makedirs(s.out_dir, exist_ok=True)
        log_file = open_log(path["log.jsonl"])
        check_folder(path, s.resume)                # again, now that no other process can change it
    start, best, seconds, recent = 0, math.inf, 0.0, []             # recent: update's results since the log's last line
    plain = {"tokenizer": tokenizer.to_dict(), "windows": s.windows, "data": val.meta["splits"]}
    if s.resume:
        model, checkpoint = load_run(path, config, s, plain, device)
        start, best, seconds = (checkpoint[k] for k in ("step", "best", "seconds"))
        recent = [torch.tensor(row, device=device) for row in checkpoint["recent"]]
    optimizer, update = make_update(model, s)
    if s.resume:
        optimizer.load_state_dict(checkpoint["optimizer"])

    # say what is about to happen, on the screen and in the folder
    print(f"preset {s.preset} ({why}): {config.mode} on data/{s.data}, {s.max_steps:,} steps of {s.batch_size} windows of "
          f"{config.block_size} tokens, {s.max_steps * s.batch_size / len(train):.1f} epochs")
    print(f"{count_parameters(model):,} parameters, {flops_per_token(config) / 1e6:.1f} training MFLOP per token; "
          f"{f'{WORLD} x ' if WORLD > 1 else ''}{device.type}, {str(dtype).removeprefix('torch.')}, "
          f"{'compiled (that takes a while)' if compile_it else 'not compiled'}"
          f"{'' if floor is None else f'; the true law itself scores {floor:.4f} nats per token'}")
    if RANK == 0:
        if not (s.resume and os.path.exists(path["config.json"])):
            write_json(path["config.json"], {
                "config": asdict(config), "settings": asdict(s), "parameters": count_parameters(model), "processes": WORLD,
                "dtype": str(dtype), "compiled": compile_it, "torch": torch.__version__, **provenance(s.seed)})
        log_file.truncate(checkpoint["log"] if s.resume else 0)     # what came after the checkpoint is trained again
        log_file.seek(0, os.SEEK_END)

    def check(**entry):
        if not all(map(math.isfinite, entry.values())):
            fail(f"near step {entry['step']:,} something is not finite: {', '.join(f'{k} {v:.4g}' for k, v in entry.items())}; an "
                 f"earlier checkpoint, if any, is kept; try a lower --lr, a longer --warmup or --dtype=float32")

    def write_log(**entry):
        check(**entry)
        if RANK == 0:
            print(json.dumps(entry), file=log_file)

    stopping, stop = False, []      # Ctrl-C and SIGTERM finish the step, save, and say how to go on; a second one doesn't wait

    def on_signal(number, frame):
        if stop and WORLD == 1:     # torchrun passes every signal on, so there they come twice
            raise KeyboardInterrupt
        stop.append(number)

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, on_signal)

    with tqdm(total=s.max_steps, initial=start, unit="step", dynamic_ncols=True, disable=True if RANK else None) as bar:
        for step in range(start + 1, s.max_steps + 1):
            x, lr = torch.from_numpy(train.batch(step - 1, s.batch_size)), learning_rate(s, step - 1)           # (B, T)
            recent.append(update(training_batch(config, x, mask_generator(s.seed, step - 1)), lr))
            bar.update()
            if step == start + 1:       # it compiled; keep that out of the clock
                clock, since = time.perf_counter(), step
            # several processes must stop at the same step
            stopping = bool(stop) if WORLD == 1 else step % 10 == 0 and bool(total(torch.tensor(len(stop), device=device)))
            due = step % s.eval_interval == 0 or step == s.max_steps
            if due or step % 10 == 0:
                loss, norm = total(torch.stack(recent)).unbind(dim=1)                   # both sums over processes
                train_loss, grad_norm = loss.mean().item() / WORLD, norm.max().item() / WORLD   # waits for the device
                elapsed = time.perf_counter() - clock
                tok_per_s = (step - since) * s.batch_size * config.block_size / elapsed
                seconds, recent = seconds + elapsed, []
                write_log(step=step, seconds=seconds, train_loss=train_loss, max_grad_norm=grad_norm, lr=lr, tok_per_s=tok_per_s)
                bar.set_postfix_str(f"loss {train_loss:.3f}, {tok_per_s:,.0f} tok/s")
            elif stopping:
                train_loss, grad_norm = torch.stack(recent).mean(dim=0).tolist()
                check(step=step, lr=lr, train_loss=train_loss, mean_grad_norm=grad_norm)
                seconds += time.perf_counter() - clock
            if due:
                # units are windows, and for mdlm each is two rows: half the training rows fit in memory for certain
                result = evaluate(model, x_val, max(1, s.batch_size // (s.grad_accum * WORLD) // 2), s.seed)
                result["val_bpb"] = result["val_nll"] / math.log(2) * val.tokens_per_byte
                if floor is not None:
                    result["val_floor"] = floor
                write_log(step=step, seconds=seconds, **result)
                bar.write(f"step {step:,}: " + ", ".join(f"{k} {v:.4f}" for k, v in result.items()))
                if result["val_nll"] < best:
                    best = result["val_nll"]
                    if RANK == 0:
                        save(path["best.pt"], model, step=step, val_nll=best, **plain)
            if (due or stopping) and RANK == 0:
                os.fsync(log_file.fileno())
                save(path["ckpt.pt"], model, step=step, best=best, seconds=seconds, recent=[row.tolist() for row in recent],
                     log=log_file.tell(), settings=asdict(s), optimizer=optimizer.state_dict(), **plain)
            if stopping:
                break
            if due or step % 10 == 0:
                clock, since = time.perf_counter(), step

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)
    part_processes()
    if best < math.inf:     # there has been an evaluation
        draw_losses({f"{config.mode} on {s.data}": read_run(s.out_dir)}, path["loss.png"])
    if stopping:
        print(f"stopped and saved; go on with: python train.py {shlex.join(a for a in sys.argv[1:] if a != '--resume')} --resume")
        raise SystemExit(128 + (stop or [signal.SIGTERM])[0])
    model, checkpoint = load(path["best.pt"], device)
    print(f"best validation loss {checkpoint['val_nll']:.4f} nats per token{'' if config.mode == 'ar' else ' (upper bound)'} "
          f"at step {checkpoint['step']:,}; three samples of that model:\n")
    blank = torch.full((config.block_size,), config.mask_id)
    for ids in generate(model, range(3), blank, Sampling(sampler="first_hitting", full_length=True, seed=s.seed))[0].tolist():
        print(tokenizer.decode_story(ids), end="\n\n")
    print(f"{s.out_dir} holds best.pt, log.jsonl and loss.png; next: python sample.py --out_dir={s.out_dir} --num_samples=1000"
          f"{' --sampler=first_hitting' if config.mode == 'mdlm' else ''}")


if __name__ == "__main__":
    command(main, "a checkpoint saved before, if any, is kept")
