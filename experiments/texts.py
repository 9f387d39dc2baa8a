"""
The real text of the experiments, in three parts: to train on, to choose by, and to report.

    python -m experiments.texts --train=train.txt --valid=valid.txt
    python -m experiments.texts                 downloads as many stories of TinyStories

The last 400 of the training stories are cut off before anything is trained, and nothing is ever
chosen by them. So a run that is trained on data/stories, whose validation stories are those of
--valid and choose best.pt, can be scored on the validation stories of data/unseen.

It takes a few seconds.
"""
import itertools
from dataclasses import dataclass
from pathlib import Path

from prepare_data import DATA_DIR, PrepareOptions, download_stories, prepare, read_stories
from tokenizer import EOT
from support.flags import build, command, flag, parse_flags

UNSEEN = 400        # stories that are reported
TRAIN, VALID = 5417, 300        # stories that are downloaded


@dataclass
class TextsOptions:
    """where the stories are"""
    train: str = flag("", "file of stories with <|endoftext|> between them; default: a download")
    valid: str = flag("", "file of others, by which best.pt is chosen; default: a download")


def stories_of(path: str, split: str, count: int) -> list:
    """The stories of the file, or so many of the split of TinyStories."""
    if path:
        return list(read_stories(path))
    return list(itertools.islice(download_stories(split), count))


def write_stories(name: str, stories: list) -> str:
    """The path of a file with these stories."""
    path = Path(DATA_DIR, f"{name}.txt")
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"\n{EOT}\n".join(stories), encoding="utf-8")
    return str(path)


def main():
    o = build(TextsOptions, parse_flags(__doc__, TextsOptions))
    stories = stories_of(o.train, "train", TRAIN)
    train = write_stories("stories-train", stories[:-UNSEEN])
    unseen = write_stories("stories-unseen", stories[-UNSEEN:])
    valid = write_stories("stories-valid", stories_of(o.valid, "validation", VALID))
    for name, val in ("stories", valid), ("unseen", unseen):
        prepare(PrepareOptions(name=name, text=train, val=val, vocab_size=4096))


if __name__ == "__main__":
    command(main, "the data may be incomplete; run it again")
