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
import math
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
    """Lets Ctrl-C, SIGTERM and the end of the terminal call the handler. Returns what they did.

    A signal that is ignored stays so, which is what nohup asks for."""
    kinds = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    return {kind: signal.signal(kind, handler)
            for kind in kinds if signal.getsignal(kind) != signal.SIG_IGN}


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
    for name in "stdin", "stdout", "stderr":
        stream = getattr(sys, name) or open(os.devnull, "r+")
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
    guesses = [guess for guess in (OTHER_NAMES.get(word), *similar) if guess in words]
    return f"; did you mean {prefix}{guesses[0]}?" if guesses else ""


# ---- Flags: every field of an options dataclass is a flag --name=value ---------------------------

def flag(default, help="", **limits):
    """A dataclass field with its help text and its limits. A plain field is a flag without them.

    low, high   the smallest and the largest number allowed
    file        for the name of a file to be written: a tuple of the endings it may have"""
    return field(default=default, metadata={"help": help, **limits})


def type_of(f):
    """bool, int, float or str, and the words allowed. `int | None` is an int, a Literal a str."""
    first, *_ = words = get_args(f.type) or [f.type]
    if first is bool:
        return bool, ["true", "false"]
    return (first, []) if isinstance(first, type) else (str, words)


def reader_of(f):
    """A function of the text after --name=, for argparse, which says why that is refused."""
    kind, words = type_of(f)
    low, high, endings = map(f.metadata.get, ("low", "high", "file"))

    def read(text):
        def check(right, wanted):
            if not right:
                raise argparse.ArgumentTypeError(f"{text} must {wanted}")

        text.encode()                   # this and kind(text) may raise ValueError
        if words:
            word = text.lower()
            check(word in words, f"be one of {', '.join(words)}{did_you_mean(text, words)}")
            return word == "true" if kind is bool else word
        value = with_home(text) if kind is str else kind(text)
        check(kind is str or math.isfinite(value), "be finite")
        check(low is None or value >= low, f"be at least {low}")
        check(high is None or value <= high, f"be at most {high}")
        if endings:     # a file that could not be written is refused before the work begins
            path = Path(value)
            check(path.suffix in endings, f"end in {' or '.join(endings)}")
            check(path.parent.is_dir() and not path.is_dir(), "lie in a folder that exists")
        return value

    read.__name__ = kind.__name__       # argparse shows it
    return read


def with_home(paths):
    """Paths with commas, each ~/ expanded, because a shell does so only at the start of a word."""
    return re.sub("(^|,)~(?=/)", lambda found: found[1] + str(Path.home()), paths)


def comments_of(options_class):
    """{field: the comment after it}, which is the help of a field that has no other."""
    source = inspect.getsource(options_class)
    return dict(re.findall(r"^    (\w+):.*  # (.*)", source, re.MULTILINE))


def parse_flags(doc, *classes, first=(), named="", plugins={}, implied={}):
    """The flags given on the command line, {name: value}; what was not given is not in it.

    classes     dataclasses whose fields are the flags
    first       names of the flags that most people need; --help shows them before the others
    named       what other arguments look like, for example NAME=FILE; they are returned as a dict
                under "named"
    plugins     {flag: folder}: the flag names a file of this folder, whose flags are flags too;
                --help shows those of all files there
    implied     {an argument: name of such a file that it asks for too}
    Raises InputError."""
    def refuse(message):
        raise InputError(f"{message} (--help lists all)")

    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        usage="%(prog)s [--name=value ...]", argument_default=argparse.SUPPRESS)
    parser.error = refuse
    most_used = parser.add_argument_group("what most people need")
    files = {f"--{flag}={name}": (folder, name)
             for flag, folder in plugins.items() for name in names_in(folder)}
    asked = asked_for(files, implied)
    names = set()
    for options_class in [*classes, *asked]:
        group = parser.add_argument_group(options_class.__doc__)
        comments = comments_of(options_class)
        for f in fields(options_class):
            if f.name in names:
                continue
            names.add(f.name)
            kind, words = type_of(f)
            help = f.metadata.get("help") or comments.get(f.name, "")
            if f.name in plugins:
                help += f": {', '.join(names_in(plugins[f.name]))}"
            if f.default not in ("", None):
                help += f" ({f.default})"
            bare = {"nargs": "?", "const": True} if kind is bool else {}    # --resume alone is true
            (most_used if f.name in first else group).add_argument(
                f"--{f.name}", type=reader_of(f), metavar="|".join(words) or kind.__name__,
                help=help.replace("%", "%%"), **bare)
    if named:
        parser.add_argument("named", metavar=named, nargs="+")
    given, unknown = parser.parse_known_intermixed_args()
    for argument in unknown:
        name = argument.split("=")[0].lstrip("-").replace("-", "_")
        guess = did_you_mean(name, names, "--")
        for file in files:
            if hasattr(options_of(*files[file]), name):         # the class has the defaults
                guess = f"; it needs {file}"
        refuse(f"unknown argument {argument}{guess}")
    if named:
        pairs = [argument.partition("=") for argument in given.named]
        given.named = {name: with_home(file) for name, _, file in pairs if file}
        if len(given.named) < len(pairs):
            refuse(f"give {named} for each, every NAME once")
    return vars(given)


def asked_for(files, implied):
    """The flags of the files that the command line asks for, or for --help of all."""
    words = "=".join(sys.argv)          # so that a flag and its value may be two words
    names = [name for argument, name in implied.items() if argument in words]
    for argument, (folder, name) in files.items():
        asked = argument in words or name in names or {"-h", "--help"} & set(sys.argv)
        if asked and options_of(folder, name):
            yield options_of(folder, name)


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
    names = [f.name for f in fields(options_class) if f.name in values]
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
        reason = str(e).splitlines()[0][:100]
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
    script = Path(sys.argv[0]).resolve()
    program = f"-m {script.parent.name}.{script.stem}"
    if script.parent == ROOT:
        program = script.name
    return {"command": f"python {program} {shlex.join(sys.argv[1:])}", "seed": seed,
            "date": datetime.datetime.now().isoformat(timespec="seconds"),
            "machine": f"{processor or platform.processor()}, {os.cpu_count()} cores",
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
    widths = [max(map(text_width, column)) for column in zip(*rows)]
    for row in rows:
        cells = []
        for text, width in zip(row, widths):
            blanks = " " * (width - text_width(text))
            cells.append(blanks + text if cells else text + blanks)
        print(printable("  ".join(cells)))
