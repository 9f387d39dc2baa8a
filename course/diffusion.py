"""
The solution of the first task: what takes the place of these functions of gpt.py.

    python -m course.hand_out solutions DIR       puts them there
"""
import torch
import torch.nn.functional as F


def attend(q, k, v):
    """Who sees whom, from q, k and v (B, H, T, D): each place sees every one."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=False)


def loss(model, x, generator):
    """Nats per token of texts x (B, T), a bound on average, the mean over the rows of a batch."""
    MASK, (B, T) = model.vocab_size, x.shape
    k = torch.randint(1, T + 1, (B, 1), generator=generator)                    # (B, 1)
    hidden = torch.rand(B, T, generator=generator).argsort(dim=1) < k           # (B, T)
    logits = model(x.masked_fill(hidden, MASK))                                 # (B, T, V)
    nll = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")          # (B, T)
    return ((nll * hidden).sum(dim=1) / k[:, 0]).mean()


@torch.no_grad()
def write(model, count, T, generator):
    """Texts (count, T), written one token at a time, each in a random order of its own."""
    MASK, row = model.vocab_size, torch.arange(count)
    tokens = torch.full((count, T), MASK)
    order = torch.rand(count, T, generator=generator).argsort(dim=1)            # (count, T)
    for place in order.T:                                                       # (count,)
        logits = model(tokens)[row, place]                                      # (count, V)
        word = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)    # (count, 1)
        tokens[row, place] = word[:, 0]
    return tokens
