"""The tests of causal-conv1d and mamba-ssm themselves, run against our kernels.

    upstream.py --packages build/packages --conv FOLDER --mamba FOLDER [--device cpu] [--most 40] [-k EXPRESSION]

The folders are checkouts of Dao-AILab/causal-conv1d and state-spaces/mamba; pytest, einops and packaging must be there.
Their test files run as they are: modules under their names hold hotswap.mamba's functions in place of the fused ones.
The references are read from their own files, with a stand-in for Triton, so that no kernel of theirs can run;
mamba_inner_ref calls the functions under test, as it does at theirs. What is printed, and what --most and a CPU change:
kernels/common/tests/upstream_runner.py.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[n] / name) for n, name in ((3, "python"), (2, "common/tests"))]
import upstream_runner as common  # noqa: E402
from hotswap import mamba as ours  # noqa: E402
from hotswap import packages  # noqa: E402

FILES = {
    "conv": ("tests/test_causal_conv1d.py",),
    "mamba": (
        "tests/ops/test_selective_scan.py",
        "tests/ops/triton/test_selective_state_update.py",
        "tests/ops/triton/test_layernorm_gated.py",
        "tests/test_determinism.py",
    ),
}
STATE_SPACE_DUALITY = "mamba_ssm.ops.triton.ssd_combined"
FUSED = {  # where upstream has what hotswap.mamba has
    "causal_conv1d.causal_conv1d_interface": ("causal_conv1d_fn", "causal_conv1d_update"),
    "mamba_ssm.ops.selective_scan_interface": ("selective_scan_fn", "mamba_inner_fn"),
    "mamba_ssm.ops.triton.selective_state_update": ("selective_state_update",),
    "mamba_ssm.ops.triton.layernorm_gated": ("rmsnorm_fn",),
    STATE_SPACE_DUALITY: ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"),
}
WITHOUT = ("triton", "triton.language", "causal_conv1d.cpp_functions", "mamba_ssm.ops.triton.layer_norm")
OF_THEIR_KERNELS = "calls parts of upstream's own kernels"
LEFT_OUT = {
    "test_causal_conv1d_get_states": "causal_conv1d_varlen_states, which hotswap.mamba has not",
    "test_kernel_reproducible": OF_THEIR_KERNELS,
    "test_kernel_close_to_default": OF_THEIR_KERNELS,
    "test_combined_kernel_reproducible": OF_THEIR_KERNELS,
    "test_combined_kernel_close_to_default": OF_THEIR_KERNELS,
}


# ---- their modules, our functions -----------------------------------------------------------------------------------


def layernorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True, is_rms_norm=False):
    if not is_rms_norm:
        pytest.skip("LayerNorm with a gate, which hotswap.mamba has not")
    return ours.rmsnorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate)


def install(conv, mamba):
    root = common.package_without_init("causal_conv1d", conv)
    common.package_without_init("mamba_ssm", mamba)
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        setattr(root, name, getattr(ours, name))
    # no test has a reference of this one's
    sys.modules[STATE_SPACE_DUALITY] = types.ModuleType(STATE_SPACE_DUALITY)
    with common.stand_ins(*WITHOUT):
        if importlib.util.find_spec("huggingface_hub") is None:
            hub = types.ModuleType("huggingface_hub")
            hub.PyTorchModelHubMixin = object
            sys.modules["huggingface_hub"] = hub
        read = {name: importlib.import_module(name) for name in FUSED}
        for name, functions in FUSED.items():
            for function in functions:
                setattr(read[name], function, getattr(ours, function))
        read["mamba_ssm.ops.triton.layernorm_gated"].layernorm_fn = layernorm_fn
        # after the functions are ours: these take them by name
        importlib.import_module("causal_conv1d.causal_conv1d_varlen")
        importlib.import_module("mamba_ssm.modules.mamba2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--conv", type=Path, required=True, help="causal-conv1d")
    parser.add_argument("--mamba", type=Path, required=True, help="mamba")
    common.add_arguments(parser)
    args = parser.parse_args()
    os.environ["HOTSWAP_PACKAGES"] = str(args.packages)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # the tests of determinism set it when cuBLAS is in use already
    torch.backends.cudnn.allow_tf32 = False  # references of 10 bits
    folders = args.conv.resolve(), args.mamba.resolve()
    install(*folders)
    files = [folder / file for folder, name in zip(folders, FILES) for file in FILES[name]]
    runner = common.Runner(files, [packages.package("mamba").ops], args.device == "cpu", args.most, LEFT_OUT)
    return runner.run(os.path.commonpath(folders), "-k", args.k)


if __name__ == "__main__":
    sys.exit(main())
