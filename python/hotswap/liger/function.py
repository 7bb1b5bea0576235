"""Functions of ours as the autograd functions that Liger has under a name: classes that are called by their apply."""

import inspect

import torch


def as_class(name: str, call, module: str) -> type:
    """A class with `call` as its apply, and its arguments behind ctx as its forward's, as Liger's users see them."""

    def forward(ctx, *args, **kwargs):
        return call(*args, **kwargs)

    first = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(call)
    forward.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])
    members = {"apply": staticmethod(call), "forward": staticmethod(forward), "__doc__": call.__doc__, "__module__": module}
    return type(name, (torch.autograd.Function,), members)
