"""
What all commands share: flags made from dataclasses, errors in one line, where a number came from.

A script's main() is run by command(). All other code raises: InputError for what the user gave,
OSError for what the machine lacks. The message is one line that says what is wrong and what to do.
"""
import argparse
import datetime
import difflib
import errno
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
import threading
import traceback
import unicodedata
from dataclasses import field, fields
from importlib import import_module
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent


# ---- Errors --------------------------------------------------------------------------------------

class InputError(ValueError):
    """What was given can't be used; the message says why and what to do, in one line."""


def command(main, interrupted: str):
    """Run a script's main.

    What the user or the machine got wrong is printed as one line, and the exit code is 2. Where the
    operating system alone says what is wrong, the line says too at which line of the code. Any
    other exception is a fault of the code and shows its traceback. `interrupted` says what Ctrl-C
    leaves behind."""
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
        if getattr(e, "errno", None):       # an error that this code raises has no number
            message += f" (at {place_of(e)})"
    except ModuleNotFoundError as e:        # students are handed out some of the files alone
        if not e.name.startswith(("extras.", "variants.", "samplers.")):
            raise
        message = f"this copy has no {e.name.replace('.', '/')}.py, which is needed here"
    except (MemoryError, RuntimeError) as e:
        if not is_out_of_memory(e):
            raise
        message = "not enough memory; take smaller sizes, or in training more --grad_accum"
    print(f"{Path(sys.argv[0]).name}: {printable(message)}", file=sys.stderr)
    raise SystemExit(2)


def place_of(error: Exception) -> str:
    """The innermost line of the project's code that an error came through, as file:line."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file.is_relative_to(ROOT):
            return f"{file.name}:{frame.lineno}"


def is_out_of_memory(e: Exception) -> bool:
    """Whether the machine, or its GPU, had too little memory. torch says so in several ways."""
    said = re.search("out of memory|allocate memory|not enough memory", str(e))
    return isinstance(e, MemoryError) or said is not None


def on_stop(handler) -> dict:
    """Lets Ctrl-C, SIGTERM and the end of the terminal call the handler. Returns what they did.

    A signal that is ignored stays so, which is what nohup asks for. Only a program's main thread
    can have handlers, so in another one nothing changes."""
    before = {}
    if threading.current_thread() is not threading.main_thread():
        return before
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
    write = stream.write

    def attempt(text):      # it is written at the end of each line, so nothing is left to flush
        try:
            return write(text)
        except OSError as e:
            if e.errno not in NO_READER:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    stream.write = attempt


# What people type who know nanoGPT, and what it is called here.
OTHER_NAMES = {
    "gpt": "ar",
    "diffusion": "mdlm",
    "init_from": "out_dir",
    "start": "prompt",
    "max_new_tokens": "length",
    "top_k": "top_p",
    "dataset": "data",
    "max_iters": "max_steps",
    "learning_rate": "lr",
    "min_lr": "final_lr",
    "warmup_iters": "warmup",
    "gradient_accumulation_steps": "grad_accum",
    "eval_iters": "eval_windows",
}


def did_you_mean(word: str, words, prefix: str = "") -> str:
    """The end of an error message: a guess at what a mistyped word should have been."""
    word = word.lower()
    guesses = [word, OTHER_NAMES.get(word), *difflib.get_close_matches(word, words, n=1)]
    for guess in guesses:
        if guess in words:
            return f"; did you mean {prefix}{guess}?"
    return ""


# ---- Flags: every field of an options dataclass is a flag --name=value ---------------------------

def flag(default, help: str = "", **limits):
    """A dataclass field with its help text and its limits. A plain field is a flag without them.

    low, high   the smallest and the largest number allowed
    file        for the name of a file to be written: a tuple of the endings it may have
    as_typed    true to keep the blanks around a text, and a ~ at its beginning"""
    return field(default=default, metadata={"help": help, **limits})


def check_value(f, value):
    """Raises InputError if a field of a dataclass may not have this value."""
    given = f"--{f.name}={value}"
    choices = choices_of(f.type)
    low, high, endings = map(f.metadata.get, ("low", "high", "file"))
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{given} must be a finite number")
    if choices and value not in choices:
        guess = did_you_mean(str(value), choices)
        raise InputError(f"{given} must be one of {', '.join(choices)}{guess}")
    if low is not None and value < low:
        raise InputError(f"{given} must be at least {low}")
    if high is not None and value > high:
        raise InputError(f"{given} must be at most {high}")
    # A file that could not be written is refused before the work begins, not after it.
    if endings and not value.endswith(endings):
        raise InputError(f"{given} must end in {' or '.join(endings)}")
    if endings and (Path(value).is_dir() or not Path(value).parent.is_dir()):
        raise InputError(f"{given} is a folder, or lies in one that does not exist")


# How --help shows a value of each type, and what it must be.
KINDS = {
    bool: ("true|false", "true or false"),
    int: ("N", "a whole number"),
    float: ("X", "a number"),
    str: ("TEXT", "valid UTF-8; check the terminal's encoding"),
}


def choices_of(kind) -> tuple:
    """The words that a field of this type may have; none for other types than Literal."""
    return get_args(kind) if plain_type(kind) is str else ()


def plain_type(kind):
    """bool, int, float or str: what a field of this type is read as. `int | None` is an int."""
    first, *_ = get_args(kind) or [kind]
    return first if isinstance(first, type) else str


def read_value(f, text: str):
    """What the text of --name=text stands for, where f is the field of that name.

    Raises InputError."""
    kind = plain_type(f.type)
    if not f.metadata.get("as_typed"):
        text = with_home(text)
    try:
        text.encode()
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as e:
        _, wanted = KINDS[kind]
        raise InputError(f"--{f.name}={text} must be {wanted}") from e
    check_value(f, value)
    return value


def with_home(paths: str) -> str:
    """Paths with commas, each ~ expanded, because a shell does so only at the start of a word."""
    return ",".join(map(os.path.expanduser, paths.strip().split(",")))


def comments_of(options_class) -> dict:
    """{field: the comment after it}, which is the help of a field that has no other."""
    ancestors = options_class.__mro__[-2::-1]       # all but `object`, the eldest first
    source = "".join(map(inspect.getsource, ancestors))
    return dict(re.findall(r"^    (\w+): [^#\n]*# (.*)$", source, flags=re.MULTILINE))


def add_flag(group, f, comment: str):
    """Tells a group of argparse about a field of an options dataclass."""
    kind = plain_type(f.type)
    shape, _ = KINDS[kind]
    help = f.metadata.get("help") or comment
    if f.default not in ("", None):
        help += f" ({f.default})"
    bare = dict(nargs="?", const="true") if kind is bool else {}  # --resume means --resume=true
    group.add_argument(f"--{f.name}", metavar="|".join(choices_of(f.type)) or shape,
                       help=help.replace("%", "%%"), **bare)


def parse_flags(doc: str, *classes, first=(), named="", plugins: dict = {}, implied: dict = {}):
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
        raise InputError(message)

    # A script that was edited on Windows has a CR at the end of every line.
    arguments = [argument.rstrip("\r") for argument in sys.argv[1:] if argument.strip()]
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        usage="%(prog)s [--name=value ...]", argument_default=argparse.SUPPRESS)
    parser.error = refuse
    most_used = parser.add_argument_group("what most people need")
    flags = {}
    for options_class in [*classes, *classes_of_plugins(plugins, implied, arguments)]:
        group = parser.add_argument_group(options_class.__doc__)
        comments = comments_of(options_class)
        for f in fields(options_class):
            if f.name not in flags:
                flags[f.name] = f
                add_flag(most_used if f.name in first else group, f, comments.get(f.name, ""))
    if named:
        parser.add_argument("named", metavar=named, nargs="*", default=[])
    given, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        name = unknown[0].split("=")[0].lstrip("-").replace("-", "_")
        guess = belongs_to(name, plugins) or did_you_mean(name, flags, "--")
        raise InputError(f"unknown argument {unknown[0]}{guess} (--help lists all)")
    result = {name: read_value(flags[name], text)
              for name, text in vars(given).items() if name in flags}
    if named:
        result["named"] = read_named(given.named, named)
    return result


def names_in(folder: str) -> list:
    """The names of the files of a folder, such as variants/."""
    return sorted(path.stem for path in (ROOT / folder).glob("[!_]*.py"))


def plugin(folder: str, name: str):
    """The module FOLDER/NAME.py. Raises InputError."""
    names = names_in(folder)
    if name not in names:
        raise InputError(
            f"there is no {folder}/{name}.py{did_you_mean(Path(name).stem, names)}")
    try:
        return import_module(f"{folder}.{name}")
    except ValueError as e:     # for example of a field that a Mode of model.py does not have
        [unknown] = re.findall(r"unexpected field names: \['(\w+)'", str(e)) or [""]
        fields_of_mode = import_module("model").Mode._fields
        raise InputError(
            f"{folder}/{name}.py: {e}{did_you_mean(unknown, fields_of_mode)}") from e


def options_of(folder: str, name: str):
    """The dataclass with the flags of FOLDER/NAME.py: its Options, or its Config; else None."""
    module = plugin(folder, name)
    return getattr(module, "Options", getattr(module, "Config", None))


def classes_of_plugins(plugins: dict, implied: dict, arguments: list):
    """The flags of the files that the arguments ask for, or for --help of all."""
    for flag_name, folder in plugins.items():
        names = names_in(folder)
        if not {"-h", "--help"} & set(arguments):
            asked = rf"^--{flag_name}[=\n]([^-\s]\S*)"
            # A flag and its value may also be two arguments.
            in_two = map("=".join, zip(arguments, arguments[1:]))
            of_presets = [implied[given] for given in [*arguments, *in_two] if given in implied]
            of_presets = [name for name in of_presets if name in names]
            names = re.findall(asked, "\n".join(arguments), re.MULTILINE) + of_presets
        yield from filter(None, (options_of(folder, name) for name in names))


def belongs_to(name: str, plugins: dict) -> str:
    """The end of an error message, if a flag is one of a file that was not asked for."""
    for flag_name, folder in plugins.items():
        for file in names_in(folder):
            if hasattr(options_of(folder, file), name):         # the class has the defaults
                return f"; it needs --{flag_name}={file}"
    return ""


def read_named(arguments: list, form: str) -> dict:
    """{NAME: FILE} of arguments like NAME=FILE. Raises InputError."""
    pairs = [argument.partition("=") for argument in arguments]
    result = {name: with_home(file) for name, _, file in pairs}
    if not arguments or len(result) < len(arguments) or not all(result.values()):
        raise InputError(f"give {form} for each, every NAME once (--help shows how)")
    return result


def build(options_class, values: dict):
    """An options dataclass, from those of the values that are fields of it. Raises InputError."""
    names = {f.name for f in fields(options_class)} & values.keys()
    try:
        return options_class(**{name: values[name] for name in names})
    except ValueError as e:
        raise InputError(str(e)) from e


# ---- Where it runs, where a number came from, and how it is shown --------------------------------

def pick_device(name: str):
    """The torch.device of that name; auto is the GPU, if there is one. Raises InputError."""
    import torch        # not at the top, because commands that need no device start a second sooner
    if name == "auto":
        name = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    try:
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
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return named[1] if named else platform.processor()


def provenance(seed) -> dict:
    """What it takes to make a number again: command, seed, date, machine, Python, commit."""
    commit = git("describe", "--always", "--exclude=*")
    # one command after the other writes to results/, which is no reason to call the code changed
    if git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results"):
        commit += "-dirty"
    script = Path(sys.argv[0]).resolve()
    program = [script.name]
    if script.parent != ROOT:
        program = ["-m", f"{script.parent.name}.{script.stem}"]
    return {"command": shlex.join(["python", *program, *sys.argv[1:]]), "seed": seed,
            "date": datetime.datetime.now().isoformat(timespec="seconds"),
            "machine": f"{processor()}, {os.cpu_count()} cores",
            "python": platform.python_version(), "commit": commit}


def write_json(path: str, content):
    """Writes content to the file, whole or not at all; NaN, a missing figure, becomes null."""
    content = json.loads(json.dumps(content), parse_constant=lambda _: None)
    unfinished = Path(f"{path}.tmp")
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.replace(path)


# What is not to reach a terminal: all control characters but tab and line feed, what reverses the
# direction of writing, and what is no character at all, such as half a surrogate pair.
UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """The text of a model or a file as it may be shown, with blanks for what is not to be."""
    return UNPRINTABLE.sub(" ", text)


def text_width(text: str) -> int:
    """How many columns a terminal takes for the text: of Chinese, two a character."""
    width = 0
    for character in text:
        if unicodedata.category(character) in ("Mn", "Me", "Cf"):       # it joins its neighbour
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def print_table(rows: list):
    """Prints rows of texts in aligned columns, the first to the left, the others to the right."""
    widths = [max(map(text_width, column)) for column in zip(*rows)]
    for row in rows:
        cells = []
        for text, width in zip(row, widths):
            blanks = " " * (width - text_width(text))
            cells.append(blanks + text if cells else text + blanks)
        print("  ".join(cells))
