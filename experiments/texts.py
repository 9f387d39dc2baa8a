"""
The real text of the experiments, in three parts: to train on, to choose by, and to report.

    python -m experiments.texts                             the very stories of results/
    python -m experiments.texts --corpus=a.txt,b.txt        the same, out of files of the corpus

run_all.sh calls it. The numbers of results/ are of 5,717 stories of TinyStories. For each of them
stories.txt has a fingerprint, the beginning of a SHA-256, so they are known again wherever they
stand in the corpus. Their order in stories.txt says to which part a story belongs: the last 300
choose best.pt, the 400 before them are reported, and all others are trained on.

Nothing is ever chosen by the stories that are reported. A run that is trained on data/stories can
be scored on the validation stories of data/unseen.

It reads as much of the corpus as it needs, which may be all of its three gigabytes.
"""
import hashlib
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from prepare_data import DATA_DIR, PrepareOptions, prepare, read_stories
from support.downloads import download_stories
from support.flags import InputError, build, command, flag, parse_flags
from tokenizer import EOT

UNSEEN, VALID = 400, 300        # stories that are reported, and that choose
FINGERPRINTS = Path(__file__).with_name("stories.txt")
DIGITS = 12                     # of a fingerprint
WHOLE = "942196a73011e6469222170db6b879109f867cd8f0379e032a7dd89dbe340cda"


@dataclass
class TextsOptions:
    """where the stories are"""
    corpus: str = flag("", "files that have the stories among others; default: a download")


# ---- Which stories -------------------------------------------------------------------------------

def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(story: str) -> str:
    return sha256(story.strip())[:DIGITS]


def joined(stories: list) -> str:
    return f"\n{EOT}\n".join(stories)


def pick(corpus, wanted: list, whole: str) -> list:
    """The stories of the corpus that have these fingerprints, in their order.

    Raises InputError where one is missing, or the SHA-256 of them all is not `whole`."""
    missing = set(wanted)
    found = {}
    for story in tqdm(corpus, unit=" stories", leave=False, disable=None):
        mark = fingerprint(story)
        if mark in missing:
            missing.remove(mark)
            found[mark] = story
            if not missing:
                break
    if missing:
        first = next(mark for mark in wanted if mark in missing)
        raise InputError(f"{len(missing):,} of {len(wanted):,} stories are not in this corpus, the "
                         f"first with the fingerprint {first}; give another --corpus")
    stories = [found[mark] for mark in wanted]
    if sha256(joined(stories)) != whole:
        raise InputError("all fingerprints were found, but the stories differ; the corpus or "
                         f"{FINGERPRINTS.name} has changed")
    return stories


# ---- Where they come from ------------------------------------------------------------------------

def stories_of_lines(lines):
    """The stories of lines of text, where a line <|endoftext|> ends one."""
    story = []
    for line in lines:
        if line.strip() != EOT:
            story.append(line)
            continue
        yield "\n".join(story).strip()
        story = []
    yield "\n".join(story).strip()


def download_second_edition():
    """The stories of TinyStoriesV2-GPT4, which has no blank line between paragraphs.

    `datasets` streams the first edition, unless it is told which files to read."""
    try:
        import datasets
        for split in "valid", "train":
            rows = datasets.load_dataset(
                "roneneldan/TinyStories", data_files=f"TinyStoriesV2-GPT4-{split}.txt",
                split="train", streaming=True)
            yield from stories_of_lines(row["text"] for row in rows)
    except Exception as e:      # what `datasets` raises when the network fails differs by version
        raise InputError(f"TinyStories could not be downloaded ({type(e).__name__}); connect, or "
                         "give files that you have by --corpus") from e


def stories_of(corpus: str):
    """All stories of these files; without files, of both editions of TinyStories."""
    if corpus:
        for path in corpus.split(","):
            yield from read_stories(path)
        return
    yield from download_second_edition()
    yield from download_stories("validation")
    yield from download_stories("train")


# ---- Two data sets -------------------------------------------------------------------------------

def write_stories(name: str, stories: list) -> str:
    """The path of a file with these stories."""
    path = Path(DATA_DIR, f"{name}.txt")
    path.parent.mkdir(exist_ok=True)
    path.write_text(joined(stories), encoding="utf-8")
    return str(path)


def main():
    o = build(TextsOptions, parse_flags(__doc__, TextsOptions))
    stories = pick(stories_of(o.corpus), FINGERPRINTS.read_text().split(), WHOLE)
    train = write_stories("stories-train", stories[:-UNSEEN - VALID])
    unseen = write_stories("stories-unseen", stories[-UNSEEN - VALID:-VALID])
    valid = write_stories("stories-valid", stories[-VALID:])
    for name, val in ("stories", valid), ("unseen", unseen):
        prepare(PrepareOptions(name=name, text=train, val=val, vocab_size=4096))


if __name__ == "__main__":
    command(main, "the data may be incomplete; run it again")
