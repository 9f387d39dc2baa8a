"""
Grades the lab: the points of each task, and the smallest case on which a property fails.

    python grade.py                     all tasks of this folder
    python grade.py masks chain         these alone
    python grade.py project             the open project; --project grades it beside the tasks
    python grade.py --folder=DIR        what is handed in there, by the files beside this grade.py

There are no hidden answers. What a function returns is held against what must be true of any right
one, which texts of two or three tokens let us count out. Tests by chance are so lenient that right
answers fail one in fewer than one of 10,000 runs of the whole lab. Each run draws its lots anew,
and ends by the LAB_SEED that draws the same ones again, if it stands in the environment.

Your code runs in a process of its own, see answering.py, in a copy of this folder. If the grader
is root, that process has a user of its own; --apart refuses to grade where that cannot be.
results.json names every task, as Gradescope reads it; the exit code is 0 if all points are there.
"""
import os
import sys

# No file of a student shall take the place of one of Python's, so this folder comes last.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [path for path in sys.path if path != HERE] + [HERE]

import argparse
import json
import math
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from answering import LONGEST, pack, receive, send
from properties import CHECKS, TASKS, V, Wrong, check, seed, shaped, uniform
from tokenizer import join_words
from worlds.toy import TOY

SECONDS = 120           # that a task may take

# A user whom nobody else is, and no other grader takes at the same time. He can change no file of
# ours, and his processes can be told by him.
USER = 40_000 + os.getpid() % 10_000
APART = {"user": USER, "group": USER, "extra_groups": []}

# What ends all processes of that user. It is his only when it sends signals, not when it gets them.
END_ALL = f"import os; os.setresuid({USER + 10_000}, {USER}, {USER + 10_000}); os.kill(-1, 9)"

# Files in which a hand-in could look up what is expected of it.
KEYS = "grade.py", "properties.py", "toy.py", "oracle.py"


# ---- What is handed in, and whose code it is -----------------------------------------------------

def lay_out(hand_in, folder, tasks):
    """A copy of this folder, and over it the files that are handed in for the tasks; nothing else
    is read. Returns those that are not there."""
    for path in [*Path(HERE).glob("*.py"), *Path(HERE).glob("*/*.py")]:
        target = Path(folder, path.relative_to(HERE))
        target.parent.mkdir(exist_ok=True)
        if path.name not in KEYS:
            shutil.copyfile(path, target)
    missing = []
    places = [place for task in tasks for place in TASKS.get(task, ["project.py:"])]
    for name in sorted({place.split(":")[0] for place in places}):
        found = [path for path in Path(hand_in).rglob(os.path.basename(name))
                 if path.is_file() and not path.is_symlink()]
        # It may lie in its own folder, or flat beside the others.
        found.sort(key=lambda path: (not str(path).endswith(name), len(path.parts)))
        if found:
            shutil.copyfile(found[0], Path(folder, name))
        else:
            missing.append(name)
    return missing


def apart(folder):
    """APART if that user can read what it takes, and nothing where that cannot be."""
    command = [sys.executable, "-c", "import answering"]
    try:
        subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL, **APART)
        return APART
    except (OSError, subprocess.CalledProcessError):
        return {}


class Student:
    """Calls functions of the files in a folder: student("model.draw", p, u).

    An argument may also be made over there: see `seed` and `made`. A function is called back."""

    def __init__(self, folder, task, seconds=SECONDS, **user):
        self.seconds, self.user = seconds, user
        self.hangs_up = time.monotonic() + seconds
        command = [sys.executable, "-P", f"{folder}/answering.py", folder, task]
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, **user)
        theirs.close()
        self.line = ours.makefile("rwb")
        # It hangs up in time, whoever holds the other end.
        self.timer = threading.Timer(seconds, ours.shutdown, [socket.SHUT_RDWR])
        self.timer.start()
        self.says, self.board = "ok", []        # of a task that is done

    def end(self):
        """Ends it, and the processes that it began."""
        self.timer.cancel()
        os.killpg(self.process.pid, signal.SIGKILL)
        if self.user:
            # Those that left the group too. None of them can end the process that does it.
            subprocess.run([sys.executable, "-c", END_ALL])
        self.process.wait()

    def __call__(self, name, *args):
        given = [["callback", i, getattr(arg, "vocab_size", V)] if callable(arg) else arg
                 for i, arg in enumerate(args)]
        try:
            send(self.line, pack([name, given]))
            kind, value = receive(self.line)
            while kind == "callback":
                i, asked, named = value
                try:
                    reply = args[i](*asked, **dict(named))
                except Exception as e:      # it was asked for what does not make sense
                    reply = str(e)
                send(self.line, pack(reply))
                kind, value = receive(self.line)
        except (EOFError, OSError):
            says = f"takes longer than the {self.seconds} seconds of a task"
            if time.monotonic() < self.hangs_up:
                says = "ends the process"
            raise Wrong(f"{name} {says}") from None
        if kind == "error":
            raise Wrong(f"{name} {value}")
        return value


# ---- The open project ----------------------------------------------------------------------------

MOST_NATS = 0.01        # that stories may be away from the law


class HiddenLaw:
    """The toy's law of rows (B, W), in which every row has its own names of words, and of places.

    So nothing is known of a story before it is asked for, not even from another story."""

    def __init__(self, B, rng):
        self.vocab_size = len(TOY.words())
        self.W = int(TOY.mean_words())
        self.word = uniform(rng, B, self.vocab_size).argsort(dim=1)             # true words
        self.place = uniform(rng, B, self.W).argsort(dim=1)                     # true places
        self.passes = 0

    def true(self, tokens):
        """The words as the toy numbers them, and [MASK]s as V."""
        word = F.pad(self.word, (0, 1), value=self.vocab_size).gather(1, tokens)    # (B, W)
        return word.gather(1, self.place.argsort(dim=1))

    def __call__(self, tokens):
        """p (B, W, V) of each word, given those of its row. A row without [MASK] costs no pass."""
        from experiments.oracle import exact_conditionals
        tokens = shaped(tokens, *self.place.shape, what="the tokens that the law is given",
                        below=self.vocab_size + 1)
        asked = (tokens == self.vocab_size).any(dim=1)                          # (B,)
        self.passes += int(asked.sum())
        true = exact_conditionals(TOY, self.true(tokens).numpy())               # (B, W, V)
        row = torch.arange(len(tokens))[:, None, None]                          # (B, 1, 1)
        p = torch.from_numpy(true)[row, self.place[:, :, None], self.word[:, None]]
        return p.float() * asked[:, None, None]


def measure(student, rng, stories=4000, rows=200):
    """Passes a story, how many nats the stories of project.py are from the law, and how many are
    grammatical."""
    from experiments.oracle import distance
    words = TOY.words()
    passes, found = 0, []
    for number in range(stories // rows):
        law = HiddenLaw(rows, rng)
        nothing = torch.full((rows, law.W), law.vocab_size)
        tokens = student("project.write", law, nothing, seed(number))
        tokens = shaped(tokens, rows, law.W, what="write", below=law.vocab_size)
        for ids in law.true(tokens).tolist():
            found.append(join_words(words[i] for i in ids))
        passes += law.passes
    result = distance(found)
    share = result["grammatical"]
    return passes / stories, result["kl"] - math.log(share or 1e-9), share


@check("project", 10, f"stories within {MOST_NATS} nats of the law, by fewer passes than words")
def keeps_the_law_in_fewer_passes(student, rng):
    passes, nats, share = measure(student, rng)
    says = f"{passes:.2f} passes a story, {nats:.4f} nats from the law, {share:.1%} grammatical"
    if not nats < MOST_NATS or not 1 <= passes < int(TOY.mean_words()):     # NaN is neither
        raise Wrong(says)
    student.says = says
    student.board = [{"name": "passes", "value": passes, "order": "asc"}]


# ---- The command ---------------------------------------------------------------------------------

def grade_task(task, lots, student=None):
    """A row for each check of the task, as Gradescope reads it."""
    rows = []
    for i, (of, points, says, function) in enumerate(CHECKS):
        if of != task:
            continue
        rng = np.random.default_rng([*lots.encode(), i])
        problem = ""
        try:
            if not student:
                raise Wrong("the grader did not come to this")
            function(student, rng)
        except Wrong as e:
            problem = str(e)
        except Exception as e:      # it returned what no check had thought of
            problem = f"what it returns cannot be judged ({type(e).__name__}: {e})"
        # What a student's code says may be long, or no text at all.
        output = "".join(c if c.isprintable() else " " for c in (problem or student.says)[:LONGEST])
        rows.append({"name": f"{task}: {says}", "max_score": points, "output": output,
                     "score": 0 if problem else points})
    return rows


def show(task, rows):
    won, of = (sum(row[key] for row in rows) for key in ("score", "max_score"))
    print(f"{task:10}{won:3} of {of}")
    for row in rows:
        print(f"    {'ok' if row['score'] else 'no':4}{row['name']}")
        if row["output"] != "ok":
            print(f"            {row['output']}")


def save(report, graded):
    """results.json, whole or as it was."""
    report["tests"] = sum(graded.values(), [])
    report["score"] = sum(row["score"] for row in report["tests"])
    unfinished = Path("results.json.tmp")
    unfinished.write_text(json.dumps(report, indent=1))
    unfinished.replace("results.json")


def grade(tasks, hand_in, lots, only_apart):
    """Whether all points are there."""
    if "project" in tasks:
        import_module("experiments.oracle")     # now, before a student's process could change it
    graded = {task: grade_task(task, lots) for task in tasks}       # all are named, come what may
    report = {"output": ""}
    Path("results.json").unlink(missing_ok=True)
    save(report, graded)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        missing = lay_out(hand_in, folder, tasks)
        user = apart(folder)
        if missing:
            report["output"] += f"not handed in: {', '.join(missing)}\n"
        if not user and hand_in != HERE:
            report["output"] += "what is handed in runs as you, and could change its points\n"
        print(report["output"], end="")
        save(report, graded)
        if only_apart and not user:
            raise OSError("--apart: be root, and let all users read Python and its packages")
        for task in tasks:
            student = Student(folder, task, 600 if task == "project" else SECONDS, **user)
            try:
                graded[task] = grade_task(task, lots, student)
            finally:
                student.end()
            show(task, graded[task])
            if student.board:
                report["leaderboard"] = student.board
            save(report, graded)
    most = sum(row["max_score"] for row in report["tests"])
    print(f"{report['score']} of {most} points; results.json has them for Gradescope, and "
          f"LAB_SEED={lots} draws the same lots")
    return report["score"] == most


def flags():
    """What the command says; what it does not know is refused in a line."""
    parser = argparse.ArgumentParser("grade.py", usage=__doc__)
    parser.error = lambda says: parser.exit(2, f"grade.py: {says}\n")
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--project", action="store_true")
    parser.add_argument("--folder", default=HERE)
    parser.add_argument("--apart", action="store_true")
    o = parser.parse_args()
    names = [*TASKS, "project"]
    o.tasks = (o.tasks or [*TASKS]) + names[-1:] * o.project
    for task in o.tasks:
        if task not in names:
            parser.error(f"{task:.40} is no task; there are {', '.join(names)}")
    if not os.path.isdir(o.folder):
        parser.error(f"--folder={o.folder} is no folder")
    return o


def main():
    o = flags()
    sys.stdout.reconfigure(errors="backslashreplace")       # a terminal may know ASCII alone
    torch.set_num_threads(1)
    os.umask(0o022)         # the other user is to read what is laid out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))       # which ends a student's process
    lots = os.environ.pop("LAB_SEED", secrets.token_hex(16))    # none of a student's business
    try:
        return 0 if grade(dict.fromkeys(o.tasks), o.folder, lots, o.apart) else 1
    except (OSError, RecursionError, KeyboardInterrupt) as e:
        print(f"grade.py: {str(e) or 'stopped'}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
