from . import _package
from .flash import flash_attn_func


class attention(_package.Layer):
    """q [batch, rows, heads, dim], k, v [batch, key rows, key heads, dim]."""

    def forward(self, q, k, v, softmax_scale=None, causal=False):
        return flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal)
