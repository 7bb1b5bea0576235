"""TRL's trainers with use_liger_kernel=True, where liger_kernel is hotswap: the same losses as without."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]


def run(kind, which, folder):
    folder.mkdir()
    command = [sys.executable, HERE / "trl_run.py", kind, which, folder]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "said.json").read_text())


@pytest.mark.skipif(bool(MISSING), reason=f"wants {' and '.join(MISSING)}: pip install trl")
@pytest.mark.parametrize("kind", ["sft", "dpo", "kto", "grpo"])
def test_same_losses(kind, tmp_path):
    stock, swapped = (run(kind, which, tmp_path / which) for which in ("stock", "swapped"))
    print(f"TRL {stock['trl']}, {kind}: largest tensor {stock['largest']} -> {swapped['largest']} numbers")
    # float32: terms of about 1 summed in another order; weights apart by what three steps of Adam make of that
    assert swapped["losses"] == pytest.approx(stock["losses"], rel=1e-5, abs=1e-6)
    assert swapped["norms"] == pytest.approx(stock["norms"], rel=5e-3)
    assert swapped["called"]["norm"] > 0 and swapped["largest"] <= stock["largest"]
    assert (swapped["called"]["loss"] > 0) == swapped["asks_for_losses"]
