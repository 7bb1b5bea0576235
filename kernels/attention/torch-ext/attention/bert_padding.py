"""From padded batches to packed sequences and back."""

import torch


def index_first_axis(x, indices):
    return x.index_select(0, indices)


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """hidden_states [batch, rows, ...], attention_mask [batch, rows], 1 where a token is real -> the real tokens, their
    indices in [batch * rows], cu_seqlens, the longest length, and how many tokens of each row attention_mask counts.
    unused_mask: tokens that take up room and are none."""
    all_mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths, used = all_mask.sum(-1, dtype=torch.int32), attention_mask.sum(-1, dtype=torch.int32)
    indices = all_mask.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, int(lengths.max()), used


def pad_input(hidden_states, indices, batch, seqlen):
    """The tokens at their places in [batch, seqlen, ...], zeros elsewhere."""
    padded = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    return padded.index_copy(0, indices, hidden_states).view(batch, seqlen, *hidden_states.shape[1:])
