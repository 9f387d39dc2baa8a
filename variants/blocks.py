"""
Blocks: between left to right and random order there is a dial.

Adds: a text becomes known in blocks of N tokens, one block after another, each in random order
inside. N = 1 is left to right, and one block of all tokens is random (results/sampling.md). For
mdlm that is block diffusion (Arriola et al. 2025, arXiv 2503.09573), for aogpt only other orders.
Costs: mdlm reads nearly two rows for one in training; when it writes, its passes read one block
only, and write no more tokens than a block has. Plugs in as the variant of a run, and brings its
own Config, network, batches and `plan`:

    python train.py --mode=mdlm --variant=blocks --block_length=8

A block can see itself and the blocks before it. Who sees whom follows from *stages*: a slot sees
all slots of its own stage, and those of earlier stages if these are odd. Later stages may read an
odd stage, and none may read an even one. When a model writes, all stages are odd. In training each
block is there twice, known in an odd stage, and with [MASK]s in an even one:

    ar, aogpt                 -1  1  3  5  7           causal
    mdlm                       0  0  0  0  0           bidirectional
    mdlm in blocks of 2       -1  1  1  3  3           bidirectional in a block, else causal
    the same, to train it     -1  1  1  0  0  2  2     see `two_streams`
"""
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

import model
from extras.cache import Memory
from model import MODES, Batch, cosine_batch, equal_weights, mask_batch, spread, weighted
from support.flags import InputError, flag


@dataclass
class Config(model.Config):
    """--variant=blocks (mdlm, aogpt): tokens become known block by block"""
    mode: Literal["mdlm", "aogpt"] = "mdlm"
    block_length: int = flag(16, "N, the tokens of a block", low=1)

    def __post_init__(self):
        super().__post_init__()
        if self.block_length >= self.block_size:
            raise InputError(f"--block_length={self.block_length} must be less than the window, "
                             f"{self.block_size}; without --variant all tokens are one block")


# ---- Orders --------------------------------------------------------------------------------------

def times(config: Config, u: Tensor) -> Tensor:
    """When each place becomes known (B, L), from uniform u (B, L): block b from b to b+1."""
    return times_in_blocks(config.block_length, u)


def times_in_blocks(N: int, u: Tensor) -> Tensor:
    return block_of(u, N) + u.double()      # a float32 could round up to the next block


def block_of(x: Tensor, N: int) -> Tensor:
    """(T,) the number of the block of each place of x (B, T)."""
    return torch.arange(x.size(1), device=x.device) // N


# ---- The network of mdlm: who sees whom ----------------------------------------------------------

class Transformer(model.Transformer):
    def __init__(self, config: Config):
        super().__init__(config)
        block = torch.arange(-1, config.block_size) // config.block_length      # (T+1,) BOS has -1
        once = 2 * block + 1                                                    # (T+1,)
        twice = torch.cat([once[:clean_slots(config)], once[1:] - 1])           # (S,)
        self.register_buffer("seen_once", slots_seen(once), persistent=False)
        self.register_buffer("seen_twice", slots_seen(twice), persistent=False)

    def attend(self, layer, q, k, v):
        visible = self.seen_twice
        if q.size(2) == len(self.seen_once):
            visible = self.seen_once
        return self.softmax_attention(q, k, v, visible)


def slots_seen(stage: Tensor) -> Tensor:
    """Which slots (columns) each slot (rows) sees, by the slots' stages (S,): (S, S)."""
    own = stage[:, None]                                                        # (S, 1)
    return (stage == own) | ((stage % 2 == 1) & (stage < own))


# ---- What it learns ------------------------------------------------------------------------------

def training_batch(config: Config, x: Tensor, generator) -> Batch:
    return weighted(config, all_blocks_batch(config, x, generator))


def masked_ce_batch(config: Config, x: Tensor, generator) -> Batch:
    return equal_weights(two_streams(config, cosine_batch(config, x, generator)))


def one_block_batch(config: Config, x: Tensor, generator, known: int = 0) -> Batch:
    """The bound of block diffusion in its plainest form: each row predicts k tokens of one block b.

        −log p(x)/T ≤ E_b E_k E_M [(1/k) Σ_{i in M} −log p(x_i | b outside M, blocks before)]

    For each block that is the bound of model.py's `mask_batch`. b is the block of a random token,
    because a shorter last block counts less. Later blocks are all [MASK], and not seen. Where the
    first `known` tokens are given, it is the bound on −log p of the others, per token of these. x
    (B, L) may be shorter than the window, which is then [MASK] too. Training takes all blocks at
    once, see `all_blocks_batch`; a test shows that both have the same mean."""
    B, L = x.shape
    place = torch.arange(L)
    block = place // getattr(config, "block_length", config.block_size)         # (L,)
    some_token = known + (spread(B, generator) * (L - known)).long()            # (B,)
    b = block[some_token][:, None]                                              # (B, 1)
    here = (block == b) & (place >= known)                                      # (B, L)
    size = here.sum(dim=1, keepdim=True)                                        # (B, 1)
    k = 1 + (spread(B, generator)[:, None] * size).long()                       # (B, 1)
    # Each place of the block draws a number below 1, and all others have 1, so they rank last. Here
    # it must be true ranks, which are the argsort of the argsort.
    lot = torch.rand(B, L, generator=generator).masked_fill(~here, 1)
    rank = lot.argsort(dim=1).argsort(dim=1)                                    # (B, L)
    masked = here & (rank < k)                                                  # (B, L)
    beyond = config.block_size - L
    hidden = F.pad(masked | (block > b), (0, beyond), value=True)               # (B, T)
    batch = mask_batch(config, F.pad(x, (0, beyond)), hidden)
    return batch._replace(weight=F.pad(masked / k, (1, beyond)))


def all_blocks_batch(config: Config, x: Tensor, generator) -> Batch:
    """The same bound for all blocks at once, each with a k and masks of its own.

    The mean over b, the block that is drawn there, is a sum over all blocks here. As in model.py's
    `draw_counts` the k are spread evenly, and rows come in pairs of k and size+1−k. B is even."""
    B, T = x.shape
    block = torch.arange(T) // config.block_length                              # (T,)
    size = block.bincount()                         # (M,) how many tokens each of M blocks has
    u = spread(B // 2 * len(size), generator).view(-1, len(size)) / 2           # (B/2, M)
    k = 1 + (u * size).long()                                                   # (B/2, M)
    k = torch.stack([k, size + 1 - k], dim=1).view(B, -1)                       # (B, M)
    k = k[:, block]                                 # (B, T) at each place the k of its block
    # The places of block 0 in random order, then those of block 1, and so on. Counted from the
    # beginning of their block they are 0, 1, … in random order, so they can serve as ranks in it.
    times = block + torch.rand(B, T, generator=generator).double()              # (B, T)
    rank = times.argsort(dim=1) % config.block_length                           # (B, T)
    masked = rank < k           # k in each block, at random places
    # size / T is the chance with which `one_block_batch` draws the block.
    weight = F.pad(masked * (size[block] / T / k), (1, 0))                      # (B, T+1)
    return two_streams(config, mask_batch(config, x, masked)._replace(weight=weight))


def clean_slots(config: Config) -> int:
    """The slots before the last block."""
    return 1 + (config.block_size - 1) // config.block_length * config.block_length


def two_streams(config: Config, batch: Batch) -> Batch:
    """Each row twice over, so that a block with masks can see the blocks before it without theirs.

    A row gets BOS and all blocks but the last without masks, and then all blocks with their masks.
    The former predict nothing. For T = 4 and blocks of 2, where | is put between the parts:

        as it came      BOS  x_0  [M]  [M]  [M]
        returned        BOS  x_0  x_1 | x_0  [M] | [M]  [M]
        stage           -1    1    1     0    0     2    2

    Each masked slot sees what it sees in `one_block_batch`. There are 2T−N+1 slots if N divides T.
    """
    clean = batch._replace(tokens=batch.targets, weight=torch.zeros_like(batch.weight))
    n = clean_slots(config)
    pairs = zip(clean, batch)       # of the fields, each (B, T+1)
    return Batch(*(torch.cat([first[:, :n], second[:, 1:]], dim=1) for first, second in pairs))


# ---- How it writes -------------------------------------------------------------------------------

def check_prompt(config: Config, pattern: Tensor):
    """Raises InputError where words are given in a later block than a blank."""
    free = pattern == config.mask_id                                            # (L,)
    block = torch.arange(len(pattern)) // config.block_length
    if (free & (block < block.where(~free, 0).max())).any():
        raise InputError("--prompt has words in a later block than a blank; a model that was "
                         f"trained with --block_length={config.block_length} cannot use them")


def plan(config: Config, tokens, times, steps=0):
    """As model.py's, but no pass writes into two blocks.

    So there are a few passes more than `steps`, if N does not divide the tokens of a pass. The
    times of block b are from b to b+1."""
    order, edges = model.plan(config, tokens, times, steps)
    free = tokens[0] == config.mask_id                                          # (L,)
    written = edges[0] + free.cumsum(dim=0)             # (L,) how many are known up to here
    ends = written[config.block_length - 1::config.block_length]
    return order, sorted({*edges, *ends.tolist()})


class BlockReader:
    """Reads the slots of one block, and keeps what it has computed of the blocks before.

    A slot sees its own block and those before, so a finished block need not be read again. But what
    the memory has of a block that still had [MASK]s is not final. It is overwritten by the block's
    next pass, and in the end by the first pass of the next block, which reads both. For N = 2, with
    BOS in slot 0, these slots are read, and the others up to the last of them are in the memory:

        block 0                     slots 0 1 2     x_0 and x_1
        block 0 again                       1 2
        block 1, first pass                 1 2 3 4
        block 1 again                           3 4
    """

    def __init__(self, model):
        self.memory = Memory(model.config.block_size + 1)
        self.final = 0          # slots before it are in the memory as they will stay
        self.blocks = []        # that of each place in the order, the same for all stories

    def __call__(self, model, tokens, order, start: int, end: int):
        """Logits (B, m, V) of the m tokens from `start` to `end` in the order, all in one block."""
        config, (B, L) = model.config, tokens.shape
        if not self.blocks:     # only now, because a GPU has to be waited for
            self.blocks = (order[0] // config.block_length).tolist()
        place = order[:, start:end]                                             # (B, m)
        first = 1 + self.blocks[start] * config.block_length
        last = min(first + config.block_length, config.block_size + 1)
        read = slice(self.final, last)                  # S slots
        self.final = first
        window = F.pad(tokens, (0, config.block_size - L), value=config.mask_id)
        batch = mask_batch(config, window, window == config.mask_id)
        batch = Batch(*(field[:, read] for field in batch))                     # (B, S) each
        slots = torch.arange(read.start, last, device=tokens.device).expand(B, -1)
        visible = model.seen_once[None, None, read, :last]                      # (1, 1, S, last)
        row = torch.arange(B, device=tokens.device)[:, None]                    # (B, 1)
        select = row * slots.size(1) + place + 1 - read.start                   # (B, m)
        logits = model(batch.tokens, batch.key_pos, batch.target_pos, select.flatten(),
                       self.memory.attend_at(slots, visible))
        return logits.view(*place.shape, -1)


Config.modes = {
    "mdlm": MODES["mdlm"]._replace(
        orders="own", times=times, bound_batch=all_blocks_batch, training_batch=training_batch,
        reported={"val_masked_ce": masked_ce_batch}, plan=plan, reader=BlockReader,
        check_prompt=check_prompt, network=Transformer),
    "aogpt": MODES["aogpt"]._replace(times=times)}
