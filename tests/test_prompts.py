"""Many prompts at once: batches of what is alike, the order of the file, and wrong lines."""
import json
import sys
from dataclasses import replace

import pytest
import torch

import sample
from conftest import run
from extras.prompts import batches_of, pattern_of
from sample import generate
from support.flags import InputError
from test_sample import WORDS, setting, small_model

END = "One\nOne day\n\nthe girl\nday One a"
ONE_BLANK = "One _ day\nOne day _ a\nOne ___ day\n\nday ____ a\nOne __ a day\nOne day __ a\nthe _ a"
ANY_BLANKS = f"{END}\n{ONE_BLANK}\n_ One _ day\nOne _ _ day\n___"
FIRST_BLOCK = "One _ day\n_ One day\nOne _ day\nOne day _\n\nOne __\n__ One\nOne day a _ ___"


def make_for_words(*what, **fields):
    return small_model(*what, **{"vocab_size": WORDS.vocab_size, "block_size": 9} | fields)


@pytest.mark.parametrize("case, prompts", [
    ("ar", END),
    ("ar --full_length=false", END),
    ("aogpt", ANY_BLANKS),
    ("aogpt --steps=1 --top_p=0.9", ANY_BLANKS),
    ("aogpt --sampler=drafts --draft=2", ANY_BLANKS),
    ("aogpt --cache=false --order=left_to_right", ANY_BLANKS),
    ("aogpt/infill", f"{END}\n{ONE_BLANK}"),
    ("aogpt/infill --sampler=drafts --draft=2", ONE_BLANK),
    ("mdlm", ANY_BLANKS),
    ("mdlm --length=9", ANY_BLANKS),
    ("mdlm --sampler=ancestral", ANY_BLANKS),
    ("mdlm --sampler=adaptive --risk=2", ANY_BLANKS),
    ("mdlm --sampler=confidence", ANY_BLANKS),
    ("mdlm/blocks:3", FIRST_BLOCK),
    ("mdlm/blocks:3 --sampler=ancestral", FIRST_BLOCK),
    ("mdlm/blocks:3 --sampler=adaptive", FIRST_BLOCK),
    ("aogpt/blocks:3", FIRST_BLOCK)])
def test_a_text_is_the_same_whatever_else_is_in_the_file(workdir, case, prompts):
    """It is what the model writes alone, with the noise of its prompt's number and its own."""
    (workdir / "p.txt").write_text(prompts)
    mode, *flags = case.split()
    model, _, o, variant, sampler = setting(f"{mode} . {' '.join(flags)}", make_for_words)
    o = replace(o, prompts="p.txt", num_samples=3, batch_size=5, blank=2 if "___" in prompts else 8)
    config, found = model.config, {}
    data = config, WORDS, "aligned", variant
    for stories, patterns in batches_of(o, *data):
        assert len(stories) <= 5
        tokens, _ = generate(model, stories, patterns, o, variant, sampler)
        found |= zip(stories, tokens.tolist())
    lines = [line for line in prompts.split("\n") if line]
    assert sorted(found) == [(i, k) for i in range(len(lines)) for k in range(3)]
    for (number, k), together in found.items():
        pattern = pattern_of(replace(o, prompt=lines[number]), *data)
        alone, _ = generate(model, [(number, k)], pattern, o, variant, sampler)
        n = len(pattern)
        if not o.full_length:       # ar leaves what comes after the end, and others may go on
            n = [*alone[0].tolist(), config.bos_id].index(config.bos_id) + 1
        assert together[:n] == alone[0, :n].tolist()
        given = pattern != config.mask_id
        assert torch.equal(torch.tensor(together)[given], pattern[given])
        assert config.mask_id not in together[:n]


@pytest.mark.parametrize("mode", ["ar", "mdlm"])
def test_beyond_the_window(workdir, mode):
    (workdir / "p.txt").write_text("One\nOne day\nday a\n")
    model, _, o, variant, _ = setting(f"{mode} . --length=20", make_for_words)
    o = replace(o, prompts="p.txt", num_samples=1)
    (_, one), (_, two) = batches_of(o, model.config, WORDS, "random", variant)
    assert (one.shape, two.shape) == ((1, 20), (2, 20))
    together, _ = generate(model, [(1, 0), (2, 0)], two, o)
    alone, _ = generate(model, [(2, 0)], two[1], o)
    assert torch.equal(together[1:], alone)


def rows_in(path):
    settings, *rows = map(json.loads, open(path))
    return rows


def test_the_command_keeps_the_order_of_the_file(trained):
    prompts = ["One day, a ___ the park.", "One day", "He _ a park.", "One day, a _ the park."]
    (trained / "p.txt").write_bytes("\r\n \r\n".join(prompts).encode())
    flags = ["--out_dir=out/mdlm", "--prompts=p.txt", "--batch_size=2", "--blank=4"]
    done = run("sample.py", *flags, "--num_samples=2", "--out=p.jsonl", cwd=trained)
    assert done.returncode == 0, done.stderr
    rows = rows_in(trained / "p.jsonl")
    assert [row["story"] for row in rows] == list(range(8))
    *lines, last = done.stdout.splitlines()
    assert lines == [row["text"] for row in rows]
    assert last.startswith("8 stories in p.jsonl")
    for row, prompt in zip(rows[::2], prompts):
        beginning, _, end = prompt.partition(" _")
        assert row["text"].startswith(beginning)
        if end:
            assert row["text"].endswith(end.lstrip("_"))
            assert row["written"] == (4 if "___" in prompt else 1)
    # One sample is the default, and the first of several.
    run("sample.py", *flags, "--out=one.jsonl", cwd=trained)
    texts = [row["text"] for row in rows_in(trained / "one.jsonl")]
    assert texts == [row["text"] for row in rows[::2]]
    # The first prompt is written as if it were the only one.
    alone = [*flags[:1], f"--prompt={prompts[0]}", "--blank=4", "--num_samples=1"]
    run("sample.py", *alone, "--out=alone.jsonl", cwd=trained)
    [row] = rows_in(trained / "alone.jsonl")
    assert row == rows_in(trained / "one.jsonl")[0]


@pytest.mark.parametrize("mode, text, flags, said", [
    ("ar", "One\n\nOne zebra\n", "", "p.txt, line 3: the word 'zebra' is none of"),
    ("ar", "One\nOne ___ day\n", "", "p.txt, line 2: --prompt has words where ar"),
    ("mdlm", "One _ day\nOne day\n", "--length=3 --steps=2", "p.txt, line 1: --steps=2 must not"),
    ("mdlm", "One day" + " a" * 50, "", "line 1: --prompt has 52 tokens, which leaves nothing to"),
    ("mdlm", "a\na a a\n", "--length=3", "line 2: --prompt has 3 tokens, which leaves nothing to"),
    ("mdlm", "a _\na _ _\n", "--order=1,0", "p.txt, line 2: --order=1,0 must be random"),
    ("mdlm", "a _\n", "--blank=3", "--blank=3 means nothing without ___ in --prompts"),
    ("mdlm", "a\nFILE:none.txt", "", "p.txt, line 2: none.txt cannot be read"),
    ("mdlm", "\n \r\n", "", "p.txt has no prompt"),
    ("mdlm", "", "", "p.txt has no prompt"),
    ("mdlm", "a", "--prompts=none.txt", "none.txt cannot be read"),
    ("mdlm", "a", "--prompt=a", "--prompt and --prompts name two sources")])
def test_what_is_wrong_is_said_of_its_line(trained, monkeypatch, mode, text, flags, said):
    (trained / "p.txt").write_text(text)
    arguments = [f"--out_dir=out/{mode}", "--prompts=p.txt", "--out=bad.jsonl", *flags.split()]
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "argv", ["sample.py", *arguments])
    with pytest.raises(InputError) as e:
        sample.main()
    assert said in str(e.value)
    assert "\n" not in str(e.value)
    assert not (trained / "bad.jsonl.tmp").exists()
