"""A program that uses the public names, only for the type checker: `./x check` runs mypy over it, nothing runs it."""

from pathlib import Path

import hotswap
import torch
from torch import nn
from typing_extensions import assert_type


class Net(nn.Module):
    pass


def bind(net: Net) -> str:
    assert_type(hotswap.kernelize(net, mode="training", strict=True, attention=True, mlp=False), Net)
    assert_type(hotswap.unkernelize(net), Net)
    assert_type(hotswap.packages_folder(), Path)
    hotswap.kernelize(net, kernel_config={"RMSNorm": "acme/norm@v1:RMSNorm"})
    hotswap.kernel_config(strict=True, fused_linear_cross_entropy=True)
    hotswap.register_experts()
    hotswap.enable_for_trainer(shadow=True)
    return str(hotswap.report(net))


def with_ligers_names(net: Net, x: torch.Tensor) -> torch.Tensor:
    hotswap.apply_liger_kernel_to_llama(rope=True, model=net)
    norm = hotswap.LigerRMSNorm(64, eps=1e-6, casting_mode="gemma")
    return norm.forward(x) + hotswap.liger_swiglu(x, x)


hotswap.kernelize("a model")  # type: ignore[type-var]
hotswap.kernelise  # type: ignore[attr-defined]
