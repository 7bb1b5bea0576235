"""One decoder layer of Llama's kind for one new token of each row, in a cache of a fixed size: decoder_layer(), and for how many
rows it is worth calling with such weights: decoder_layer_rows()."""

import torch

from . import _package, layers
from ._ops import ops

decoder_layer, decoder_layer_rows = ops.decoder_layer, ops.decoder_layer_rows

_package.register({"decoder_layer": lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format)}, {})

__all__ = ["decoder_layer", "decoder_layer_rows", "layers"]
