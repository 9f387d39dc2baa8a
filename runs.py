"""
A run's folder (its files: see train.py), and what must not go wrong around the training loop. Each promise
is a function: a checkpoint is whole or not there (save), a damaged one is named (load), two processes never
train in one folder (open_locked), a resumed run is the same run (check_resumable), nothing that is not finite
is kept (check_finite), a run that is told to stop saves first (Run.asked_to_stop). See tests/test_faults.py.
"""
import contextlib
import datetime
import json
import math
import os
import pickle
import signal
import sys
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm

from cli import InputError, pick_device
from model import Config, Transformer
from prepare_data import Tokenizer

try:
    import fcntl
except ImportError:     # Windows: nothing keeps two processes out of one folder there
    fcntl = None

FORMAT = 1              # of checkpoints
MAY_CHANGE = set("resume out_dir preset save_minutes quiet grad_accum device dtype compile".split())

# ---- Several processes: each trains on its share of every batch; the first one speaks and writes -----------

RANK, WORLD_SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))     # by torchrun

def join_processes(device: str) -> torch.device:
    """This process's device, connected to the others."""
    if WORLD_SIZE > 1 and device == "auto":     # not mps: gloo adds up on the CPU only
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if WORLD_SIZE > 1 and device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    device = pick_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if WORLD_SIZE > 1:
        hour = datetime.timedelta(hours=1)      # the others wait while the first one prepares the data
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=hour,
                                             device_id=device if device.type == "cuda" else None)
    if RANK:
        sys.stdout = open(os.devnull, "w")
    return device

def wait_for_processes():
    """Until all have come here."""
    if WORLD_SIZE > 1:
        torch.distributed.barrier()

def sum_over_processes(x: torch.Tensor) -> torch.Tensor:
    """x, now the sum over processes in each of them."""
    if WORLD_SIZE > 1:
        torch.distributed.all_reduce(x)
    return x

def leave_processes():
    """The first one goes on alone, once all have done their share."""
    wait_for_processes()
    if WORLD_SIZE > 1:
        torch.distributed.destroy_process_group()
    if RANK:
        os._exit(0)     # an orderly end may abort in torch's threads, and torchrun would end all

# ---- Checkpoints: plain dicts of plain tensors, readable with weights_only=True ----------------------------

def save(path: str, model: Transformer, **extra):
    """Write the model and anything else that is plain, whole or not at all. Raises OSError."""
    content = {"format": FORMAT, "config": asdict(model.config), "model": model.state_dict(), **extra}
    try:
        with open(f"{path}.tmp", "wb") as f:
            torch.save(content, f)
            f.flush()
            os.fsync(f.fileno())
    except (OSError, RuntimeError) as e:
        Path(f"{path}.tmp").unlink(missing_ok=True)
        reason = e if isinstance(e, OSError) else e.__context__ or "is the disk full?"  # torch's is mute
        raise OSError(f"{path} could not be written ({reason}); the one before, if any, is kept") from e
    os.replace(f"{path}.tmp", path)

def load(path: str, device="cpu", needs=()):
    """The model, and the checkpoint's other entries, `needs` among them. Raises OSError: none, or no good."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no checkpoint at {path}; train one with train.py, to its first evaluation")
    try:
        with zipfile.ZipFile(path) as file:     # torch checks no CRC, and skips parts marked as folders
            folders = [part.filename for part in file.infolist() if part.external_attr & 16]
            if damaged := file.testzip() or ", ".join(folders):
                raise ValueError(f"its part {damaged} has changed since it was written")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["format"] != FORMAT:
            raise ValueError(f"it has format {checkpoint['format']}, this code reads {FORMAT}")
        if missing := [name for name in ("config", "model", *needs) if name not in checkpoint]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        model = Transformer(Config(**checkpoint.pop("config")))
        model.load_state_dict(checkpoint.pop("model"))
    except Exception as e:      # torch, zipfile and pickle raise a dozen kinds for a damaged or foreign file
        if isinstance(e, MemoryError) or "can't allocate memory" in str(e):
            raise
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        if isinstance(e, pickle.UnpicklingError):
            reason = "it holds code, not only tensors and plain values"
        raise OSError(f"{path} is not a usable checkpoint: {reason}") from e
    return model.to(device).eval(), checkpoint

# ---- The folder --------------------------------------------------------------------------------------------

def open_model(folder: str, device: str, dtype: str = "float32"):
    """The best model of a run; its tokenizer, and how its training windows were cut."""
    model, checkpoint = load(os.path.join(folder, "best.pt"), pick_device(device), ("tokenizer", "windows"))
    for p in model.parameters():        # not model.to(): the rotary table, a buffer, stays float32
        p.data = p.data.to(getattr(torch, dtype))
    return model, Tokenizer(**checkpoint["tokenizer"]), checkpoint["windows"]

def read_run(folder: str) -> dict:
    """config.json, with log.jsonl's evaluations as "curve", its [step, train_loss] as "training"."""
    try:
        run = json.loads(Path(folder, "config.json").read_text())
        lines = Path(folder, "log.jsonl").read_text().split("\n")
        log = [json.loads(line) for line in lines[:-1]]             # the last is empty, or was cut off
        run["curve"] = [entry for entry in log if "val_nll" in entry]
        run["training"] = [[entry["step"], entry["train_loss"]] for entry in log if "train_loss" in entry]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(f"{folder} holds no readable run ({e!r}); choose another or restore it") from e
    if not run["curve"]:
        raise InputError(f"{folder} has no evaluation yet; let it train on")
    return run

def check_folder(folder: str, resume: bool):
    """A folder that holds a run is for --resume, and no other."""
    ckpt, best = os.path.join(folder, "ckpt.pt"), os.path.join(folder, "best.pt")
    if resume and not os.path.exists(ckpt):
        raise InputError(f"there is no checkpoint at {ckpt}; begin without --resume")
    if not resume and (there := [path for path in (ckpt, best) if os.path.exists(path)]):
        how = "go on (--resume)" if ckpt in there else "remove it"      # a model whose checkpoint was removed
        raise InputError(f"{there[0]}: there is a run already; {how} or choose another --out_dir=DIR")

def open_locked(path: str):
    """The file, to append lines to, locked until it is closed. Raises InputError if it was already."""
    file = open(path, "a", buffering=1)
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise InputError(f"another process is writing {path}; wait for it, or write elsewhere") from e
    return file

def check_resumable(folder: str, was: dict, now: dict, checkpoint: dict, trained_on: dict, config: Config):
    """What --resume demands: the same settings (was, now) and data, the log and best.pt of the checkpoint."""
    path, log, best = (os.path.join(folder, name) for name in ("ckpt.pt", "log.jsonl", "best.pt"))
    if changed := [f"{name} was {was.get(name)}, is now {value}" for name, value in now.items()
                   if name not in MAY_CHANGE and was.get(name) != value]:
        raise InputError(f"{path} was made with other settings: {'; '.join(changed)}; give the same flags")
    if other := " and ".join(name for name in trained_on if checkpoint[name] != trained_on[name]):
        raise InputError(f"data/{now['data']} is not what {path} was trained on ({other}); restore it")
    if os.path.getsize(log) < checkpoint["log"]:
        raise InputError(f"{log} has lost lines since {path} was written; restore it")
    if checkpoint["best"] < math.inf and not (os.path.exists(best) and load(best)[0].config == config):
        raise InputError(f"{best} is gone, or belongs to another run; restore the right one")

def check_finite(entry: dict):
    """Raises InputError: a run diverges because of its settings."""
    if not all(map(math.isfinite, entry.values())):
        values = ", ".join(f"{name} {value:.4g}" for name, value in entry.items())
        raise InputError(f"near step {entry['step']:,} something is not finite: {values}; a ckpt.pt before, "
                         f"if any, is kept; try a lower --lr, more --warmup or --dtype=float32")

# ---- The run -----------------------------------------------------------------------------------------------

class Run:
    """A run under way: how far it is, its log, its files. With s.resume it goes on from ckpt.pt.

    s is train.py's Settings; trained_on, plain values that sampling needs and a resumed run must find
    unchanged. Raises InputError where the folder is in use, or does not fit the settings."""

    def __init__(self, s, model: Transformer, optimizers: list, trained_on: dict):
        self.s, self.model, self.optimizers, self.trained_on = s, model, optimizers, trained_on
        self.path = Path(s.out_dir).joinpath
        self.step, self.best = 0, math.inf      # steps done; the lowest val_nll so far
        self.seconds = 0.0                      # of training: not of the first step, evaluations, checkpoints
        self.clock, self.clock_step = None, 0   # when it was last started, and after which step
        self.began, self.saved = time.perf_counter(), -math.inf     # when: the run; ckpt.pt's last write
        self.unlogged = []                      # (2,) loss and norm of each step since the log's last line
        self.signals, self.stopped = [], False  # received; whether asked_to_stop has said yes
        if RANK == 0:
            os.makedirs(s.out_dir, exist_ok=True)
            self.log_file = open_locked(self.path("log.jsonl"))
            check_folder(s.out_dir, s.resume)   # again, now that no other process can change it
        log_size = self.restore() if s.resume else 0
        if RANK == 0:
            self.log_file.truncate(log_size)    # what came after the checkpoint is trained again

    def restore(self) -> int:
        """Go on from ckpt.pt; returns how many bytes the log had then."""
        needs = "settings", "step", "best", "seconds", "wall_seconds", "recent", "log", "optimizers"
        model, checkpoint = load(self.path("ckpt.pt"), needs=[*needs, *self.trained_on])
        was, now = asdict(model.config) | checkpoint["settings"], asdict(self.model.config) | asdict(self.s)
        check_resumable(self.s.out_dir, was, now, checkpoint, self.trained_on, model.config)
        self.model.load_state_dict(model.state_dict())
        for optimizer, state in zip(self.optimizers, checkpoint["optimizers"]):
            optimizer.load_state_dict(state)
        self.step, self.best, self.seconds = (checkpoint[name] for name in ("step", "best", "seconds"))
        self.began -= checkpoint["wall_seconds"]
        self.unlogged = list(torch.tensor(checkpoint["recent"], device=self.model.head.weight.device))
        return checkpoint["log"]

    @contextlib.contextmanager
    def training(self):
        """Around the loop: a progress bar; Ctrl-C and SIGTERM ask it to stop, a second one doesn't wait."""
        def note(number, frame):
            if WORLD_SIZE == 1:     # torchrun passes them on, so there each comes twice
                if self.signals:
                    raise KeyboardInterrupt
                with contextlib.suppress(OSError):      # where nobody reads any more
                    os.write(2, b"\nfinishing this step, then saving; once more stops at once, unsaved\n")
            self.signals.append(number)

        handlers = {kind: signal.signal(kind, note) for kind in (signal.SIGINT, signal.SIGTERM)}
        try:
            with tqdm(total=self.s.max_steps, initial=self.step, unit="step", dynamic_ncols=True,
                      disable=True if RANK else None) as self.bar:
                yield
        finally:
            for kind, handler in handlers.items():
                signal.signal(kind, handler)

    def start_clock(self):
        self.clock, self.clock_step = time.perf_counter(), self.step

    def evaluation_due(self) -> bool:
        return self.step % self.s.eval_interval == 0 or self.step == self.s.max_steps

    def checkpoint_due(self) -> bool:
        """At the end; before it every s.save_minutes, as soon as the log has all steps."""
        due = time.perf_counter() - self.saved >= 60 * self.s.save_minutes
        return self.step == self.s.max_steps or (due and not self.unlogged)

    def record(self, loss: torch.Tensor, norm: torch.Tensor):
        """One more step is done. Each tenth or evaluated one is logged; InputError if it is not finite."""
        self.step += 1
        self.unlogged.append(torch.stack([loss, norm]))
        self.bar.update()
        if self.clock is None:      # the first step compiled; that doesn't count
            self.start_clock()
        if self.step % 10 == 0 or self.evaluation_due():
            losses, norms = sum_over_processes(torch.stack(self.unlogged)).unbind(dim=1)    # (steps,) each
            train_loss = losses.mean().item() / WORLD_SIZE      # waits for the device
            elapsed = time.perf_counter() - self.clock
            tokens = (self.step - self.clock_step) * self.s.batch_size * self.model.config.block_size
            self.seconds, self.unlogged = self.seconds + elapsed, []
            self.write_log(train_loss=train_loss, max_grad_norm=norms.max().item() / WORLD_SIZE,
                           lr=self.optimizers[0].param_groups[0]["lr"], tok_per_s=tokens / elapsed)
            self.bar.set_postfix_str(f"loss {train_loss:.3f}, {tokens / elapsed:,.0f} tok/s")
            self.start_clock()

    def record_evaluation(self, story: str, **result):
        """A line of the log; of the screen, with a story; best.pt, where val_nll is the lowest so far."""
        self.write_log(**result)
        values = ", ".join(f"{name} {value:.4f}" for name, value in result.items())
        self.bar.write(f"step {self.step:,}: {values}" + (f"\n    {story}\n" if story else ""))
        if result["val_nll"] < self.best:
            self.best = result["val_nll"]
            if RANK == 0:
                save(self.path("best.pt"), self.model, step=self.step, val_nll=self.best, **self.trained_on)
        self.start_clock()

    def write_log(self, **entry):
        entry = {"step": self.step, "seconds": self.seconds,
                 "wall_seconds": time.perf_counter() - self.began, **entry}
        check_finite(entry)
        if RANK == 0:
            print(json.dumps(entry), file=self.log_file)

    def asked_to_stop(self) -> bool:
        """Whether a signal came. Several processes must stop after the same step: they look every tenth."""
        if WORLD_SIZE == 1:
            self.stopped = bool(self.signals)
        elif self.step % 10 == 0:
            count = torch.tensor(len(self.signals), device=self.model.head.weight.device)
            self.stopped = bool(sum_over_processes(count))
        return self.stopped

    def checkpoint(self):
        """ckpt.pt, and the log up to here. Raises InputError where the last steps are not finite; OSError."""
        if self.unlogged:           # stopped between two lines of the log
            loss, norm = torch.stack(self.unlogged).mean(dim=0).tolist()
            check_finite({"step": self.step, "train_loss": loss, "mean_grad_norm": norm})
            self.seconds += time.perf_counter() - self.clock
        if RANK == 0:
            os.fsync(self.log_file.fileno())
            save(self.path("ckpt.pt"), self.model, step=self.step, best=self.best, seconds=self.seconds,
                 wall_seconds=time.perf_counter() - self.began, log=os.fstat(self.log_file.fileno()).st_size,
                 recent=[row.tolist() for row in self.unlogged], settings=asdict(self.s),
                 optimizers=[optimizer.state_dict() for optimizer in self.optimizers], **self.trained_on)
        self.saved = time.perf_counter()
        self.start_clock()
