"""What Liger's test_monkey_patch asks about a module, answered by what hotswap has bound there.

Its tests compare the source text of a forward with that of one of Liger's layers, ask for its class, for the name that it prints
and for attributes of its norms. hotswap binds a forward to the module that is there, so that what a module runs is asked of it.
"""

import inspect
import re
from types import SimpleNamespace
from typing import Optional
from weakref import WeakKeyDictionary

from torch import nn

from hotswap.matchers.registered import matches
from hotswap.swap import bind

LOSS = "the loss without logits"
PRINTED = {"GeGLU": "LigerGEGLUMLP", "SwiGLU": "LigerSwiGLUMLP"}
_known: "WeakKeyDictionary" = WeakKeyDictionary()  # module -> its layer, before attributes of Liger's were put there


def _of_class(name: str) -> Optional[str]:
    layers = dict(RMSNorm="RMSNorm", LayerNorm="LayerNorm", GEGLU="GeGLU", SwiGLU="SwiGLU", BlockSparseTop2="SwiGLU", Experts="experts",
                  ReLUSquared="relu_squared")  # fmt: skip
    return next((layer for part, layer in layers.items() if part in name), None)


def _bound(module):
    return next((r for r in matches(module) if bind.bound(module, r)), None)


def _of_module(module) -> Optional[str]:
    if module in _known:
        return _known[module]
    bound = _bound(module)
    if bound is None:
        return None
    layers = dict(rms_norm="RMSNorm", layer_norm="LayerNorm", experts="experts", fused_linear_cross_entropy=LOSS)
    layers |= dict(mlp="GeGLU" if bound.ops[0] == "geglu" else "SwiGLU", activation=bound.ops[0])
    return layers.get(bound.option)


def put(module, absent: type) -> None:
    """Into a test file's module. absent: the type of the names that hotswap has not, which know their own name."""

    def layer_or_source(function):
        if isinstance(function, absent):
            layer = LOSS if re.search(r"\.model\.\w+\.\w*forward", function.name) else _of_class(function.name)
        elif isinstance(owner := getattr(function, "__self__", None), nn.Module):
            layer = _of_module(owner)
        else:
            mine = (c for name, c in vars(module).items() if name.startswith("Liger"))
            layer = next((_of_class(c.__name__) for c in mine if getattr(c, "forward", None) is function), None)
        return f"hotswap's {layer}" if layer else inspect.getsource(function)

    apply = module._apply_liger_kernel_to_instance

    def apply_and_name(model, **options):
        for part in model.modules():
            for name in part.__dict__.pop("_names_of_liger", ()):
                del part.__dict__[name]
            _known.pop(part, None)
        apply(model=model, **options)
        for part in model.modules():
            _known[part] = _of_module(part)
            names = _names(part)
            part.__dict__.update(names, _names_of_liger=list(names))

    module.inspect = SimpleNamespace(**{**vars(inspect), "getsource": layer_or_source})
    module._apply_liger_kernel_to_instance = apply_and_name
    module.isinstance = lambda value, kind: (
        _of_class(kind.__name__) == _of_module(value)
        if isinstance(value, nn.Module) and isinstance(kind, type) and kind.__name__.startswith("Liger")
        else isinstance(value, kind)
    )


def _names(part) -> dict:
    """What Liger's module would say of itself."""
    layer = _known[part]
    if layer in PRINTED:
        return {"_get_name": lambda: PRINTED[layer]}
    if layer != "RMSNorm" or (bound := _bound(part)) is None:
        return {}
    zero_centred, last = "ZeroCentered" in bound.layer, "CastLast" in bound.layer
    names = dict(offset=float(zero_centred), casting_mode="gemma" if zero_centred or last else "llama", in_place=False)
    if not hasattr(part, "variance_epsilon"):
        names["variance_epsilon"] = getattr(part, "eps", None)
    return names
