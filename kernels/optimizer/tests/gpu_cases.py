"""This package on a GPU: what tests of all packages need of it (kernels/common/tests/test_cuda.py documents each)."""

import torch

WIDE = r"adamw_kernel<.*BFloat16, .*BFloat16"
RATES = (1e-3, 0.9, 0.999, 1e-8, 0.1)


def _update(ops, parameters, seed):
    scale = torch.ones((), device=parameters[0].device)
    states = [torch.zeros_like(p) for p in parameters]
    squares = [torch.zeros_like(p) for p in parameters]
    updated = [p.clone() for p in parameters]
    steps = [torch.ones_like(scale) for _ in parameters]
    ops.adamw_(scale, updated, parameters, states, squares, [], steps, *RATES, seed)
    return (*updated, *states, *squares)


def cases(ops, random, names):
    tensors = [random(333, 2048), random(65, 577), random(1)]
    stochastic = 3 if tensors[0].dtype == torch.bfloat16 else None
    return {"adamw_": lambda: _update(ops, tensors, None), "adamw_, seed": lambda: _update(ops, tensors, stochastic)}
