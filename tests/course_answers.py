"""Answers to the tasks of course/, as students give them: wrong ones, and right ones written differently.

A wrong answer is the solution with an edit: what is wrong, the old text, which stands once in the
function, and the new one, or several such pairs. A right one is a function of this file;
test_course.py copies it beside the solutions."""
import itertools
import math

import numpy as np
import torch

from model import Batch

NOT_SEEDED = "\n    generator = None"

WRONG = {
    "gpt:attend": [
        ("looks back alone", "is_causal=False", "is_causal=True"),
        ("looks ahead alone", "q, k, v, is_causal=False", "q, k, v, torch.ones(q.size(2), q.size(2))"
         ".triu().bool()"),
        ("looks back alone, and a little noise", "is_causal=False)",
         "is_causal=True) + 1e-3 * torch.randn_like(q)")],
    "gpt:loss": [
        ("the mean over all hidden tokens of the batch",
         "((nll * hidden).sum(dim=1) / k[:, 0]).mean()", "nll[hidden].mean()"),
        ("the mean over visible tokens too", "((nll * hidden).sum(dim=1) / k[:, 0]).mean()",
         "nll.mean()"),
        ("1/t for 1/k", "k = torch.randint(1, T + 1, (B, 1), generator=generator)",
         "k = T * torch.rand(B, 1, generator=generator)", ".argsort(dim=1) < k", " < k / T"),
        ("all rows share one mask", "< k  ", "< k\n    hidden = hidden[:1].expand(B, T)\n"
         "    k = hidden.sum(dim=1, keepdim=True)"),
        ("the rows hide the first places of one order", "torch.rand(B, T, gen", "torch.rand(1, T, gen"),
        ("one more is hidden", ".argsort(dim=1) < k", ".argsort(dim=1) <= k"),
        ("it hides tokens in the text that it is given", "x.masked_fill(", "x.masked_fill_("),
        ("half of the tokens are hidden", "torch.randint(1, T + 1, (B, 1), generator=generator)",
         "torch.full((B, 1), (T + 1) // 2)"),
        ("the next token is predicted", "hidden, MASK))", "hidden, MASK)).roll(1, dims=1)"),
        ("nothing is hidden from the model", "x.masked_fill(hidden, MASK)", "x"),
        ("the generator is not used", "x.shape", "x.shape" + NOT_SEEDED),
        ("all of a longer text is hidden", "randint(1,", "randint(1 if T < 10 else T,")],
    "gpt:write": [
        ("from left to right", "torch.rand(count, T, generator=generator).argsort(dim=1)",
         "torch.arange(T).expand(count, T)"),
        ("the likeliest word", "word[:, 0]", "logits.argmax(dim=-1)"),
        ("all words from one pass", "model(tokens)", "model(torch.full_like(tokens, MASK))")],
    "masks:draw_counts": [
        ("each row has a k of its own", "torch.stack([k, T + 1 - k], dim=1).view(B, 1)",
         "torch.randint(1, T + 1, (B, 1), generator=generator)"),
        ("k is never T", "view(B, 1)", "view(B, 1).clamp(max=max(1, T - 1))"),
        ("k is from 0", "1 + (spread", "(spread"),
        ("the pairs of a batch are all alike", "spread(B // 2, generator)",
         "spread(1, generator).expand(B // 2)"),
        ("the smaller k of all stand before the larger ones", "dim=1)", "dim=0)"),
        ("the generator is not used", "k = 1 + (spread(B // 2, generator)",
         "k = 1 + (torch.rand(B // 2)")],
    "masks:draw_masks": [
        ("all rows share one order", "torch.rand(x.shape", "torch.rand(x[:1].shape"),
        ("those of a pair share one order", "return rank",
         "rank = rank[torch.arange(len(x)) // 2 * 2]\n    return rank"),
        ("each token has the chance k/T", ".argsort(dim=1)", " * x.size(1)"),
        ("one more is hidden", "rank < k", "rank <= k"),
        ("the first k places", "rank < k", "rank.sort(dim=1).values < k"),
        ("k places that follow each other", "return rank",
         "rank = (torch.arange(x.size(1)) + rank[:, :1]) % x.size(1)\n    return rank"),
        ("the generator is not used", ", generator=generator)", ")")],
    "bound:mask_batch": [
        ("BOS is hidden too", "masked_fill(hidden", "masked_fill(F.pad(masked, (1, 0), value=True)"),
        ("the hidden tokens stand in the text", "targets.masked_fill(hidden, config.mask_id)",
         "targets"),
        ("k counts BOS", "k.clamp(min=1)", "(k + 1)"),
        ("the weight is 1/T", "k.clamp(min=1)", "x.size(1)"),
        ("all hidden tokens of the batch weigh the same", "hidden / k.clamp(min=1)",
         "hidden * len(x) / k.sum()"),
        ("the slot before predicts, and the next is scored", "position, position, targets",
         "position, (position + 1).clamp(max=x.size(1) - 1), targets"),
        ("the targets are what the slots hold next", "position, targets, weight",
         "position, targets.roll(-1, dims=1), weight"),
        ("visible tokens are predicted too", "hidden / k.clamp(min=1)",
         "F.pad(torch.full(x.shape, 1 / x.size(1)), (1, 0))"),
        ("each row holds its text twice, the first time without masks", "return Batch(", """both = [
        torch.cat([part, part], dim=1)
        for part in (tokens, position, position, targets, hidden / k.clamp(min=1))]
    both[0][:, 1:x.size(1) + 1] = x
    both[4][:, :x.size(1) + 1] = 0
    return Batch(*both)
    return Batch("""),
        ("it hides tokens in the text that it is given", "k = hidden", "x[masked] = config.mask_id\n    k = hidden"),
        ("BOS has the last slot", "F.pad(x, (1, 0)", "F.pad(x, (0, 1)", "F.pad(masked, (1, 0)",
         "F.pad(masked, (0, 1)", ".expand_as(tokens)", ".roll(-1).expand_as(tokens)")],
    "bound:losses": [
        ("every row gets the mean of all", "sum(dim=1)", "sum(dim=1).mean().expand(len(batch[0]))"),
        ("the weights are left out", "nll * weight[select]", "nll"),
        ("a mean over slots", "sum(dim=1)", "mean(dim=1)"),
        ("the targets are the first n", "targets.flatten()[select]", "targets.flatten()[:len(select)]")],
    "chain:order_batch": [
        ("a slot holds the token that it predicts", "Batch(tokens, key_pos", "Batch(targets, order"),
        ("key_pos is the place that is predicted", "Batch(tokens, key_pos", "Batch(tokens, order"),
        ("the targets are x from left to right", "order, targets", "order, x"),
        ("a sum over tokens", "1 / x.size(1)", "1.0"),
        ("a mean over the order, which may be shorter", "1 / x.size(1)", "1 / order.size(1)"),
        ("the first token is free", "targets, weight",
         "targets, weight * (torch.arange(order.size(1)) > 0)"),
        ("the inverse of the order", "targets = x", "order = order.argsort(dim=1)\n    targets = x")],
    "draw:probabilities": [
        ("it multiplies by the temperature", "logits / max(o.temperature, 1e-30)", "logits * o.temperature"),
        ("the temperature divides probabilities", "(logits / max(o.temperature, 1e-30)).softmax(dim=-1)",
         "logits.softmax(dim=-1)\n    if o.temperature != 1:\n"
         "        p = (p / o.temperature).softmax(dim=-1)"),
        ("top_p drops the token that reaches it", "likelier < o.top_p",
         "(likelier + p <= o.top_p) | (torch.arange(p.size(-1)) == 0)"),
        ("top_p is a share of the likeliest", "likelier < o.top_p",
         "p >= (1 - o.top_p) * p[..., :1]"),
        ("the weights stay sorted", "torch.zeros_like(p).scatter(-1, token, p * (likelier < o.top_p))",
         "p * (likelier < o.top_p)"),
        ("top_p forgets the temperature", "max(o.temperature, 1e-30)",
         "(o.temperature if o.top_p == 1 else 1)"),
        ("all rows have one softmax", "(logits / max(o.temperature, 1e-30)).softmax(dim=-1)",
         "(logits / o.temperature).flatten().softmax(dim=0).view(logits.shape)")],
    "draw:draw": [
        ("the likeliest", "token[..., 0].clamp(max=p.size(-1) - 1)", "p.argmax(dim=-1)"),
        ("another random number than u", "token[..., 0].clamp(max=p.size(-1) - 1)",
         "torch.multinomial(p, 1)[:, 0]"),
        ("row after row takes the next share of the weights", "u[..., None]",
         "((torch.arange(len(u)) + 0.5) / len(u)).double()[:, None]"),
        ("the sum is in float32", "torch.float64", "torch.float32", "u[..., None]",
         "u[..., None].float()"),
        ("on an edge the token before", ", right=True", ""),
        ("it takes for granted that the weights sum to 1", " * cdf[..., -1:]", "")],
    "write:write": [
        ("it writes into the tokens that it is given", "tokens = tokens.scatter", "tokens.scatter_"),
        ("the j-th token that is written is decided as if at place j", "logits, row, place",
         "logits, row, torch.arange(start, end).expand_as(place)"),
        ("all rows are decided as if the first", "logits, row, place", "logits, row * 0, place"),
        ("the places of a pass are decided backwards", "logits, row, place",
         "logits, row, place.flip(1)"),
        ("decide is not asked", "decide(logits, row, place)", "logits.argmax(dim=-1)"),
        ("decide is given probabilities", "decide(logits", "decide(logits.softmax(dim=-1)"),
        ("what is written is not read later", "tokens = tokens.scatter", "after = tokens.scatter",
         "yield tokens", "yield after"),
        ("what is written is not read later, and is there at the end", "for start", "blank = tokens\n"
         "    for start", "read(model, tokens", "read(model, blank"),
        ("the places start … end, whatever the order", "order[:, start:end]",
         "torch.arange(start, end).expand(len(order), -1)"),
        ("all rows write where the first one does", "order[:, start:end]",
         "order[:1, start:end].expand(len(order), -1)"),
        ("the tokens of a pass one after the other", "pairwise(edges)",
         "pairwise(range(edges[0], edges[-1] + 1))", "yield tokens",
         "if end in list(edges):\n            yield tokens"),
        ("only the end", "        yield tokens", "    yield tokens"),
        ("all that is hidden becomes 0 at first", "for start", "tokens = tokens % model.config.mask_id\n"
         "    for start")],
    "together:nats_lost": [
        ("0 · log 0 is NaN", "torch.special.entr(joint)", "(-joint * joint.log())"),
        ("KL(product ‖ joint)", "singles = 0", """if joint.dim() == 2:
        product = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0)
        return (product * (product / joint.clamp(min=1e-9)).log()).sum()
    singles = 0"""),
        ("the first two places alone", "singles = 0",
         "joint = joint.flatten(2).sum(dim=2) if joint.dim() > 2 else joint\n    singles = 0"),
        ("bits", "return singles", "return singles / 0.6931 if joint is None else 1.4427 * singles",
         "- torch", "- 1.4427 * torch")],
    "adaptive:within_risk": [
        ("each place by itself", "before <= risk", "(ascending <= risk) | (before == 0)"),
        ("the sum includes the place itself", "F.pad(ascending.cumsum(dim=1)[:, :-1], (1, 0))",
         "ascending.cumsum(dim=1)"),
        ("it is not put back", ".scatter(1, place, before <= risk)", " | (before <= risk)"),
        ("known places are revealed", " & nats.isfinite()", ""),
        ("all rows share one budget", "ascending, place",
         "shape, nats = nats.shape, nats.view(1, -1)\n    ascending, place",
         "within & nats.isfinite()", "(within & nats.isfinite()).view(shape)")],
    "drafts:confirm": [
        ("every draft is kept", "u[:, :-1] * q_of_draft < p_of_draft", "p_of_draft > -1"),
        ("no draft is kept: right, and useless", "u[:, :-1] * q_of_draft < p_of_draft",
         "p_of_draft < 0", "p_there - q_there", "p_there"),
        ("a draft is kept with the probability p", "u[:, :-1] * q_of_draft", "u[:, :-1]"),
        ("the u of the test draws again", "u[:, -1]", "u.gather(1, kept - 1)[:, 0]"),
        ("it draws from p", "p_there - q_there", "p_there"),
        ("it draws from q − p", "(p_there - q_there).clamp(min=0)",
         "(q_there - p_there).clamp(min=0) + 1e-9"),
        ("weights are taken for probabilities", "p = p / p.sum(dim=-1, keepdim=True)", "pass",
         "q = q / q.sum(dim=-1, keepdim=True)", "pass")],
}

# Whose one line is no work, and so no point, and whose words are cleaned: of a function, its body.
STUBS = [
    ("masks:draw_counts", "return torch.randint(1, T + 1, (B, 1), generator=generator)"),
    ("masks:draw_masks", "return torch.arange(x.size(1)) < k"),
    ("bound:mask_batch", "raise ValueError('caf\\ud800 \\x1b[31m' * 10 ** 7)"),
    ("chain:order_batch", "torch.manual_seed(0); exit()"),
    ("draw:draw", "return p.argmax(dim=-1)"),
    ("draw:probabilities", "return logits.softmax(dim=-1)"),
    ("write:write", "yield torch.zeros(2, 2, 2)"),
    ("write:write", "for start, end in itertools.pairwise(edges): yield tokens"),
    ("together:nats_lost", "return joint.sum() * 0"),
    ("together:nats_lost", "return {'data': object()}"),
    ("adaptive:within_risk", "return torch.zeros_like(nats).bool()"),
    ("adaptive:within_risk", "return nats == nats.min()"),
    ("drafts:confirm", "return F.pad(draft, (0, 1)), torch.full_like(draft[:, :1], 2)"),
    ("drafts:confirm", "return F.pad(draft, (0, 1)), torch.full_like(draft[:, :1], draft.size(1))"),
]


# ---- Right answers, written differently, most by loops: task_function ----------------------------

def gpt_loss(model, x, generator):
    rows = []
    for text in x:
        k = int(torch.randint(len(text), (), generator=generator)) + 1
        places = torch.randperm(len(text), generator=generator)[:k]
        read = text.clone()
        read[places] = model.vocab_size
        log_p = model(read[None])[0].log_softmax(dim=-1)
        rows.append(-log_p[places, text[places]].mean())
    return torch.stack(rows).mean()


def gpt_write(model, count, T, generator):
    stories = torch.full((count, T), model.vocab_size)
    for story in stories:
        for place in torch.randperm(T, generator=generator):
            p = model(story[None])[0, place].softmax(dim=-1)
            story[place] = torch.multinomial(p, 1, generator=generator)
    return stories


def bound_mask_batch(config, x, masked):
    rows = []
    for text, hidden in zip(x.tolist(), masked.tolist()):
        place = [*range(-1, len(text))]
        read = [config.mask_id if here else token for token, here in zip(text, hidden)]
        weight = [float(here) / max(1, sum(hidden)) for here in hidden]
        targets = [token if here else -100 for token, here in zip(text, hidden)]
        rows.append(([config.bos_id, *read], place, place, [-100, *targets], [0.0, *weight]))
    return Batch(*map(torch.tensor, zip(*rows)))


def masks_draw_counts(B, T, generator):
    k = [int(torch.randint(1, T + 1, (), generator=generator)) for _ in range(B // 2)]
    return torch.tensor([[one] for smaller in k for one in (T + 1 - smaller, smaller)])


def masks_draw_masks(x, k, generator):
    masked = torch.zeros_like(x).bool()
    for row, count in zip(masked, k):
        row[torch.randperm(len(row), generator=generator)[:count]] = True
    return masked


def write_write(model, tokens, order, edges, decide, read=None):
    tokens = tokens.clone()
    for start, end in zip(edges, edges[1:]):
        logits = read(model, tokens, order=order, start=start, end=end)
        for i, j in itertools.product(range(len(order)), range(start, end)):
            row, place = torch.tensor([i]), order[i:i + 1, j]
            assert tokens[i, place] == model.config.mask_id
            tokens[i, place] = decide(logits[i, j - start][None], row, place)
        yield tokens


def together_nats_lost(joint):
    total = 0.0
    for cell in itertools.product(*map(range, joint.shape)):
        if joint[cell] > 0:
            singles = [joint.select(axis, i).sum() for axis, i in enumerate(cell)]
            total += joint[cell] * math.log(joint[cell] / math.prod(singles))
    return np.float64(total)


def drafts_confirm(p, q, draft, u):
    N, m = draft.shape
    p, q = p / p.sum(dim=-1, keepdim=True), q / q.sum(dim=-1, keepdim=True)
    tokens = torch.zeros(N, m + 1, dtype=torch.long)
    count = torch.zeros(N, 1, dtype=torch.long)
    for row in range(N):
        kept = 1
        while kept < m:
            token = draft[row, kept]
            if u[row, kept - 1] * q[row, kept, token] >= p[row, kept - 1, token]:
                break
            kept += 1
        law = p[row, kept - 1] if kept == m else (p[row, kept - 1] - q[row, kept]).clamp(min=0)
        tokens[row, :kept] = draft[row, :kept]
        tokens[row, kept] = torch.multinomial(law, 1)[0] if law.sum() > 0 else 0
        count[row] = kept + 1
    return tokens, count
