"""For the packages' tests: the package whose folder the test is in, through the user's door."""

import os
from pathlib import Path

import pytest
from kernels import get_local_kernel


@pytest.fixture(scope="module")
def package(request):
    """The built package, loaded by Python's `kernels`. HOTSWAP_PACKAGES = the folder of built packages."""
    return get_local_kernel(Path(os.environ["HOTSWAP_PACKAGES"]) / request.path.parents[1].name, backend="cpu")


@pytest.fixture(scope="module")
def ops(package):
    return package._ops.ops
