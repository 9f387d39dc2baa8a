"""
A GPT that works, in a hundred lines. Four edits turn it into masked diffusion: see tasks.md.

    python gpt.py       trains it on the toy in less than a minute, and prints what it writes

It reads V words, numbered 0 … V-1, and BOS, which has the number V and begins every text.
Shapes: B rows of a batch, T places of a text, C = width, H = heads, D = C / H.
"""
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


def attend(q, k, v):
    """Who sees whom, from q, k and v (B, H, T, D): a place sees itself and those before it."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width))

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                                    # (B, H, T, D) each
        y = attend(q, k, v)                                                     # (B, H, T, D)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Logits (B, T, V) of what each place predicts, from the tokens (B, T) that the places hold."""

    def __init__(self, vocab_size, T, width=64, heads=4, layers=2):
        super().__init__()
        self.vocab_size = vocab_size                            # V
        self.embed = nn.Embedding(vocab_size + 1, width)        # a row for each word, and for BOS
        self.position = nn.Embedding(T, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)    # BOS is read, and never predicted

    def forward(self, tokens):
        T = tokens.size(1)
        x = self.embed(tokens) + self.position.weight[:T]                       # (B, T, C)
        return self.head(self.norm(self.blocks(x)))                             # (B, T, V)


def loss(model, x, generator):
    """Nats per token of texts x (B, T), the mean over the rows of a batch.

    `model` is a function from tokens (B, T) to logits (B, T, V). What is random comes from the
    generator, so that the same seed gives the same loss. A GPT has no use for it yet."""
    BOS = model.vocab_size
    tokens = F.pad(x[:, :-1], (1, 0), value=BOS)                                # (B, T)
    logits = model(tokens)                                                      # (B, T, V)
    nll = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")          # (B, T)
    return nll.mean(dim=1).mean()


@torch.no_grad()
def write(model, count, T, generator):
    """Texts (count, T), written one token at a time."""
    BOS = model.vocab_size
    tokens = torch.full((count, T + 1), BOS)
    for place in range(T):
        logits = model(tokens[:, :T])[:, place]                                 # (count, V)
        word = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)    # (count, 1)
        tokens[:, place + 1] = word[:, 0]
    return tokens[:, 1:]


def fit(model, loss, x, steps, batch_size=32, lr=3e-3):
    """Trains the model on texts x (N, T), which come round again and again."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(steps):
        rows = torch.arange(step * batch_size, (step + 1) * batch_size) % len(x)
        nats = loss(model, x[rows], generator)
        optimizer.zero_grad()
        nats.backward()
        optimizer.param_groups[0]["lr"] = lr * min(1, 2 - 2 * step / steps)     # it ends at 0
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4}: {nats.item():.3f} nats per token")


def toy_texts(count):
    """The toy's tokenizer, and as many of its stories as numbers of words (count, 47)."""
    from tokenizer import Tokenizer
    from worlds import texts_of
    from worlds.toy import TOY
    tokenizer = Tokenizer("words", words=TOY.words())
    stories = itertools.islice(texts_of(TOY, seed=0), count)
    return tokenizer, torch.tensor([tokenizer.encode(story) for story in stories])


if __name__ == "__main__":
    torch.manual_seed(0)
    tokenizer, x = toy_texts(20_000)
    T = x.size(1)
    model = GPT(len(tokenizer.words), T)
    fit(model, loss, x, steps=600)
    generator = torch.Generator().manual_seed(0)
    for ids in write(model, 3, T, generator).tolist():
        print(tokenizer.decode(ids))
