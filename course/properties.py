"""
What must hold of any right answer: the tasks of the lab, and how grade.py judges them.

A check is a function of a student, who is asked by the name of a function, and of random numbers.
It counts out small cases and raises Wrong on the first that is not as it must be. To add a task of
your own, add a line to TASKS, and a check or more with its name.
"""
import itertools
import math

import torch
import torch.nn.functional as F


# ---- The tasks: a line for each, with the functions that the hand-out empties --------------------

TASKS = {
    "gpt": ["gpt.py:"],         # nothing is emptied: gpt.py works, and is to be edited
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

V, MASK, BOS = 3, 3, 2      # the words 0 … V-1 of all checks, numbered as in model.py


def seed(number):
    return ["seed", number]


def made(name, **fields):
    return ["made", name, list(fields.items())]


def config(mode, T):
    return made("model.Config", mode=mode, vocab_size=V, block_size=T, n_layer=1, n_head=1,
                n_embd=2, n_hidden=2)


def uniform(rng, *shape):
    return torch.rand(shape, generator=rng, dtype=torch.float64)


def normal(rng, *shape):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def some_texts(rng, B, T):
    return torch.randint(V, (B, T), generator=rng)


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


def follows(cells, p, says):
    """Cells (N,) are numbers drawn from the law p (K,). A cell has a name, says(cell).

    By Bernstein's inequality a right answer fails here in one of 10⁷ cells. All checks have some
    500 cells, so in one of 20,000 runs of the lab."""
    N, L = len(cells), math.log(2e7)
    counts = torch.bincount(cells, minlength=len(p))                            # (K,)
    variance = N * p * (1 - p)                                                  # (K,)
    allowed = 2 / 3 * L + (2 * L * variance).sqrt()                             # (K,)
    excess = (counts - N * p).abs() - allowed                                   # (K,)
    cell = int(excess.argmax())
    if excess[cell] > 0:
        raise Wrong(f"{says(cell)} in {counts[cell] / N:.1%} of the rows, and should in "
                    f"{p[cell]:.1%}")


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


def orders_of(T, S=None):
    return map(list, itertools.permutations(range(T), S))


# ---- A made-up network, of which everything can be counted out -----------------------------------

class Network:
    """What T places become, given the tokens that are known: any law would do, so it is random."""

    def __init__(self, T, rng):
        self.T = T
        self.read = normal(rng, T, V + 1, 16).float()
        self.head = normal(rng, T, 16, V).float() / 2

    def __call__(self, tokens):
        """Logits (B, T, V) of all places, from tokens (B, T), of which some are [MASK]."""
        tokens = shaped(tokens, len(tokens), self.T, what="the text that the model reads",
                        below=MASK + 1)
        features = self.read[torch.arange(self.T), tokens].sum(dim=1).tanh()    # (B, 16)
        return torch.einsum("bf,tfv->btv", features, self.head)

    def nats(self, x, known):
        """−log p of each token of x (T,), given those at the known places."""
        tokens = torch.full_like(x, MASK)
        tokens[known] = x[known]
        [log_p] = self(tokens[None]).log_softmax(dim=-1)                        # (T, V)
        return -log_p[range(self.T), x]

    def law(self, orders, edges):
        """p of all texts (V ** T,), written in one of the orders by chance, in passes between edges."""
        p = torch.zeros(V ** self.T)
        for (i, x), order in itertools.product(enumerate(texts(self.T)), orders):
            nats = 0
            for start, end in itertools.pairwise(edges):
                nats += self.nats(x, order[:start])[order[start:end]].sum()
            p[i] += (-nats).exp() / len(orders)
        return p

    def after(self, tokens, i):
        """p (N, V) of token i, given those before it in tokens (N, T)."""
        known = tokens.where(torch.arange(self.T) < i, MASK)
        return self(known)[:, i].softmax(dim=-1)


def case(x, hidden):
    return f"x = {told(x)} with the places {hidden} hidden"


# ---- gpt: masked diffusion in four edits ---------------------------------------------------------

@check("gpt", 3, "each place sees every other one, before it and after it")
def sees_both_sides(student, rng):
    T = 3
    model = student("gpt.GPT", V, T)
    x = torch.full((1, T), MASK)
    others = x - torch.eye(T, dtype=torch.long)             # row j has another token at place j
    logits = student(model, torch.cat([x, x, others]))
    before, again, *after = shaped(logits, 2 + T, T, V, what="GPT")
    same(again, before, "the same text twice: the second time its logits are")
    for j, i in itertools.permutations(range(T), 2):
        if (after[j][i] - before[i]).abs().max() < 1e-6:
            raise Wrong(f"place {i} does not see place {j}: its logits stay when the token there "
                        "changes")


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
        if (row[~here] != seen[~here]).any() or not here.any():
            raise Wrong(f"x = {told(row)}: the model reads {told(seen)}, where {MASK} is [MASK]; at "
                        "least one token should be hidden, and the others where they stand")
    return value, hidden


def places_of(hidden):
    """The places that are hidden in each row of hidden (B, T)."""
    return [row.nonzero()[:, 0].tolist() for row in hidden]


@check("gpt", 4, "the loss is the mean over rows of each row's own mean over its hidden tokens")
def loss_of_rows(student, rng):
    for T, B in (1, 1), (2, 1), (3, 1), (3, 2), (4, 5), (30, 5):
        network = Network(T, rng)
        for number in range(8):
            x = some_texts(rng, B, T)
            value, hidden = what_loss_reads(student, network, x, number)
            means = []
            for row, here in zip(x, hidden):
                means.append(network.nats(row, ~here)[here].mean())
            same(value, sum(means) / B, f"{case(x, places_of(hidden))}: your loss is", within=1e-3)


def obeys_the_seed(draw):
    """What is drawn by a number (…) is the same for the same number, and another for another."""
    first, again, other = map(draw, (1, 1, 2))
    if (first != again).any():
        raise Wrong("two generators of the same seed give two different masks")
    if (first == other).all():
        raise Wrong("two generators of different seeds give the same masks")


def uniform_masks(hidden):
    """Each k equally often, and of few tokens each set of k places too."""
    N, T = hidden.shape
    places = places_of(hidden)
    if T > 1 and (hidden == hidden[0]).all() and not hidden.all():
        raise Wrong(f"all of {N} rows hide the places {places[0]}; each should draw its own")
    k = hidden.sum(dim=1)
    follows(k - 1, torch.full((T,), 1 / T), lambda cell: f"of {T} tokens {cell + 1} are hidden")
    if T <= 4:
        every = list(sets_of(T))
        p = torch.tensor([1 / T / math.comb(T, len(M)) for M in every])
        cells = torch.tensor(list(map(every.index, places)))
        follows(cells, p, lambda cell: f"of {T} tokens the places {every[cell]} are hidden")


@check("gpt", 2, "k is uniform on 1 … T, every row has a mask of its own, and the seed decides")
def masks_of_loss(student, rng):
    for T in 2, 3, 20:
        network = Network(T, rng)
        x = some_texts(rng, 1, T).expand(1500, T)
        number = int(torch.randint(99, (), generator=rng))
        uniform_masks(what_loss_reads(student, network, x, number)[1])
    obeys_the_seed(lambda number: what_loss_reads(student, network, x[:20], number)[1])


@check("gpt", 3, "what it writes follows the mean over all orders of writing")
def writes_its_law(student, rng):
    for T in 1, 2, 3:
        network = Network(T, rng)
        seen = set()        # which places are known when the model is asked

        def model(tokens):
            seen.update(map(tuple, (tokens != MASK).tolist()))
            return network(tokens)

        found = student("gpt.write", model, 3000, T, seed(T))
        found = shaped(found, 3000, T, what="write", below=V)
        how = "in one order for all texts " if 1 < len(seen) <= T else ""
        law = network.law(list(orders_of(T)), range(T + 1))
        follows(numbers(found), law, lambda cell: f"{how}it writes {told(texts(T)[cell])}")


# ---- masks ---------------------------------------------------------------------------------------

def masks_of(student, B, T, number):
    x = torch.zeros(B, T, dtype=torch.long)
    hidden = shaped(student("model.draw_masks", x, seed(number)), B, T, what="draw_masks").bool()
    if not hidden.any(dim=1).all():
        raise Wrong(f"of {T} tokens a row hides none, and k should be at least 1")
    return hidden


@check("masks", 3, "k is uniform on 1 … T, and each set of k places is equally likely")
def masks_are_uniform(student, rng):
    for T, B in (1, 2), (2, 2), (3, 2), (3, 600), (4, 60), (20, 60):
        masks = [masks_of(student, B, T, number) for number in range(6000 // B)]
        # Those of a pair are not independent, so one of each is counted.
        pairs = torch.cat(masks).view(3000, 2, T)
        which = torch.randint(2, (3000,), generator=rng)
        uniform_masks(pairs[torch.arange(3000), which])


@check("masks", 2, "the rows come in pairs of k and T + 1 − k, which the seed decides")
def masks_come_in_pairs(student, rng):
    for T in 1, 2, 5, 40:
        k = masks_of(student, 8, T, T).sum(dim=1)
        same(k[::2] + k[1::2], [T + 1] * 4,
             f"of {T} tokens the rows hide {told(k)}: the sums of each two are")
    obeys_the_seed(lambda number: masks_of(student, 16, 8, number))


# ---- bound and chain: what a batch holds ---------------------------------------------------------

def batch_of(student, name, mode, x, how):
    """What mask_batch or order_batch returns: the rows of its five tensors, zipped."""
    batch = student(f"model.{name}", config(mode, x.size(1)), x, how)
    fields = "tokens", "key_pos", "target_pos", "targets", "weight"
    if not isinstance(batch, list) or len(batch) != len(fields):
        raise Wrong(f"{name} should return a Batch of five tensors")
    S = how.size(1) + (mode == "mdlm")
    return zip(*[shaped(part, len(x), S, what=f"{name}: {field}")
                 for part, field in zip(batch, fields)])


def masked_batches(student, rng):
    """Yields a text x (T,), what is hidden of it, and the row of the batch."""
    for T in 1, 2, 3, 7:
        every = list(sets_of(T))
        masked = torch.zeros(len(every), T, dtype=torch.bool)
        for row, M in zip(masked, every):
            row[M] = True
        [x] = some_texts(rng, 1, T)
        batch = batch_of(student, "mask_batch", "mdlm", x.expand_as(masked), masked)
        yield from zip(itertools.repeat(x), every, batch)


@check("bound", 3, "the network reads BOS and what is not hidden, each at its place")
def reads_what_is_visible(student, rng):
    for x, M, (tokens, key_pos, *_) in masked_batches(student, rng):
        same(key_pos, range(-1, len(x)), f"{case(x, M)}: the slots hold what stands at")
        expected = [BOS, *x]
        for i in M:
            expected[i + 1] = MASK
        same(tokens, expected, f"{case(x, M)}: BOS and the text are read as")


@check("bound", 4, "each hidden token is predicted at its own place, with the weight 1/k")
def predicts_what_is_hidden(student, rng):
    for x, M, (_, _, target_pos, targets, weight) in masked_batches(student, rng):
        counted = weight != 0
        same(target_pos[counted], M, f"{case(x, M)}: the places that are predicted, of which -1 "
             "is BOS's, are")
        same(targets[counted], x[M], f"{case(x, M)}: the targets of {M} are")
        same(weight[counted], [1 / len(M)] * len(M), f"{case(x, M)}: your weights are")


def compare_losses(student, rng, B, S, dtype=torch.float32):
    """Losses of random slots and weights, of which some are 0."""
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
    same(found, (nll * weight).sum(dim=1), f"logits in {str(dtype)[6:]}: of {B} rows with {S} slots "
         "your losses are", within=1e-3)


@check("bound", 2, "a row's loss is the sum of weight · −log p over its own predictions")
def losses_of_rows(student, rng):
    for B, S in (1, 1), (1, 2), (2, 1), (2, 3), (5, 4), (7, 40):
        compare_losses(student, rng, B, S)


@check("bound", 1, "logits of 16 bits are not summed up in 16 bits")
def losses_of_bfloat16(student, rng):
    compare_losses(student, rng, 8, 8, torch.bfloat16)


def ordered_batches(student):
    """Yields an order of some places, a text x (T,), and the row of the batch."""
    for T, S in (1, 1), (2, 1), (2, 2), (3, 2), (3, 3):
        x = texts(T)
        for order in orders_of(T, S):
            rows = torch.tensor([order]).expand(len(x), S)
            batch = batch_of(student, "order_batch", "aogpt", x, rows)
            yield from zip(itertools.repeat(order), x, batch)


@check("chain", 3, "slot j holds the token that comes before it in the order, and slot 0 BOS")
def reads_what_came_before(student, rng):
    for order, x, (tokens, key_pos, *_) in ordered_batches(student):
        says = f"x = {told(x)} in the order {order}: the slots hold"
        same(key_pos, [-1, *order[:-1]], f"{says} what stands at, of which -1 is BOS's,")
        same(tokens, [BOS, *x[order[:-1]]], f"{says} the tokens, of which the first is BOS,")


@check("chain", 4, "slot j predicts the token j of the order, with the weight 1/T")
def predicts_what_comes_next(student, rng):
    for order, x, (_, _, target_pos, targets, weight) in ordered_batches(student):
        says = f"x = {told(x)} in the order {order}:"
        same(target_pos, order, f"{says} the places that are predicted are")
        same(targets, x[order], f"{says} the targets are")
        same(weight, [1 / len(x)] * len(order), f"{says} your weights are")


# ---- draw: probabilities and draw ----------------------------------------------------------------

def weights_of(student, p, **fields):
    """What `probabilities` makes of the law p (V,), as numbers that sum to 1."""
    law = f"p = {told(p)} with {fields}: your weights are"
    other = torch.ones_like(p) / len(p)         # of another row, which should not matter
    logits = torch.stack([p, other])[None].log().float()
    found = student("model.probabilities", logits, made("model.Drawing", **fields))
    found = shaped(found, 1, 2, len(p), what=law)[0, 0].double()
    if (found < 0).any() or found.sum() == 0:
        raise Wrong(f"{law} {told(found)}: one is below 0, or all are 0")
    return found / found.sum(), law


def laws(rng):
    """Laws of 2 to 6 words."""
    yield torch.tensor([0.3, 0.7], dtype=torch.float64)
    yield torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for size in 4, 5, 6:
        yield (1.5 * normal(rng, size)).softmax(dim=0)


@check("draw", 2, "the weights are p to the power 1/temperature; at 0 the likeliest alone")
def obeys_temperature(student, rng):
    for p, temperature in itertools.product(laws(rng), (1.0, 0.5, 2.0, 0.0)):
        power = (p / p.max()) ** (1 / (temperature or 1e-9))
        found, says = weights_of(student, p, temperature=temperature)
        same(found, power / power.sum(), says)


@check("draw", 3, "top_p keeps the fewest tokens that have this much probability, in proportion")
def obeys_top_p(student, rng):
    for p, top_p in itertools.product(laws(rng), (0.05, 0.45, 0.6, 0.75, 0.95)):
        found, says = weights_of(student, p, top_p=top_p)
        kept = found > 0
        rest = p[~kept].sum()
        same(found, p.where(kept, 0) / (1 - rest), says)
        if (p[~kept] > p[kept].min()).any():
            raise Wrong(f"{says} {told(found)}: a likelier one is left out")
        if 1 - rest < top_p or 1 - rest - p[kept].min() >= top_p:
            raise Wrong(f"{says} {told(found)}: these are too few or too many")
    p = torch.tensor([0.6, 0.3, 0.1])       # whichever is first, two are kept
    found, says = weights_of(student, p, temperature=0.5, top_p=0.85)
    same(found, [0.8, 0.2, 0.0], says)


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
         "share of rare tokens: does your sum have 64 bits, and u its total? It draws")
    p = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    u = torch.tensor([0.0, 0.5, 1 - 2 ** -53], dtype=torch.float64)
    found = drawn(student, p, u)
    same(found, [1, 3, 3], f"weights {told(p)} and u = 0, 0.5 and just below 1: it draws")


# ---- write ---------------------------------------------------------------------------------------

def written(student, network, order, edges, tokens, u, temperature=1.0):
    """The tokens after each pass."""
    asked = []

    def read(model, tokens, order, start, end):
        asked.append([start, end])
        row = torch.arange(len(order))[:, None]                                 # (B, 1)
        return network(tokens)[row, order[:, start:end]]                        # (B, m, V)

    model = student("model.Transformer", config("mdlm", network.T))
    states = student("model.write", model, tokens, order, edges, u,
                     made("model.Drawing", temperature=temperature), read)
    passes = list(itertools.pairwise(edges))
    if not isinstance(states, list) or len(states) != len(passes):
        raise Wrong(f"edges = {edges}: it should yield the tokens after each of {len(passes)} passes")
    same(asked, passes, f"edges = {edges}: the network is asked for")
    return [shaped(state, *order.shape, what="write", below=MASK + 1) for state in states]


@check("write", 2, "a pass writes its own places, and what is there stays")
def writes_its_places(student, rng):
    network = Network(4, rng)
    for edges in [0, 1, 2, 3, 4], [1, 2, 4], [2, 4]:
        order = uniform(rng, 6, 4).argsort(dim=1)                               # (6, 4)
        rank = order.argsort(dim=1)                                             # (6, 4)
        before = some_texts(rng, 6, 4).where(rank < edges[0], MASK)
        states = written(student, network, order, edges, before, uniform(rng, 6, 4))
        for end, after in zip(edges[1:], states):
            expected = after.where(before == MASK, before).where(rank < end, MASK)
            wrong = (after != expected) | ((after == MASK) & (rank < end))      # (6, 4)
            for row in wrong.any(dim=1).nonzero()[:, 0]:
                raise Wrong(f"in the order {told(order[row])} with edges = {edges}: "
                            f"{told(before[row])} becomes {told(after[row])} when the first {end} "
                            f"of the order should be known; {MASK} is [MASK]")
            before = after


def from_nothing(student, network, order, edges, u, temperature=1.0):
    """Texts (N, T) that are written from [MASK]s alone, all in one order, by u (N, T)."""
    orders = torch.tensor([order]).expand(u.shape)
    nothing = torch.full(u.shape, MASK)
    *_, found = written(student, network, orders, edges, nothing, u, temperature)
    return shaped(found, *u.shape, what="write", below=V)


@check("write", 4, "it follows the law of its passes, whose tokens do not know of each other")
def follows_its_passes(student, rng):
    for order, edges, temperature in (
            ([0], [0, 1], 1.0), ([1, 0], [0, 1, 2], 1.0), ([1, 0], [0, 2], 1.0),
            ([2, 0, 1], [0, 1, 3], 0.5)):
        network = Network(len(order), rng)
        u = uniform(rng, 3000, len(order))
        found = from_nothing(student, network, order, edges, u, temperature)
        network.head /= temperature
        law = network.law([order], edges)
        follows(numbers(found), law, lambda cell: (
            f"in the order {order} with edges = {edges} and the temperature {temperature} it "
            f"writes {told(texts(len(order))[cell])}"))


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


@check("together", 4, "a place that repeats another one loses its entropy, and one with noise less")
def repeats(student, rng):
    for size in 2, 3:
        p = normal(rng, size).softmax(dim=0)
        loses(student, p.diag(), torch.special.entr(p).sum())
    for noise in 0.1, 0.4:      # 0 or 1, and the same again, but for the noise
        p = torch.tensor([1 - noise, noise], dtype=torch.float64)
        joint = torch.stack([p, p.flip(0)]) / 2
        loses(student, joint, math.log(2) - torch.special.entr(p).sum())


@check("together", 3, "three lose what the first two lose, and what these as one lose by the third")
def adds_up(student, rng):
    for shape in (2, 2, 2), (2, 3, 4), (3, 2, 2, 2):
        joint = normal(rng, *shape).exp()
        joint = joint / joint.sum()
        first_two = student("together.nats_lost", joint.flatten(2).sum(dim=2))
        as_one = student("together.nats_lost", joint.flatten(0, 1))
        if not first_two > 0 < as_one:
            raise Wrong("places that are not independent lose something")
        loses(student, joint, first_two + as_one)


# ---- adaptive: within_risk -----------------------------------------------------------------------

def revealed(student, nats, risk):
    """Yields rows of nats (B, L), and the places that are revealed in each."""
    found = student("samplers.adaptive.within_risk", nats, risk)
    for row, now in zip(nats, shaped(found, *nats.shape, what="within_risk").bool()):
        if now[row.isinf()].any():
            raise Wrong(f"nats = {told(row)}: a known place, whose nats are inf, is revealed")
        yield row, now.nonzero()[:, 0]


def some_nats(rng):
    """Entropies (B, L), small cases first; of the places of a row some are known."""
    for L in 1, 2, 3, 5:
        nats = uniform(rng, 30, L).float()
        known = uniform(rng, 30, L) < 0.2
        known[0] = False
        yield nats.masked_fill(known, torch.inf)


@check("adaptive", 2, "at a risk of 0, if it is in doubt, the surest alone; at a large one all")
def reveals_the_surest(student, rng):
    for nats, risk in itertools.product(some_nats(rng), (0.0, 99.0)):
        for row, places in revealed(student, nats, risk):
            free = row.isfinite().nonzero()[:, 0]
            expected = free if risk else free[row[free] == row.min()]
            same(places, expected,
                 f"nats = {told(row)} at the risk {risk}: the places that are revealed are")


@check("adaptive", 3, "the tokens of a pass lose at most the risk")
def keeps_the_risk(student, rng):
    most = 0
    for L in 2, 3, 5:
        for _ in range(40):
            # Some places repeat each other: then all but one of their entropies are lost.
            group = torch.randint(L, (L,), generator=rng) // 2                  # (L,)
            entropy = uniform(rng, L).float()
            nats = entropy[group]                                               # (L,)
            risk = float(uniform(rng) * nats.sum())
            [(_, places)] = revealed(student, nats[None], risk)
            most = max(most, len(places))
            lost = float(nats[places].sum() - entropy[group[places].unique()].sum())
            if lost > risk + 1e-5:
                raise Wrong(f"nats = {told(nats)}, of which equal ones are of places that repeat "
                            f"each other: to reveal {told(places)} loses {lost:.3f}, more than the "
                            f"risk {risk:.3f}")
    if most < 2:
        raise Wrong("no risk, however large, is taken")


@check("adaptive", 2, "no place waits that the risk allows, and rows do not heed each other")
def wastes_nothing(student, rng):
    for nats, risk in itertools.product(some_nats(rng), (0.3, 1.0)):
        for row, places in revealed(student, nats, risk):
            free = row[row.isfinite()]
            most = 0
            for M in sets_of(len(free)):
                if free[M].sum() - free[M].max() <= risk:
                    most = max(most, len(M))
            same(len(places), most, f"nats = {told(row)} at the risk {risk}: the number of places "
                 "that are revealed is")


# ---- drafts: confirm -----------------------------------------------------------------------------

N_DRAFTS = 10_000


def drafting(m, rng):
    """A network, laws p and q (N, m, V) and drafts (N, m) as `confirm` has them."""
    network = Network(m + 1, rng)
    # q has one favourite, so p has more than q of both others.
    q = F.one_hot(torch.randint(V, (m,), generator=rng), V) * 0.7 + 0.1         # (m, V)
    q[0] = network.after(texts(m + 1)[:1], 0)
    draft = torch.multinomial(q, N_DRAFTS, replacement=True, generator=rng).T   # (N, m)
    text = F.pad(draft, (0, 1))                                                 # (N, m+1)
    p = [network.after(text, i) for i in range(1, m + 1)]                       # (N, V) each
    return network, torch.stack(p, dim=1), q.expand(N_DRAFTS, m, V), draft


def confirmed(student, p, q, draft, rng):
    """Tokens (N, m+1), and how many of them are final (N,)."""
    N, m = draft.shape
    # top_p leaves weights that sum to less than 1.
    value = student("samplers.drafts.confirm", p * 0.9, q * 0.8, draft, uniform(rng, N, m))
    if not isinstance(value, list) or len(value) != 2:
        raise Wrong("confirm should return tokens and count")
    count = shaped(value[1], N, 1, what="confirm: count", low=2, below=m + 2)
    tokens = shaped(value[0], N, m + 1, what="confirm: tokens")
    tokens = tokens.where(torch.arange(m + 1) < count, 0)
    return shaped(tokens, N, m + 1, what="confirm: tokens", below=V), count[:, 0]


@check("drafts", 4, "the tokens follow the law of one token a pass")
def drafts_keep_the_law(student, rng):
    for m in 1, 2, 3:
        network, p, q, draft = drafting(m, rng)
        tokens, count = confirmed(student, p, q, draft, rng)
        if m == 2 and (count == 2).all():
            raise Wrong("no draft but the first is ever kept")
        for i in range(2, m + 1):           # what is not final is drawn one token at a time
            new = torch.multinomial(network.after(tokens, i), 1, generator=rng)[:, 0]
            tokens[:, i] = tokens[:, i].where(count > i, new)
        law = network.law([list(range(m + 1))], range(m + 2))
        follows(numbers(tokens), law,
                lambda cell: f"{m} drafts of {V} words: {told(texts(m + 1)[cell])} comes")


@check("drafts", 2, "a draft is kept as often as the law allows, and all if q is p")
def keeps_its_drafts(student, rng):
    network, p, q, draft = drafting(2, rng)
    _, count = confirmed(student, p, q, draft, rng)
    after_draft_0 = network.after(F.pad(texts(1), (0, 2)), 1)                   # (V, V)
    chance = (q[0, 0] @ after_draft_0.minimum(q[0, 1])).sum()
    follows(count - 2, torch.tensor([1 - chance, chance]),
            lambda kept: f"2 drafts of {V} words: draft 1 is {'kept' if kept else 'not kept'}")
    _, count = confirmed(student, q.roll(-1, dims=1), q, draft, rng)
    # In float32 p and q may differ in their last digit, so that once in a while one is not kept.
    if (count < 3).float().mean() > 0.001:
        raise Wrong("2 drafts whose laws q are p itself: one of them is not kept")
