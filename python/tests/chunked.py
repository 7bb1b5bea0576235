"""What tests of losses over a linear head in chunks have in common."""

import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotswap.liger import head

# Sixteen bits: hidden, head, logits and their gradients are each rounded once on the way, the whole formula rounds none.
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2**-5, torch.float16: 2**-8}


def close(got, want, limit, terms=0.01):
    """terms: the size of what `want` may be a difference of."""
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= limit * (want.double().norm() + terms)


def head_and_rows(shape, dim, vocab, dtype, bias):
    hidden = torch.randn(*shape, dim).to(dtype).requires_grad_()
    weight = (torch.randn(vocab, dim) / dim**0.5).to(dtype).requires_grad_()
    return hidden, weight, torch.randn(vocab).to(dtype).requires_grad_() if bias else None


def leaves(*tensors):
    return [t for t in tensors if t is not None]


@pytest.fixture(autouse=True)
def seeded():
    """The same numbers each run; HOTSWAP_TEST_SEED=N tries others."""
    torch.manual_seed(int(os.environ.get("HOTSWAP_TEST_SEED", 0)))


@pytest.fixture
def small_chunks(monkeypatch):
    """(rows of a chunk, head, rows of a group's logits that are held, else as of a chunk)"""

    def rows_at_once(rows, weight, group=None):
        for name, count in (("CHUNK_BYTES", rows), ("GROUP_BYTES", group or rows)):
            size = count * weight.shape[0] * weight.element_size()
            monkeypatch.setattr(head, name, {"cpu": size, "cuda": size})

    return rows_at_once


class Products(TorchDispatchMode):
    """How many times rows x dim x vocab the matrix products multiply."""

    def __init__(self, rows, dim, vocab):
        super().__init__()
        self.count, self._one = 0.0, rows * dim * vocab

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        matrices = [t for t in args if isinstance(t, torch.Tensor) and t.dim() == 2]
        if "mm" in op.__name__:
            a, b = matrices[-2:]
            self.count += a.shape[0] * a.shape[1] * b.shape[1] / self._one
        return op(*args, **(kwargs or {}))


class Largest(TorchDispatchMode):
    """The largest tensor that anything makes."""

    numel = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return out
