"""The functions that mixers of state-space models call, of models with gated delta rules and short convolutions their
convolution: each is asked on a few numbers, and a mixer's forward sees ours under those names. And the norm with a gate
that stands behind most of these scans.

Two functions of transformers stay as they are, which do nothing but to let a kernel take a whole training step of a
mixer: what they are given lacks the mask of padding, and says of Mamba-2's norm that it has groups where the model's own has none.
"""

import functools
import inspect
from typing import Callable, Optional

import torch
from torch import nn

from hotswap.core.agree import agreement, first, numbers, settings, shell_of, stock_forward
from hotswap.core.matcher import Matcher
from hotswap.core.packages import load
from hotswap.core.plain import Looked
from hotswap.core.replacement import Replacement, class_of, decorated, inside, seeing

LAYER = "mamba"
NORM = "RMSNormGated"
_GATED_NORM = "MambaRMSNormGated"  # the layer of the package that serves it
_SCAN = ("selective_scan", "selective_scan_fwd", "selective_scan_bwd")
_STATE = ("selective_state_update",)
FUNCTIONS = {  # their names in transformers, layers of the package, and their ops
    "causal_conv1d_fn": ("causal_conv1d_fn", ("causal_conv1d", "causal_conv1d_bwd")),
    "causal_conv1d_update": ("causal_conv1d_update", ("causal_conv1d_update",)),
    "mamba_selective_scan": ("selective_scan_fn", _SCAN),
    "mamba_selective_state_update": ("selective_state_update", _STATE),
    "mamba2_selective_state_update": ("selective_state_update", _STATE),
    "mamba2_chunk_scan": ("mamba_chunk_scan_combined", ("ssd", "ssd_fwd", "ssd_bwd")),
}
_NAMES = (LAYER, *dict.fromkeys(function for function, _ in FUNCTIONS.values()))  # in a kernel mapping
WHOLE_STEPS = ("mamba_inner_fn", "mamba2_split_conv1d_scan_combined")  # transformers 5.24 raises in them for packed rows
OF_ROWS = frozenset({"causal_conv1d_fn", "mamba_selective_scan", "mamba2_chunk_scan"})


def _no_whole_step(*args, **kwargs):
    """As transformers' own function says that there is no kernel for it."""
    return None


def _called(module) -> list:
    """Which of them this module's forward calls."""
    forward = inside(stock_forward(module))
    used = getattr(getattr(forward, "__code__", None), "co_names", ())
    return [name for name in FUNCTIONS if name in used and callable(forward.__globals__.get(name))]


def functions_of(module) -> list:
    """(name of the part, layer, ops) of each function that this mixer calls."""
    found = {FUNCTIONS[name][0]: FUNCTIONS[name][1] for name in _called(module)}
    conv = "conv1d" if isinstance(getattr(module, "conv1d", None), nn.Module) else ""
    return [(conv if layer.startswith("causal_conv1d") else "", layer, ops) for layer, ops in found.items()]


def _reference(function: Callable) -> Callable:
    """The torch function that a model's file has, behind what transformers may have chosen in its place as it was imported."""
    forward = getattr(type(function), "forward", None)  # kernels made a module of it
    if forward is not None:
        function = inspect.getclosurevars(forward).nonlocals.get("func", function)
    return inspect.unwrap(function)


@functools.lru_cache(maxsize=None)
def _ours(layer: str) -> Callable:
    forward = getattr(load("mamba").layers, layer).forward

    def call(*args, **kwargs):
        return forward(None, *args, **kwargs)

    return call


def _in_place_of(stock: Callable, layer: str) -> Callable:
    """Ours, called as a mixer calls stock's: keywords that stock swallows go no further, one that it has a name for and ours has not
    is its own to compute."""
    ours = _ours(layer)
    known = {*inspect.signature(getattr(load("mamba").layers, layer).forward).parameters, "seq_idx", "cu_seqlens", "cu_seq_lens_q"}
    theirs = frozenset(inspect.signature(_reference(stock)).parameters) - known

    def call(*args, **kwargs):
        if any(name in theirs and value is not None for name, value in kwargs.items()):
            return stock(*args, **kwargs)
        return ours(*args, **{name: value for name, value in kwargs.items() if name in known})

    return call


def _agrees(name: str, stock: Callable) -> bool:
    layer, ops = FUNCTIONS[name]

    def candidates():
        return [Replacement("mamba", layer, "mamba", ops, _ours(layer))]

    def agree(candidate):
        return agreement(_moving(_reference(stock)), _moving(candidate.forward), _CASES[name]())

    return bool(first((LAYER, name, stock), candidates, agree))


@functools.lru_cache(maxsize=None)
def _seeing_ours(forward: Callable, names: tuple, looked: Looked) -> Replacement:
    scope = looked.scope
    found = {name: _in_place_of(scope[name], FUNCTIONS[name][0]) for name in names}
    ops = tuple(op for name in names for op in FUNCTIONS[name][1])
    made = decorated(forward, seeing(inside(forward), found))

    def of_documents(self, *args, **kwargs):
        """With bounds of documents each function that sees a whole row has them, whatever the mixer hands it itself."""
        bounds = {name: kwargs[name] for name in ("seq_idx", "cu_seq_lens_q") if kwargs.get(name) is not None}
        if not bounds:
            return made(self, *args, **kwargs)
        of_rows = {name: functools.partial(f, **bounds) if name in OF_ROWS else f for name, f in found.items()}
        of_rows |= {name: _no_whole_step for name in WHOLE_STEPS if name in inside(forward).__globals__}
        return decorated(forward, seeing(inside(forward), of_rows))(self, *args, **kwargs)

    of_documents.takes_documents = True
    of_documents.__wrapped__ = made
    return Replacement("mamba", LAYER, "mamba", ops, of_documents, looked=(looked,), names=_NAMES)


class Mixers(Matcher):
    options = {"mamba": True}

    def serves(self, module):
        return NORM if _is_gated_norm(module) else LAYER if _called(module) else ""

    def match(self, module):
        return _gated_norm(module) if _is_gated_norm(module) else _mixer(module)


def _mixer(module) -> list:
    if getattr(module, "activation", None) not in (None, "silu", "swish"):
        return []
    forward = stock_forward(module)
    scope = getattr(inside(forward), "__globals__", {})
    names = tuple(name for name in _called(module) if _agrees(name, scope[name]))
    return [_seeing_ours(forward, names, Looked(forward))] if names else []


# ---- the gated norm ---------------------------------------------------------------------------------------------------


def _is_gated_norm(module) -> bool:
    if not class_of(module).__name__.endswith("RMSNormGated") or not isinstance(getattr(module, "variance_epsilon", None), float):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() == 1


@functools.lru_cache(maxsize=None)
def _norm_forward(before_gate: bool) -> Callable:
    norm = load("mamba").rmsnorm_fn

    def forward(self, hidden_states, gate=None):
        groups = getattr(self, "n_groups", 1)
        group_size = getattr(self, "group_size", self.weight.shape[0] // groups)
        gate = None if gate is None else gate.to(hidden_states.dtype)
        return norm(hidden_states, self.weight, None, gate, self.variance_epsilon, group_size, before_gate)

    return forward


def _gated_norm(module) -> list:
    ops = ("gated_rms_norm", "gated_rms_norm_fwd", "gated_rms_norm_bwd")

    def candidates():
        return [Replacement("mamba", NORM, "mamba", ops, _norm_forward(before), names=(_GATED_NORM, NORM)) for before in (False, True)]

    def agree(candidate):
        # as many groups as the module has, of four numbers
        groups = getattr(module, "n_groups", module.weight.shape[0] // getattr(module, "group_size", module.weight.shape[0]))
        width = 4 * groups
        sizes = {"group_size": 4} if hasattr(module, "group_size") else {}
        shell = shell_of(module, weight=nn.Parameter(numbers(width)), **sizes)
        short = shell_of(module, weight=nn.Parameter(numbers(width).bfloat16()), **sizes)
        # Not a single token: Falcon H1's own norm loses that dimension, and two rows of a batch then see each other.
        x, gate = numbers(2, 5, width) * torch.tensor([[1.0], [1e-3], [30.0], [1.0], [2.0]]), numbers(2, 5, width) + 0.5
        return agreement(
            lambda shell, *given: stock_forward(module)(shell, *given),
            lambda shell, *given: candidate.forward(shell, *given),
            [((shell, x, gate), 1e-5), ((short, x.bfloat16(), gate.bfloat16()), 2**-6)],
        )

    return first((settings(module), tuple(module.weight.shape)), candidates, agree, stock_forward(module))


# ---- the numbers that a function is asked with -----------------------------------------------------------------------


def _moving(function: Callable) -> Callable:
    """The function, with the state that it moves on in place as another result."""

    def call(given: dict, state: Optional[str]):
        given = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in given.items()}
        out = function(**given)
        return out if state is None else (out, given[state])

    return call


def _conv_cases() -> list:
    given = dict(hidden_states=numbers(2, 6, 7), weight=numbers(6, 4), bias=numbers(6))
    short = {name: t.bfloat16() for name, t in given.items()}
    return [
        ((given | dict(activation="silu"), None), 1e-5),
        ((given | dict(bias=None, activation=None), None), 1e-5),
        ((short | dict(activation="silu"), None), 2**-6),
    ]


def _conv_update_cases() -> list:
    given = dict(hidden_states=numbers(2, 6, 1), conv_state=numbers(2, 6, 4) + 0.5, weight=numbers(6, 4), bias=numbers(6))
    return [((given | dict(activation=a), "conv_state"), 1e-5) for a in ("silu", None)]


def _scan_cases() -> list:
    given = dict(hidden_states=numbers(2, 6, 7), dt=numbers(2, 6, 7), A=-numbers(6, 4).exp(), B=numbers(2, 4, 7), C=numbers(2, 4, 7))
    given |= dict(D=numbers(6), delta_bias=numbers(6) - 1, delta_softplus=True)
    z = numbers(2, 6, 7) + 0.5
    return [
        ((given | dict(z=z, return_last_state=True), None), 1e-5),
        ((given | dict(delta_bias=None, D=None), None), 1e-5),
    ]


def _state_cases() -> list:
    given = dict(state=numbers(2, 6, 4), hidden_states=numbers(2, 6), dt=numbers(2, 6), A=-numbers(6, 4).exp(), B=numbers(2, 4))
    given |= dict(C=numbers(2, 4) + 0.5, D=numbers(6), dt_bias=numbers(6) - 1, dt_softplus=True)
    return [((given | dict(z=z), "state"), 1e-5) for z in (None, numbers(2, 6) + 0.5)]


def _head_cases() -> list:
    heads, dim, states = 4, 3, 5
    whole = lambda t: t[:, None].expand(heads, dim)
    given = dict(state=numbers(2, heads, dim, states), hidden_states=numbers(2, heads, dim))
    given |= dict(dt=numbers(2, heads)[:, :, None].expand(2, heads, dim), B=numbers(2, 2, states), C=numbers(2, 2, states) + 0.5)
    given |= dict(A=-numbers(heads).exp()[:, None, None].expand(heads, dim, states), D=whole(numbers(heads)))
    given |= dict(dt_bias=whole(numbers(heads) - 1), dt_softplus=True)
    return [((given | dict(z=z), "state"), 1e-5) for z in (None, numbers(2, heads, dim) + 0.5)]


def _chunk_cases() -> list:
    given = dict(hidden_states=numbers(2, 7, 4, 3), dt=numbers(2, 7, 4), A=-numbers(4).exp(), B=numbers(2, 7, 2, 5))
    given |= dict(C=numbers(2, 7, 2, 5) + 0.5, chunk_size=4, D=numbers(4), dt_bias=numbers(4) - 1, dt_softplus=True)
    state = dict(initial_states=numbers(2, 4, 3, 5), return_final_states=True)
    return [
        ((given, None), 1e-5),
        ((given | state, None), 1e-5),
        ((given | dict(dt_limit=(0.2, 0.5)), None), 1e-5),
    ]


_CASES = {
    "causal_conv1d_fn": _conv_cases,
    "causal_conv1d_update": _conv_update_cases,
    "mamba_selective_scan": _scan_cases,
    "mamba_selective_state_update": _state_cases,
    "mamba2_selective_state_update": _head_cases,
    "mamba2_chunk_scan": _chunk_cases,
}
