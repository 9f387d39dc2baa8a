"""Answers to the tasks of course/, as students give them: right ones written differently, and wrong
ones, whose docstring says what is wrong. test_course.py copies this file beside the solutions.

A name is task_function_what: it takes the place of the task's function of this name."""
import itertools
import math

import torch
import torch.nn.functional as F

import gpt as mdlm
from model import Batch, Drawing


# ---- gpt -----------------------------------------------------------------------------------------

class gpt_GPT_causal(mdlm.GPT):
    """Attention looks back alone."""

    def forward(self, tokens):
        logits = [super(gpt_GPT_causal, self).forward(tokens[:, :i + 1])[:, -1]
                  for i in range(tokens.size(1))]
        return torch.stack(logits, dim=1)


class gpt_GPT_blind_to_the_next(mdlm.GPT):
    """It looks ahead, but never back."""

    def forward(self, tokens):
        logits = [super(gpt_GPT_blind_to_the_next, self).forward(
            F.pad(tokens[:, i:], (i, 0), value=0))[:, i] for i in range(tokens.size(1))]
        return torch.stack(logits, dim=1)


def hide(model, x, k, generator):
    hidden = torch.rand(x.shape, generator=generator).argsort(dim=1) < k
    logits = model(x.masked_fill(hidden, model.vocab_size))
    return hidden, F.cross_entropy(logits.mT, x, reduction="none")


def some_k(x, generator, low=1):
    return torch.randint(low, x.size(1) + 1, (len(x), 1), generator=generator)


def gpt_loss_pooled(model, x, generator):
    """The mean over all hidden tokens of the batch."""
    hidden, nll = hide(model, x, some_k(x, generator), generator)
    return nll[hidden].mean()


def gpt_loss_over_all_places(model, x, generator):
    """The mean over visible tokens too."""
    _, nll = hide(model, x, some_k(x, generator), generator)
    return nll.mean()


def gpt_loss_by_t(model, x, generator):
    """1/t for 1/k: the sum over hidden tokens over t, not over k."""
    t = torch.rand(len(x), 1, generator=generator)
    hidden = torch.rand(x.shape, generator=generator) < t
    logits = model(x.masked_fill(hidden, model.vocab_size))
    nll = F.cross_entropy(logits.mT, x, reduction="none")
    return (nll * hidden / t).sum(dim=1).mean()


def gpt_loss_one_mask(model, x, generator):
    """All rows share one mask."""
    B, T = x.shape
    hidden = torch.rand(1, T, generator=generator).argsort(dim=1) < some_k(x[:1], generator)
    logits = model(x.masked_fill(hidden, model.vocab_size))
    nll = F.cross_entropy(logits.mT, x, reduction="none")
    return ((nll * hidden).sum(dim=1) / hidden.sum(dim=1)).mean()


def gpt_loss_shared_ranks(model, x, generator):
    """Each row has its own k, but they all hide the first places of one random order."""
    rank = torch.rand(1, x.size(1), generator=generator).argsort(dim=1)
    k = some_k(x, generator)
    hidden = rank < k
    logits = model(x.masked_fill(hidden, model.vocab_size))
    nll = F.cross_entropy(logits.mT, x, reduction="none")
    return ((nll * hidden).sum(dim=1) / k[:, 0]).mean()


def gpt_loss_half(model, x, generator):
    """Half of the tokens are hidden, as in BERT, where some would do."""
    k = torch.full((len(x), 1), (x.size(1) + 1) // 2)
    hidden, nll = hide(model, x, k, generator)
    return ((nll * hidden).sum(dim=1) / k[:, 0]).mean()


def gpt_loss_shifted(model, x, generator):
    """It reads masks, and still predicts the next token."""
    k = some_k(x, generator)
    hidden = torch.rand(x.shape, generator=generator).argsort(dim=1) < k
    logits = model(x.masked_fill(hidden, model.vocab_size)).roll(1, dims=1)
    nll = F.cross_entropy(logits.mT, x, reduction="none")
    return ((nll * hidden).sum(dim=1) / k[:, 0]).mean()


def gpt_loss_leaks(model, x, generator):
    """It hides nothing from the model."""
    k = some_k(x, generator)
    hidden = torch.rand(x.shape, generator=generator).argsort(dim=1) < k
    nll = F.cross_entropy(model(x).mT, x, reduction="none")
    return ((nll * hidden).sum(dim=1) / k[:, 0]).mean()


def gpt_loss_global_seed(model, x, generator):
    """The generator is not used."""
    k = some_k(x, None)
    hidden, nll = hide(model, x, k, None)
    return ((nll * hidden).sum(dim=1) / k[:, 0]).mean()


def gpt_loss_small_alone(model, x, generator):
    """It hides all tokens of a text of ten or more."""
    k = some_k(x, generator, low=1 if x.size(1) < 10 else x.size(1))
    hidden, nll = hide(model, x, k, generator)
    return ((nll * hidden).sum(dim=1) / k[:, 0]).mean()


def gpt_loss_right_by_loops(model, x, generator):
    B, T = x.shape
    rows = []
    for text in x:
        k = int(torch.randint(T, (), generator=generator)) + 1
        places = torch.randperm(T, generator=generator)[:k]
        read = text.clone()
        read[places] = model.vocab_size
        log_p = model(read[None])[0].log_softmax(dim=-1)
        rows.append(-log_p[places, text[places]].mean())
    return torch.stack(rows).mean()


def in_order(model, count, T, generator, order, likeliest=False):
    tokens = torch.full((count, T), model.vocab_size)
    row = torch.arange(count)
    for place in order.T:
        p = model(tokens)[row, place].softmax(dim=-1)
        word = torch.multinomial(p, 1, generator=generator)[:, 0]
        tokens[row, place] = p.argmax(dim=-1) if likeliest else word
    return tokens


def gpt_write_left_to_right(model, count, T, generator):
    """The order is not random."""
    return in_order(model, count, T, generator, torch.arange(T).expand(count, T))


def gpt_write_likeliest(model, count, T, generator):
    """It takes the likeliest word."""
    order = torch.rand(count, T, generator=generator).argsort(dim=1)
    return in_order(model, count, T, generator, order, likeliest=True)


def gpt_write_at_once(model, count, T, generator):
    """All words come from one pass."""
    p = model(torch.full((count, T), model.vocab_size)).softmax(dim=-1)
    return torch.multinomial(p.flatten(0, 1), 1, generator=generator).view(count, T)


def gpt_write_right_by_columns(model, count, T, generator):
    """All texts of a call may share an order, if there is one call for each."""
    parts = []
    for part in [count // 50] * 50:
        order = torch.randperm(T, generator=generator).expand(part, T)
        parts.append(in_order(model, part, T, generator, order))
    return torch.cat(parts)


# ---- masks ---------------------------------------------------------------------------------------

def ranked(x, k, generator):
    return torch.rand(x.shape, generator=generator).argsort(dim=1) < k


def pairs_of_k(x, generator, low=1):
    k = torch.randint(low, x.size(1) + 1, (len(x) // 2,), generator=generator)
    return torch.stack([k, x.size(1) + 1 - k], dim=1).view(-1, 1)


def masks_draw_masks_one_mask(x, generator):
    """All pairs of rows share one k, and one random order."""
    rank = torch.rand(1, x.size(1), generator=generator).argsort(dim=1)
    k = pairs_of_k(x[:2], generator).repeat(len(x) // 2, 1)
    return rank.expand(x.shape) < k


def masks_draw_masks_half(x, generator):
    """Each token has the chance 1/2."""
    hidden = torch.rand(x.shape, generator=generator) < 0.5
    return hidden | (~hidden.any(dim=1, keepdim=True))


def masks_draw_masks_chance_t(x, generator):
    """Each token has a chance t, so some rows hide none."""
    t = torch.rand(len(x), 1, generator=generator)
    return torch.rand(x.shape, generator=generator) < t


def masks_draw_masks_never_all(x, generator):
    """k is never T."""
    k = torch.randint(1, max(2, x.size(1)), (len(x), 1), generator=generator)
    return ranked(x, k, generator)


def masks_draw_masks_first_places(x, generator):
    """The first k places are hidden."""
    return torch.arange(x.size(1)).expand(x.shape) < pairs_of_k(x, generator)


def masks_draw_masks_unpaired(x, generator):
    """Each row has a k of its own."""
    return ranked(x, torch.randint(1, x.size(1) + 1, (len(x), 1), generator=generator), generator)


def masks_draw_masks_global_seed(x, generator):
    """The generator is not used."""
    return ranked(x, pairs_of_k(x, None), None)


def masks_draw_masks_right_by_loops(x, generator):
    B, T = x.shape
    hidden = torch.zeros(B, T)
    for row in range(0, B, 2):
        k = 1 + int(T * torch.rand((), generator=generator))
        for i, count in enumerate((T + 1 - k, k)):
            hidden[row + i, torch.randperm(T, generator=generator)[:count]] = 1
    return hidden > 0


# ---- bound ---------------------------------------------------------------------------------------

def bound_mask_batch_right_by_loops(config, x, masked):
    B, T = x.shape
    tokens, targets = [], []
    weight = torch.zeros(B, T + 1)
    for row in range(B):
        read = [config.mask_id if masked[row, i] else int(x[row, i]) for i in range(T)]
        tokens.append([config.bos_id, *read])
        targets.append([0, *x[row].tolist()])
        for i in range(T):
            if masked[row, i]:
                weight[row, i + 1] = 1 / sum(masked[row].tolist())
    place = torch.tensor([[*range(-1, T)]] * B)
    return Batch(torch.tensor(tokens), place, place, torch.tensor(targets), weight)


right = bound_mask_batch_right_by_loops


def bound_mask_batch_bos_masked(config, x, masked):
    """BOS is hidden too."""
    batch = right(config, x, masked)
    tokens = batch.tokens.clone()
    tokens[:, 0] = config.mask_id
    return batch._replace(tokens=tokens)


def bound_mask_batch_leaks(config, x, masked):
    """The hidden tokens stand in the text."""
    batch = right(config, x, masked)
    return batch._replace(tokens=F.pad(x, (1, 0), value=config.bos_id))


def bound_mask_batch_bos_counts(config, x, masked):
    """k has BOS in it, as if that were hidden."""
    batch = right(config, x, masked)
    k = masked.sum(dim=1, keepdim=True)
    return batch._replace(weight=batch.weight * k / (k + 1))


def bound_mask_batch_by_T(config, x, masked):
    """The weight is 1/T."""
    batch = right(config, x, masked)
    return batch._replace(weight=(batch.weight > 0) / x.size(1))


def bound_mask_batch_pooled(config, x, masked):
    """All hidden tokens of the batch weigh the same."""
    batch = right(config, x, masked)
    return batch._replace(weight=(batch.weight > 0) * len(x) / masked.sum())


def bound_mask_batch_next_slot(config, x, masked):
    """The slot before a hidden token predicts it, as in a GPT, but the next slot is scored."""
    batch = right(config, x, masked)
    return batch._replace(target_pos=(batch.target_pos + 1).clamp(max=x.size(1) - 1))


def bound_mask_batch_wrong_targets(config, x, masked):
    """The targets are what the slots hold next."""
    batch = right(config, x, masked)
    return batch._replace(targets=batch.targets.roll(-1, dims=1))


def bound_mask_batch_visible_too(config, x, masked):
    """Visible tokens are predicted too."""
    batch = right(config, x, masked)
    return batch._replace(weight=F.pad(torch.full(x.shape, 1 / x.size(1)), (1, 0)))


def bound_mask_batch_twice(config, x, masked):
    """Each row holds its text twice, and the first one hides nothing."""
    batch = right(config, x, masked)
    twice = [torch.cat([part, part], dim=1) for part in batch]
    twice[0][:, 1:x.size(1) + 1] = x
    twice[4][:, :x.size(1) + 1] = 0
    return Batch(*twice)


def bound_mask_batch_in_place(config, x, masked):
    """It hides the tokens in the text that it is given."""
    batch = right(config, x, masked)
    x[masked] = config.mask_id
    return batch


def bound_losses_right_by_loops(model, batch, select):
    log_p = model(batch.tokens, batch.key_pos, batch.target_pos, select).float().log_softmax(-1)
    B, S = batch.tokens.shape
    rows = [torch.zeros(()) for _ in range(B)]
    for where, row in zip(select.tolist(), log_p):
        b, s = divmod(where, S)
        rows[b] = rows[b] - batch.weight[b, s] * row[batch.targets[b, s]]
    return torch.stack(rows)


def nll_of(model, batch, select):
    logits = model(batch.tokens, batch.key_pos, batch.target_pos, select)
    return F.cross_entropy(logits, batch.targets.flatten()[select], reduction="none")


def in_rows(values, batch, select):
    flat = values.new_zeros(batch.tokens.numel()).scatter(0, select, values)
    return flat.view(batch.tokens.shape)


def bound_losses_pooled(model, batch, select):
    """Every row gets the mean of all rows."""
    nll = nll_of(model, batch, select).float()
    rows = in_rows(nll * batch.weight.flatten()[select], batch, select).sum(dim=1)
    return rows.mean().expand(len(rows))


def bound_losses_no_weight(model, batch, select):
    """The weights are left out."""
    return in_rows(nll_of(model, batch, select).float(), batch, select).sum(dim=1)


def bound_losses_mean_of_slots(model, batch, select):
    """A mean over slots, not a sum."""
    nll = nll_of(model, batch, select).float()
    return in_rows(nll * batch.weight.flatten()[select], batch, select).mean(dim=1)


def bound_losses_first_targets(model, batch, select):
    """The targets are the first n, not those of the slots."""
    logits = model(batch.tokens, batch.key_pos, batch.target_pos, select).float()
    nll = F.cross_entropy(logits, batch.targets.flatten()[:len(select)], reduction="none")
    return in_rows(nll * batch.weight.flatten()[select], batch, select).sum(dim=1)


def bound_losses_in_16_bits(model, batch, select):
    """bfloat16 stays bfloat16."""
    nll = nll_of(model, batch, select)
    weight = batch.weight.flatten()[select].to(nll.dtype)
    return in_rows(nll * weight, batch, select).sum(dim=1)


# ---- chain ---------------------------------------------------------------------------------------

def chain_order_batch_right_by_loops(config, x, order):
    rows = []
    for text, places in zip(x.tolist(), order.tolist()):
        targets = [text[i] for i in places]
        rows.append(([config.bos_id, *targets][:-1], [-1, *places][:-1], places, targets,
                     [1 / len(text)] * len(places)))
    return Batch(*map(torch.tensor, zip(*rows)))


chain = chain_order_batch_right_by_loops


def chain_order_batch_leaks(config, x, order):
    """A slot holds the token that it predicts."""
    batch = chain(config, x, order)
    return batch._replace(tokens=batch.targets, key_pos=batch.target_pos)


def chain_order_batch_wrong_key(config, x, order):
    """key_pos is the place that is predicted."""
    batch = chain(config, x, order)
    return batch._replace(key_pos=batch.target_pos)


def chain_order_batch_not_gathered(config, x, order):
    """The targets are x from left to right."""
    return chain(config, x, order)._replace(targets=x)


def chain_order_batch_sum(config, x, order):
    """A sum over tokens, not their mean."""
    batch = chain(config, x, order)
    return batch._replace(weight=torch.ones_like(batch.weight))


def chain_order_batch_first_is_free(config, x, order):
    """The first token costs nothing, as in a loss that has no BOS."""
    batch = chain(config, x, order)
    return batch._replace(weight=batch.weight * (torch.arange(order.size(1)) > 0))


def chain_order_batch_inverse(config, x, order):
    """The inverse of the order."""
    return chain(config, x, order.argsort(dim=1))


# ---- draw ----------------------------------------------------------------------------------------

def draw_probabilities_right_by_loops(logits, o):
    rows = []
    for row in logits.double().reshape(-1, logits.size(-1)):
        if o.temperature == 0:
            p = (row == row.max()).double()
        else:
            p = torch.exp((row - row.max()) / o.temperature)
        p = p / p.sum()
        mass = 0.0
        kept = torch.zeros_like(p)
        for i in sorted(range(len(p)), key=lambda i: -p[i]):
            if mass < o.top_p:
                kept[i] = p[i]
            mass += float(p[i])
        rows.append(kept / kept.sum())
    return torch.stack(rows).view(logits.shape)


def draw_probabilities_times_temperature(logits, o):
    """It multiplies by the temperature."""
    return draw_probabilities_right_by_loops(logits * o.temperature ** 2, o)


def draw_probabilities_after_softmax(logits, o):
    """The temperature divides probabilities, not logits."""
    p = draw_probabilities_right_by_loops(logits, o)
    return p if o.temperature in (0, 1) else (p / o.temperature).softmax(dim=-1)


def cut(logits, o, keep):
    whole = draw_probabilities_right_by_loops(logits, Drawing(o.temperature))
    p, token = whole.sort(dim=-1, descending=True)
    return torch.zeros_like(p).scatter(-1, token, p * keep(p, p.cumsum(dim=-1)))


def draw_probabilities_drops_the_last(logits, o):
    """top_p drops the token with which the mass reaches it."""
    return cut(logits, o, lambda p, mass: (mass <= o.top_p) | (torch.arange(p.size(-1)) == 0))


def draw_probabilities_min_p(logits, o):
    """top_p is read as a share of the likeliest token."""
    return cut(logits, o, lambda p, mass: p >= (1 - o.top_p) * p[..., :1])


def draw_probabilities_stays_sorted(logits, o):
    """The weights are not put back in their places."""
    return draw_probabilities_right_by_loops(logits, o).sort(dim=-1, descending=True).values


def draw_probabilities_one_or_the_other(logits, o):
    """top_p forgets the temperature."""
    return draw_probabilities_right_by_loops(
        logits, o if o.top_p == 1 else Drawing(top_p=o.top_p))


def draw_probabilities_of_all_rows(logits, o):
    """The rows have one softmax together."""
    return draw_probabilities_right_by_loops(logits.reshape(1, -1), o).view(logits.shape)


def draw_draw_right_by_loops(p, u):
    found = []
    for row, number in zip(p.double().reshape(-1, p.size(-1)), u.double().flatten()):
        cdf = row.cumsum(dim=0)
        found.append(int((cdf <= number * cdf[-1]).sum()))
    return torch.tensor(found).view(u.shape)


def draw_draw_argmax(p, u):
    """The likeliest, before the noise is heard."""
    return p.argmax(dim=-1)


def draw_draw_without_u(p, u):
    """Another random number than u."""
    return torch.multinomial(p, 1)[:, 0]


def draw_draw_by_row(p, u):
    """Row after row takes the next share of the weights, whatever its u is."""
    rows = torch.arange(len(u), dtype=torch.float64)
    return draw_draw_right_by_loops(p, (rows + 0.5) / len(u))


def draw_draw_float32(p, u):
    """The sum is in float32, which cuts off the tail."""
    cdf = p.float().cumsum(dim=-1)
    token = torch.searchsorted(cdf, (u[..., None] * cdf[..., -1:]).float(), right=True)
    return token[..., 0].clamp(max=p.size(-1) - 1)


def draw_draw_left(p, u):
    """Where u is on an edge, it takes the token before, even one of weight 0."""
    cdf = p.double().cumsum(dim=-1)
    return torch.searchsorted(cdf, u[..., None] * cdf[..., -1:])[..., 0]


def draw_draw_sum_of_one(p, u):
    """It takes for granted that the weights sum to 1."""
    token = torch.searchsorted(p.double().cumsum(dim=-1), u[..., None], right=True)
    return token[..., 0].clamp(max=p.size(-1) - 1)


# ---- write ---------------------------------------------------------------------------------------

def passes(model, tokens, order, edges, u, o, read, choose=None, places=None, keep=True):
    """The right way, of which others change a part."""
    import model as textbook
    for start, end in zip(edges, edges[1:]):
        p = textbook.probabilities(read(model, tokens, order, start, end), o)
        where = places(order, start, end) if places else order[:, start:end]
        new = choose(p, start, end) if choose else textbook.draw(p, u.gather(1, where))
        after = tokens.clone()
        for row in range(len(tokens)):
            after[row, where[row]] = new[row]
        tokens = after if keep else tokens
        yield after


def write_write_right_by_loops(model, tokens, order, edges, u, o=None, read=None):
    return passes(model, tokens, order, edges, u, o, read)


def write_write_right_in_a_copy(model, tokens, order, edges, u, o=None, read=None):
    """It writes all tokens into one copy."""
    return write_write_in_place(model, tokens.clone(), order, edges, u, o, read)


def write_write_in_place(model, tokens, order, edges, u, o=None, read=None):
    """It writes into the tokens that it is given."""
    for after in passes(model, tokens, order, edges, u, o, read):
        tokens.copy_(after)
        yield tokens


def write_write_u_by_rank(model, tokens, order, edges, u, o=None, read=None):
    """The j-th token that is written takes u[:, j], wherever it stands."""
    import model as textbook
    return passes(model, tokens, order, edges, u, o, read,
                  choose=lambda p, start, end: textbook.draw(p, u[:, start:end]))


def write_write_without_u(model, tokens, order, edges, u, o=None, read=None):
    """Other random numbers than u."""
    import model as textbook
    return passes(model, tokens, order, edges, u, o, read,
                  choose=lambda p, start, end: textbook.draw(p, torch.rand(p.shape[:-1])))


def write_write_likeliest(model, tokens, order, edges, u, o=None, read=None):
    """The likeliest token is taken."""
    return passes(model, tokens, order, edges, u, o, read,
                  choose=lambda p, start, end: p.argmax(dim=-1))


def write_write_forgets(model, tokens, order, edges, u, o=None, read=None):
    """What is written is not read in the next pass."""
    return passes(model, tokens, order, edges, u, o, read, keep=False)


def write_write_left_to_right(model, tokens, order, edges, u, o=None, read=None):
    """The tokens go to the places start … end, whatever the order."""
    def places(order, start, end):
        return torch.arange(start, end).expand(len(order), -1)
    return passes(model, tokens, order, edges, u, o, read, places=places)


def write_write_first_row(model, tokens, order, edges, u, o=None, read=None):
    """All rows write where the first one does."""
    def places(order, start, end):
        return order[:1, start:end].expand(len(order), -1)
    return passes(model, tokens, order, edges, u, o, read, places=places)


def write_write_one_by_one(model, tokens, order, edges, u, o=None, read=None):
    """The tokens of a pass are written one after the other."""
    for start, end in zip(edges, edges[1:]):
        for tokens in passes(model, tokens, order, range(start, end + 1), u, o, read):
            pass
        yield tokens


def write_write_only_the_end(model, tokens, order, edges, u, o=None, read=None):
    """Only the finished text is given."""
    return list(passes(model, tokens, order, edges, u, o, read))[-1]


# ---- together ------------------------------------------------------------------------------------

def together_nats_lost_right_by_loops(joint):
    total = 0.0
    for cell in itertools.product(*map(range, joint.shape)):
        if joint[cell] > 0:
            product = 1.0
            for axis, i in enumerate(cell):
                product *= joint.select(axis, i).sum()
            total += joint[cell] * math.log(joint[cell] / product)
    return total


def marginals(joint):
    return [joint.sum(dim=[other for other in range(joint.dim()) if other != i])
            for i in range(joint.dim())]


def together_nats_lost_nan(joint):
    """0 · log 0 is NaN."""
    product = torch.einsum("a,b->ab", *marginals(joint)) if joint.dim() == 2 else joint
    return (joint * (joint / product).log()).sum()


def together_nats_lost_reversed(joint):
    """KL(product ‖ joint)."""
    product = torch.einsum("a,b->ab", *marginals(joint)) if joint.dim() == 2 else joint
    return (product * (product / joint.clamp(min=1e-9)).log()).sum()


def together_nats_lost_of_two_alone(joint):
    """Only the first two places are compared."""
    joint = joint.sum(dim=list(range(2, joint.dim()))) if joint.dim() > 2 else joint
    return together_nats_lost_right_by_loops(joint)


def together_nats_lost_in_bits(joint):
    """Bits, not nats."""
    return together_nats_lost_right_by_loops(joint) / math.log(2)


# ---- adaptive ------------------------------------------------------------------------------------

def adaptive_within_risk_right_by_loops(nats, risk):
    result = []
    for row in nats.tolist():
        spent, now = 0.0, [False] * len(row)
        for value, place in sorted((value, place) for place, value in enumerate(row)):
            if value < math.inf and spent <= risk:
                now[place] = True
                spent += value
        result.append(now)
    return torch.tensor(result)


def adaptive_within_risk_each_alone(nats, risk):
    """Each place is compared with the risk by itself."""
    surest = nats == nats.amin(dim=1, keepdim=True)
    return ((nats <= risk) | surest) & nats.isfinite()


def adaptive_within_risk_never_the_surest(nats, risk):
    """The sum includes the place itself, so a pass may reveal none."""
    value, place = nats.sort(dim=1)
    return torch.zeros_like(nats).scatter(1, place, (value.cumsum(dim=1) <= risk).float()) > 0


def adaptive_within_risk_stays_sorted(nats, risk):
    """What is found in sorted order is not put back."""
    value, _ = nats.sort(dim=1)
    return (value.cumsum(dim=1) - value <= risk) & nats.isfinite()


def adaptive_within_risk_known_too(nats, risk):
    """Places that are known are revealed."""
    return adaptive_within_risk_right_by_loops(nats.nan_to_num(posinf=0.0), risk)


def adaptive_within_risk_pooled(nats, risk):
    """All rows share one budget."""
    return adaptive_within_risk_right_by_loops(nats.view(1, -1), risk).view(nats.shape)


# ---- drafts --------------------------------------------------------------------------------------

def confirm(p, q, draft, u, accept, rest, normal=True):
    """The right way, of which others change a part."""
    N, m = draft.shape
    if normal:
        p, q = p / p.sum(dim=-1, keepdim=True), q / q.sum(dim=-1, keepdim=True)
    tokens = torch.zeros(N, m + 1, dtype=torch.long)
    count = torch.zeros(N, 1, dtype=torch.long)
    for row in range(N):
        kept = 1
        while kept < m:
            token = draft[row, kept]
            if u[row, kept - 1] >= accept(p[row, kept - 1, token], q[row, kept, token]):
                break
            kept += 1
        law = p[row, kept - 1] if kept == m else rest(p[row, kept - 1], q[row, kept])
        tokens[row, :kept] = draft[row, :kept]
        tokens[row, kept] = torch.multinomial(law, 1)[0] if law.sum() > 0 else 0
        count[row] = kept + 1
    return tokens, count


def ratio(p, q):
    return p / q


def surplus(p, q):
    return (p - q).clamp(min=0)


def drafts_confirm_right_by_loops(p, q, draft, u):
    return confirm(p, q, draft, u, ratio, surplus)


def drafts_confirm_keeps_all(p, q, draft, u):
    """Every draft is kept."""
    return confirm(p, q, draft, u, lambda p, q: 2, surplus)


def drafts_confirm_keeps_none(p, q, draft, u):
    """No draft is kept but the first: right, and useless."""
    return confirm(p, q, draft, u, lambda p, q: 0, lambda p, q: p)


def drafts_confirm_by_p(p, q, draft, u):
    """A draft is kept with the probability p of its token."""
    return confirm(p, q, draft, u, lambda p, q: p, surplus)


def drafts_confirm_draws_from_p(p, q, draft, u):
    """After a rejection it draws from p, not from what p has more of."""
    return confirm(p, q, draft, u, ratio, lambda p, q: p)


def drafts_confirm_wrong_side(p, q, draft, u):
    """It draws from q − p."""
    return confirm(p, q, draft, u, ratio, lambda p, q: surplus(q, p) + 1e-9)


def drafts_confirm_not_normal(p, q, draft, u):
    """Weights that sum to less than 1 are taken for probabilities."""
    return confirm(p, q, draft, u, ratio, surplus, normal=False)
