"""What people bring as text, and where they keep it: read right, or refused in one line."""
import gc
import json
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np
import pytest

from cli import InputError
from conftest import run
from prepare_data import EOT, PrepareOptions, Tokenizer, Windows, load_meta, prepare
from toy import TOY

# ---- The tokenizer -------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["words", "bytes", "gpt2"])
def test_a_mark_in_a_prompt_is_the_end_of_text(request, kind):
    """In a text of the data it is not."""
    if kind == "gpt2":
        gpt2 = request.getfixturevalue("gpt2")
    tokenizer = Tokenizer(kind, words=TOY.words())
    eot = tokenizer.eot
    story = "One day, a girl"
    ids = tokenizer.encode(story)
    assert tokenizer.encode_marked(story) == ids
    assert tokenizer.encode_marked(EOT) == [eot]
    assert tokenizer.encode_marked("") == []
    marked = f"{EOT}{story}{EOT}{EOT}{story}"
    assert tokenizer.encode_marked(marked) == [eot, *ids, eot, eot, *ids]
    if kind == "gpt2":
        text = f"{EOT}\n{story} {EOT} x"
        assert tokenizer.encode_marked(text) == gpt2.encode(text, allowed_special={EOT})


def test_windows_are_not_kept_in_memory(workdir):
    prepare(PrepareOptions(name="x", max_tokens=5000))
    windows = Windows("x", "train", 48)
    windows.batch(0, 4)
    gone = weakref.ref(windows)
    del windows
    gc.collect()
    assert gone() is None
