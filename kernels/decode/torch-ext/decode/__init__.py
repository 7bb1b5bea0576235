"""One decoder layer of Llama's kind for one new token of each row, in a cache of a fixed size: decoder_layer(); for how many
rows it is worth calling with such weights: decoder_layer_rows(); and what a step begins with: decoder_inputs()."""

import torch

from . import _package, layers
from ._package import ops


def _layer_fake(x, *_, **__):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _inputs_fake(ids, embedding, rope, length):
    return embedding.new_empty((ids.numel(), 1, embedding.shape[1])), rope.new_empty((1, 1, rope.shape[1])), torch.empty_like(length)


_package.register({"decoder_inputs": _inputs_fake, "decoder_layer": _layer_fake}, {})
decoder_inputs, decoder_layer, decoder_layer_rows = ops.decoder_inputs, ops.decoder_layer, ops.decoder_layer_rows

__all__ = ["decoder_inputs", "decoder_layer", "decoder_layer_rows", "layers"]
