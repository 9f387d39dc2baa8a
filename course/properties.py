"""
What must hold of any right answer: the tasks of the lab, and how grade.py judges them.

A check is a function of a student, who is asked by the name of a function, and of random numbers.
It counts out small cases and raises Wrong on the first that is not as it must be. To add a task of
your own, add a line to TASKS, and a check or more with its name.
"""
import itertools
import math
import random

import torch
import torch.nn.functional as F


# ---- The tasks: a line for each, with the functions that the hand-out empties --------------------

TASKS = {
    "gpt": [],          # nothing is emptied: gpt.py works, and is to be edited
    "masks": ["model.py:draw_masks"],
    "bound": ["model.py:mask_batch", "model.py:losses"],
    "chain": ["model.py:order_batch"],
    "draw": ["model.py:probabilities", "model.py:draw"],
    "write": ["model.py:write"],
    "together": ["together.py:nats_lost"],
    "adaptive": ["samplers/adaptive.py:within_risk"],
    "drafts": ["samplers/drafts.py:confirm"],
}
CHECKS = []         # (task, points, the property in words, function)


def check(task, points, says):
    """Makes a function (student, rng) a check, which raises Wrong on the smallest case it finds."""
    def add(function):
        CHECKS.append((task, points, says, function))
        return function

    return add


class Wrong(Exception):
    """What is wrong, in words for the student."""


# ---- What a check asks for, and what it says -----------------------------------------------------

V, MASK, BOS = 3, 3, 2      # the words 0 … V-1 of most checks, numbered as in model.py


def seed(number):
    return ("seed", number)


def made(name, **fields):
    return ("made", name, fields)


def function(name):
    return ("function", name)


def uniform(rng, *shape):
    return torch.rand(shape, generator=rng, dtype=torch.float64)


def normal(rng, *shape):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def some_texts(rng, B, T):
    return torch.randint(V, (B, T), generator=rng)


def with_bos(tokens):
    """Tokens (B, T+1) at the positions -1 … T-1."""
    return F.pad(tokens, (1, 0), value=BOS)


def shaped(value, *shape, what="it", low=0, below=None):
    """The tensor, if it has this shape and is finite, and tokens are low … below-1."""
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"{what}: {value!r:.40} should be a tensor")
    if tuple(value.shape) != shape:
        raise Wrong(f"{what}: the shape is {tuple(value.shape)}, and should be {shape}")
    if not value.double().isfinite().all():
        raise Wrong(f"{what}: there is NaN or an infinity")
    if below is None:
        return value
    value = value.long()
    if ((value < low) | (value >= below)).any():
        raise Wrong(f"{what}: {value.tolist()!s:.60}, and all should be from {low} to {below - 1}")
    return value


def told(value):
    """Numbers with as many digits as a reader wants."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value if isinstance(value, int) else [told(part) for part in value]


def same(found, expected, says, within=1e-4):
    """Numbers, lists of them or tensors are alike."""
    a = torch.as_tensor(found, dtype=torch.float64)
    b = torch.as_tensor(expected, dtype=torch.float64)
    if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=within):
        raise Wrong(f"{says} {told(found)}, and should be {told(expected)}")


# Some 30 tests draw lots. So small are the odds of each to fail a right answer, by a law for large
# numbers; for cells of 50 the true ones are a few times larger, and all together below 1 in 10,000.
ODDS = 1e-7
SIGMAS = 5.33       # which a normal number exceeds with these odds


def follows(cells, p, says):
    """Cells (N,) are numbers drawn from the law p (K,): a chi-square test. A cell has a name."""
    expected = p.double() * len(cells)                                          # (K,)
    counts = torch.bincount(cells, minlength=len(p)).double()                   # (K,)
    # The test is for large numbers, so rare cells count as one, together with the next larger.
    rare = (expected < 50).sum()
    rank = expected.argsort().argsort()
    group = (rank - rare).clamp(min=0)                                          # (K,)
    sums = torch.zeros(2, int(group.max()) + 1, dtype=torch.float64)
    few, many = sums.index_add(1, group, torch.stack([expected, counts]))
    chi_square = ((many - few).square() / few).sum()
    freedom = torch.tensor(len(few) - 1.0)
    if freedom > 0 and torch.special.gammaincc(freedom / 2, chi_square / 2) < ODDS:
        away = (counts - expected).abs() / expected.clamp(min=1).sqrt()
        cell = int(away.argmax())
        share = counts[cell] / len(cells)
        raise Wrong(f"{says(cell)} in {share:.1%} of the rows, and should in {p[cell]:.1%}")


def texts(T):
    """All texts of T words (V ** T, T). Text i is the number i in base V."""
    every = itertools.product(range(V), repeat=T)
    return torch.tensor(list(every))


def numbers(tokens):
    """The numbers (N,) of texts (N, T)."""
    powers = V ** torch.arange(tokens.size(1)).flip(0)
    return (tokens * powers).sum(dim=1)


def sets_of(T):
    """Every set of places that can be hidden, the small ones first."""
    for k in range(1, T + 1):
        yield from map(list, itertools.combinations(range(T), k))


def orders_of(T):
    return map(list, itertools.permutations(range(T)))


# ---- A made-up network, of which everything can be counted out -----------------------------------

class Network:
    """What T places become, given the tokens that are known: any law would do, so it is random."""

    def __init__(self, T, rng):
        self.T = T
        self.read = normal(rng, T + 1, V + 1, 16)
        self.head = normal(rng, T, 16, V) / 2

    def logits(self, seen):
        """Of all places (n, T, V), from what is seen (n, T+1) at the positions -1 … T-1."""
        place = torch.arange(self.T + 1)
        features = self.read[place, seen].sum(dim=1).tanh()                     # (n, 16)
        return torch.einsum("nf,tfv->ntv", features, self.head)

    def __call__(self, tokens):
        """Logits (B, T, V), as gpt.py asks for them."""
        tokens = shaped(tokens, len(tokens), self.T, what="the text that the model reads",
                        below=MASK + 1)
        return self.logits(with_bos(tokens)).float()

    def nats(self, x, hidden):
        """−log p of the hidden tokens of x (T,), given the others: one number for each of them."""
        tokens = x.clone()
        tokens[hidden] = MASK
        seen = with_bos(tokens[None])
        [log_p] = self.logits(seen).log_softmax(dim=-1)                         # (T, V)
        return -log_p[hidden, x[hidden]]

    def bound(self, x):
        """The mean over k, and over the sets of k places, of the mean over a set."""
        total = 0
        for M in sets_of(self.T):
            total += self.nats(x, M).mean() / math.comb(self.T, len(M))
        return total / self.T

    def in_order(self, x, order, edges=None):
        """−log p of x (T,), written in this order: what is between two edges at once, or by one."""
        total = 0
        for start, end in itertools.pairwise(edges or range(self.T + 1)):
            nats = self.nats(x, order[start:])          # of all that are left
            total += nats[:end - start].sum()
        return total

    def law(self, orders, edges=None):
        """p of all texts (V ** T,), written in one of the orders by chance."""
        p = torch.zeros(V ** self.T, dtype=torch.float64)
        for i, x in enumerate(texts(self.T)):
            for order in orders:
                p[i] += (-self.in_order(x, order, edges)).exp() / len(orders)
        return p

    def after(self, tokens, i):
        """p (N, V) of token i, given those before it in tokens (N, T)."""
        known = tokens.where(torch.arange(self.T) < i, MASK)
        return self(known)[:, i].softmax(dim=-1)


def case(x, hidden=None):
    text = f"x = {told(x)}"
    return text if hidden is None else f"{text} with the places {hidden} hidden"


# ---- gpt: masked diffusion in four edits ---------------------------------------------------------

@check("gpt", 2, "each place sees every other one, before it and after it")
def sees_both_sides(student, rng):
    T = 3
    model = student("gpt.GPT", V, T)
    x = some_texts(rng, 1, T)                                                   # (1, T)
    others = (x + torch.eye(T, dtype=torch.long)) % V       # row j has another token at place j
    logits = student(model, torch.cat([x, others]))
    before, *after = shaped(logits, 1 + T, T, V, what="GPT")
    for j, i in itertools.permutations(range(T), 2):
        if (after[j][i] - before[i]).abs().max() < 1e-6:
            raise Wrong(f"{case(x[0])}: place {i} does not see place {j}; its logits stay when "
                        "that token changes")


def what_loss_reads(student, network, x, number):
    """The loss of x (B, T), and which tokens the model did not see (B, T)."""
    asked = []

    def model(tokens):
        asked.append(tokens)
        return network(tokens)

    value = shaped(student("gpt.loss", model, x, seed(number)), what="loss")
    read = torch.cat(asked) if asked else x[:0]
    if read.shape != x.shape:
        raise Wrong(f"the model should read each of the {len(x)} rows once, and it reads "
                    f"{len(read)}")
    hidden = read == MASK
    for row, seen, here in zip(x, read, hidden):
        if (row[~here] != seen[~here]).any():
            raise Wrong(f"{case(row)}: the model reads {told(seen)}, where {MASK} is [MASK]; "
                        "a token that is not hidden should be read where it stands")
        if not here.any():
            raise Wrong(f"{case(row)}: nothing is hidden, and k should be at least 1")
    return value, hidden


def places_of(hidden):
    """The places that are hidden in each row of hidden (B, T)."""
    return [row.nonzero()[:, 0].tolist() for row in hidden]


@check("gpt", 3, "the loss is the mean over rows of each row's own mean over its hidden tokens")
def loss_of_rows(student, rng):
    for T, B in (1, 1), (2, 1), (3, 1), (3, 2), (4, 5), (30, 5):
        network = Network(T, rng)
        for number in range(8):
            x = some_texts(rng, B, T)
            value, hidden = what_loss_reads(student, network, x, number)
            places = places_of(hidden)
            means = [network.nats(row, M).mean() for row, M in zip(x, places)]
            same(value, sum(means) / B, f"{case(x, places)}: your loss is", within=1e-3)


def obeys_the_seed(draw):
    """What is drawn by a number (…) is the same for the same number, and another for another."""
    first, again, other = map(draw, (1, 1, 2))
    if (first != again).any():
        raise Wrong("two generators of the same seed give two different masks")
    if (first == other).all():
        raise Wrong("two generators of different seeds give the same masks")


def uniform_masks(hidden):
    """Each k equally often, and of few tokens each set of k places too."""
    T = hidden.size(1)
    if T > 1 and (hidden == hidden[0]).all():
        raise Wrong(f"all of {len(hidden)} rows hide the places {places_of(hidden[:1])[0]}; each "
                    "should draw a k of its own, and places of its own")
    k = hidden.sum(dim=1)
    each = torch.full((T,), 1 / T)
    follows(k - 1, each, lambda cell: f"of {T} tokens {cell + 1} are hidden")
    if T > 4:
        return
    every = list(sets_of(T))
    p = torch.tensor([1 / T / math.comb(T, len(M)) for M in every])
    cells = torch.tensor([every.index(M) for M in places_of(hidden)])
    follows(cells, p, lambda cell: f"of {T} tokens the places {every[cell]} are hidden")


@check("gpt", 2, "k is uniform on 1 … T, every row has a mask of its own, and the seed decides")
def masks_of_loss(student, rng):
    for T in 2, 3, 20:
        network = Network(T, rng)
        x = some_texts(rng, 1, T).expand(1500, T)
        number = int(torch.randint(99, (), generator=rng))
        _, hidden = what_loss_reads(student, network, x, number)
        uniform_masks(hidden)
    obeys_the_seed(lambda number: what_loss_reads(student, network, x[:20], number)[1])


@check("gpt", 3, "what it writes follows the mean over all orders of writing")
def writes_its_law(student, rng):
    for T in 1, 2, 3:
        network = Network(T, rng)
        alike = []          # of each pass over several texts: whether all know the same places

        def model(tokens):
            known = tokens != MASK
            if len(known) > 1:
                alike.append((known == known[:1]).all())
            return network(tokens)

        found = student("gpt.write", model, 3000, T, seed(T))
        found = shaped(found, 3000, T, what="write", below=V)
        one_order = T > 1 and alike and all(alike)
        how = "in one order for all texts " if one_order else ""
        law = network.law(list(orders_of(T)))
        follows(numbers(found), law, lambda cell: f"{how}it writes {told(texts(T)[cell])}")


ABOVE_LAW = 0.35        # nats per token


@check("gpt", 2, f"300 steps on the toy come within {ABOVE_LAW} nats per token of its law")
def learns_the_toy(student, rng):
    if student.failed:
        raise Wrong("not tried, because a property above fails")
    from tokenizer import split_words
    from worlds.toy import TOY
    words = TOY.words()
    lots = random.Random(int(torch.randint(10 ** 6, (), generator=rng)))
    stories = [split_words(TOY.draw(lots)) for _ in range(4200)]
    x = torch.tensor([[words.index(word) for word in story] for story in stories])
    T, hidden = x.size(1), len(words)
    model = student("gpt.GPT", hidden, T)
    student("gpt.fit", model, function("gpt.loss"), x[200:], 300)
    nats = 0.0
    for story in x[:40]:        # the mean over orders of writing is the bound
        order = torch.randperm(T, generator=rng).tolist()
        read = torch.full((T, T), hidden)               # row j knows the first j of the order
        for j in range(T):
            read[j, order[:j]] = story[order[:j]]
        logits = shaped(student(model, read), T, T, hidden, what="GPT")
        log_p = logits.log_softmax(dim=-1)                                      # (T, T, V)
        nats -= float(log_p[range(T), order, story[order]].sum())
    bound = nats / (40 * T)
    law = TOY.entropy() / T
    if bound > law + ABOVE_LAW:
        raise Wrong(f"your bound is {bound:.2f} nats per token, the law's entropy {law:.2f}")


# ---- masks ---------------------------------------------------------------------------------------

def masks_of(student, B, T, number):
    x = torch.zeros(B, T, dtype=torch.long)
    hidden = student("model.draw_masks", x, seed(number))
    hidden = shaped(hidden, B, T, what="draw_masks").bool()
    if not hidden.any(dim=1).all():
        raise Wrong(f"of {T} tokens a row hides none, and k should be at least 1")
    return hidden


@check("masks", 3, "k is uniform on 1 … T, and each set of k places is equally likely")
def masks_are_uniform(student, rng):
    def one_of_each_pair(hidden):       # these are independent, whatever the pairs have in common
        pairs = hidden.view(-1, 2, hidden.size(1))
        which = torch.randint(2, (len(pairs),), generator=rng)
        return pairs[torch.arange(len(pairs)), which]

    for T in 1, 2, 3, 4, 20:
        uniform_masks(one_of_each_pair(masks_of(student, 6000, T, T)))
        # Strata that are too wide for a small batch would leave out some k.
        small = [masks_of(student, 2, T, 1000 * T + number) for number in range(150)]
        uniform_masks(one_of_each_pair(torch.cat(small)))


@check("masks", 1, "the rows come in pairs of k and T + 1 − k")
def masks_come_in_pairs(student, rng):
    for T in 1, 2, 5, 40:
        k = masks_of(student, 8, T, T).sum(dim=1)
        same(k[::2] + k[1::2], [T + 1] * 4,
             f"of {T} tokens the rows hide {told(k)}: the sums of each two are")


@check("masks", 1, "the same seed gives the same masks, and another one others")
def masks_obey_the_seed(student, rng):
    obeys_the_seed(lambda number: masks_of(student, 16, 8, number))


# ---- bound and chain: what a batch holds ---------------------------------------------------------

def batch_of(student, name, mode, x, how, S):
    """What mask_batch or order_batch returns: tokens, key_pos, target_pos, targets, weight."""
    B, T = x.shape
    config = made("model.Config", mode=mode, vocab_size=V, block_size=T, n_layer=1, n_head=1,
                  n_embd=2, n_hidden=2)
    batch = student(f"model.{name}", config, x, how)
    if not isinstance(batch, list) or len(batch) != 5:
        raise Wrong(f"{name} should return a Batch of five tensors")
    fields = ("tokens", 0, V + 1), ("key_pos", -1, T), ("target_pos", -1, T), ("targets", 0, V)
    parts = []
    for part, (field, low, below) in zip(batch, fields):
        parts.append(shaped(part, B, S, what=f"{name}: {field}", low=low, below=below))
    weight = shaped(batch[4], B, S, what=f"{name}: weight")
    return [*parts, weight.double()]


def losses_of(network, batch, causal):
    """Losses (B,) by the weights, if a slot sees those up to itself, or all if not causal."""
    tokens, key_pos, target_pos, targets, weight = batch
    B, S = tokens.shape
    total = torch.zeros(B, dtype=torch.float64)
    for j in range(S):
        end = j + 1 if causal else S
        seen = torch.full((B, network.T + 1), MASK)
        seen = seen.scatter(1, key_pos[:, :end] + 1, tokens[:, :end])           # (B, T+1)
        place = target_pos[:, j].clamp(min=0)                                   # (B,)
        logits = network.logits(seen)[torch.arange(B), place]                   # (B, V)
        nll = F.cross_entropy(logits, targets[:, j], reduction="none")          # (B,)
        total += weight[:, j] * nll
    return total


def masked_batches(student, rng):
    """Yields (network, x (T,), sets of places, a batch with a row for each of them)."""
    for T in 1, 2, 3, 7:
        network = Network(T, rng)
        every = list(sets_of(T))
        masked = torch.zeros(len(every), T, dtype=torch.bool)
        for row, M in zip(masked, every):
            row[M] = True
        for x in some_texts(rng, 3, T):
            rows = x.expand_as(masked)
            batch = batch_of(student, "mask_batch", "mdlm", rows, masked, S=T + 1)
            yield network, x, every, batch


@check("bound", 2, "the network reads BOS and what is not hidden, each at its place")
def reads_what_is_visible(student, rng):
    for network, x, every, (tokens, key_pos, *_) in masked_batches(student, rng):
        for M, held, key in zip(every, tokens, key_pos):
            place, slot = key.sort()
            same(place, range(-1, len(x)), f"{case(x, M)}: the slots hold what stands at")
            expected = [MASK if i in M else int(x[i]) for i in range(len(x))]
            same(held[slot], [BOS, *expected], f"{case(x, M)}: BOS and the text are read as")


@check("bound", 3, "each hidden token is predicted at its own place, with the weight 1/k")
def predicts_what_is_hidden(student, rng):
    for network, x, every, (_, _, target_pos, targets, weight) in masked_batches(student, rng):
        for M, place, target, counts in zip(every, target_pos, targets, weight):
            counted = counts != 0
            place = place[counted]
            same(place.sort().values, M, f"{case(x, M)}: the places that are predicted, of which "
                 "-1 is BOS's, are")
            same(target[counted], x[place], f"{case(x, M)}: the targets of {told(place)} are")
            same(counts[counted], [1 / len(M)] * len(M), f"{case(x, M)}: your weights are")


@check("bound", 2, "over all masks, the mean is the bound")
def mean_is_the_bound(student, rng):
    for network, x, every, batch in masked_batches(student, rng):
        T, mean = network.T, 0
        for M, nats in zip(every, losses_of(network, batch, causal=False)):
            mean += nats / math.comb(T, len(M)) / T
        same(mean, network.bound(x), f"{case(x)}: your bound is")


def some_losses(student, rng, B, S, dtype=torch.float32):
    """Losses (B,) of random slots and weights, of which some are 0, and what they should be."""
    logits = (4 * normal(rng, B, S, V)).to(dtype)
    weight = uniform(rng, B, S).float()
    weight[weight < 0.3] = 0
    weight[:, 0] = 0.5
    targets = some_texts(rng, B, S)
    place = torch.arange(S).expand(B, S)

    def model(tokens, key_pos, target_pos, select):
        return logits.flatten(0, 1)[select]

    batch = made("model.Batch", tokens=(targets + 1) % V, key_pos=place, target_pos=place,
                 targets=targets, weight=weight)
    select = weight.flatten().nonzero()[:, 0]
    found = shaped(student("model.losses", model, batch, select), B, what="losses")
    nll = F.cross_entropy(logits.double().mT, targets, reduction="none")
    return found, (nll * weight).sum(dim=1)


@check("bound", 2, "a row's loss is the sum of weight · −log p over its own predictions")
def losses_of_rows(student, rng):
    for B, S in (1, 1), (1, 2), (2, 1), (2, 3), (5, 4), (7, 40):
        found, expected = some_losses(student, rng, B, S)
        same(found, expected, f"of {B} rows with {S} slots your losses are", within=1e-3)


@check("bound", 1, "logits of 16 bits are not summed up in 16 bits")
def losses_of_bfloat16(student, rng):
    found, expected = some_losses(student, rng, 64, 8, torch.bfloat16)
    away = float((found - expected).abs().max())
    if away > 1e-3:
        raise Wrong(f"logits in bfloat16: a row's loss is {away:.3f} nats away from the sum, and "
                    "0.001 is allowed; how many bits has your log_softmax?")


def ordered_batches(student, rng):
    """Yields (network, order, all texts, their batch)."""
    for T in 1, 2, 3:
        network = Network(T, rng)
        x = texts(T)
        for order in orders_of(T):
            rows = torch.tensor([order]).expand(len(x), T)
            batch = batch_of(student, "order_batch", "aogpt", x, rows, S=T)
            yield network, order, x, batch


@check("chain", 2, "slot j reads BOS and the tokens that come before it in the order, no other")
def reads_what_came_before(student, rng):
    for network, order, x, (tokens, key_pos, *_) in ordered_batches(student, rng):
        for text, held, key in zip(x.tolist(), tokens.tolist(), key_pos.tolist()):
            for j in range(len(order)):
                expected = [(-1, BOS), *((i, text[i]) for i in order[:j])]
                read = zip(key[:j + 1], held[:j + 1])
                same(sorted(read), sorted(expected), f"x = {text} in the order {order}: slot {j} "
                     f"reads these pairs of place and token, of which BOS is (-1, {BOS}):")


@check("chain", 3, "in every order the probabilities of all texts sum to 1")
def sums_to_one(student, rng):
    for network, order, x, batch in ordered_batches(student, rng):
        nats = network.T * losses_of(network, batch, causal=True)
        same((-nats).exp().sum(), 1, f"in the order {order} the probabilities of all {len(x)} "
             f"texts of {network.T} tokens sum to")


@check("chain", 2, "a row's loss is −log p(x) / T in its order")
def is_the_chain_rule(student, rng):
    for network, order, x, batch in ordered_batches(student, rng):
        for text, found in zip(x, losses_of(network, batch, causal=True)):
            same(found, network.in_order(text, order) / network.T,
                 f"{case(text)} in the order {order}: your loss is")


# ---- draw: probabilities and draw ----------------------------------------------------------------

def weights_of(student, p, **fields):
    """What `probabilities` makes of the law p (V,), as numbers that sum to 1."""
    law = f"p = {told(p)}" if len(p) < 10 else f"{len(p)} words"
    for name, value in fields.items():
        law += f" with {name} = {value:.3g}"
    other = torch.ones_like(p) / len(p)         # of another row, which should not matter
    logits = torch.stack([p, other])[None].log().float()
    found = student("model.probabilities", logits, made("model.Drawing", **fields))
    found = shaped(found, 1, 2, len(p), what=f"{law}: probabilities")[0, 0].double()
    if (found < 0).any() or found.sum() == 0:
        raise Wrong(f"{law}: a weight is below 0, or all of them are 0")
    return found / found.sum(), f"{law}: your weights are"


def laws(rng):
    """Laws of 2 to 6 words."""
    yield torch.tensor([0.3, 0.7], dtype=torch.float64)
    yield torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for size in 4, 5, 6:
        yield (1.5 * normal(rng, size)).softmax(dim=0)


@check("draw", 2, "the weights are p to the power 1/temperature; at 0 the likeliest alone")
def obeys_temperature(student, rng):
    for p, temperature in itertools.product(laws(rng), (1.0, 0.5, 2.0, 0.0)):
        expected = F.one_hot(p.argmax(), len(p)).double()
        if temperature:
            expected = p ** (1 / temperature)
        found, says = weights_of(student, p, temperature=temperature)
        same(found, expected / expected.sum(), says)


@check("draw", 2, "top_p keeps the fewest tokens that have this much probability, in proportion")
def obeys_top_p(student, rng):
    for p, top_p in itertools.product(laws(rng), (0.05, 0.45, 0.6, 0.75, 0.95)):
        enough = [M for M in sets_of(len(p)) if p[M].sum() >= top_p]
        kept = min(enough, key=lambda M: (len(M), -p[M].sum()))
        expected = torch.zeros_like(p)
        expected[kept] = p[kept] / p[kept].sum()
        found, says = weights_of(student, p, top_p=top_p)
        same(found, expected, says)
    p = torch.tensor([0.6, 0.3, 0.1])       # whichever is first, two are kept
    found, says = weights_of(student, p, temperature=0.5, top_p=0.85)
    same(found, [0.8, 0.2, 0.0], says)


@check("draw", 1, "so it does among many words")
def cuts_many(student, rng):
    ranked = 0.98 ** torch.arange(300, dtype=torch.float64)     # the likeliest first
    ranked = ranked / ranked.sum()
    place = torch.randperm(300, generator=rng)
    for count in 1, 20, 150:
        top_p = float(ranked[:count].sum()) - 1e-4
        found, _ = weights_of(student, ranked[place], top_p=top_p)
        kept = found > 0
        same([kept.sum(), kept[place < count].sum()], [count, count],
             f"of 300 words, how many are kept, and how many of the {count} likeliest:")


def drawn(student, p, u):
    """Tokens (N,) by the numbers u (N,), all from the weights p (V,)."""
    found = student("model.draw", p.expand(len(u), -1), u)
    return shaped(found, len(u), what="draw", below=len(p))


@check("draw", 2, "a uniform u gives each token as often as its share of the weights")
def draw_follows_its_weights(student, rng):
    N = 1000
    for p in laws(rng):
        weights = p * 0.9       # they may have any sum
        u = (torch.arange(N) + 0.5).double() / N
        found = drawn(student, weights.float(), u)
        shares = torch.bincount(found, minlength=len(p)) / N
        same(shares, p, f"weights {told(weights)} and 1,000 numbers u, evenly from 0 to 1: the "
             "shares are", within=2 / N)
        shuffle = torch.randperm(N, generator=rng)
        if (drawn(student, weights.float(), u[shuffle]) != found[shuffle]).any():
            raise Wrong("the same numbers u in another order give other tokens")


@check("draw", 2, "no token of weight 0 is drawn, and the rarest ones are")
def draws_the_tail(student, rng):
    p = torch.full((1001,), 1e-9)
    p[0] = 1.0
    ends = p.double().cumsum(dim=0)
    rare = torch.tensor([1, 250, 500, 1000])
    u = (ends[rare] - p[rare] / 2) / ends[-1]
    same(drawn(student, p, u), rare, "the weight 1 and then 1,000 times 1e-9, and u within the "
         "share of rare tokens: how many bits has your sum? It draws")
    p = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    u = torch.tensor([0.0, 0.5, 1 - 2 ** -53], dtype=torch.float64)
    found = drawn(student, p, u)
    if (p[found] == 0).any():
        raise Wrong(f"weights {told(p)} and u = 0, 0.5 and just below 1: it draws {told(found)}, "
                    "of which some have the weight 0")


# ---- write ---------------------------------------------------------------------------------------

def written(student, network, order, edges, tokens, u):
    """The tokens after each pass."""
    asked = []

    def read(model, tokens, order, start, end):
        asked.append((start, end))
        tokens = shaped(tokens, *order.shape, what="the tokens that are read", below=MASK + 1)
        logits = network.logits(with_bos(tokens))                               # (B, L, V)
        row = torch.arange(len(order))[:, None]                                 # (B, 1)
        return logits[row, order[:, start:end]].float()                         # (B, m, V)

    states = student("model.write", None, tokens, order, edges, u, made("model.Drawing"), read)
    passes = list(itertools.pairwise(edges))
    if not isinstance(states, list) or len(states) != len(passes):
        raise Wrong(f"edges = {edges}: it should yield the tokens after each pass, which are "
                    f"{len(passes)}")
    same(asked, passes, f"edges = {edges}: the network is asked for")
    return [shaped(state, *order.shape, what="write", below=MASK + 1) for state in states]


@check("write", 2, "a pass writes its own places, and what is there stays")
def writes_its_places(student, rng):
    network = Network(4, rng)
    for edges in [0, 1, 2, 3, 4], [1, 2, 4], [2, 4]:
        order = uniform(rng, 6, 4).argsort(dim=1)                               # (6, 4)
        rank = order.argsort(dim=1)                                             # (6, 4)
        before = some_texts(rng, 6, 4).where(rank < edges[0], MASK)
        u = uniform(rng, 6, 4)
        states = written(student, network, order, edges, before, u)
        for end, after in zip(edges[1:], states):
            changed = (before != MASK) & (after != before)
            wrong = changed | ((after != MASK) != (rank < end))                 # (6, 4)
            for row in wrong.any(dim=1).nonzero()[:, 0]:
                raise Wrong(f"in the order {told(order[row])} with edges = {edges}: "
                            f"{told(before[row])} becomes {told(after[row])} when the first {end} "
                            f"of the order should be known; {MASK} is [MASK]")
            before = after


def from_nothing(student, network, order, edges, u):
    """Texts (N, T) that are written from [MASK]s alone, all in one order, by u (N, T)."""
    nothing = torch.full(u.shape, MASK)
    orders = torch.tensor([order]).expand(u.shape)
    *_, found = written(student, network, orders, edges, nothing, u)
    return shaped(found, *u.shape, what="write", below=V)


def follows_law(student, rng, order, edges):
    T = len(order)
    network = Network(T, rng)
    u = uniform(rng, 3000, T)
    found = from_nothing(student, network, order, edges, u)
    law = network.law([order], edges)
    follows(numbers(found), law, lambda cell: (
        f"in the order {order} with edges = {edges} it writes {told(texts(T)[cell])}"))


@check("write", 2, "one token a pass follows the chain rule along its order")
def one_a_pass(student, rng):
    follows_law(student, rng, [0], [0, 1])
    follows_law(student, rng, [1, 0], [0, 1, 2])
    follows_law(student, rng, [2, 0, 1], [0, 1, 2, 3])


@check("write", 2, "the tokens of one pass do not know of each other")
def two_a_pass(student, rng):
    follows_law(student, rng, [1, 0], [0, 2])
    follows_law(student, rng, [2, 0, 1], [0, 1, 3])


@check("write", 1, "the u of a place decides on its token, and on no other")
def u_is_of_a_place(student, rng):
    network = Network(3, rng)
    u = uniform(rng, 3000, 3)
    before = from_nothing(student, network, [2, 0, 1], [0, 3], u)
    for place in range(3):
        other = u.clone()
        other[:, place] = uniform(rng, 3000)
        after = from_nothing(student, network, [2, 0, 1], [0, 3], other)
        changed = (after != before).any(dim=0).nonzero()[:, 0]
        same(changed, [place], "in the order [2, 0, 1] with edges = [0, 3]: the places that have "
             f"other tokens by another u[:, {place}] are")


# ---- together: what two at a time lose -----------------------------------------------------------

def loses(student, joint, nats):
    law = f"joint = {told(joint)}" if joint.numel() < 30 else f"a joint law {tuple(joint.shape)}"
    found = torch.as_tensor(student("together.nats_lost", joint))
    same(shaped(found, what=f"{law}: nats_lost"), nats, f"{law}: your loss is")


def some_law(rng, *shape):
    p = uniform(rng, *shape).square()
    return p / p.sum()


@check("together", 2, "places that are independent lose nothing")
def independent(student, rng):
    for size in 1, 2, 4:
        first = some_law(rng, size)
        second = some_law(rng, size + 1)
        loses(student, torch.outer(first, second), 0)


@check("together", 3, "a place that repeats another one loses its entropy, and one with noise less")
def repeats(student, rng):
    for size in 2, 3:
        p = some_law(rng, size)
        loses(student, p.diag(), torch.special.entr(p).sum())
    for noise in 0.1, 0.4:      # 0 or 1, and the same again, but for the noise
        p = torch.tensor([1 - noise, noise], dtype=torch.float64)
        joint = torch.stack([p, p.flip(0)]) / 2
        loses(student, joint, math.log(2) - torch.special.entr(p).sum())


@check("together", 2, "three lose what the first two lose, and what these as one lose by the third")
def adds_up(student, rng):
    for shape in (2, 2, 2), (2, 3, 4), (3, 2, 2, 2):
        joint = some_law(rng, *shape)
        first_two = student("together.nats_lost", joint.flatten(2).sum(dim=2))
        as_one = student("together.nats_lost", joint.flatten(0, 1))
        loses(student, joint, first_two + as_one)


# ---- adaptive: within_risk -----------------------------------------------------------------------

def revealed(student, nats, risk):
    found = student("samplers.adaptive.within_risk", nats, risk)
    found = shaped(found, *nats.shape, what="within_risk").bool()
    for row, now in zip(nats, found):
        if now[row.isinf()].any():
            raise Wrong(f"nats = {told(row)}: a known place, whose nats are inf, is revealed")
    return found


def some_nats(rng):
    """Entropies (B, L), small cases first; of the places of a row some are known."""
    for L in 1, 2, 3, 5:
        nats = uniform(rng, 30, L).float()
        known = uniform(rng, 30, L) < 0.2
        known[0] = False
        yield nats.masked_fill(known, torch.inf)


@check("adaptive", 2, "each row reveals its surest; at a risk of 0, if it is in doubt, no other")
def reveals_the_surest(student, rng):
    for nats in some_nats(rng):
        for row, now in zip(nats, revealed(student, nats, 0.0)):
            surest = [row.argmin()] if row.isfinite().any() else []
            same(now.nonzero()[:, 0], surest,
                 f"nats = {told(row)} at the risk 0: the places that are revealed are")


@check("adaptive", 3, "the tokens of a pass lose at most the risk")
def keeps_the_risk(student, rng):
    for L in 2, 3, 5:
        for _ in range(40):
            # Some places repeat each other: then all but one of their entropies are lost.
            group = torch.randint(L, (L,), generator=rng) // 2                  # (L,)
            entropy = uniform(rng, L).float()
            nats = entropy[group]                                               # (L,)
            risk = float(uniform(rng) * nats.sum())
            now = revealed(student, nats[None], risk)[0]
            at_least = entropy[group[now].unique()].sum()       # the entropy of all together
            lost = float(nats[now].sum() - at_least)
            if lost > risk + 1e-5:
                raise Wrong(f"nats = {told(nats)}, of which equal ones are of places that repeat "
                            f"each other: to reveal {told(now.nonzero()[:, 0])} loses {lost:.3f}, "
                            f"more than the risk {risk:.3f}")


@check("adaptive", 2, "no place waits that the risk allows, and rows do not heed each other")
def wastes_nothing(student, rng):
    for nats in some_nats(rng):
        for risk in 0.3, 1.0:
            for row, now in zip(nats, revealed(student, nats, risk)):
                free = row[row.isfinite()]
                most = 0
                for M in sets_of(len(free)):
                    if free[M].sum() - free[M].max() <= risk:
                        most = max(most, len(M))
                same(now.sum(), most, f"nats = {told(row)} at the risk {risk}: the number of "
                     "places that are revealed is")


# ---- drafts: confirm -----------------------------------------------------------------------------

def drafting(m, N, rng):
    """A network, laws p and q (N, m, V) and drafts (N, m) as `confirm` has them."""
    network = Network(m + 1, rng)
    q = normal(rng, m, V).softmax(dim=-1).float()
    q[0] = network.after(texts(m + 1)[:1], 0)
    draft = torch.multinomial(q, N, replacement=True, generator=rng).T          # (N, m)
    text = F.pad(draft, (0, 1))                                                 # (N, m+1)
    p = [network.after(text, i) for i in range(1, m + 1)]                       # (N, V) each
    return network, torch.stack(p, dim=1), q.expand(N, m, V), draft


def confirmed(student, p, q, draft, rng):
    """Tokens (N, m+1), and how many of them are final (N,)."""
    N, m = draft.shape
    # top_p leaves weights that sum to less than 1.
    u = uniform(rng, N, m)
    value = student("samplers.drafts.confirm", p * 0.9, q * 0.8, draft, u)
    if not isinstance(value, list) or len(value) != 2:
        raise Wrong("confirm should return tokens and count")
    tokens = shaped(value[0], N, m + 1, what="confirm: tokens")
    count = shaped(value[1], N, 1, what="confirm: count", low=2, below=m + 2)
    final = torch.arange(m + 1) < count
    tokens = shaped(tokens.where(final, 0), N, m + 1, what="confirm: tokens", below=V)
    return tokens, count[:, 0]


@check("drafts", 4, "the tokens follow the law of one token a pass")
def drafts_keep_the_law(student, rng):
    for m in 1, 2, 3:
        network, p, q, draft = drafting(m, 6000, rng)
        tokens, count = confirmed(student, p, q, draft, rng)
        for i in range(2, m + 1):           # what is not final is drawn one token at a time
            new = torch.multinomial(network.after(tokens, i), 1, generator=rng)[:, 0]
            tokens[:, i] = tokens[:, i].where(count > i, new)
        law = network.law([list(range(m + 1))])
        follows(numbers(tokens), law,
                lambda cell: f"{m} drafts of {V} words: {told(texts(m + 1)[cell])} comes")


@check("drafts", 2, "a draft is kept as often as the law allows, and all if q is p")
def keeps_its_drafts(student, rng):
    N = 6000
    network, p, q, draft = drafting(2, N, rng)
    _, count = confirmed(student, p, q, draft, rng)
    share = (count > 2).double().mean()
    after_draft_0 = network.after(F.pad(texts(1), (0, 2)), 1)                   # (V, V)
    chance = (q[0, 0] @ after_draft_0.minimum(q[0, 1])).sum()
    sigma = (chance * (1 - chance) / N).sqrt()
    if abs(share - chance) > SIGMAS * sigma:
        raise Wrong(f"2 drafts of {V} words: draft 1 is kept in {share:.1%} of the rows, and "
                    f"should in {chance:.1%}")
    p = q.roll(-1, dims=1)
    _, count = confirmed(student, p, q, draft, rng)
    # In float32 p and q may differ in their last digit, so that once in a while one is not kept.
    if (count < 3).float().mean() > 0.001:
        raise Wrong("2 drafts whose laws q are p itself: one of them is not kept")
