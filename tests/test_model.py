"""The three modes against the table in model.py and against brute force over every mask and every order."""
import dataclasses
import itertools
import math

import pytest
import torch
from scipy.stats import chisquare, kstest

from conftest import small_model
from experiments.estimator import EstimatorOptions, variances
from model import (Cache, Config, Transformer, count_parameters, evaluation_batch,
                   flops_per_token, group_losses, masking_batch, nelbo_batch, new_keys_values, order_batch,
                   paper_batch, timestep, training_batch)
from runs import load, save

def rng(seed=0):
    return torch.Generator().manual_seed(seed)

def tokens(model, rows=3, seed=1):
    return torch.randint(0, model.config.vocab_size, (rows, model.config.block_size), generator=rng(seed))

def random_order(x, seed=2):
    return torch.rand(x.shape, generator=rng(seed)).argsort(dim=1)

def forward(model, batch):
    return model(batch.tokens, batch.key_pos, batch.target_pos, batch.select, batch.t)

# ---------------------------------------------------------------------------------------------- who sees what

def test_aogpt_in_identity_order_is_ar():
    ar, aogpt = small_model("ar"), small_model("aogpt")
    aogpt.load_state_dict(ar.state_dict())
    x = tokens(ar)
    batch = order_batch(ar.config, x)
    assert torch.equal(forward(ar, batch), forward(aogpt, batch))
    other = order_batch(ar.config, x, random_order(x))
    assert not torch.allclose(forward(aogpt, batch), forward(aogpt, other), atol=0.1)

@pytest.mark.parametrize("mode", ["ar", "aogpt"])
def test_a_slot_sees_what_comes_before_in_its_order_and_nothing_else(mode):
    model = small_model(mode, dtype=torch.float64)
    x = tokens(model, rows=1)
    order = torch.arange(x.size(1)).expand_as(x) if mode == "ar" else random_order(x)
    base = forward(model, order_batch(model.config, x, order))
    for j in range(x.size(1)):                              # change the token that is j-th in the order
        y = x.clone()
        y[0, order[0, j]] = (y[0, order[0, j]] + 1) % model.config.vocab_size
        moved = (forward(model, order_batch(model.config, y, order)) - base).abs().amax(dim=-1)[0]
        assert (moved[:j + 1] == 0).all() and (moved[j + 1:] > 1e-6).all()

def test_mdlm_sees_visible_tokens_on_both_sides_and_no_masked_one():
    model = small_model("mdlm", dtype=torch.float64)
    x = tokens(model, rows=1)
    masked = torch.tensor([[False, False, True, False, True, False, False, False]])
    base = forward(model, masking_batch(model.config, x, masked))
    for j in range(8):
        y = x.clone()
        y[0, j] = (y[0, j] + 1) % model.config.vocab_size
        moved = (forward(model, masking_batch(model.config, y, masked)) - base).abs().amax(dim=-1)[0]
        assert (moved == 0).all() if masked[0, j] else (moved > 1e-6).all()

def test_a_fully_masked_row_still_knows_its_positions():
    model = small_model("mdlm")
    x = tokens(model, rows=1)
    batch = masking_batch(model.config, x, torch.ones_like(x, dtype=torch.bool))
    assert torch.pdist(forward(model, batch)[0, 1:]).min() > 1e-3

def test_a_text_longer_than_the_window_is_refused():
    config = small_model("mdlm").config
    for make in (evaluation_batch, training_batch):
        with pytest.raises(RuntimeError, match="size"):
            make(config, torch.zeros(4, config.block_size + 1, dtype=torch.long), rng())

@pytest.mark.parametrize("mode, matters", [("ar", True), ("aogpt", True), ("mdlm", False)])
def test_target_rotation(mode, matters):
    """It turns queries by the target, which in mdlm is the slot's own position."""
    on, off = small_model(mode), small_model(mode, target_rotation=False)
    off.load_state_dict(on.state_dict())
    batch = training_batch(on.config, tokens(on, rows=4), rng())
    assert torch.allclose(forward(on, batch), forward(off, batch), atol=1e-4) != matters

def test_logits_depend_on_distances_only():
    """Rotary embedding alone: shifting all positions changes nothing."""
    model = small_model("ar", block_size=20, dtype=torch.float64, target_embedding=False)
    x = torch.randint(0, 11, (2, 8), generator=rng())
    batch = order_batch(model.config, x)
    shifted = batch._replace(key_pos=batch.key_pos + 7, target_pos=batch.target_pos + 7)
    # the table of angles is float32
    assert torch.allclose(forward(model, batch), forward(model, shifted), atol=1e-5)

def test_attention_written_out_equals_the_fused_kernel():
    """Training on a CPU takes the first path, everything else the second."""
    for mode in ("ar", "mdlm", "aogpt"):
        model = small_model(mode, block_size=32, dtype=torch.float64)
        batch = training_batch(model.config, tokens(model, rows=4), rng())
        with torch.no_grad():
            fused = forward(model, batch)
        assert torch.allclose(forward(model, batch), fused, atol=1e-12)

# ------------------------------------------------------------------------------------------------ the bounds

def masked_nll(model, x, masked):
    """−ln p of every token of x (L,) given the unmasked ones, (L,), computed the plain way: all that lies
    beyond it in the window is masked too."""
    config, place = model.config, torch.arange(len(x))
    slots = torch.full((1, config.block_size + 1), config.mask_id)
    slots[0, 0], slots[0, 1:1 + len(x)] = config.bos_id, torch.where(masked, config.mask_id, x)
    position, t = torch.arange(-1, config.block_size)[None], (slots == config.mask_id).double().sum(dim=1)
    logits = model(slots, position, position, t=t / config.block_size)
    return -logits[0, 1:].log_softmax(dim=-1)[place, x]

@pytest.mark.parametrize("beyond", [0, 3])
@torch.no_grad()
def test_nelbo_over_all_masks_is_the_chain_rule_over_all_orders(beyond):
    """Of a text that fills the window, or leaves so many places."""
    T = 4
    model = small_model("mdlm", seed=1, vocab_size=5, block_size=T + beyond, dtype=torch.float64,
                        time_embedding="add" if beyond else "none")
    x = tokens(model, rows=1)[0, :T]
    masks = [torch.tensor(m) for m in itertools.product([False, True], repeat=T) if any(m)]
    nll = {tuple(m.tolist()): masked_nll(model, x, m) for m in masks}

    by_masks = 0.0      # E_k E_S (1/k) Σ_{i∈S}: every S of size k has probability 1/T · 1/C(T, k)
    for m in masks:
        k = int(m.sum())
        by_masks += nll[tuple(m.tolist())][m].mean() / T / math.comb(T, k)

    def nats(order):
        """−log p of the tokens there, by the chain rule in this order with the same conditionals."""
        masked, total = torch.ones(T, dtype=torch.bool), 0.0
        for i in order:
            total += nll[tuple(masked.tolist())][i]
            masked[i] = False
        return total

    bound, exact = [], []       # of parts of 1 … T tokens: mean nats of orders; −log of their mean p
    for j in range(1, T + 1):
        of = torch.tensor([[nats(order) for order in itertools.permutations(part)]
                           for part in itertools.combinations(range(T), j)])        # (parts, orders)
        bound.append(of.mean())
        exact.append(-(-of).exp().mean(dim=1).log().mean())
    by_orders = bound[-1] / T
    assert abs(by_masks - by_orders) < 1e-12

    # and the estimator's mean is that number: 5 standard errors fail once in two million seeds
    N = 20_000
    losses = group_losses(model, nelbo_batch(model.config, x.expand(N, T), rng(3)))
    assert abs(losses.mean() - by_orders) < 5 * losses.std() / math.sqrt(len(losses))
    assert losses.std() / math.sqrt(len(losses)) < 0.01

    # masked_ce, which is of whole windows, is another number: masks of k tokens count k times
    if beyond:
        return
    pooled = sum(nll[tuple(m.tolist())][m].sum() / math.comb(T, int(m.sum())) for m in masks)
    pooled /= sum(range(1, T + 1))
    assert abs(pooled - by_orders) > 0.005 and abs(pooled - sum(bound) / sum(range(1, T + 1))) < 1e-12
    assert 0 < sum(bound) - sum(exact) < 0.1 * sum(exact)
    masked_ce = dataclasses.replace(model.config, objective="masked_ce")
    losses = group_losses(model, training_batch(masked_ce, x.expand(N, T), rng(3)))
    assert abs(losses.mean() - pooled) < 5 * losses.std() / math.sqrt(N)

@torch.no_grad()
def test_aogpt_bound_is_the_mean_over_all_orders():
    T = 4
    model = small_model("aogpt", vocab_size=5, block_size=T, dtype=torch.float64)
    x = tokens(model, rows=1)
    exact = []
    for order in itertools.permutations(range(T)):          # one token at a time, through growing prefixes
        order = torch.tensor([order])
        batch, total = order_batch(model.config, x, order), 0.0
        for j in range(T):
            logits = model(batch.tokens[:, :j + 1], batch.key_pos[:, :j + 1], batch.target_pos[:, :j + 1])
            total -= logits[0, j].log_softmax(dim=-1)[x[0, order[0, j]]]
        exact.append(total / T)
    N = 20_000
    losses = group_losses(model, evaluation_batch(model.config, x.expand(N, T), rng(3)))
    assert abs(losses.mean() - torch.stack(exact).mean()) < 5 * losses.std() / math.sqrt(N)
    one_order = group_losses(model, evaluation_batch(model.config, x, rng(), left_to_right=True))
    assert one_order.item() == pytest.approx(exact[0].item(), abs=1e-12)

@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "aogpt"])
def test_probabilities_of_all_sequences_sum_to_one(mode):
    """A fixed order is an exact likelihood."""
    model = small_model(mode, vocab_size=3, block_size=4, dtype=torch.float64)
    x = torch.tensor(list(itertools.product(range(3), repeat=4)))
    order = torch.tensor([0, 1, 2, 3] if mode == "ar" else [2, 0, 3, 1]).expand_as(x)
    nll = group_losses(model, order_batch(model.config, x, order)) * 4
    assert abs(torch.exp(-nll).sum() - 1) < 1e-6

@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_target_embedding(mode):
    """At zero, as it begins, it changes nothing; else a first slot knows its place, as rotary attention does
    not tell it."""
    assert not Transformer(Config(mode, n_layer=1)).embed_target.weight.any()
    told, plain = small_model(mode), small_model(mode, target_embedding=False)
    weights = told.state_dict()
    plain.load_state_dict({name: w for name, w in weights.items() if not name.startswith("embed_target")})
    batch = evaluation_batch(told.config, tokens(told, rows=2), rng(0))
    assert not torch.allclose(forward(told, batch), forward(plain, batch), atol=1e-3)
    first = torch.tensor([[told.config.bos_id]])
    at = [[model(first, torch.tensor([[-1]]), torch.tensor([[place]])) for place in (3, 5)]
          for model in (told, plain)]
    assert not torch.allclose(*at[0], atol=1e-3) and torch.allclose(*at[1], atol=1e-6)
    told.embed_target.weight.zero_()
    assert torch.equal(forward(told, batch), forward(plain, batch))

# ------------------------------------------------------------------------------------------ masks and batches

@pytest.mark.parametrize("T", [7, 8])
def test_k_is_uniform_and_each_position_equally_likely(T):
    B, repeats = 14, 3000
    config = small_model("mdlm", block_size=T).config
    x = torch.zeros(B, T, dtype=torch.long)
    masked = torch.cat([nelbo_batch(config, x, rng(seed)).tokens[:, 1:] == config.mask_id
                        for seed in range(repeats)])
    k = torch.bincount(masked.sum(dim=1), minlength=T + 1)[1:]
    # stratification makes the counts closer to uniform than independent draws, so chi-square must be *small*
    assert chisquare(k.numpy()).pvalue > 0.01 and k.min() > 0
    where = masked[masked.sum(dim=1) == 2].sum(dim=0)
    assert chisquare(where.numpy()).pvalue > 1e-4       # fixed seeds: this either always passes or never

def test_stratified_pairs_have_less_variance():
    """The mean of a curved function of k over the batch, (k/T)^2, against B independent draws of k."""
    B, T = 16, 64
    config = small_model("mdlm", block_size=T).config
    x = torch.zeros(B, T, dtype=torch.long)
    k = torch.stack([(nelbo_batch(config, x, rng(s)).tokens == config.mask_id).sum(dim=1)
                     for s in range(300)]).double()
    ours = ((k / T) ** 2).mean(dim=1)
    every = (torch.arange(1, T + 1).double() / T) ** 2
    assert abs(ours.mean() - every.mean()) < 5 * ours.std() / math.sqrt(300)        # unbiased
    assert ours.var() < 0.02 * every.var() / B

def test_last_mlp_and_head_on_selected_slots_are_those_of_every_slot_then_selected():
    """And so are their gradients."""
    model = small_model("mdlm", dtype=torch.float64)
    batch = nelbo_batch(model.config, tokens(model, rows=6), rng())
    logits = forward(model, batch)                                                       # (3, T+1, V)
    every = forward(model, batch._replace(select=None))                                  # (6, T+1, V)
    index = batch.select[..., None].expand_as(logits)
    every = every.view(3, -1, every.size(-1)).gather(1, index)
    assert torch.allclose(logits, every, rtol=1e-12)
    parameters = list(model.parameters())
    for one, other in zip(*(torch.autograd.grad(of.square().sum(), parameters) for of in (logits, every))):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)

@pytest.mark.parametrize("fields", [
    dict(mode="ar"), dict(mode="mdlm"), dict(mode="aogpt"), dict(mode="mdlm", time_embedding="add"),
    dict(mode="mdlm", objective="masked_ce"), dict(mode="mdlm", objective="masked_ce", schedule="cosine")])
def test_gradient_accumulation_changes_nothing(fields):
    model = small_model(dtype=torch.float64, **fields)
    batch = training_batch(model.config, tokens(model, rows=8), rng())

    def gradients(parts):
        model.zero_grad()
        for part in batch.split(len(batch.targets) // parts):
            (group_losses(model, part).mean() / parts).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    assert torch.allclose(gradients(1), gradients(4), rtol=1e-9, atol=1e-12)

@torch.no_grad()
def test_the_loss_of_bfloat16_logits_is_not_rounded_to_bfloat16():
    """As autocast leaves them on CUDA: the softmax is in float32, and in float64 where the logits are."""
    model = small_model("ar", dtype=torch.bfloat16)
    batch = training_batch(model.config, tokens(model, rows=64), rng())
    log_p = forward(model, batch).double().log_softmax(dim=-1)
    exact = -log_p.gather(2, batch.targets[..., None])[..., 0].mean(dim=1)
    losses = group_losses(model, batch)
    assert losses.dtype == torch.float32 and abs(losses - exact).max() < 1e-5
    assert abs(losses.bfloat16() - exact).max() > 1e-3          # what rounding would have cost
    assert group_losses(model.double(), batch).dtype == torch.float64

@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_the_compiled_loss_is_the_same(mode, monkeypatch):
    """It is written another way there; so are its gradients, of logits of any type."""
    torch._dynamo.reset()
    for dtype, close in (torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 1e-2):
        model = small_model(mode, dtype=dtype)
        batch = training_batch(model.config, tokens(model, rows=4), rng())
        compiled = torch.compile(group_losses, backend="aot_eager", dynamic=False, fullgraph=True)
        losses = [group_losses(model, batch)]
        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.functional, "cross_entropy", lambda *_, **__: 1 / 0)     # not by this
            losses.append(compiled(model, batch))
        gradients = [torch.autograd.grad(loss.mean(), model.parameters()) for loss in losses]
        assert losses[1].dtype == losses[0].dtype and (losses[1] - losses[0]).abs().max() < min(close, 1e-5)
        for a, b in zip(*gradients):
            assert (a - b).abs().max() <= close * a.abs().max()

@torch.no_grad()
def test_a_gpu_cuts_the_same_logits_from_a_padded_product(monkeypatch):
    model = small_model("ar", dtype=torch.float64)
    batch = training_batch(model.config, tokens(model, rows=4), rng())
    plain = forward(model, batch)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)      # as if
    padded = forward(model, batch)
    assert plain.is_contiguous() and not padded.is_contiguous()     # two ways indeed
    assert padded.shape == plain.shape == (4, 8, 11) and (padded - plain).abs().max() < 1e-12

@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_every_parameter_learns_and_padding_does_not(mode):
    model = small_model(mode, time_embedding="add" if mode == "mdlm" else "none")
    for seed in range(20):      # all tokens and positions come up
        batch = training_batch(model.config, tokens(model, rows=8, seed=seed), rng(seed))
        group_losses(model, batch).mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name
    rows = model.embed.weight.grad.abs().sum(dim=1) > 0
    assert rows[:11].all() and rows[11] == (mode == "mdlm") and not rows[12:].any()

def test_orders_are_permutations_with_the_asked_share_left_to_right():
    config = small_model("aogpt", l2r_fraction=0.25).config
    trained, evaluated = (of(config, torch.zeros(4000, 8, dtype=torch.long), rng()).target_pos
                          for of in (training_batch, evaluation_batch))
    assert (trained.sort(dim=1).values == torch.arange(8)).all()
    share, none = ((order == torch.arange(8)).all(dim=1).float().mean().item()
                   for order in (trained, evaluated))
    assert abs(share - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 4000) and none < 0.01

@torch.no_grad()
@pytest.mark.parametrize("silent", ["attention", "mlp"])
def test_dropout_drops_its_share_of_what_each_part_adds(silent):
    model = small_model(dropout=0.25, n_layer=1).train()
    block, x = model.blocks[0], torch.randn(64, 8, 16)
    getattr(block, silent).proj.weight.zero_()
    rotary = model.rotary[:, torch.arange(8)[None]].unsqueeze(2)
    kept = (block(x, rotary, rotary) != x).float().mean().item()
    assert kept == pytest.approx(0.75, abs=0.03)                # 6 standard deviations

def test_initial_weights():
    torch.manual_seed(0)
    sizes = dict(vocab_size=500, block_size=16, n_layer=8, n_head=4, n_embd=256, n_hidden=64)
    model, apart = (Transformer(Config("ar", shared_init=shared, **sizes)) for shared in (True, False))
    assert model.embed.weight.mean(dim=0).norm().item() == pytest.approx(1, rel=0.2)    # the common vector
    assert apart.embed.weight.mean(dim=0).norm().item() < 0.1
    for part, inputs in (model.blocks[0].attention, 256), (model.blocks[0].mlp, 64):
        assert part.proj.weight.std().item() == pytest.approx((inputs * 2 * 8) ** -0.5, rel=0.03)

@pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
def test_token_noise_replaces_what_is_read_and_nothing_else(mode):
    x = torch.randint(59, (400, 40), generator=rng())
    clean, noisy = (training_batch(Config(mode, vocab_size=60, block_size=40, token_noise=share), x, rng())
                    for share in (0.0, 0.25))
    assert torch.equal(clean.targets, noisy.targets) and torch.equal(clean.weight, noisy.weight)
    words = clean.tokens < 59                               # neither BOS nor [MASK]
    assert torch.equal(clean.tokens[~words], noisy.tokens[~words]) and (noisy.tokens[words] < 59).all()
    changed = (clean.tokens != noisy.tokens)[words].double().mean()     # 1 in 59 is drawn again
    assert changed == pytest.approx(0.25 * 58 / 59, abs=0.02)

def test_evaluation_shows_the_timestep_that_training_showed():
    config = Config("mdlm", vocab_size=11, block_size=8, objective="masked_ce", schedule="cosine",
                    time_embedding="add")
    batch = evaluation_batch(config, torch.zeros(4, 8, dtype=torch.long), rng())
    ratio = (batch.tokens == config.mask_id).sum(dim=1) / 8
    assert torch.allclose(1 - torch.cos(math.pi / 2 * batch.t) ** 2, ratio, atol=1e-5)

def test_masked_ce_is_the_papers():
    config = Config("mdlm", vocab_size=11, block_size=512, objective="masked_ce", schedule="cosine")
    x = torch.randint(0, 11, (64, 512), generator=rng())
    batch = paper_batch(config, x, rng())
    masked = batch.tokens[:, 1:] == config.mask_id
    expected = 1 - torch.cos(math.pi / 2 * batch.t) ** 2
    assert ((masked.float().mean(dim=1) - expected).abs() < 5 * 0.5 / math.sqrt(512)).all()
    assert torch.allclose(batch.weight[:, 1:], masked * 64 / masked.sum())      # a mean over masked tokens
    assert torch.allclose(timestep(config, expected), batch.t, atol=1e-3)
    many = torch.zeros(20_000, 1, dtype=torch.long)
    assert kstest(paper_batch(config, many, rng()).t.numpy(), "uniform").pvalue > 1e-3
    # with the uniform schedule t is the ratio itself, however it was drawn
    batch = paper_batch(Config("mdlm", vocab_size=11, block_size=512), x, rng())
    share = (batch.tokens[:, 1:] == config.mask_id).float().mean(dim=1)
    assert ((share - batch.t).abs() < 5 * 0.5 / math.sqrt(512)).all()

@torch.no_grad()
def test_both_estimators_of_the_bound_have_one_mean_and_ours_less_variance():
    model = small_model("mdlm")
    found = variances(model, tokens(model, rows=8), EstimatorOptions(repeats=1000))
    (ours, error, variance), *published = found.values()
    for mean, other_error, other_variance in published:
        # the cut-off, t ≥ 0.001, leaves out next to nothing
        assert abs(mean - ours) < 5 * math.hypot(error, other_error) and other_variance > 2 * variance

# ----------------------------------------------------------------------------------------------- the KV cache

@torch.no_grad()
@pytest.mark.parametrize("mode", ["ar", "aogpt"])
@pytest.mark.parametrize("pieces", [[1] * 8, [8], [3, 1, 4]])
def test_cached_logits_equal_uncached(mode, pieces):
    model = small_model(mode)
    x = tokens(model)
    batch = order_batch(model.config, x, None if mode == "ar" else random_order(x))
    keys_values, start, logits = new_keys_values(model, 3, 8), 0, []
    kept = keys_values[0][0]
    for n in pieces:
        slots = torch.arange(start, start + n).expand(3, -1)
        visible = (torch.arange(start + n) <= slots[:, :, None])[:, None]
        logits.append(model(*(f.gather(1, slots) for f in (batch.tokens, batch.key_pos, batch.target_pos)),
                            cache=Cache(keys_values, slots, visible)))
        start += n
    assert keys_values[0][0] is kept and kept.shape == (3, 2, 8, 8)        # written in place
    full = forward(model, batch)
    assert (torch.cat(logits, dim=1) - full).abs().max() < 1e-5 * full.abs().max()

# -------------------------------------------------------------------------------- sizes, configuration, files

@pytest.mark.parametrize("fields, expected", [
    (dict(mode="ar", target_embedding=False), 123_551_232),
    (dict(mode="mdlm", target_embedding=False), 123_552_000),
    (dict(mode="mdlm", target_embedding=False, tie_head=False, time_embedding="add"), 162_739_968),
    (dict(mode="ar"), 123_551_232 + 512 * 768),
    (dict(mode="aogpt"), 123_551_232 + 512 * 768)])
def test_parameter_counts(fields, expected):
    with torch.device("meta"):
        assert count_parameters(Transformer(Config(**fields))) == expected

def test_flops_per_token_counts_the_matrix_products():
    from torch.utils.flop_counter import FlopCounterMode
    for mode in ("ar", "mdlm", "aogpt"):
        config = Config(mode, vocab_size=1000, block_size=32, n_layer=2, n_head=2, n_embd=64, n_hidden=128)
        model = Transformer(config)
        batch = training_batch(config, torch.randint(0, 1000, (2, 32), generator=rng()), rng())
        with FlopCounterMode(display=False) as counter:
            group_losses(model, batch).mean().backward()
        # measured: the whole square of attention where it is causal, and mdlm's BOS slot
        causal = 0 if mode == "mdlm" else 6 * 2 * 64 * 32
        measured = counter.get_total_flops() / 64 - causal
        assert measured / flops_per_token(config) == pytest.approx(1, abs=0.05 if mode == "mdlm" else 1e-6)

@pytest.mark.parametrize("fields, words", [
    (dict(mode="mlm"), ["mode", "'mlm'", "ar, mdlm, aogpt"]),
    (dict(n_embd=100, n_head=12), ["n_embd", "n_head", "96"]),
    (dict(n_layer=0), ["n_layer", "at least 1"]), (dict(l2r_fraction=1.5), ["l2r_fraction", "[0, 1]"]),
    (dict(mode="mdlm", schedule="cosine"), ["schedule", "nelbo", "uniform"]),
    (dict(mode="mdlm", l2r_fraction=0.5), ["l2r_fraction", "aogpt", "mdlm"]),
    (dict(mode="aogpt", objective="masked_ce"), ["objective", "mdlm", "aogpt"])])
def test_config_names_the_wrong_field_and_what_it_may_be(fields, words):
    with pytest.raises(ValueError) as e:
        Config(**fields)
    assert all(word in str(e.value) for word in words) and "\n" not in str(e.value)

def test_checkpoints_round_trip_and_bad_ones_are_named(tmp_path, monkeypatch):
    model, path = small_model("mdlm"), str(tmp_path / "m.pt")
    save(path, model, step=7)
    again, rest = load(path)
    assert again.config == model.config and rest["step"] == 7
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
    data = open(path, "rb").read()
    for content in (data[:len(data) // 2], b"hello", b""):
        open(path, "wb").write(content)
        with pytest.raises(OSError, match="m.pt is not a usable checkpoint"):
            load(path)
    with pytest.raises(FileNotFoundError, match="train one with"):
        load(str(tmp_path / "none.pt"))

    def no_memory(*arguments, **flags):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
    save(path, model)
    monkeypatch.setattr(torch, "load", no_memory)       # torch's kind is that of a damaged file
    with pytest.raises(RuntimeError, match="allocate memory"):
        load(path)
