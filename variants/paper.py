"""
The paper: arXiv 2603.22075, with which this project began.

Adds: every difference between its network, loss, data and sampler and ours, each a flag, so that
each can be measured alone (results/paper.md). Costs: nothing to those who don't ask for it. Plugs
in as the variant of a run, and as presets for training and for sampling:

    python train.py --mode=mdlm --preset=paper
    python train.py --mode=mdlm --variant=paper --init=paper        one difference alone
    python sample.py --out_dir=out/tinystories-mdlm --sampler=confidence --by_the_paper

Where its text and its code differ, this follows its code.
"""
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import model
import prepare_data
from model import MODES, Block, equal_weights, mask_batch, rotary_table
from support.flags import InputError, flag


@dataclass
class Config(model.Config):
    """--variant=paper: one by one, how the networks and losses of arXiv 2603.22075 differ"""
    tie_head: bool = flag(True, "use the embedding matrix as the output head too")
    time_embedding: Literal["none", "add"] = flag(
        "none", "mdlm: tell the network how much is masked")
    schedule: Literal["uniform", "cosine"] = flag(
        "uniform", "mdlm: distribution of the share masked; nelbo needs uniform")
    target_embedding: bool = flag(True, "add an embedding of the position that a slot predicts")
    target_rotation: bool = flag(
        True, "turn queries by the position they predict; false: by the one they hold")
    init: Literal["scaled", "paper"] = flag(
        "scaled", "initial weights by number of inputs, or as PyTorch has them")
    shared_init: bool = flag(True, "start all embeddings around one common vector, not around zero")

    def __post_init__(self):
        super().__post_init__()
        if self.mode != "mdlm" and (self.time_embedding != "none" or self.schedule != "uniform"):
            raise InputError("--time_embedding and --schedule are for --mode=mdlm")
        if self.objective == "nelbo" and self.schedule == "cosine":
            raise InputError("--schedule=cosine needs --objective=masked_ce; the weights of nelbo "
                             "make a bound for the uniform schedule only")


# How its mdlm differs from its ar.
OF_MDLM = dict(tie_head=False, time_embedding="add", objective="masked_ce", schedule="cosine")


def preset_of(mode: str) -> dict:
    """The preset `paper` of train.py: Table 1 of the paper."""
    preset = dict(
        variant="paper",
        windows="paper",
        init="paper",
        shared_init=False,
        target_embedding=False,
        warmup=500,
        final_lr=0.05,
        dtype="float32",
        compile="false",
        eval_interval=2000,
        eval_windows=1600,
    )
    return preset | (OF_MDLM if mode == "mdlm" else {})


# ---- The network ---------------------------------------------------------------------------------

class TimeEmbedding(nn.Module):
    """How much is masked, as a number t in [0, 1] for each row (B,), as a vector (B, 1, C)."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, t):
        half = self.linear.in_features // 2
        index = torch.arange(half, device=t.device, dtype=t.dtype)              # (C/2,)
        angle = t[:, None, None] * 10000.0 ** (-index / half)                   # (B, 1, C/2)
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1)                   # (B, 1, C)
        return F.silu(self.linear(waves.to(self.linear.weight.dtype)))


class Transformer(model.Transformer):
    def __init__(self, config: Config):
        nn.Module.__init__(self)
        self.config = config
        self.embed = nn.Embedding(config.padded_vocab, config.n_embd)
        if config.target_embedding:
            self.embed_target = nn.Embedding(config.block_size, config.n_embd)
        if config.time_embedding == "add":
            self.embed_time = TimeEmbedding(config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, eps=1e-6)
        self.head = nn.Linear(config.n_embd, config.padded_vocab, bias=False)
        if config.tie_head:
            self.head.weight = self.embed.weight
        rotary = rotary_table(config.block_size, config.n_embd // config.n_head)
        self.register_buffer("rotary", rotary, persistent=False)
        self.init_weights()

    def forward(self, tokens, key_pos, target_pos, select, attend=None, t=None):
        """As model.py's; t (B,) is what the timestep embedding is told, else the share masked."""
        x = self.embed(tokens)                                                  # (B, S, C)
        if self.config.target_embedding:
            x = x + self.embed_target(target_pos.clamp(min=0))
        if self.config.time_embedding == "add":
            if t is None:
                share = (tokens[:, 1:] == self.config.mask_id).float().mean(dim=1)
                t = timestep(self.config, share)
            x = x + self.embed_time(t)                                          # (B, S, C)
        rotary_k = self.rotary[:, key_pos + 1].unsqueeze(2)                 # (2, B or 1, 1, S, D/2)
        rotary_q = rotary_k
        if self.config.target_rotation:
            rotary_q = self.rotary[:, target_pos + 1].unsqueeze(2)          # (2, B or 1, 1, S, D/2)
        attend = attend or self.attend
        *first, last = self.blocks
        for block in first:
            x = block(x, rotary_q, rotary_k, attend)                            # (B, S, C)
        x = last(x, rotary_q, rotary_k, attend, select)                         # (n, C)
        logits = self.head(self.norm(x))[:, :self.config.vocab_size]            # (n, V)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def logits(self, batch, select: Tensor) -> Tensor:
        """As model.py's; the network is told the time, if the batch has one."""
        t = getattr(batch, "t", None)
        return self(*batch[:3], select, t=t)

    @torch.no_grad()
    def init_weights(self):
        """As model.py's; with init=paper as PyTorch has it. There embeddings are N(0, 1), so the
        logits of a tied head begin with a standard deviation of √C."""
        row_length = 1
        if self.config.init == "scaled":
            row_length = self.config.n_embd
            for name, p in self.named_parameters():
                self.init_weight(name, p)
        if self.config.shared_init:
            self.embed.weight += torch.randn(self.config.n_embd) / math.sqrt(row_length)

    def init_weight(self, name: str, p: Tensor):
        if name == "embed_time.linear.bias":
            nn.init.zeros_(p)
        elif name == "embed_time.linear.weight":
            nn.init.normal_(p, std=1 / p.size(1))   # it begins shorter than the token's embedding
        else:
            super().init_weight(name, p)

    def count_parameters(self) -> int:
        """As model.py's; an untied head has rows that only pad the vocabulary, too."""
        config = self.config
        padding = (config.padded_vocab - config.vocab_size) * config.n_embd
        return super().count_parameters() - (not config.tie_head) * padding


# ---- Its loss ------------------------------------------------------------------------------------

def timestep(config: Config, ratio: Tensor) -> Tensor:
    """The t at which training masks this ratio of the tokens: the inverse of the schedule."""
    if config.schedule == "cosine":
        return torch.acos((1 - ratio).sqrt()) * 2 / math.pi
    return ratio


class TimedBatch(NamedTuple):
    """A Batch, and what the network is told of the time."""
    tokens: Tensor                  # (B, S), and so are the next four
    key_pos: Tensor
    target_pos: Tensor
    targets: Tensor
    weight: Tensor
    t: Tensor                       # (B,) how much is masked

    select = model.Batch.select


def timed_batch(config: Config, x: Tensor, generator) -> TimedBatch:
    """model.py's cosine_batch, whose t is told to the network.

    For each row t is uniform on (0, 1), and each token is masked with the chance sin²(πt/2)."""
    t = torch.rand(len(x), generator=generator)                                 # (B,)
    ratio = torch.sin(math.pi / 2 * t) ** 2                                     # (B,)
    masked = torch.rand(x.shape, generator=generator) < ratio[:, None]          # (B, T)
    batch = equal_weights(mask_batch(config, x, masked))
    return TimedBatch(*batch, t=timestep(config, ratio))


def training_batch(config: Config, x: Tensor, generator):
    if config.schedule == "cosine":
        return timed_batch(config, x, generator)
    return MODES["mdlm"].training_batch(config, x, generator)


Config.modes = {
    "ar": MODES["ar"]._replace(network=Transformer),
    "mdlm": MODES["mdlm"]._replace(
        training_batch=training_batch, reported={"val_masked_ce": timed_batch},
        network=Transformer),
    "aogpt": MODES["aogpt"]._replace(network=Transformer)}


# ---- Its data ------------------------------------------------------------------------------------

class PaperWindows(prepare_data.Windows):
    """Without end-of-text, the training split is cut into chunks, and a random 5% are held out.

    So a story may lie in both training and validation."""

    def cut(self, split: str) -> tuple:
        tokens, _ = super().cut("train")
        tokens = tokens[tokens != self.meta["eot"]]
        self.tokens_per_byte = len(tokens) / self.meta["splits"]["train"]["bytes"]
        count = len(tokens) // self.block_size
        chunks = np.random.default_rng(42).permutation(np.arange(count) * self.block_size)
        held_out = count // 20
        return tokens, chunks[:held_out] if split == "val" else chunks[held_out:]

    def spread_places(self, n: int):
        """The first of the held-out chunks will do, because they are shuffled."""
        return self.places(self.starts[:n])
