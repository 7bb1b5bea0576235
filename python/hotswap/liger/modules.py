"""Modules and functions with Liger's names, for models of your own: the same arguments, our ops.

What an op cannot do is an error that says so; nothing is left out in silence.
"""

from hotswap.liger.loss import *  # noqa: F403
from hotswap.liger.mlp import *  # noqa: F403
from hotswap.liger.norm import *  # noqa: F403
from hotswap.liger.rotary import *  # noqa: F403

__all__ = [name for name in dir() if name.lower().startswith("liger_") or name.startswith("Liger") or name == "CrossEntropyOutput"]
