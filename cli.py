"""
What all commands share: flags made from dataclasses, errors in one line, where a number came from, tables.

A script's main() is run by command(). Everything else raises: InputError for what the user gave, OSError for
what the machine lacks, each with a message of one line that says what is wrong and what to do.
"""
import argparse
import datetime
import difflib
import inspect
import json
import math
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Literal, get_args, get_origin

ROOT = Path(__file__).resolve().parent
# no flag may name one of these as an output: a run or a data set would lose it
OUR_FILES = ("best.pt", "ckpt.pt", "config.json", "log.jsonl", "meta.json", "train.bin", "val.bin")

# ---- Errors ------------------------------------------------------------------------------------------------

class InputError(ValueError):
    """What was given can't be used; the message says why and what to do, in one line."""

def command(main, interrupted: str):
    """Run a script's main. What the user or the machine got wrong is one line and exit code 2, no traceback;
    any other exception is a fault of the code, and shows itself. interrupted: what Ctrl-C leaves behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # like Ctrl-C: it cleans up
    for stream in sys.stdout, sys.stderr:
        if hasattr(stream, "reconfigure"):      # any character, each line at once; not so in a notebook
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        return main()
    except KeyboardInterrupt:
        message = f"interrupted; {interrupted}"
    except (InputError, OSError) as e:      # the latter: no such folder, no permission, disk full
        message = str(e)
    except (MemoryError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and not re.search("out of memory|allocate memory", str(e)):
            raise
        message = f"not enough memory ({str(e)[:100]}); take smaller sizes, in training more --grad_accum"
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(2)

def nearest(word: str, words) -> str:
    """A guess at what a mistyped word should have been, to end an error message with."""
    return "".join(f"; did you mean {match}?" for match in difflib.get_close_matches(word, words, n=1))

# ---- Flags: --name=value for each field of a dataclass, the field's comment is the help --------------------

def value_type(field: Field):
    """The type of one value: float of a field with type float, float | None or tuple[float, ...]."""
    arguments = get_args(field.type)
    return field.type if not arguments or get_origin(field.type) is Literal else arguments[0]

def read_value(name: str, kind, text: str):
    """What --name=text stands for, where kind is bool, int, float, str or a Literal. Raises InputError."""
    allowed = {"true": True, "false": False} if kind is bool else {word: word for word in get_args(kind)}
    if allowed:
        if text.lower() not in allowed:
            raise InputError(f"--{name}={text} must be {' or '.join(allowed)}{nearest(text, allowed)}")
        return allowed[text.lower()]
    least = 1 if kind is int and name not in ("seed", "warmup", "max_tokens", "train_stories") else 0
    try:
        value = kind(text)
        if kind is not str and not least <= value < (1e15 if kind is int else math.inf):
            raise ValueError
        return value
    except ValueError:
        what = "whole number below 1e15" if kind is int else "finite number"
        raise InputError(f"--{name}={text} must be a {what}, at least {least}") from None

def check_outputs(flags: dict):
    """Files that could not be written, or should not be, are refused before the work, not after it."""
    outputs = {n: Path(flags[n]) for n in "out json md plot forest picture".split() if flags.get(n)}
    given = *flags.values(), *flags.get("named", {}).values()
    used = [Path(path).resolve() for value in given for path in str(value).split(",")]
    for name, path in outputs.items():
        if not path.parent.is_dir() or path.is_dir():
            raise InputError(f"--{name}={path} lies in a folder that does not exist, or is one itself")
        if name == "out" and path.exists() and not path.is_file():
            raise InputError(f"--out={path} is not a plain file, and could not be replaced in the end")
        if used.count(path.resolve()) > 1 or path.name in OUR_FILES or name + path.suffix == "json.jsonl":
            raise InputError(f"--{name}={path} would replace what is needed; choose another name")
        if name in ("plot", "picture", "forest") and path.suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"--{name}={path} must end in .png, .svg or .pdf")

def parse_flags(doc: str, *classes, named: str = "", several=()) -> dict:
    """The flags given on the command line, {name: value}; what was not given is not in it. Raises InputError.

    classes     dataclasses whose fields are the flags; a tuple field takes values separated by commas
    several     names of more flags that take such lists, each of whose values is one of the field
    named       what the other arguments look like, e.g. NAME=FILE; returned under "named", as a dict"""
    def refuse(message):
        raise InputError(message)

    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [--name=value ...]", allow_abbrev=False,
                                     argument_default=argparse.SUPPRESS)
    parser.error = refuse
    flags = {f.name: f for cls in classes for f in fields(cls)}
    for cls in classes:
        comments = dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(cls), re.MULTILINE))
        group = parser.add_argument_group(cls.__doc__)
        for f in fields(cls):
            kind = value_type(f)
            form = {bool: "true|false", int: "N", float: "X", str: "TEXT"}.get(kind, "|".join(get_args(kind)))
            default = ",".join(map(str, f.default if isinstance(f.default, tuple) else [f.default])).lower()
            text = comments[f.name] + ("" if f.default in ("", None) or default == "0" else f" ({default})")
            optional = {"nargs": "?", "const": "true"} if kind is bool else {}
            group.add_argument(f"--{f.name}", metavar=form, help=text.replace("%", "%%"), **optional)
    if named:
        parser.add_argument("named", metavar=named, nargs="*", default=[])
    given, unknown = parser.parse_known_intermixed_args()
    if unknown:
        guess = nearest(unknown[0].split("=")[0], [f"--{name}" for name in flags])
        raise InputError(f"unknown argument {unknown[0]}{guess} (--help lists all)")
    result = vars(given)
    for name in [name for name in result if name in flags]:
        kind, text = value_type(flags[name]), result[name]
        if name in several or get_origin(flags[name].type) is tuple:
            result[name] = [read_value(name, kind, part) for part in text.split(",")]
        else:
            result[name] = read_value(name, kind, text)
    if named:
        pairs = [text.partition("=")[::2] for text in result["named"]]
        result["named"] = dict(pairs)
        if not pairs or len(result["named"]) < len(pairs) or not all(path for _, path in pairs):
            raise InputError(f"give {named} for each, every NAME once (--help shows how)")
    check_outputs(result)
    return result

def build(cls, values: dict):
    """The dataclass from those of the values that are fields of it; an InputError names what it refuses."""
    try:
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
    except ValueError as e:
        raise InputError(str(e)) from e

# ---- Where it runs, where a number came from, and how it is shown ------------------------------------------

def pick_device(name: str):
    """The torch.device of that name; auto: cuda, else mps, else cpu. Raises InputError."""
    import torch        # here: commands that need no device start a second sooner
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        if name.split(":")[0] not in ("cpu", "cuda", "mps"):
            raise RuntimeError("cpu, cuda and mps are known")
        return torch.empty(1, device=name).device       # with its index
    except (RuntimeError, AssertionError) as e:
        reason = str(e).splitlines()[0][:100]
        raise InputError(f"--device={name} is not usable here ({reason}); leave it out to choose one") from e

def provenance(seed) -> dict:
    """What it takes to make a number again: command, seed, date, machine, Python version, commit."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], text=True, capture_output=True, cwd=ROOT).stdout.strip()

    try:                # results/ itself may change: one command after the other writes there
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        commit = git("describe", "--always", "--exclude=*") + ("-dirty" if changed else "")
    except OSError:     # no git here
        commit = ""
    script, python = Path(sys.argv[0]).resolve(), platform.python_version()
    script = ["-m", f"experiments.{script.stem}"] if script.parent.name == "experiments" else [script.name]
    info = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    cpu = [*re.findall(r"model name\s*: (.+)", info), platform.processor() or platform.machine()][0]
    return {"command": shlex.join(["python", *script, *sys.argv[1:]]), "seed": seed,
            "date": datetime.datetime.now().isoformat(timespec="seconds"),
            "machine": f"{cpu}, {os.cpu_count()} cores", "python": python, "commit": commit}

def write_json(path: str, content):
    """Content to the file at path; NaN, a figure that could not be had, becomes null."""
    content = json.loads(json.dumps(content), parse_constant=lambda _: None)
    Path(path).write_text(json.dumps(content, indent=1))

def print_table(rows: list):
    """Rows of texts in aligned columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *rest in rows:
        print(first.ljust(widths[0]), *(t.rjust(w) for t, w in zip(rest, widths[1:])), sep="  ", flush=True)
