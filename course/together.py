"""
Why two at a time break: what is lost when several tokens are drawn in one pass.

A network tells the law of each hidden token, given what is known. Tokens of one pass are drawn from
these laws independently, so they follow the product of the single laws. What a story should have is
their joint law, in which "Lily … She" is likely and "Lily … He" is not.
"""
import torch


def nats_lost(joint):
    """KL(joint ‖ product) in nats, as a tensor without dimensions: 0 if the places are independent.

    joint (V, V, …) is the law of two or more places: joint[a, b] = p(first is a, second is b). The
    product has the same law for each place alone. Cells where joint is 0 add nothing."""
    singles = 0
    for i in range(joint.dim()):
        others = [other for other in range(joint.dim()) if other != i]
        singles += torch.special.entr(joint.sum(dim=others)).sum()
    return singles - torch.special.entr(joint).sum()
