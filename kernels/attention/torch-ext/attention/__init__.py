"""Attention: flash-attention's functions over ops with fakes and gradients.

q [batch, rows, heads, dim], k and v [batch, rows, key heads, dim]; packed sequences without batch, one behind the other.
The last query stands at the last key. A query that sees no key gives 0, and -inf as its lse.
"""

from . import bert_padding, interface, layers, operators, sharding
from .flash import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from .interface import register

register_sharding = operators.sharded(sharding.rules)

__all__ = [
    "bert_padding",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "interface",
    "layers",
    "register",
    "register_sharding",
]
