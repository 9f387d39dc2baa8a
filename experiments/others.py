"""
A training step beside one of others' own code, nanoGPT's and the paper's. Figures: results/speed.md.

    git clone https://github.com/karpathy/nanoGPT
    git clone https://github.com/caiovicentino/arche
    python -m experiments.others --nanogpt=nanoGPT --paper=arche        with nothing else running

At bench.py's sizes, by turns, each in a process of its own and as that project sets it up: nanoGPT compiled,
in the type of train.py's products (its train.py has bfloat16 on a GPU alone), the paper eager, in float32.
On a CPU once more where the process keeps the memory that is freed, as train.py's does. Others' learning rate
is 0, so that all steps are alike: fitted to a single batch, the paper's softmax would soon be full of
denormals.
"""
import contextlib
import ctypes
import importlib.util
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

# not at the top: train.py, whose settings are only for the process that trains by it, and torch, which must
# come after them (nor is a torch.device sent to a process: it would bring torch along)
from cli import InputError, build, command, parse_flags, pick_device, print_table, provenance, write_json

@dataclass
class OthersOptions:
    """what to compare with"""
    nanogpt: str = "nanoGPT"    # folder of github.com/karpathy/nanoGPT
    paper: str = "arche"        # folder of github.com/caiovicentino/arche
    repeats: int = 6            # measurements of each
    seconds: float = 2.0        # of a measurement, or one step
    json: str = ""              # file for the results

def module_at(path: str):
    """The Python file, imported. Raises InputError."""
    spec = importlib.util.spec_from_file_location("others_code", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)     # torch.compile looks there
    try:
        spec.loader.exec_module(module)
    except OSError as e:
        raise InputError(f"{path} is not there; --help says where to get it") from e
    return module

# ---- The steps; each is made of options, what of that code, sizes of a Config, rows, device ---------------

def ours(o, mode: str, sizes: dict, rows: int, device: str):
    assert "torch" not in sys.modules
    from bench import training_step
    from model import Config
    step, _ = training_step(Config(mode, **sizes), rows, pick_device(device))
    return lambda: step()[0]

def update(net, optimizer, loss):
    """What both projects do after a loss."""
    import torch
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()

def nanogpt(o, dtype: str, sizes: dict, rows: int, device: str):
    import torch
    code, T = module_at(f"{o.nanogpt}/model.py"), sizes["block_size"]
    same = {name: sizes[name] for name in ("n_layer", "n_head", "n_embd")}
    net = code.GPT(code.GPTConfig(block_size=T, vocab_size=50304, dropout=0.0, bias=False, **same)).to(device)
    optimizer = net.configure_optimizers(0.1, 0.0, (0.9, 0.95), device)
    compiled, (x, y) = torch.compile(net), torch.randint(50257, (2, rows, T), device=device)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            _, loss = compiled(x, y)
        update(net, optimizer, loss)
        optimizer.zero_grad(set_to_none=True)
        return loss
    return step

def paper(o, name: str, sizes: dict, rows: int, device: str):
    import torch
    code = module_at(f"{o.paper}/gpu/models.py")
    net = getattr(code, name)(50257, sizes["n_embd"], sizes["n_head"], sizes["n_embd"] // sizes["n_head"],
                              sizes["n_hidden"], sizes["n_layer"]).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.0, weight_decay=0.01)
    x = torch.randint(50257, (rows, sizes["block_size"]), device=device)

    def step():
        loss = net.compute_loss(x)
        optimizer.zero_grad()
        update(net, optimizer, loss)
        return loss
    return step

# ---- Who takes them ----------------------------------------------------------------------------------------

OTHERS = {"nanoGPT": (nanogpt, None), "the paper's ar": (paper, "AutoregressiveModel"),
          "the paper's mdlm": (paper, "MDLMModel")}
OURS = {"ar": (ours, "ar"), "mdlm": (ours, "mdlm")}
KEPT = {f"{name}, memory kept": way for name, way in OTHERS.items()}

def prepare(name: str, make, *given):
    """In a process of its own: its step, compiled and warm."""
    global step
    if name in KEPT:
        for option in (-4, 0), (-1, -1):        # as in train.py
            ctypes.CDLL(None).mallopt(*option)
    with contextlib.redirect_stdout(sys.stderr):
        step = make(*given)
    for _ in range(3):
        step().item()

def seconds_per_step(at_least: float) -> float:
    """Of the steps that take at least so many seconds together."""
    began, steps = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < at_least:
        step().item()       # waits for the device
        steps += 1
    return took / steps

def settings():
    """Sizes, rows, device, its name, type of train.py's products: in a process that may import train.py."""
    import torch
    from experiments.try_speed import DEVICE, sizes_of
    from model import Config
    from train import Settings, numerics
    _, sizes = sizes_of("auto")
    rows, names = sizes.pop("batch_size"), ("n_layer", "n_head", "n_embd", "n_hidden", "block_size")
    config, dtype = asdict(Config(**sizes)), str(numerics(Settings(), DEVICE)[0]).removeprefix("torch.")
    card = torch.cuda.get_device_name() if DEVICE.type == "cuda" else DEVICE.type
    return {name: config[name] for name in names}, rows, DEVICE.type, card, dtype

def main():
    o = build(OthersOptions, parse_flags(__doc__, OthersOptions))
    with contextlib.ExitStack() as stack:
        def process():
            return stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))

        sizes, rows, device, card, dtype = process().submit(settings).result()
        ways = OURS | OTHERS | (KEPT if device == "cpu" and sys.platform == "linux" else {})
        workers, seconds = {name: process() for name in ways}, {name: [] for name in ways}
        for name, (make, which) in ways.items():
            workers[name].submit(prepare, name, make, o, which or dtype, sizes, rows, device).result()
            print(f"{name} is ready", file=sys.stderr)
        for _ in range(o.repeats):
            for name, worker in workers.items():
                seconds[name].append(worker.submit(seconds_per_step, o.seconds).result())
    table = [["time of a step", "ms", "÷ ar's (range)", "÷ mdlm's (range)"]]
    for name, took in seconds.items():
        ratios = [[a / b for a, b in zip(took, seconds[mode])] for mode in ("ar", "mdlm")]
        table.append([name, f"{1000 * statistics.median(took):.1f}"] + [
            f"{statistics.median(of):.2f} ({min(of):.2f}–{max(of):.2f})" for of in ratios])
    print_table(table)
    if o.json:
        write_json(o.json, provenance(0) | {"device": card, "dtype": dtype, "sizes": sizes,
                                            "batch_size": rows, "seconds": seconds})

if __name__ == "__main__":
    command(main, "nothing was written")
