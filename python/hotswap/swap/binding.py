"""How a module runs the forward of a package, and how it stops.

A bound module is given a class of its own: a subclass of its class, of the same name, whose forward looks up on `self` what that very
object is bound to. So copies, replicas of nn.DataParallel and what comes back from pickle run on what they hold themselves; a function
that somebody has wrapped around a bound forward runs stock once the binding is gone; and what a binding was not made for, as hooks on a
part that the kernel computes without calling it, runs the class's own forward. Weights and modules stay what they are.
"""

import copyreg
import functools
import inspect
import types
from typing import Optional

import torch
from torch import nn

from hotswap.core.packages import owner, why_not_for
from hotswap.core.plain import SLOTS, Attributes, Part, dispatches, has_global_hooks, is_parametrized, is_stock, odd_weight, own_forward
from hotswap.core.replacement import Replacement, class_of
from hotswap.matchers import mixers
from hotswap.matchers.projections import ADD_NORM
from hotswap.matchers.registered import all_for

_MISSING = inspect.Parameter.empty  # a class: copies of a model see the same one


_FORMULAS = ("rms_norm", "layer_norm", "mlp", "activation", "experts", "deformable_attention", "kernel")


def _is_other_code(replacement: Replacement) -> bool:
    """Is its forward another code than that of the module's class?"""
    if replacement.attribute or replacement.looked or replacement.layer == ADD_NORM:
        return False
    return replacement.option in _FORMULAS or replacement.layer == mixers.NORM


class Binding:
    """What one module is bound to, under the name `_hotswap` in its dictionary. Copies of the module share it; a pickle holds the
    names in `key`, and the replacement is looked up again by the class.

    key: option, layer and package. put: {name: (value, value before)} of what was put into the module's dictionary for it. forward: ours; None where no more than that
    was put there.
    """

    def __init__(self, key: tuple, put: dict, replacement: Optional[Replacement] = None):
        self.key, self.put, self.replacement = key, put, replacement
        self.forward, self.stock, self.parts = None, None, ()

    def of(self, module: nn.Module, replacement: Replacement) -> "Binding":
        made = Binding(self.key, self.put, replacement)
        made.forward = None if replacement.attribute else replacement.forward
        made.stock = class_of(module).forward
        made.parts = (*(Part(module, path) for path in replacement.parts), *replacement.looked, *replacement.choice)
        if _is_other_code(replacement):
            made.parts += (Attributes(module),)
        return made

    def why_stock(self, module: nn.Module, stock: Optional[type] = None) -> str:
        """Why the class's own forward runs, as the module is now; "": the replacement does. Asked at each call. stock: the class."""
        stock = stock or class_of(module)
        if self.forward is None:
            return "what it was bound to before it was pickled is not there"
        if stock.forward is not self.stock:
            return f"{stock.__name__} was given another forward since"
        if name := odd_weight(module):
            return f"its weight is a {name}"
        for part in self.parts:
            if why := part.why_call(module):
                return why
        has_parts = self.replacement.parts or self.replacement.looked
        return "a hook on every module" if has_parts and has_global_hooks() else ""

    def refuses(self, module: nn.Module, args: tuple, kwargs: dict) -> bool:
        """Has the package no kernel for the type or the device of this call, as the model was cast or moved after it was bound? The
        module's own weights and its first floating-point argument decide."""
        if not self.replacement.ops:  # of another package, or none that computes
            return False
        name = self.replacement.package
        if any(weight is not None and why_not_for(name, weight) for weight in module._parameters.values()):
            return True
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return bool(why_not_for(name, value))
        return False

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return Binding, (self.key, self.put)


def _key(replacement: Replacement) -> tuple:
    return replacement.option, replacement.layer, replacement.package


def _looked_up(module: nn.Module, binding: Binding) -> Binding:
    """The binding that comes back from a pickle, with the replacement that this process has for the module."""
    if binding.replacement is not None:
        return binding
    found = [r for r in all_for(module) if _key(r) == binding.key]
    return binding.of(module, found[0]) if found else binding


# ---- the class of a bound module --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def bound_class(stock: type) -> type:
    def forward(self, *args, **kwargs):
        binding = self.__dict__.get("_hotswap")
        if binding is None or binding.why_stock(self, stock) or binding.refuses(self, args, kwargs):
            return stock.forward(self, *args, **kwargs)
        return binding.forward(self, *args, **kwargs)

    def __reduce_ex__(self, protocol):
        make, given, *rest = super(made, self).__reduce_ex__(max(protocol, 2))
        if make is copyreg.__newobj__ and given[0] is made:
            make, given = _new, (stock, *given[1:])
        return make, given, *rest

    def __setstate__(self, state):
        super(made, self).__setstate__(state)
        if (binding := self.__dict__.get("_hotswap")) is not None:
            self.__dict__["_hotswap"] = _looked_up(self, binding)

    def __setattr__(self, name, value):
        if name == "forward" and dispatches(getattr(value, "__func__", None)):  # the class has it: a method would tie copies to this one
            self.__dict__.pop("forward", None)  # what accelerate's remove_hook_from_module takes off
        else:
            super(made, self).__setattr__(name, value)

    def train(self, mode=True):
        changes, trained = mode is not self.training, super(made, self).train(mode)
        chosen = self.__dict__.get("_hotswap_chosen")
        if changes and chosen is not None and chosen.rebind is not None:
            chosen.rebind(self)
        return trained

    forward.__signature__ = inspect.signature(stock.forward)  # as a function's own: nothing is to be unwrapped from it
    forward.__doc__, forward.hotswap_forward = stock.forward.__doc__, forward
    names = dict(forward=forward, train=train, __setattr__=__setattr__, __reduce_ex__=__reduce_ex__, __setstate__=__setstate__, hotswap_stock=stock)
    names |= dict(__module__=stock.__module__, __qualname__=stock.__qualname__, __doc__=stock.__doc__)
    made = types.new_class(stock.__name__, (stock,), exec_body=lambda namespace: namespace.update(names))
    return made


def _new(stock: type, *given):
    return copyreg.__newobj__(bound_class(stock), *given)


def why_not(module: nn.Module, replacement: Replacement, bound: bool = False) -> str:
    """Why this instance keeps its own, though its class computes what the replacement does; "": it does not. bound: asked of a
    module that is bound to it already."""
    if replacement.why_not is not None and (why := replacement.why_not(module, bound)):
        return why
    if replacement.attribute:
        return ""
    if (own := own_forward(module)) is not None:
        return f"it has a forward of its own, {getattr(own, '__qualname__', type(own).__qualname__)}"
    if is_parametrized(module):
        return f"{', '.join(module.parametrizations)} is parametrized"
    binding = module.__dict__["_hotswap"] if bound else Binding(_key(replacement), {}).of(module, replacement)
    return binding.why_stock(module)


# ---- in and out -----------------------------------------------------------------------------------------------------


def give_class(module: nn.Module) -> None:
    """The class of a bound module; without a binding it runs its own forward."""
    if not any("hotswap_stock" in base.__dict__ for base in type(module).__mro__):
        module.__class__ = bound_class(type(module))
    carried = module.__dict__
    if is_stock(module, carried.get("forward")):  # kernels put it there, or back: copies of the module would run this one's
        del carried["forward"]
    if is_stock(module, carried.get("_old_forward")):  # accelerate calls what it finds there
        carried["_old_forward"] = types.MethodType(type(module).forward, module)


def bind(module: nn.Module, replacement: Replacement, put: Optional[dict] = None) -> None:
    """put: what goes into the module's dictionary with it. Where a function that the module holds is replaced, that is all."""
    carried, put = module.__dict__, put or {}
    if replacement.attribute:
        put = {replacement.attribute: replacement.forward}
    else:
        give_class(module)
    earlier = carried["_hotswap"].put if "_hotswap" in carried else {}  # of a head that two models share (Llama 4)
    kept = earlier | {name: (value, carried.get(name, _MISSING)) for name, value in put.items()}
    carried.update(put)
    carried["_hotswap"] = Binding(_key(replacement), kept).of(module, replacement)


def put(module: nn.Module, name: str, value) -> None:
    """One thing more in the module's dictionary, until it is taken out."""
    carried = module.__dict__
    before = carried.get("_hotswap") or Binding(("", "", ""), {})
    made = carried["_hotswap"] = Binding(before.key, before.put | {name: (value, carried.get(name, _MISSING))}, before.replacement)
    made.forward, made.stock, made.parts = before.forward, before.stock, before.parts
    carried[name] = value


def take_out(module: nn.Module, only_ours: bool = False) -> None:
    """What is ours goes; what others put on the module since stays, and runs stock where it called ours. only_ours: what kernels' own
    kernelize bound stays too."""
    carried = module.__dict__
    binding = carried.pop("_hotswap", None)
    for name, (value, before) in (binding.put if binding else {}).items():
        if carried.get(name, _MISSING) is not value:
            continue
        if before is _MISSING:
            del carried[name]
        else:
            carried[name] = before
    if "hotswap_stock" in type(module).__dict__:
        module.__class__ = type(module).hotswap_stock
    if dispatches(getattr(carried.get("_old_forward"), "__func__", None)):
        carried["_old_forward"] = types.MethodType(class_of(module).forward, module)
    put_back = getattr(carried.get("forward"), "__func__", None)
    if dispatches(put_back) or (not only_ours and owner(put_back)):
        del carried["forward"]


def why_stock(module: nn.Module, replacement: Replacement) -> str:
    """Why this module does not run the replacement, as it is now; "": it does."""
    carried = module.__dict__
    if replacement.attribute:
        return "" if carried.get(replacement.attribute) is replacement.forward else why_not(module, replacement) or "not bound"
    value = next((carried[name] for name in SLOTS if name in carried), None)
    if getattr(value, "__func__", None) is replacement.forward:  # kernels' own kernelize has put it there
        return ""
    bound = is_bound(module, replacement)
    return why_not(module, replacement, bound) or ("" if bound else "not bound")


def is_bound(module: nn.Module, replacement: Replacement) -> bool:
    """Was it bound to that, whatever it runs now?"""
    binding = module.__dict__.get("_hotswap")
    return binding is not None and binding.replacement is not None and binding.replacement.forward is replacement.forward
