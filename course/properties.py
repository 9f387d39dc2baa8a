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
    "adaptive": ["extras/adaptive.py:within_risk"],
    "drafts": ["extras/drafts.py:confirm"],
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

def seed(number):
    return ("seed", number)


def made(name, **fields):
    return ("made", name, fields)


def function(name):
    return ("function", name)


def config(mode, V, T):
    """Of V words the last is BOS, as in model.py, and V is [MASK]."""
    return made("model.Config", mode=mode, vocab_size=V, block_size=T, n_layer=1, n_head=1,
                n_embd=2, n_hidden=2)


def shaped(value, *shape, what="it", below=None):
    """The tensor, if it has this shape and is finite, and tokens are 0 … below-1."""
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"{what} returns {value!r:.40} where a tensor should be")
    if tuple(value.shape) != shape:
        raise Wrong(f"{what} returns the shape {tuple(value.shape)}, and it should be {shape}")
    if not value.double().isfinite().all():
        raise Wrong(f"{what} returns NaN or an infinity")
    if below is not None:
        value = value.long()
        if ((value < 0) | (value >= below)).any():
            raise Wrong(f"{what} returns {value.tolist()!s:.60}, and all should be from 0 to "
                        f"{below - 1}")
    return value


def near(found, expected, case, yours, theirs, within=1e-4):
    if not abs(float(found) - float(expected)) <= within:
        raise Wrong(f"{case}: your {yours} is {float(found):.4g}, {theirs} {float(expected):.4g}")


# Some 30 tests draw lots. So small are the odds of each to fail a right answer, by a law for large
# numbers; for cells of 50 the true ones are a few times larger, and all together below 1 in 10,000.
ODDS = 1e-7
SIGMAS = 5.33       # which a normal number exceeds with these odds


def follows(cells, p, says):
    """Cells (N,) are numbers drawn from the law p (K,): a chi-square test."""
    expected = p.double() * len(cells)
    counts = torch.bincount(cells, minlength=len(p)).double()
    impossible = (counts > 0) & (expected == 0)
    if impossible.any():
        cell = int(impossible.nonzero()[0])
        raise Wrong(says(cell, f"{int(counts[cell])} of {len(cells)}", "never"))
    # The test is for large numbers, so rare cells count as one, together with the next larger.
    cell = (expected.argsort().argsort() - (expected < 50).sum()).clamp(min=0)
    sums = torch.zeros(2, int(cell.max()) + 1, dtype=torch.float64)
    few, many = sums.index_add(1, cell, torch.stack([expected, counts]))
    chi_square = ((many - few).square() / few).sum()
    freedom = torch.tensor((len(few) - 1) / 2, dtype=torch.float64)
    if len(few) > 1 and torch.special.gammaincc(freedom, chi_square / 2) < ODDS:
        z = (counts - expected).abs() / expected.clamp(min=1).sqrt()
        cell = int(z.argmax())
        share = f"{counts[cell] / len(cells):.1%}"
        raise Wrong(says(cell, share, f"{p[cell]:.1%}"))


def texts(V, T):
    """All texts of T tokens (V ** T, T). Text i is the number i in base V."""
    return torch.tensor(list(itertools.product(range(V), repeat=T)))


def numbers(tokens, V):
    """The numbers (N,) of texts (N, T)."""
    return (tokens * V ** torch.arange(tokens.size(1) - 1, -1, -1)).sum(dim=1)


def sets_of(T):
    """Every set of places that can be hidden, the small ones first."""
    for k in range(1, T + 1):
        yield from map(list, itertools.combinations(range(T), k))


# ---- A made-up network, of which everything can be counted out -----------------------------------

class Network:
    """What a place becomes, given the tokens that are known: any law would do, so it is random.

    There are V words, V stands for a hidden one, and V-1 is BOS, at the position -1."""

    def __init__(self, V, T, rng):
        self.vocab_size, self.V, self.T = V, V, T
        self.read = torch.randn(T + 1, V + 1, 16, generator=rng, dtype=torch.float64)
        self.head = torch.randn(T, 16, V, generator=rng, dtype=torch.float64)

    def logits(self, seen, place):
        """(n, V) for the places (n,), from what is seen (n, T+1) at the positions -1 … T-1."""
        features = self.read[torch.arange(self.T + 1), seen].sum(dim=1).tanh()      # (n, 16)
        return torch.einsum("nf,nfv->nv", features, self.head[place])

    def __call__(self, tokens):
        """Logits (B, T, V) of all places, as gpt.py asks for them."""
        tokens = shaped(tokens, len(tokens), self.T, what="the model reads a text that",
                        below=self.V + 1)
        seen = F.pad(tokens, (1, 0), value=self.V - 1)                          # (B, T+1)
        every = [self.logits(seen, torch.full((len(seen),), i)) for i in range(self.T)]
        return torch.stack(every, dim=1).float()

    def nats(self, x, hidden):
        """−log p of the hidden tokens of x (T,), given the others: one number for each of them."""
        seen = F.pad(x, (1, 0), value=self.V - 1)
        seen[[i + 1 for i in hidden]] = self.V
        place = torch.tensor(hidden)
        log_p = self.logits(seen.expand(len(hidden), -1), place).log_softmax(dim=-1)
        return -log_p.gather(1, x[place][:, None])[:, 0]

    def row(self, x, hidden):
        """What a row should count if these tokens are hidden: the mean over them."""
        return self.nats(x, hidden).mean()

    def bound(self, x):
        """The mean over k, and over the sets of k places."""
        shares = [self.row(x, M) / math.comb(self.T, len(M)) for M in sets_of(self.T)]
        return sum(shares) / self.T

    def in_order(self, x, order):
        """−log p of x (T,), written one token at a time in this order."""
        steps = [self.nats(x, sorted(order[j:])) for j in range(self.T)]
        return sum(nats[sorted(order[j:]).index(order[j])] for j, nats in enumerate(steps))

    def law(self, orders):
        """p of all texts (V ** T,), written in one of the orders by chance."""
        return torch.stack([
            torch.stack([(-self.in_order(x, order)).exp() for order in orders]).mean()
            for x in texts(self.V, self.T)])


def case(x, hidden=None):
    told = f"x = {x.tolist()}"
    return told if hidden is None else f"{told} with the places {hidden} hidden"


# ---- gpt: masked diffusion in four edits ---------------------------------------------------------

def any_text(V, T, rng, rows=1):
    return torch.randint(V, (rows, T), generator=rng)


@check("gpt", 2, "each place sees every other one, before it and after it")
def sees_both_sides(student, rng):
    V, T = 5, 3
    model = student("gpt.GPT", V, T)
    x = any_text(V, T, rng)
    before = shaped(student(model, x), 1, T, V, what="GPT")
    for j, i in itertools.permutations(range(T), 2):
        other = x.clone()
        other[0, j] = (x[0, j] + 1) % V
        if (student(model, other)[0, i] == before[0, i]).all():
            raise Wrong(f"{case(x[0])}: place {i} does not see place {j}; its logits stay when "
                        "that token changes")


def what_loss_reads(student, network, x, number):
    """The loss of x (B, T), and which tokens the model did not see (B, T)."""
    asked = []

    def model(tokens):
        logits = network(tokens)
        asked.append(tokens)
        return logits

    model.vocab_size = network.V
    value = shaped(student("gpt.loss", model, x, seed(number)), what="loss")
    read = torch.cat(asked) if asked else x[:0]
    if read.shape != x.shape:
        raise Wrong(f"the model should read each of the {len(x)} rows once, and it reads "
                    f"{len(read)}")
    hidden = read == network.V
    for row, seen, here in zip(x, read, hidden):
        if (row[~here] != seen[~here]).any():
            raise Wrong(f"{case(row)}: the model reads {seen.tolist()}, where {network.V} is "
                        "[MASK]; a token that is not hidden should be read where it stands")
        if not here.any():
            raise Wrong(f"{case(row)}: nothing is hidden, and k should be at least 1")
    return value, hidden


@check("gpt", 3, "the loss is the mean over rows of each row's own mean over its hidden tokens")
def loss_of_rows(student, rng):
    for T, B in (1, 1), (2, 1), (3, 1), (3, 2), (4, 5):
        network = Network(3, T, rng)
        for number in range(8):
            x = any_text(3, T, rng, B)
            value, hidden = what_loss_reads(student, network, x, number)
            places = [row.nonzero()[:, 0].tolist() for row in hidden]
            expected = sum(network.row(row, M) for row, M in zip(x, places)) / B
            told = case(x[0], places[0]) if B == 1 else f"{case(x)} with {places} hidden"
            near(value, expected, told, "loss", "the enumeration", within=1e-3)


@check("gpt", 2, "k is uniform on 1 … T, and every row has a mask of its own")
def masks_of_loss(student, rng):
    for T in 2, 3:
        network = Network(3, T, rng)
        x = any_text(3, T, rng).expand(1500, T)
        _, hidden = what_loss_reads(student, network, x, int(torch.randint(99, (), generator=rng)))
        if (hidden == hidden[0]).all():
            raise Wrong(f"all of {len(x)} rows hide the places {hidden[0].nonzero()[:, 0].tolist()}"
                        "; each should draw a k of its own, and places of its own")
        uniform_masks(hidden)


def uniform_masks(hidden):
    """Each k equally often, and then each set of k places."""
    T = hidden.size(1)
    k = hidden.sum(dim=1)
    follows(k - 1, torch.full((T,), 1 / T), lambda cell, share, expected: (
        f"of {T} tokens {cell + 1} are hidden in {share} of the rows, and should be in {expected}"))
    every = list(sets_of(T))
    number = {tuple(M): i for i, M in enumerate(every)}
    cells = [number[tuple(row.nonzero()[:, 0].tolist())] for row in hidden]
    p = torch.tensor([1 / T / math.comb(T, len(M)) for M in every])
    follows(torch.tensor(cells), p, lambda cell, share, expected: (
        f"of {T} tokens the places {every[cell]} are hidden in {share} of the rows, and should be "
        f"in {expected}"))


@check("gpt", 3, "what it writes follows the mean over all orders of writing")
def writes_its_law(student, rng):
    for T in 1, 2, 3:
        network = Network(3, T, rng)
        alike = []          # of each pass over several texts: whether all know the same places

        def model(tokens):
            known = tokens != network.V
            if len(known) > 1:
                alike.append(bool((known == known[:1]).all()))
            return network(tokens)

        model.vocab_size = network.V
        found = shaped(student("gpt.write", model, 3000, T, seed(T)), 3000, T, what="write",
                       below=3)
        one_order = "; all texts are written in the same order" if alike and all(alike) else ""
        law = network.law(list(itertools.permutations(range(T))))
        follows(numbers(found, 3), law, lambda cell, share, expected: (
            f"it writes {texts(3, T)[cell].tolist()} in {share} of the texts, the enumeration says "
            f"{expected}{one_order}"))


ABOVE_LAW = 0.35        # nats per token


@check("gpt", 2, f"300 steps on the toy come within {ABOVE_LAW} nats per token of its law")
def learns_the_toy(student, rng):
    if student.failed:
        raise Wrong("not tried, because a property above fails")
    from toy import TOY, split_words
    words = TOY.words()
    lots = random.Random(int(any_text(10 ** 6, 1, rng)))
    stories = [split_words(TOY.draw(lots)) for _ in range(4200)]
    x = torch.tensor([[words.index(word) for word in story] for story in stories])
    T, MASK = x.size(1), len(words)
    model = student("gpt.GPT", MASK, T)
    student("gpt.fit", model, function("gpt.loss"), x[200:], 300)
    nats = 0.0
    for story in x[:40]:        # the mean over orders of writing is the bound
        order = torch.randperm(T, generator=rng).tolist()
        read = torch.full((T, T), MASK)                 # row j knows the first j of the order
        for j in range(T):
            read[j, order[:j]] = story[order[:j]]
        log_p = shaped(student(model, read), T, T, MASK, what="GPT").log_softmax(dim=-1)
        nats -= float(log_p[range(T), order, story[order]].sum())
    bound, law = nats / (40 * T), TOY.entropy() / T
    if bound > law + ABOVE_LAW:
        raise Wrong(f"your bound is {bound:.2f} nats per token, the law's entropy {law:.2f}")


# ---- masks ---------------------------------------------------------------------------------------

def masks_of(student, B, T, number):
    hidden = student("model.draw_masks", torch.zeros(B, T, dtype=torch.long), seed(number))
    hidden = shaped(hidden, B, T, what="draw_masks").bool()
    if not hidden.any(dim=1).all():
        raise Wrong(f"of {T} tokens a row hides none, and k should be at least 1")
    return hidden


@check("masks", 3, "k is uniform on 1 … T, and each set of k places is equally likely")
def masks_are_uniform(student, rng):
    def one_of_each_pair(hidden):       # these are independent, whatever the pairs have in common
        pairs = hidden.view(-1, 2, hidden.size(1))
        return pairs[torch.arange(len(pairs)), torch.randint(2, (len(pairs),), generator=rng)]

    for T in 1, 2, 3, 4:
        uniform_masks(one_of_each_pair(masks_of(student, 6000, T, T)))
        # Strata that are too wide for a small batch would leave out some k.
        small = torch.cat([masks_of(student, 2, T, 1000 * T + number) for number in range(150)])
        uniform_masks(one_of_each_pair(small))


@check("masks", 1, "the rows come in pairs of k and T + 1 − k")
def masks_come_in_pairs(student, rng):
    for T in 1, 2, 5:
        k = masks_of(student, 8, T, T).sum(dim=1)
        if (k[::2] + k[1::2] != T + 1).any():
            raise Wrong(f"of {T} tokens the rows hide {k.tolist()}, and each two of them should "
                        f"hide {T + 1}")


@check("masks", 1, "the same seed gives the same masks, and another one others")
def masks_obey_the_seed(student, rng):
    first, again, other = (masks_of(student, 16, 8, number) for number in (1, 1, 2))
    if (first != again).any():
        raise Wrong("two generators of the same seed give two different masks")
    if (first == other).all():
        raise Wrong("two generators of different seeds give the same masks")


# ---- bound: mask_batch and losses ----------------------------------------------------------------

def batch_of(student, name, mode, V, x, how, what):
    """What mask_batch or order_batch returns: tokens, key_pos, target_pos, targets, weight."""
    B, T = x.shape
    batch = student(name, config(mode, V, T), x, how)
    if not isinstance(batch, list) or len(batch) != 5:
        raise Wrong(f"{what} should return a Batch of five tensors")
    tokens = shaped(batch[0], B, batch[0].size(1), what=f"{what}: tokens", below=V + 1)
    like = tokens.shape
    batch = [shaped(part, *like, what=what) for part in batch]
    for name, part, low, high in (("key_pos", batch[1], -1, T - 1),
                                  ("target_pos", batch[2], -1, T - 1),
                                  ("targets", batch[3], 0, V - 1)):
        if ((part < low) | (part > high)).any():
            raise Wrong(f"{what}: {name} has {part[0].tolist()}, and all should be from {low} to "
                        f"{high}")
    return [part.long() for part in batch[:4]] + [batch[4].double()]


def masked_batches(student, rng):
    """Yields (network, x (T,), hidden places, row of the batch), the smallest cases first."""
    for T in 1, 2, 3:
        network = Network(3, T, rng)
        for x in any_text(3, T, rng, rows=3):
            every = list(sets_of(T))
            masked = torch.zeros(len(every), T, dtype=torch.bool)
            for row, M in zip(masked, every):
                row[M] = True
            batch = batch_of(student, "model.mask_batch", "mdlm", 3,
                             x.expand(len(every), T), masked, "mask_batch")
            for number, M in enumerate(every):
                yield network, x, M, [part[number] for part in batch]


@check("bound", 2, "the network reads BOS and what is not hidden, each at its place")
def reads_what_is_visible(student, rng):
    for network, x, M, (tokens, key_pos, *_) in masked_batches(student, rng):
        expected = {-1: network.V - 1} | dict(enumerate(x.tolist())) | dict.fromkeys(M, network.V)
        for place, token in zip(key_pos.tolist(), tokens.tolist()):
            wanted = expected.pop(place, token)
            if token != wanted:
                what = "BOS" if place == -1 else f"place {place}"
                raise Wrong(f"{case(x, M)}: at {what} the network reads {token}, and should read "
                            f"{wanted}; {network.V} is [MASK]")
        if expected:
            raise Wrong(f"{case(x, M)}: no slot holds what stands at {sorted(expected)}")


def row_of(network, tokens, key_pos, target_pos, targets, weight):
    """What a row of a batch counts by its weights, if every slot sees every one."""
    seen = torch.full((1, network.T + 1), network.V).scatter(1, key_pos[None] + 1, tokens[None])
    logits = network.logits(seen.expand(len(tokens), -1), target_pos.clamp(min=0))
    return (F.cross_entropy(logits, targets, reduction="none") * weight).sum()


@check("bound", 3, "each hidden token is predicted at its own place, with the weight 1/k")
def predicts_what_is_hidden(student, rng):
    for network, x, M, (_, _, target_pos, targets, weight) in masked_batches(student, rng):
        counted = weight != 0
        places = sorted(target_pos[counted].tolist())
        if places != M:
            raise Wrong(f"{case(x, M)}: the places {places} are predicted, and should be "
                        f"{M}; -1 is BOS's")
        if (targets[counted] != x[target_pos[counted]]).any():
            raise Wrong(f"{case(x, M)}: the targets of {target_pos[counted].tolist()} are "
                        f"{targets[counted].tolist()}, and should be what x has there")
        for found in weight[counted]:
            near(found, 1 / len(M), case(x, M), "weight", "1/k is")


@check("bound", 2, "over all masks, the mean is the bound")
def mean_is_the_bound(student, rng):
    totals = {}
    for network, x, M, row in masked_batches(student, rng):
        share = row_of(network, *row) / math.comb(network.T, len(M)) / network.T
        totals[tuple(x.tolist())] = totals.get(tuple(x.tolist()), 0) + share
        if len(M) == network.T:         # the last of them
            near(totals.pop(tuple(x.tolist())), network.bound(x), case(x), "bound",
                 "the enumeration")


def some_losses(student, rng, B, S, dtype):
    """Losses (B,) of random slots and weights, of which some are 0, and what they should be."""
    V = 4
    logits = torch.randn(B, S, V, generator=rng).mul(4).to(dtype)
    weight = torch.rand(B, S, generator=rng) * (torch.rand(B, S, generator=rng) < 0.7)
    weight[:, 0] = 0.5
    tokens, targets = any_text(V, S, rng, B), any_text(V, S, rng, B)
    place = torch.arange(S).expand(B, S)

    def model(tokens, key_pos, target_pos, select):
        return logits.flatten(0, 1)[select]

    model.vocab_size = V
    batch = made("model.Batch", tokens=tokens, key_pos=place, target_pos=place, targets=targets,
                 weight=weight)
    select = weight.flatten().nonzero()[:, 0]
    found = shaped(student("model.losses", model, batch, select), B, what="losses")
    nll = F.cross_entropy(logits.double().mT, targets, reduction="none")
    return found, (nll * weight.double()).sum(dim=1)


@check("bound", 2, "a row's loss is the sum of weight · −log p over its own predictions")
def losses_of_rows(student, rng):
    for B, S in (1, 1), (1, 2), (2, 1), (2, 3), (5, 4):
        found, expected = some_losses(student, rng, B, S, torch.float32)
        for row in range(B):
            near(found[row], expected[row], f"row {row} of {B} with {S} slots", "loss", "the sum",
                 within=1e-3)


@check("bound", 1, "logits of 16 bits are not summed up in 16 bits")
def losses_of_bfloat16(student, rng):
    found, expected = some_losses(student, rng, 64, 8, torch.bfloat16)
    away = float((found.double() - expected).abs().max())
    if away > 1e-3:
        raise Wrong(f"logits in bfloat16: a row's loss is {away:.3f} nats away from the sum, and "
                    "0.001 is allowed; how many bits has your log_softmax?")


# ---- chain: order_batch --------------------------------------------------------------------------

def ordered_batches(student, rng):
    """Yields (network, order, all texts, their batch)."""
    for T in 1, 2, 3:
        network = Network(3, T, rng)
        x = texts(3, T)
        for order in itertools.permutations(range(T)):
            rows = torch.tensor([order]).expand(len(x), T)
            yield network, list(order), x, batch_of(
                student, "model.order_batch", "aogpt", 3, x, rows, "order_batch")


@check("chain", 2, "slot j reads BOS and the tokens that come before it in the order, no other")
def reads_what_came_before(student, rng):
    for network, order, x, (tokens, key_pos, *_) in ordered_batches(student, rng):
        for row in range(len(x)):
            for j in range(len(order)):
                there = dict(zip(key_pos[row, :j + 1].tolist(), tokens[row, :j + 1].tolist()))
                wanted = {-1: network.V - 1} | {i: int(x[row, i]) for i in order[:j]}
                if there != wanted:
                    raise Wrong(f"{case(x[row])} in the order {order}: slot {j} reads the tokens "
                                f"{there} by place, and should read {wanted}; "
                                f"BOS is {network.V - 1}, at the place -1")


def nats_of(network, tokens, key_pos, target_pos, targets, weight):
    """Losses (B,) of a batch, if every slot sees those up to itself."""
    total = torch.zeros(len(tokens), dtype=torch.float64)
    for j in range(tokens.size(1)):
        seen = torch.full((len(tokens), network.T + 1), network.V)
        seen = seen.scatter(1, key_pos[:, :j + 1] + 1, tokens[:, :j + 1])
        logits = network.logits(seen, target_pos[:, j].clamp(min=0))
        total += weight[:, j] * F.cross_entropy(logits, targets[:, j], reduction="none")
    return total


@check("chain", 3, "in every order the probabilities of all texts sum to 1")
def sums_to_one(student, rng):
    for network, order, x, batch in ordered_batches(student, rng):
        total = (-network.T * nats_of(network, *batch)).exp().sum()
        near(total, 1, f"all {len(x)} texts of {network.T} tokens in the order {order}",
             "sum of probabilities", "and should be")


@check("chain", 2, "a row's loss is −log p(x) / T in its order")
def is_the_chain_rule(student, rng):
    for network, order, x, batch in ordered_batches(student, rng):
        found = nats_of(network, *batch)
        for row in range(len(x)):
            near(found[row], network.in_order(x[row], order) / network.T,
                 f"{case(x[row])} in the order {order}", "loss", "the enumeration")


# ---- draw: probabilities and draw ----------------------------------------------------------------

def weights_of(student, p, **fields):
    """What `probabilities` makes of the law p (V,), as numbers that sum to 1."""
    told = f"p = {rounded(p)}" if len(p) < 10 else f"{len(p)} words"
    told += "".join(f" with {name} = {value:.3g}" for name, value in fields.items())
    logits = p.log().float()
    found = student("model.probabilities", logits[None], made("model.Drawing", **fields))
    found = shaped(found, 1, len(p), what=f"{told}: probabilities")[0].double()
    if (found < 0).any() or found.sum() == 0:
        says = "all weights are 0" if found.sum() == 0 else "a weight is below 0"
        raise Wrong(f"{told}: {says}")
    return found / found.sum()


def rounded(p):
    return [round(value, 3) for value in p.tolist()]


def laws(rng):
    """Laws of 2 to 6 words."""
    yield torch.tensor([0.3, 0.7], dtype=torch.float64)
    yield torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for V in 4, 5, 6:
        yield torch.randn(V, generator=rng, dtype=torch.float64).mul(1.5).softmax(dim=0)


@check("draw", 2, "the weights are p to the power 1/temperature; at 0 the likeliest alone")
def obeys_temperature(student, rng):
    for p, temperature in itertools.product(laws(rng), (1.0, 0.5, 2.0, 0.0)):
        expected = F.one_hot(p.argmax(), len(p)).double()
        if temperature:
            expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
        found = weights_of(student, p, temperature=temperature)
        if not torch.allclose(found, expected, atol=1e-4):
            raise Wrong(f"p = {rounded(p)} at temperature {temperature}: your weights are "
                        f"{rounded(found)}, and should be {rounded(expected)}")


@check("draw", 2, "top_p keeps the fewest tokens that have this much probability, in proportion")
def obeys_top_p(student, rng):
    for p, top_p in itertools.product(laws(rng), (0.05, 0.45, 0.6, 0.75, 0.95)):
        sets = [M for M in sets_of(len(p)) if p[M].sum() >= top_p]      # small ones first
        fewest = [M for M in sets if len(M) == len(sets[0])]
        kept = max(fewest, key=lambda M: p[M].sum())
        expected = torch.zeros_like(p).scatter(0, torch.tensor(kept), p[kept] / p[kept].sum())
        found = weights_of(student, p, top_p=top_p)
        if not torch.allclose(found, expected, atol=1e-4):
            raise Wrong(f"p = {rounded(p)} with top_p = {top_p}: your weights are "
                        f"{rounded(found)}, and should be {rounded(expected)}")


def drawn(student, p, u):
    """Tokens (N,) by the numbers u (N,), all from the weights p (V,)."""
    found = student("model.draw", p.expand(len(u), -1), u)
    return shaped(found, len(u), what="draw", below=len(p))


@check("draw", 1, "so it does among many words")
def cuts_many(student, rng):
    ranked = 0.98 ** torch.arange(300, dtype=torch.float64)     # the likeliest first
    ranked = ranked / ranked.sum()
    place = torch.randperm(300, generator=rng)
    for count in 1, 20, 150:
        found = weights_of(student, ranked[place], top_p=float(ranked[:count].sum()) - 1e-4)
        near((found > 0).sum(), count, "300 words", "number of tokens kept", "and should be")
        if ((found > 0) != (place < count)).any():
            raise Wrong(f"of 300 words, those that are kept are not the {count} likeliest")


@check("draw", 2, "a uniform u gives each token as often as its share of the weights")
def draw_follows_its_weights(student, rng):
    for p in laws(rng):
        p = p * 0.9         # the weights may have any sum
        N = 1000
        u = (torch.arange(N, dtype=torch.float64) + 0.5) / N
        found = torch.bincount(drawn(student, p.float(), u), minlength=len(p)) / N
        if not torch.allclose(found.double(), p / p.sum(), atol=2 / N):
            raise Wrong(f"weights {rounded(p)} and 1,000 numbers u, evenly from 0 to 1: the shares "
                        f"are {rounded(found)}, and should be {rounded(p / p.sum())}")


@check("draw", 2, "no token of weight 0 is drawn, and the rarest ones are")
def draws_the_tail(student, rng):
    p = torch.full((1001,), 1e-9)
    p[0] = 1.0
    ends = p.double().cumsum(dim=0)
    rare = torch.tensor([1, 250, 500, 1000])
    u = (ends[rare] - p[rare].double() / 2) / ends[-1]
    found = drawn(student, p, u)
    if (found != rare).any():
        raise Wrong(f"the weight 1 and then 1,000 times 1e-9, and u within the share of the tokens "
                    f"{rare.tolist()}: it draws {found.tolist()}; how many bits has your sum?")
    u = torch.tensor([0.0, 0.5, 1 - 2 ** -53], dtype=torch.float64)
    for p in [0.0, 1.0], [1.0, 0.0], [0.0, 0.5, 0.0, 0.5, 0.0]:
        found = drawn(student, torch.tensor(p), u)
        for number, token in zip(u.tolist(), found.tolist()):
            if p[token] == 0:
                raise Wrong(f"weights {p} and u = {number}: the token {token} has the weight 0")


# ---- write ---------------------------------------------------------------------------------------

def written(student, network, order, edges, tokens):
    """The tokens after each pass; and how often the network was asked."""
    asked = []

    def read(model, tokens, order, start, end):
        tokens = shaped(tokens, *order.shape, what="the network reads tokens, and", below=4)
        asked.append((start, end))
        seen = F.pad(tokens, (1, 0), value=network.V - 1)
        every = [network.logits(seen, order[:, j]) for j in range(start, end)]
        return torch.stack(every, dim=1).float()

    read.vocab_size = network.V
    u = torch.rand(order.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    states = student("model.write", None, tokens, order, edges, u, made("model.Drawing"), read)
    passes = list(itertools.pairwise(edges))
    if not isinstance(states, list) or len(states) != len(passes):
        raise Wrong(f"edges = {edges}: it should yield the tokens after each pass, which are "
                    f"{len(passes)}")
    if asked != passes:
        raise Wrong(f"edges = {edges}: the network is asked for {asked}, and should be for "
                    f"{passes}")
    return [shaped(state, *order.shape, what="write", below=network.V + 1) for state in states]


@check("write", 2, "a pass writes its own places, and what is there stays")
def writes_its_places(student, rng):
    network = Network(3, 4, rng)
    for edges in [0, 1, 2, 3, 4], [1, 2, 4], [2, 4]:
        order = torch.rand(6, 4, generator=rng).argsort(dim=1)                  # (6, 4)
        given = order.argsort(dim=1) < edges[0]         # the first places of the order
        before = any_text(3, 4, rng, 6).where(given, 3)
        for end, state in zip(edges[1:], written(student, network, order, edges, before)):
            known = order.argsort(dim=1) < end
            for row in range(6):
                changed = (state[row] != before[row]) & (before[row] != 3)
                if changed.any() or ((state[row] < 3) != known[row]).any():
                    raise Wrong(f"in the order {order[row].tolist()} with edges = {edges}: "
                                f"{before[row].tolist()} becomes {state[row].tolist()} when "
                                f"the first {end} of the order should be known; 3 is [MASK]")
            before = state


def follows_law(student, network, order, edges, law):
    N, T = 3000, network.T
    orders = torch.tensor([order]).expand(N, T)
    *_, found = written(student, network, orders, edges, torch.full((N, T), network.V))
    found = shaped(found, N, T, what="write", below=network.V)
    follows(numbers(found, network.V), law, lambda cell, share, expected: (
        f"in the order {order} with edges = {edges} it writes "
        f"{texts(network.V, T)[cell].tolist()} in {share} of the texts, the enumeration says "
        f"{expected}"))


@check("write", 3, "one token a pass follows the chain rule along its order")
def one_a_pass(student, rng):
    for order in [0], [1, 0], [2, 0, 1]:
        network = Network(3, len(order), rng)
        follows_law(student, network, order, list(range(len(order) + 1)), network.law([order]))


@check("write", 2, "the tokens of one pass do not know of each other")
def two_a_pass(student, rng):
    network = Network(3, 2, rng)
    nothing = torch.tensor([[2, 3, 3]])
    single = [network.logits(nothing, torch.tensor([i])).softmax(dim=-1)[0] for i in range(2)]
    follows_law(student, network, [1, 0], [0, 2], torch.outer(*single).flatten())


# ---- together: what two at a time lose -----------------------------------------------------------

def nats_lost(student, joint):
    found = student("together.nats_lost", joint)
    found = found if isinstance(found, torch.Tensor) else torch.tensor(found)
    return float(shaped(found, what=f"{told(joint)}: nats_lost"))


def some_law(V, rng):
    p = torch.rand(V, generator=rng, dtype=torch.float64).square()
    return p / p.sum()


def told(joint):
    if joint.dim() > 2:
        return f"a law of the shape {tuple(joint.shape)}"
    return f"joint = {[rounded(row) for row in joint]}"


@check("together", 2, "places that are independent lose nothing")
def independent(student, rng):
    for V in 1, 2, 4:
        joint = torch.outer(some_law(V, rng), some_law(V + 1, rng))
        near(nats_lost(student, joint), 0, told(joint), "loss", "and should be")


@check("together", 3, "a place that repeats another one loses its entropy, and one with noise less")
def repeats(student, rng):
    for V in 2, 3:
        p = some_law(V, rng)
        nats = float(torch.special.entr(p).sum())
        near(nats_lost(student, p.diag()), nats, told(p.diag()), "loss", "its entropy is")
        four = torch.zeros([V] * 4, dtype=torch.float64)
        four[(torch.arange(V),) * 4] = p
        near(nats_lost(student, four), 3 * nats, f"one of p = {rounded(p)} and three copies",
             "loss", "three entropies are")
    for noise in 0.1, 0.4:      # 0 or 1, and the same again, but for the noise
        joint = torch.tensor([[1 - noise, noise], [noise, 1 - noise]], dtype=torch.float64) / 2
        nats = math.log(2) + noise * math.log(noise) + (1 - noise) * math.log(1 - noise)
        near(nats_lost(student, joint), nats, told(joint), "loss", "and should be")


@check("together", 2, "three lose what the first two lose, and what these as one lose by the third")
def adds_up(student, rng):
    for sizes in (2, 2, 2), (2, 3, 4):
        joint = some_law(math.prod(sizes), rng).view(sizes)
        parts = nats_lost(student, joint.sum(dim=2)), nats_lost(student, joint.flatten(0, 1))
        near(nats_lost(student, joint), sum(parts), told(joint), "loss",
             "the two parts sum to")


# ---- adaptive: within_risk -----------------------------------------------------------------------

def revealed(student, nats, risk):
    found = student("extras.adaptive.within_risk", nats, risk)
    found = shaped(found, *nats.shape, what="within_risk").bool()
    for row, now in zip(nats, found):
        if now[row.isinf()].any():
            raise Wrong(f"nats = {rounded(row)}: a known place, whose nats are inf, is revealed")
    return found


def some_nats(rng):
    """Entropies (B, L), small cases first; of the places of a row some are known."""
    for L in 1, 2, 3, 5:
        nats = torch.rand(30, L, generator=rng)
        known = torch.rand(30, L, generator=rng) < 0.2
        known[0] = False
        yield nats.masked_fill(known, torch.inf)


@check("adaptive", 2, "each row reveals its surest; at a risk of 0, if it is in doubt, no other")
def reveals_the_surest(student, rng):
    for nats in some_nats(rng):
        for row, now in zip(nats, revealed(student, nats, 0.0)):
            expected = [] if row.isinf().all() else [int(row.argmin())]
            if now.nonzero()[:, 0].tolist() != expected:
                raise Wrong(f"nats = {rounded(row)} at the risk 0: the places "
                            f"{now.nonzero()[:, 0].tolist()} are revealed, and should be "
                            f"{expected}")


@check("adaptive", 3, "the tokens of a pass lose at most the risk")
def keeps_the_risk(student, rng):
    for L in 2, 3, 5:
        for _ in range(40):
            # Some places repeat each other: then all but one of their entropies are lost.
            group = any_text(L, L, rng)[0] // 2                                 # (L,)
            nats = torch.rand(L, generator=rng)[group]                          # (L,)
            risk = float(torch.rand((), generator=rng) * nats.sum())
            now = revealed(student, nats[None], risk)[0]
            once = {int(g): float(value) for g, value in zip(group[now], nats[now])}
            costs = float(nats[now].sum()) - sum(once.values())
            if costs > risk + 1e-5:
                raise Wrong(f"nats = {rounded(nats)}, of which equal ones are of places that "
                            f"repeat each other: to reveal {now.nonzero()[:, 0].tolist()} loses "
                            f"{costs:.3f}, more than the risk {risk:.3f}")


@check("adaptive", 2, "no place waits that the risk allows, and rows do not heed each other")
def wastes_nothing(student, rng):
    for nats in some_nats(rng):
        for risk in 0.3, 1.0:
            for row, now in zip(nats, revealed(student, nats, risk)):
                free = (~row.isinf()).nonzero()[:, 0].tolist()
                allowed = [0]
                for M in sets_of(len(free)):
                    values = sorted(float(row[free[i]]) for i in M)
                    if sum(values[:-1]) <= risk:
                        allowed.append(len(M))
                if int(now.sum()) != max(allowed):
                    raise Wrong(f"nats = {rounded(row)} at the risk {risk}: {int(now.sum())} "
                                f"places are revealed, and {max(allowed)} should be")


# ---- drafts: confirm -----------------------------------------------------------------------------

class Drafting:
    """Drafts 0 … m-1 from laws q, and the laws p of what comes after them, at random."""

    def __init__(self, m, V, rng):
        self.m, self.V = m, V
        self.q = torch.randn(m, V, generator=rng).mul(1.5).softmax(dim=-1)
        # p[i] is the law of token i+1 for each text of i+1 tokens.
        self.p = [torch.randn(V ** (i + 1), V, generator=rng).mul(1.5).softmax(dim=-1)
                  for i in range(m)]

    def law(self):
        """Of all texts of m+1 tokens."""
        law = self.q[0]
        for p in self.p:
            law = (law[:, None] * p).flatten()
        return law

    def confirmed(self, student, N, rng):
        """Tokens (N, m+1), and how many of them are final (N,)."""
        m, V = self.m, self.V
        q = self.q.expand(N, m, V)
        draft = torch.multinomial(self.q, N, replacement=True, generator=rng).T     # (N, m)
        p = torch.stack([self.p[i][numbers(draft[:, :i + 1], V)] for i in range(m)], dim=1)
        u = torch.rand(N, m, generator=rng, dtype=torch.float64)
        # top_p leaves weights that sum to less than 1.
        tokens, count = pair(student("extras.drafts.confirm", p * 0.9, q * 0.8, draft, u))
        tokens = shaped(tokens, N, m + 1, what="confirm: tokens")
        count = shaped(count, N, 1, what="confirm: count", below=m + 2)[:, 0]
        if (count < 2).any():
            raise Wrong("count is below 2, but draft 0 is always kept, and one token is added")
        final = torch.arange(m + 1) < count[:, None]
        return shaped(tokens.where(final, 0), N, m + 1, what="confirm: tokens", below=V), count


def pair(value):
    if not isinstance(value, list) or len(value) != 2:
        raise Wrong("confirm should return tokens and count")
    return value


@check("drafts", 4, "the tokens follow the law of one token a pass")
def drafts_keep_the_law(student, rng):
    for m, V in (1, 2), (2, 2), (2, 3), (3, 3):
        drafting = Drafting(m, V, rng)
        tokens, count = drafting.confirmed(student, 6000, rng)
        for i in range(2, m + 1):           # what is not final is drawn one token at a time
            p = drafting.p[i - 1][numbers(tokens[:, :i], V)]
            new = torch.multinomial(p, 1, generator=rng)[:, 0]
            tokens[:, i] = tokens[:, i].where(count > i, new)
        follows(numbers(tokens, V), drafting.law(), lambda cell, share, expected: (
            f"{m} drafts of {V} words: {texts(V, m + 1)[cell].tolist()} comes in {share} of the "
            f"texts, the enumeration says {expected}"))


@check("drafts", 2, "a draft is kept as often as the law allows, and all if q is p")
def keeps_its_drafts(student, rng):
    drafting = Drafting(2, 3, rng)
    N = 6000
    _, count = drafting.confirmed(student, N, rng)
    chance = (drafting.q[0][:, None] * drafting.p[0].minimum(drafting.q[1])).sum()
    if abs((count > 2).double().mean() - chance) > SIGMAS * (chance * (1 - chance) / N).sqrt():
        raise Wrong(f"2 drafts of 3 words: draft 1 is kept in {(count > 2).double().mean():.1%}, "
                    f"the enumeration says {chance:.1%}")
    for i in range(2):
        drafting.p[i] = drafting.q[min(i + 1, 1)].expand_as(drafting.p[i])
    _, count = drafting.confirmed(student, 200, rng)
    if (count < 3).any():
        raise Wrong("2 drafts whose laws q are p itself: one of them is not kept")
