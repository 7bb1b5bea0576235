"""Which sequence each token of a packed batch belongs to: int32 [B, L]."""

import torch

# What models of transformers hand to every part of theirs, and these functions have no use for.
NO_EFFECT = frozenset(
    {
        "attention_mask",
        "cache_position",
        "cu_seq_lens_k",
        "is_causal",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


def of_lengths(cu_seqlens, batch, length):
    """Of [0, end of the first, ..., L]; None for one sequence, or none given."""
    if cu_seqlens is None or cu_seqlens.numel() <= 2:
        return None
    if batch != 1:
        raise ValueError(f"expected packed sequences in a batch of 1, as cu_seqlens says it; got {batch}; pass seq_idx instead")
    tokens = torch.arange(length, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].long().contiguous(), tokens, right=True).int()[None]


def of_keywords(layer, given, batch, length):
    """From the keyword arguments that a layer has no name for. One that it cannot honour is an error."""
    seq_idx = given.pop("seq_idx", None)
    lengths = [given.pop(name, None) for name in ("cu_seqlens", "cu_seq_lens_q")]
    unknown = sorted(name for name, value in given.items() if name not in NO_EFFECT and value is not None)
    if unknown:
        raise TypeError(f"{layer}: expected seq_idx or cu_seq_lens_q; got {', '.join(unknown)} too; leave them out")
    if seq_idx is None:
        ends = next((ends for ends in lengths if ends is not None), None)
        seq_idx = None if ends is None else of_lengths(ends, batch, int(length))
    if seq_idx is None:
        return None
    # columns of a cache in front of the tokens are history of the first one's sequence
    missing = length - seq_idx.shape[1]
    return torch.cat([seq_idx[:, :1].expand(-1, missing), seq_idx], 1) if missing > 0 else seq_idx
