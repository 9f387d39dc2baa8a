"""
Texts that prepare_data.py downloads: TinyStories and Tiny Shakespeare.
"""
import http.client
import urllib.request
from pathlib import Path

from support.flags import InputError

SHAKESPEARE = ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
               "input.txt")
BYTES = 1_115_394       # a page that asks for a password would have others


def download_stories(split: str):
    """The stories of TinyStories (Eldan & Li 2023, arXiv 2305.07759). Raises InputError."""
    try:
        import datasets
        rows = datasets.load_dataset("roneneldan/TinyStories", split=split, streaming=True)
        for row in rows:
            story = row["text"].strip()
            if story:
                yield story
    except Exception as e:      # what `datasets` raises when the network fails differs by version
        raise InputError(f"TinyStories could not be downloaded ({type(e).__name__}); connect, or "
                         f"prepare a file you have with --text=FILE") from e


def download_shakespeare(folder: str) -> str:
    """The file with the text that char-rnn and nanoGPT use, downloaded once into a folder of this
    one. Raises InputError."""
    path = Path(folder, "shakespeare", "input.txt")
    if not path.exists():
        try:
            content = urllib.request.urlopen(SHAKESPEARE, timeout=60).read()
            if len(content) != BYTES:
                raise OSError(f"{len(content):,} bytes came, not {BYTES:,}")
        except (OSError, http.client.HTTPException) as e:
            raise InputError(f"Tiny Shakespeare could not be downloaded ({e}); connect, or put "
                             f"a copy at {path}") from e
        path.parent.resolve().mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(content)
        unfinished.replace(path)
    return str(path)
