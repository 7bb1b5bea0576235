"""AdamW over lists of tensors: `adamw_`, and the optimizer `AdamW`, which torch.optim.AdamW stands in for."""

from . import _package, layers
from ._package import ops
from .optimizer import AdamW

_package.register({"adamw_": lambda *_: None}, {})

adamw_ = ops.adamw_

__all__ = ["AdamW", "adamw_", "layers"]
