"""
Real text beside samples: texts cut like them, and what the training text says of them.

Adds: the column "real text" of diversity.py, and its rows copied stories, new words and, of
a world, grammatical. Costs: the training text is read once. Plugs in as

    python diversity.py mine=out/toy-mdlm/samples.jsonl --data=toy
"""
import string

import numpy as np

from prepare_data import DATA_DIR, load_meta, load_tokens
from support.flags import InputError
from tokenizer import EOT, Tokenizer
from worlds import world_of


class Corpus:
    """The data set data/<name>. Raises InputError where there is none."""

    def __init__(self, name: str):
        self.name = name
        self.tokenizer = Tokenizer(**load_meta(name)["tokenizer"])
        tokens = self.read("train")
        starts = np.flatnonzero(tokens == self.tokenizer.eot)       # a mark before every story
        self.stories = {story[1:].tobytes() for story in np.split(tokens, starts)[1:]}
        self.words = set(bare_words(self.tokenizer.decode(tokens[:10_000_000])))

    def read(self, split: str) -> np.ndarray:
        return load_tokens(self.name, split)

    def texts_like(self, settings: dict) -> tuple:
        """Real texts cut like samples, as many as there are samples; and how many are held out.

        settings    the samples' num_samples, length, start and full_length

        The first come from the validation split. Where it has too few, others come from the
        training split. Raises InputError where there are fewer than two."""
        count = settings["num_samples"]
        held_out = self.pieces("val", count, settings)
        texts = held_out + self.pieces("train", count - len(held_out), settings)
        if len(texts) < 2:
            whole = settings["start"] == "story"
            kind = "marked stories" if whole else f"texts of {settings['length']} tokens"
            raise InputError(f"{DATA_DIR}/{self.name} holds fewer than 2 {kind} to compare with; "
                             "leave --data out")
        return texts, len(held_out)

    def pieces(self, split: str, at_most: int, settings: dict) -> list:
        """Texts that are spread evenly over a split; no two overlap.

        They begin where stories begin or, with start "anywhere", one after the other. A text ends
        after `length` tokens, or with its story, unless full_length lets it go on."""
        tokens = self.read(split)
        length = settings["length"]
        decode = self.tokenizer.decode_story
        if settings["start"] == "story":
            starts = np.flatnonzero(tokens == self.tokenizer.eot) + 1
        else:
            starts = np.arange(0, len(tokens) - length + 1, length)
        if settings["full_length"]:
            starts = without_overlap(starts, length)
            decode = self.tokenizer.decode
        chosen = np.linspace(0, len(starts) - 1, min(at_most, len(starts))).astype(int)
        return [decode(tokens[starts[i]:][:length]) for i in chosen]

    def quality(self, texts: list) -> dict:
        """{metric: (sums above, sums below) for each text}; a metric is the ratio of all of them.

        It says what is copied from the training text, what it has not and, of a world, what
        is right."""
        metrics = {}
        if self.stories:            # a continuous text has none
            encoded = [np.array(self.tokenizer.encode_marked(text), np.uint16) for text in texts]
            metrics["copied stories"] = [ids.tobytes() in self.stories for ids in encoded], 1
        words = [bare_words(text)[:-1] for text in texts]
        new = [[word for word in of_text if word not in self.words] for of_text in words]
        metrics["new words"] = list(map(len, new)), list(map(len, words))
        world = world_of(self.tokenizer)
        if world:
            metrics["grammatical"] = [world.is_right(text) for text in texts], 1
        if world and world.entropy():       # its law is known
            laws = [world.log_probs(text) for text in texts]    # None where it is not right
            laws = [np.zeros(0) if law is None else law for law in laws]
            metrics["nats/token, true law, of those"] = (
                [-law.sum() for law in laws], list(map(len, laws)))
        return metrics


def bare_words(text: str) -> list:
    """The words of a text in lower case, without the punctuation around them."""
    words = text.replace(EOT, " ").lower().split()
    bare = [word.strip(string.punctuation + "“”‘’—…") for word in words]
    return [word for word in bare if word]


def without_overlap(starts, length: int) -> list:
    """Those of the starts that lie behind the piece of the one before."""
    kept = []
    for start in starts:
        if not kept or start >= kept[-1] + length:
            kept.append(start)
    return kept
