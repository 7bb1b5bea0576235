"""Numerical check: does our forward compute what the module's own does? Both run on small probe inputs, once for each class
and its settings."""

import threading
from contextvars import ContextVar
from typing import Callable, Optional

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotswap.fitting import fitted
from hotswap.replacement import Replacement, class_of

_known: dict = {}  # class and settings -> Replacement or None
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
    shell.training = True  # a dropout shows itself: it is an error under NoDraws
    for name, part in parts.items():
        setattr(shell, name, part)
    return shell


def settings(module: nn.Module) -> tuple:
    """Its class, the forward that the class has now, and its plain attributes: the numbers and switches that a formula may depend on."""
    plain = [(k, v) for k, v in vars(module).items() if isinstance(v, (bool, int, float, str)) and k[0] != "_"]
    return (class_of(module), stock_forward(module), *sorted(p for p in plain if p[0] not in ("training", "layer_idx")))


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


class Trial:
    """A candidate of somebody else's package, in the place of ours: with Trial(replacement) as trial: match.matches(module)."""

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
    return [c._replace(forward=fit.forward, note=fit.note) for c, fit in pairs if fit is not None]


def first(
    key, candidates: Callable[[], list], agree: Callable[[Replacement], bool], stock: Optional[Callable] = None
) -> Optional[Replacement]:
    """The first candidate that agrees, asked once for each key. stock: what its forward takes the place of; None: it fits already."""
    trial = _trial.get()
    if trial is None and key in _known:
        return _known[key]
    with _asking:
        if trial is None and key in _known:
            return _known[key]
        # Models are made under torch.device("meta"), in half precision, under autocast: none of it concerns the numbers.
        with torch.device("cpu"), torch.no_grad(), NoDraws(), torch.autocast("cpu", enabled=False):
            if trial is not None:
                trial.agrees = agree(trial.candidate) if trial.agrees is None else trial.agrees
                return None
            made = candidates() if stock is None else fitting(candidates(), stock)
            _known[key] = next((c for c in made if agree(c)), None)
    return _known[key]
