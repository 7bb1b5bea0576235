"""On which devices and in which types a module's weights are."""

import torch
from torch import nn


def devices_of(module: nn.Module) -> set:
    return {p.device.type for p in module.parameters()}


def dtypes_of(module: nn.Module) -> set:
    return {p.dtype for p in module.parameters() if p.is_floating_point()}


def device_name(devices: set) -> str:
    """Of a mapping: rocm where torch calls it cuda."""
    found = next(iter(sorted(devices - {"meta"})), "cpu")
    return "rocm" if found == "cuda" and torch.version.hip else found
