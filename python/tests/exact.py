"""References in float64, for upstream.py --exact: what a test of others' compares ours with then has no rounding of its own but the
last, so that a comparison that fails beside a reference in the test's type and passes here failed for the reference's error.

Inside Wide what layers of transformers make float32 for the sake of 16 bits is float64.
"""

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def _wide(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Where no key is seen, zeros, as torch's kernels for float32 have it; for float64 they have NaN."""
    key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is None:
        return scores.softmax(-1) @ value
    if attn_mask.dtype != torch.bool:
        return (scores + attn_mask).softmax(-1) @ value
    seen = scores.masked_fill(~attn_mask, -torch.inf).softmax(-1)
    return torch.where(attn_mask.any(-1, keepdim=True), seen, 0.0) @ value


class Wide(TorchFunctionMode):
    def __torch_function__(self, function, _, args=(), kwargs=None):
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and (args[0].dtype == torch.float64 or not args[0].is_floating_point()):
            to_float = function is torch.Tensor.to and torch.float32 in (*args[1:], kwargs.get("dtype"))
            if to_float or function is torch.Tensor.float:  # places, which are whole numbers, among them
                return args[0].double()
            if function is F.scaled_dot_product_attention:
                return _attention(*args, **kwargs)
        if function is F.cross_entropy:
            args, kwargs = map(_wide, args), {name: _wide(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)


def exactly(reference: type) -> type:
    """The same module, computed in float64 and rounded once to the type of its first argument, gradients alike."""

    class Exact(reference):
        def forward(self, *args, **kwargs):
            if self.__dict__.get("_inside"):
                return super().forward(*args, **kwargs)
            held = {n: _wide(t) for n, t in itertools.chain(self.named_parameters(), self.named_buffers())}
            dtype = next(t.dtype for t in args if isinstance(t, torch.Tensor))
            self.__dict__["_inside"] = True
            try:
                with Wide():
                    found = torch.func.functional_call(self, held, tuple(map(_wide, args)), kwargs)
            finally:
                self.__dict__["_inside"] = False
            return tuple(t.to(dtype) for t in found) if isinstance(found, tuple) else found.to(dtype)

    Exact.__name__ = reference.__name__
    return Exact


REFERENCES = ("CrossEntropyLoss", "CrossEntropyWithZLoss", "LlamaMLP")  # as test files call them


def put(module):
    """Into a test file that was read."""
    nn.LayerNorm = exactly(nn.LayerNorm) if nn.LayerNorm.__module__ != __name__ else nn.LayerNorm
    for name in REFERENCES:
        if hasattr(module, name):
            setattr(module, name, exactly(getattr(module, name)))
    if whole := getattr(module, "run_mini_model", None):  # convergence: stock in float64, ours as ever

        def run(**given):
            if given.get("with_liger"):
                return whole(**given)
            with Wide():
                return whole(**{**given, "dtype": torch.float64})

        module.run_mini_model = run
