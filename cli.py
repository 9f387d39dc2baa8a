"""
What all commands share: flags made from dataclasses, errors in one line, where a number came from.

A script's main() is run by command(). All other code raises: InputError for what the user gave,
OSError for what the machine lacks. The message is one line that says what is wrong and what to do.
"""
import argparse
import datetime
import difflib
import errno
import json
import math
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import field, fields
from pathlib import Path
from typing import Literal, get_args, get_origin

ROOT = Path(__file__).resolve().parent


# ---- Errors --------------------------------------------------------------------------------------

class InputError(ValueError):
    """What was given can't be used; the message says why and what to do, in one line."""


def command(main, interrupted: str):
    """Run a script's main.

    What the user or the machine got wrong is printed as one line, and the exit code is 2. Any other
    exception is a fault of the code and shows its traceback. `interrupted` says what Ctrl-C leaves
    behind."""
    on_stop(signal.default_int_handler)         # the others clean up as Ctrl-C does
    for stream in sys.stdout, sys.stderr:
        if hasattr(stream, "reconfigure"):      # a notebook's streams have no such method
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
            outlive_readers(stream)
    try:
        return main()
    except KeyboardInterrupt:
        message = f"interrupted; {interrupted}"
    except (InputError, OSError) as e:
        message = str(e)
    except (MemoryError, RuntimeError) as e:
        out_of_memory = re.search("out of memory|allocate memory", str(e))
        if isinstance(e, RuntimeError) and not out_of_memory:
            raise
        message = "not enough memory; take smaller sizes, or in training more --grad_accum"
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(2)


def on_stop(handler) -> dict:
    """Lets Ctrl-C, SIGTERM and the end of the terminal call the handler. Returns what they did.

    A signal that is ignored stays so, which is what nohup asks for. Only a program's main thread
    can have handlers, so in another one nothing changes, and Ctrl-C is the main thread's affair."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for kind in {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
            if signal.getsignal(kind) != signal.SIG_IGN:
                before[kind] = signal.signal(kind, handler)
    return before


# What writing raises if nobody reads any more: a pipe, a terminal, and a pipe on Windows.
NO_READER = (errno.EPIPE, errno.EIO, errno.EINVAL)


def outlive_readers(stream):
    """What is written to the stream when nobody reads any more is lost, and raises nothing.

    So a command does its work to the end after `| head` has seen enough, and still saves after
    Ctrl-C, which ends `| tee` too."""
    def safe(method):
        def attempt(*arguments):
            try:
                return method(*arguments)
            except OSError as e:
                if e.errno not in NO_READER:
                    raise
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return attempt

    stream.write, stream.flush = safe(stream.write), safe(stream.flush)


def did_you_mean(word: str, words) -> str:
    """The end of an error message: a guess at what a mistyped word should have been."""
    matches = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


# ---- Flags: every field of an options dataclass is a flag --name=value ---------------------------

def flag(default, help: str = "", low=None, high=None, file=None):
    """A dataclass field with its help text and its limits. A plain field is a flag without them.

    low, high   the smallest and the largest number allowed
    file        for the name of a file to be written: a tuple of the endings it may have"""
    return field(default=default, metadata=dict(help=help, low=low, high=high, file=file))


def check_flags(options):
    """Raises InputError for the first field of a dataclass whose value is not allowed."""
    for f in fields(options):
        value = getattr(options, f.name)
        choices = choices_of(f.type)
        low, high = f.metadata.get("low"), f.metadata.get("high")
        file = f.metadata.get("file")
        if choices and value not in choices:
            guess = did_you_mean(str(value), choices)
            raise InputError(f"--{f.name}={value} must be one of {', '.join(choices)}{guess}")
        if low is not None and value is not None and not value >= low:
            raise InputError(f"--{f.name}={value} must be at least {low}")
        if high is not None and value is not None and not value <= high:
            raise InputError(f"--{f.name}={value} must be at most {high}")
        if file and value:
            check_output(f.name, value, file)


def check_output(name: str, path: str, endings: tuple):
    """A file that could not be written is refused before the work begins, not after it."""
    if not path.endswith(endings):
        raise InputError(f"--{name}={path} must end in {' or '.join(endings)}")
    if Path(path).is_dir() or not Path(path).parent.is_dir():
        raise InputError(f"--{name}={path} is a folder, or lies in one that does not exist")


def choices_of(kind) -> tuple:
    """The words that a field of this type may have; none for other types than Literal."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def plain_type(kind):
    """bool, int, float or str: what a field of this type is read as. `int | None` is an int."""
    if choices_of(kind):
        return str
    members = get_args(kind)
    return members[0] if members else kind


def read_value(name: str, kind, text: str):
    """What the text of --name=text stands for. Raises InputError."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise InputError(f"--{name} is not valid UTF-8; check the terminal's encoding") from e
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"--{name}={text} must be true or false")
        return text.lower() == "true"
    try:
        value = kind(text)
    except ValueError:
        value = None
    if kind is float and value is not None and not math.isfinite(value):
        value = None
    if value is None:
        wanted = "a whole number" if kind is int else "a finite number"
        raise InputError(f"--{name}={text} must be {wanted}")
    return value


def add_flags(group, options_class, names):
    """Tells a group of argparse about the fields of an options dataclass with these names."""
    for f in fields(options_class):
        if f.name not in names:
            continue
        kind = plain_type(f.type)
        shapes = {bool: "true|false", int: "N", float: "X", str: "TEXT"}
        shape = "|".join(choices_of(f.type)) or shapes[kind]
        help = f.metadata.get("help", "")
        if f.default not in ("", None):
            help += f" ({str(f.default).lower() if kind is bool else f.default})"
        bare = dict(nargs="?", const="true") if kind is bool else {}  # --resume means --resume=true
        group.add_argument(f"--{f.name}", metavar=shape, help=help.replace("%", "%%"), **bare)


def parse_flags(doc: str, *classes, first=(), named: str = "") -> dict:
    """The flags given on the command line, {name: value}; what was not given is not in it.

    classes     dataclasses whose fields are the flags
    first       names of the flags that most people need; --help shows them before the others
    named       what other arguments look like, for example NAME=FILE; they are returned as a dict
                under "named"
    Raises InputError."""
    def refuse(message):
        raise InputError(message)

    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        usage="%(prog)s [--name=value ...]", argument_default=argparse.SUPPRESS)
    parser.error = refuse
    if first:
        group = parser.add_argument_group("what most people need")
        for options_class in classes:
            add_flags(group, options_class, first)
    for options_class in classes:
        group = parser.add_argument_group(options_class.__doc__)
        others = {f.name for f in fields(options_class)} - set(first)
        add_flags(group, options_class, others)
    if named:
        parser.add_argument("named", metavar=named, nargs="*", default=[])
    given, unknown = parser.parse_known_intermixed_args()
    kinds = {f.name: plain_type(f.type) for options_class in classes for f in fields(options_class)}
    if unknown:
        guess = did_you_mean(unknown[0].split("=")[0], [f"--{name}" for name in kinds])
        raise InputError(f"unknown argument {unknown[0]}{guess} (--help lists all)")
    result = vars(given)
    if named:
        result["named"] = read_named(result["named"], named)
    for name in result.keys() & kinds.keys():
        result[name] = read_value(name, kinds[name], result[name])
    return result


def read_named(arguments: list, form: str) -> dict:
    """{NAME: FILE} of arguments like NAME=FILE. Raises InputError."""
    result = dict(argument.partition("=")[::2] for argument in arguments)
    if not arguments or len(result) < len(arguments) or not all(result.values()):
        raise InputError(f"give {form} for each, every NAME once (--help shows how)")
    return result


def build(options_class, values: dict):
    """An options dataclass, from those of the values that are fields of it. Raises InputError."""
    names = [f.name for f in fields(options_class)]
    options = options_class(**{name: values[name] for name in names if name in values})
    check_flags(options)
    return options


# ---- Where it runs, where a number came from, and how it is shown --------------------------------

def pick_device(name: str):
    """The torch.device of that name; auto is cuda, else mps, else cpu. Raises InputError."""
    import torch        # not at the top, because commands that need no device start a second sooner
    if name == "auto" and torch.cuda.is_available():
        name = "cuda"
    elif name == "auto":
        name = "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        if name.split(":")[0] not in ("cpu", "cuda", "mps"):
            raise RuntimeError("cpu, cuda and mps are known")
        return torch.empty(1, device=name).device       # this one has an index: cuda:0, not cuda
    except (RuntimeError, AssertionError) as e:
        reason = str(e).splitlines()[0][:100]
        raise InputError(f"--device={name} is not usable here ({reason}); leave it out") from e


def git(*arguments) -> str:
    """What a git command prints in the project's folder; nothing where there is no git."""
    try:
        done = subprocess.run(["git", *arguments], text=True, capture_output=True, cwd=ROOT)
    except OSError:
        return ""
    return done.stdout.strip()


def processor() -> str:
    """The CPU's name, as far as the machine tells it."""
    info = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    names = re.findall(r"model name\s*: (.+)", info)
    return names[0] if names else platform.processor() or platform.machine()


def provenance(seed) -> dict:
    """What it takes to make a number again: command, seed, date, machine, Python, commit."""
    commit = git("describe", "--always", "--exclude=*")
    # one command after the other writes to results/, which is no reason to call the code changed
    if git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results"):
        commit += "-dirty"
    script = Path(sys.argv[0]).resolve()
    program = [script.name]
    if script.parent.name == "experiments":
        program = ["-m", f"experiments.{script.stem}"]
    return {"command": shlex.join(["python", *program, *sys.argv[1:]]), "seed": seed,
            "date": datetime.datetime.now().isoformat(timespec="seconds"),
            "machine": f"{processor()}, {os.cpu_count()} cores",
            "python": platform.python_version(), "commit": commit}


def write_json(path: str, content):
    """Writes content to the file, whole or not at all; NaN, a missing figure, becomes null."""
    content = json.loads(json.dumps(content), parse_constant=lambda _: None)
    unfinished = Path(f"{path}.tmp")
    unfinished.write_text(json.dumps(content, indent=1))
    os.replace(unfinished, path)


def print_table(rows: list):
    """Prints rows of texts in aligned columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        for text, width in zip(others, widths[1:]):
            cells.append(text.rjust(width))
        print("  ".join(cells), flush=True)
