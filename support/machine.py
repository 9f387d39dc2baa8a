"""
What makes a machine compute fast, and the same each time. Import it before torch.
"""
import ctypes
import math
import os
import sys
import timeit

# By the first a thread with nothing to do gives way to other programs soon; without it a step on a
# busy CPU takes six times as long. By the second torch.compile does not try out the CPU's vector
# instructions, which would take 6 s.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
import torch
import torch.nn.functional as F

from support.flags import is_out_of_memory
from support.processes import mean_over_processes


def prepare(s, device: torch.device):
    """Makes training on this machine repeatable and fast, and decides on dtype=auto."""
    if s.dtype == "auto":
        s.dtype = "bfloat16" if bfloat16_is_faster(device) else "float32"
    if device.type == "cuda" and s.dtype == "bfloat16":
        torch.set_float32_matmul_precision("high")      # TF32, where float32 is left: in evaluation
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)    # else compiled code adds up in any order
        torch.set_flush_denormal(True)      # sharp attention makes tiny numbers, which are slow
    if sys.platform == "linux":
        # The C library shall keep memory that is freed; to ask for it anew costs a tenth more time.
        malloc_options = ctypes.CDLL(None).mallopt
        malloc_options(-4, 0)       # M_MMAP_MAX
        malloc_options(-1, -1)      # M_TRIM_THRESHOLD


def bfloat16_is_faster(device: torch.device) -> bool:
    """Whether the device multiplies matrices faster in bfloat16. On a CPU a trial tells."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    seconds = {torch.bfloat16: math.inf, torch.float32: math.inf}
    for _ in range(50):         # by turns, or a short pause of the machine would decide
        for dtype in seconds:
            x = torch.ones(256, 256, dtype=dtype)
            took = timeit.timeit(lambda: x @ x, number=1)
            seconds[dtype] = min(seconds[dtype], took)
    gain = torch.tensor(seconds[torch.float32] - seconds[torch.bfloat16])
    return mean_over_processes(gain).item() > 0         # all processes must agree


def attention_for(device: torch.device):
    """The function softmax(q kᵀ / √D) v that is fast on this device."""
    return attention_written_out if device.type == "cpu" else F.scaled_dot_product_attention


def attention_written_out(q, k, v, visible=None, is_causal=False):
    """F.scaled_dot_product_attention, written out where its backward pass is slow on a CPU.

    That is in bfloat16: a step of the toy spends 7 ms here, and would spend 41 ms."""
    if q.dtype != torch.bfloat16 or not q.requires_grad:
        return F.scaled_dot_product_attention(q, k, v, visible, is_causal=is_causal)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))                    # (B, H, S, n)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(dim=-1).to(v.dtype) @ v


def cross_entropy(logits, targets, reduction: str):
    """F.cross_entropy(reduction="none"), written out: compiled, its gradient takes one pass over
    the words. logits (n, V), targets (n,), and the result (n,)."""
    return logits.logsumexp(dim=-1) - logits.gather(-1, targets[:, None])[:, 0]


def rows_at_once(numbers_of_row: int, device: torch.device) -> int:
    """How many rows to compute at once, if each makes so many float32 numbers: at most 64.

    A CPU is given 64 MB of them, a GPU a gigabyte, and needs another one for
    what is computed from them; for 512 tokens and 50,257 words that is ten rows."""
    room = 2 ** 24 if device.type == "cpu" else 2 ** 28
    return min(64, max(1, room // numbers_of_row))


def compiled(function, s, device: torch.device):
    """The function, compiled unless --compile=false.

    Where it cannot be, for example for want of a C++ compiler, it warns and goes on without. That
    shows when it is first called; what is raised later, or for want of memory, is no such case."""
    if s.compile == "false" or (s.compile == "auto" and device.type == "mps"):
        return function
    working = None

    def call(*arguments):
        nonlocal working
        if working:
            return working(*arguments)
        failed = torch.zeros((), device=device)
        try:
            working = torch.compile(function)
            result = working(*arguments)
        except Exception as e:      # what it raises differs by version and by what is missing
            if is_out_of_memory(e):
                raise
            print(f"warning: torch.compile failed ({type(e).__name__}); going on without it",
                  file=sys.stderr)
            failed += 1
        if mean_over_processes(failed):         # all processes must compute in the same way
            working = function
            result = working(*arguments)
        return result

    return call
