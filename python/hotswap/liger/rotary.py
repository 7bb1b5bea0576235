"""Liger's names for the rotary embedding: its arguments, our op."""

import torch

from hotswap.core.packages import load

_rotary = load("rotary")


def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """q, k [batch, heads, time, dim], or with unsqueeze_dim=2 [batch, time, heads, dim]; cos, sin [1 or batch, time,
    rotary_dim], or half as wide where rotary_dim is given. What is beyond rotary_dim stays. position_ids say nothing: cos
    and sin are those of the positions already."""
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"expected unsqueeze_dim 1 or 2; got {unsqueeze_dim}; pass that of q's heads")
    width = cos.shape[-1] if rotary_dim is None else rotary_dim
    if width % 2 or width > q.shape[-1]:
        raise ValueError(
            f"expected an even rotary_dim of at most {q.shape[-1]}, the size of a head; got {width}; numbers are turned in pairs"
        )
    rotate = lambda q, k: _rotary.apply_rotary(q, k, cos, sin, width)  # noqa: E731
    return _rotary.layers.along(unsqueeze_dim, q, k, cos, rotate)


liger_rope = liger_rotary_pos_emb


def liger_rotary_pos_emb_gpt_oss(q, k, cos, sin):
    """cos and sin of half a head's width."""
    return liger_rotary_pos_emb(q, k, cos, sin, rotary_dim=q.shape[-1])


def liger_rotary_pos_emb_vision(q, k, cos, sin):
    """q, k [time, heads, dim]; cos, sin [time, dim]. Turned in float32 and rounded once."""
    q, k = liger_rotary_pos_emb(q.unsqueeze(0), k.unsqueeze(0), cos.float(), sin.float(), unsqueeze_dim=2)
    return q.squeeze(0), k.squeeze(0)


def liger_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    """cos, sin [3, batch, time, dim]: of time, height and width. mrope_section: how many pairs of a head each of them turns."""
    if 2 * sum(mrope_section) != cos.shape[-1]:
        got = list(mrope_section)
        raise ValueError(f"expected mrope_section of {cos.shape[-1] // 2} pairs together; got {got}; pass the config's own")
    cos, sin = (_rotary.layers.of_sections(table, mrope_section) for table in (cos, sin))
    return liger_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)


liger_qwen2vl_mrope = liger_multimodal_rotary_pos_emb


def liger_llama4_text_rotary_pos_emb(xq, xk, freqs_cis):
    """xq, xk [batch, time, heads, dim], pairs beside each other; freqs_cis complex [1 or batch, time, dim / 2]."""
    if not torch.is_complex(freqs_cis):
        raise ValueError(f"expected complex freqs_cis; got {freqs_cis.dtype}; a model cast to 16 bits has lost their half")
    return _rotary.layers.turned_by_time(xq, xk, freqs_cis)


def liger_llama4_vision_rotary_pos_emb(query, key, freqs_ci):
    """As the text's; freqs_ci complex [time, dim / 2], or with dimensions of one between."""
    freqs_ci = freqs_ci.reshape(-1, freqs_ci.shape[-1])
    return liger_llama4_text_rotary_pos_emb(query, key, freqs_ci)
