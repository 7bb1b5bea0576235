"""State-space layers and the causal convolution before them: ops with fakes and autograd, and functions with the names and
arguments of the packages causal_conv1d and mamba_ssm."""

from . import _conv, _package, _scan, _ssd, layers
from ._conv import causal_conv1d_fn, causal_conv1d_update
from ._mixers import mamba_inner_fn, mamba_split_conv1d_scan_combined
from ._scan import selective_scan_fn
from ._ssd import mamba_chunk_scan_combined, rmsnorm_fn

_package.register(_conv.FAKES | _scan.FAKES | _ssd.FAKES, _conv.GRADIENTS | _scan.GRADIENTS | _ssd.GRADIENTS)

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "layers",
    "mamba_chunk_scan_combined",
    "mamba_inner_fn",
    "mamba_split_conv1d_scan_combined",
    "rmsnorm_fn",
    "selective_scan_fn",
]
