"""TRL's trainers with use_liger_kernel=True, where liger_kernel is hotswap: the same losses as without.

With the TRL that is installed; with HOTSWAP_PYTHON_FULL=1 with each of RELEASES, which come by pip into environments of their
own beside the packages, kept for the next run, around the torch and transformers of this one.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]
# The second is the last that takes our losses: later ones have a chunked head of their own, and take the layers alone.
RELEASES = {"newest": "trl", "1.12": "trl<1.13"}
FULL = os.environ.get("HOTSWAP_PYTHON_FULL") == "1"


def around(release):
    """The Python of an environment that has the release, and everything else from here."""
    place = Path(os.environ["HOTSWAP_PACKAGES"]).parent / "peers" / f"trl-{release}"
    python = place / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    here = [p for p in sys.path if p.endswith("-packages")]
    (site / "around.pth").write_text("\n".join([*here, ""]))  # before pip, which then leaves torch and transformers as they are
    install = [python, "-m", "pip", "install", "-q", "--retries=0", "--upgrade", RELEASES[release]]
    done = subprocess.run(install, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    if "No matching distribution found" in done.stderr:
        pytest.skip("TRL: no package index answers")
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture(scope="module", params=list(RELEASES) if FULL else ["installed"])
def python(request):
    if FULL:
        return around(request.param)
    if MISSING:
        pytest.skip("TRL: pip install trl, or HOTSWAP_PYTHON_FULL=1, which brings it")
    return sys.executable


def run(python, kind, which, folder):
    folder.mkdir()
    command = [python, HERE / "trl_run.py", kind, which, folder]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "said.json").read_text())


@pytest.mark.parametrize("kind", ["sft", "dpo", "kto", "grpo"])
def test_same_losses(kind, python, tmp_path):
    stock, swapped = (run(python, kind, which, tmp_path / which) for which in ("stock", "swapped"))
    print(f"TRL {stock['trl']}, {kind}: losses {stock['losses']} -> {swapped['losses']}, ", end="")
    print(f"largest tensor {stock['largest']} -> {swapped['largest']} numbers, our ops {swapped['called']}")
    # float32: terms of about 1 summed in another order; weights apart by what three steps of Adam make of that
    assert swapped["losses"] == pytest.approx(stock["losses"], rel=1e-5, abs=1e-6)
    assert swapped["norms"] == pytest.approx(stock["norms"], rel=5e-3)
    assert swapped["called"]["norm"] > 0 and swapped["largest"] <= stock["largest"]
    assert (swapped["called"]["loss"] > 0) == swapped["asks_for_losses"]
