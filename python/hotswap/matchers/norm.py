"""RMSNorm in each of its castings, and LayerNorm."""

import torch
from torch import nn

from hotswap.core.agree import agreement, first, numbers, settings, shell_of, stock_forward
from hotswap.core.matcher import Matcher, of_package
from hotswap.core.packages import load
from hotswap.core.replacement import Replacement, class_of


def _is_vector(module, name):
    value = getattr(module, name, None)
    return isinstance(value, torch.Tensor) and value.dim() == 1


def _norm_in_weights_type():
    """T5's: computed in float32, and given in the weight's type where that has 16 bits."""
    layer = load("norm").layers.RMSNorm.forward

    def forward(self, hidden_states):
        wide = torch.promote_types(hidden_states.dtype, self.weight.dtype)
        y = layer(self, hidden_states.to(wide))
        return y if self.weight.dtype == torch.float32 else y.to(self.weight.dtype)

    return Replacement("rms_norm", "RMSNorm", "norm", ("rms_norm", "rms_norm_fwd", "rms_norm_bwd"), forward, names=("RMSNorm",))


def is_rms_norm(module) -> bool:
    """By its name, or, of classes that are called a LayerNorm and are none of torch's, by the name of its epsilon (T5)."""
    name = class_of(module).__name__
    if name.endswith(("RMSNorm", "L2Norm")):
        return True
    t5 = name.endswith("LayerNorm") and isinstance(getattr(module, "variance_epsilon", None), float)
    return t5 and not isinstance(module, nn.LayerNorm) and not isinstance(getattr(module, "bias", None), torch.Tensor)


_BY_EPS = ["RMSNormZeroCentered", "RMSNormCastLastEps", "RMSNormEps", "RMSNormUnweighted"]


class RmsNorm(Matcher):
    options = {"rms_norm": True}

    def serves(self, module):
        return "RMSNorm" if is_rms_norm(module) else ""

    def match(self, module):
        if not is_rms_norm(module):
            return []
        ops = ("rms_norm", "rms_norm_fwd", "rms_norm_bwd")
        names = [n for n in ("variance_epsilon", "eps") if isinstance(getattr(module, n, None), float)]
        weighted = _is_vector(module, "weight")
        if weighted:
            layers = {"variance_epsilon": ["RMSNormCastLast", "RMSNorm"], "eps": _BY_EPS}
        else:
            layers = {"variance_epsilon": [], "eps": ["RMSNormUnweighted"]}

        def candidates():
            made = [of_package("rms_norm", layer, "norm", ops, names=("RMSNorm",)) for n in names for layer in layers[n]]
            named = class_of(module).__name__.endswith("RMSNorm")
            return made if named or not weighted or "variance_epsilon" not in names else [_norm_in_weights_type(), *made]

        def agree(candidate):
            parts = {"normalized_shape": (16,)} if isinstance(module, nn.RMSNorm) else {}  # torch's own
            shell = shell_of(module, weight=nn.Parameter(numbers(16)), **parts) if weighted else shell_of(module, **parts)
            x = numbers(3, 5, 16) * torch.tensor([[1.0], [1e-3], [30.0], [1.0], [2.0]])  # small ones: epsilon counts
            stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
            # A float32 weight on bfloat16 shows what is cast when.
            return agreement(stock, ours, [((x,), 1e-5), ((x.bfloat16(),), 2**-7)])

        return first((settings(module), weighted), candidates, agree, stock_forward(module))


class LayerNorm(Matcher):
    options = {"layer_norm": True}

    def serves(self, module):
        return "LayerNorm" if class_of(module).__name__.endswith("LayerNorm") and _is_vector(module, "weight") else ""

    def match(self, module):
        if not issubclass(class_of(module), nn.LayerNorm) or not _is_vector(module, "weight"):
            return []
        ops = ("layer_norm", "layer_norm_fwd", "layer_norm_bwd")

        def candidates():
            return [of_package("layer_norm", layer, "norm", ops, names=("LayerNorm",)) for layer in ("LayerNorm", "LayerNormZeroCentered")]

        def agree(candidate):
            bias = None if module.bias is None else nn.Parameter(numbers(16))
            shell = shell_of(module, normalized_shape=(16,), weight=nn.Parameter(numbers(16)), bias=bias)
            stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
            x = numbers(3, 5, 16)
            return agreement(stock, ours, [((x,), 1e-5), ((1e-3 * x,), 1e-4)])  # small ones: epsilon counts

        return first((settings(module), module.bias is None), candidates, agree, stock_forward(module))
