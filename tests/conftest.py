"""Tests run in a folder of their own, on small models of random weights, with fixed seeds."""
import os
import sys

import pytest
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from model import Config, Transformer  # noqa: E402


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def gpt2():
    """The GPT-2 vocabulary; skips where it can be had neither from a cache nor from the network."""
    import tiktoken
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as e:
        pytest.skip(f"no GPT-2 vocabulary here ({type(e).__name__}); set TIKTOKEN_CACHE_DIR to a copy of tiktoken's cache")


@pytest.fixture
def stories_file():
    """A real text with stories split at <|endoftext|>."""
    path = os.path.join(os.environ.get("NANOMDLM_TEXT", ""), "valid.txt")
    if not os.path.exists(path):
        pytest.skip("no real text here; set NANOMDLM_TEXT to a folder with valid.txt (stories split at <|endoftext|>)")
    return path


def small_model(mode="ar", seed=0, dtype=torch.float32, **fields):
    """Random weights, large enough that every input matters visibly in the output."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16, "n_hidden": 24, **fields}
    model = Transformer(Config(mode, **sizes)).to(dtype)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model.eval()
