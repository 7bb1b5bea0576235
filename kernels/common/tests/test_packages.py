"""Every built variant before other people's judges: Python's kernels (digests) and its kernel-abi-check (symbols)."""

import importlib.util
import inspect
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from kernels import get_local_kernel
from kernels_data import Digest, DigestAlgorithm, Metadata
from torch import nn

KERNELS = Path(__file__).resolve().parents[2]
VARIANTS = sorted(p.parent for p in Path(os.environ["HOTSWAP_PACKAGES"]).glob("*/build/torch-*/metadata.json"))


@pytest.fixture(params=VARIANTS, ids=lambda v: f"{v.parents[1].name}/{v.name}")
def variant(request):
    return request.param


def test_there_are_variants():
    assert {v.parents[1].name for v in VARIANTS} == {toml.parent.name for toml in KERNELS.glob("*/build.toml")}


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
    named = json.loads((variant / "layers.json").read_text())["layers"]
    if getattr(layers, "__all__", None) == []:  # the package says that its layers are the C++ host's alone
        assert not any(hasattr(layers, name) for name in named)
        return
    for name in named:
        if name in getattr(layers, "HOST_ALONE", ()):
            assert not hasattr(layers, name)
            continue
        layer = getattr(layers, name)
        more = {n for n, _ in inspect.getmembers(layer)} - {n for n, _ in inspect.getmembers(nn.Module)}
        assert layer.__init__ is nn.Module.__init__ and more == {"can_torch_compile", "has_backward"}, name
        assert layer.can_torch_compile and layer.has_backward and "Layer" not in vars(layers)
        assert type(pickle.loads(pickle.dumps(layer()))) is layer


def test_every_op_has_a_gpu_case(variant):
    """And the case runs, here with the CPU's tensors: test_cuda.py itself wants a GPU."""
    package = variant.parents[1].name
    if not list(KERNELS.glob(f"{package}/**/*.cu")):
        pytest.skip("no CUDA kernels")
    spec = importlib.util.spec_from_file_location("test_cuda", KERNELS / "common/tests/test_cuda.py")
    test_cuda = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(test_cuda)
    ops = get_local_kernel(variant)._ops.ops
    on_cpu = getattr(test_cuda.gpu_cases(package), "CPU_ONLY", ())
    on_gpu = getattr(test_cuda.gpu_cases(package), "GPU_ONLY", ())
    names = [name for name in test_cuda.op_names(ops) if name not in on_cpu]
    cases = test_cuda.gpu_cases(package).cases(ops, lambda *shape: torch.randn(*shape).bfloat16(), names)
    assert {name.split(",")[0] for name in cases} == set(names)
    for name, call in cases.items():
        if name in on_gpu:
            continue
        assert test_cuda.same(test_cuda.outputs(call()), test_cuda.outputs(call())), name
