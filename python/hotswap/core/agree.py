"""Numerical check: does our forward compute what the module's own does? Both run on small probe inputs, once for each class
and its settings."""

import functools
import threading
import types
from contextvars import ContextVar
from typing import Callable, Optional

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotswap.core.fitting import fitted
from hotswap.core.plain import NO_SETTINGS, PLAIN
from hotswap.core.replacement import Replacement, class_of, read_by

_known: dict = {}  # class and settings -> [Replacement] or []
_asking = threading.RLock()  # one answer for all threads: what is bound is found again by its identity


def numbers(*shape):  # like random ones, without touching the generator
    return torch.sin(torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32, device="cpu") * 12.9898).view(shape)


def linear(rows: int, columns: int, bias: bool = True) -> nn.Linear:
    """A float32 nn.Linear of probe values: its constructor would draw random ones."""
    made = nn.utils.skip_init(nn.Linear, columns, rows, bias=bias, dtype=torch.float32, device="cpu")
    for values in made.parameters():
        values.copy_(numbers(*values.shape))
    return made


class NoDraws(TorchDispatchMode):
    """Random values are an error in this thread. A comparison must leave every generator as it is: saving and restoring one would
    take back what other threads draw meanwhile."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs):
            raise RuntimeError(f"expected an op without random values; got {func}; compare what it does without dropout")
        return func(*args, **kwargs)


def _draws(func, args, kwargs) -> bool:
    """Not so of an op whose dropout is 0 or off, nor of tensors without values."""
    if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
        return False
    values = {argument.name: argument.default_value for argument in func._schema.arguments}
    values |= dict(zip(values, args)) | kwargs
    return values.get("dropout_p") != 0 and all(values.get(name) is not False for name in ("train", "training"))


def shell_of(module: nn.Module, **parts) -> nn.Module:
    """A module of the same class and plain attributes, with `parts` for its parameters and children."""
    shell = object.__new__(class_of(module))
    nn.Module.__init__(shell)
    for name, value in vars(module).items():
        if name not in shell.__dict__ and name not in ("forward", "_old_forward", "_hf_hook"):
            shell.__dict__[name] = value
    shell.training = _training.get()
    for name, part in parts.items():
        setattr(shell, name, part)
    return shell


def _setting(value):
    """An attribute as a part of a key; None: no formula depends on it."""
    if value is None or isinstance(value, (*PLAIN, torch.dtype)):
        return (type(value).__name__, value)
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        return (type(value).__name__, repr(value))
    if isinstance(value, (nn.Module, torch.Tensor, types.MethodType)):
        return None
    if isinstance(value, functools.partial):
        return (value.func, repr((value.args, value.keywords)))
    if callable(value):
        return (value,)
    plain = [(k, v) for k, v in getattr(value, "__dict__", {}).items() if v is None or isinstance(v, PLAIN)]
    return tuple(sorted(plain, key=_name_of))  # of a config


def _name_of(pair: tuple) -> str:
    return pair[0]


def settings(module: nn.Module) -> tuple:
    """Its class, the forward that the class has now, and what a formula may depend on: values, switches, functions and configs among
    its attributes, and which parts, weights and buffers it has."""
    carried, read = vars(module), read_by(class_of(module)) - NO_SETTINGS
    names = [k for k, v in carried.items() if k in read or k[0] != "_" and k not in NO_SETTINGS and isinstance(v, PLAIN)]
    found = [(k, made) for k in sorted(names) if (made := _setting(carried[k])) is not None]
    there = (tuple(n for n, v in carried[kind].items() if v is not None) for kind in ("_parameters", "_buffers", "_modules"))
    return (class_of(module), stock_forward(module), *found, *there)


def stock_forward(module: nn.Module) -> Callable:
    return class_of(module).forward


def same(got, want, limit) -> bool:
    if isinstance(want, (tuple, list)):
        return len(got) == len(want) and all(same(g, w, limit) for g, w in zip(got, want))
    return (
        isinstance(got, torch.Tensor)
        and isinstance(want, torch.Tensor)
        and (got.shape, got.dtype) == (want.shape, want.dtype)
        and bool((got.double() - want.double()).norm() <= limit * want.double().norm())
    )


def agreement(stock: Callable, ours: Callable, cases: list) -> bool:
    """Do both give the same for every case (arguments, limit) that stock itself can do, and for one at least?"""
    done = False
    for arguments, limit in cases:
        try:
            want = stock(*arguments)
        except Exception:  # whatever a foreign class raises on our numbers: it is not the formula that we know
            continue
        try:
            got = ours(*arguments)
        except (RuntimeError, TypeError, ValueError):  # ours refuses what stock can do
            return False
        if not same(got, want, limit):
            return False
        done = True
    return done


_training: ContextVar[bool] = ContextVar("training", default=True)


def in_both_modes(agree: Callable[[Replacement], bool]) -> Callable[[Replacement], bool]:
    """In training, where a dropout shows itself as an error under NoDraws, and in evaluation, for which a class may have another formula."""

    def both(candidate):
        for mode in (True, False):
            token = _training.set(mode)
            try:
                if not agree(candidate):
                    return False
            finally:
                _training.reset(token)
        return True

    return both


class Trial:
    """A candidate of somebody else's package, in ours' position: with Trial(replacement) as trial: matches(module)."""

    def __init__(self, candidate: Replacement):
        self.candidate = candidate
        self.agrees: Optional[bool] = None  # None: the module's class is none that we have a question for

    def __enter__(self):
        self._token = _trial.set(self)
        return self

    def __exit__(self, *_):
        _trial.reset(self._token)


_trial: ContextVar[Optional[Trial]] = ContextVar("trial", default=None)


def fitting(candidates: list, stock: Callable) -> list:
    """Those that can be called as `stock` is, with a forward that is."""
    pairs = [(c, fitted(stock, c.forward)) for c in candidates]
    return [c._replace(forward=fit.forward, note="; ".join(filter(None, (c.note, fit.note)))) for c, fit in pairs if fit is not None]


def first(
    key, candidates: Callable[[], list], agree: Callable[[Replacement], bool], stock: Optional[Callable] = None
) -> list[Replacement]:
    """[the first candidate that agrees], or [], asked once for each key. stock: the forward that it replaces; None: it fits already."""
    trial, agree = _trial.get(), in_both_modes(agree)
    if trial is None and key in _known:
        return _known[key]
    with _asking:
        if trial is None and key in _known:
            return _known[key]
        # Models are made under torch.device("meta"), in half precision, under autocast: none of it concerns the numbers.
        with torch.device("cpu"), torch.no_grad(), NoDraws(), torch.autocast("cpu", enabled=False):
            if trial is not None:
                trial.agrees = agree(trial.candidate) if trial.agrees is None else trial.agrees
                return []
            made = candidates() if stock is None else fitting(candidates(), stock)
            _known[key] = next(([c] for c in made if agree(c)), [])
    return _known[key]
