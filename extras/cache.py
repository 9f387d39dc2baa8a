"""
A cache of keys and values for ar and aogpt.

Adds: each pass reads only the slots that are new, so a story of L tokens reads about L slots, not
L²/2. Writes the same stories. Costs: memory for keys and values of every layer. Plugs in as the
argument `read` of model.py's `write`, which `sample.py --cache` sets; and `Memory.attend_at` as the
network's `attend`. Masked diffusion has no such cache: there each slot sees all slots, so with each
new token all keys and values change.

Slot 0 holds BOS, and slot j the token at order[j-1]; it predicts the token at order[j]. In the
order 2 0 3 1, for example,

    slot         0     1     2     3
    holds        BOS   x_2   x_0   x_3
    predicts     x_2   x_0   x_3   x_1

The cache keeps keys and values of slots whose token is known. To predict m tokens at once, the last
known slot is joined by the next m-1 slots. Their own tokens are not known yet, so they are made
copies of it: each holds the last known token, but predicts at a place of its own. In the next pass
they are read again, with the tokens they should hold. A copy does not see the slot that it copies,
because it holds the same token itself. Nor does it see other copies. For 4 tokens, 2 a pass, x
marks the slots (columns) that each slot (rows) sees:

                                 slot 0  1  2  3
    pass 0     slot 0                 x
               slot 1, copy of 0      .  x
    pass 1     slot 1                 x  x
               slot 2                 x  x  x
               slot 3, copy of 2      x  x  .  x
"""
import torch
import torch.nn.functional as F


class Memory:
    """Keys and values of up to `size` slots, for each layer, which are filled call by call."""

    def __init__(self, size: int):
        self.size = size
        self.kept = {}          # {layer: (keys, values)}, each (B, H, size, D)

    def attend_at(self, slots, visible):
        """What Transformer.forward takes as `attend`: it writes into the memory, and reads from it.

        slots       (B, S) where among the `size` those of the S slots of this call go
        visible     (B or 1, 1, S, n) which of the first n each slot of this call sees"""
        n = visible.size(-1)

        def attend(layer, q, k, v):
            B, H, S, D = q.shape
            if layer not in self.kept:
                self.kept[layer] = q.new_zeros(2, B, H, self.size, D)
            keys, values = self.kept[layer]
            place = slots[:, None, :, None].expand_as(k)                        # (B, H, S, D)
            # By torch.autocast a later call may come with numbers of another kind.
            keys.scatter_(2, place, k.to(keys.dtype))
            values.scatter_(2, place, v.to(values.dtype))
            k, v = keys[:, :, :n].to(q.dtype), values[:, :, :n].to(q.dtype)
            return F.scaled_dot_product_attention(q, k, v, visible)

        return attend


class Cache:
    """Reads slots as model.py's `read_next` does, but each of them only once.

    It is for one batch of stories, from its first pass to its last."""

    def __init__(self, model):
        self.model = model
        self.memory = None
        self.unread = 0         # slots before it are in the memory

    def __call__(self, model, tokens, order, start: int, end: int):
        """Logits (B, m, V) of the m tokens from `start` to `end` in the order (B, L)."""
        slots = torch.arange(self.unread, end, device=order.device).expand(len(order), -1)
        self.unread = start + 1
        last_known = slots.new_full((len(order), 1), start)                     # (B, 1)
        return self.predict(tokens, order, slots, last_known, end - start)

    def predict(self, tokens, order, slots, last_known, m: int):
        """Logits (B, m, V) of the last m of the slots (B, S).

        Those after last_known (B, 1) are copies of it."""
        model, (B, L), S = self.model, order.shape, slots.size(1)
        if self.memory is None:
            self.memory = Memory(L)
        held = F.pad(tokens.gather(1, order), (1, 0), value=model.config.bos_id)    # (B, L+1)
        position = F.pad(order, (1, 0), value=-1)               # (B, L+1) of the token that is held
        n = self.memory.size            # a GPU is faster if shapes stay the same
        if order.device.type == "cpu":
            n = int(slots.max()) + 1    # no slot of this call sees a slot from n on
        copied_from = slots.minimum(last_known)                                 # (B, S)
        # A copy sees itself and the slots before the one that it copies. For a slot that is no copy
        # copied_from is its own number, so it sees itself and all slots before it.
        other = torch.arange(n, device=order.device)                            # (n,)
        itself = other == slots[:, :, None]                                     # (B, S, n)
        visible = itself | (other < copied_from[:, :, None])                    # (B, S, n)
        select = torch.arange(B * S, device=order.device).view(B, S)[:, -m:]    # (B, m)
        logits = model(
            held.gather(1, copied_from), position.gather(1, copied_from), order.gather(1, slots),
            select.flatten(), self.memory.attend_at(slots, visible[:, None]))
        return logits.view(B, m, -1)
