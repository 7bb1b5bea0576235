"""TRL's trainers with one line of hotswap: the same losses as without.

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


def run(python, kind, ways, folder):
    """Of each way of trl_run.py, what its run had."""
    folder.mkdir()
    command = [python, "-W", "ignore", HERE / "trl_run.py", kind, ",".join(ways), folder]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "said.json").read_text())


def same(got, stock):
    # float32: terms of about 1 summed in another order; weights apart by what three steps of Adam make of that
    assert got["losses"] == pytest.approx(stock["losses"], rel=1e-5, abs=1e-6)
    assert got["norms"] == pytest.approx(stock["norms"], rel=5e-3)
    assert got["called"]["norm"] > 0 and got["called"]["mlp"] > 0 and got["largest"] <= stock["largest"]
    assert stock["called"] == {"norm": 0, "mlp": 0, "loss": 0}


@pytest.mark.parametrize("kind", ["sft", "dpo", "kto", "grpo"])
def test_same_losses(kind, python, tmp_path):
    """By one line: hotswap.kernelize(model) before the trainer, with adapters that it puts in, too; use_liger_kernel=True."""
    ways = ["stock", "kernelized", "stock+lora", "kernelized+lora"]
    made = run(python, kind, ways, tmp_path / "plain")
    swapped = run(python, kind, ["swapped"], tmp_path / "liger")["swapped"]
    print(f"TRL {made['trl']}, {kind}: losses {made['stock']['losses']} -> {made['kernelized']['losses']}; with adapters ", end="")
    print(f"{made['stock+lora']['losses']} -> {made['kernelized+lora']['losses']}; largest tensor {made['stock']['largest']} -> ", end="")
    print(f"{swapped['largest']} numbers, our ops {swapped['called']}\n{made['kernelized+lora']['report']}")
    for more in ("", "+lora"):
        same(made[f"kernelized{more}"], made[f"stock{more}"])
        assert "SwiGLUMLP            x2    mlp v1" in made[f"kernelized{more}"]["report"]
    assert made["stock+lora"]["losses"] != made["stock"]["losses"]
    same(swapped, made["stock"])
    assert (swapped["called"]["loss"] > 0) == swapped["asks_for_losses"]


def test_a_model_that_the_trainer_loads(python, tmp_path):
    """model_init_kwargs, as TRL recommends in place of use_liger_kernel, with kernel_config=hotswap.kernel_config()."""
    made = run(python, "sft", ["stock", "loaded"], tmp_path / "loaded")
    same(made["loaded"], made["stock"])
