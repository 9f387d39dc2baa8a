"""
Several processes, each of which trains on its share of every batch.

torchrun starts them. The gradients are averaged by hand, because compiled losses and several
optimizers then need nothing else; it is one call for each step.
"""
import datetime
import os
import sys

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from support.flags import InputError, pick_device


def number(name, otherwise):
    """An environment variable that is a number."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


# torchrun starts the processes and sets these variables. The first process speaks and writes.
# Clusters set some of them for a single process too, of which no other is to be waited for.
WORLD_SIZE = max(1, number("WORLD_SIZE", 1))
RANK = number("RANK", 0) if WORLD_SIZE > 1 else 0


def join_processes(device: str) -> torch.device:
    """This process's device, connected to the others. Raises InputError."""
    if WORLD_SIZE == 1:
        return pick_device(device)
    if device == "auto":    # several processes cannot share a Mac's GPU
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda:{number('LOCAL_RANK', RANK)}"
    device = pick_device(device)
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"
    try:        # the others wait while the first one prepares the data, which may take long
        torch.distributed.init_process_group(backend, timeout=datetime.timedelta(hours=1))
    except (ValueError, RuntimeError) as e:
        reason = " ".join(str(e).split())[:100]
        raise InputError(f"WORLD_SIZE={WORLD_SIZE}, but the processes do not meet ({reason}); "
                         "start them by torchrun, or unset WORLD_SIZE") from e
    if RANK > 0:
        sys.stdout = open(os.devnull, "w")
    return device


def wait_for_processes():
    """Returns when all processes have come here."""
    if WORLD_SIZE > 1:
        torch.distributed.barrier()


def mean_over_processes(x: torch.Tensor) -> torch.Tensor:
    """x, replaced by its mean over the processes in each of them."""
    if WORLD_SIZE > 1:
        torch.distributed.all_reduce(x)
        x /= WORLD_SIZE
    return x


def average_gradients(model: torch.nn.Module):
    """Every process takes the mean gradient of all; they are sent as one long vector."""
    if WORLD_SIZE > 1:
        gradients = [p.grad for p in model.parameters()]
        mean = mean_over_processes(parameters_to_vector(gradients))
        vector_to_parameters(mean, gradients)


def leave_processes():
    """The first process goes on alone; the others end here."""
    wait_for_processes()
    if WORLD_SIZE > 1:
        torch.distributed.destroy_process_group()
    if RANK > 0:
        sys.exit()
