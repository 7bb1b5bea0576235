"""`hotswap python-env` and `python -m hotswap env`: a stock script, offline, with use_kernels=True and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import model
from transformers.integrations.hub_kernels import get_kernel_mapping_transformers

PROGRAM = Path(os.environ["HOTSWAP_PACKAGES"]).parent / "bin/hotswap"
ENV = {"python": [sys.executable, "-m", "hotswap", "env"], "hotswap": [PROGRAM, "python-env"]}

# Nothing of ours in it. For the CPU transformers' mapping has no entry for these layers: there the script asks `kernels`
# itself for those of "cuda", as if there were one, and the tensors stay where they are.
SCRIPT = """
import sys, torch
from transformers import AutoModelForCausalLM
device = "cuda" if torch.cuda.is_available() else "cpu"
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], use_kernels=True, device_map=device)
for training in (False, True):
    model.train(training)
    if device == "cpu":
        from kernels import Mode, kernelize
        torch.cuda.get_device_capability = lambda device=None: (9, 0)
        kernelize(model, mode=Mode.TRAINING if training else Mode.INFERENCE, device="cuda")
    ids = torch.arange(3, 20, device=device)[None]
    with torch.set_grad_enabled(training):
        model(ids, labels=ids)
"""
COUNT = """
ids = {m.split(".")[0]: m.split(".")[0] for m in sys.modules if m.endswith("._ops") and m.startswith("_")}
print("CALLS", {i.rsplit("_", 2)[0]: {op: getattr(torch.ops, i).call_count(op) for op in ops}
    for i in ids for ops in [{"_norm": ["rms_norm", "rms_norm_fwd"], "_rotary": ["rotary"], "_activation": ["silu"]}[i.rsplit("_", 2)[0]]]})
"""


@pytest.mark.parametrize("by", ENV)
def test_use_kernels_and_nothing_else(by, tmp_path):
    if by == "hotswap" and not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM}: only the packages are built here")
    model().save_pretrained(tmp_path / "model")
    environment = dict(os.environ, HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    for name in ("KERNELS_CACHE", "HF_HUB_CACHE", "LOCAL_KERNELS"):
        environment.pop(name, None)
    done = subprocess.run(ENV[by], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    name, _, value = done.stdout.strip().partition("=")
    assert name == "LOCAL_KERNELS" and "\n" not in value
    refs = tmp_path / "home/hub"
    assert sorted(str(p.relative_to(refs)) for p in refs.glob("*/refs/*")) == [
        "kernels--kernels-community--activation/refs/v1",
        "kernels--kernels-community--liger-kernels/refs/v3",
        "kernels--kernels-community--rotary/refs/v2",
    ]
    again = subprocess.run(ENV[by], capture_output=True, text=True, env=environment)
    assert again.stdout == done.stdout and again.stderr == ""  # what is there stays
    if by == "hotswap":  # the same line: what it does is tried once
        other = subprocess.run(ENV["python"], capture_output=True, text=True, env=environment)
        assert other.stdout == done.stdout
        return
    environment.pop("HOTSWAP_PACKAGES")
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT + COUNT, tmp_path / "model"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment | {name: value})
    assert ran.returncode == 0, ran.stderr[-3000:]
    calls = eval(ran.stdout.split("CALLS ")[1])
    gpu = torch.cuda.is_available()
    rotary = 2 if isinstance(get_kernel_mapping_transformers()["rotary_pos_emb"]["cuda"], dict) else 4  # in inference only from 5.22 on
    assert calls == {"_norm": {"rms_norm": 5, "rms_norm_fwd": 5}, "_rotary": {"rotary": rotary}, "_activation": {"silu": 2}}, gpu
