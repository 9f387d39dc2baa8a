"""
Train a language model: left to right (ar), by masked diffusion (mdlm) or in any order (aogpt).

    python train.py --mode=mdlm                     the toy on a CPU (minutes), with CUDA 124M parameters
    python train.py --mode=ar --preset=laptop       TinyStories, a vocabulary of 4,096
    python train.py --mode=mdlm --resume            go on with a run
    torchrun --standalone --nproc_per_node=8 train.py --mode=mdlm       a GPU each, they train as one

The run's folder holds ckpt.pt (everything, to go on), best.pt (the best weights), config.json, log.jsonl
and loss.png. Validation losses are in nats per token: exact for ar, upper bounds for mdlm and aogpt.
"""
import ctypes
import functools
import math
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import timeit
from dataclasses import asdict, dataclass
from typing import Literal

os.environ.setdefault("GOMP_SPINCOUNT", "10000")            # waiting threads soon give way to other programs
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")      # no trial (6 s) of what the C++ compiler can do
import torch

from cli import InputError, build, command, parse_flags, provenance, write_json
from model import (PAPER_MDLM, Batch, Config, Transformer, count_parameters, evaluation_batch,
                   flops_per_token, group_losses, mask_generator, paper_batch, training_batch)
from prepare_data import Tokenizer, Windows, data_to_prepare, load_meta, prepare
from runs import (RANK, WORLD_SIZE, Run, check_folder, join_processes, leave_processes, load, open_model,
                  read_run, sum_over_processes, wait_for_processes)
from sample import SampleOptions, generate
from show import draw_losses

# ---- Settings ----------------------------------------------------------------------------------------------

@dataclass
class Settings:
    """training (these defaults are the preset controlled's; the others change some)"""
    preset: Literal["auto", "toy", "laptop", "paper", "controlled"] = "auto"  # with CUDA controlled, else toy
    data: str = "tinystories"       # folder under data/, made by prepare_data.py
    windows: Literal["aligned", "random", "paper"] = "aligned"  # from a story's start, anywhere, as the paper
    train_stories: int = 0          # train on so many windows, drawn by seed (the toy's are stories); 0: all
    out_dir: str = ""               # folder of the run; default: out/DATA-MODE
    resume: bool = False            # go on with the run in out_dir
    init_from: str = ""             # folder of a run whose best weights this one starts from, of any mode
    max_steps: int = 20000          # optimizer steps
    batch_size: int = 32            # windows per optimizer step
    grad_accum: int = 1             # split a batch in so many parts: less memory, same result without dropout
    lr: float = 3e-4                # peak learning rate
    warmup: int = 1000              # steps in which the learning rate rises linearly to lr
    final_lr: float = 0.1           # the cosine after the warm-up ends at this fraction of lr
    optimizer: Literal["adamw", "muon"] = "adamw"   # of the blocks' matrices; the rest always has AdamW
    weight_decay: float = 0.01      # of either optimizer
    beta2: float = 0.999            # of AdamW
    grad_clip: float = 1.0          # largest norm of the gradient
    eval_interval: int = 500        # steps between evaluations
    eval_windows: int = 512         # validation windows, the same ones each time
    save_minutes: float = 2.0       # minutes between writes of ckpt.pt, which is also written at the end
    quiet: bool = False             # print no story of the model at every evaluation
    seed: int = 1337                # of weights, data order and masks
    device: str = "auto"            # auto, cpu, cuda or mps
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of the matrix products in training
    compile: Literal["auto", "true", "false"] = "auto"  # torch.compile; auto: yes, but not on mps

    def __post_init__(self):
        limits = dict(eval_windows=(2, 10 ** 9), grad_clip=(1e-9, 1e9), final_lr=(0, 1), beta2=(0, 0.99999))
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise InputError(f"--{name}={getattr(self, name)} must be at least {low} and at most {high}")

SMALL = dict(n_head=4, warmup=100, final_lr=0.0, beta2=0.99, eval_interval=250)     # of both, unless said
PRESETS = {
    # a window is one story and its end; what must be learned is to look far back, not next door
    "toy": dict(SMALL, data="toy", block_size=48, n_layer=2, n_embd=128, n_hidden=384, batch_size=64,
                max_steps=2000, lr=2e-3, eval_interval=400, eval_windows=1024),
    "laptop": dict(SMALL, data="tinystories-4096", block_size=256, n_layer=4, n_embd=256, n_hidden=704,
                   batch_size=16, max_steps=1500, lr=4e-3, optimizer="muon", eval_windows=300),
    # the paper's Table 1, as the code behind its results ran it (arXiv 2603.22075); float32 without TF32
    "paper": dict(windows="paper", init="paper", shared_init=False, target_embedding=False, warmup=500,
                  final_lr=0.05, dtype="float32", compile="false", eval_interval=2000, eval_windows=1600),
    "controlled": {},   # the same without its confounds: aligned windows, end-of-text, tied head, a bound
}

def resolve(flags: dict):
    """Config and Settings from preset and flags (flags win), and why this preset. Raises InputError."""
    preset, why = flags.get("preset", "auto"), "as asked"
    if preset == "auto":
        cuda = flags.get("device") not in ("cpu", "mps") and torch.cuda.is_available()
        preset, why = ("controlled", "CUDA is present") if cuda else ("toy", "not on CUDA")
    extra = PAPER_MDLM if (preset, flags.get("mode")) == ("paper", "mdlm") else {}
    values = PRESETS[preset] | extra | flags | {"preset": preset}
    s = build(Settings, values)
    missing = data_to_prepare(s.data)
    vocab_size = missing.tokenizer().vocab_size if missing else load_meta(s.data)["eot"] + 1
    if values.setdefault("vocab_size", vocab_size) != vocab_size:
        raise InputError(f"--vocab_size={values['vocab_size']}: data/{s.data} has {vocab_size}; leave it out")
    config = build(Config, values)
    s.out_dir = s.out_dir or os.path.join("out", f"{s.data}-{config.mode}")
    paired = config.mode == "mdlm" and config.schedule == "uniform"
    if s.batch_size % (s.grad_accum * WORLD_SIZE * (2 if paired else 1)):
        processes = f" and {WORLD_SIZE} processes" if WORLD_SIZE > 1 else ""
        raise InputError(f"--batch_size={s.batch_size} over --grad_accum={s.grad_accum}{processes} must be a "
                         f"whole number, and an even one for mdlm's uniform schedule (its rows are pairs)")
    return config, s, why

def learning_rate(s: Settings, step: int) -> float:
    """Linear warm-up, then a cosine from lr to final_lr · lr. (The paper's cosine is one step ahead.)"""
    if step < s.warmup:
        return s.lr * (step + 1) / s.warmup
    progress = (step - s.warmup) / max(1, s.max_steps - s.warmup)
    return s.lr * (s.final_lr + (1 - s.final_lr) * (1 + math.cos(math.pi * progress)) / 2)

# ---- Evaluation --------------------------------------------------------------------------------------------

@torch.no_grad()
def evaluate(model: Transformer, x: torch.Tensor, windows_at_once: int, seed: int) -> dict:
    """Nats per token of the windows x (N, T), in float32 or TF32, masks and orders from the seed alone.

    val_nll (exact for ar, else an estimate of the upper bound for each window) with its standard error over
    windows; for aogpt the exact val_nll_l2r of the left-to-right order, for mdlm the paper's masked_ce."""
    config, device = model.config, model.head.weight.device
    model.eval()

    def losses(batch):
        nats = torch.zeros(len(x), device=device)               # (N,), 0 where another process computes it
        parts = list(zip(nats.split(windows_at_once), batch.split(windows_at_once)))
        for into, part in parts[RANK::WORLD_SIZE]:
            into.copy_(group_losses(model, part.to(device)))
        return sum_over_processes(nats).cpu().double()

    generator = mask_generator(seed)
    nll = losses(evaluation_batch(config, x, generator))                            # (N,)
    result = {"val_nll": nll.mean().item(), "val_nll_se": nll.std().item() / math.sqrt(len(nll))}
    if config.mode == "aogpt":
        result["val_nll_l2r"] = losses(evaluation_batch(config, x, None, left_to_right=True)).mean().item()
    if config.mode == "mdlm":
        result["val_masked_ce"] = losses(paper_batch(config, x, generator)).mean().item()
    return result

# ---- Beginning with the weights of another run -------------------------------------------------------------

@torch.no_grad()
def start_from(folder: str, model: Transformer, tokenizer: Tokenizer):
    """Set the model to the best weights of a run, maybe of another mode. What only the model has, embeddings
    of target positions or of the timestep, begins at zero and so changes nothing: an aogpt that starts from
    an ar *is* that ar, read left to right. Raises InputError where sizes or tokenizers differ."""
    source, its_tokenizer, _ = open_model(folder, "cpu")
    sizes = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "n_hidden", "tie_head",
             "target_rotation")
    there, here = ({name: getattr(m.config, name) for name in sizes} for m in (source, model))
    if other := [f"{name} {there[name]}, not {here[name]}" for name in sizes if there[name] != here[name]]:
        raise InputError(f"--init_from={folder} has {', '.join(other)}; give the same")
    if its_tokenizer.to_dict() != tokenizer.to_dict():
        raise InputError(f"--init_from={folder} has another tokenizer; give data prepared with the same one")
    new, lost = model.load_state_dict(source.state_dict(), strict=False)
    if lost:
        raise InputError(f"--init_from={folder} has {', '.join(lost)}, this one not; give the same flags")
    for name in new:
        model.get_parameter(name).zero_()

# ---- A training step ---------------------------------------------------------------------------------------

@functools.cache
def bfloat16_is_faster() -> bool:
    """On this CPU, by a trial: some have instructions for it and are slower with them."""
    a, b = (torch.ones(256, 256, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    bfloat16, float32 = (min(timeit.repeat(lambda: x @ x, number=1, repeat=10)) for x in (a, b))
    return sum_over_processes(torch.tensor(float32 - bfloat16)).item() > 0      # all must agree

def numerics(s: Settings, device: torch.device):
    """The type of the matrix products, bfloat16 where that is faster; whether to compile."""
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    fast = s.dtype == "auto" and (on_gpu or device.type == "cpu" and bfloat16_is_faster())
    dtype = torch.bfloat16 if fast or s.dtype == "bfloat16" else torch.float32
    return dtype, s.compile == "true" or (s.compile == "auto" and device.type != "mps")

class Loss(torch.nn.Module):
    """The loss of a batch; with compile_it, compiled for the shapes that all batches have; where there is no
    C++ compiler or Triton it warns and is eager. A module: DistributedDataParallel wraps nothing else."""

    def __init__(self, model: Transformer, compile_it: bool):
        super().__init__()
        self.model = model
        self.losses = torch.compile(group_losses, dynamic=False) if compile_it else group_losses

    def forward(self, batch: Batch):
        try:
            return self.losses(self.model, batch).mean()
        except (torch._dynamo.exc.TorchDynamoException, OSError) as e:
            print(f"warning: torch.compile failed ({type(e).__name__}); going on without it", file=sys.stderr)
        self.losses = group_losses      # not in `except`: the next error would show this one as its cause
        return self.losses(self.model, batch).mean()

class Muon(torch.optim.Optimizer):
    """Nesterov's momentum, its singular values nearly equalized (Jordan et al. 2024), scaled to the length of
    AdamW's steps (arXiv 2502.16982), so that lr serves both. Two things differ from torch.optim.Muon:
    products have autocast's dtype, for some CPUs are slow in bfloat16 (results/speed.md), and matrices of a
    size go together, for on a GPU a small product takes no longer than its launch."""

    @torch.no_grad()
    def step(self):
        [group] = self.param_groups
        for rows, columns in dict.fromkeys(p.shape for p in group["params"]):
            matrices = [p for p in group["params"] if p.shape == (rows, columns)]
            momenta = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)).lerp_(p.grad, 0.05)
                       for p in matrices]
            x = torch.stack([p.grad for p in matrices]).lerp(torch.stack(momenta), 0.95)  # (M, rows, columns)
            x = (x.mT if rows > columns else x) / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
            for _ in range(5):      # Newton-Schulz: singular values s → 3.4445 s - 4.775 s³ + 2.0315 s⁵
                xx = x @ x.mT       # baddbmm(a, b, c, …) is beta a + alpha b c, in one call
                x = torch.baddbmm(x, torch.baddbmm(xx, xx, xx, beta=-4.775, alpha=2.0315), x, beta=3.4445)
            for p, step in zip(matrices, x.mT if rows > columns else x):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(step, alpha=-0.2 * math.sqrt(max(rows, columns)) * group["lr"])

def make_update(model: Transformer, s: Settings):
    """The optimizers, and update(batch, lr), a step of them: gradients of a Batch in s.grad_accum
    micro-batches, clipped. It returns the loss of this process's share, and the whole gradient's norm."""
    device = model.head.weight.device
    dtype, compile_it = numerics(s, device)
    torch.use_deterministic_algorithms(device.type == "cpu")    # else compiled CPU code adds up in any order
    if sys.platform == "linux":     # let glibc keep what is freed: asking for it anew costs a tenth in time
        for option in (-4, 0), (-1, -1):                            # M_MMAP_MAX, M_TRIM_THRESHOLD
            ctypes.CDLL(None).mallopt(*option)
    loss_function = Loss(model, compile_it)
    if WORLD_SIZE > 1:
        loss_function = torch.nn.parallel.DistributedDataParallel(
            loss_function, gradient_as_bucket_view=True, bucket_cap_mb=100)
        loss_function.broadcast_buffers = False     # they never change; torch 2.13 warns of the argument
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2] if s.optimizer == "muon" else []
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [torch.optim.AdamW(rest, betas=(0.9, s.beta2), weight_decay=s.weight_decay, fused=True)]
    if matrices:
        optimizers.append(Muon(matrices, dict(weight_decay=s.weight_decay)))
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)

    def update(batch: Batch, lr: float):
        model.train()
        parts = batch.split(len(batch.targets) // (s.grad_accum * WORLD_SIZE))[RANK::WORLD_SIZE]
        loss = 0.0
        for i, part in enumerate(parts, 1):
            loss_function.require_backward_grad_sync = i == len(parts)      # as by no_sync(): once a step
            with autocast:
                part_loss = loss_function(part.to(device)) / len(parts)     # equal parts: a mean of means
            part_loss.backward()
            loss += part_loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip)
        with autocast:      # for Muon's products; of AdamW's step nothing is cast
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = lr
                optimizer.step()
                optimizer.zero_grad()
        return loss, norm

    return optimizers, update

# ---- The command -------------------------------------------------------------------------------------------

def announce(run: Run, why: str, train: Windows, floor: float | None):
    """What is about to happen, on the screen and in config.json."""
    s, config, device = run.s, run.model.config, run.model.head.weight.device
    dtype, compile_it = numerics(s, device)
    parameters, epochs = count_parameters(run.model), s.max_steps * s.batch_size / len(train)
    share = min(1, len(train) * config.block_size / len(train.tokens))  # at most: windows may overlap
    compiled = "compiled (that takes a while)" if compile_it else "not compiled"
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    law = "" if floor is None else f"; the true law itself scores {floor:.4f} nats per token"
    print(f"preset {s.preset} ({why}): {config.mode} on data/{s.data}, {s.max_steps:,} steps of "
          f"{s.batch_size} windows of {config.block_size} tokens, {epochs:.1f} epochs of {len(train):,} "
          f"({share:.1%} of the text)")
    print(f"{parameters:,} parameters, {flops_per_token(config) / 1e6:.1f} training MFLOP per token; "
          f"{WORLD_SIZE} x {machine}, {str(dtype).removeprefix('torch.')}, {compiled}{law}")
    if RANK == 0 and not (s.resume and os.path.exists(run.path("config.json"))):
        facts = dict(config=asdict(config), settings=asdict(s), parameters=parameters, processes=WORLD_SIZE,
                     train_windows=len(train), dtype=str(dtype), compiled=compile_it, device=machine,
                     torch=torch.__version__)
        write_json(run.path("config.json"), facts | provenance(s.seed))

def sample_stories(model: Transformer, tokenizer: Tokenizer, count: int, seed: int, most_steps: int) -> list:
    """Stories of the model as it is now, by the same noise each time; mdlm takes at most most_steps steps."""
    config = model.eval().config
    o = SampleOptions(seed=seed, steps=min(most_steps, config.block_size) if config.mode == "mdlm" else None)
    blank = torch.full((config.block_size,), config.mask_id)
    return [tokenizer.decode_story(ids) for ids in generate(model, range(count), blank, o)[0].tolist()]

def show_best(run: Run, tokenizer: Tokenizer):
    """Three stories of best.pt, and what to do next."""
    model, checkpoint = load(run.path("best.pt"), run.model.head.weight.device)
    kind = "" if model.config.mode == "ar" else " (upper bound)"
    print(f"best validation loss {checkpoint['val_nll']:.4f} nats per token{kind} at step "
          f"{checkpoint['step']:,}; three samples of that model:\n")
    stories = sample_stories(model, tokenizer, 3, run.s.seed, most_steps=model.config.block_size)
    print(*stories, f"{run.s.out_dir} holds best.pt, log.jsonl, loss.png; next: python sample.py "
                    f"--out_dir={shlex.quote(run.s.out_dir)} --show", sep="\n\n")

def main():
    config, s, why = resolve(parse_flags(__doc__, Config, Settings))
    device = join_processes(s.device)
    check_folder(s.out_dir, s.resume)

    # the data, made first if it is not there
    if RANK == 0 and (missing := data_to_prepare(s.data)):
        print(f"preparing data/{s.data} first")
        if device.type == "cpu" and s.compile != "false":   # meanwhile, headers are precompiled
            subprocess.Popen([sys.executable, "-c", "import torch; torch.compile(torch.neg)(torch.ones(16))"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        prepare(missing)
    wait_for_processes()
    train = Windows(s.data, "train", config.block_size, s.windows, s.seed, at_most=s.train_stories)
    val = Windows(s.data, "val", config.block_size, s.windows, s.seed)
    x_val, floor = torch.from_numpy(val.spread(s.eval_windows)), val.floor(s.eval_windows)      # (N, T)
    tokenizer = Tokenizer(**val.meta["tokenizer"])

    # the model, its optimizers, and how they take a step
    torch.set_flush_denormal(True)      # sharp attention makes many denormals: a CPU may slow to a third
    torch.manual_seed(s.seed)
    model = Transformer(config).to(device)
    if s.init_from and not s.resume:
        start_from(s.init_from, model, tokenizer)
    optimizers, update = make_update(model, s)
    if device.type == "cuda" and numerics(s, device)[0] == torch.bfloat16:
        torch.set_float32_matmul_precision("high")      # TF32, where float32 is left: in evaluation

    # the run: its folder, its log, and with --resume its past
    trained_on = {"tokenizer": tokenizer.to_dict(), "windows": s.windows, "data": val.meta["splits"]}
    run = Run(s, model, optimizers, trained_on)
    announce(run, why, train, floor)
    # mdlm evaluates a window in a pair of rows: half a step's windows surely fit in memory
    windows_at_once = max(1, s.batch_size // (s.grad_accum * WORLD_SIZE) // 2)
    law = {} if floor is None else {"val_floor": floor}     # the true law's own loss on x_val

    def story() -> str:
        """The beginning of what the model writes now; nothing with --quiet."""
        stories = [] if s.quiet else sample_stories(model, tokenizer, 1, s.seed, most_steps=64)
        return textwrap.shorten(" ".join(stories), 300, placeholder=" …")

    if run.step == 0 and not s.quiet:
        print(f"before training: {story()}\n")
    with run.training():
        for step in range(run.step, s.max_steps):
            torch.manual_seed(s.seed + step + RANK * 10 ** 9)   # of dropout; a resumed run drops the same
            x = torch.from_numpy(train.batch(step, s.batch_size))                   # (B, T)
            batch = training_batch(config, x, mask_generator(s.seed, step))
            loss, norm = update(batch, learning_rate(s, step))
            run.record(loss, norm)                      # progress and log; raises where it is not finite
            if run.evaluation_due():
                result = evaluate(model, x_val, windows_at_once, s.seed)
                result["val_bpb"] = result["val_nll"] / math.log(2) * val.tokens_per_byte
                run.record_evaluation(story(), **result, **law)     # log; best.pt where it is the best
            stop = run.asked_to_stop()                  # by Ctrl-C or SIGTERM
            if stop or run.checkpoint_due():
                run.checkpoint()                        # ckpt.pt, all that --resume needs
            if stop:
                break

    leave_processes()
    if run.best < math.inf:     # there has been an evaluation
        draw_losses({f"{config.mode} on {s.data}": read_run(s.out_dir)}, run.path("loss.png"))
    if run.stopped and run.step < s.max_steps:
        again = shlex.join(sys.argv).removesuffix(" --resume")
        how = f"torchrun --standalone --nproc_per_node={WORLD_SIZE}" if WORLD_SIZE > 1 else "python"
        print(f"stopped and saved; go on with: {how} {again} --resume")
        raise SystemExit(128 + (run.signals or [signal.SIGTERM])[0])
    show_best(run, tokenizer)

if __name__ == "__main__":
    command(main, "a checkpoint saved before, if any, is kept")
