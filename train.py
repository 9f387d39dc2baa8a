"""
Train a language model: left to right (ar), by masked diffusion (mdlm) or in any order (aogpt).

    python train.py --mode=mdlm                     on a CPU the toy, with CUDA 124M parameters
    python train.py --mode=ar --preset=laptop       TinyStories, a vocabulary of 4,096
    python train.py --mode=mdlm --resume            go on with a run; --max_steps=N makes it longer
    torchrun --standalone --nproc_per_node=8 train.py --mode=mdlm       eight GPUs train as one

"The paper" is arXiv 2603.22075. The run's folder holds ckpt.pt, with which a run can go on, best.pt
(the best weights), config.json, log.jsonl and loss.png. val_nll, in nats per token, is exact for
ar, and an upper bound for mdlm and aogpt.
"""
import ctypes
import json
import math
import os
import shlex
import signal
import sys
import textwrap
import timeit
from dataclasses import asdict, dataclass
from typing import Literal

# These two must be set before torch is imported. By the first a thread with nothing to do gives way
# to other programs soon; without it a step on a busy CPU takes six times as long. By the second
# torch.compile does not try out the CPU's vector instructions, which would take 6 s.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
import torch

from cli import (
    InputError, build, check_flags, command, flag, parse_flags, printable, provenance, write_json)
from model import PAPER_MDLM, Config, Transformer, count_parameters, flops_per_token
from objectives import (
    Batch, evaluation_batch, losses_in_parts, mask_generator, paper_batch, training_batch,
    weighted_losses)
from prepare_data import Tokenizer, Windows, data_to_prepare, load_meta, prepare
from runs import (
    CHECKPOINT_NEEDS, MAY_CHANGE, RANK, WORLD_SIZE, Run, average_gradients, check_folder,
    check_resumable, is_out_of_memory, join_processes, leave_processes, load, mean_over_processes,
    open_model, read_checkpoint, read_run, wait_for_processes)
from samplers import SampleOptions, generate
from show import draw_losses


# ---- Settings and presets ------------------------------------------------------------------------

@dataclass
class Settings:
    """training (the defaults are the preset controlled: the paper's sizes without its confounds)"""
    preset: Literal["auto", "toy", "shakespeare", "laptop", "paper", "controlled"] = flag(
        "auto", "sizes and settings to start from; auto: controlled with CUDA, else toy")
    data: str = flag("tinystories", "folder under data/, made by prepare_data.py")
    windows: Literal["auto", "aligned", "random", "paper"] = flag(
        "auto", "windows start where stories do, anywhere, or as in the paper; auto: by the data")
    train_stories: int = flag(0, "train on so many windows only, drawn by seed; 0: on all", low=0)
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

    def __post_init__(self):
        check_flags(self)


# A preset has values for fields of Settings, above, and of model.py's Config. Flags override them.
# The three small presets share these.
SMALL = dict(n_head=4, warmup=100, final_lr=0.0, beta2=0.99)

PRESETS = {
    # A window is one story and its end; later words depend on much earlier ones.
    "toy": SMALL | dict(
        data="toy",
        block_size=48,
        n_layer=2,
        n_embd=128,
        n_hidden=384,
        batch_size=64,
        max_steps=2000,
        lr=2e-3,
        eval_interval=400,
        eval_windows=1024,
    ),
    # nanoGPT's recipe for a CPU, and its text. The SwiGLU has 1% more weights than nanoGPT's MLP.
    "shakespeare": SMALL | dict(
        data="shakespeare",
        block_size=64,
        n_layer=4,
        n_embd=128,
        n_hidden=344,
        batch_size=12,
        max_steps=2000,
        lr=1e-3,
        final_lr=0.1,
        weight_decay=0.1,
        eval_interval=500,
        eval_windows=2000,      # all of the text held out
    ),
    "laptop": SMALL | dict(
        data="tinystories-4096",
        block_size=256,
        n_layer=4,
        n_embd=256,
        n_hidden=704,
        batch_size=16,
        max_steps=1500,
        lr=4e-3,
        optimizer="muon",
        eval_interval=250,
        eval_windows=300,
    ),
    # The paper's Table 1; where its text and its code differ, as its code has it.
    "paper": dict(
        windows="paper",
        init="paper",
        shared_init=False,
        target_embedding=False,
        warmup=500,
        final_lr=0.05,
        dtype="float32",
        compile="false",
        eval_interval=2000,
        eval_windows=1600,
    ),
    # The same sizes with the paper's confounds removed: windows start where stories start,
    # end-of-text is kept, the head is tied, and mdlm trains on a bound.
    "controlled": {},
}


def learning_rate(s: Settings, step: int) -> float:
    """A linear warm-up, then a cosine from lr to final_lr · lr.

    The paper's code counts from 1, so its cosine is one step ahead of this one."""
    if step < s.warmup:
        return s.lr * (step + 1) / s.warmup
    progress = (step - s.warmup) / max(1, s.max_steps - s.warmup)
    cosine = (1 + math.cos(math.pi * progress)) / 2         # from 1 to 0
    return s.lr * (s.final_lr + (1 - s.final_lr) * cosine)


# ---- A training step -----------------------------------------------------------------------------

def train_step(model, losses_of, optimizers: list, batch: Batch, s: Settings, lr: float):
    """One step of the optimizers on a Batch. With torchrun each process computes a share of it.

    losses_of is weighted_losses, maybe compiled. Returns the loss of this process's share and the
    norm of the whole gradient before it is clipped. Both stay on the device, so nothing waits."""
    model.train()
    device = model.head.weight.device
    parts_in_all = s.grad_accum * WORLD_SIZE
    parts = batch.split(len(batch.targets) // parts_in_all)[RANK::WORLD_SIZE]   # of this process
    autocast = torch.autocast(device.type, getattr(torch, s.dtype), enabled=s.dtype != "float32")
    loss = torch.zeros((), device=device)
    for part in parts:
        with autocast:
            # The parts are equal, so the mean over the batch is the mean of their means.
            part_loss = losses_of(model, part.to(device)).mean() / len(parts)
        part_loss.backward()
        loss += part_loss.detach()
    average_gradients(model)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        with autocast:      # Muon multiplies matrices here; AdamW does not, and is not affected
            optimizer.step()
        optimizer.zero_grad()
    return loss, norm


# ---- Evaluation ----------------------------------------------------------------------------------

def window_losses(model: Transformer, x: torch.Tensor, seed: int, draws: int = 1) -> torch.Tensor:
    """Nats per token of each window of x (N, T): (N,), computed without gradients.

    Exact for ar; else the mean over so many draws of masks or orders, which estimates the bound.
    They are drawn from the seed alone, so every evaluation has the same ones."""
    model.eval()
    generator = mask_generator(seed)
    total = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(draws):
        total += losses_in_parts(model, evaluation_batch(model.config, x, generator))
    return total / draws


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """The mean of values (N,), and its standard error if they are independent."""
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


def evaluate(model: Transformer, x: torch.Tensor, seed: int) -> dict:
    """The validation losses of windows x (N, T), in nats per token.

    val_nll is exact for ar, else an estimate of the upper bound; val_nll_se is its standard error
    over windows. aogpt has the exact val_nll_l2r, from left to right, too. mdlm has val_masked_ce,
    the paper's loss."""
    config = model.config
    result = {}
    result["val_nll"], result["val_nll_se"] = mean_and_error(window_losses(model, x, seed))
    if config.mode == "aogpt":
        batch = evaluation_batch(config, x, mask_generator(seed), left_to_right=True)
        result["val_nll_l2r"] = losses_in_parts(model, batch).mean().item()
    if config.mode == "mdlm":
        batch = paper_batch(config, x, mask_generator(seed, 1))     # other masks than val_nll
        result["val_masked_ce"] = losses_in_parts(model, batch).mean().item()
    return result


# ---- The command, and its loop -------------------------------------------------------------------

MOST_USED = ("mode", "preset", "data", "out_dir", "resume", "max_steps", "batch_size", "lr", "seed")


def main():
    flags = parse_flags(__doc__, Config, Settings, first=MOST_USED)     # those that were given
    config, s, why, checkpoint = resolve(flags)
    device = join_processes(s.device)           # the one of this process, if there are several
    check_folder(s.out_dir, s.resume)           # no run is overwritten
    prepare_machine(s, device)

    # The data, which is made first if it is not there.
    missing = data_to_prepare(s.data)           # how to make it, or None
    if RANK == 0 and missing:
        print(f"preparing data/{s.data} first")
        prepare(missing)
    wait_for_processes()
    windows = Windows(s.data, "train", config.block_size, s.windows, s.seed, s.train_stories)
    s.windows = windows.kind                    # what auto meant
    val = Windows(s.data, "val", config.block_size, s.windows, s.seed)
    x_val = torch.from_numpy(val.spread(s.eval_windows))                            # (N, T)
    law = val.law(s.eval_windows)       # (N,) nats per token by the toy's true law, else None
    tokenizer = Tokenizer(**val.meta["tokenizer"])

    # The model and its optimizers.
    torch.manual_seed(s.seed)
    model = Transformer(config).to(device)
    if s.init_from and not s.resume:
        start_from(s.init_from, model, tokenizer)
    optimizers = make_optimizers(model, s)
    losses_of = maybe_compiled(s, device)

    # The run: its folder, its log, and with --resume its past.
    trained_on = {"tokenizer": tokenizer.to_dict(), "windows": s.windows,
                  "data": val.meta["splits"]}
    run = Run(s, model, optimizers, trained_on, checkpoint)
    del checkpoint      # which takes three times the memory of the model
    announce(run, why, windows, law)
    if run.step == 0 and not s.quiet:
        print(f"before training: {one_story(model, tokenizer, s)}\n")

    with run.training():        # a progress bar; and Ctrl-C only asks to stop
        for step in range(run.step, s.max_steps):
            # Dropout depends on the step, not on what was drawn before, so a run can be resumed.
            # The third number keeps it apart from the masks, and each process from the others.
            torch.manual_seed(mask_generator(s.seed, step, 1 + RANK).initial_seed())
            lr = learning_rate(s, step)
            x = torch.from_numpy(windows.batch(step, s.batch_size))             # (B, T)
            batch = training_batch(config, x, mask_generator(s.seed, step))
            loss, norm = train_step(model, losses_of, optimizers, batch, s, lr)
            run.record(loss, norm, lr)          # counts the step, logs every tenth
            if run.evaluation_due():
                with run.clock.paused():
                    result = evaluate(model, x_val, s.seed)
                    result["val_bpb"] = result["val_nll"] / math.log(2) * val.tokens_per_byte
                    if law is not None:
                        result["val_floor"] = float(law.mean())
                    story = one_story(model, tokenizer, s)
                    run.record_evaluation(result, story)        # log, and best.pt
            stop = run.asked_to_stop()          # by Ctrl-C, SIGTERM or the terminal's end
            if stop or run.checkpoint_due():
                with run.clock.paused():
                    run.checkpoint()            # ckpt.pt, all that --resume needs
            if stop:
                break
    leave_processes()           # all but the first process end here
    finish(run, tokenizer, x_val, law)


# ---- What comes before the loop: settings, machine, optimizers -----------------------------------

def resolve(flags: dict):
    """What the flags ask for: Config, Settings, why this preset, and with --resume the checkpoint.

    A flag wins over the preset. A resumed run keeps most of its settings. Raises InputError."""
    preset, why = flags.get("preset", "auto"), "as asked"
    if preset == "auto":
        asked = flags.get("device", "auto").startswith(("auto", "cuda"))
        cuda = asked and torch.cuda.is_available()
        preset, why = ("controlled", "CUDA is present") if cuda else ("toy", "not on CUDA")
    values = dict(PRESETS[preset])
    if preset == "paper" and flags.get("mode") == "mdlm":
        values |= PAPER_MDLM
    values |= flags
    values["preset"] = preset
    values.setdefault("data", Settings.data)
    if not values.get("out_dir"):
        values["out_dir"] = os.path.join("out", f"{values['data']}-{values.get('mode', 'ar')}")

    checkpoint = None
    if flags.get("resume"):
        path = os.path.join(values["out_dir"], "ckpt.pt")
        check_folder(values["out_dir"], resume=True)
        checkpoint = read_checkpoint(path, CHECKPOINT_NEEDS)
        past = checkpoint["config"] | checkpoint["settings"]
        check_resumable(path, flags, past, checkpoint["step"])
        changed = {name: value for name, value in flags.items()
                   if value != "auto" or name in MAY_CHANGE}        # auto decides these anew
        values = past | changed | {"out_dir": values["out_dir"]}
        why = "as it began"

    missing = data_to_prepare(values["data"])
    if missing:
        vocab_size = missing.make_tokenizer().vocab_size
    else:
        vocab_size = load_meta(values["data"])["eot"] + 1
    if values.setdefault("vocab_size", vocab_size) != vocab_size:
        raise InputError(f"--vocab_size={values['vocab_size']}: data/{values['data']} has "
                         f"{vocab_size}; leave it out")
    s, config = build(Settings, values), build(Config, values)
    shares = s.grad_accum * WORLD_SIZE
    if config.mode == "mdlm" and config.schedule == "uniform":
        shares *= 2         # objectives.pack_pairs makes pairs of its rows, which cannot be split
    if s.batch_size % shares:
        raise InputError(f"--batch_size={s.batch_size} must be a multiple of {shares}: of "
                         "--grad_accum times the processes, and for mdlm's pairs of 2")
    return config, s, why, checkpoint


def prepare_machine(s: Settings, device: torch.device):
    """Makes training on this machine repeatable and fast, and decides on dtype=auto."""
    if s.dtype == "auto":
        s.dtype = "bfloat16" if bfloat16_is_faster(device) else "float32"
    if device.type == "cuda" and s.dtype == "bfloat16":
        torch.set_float32_matmul_precision("high")      # TF32, where float32 is left: in evaluation
    if device.type == "cpu":
        prepare_cpu()


def prepare_cpu():
    torch.use_deterministic_algorithms(True)    # else compiled code adds up in any order
    torch.set_flush_denormal(True)      # sharp attention makes tiny numbers, which are slow
    if sys.platform == "linux":
        # The C library shall keep memory that is freed; to ask for it anew costs a tenth more time.
        malloc_options = ctypes.CDLL(None).mallopt
        malloc_options(-4, 0)       # M_MMAP_MAX
        malloc_options(-1, -1)      # M_TRIM_THRESHOLD


def bfloat16_is_faster(device: torch.device) -> bool:
    """Whether the device multiplies matrices faster in bfloat16. On a CPU a trial tells."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    seconds = {torch.bfloat16: math.inf, torch.float32: math.inf}
    for _ in range(50):         # by turns, or a short pause of the machine would decide
        for dtype in seconds:
            x = torch.ones(256, 256, dtype=dtype)
            took = timeit.timeit(lambda: x @ x, number=1)
            seconds[dtype] = min(seconds[dtype], took)
    gain = torch.tensor(seconds[torch.float32] - seconds[torch.bfloat16])
    return mean_over_processes(gain).item() > 0         # all processes must agree


def make_optimizers(model: Transformer, s: Settings) -> list:
    """AdamW for all weights; with --optimizer=muon, Muon for the matrices of the blocks."""
    matrices = []
    if s.optimizer == "muon":
        matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    taken = set(matrices)
    rest = [p for p in model.parameters() if p not in taken]
    adamw = torch.optim.AdamW(rest, betas=(0.9, s.beta2), weight_decay=s.weight_decay, fused=True)
    if not matrices:
        return [adamw]
    return [adamw, Muon(matrices, dict(weight_decay=s.weight_decay))]


class Muon(torch.optim.Optimizer):
    """Nesterov's momentum, made nearly orthogonal (kellerjordan.github.io/posts/muon, 2024).

    Its steps are scaled to the length of AdamW's (arXiv 2502.16982), so that lr serves both.
    torch.optim.Muon always multiplies in bfloat16, which many CPUs do slowly; this one multiplies
    in the precision of training."""

    @torch.no_grad()
    def step(self):
        [group] = self.param_groups
        for p in group["params"]:
            if p not in self.state:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            momentum = self.state[p]["momentum_buffer"].lerp_(p.grad, 0.05)
            step = orthogonalize(p.grad.lerp(momentum, 0.95))
            p.mul_(1 - group["lr"] * group["weight_decay"])
            # The entries of step have a root mean square of about 1/√(longer side), and those of
            # AdamW's steps, before lr, about 0.2.
            p.add_(step, alpha=-0.2 * math.sqrt(max(p.shape)) * group["lr"])


def orthogonalize(x: torch.Tensor) -> torch.Tensor:
    """The matrix x with all its singular values near 1, by five Newton-Schulz steps.

    One of them takes a singular value s to 3.4445 s − 4.775 s³ + 2.0315 s⁵."""
    rows, columns = x.shape
    if rows > columns:
        return orthogonalize(x.mT).mT
    x = x / x.norm().clamp(min=1e-7)    # no singular value is above 1, else the steps may diverge
    for _ in range(5):
        # addmm(a, b, c, beta=…, alpha=…) is beta · a + alpha · b c in one call.
        a = x @ x.mT
        polynomial = torch.addmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.addmm(x, polynomial, x, beta=3.4445)
    return x


def maybe_compiled(s: Settings, device: torch.device):
    """weighted_losses, compiled unless --compile=false. All batches have the same shapes.

    Where it cannot be, for example for want of a C++ compiler, it warns and goes on without. That
    shows when it is first called; what is raised later, or for want of memory, is no such case."""
    if s.compile == "false" or (s.compile == "auto" and device.type == "mps"):
        return weighted_losses
    working = None

    def losses_of(model, batch):
        nonlocal working
        if working:
            return working(model, batch)
        failed = torch.zeros((), device=device)
        try:
            working = torch.compile(weighted_losses, dynamic=False)
            losses = working(model, batch)
        except Exception as e:      # what it raises differs by version and by what is missing
            if is_out_of_memory(e):
                raise
            print(f"warning: torch.compile failed ({type(e).__name__}); going on without it",
                  file=sys.stderr)
            failed += 1
        if mean_over_processes(failed):         # all processes must compute in the same way
            working = weighted_losses
            losses = working(model, batch)
        return losses

    return losses_of


@torch.no_grad()
def start_from(folder: str, model: Transformer, tokenizer: Tokenizer):
    """Set the model to the best weights of a run, maybe of another mode.

    What only this model has, embeddings of target positions or of the timestep, begins at zero and
    so changes nothing: an aogpt that starts from an ar *is* that ar, read left to right. Raises
    InputError where sizes or tokenizers differ."""
    source, its_tokenizer, _ = open_model(folder, "cpu")
    for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "n_hidden", "tie_head",
                 "target_rotation"):
        theirs, ours = getattr(source.config, name), getattr(model.config, name)
        if theirs != ours:
            raise InputError(f"--init_from={folder} has --{name}={theirs}, not {ours}")
    if its_tokenizer.to_dict() != tokenizer.to_dict():
        raise InputError(f"--init_from={folder} has another tokenizer than this data")
    only_ours, only_theirs = model.load_state_dict(source.state_dict(), strict=False)
    if only_theirs:
        raise InputError(f"--init_from={folder} has {', '.join(only_theirs)}, this model has not")
    for name in only_ours:
        model.get_parameter(name).zero_()


def announce(run: Run, why: str, windows: Windows, law):
    """What is about to happen, on the screen and in config.json."""
    s, model = run.s, run.model
    config, device = model.config, model.head.weight.device
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parameters = count_parameters(model)
    epochs = s.max_steps * s.batch_size / len(windows)
    megaflops = flops_per_token(config) / 1e6
    print(f"preset {s.preset} ({why}): {config.mode} on data/{s.data}, {s.max_steps:,} steps of "
          f"{s.batch_size} windows of {config.block_size} tokens, {epochs:.1f} epochs")
    print(f"{parameters:,} parameters, {megaflops:.1f} training MFLOP per token; "
          f"{WORLD_SIZE} x {machine}, {s.dtype}")
    if s.windows != "aligned":
        print("windows and samples begin anywhere in the text")
    if law is not None:
        print(f"the true law of the toy itself scores {law.mean():.4f} nats per token")
    if run.step:
        print(f"going on after step {run.step:,}; the learning rate goes on along the cosine of "
              f"{s.max_steps:,} steps, from {learning_rate(s, run.step):.2g}")
    if RANK == 0:
        origin = provenance(s.seed)
        if run.step and run.path("config.json").exists():       # keep what the run began with
            began = json.loads(run.path("config.json").read_text())
            origin = {name: began.get(name) for name in origin}
        facts = dict(
            config=asdict(config),
            settings=asdict(s),
            parameters=parameters,
            device=machine,
            processes=WORLD_SIZE,
            train_windows=len(windows),
            torch=torch.__version__,
        )
        write_json(run.path("config.json"), facts | origin)


# ---- Stories of the model, and the end of a run --------------------------------------------------

def sample_stories(model, tokenizer: Tokenizer, count: int, s: Settings, steps: int) -> list:
    """Stories of the model as it is now, from the same noise each time; mdlm in so many steps."""
    config = model.eval().config
    o = SampleOptions(seed=s.seed)
    if config.mode == "mdlm":
        o.steps = min(steps, config.block_size)
    blank = torch.full((config.block_size,), config.mask_id)
    tokens, _ = generate(model, range(count), blank, o)
    return [tokenizer.decode_story(ids) for ids in tokens.tolist()]


def one_story(model, tokenizer: Tokenizer, s: Settings) -> str:
    """The beginning of what the model writes now; nothing with --quiet."""
    if s.quiet:
        return ""
    [story] = sample_stories(model, tokenizer, 1, s, steps=64)
    on_one_line = " ".join(printable(story).split())
    beginning, *rest = textwrap.wrap(on_one_line, 298) or [""]
    return f"{beginning} …" if rest else beginning


FINAL_DRAWS = 16        # pairs of masks, or orders, for each window in the last evaluation


def finish(run: Run, tokenizer: Tokenizer, x_val: torch.Tensor, law):
    """The figure; then what the best model is worth, three of its stories and the next command."""
    s, config = run.s, run.model.config
    if run.best < math.inf:     # there has been an evaluation
        draw_losses({f"{config.mode} on {s.data}": read_run(s.out_dir)}, run.path("loss.png"))
    if run.step < s.max_steps:
        exit_stopped(run)       # this does not return

    model, best = load(run.path("best.pt"), run.model.head.weight.device)
    draws = FINAL_DRAWS if config.mode in ("mdlm", "aogpt") else 1
    losses = window_losses(model, x_val, s.seed, draws)                         # (N,)
    nll, error = mean_and_error(losses)
    final = {"best_step": best["step"], "final_nll": nll, "final_nll_se": error}
    kind = {"mdlm": f", an upper bound from {draws} pairs of masks a window",
            "aogpt": f", an upper bound from {draws} orders a window"}.get(config.mode, "")
    print(f"the best model, of step {best['step']:,}, has {nll:.4f} ± {error:.4f} nats per token"
          f"{kind}")
    if law is not None:
        above, error = mean_and_error(losses - torch.from_numpy(law))
        final |= {"above_law": above, "above_law_se": error}
        print(f"that is {above:.4f} ± {error:.4f} above the true law")
    print("(± is the standard error over windows)\n")
    run.log(**final)
    for story in sample_stories(model, tokenizer, 3, s, steps=config.block_size):
        print(printable(story), end="\n\n")
    print(f"{s.out_dir} holds best.pt, log.jsonl and loss.png; next: python sample.py "
          f"--out_dir={shlex.quote(s.out_dir)} --show")


def exit_stopped(run: Run):
    """Says how to go on, and exits as a program does that was ended by a signal."""
    program = "python"
    if WORLD_SIZE > 1:
        program = f"torchrun --standalone --nproc_per_node={WORLD_SIZE}"
    arguments = [argument for argument in sys.argv if argument != "--resume"]
    print(f"stopped and saved; go on with: {program} {shlex.join(arguments)} --resume",
          file=sys.stderr)      # Ctrl-C may have ended what reads the output
    kind = run.signals[0] if run.signals else signal.SIGTERM    # another process may have had it
    raise SystemExit(128 + kind)


if __name__ == "__main__":
    command(main, "a checkpoint saved before, if any, is kept")
