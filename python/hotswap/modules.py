"""Modules and functions with Liger's names, for models of one's own: the same arguments, our ops.

What an op cannot do is an error that says so; nothing is left out in silence. Arguments that only choose how Liger
computes (in_place, row_mode) are taken and change nothing.
"""

import torch
from torch import nn

from hotswap.packages import load, package

_norm, _mlp, _loss, _rotary = (load(name) for name in ("norm", "mlp", "loss", "rotary"))
_norm_ops = package("norm").ops


def _refuse(what: str, **unsupported) -> None:
    for name, value in unsupported.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{what}: wanted {name} left at its default; got {value}; there is no op for it")


# ---- norms --------------------------------------------------------------------------------------------------------


def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """casting_mode: llama (cast, then times weight), gemma (all in float32, cast last), none (in X's own type)."""
    if casting_mode not in ("llama", "gemma", "none"):
        raise ValueError(f"wanted casting_mode llama, gemma or none; got {casting_mode!r}")
    if torch.is_grad_enabled() and (X.requires_grad or W.requires_grad):
        return _norm_ops.rms_norm_fwd(X, W, eps, offset, casting_mode)[0]
    return _norm.rms_norm(X, W, eps, offset, casting_mode)


def liger_fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """(RMSNorm(h), h) with h = X + R."""
    return _norm_ops.add_rms_norm_fwd(X, R, W, eps, offset, casting_mode)[:2]


def liger_layer_norm(X, W, B, eps):
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (X, W, B)):
        return _norm_ops.layer_norm_fwd(X, W, B, eps)[0]
    return _norm.layer_norm(X, W, B, eps)


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
        if init_fn not in ("ones", "zeros"):
            raise ValueError(f"wanted init_fn ones or zeros; got {init_fn!r}")
        if not elementwise_affine:
            raise NotImplementedError("LigerRMSNorm: wanted elementwise_affine=True; got False; there is no op for it")
        self.weight = nn.Parameter(getattr(torch, init_fn)(hidden_size))
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode

    def forward(self, hidden_states):
        return liger_rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode)

    def extra_repr(self):
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}, offset={self.offset}, {self.casting_mode}"


class LigerRMSNormForGemma(LigerRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", **options):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, **options)


LigerRMSNormForGemma2 = LigerRMSNormForGemma3 = LigerRMSNormForGemma


class LigerLayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6, bias=False, init_fn="ones"):
        super().__init__()
        if init_fn not in ("ones", "zeros"):
            raise ValueError(f"wanted init_fn ones or zeros; got {init_fn!r}")
        self.weight = nn.Parameter(getattr(torch, init_fn)(hidden_size))
        self.bias = nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        return liger_layer_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)


# ---- gated MLPs ---------------------------------------------------------------------------------------------------

liger_swiglu = _mlp.swiglu  # silu(a) * b
liger_geglu = _mlp.geglu  # gelu_tanh(a) * b


class LigerSwiGLUMLP(nn.Module):
    _activations = ("silu", "swish")

    def __init__(self, config, intermediate_size=None):
        super().__init__()
        act = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
        if act not in self._activations:
            raise ValueError(f"{type(self).__name__}: wanted hidden_act of {', '.join(self._activations)}; got {act}")
        hidden, inner = config.hidden_size, intermediate_size or config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    forward = _mlp.layers.SwiGLUMLP.forward


class LigerGEGLUMLP(LigerSwiGLUMLP):
    _activations = ("gelu_pytorch_tanh", "gelu_tanh")
    forward = _mlp.layers.GeGLUMLP.forward


class LigerPhi3SwiGLUMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        if config.hidden_act not in LigerSwiGLUMLP._activations:
            raise ValueError(f"LigerPhi3SwiGLUMLP: wanted hidden_act silu or swish; got {config.hidden_act}")
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    forward = _mlp.layers.PackedSwiGLUMLP.forward


# ---- rotary embedding ---------------------------------------------------------------------------------------------


def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """q, k [batch, heads, time, dim], or with unsqueeze_dim=2 [batch, time, heads, dim]; cos, sin [1 or batch, time,
    rotary_dim]. position_ids say nothing: cos and sin are those of the positions already."""
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"wanted unsqueeze_dim 1 or 2; got {unsqueeze_dim}")
    rotate = lambda q, k: _rotary.apply_rotary(q, k, cos, sin, rotary_dim)
    return _rotary.layers.along(unsqueeze_dim, q, k, cos, rotate)


liger_rope = liger_rotary_pos_emb

# ---- losses -------------------------------------------------------------------------------------------------------


def liger_cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
    lse_square_scale=0.0,
    softcap=None,
    return_z_loss=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
):
    """input [rows, vocab], target [rows]. The loss is float32."""
    _refuse(
        "liger_cross_entropy",
        weight=weight,
        size_average=size_average,
        reduce=reduce,
        return_z_loss=return_z_loss,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
    )
    return _loss.cross_entropy(input, target, ignore_index, label_smoothing, softcap or 0.0, lse_square_scale, reduction)


def liger_fused_linear_cross_entropy(
    input,
    weight,
    target,
    bias=None,
    ce_weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    accum_dtype=None,
    use_token_scaling=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
):
    """input [rows, dim], weight [vocab, dim], target [rows]; accum_dtype float32: the weight's gradient is summed so."""
    _refuse(
        "liger_fused_linear_cross_entropy",
        ce_weight=ce_weight,
        return_z_loss=return_z_loss,
        accum_dtype=None if accum_dtype is torch.float32 else accum_dtype,
        use_token_scaling=use_token_scaling,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
    )
    options = (ignore_index, label_smoothing, softcap or 0.0, lse_square_scale, reduction)
    wide = accum_dtype is torch.float32
    return _loss.linear_cross_entropy(input, weight, target, bias, *options, float32_dweight=wide)


def _check_loss(label_smoothing, reduction, softcap):
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"wanted label_smoothing in [0, 1]; got {label_smoothing}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"wanted reduction mean, sum or none; got {reduction!r}")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"wanted softcap > 0 or None; got {softcap}")


class LigerCrossEntropyLoss(nn.Module):
    def __init__(
        self,
        weight=None,
        ignore_index=-100,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="mean",
        softcap=None,
        **returned,
    ):
        super().__init__()
        _check_loss(label_smoothing, reduction, softcap)
        self.options = dict(
            weight=weight,
            ignore_index=ignore_index,
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            **returned,
        )

    def forward(self, _input, target):
        return liger_cross_entropy(_input, target, **self.options)


class LigerFusedLinearCrossEntropyLoss(nn.Module):
    def __init__(
        self,
        ce_weight=None,
        ignore_index=-100,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="mean",
        softcap=None,
        **other,
    ):
        super().__init__()
        _check_loss(label_smoothing, reduction, softcap)
        self.options = dict(
            ce_weight=ce_weight,
            ignore_index=ignore_index,
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            **other,
        )

    def forward(self, lin_weight, _input, target, bias=None):
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, **self.options)


LigerForCausalLMLossLayer = _loss.layers.ForCausalLMLoss

__all__ = [name for name in dir() if name.lower().startswith("liger")]
