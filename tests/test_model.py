"""The three modes against the table in model.py, and against brute force over masks and orders."""
import collections
import itertools
import math

import pytest
import torch
from scipy.stats import chisquare, kstest
from torch.testing import assert_close      # in float64 within 1e-7

from support.flags import InputError
from conftest import small_model
from model import (
    PAPER_MDLM, Cache, Config, Transformer, count_parameters, flops_per_token, new_keys_values,
    slots_seen)
from objectives import (
    draw_orders, evaluation_batch, infill_order, mask_counts, masking_batch, nelbo_batch,
    one_block_batch, order_batch, pack_pairs, paper_batch, pool, timestep, training_batch,
    two_streams, weighted_losses)
from runs import load, save

modes = pytest.mark.parametrize("mode", ["ar", "mdlm", "aogpt"])
causal_modes = pytest.mark.parametrize("mode", ["ar", "aogpt"])


def exact_model(mode, **fields):
    return small_model(mode, dtype=torch.float64, **fields)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(model, rows=3, seed=1):
    config = model.config
    shape = (rows, config.block_size)
    return torch.randint(config.vocab_size, shape, generator=rng(seed))


def left_to_right(x):
    order = torch.arange(x.size(1))
    return order.expand_as(x)


def random_order(x):
    noise = torch.rand(x.shape, generator=rng(2))
    return noise.argsort(dim=1)


def order_for(mode, x):
    if mode == "ar":
        return left_to_right(x)
    return random_order(x)


def some_batch(model, rows=4, seed=0):
    x = tokens(model, rows, seed + 1)
    return training_batch(model.config, x, rng(seed))


def forward(model, batch):
    tokens, key_pos, target_pos = batch[:3]
    return model(tokens, key_pos, target_pos, batch.t, batch.select, stage=batch.stage)


def gradient(model, loss):
    """One long vector."""
    parts = torch.autograd.grad(loss, model.parameters())
    return torch.cat([part.flatten() for part in parts])


def assert_mean(values, expected):
    """Within 5 standard errors, which fails for one seed in two million."""
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - expected) < 5 * error


# ---- Who sees what -------------------------------------------------------------------------------

def moved(model, make_batch, x, j):
    """(slots,) how far the logits of x (1, T) move when its token at j is another one."""
    other = x.clone()
    other[0, j] = (x[0, j] + 1) % model.config.vocab_size
    before = forward(model, make_batch(x))
    after = forward(model, make_batch(other))
    distance = (after - before).abs().amax(dim=-1)                              # (1, slots)
    return distance[0]


@causal_modes
def test_a_slot_sees_what_comes_before_in_its_order_and_nothing_else(mode):
    model = exact_model(mode)
    x = tokens(model, rows=1)
    order = order_for(mode, x)

    def make_batch(x):
        return order_batch(model.config, x, order)

    for j in range(8):
        distance = moved(model, make_batch, x, order[0, j])
        assert (distance[:j + 1] == 0).all()
        assert (distance[j + 1:] > 1e-6).all()


def test_mdlm_sees_visible_tokens_on_both_sides_and_no_masked_one():
    model = exact_model("mdlm")
    x = tokens(model, rows=1)
    masked = torch.zeros(1, 8, dtype=torch.bool)
    masked[0, [2, 4]] = True

    def make_batch(x):
        return masking_batch(model.config, x, masked)

    for j in range(8):
        distance = moved(model, make_batch, x, j)
        if masked[0, j]:
            assert (distance == 0).all()
        else:
            assert (distance > 1e-6).all()


def test_aogpt_from_left_to_right_is_ar():
    ar = small_model("ar")
    aogpt = small_model("aogpt")
    aogpt.load_state_dict(ar.state_dict())
    x = tokens(ar)
    batch = order_batch(ar.config, x, left_to_right(x))
    logits = forward(aogpt, batch)
    assert torch.equal(logits, forward(ar, batch))
    batch = order_batch(ar.config, x, random_order(x))
    assert not torch.allclose(logits, forward(aogpt, batch), atol=0.1)


def test_a_text_longer_than_the_window_is_refused():
    config = small_model("mdlm").config
    x = torch.zeros(4, 9, dtype=torch.long)
    with pytest.raises(InputError, match="longer than the window"):
        training_batch(config, x, rng())


@modes
def test_target_rotation(mode):
    """It turns queries by the target, which in mdlm is the slot's own position."""
    on = small_model(mode)
    off = small_model(mode, target_rotation=False)
    off.load_state_dict(on.state_dict())
    batch = some_batch(on)
    same = torch.allclose(forward(on, batch), forward(off, batch), atol=1e-4)
    assert same == (mode == "mdlm")


def first_slot(model, target):
    """The logits of BOS alone, asked for the token at that position."""
    bos = torch.tensor([[model.config.bos_id]])
    key_pos = torch.tensor([[-1]])
    return model(bos, key_pos, torch.tensor([[target]]))


@torch.no_grad()
@modes
def test_target_embedding(mode):
    """A first slot, which sees BOS alone, cannot know its place by rotation."""
    told = small_model(mode)
    untold = small_model(mode, target_embedding=False)
    untold.load_state_dict(told.state_dict(), strict=False)
    assert not torch.allclose(first_slot(told, 3), first_slot(told, 5), atol=1e-3)
    assert_close(first_slot(untold, 3), first_slot(untold, 5))
    torch.nn.init.zeros_(told.embed_target.weight)      # as it begins
    batch = some_batch(told)
    assert torch.equal(forward(told, batch), forward(untold, batch))


@modes
def test_attention_written_out_equals_the_fused_kernel(mode):
    """Training on a CPU takes the first path, everything else the second."""
    model = exact_model(mode, block_size=32)
    batch = some_batch(model)
    with torch.no_grad():
        fused = forward(model, batch)
    assert_close(forward(model, batch), fused)


# ---- The bounds, by enumeration ------------------------------------------------------------------

T = 4       # the length of the texts of which all masks and all orders are tried


def nll_of_every_mask(model, x):
    """{masked places: −ln p of every token of x (T,) given those that are not masked, (T,)}.

    It is computed the plain way: all that lies beyond x in the window is masked too."""
    config = model.config
    position = torch.arange(-1, config.block_size)[None]
    nll = {}
    for k in range(1, T + 1):
        for masked in itertools.combinations(range(T), k):
            slots = torch.full_like(position, config.mask_id)
            slots[0, 0] = config.bos_id
            for i in set(range(T)) - set(masked):
                slots[0, i + 1] = x[i]
            count = (slots == config.mask_id).sum(dim=1).double()
            logits = model(slots, position, position, count / config.block_size)
            log_p = logits[0, 1:].log_softmax(dim=-1)                           # (window, V)
            nll[masked] = -log_p[torch.arange(T), x]
    return nll


def nats_in_order(nll, order):
    """−ln p of the tokens at those places, by the chain rule in this order."""
    masked = list(range(T))
    total = 0.0
    for i in order:
        total += nll[tuple(masked)][i].item()
        masked.remove(i)
    return total


@torch.no_grad()
@pytest.mark.parametrize("beyond", [0, 3])
def test_nelbo_over_all_masks_is_the_chain_rule_over_all_orders(beyond):
    """For a text that fills the window, or leaves so many places."""
    time = "add" if beyond else "none"
    model = exact_model("mdlm", vocab_size=5, block_size=T + beyond, time_embedding=time)
    x = tokens(model, rows=1)[0, :T]
    nll = nll_of_every_mask(model, x)
    by_orders = 0.0
    for order in itertools.permutations(range(T)):
        by_orders += nats_in_order(nll, order) / T / math.factorial(T)
    by_masks = 0.0
    for masked, values in nll.items():
        k = len(masked)
        of_mask = values[list(masked)].mean().item()
        by_masks += of_mask / T / math.comb(T, k)       # k is uniform, and then the mask
    assert by_masks == pytest.approx(by_orders, abs=1e-12)

    # The estimator has that mean.
    batch = nelbo_batch(model.config, x.expand(20_000, T), rng(3))
    losses = weighted_losses(model, batch)
    assert_mean(losses.view(-1, 2).mean(dim=1), by_orders)


@torch.no_grad()
def test_masked_ce_is_the_bound_of_all_parts_of_the_text():
    """It is no bound of the whole text. A part is any of its tokens; masks of k count k times."""
    model = exact_model("mdlm", vocab_size=5, block_size=T, objective="masked_ce")
    x = tokens(model, rows=1)
    nll = nll_of_every_mask(model, x[0])
    all_k = T * (T + 1) / 2
    by_masks = 0.0
    for masked, values in nll.items():
        of_mask = values[list(masked)].sum().item()
        by_masks += of_mask / math.comb(T, len(masked)) / all_k
    bound = 0.0
    exact = 0.0
    for part in nll:
        nats = [nats_in_order(nll, order) for order in itertools.permutations(part)]
        p = [math.exp(-n) for n in nats]
        share = 1 / math.comb(T, len(part)) / all_k
        bound += share * sum(nats) / len(nats)
        exact -= share * math.log(sum(p) / len(p))
    assert by_masks == pytest.approx(bound, abs=1e-12)
    assert exact < bound < 1.1 * exact
    batch = training_batch(model.config, x.expand(20_000, T), rng(3))
    assert_mean(weighted_losses(model, batch), by_masks)


def nats_through_prefixes(model, x, order):
    """−ln p of x (1, T), one token at a time in this order."""
    batch = order_batch(model.config, x, torch.tensor([order]))
    total = 0.0
    for j in range(T):
        seen = [field[:, :j + 1] for field in batch[:3]]    # tokens, key_pos, target_pos
        log_p = model(*seen)[0, j].log_softmax(dim=-1)
        token = x[0, order[j]]
        total -= log_p[token].item()
    return total


def orders_in_blocks(length, N):
    """All orders of so many tokens in blocks of N; the last block may be shorter."""
    of_blocks = []
    for start in range(0, length, N):
        block = range(start, min(start + N, length))
        of_blocks.append(itertools.permutations(block))
    for parts in itertools.product(*of_blocks):
        yield tuple(itertools.chain(*parts))


@torch.no_grad()
@pytest.mark.parametrize("orders, N", [
    ("random", T), ("blocks:3", 3), ("blocks:2", 2), ("left_to_right", 1)])
def test_aogpt_bound_is_the_mean_over_all_its_orders(orders, N):
    model = exact_model("aogpt", vocab_size=5, block_size=T, orders=orders)
    config = model.config
    x = tokens(model, rows=1)
    exact = []
    for order in orders_in_blocks(T, N):
        exact.append(nats_through_prefixes(model, x, order) / T)
    batch = evaluation_batch(config, x.expand(20_000, T), rng(3))
    losses = weighted_losses(model, batch)
    if N == 1:
        assert_close(losses, torch.full_like(losses, exact[0]))
    else:
        assert_mean(losses, sum(exact) / len(exact))
    batch = evaluation_batch(config, x, rng(), left_to_right=True)
    [loss] = weighted_losses(model, batch)
    assert loss.item() == pytest.approx(exact[0], abs=1e-12)


@torch.no_grad()
@causal_modes
def test_probabilities_of_all_sequences_sum_to_one(mode):
    """A fixed order is an exact likelihood."""
    model = exact_model(mode, vocab_size=3, block_size=T)
    sequences = itertools.product(range(3), repeat=T)
    x = torch.tensor(list(sequences))
    order = order_for(mode, x[:1]).expand_as(x)
    batch = order_batch(model.config, x, order)
    losses = weighted_losses(model, batch)
    p = torch.exp(-T * losses)
    assert p.sum().item() == pytest.approx(1, abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("start, length", [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_reading_a_word_twice_is_still_a_likelihood(start, length):
    model = exact_model("aogpt", vocab_size=3, block_size=T, orders="infill")
    sequences = itertools.product(range(3), repeat=T)
    x = torch.tensor(list(sequences))
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[:, start:start + length] = True
    order = infill_order(hidden, torch.full((len(x), 1), start - 1))
    losses = weighted_losses(model, order_batch(model.config, x, order))
    assert torch.exp(-T * losses).sum().item() == pytest.approx(1, abs=1e-9)
    one_place = order[0].tolist()
    assert sorted(one_place) == sorted([*range(T), start - 1])
    assert one_place[-length - 1:] == list(range(start - 1, start + length))


@torch.no_grad()
def test_the_bound_of_infill_is_the_mean_over_its_spans():
    model = exact_model("aogpt", vocab_size=5, block_size=T, orders="infill")
    x = tokens(model, rows=1)
    bound = 0.0
    for length in range(1, T):
        chance = math.log((length + 1) / length) / math.log(T)
        for start in range(1, T - length + 1):
            place = torch.arange(T)
            hidden = (place >= start) & (place < start + length)
            order = infill_order(hidden[None], torch.tensor([[start - 1]]))
            [loss] = weighted_losses(model, order_batch(model.config, x, order))
            bound += chance / (T - length) * loss.item()
    batch = evaluation_batch(model.config, x.expand(20_000, T), rng(3))
    assert_mean(weighted_losses(model, batch), bound)
    half = draw_orders(model.config, x.expand(4000, T), rng(), l2r_fraction=0.5)
    assert_mean((half[:, :T] == torch.arange(T)).all(dim=1).double(), 0.5)


def published_batch(config, x, generator, antithetic: bool):
    """Two rows a window, by the literature's estimate of the bound (arXiv 2406.07524).

    Each token is masked with a chance t, uniform on (0.001, 1), and has the weight 1/t. The two t
    of a window are independent, or half a period apart."""
    t = torch.rand(len(x), 2, generator=generator)
    if antithetic:
        t[:, 1] = (t[:, 0] + 0.5) % 1
    chance = 0.001 + 0.999 * t.view(-1, 1)                                      # (2N, 1)
    x = x.repeat_interleave(2, dim=0)                                           # (2N, T)
    masked = torch.rand(x.shape, generator=generator) < chance
    batch = masking_batch(config, x, masked)
    return batch._replace(weight=batch.weight / (x.size(1) * chance))


@torch.no_grad()
@pytest.mark.parametrize("antithetic", [True, False])
def test_the_published_estimator_of_the_bound_has_our_mean_and_more_variance(antithetic):
    model = small_model("mdlm")
    x = tokens(model, rows=1).expand(4000, -1)
    ours = weighted_losses(model, evaluation_batch(model.config, x, rng(1)))
    theirs = weighted_losses(model, published_batch(model.config, x, rng(2), antithetic))
    theirs = theirs.view(len(x), 2).mean(dim=1)
    error = math.sqrt((ours.var() + theirs.var()) / len(x))
    # Their cut-off, t ≥ 0.001, leaves out next to nothing.
    assert abs(theirs.mean() - ours.mean()) < 5 * error
    assert theirs.var() > 2 * ours.var()


# ---- Blocks --------------------------------------------------------------------------------------

blocks = pytest.mark.parametrize("length, N", [(4, 1), (4, 2), (4, 3), (6, 3)])


def block_model(length, N, **fields):
    sizes = dict(vocab_size=3, block_size=length)
    return exact_model("mdlm", orders=f"blocks:{N}", **sizes | fields)


def test_one_rule_says_what_every_mode_sees():
    for mode, stage in ("ar", 2 * torch.arange(8) - 1), ("mdlm", torch.zeros(9)):
        model = exact_model(mode)
        batch = some_batch(model)
        by_rule = batch._replace(stage=stage[None])
        with torch.no_grad():
            assert_close(forward(model, by_rule), forward(model, batch))    # fused kernels
        assert_close(forward(model, by_rule), forward(model, batch))
    seen = slots_seen(torch.tensor([[-1, 1, 1, 0, 0, 2, 2]]))[0]
    rows = ["".join(".x"[cell] for cell in row) for row in seen.tolist()]
    assert rows == ["x......", "xxx....", "xxx....",           # BOS and the first block, clean
                    "x..xx..", "x..xx..", "xxx..xx", "xxx..xx"]


def log_p_in_order(model, x, order):
    """ln p of the texts x (N, T), one token at a time in this order, uncached."""
    total = 0
    masked = torch.ones_like(x, dtype=torch.bool)
    for position in order:
        logits = forward(model, masking_batch(model.config, x, masked))
        log_p = logits[:, 1 + position].log_softmax(dim=-1)
        total = total + log_p.gather(1, x[:, position, None])[:, 0]
        masked[:, position] = False
    return total


@torch.no_grad()
@blocks
def test_block_diffusion_is_a_law_and_its_bound_is_the_mean_over_its_orders(length, N):
    model = block_model(length, N)
    every = torch.tensor(list(itertools.product(range(3), repeat=length)))
    nats = 0
    orders = list(orders_in_blocks(length, N))
    for order in orders:
        log_p = log_p_in_order(model, every, order)
        assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)
        nats = nats - log_p / len(orders) / length
    x, expected = every[20:21], nats[20].item()
    plain = weighted_losses(model, one_block_batch(model.config, x.expand(20_000, -1), rng(3)))
    assert_mean(plain, expected)
    batch = training_batch(model.config, x.expand(20_000, -1), rng(3))
    losses = weighted_losses(model, batch)
    if N == 1:          # only one mask is possible, so every draw is exact
        assert_close(losses, torch.full_like(losses, expected), atol=1e-6, rtol=0)
    else:
        assert_mean(losses, expected)
        assert losses.var() < plain.var() / 2


@torch.no_grad()
@blocks
def test_two_streams_predict_what_block_by_block_does(length, N):
    model = block_model(length, N)
    config = model.config
    x = tokens(model, rows=5)
    block = torch.arange(length) // N
    masked = torch.rand(x.shape, generator=rng(7)) < 0.6
    at_once = two_streams(config, masking_batch(config, x, masked))
    clean = 1 + int(block[-1]) * N
    assert at_once.tokens.size(1) == clean + length
    logits = forward(model, at_once)[:, clean:]
    for b in block.unique():
        hidden = (masked & (block == b)) | (block > b)
        plain = forward(model, masking_batch(config, x, hidden))[:, 1:]
        assert_close(logits[:, block == b], plain[:, block == b])


@torch.no_grad()
@pytest.mark.parametrize("streams", [1, 2])
def test_nothing_leaks_from_later_blocks_or_from_behind_a_mask(streams):
    model = block_model(7, 3)
    config = model.config
    x = tokens(model, rows=1)
    block = torch.arange(7) // 3
    masked = torch.tensor([[False, True, False, True, False, True, True]])
    b_one = block == 1

    def make_batch(x):
        if streams == 2:
            return two_streams(config, masking_batch(config, x, masked))
        return masking_batch(config, x, (masked & b_one) | (block > 1))

    for j in range(7):
        of_block = moved(model, make_batch, x, j)[-7:][b_one]
        if j < 3 or j == 4:         # the first block, masked or not, and what block 1 shows
            assert (of_block > 1e-6).all()
        else:
            assert (of_block == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("length", [8, 5])
def test_one_block_is_masked_diffusion_to_the_bit(length):
    """For a text that fills the window, too."""
    random = small_model("mdlm")
    one_block = small_model("mdlm", orders="blocks:8")
    x = tokens(random, rows=8)[:, :length]
    for make_batch in training_batch, evaluation_batch, paper_batch:
        losses = [weighted_losses(model, make_batch(model.config, x, rng()))
                  for model in (random, one_block)]
        assert torch.equal(*losses)


# ---- Masks and orders ----------------------------------------------------------------------------

@pytest.mark.parametrize("length", [7, 8])
def test_k_is_uniform_and_each_position_equally_likely(length):
    config = small_model("mdlm", block_size=length).config
    x = torch.zeros(14, length, dtype=torch.long)
    masks = []
    for seed in range(3000):
        batch = nelbo_batch(config, x, rng(seed))
        masks.append(batch.weight[:, 1:] > 0)
    masked = torch.cat(masks)                                                   # (42000, T)
    k = masked.sum(dim=1)
    # The strata make the counts closer to uniform than independent draws.
    counts = torch.bincount(k)[1:]
    assert len(counts) == length
    assert chisquare(counts).pvalue > 0.01
    places = masked[k == 2].sum(dim=0)
    assert chisquare(places).pvalue > 1e-4


def test_stratified_pairs_have_less_variance():
    """The mean of (k/T)² over 16 rows, against independent draws of k."""
    counts = [mask_counts(16, torch.tensor([64]), rng(seed))[:, 0] for seed in range(300)]
    k = torch.stack(counts)                                                     # (300, 16)
    ours = (k / 64).square().mean(dim=1)
    every = (torch.arange(1, 65) / 64).square()
    assert_mean(ours, every.mean())
    assert ours.var() < 0.02 * every.var() / 16


def test_the_asked_share_of_orders_is_left_to_right():
    config = small_model("aogpt", l2r_fraction=0.25).config
    x = torch.zeros(4000, 8, dtype=torch.long)

    def sorted_rows(make_batch):
        batch = make_batch(config, x, rng())
        as_written = batch.target_pos == left_to_right(x)
        return as_written.all(dim=1).double()

    assert_mean(sorted_rows(training_batch), 0.25)
    assert sorted_rows(evaluation_batch).mean() < 0.01


@pytest.mark.parametrize("length, N", [(8, 8), (8, 4), (8, 1), (7, 3), (5, 4)])
def test_every_order_in_blocks_is_equally_likely_and_no_other_comes(length, N):
    config = small_model("aogpt", block_size=length, orders=f"blocks:{N}").config
    x = torch.zeros(20_000, length, dtype=torch.long)
    order = draw_orders(config, x, rng(), l2r_fraction=0.0)
    block = torch.arange(length) // N
    assert torch.equal(order // N, block.expand_as(x))
    first = order[:, :N].tolist()       # of three tokens or less, all orders come up often
    if N <= 3:
        counts = collections.Counter(map(tuple, first))
        assert len(counts) == math.factorial(N)
        assert N == 1 or chisquare(list(counts.values())).pvalue > 1e-3


def test_the_ends_of_the_dial():
    """One block is the random order, to the bit, and blocks of one token are the order of ar."""
    x = torch.zeros(50, 8, dtype=torch.long)

    def orders(mode, **fields):
        config = small_model(mode, **fields).config
        return draw_orders(config, x, rng(), l2r_fraction=0.1)

    as_it_was = torch.rand(x.shape, generator=rng()).argsort(dim=1)
    found = orders("aogpt")
    same = (found == as_it_was).all(dim=1)
    assert (same | (found == left_to_right(x)).all(dim=1)).all()
    assert same.sum() > 30
    for name in "blocks:8", "blocks:100":
        assert torch.equal(orders("aogpt", orders=name), found)
    for name in "blocks:1", "left_to_right":
        assert torch.equal(orders("aogpt", orders=name), orders("ar"))


@modes
def test_token_noise_replaces_what_is_read_and_nothing_else(mode):
    x = torch.randint(59, (400, 40), generator=rng())
    config = Config(mode, vocab_size=60, block_size=40)
    clean = training_batch(config, x, rng())
    config.token_noise = 0.25
    noisy = training_batch(config, x, rng())
    assert torch.equal(clean.targets, noisy.targets)
    assert torch.equal(clean.weight, noisy.weight)
    words = clean.tokens < 59       # neither BOS nor [MASK]
    before = clean.tokens[words]
    after = noisy.tokens[words]
    assert torch.equal(clean.tokens[~words], noisy.tokens[~words])
    assert (after < 59).all()
    changed = (after != before).double().mean()
    assert changed == pytest.approx(0.25 * 58 / 59, abs=0.02)       # 1 in 59 is drawn again


PAPERS = Config(
    "mdlm", vocab_size=11, block_size=512, objective="masked_ce", schedule="cosine")


def ratio_at(t):
    """The paper's share of masked tokens at time t."""
    return 1 - torch.cos(math.pi / 2 * t).square()


def share_masked(batch):
    """(B,) of a window."""
    masked = batch.tokens[:, 1:] == PAPERS.mask_id
    return masked.float().mean(dim=1)


def test_the_papers_masks():
    x = torch.zeros(64, 512, dtype=torch.long)
    batch = paper_batch(PAPERS, x, rng())
    away = share_masked(batch) - ratio_at(batch.t)
    assert away.abs().max() < 0.11      # 5 standard deviations at a ratio of one half
    many = torch.zeros(20_000, 1, dtype=torch.long)
    batch = paper_batch(PAPERS, many, rng())
    fit = kstest(batch.t.numpy(), "uniform")
    assert fit.pvalue > 1e-3


def test_evaluation_tells_the_timestep_that_training_would_have_told():
    t = torch.linspace(0, 1, 50).double()
    assert_close(timestep(PAPERS, ratio_at(t)), t)
    x = torch.zeros(4, 512, dtype=torch.long)
    batch = evaluation_batch(PAPERS, x, rng())
    assert_close(share_masked(batch), ratio_at(batch.t))


# ---- The faster forms ----------------------------------------------------------------------------

def same(batch):
    return batch


@pytest.mark.parametrize("weights", [same, pool])
@pytest.mark.parametrize("orders", ["random", "blocks:3"])
def test_pack_pairs_changes_no_loss_and_no_gradient(weights, orders):
    """Of the bound, and of masked_ce."""
    model = exact_model("mdlm", orders=orders)
    x = tokens(model, rows=6)
    batch = weights(nelbo_batch(model.config, x, rng()))
    plain = weighted_losses(model, batch)                                       # (6,)
    packed = weighted_losses(model, pack_pairs(batch))                          # (3,)
    assert_close(packed, plain.view(3, 2).mean(dim=1))
    expected = gradient(model, plain.mean())
    assert_close(gradient(model, packed.mean()), expected)


@pytest.mark.parametrize("fields", [
    dict(mode="ar"),
    dict(mode="mdlm"),
    dict(mode="aogpt"),
    dict(mode="mdlm", time_embedding="add"),
    dict(mode="mdlm", objective="masked_ce"),
    dict(mode="aogpt", orders="infill"),
    dict(mode="mdlm", orders="blocks:3"),
    dict(mode="mdlm", orders="blocks:4", objective="masked_ce"),
    dict(mode="mdlm", objective="masked_ce", schedule="cosine")])
def test_gradient_accumulation_changes_nothing(fields):
    model = exact_model(**fields)
    batch = some_batch(model, rows=8)
    whole = gradient(model, weighted_losses(model, batch).mean())
    parts = []
    at_once = len(batch.targets) // 4
    for part in batch.split(at_once):
        loss = weighted_losses(model, part).mean()
        parts.append(gradient(model, loss))
    assert len(parts) == 4
    assert_close(sum(parts) / 4, whole)


@torch.no_grad()
def test_the_loss_of_bfloat16_logits_is_not_rounded_to_bfloat16():
    """As autocast leaves them on CUDA: the softmax is in float32."""
    model = small_model(dtype=torch.bfloat16)
    batch = some_batch(model, rows=64)
    logits = forward(model, batch).double()
    log_p = logits.log_softmax(dim=-1)
    nll = -log_p.gather(2, batch.targets[:, :, None])                           # (64, T, 1)
    exact = nll.mean(dim=(1, 2))
    losses = weighted_losses(model, batch)
    assert losses.dtype == torch.float32
    assert (losses - exact).abs().max() < 1e-5
    assert (losses.bfloat16() - exact).abs().max() > 1e-3       # what rounding would have cost
    assert weighted_losses(model.double(), batch).dtype == torch.float64


@pytest.mark.parametrize("mode, orders", [
    ("ar", "random"), ("mdlm", "random"), ("mdlm", "blocks:4"), ("aogpt", "infill")])
def test_the_loss_compiles_as_a_whole_and_stays_the_same(mode, orders):
    torch._dynamo.reset()
    model = exact_model(mode, orders=orders)
    batch = some_batch(model)
    compiled = torch.compile(weighted_losses, backend="aot_eager", fullgraph=True)
    eager_loss = weighted_losses(model, batch).mean()
    loss = compiled(model, batch).mean()
    assert_close(loss, eager_loss)
    expected = gradient(model, eager_loss)
    assert_close(gradient(model, loss), expected)


@torch.no_grad()
def test_a_gpu_cuts_the_same_logits_from_a_padded_product(monkeypatch):
    model = exact_model("ar")
    batch = some_batch(model)
    plain = forward(model, batch)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    padded = forward(model, batch)
    assert plain.is_contiguous()
    assert not padded.is_contiguous()       # it was computed the other way indeed
    assert_close(padded, plain)


@torch.no_grad()
@causal_modes
@pytest.mark.parametrize("pieces", [[1] * 8, [8], [3, 1, 4]])
def test_cached_logits_equal_uncached(mode, pieces):
    model = exact_model(mode)
    x = tokens(model)
    batch = order_batch(model.config, x, order_for(mode, x))
    keys_values = new_keys_values(model, 3, 8)
    first = keys_values[0][0]
    logits = []
    start = 0
    for n in pieces:
        end = start + n
        slots = torch.arange(start, end).expand(3, -1)                          # (3, n)
        visible = torch.arange(end) <= slots[:, :, None]                        # (3, n, end)
        cache = Cache(keys_values, slots, visible[:, None])
        piece = [field[:, start:end] for field in batch[:3]]    # tokens, key_pos, target_pos
        logits.append(model(*piece, cache=cache))
        start = end
    assert_close(torch.cat(logits, dim=1), forward(model, batch))
    assert keys_values[0][0] is first       # written in place
    assert first.shape == (3, 2, 8, 8)


# ---- Weights and sizes ---------------------------------------------------------------------------

@modes
def test_every_parameter_learns_and_padding_does_not(mode):
    time = "add" if mode == "mdlm" else "none"
    model = small_model(mode, time_embedding=time)
    for seed in range(20):      # all tokens and positions come up
        batch = some_batch(model, rows=8, seed=seed)
        weighted_losses(model, batch).mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.any(), name
    learns = model.embed.weight.grad.any(dim=1)
    assert learns[:11].all()
    assert learns[11] == (mode == "mdlm")       # [MASK]
    assert not learns[12:].any()


@torch.no_grad()
@pytest.mark.parametrize("silent", ["attention", "mlp"])
def test_dropout_drops_its_share_of_what_each_part_adds(silent):
    model = small_model(dropout=0.25, n_layer=1).train()
    block = model.blocks[0]
    getattr(block, silent).proj.weight.zero_()
    x = torch.randn(64, 8, 16)
    rotary = model.rotary[:, None, None, :8]                                    # (2, 1, 1, 8, D/2)
    added = block(x, rotary, rotary) - x
    kept = added.count_nonzero() / added.numel()
    assert kept == pytest.approx(0.75, abs=0.03)        # 6 standard deviations


@torch.no_grad()
def test_initial_weights():
    torch.manual_seed(0)
    sizes = dict(vocab_size=500, n_layer=8, n_head=4, n_embd=256, n_hidden=64)
    model = Transformer(Config("ar", **sizes))
    common = model.embed.weight.mean(dim=0)
    assert common.norm() == pytest.approx(1, rel=0.2)
    assert not model.embed_target.weight.any()
    block = model.blocks[0]
    for part, inputs in (block.attention, 256), (block.mlp, 64):
        expected = 1 / math.sqrt(inputs * 2 * 8)
        assert part.proj.weight.std() == pytest.approx(expected, rel=0.03)
    model = Transformer(Config("ar", shared_init=False, **sizes))
    assert model.embed.weight.mean(dim=0).norm() < 0.1


@pytest.mark.parametrize("fields, expected", [
    (dict(mode="ar"), 123_551_232 + 512 * 768),
    (dict(mode="aogpt"), 123_551_232 + 512 * 768),
    (dict(mode="ar", target_embedding=False), 123_551_232),
    (dict(mode="mdlm", target_embedding=False), 123_552_000),
    (dict(mode="mdlm", target_embedding=False, **PAPER_MDLM), 162_739_968)])
def test_parameter_counts(fields, expected):
    with torch.device("meta"):
        model = Transformer(Config(**fields))
    assert count_parameters(model) == expected


@modes
def test_flops_per_token_counts_the_matrix_products(mode):
    from torch.utils.flop_counter import FlopCounterMode
    sizes = dict(vocab_size=1000, block_size=32, n_layer=2, n_head=2, n_embd=64, n_hidden=128)
    # In bfloat16 attention is written out; within the library's function nothing would be counted.
    model = Transformer(Config(mode, **sizes)).bfloat16()
    batch = some_batch(model, rows=2)
    with FlopCounterMode(display=False) as counter:
        weighted_losses(model, batch).mean().backward()
    measured = counter.get_total_flops() / 64
    tolerance = 0.05        # for mdlm's BOS slot
    if mode != "mdlm":
        measured -= 6 * 2 * 64 * 32     # the masked half of attention is computed too
        tolerance = 1e-6
    assert measured == pytest.approx(flops_per_token(model.config), rel=tolerance)


# ---- Configuration and files ---------------------------------------------------------------------

@pytest.mark.parametrize("fields, named", [
    (dict(mode="mlm"), "--mode=mlm"),
    (dict(n_embd=100, n_head=12), "--n_embd=96"),
    (dict(l2r_fraction=1.5), "--l2r_fraction=1.5"),
    (dict(mode="mdlm", schedule="cosine"), "--objective=masked_ce"),
    (dict(mode="mdlm", l2r_fraction=0.5), "--mode=aogpt"),
    (dict(mode="ar", orders="blocks:4"), "--orders=blocks:4 is for --mode="),
    (dict(mode="mdlm", orders="blocks:4", time_embedding="add"), "needs --schedule=uniform"),
    (dict(mode="aogpt", orders="blocks:0"), "N of 1 or more, not blocks:0"),
    (dict(mode="aogpt", orders="blocks:x"), "not blocks:x"),
    (dict(mode="mdlm", orders="infill"), "--orders=infill is for --mode=aogpt")])
def test_config_refuses_what_does_not_fit_and_names_what_would(fields, named):
    with pytest.raises(InputError, match=named):
        Config(**fields)


def test_a_checkpoint_gives_the_model_back(tmp_path):
    model = small_model("mdlm")
    save(tmp_path / "m.pt", model, step=7)
    again, rest = load(tmp_path / "m.pt")
    assert again.config == model.config
    assert rest["step"] == 7
    weights = again.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weights[name], weight)


def test_a_lack_of_memory_is_not_called_a_damaged_file(tmp_path, monkeypatch):
    """torch raises the same kind of error for both."""
    def no_memory(*arguments, **flags):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    save(tmp_path / "m.pt", small_model())
    monkeypatch.setattr(torch, "load", no_memory)
    with pytest.raises(RuntimeError, match="allocate memory"):
        load(tmp_path / "m.pt")
