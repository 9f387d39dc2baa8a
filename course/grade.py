"""
Grades the lab: the points of each task, and the smallest case on which a property fails.

    python grade.py                         all tasks of this folder
    python grade.py masks chain             these alone
    python grade.py --folder=DIR --seed=7   another folder, by the files beside this grade.py
    python grade.py --project               the open project: passes a story, and nats from the law

There are no hidden answers. What a function returns is held against what must be true of any right
one, which texts of two or three tokens let us count out. Tests by chance are so lenient that right
answers fail any of them in less than one of 10,000 runs of the whole lab.

Your code runs in a process of its own, which only answers calls. So nothing that it does, such as
an endless loop, exit() or a change of torch, can hurt the grader or the next task. What it prints
is not shown. Writes results.json as Gradescope reads it; the exit code is 0 if nothing fails.
"""
import os
import sys

# No file of a student shall take the place of one of Python's, so this folder comes last.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [path for path in sys.path if path != HERE] + [HERE]

import importlib
import io
import itertools
import json
import math
import struct
import subprocess
import threading
import time
import traceback
from functools import partial

import torch
import torch.nn.functional as F

from properties import CHECKS, TASKS, V, Wrong, seed, shaped, uniform

SECONDS = 90        # that a task may take
TO_TRAIN = 300      # and the first one, which needs about 20 where nothing else runs


# ---- A student's code, in a process of its own ---------------------------------------------------

def send(stream, value):
    data = io.BytesIO()
    torch.save(value, data)
    stream.write(struct.pack("q", data.tell()) + data.getvalue())
    stream.flush()


def receive(stream):
    """Only tensors, numbers, words, and lists of them; never code of the other side."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return torch.load(io.BytesIO(stream.read(*struct.unpack("q", head))), weights_only=True)


class Student:
    """Calls functions of the files in a folder: student("model.draw", p, u).

    An argument may also be made over there: see `seed`, `made` and `function`. A network stays
    there too; what stands for it here can be an argument, or be called: student(network, x)."""

    def __init__(self, folder, task, seconds):
        command = [sys.executable, os.path.abspath(__file__), f"--answer={folder}", task]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.seconds, self.late = seconds, False
        self.failed = False         # whether a check of this task has failed
        self.timer = threading.Timer(seconds, self.stop)
        self.timer.start()

    def stop(self):
        self.late = True
        self.process.kill()

    def end(self):
        self.timer.cancel()
        self.process.kill()
        self.process.wait()

    def __call__(self, name, *args):
        local = [arg for arg in args if callable(arg)]      # which are called back
        given = []
        for arg in args:
            if callable(arg):
                arg = ("callback", local.index(arg), getattr(arg, "vocab_size", V))
            given.append(arg)
        called = name if isinstance(name, str) else "your network"
        try:
            send(self.process.stdin, (name, given))
            kind, value = receive(self.process.stdout)
            while kind == "callback":
                number, asked = value
                try:
                    reply = local[number](*asked)
                except Exception as e:      # it was asked for what does not make sense
                    reply = str(e)
                send(self.process.stdin, reply)
                kind, value = receive(self.process.stdout)
        except (EOFError, OSError):
            late = f"takes longer than the {self.seconds} seconds of a task"
            raise Wrong(f"{called} {late if self.late else 'ends the process'}") from None
        if kind == "error":
            raise Wrong(f"{called} {value}")
        return value


def answer(folder, task):
    """The other side, in the student's process: answers calls until nobody asks any more."""
    asked, said = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                           # what the student's code prints goes nowhere
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.path.insert(0, folder)
    torch.set_num_threads(1)
    held = []

    def look_up(name):
        if not isinstance(name, str):
            return given(name)
        module, function = name.rsplit(".", 1)
        return getattr(importlib.import_module(module), function)

    def call_back(number, *args):
        send(said, ("callback", (number, plain(args))))
        reply = receive(asked)
        if isinstance(reply, str):
            raise ValueError(reply)
        return reply

    def given(arg):
        match arg:
            case ("seed", number):
                return torch.Generator().manual_seed(number)
            case ("made", name, fields):
                return look_up(name)(**fields)
            case ("function", name):
                return look_up(name)
            case ("held", number):
                return held[number]
            case ("callback", number, vocab_size):
                back = partial(call_back, number)
                back.vocab_size = vocab_size
                return back
        return arg

    def plain(value):
        if isinstance(value, torch.Tensor):
            return value.detach().clone()
        if isinstance(value, torch.nn.Module):
            held.append(value)
            return ("held", len(held) - 1)
        if isinstance(value, (tuple, list)):
            return [plain(part) for part in value]
        if hasattr(value, "__next__"):
            return [plain(part) for part in itertools.islice(value, 1000)]
        return value if isinstance(value, (int, float, str, type(None))) else str(type(value))

    while True:
        name, args = receive(asked)
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        before = [tensor.clone() for tensor in tensors]
        try:
            if task in STAND_INS:
                stand_in()
            said_now = ("value", plain(look_up(name)(*map(given, args))))
            if not all(map(torch.equal, tensors, before)):
                said_now = ("error", "changes a tensor that it is given; change a copy")
        except NotImplementedError as e:
            said_now = ("error", f"is not done yet ({e})")
        except BaseException as e:          # exit() too
            here = [f for f in traceback.extract_tb(e.__traceback__) if f.filename != __file__]
            line = f" at {os.path.basename(here[-1].filename)}:{here[-1].lineno}" if here else ""
            said_now = ("error", f"raises {type(e).__name__}{line}: {e}")
        send(said, said_now)


STAND_INS = "write", "drafts"       # tasks of which other ones are asked for something


def stand_in():
    """draw and probabilities do their work here, but are no answer to their task."""
    model = importlib.import_module("model")
    if not hasattr(model, "stand_in"):          # the first time; later it is there
        model.stand_in = model.draw = draw_somehow
        model.probabilities = lambda logits, o: logits.double().softmax(dim=-1)


def draw_somehow(p, u):
    """Another function of u that follows p: the noise of each word is made of far digits of u."""
    factors = 1e6 * torch.arange(p.size(-1)).exp()                              # (V,)
    noise = (u[..., None].double() * factors).frac()                            # (…, V)
    return (p / -noise.log()).argmax(dim=-1)


# ---- The open project ----------------------------------------------------------------------------

MOST_NATS = 0.01        # that stories may be away from the law


class HiddenLaw:
    """The toy's law of rows (B, W), in which every row has its own names of words, and of places.

    So nothing is known of a story before it is asked for, not even from another story."""

    def __init__(self, B, rng):
        from worlds.toy import TOY
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
        from worlds.toy import TOY
        tokens = shaped(tokens, *self.place.shape, what="the tokens that the law is given",
                        below=self.vocab_size + 1)
        p = torch.zeros(*tokens.shape, self.vocab_size)
        [asked] = (tokens == self.vocab_size).any(dim=1).nonzero(as_tuple=True)     # (n,) rows
        self.passes += len(asked)
        if len(asked) > 0:
            true = exact_conditionals(TOY, self.true(tokens)[asked].numpy())
            row = torch.arange(len(asked))[:, None, None]                       # (n, 1, 1)
            place = self.place[asked][:, :, None]                               # (n, W, 1)
            word = self.word[asked][:, None]                                    # (n, 1, V)
            p[asked] = torch.from_numpy(true)[row, place, word].float()
        return p


def project(folder, rng, stories=4000, rows=500):
    """Passes a story, and how many nats the stories of project.py are away from the law."""
    from experiments.oracle import distance
    from tokenizer import join_words
    from worlds.toy import TOY
    words = TOY.words()
    passes, found = 0, []
    student = Student(folder, "project", 600)
    try:
        for number in range(stories // rows):
            law = HiddenLaw(rows, rng)
            nothing = torch.full((rows, law.W), law.vocab_size)
            tokens = student("project.write", law, nothing, seed(number))
            tokens = shaped(tokens, rows, law.W, what="write", below=law.vocab_size)
            for ids in law.true(tokens).tolist():
                found.append(join_words(words[i] for i in ids))
            passes += law.passes
    finally:
        student.end()
    result = distance(found)
    share = result["grammatical"]
    if share < 0.5:
        raise Wrong(f"only {share:.1%} of the stories are grammatical")
    return passes / stories, result["kl"] - math.log(share), share


# ---- The command ---------------------------------------------------------------------------------

def row_of(name, points, problem, says="ok"):
    """As Gradescope reads it."""
    return {"name": name, "max_score": points, "score": 0 if problem else points,
            "output": problem or says, "status": "failed" if problem else "passed"}


def grade_task(task, student, number):
    """A row for each check of the task."""
    rows = []
    for i, (of, points, says, function) in enumerate(CHECKS):
        if of != task:
            continue
        rng = torch.Generator().manual_seed(1000 * number + i)
        problem = ""
        try:
            function(student, rng)
        except Wrong as e:
            problem = str(e)
        except Exception as e:      # it returned what no check had thought of
            problem = f"what it returns cannot be judged ({type(e).__name__}: {e})"
        student.failed |= bool(problem)
        rows.append(row_of(f"{task}: {says}", points, problem))
    return rows


def grade_project(folder):
    """A row, and for the board the passes of stories that follow the law."""
    rng = torch.Generator()
    rng.seed()                  # nobody can know the names that words and places get
    try:
        passes, nats, share = project(folder, rng)
    except Wrong as e:
        return row_of("project", 1, str(e)), []
    says = f"{passes:.2f} passes a story, {nats:.4f} nats from the law, {share:.1%} grammatical"
    if nats >= MOST_NATS:
        says += f"; the board is for less than {MOST_NATS}"
        return row_of("project", 1, says), []
    board = [{"name": "passes", "value": passes, "order": "asc"}]
    return row_of("project", 1, "", says), board


def show(task, rows):
    won, of = (sum(row[key] for row in rows) for key in ("score", "max_score"))
    print(f"{task:10}{won:3} of {of}")
    problem = ""
    for row in rows:
        passed = row["status"] == "passed"
        print(f"    {'ok' if passed else 'no':4}{row['name'].removeprefix(task + ': ')}")
        if not passed:      # one mistake can fail several checks
            print(f"            {'as above' if row['output'] == problem else row['output']}")
            problem = row["output"]


def flags_of(arguments):
    """{flag: value} and the tasks that are named. Raises ValueError."""
    flags, tasks = {"folder": HERE, "seed": "0"}, []
    for word in arguments:
        name, _, value = word.partition("=")
        if name == "--project" or name in ("--folder", "--seed") and value:
            flags[name[2:]] = value
        elif word in TASKS:
            tasks.append(word)
        else:
            raise ValueError(f"{word:.40} is no task; there are {', '.join(TASKS)}, and --folder=, "
                             "--seed= and --project")
    if not os.path.isdir(flags["folder"]) or not flags["seed"].isdecimal():
        raise ValueError("--folder must be a folder, and --seed a number")
    return flags, tasks or list(TASKS)


def main():
    if "--help" in sys.argv:
        print(__doc__.strip())
        return 0
    try:
        flags, tasks = flags_of(sys.argv[1:])
    except ValueError as e:
        print(f"grade.py: {e}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    began = time.time()
    folder = os.path.abspath(flags["folder"])
    report = {"tests": []}
    if "project" in flags:
        row, report["leaderboard"] = grade_project(folder)
        report["tests"].append(row)
        print(row["output"])
        tasks = []
    for task in tasks:
        student = Student(folder, task, TO_TRAIN if task == "gpt" else SECONDS)
        rows = grade_task(task, student, int(flags["seed"]))
        student.end()
        show(task, rows)
        report["tests"] += rows
    report["score"] = sum(row["score"] for row in report["tests"])
    report["execution_time"] = round(time.time() - began, 1)
    most = sum(row["max_score"] for row in report["tests"])
    print(f"{report['score']} of {most} points in {report['execution_time']:.0f} seconds; "
          "results.json has them for Gradescope")
    with open("results.json", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    return 0 if report["score"] == most else 1


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].startswith("--answer="):
        try:
            answer(sys.argv[1].partition("=")[2], sys.argv[2])
        except (EOFError, OSError):     # nobody asks any more
            sys.exit()
    sys.exit(main())
