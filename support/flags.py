"""
What all commands share: flags made from dataclasses, errors in one line, where a number came from.

A script's main() is run by command(). All other code raises: InputError for what the user gave,
OSError for what the machine lacks. The message is one line that says what is wrong and what to do.
"""
import argparse
import contextlib
import datetime
import difflib
import errno
import inspect
import io
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import unicodedata
from dataclasses import field, fields
from importlib import import_module
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent


# ---- Errors --------------------------------------------------------------------------------------

class InputError(ValueError):
    """What was given can't be used; the message says why and what to do, in one line."""


def command(main, interrupted):
    """Run a script's main.

    What the user or the machine got wrong is printed as one line, and the exit code is 2. Any other
    exception is a fault of the code and shows its traceback. `interrupted` says what Ctrl-C leaves
    behind."""
    on_stop(signal.default_int_handler)         # the others clean up as Ctrl-C does
    open_streams()
    try:
        return main()
    except KeyboardInterrupt:
        message = f"interrupted; {interrupted}"
    except (InputError, OSError, ModuleNotFoundError) as e:
        message = str(e)
    except (MemoryError, RuntimeError) as e:
        if not is_out_of_memory(e):
            raise
        message = "not enough memory; take smaller sizes, or in training more --grad_accum"
    message = " ".join(printable(message).splitlines())
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(2)


def is_out_of_memory(e):
    """Whether the machine, or its GPU, had too little memory. torch says so in several ways."""
    return bool(re.search("MemoryError|(out of|allocate|not enough) memory", repr(e)))


def on_stop(handler):
    """Lets Ctrl-C, SIGTERM and the end of the terminal call the handler.

    A signal that is ignored stays so, which is what nohup asks for."""
    for kind in signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM):
        if signal.getsignal(kind) != signal.SIG_IGN:
            signal.signal(kind, handler)


class Output(io.TextIOWrapper):
    """What a command prints to. When nobody reads any more, what is written is lost.

    So a command does its work to the end after `| head` has seen enough, and still saves after
    Ctrl-C, which ends `| tee` too."""

    def write(self, text):      # it is written at the end of each line, so nothing is left to flush
        try:
            return super().write(text)
        except OSError as e:
            if e.errno not in (errno.EPIPE, errno.EIO):     # of a pipe, and of a terminal
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def open_streams():
    """One that was closed, as by `2>&-`, goes nowhere. Those of a notebook or a test stay."""
    for name in "stdout", "stderr":
        stream = getattr(sys, name) or open(os.devnull, "w")
        if type(stream) is io.TextIOWrapper:
            encoding = stream.encoding
            stream = Output(stream.detach(), encoding, "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)


# What people type who know nanoGPT, and what it is called here.
OTHER_NAMES = {
    "gpt": "ar",
    "diffusion": "mdlm",
    "start": "prompt",
    "max_new_tokens": "length",
    "dataset": "data",
    "max_iters": "max_steps",
    "learning_rate": "lr",
    "min_lr": "final_lr",
    "warmup_iters": "warmup",
    "gradient_accumulation_steps": "grad_accum",
}


def did_you_mean(word, words, prefix=""):
    """The end of an error message: a guess at what a mistyped word should have been."""
    similar = difflib.get_close_matches(word.lower(), words, n=1)
    for guess in [OTHER_NAMES.get(word), *similar]:
        if guess in words:
            return f"; did you mean {prefix}{guess}?"
    return ""


# ---- Flags: every field of an options dataclass is a flag --name=value ---------------------------

def flag(default, help="", **limits):
    """A dataclass field with its help text and its limits. A plain field is a flag without them.

    low, high   the smallest and the largest number allowed
    file        for the name of a file to be written: a tuple of the endings it may have"""
    return field(default=default, metadata={"help": help, **limits})


# What is read of the text after --name=, for each type. A shell does not expand a ~ there.
READERS = {bool: lambda text: json.loads(text.lower()), int: int, float: float,
           str: os.path.expanduser}


def add_flag(group, f, help):
    """Adds a field to a group of argparse's flags. Its type may be a Literal, or `int | None`."""
    kind, *_ = words = get_args(f.type) or [f.type]
    more = {"choices": words} if isinstance(kind, str) else {}
    if kind is bool:
        more = {"nargs": "?", "const": True}        # --resume alone is true
    low, high, endings = map(f.metadata.get, ("low", "high", "file"), (None, 1e99, ()))

    def read(text):
        text.encode()                   # this and the next line may raise ValueError
        value = READERS.get(kind, str.lower)(text)
        if low is not None and not low <= value <= high:        # NaN is not
            at_most = f" and at most {high}" if high < 1e99 else ""
            raise argparse.ArgumentTypeError(f"{text} must be at least {low}{at_most}")
        if endings:     # a file that could not be written is refused before the work begins
            path = Path(value)
            if path.suffix not in endings or not path.parent.is_dir() or path.is_dir():
                raise argparse.ArgumentTypeError(
                    f"{text} must end in {' or '.join(endings)}, and lie in a folder that exists")
        return value

    read.__name__ = getattr(kind, "__name__", "")       # argparse shows it
    group.add_argument(f"--{f.name}", type=read, help=help.replace("%", "%%"), **more)


def pair(text):
    """The words before and after the first =; raises ValueError where there is none."""
    name, file = text.split("=", 1)
    return name, os.path.expanduser(file)


def comments_of(options_class):
    """{field: the comment after it}, which is the help of a field that has no other."""
    source = inspect.getsource(options_class)
    return dict(re.findall(r"^    (\w+):.*  # (.*)", source, re.MULTILINE))


def refuse(message):
    """What argparse calls. Where it lists the words that are allowed, a guess is added."""
    word, _, _, *words = re.findall(r"[\w-]+", message.partition("invalid choice: ")[2]) or [""] * 3
    raise InputError(f"{message}{did_you_mean(word, words)} (--help lists all)")


def parse_flags(doc, *classes, first=(), named="", plugins={}, implied={}):
    """The flags given on the command line, {name: value}; what was not given is not in it.

    classes     dataclasses whose fields are the flags
    first       names of the flags that most people need; --help shows them before the others
    named       what other arguments look like, for example NAME=FILE; they are returned as a dict
                under "named"
    plugins     {flag: folder}: the flag names a file of this folder, whose flags are flags too;
                --help shows those of all files there
    implied     {an argument: such a flag and file that it asks for too}
    Raises InputError."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        usage="%(prog)s [--name=value ...]", argument_default=argparse.SUPPRESS)
    parser.error = refuse
    most_used = parser.add_argument_group("what most people need")
    files = {f"--{flag}={name}": (folder, name)
             for flag, folder in plugins.items() for name in names_in(folder)}
    words = "=".join(sys.argv)          # so that a flag and its value may be two words
    words += "".join(file for argument, file in implied.items() if argument in words)
    all_files = {"-h", "--help"} & {*sys.argv}
    asked = [options_of(*files[file]) for file in files if all_files or file in words]
    names = set()
    for options_class in [*classes, *filter(None, asked)]:
        group = parser.add_argument_group(options_class.__doc__)
        comments = comments_of(options_class)
        for f in fields(options_class):
            if f.name in names:
                continue
            names.add(f.name)
            help = f.metadata.get("help") or comments.get(f.name, "")
            if f.name in plugins:
                help += f": {', '.join(names_in(plugins[f.name]))}"
            if f.default not in ("", None):
                help += f" ({f.default})"
            add_flag(most_used if f.name in first else group, f, help)
    if named:
        parser.add_argument("named", metavar=named, nargs="+", type=pair)
    given, unknown = parser.parse_known_intermixed_args()
    for argument in unknown:
        name = argument.split("=")[0].lstrip("-").replace("-", "_")
        guess = did_you_mean(name, names, "--")
        # A class of options has the defaults of its flags.
        needs = [file for file in files if hasattr(options_of(*files[file]), name)]
        if needs:
            guess = f"; it needs {' or '.join(needs)}"
        refuse(f"unknown argument {argument}{guess}")
    if named:
        pairs, given.named = given.named, dict(given.named)
        if len(given.named) < len(pairs):
            refuse(f"give {named} for each, every NAME once")
    return vars(given)


def names_in(folder):
    """The names of the files of a folder, such as variants/."""
    return sorted(path.stem for path in (ROOT / folder).glob("[!_]*.py"))


def plugin(folder, name):
    """The module FOLDER/NAME.py. Raises InputError."""
    names = names_in(folder)
    if name not in names:
        guess = did_you_mean(Path(name).stem, names)
        raise InputError(f"there is no {folder}/{name}.py{guess}")
    try:
        return import_module(f"{folder}.{name}")
    except (TypeError, ValueError) as e:    # as of a field that a Mode of model.py does not have
        [unknown] = re.findall(r"unexpected field names: \['(\w+)'", str(e)) or [""]
        guess = did_you_mean(unknown, import_module("model").Mode._fields)
        raise InputError(f"{folder}/{name}.py: {e}{guess}") from e


def options_of(folder, name):
    """The dataclass with the flags of FOLDER/NAME.py: its Options, or its Config; else None."""
    module = plugin(folder, name)
    return getattr(module, "Options", getattr(module, "Config", None))


def build(options_class, values):
    """An options dataclass, from those of the values that are fields of it. Raises InputError."""
    names = {f.name for f in fields(options_class)} & values.keys()
    try:
        return options_class(**{name: values[name] for name in names})
    except (TypeError, ValueError) as e:
        raise InputError(str(e)) from e


# ---- Where it runs, where a number came from, and how it is shown --------------------------------

def pick_device(name):
    """The torch.device of that name; auto is the GPU, if there is one. Raises InputError."""
    import torch        # not at the top, because commands that need no device start a second sooner
    if name == "auto":
        name = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    try:
        return torch.empty(1, device=name).device       # this one has an index: cuda:0, not cuda
    except (RuntimeError, AssertionError) as e:
        reason, *_ = str(e).splitlines()
        raise InputError(f"--device={name} is not usable here ({reason}); leave it out") from e


def output_of(*command):
    """What a program prints in the project's folder; nothing where it is not there, or fails."""
    with contextlib.suppress(OSError):
        return subprocess.run(command, cwd=ROOT, text=True, capture_output=True).stdout.strip()
    return ""


def provenance(seed):
    """What it takes to make a number again: command, seed, date, machine, Python, commit."""
    commit = output_of("git", "describe", "--always", "--exclude=*")
    # One command after the other writes to results/, which is no reason to call the code changed.
    if output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results"):
        commit += "-dirty"
    processor = output_of("grep", "-m1", "model name", "/proc/cpuinfo").partition(": ")[2]
    return {"command": shlex.join(["python", *sys.orig_argv[1:]]), "seed": seed,
            "date": datetime.datetime.now().isoformat(timespec="seconds"),
            "machine": f"{processor or platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(), "commit": commit}


def script_here(script):
    """The path of one of the project's scripts, as the user's shell would find it."""
    return os.path.relpath(ROOT / script)


def write_json(path, content):
    """Writes content to the file, whole or not at all; NaN, a missing figure, becomes null."""
    content = json.loads(json.dumps(content), parse_constant=lambda _: None)
    unfinished = Path(f"{path}.tmp")
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.replace(path)


# What is not to reach a terminal: all control characters but tab and line feed, what reverses the
# direction of writing, and what is no character at all, such as half a surrogate pair.
UNPRINTABLE = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"


def printable(text):
    """What a model wrote or a file has as it may be shown, with blanks for what is not to be."""
    return re.sub(UNPRINTABLE, " ", text)


def text_width(text):
    """How many columns a terminal takes for the text: of Chinese, two a character."""
    width = 0
    for character in text:
        if unicodedata.category(character) not in ("Mn", "Me", "Cf"):   # these join their neighbour
            width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def print_table(rows):
    """Prints rows of texts in aligned columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        print(printable("  ".join(cells)))
