"""Whole decoder layers by one op, for the one new token of each row in a static cache: generate() runs its steps on a view of the
model that has them. The model itself is not changed. As everywhere, a layer is served only when it computes what the op computes:
both run on a few numbers, once a class.
"""

import contextlib
import threading
import types
from typing import Callable, Optional

import torch
from torch import nn

from hotswap.core.agree import NoDraws, numbers, settings
from hotswap.core.packages import load
from hotswap.core.plain import accelerate_hook, has_global_hooks, is_parametrized, wrapped_forward
from hotswap.core.replacement import cache_name, class_of, inside, names_in
from hotswap.core.view import view
from hotswap.matchers import attention, frequencies

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
        if any(x.weight.is_meta for x in (*linears, self.input_norm, self.post_norm)):
            raise ValueError("its weights are brought by its own call")
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


class _Setting:
    """A setting of the process that is off as long as any thread needs it off."""

    def __init__(self, is_on: Callable[[], bool], switch: Callable[[bool], None]):
        self.is_on, self.switch = is_on, switch
        self.lock, self.users, self.was_on = threading.Lock(), 0, False

    @contextlib.contextmanager
    def off(self):
        with self.lock:
            if self.users == 0:
                self.was_on = self.is_on()
                if self.was_on:
                    self.switch(False)
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0 and self.was_on:
                    self.switch(True)


_CUDNN = _Setting(  # where only one of the two is enabled, the user has chosen, and it stays so
    lambda: torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.enable_cudnn_sdp
)


def torch_without_cudnn():
    """torch prefers cuDNN's attention, which plans for a hundredth of a second or more whenever a length is new, and loads 300 MB when it is
    first called; on a machine that never ran it it also compiles, for more than a second."""
    return _CUDNN.off()


_known: dict = {}  # what a layer is -> its activation, or why it is none of ours


def _activation_of(layer: nn.Module, parts: Parts, op):
    """The activation with which the op gives what the layer gives; ValueError where none does."""
    x = parts.before[0]
    if why := attention.why_foreign(layer.self_attn):
        raise ValueError(why)
    modules = [(name, settings(part), part.training, _looked_up(part)) for name, part in layer.named_modules()]
    shapes = tuple(w.shape if isinstance(w, torch.Tensor) else w for w in (*parts.before, *parts.after))
    key = (*modules, attention.function_of(layer.self_attn), shapes, x.dtype, x.device.type)
    if key not in _known:
        _known[key] = _asked(layer, parts, op)
    return _known[key]


def _looked_up(module: nn.Module) -> tuple:
    """The functions that its class's forward finds in its file."""
    function = inside(class_of(module).forward)
    scope, code = getattr(function, "__globals__", {}), getattr(function, "__code__", None)
    found = ((name, scope[name]) for name in sorted(names_in(code)) if name in scope)
    return tuple(pair for pair in found if isinstance(pair[1], (types.FunctionType, nn.Module)))


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
        with torch_without_cudnn(), NoDraws():
            want = forward(x, attention_mask=mask, **{cache_name(forward): _FewKeys(keys.clone(), values.clone(), position)}, **table)
        for activation in _ACTIVATIONS:
            got = parts.run(op, activation, x, cos, sin, keys.clone(), values.clone(), position)
            if isinstance(want, torch.Tensor) and (got.cpu() - want.cpu()).float().norm() <= limit * want.cpu().float().norm():
                return activation
    except (RuntimeError, TypeError, AttributeError) as error:
        return ValueError(f"it was asked and failed: {error}")
    return ValueError(f"{class_of(layer).__name__} computes something else")


# ---- what a model carries beyond its class ---------------------------------------------------------------------------


def _is_recorder(hook) -> bool:
    """transformers' own, which does nothing unless outputs of layers are asked for; generate() refuses those."""
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


def _why_called(module: nn.Module) -> Optional[str]:
    """Why this module itself has to be called at each step, by its own forward; None where its class does all of it."""
    if any(not _is_recorder(hook) for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())):
        return "a hook"
    if module._compiled_call_impl is not None:
        return "a compiled forward"
    if wrapped_forward(module) is not None:
        return "a forward of its own"
    if hook := accelerate_hook(module, but_placing=True):
        return f"accelerate's {hook}"
    if is_parametrized(module):
        return "a parametrized weight"
    return None


def why_not_captured(model: nn.Module) -> str:
    """Why generate() runs a model's steps one by one on a GPU instead of replaying a CUDA graph, which calls no Python; "": it
    captures them. Asked at each call of generate()."""
    if has_global_hooks():
        return "there are hooks on every module"
    for name, module in model.named_modules():
        if (why := _why_called(module)) is not None:
            return f"{name or type(model).__name__} has {why}"
        if frequencies.follow_the_length(module):
            return f"{name} reads the length of the text on the host"
    devices = sorted({str(p.device) for p in model.parameters()})
    return f"its layers are on {', '.join(devices)}" if len(devices) > 1 else ""


def _check_carries(root: nn.Module, modules):
    """ValueError where one of `modules`, (name, module) in `root`, has to be called itself."""
    for name, module in modules:
        if (why := _why_called(module)) is not None:
            raise ValueError(f"{name or type(root).__name__} has {why}")


def _check_model(model: nn.Module, base: nn.Module):
    if has_global_hooks():
        raise ValueError("there are hooks on every module")
    weight = next(base.parameters())
    if weight.is_meta:
        raise ValueError("its weights are on no device but meta, or brought there by each layer's call")
    if torch.is_autocast_enabled(weight.device.type):
        raise ValueError("autocast is on")
    _check_carries(model, [("", model)])
    _check_carries(base, [("", base)])


# ---- the view of a model -----------------------------------------------------------------------------------------------


def trunk_of(model: nn.Module):
    """The part that has the layers, and these."""
    found = next((part for part in model.modules() if isinstance(getattr(part, "layers", None), nn.ModuleList)), None)
    return (None, []) if found is None else (found, list(found.layers))


def _is_plain_decoder(layer: nn.Module) -> bool:
    """Norm, attention by q, k and v, norm, a gated MLP without experts; dropouts beside them."""
    parts = {name for name, part in layer.named_children() if not isinstance(part, nn.Dropout)}
    if parts != _LAYER:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    plain = hasattr(attention, "q_proj") or hasattr(attention, "qkv_proj")
    latent, gated = hasattr(attention, "kv_b_proj"), hasattr(mlp, "gate_proj") or hasattr(mlp, "gate_up_proj")
    return plain and not latent and gated and not hasattr(mlp, "experts") and isinstance(getattr(mlp, "down_proj", None), nn.Module)


def plain_layers(model: nn.Module) -> list:
    """The decoder layers, where all are of the kind that a whole layer's op may serve; else none."""
    layers = trunk_of(model)[1]
    return layers if all(map(_is_plain_decoder, layers)) else []


def layers_of(model: nn.Module) -> list:
    """The decoder layers, in their order."""
    base = getattr(model, "base_model", model)
    return list(getattr(base, "layers", ()))


def _whole(layer: nn.Module, parts: Parts, activation: str, op, ran: list):
    name = cache_name(layer.forward)

    def forward(hidden_states, *args, position_embeddings=None, **kwargs):
        if kwargs.get(name) is None or position_embeddings is None:
            return layer(hidden_states, *args, position_embeddings=position_embeddings, **kwargs)
        cache = kwargs[name].layers[parts.index]
        ran.append(parts.index)
        return parts.run(op, activation, hidden_states, *position_embeddings, cache.keys, cache.values, cache.cumulative_length, True)

    return view(layer, forward=forward)


def _check_rotary(base: nn.Module, parts: Parts):
    """ValueError where the tables turn a part of a head, which the class's layers see by the tables' width alone."""
    frequencies = getattr(getattr(base, "rotary_emb", None), "inv_freq", None)
    if not isinstance(frequencies, torch.Tensor):
        raise ValueError("its model has no rotary embedding of the common kind")
    if 2 * frequencies.numel() != parts.head_dim:
        raise ValueError(f"its rotary embedding turns {2 * frequencies.numel()} of {parts.head_dim} numbers of a head")


class WholeLayers:
    """`model`: a view of a model whose layers run by the op where that serves them, for batches of `rows` rows and one new token each,
    with a static cache; the model itself where it serves none. count() has to follow each call."""

    def __init__(self, model: nn.Module, rows: int = 1):
        self.model = model
        self.places: list = []  # of the served layers in the cache
        self.why: dict = {}  # why not -> names of the other layers
        self.ran: list = []  # places in this step
        base, layers, package = getattr(model, "base_model", model), layers_of(model), load("decode")
        try:
            _check_model(model, base)
        except ValueError as error:
            self.why[str(error)] = [f"layers.{number}" for number in range(len(layers))]
            return
        for number, layer in enumerate(layers):
            try:
                parts = Parts(layer)
                _check_carries(layer, layer.named_modules())
                _check_rotary(base, parts)
                _check_rows(parts, rows, package.decoder_layer_rows)
                activation = _activation_of(layer, parts, package.decoder_layer)
                if isinstance(activation, ValueError):
                    raise activation
            except ValueError as error:
                self.why.setdefault(str(error), []).append(f"layers.{number}")
                continue
            layers[number] = _whole(layer, parts, activation, package.decoder_layer, self.ran)
            self.places.append(parts.index)
        if self.places:
            seen = view(base, layers=layers)
            self.model = seen if base is model else view(model, **{model.base_model_prefix: seen})

    def count(self, cache) -> int:
        """One more token in the layers of the cache that the op wrote to: one launch for all. How many layers these are."""
        ran = len(self.ran)
        if ran:
            torch._foreach_add_([cache.layers[place].cumulative_length for place in self.ran], 1)
        self.ran.clear()
        return ran
