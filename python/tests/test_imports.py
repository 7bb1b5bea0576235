"""What `import hotswap` loads, and under which names its modules are found. tests/import_directions.py holds their directions."""

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hotswap"


@pytest.mark.parametrize("first", ["", "import torch; "])
def test_import_loads_nothing_but_itself(first):
    """So its cost does not grow with what the package can do (bench/python_calls.py measures it)."""
    code = f"import sys, importlib; {first}before = set(sys.modules); import hotswap; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['hotswap']\n"


NEEDS = {"hotswap.axolotl": "axolotl"}  # another package, whose part it is

FIRST = """
import os, sys, torch, transformers
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            __import__(name)
            os._exit(0)
        except BaseException as error:
            print(name, type(error).__name__, error, flush=True)
            os._exit(1)
    os.waitpid(child, 0)
"""


def test_every_module_may_be_imported_first():
    files = [p.relative_to(PACKAGE.parent).with_suffix("") for p in sorted(PACKAGE.rglob("*.py")) if p.stem != "__main__"]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    names = [name for name in names if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    assert len(names) > 60
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST, *names], capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("first", ["hotswap.grpo", "hotswap.liger.grpo"])
def test_a_public_name_of_a_module_is_the_module(first):
    code = f"import {first}, hotswap.grpo as a, hotswap.liger.grpo as b, importlib; print(a is b, b.__spec__.name, importlib.reload(a) is b)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True hotswap.liger.grpo True\n"


def test_a_folder_of_packages_hides_no_module(tmp_path):
    """The wheel has its kernels in hotswap/packages, a folder that Python would take for a package of that name."""
    shutil.copytree(PACKAGE, tmp_path / "hotswap", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "hotswap/packages/norm").mkdir(parents=True)
    code = "import hotswap.packages as p, os; os.environ.pop('HOTSWAP_PACKAGES', 0); print(p.packages_folder())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert done.stdout == f"{tmp_path / 'hotswap/packages'}\n"


SAVED = """bind.rebind binding.Binding binding._new chosen.Chosen config.HotswapKernelConfig deformable.by_levels deformable.by_points
kernel_ref.KernelRef mapping.Mapping sources.Sources loss.causal_lm_loss distillation.LigerFusedLinearJSD grpo.LigerFusedLinearGRPOLoss
preference.LigerFusedLinearDPOLoss liger_channel_norm.LigerGroupNorm liger_loss.LigerCrossEntropyLoss liger_mlp.LigerSwiGLUMLP
liger_norm.LigerRMSNorm liger_probability.LigerSoftmax attention.function_of experts.experts_forward""".split()


@pytest.mark.parametrize("name", SAVED)
def test_a_model_that_was_saved_before_there_were_folders_finds_its_classes(name):
    module, own = name.split(".")
    found = pickle.loads(f"chotswap.{module}\n{own}\n.".encode())
    assert found.__qualname__ == own and pickle.loads(pickle.dumps(found)) is found
