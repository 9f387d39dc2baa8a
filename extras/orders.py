"""
Orders of writing: which token comes when.

Adds: mdlm and aogpt write from left to right, block by block, or in any order of all places. Costs:
nothing; but an order that a model was not trained in gives worse text. Plugs in as

    python sample.py --out_dir=out/toy-aogpt --order=left_to_right
"""
import torch

from variants.blocks import times_in_blocks
from support.flags import InputError


def times_in_order(order: str, u: torch.Tensor) -> torch.Tensor:
    """When each place is written (B, L): the smallest first. u (B, L) is uniform.

    Raises InputError where `order` names no order."""
    L = u.size(1)
    place = torch.arange(L, device=u.device)                                    # (L,)
    if order == "random":
        return u
    if order == "left_to_right":
        return place.expand_as(u).double()
    N = order.removeprefix("blocks:")
    if N != order and N.isdecimal() and int(N) > 0:
        return times_in_blocks(int(N), u)
    positions = order.split(",")
    if sorted(positions) != sorted(map(str, range(L))):
        raise InputError(f"--order={order:.40} must be random, left_to_right, blocks:N with an N "
                         f"of 1 or more, or have each of the positions 0 to {L - 1} once, with "
                         "commas")
    times = torch.tensor(list(map(int, positions)), device=u.device).argsort()  # (L,)
    return times.expand_as(u).double()
