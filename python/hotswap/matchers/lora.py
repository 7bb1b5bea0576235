"""Linear layers of peft with a LoRA adapter, in training: the frozen weight's product and the adapter's in one autograd node
(kernels/linear/torch-ext/linear/lora.py). Whatever is more than one plain adapter beside a frozen nn.Linear runs as peft has it."""

import functools
import sys
from typing import Callable

import torch
from torch import nn
from torch.nn import functional as F

from hotswap.core.agree import agreement, first, linear, numbers, settings, shell_of, stock_forward
from hotswap.core.matcher import Matcher
from hotswap.core.packages import load
from hotswap.core.plain import has_global_hooks, has_hooks, odd_weight
from hotswap.core.replacement import Replacement, class_of


@functools.lru_cache(maxsize=None)
def _package():  # needed by a forward: `import hotswap` loads no package
    return load("linear").lora


def _is_adapted(module) -> bool:
    peft = sys.modules.get("peft.tuners.lora.layer")
    return peft is not None and class_of(module) is peft.Linear


def _is_plain(layer) -> bool:
    return type(layer) is nn.Linear and "forward" not in layer.__dict__ and not has_hooks(layer) and not odd_weight(layer)


def _active(module) -> list:
    return [name for name in module.active_adapters if name in module.lora_A]


def why_not(module, bound: bool = False) -> str:
    """What this layer has that one node leaves out, or ""."""
    names = _active(module)
    if len(names) != 1:
        return f"{len(names)} adapters are active"
    (name,) = names
    if not _is_plain(module.base_layer):
        return f"its base is a {type(module.base_layer).__name__} with more than a plain weight"
    if module.base_layer.weight.requires_grad:
        return "its base learns, too"
    if name in module.lora_variant:
        return f"its adapter is a {type(module.lora_variant[name]).__name__}"
    pair = module.lora_A[name], module.lora_B[name]
    if not all(map(_is_plain, pair)) or any(layer.bias is not None for layer in pair):
        return "its adapter has more than two plain weights"
    if type(module.lora_dropout[name]) not in (nn.Identity, nn.Dropout) or has_hooks(module.lora_dropout[name]):
        return "its dropout is not torch's"
    return ""


def _serves(module, x) -> bool:
    """Checked at each call: a gradient is needed, and the adapter is on, apart from the weight, and as it was."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or type(x) not in (torch.Tensor, nn.Parameter):
        return False
    if torch._C._are_functorch_transforms_active() or module.disable_adapters or module.merged or has_global_hooks():
        return False
    if why_not(module) or not x.is_floating_point():
        return False
    weight = module.base_layer.weight
    return x.device == weight.device and (x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type))


def adapted(module, x):
    """[..., in] -> [..., out]"""
    (name,), base = _active(module), module.base_layer
    kind, weight, bias = x.device.type, base.weight, base.bias
    if torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))
        weight = weight.to(x.dtype)
        bias = bias if bias is None else bias.to(x.dtype)
    a, b, dropout = module.lora_A[name].weight, module.lora_B[name].weight, module.lora_dropout[name]
    drops = type(dropout) is nn.Dropout and dropout.training and dropout.p > 0
    read = F.dropout(x.to(_package().dtype_of(x, a)), dropout.p) if drops else None
    with torch.autocast(kind, enabled=False):
        return _package().AdaptedProduct.apply(x, read, weight, bias, a, b, module.scaling[name])


def _forward(stock: Callable) -> Callable:
    def forward(self, x, *args, **kwargs):
        if args or kwargs or not _serves(self, x):
            return stock(self, x, *args, **kwargs)
        return adapted(self, x)

    return forward


class Lora(Matcher):
    options = {"lora": True}

    def serves(self, module):
        return "LoraLinear" if _is_adapted(module) else ""

    def why_not(self, module):
        return why_not(module) or super().why_not(module)

    def match(self, module):
        if not _is_adapted(module) or why_not(module):
            return []
        stock = stock_forward(module)
        (name,) = _active(module)

        def candidates():
            return [Replacement("lora", "LoraLinear", "linear", (), _forward(stock), note="in training")]

        def agree(candidate):
            adapter = {"lora_A": {name: linear(2, 8, bias=False)}, "lora_B": {name: linear(6, 2, bias=False)}}
            parts = {part: nn.ModuleDict(its) for part, its in adapter.items()}
            parts |= {"base_layer": linear(6, 8), "lora_dropout": nn.ModuleDict({name: nn.Identity()})}
            shell = shell_of(module, **parts)
            shell.__dict__.update(merged_adapters=[], _disable_adapters=False, scaling={name: 1.5})
            x = numbers(2, 3, 8)
            return agreement(stock.__get__(shell), lambda x: adapted(shell, x), [((x,), 1e-5)])

        return first((settings(module), name), candidates, agree, stock)
