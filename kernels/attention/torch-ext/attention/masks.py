"""What the tokens of a forward see, described once for all its layers instead of made as a tensor.

On a GPU a mask of padding is described without waiting for the device, so that a forward can run ahead of it and be captured in a
CUDA graph: shapes follow from shapes alone. Two kinds are looked at: packed rows, whose number decides shapes (transformers has just
waited for the same tensor to learn that they are packed), and padding under a window or chunks, which may have holes. While a graph
is captured or traced nobody can look, and these two are masks that are tensors.
"""

from types import GeneratorType
from typing import NamedTuple, Optional

import torch
from torch.nn.functional import pad


class Rows(NamedTuple):
    """The tokens of a batch [batch, rows] as packed sequences."""

    index: Optional[torch.Tensor]  # [tokens] into [batch * rows], in the order of the sequences; None: all, in their own order
    back: Optional[torch.Tensor]  # [batch * rows]: where each token is in that order; None: index leaves padding out
    cu_seqlens: torch.Tensor  # [sequences + 1]
    longest: int
    used: Optional[torch.Tensor] = None  # [sequences]: how many keys of each can be seen; None: all of them

    def packed(self, x):
        """x [batch, rows, ...] -> [tokens, ...]"""
        x = x.flatten(0, 1)
        return x if self.index is None else x.index_select(0, self.index)

    def restored(self, x, batch: int, rows: int):
        """x [tokens, ...] -> [batch, rows, ...], zeros where padding was left out"""
        if self.back is not None:
            x = x.index_select(0, self.back)
        elif self.index is not None:
            x = x.new_zeros((batch * rows, *x.shape[1:])).index_copy(0, self.index, x)
        return x.unflatten(0, (batch, rows))


class Mask(NamedTuple):
    causal: bool
    window: tuple  # keys before and behind a query's own, -1: all
    chunk: int
    keys: Optional[int]  # how many of the keys are there; None: all
    queries_of: Optional[Rows]  # None: every token is real, and of its row's only sequence
    keys_of: Optional[Rows]
    kept: Optional[torch.Tensor] = None  # bool [batch, keys]: tokens that are no padding; None: all
    sequences: Optional[torch.Tensor] = None  # [batch, rows]: the number of each token's sequence; None: one a row

    device: Optional[torch.device] = None
    size: Optional[tuple] = None  # (batch, 1, queries, keys)

    @property
    def ndim(self):  # generate() may make it before the model, which asks whether it is a row of zeros and ones
        return 4

    @property
    def shape(self):
        return torch.Size(self.size)

    def to(self, *args, **kwargs):
        """On another device; in another type it is a tensor."""
        devices = (str, int, torch.device)
        if not all(isinstance(x, devices) for x in args) or "dtype" in kwargs:
            return self.whole().to(*args, **kwargs)
        moved = lambda x: x.to(*args, **kwargs) if isinstance(x, torch.Tensor) else x  # noqa: E731
        made = Mask(*(Rows(*map(moved, x)) if isinstance(x, Rows) else moved(x) for x in self))
        return made if self.device is None else made._replace(device=torch.empty(0, device=self.device).to(*args, **kwargs).device)

    def contiguous(self, *args, **kwargs):
        """A description has no memory to copy. transformers 5.22 calls this on the mask of each prompt."""
        return self

    clone = detach = contiguous

    def whole(self):
        """The mask as a tensor, for a model that looks into it: bool [batch, 1, queries, keys]."""
        batch, _, queries, keys = self.size
        tensors = [x for x in (self.kept, self.sequences) if x is not None]
        return self.tensor(queries, keys, tensors[0].device if tensors else self.device).expand(batch, -1, -1, -1)

    def __getattr__(self, name):
        if name.startswith("__") or self.size is None:
            raise AttributeError(name)
        return getattr(self.whole(), name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        whole = lambda x: x.whole() if isinstance(x, cls) else x  # noqa: E731
        return function(*map(whole, args), **{name: whole(x) for name, x in (kwargs or {}).items()})

    def tensor(self, queries: int, keys: int, device):
        """The same as bool [batch or 1, 1, queries, keys]."""
        last = keys if self.keys is None else self.keys
        at = torch.arange(last - queries, last, device=device).view(-1, 1)
        key = torch.arange(keys, device=device)
        seen = (key < last) & (at >= 0)
        left, right = self.window[0], 0 if self.causal else self.window[1]
        if left >= 0:
            seen = seen & (key >= at - left)
        if right >= 0:
            seen = seen & (key <= at + right)
        seen = seen.view(1, 1, queries, keys)
        if self.chunk:
            place = key.view(1, -1) if self.kept is None else pad(self.kept.cumsum(1) - 1, (0, keys - self.kept.shape[1]))
            chunk = place.div(self.chunk, rounding_mode="floor")
            seen = seen & (chunk[:, None, last - queries : last, None] == chunk[:, None, None, :])
        if self.kept is not None:
            seen = seen & pad(self.kept, (0, keys - self.kept.shape[1]))[:, None, None, :]
        if self.sequences is not None:
            seen = seen & (self.sequences[:, None, :, None] == self.sequences[:, None, None, :])
        return seen


def _of_parts(stock):
    """A tuple's constructor that takes its fields in one generator, too: transformers from 5.22 on moves the inputs of a prompt whose
    ids are on another device than the model by type(value)(part for part in value), tuples in tuples included."""

    def new(cls, *fields, **named):
        if len(fields) == 1 and not named and isinstance(fields[0], GeneratorType):
            fields = tuple(fields[0])
        return stock(cls, *fields, **named)

    return new


for _tuple in (Rows, Mask):
    _tuple.__new__ = _of_parts(_tuple.__new__)


# Mask functions of transformers.masking_utils by their names, and what the things that they close over say.
_SAYS = {
    "causal_mask_function": lambda cells: {"causal": True},
    "bidirectional_mask_function": lambda cells: {},
    "sliding_window_overlay": lambda cells: {"window": (cells["sliding_window"] - 1, -1)},
    "sliding_window_bidirectional_overlay": lambda cells: {"window": (cells["sliding_window"],) * 2},
    "chunked_overlay": lambda cells: {"chunk": cells["chunk_size"]},
    "packed_sequence_mask_function": lambda cells: {"sequences": cells["packed_sequence_mask"]},
    # places in their own sequence instead of the row (from 5.24 on): the same within one, where chunks are counted from its start
    "remap_positions_for_packed_sequence": lambda cells: _also(describe(cells["mask_function"]), places=cells["position_ids"]),
}


def _also(says: Optional[dict], **more) -> Optional[dict]:
    return None if says is None else says | more


def describe(function) -> Optional[dict]:
    """None: it says something else (blocks that see each other, a user's own)."""
    name = getattr(function, "__qualname__", "").split(".")[0]
    if getattr(function, "__module__", None) != "transformers.masking_utils" or name not in (*_SAYS, "and_masks"):
        return None
    cells = dict(zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__ or ())))
    if name != "and_masks":
        return _SAYS[name](cells)
    parts = [describe(f) for f in cells["mask_functions"]]
    if None in parts or len({k for part in parts for k in part}) < sum(map(len, parts)):
        return None  # two windows are one window, but not here
    return {k: v for part in parts for k, v in part.items()}


def may_wait(device, traced: bool) -> bool:
    """May a forward look at the numbers of a tensor there?"""
    return torch.device(device).type == "cpu" and not traced


def _ends(lengths):
    return pad(lengths.flatten().cumsum(0), (1, 0)).to(torch.int32)


def _without_padding(kept, sequences=None):
    """The real tokens alone; how many there are is asked of the device. kept: bool [batch, rows]; sequences [batch, rows]: the
    number of each token's sequence in its row, or None: one a row."""
    batch, rows = kept.shape
    index = kept.flatten().nonzero().squeeze(1)
    if sequences is None:  # rows of padding alone are sequences, too
        lengths = kept.sum(1)
    else:  # one behind the other, so their numbers grow along a row
        key = torch.arange(batch, device=kept.device).unsqueeze(1) * rows + sequences
        lengths = torch.unique_consecutive(key.flatten()[index], return_counts=True)[1]
    return Rows(index, None, _ends(lengths), int(lengths.max()) if lengths.numel() else 0)


def _padding_apart(kept):
    """The same without asking how many they are: each row is two sequences, its padding, which sees nothing, and its real tokens.
    kept: bool [batch, rows]"""
    batch, rows = kept.shape
    real = kept.sum(1, keepdim=True)
    padding = rows - real
    place = torch.where(kept, padding + kept.cumsum(1), (~kept).cumsum(1)) - 1
    each = torch.arange(batch * rows, device=kept.device)
    back = (place + each.view(batch, rows)[:, :1]).flatten()
    used = torch.cat([torch.zeros_like(real), real], 1).flatten().to(torch.int32)
    return Rows(torch.empty_like(back).scatter_(0, back, each), back, _ends(torch.cat([padding, real], 1)), rows, used)


def _all_queries(batch: int, rows: int, keys: Rows):
    """Every token of [batch, rows], which sees the keys of its row that are real."""
    lengths = torch.zeros(batch, (len(keys.cu_seqlens) - 1) // batch, dtype=torch.int32, device=keys.cu_seqlens.device)
    lengths[:, -1] = rows
    return Rows(None, None, _ends(lengths), rows)


def _padded(kept, q_length: int, says: dict, asks: bool):
    """(queries, keys) as packed sequences. kept: bool [batch, keys]"""
    rows = _without_padding if asks else _padding_apart
    keys = rows(kept)
    if not says:  # Every query sees every real key. The padding may be an encoder's, and the queries a decoder's.
        return _all_queries(kept.shape[0], q_length, keys), keys
    # The last query is at the last key, so that both go without padding.
    return keys if q_length == kept.shape[1] else rows(kept[:, -q_length:]), keys


def _may_have_holes(attention_mask, traced: bool) -> bool:
    """Is something hidden between the tokens of a row that are there? attention_mask: [batch, keys]. Where nobody can look, in a
    graph that is traced or captured, it may be; else this waits for the device."""
    if traced or attention_mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return True
    kept = attention_mask.bool()
    begins = kept[:, 1:] & ~kept[:, :-1]
    return bool((begins.sum(1) + kept[:, 0] > 1).any())


def _from_zero(places, sequences):
    """Does each sequence begin at 0?"""
    begins = pad(sequences[:, 1:] != sequences[:, :-1], (1, 0), value=True)
    return bool((places[begins.expand_as(places)] == 0).all())


def _is_a_tensor(says: Optional[dict], attention_mask, q_length, kv_length, q_offset, kv_offset, asks: bool, traced: bool) -> bool:
    """Is there no description of such a mask?"""
    if says is None:
        return True
    sequences, places = says.get("sequences"), says.get("places")
    if sequences is not None:
        # Packed rows after a cache, or with padding between, nobody makes.
        if traced or attention_mask is not None or q_length != kv_length:
            return True
        if places is not None and "chunk" in says and not _from_zero(places, sequences):
            return True
    elif places is not None:
        return True
    if "chunk" in says and not (isinstance(kv_offset, int) and kv_offset == 0):  # counted from the first key that is there
        return True
    if attention_mask is None:
        return isinstance(q_offset, torch.Tensor) and not asks  # how many keys of a static cache are there
    # Hidden tokens are taken out of their row, in which windows and chunks count positions.
    counts = 0 <= max(says.get("window", (-1,))) < kv_length - 1 or 0 < says.get("chunk", 0) < kv_length
    if counts and _may_have_holes(attention_mask, traced):
        return True
    return not says.get("causal") and "window" in says and q_length != attention_mask.shape[-1]


def mask(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, device="cpu", **other
):
    """As transformers calls a mask function: a Mask, or where it cannot be described bool [batch, 1, queries, keys]."""
    from transformers.masking_utils import sdpa_mask
    from transformers.utils.import_utils import is_tracing

    if isinstance(attention_mask, Mask):
        return attention_mask
    says = describe(mask_function)
    sequences = None if says is None else says.get("sequences")
    traced = is_tracing(sequences if attention_mask is None else attention_mask)
    asks = may_wait(device, traced)
    if _is_a_tensor(says, attention_mask, q_length, kv_length, q_offset, kv_offset, asks, traced):
        other |= dict(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device=device, **other
        )
    keys = queries_of = keys_of = kept = None
    if sequences is not None:
        sequences = sequences.to(device).expand(batch_size, -1)
        queries_of = keys_of = _without_padding(torch.ones(batch_size, q_length, dtype=torch.bool, device=device), sequences)
    elif attention_mask is not None:
        kept = attention_mask[:, -kv_length:].bool()  # a cache that forgets holds the last ones
        keys = kept.shape[1] if kept.shape[1] < kv_length else None  # a static cache is longer than what it holds
        if asks and kept.all():
            kept = None
        else:
            queries_of, keys_of = _padded(kept, q_length, says, asks)
    elif says.get("causal"):
        last = int(q_offset) + q_length - int(kv_offset)
        keys = last if last < kv_length else None
    window = says.get("window", (-1, -1))
    described = (says.get("causal", False), window, says.get("chunk", 0), keys, queries_of, keys_of, kept, sequences)
    return Mask(*described, torch.device(device), (batch_size, 1, q_length, kv_length))
