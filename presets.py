"""
Presets: the sizes and settings that --preset of train.py stands for.

A preset has values for fields of train.py's Settings and of the Config of model.py or a variant.
Flags override them. All but `controlled` begin with SMALL; `paper` is in variants/paper.py.
"""
import torch

from support.flags import InputError, plugin

SMALL = dict(n_head=4, warmup=100, final_lr=0.0, beta2=0.99)

# A window is one story and its end; later words depend on much earlier ones. Muon needs fewer steps
# than AdamW, and so few that compiling the step would take longer than it saves.
TOY = SMALL | dict(
    data="toy",
    block_size=48,
    n_layer=2,
    n_embd=128,
    n_hidden=384,
    batch_size=64,
    max_steps=1200,
    warmup=50,
    lr=3e-3,
    optimizer="muon",
    compile="false",
    eval_interval=300,
    eval_windows=512,
)

SUDOKU = TOY | dict(
    max_steps=1000,
    warmup=100,
    lr=4e-3,
    eval_interval=200,
    eval_windows=1024,
)

PRESETS = {
    "toy": TOY,
    # A window is one grid.
    "sudoku": SUDOKU | dict(data="sudoku", block_size=36),
    "sudoku-9": SUDOKU | dict(
        data="sudoku-9",
        block_size=81,
        n_layer=4,
        max_steps=2000,
        compile="auto",
    ),
    # A window is a puzzle and its solution, of which only the solution is learned. They are told
    # apart by the word |, which is the last one of the vocabulary. The first is for ar, the second,
    # in which the text says the order of the cells, for aogpt.
    "sudoku-pairs": SUDOKU | dict(data="sudoku-pairs", block_size=73, variant="answers", mark=7),
    "sudoku-moves": SUDOKU | dict(data="sudoku-moves", block_size=37, variant="taught", mark=216),
    # nanoGPT's recipe for a CPU, and its text. The SwiGLU has 1% more weights than nanoGPT's MLP.
    "shakespeare": SMALL | dict(
        data="shakespeare",
        block_size=64,
        n_layer=4,
        n_embd=128,
        n_hidden=344,
        batch_size=12,
        max_steps=2000,
        lr=1e-3,
        final_lr=0.1,
        weight_decay=0.1,
        eval_interval=500,
        eval_windows=2000,      # all of the text held out
    ),
    "laptop": SMALL | dict(
        data="tinystories-4096",
        block_size=256,
        n_layer=4,
        n_embd=256,
        n_hidden=704,
        batch_size=16,
        max_steps=1500,
        lr=4e-3,
        optimizer="muon",
        eval_interval=250,
        eval_windows=300,
    ),
    # The paper's sizes with its confounds removed: windows start where stories start, end-of-text
    # is kept, the head is tied, and mdlm trains on a bound.
    "controlled": {},
}

# On text masked diffusion learns sooner if half of the tokens are hidden most often, and all its
# predictions count alike (variants/bell.py, results/learning.md). What it reports stays the bound.
# --objective=nelbo trains on the bound too.
SOONER = dict(variant="bell", objective="masked_ce")
PRESETS_OF_TEXT = "shakespeare", "laptop"

# A preset may choose a file of variants/, whose flags are then flags too.
IMPLIED = {
    "--preset=paper": "--variant=paper",
    "--preset=shakespeare": "--variant=bell",
    "--preset=laptop": "--variant=bell",
    "--preset=sudoku-pairs": "--variant=answers",
    "--preset=sudoku-moves": "--variant=taught",
}


def with_preset(flags: dict) -> dict:
    """The values of the preset that the flags ask for, and over them the flags.

    Raises InputError."""
    preset = flags.get("preset", "auto")
    mode = flags.get("mode", "ar")
    if preset == "auto":
        asked = flags.get("device", "auto").startswith(("auto", "cuda"))
        preset = "controlled" if asked and torch.cuda.is_available() else "toy"
    if preset == "paper":
        if flags.get("variant", "paper") != "paper":
            raise InputError("--preset=paper has a variant of its own; leave --variant out")
        values = plugin("variants", "paper").preset_of(mode)
    else:
        values = PRESETS[preset]
        chosen = {"variant", "objective"} & flags.keys()
        if preset in PRESETS_OF_TEXT and mode == "mdlm" and not chosen:
            values = values | SOONER
    return values | flags | {"preset": preset}
