"""
Text to token ids and back.
"""
import codecs
import itertools
import re
import unicodedata

import tiktoken

from support.flags import InputError

EOT = "<|endoftext|>"

# A letter takes along the marks on it, such as vowel signs and accents, and an emoji those that are
# joined to it. 200C and 200D join characters, 1F3FB … 1F3FF are colours of skin, and E0020 … 1EF
# end flags. That a mark is no ASCII is said first, because it is quickly seen.
MARKS = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c)[0] == "M")
MARK = f"(?:(?![\\0-\x7f])[{MARKS}\u200c\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e01ef])"
SYMBOL = rf"(?:[\U0001f1e6-\U0001f1ff]{{2}}|[^\w\s]){MARK}*"
WORD = rf"\w+(?:{MARK}+\w*)*|{SYMBOL}(?:(?<=\u200d){SYMBOL})*"


def split_words(text: str) -> list:
    """The words and punctuation marks of a text, without the white space."""
    return re.findall(WORD, text)


def join_words(words) -> str:
    """The text of these words: a space between them, but none before a full stop or a comma."""
    return " ".join(words).replace(" .", ".").replace(" ,", ",")


class Tokenizer:
    """Turns text into token ids and back. The last id is end-of-text.

    kind    gpt2    GPT-2's byte-level BPE, cut to its first vocab_size - 1 tokens. Each token is a
                    byte or made of two earlier tokens, so it works wherever it is cut. A vocab_size
                    of 50257 is GPT-2's own.
            bytes   the 256 bytes of UTF-8: no download, and any language
            words   a list of words and punctuation marks, between which a text may have any blanks
    """

    def __init__(self, kind: str = "gpt2", vocab_size: int = 50257, words=()):
        self.kind = kind
        self.words = list(words)
        if kind == "words":
            self.id = {word: i for i, word in enumerate(self.words)}
            self.eot = len(self.words)
        else:
            ranks, pattern = {bytes([i]): i for i in range(256)}, ""
            if kind == "gpt2":
                ranks, pattern = gpt2_tokens(vocab_size)
            self.eot = len(ranks)
            self.bpe = tiktoken.Encoding(
                kind, pat_str=pattern, mergeable_ranks=ranks, special_tokens={EOT: self.eot})
        self.vocab_size = self.eot + 1

    def to_dict(self) -> dict:
        """What it takes to make this tokenizer again: Tokenizer(**to_dict())."""
        return {"kind": self.kind, "vocab_size": self.vocab_size, "words": self.words}

    def encode(self, text: str) -> list:
        """The ids of a text. An end-of-text mark in it is plain text. Raises InputError."""
        if self.kind == "bytes":
            return list(text.encode())
        if self.kind == "words":
            try:
                return [self.id[word] for word in split_words(text)]
            except KeyError as e:
                raise InputError(f"the word {e} is none of the {len(self.words):,} words of this "
                                 "vocabulary, which are those of the training text") from e
        ids = []
        for piece in cut_between_words(text):
            ids += self.bpe.encode_ordinary(piece)
        return ids

    def encode_marked(self, text: str) -> list:
        """The ids of a text in which each <|endoftext|> stands for the end-of-text token.

        A prompt is such a text, and so is what a model has written. Raises InputError."""
        ids = []
        for story in text.split(EOT):
            ids += [self.eot, *self.encode(story)]
        return ids[1:]

    def encode_open(self, text: str) -> list:
        """As encode_marked, for a text that goes on, such as a prompt.

        GPT-2's tokens hold the blank before a word. So where a text ends in blanks, it is encoded
        with a letter after it, whose token, and the blank in it, is then left to the model."""
        if self.kind == "gpt2" and text[-1:].isspace():
            return self.encode_marked(f"{text}t")[:-1]
        return self.encode_marked(text)

    def decode(self, ids) -> str:
        """The text of these ids. Bytes that are no UTF-8 become the character U+FFFD."""
        if self.kind == "words":
            words = self.words + [EOT]
            return join_words(words[i] for i in ids)
        return self.bpe.decode(list(ids))

    def decode_story(self, ids) -> str:
        """The text up to the first end-of-text."""
        return self.decode(itertools.takewhile(lambda i: i != self.eot, ids))

    def pieces(self, ids) -> list:
        """What each token adds to the text. A character of several comes with its last one."""
        if self.kind == "words":
            texts = [self.decode([i]) for i in ids]
            return [text if text in ".," else f" {text}" for text in texts]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        tokens = self.bpe.decode_tokens_bytes(ids)
        return [decoder.decode(token, i == len(ids)) for i, token in enumerate(tokens, 1)]


def gpt2_tokens(vocab_size: int) -> tuple:
    """GPT-2's first vocab_size - 1 tokens {bytes: id}, and its pattern of words to be encoded.

    Raises InputError."""
    try:
        gpt2 = tiktoken.get_encoding("gpt2")
    except Exception as e:      # tiktoken downloads it, and raises whatever `requests` raises
        raise InputError(f"the GPT-2 vocabulary could not be loaded ({type(e).__name__}); connect "
                         "once, point TIKTOKEN_CACHE_DIR at a copy of tiktoken's cache, or take "
                         "--tokenizer=bytes") from e
    ranks = gpt2._mergeable_ranks.items()
    return {token: rank for token, rank in ranks if rank < vocab_size - 1}, gpt2._pat_str


# The rest of the text if it is short, else as much as ends in a word, else so many characters.
PIECE = re.compile(r"(?s).{1,16384}\Z|.{0,16383}\S(?=[ \n])|.{16384}")


def cut_between_words(text: str) -> list:
    """The text in pieces, because tiktoken fails on a million blanks in a row.

    A piece ends where a word does, which is where GPT-2's tokens end too. Only a word, or a run of
    blanks, that is longer than a piece is cut."""
    return PIECE.findall(text)
