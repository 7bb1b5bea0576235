"""What the tokens of a forward see, described once for all its layers instead of made as a tensor."""

from typing import NamedTuple, Optional

import torch
from torch.nn.functional import pad


class Rows(NamedTuple):
    """The real tokens of a batch, one behind the other."""

    index: torch.Tensor  # into [batch * rows]
    cu_seqlens: torch.Tensor
    longest: int


class Mask(NamedTuple):
    causal: bool
    window: tuple  # keys before and behind a query's own, -1: all
    chunk: int
    keys: Optional[int]  # so many of the keys are there; None: all
    queries_of: Optional[Rows]  # None: every token is real, and of its row's only sequence
    keys_of: Optional[Rows]

    @property
    def ndim(self):  # generate() may make it before the model, which asks whether it is a row of zeros and ones
        return 4


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


def _rows(kept, sequences):
    """kept: bool [batch, rows]; sequences: the number of each token's sequence in its row, or None: one a row."""
    batch, rows = kept.shape
    key = torch.arange(batch, device=kept.device).unsqueeze(1)
    if sequences is not None:  # one behind the other, so their numbers grow along a row
        key = key * rows + sequences
    index = kept.flatten().nonzero().squeeze(1)
    lengths = torch.unique_consecutive(key.expand(batch, rows).flatten()[index], return_counts=True)[1]
    if sequences is None:  # rows of padding alone are sequences, too
        lengths = kept.sum(1)
    cu = pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Rows(index, cu, int(lengths.max()) if lengths.numel() else 0)


def _from_zero(places, sequences):
    """Does each sequence begin at 0?"""
    begins = pad(sequences[:, 1:] != sequences[:, :-1], (1, 0), value=True)
    return bool((places[begins.expand_as(places)] == 0).all())


def mask(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, device="cpu", **other
):
    """As transformers calls a mask function: a Mask, or where it cannot be described bool [batch, 1, queries, keys]."""
    if isinstance(attention_mask, Mask):
        return attention_mask
    says = describe(mask_function)
    sequences = None if says is None else says.get("sequences")
    if says is not None and "places" in says and (sequences is None or "chunk" in says and not _from_zero(says["places"], sequences)):
        says = None
    # Packed rows after a cache, or with padding between, nobody makes. Chunks are counted from the first key that is there.
    packs_oddly = sequences is not None and (attention_mask is not None or q_length != kv_length)
    if says is None or packs_oddly or ("chunk" in says and kv_offset != 0):
        from transformers.masking_utils import sdpa_mask

        other |= dict(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device=device, **other
        )
    keys = None
    queries_of = keys_of = None
    if sequences is not None:
        kept = torch.ones(batch_size, q_length, dtype=torch.bool, device=device)
        queries_of = keys_of = _rows(kept, sequences.to(device).expand(batch_size, -1))
    elif attention_mask is not None:
        kept = attention_mask[:, -kv_length:].bool()  # a cache that forgets holds the last ones
        keys = kept.shape[1] if kept.shape[1] < kv_length else None  # a static cache is longer than what it holds
        if not kept.all():
            keys_of = _rows(kept, None)
            queries_of = keys_of if q_length == kept.shape[1] else _rows(kept[:, -q_length:], None)
    elif q_offset + q_length - kv_offset < kv_length:
        keys = q_offset + q_length - kv_offset
    return Mask(says.get("causal", False), says.get("window", (-1, -1)), says.get("chunk", 0), keys, queries_of, keys_of)
