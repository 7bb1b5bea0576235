"""The wheel, from packages that are built already, in a Python that has nothing of the checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", ROOT / "python", "--no-build-isolation", "--no-deps", "--no-index"]
    # by variables: Ubuntu 22.04's pip knows no -C
    settings = dict(SKBUILD_BUILD_DIR=str(folder / "build"), SKBUILD_CMAKE_DEFINE=f"HOTSWAP_BUILT_PACKAGES={os.environ['HOTSWAP_PACKAGES']}")
    done = subprocess.run([*command, "-w", folder], capture_output=True, text=True, env=os.environ | settings)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_one_wheel_for_every_python(wheel):
    version = next(line for line in (ROOT / "CMakeLists.txt").read_text().splitlines() if "project(hotswap" in line).split()[2]
    assert wheel.name == f"hotswap-{version}-py3-none-linux_{os.uname().machine}.whl"
    names = zipfile.ZipFile(wheel).namelist()
    built = Path(os.environ["HOTSWAP_PACKAGES"])
    wanted = [f"hotswap/packages/{p.relative_to(built)}" for p in built.glob("*/build/torch-*/*") if p.is_file()]
    assert len(wanted) > 30 and set(wanted) <= set(names)
    assert not [n for n in names if "__pycache__" in n or "/." in n]
    assert {p.relative_to(ROOT / "python").as_posix() for p in (ROOT / "python/hotswap").rglob("*.py*") if p.suffix != ".pyc"} <= set(names)


def test_installed_it_runs_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = """
import json, torch, hotswap
from transformers.models.llama.modeling_llama import LlamaRMSNorm
layer = hotswap.kernelize(LlamaRMSNorm(8))
layer(torch.randn(2, 8)).sum().backward()
print(json.dumps([hotswap.__version__, str(hotswap.packages_folder()), hotswap.report(layer).calls]))
"""
    environment = {k: v for k, v in os.environ.items() if k != "HOTSWAP_PACKAGES"} | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    version, folder, calls = json.loads(done.stdout.splitlines()[-1])
    assert folder == str(tmp_path / "hotswap/packages") and version == wheel.name.split("-")[1]
    assert calls == {"norm.rms_norm": 0, "norm.rms_norm_fwd": 1, "norm.rms_norm_bwd": 1}
