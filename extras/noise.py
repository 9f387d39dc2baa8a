"""
Token noise: some of the tokens that are read in training are replaced by random ones.

Adds: help against overfitting when stories are few (results/real.md). Costs: nothing. Plugs
in as train.py's --token_noise=0.3, around the function that makes a batch.
"""
import torch


def noisy(training_batch, share: float):
    """The function training_batch(config, x, generator), with this share of its tokens replaced.

    BOS and [MASK], which have the largest ids, stay."""
    def batch_of(config, x, generator):
        batch = training_batch(config, x, generator)
        wrong = torch.rand(batch.tokens.shape, generator=generator) < share
        wrong &= batch.tokens < config.bos_id
        other = torch.randint(config.bos_id, batch.tokens.shape, generator=generator)
        return batch._replace(tokens=torch.where(wrong, other, batch.tokens))

    return batch_of
