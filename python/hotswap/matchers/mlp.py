"""Gated MLPs: SwiGLU and GeGLU, with gate and up apart or in one projection, and under other names."""

from typing import Optional

import torch
from torch import nn

from hotswap.core.agree import agreement, first, linear, numbers, settings, shell_of, stock_forward
from hotswap.core.matcher import Matcher, of_package
from hotswap.core.packages import load
from hotswap.core.replacement import Replacement


def _scaled_swiglu_mlp():
    """Falcon H1's: a factor before the activation and one at the end."""
    swiglu = load("mlp").swiglu

    def forward(self, x):
        gate = self.gate_proj(x) * self.gate_multiplier
        return self.down_proj(swiglu(gate, self.up_proj(x))) * self.down_multiplier

    return Replacement("mlp", "SwiGLUMLP", "mlp", ("swiglu", "swiglu_bwd", "swiglu_bwd_"), forward)


def _clamped_swiglu_mlp():
    """DeepSeek 4's: a limit on gate and up."""
    swiglu = load("mlp").swiglu

    def forward(self, x):
        gate, up = self.gate_proj(x).clamp(max=self.limit), self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj(swiglu(gate, up))

    return Replacement("mlp", "SwiGLUMLP", "mlp", ("swiglu", "swiglu_bwd", "swiglu_bwd_"), forward)


def _ops(op: str) -> tuple:
    return (op, *(f"{op}_bwd{end}" for end in ("", "_", "_again_")))


def _of_package(layer: str, op: str) -> Replacement:
    return of_package("mlp", layer, "mlp", _ops(op), names=(layer.removeprefix("Packed"),))


class GatedMlp(Matcher):
    options = {"mlp": True}

    def serves(self, module):
        return "MLP" if all(isinstance(getattr(module, n, None), nn.Module) for n in ("gate_proj", "up_proj", "down_proj")) else ""

    def match(self, module):
        split = all(isinstance(getattr(module, n, None), nn.Module) for n in ("gate_proj", "up_proj", "down_proj"))
        packed = all(isinstance(getattr(module, n, None), nn.Module) for n in ("gate_up_proj", "down_proj"))
        act = next((n for n in ("act_fn", "activation_fn") if isinstance(getattr(module, n, None), nn.Module)), None)
        if act is None or not (split or packed):
            return []
        layers = {"SwiGLUMLP": "swiglu", "GeGLUMLP": "geglu"}
        if not split:
            layers = {"PackedSwiGLUMLP": "swiglu", "PackedGeGLUMLP": "geglu"}

        def candidates():
            made = [_of_package(layer, op) for layer, op in layers.items()]
            if split and hasattr(module, "gate_multiplier"):
                made.append(_scaled_swiglu_mlp())
            if split and isinstance(getattr(module, "limit", None), (int, float)):
                made.append(_clamped_swiglu_mlp())
            return [c._replace(parts=(act,)) for c in made]

        def agree(candidate):
            parts = {"down_proj": linear(8, 12), act: shell_of(getattr(module, act))}
            parts |= {"gate_proj": linear(12, 8), "up_proj": linear(12, 8)} if split else {"gate_up_proj": linear(24, 8)}
            shell = shell_of(module, **parts)
            stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
            # the wide ones show a limit on gate and up (DeepSeek 4)
            return agreement(stock, ours, [((numbers(2, 3, 8),), 1e-5), ((1e4 * numbers(2, 3, 8),), 1e-5)])

        return first((settings(module), settings(getattr(module, act))), candidates, agree, stock_forward(module))


# ---- under other names -----------------------------------------------------------------------------------------------

_OTHER_NAMES = (("w1", "w3", "w2"), ("wi_0", "wi_1", "wo"))  # of gate, up and down: LFM2's, and T5's, which ends with a dropout


def _names(module) -> Optional[tuple]:
    """The names of gate, up and down, where they are not those of Llama."""
    return next((names for names in _OTHER_NAMES if all(isinstance(getattr(module, n, None), nn.Module) for n in names)), None)


def _named(layer: str, op: str, gate: str, up: str, down: str, drops: bool) -> Replacement:
    gated = getattr(load("mlp"), op)

    def forward(self, x):
        y, last = gated(getattr(self, gate)(x), getattr(self, up)(x)), getattr(self, down)
        if drops:  # T5's, whose last product may be in float32
            y, weight = self.dropout(y), last.weight
            y = y.to(weight.dtype) if isinstance(weight, torch.Tensor) and weight.dtype != torch.int8 else y
        return last(y)

    return Replacement("mlp", layer, "mlp", _ops(op), forward)


class NamedMlp(Matcher):
    """The activation is a child, or a function that the class's forward calls."""

    def serves(self, module):
        return "MLP" if _names(module) else ""

    def match(self, module):
        names = _names(module)
        if names is None:
            return []
        act = next((n for n in ("act_fn", "activation_fn", "act") if isinstance(getattr(module, n, None), nn.Module)), None)
        drops = isinstance(getattr(module, "dropout", None), nn.Dropout)

        def candidates():
            made = [_named(layer, op, *names, drops) for layer, op in (("SwiGLUMLP", "swiglu"), ("GeGLUMLP", "geglu"))]
            return [c._replace(parts=(act,)) if act else c for c in made]

        def agree(candidate):
            parts = dict(zip(names, (linear(12, 8), linear(12, 8), linear(8, 12))))
            parts |= {act: shell_of(getattr(module, act))} if act else {}
            parts |= {"dropout": nn.Dropout(0.0)} if drops else {}
            shell = shell_of(module, **parts)
            stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
            x = numbers(2, 3, 8)
            return agreement(stock, ours, [((x,), 1e-5), ((1e4 * x,), 1e-5)])

        key = (settings(module), act and settings(getattr(module, act)), names)
        return first(key, candidates, agree, stock_forward(module))
