"""Rotary embedding: a function that an attention's forward looks up among its module's globals."""

import functools
import types

import torch
from torch import nn

from hotswap.core.agree import agreement, first, numbers, stock_forward
from hotswap.core.fitting import fitted
from hotswap.core.matcher import Matcher
from hotswap.core.packages import load
from hotswap.core.plain import Looked
from hotswap.core.replacement import Replacement, decorated, inside, seeing
from hotswap.matchers.projections import linking

SLOT = "rotary_pos_emb"
# angles as cosine and sine; as complex numbers (Llama 4); the same two for the patches of images
ROTARY = ("apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_vision", "vision_apply_rotary_emb")


def _rotary_name(forward):
    names = getattr(getattr(inside(forward), "__code__", None), "co_names", ())
    return next((name for name in ROTARY if name in names), None)


def _rotary_functions():
    rotary = load("rotary")
    apply, along = rotary.apply_rotary, rotary.layers.along

    def rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return along(unsqueeze_dim, q, k, cos, lambda q, k: apply(q, k, cos, sin))

    def partial_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return along(unsqueeze_dim, q, k, cos, lambda q, k: apply(q, k, cos, sin, cos.shape[-1]))

    def interleaved_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):  # the table's first half counts (GLM)
        width = cos.shape[-1]
        half = cos[..., : width // 2], sin[..., : width // 2]
        return along(unsqueeze_dim, q, k, cos, lambda q, k: apply(q, k, *half, width, True))

    def complex_rotary_emb(q, k, freqs_cis):  # DeepSeek 2
        return apply(q, k, freqs_cis.real, freqs_cis.imag, None, True)

    def complex_rotary_emb_by_time(q, k, freqs_cis):  # Llama 4: [batch, time, heads, dim]
        return rotary.layers.turned_by_time(q, k, freqs_cis)

    def patch_rotary_pos_emb(q, k, cos, sin, **kwargs):  # DINOv3's: the first tokens are no patches, and stay
        first = q.shape[-2] - sin.shape[-2]
        turned = apply(q[..., first:, :], k[..., first:, :], cos, sin)
        return tuple(torch.cat([x[..., :first, :], t], -2) for x, t in zip((q, k), turned)) if first else turned

    def image_rotary_pos_emb(q, k, cos, sin):  # Qwen's: [time, heads, dim], or a batch of them
        if q.dim() == 4:
            return along(2, q, k, cos, lambda q, k: apply(q, k, cos, sin))
        q, k = image_rotary_pos_emb(q.unsqueeze(0), k.unsqueeze(0), cos, sin)
        return q.squeeze(0), k.squeeze(0)

    def image_complex_rotary_emb(query, key, freqs_ci):  # Llama 4's: [batch, time, heads, dim]
        freqs_ci = freqs_ci.reshape(-1, freqs_ci.shape[-1])
        if not freqs_ci.is_complex():  # a model that was cast to 16 bits has lost the other half
            freqs_ci = torch.complex(freqs_ci.float(), torch.zeros_like(freqs_ci, dtype=torch.float32))
        return rotary.layers.turned_by_time(query, key, freqs_ci.to(query.device))

    tables = [rotary_pos_emb, partial_rotary_pos_emb, interleaved_rotary_pos_emb, patch_rotary_pos_emb]
    numbers = [complex_rotary_emb, complex_rotary_emb_by_time]
    return dict(zip(ROTARY, (tables, numbers, [image_rotary_pos_emb], [image_complex_rotary_emb]), strict=True))


def _of_fixed_tables(stock, ours):
    """Tables that learn, as those of MLCD's class token, have their gradient from the stock function."""

    @functools.wraps(ours)
    def function(q, *args, **kwargs):
        if any(isinstance(t, torch.Tensor) and t.requires_grad for t in (*args[1:], kwargs.get("cos"), kwargs.get("sin"))):
            return stock(q, *args, **kwargs)
        return ours(q, *args, **kwargs)

    return function


def _rotary_cases(name):
    q, k, table = numbers(2, 4, 5, 8), numbers(2, 2, 5, 8) + 0.5, numbers(1, 5, 4)
    by_time = q.transpose(1, 2), k.transpose(1, 2)
    if name == "apply_rotary_emb":
        angles = torch.polar(torch.ones_like(table), table)
        return [((q, k, angles), 1e-6), ((*by_time, angles), 1e-6)]
    if name == "vision_apply_rotary_emb":
        angles = torch.polar(torch.ones_like(table[0]), table[0])
        return [((*by_time, angles[:, None]), 1e-6), ((*by_time, angles.real[:, None]), 1e-6)]
    if name == "apply_rotary_pos_emb_vision":
        angle = torch.cat([table[0], table[0]], -1)
        cos, sin, of_image = angle.cos(), angle.sin(), [x[0] for x in by_time]
        short = [x.bfloat16() for x in of_image]
        return [((*of_image, cos, sin), 1e-6), ((*by_time, cos, sin), 1e-6), ((*short, cos, sin), 2**-8)]
    cases = []
    for half in (table, table[..., :2], None):  # a whole head's table, half of it, and one for both halves
        angle = table if half is None else torch.cat([half, half], -1)
        cos, sin = angle.cos(), angle.sin()
        cases += [((q, k, cos, sin), 1e-6), ((*by_time, cos, sin, 2), 1e-6), ((q, k, cos[0], sin[0], 0), 1e-6)]
        cases += [((q, k, cos[0, 2:], sin[0, 2:]), 1e-6)]  # of patches alone: two of the tokens are none
    return cases


def _names(layer: str) -> tuple:
    return (layer, SLOT) if layer.startswith("image_") else (SLOT,)


class Rotary(Matcher):
    options = {"rope": True}

    def serves(self, module):
        return SLOT if _rotary_name(stock_forward(module)) else ""

    def match(self, module):
        forward = stock_forward(module)
        name = _rotary_name(forward) if isinstance(forward, types.FunctionType) else None
        if name is None:
            return []
        looked = Looked(forward)
        stock = looked.scope.get(name)
        if isinstance(stock, nn.Module):  # what use_kernel_forward_from_hub made of the function; kernelize() may have bound it
            stock = stock_forward(stock).__get__(stock)
        if not callable(stock):
            return []

        def candidates():
            made = [(f.__name__, fit) for f in _rotary_functions()[name] if (fit := fitted(stock, f)) is not None]
            functions = {layer: _of_fixed_tables(stock, fit.forward) for layer, fit in made}
            ours = [(layer, decorated(forward, seeing(inside(forward), {name: functions[layer]})), fit.note) for layer, fit in made]
            ops = ("rotary", "rotary_bwd")
            more = dict(looked=(looked,))
            return [Replacement("rope", layer, "rotary", ops, linking(f), note=note, names=_names(layer), **more) for layer, f, note in ours]

        def agree(candidate):
            return agreement(stock, inside(candidate.forward).__globals__[name], _rotary_cases(name))

        return first((forward, looked), candidates, agree)

    def stand_in(self, module, layer_class):
        """In the position of the function that the layer is there."""
        stock = stock_forward(module)
        forward = linking(decorated(stock, seeing(inside(stock), {_rotary_name(stock): layer_class()})))
        return dict(forward=forward, looked=(Looked(stock),))
