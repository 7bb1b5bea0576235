import torch

from . import _package
from ._package import ops


def along(unsqueeze_dim, q, k, cos, rotate):
    """rotate(q, k) with q and k [b, heads, s, d], as apply_rotary_pos_emb's unsqueeze_dim says where they have their heads."""
    if unsqueeze_dim == 1 or (unsqueeze_dim == 0 and cos.dim() == 2):  # Pixtral's tables have no batch
        return rotate(q, k)
    if unsqueeze_dim != 2:
        got = f"{unsqueeze_dim}, {cos.dim()} dims"
        raise ValueError(f"expected unsqueeze_dim 1, 2, or 0 for tables [time, dim]; got {got}; pass that of q's heads")
    q, k = rotate(q.transpose(1, 2), k.transpose(1, 2))
    return q.transpose(1, 2), k.transpose(1, 2)


def of_sections(table, sections):
    """[3, batch, time, dim], of time, height and width, to the one table [batch, time, dim] of both halves of a head: so many
    pairs by each."""
    parts = table.split([*sections, *sections], dim=-1)
    return torch.cat([part[i % len(sections)] for i, part in enumerate(parts)], dim=-1)


def turned_by_time(q, k, angles):
    """q, k [batch, time, heads, dim], pairs beside each other, times complex angles [1 or batch, time, dim / 2] (Llama 4)."""
    rotate = lambda q, k: ops.rotary(q, k, angles.real, angles.imag, q.shape[-1], True)  # noqa: E731
    return along(2, q, k, angles, rotate)


class rotary_pos_emb(_package.Layer):
    """transformers' apply_rotary_pos_emb: halves rotated, cos and sin [1 or b, s, d], or of half the width of a head; with
    unsqueeze_dim=2 q and k [b, s, heads, d], with 0 cos and sin [s, d]."""

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        # a table of half a head's width serves both halves (gpt_oss); it never means a partial rotation here
        return along(unsqueeze_dim, q, k, cos, lambda q, k: ops.rotary(q, k, cos, sin, q.shape[-1], False))


apply_rotary_transformers = rotary_pos_emb
