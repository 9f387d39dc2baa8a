"""
A .jsonl file of rows, which is whole or ends in .tmp.
"""
import json
import os

from tqdm import tqdm

from support.runs import open_locked


def write_rows(path: str, settings: dict, rows, total: int) -> list:
    """Writes a line of settings, then one a row as it comes, and returns the rows.

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
