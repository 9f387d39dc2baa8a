"""
A run's folder, and what must not go wrong around the training loop.

A checkpoint is whole or not there (save), a damaged one is named (load), two processes never train
in one folder (open_locked), a resumed run goes on as it began (past_of), numbers that are not
finite stop it (check_finite), and a run that is told to stop saves first (Run.training).
"""
import contextlib
import json
import math
import os
import pickle
import shlex
import signal
import sys
import time
import zipfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from support.flags import InputError, on_stop, provenance, write_json
from support.pictures import draw_losses
from support.processes import RANK, WORLD_SIZE, mean_over_processes

try:
    import fcntl
except ImportError:     # on Windows nothing keeps two processes out of one folder
    fcntl = None

FORMAT = 2              # of checkpoints
LOG_EVERY = 10          # steps between two lines of the log
# These flags may differ from what they were when a run is resumed.
MAY_CHANGE = ("resume", "out_dir", "max_steps", "save_minutes", "quiet", "grad_accum", "device",
              "dtype", "compile")


# ---- Checkpoints: plain dicts of plain tensors, readable with weights_only=True ------------------

def save(path, model: torch.nn.Module, **extra):
    """Write the model and anything else that is plain, whole or not at all. Raises OSError."""
    content = {"format": FORMAT, "config": asdict(model.config), "model": model.state_dict()}
    content |= extra
    unfinished = Path(f"{path}.tmp")
    try:
        with open(unfinished, "wb") as f:
            torch.save(content, f)
            f.flush()
            os.fsync(f.fileno())
    except (OSError, RuntimeError) as e:
        unfinished.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written ({e}); is the disk full? An older one, "
                      "if any, is kept") from e
    os.replace(unfinished, path)


@contextlib.contextmanager
def usable(path):
    """Whatever goes wrong in this block is said of the checkpoint at this path. Raises OSError."""
    try:
        yield
    except Exception as e:      # torch raises a dozen kinds of errors for a damaged or foreign file
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        if isinstance(e, pickle.UnpicklingError):
            reason = "it is damaged, or holds code"
        raise OSError(f"{path} is not a usable checkpoint: {reason}") from e


def read_checkpoint(path) -> dict:
    """The entries of a checkpoint, on the CPU. Raises OSError if there is none, or a bad one."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no checkpoint at {path}; train one with train.py, to its first "
                                "evaluation")
    with usable(path):
        with zipfile.ZipFile(path) as file:     # torch does not look at its checksums
            damaged = file.testzip()
        if damaged:
            raise ValueError(f"its part {damaged} has changed since it was written")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["format"] != FORMAT:
            raise ValueError(f"it has format {checkpoint['format']}, this code reads {FORMAT}; "
                             "train again, or use the commit that config.json beside it names")
    return checkpoint


def config_class(variant: str):
    """The Config of model.py, or of the file of variants/ with this name. Raises InputError."""
    if variant in ("", "model"):
        return import_module("model").Config
    return import_module("variants").config_of(variant.rpartition(".")[2])


def load(path, device="cpu"):
    """The model of a checkpoint, and the other entries. Raises OSError, InputError."""
    checkpoint = read_checkpoint(path)
    with usable(path):
        config = config_class(checkpoint["variant"])(**checkpoint.pop("config"))
        model = config.row.network(config)
        model.load_state_dict(checkpoint.pop("model"))
    return model.to(device).eval(), checkpoint


# ---- The folder ----------------------------------------------------------------------------------

def read_run(folder: str) -> dict:
    """The run's config.json, with the evaluations of log.jsonl as "curve", and the one at its end.

    The latter is "final", and None as long as training has not ended. Raises InputError."""
    try:
        run = json.loads(Path(folder, "config.json").read_text())
        lines = Path(folder, "log.jsonl").read_text().split("\n")
        log = [json.loads(line) for line in lines[:-1]]         # the last is empty, or was cut off
        run["curve"] = [entry for entry in log if "val_nll" in entry]
        run["final"] = next((entry for entry in log if "final_nll" in entry), None)
    except (OSError, ValueError, TypeError) as e:
        raise InputError(f"{folder} holds no readable run ({e!r}); choose another") from e
    if not run["curve"]:
        raise InputError(f"{folder} has no evaluation yet; let it train on")
    return run


# What must be known of a run that a number came from.
ORIGIN = "machine", "device", "dtype", "torch", "commit", "seed"


def origin_of(folder: str) -> dict:
    """Where and how the run was trained, for the JSON of what is measured of it.

    Nothing is known of a folder without config.json, into which only best.pt was copied."""
    path = Path(folder, "config.json")
    if not path.exists():
        return {}
    run = json.loads(path.read_text())
    return {name: run.get(name, run["settings"].get(name)) for name in ORIGIN}


def check_folder(folder: str, resume: bool):
    """Raises InputError where a new run would take the place of another one."""
    if not resume and any(Path(folder, name).exists() for name in ("ckpt.pt", "best.pt")):
        raise InputError(f"{folder} holds a run already; go on with --resume, or choose another "
                         "--out_dir")


def open_locked(path):
    """The file, to append lines to, locked until it is closed. Raises InputError if it was."""
    file = open(path, "a", buffering=1, encoding="utf-8")
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise InputError(f"another process is writing {path}; wait, or write elsewhere") from e
    except OSError as e:        # some network file systems have no locks
        print(f"warning: {path} cannot be locked ({e.strerror}); let no other process write it",
              file=sys.stderr)
    return file


def past_of(folder: str, flags: dict) -> tuple:
    """The checkpoint of a run that is to go on, and its settings, with the flags in their place.

    Raises InputError for flags that contradict the settings that the run began with. A setting that
    was added to the code since then may be given."""
    path = os.path.join(folder, "ckpt.pt")
    checkpoint = read_checkpoint(path)
    past, step = checkpoint["config"] | checkpoint["settings"], checkpoint["step"]
    decided = {}
    for name, value in flags.items():
        if name in MAY_CHANGE or name not in past:
            decided[name] = value
        elif value not in ("auto", past[name]):
            raise InputError(f"{path} was made with --{name}={past[name]}, not {value}; leave the "
                             "flag out, because a resumed run keeps its settings")
    max_steps = flags.get("max_steps", past["max_steps"])
    if max_steps <= step and max_steps != past["max_steps"]:
        raise InputError(f"--max_steps={max_steps}: {path} has made {step} steps; give more")
    return checkpoint, past | decided | {"out_dir": folder}


def check_finite(entry: dict):
    """Raises InputError, because it is a run's settings that let it diverge."""
    if not all(map(math.isfinite, entry.values())):
        values = ", ".join(f"{name} {value:.4g}" for name, value in entry.items())
        raise InputError(f"near step {entry['step']:,} something is not finite: {values}; an older "
                         "ckpt.pt, if any, is kept; try a lower --lr, more --warmup or "
                         "--dtype=float32")


# ---- The run -------------------------------------------------------------------------------------

def random_numbers(*seed: int) -> torch.Generator:
    """Random numbers from one or more integers, such as a run's seed and the number of a step.

    They come from the CPU, so a run draws the same on every device, and after it was resumed."""
    state = np.random.SeedSequence(seed).generate_state(1)[0]
    return torch.Generator().manual_seed(int(state))


class Run:
    """A run under way: how far it is, its log, and its files.

    s is train.py's Settings. trained_on has plain values that sampling needs and that a resumed run
    must find unchanged: the tokenizer and the like. With a checkpoint the run goes on from there.
    Raises InputError where the folder is in use, or does not fit."""

    def __init__(self, s, model, optimizers: list, trained_on: dict, checkpoint: dict | None):
        self.s, self.model, self.optimizers, self.trained_on = s, model, optimizers, trained_on
        self.path = Path(s.out_dir).joinpath
        self.step = 0                   # steps done
        self.best = math.inf            # the lowest val_nll so far
        self.seconds = 0.0              # of training, without its first step, which compiles
        self.last_tick = None           # up to when they are counted
        self.recent = []                # (2,) loss and gradient norm of each step not yet logged
        self.last_save = -math.inf      # so the first checkpoint comes with the first log line
        self.signals = []               # received; see `training`
        log_size = 0
        if checkpoint:
            self.restore(checkpoint)
            log_size = checkpoint["log"]
        if RANK == 0:
            os.makedirs(s.out_dir, exist_ok=True)
            self.log_file = open_locked(self.path("log.jsonl"))
            if os.fstat(self.log_file.fileno()).st_size < log_size:
                raise InputError(f"{self.path('log.jsonl')} has lost lines; restore it")
            self.log_file.truncate(log_size)    # what came after the checkpoint is trained again

    def restore(self, checkpoint: dict):
        """Go on from a checkpoint."""
        for name, value in self.trained_on.items():
            if checkpoint[name] != value:
                raise InputError(f"data/{self.s.data} is not what {self.path('ckpt.pt')} was "
                                 f"trained on: its {name} differs; restore it")
        self.model.load_state_dict(checkpoint["model"])
        for optimizer, state in zip(self.optimizers, checkpoint["optimizers"]):
            optimizer.load_state_dict(state)
        self.step, self.best = checkpoint["step"], checkpoint["best"]
        self.seconds = checkpoint["seconds"]
        self.recent = list(torch.tensor(checkpoint["recent"], device=self.model.head.weight.device))

    @contextlib.contextmanager
    def training(self):
        """Around the loop: a progress bar; and the first Ctrl-C, or the like, only asks to stop."""
        def note(number, frame):
            # With torchrun each signal comes twice, and so does that of a terminal which closes.
            if self.signals and number == signal.SIGINT and WORLD_SIZE == 1:
                raise KeyboardInterrupt
            self.signals.append(number)
            if WORLD_SIZE > 1:
                return
            with contextlib.suppress(OSError):      # nobody may be reading any more
                os.write(2, b"\nfinishing this step, then saving; another Ctrl-C stops at once\n")

        handlers = on_stop(note)
        try:
            with tqdm(total=self.s.max_steps, initial=self.step, unit="step", dynamic_ncols=True,
                      disable=True if RANK else None) as self.bar:
                yield
        finally:
            for kind, handler in handlers.items():
                signal.signal(kind, handler)

    def say(self, text: str):
        """Prints a line, above the progress bar."""
        tqdm.write(text)        # only the first process has an output

    def count_seconds(self):
        now = time.perf_counter()
        self.seconds += now - self.last_tick
        self.last_tick = now

    @contextlib.contextmanager
    def paused(self):
        """What is done in this block does not count as training."""
        self.count_seconds()
        yield
        self.last_tick = time.perf_counter()

    def evaluation_due(self) -> bool:
        return self.step % self.s.eval_interval == 0 or self.step == self.s.max_steps

    def record(self, loss: torch.Tensor, norm: torch.Tensor, lr: float):
        """One more step is done. Every tenth is logged; raises InputError if it is not finite."""
        self.step += 1
        self.recent.append(torch.stack([loss, norm]))
        self.bar.update()
        if self.last_tick is None:
            self.last_tick = time.perf_counter()
            self.last_logged = self.step, self.seconds
        if self.step % LOG_EVERY == 0 or self.evaluation_due():
            self.log_training(lr)

    def log_training(self, lr: float):
        """A line for the steps since the last one: their mean loss, and tokens per second."""
        recent = mean_over_processes(torch.stack(self.recent))                  # (steps, 2)
        losses, norms = recent.unbind(dim=1)                                    # (steps,) each
        train_loss = losses.mean().item()       # this waits for the device
        self.count_seconds()
        step, seconds = self.last_logged
        tokens = (self.step - step) * self.s.batch_size * self.model.config.block_size
        tok_per_s = tokens / (self.seconds - seconds)
        self.log(train_loss=train_loss, max_grad_norm=norms.max().item(), lr=lr,
                 tok_per_s=tok_per_s)
        self.bar.set_postfix_str(f"loss {train_loss:.3f}, {tok_per_s:,.0f} tok/s")
        self.recent = []
        self.last_logged = self.step, self.seconds

    def record_evaluation(self, result: dict):
        """A line in the log and on the screen; best.pt, if val_nll is the lowest so far."""
        self.log(**result)
        values = ", ".join(f"{name} {value:.4f}" for name, value in result.items())
        self.say(f"step {self.step:,}: {values}")
        if result["val_nll"] < self.best:
            self.best = result["val_nll"]
            if RANK == 0:
                save(self.path("best.pt"), self.model, step=self.step, val_nll=self.best,
                     **self.trained_on)

    def log(self, **entry):
        """A line of log.jsonl. Raises InputError if a number is not finite."""
        entry = {"step": self.step, "seconds": self.seconds, **entry}
        check_finite(entry)
        if RANK == 0:
            print(json.dumps(entry), file=self.log_file)

    def asked_to_stop(self) -> bool:
        """Whether a signal came. Several processes ask each other, to stop after the same step."""
        if WORLD_SIZE == 1:
            return bool(self.signals)
        if self.step % LOG_EVERY:
            return False
        count = torch.tensor(float(len(self.signals)), device=self.model.head.weight.device)
        return bool(mean_over_processes(count))

    def checkpoint_due(self) -> bool:
        """At the end, and before it every s.save_minutes, as soon as the log has all steps."""
        minutes = (time.perf_counter() - self.last_save) / 60
        return self.step == self.s.max_steps or (minutes >= self.s.save_minutes and not self.recent)

    def checkpoint(self):
        """Writes ckpt.pt. Raises InputError if the last steps are not finite; OSError."""
        recent = [row.tolist() for row in self.recent]
        for loss, norm in recent:
            check_finite({"step": self.step, "train_loss": loss, "grad_norm": norm})
        if RANK == 0:
            os.fsync(self.log_file.fileno())
            save(
                self.path("ckpt.pt"),
                self.model,
                **self.trained_on,
                step=self.step,
                best=self.best,
                seconds=self.seconds,
                recent=recent,
                log=os.fstat(self.log_file.fileno()).st_size,
                settings=asdict(self.s),
                optimizers=[optimizer.state_dict() for optimizer in self.optimizers],
            )
        self.last_save = time.perf_counter()

    def write_config(self, **facts):
        """config.json: the settings and these facts, and where the run was begun."""
        if RANK > 0:
            return
        origin = provenance(self.s.seed)
        if self.step:                       # keep what the run began with
            began = json.loads(self.path("config.json").read_text())
            origin = {name: began[name] for name in origin}
        facts |= {
            "config": asdict(self.model.config),
            "settings": asdict(self.s),
            "device": self.device_name(),
            "processes": WORLD_SIZE,
            "torch": torch.__version__,
        }
        write_json(self.path("config.json"), facts | origin)

    def device_name(self) -> str:
        device = self.model.head.weight.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    def draw_curve(self):
        """loss.png, if there has been an evaluation."""
        if self.best < math.inf:
            name = f"{self.model.config.mode} on {self.s.data}"
            draw_losses({name: read_run(self.s.out_dir)}, self.path("loss.png"))

    def exit_stopped(self):
        """Says how to go on, and exits as a program does that was ended by a signal."""
        program = "python"
        if WORLD_SIZE > 1:
            program = f"torchrun --standalone --nproc_per_node={WORLD_SIZE}"
        arguments = [argument for argument in sys.argv if argument != "--resume"]
        print(f"stopped and saved; go on with: {program} {shlex.join(arguments)} --resume",
              file=sys.stderr)      # Ctrl-C may have ended what reads the output
        # With torchrun the signal may have come to another process.
        kind = self.signals[0] if self.signals else signal.SIGTERM
        raise SystemExit(128 + kind)
