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
    "masks": ["model.py:draw_counts", "model.py:draw_masks"],
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
    return made("model.Config", mode=mode, vocab_size=V, block_size=T)


def uniform(rng, *shape):
    return torch.from_numpy(rng.random(shape))


def normal(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape))


def some_texts(rng, B, T):
    return torch.from_numpy(rng.integers(V, size=(B, T)))


def shaped(value, *shape, what="it", least=0, below=None):
    """The tensor, if it has this shape and is finite, and tokens are least … below-1."""
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"{what}: {value!r:.40} should be a tensor")
    if tuple(value.shape) != shape:
        raise Wrong(f"{what}: the shape is {tuple(value.shape)}, and should be {shape}")
    if not value.double().isfinite().all():
        raise Wrong(f"{what}: there is NaN or an infinity")
    if below is None:
        return value
    value = value.long()
    if ((value < least) | (value >= below)).any():
        raise Wrong(f"{what}: {value.tolist()!s:.60}, and all should be {least} … {below - 1}")
    return value


def true_or_false(value, *shape, what):
    if shaped(value, *shape, what=what).dtype != torch.bool:
        raise Wrong(f"{what}: the dtype is {value.dtype}, and should be torch.bool")
    return value


def listed(value, count, what):
    """The list, if it has so many parts."""
    found = len(value) if isinstance(value, list) else "none"
    if found != count:
        raise Wrong(f"{what} are {found}, and should be {count}")
    return value


def places_of(true):
    """The places that are true in each row of a tensor, or in one row."""
    if true.dim() > 1:
        return [places_of(row) for row in true]
    return true.nonzero()[:, 0].tolist()


def told(value):
    """Numbers with as many digits as a reader wants, and the places of what is true."""
    if isinstance(value, torch.Tensor):
        value = places_of(value) if value.dtype == torch.bool else value.tolist()
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
    return torch.tensor(list(itertools.product(range(V), repeat=T)))


def numbers(tokens):
    """The numbers (N,) of texts (N, T)."""
    return (tokens * V ** torch.arange(tokens.size(1)).flip(0)).sum(dim=1)


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

    def law(self):
        """p of all texts (V ** T,), each written in a random order."""
        p, orders = torch.zeros(V ** self.T), list(orders_of(self.T))
        for (i, x), order in itertools.product(enumerate(texts(self.T)), orders):
            nats = sum(self.nats(x, order[:j])[place] for j, place in enumerate(order))
            p[i] += (-nats).exp() / len(orders)
        return p


def hiding(x, hidden):
    return f"x = {told(x)} with the places {hidden} hidden"


# ---- gpt: masked diffusion in four edits ---------------------------------------------------------

@check("gpt", 3, "each place sees every other one, before it and after it")
def sees_both_sides(student, rng):
    T = 3
    model = made("gpt.GPT", vocab_size=V, T=T)
    x = torch.full((1, T), MASK)
    others = x - torch.eye(T, dtype=torch.long)             # row j has another token at place j
    logits = student("operator.call", model, torch.cat([x, x, others]))
    before, again, *after = shaped(logits, 2 + T, T, V, what="GPT")
    same(again, before, "the same text twice: the second time its logits are")
    for j, i in itertools.permutations(range(T), 2):
        if (after[j][i] - before[i]).abs().max() < 1e-6:
            raise Wrong(f"place {i} does not see place {j}: its logits stay when the token there "
                        "changes")


def what_loss_reads(student, network, x, number):
    """The loss of x (B, T), and which tokens the model did not see (B, T)."""
    asked = [x[:0]]

    def model(tokens):
        asked.append(tokens)
        return network(tokens)

    value = shaped(student("gpt.loss", model, x, seed(number)), what="loss")
    read = torch.cat(asked)
    if read.shape != x.shape:
        raise Wrong(f"the model should read {len(x)} rows, each once, and it reads {len(read)}")
    hidden = read == MASK
    for row, seen, here in zip(x, read, hidden):
        if (row[~here] != seen[~here]).any() or not here.any():
            raise Wrong(f"x = {told(row)}: the model reads {told(seen)}, where {MASK} is [MASK]; "
                        "at least one token should be hidden, and the others where they stand")
    return value, hidden


@check("gpt", 4, "the loss is the mean over rows of each row's own mean over its hidden tokens")
def loss_of_rows(student, rng):
    for T, B in (1, 1), (2, 1), (3, 2), (30, 5):
        network = Network(T, rng)
        for number in range(8):
            x = some_texts(rng, B, T)
            value, hidden = what_loss_reads(student, network, x, number)
            means = [network.nats(row, ~here)[here].mean() for row, here in zip(x, hidden)]
            same(value, sum(means) / B, f"{hiding(x, told(hidden))}: your loss is", within=1e-3)


def obeys_the_seed(draw):
    """What is drawn by a number (…) is the same for the same number, and another for another."""
    first, again, other = map(draw, (1, 1, 2))
    if (first != again).any():
        raise Wrong("two generators of the same seed do not draw the same")
    if (first == other).all():
        raise Wrong("two generators of different seeds draw the same")


def uniform_counts(k, T):
    """Each of the k (N,) equally often."""
    follows(k - 1, torch.full((T,), 1 / T), lambda cell: f"of {T} tokens {cell + 1} are hidden")


def uniform_masks(hidden):
    """Each k equally often, and of few tokens each set of k places too."""
    T = hidden.size(1)
    uniform_counts(hidden.sum(dim=1), T)
    if T <= 4:
        every = list(sets_of(T))
        p = torch.tensor([1 / T / math.comb(T, len(M)) for M in every])
        cells = torch.tensor([every.index(M) for M in places_of(hidden)])
        follows(cells, p, lambda cell: f"of {T} tokens the places {every[cell]} are hidden")


@check("gpt", 2, "k is uniform on 1 … T, every row has a mask of its own, and the seed decides")
def masks_of_loss(student, rng):
    for T in 2, 3, 20:
        network = Network(T, rng)
        x = some_texts(rng, 1, T).expand(1500, T)
        uniform_masks(what_loss_reads(student, network, x, T)[1])
    obeys_the_seed(lambda number: what_loss_reads(student, network, x[:20], number)[1])


@check("gpt", 3, "what it writes follows the mean over all orders of writing")
def writes_its_law(student, rng):
    for T in 2, 3:
        network = Network(T, rng)
        found = student("gpt.write", network, 2000, T, seed(T))
        found = shaped(found, 2000, T, what="write", below=V)
        follows(numbers(found), network.law(), lambda cell: f"it writes {told(texts(T)[cell])}")


# ---- masks ---------------------------------------------------------------------------------------

def counts_of(student, B, T, number):
    k = student("model.draw_counts", B, T, seed(number))
    return shaped(k, B, 1, what=f"draw_counts({B}, {T})", least=1, below=T + 1)


@check("masks", 3, "k is uniform on 1 … T, in pairs of k and T + 1 − k, and the seed decides")
def counts_come_in_pairs(student, rng):
    for T, B in (1, 2), (2, 2), (3, 600), (20, 60):
        pairs = torch.cat([counts_of(student, B, T, number) for number in range(6000 // B)])
        pairs = pairs.view(3000, 2)
        for pair in pairs.unique(dim=0):
            same(pair.sum(), T + 1, f"of {T} tokens a pair hides {told(pair)}, whose sum is")
        # Those of a pair are not independent, so one of each is counted.
        uniform_counts(pairs[torch.arange(3000), rng.integers(2, size=3000)], T)
    obeys_the_seed(lambda number: counts_of(student, 60, 20, number))
    try:
        counts_of(student, 3, 2, 0)
        raise Wrong("draw_counts(3, 2) should raise ValueError, because three rows are no pairs")
    except Wrong as e:
        if "raises ValueError" not in str(e):
            raise


@check("masks", 2, "each set of k places is equally likely in every row anew, and the seed decides")
def masks_are_uniform(student, rng):
    def masks_of(k, T, number):
        masked = student("model.draw_masks", torch.zeros(len(k), T).long(), k, seed(number))
        return true_or_false(masked, len(k), T, what="draw_masks")

    one = torch.ones(6000, 1).long()
    obeys_the_seed(lambda number: masks_of(one[:20], 20, number))
    for T in 2, 4, 20:
        k = torch.from_numpy(rng.integers(1, T + 1, size=(3000, 1)))
        masked = masks_of(k, T, T)
        for count in range(1, T + 1):
            found = masked[k[:, 0] == count].sum(dim=1).unique()
            same(found, [count], f"of {T} tokens and k = {count} the rows hide")
        uniform_masks(masked)
    places = masks_of(one, 3, 0).long().argmax(dim=1)
    follows(places[::2] * 3 + places[1::2], torch.ones(9) / 9, lambda cell: (
        f"k = [1, 1] of 3 tokens: the places [{cell // 3}] and [{cell % 3}] are hidden"))


# ---- bound and chain: what a batch holds ---------------------------------------------------------

def batch_of(student, name, mode, x, how):
    """What mask_batch or order_batch returns: a {field: what it has} for each row."""
    batch = student(f"model.{name}", config(mode, x.size(1)), x, how)
    fields = "tokens", "key_pos", "target_pos", "targets", "weight"
    listed(batch, 5, f"the tensors that {name} returns")
    S = how.size(1) + (mode == "mdlm")
    parts = [shaped(part, len(x), S, what=f"{name}: {field}") for field, part in zip(fields, batch)]
    return [dict(zip(fields, row)) for row in zip(*parts)]


def has(case, row, **expected):
    for field, value in expected.items():
        same(row[field], value, f"{case}: {field} is")


def masked_batches(student, rng):
    """Yields a case in words, a text x (T,), what is hidden of it, and the row of the batch."""
    for T in 1, 2, 3, 7:
        every = list(sets_of(T))
        masked = torch.zeros(len(every), T, dtype=torch.bool)
        for row, M in zip(masked, every):
            row[M] = True
        [x] = some_texts(rng, 1, T)
        batch = batch_of(student, "mask_batch", "mdlm", x.expand_as(masked), masked)
        for M, row in zip(every, batch):
            yield f"in a batch of all masks, {hiding(x, M)}", x, M, row


@check("bound", 3, "the network reads BOS and what is not hidden, each at its place")
def reads_what_is_visible(student, rng):
    for case, x, M, row in masked_batches(student, rng):
        tokens = [BOS, *x]
        for i in M:
            tokens[i + 1] = MASK
        has(case, row, key_pos=range(-1, len(x)), tokens=tokens)


@check("bound", 4, "each hidden token is predicted at its own place, with the weight 1/k")
def predicts_what_is_hidden(student, rng):
    for case, x, M, row in masked_batches(student, rng):
        counted = row["weight"] != 0
        row = {field: value[counted] for field, value in row.items()}
        has(f"{case}, where weight is not 0", row,
            target_pos=M, targets=x[M], weight=[1 / len(M)] * len(M))


@check("bound", 3, "a row's loss is the sum of weight · −log p over its predictions")
def losses_of_rows(student, rng):
    for B, S in (1, 1), (1, 2), (2, 1), (5, 4):
        logits = 4 * normal(rng, B, S, V).float()
        weight = (uniform(rng, B, S) - 0.3).clamp(min=0).float()
        weight[:, 0] = 0.5
        targets = some_texts(rng, B, S)

        def model(tokens, key_pos, target_pos, select):
            return logits.flatten(0, 1)[select]

        batch = made("model.Batch", tokens=targets, key_pos=targets, target_pos=targets,
                     targets=targets, weight=weight)
        found = student("model.losses", model, batch, weight.flatten().nonzero()[:, 0])
        nll = F.cross_entropy(logits.mT, targets, reduction="none")
        same(shaped(found, B, what="losses"), (nll * weight).sum(dim=1),
             f"of {B} rows with {S} slots your losses are", within=1e-3)


def ordered_batches(student):
    """Yields a case in words, an order of some places, a text x (T,), and the row of the batch."""
    for T, S in (2, 1), (2, 2), (3, 2), (3, 3):
        x = texts(T)
        for order in orders_of(T, S):
            rows = torch.tensor([order]).expand(len(x), S)
            for text, row in zip(x, batch_of(student, "order_batch", "aogpt", x, rows)):
                says = f"in a batch of all texts, x = {told(text)} in the order {order}"
                yield says, order, text, row


@check("chain", 3, "slot j holds the token that comes before it in the order, and slot 0 BOS")
def reads_what_came_before(student, rng):
    for case, order, x, row in ordered_batches(student):
        has(case, row, key_pos=[-1, *order[:-1]], tokens=[BOS, *x[order[:-1]]])


@check("chain", 4, "slot j predicts the token j of the order, with the weight 1/T")
def predicts_what_comes_next(student, rng):
    for case, order, x, row in ordered_batches(student):
        has(case, row, target_pos=order, targets=x[order], weight=[1 / len(x)] * len(order))


# ---- draw: probabilities and draw ----------------------------------------------------------------

def laws(rng):
    """Laws of 2 to 6 words."""
    for size in range(2, 7):
        yield normal(rng, size).softmax(dim=0)


@check("draw", 5, "p to the power 1/temperature, and of that the fewest tokens that top_p allows")
def weighs(student, rng):
    for p, temperature, top_p in itertools.product(
            laws(rng), (1.0, 0.5, 2.0, 0.0), (1.0, 0.05, 0.45, 0.95)):
        other = torch.ones_like(p)          # of another row, which should not matter
        logits = torch.stack([p, other])[None].log().float()
        o = made("model.Drawing", temperature=temperature, top_p=top_p)
        says = f"p = {told(p)} at the temperature {temperature} and top_p = {top_p}: your weights"
        found = student("model.probabilities", logits, o)
        found = shaped(found, 1, 2, len(p), what=says)[0, 0].double()
        p = (p / p.max()) ** (1 / (temperature or 1e-9))
        p = p / p.sum()
        kept = found > 0
        mass = p[kept].sum()
        same(found / found.sum(), p.where(kept, 0) / mass, f"{says} are, if they sum to 1,")
        if (p[~kept] > p[kept].min()).any() or not mass - p[kept].min() < top_p <= mass + 1e-6:
            raise Wrong(f"{says} keep the tokens {told(kept)}, which are too few or too many")


def drawn(student, p, u):
    """Tokens (N,) by the numbers u (N,), all from the weights p (V,)."""
    found = student("model.draw", p.expand(len(u), -1), u)
    return shaped(found, len(u), what="draw", below=len(p))


@check("draw", 2, "u in [0, 1) draws the token in whose share of the weights it lies")
def draws_by_the_weights(student, rng):
    for p, inside in itertools.product(laws(rng), (0.05, 0.95)):
        weights = 0.9 * p       # they may have any sum
        u = p.cumsum(dim=0) - inside * p
        same(drawn(student, weights.float(), u), torch.arange(len(p)),
             f"weights {told(weights)} and u = {told(u)}: it draws")


@check("draw", 2, "no token of weight 0 is drawn, and the rarest ones are")
def draws_the_tail(student, rng):
    p = torch.full((1001,), 1e-9)
    p[:2] = torch.tensor([0.0, 1.0])
    ends = p.double().cumsum(dim=0)
    rare = torch.tensor([2, 250, 500, 1000])
    u = (ends[rare] - p[rare] / 2) / ends[-1]
    found = drawn(student, p, F.pad(F.pad(u, (1, 0)), (0, 1), value=1 - 2 ** -53))
    same(found, [1, *rare, 1000], "the weights 0, 1 and then 999 times 1e-9, too small for a sum "
         "in float32; u = 0, four from the shares of rare tokens, and just below 1: it draws")


# ---- write ---------------------------------------------------------------------------------------

def passes(student, rng):
    """Yields what to say of a pass, which places are its own (B, T), the tokens after it (B, T) as
    they are and as they should be, the logits (B, T, V) that `decide` was given, NaN where it was
    not asked, and those that it should have been given."""
    for T, *edges in (1, 0, 1), (2, 0, 2), (3, 0, 1, 3), (4, 1, 2, 4):
        B, network = 2, Network(T, rng)
        rank = uniform(rng, B, T).argsort(dim=1)                                # (B, T)
        order, choice = rank.argsort(dim=1), some_texts(rng, B, T)              # (B, T) each
        asked, given = [], []

        def read(model, tokens, order, start, end):
            asked.append([start, end])
            given.append(torch.full((B, T, V), torch.nan))
            return network(tokens)[torch.arange(B)[:, None], order[:, start:end]]   # (B, m, V)

        def decide(logits, row, place):
            if row.dim() != place.dim():
                raise Wrong(f"row should be ({len(place)}, 1), and is {tuple(row.shape)}")
            given[-1][row, place] = logits
            return choice[row, place]

        before = some_texts(rng, B, T).where(rank < edges[0], MASK)
        model = made("types.SimpleNamespace", config=config("mdlm", T))
        states = student("model.write", model, before, order, edges, decide, read)
        says, pairs = f"orders {told(order)}, edges = {edges}", list(itertools.pairwise(edges))
        listed(states, len(pairs), f"{says}: the times that it yields tokens")
        same(asked, pairs, f"{says}: the network is asked for")
        for (start, end), after, logits in zip(pairs, states, given):
            after = shaped(after, B, T, what="write", below=MASK + 1)
            own = (rank >= start) & (rank < end)
            case = f"{says}, pass {start} … {end}:"
            then = choice.where(own, before)
            yield case, own, after, then, logits, network(before)
            before = then


@check("write", 5, "a pass writes what `decide` says at its own places, all of them and no others")
def writes_its_places(student, rng):
    for says, _, after, then, *_ in passes(student, rng):
        same(after, then, f"{says} then the tokens, of which {MASK} is [MASK], are")


@check("write", 2, "`decide` has the logits of its places, which know earlier passes and no more")
def decides_by_the_network(student, rng):
    for says, own, *_, given, expected in passes(student, rng):
        same(~given.isnan().any(dim=-1), own, f"{says} `decide` is asked for the places")
        for row, place in own.nonzero().tolist():
            alike = torch.isclose(given[row, place], expected, atol=1e-4).all(dim=-1)   # (B, T)
            same(given[row, place], expected[row, place],
                 f"{says} for place {place} of row {row} `decide` is given what belongs to the "
                 f"places {told(alike)} of the rows:")


# ---- together: what two at a time lose -----------------------------------------------------------

def loses(student, joint, nats):
    says = f"joint = {told(joint)}: nats_lost"
    found = torch.as_tensor(student("together.nats_lost", joint))
    same(shaped(found, what=says), nats, f"{says} is")


@check("together", 4, "a place that repeats another one loses its entropy, and one with noise less")
def repeats(student, rng):
    for size in 2, 3:
        p = normal(rng, size).softmax(dim=0)
        loses(student, p.diag(), torch.special.entr(p).sum())
    for noise in 0.1, 0.4:      # 0 or 1, and the same again, but for the noise
        p = torch.tensor([1 - noise, noise], dtype=torch.float64)
        joint = torch.stack([p, p.flip(0)]) / 2
        loses(student, joint, math.log(2) - torch.special.entr(p).sum())


@check("together", 3, "of three places alike two are lost, and of an independent one nothing")
def adds_up(student, rng):
    for size in 2, 3:
        p, other = normal(rng, size).softmax(dim=0), normal(rng, 2).softmax(dim=0)
        entropy = torch.special.entr(p).sum()
        loses(student, torch.diag_embed(p.diag()), 2 * entropy)
        loses(student, p.diag()[:, :, None] * other, entropy)


# ---- adaptive: within_risk -----------------------------------------------------------------------

def passes_at_risk(student, rng):
    """Yields what to say of a row, the nats of its unknown places, a risk, and what is revealed."""
    for B, L, risk in itertools.product((1, 30), (1, 2, 5), (0.0, 0.3, 1.0)):
        nats = uniform(rng, B, L).float()
        known = uniform(rng, B, L) < 0.2
        nats = nats.masked_fill(known, torch.inf)                               # (B, L)
        found = student("samplers.adaptive.within_risk", nats, risk)
        for row, now in zip(nats, true_or_false(found, B, L, what="within_risk")):
            says = (f"{B} rows at the risk {risk}, one with nats = {told(row)}, where inf is known:"
                    f" the places {told(now)} are revealed")
            if row[now].isinf().any():
                raise Wrong(f"{says}, of which one is known already")
            yield says, row[row.isfinite()], risk, row[now]


def lost(nats):
    """At most, by places that are drawn together: all but the largest of their entropies (n,)."""
    return nats.sum() - nats.max() if len(nats) else 0.0


@check("adaptive", 4, "the tokens of a pass lose at most the risk, which is taken")
def keeps_the_risk(student, rng):
    most = 0
    for says, free, risk, now in passes_at_risk(student, rng):
        most = max(most, len(now))
        if not lost(now) <= risk:
            raise Wrong(f"{says}, which can lose {lost(now):.3f}")
        if len(free) and not len(now):
            raise Wrong(f"{says}, and the surest one loses nothing")
    if most < 4:
        raise Wrong("never four places of a row are revealed, even at the risk 1.0")


@check("adaptive", 3, "no place waits that the risk allows, and rows do not heed each other")
def wastes_nothing(student, rng):
    for says, free, risk, now in passes_at_risk(student, rng):
        allowed = [len(M) for M in sets_of(len(free)) if lost(free[M]) <= risk]
        same(len(now), max(allowed, default=0), f"{says}, which are")


# ---- drafts: confirm -----------------------------------------------------------------------------

def drawn_from(laws, N, rng):
    """Tokens (N, m), each column by a law of laws (m, V)."""
    return (uniform(rng, N, len(laws), 1) > laws.cumsum(dim=1)[:, :-1]).sum(dim=2)


def drafts(student, rng):
    """Yields what to say of a row, laws q and p (m, V) of drafts and of one token a pass, what
    `confirm` makes of N drafts, tokens (N, m+1), and how many of these are final (N,)."""
    N = 10_000
    every_q = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]])
    every_p = torch.tensor([[0.4, 0.2, 0.4], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])
    for m in 1, 2, 3:
        q, p = every_q[:m], every_p[:m]
        draft = drawn_from(q, N, rng)                                           # (N, m)
        # Every other row has laws of its own, and does not count. The weights need not sum to 1.
        other = torch.arange(N)[:, None, None] % 2 == 1                         # (N, 1, 1)
        weights = [torch.where(other, law.flip(1), law) for law in (p * 0.9, q * 0.8)]
        given = [told(weight[0]) for weight in weights]
        says = f"rows of the weights p = {given[0]} and q = {given[1]}, among others: "
        found = student("samplers.drafts.confirm", *weights, draft, uniform(rng, N, m))
        tokens, count = listed(found, 2, "the tensors that confirm returns")
        count = shaped(count, N, 1, what="confirm: count", below=m + 2)
        # What is not final is drawn one token at a time.
        later = drawn_from(p, N, rng)                                           # (N, m)
        tokens = shaped(tokens, N, m + 1, what="confirm: tokens")
        tokens = tokens.where(torch.arange(m + 1) < count, F.pad(later, (1, 0)))
        tokens = shaped(tokens, N, m + 1, what="confirm: tokens", below=V)
        yield says, q, p, tokens[::2], count[::2, 0]


@check("drafts", 4, "the tokens follow the law of one token a pass")
def keeps_the_law(student, rng):
    for says, q, p, tokens, count in drafts(student, rng):
        law = q[0]
        for next_law in p:
            law = torch.kron(law, next_law)
        follows(numbers(tokens), law,
                lambda cell: f"{says}{told(texts(len(p) + 1)[cell])} comes")
    if count.double().mean() < 2.5:     # of 2.96
        raise Wrong("hardly any draft but the first is kept")


@check("drafts", 2, "drafts are kept as often as the law allows")
def keeps_its_drafts(student, rng):
    for says, q, p, _, count in drafts(student, rng):
        kept = F.pad(torch.minimum(q[1:], p[:-1]).sum(dim=1), (1, 0), value=1.0).cumprod(dim=0)
        chance = kept - F.pad(kept[1:], (0, 1))         # that these are the last ones kept (m,)
        follows(count - 2, chance, lambda cell: f"{says}{cell + 1} drafts are kept")
