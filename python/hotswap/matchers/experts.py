"""The experts of mixtures: which formula a class computes, and our forward for it. Routers stay the model's own modules:
their outputs are recorded, and the auxiliary loss is made of them.

Three ways lead here: kernelize()'s option `experts`, experts_implementation="hotswap" after register_experts(), and the
layers of the package under the Hub's names.
"""

import functools
import math
from typing import NamedTuple, Optional

import torch
from torch import nn

from hotswap.core.agree import agreement, first, linear, numbers, settings, shell_of, stock_forward
from hotswap.core.arguments import TEXT, checked
from hotswap.core.matcher import Matcher
from hotswap.core.packages import load, why_not_for
from hotswap.core.plain import Attributes, Part, is_foreign, own_forward
from hotswap.core.replacement import Replacement, class_of
from hotswap.core.switch import enabled

NAME = "hotswap"
OPS = ("moe_experts", "moe_experts_train", "moe_experts_bwd", "moe_experts_bwd_")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Form(NamedTuple):
    activation: str
    alpha: float = 1.0
    limit: float = math.inf
    interleaved: bool = False


def _is_plain(weights) -> bool:
    """Not quantised; DTensors are, of models that are split already."""
    if not isinstance(weights, torch.Tensor) or weights.dim() != 3 or weights.dtype not in DTYPES:
        return False
    return type(weights) in (nn.Parameter, torch.Tensor) or type(weights).__name__ == "DTensor"


def _up_name(module) -> Optional[str]:
    names = [n for n in ("gate_up_proj", "up_proj") if _is_plain(getattr(module, n, None))]
    return names[0] if names and _is_plain(getattr(module, "down_proj", None)) else None


def _eager(module):
    """The forward of a class behind transformers' interface; None where it is behind none."""
    return getattr(stock_forward(module), "__wrapped__", None)


def _is_experts(module) -> bool:
    return _up_name(module) is not None and _eager(module) is not None


@functools.lru_cache(maxsize=None)
def _forward(form: Form, up: str, bias: bool, transposed: bool):
    experts = load("moe").experts

    def forward(self, hidden_states, top_k_index, top_k_weights):
        b_up, b_down = (getattr(self, f"{up}_bias"), self.down_proj_bias) if bias else (None, None)
        weights = getattr(self, up), b_up, self.down_proj, b_down
        return experts(hidden_states, top_k_index, top_k_weights, *weights, *form, transposed)

    return forward


def _forms(module, gated: bool) -> list:
    if not gated:
        return [Form(name) for name in ("relu2", "silu", "gelu_tanh", "gelu")]
    found = {n: getattr(module, n, None) for n in ("alpha", "swiglu_alpha", "limit", "swiglu_limit")}
    given = {n.removeprefix("swiglu_"): float(v) for n, v in found.items() if isinstance(v, (int, float))}
    made = [Form(name) for name in ("swiglu", "geglu_tanh", "geglu", "reglu")]
    if "limit" in given:
        made.append(Form("swiglu_clamped", limit=given["limit"]))
    if given.keys() == {"alpha", "limit"}:
        made.append(Form("swiglu_oai", **given))
    return made + [form._replace(interleaved=True) for form in made]


# ---- asking the class -----------------------------------------------------------------------------------------------

EXPERTS, WIDE, NARROW = 4, 8, 6  # no two layouts of such weights have one shape


def _act_name(module) -> Optional[str]:
    return next((n for n in ("act_fn", "activation_fn") if getattr(module, n, None) is not None), None)


def _act(module):
    name = _act_name(module)
    return None if name is None else getattr(module, name)


def _key(module) -> tuple:
    act = _act(module)
    return settings(module), settings(act) if isinstance(act, nn.Module) else getattr(act, "__qualname__", None)


def _small(module, up: str, bias: bool, transposed: bool) -> nn.Module:
    """The same experts, few and narrow."""
    columns = 2 * NARROW if up == "gate_up_proj" else NARROW
    sizes = {"num_experts": EXPERTS, "intermediate_dim": NARROW, "intermediate_size": NARROW, "expert_dim": NARROW}
    sizes |= {"hidden_dim": WIDE, "hidden_size": WIDE}
    parts = {name: size for name, size in sizes.items() if name in vars(module)}
    for name, rows, width in ((up, columns, WIDE), ("down_proj", WIDE, NARROW)):
        parts[name] = nn.Parameter(numbers(EXPERTS, *((width, rows) if transposed else (rows, width))))
        if bias:
            parts[f"{name}_bias"] = nn.Parameter(numbers(EXPERTS, rows))
    if isinstance(act := _act(module), nn.Module):
        parts["act_fn" if hasattr(module, "act_fn") else "activation_fn"] = shell_of(act)
    return shell_of(module, **parts)


class _Implementation:
    """Which function the model's config names for its experts: a foreign one stays."""

    def why_call(self, module) -> str:
        if "_apply_gate" in module.__dict__:  # which the functions of transformers call, and the class's own forward may not
            return "it has an _apply_gate of its own"
        name = getattr(getattr(module, "config", None), "_experts_implementation", None)
        if name in (None, "eager"):
            return ""
        function = _interface().get(name)
        if function is None or not is_foreign(function, module):
            return ""
        return f"its experts_implementation is {name}, {getattr(function, '__qualname__', type(function).__qualname__)}"


@functools.lru_cache(maxsize=None)
def _interface():
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    return ALL_EXPERTS_FUNCTIONS


def _experts(module) -> list:
    up = _up_name(module)
    bias, transposed = bool(getattr(module, "has_bias", False)), bool(getattr(module, "is_transposed", False))

    def candidates():
        forms, parts = _forms(module, up == "gate_up_proj"), (_act_name(module),) if _act_name(module) else ()
        made = dict(parts=parts, choice=(_Implementation(),))
        return [Replacement("experts", "Experts", "moe", OPS, _forward(form, up, bias, transposed), **made) for form in forms]

    def agree(candidate):
        shell = _small(module, up, bias, transposed)
        x, weights = numbers(5, WIDE), numbers(5, 2)
        index = torch.tensor([[0, 1], [2, 0], [1, 1], [0, 2], [2, 1]])  # expert 3 has no token, 1 one of them twice
        stock, ours = _eager(module).__get__(shell), candidate.forward.__get__(shell)
        # the wide ones show a limit
        return agreement(stock, ours, [((x, index, weights), 1e-5), ((1e4 * x, index, weights), 1e-5)])

    return first((*_key(module), up, bias, transposed), candidates, agree, stock_forward(module))


# ---- Llama 4: its experts are behind no interface, and each runs on every token ---------------------------------------


def _is_scaled_block(module) -> bool:
    experts = getattr(module, "experts", None)
    if not isinstance(experts, nn.Module) or not _up_name(experts) or _eager(experts) is not None:
        return False
    return all(isinstance(getattr(module, name, None), nn.Module) for name in ("router", "shared_expert"))


def _scaled_block(module) -> list:
    def candidates():
        layer, act = load("moe").layers.Llama4TextMoe, _act_name(module.experts)
        parts = ("experts", f"experts.{act}") if act else ("experts",)
        return [Replacement("experts", "Llama4TextMoe", "moe", OPS, layer.forward, layer, parts=parts)]

    def agree(candidate):
        parts = {
            "router": shell_of(module.router, weight=nn.Parameter(numbers(EXPERTS, WIDE)), bias=None),
            "experts": _small(module.experts, _up_name(module.experts), bias=False, transposed=True),
            "shared_expert": linear(WIDE, WIDE, bias=False),
        }
        sizes = {"num_experts": EXPERTS, "hidden_dim": WIDE}
        shell = shell_of(module, **parts, **{name: size for name, size in sizes.items() if name in vars(module)})
        stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
        return agreement(stock, ours, [((numbers(2, 3, WIDE),), 1e-5), ((1e4 * numbers(2, 3, WIDE),), 1e-5)])

    return first((settings(module), settings(module.router), *_key(module.experts)), candidates, agree, stock_forward(module))


class Experts(Matcher):
    options = {"experts": True}

    def match(self, module):
        layer = self.serves(module)
        if not layer or own_forward(module) is not None:
            return []
        return _experts(module) if layer == "Experts" else _scaled_block(module)

    def serves(self, module):
        return "Experts" if _is_experts(module) else "Llama4TextMoe" if _is_scaled_block(module) else ""

    def why_not(self, module):
        if own_forward(module) is None:
            return super().why_not(module)
        return f"{class_of(module).__name__} runs a forward of a parallel plan, which experts_implementation=\"{NAME}\" goes through"


# ---- transformers' interface ----------------------------------------------------------------------------------------


def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """What transformers calls for experts_implementation="hotswap". NotImplementedError for a class whose formula is none
    of ours. The class is asked at a module's first call, which torch.compile may not be."""
    made = self.__dict__.get("_hotswap_experts")
    if not enabled() or why_not_for("moe", hidden_states) or (made is not None and made.why_stock(self)):
        return _eager(self)(self, hidden_states, top_k_index, top_k_weights)
    if made is None:
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "expected experts whose class was asked what it computes; got their first call from torch.compile; run the "
                "model once before it is compiled, or take hotswap.kernelize(model) instead of an experts_implementation"
            )
        found = _experts(self) if _is_experts(self) else []
        if not found:
            raise NotImplementedError(
                f"expected experts with a formula that the package moe has; got {class_of(self).__name__}; set another "
                'experts_implementation for this model, "grouped_mm" for example'
            )
        made = self.__dict__["_hotswap_experts"] = _Found(self, found[0])
        return experts_forward(self, hidden_states, top_k_index, top_k_weights)
    return made.forward(self, hidden_states, top_k_index, top_k_weights)


class _Found:
    """What the class of such a module was found to compute, and the module's parts and attributes as they were then."""

    def __init__(self, module, found: Replacement):
        self.forward = found.forward
        self.parts = (*(Part(module, path) for path in found.parts), Attributes(module))

    def why_stock(self, module) -> str:
        return next((why for part in self.parts if (why := part.why_call(module))), "")

    def __deepcopy__(self, memo):
        return self


@checked(name=TEXT)
def register_experts(name: str = NAME) -> None:
    """Makes our experts an experts_implementation of that name, for every model of the process that asks for it. TypeError for a name
    that is no text."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(name, experts_forward)
