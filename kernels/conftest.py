"""For the packages' tests: the package whose folder the test is in, through the user's door. HOTSWAP_TEST_DEVICE=cuda: its variant
for a GPU, and tensors there where a test does not say where; cuda:1: there, while cuda:0 is current. So kernels/deformable/tests run."""

import os
from pathlib import Path

import pytest
import torch
from kernels import get_local_kernel

DEVICE = os.environ.get("HOTSWAP_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)


@pytest.fixture(scope="module")
def package(request):
    """The built package, loaded by Python's `kernels`. HOTSWAP_PACKAGES = the folder of built packages."""
    return get_local_kernel(Path(os.environ["HOTSWAP_PACKAGES"]) / request.path.parents[1].name, backend=DEVICE.split(":")[0])


@pytest.fixture(scope="module")
def ops(package):
    return package._ops.ops
