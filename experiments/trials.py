"""Runs that several processes share: each is a file in a folder, made once, by whoever locks it first."""
import dataclasses
import json
import os
import time

from cli import InputError, write_json
from runs import open_locked

def trial_name(trial) -> str:
    """Of a dataclass: its first field, and what of the others differs from the defaults."""
    first, *others = dataclasses.fields(trial)
    said = [f"{f.name}={getattr(trial, f.name)}" for f in others if getattr(trial, f.name) != f.default]
    return "-".join([getattr(trial, first.name).replace(" ", "_"), *said])

def store(path: str, content: dict):
    """As write_json, whole or not at all, whoever else reads or writes it."""
    own = f"{path}.{os.getpid()}.tmp"
    write_json(own, content)
    os.replace(own, path)

def stored(path: str, *keys) -> dict:
    """What stands under the first of these keys (without keys: all) in a file of results, {} if there is no
    file. Raises InputError where one of them is missing: it is another command's."""
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        found = json.load(f)
    if not all(key in found for key in keys):
        raise InputError(f"--json={path} has other results; choose another file")
    return found[keys[0]] if keys else found

def restore(folder: str, path: str):
    """Trials that a JSON file of results has go to the folder, if they aren't there."""
    os.makedirs(folder, exist_ok=True)
    for name, result in stored(path, "trials").items():
        file = os.path.join(folder, f"{name}.json")
        if not os.path.exists(file):
            store(file, result)

def read_trials(folder: str) -> dict:
    """{name: result} of the trials that are done."""
    done = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".json"):
            with open(os.path.join(folder, file)) as f:
                done[file.removesuffix(".json")] = json.load(f)
    return done

def make_trials(folder: str, missing, run, line):
    """Run the trials that missing({name: result}) lists, each of which has a name(), and wait for those that
    other processes are at. run(trial) returns the result, line(result) what is printed of it."""
    while left := missing(read_trials(folder)):
        for trial in left:
            path = os.path.join(folder, trial.name())
            try:
                lock = open_locked(f"{path}.lock")
            except InputError:                          # another process is at it
                continue
            with lock:
                if not os.path.exists(f"{path}.json"):
                    result = run(trial)
                    store(f"{path}.json", result)
                    print(f"{trial.name()}: {line(result)}", flush=True)
            break                                       # others may have become possible
        else:
            time.sleep(2)
