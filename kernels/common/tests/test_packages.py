"""Every built variant before other people's judges: Python's kernels (digests) and its kernel-abi-check (symbols)."""

import inspect
import json
import os
import pickle
from pathlib import Path

import pytest
from kernels import get_local_kernel
from kernels_data import Digest, DigestAlgorithm, Metadata
from torch import nn

VARIANTS = sorted(p.parent for p in Path(os.environ["HOTSWAP_PACKAGES"]).glob("*/build/torch-*/metadata.json"))


@pytest.fixture(params=VARIANTS, ids=lambda v: f"{v.parents[1].name}/{v.name}")
def variant(request):
    return request.param


def test_there_are_variants():
    assert len(VARIANTS) >= 6


def test_digest_and_metadata(variant):
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["digest"]["files"] == dict(Digest.hash_variant(DigestAlgorithm.SHA256, variant).files)
    read = Metadata.read_from_file(variant / "metadata.json")
    assert read.name.python_name == variant.parents[1].name and read.id == metadata["id"]


def test_abi(variant):
    abi = pytest.importorskip("kernel_abi_check")
    (library,) = variant.glob("*.abi3.so")
    file = abi.ObjectFile(str(library))
    assert list(file.check_manylinux("manylinux_2_28")) == []
    assert list(file.check_python_abi("3.9")) == []


def test_layers_are_what_kernels_takes_and_pickle(variant):
    """No constructor, no member but the two flags: what Python's kernels asks of a layer before it takes its forward."""
    layers = get_local_kernel(variant).layers
    for name in json.loads((variant / "layers.json").read_text())["layers"]:
        layer = getattr(layers, name)
        more = {n for n, _ in inspect.getmembers(layer)} - {n for n, _ in inspect.getmembers(nn.Module)}
        assert layer.__init__ is nn.Module.__init__ and more == {"can_torch_compile", "has_backward"}, name
        assert layer.can_torch_compile and layer.has_backward and "Layer" not in vars(layers)
        assert type(pickle.loads(pickle.dumps(layer()))) is layer
