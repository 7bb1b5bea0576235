"""A module for the time of one call, with other values for some of its attributes. The module itself is not changed, so calls in
several threads, or one inside another, do not see each other's."""

import functools
import types

import torch
from torch import nn


class _View:
    """Reads and writes are the module's, except of what is in `own`. Methods are called with the view as their self, so that they
    see `own` too; code in a property does not."""

    def __init__(self, of, own: dict):
        object.__setattr__(self, "_of", of)
        object.__setattr__(self, "_own", own)

    def __getattr__(self, name):
        if name in self._own:
            return self._own[name]
        value = getattr(self._of, name)
        if isinstance(value, types.MethodType) and value.__self__ is self._of:
            return functools.partial(value.__func__, self)
        return value

    def __setattr__(self, name, value):
        setattr(self._of, name, value)

    def __call__(self, *args, **kwargs):
        """With a forward in `own`, that alone, without the module's hooks."""
        forward = self._own.get("forward")
        return nn.Module.__call__(self, *args, **kwargs) if forward is None else forward(*args, **kwargs)


class _InstanceView(_View):
    """For isinstance() and super(), which torch.compile cannot trace here."""

    @property
    def __class__(self):
        return type(self._of)


def view(of, **own):
    return (_View if torch.compiler.is_compiling() else _InstanceView)(of, own)
