"""
A run's folder, and what must not go wrong around the training loop.

A checkpoint is whole or not there (save), a damaged file is named (usable), two processes never
train in one folder (open_locked), a resumed run goes on as it began (past_of), numbers that are not
finite stop it (Run.log), and a run that is told to stop saves first (Run.training).
"""
import base64
import contextlib
import json
import math
import os
import shlex
import signal
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from support.flags import InputError, on_stop, printable, provenance, write_json
from support.pictures import draw_losses
from support.processes import RANK, WORLD_SIZE, mean_over_processes, wait_for_processes
from support.rows import open_locked, usable

FORMAT = 2              # of checkpoints
LOG_EVERY = 10          # steps between two lines of the log
# These flags may differ from what they were when a run is resumed.
MAY_CHANGE = {"resume", "out_dir", "max_steps", "save_minutes", "quiet", "grad_accum", "device",
              "dtype", "compile"}


# ---- Checkpoints: plain dicts of plain tensors, readable with weights_only=True ------------------

def save(path, model, **extra):
    """Write the model and anything else that is plain, whole or not at all. Raises OSError."""
    content = {"format": FORMAT, "config": asdict(model.config), "model": model.state_dict()}
    unfinished = Path(f"{path}.tmp")
    try:
        with open(unfinished, "wb") as file:
            torch.save(content | extra, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as e:
        unfinished.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written ({e}); is the disk full? An older one, "
                      "if any, is kept") from e
    unfinished.replace(path)


def as_plain(model) -> dict:
    """What JSON can hold of a model: its configuration, and its weights as base64 of float16.

    The embedding, which is the head too, is left without the rows that only pad it."""
    config = model.config
    weights = {name: p.detach() for name, p in model.named_parameters()}
    weights["embed.weight"] = weights["embed.weight"][:config.mask_id + 1]
    halves = {name: p.half().numpy().astype("<f2") for name, p in weights.items()}
    return {
        "config": asdict(config) | {"bos_id": config.bos_id, "mask_id": config.mask_id},
        "weights": {name: base64.b64encode(p.tobytes()).decode() for name, p in halves.items()},
    }


def read_checkpoint(path):
    """The entries of a checkpoint, on the CPU. Raises OSError if there is none, or a bad one."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no checkpoint at {path}; train one with train.py, to its first "
                                "evaluation")
    with usable(path):
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["format"] != FORMAT:
            raise ValueError(f"it has format {checkpoint['format']}, this code reads {FORMAT}; "
                             "train again, or use the commit that config.json beside it names")
    return checkpoint


def config_class(variant):
    """The Config of model.py, or of the file of variants/ with this name. Raises InputError."""
    if variant in ("", "model"):
        return import_module("model").Config
    return import_module("variants").config_of(variant.removeprefix("variants."))


def load(path, device="cpu"):
    """The model of a checkpoint, and the other entries. Raises OSError, InputError."""
    checkpoint = read_checkpoint(path)
    with usable(path):
        config = config_class(checkpoint["variant"])(**checkpoint.pop("config"))
        model = config.row.network(config)
        model.load_state_dict(checkpoint.pop("model"))
    return model.to(device).eval(), checkpoint


# ---- The folder ----------------------------------------------------------------------------------

def read_log(folder):
    """The lines of the run's log.jsonl, each {name: number}."""
    *lines, _ = Path(folder, "log.jsonl").read_text().split("\n")       # the last may be cut off
    return list(map(json.loads, lines))


def read_run(folder):
    """The run's config.json, with the evaluations of log.jsonl as "curve", and the one at its end.

    The latter is "final", and None as long as training has not ended. Raises OSError."""
    with usable(folder, "run"):
        log = read_log(folder)
        run = json.loads(Path(folder, "config.json").read_text())
        run["curve"] = [entry for entry in log if "val_nll" in entry]
        run["final"] = next((entry for entry in log if "final_nll" in entry), None)
        if not run["curve"]:
            raise ValueError("it has no evaluation yet; let it train on")
        return run


# What must be known of a run that a number came from.
ORIGIN = "machine", "device", "dtype", "torch", "commit", "seed"


def origin_of(folder):
    """Where and how the run was trained, for the JSON of what is measured of it.

    Nothing is known of a folder without config.json, into which only best.pt was copied."""
    path = Path(folder, "config.json")
    if not path.exists():
        return {}
    run = json.loads(path.read_text())
    return {name: run.get(name, run["settings"].get(name)) for name in ORIGIN}


def check_folder(folder, resume):
    """Raises InputError where a new run would take the place of another one."""
    for name in "best.pt", "ckpt.pt":
        if Path(folder, name).exists() and not resume:
            raise InputError(f"{folder} holds {name} of a run; delete it or choose another "
                             "--out_dir, or go on with --resume if it has a ckpt.pt")


def past_of(folder, flags):
    """The settings of a run that is to go on, with the flags in their place.

    Raises InputError for flags that contradict the settings that the run began with. A setting that
    was added to the code since then may be given."""
    path = os.path.join(folder, "ckpt.pt")
    checkpoint = read_checkpoint(path)
    with usable(path):
        past = checkpoint["config"] | checkpoint["settings"]
    fixed = past.keys() - MAY_CHANGE
    for name in flags.keys() & fixed:
        if flags[name] not in ("auto", past[name]):
            raise InputError(f"{path} was made with --{name}={past[name]}, not {flags[name]}; "
                             "leave the flag out, because a resumed run keeps its settings")
    decided = {name: flags[name] for name in flags.keys() - fixed}
    return past | decided | {"out_dir": folder}


# ---- The run -------------------------------------------------------------------------------------

def random_numbers(*seed: int) -> torch.Generator:
    """Random numbers from one or more integers, such as a run's seed and the number of a step.

    They come from the CPU, so a run draws the same on every device, and after it was resumed."""
    state = np.random.SeedSequence(seed).generate_state(1)[0]
    return torch.Generator().manual_seed(int(state))


class Run:
    """A run under way: how far it is, its log, and its files.

    s is train.py's Settings. trained_on has plain values that sampling needs and that a resumed run
    must find unchanged: the tokenizer and the like. With s.resume the run goes on, from its newest
    checkpoint. Raises InputError where the folder is in use, or does not fit."""

    def __init__(self, s, model, optimizers, trained_on):
        self.s, self.model, self.optimizers, self.trained_on = s, model, optimizers, trained_on
        self.path = Path(s.out_dir).joinpath
        self.step = 0                   # steps done
        self.best = math.inf            # the lowest val_nll so far
        self.seconds = 0.0              # of training, without its first step, which compiles
        self.last_tick = None           # up to when they are counted
        self.recent = []                # (2,) loss and gradient norm of each step not yet logged
        self.last_save = -math.inf      # so the first checkpoint comes with the first log line
        self.signals = []               # received; see `training`
        self.origin = provenance(s.seed)
        if RANK == 0:
            self.path().resolve().mkdir(parents=True, exist_ok=True)    # it may be a link
            self.log_file = open_locked(self.path("log.jsonl"))
            check_folder(s.out_dir, s.resume)       # another run may have begun and ended meanwhile
        wait_for_processes()
        if s.resume:                                # or may have gone on
            self.restore(read_checkpoint(self.path("ckpt.pt")))
        elif RANK == 0:
            self.log_file.truncate(0)

    def restore(self, checkpoint):
        """Go on from a checkpoint."""
        for name, value in self.trained_on.items():
            if checkpoint.get(name, value) != value:
                raise InputError(f"data/{self.s.data} has another {name} than the run in "
                                 f"{self.s.out_dir} was trained on; restore that")
        with usable(self.s.out_dir, "run"):
            self.model.load_state_dict(checkpoint["model"])
            for optimizer, state in zip(self.optimizers, checkpoint["optimizers"]):
                optimizer.load_state_dict(state)
            self.step, self.best = checkpoint["step"], checkpoint["best"]
            self.seconds = checkpoint["seconds"]
            self.origin = checkpoint.get("origin", self.origin)
            if RANK == 0:                   # what came after is trained again
                self.log_file.truncate(min(self.log_size(), checkpoint["log"]))

    def log_size(self):
        """Bytes of the log, all of which are on the disk."""
        os.fsync(self.log_file.fileno())
        return self.path("log.jsonl").stat().st_size

    @contextlib.contextmanager
    def training(self):
        """Around the loop: a progress bar; and the first Ctrl-C, or the like, only asks to stop."""
        def note(number, frame):
            # Before the first step has ended nothing could be saved. And the compiler, which is at
            # work in it, gets a terminal's signals too, so what it makes then is not to be used.
            again = self.signals and number == signal.SIGINT        # others may come twice
            if WORLD_SIZE == 1 and (again or self.last_tick is None):
                raise KeyboardInterrupt
            self.signals.append(number)
            with contextlib.suppress(OSError):          # nobody may be reading any more
                os.write(2, b"\nstopping when all is logged; another Ctrl-C stops at once\n")

        on_stop(note)
        with tqdm(total=self.s.max_steps, initial=self.step, unit="step", dynamic_ncols=True,
                  disable=True if RANK else None) as self.bar:
            yield
        on_stop(signal.default_int_handler)

    def say(self, text):
        """Prints a text, above the progress bar, that may have words from files."""
        tqdm.write(printable(text))         # only the first process has an output

    @contextlib.contextmanager
    def paused(self):
        """What is done in this block, when all steps are logged, does not count as training."""
        yield
        self.last_tick = time.perf_counter()

    def evaluation_due(self):
        return self.step % self.s.eval_interval == 0 or self.step == self.s.max_steps

    def record(self, loss, norm, lr):
        """One more step is done. Every tenth is logged; raises InputError if it is not finite."""
        self.step += 1
        self.recent.append(torch.stack([loss, norm]))
        self.bar.update()
        if self.last_tick is None:
            self.last_tick = time.perf_counter()
            self.last_logged = self.step
        if self.step % LOG_EVERY == 0 or self.evaluation_due():
            self.log_training(lr)

    def log_training(self, lr):
        """A line for the steps since the last one: their mean loss, and tokens per second."""
        recent = mean_over_processes(torch.stack(self.recent))                  # (steps, 2)
        losses, norms = recent.unbind(dim=1)                                    # (steps,) each
        train_loss = losses.mean().item()       # this waits for the device
        now = time.perf_counter()
        seconds = now - self.last_tick
        self.seconds += seconds
        tokens = (self.step - self.last_logged) * self.s.batch_size * self.model.config.block_size
        tok_per_s = tokens / seconds
        self.log(train_loss=train_loss, max_grad_norm=norms.max().item(), lr=lr,
                 tok_per_s=tok_per_s)
        self.bar.set_postfix_str(f"loss {train_loss:.3f}, {tok_per_s:,.0f} tok/s")
        self.recent = []
        self.last_logged, self.last_tick = self.step, now

    def record_evaluation(self, result):
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
        if not all(map(math.isfinite, entry.values())):
            raise InputError(f"something is not finite: {entry}; an older ckpt.pt, if any, is "
                             "kept; try a lower --lr, more --warmup or --dtype=float32")
        if RANK == 0:
            print(json.dumps(entry), file=self.log_file)

    def asked_to_stop(self):
        """Whether a signal came to any of the processes. They ask when all steps are logged."""
        if self.recent:
            return False
        count = torch.tensor(float(len(self.signals)), device=self.model.head.weight.device)
        return bool(mean_over_processes(count))

    def checkpoint_due(self):
        """At the end, and before it every s.save_minutes, as soon as all steps are logged."""
        minutes = (time.perf_counter() - self.last_save) / 60
        return self.step == self.s.max_steps or (minutes >= self.s.save_minutes and not self.recent)

    def checkpoint(self):
        """Writes ckpt.pt. Raises OSError."""
        if RANK == 0:
            save(
                self.path("ckpt.pt"),
                self.model,
                **self.trained_on,
                step=self.step,
                best=self.best,
                seconds=self.seconds,
                origin=self.origin,
                log=self.log_size(),
                settings=asdict(self.s),
                optimizers=[optimizer.state_dict() for optimizer in self.optimizers],
            )
        self.last_save = time.perf_counter()

    def write_config(self, **facts):
        """config.json: the settings and these facts, and where the run was begun."""
        if RANK == 0:
            write_json(self.path("config.json"), self.origin | facts | {
                "config": asdict(self.model.config),
                "settings": asdict(self.s),
                "drawn": self.model.config.row.drawn,
                "device": self.device_name(),
                "processes": WORLD_SIZE,
                "torch": torch.__version__})

    def device_name(self):
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
        resume = "" if self.s.resume else " --resume"
        again = f"{program} {shlex.join(sys.argv)}{resume}"
        print(f"stopped and saved; go on with: {again}", file=sys.stderr)
        # With torchrun the signal may have come to another process.
        kind = self.signals[0] if self.signals else signal.SIGTERM
        raise SystemExit(128 + kind)
