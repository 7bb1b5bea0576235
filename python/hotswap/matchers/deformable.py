"""Multi-scale deformable attention in models of transformers. Most of them have it as a module of this name, whose forward
is replaced; others call a function, by a name in their module (Mask2Former, RT-DETR v2) or one that they hold (D-FINE)."""

import functools

import torch

from hotswap.core.agree import agreement, first, numbers, stock_forward
from hotswap.core.matcher import Matcher, of_package
from hotswap.core.packages import load
from hotswap.core.plain import Looked
from hotswap.core.replacement import Replacement, class_of, decorated, inside, seeing

LAYER = "MultiScaleDeformableAttention"
OPS = ("deformable_attention", "deformable_attention_bwd")
FUNCTIONS = {  # their names in transformers, and our ops
    "multi_scale_deformable_attention": OPS,
    "multi_scale_deformable_attention_v2": ("deformable_attention_points", "deformable_attention_points_bwd"),
}


@functools.lru_cache(maxsize=None)
def functions() -> dict:
    """Ours, by the names in transformers. The package is loaded here: torch.compile does not see it happen."""
    made = load("deformable")
    attend, attend_by_points, pyramid = made.deformable_attention, made.deformable_attention_points, made.layers.pyramid

    def by_levels(value, value_spatial_shapes, sampling_locations, attention_weights):
        return attend(value, *pyramid(value_spatial_shapes), sampling_locations, attention_weights)

    def by_points(value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list, method="default"):
        if method != "default":
            raise ValueError(f'expected method "default", samples between pixels; got {method!r}; pass deformable_attention=False')
        return attend_by_points(value, *pyramid(value_spatial_shapes), sampling_locations, attention_weights, num_points_list)

    made = dict(zip(FUNCTIONS, (by_levels, by_points), strict=True))
    for function in made.values():  # a module that holds one can be pickled: __getattr__ finds it by its name
        function.__qualname__ = function.__name__
        globals()[function.__name__] = function
    return made


def __getattr__(name):
    if name in ("by_levels", "by_points"):
        functions()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _called(module, forward) -> tuple:
    """The name of the function that this module attends with, the function, and under which name the module holds it."""
    for attribute, value in vars(module).items():
        if getattr(value, "__name__", None) in FUNCTIONS and attribute[0] != "_":
            return value.__name__, value, attribute
    binding = module.__dict__.get("_hotswap")  # where ours is bound: what was there before
    for attribute, (_, value) in (binding.put if binding else {}).items():
        if getattr(value, "__name__", None) in FUNCTIONS:
            return value.__name__, value, attribute
    forward = inside(forward)
    used = getattr(getattr(forward, "__code__", None), "co_names", ())
    name = next((name for name in FUNCTIONS if name in used), None)
    return name, forward.__globals__.get(name) if name else None, None


def _function_of(module, forward) -> tuple:
    """As _called(), where ours can do what the module asks of it; else (None, None, None)."""
    name, function, attribute = _called(module, forward)
    methods = {getattr(module, key, "default") for key in ("method", "decoder_method")}
    if not callable(function) or methods != {"default"}:
        return None, None, None
    return name, function, attribute


class Deformable(Matcher):
    options = {"deformable_attention": True}

    def serves(self, module):
        called = class_of(module).__name__ == LAYER or _called(module, stock_forward(module))[0] is not None
        return LAYER if called else ""

    def match(self, module):
        return _of_module(module) if class_of(module).__name__ == LAYER else _of_function(module)


def _of_module(module) -> list:
    stock = stock_forward(module).__get__(module)

    def candidates():
        return [of_package("deformable_attention", LAYER, "deformable", OPS)]

    def agree(candidate):
        return agreement(stock, candidate.forward.__get__(module), _module_cases())

    return first(class_of(module), candidates, agree)


def _of_function(module) -> list:
    forward = stock_forward(module)
    name, stock, held = _function_of(module, forward)
    if name is None:
        return []
    looked = None if held else Looked(forward)

    def candidates():
        ours = functions()[name]
        if held:
            made = dict(forward=ours, attribute=held)
        else:
            made = dict(forward=decorated(forward, seeing(inside(forward), {name: ours})), looked=(looked,))
        return [Replacement("deformable_attention", name, "deformable", FUNCTIONS[name], names=(LAYER,), **made)]

    def agree(candidate):
        return agreement(stock, functions()[name], _function_cases(name))

    return first((forward, stock, name, looked), candidates, agree)


# ---- the numbers that a class is asked with ------------------------------------------------------------------------

_SIZES = [(6, 4), (3, 2)]


def _inputs(samples: tuple) -> tuple:
    """value, places, some of them outside, and weights."""
    value, places = numbers(2, 30, 2, 5), 0.5 + 0.6 * numbers(2, 3, 2, *samples, 2)
    return value, places, numbers(2, 3, 2, *samples)


def _module_cases() -> list:
    value, places, weights = _inputs((2, 3))
    sizes = torch.tensor(_SIZES, device="cpu"), _SIZES, torch.tensor([0, 24], device="cpu")
    return [((value, *sizes, places, weights, 64), 1e-5)]


def _function_cases(name: str) -> list:
    if name.endswith("_v2"):
        value, places, weights = _inputs((5,))
        return [((value, _SIZES, places, weights, [2, 3], "default"), 1e-5)]
    value, places, weights = _inputs((2, 3))
    return [((value, _SIZES, places, weights), 1e-5)]
