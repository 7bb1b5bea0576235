"""Fuses the residual addition into RMSNorm (AddRMSNorm) in decoder layers of the common kind: after attention the addition and the
norm are one op, and in backward the norm adds the residual's gradient to its own. Used for training on a GPU, where it was measured.

The layer's parts stay modules and are called as modules. A class is checked first: its forward and this one run on probe inputs,
with stand-ins for the parts that record what is called with what and added to what.
"""

import functools
import inspect
from typing import Callable, Optional

import torch
from torch import nn

from hotswap.core.agree import agreement, first, numbers, settings, shell_of, stock_forward
from hotswap.core.matcher import Matcher
from hotswap.core.packages import load
from hotswap.core.plain import has_global_hooks, has_hooks, is_parametrized
from hotswap.core.replacement import Replacement, cache_name, class_of, decorated, inside, running
from hotswap.matchers.projections import ADD_NORM, trains

PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
OPS = ("add_rms_norm_fwd", "add_rms_norm_bwd")
# layers of the package -> the name of epsilon, what is added to the weight, casting
_FORMULAS = {
    "RMSNorm": ("variance_epsilon", 0.0, "llama"),
    "RMSNormCastLast": ("variance_epsilon", 0.0, "gemma"),
    "RMSNormEps": ("eps", 0.0, "llama"),
    "RMSNormCastLastEps": ("eps", 0.0, "gemma"),
    "RMSNormZeroCentered": ("eps", 1.0, "gemma"),
}


@functools.lru_cache(maxsize=None)
def _norm():  # asked for by a forward: `import hotswap` loads no package
    package = load("norm")
    formulas = {getattr(package.layers, name).forward: formula for name, formula in _FORMULAS.items()}
    return package._ops.ops, formulas, package.layers.WEIGHT_BEFORE_CAST


@functools.lru_cache(maxsize=None)
def _norm_and_input_backward():
    ops = _norm()[0]

    def backward(ctx, dy, dx):
        if dy is None:
            return dx, None, None, None, None
        saved = ctx.saved_tensors
        its = ops.rms_norm_bwd(dy, *saved, *ctx.formula) if dx is None else ops.add_rms_norm_bwd(dy, dx, *saved, *ctx.formula)
        return *its, None, None, None

    return load("norm")._derivatives.first_order("RMSNorm", backward)


def _formula(norm) -> Optional[tuple]:
    """(weight, epsilon, offset, casting) of a norm that runs by our op and has nothing else on it."""
    _, formulas, cast_last = _norm()
    found = formulas.get(inside(running(norm)))
    if found is None or has_hooks(norm) or has_global_hooks() or is_parametrized(norm):
        return None
    eps, offset, casting = found
    casting = "gemma" if class_of(norm).__name__ in cast_last else casting
    plain = type(norm.weight) in (torch.Tensor, nn.Parameter)
    return (norm.weight, getattr(norm, eps), offset, casting) if plain else None


class NormAndInput(torch.autograd.Function):
    """x -> RMSNorm(x), and x for the residual, whose gradient the norm's backward adds to its own."""

    @staticmethod
    def forward(ctx, x, weight, eps, offset, casting):
        ctx.set_materialize_grads(False)
        y, rstd = _norm()[0].rms_norm_fwd(x, weight, eps, offset, casting)
        ctx.save_for_backward(x, weight, rstd)
        ctx.formula = offset, casting
        return y, x

    @staticmethod
    def backward(ctx, dy, dx):
        return _norm_and_input_backward()(ctx, dy, dx)


class InTwo:
    """How a stock layer does it."""

    @staticmethod
    def normed(norm, x):
        return norm(x), x

    @staticmethod
    def added(norm, x, residual):
        residual = residual + x
        return norm(residual), residual


class InOne:
    @staticmethod
    def normed(norm, x):
        formula = _formula(norm) if x.requires_grad else None
        return InTwo.normed(norm, x) if formula is None else NormAndInput.apply(x, *formula)

    @staticmethod
    def added(norm, x, residual):
        formula = _formula(norm) if type(x) is torch.Tensor and x.dtype == residual.dtype else None
        if formula is None:
            return InTwo.added(norm, x, residual)
        return _norm()[0].add_rms_norm_fwd(x, residual, *formula)[:2]


@functools.lru_cache(maxsize=None)
def composed(layer_class: type, ways=InOne) -> Callable:
    stock = layer_class.forward
    signature = inspect.signature(stock)
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)

    @functools.wraps(stock)
    def forward(self, hidden_states, *args, **kwargs):
        if ways is InOne and not trains(hidden_states):
            return stock(self, hidden_states, *args, **kwargs)
        bound = signature.bind(self, hidden_states, *args, **kwargs)
        bound.apply_defaults()
        _, _, *names = bound.arguments
        given = {name: bound.arguments[name] for name in names if name != rest} | bound.arguments.get(rest, {})
        hidden_states, residual = ways.normed(self.input_layernorm, hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **given)
        hidden_states, residual = ways.added(self.post_attention_layernorm, hidden_states, residual)
        return residual + self.mlp(hidden_states)

    return decorated(stock, forward)


class _StandIn(nn.Module):
    def __init__(self, change, tells=False):
        super().__init__()
        self.change, self.tells = change, tells

    def forward(self, hidden_states, **given):
        if not self.tells:
            return self.change(hidden_states)
        told = sum(len(name) * {None: 1, True: 2, False: 3}.get(value if isinstance(value, (bool, type(None))) else 0, 5)
                   for name, value in given.items())  # fmt: skip
        return self.change(hidden_states) * (1 + told / 100), None


class AddRmsNorm(Matcher):  # its switch is rms_norm
    def match(self, module):
        if {name for name, _ in module.named_children()} != PARTS:
            return []
        if list(inspect.signature(stock_forward(module)).parameters)[1:2] != ["hidden_states"]:
            return []

        def candidates():
            return [Replacement("rms_norm", ADD_NORM, "norm", OPS, composed(class_of(module)))]

        def agree(candidate):
            changes = {"input_layernorm": torch.sin, "post_attention_layernorm": torch.cos, "mlp": torch.tanh}
            shell = shell_of(module, self_attn=_StandIn(torch.exp, tells=True), **{n: _StandIn(f) for n, f in changes.items()})
            stock, ours = (f.__get__(shell) for f in (stock_forward(module), composed(class_of(module), InTwo)))
            x, mask = numbers(2, 3, 8), numbers(3, 3)
            cache = cache_name(stock_forward(module))
            some = dict(attention_mask=mask, position_embeddings=(mask, mask), use_cache=True)
            return all(
                agreement(lambda x: stock(x, **given), lambda x: ours(x, **given), [((x,), 1e-6)])
                for given in (some, some | {cache: mask, "position_ids": mask, "more": mask}, dict(attention_mask=mask))
            )

        return first(("residual", *settings(module)), candidates, agree)
