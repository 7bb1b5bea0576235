"""One decoder layer of Llama's kind for one new token of each row, in a cache of a fixed size: decoder_layer(), and with weights
in blocks of a GGUF file, whose formats are an argument, decoder_layer_packed(); for how many rows it is worth calling with such
weights: decoder_layer_rows(), decoder_layer_packed_rows(); what a step begins with: decoder_inputs(); and, of more rows,
norms, rotary embedding and the cache's new row of the heads by one launch: decoder_heads()."""

import torch

from . import _package, layers
from ._package import ops


def _layer_fake(x, *_, **__):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _inputs_fake(ids, embedding, rope, length):
    return embedding.new_empty((ids.numel(), 1, embedding.shape[1])), rope.new_empty((1, 1, rope.shape[1])), torch.empty_like(length)


def _heads_fake(q, k, v, q_norm, k_norm, cos, sin, k_cache, *_, **__):
    dim = k_cache.shape[3]
    return q.new_empty((q.numel() // q.shape[-1], 1, q.shape[-1] // dim, dim))


_package.register(
    {
        "decoder_inputs": _inputs_fake,
        "decoder_layer": _layer_fake,
        "decoder_layer_packed": _layer_fake,
        "decoder_heads": _heads_fake,
    },
    {},
)
decoder_inputs, decoder_heads = ops.decoder_inputs, ops.decoder_heads
decoder_layer, decoder_layer_rows = ops.decoder_layer, ops.decoder_layer_rows
decoder_layer_packed, decoder_layer_packed_rows = ops.decoder_layer_packed, ops.decoder_layer_packed_rows

__all__ = [
    "decoder_heads",
    "decoder_inputs",
    "decoder_layer",
    "decoder_layer_packed",
    "decoder_layer_packed_rows",
    "decoder_layer_rows",
    "layers",
]
