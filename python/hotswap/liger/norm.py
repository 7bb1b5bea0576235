"""Liger's names for the norms: its arguments, our ops.

Arguments that only choose how Liger computes (in_place, row_mode, impl, mode, backend) are taken and change nothing.
"""

import torch
from torch import nn

from hotswap.core.packages import load, package

_norm, _ops = load("norm"), package("norm").ops


def _learns(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


_CASTING_MODES = {"none": -1, "llama": 0, "gemma": 1}  # Liger's constants


def _casting(mode):
    for name, number in _CASTING_MODES.items():
        if mode == name or (type(mode) is int and mode == number):
            return name
    raise ValueError(f"expected casting_mode llama (0), gemma (1) or none (-1), as Liger has them; got {mode!r}; pass one of these")


def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
    """casting_mode: llama (cast, then times weight), gemma (all in float32, cast last), none (in X's own type).
    W None: not scaled, whatever the offset says."""
    casting_mode = _casting(casting_mode)
    if W is None:
        W, offset = _norm.layers.ones_of(X), 0.0
    if _learns(X, W):
        return _ops.rms_norm_fwd(X, W, eps, offset, casting_mode)[0]
    return _norm.rms_norm(X, W, eps, offset, casting_mode)


def liger_fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """(RMSNorm(h), h) with h = X + R."""
    return _ops.add_rms_norm_fwd(X, R, W, eps, offset, _casting(casting_mode))[:2]


def liger_layer_norm(X, W, B, eps):
    if _learns(X, W, B):
        return _ops.layer_norm_fwd(X, W, B, eps)[0]
    return _norm.layer_norm(X, W, B, eps)


def _filled(init_fn, size):
    if init_fn not in ("ones", "zeros"):
        raise ValueError(f"expected init_fn ones or zeros; got {init_fn!r}; pass one of them")
    return nn.Parameter(getattr(torch, init_fn)(size))


class LigerRMSNorm(nn.Module):
    def __init__(
        self,
        hidden_size,
        eps=1e-6,
        offset=0.0,
        casting_mode="llama",
        init_fn="ones",
        in_place=True,
        row_mode=None,
        elementwise_affine=True,
    ):
        super().__init__()
        weight = _filled(init_fn, hidden_size)
        self.register_parameter("weight", weight if elementwise_affine else None)
        self.elementwise_affine, self.variance_epsilon, self.offset = elementwise_affine, eps, offset
        self.casting_mode, self.in_place, self.row_mode = casting_mode, in_place, row_mode

    def forward(self, hidden_states):
        return liger_rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode)

    def extra_repr(self):
        shape = "no weight" if self.weight is None else tuple(self.weight.shape)
        return f"{shape}, eps={self.variance_epsilon}, offset={self.offset}, {self.casting_mode}"


class LigerRMSNormForGemma(LigerRMSNorm):
    def __init__(
        self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", in_place=True, row_mode=None
    ):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


LigerRMSNormForGemma2 = LigerRMSNormForQwen3Next = LigerRMSNormForMuseGlimmerTextCentered = LigerRMSNormForGemma


class LigerRMSNormForGemma3(LigerRMSNormForGemma):
    def __init__(self, dim, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", in_place=False):
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    """with_scale=False: no weight."""

    def __init__(
        self, dim=None, eps=1e-6, offset=0.0, casting_mode="gemma", init_fn="ones", in_place=False, with_scale=True
    ):
        if dim is None and with_scale:
            raise ValueError(f"{type(self).__name__}: expected dim, or with_scale=False; got neither; pass one")
        super().__init__(dim or 0, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale)
        self.with_scale = with_scale


LigerRMSNormForMuseGlimmer = LigerRMSNormForGemma4
LigerRMSNormForGlm4 = LigerRMSNormForOlmo2 = LigerRMSNorm


class LigerFusedAddRMSNorm(LigerRMSNorm):
    """forward(hidden_states, residual) -> (RMSNorm(h), h) with h = hidden_states + residual."""

    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=False):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place)

    def forward(self, hidden_states, residual):
        how = self.variance_epsilon, self.offset, self.casting_mode
        return liger_fused_add_rms_norm(hidden_states, residual, self.weight, *how)


class LigerLayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6, bias=False, init_fn="ones", impl=None, mode=None, backend=None):
        super().__init__()
        self.weight = _filled(init_fn, hidden_size)
        self.bias = nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))
        self.hidden_size, self.eps, self.variance_epsilon = hidden_size, eps, eps

    def forward(self, hidden_states):
        return liger_layer_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self):
        return f"{self.hidden_size}, eps={self.eps}"
