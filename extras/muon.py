"""
Muon, an optimizer for matrices.

Adds: faster learning than AdamW, above all for masked diffusion (results/paper.md). Costs: some
matrix products in each step. Plugs in as train.py's --optimizer=muon, which the presets toy, sudoku
and laptop have.
Source: kellerjordan.github.io/posts/muon, 2024.
"""
import math

import torch


def make_optimizers(model, s) -> list:
    """Muon for the matrices of the blocks, and AdamW for all other weights."""
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    taken = set(matrices)
    rest = [p for p in model.parameters() if p not in taken]
    adamw = torch.optim.AdamW(rest, betas=(0.9, s.beta2), weight_decay=s.weight_decay, fused=True)
    return [adamw, Muon(matrices, dict(weight_decay=s.weight_decay))]


class Muon(torch.optim.Optimizer):
    """Nesterov's momentum, made nearly orthogonal (kellerjordan.github.io/posts/muon, 2024).

    Its steps are scaled to the length of AdamW's (arXiv 2502.16982), so that lr serves both.
    torch.optim.Muon always multiplies in bfloat16, which many CPUs do slowly; this one multiplies
    in the precision of training."""

    @torch.no_grad()
    def step(self):
        [group] = self.param_groups
        for p in group["params"]:
            if p not in self.state:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            momentum = self.state[p]["momentum_buffer"].lerp_(p.grad, 0.05)
            step = orthogonalize(p.grad.lerp(momentum, 0.95))
            p.mul_(1 - group["lr"] * group["weight_decay"])
            # The entries of step have a root mean square of about 1/√(longer side), and those of
            # AdamW's steps, before lr, about 0.2.
            p.add_(step, alpha=-0.2 * math.sqrt(max(p.shape)) * group["lr"])


def orthogonalize(x: torch.Tensor) -> torch.Tensor:
    """The matrix x with all its singular values near 1, by five Newton-Schulz steps.

    One of them takes a singular value s to 3.4445 s − 4.775 s³ + 2.0315 s⁵."""
    rows, columns = x.shape
    if rows > columns:
        return orthogonalize(x.mT).mT
    x = x / x.norm().clamp(min=1e-7)    # no singular value is above 1, else the steps may diverge
    for _ in range(5):
        # addmm(a, b, c, beta=…, alpha=…) is beta · a + alpha · b c in one call.
        a = x @ x.mT
        polynomial = torch.addmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.addmm(x, polynomial, x, beta=3.4445)
    return x
