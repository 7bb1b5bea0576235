"""The tests of causal-conv1d and mamba-ssm themselves, run against our kernels.

    upstream.py --packages build/packages --conv FOLDER --mamba FOLDER [--device cpu] [--most 40] [-k EXPRESSION]

The folders are checkouts of Dao-AILab/causal-conv1d and state-spaces/mamba; pytest, einops and packaging must be there.
Their test files run as they are: modules under their names hold hotswap.mamba's functions in place of the fused ones.
The references are read from their own files, with a stand-in for Triton, so that no kernel of theirs can run;
mamba_inner_ref calls the functions under test, as it does at theirs.

--most runs so many parametrisations of each test, in an order drawn with a fixed seed; those that skip themselves do
not count. On the CPU "cuda" as a device means the CPU, and a loop of 10000 rounds has 20.

Prints what passed, in how many of those our ops ran, why others did not, and how often each op was called.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
import random
import re
import sys
import types
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))
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
ROUNDS = 20  # on the CPU


# ---- their modules, our functions -----------------------------------------------------------------------------------


class Anything:
    """What a file takes from Triton while it is read: decorators, types, constants."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, grid):
        raise RuntimeError("a kernel of upstream's was called, which is not there")


class StandIn(types.ModuleType):
    __version__ = "3.4.0"
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


@contextlib.contextmanager
def stand_ins(*names):
    """Only while upstream's files are read: torch looks for Triton too."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: StandIn(name) for name in names})
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def package_without_init(name, folder):
    if not (folder / name).is_dir():
        sys.exit(f"wanted a checkout with a folder {name}; got {folder}")
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [str(folder / name)]
    return module


def layernorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True, is_rms_norm=False):
    if not is_rms_norm:
        pytest.skip("LayerNorm with a gate, which hotswap.mamba has not")
    return ours.rmsnorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate)


def install(conv, mamba):
    root = package_without_init("causal_conv1d", conv)
    package_without_init("mamba_ssm", mamba)
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        setattr(root, name, getattr(ours, name))
    # no test has a reference of this one's
    sys.modules[STATE_SPACE_DUALITY] = types.ModuleType(STATE_SPACE_DUALITY)
    with stand_ins(*WITHOUT):
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


# ---- "cuda" on the CPU ----------------------------------------------------------------------------------------------


def to_cpu(value):
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, _, args=(), kwargs=None):
        kwargs = {name: to_cpu(value) if name == "device" else value for name, value in (kwargs or {}).items()}
        return function(*map(to_cpu, args), **kwargs)


def few_rounds(*bounds):
    return range(*(ROUNDS if bound == 10000 else bound for bound in bounds))


# ---- pytest ---------------------------------------------------------------------------------------------------------


def first_line(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    text = crash.message if crash else skipped
    return text.splitlines()[0].removeprefix("Skipped: ")


class Runner:
    """pytest's hooks: which tests, on which device, and what became of them."""

    def __init__(self, args, ops, files):
        self.on_cpu, self.most, self.ops, self.files = args.device == "cpu", args.most, ops, files
        self.names = sorted(ops.op_names().split())
        self.collected, self.outcomes, self.reasons = Counter(), defaultdict(Counter), defaultdict(Counter)
        self.keys, self.unseen = {}, False

    def calls(self):
        return {name: self.ops.call_count(name) for name in self.names}

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makemodule(self, module_path):
        """The files ask for a GPU when they are read. Modules are made of their neighbours too, which are not read."""
        if module_path not in self.files:
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            if self.on_cpu:
                patch.setattr(torch.cuda, "is_available", lambda: True)
            module = yield
            module.obj  # noqa: B018: this reads it
        if self.on_cpu:
            module.obj.range = few_rounds
        return module

    def pytest_collection_modifyitems(self, items):
        tests = defaultdict(list)
        for item in items:
            key = self.keys[item.nodeid] = item.path.name, item.originalname
            tests[key].append(item)
        kept = []
        for key, its in tests.items():
            self.collected[key] = len(its)
            if key[1] not in LEFT_OUT:
                kept += random.Random(0).sample(its, len(its)) if self.most else its
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """True: nothing else is done with it. Those that skip themselves do not count."""
        seen = self.outcomes[self.keys[item.nodeid]]
        return True if self.most and seen["ran"] >= self.most else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        before = self.calls()
        with contextlib.ExitStack() as stack:
            if self.on_cpu:
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                patch.setattr(torch.cuda, "synchronize", lambda: None)
                patch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
                stack.enter_context(OnCpu())
            try:
                return (yield)
            finally:
                torch.use_deterministic_algorithms(False)  # some leave it on
                self.unseen = self.calls() == before

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        key = self.keys[report.nodeid]
        why = "" if report.passed else first_line(report)
        if hasattr(report, "wasxfail"):
            outcome, why = "xfailed", report.wasxfail
        elif report.failed and re.match(r"\w+: (\w+: )?wanted ", why):
            outcome = "refused"
        else:
            outcome = report.outcome
        self.outcomes[key][outcome] += 1
        self.outcomes[key]["ran"] += outcome != "skipped"
        self.outcomes[key]["ours"] += report.passed and not self.unseen
        if why:
            self.reasons[key][outcome, re.sub(r"^reason: |0x\w+", "", why)] += 1

    def print_table(self):
        columns = ("passed", "ours", "failed", "refused", "xfailed", "skipped")
        print("\n| file | test | of | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 3) + "|")
        for key, of in self.collected.items():
            seen = [str(self.outcomes[key][column] or "") for column in columns]
            print(f"| {key[0]} | {key[1]} | {of} | {' | '.join(seen)} |")
        print()
        for key in self.collected:
            if key[1] in LEFT_OUT:
                print(f"{key[1]}: left out, {LEFT_OUT[key[1]]}")
            for (outcome, why), count in self.reasons[key].most_common():
                print(f"{key[1]}: {count} {outcome}, {why}")
        print("\ncalls of our ops: " + ", ".join(f"{name} {count}" for name, count in self.calls().items() if count))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--conv", type=Path, required=True, help="causal-conv1d")
    parser.add_argument("--mamba", type=Path, required=True, help="mamba")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--most", type=int, default=0, help="parametrisations of a test; 0: all")
    parser.add_argument("-k", default="", help="as pytest's")
    args = parser.parse_args()
    os.environ["HOTSWAP_PACKAGES"] = str(args.packages)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # the tests of determinism set it when cuBLAS is in use already
    torch.backends.cudnn.allow_tf32 = False  # references of 10 bits
    folders = args.conv.resolve(), args.mamba.resolve()
    install(*folders)
    files = [folder / file for folder, name in zip(folders, FILES) for file in FILES[name]]
    runner = Runner(args, packages.package("mamba").ops, files)
    plain = "-q", "--tb=short", "--show-capture=no", "--no-header", "-p", "no:cacheprovider", "--import-mode=importlib"
    code = pytest.main([*map(str, files), "-k", args.k, *plain, "--rootdir", os.path.commonpath(folders)], [runner])
    runner.print_table()
    return code


if __name__ == "__main__":
    sys.exit(main())
