"""Every built variant before other people's judges: Python's kernels (digests) and its kernel-abi-check (symbols)."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernels_data import Digest, DigestAlgorithm, Metadata

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


def test_id_changes_with_any_byte_that_is_built(tmp_path):
    root = Path(__file__).resolve().parents[3]
    spec = importlib.util.spec_from_file_location("package_tool", root / "cmake/package.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for name in ("norm", "common"):
        shutil.copytree(root / "kernels" / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    args = SimpleNamespace(source=tmp_path / "norm", common=tmp_path / "common", backend="cpu", out=tmp_path / "id.h")

    def make():
        tool.make_id(args)
        return args.out.read_text()

    first, seen = make(), set()
    for path in [p for p in tmp_path.rglob("*.*") if p.is_file() and p != args.out]:
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        after = make()
        path.write_bytes(before)
        if "/tests/" in str(path) or path.name.endswith(("_test.cpp", "_bench.cpp")):
            assert after == first, path
        else:
            assert after not in seen and after != first, path
            seen.add(after)
    assert len(seen) > 20 and make() == first
