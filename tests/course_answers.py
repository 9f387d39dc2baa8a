"""Answers to the tasks of course/, as students give them: wrong ones, and right ones in other ways.

A wrong answer is the solution with an edit: what is wrong, the old text, which stands once in the
function, and the new one, or several such pairs. A right one is a function of this file;
test_course.py copies it beside the solutions."""
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F

from model import Batch

NOT_SEEDED = "\n    generator = None"

WRONG = {
    "gpt:attend": [
        ("looks back alone", "is_causal=False", "is_causal=True"),
        ("looks back alone, and a little noise", "is_causal=False)",
         "is_causal=True) + 1e-3 * torch.randn_like(q)")],
    "gpt:loss": [
        ("the mean over all hidden tokens of the batch",
         "((nll * hidden).sum(dim=1) / k[:, 0]).mean()", "nll[hidden].mean()"),
        ("1/t for 1/k", "k = torch.randint(1, T + 1, (B, 1), generator=generator)",
         "k = T * torch.rand(B, 1, generator=generator)", ".argsort(dim=1) < k", " < k / T"),
        ("all rows share one mask", "< k  ", "< k\n    hidden = hidden[:1].expand(B, T)\n"
         "    k = hidden.sum(dim=1, keepdim=True)"),
        ("it hides tokens in the text that it is given", "x.masked_fill(", "x.masked_fill_("),
        ("the next token is predicted", "hidden, MASK))", "hidden, MASK)).roll(1, dims=1)"),
        ("the generator is not used", "x.shape", "x.shape" + NOT_SEEDED)],
    "gpt:write": [
        ("from left to right", "torch.rand(count, T, generator=generator).argsort(dim=1)",
         "torch.arange(T).expand(count, T)"),
        ("all words from one pass", "model(tokens)", "model(torch.full_like(tokens, MASK))")],
    "masks:draw_counts": [
        ("each row has a k of its own", "torch.stack([k, T + 1 - k], dim=1).view(B, 1)",
         "torch.randint(1, T + 1, (B, 1), generator=generator)"),
        ("an odd number of rows is no error", "B % 2", "False"),
        ("k is from 0", "1 + (spread", "(spread"),
        ("the pairs of a batch are all alike", "spread(B // 2, generator)",
         "spread(1, generator).expand(B // 2)"),
        ("the generator is not used", "k = 1 + (spread(B // 2, generator)",
         "k = 1 + (torch.rand(B // 2)")],
    "masks:draw_masks": [
        ("all rows share one order", "torch.rand(x.shape", "torch.rand(x[:1].shape"),
        ("those of a pair share one order", "return rank",
         "rank = rank[torch.arange(len(x)) // 2 * 2]\n    return rank"),
        ("each token has the chance k/T", ".argsort(dim=1)", " * x.size(1)"),
        ("one more is hidden", "rank < k", "rank <= k"),
        ("the masks are numbers", "rank < k", "(rank < k).float()"),
        ("the first k places", "rank < k", "rank.sort(dim=1).values < k"),
        ("k places that follow each other", "return rank",
         "rank = (torch.arange(x.size(1)) + rank[:, :1]) % x.size(1)\n    return rank"),
        ("the generator is not used", ", generator=generator)", ")")],
    "bound:mask_batch": [
        ("BOS is hidden too", "masked_fill(hidden",
         "masked_fill(F.pad(masked, (1, 0), value=True)"),
        ("k counts BOS", "k.clamp(min=1)", "(k + 1)"),
        ("the weight is 1/T", "k.clamp(min=1)", "x.size(1)"),
        ("all hidden tokens of the batch weigh the same", "hidden / k.clamp(min=1)",
         "hidden * len(x) / k.sum()"),
        ("the slot before predicts, and the next is scored", "position, position, targets",
         "position, (position + 1).clamp(max=x.size(1) - 1), targets"),
        ("it hides tokens in the text that it is given", "k = hidden",
         "x[masked] = config.mask_id\n    k = hidden"),
        ("BOS has the last slot", "F.pad(x, (1, 0)", "F.pad(x, (0, 1)", "F.pad(masked, (1, 0)",
         "F.pad(masked, (0, 1)", ".expand_as(tokens)", ".roll(-1).expand_as(tokens)")],
    "bound:losses": [
        ("every row gets the mean of all", "sum(dim=1)", "sum(dim=1).mean().expand(len(batch[0]))"),
        ("the weights are left out", "nll * weight[select]", "nll"),
        ("the targets are the first n", "flatten()[select]", "flatten()[:len(select)]")],
    "chain:order_batch": [
        ("a slot holds what it predicts", "Batch(tokens, key_pos", "Batch(targets, order"),
        ("a sum over tokens", "1 / x.size(1)", "1.0"),
        ("a mean over the order, which may be shorter", "1 / x.size(1)", "1 / order.size(1)"),
        ("the first token is free", "targets, weight",
         "targets, weight * (torch.arange(order.size(1)) > 0)"),
        ("the inverse of the order", "targets = x",
         "order = order.argsort(dim=1)\n    targets = x")],
    "draw:probabilities": [
        ("it multiplies by the temperature", "/ max(o.temperature, 1e-30)", "* o.temperature"),
        ("top_p drops the token that reaches it", "likelier < o.top_p",
         "(likelier + p <= o.top_p) | (torch.arange(p.size(-1)) == 0)"),
        ("the weights stay sorted", "torch.zeros_like(p).scatter(-1, token, ", "("),
        ("all rows have one softmax", "(logits / max(o.temperature, 1e-30)).softmax(dim=-1)",
         "(logits / o.temperature).flatten().softmax(dim=0).view(logits.shape)")],
    "draw:draw": [
        ("another random number than u", "token[..., 0].clamp(max=p.size(-1) - 1)",
         "torch.multinomial(p, 1)[:, 0]"),
        ("the sum is in float32", "torch.float64", "torch.float32", "u[..., None]",
         "u[..., None].float()"),
        ("on an edge the token before", ", right=True", ""),
        ("it takes for granted that the weights sum to 1", " * cdf[..., -1:]", "")],
    "write:write": [
        ("it writes into the tokens that it is given", "tokens = tokens.scatter",
         "tokens.scatter_"),
        ("the j-th token that is written is decided as if at place j", "logits, row, place",
         "logits, row, torch.arange(start, end).expand_as(place)"),
        ("all rows are decided as if the first", "logits, row, place", "logits, row * 0, place"),
        ("decide is given probabilities", "decide(logits", "decide(logits.softmax(dim=-1)"),
        ("the rows have one dimension", "decide(logits, row", "decide(logits, row[:, 0]"),
        ("what is decided is not written", "tokens = tokens.scatter", "tokens.scatter"),
        ("only the new tokens are yielded", "yield tokens",
         "yield torch.zeros_like(tokens).scatter(1, place, tokens.gather(1, place))"),
        ("what is written is not read later", "for start", "blank = tokens\n    for start",
         "read(model, tokens", "read(model, blank"),
        ("the places start … end, whatever the order", "order[:, start:end]",
         "torch.arange(start, end).expand(len(order), -1)"),
        ("the tokens of a pass one after the other", "pairwise(edges)",
         "pairwise(range(edges[0], edges[-1] + 1))", "yield tokens",
         "if end in list(edges):\n            yield tokens"),
        ("only the end", "        yield tokens", "    yield tokens")],
    "together:nats_lost": [
        ("0 · log 0 is NaN", "torch.special.entr(joint)", "(-joint * joint.log())"),
        ("KL(product ‖ joint)", "singles = 0", """if joint.dim() == 2:
        product = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0)
        return (product * (product / joint.clamp(min=1e-9)).log()).sum()
    singles = 0"""),
        ("the first two places alone", "singles = 0",
         "joint = joint.flatten(2).sum(dim=2) if joint.dim() > 2 else joint\n    singles = 0")],
    "adaptive:within_risk": [
        ("each place by itself", "before <= risk", "(ascending <= risk) | (before == 0)"),
        ("the sum includes the place itself", "F.pad(ascending.cumsum(dim=1)[:, :-1], (1, 0))",
         "ascending.cumsum(dim=1)"),
        ("it is not put back", ".scatter(1, place, before <= risk)", " | (before <= risk)"),
        ("known places are revealed", " & nats.isfinite()", ""),
        ("a fifth of the risk, or the surest", "before <= risk",
         "(ascending <= risk / 5) | (before == 0)"),
        ("one place, or the two surest", "before <= risk",
         "(before <= risk) & (torch.arange(nats.size(1)) < 2)"),
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
        ("weights are taken for probabilities", "p = p / p.sum(dim=-1, keepdim=True)", "pass",
         "q = q / q.sum(dim=-1, keepdim=True)", "pass")],
}

# Whose lines are no work, and so no point, and whose words are cleaned: of a function, its body.
STUBS = [
    ("masks:draw_counts", "return torch.randint(1, T + 1, (B, 1), generator=generator)"),
    ("masks:draw_masks", "return torch.arange(x.size(1)) < k"),
    ("bound:mask_batch", "raise ValueError('caf\\ud800 \\x1b[31m' * 10 ** 7)"),
    ("chain:order_batch", "torch.manual_seed(0); exit()"),
    ("draw:draw", "return p.argmax(dim=-1)"),
    ("draw:probabilities", "return logits.softmax(dim=-1)"),
    ("write:write", "yield torch.zeros(2, 2, 2)"),
    ("write:write", """row = torch.arange(len(order))[:, None]
    for start, end in itertools.pairwise(edges):
        decide(read(model, tokens, order, start, end), row, order[:, start:end])
        yield tokens"""),
    ("together:nats_lost", "return joint.sum() * 0"),
    ("together:nats_lost", "return {'data': object()}"),
    ("adaptive:within_risk", "return nats <= risk / 5"),
    ("adaptive:within_risk", "return nats == nats.amin(dim=1, keepdim=True)"),
    ("drafts:confirm", "return F.pad(draft, (0, 1)), torch.ones_like(draft[:, :1])"),
    ("drafts:confirm", "return F.pad(draft, (0, 1)), 1 + draft.size(1) * (u[:, :1] < 1e-3)"),
    ("drafts:confirm", "return F.pad(draft, (0, 1)), torch.full_like(draft[:, :1], draft.size(1))"),
]


# ---- Right answers, written differently, most by loops: task_function ----------------------------

def gpt_write(model, count, T, generator):
    stories = torch.full((count, T), model.vocab_size)
    for story in stories:
        for place in torch.randperm(T, generator=generator):
            p = model(story[None])[0, place].softmax(dim=-1)
            story[place] = torch.multinomial(p, 1, generator=generator)
    return stories


def bound_mask_batch(config, x, masked):
    tokens = F.pad(x.masked_fill(masked, config.mask_id), (1, 0), value=config.bos_id)
    place = torch.arange(-1, x.size(1)).expand_as(tokens)
    targets = F.pad(x.masked_fill(~masked, -100), (1, 0), value=-100)
    k = masked.sum(dim=1, keepdim=True)
    return Batch(tokens, place, place, targets, F.pad(masked / k.clamp(min=1), (1, 0)))


def masks_draw_counts(B, T, generator):
    if B % 2 == 1:
        raise ValueError
    k = torch.randint(1, T + 1, (B // 2, 1), generator=generator)
    return torch.cat([T + 1 - k, k], dim=1).view(B, 1)


def write_write(model, tokens, order, edges, decide, read=None):
    tokens = tokens.clone()
    for start, end in zip(edges, edges[1:]):
        logits = read(model, tokens, order=order, start=start, end=end)
        for i, j in itertools.product(range(len(order)), range(start, end)):
            row, place = torch.tensor([i]), order[i:i + 1, j]
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
    tokens, count = [], []
    p, q = p / p.sum(dim=-1, keepdim=True), q / q.sum(dim=-1, keepdim=True)
    for p, q, drafts, u in zip(p, q, draft.tolist(), u):
        kept, law = len(drafts), p[-1]
        for i, token in enumerate(drafts[1:]):
            if u[i] * q[i + 1, token] >= p[i, token]:
                kept, law = i + 1, (p[i] - q[i + 1]).clamp(min=0)
                break
        drafts.insert(kept, int(torch.multinomial(law, 1)))
        tokens.append(drafts)
        count.append([kept + 1])
    return torch.tensor(tokens), torch.tensor(count)
