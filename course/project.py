"""
The open project: as few passes as you can, at less than 0.01 nats from the law.

    python grade.py project         passes a story, and how far the stories are from the law

Here the law is known exactly, so all that goes wrong is the sampler's doing. This one writes one
token a pass in a random order: it needs 47 passes, and is exact.
"""
import torch


def write(law, tokens, generator):
    """Stories (B, W), from tokens (B, W) that are all [MASK], which is the number law.vocab_size.

    law(tokens) gives p (B, W, V) of each word at each place, given the words that its row has, and
    0 for a row that has no [MASK]. It is one pass for each row that has. In every row the words and
    places have other names, so all that you know of a story is what you ask for."""
    order = torch.rand(tokens.shape, generator=generator).argsort(dim=1)        # (B, W)
    row = torch.arange(len(tokens))
    tokens = tokens.clone()
    for place in order.T:                                                       # (B,)
        p = law(tokens)[row, place]                                             # (B, V)
        tokens[row, place] = torch.multinomial(p, 1, generator=generator)[:, 0]
    return tokens
