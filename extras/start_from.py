"""
Start from the weights of another run, maybe of another mode.

Adds: a masked diffusion model or an any-order GPT that begins as a GPT. Costs: nothing. Plugs in as
train.py's --init_from=out/toy-ar.
"""
import torch

from sample import open_model
from support.flags import InputError


@torch.no_grad()
def start_from(folder: str, model, tokenizer):
    """Set the model to the best weights of a run.

    What only this model has, an embedding of the timestep, begins at zero and so changes nothing:
    an aogpt that starts from an ar *is* that ar, read left to right. Raises InputError where sizes
    or tokenizers differ."""
    source, its_tokenizer, _ = open_model(folder, "cpu")
    for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "n_hidden", "tie_head",
                 "target_rotation"):
        theirs = getattr(source.config, name, True)         # the last two are variants/paper.py's
        ours = getattr(model.config, name, True)
        if theirs != ours:
            raise InputError(f"--init_from={folder} has --{name}={theirs}, not {ours}")
    if its_tokenizer.to_dict() != tokenizer.to_dict():
        raise InputError(f"--init_from={folder} has another tokenizer than this data")
    only_ours, only_theirs = model.load_state_dict(source.state_dict(), strict=False)
    if only_theirs:
        raise InputError(f"--init_from={folder} has {', '.join(only_theirs)}, this model has not")
    for name in only_ours:
        model.get_parameter(name).zero_()
