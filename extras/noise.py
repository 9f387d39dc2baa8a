"""
Token noise: some of the tokens that are read in training are replaced by random ones.

Adds: help against overfitting when stories are few (results/few-stories.md). Costs: nothing. Plugs
in as train.py's --token_noise=0.3, between the batch and the step.
"""
import torch


def add_noise(config, batch, share: float, generator):
    """The batch with this share of its tokens replaced, but neither BOS nor [MASK]."""
    wrong = torch.rand(batch.tokens.shape, generator=generator) < share
    wrong &= batch.tokens < config.bos_id       # BOS and [MASK] have the largest ids
    other = torch.randint(config.bos_id, batch.tokens.shape, generator=generator)
    return batch._replace(tokens=torch.where(wrong, other, batch.tokens))
