"""
Files that are written by one process at a time, and read by whoever has them: text, and rows.
"""
import contextlib
import json
import os
from pathlib import Path

from tqdm import tqdm

from support.flags import InputError


def open_locked(path):
    """The file, to append lines to, locked until it is closed. Raises InputError if it was."""
    file = open(path, "a", buffering=1, encoding="utf-8")
    with contextlib.suppress(ImportError):          # Windows has no locks
        import fcntl
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise InputError(f"another process is writing {path}; wait, or write elsewhere") from e
    return file


@contextlib.contextmanager
def usable(path, kind="checkpoint"):
    """Whatever goes wrong in this block is said of the file or folder. Raises OSError."""
    try:
        yield
    except Exception as e:      # a damaged or foreign file can fail in a dozen ways
        reason = f"{type(e).__name__}: {' '.join(str(e).split()):.200}"
        raise OSError(f"{path} is not a usable {kind} ({reason})") from e


def write_rows(path: str, settings: dict, rows, total: int) -> list:
    """Writes a line of settings, then one a row as it comes, and returns the rows.

    The file is whole, or its name ends in .tmp.
    Raises InputError where another process is writing the file; OSError."""
    kept = []
    bar = tqdm(rows, total=total, unit="story", leave=False, disable=None)
    with open_locked(f"{path}.tmp") as file, bar:
        file.truncate(0)
        print(json.dumps({"settings": settings}), file=file)
        for row in bar:
            print(json.dumps(row), file=file)
            kept.append(row)
    os.replace(f"{path}.tmp", path)
    return kept


def files_of(names: str) -> list:
    """The files that a flag names, with commas between them; but one may have commas itself."""
    if os.path.exists(names):
        return [names]
    return [name.strip() for name in names.split(",") if name.strip()]


def read_text(path: str) -> str:
    """The text of a file that is nothing but text, as `decoded` gives it. Raises InputError."""
    if path.lower().endswith((".json", ".jsonl", ".ndjson", ".csv", ".tsv")):
        raise InputError(f"{path} is a table or JSON; make a .txt of its text")
    return decoded(path)


def decoded(path: str) -> str:
    """What a file of UTF-8 has, with "\\n" at the ends of lines. Raises InputError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if text.count("\0") > 20 + len(text) // 20:
            raise UnicodeError("this is UTF-16, in which every Latin letter has a zero byte")
    except UnicodeError as e:
        raise InputError(f"{path} is not UTF-8 text; convert it first, for example by iconv") from e
    except OSError as e:
        raise InputError(f"{path} cannot be read ({e.strerror}); give an existing text file") from e
    return text.replace("\ufeff", "")       # byte order marks, also where files were joined


def read_rows(path: str):
    """The objects of a .jsonl file, one a line, each with a text. Raises InputError.

    The first line may have settings instead, as in the files of sample.py."""
    for number, line in enumerate(decoded(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row.get("settings", {}).keys()          # this and the next line raise for what is none
            if row.keys() != {"settings"}:
                row["text"].encode()
        except Exception as e:      # what is no such object can fail in many ways
            raise InputError(f"{path}, line {number} is not an object with a field text, which is "
                             "a string of whole characters") from e
        yield row


def has_shape(value, example) -> bool:
    """Whether a value of JSON has all that an example has, at any depth, and of the same types.

    All entries of a list must be like the first one of the example's list."""
    if not isinstance(value, type(example)):
        return False
    if isinstance(example, dict):
        return all(key in value and has_shape(value[key], example[key]) for key in example)
    return not isinstance(example, list) or all(has_shape(entry, example[0]) for entry in value)
