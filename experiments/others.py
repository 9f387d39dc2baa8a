"""
How long does a training step take beside one of others' own code, nanoGPT's and the paper's?

    git clone https://github.com/karpathy/nanoGPT
    git clone https://github.com/caiovicentino/arche
    python -m experiments.others --nanogpt=nanoGPT --paper=arche        with nothing else running

All steps have the same sizes and take turns in one process, as in bench.py. nanoGPT is compiled,
in the type of train.py's products, which its own train.py has on a GPU alone. The paper's code is
eager float32, as it is published. Both profit from what train.py sets for its process: the memory
that is freed is kept, and numbers next to zero are flushed to it. Without the first, a step of
theirs takes about twice as long on a CPU. Their tokens are new in each step: the paper's ar became
seven times slower as it learned one batch by heart, probably by ever smaller numbers.

At the small sizes it takes minutes on a CPU.
"""
import importlib.util
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from bench import begin, by_turns, training_step
from model import Config
from support.flags import (
    InputError, build, command, flag, parse_flags, print_table, provenance, write_json)


@dataclass
class OthersOptions:
    """what to compare with"""
    nanogpt: str = flag("nanoGPT", "folder of github.com/karpathy/nanoGPT")
    paper: str = flag("arche", "folder of github.com/caiovicentino/arche")
    preset: Literal["auto", "small", "paper"] = flag(
        "auto", "sizes where no flag says otherwise; auto: paper with CUDA, else small")
    batch_size: int | None = flag(None, "windows per training step; default: 8, paper 32", low=2)
    repeats: int = flag(6, "measurements of each; the table has their median", low=1)
    device: str = flag("auto", "auto, cpu, cuda or mps")
    json: str = flag("", "file for the results", file=(".json",))


def import_file(path: str):
    """The Python file, imported. Raises InputError."""
    spec = importlib.util.spec_from_file_location("others_code", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["others_code"] = module             # torch.compile looks there
    try:
        spec.loader.exec_module(module)
    except OSError as e:
        raise InputError(f"{path} is not there; --help says where to get it") from e
    return module


def update(net, optimizer, loss):
    """What both projects do after a loss."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def nanogpt_step(folder: str, config: Config, batch_size: int, device: torch.device, dtype: str):
    code = import_file(f"{folder}/model.py")
    net = code.GPT(code.GPTConfig(
        block_size=config.block_size,
        vocab_size=config.padded_vocab,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        dropout=0.0,
        bias=False)).to(device)
    optimizer = net.configure_optimizers(0.1, 3e-4, (0.9, 0.95), device.type)
    compiled = torch.compile(net)
    shape = batch_size, config.block_size

    def step():
        x = torch.randint(config.vocab_size, shape, device=device)
        y = torch.randint(config.vocab_size, shape, device=device)
        with torch.autocast(device.type, getattr(torch, dtype), enabled=dtype != "float32"):
            _, loss = compiled(x, y)
        update(net, optimizer, loss)

    return step


def paper_step(folder: str, name: str, config: Config, batch_size: int, device: torch.device):
    """name: AutoregressiveModel or MDLMModel"""
    code = import_file(f"{folder}/gpu/models.py")
    make_net = getattr(code, name)
    net = make_net(
        config.vocab_size, config.n_embd, config.n_head, config.n_embd // config.n_head,
        config.n_hidden, config.n_layer).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.01)
    shape = batch_size, config.block_size

    def step():
        x = torch.randint(config.vocab_size, shape, device=device)
        update(net, optimizer, net.compute_loss(x))

    return step


def main():
    flags = parse_flags(__doc__, OthersOptions, Config)
    o = build(OthersOptions, flags)
    device, config, rows = begin(o, flags)
    of_mdlm = replace(config, mode="mdlm")
    steps = {}
    steps["ar"], dtype, _ = training_step(config, rows, device)
    steps["mdlm"], *_ = training_step(of_mdlm, rows, device)
    steps["nanoGPT"] = nanogpt_step(o.nanogpt, config, rows, device, dtype)
    steps["the paper's ar"] = paper_step(o.paper, "AutoregressiveModel", config, rows, device)
    steps["the paper's mdlm"] = paper_step(o.paper, "MDLMModel", config, rows, device)
    for step in steps.values():
        step()              # nanoGPT compiles
    seconds = by_turns(steps, o.repeats, device)
    median = {name: statistics.median(took) for name, took in seconds.items()}
    table = [["", "ms/step", "÷ ar", "÷ mdlm"]]
    for name, took in median.items():
        table.append([
            name,
            f"{1000 * took:.1f}",
            f"{took / median['ar']:.2f}",
            f"{took / median['mdlm']:.2f}"])
    print_table(table)
    if o.json:
        facts = provenance(0) | {"sizes": asdict(config), "batch_size": rows, "dtype": dtype}
        facts["threads"] = torch.get_num_threads()
        write_json(o.json, facts | {"seconds": seconds})


if __name__ == "__main__":
    command(main, "nothing was written")
