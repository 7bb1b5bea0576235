"""Whole decoder layers by one op, for the one new token of each row in a static cache: what generate() puts into a model while it
runs. As everywhere, a layer is bound only when it computes what the op computes: both run on a few numbers, once a class.
"""

import contextlib
from typing import NamedTuple

import torch
from torch import nn

from hotswap.agree import numbers, settings
from hotswap.bind import _slot
from hotswap.packages import load
from hotswap.replacement import cache_name, class_of

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION, _HEAD_NORMS = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ACTIVATIONS = ("silu", "gelu_tanh")


def _eps(norm):
    return next((getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name)), None)


class Parts:
    """The op's arguments that are the layer's. ValueError, why, where it has others."""

    def __init__(self, layer: nn.Module):
        children = {name for name, _ in layer.named_children()}
        if children != _LAYER:
            raise ValueError(f"its parts are {', '.join(sorted(children))}")
        attention, mlp = layer.self_attn, layer.mlp
        heads = {name for name, _ in attention.named_children() if sum(1 for _ in attention.get_submodule(name).parameters())}
        if not (heads == _ATTENTION or heads == _ATTENTION | _HEAD_NORMS):
            raise ValueError(f"the parts of its attention are {', '.join(sorted(heads))}")
        if {name for name, _ in mlp.named_children()} != _MLP:
            raise ValueError("its MLP is not a gated one")
        linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        if odd := [x for x in linears if type(x) is not nn.Linear]:
            raise ValueError(f"one of its projections is a {type(odd[0]).__name__}")
        q, k, v, o, gate, up, down = ((x.weight, x.bias) for x in linears)
        head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self.input_norm, self.post_norm = layer.input_layernorm, layer.post_attention_layernorm
        eps = {_eps(norm) for norm in (self.input_norm, self.post_norm)}
        head_eps = {_eps(norm) for norm in head_norms if norm is not None} or {1e-6}
        if len(eps | {None}) != 2 or len(head_eps | {None}) != 2 or not hasattr(attention, "scaling"):
            raise ValueError("its norms or its attention do not say their eps and scaling")
        norms = [None if norm is None else norm.weight for norm in head_norms]
        self.index, self.head_dim = attention.layer_idx, attention.head_dim
        self.before = (self.input_norm.weight, *q, *k, *v, *norms)
        self.after = (*o, self.post_norm.weight, *gate, *up, *down, eps.pop(), head_eps.pop(), attention.scaling, -1)
        attention_weights, mlp_weights = (w[0] for w in (q, k, v, o)), (w[0] for w in (gate, up, down))
        self.weights = (self.input_norm.weight, *attention_weights, self.post_norm.weight, *mlp_weights)

    def run(self, op, activation, x, cos, sin, keys, values, position, weights_are_old=False):
        """keys, values: [batch, kv_heads, capacity, head_dim]; position: one int64 on the device."""
        cache = keys.transpose(1, 2), values.transpose(1, 2)
        return op(x, *self.before, cos, sin, *cache, position.view(1), *self.after, activation, weights_are_old)


class _FewKeys:
    """Enough of a static cache for one layer and one token: four keys, and room."""

    def __init__(self, keys, values, position):
        self.keys, self.values, self.position = keys, values, position

    def update(self, k, v, *args, **kwargs):
        self.keys.index_copy_(2, self.position, k)
        self.values.index_copy_(2, self.position, v)
        return self.keys, self.values


def _check_rows(parts: Parts, rows: int, op_rows):
    """ValueError where a batch of so many is not for the op; which is, the package says."""
    try:
        most = op_rows(*parts.weights)
    except RuntimeError as error:
        raise ValueError(f"it was asked and failed: {error}") from None
    if rows > most:
        raise ValueError(f"the batch has {rows} rows, and with these weights the op serves {most}")


@contextlib.contextmanager
def torch_without_cudnn():
    """torch prefers cuDNN's attention, which plans for a hundredth of a second or more whenever a length is new, and loads 300 MB when it is
    first called; on a machine that never ran it it also compiles, for more than a second."""
    backends = torch.backends.cuda
    if not (backends.cudnn_sdp_enabled() and backends.math_sdp_enabled()):  # somebody has chosen
        yield
        return
    backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        backends.enable_cudnn_sdp(True)


_known: dict = {}  # what a layer is -> its activation, or why it is none of ours


def _activation_of(layer: nn.Module, parts: Parts, op):
    """The activation with which the op gives what the layer gives; ValueError where none does."""
    x = parts.before[0]
    modules = (layer, layer.self_attn, layer.mlp, layer.mlp.act_fn, layer.input_layernorm)
    shapes = tuple(w.shape if isinstance(w, torch.Tensor) else w for w in (*parts.before, *parts.after))
    key = (*map(settings, modules), shapes, x.dtype, x.device.type)
    if key not in _known:
        _known[key] = _asked(layer, parts, op)
    return _known[key]


@torch.no_grad()
def _asked(layer, parts, op):
    # What can be is computed on the CPU: a GPU fetches the code of every kernel that it has not had yet, tens of milliseconds each.
    weight, dim, capacity, dtype = parts.before[0], parts.head_dim, 8, parts.before[0].dtype
    kv_heads, position = parts.before[3].shape[0] // dim, torch.tensor([4], device="cpu")
    x, angle = numbers(1, 1, weight.shape[0]), numbers(1, 1, dim // 2).repeat(1, 1, 2)
    keys, values = (numbers(1, kv_heads, capacity, dim) + i for i in (0, 1))
    hidden = torch.arange(capacity, device="cpu") > position
    mask = torch.zeros(1, 1, 1, capacity, dtype=dtype, device="cpu").masked_fill(hidden, torch.finfo(dtype).min)
    x, cos, sin, keys, values, mask = (a.to(weight) for a in (x, angle.cos(), angle.sin(), keys, values, mask))
    position = position.to(weight.device)
    forward = class_of(layer).forward.__get__(layer)
    limit = 1e-4 if x.dtype == torch.float32 else 2**-6
    try:
        table = {"position_embeddings": (cos, sin), "position_ids": position.view(1, 1), "use_cache": True}
        with torch_without_cudnn():
            want = forward(x, attention_mask=mask, **{cache_name(forward): _FewKeys(keys.clone(), values.clone(), position)}, **table)
        for activation in _ACTIVATIONS:
            got = parts.run(op, activation, x, cos, sin, keys.clone(), values.clone(), position)
            if isinstance(want, torch.Tensor) and (got.cpu() - want.cpu()).float().norm() <= limit * want.cpu().float().norm():
                return activation
    except (RuntimeError, TypeError, AttributeError) as error:
        return ValueError(f"it was asked and failed: {error}")
    return ValueError(f"{class_of(layer).__name__} computes something else")


def layers_of(model: nn.Module) -> list:
    """The decoder layers, in their order."""
    base = getattr(model, "base_model", model)
    return list(getattr(base, "layers", ()))


def _step(layer, parts, activation, op):
    slot = _slot(layer)
    stock = getattr(layer, slot)
    name = cache_name(stock)

    def forward(hidden_states, *args, position_embeddings=None, **kwargs):
        if hidden_states.shape[1] != 1 or kwargs.get(name) is None or position_embeddings is None:
            return stock(hidden_states, *args, position_embeddings=position_embeddings, **kwargs)
        cache = kwargs[name].layers[parts.index]
        old = not layer._forward_pre_hooks  # or one of them may just have written them
        return parts.run(op, activation, hidden_states, *position_embeddings, cache.keys, cache.values, cache.cumulative_length, old)

    return slot, forward


class Bound(NamedTuple):
    places: list  # in the cache, of the layers that are bound: their new token is counted by who asks for it
    why: dict  # why not -> names of the layers that stay as they are


def count(cache, places: list) -> None:
    """One more token in these layers of a static cache: one launch for all."""
    if places:
        torch._foreach_add_([cache.layers[place].cumulative_length for place in places], 1)


@contextlib.contextmanager
def whole_layers(model: nn.Module, rows: int = 1):
    """Binds what can be for the time of a `with`, for batches of so many rows."""
    undo, places, why = [], [], {}
    package = load("decode")
    op = package.decoder_layer
    for number, layer in enumerate(layers_of(model)):
        try:
            parts = Parts(layer)
            _check_rows(parts, rows, package.decoder_layer_rows)
            activation = _activation_of(layer, parts, op)
            if isinstance(activation, ValueError):
                raise activation
        except ValueError as error:
            why.setdefault(str(error), []).append(f"layers.{number}")
            continue
        slot, forward = _step(layer, parts, activation, op)
        undo.append((layer, slot, layer.__dict__.get(slot)))
        layer.__dict__[slot] = forward
        places.append(parts.index)
    try:
        yield Bound(places, why)
    finally:
        for layer, slot, before in undo:
            if before is None:
                del layer.__dict__[slot]
            else:
                layer.__dict__[slot] = before
