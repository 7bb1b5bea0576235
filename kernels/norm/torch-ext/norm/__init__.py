"""RMSNorm, AddRMSNorm, LayerNorm: ops with fakes and autograd, layers in `layers`."""

import torch

from . import _package, layers, sharding
from ._package import ops
from ._package import like as _like


def _rows(x):
    return x.new_empty((x.numel() // x.shape[-1] if x.dim() > 1 else 1,), dtype=torch.float32)


def _rms_y(x, weight, casting):
    return _like(x, torch.promote_types(x.dtype, weight.dtype) if casting == "llama" else x.dtype)


FAKES = {
    "rms_norm": lambda x, weight, eps, offset, casting: _rms_y(x, weight, casting),
    "rms_norm_fwd": lambda x, weight, eps, offset, casting: (_rms_y(x, weight, casting), _rows(x)),
    "rms_norm_bwd": lambda dy, x, weight, rstd, offset, casting: (_like(x), _like(weight)),
    "add_rms_norm": lambda x, residual, weight, eps, offset, casting: (_rms_y(x, weight, casting), _like(x)),
    "add_rms_norm_fwd": lambda x, residual, weight, eps, offset, casting: (
        _rms_y(x, weight, casting),
        _like(x),
        _rows(x),
    ),
    "add_rms_norm_bwd": lambda dy, dh, h, weight, rstd, offset, casting: (_like(h), _like(weight)),
    "layer_norm": lambda x, weight, bias, eps: _like(x),
    "layer_norm_fwd": lambda x, weight, bias, eps: (_like(x), _rows(x), _rows(x)),
    "layer_norm_bwd": lambda dy, x, weight, mean, rstd: (_like(x), _like(weight), _like(weight)),
}


# The ops for inference save nothing: their backward makes the statistics again.
def _rms_setup(ctx, inputs, output):
    x, weight, ctx.eps, ctx.offset, ctx.casting = inputs
    rstd = ()
    if isinstance(output, tuple):
        rstd = (output[1],)
        ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, *rstd)


def _rms_backward(ctx, dy, *_):
    x, weight, *saved = ctx.saved_tensors
    rstd = saved[0] if saved else ops.rms_norm_fwd(x, weight, ctx.eps, ctx.offset, ctx.casting)[1]
    return (*ops.rms_norm_bwd(dy, x, weight, rstd, ctx.offset, ctx.casting), None, None, None)


def _add_rms_setup(ctx, inputs, output):
    _, _, weight, ctx.eps, ctx.offset, ctx.casting = inputs
    ctx.save_for_backward(output[1], weight, *output[2:])
    ctx.set_materialize_grads(False)
    if len(output) == 3:
        ctx.mark_non_differentiable(output[2])


def _add_rms_backward(ctx, dy, dh, *_):
    h, weight, *saved = ctx.saved_tensors
    dy = _rms_y(h, weight, ctx.casting).zero_() if dy is None else dy
    dh = torch.zeros_like(h) if dh is None else dh
    rstd = saved[0] if saved else ops.rms_norm_fwd(h, weight, ctx.eps, ctx.offset, ctx.casting)[1]
    dx, dweight = ops.add_rms_norm_bwd(dy, dh, h, weight, rstd, ctx.offset, ctx.casting)
    return dx, dx, dweight, None, None, None


def _layer_setup(ctx, inputs, output):
    x, weight, bias, ctx.eps = inputs
    ctx.has_bias = bias is not None
    saved = ()
    if isinstance(output, tuple):
        saved = output[1:]
        ctx.mark_non_differentiable(*saved)
    ctx.save_for_backward(x, weight, *saved)


def _layer_backward(ctx, dy, *_):
    x, weight, *saved = ctx.saved_tensors
    mean, rstd = saved if saved else ops.layer_norm_fwd(x, weight, None, ctx.eps)[1:]
    dx, dweight, dbias = ops.layer_norm_bwd(dy, x, weight, mean, rstd)
    return dx, dweight, dbias if ctx.has_bias else None, None


def _group_setup(ctx, inputs, output):
    x, weight, bias, ctx.groups, ctx.eps = inputs
    ctx.has = weight is not None, bias is not None
    saved = ()
    if isinstance(output, tuple):
        saved = output[1:]
        ctx.mark_non_differentiable(*saved)
    ctx.save_for_backward(x, weight, *saved)


def _group_backward(ctx, dy, *_):
    x, weight, *saved = ctx.saved_tensors
    mean, rstd = saved if saved else ops.group_norm_fwd(x, weight, None, ctx.groups, ctx.eps)[1:]
    dx, *of_channels = ops.group_norm_bwd(dy, x, weight, mean, rstd, ctx.groups)
    return dx, *(d if has else None for d, has in zip(of_channels, ctx.has, strict=True)), None, None


def _channels(x, weight):
    return x.new_empty(x.shape[1], dtype=torch.float32 if weight is None else weight.dtype)


def _groups(x, groups):
    return x.new_empty((x.shape[0], groups), dtype=torch.float32)


GROUP_FAKES = {
    "group_norm": lambda x, weight, bias, groups, eps: torch.empty_like(x),
    "group_norm_fwd": lambda x, weight, bias, groups, eps: (torch.empty_like(x), _groups(x, groups), _groups(x, groups)),
    "group_norm_bwd": lambda dy, x, weight, mean, rstd, groups: (torch.empty_like(x), _channels(x, weight), _channels(x, weight)),
}

GRADIENTS = {
    "rms_norm": (_rms_backward, _rms_setup),
    "add_rms_norm": (_add_rms_backward, _add_rms_setup),
    "layer_norm": (_layer_backward, _layer_setup),
}
_GROUP_NORM, _HELD = hasattr(ops, "group_norm"), (torch.float32, torch.bfloat16, torch.float16)
if _GROUP_NORM:  # built for GPUs alone
    FAKES |= GROUP_FAKES
    GRADIENTS |= {"group_norm": (_group_backward, _group_setup)}
_package.register(FAKES, GRADIENTS | {f"{op}_fwd": of for op, of in GRADIENTS.items()})
register_sharding = _package.sharding(sharding.rules)

rms_norm = ops.rms_norm
add_rms_norm = ops.add_rms_norm
layer_norm = ops.layer_norm


def _fits(x, groups):
    key = x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16 == 0, groups
    if key not in _FITS:
        if len(_FITS) == 1024:
            _FITS.clear()
        _FITS[key] = ops.group_norm_fits(x, groups)
    return _FITS[key]


_FITS = {}  # group_norm_fits of what was seen: a question costs as much as a launch


def group_norm(x, weight, bias, groups, eps):
    """x [samples, channels, ...], contiguous or channels last; weight, bias [channels] or None. Our kernel on a GPU where a group
    fits on the chip at whole vectors, else torch's own, which tracing takes, too."""
    ours = (
        _GROUP_NORM and x.is_cuda and x.dim() >= 3 and x.dtype in _HELD and (weight is not None or bias is None)
        and not (torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda")) and _fits(x, groups)
    )  # fmt: skip
    if not ours:
        return torch.nn.functional.group_norm(x, groups, weight, bias, eps)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return ops.group_norm_fwd(x, weight, bias, groups, eps)[0]
    return ops.group_norm(x, weight, bias, groups, eps)


__all__ = ["register_sharding", "add_rms_norm", "group_norm", "layer_norm", "layers", "rms_norm"]
