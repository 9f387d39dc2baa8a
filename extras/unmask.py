"""
What the samplers of mdlm share that reveal unequally many tokens in the stories of a batch.

Adds: one pass for chosen masked places. Plugs into extras/ancestral.py, adaptive.py, confidence.py.
"""
import torch.nn.functional as F

from model import mask_batch


def logits_where(model, tokens, where):
    """Logits (n, V) of the n masked places of tokens (B, L) where `where` (B, L) is true."""
    config = model.config
    beyond = config.block_size - tokens.size(1)         # the network has learned whole windows
    window = F.pad(tokens, (0, beyond), value=config.mask_id)                   # (B, T)
    batch = mask_batch(config, window, window == config.mask_id)
    select = F.pad(where, (1, beyond)).flatten().nonzero().flatten()          # (n,) BOS has slot 0
    return model(batch.tokens, batch.key_pos, batch.target_pos, select)
