"""Many prompts at once: batches of what is alike, the order of the file, and wrong lines."""
import contextlib
import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from extras.prompts import batches_of
from sample import generate, pattern_of
from support.flags import InputError
from test_sample import WORDS, every_way, make, setting

PROMPTS = """One|One day|the girl|day One a|One _ day|One day _ a|One ___ day|day ____ a|One __ a
One day __ a|_ One _ day|One _ _ day|___|_ One day|One day _|__ One|One day a _ ___"""
PROMPTS = PROMPTS.replace("\n", "|").split("|")
make_for_words = functools.partial(make, vocab_size=WORDS.vocab_size, block_size=9)


@every_way
@pytest.mark.parametrize("length", [0, 20])
def test_a_text_is_the_same_whatever_else_is_in_the_file(workdir, way, length):
    """It is what the model writes alone, with the noise of its prompt's number and its own."""
    flags = f"--prompts=p.txt --num_samples=3 --batch_size=5 --length={length}"
    model, _, o, make_sampler = setting(f"{way} {flags}", make_for_words)
    o = replace(o, blank=8 if length else 2)
    config, found, patterns = model.config, {}, {}

    def pattern(o):
        return pattern_of(o, config, WORDS, "random" if length else "aligned")

    for prompt in PROMPTS:          # those that this model can write
        with contextlib.suppress(InputError):
            patterns[prompt] = pattern(replace(o, prompt=prompt))
    assert len(patterns) > 3
    (workdir / "p.txt").write_text("\n\n".join(patterns))
    for stories, together in batches_of(o, config, pattern):
        assert len(stories) <= 5
        tokens, _ = generate(model, stories, together, o, make_sampler)
        found |= zip(stories, tokens.tolist())
    assert sorted(found) == [(i, k) for i in range(len(patterns)) for k in range(3)]
    for number, given in enumerate(patterns.values()):
        alone, _ = generate(model, [(number, 2)], given, o, make_sampler)
        assert found[number, 2] == alone[0].tolist()


def test_the_command_keeps_the_order_of_the_file(trained, call, monkeypatch):
    """One sample is the default, and the first prompt is written as if it were the only one."""
    monkeypatch.chdir(trained)
    prompts = ["One day, a ___ the park.", "One day", "He _ a park.", "One day, a _ the park."]
    Path("p.txt").write_bytes("\r\n \r\n".join(prompts).encode())

    def written(*flags):
        done = call("sample.py", "--out_dir=out/mdlm", "--blank=4", "--out=p.jsonl", *flags)
        settings, *rows = map(json.loads, open("p.jsonl"))
        assert done.stdout.splitlines()[:len(rows)] == [row["text"] for row in rows]
        return rows

    rows = written("--prompts=p.txt", "--batch_size=2", "--num_samples=2")
    assert [row["story"] for row in rows] == list(range(8))
    for row, prompt in zip(rows[::2], prompts):
        beginning, _, end = prompt.partition(" _")
        assert row["text"].startswith(beginning) and row["text"].endswith(end.lstrip("_"))
        assert not end or row["written"] == (4 if "___" in prompt else 1)
    ones = written("--prompts=p.txt", "--batch_size=2")
    assert [row["text"] for row in ones] == [row["text"] for row in rows[::2]]
    assert written(f"--prompt={prompts[0]}", "--num_samples=1") == ones[:1]


@pytest.mark.parametrize("mode, text, flags, named", [
    ("ar", "One\n\nOne zebra\n", "", "p.txt, line 3: .*zebra"),
    ("ar", "One\nOne ___ day\n", "", "p.txt, line 2: --prompt"),
    ("mdlm", "One _ day\nOne day\n", "--length=3 --steps=2", "p.txt, line 1: --steps=2"),
    ("mdlm", "One day" + " a" * 50, "", "line 1: --prompt"),
    ("mdlm", "a _\na _ _\n", "--order=1,0", "p.txt, line 2: --order=1,0"),
    ("mdlm", "a _\n", "--blank=3", "--blank=3"),
    ("mdlm", "a\nFILE:none.txt", "", "p.txt, line 2: none.txt"),
    ("mdlm", "\n \r\n", "", "p.txt"),
    ("mdlm", "a", "--prompts=none.txt", "none.txt"),
    ("mdlm", "a", "--prompt=a", "--prompt")])
def test_what_is_wrong_is_said_of_its_line(trained, call, monkeypatch, mode, text, flags, named):
    monkeypatch.chdir(trained)
    Path("p.txt").write_text(text)
    done = call("sample.py", f"--out_dir=out/{mode}", "--prompts=p.txt", "--out=bad.jsonl",
                *flags.split())
    assert done.returncode == 2 and re.fullmatch(f".*{named}.*\n", done.stderr)
    assert not Path("bad.jsonl.tmp").exists()
