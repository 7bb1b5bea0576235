"""transformers' own tests of experts, run against our kernels.

    upstream.py --packages build/packages --transformers FOLDER [-k EXPRESSION]
    upstream.py --packages build/packages --common FOLDER/tests/test_modeling_common.py

The folder is a checkout of huggingface/transformers of about the installed release; pytest and parameterized must be there.
- tests/models/*, of each family with experts: test_eager_matches_batched_and_grouped_inference, in three types, with
  hotswap.experts in the place of grouped_mm. The test itself wants it to be called;
- tests/kernels/test_moe_experts_forward.py, in later releases: ids of other ranks, with ours in the place of batched_mm.
  Its experts are names without a class, and ours asks a class what it computes: they are handed on as Mixtral's.

The package index's source archive of transformers has no tests/models. --common reads the same test out of the file that it does
have, and runs its body over the tiny model of every class in python/tests/mixtures.py; on a GPU where there is one.

Prints what passed, in how many of those our ops ran, and why others did not; --stock leaves transformers' function in its place.
"""

import argparse
import ast
import copy
import functools
import os
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from unittest.mock import Mock, patch

import torch
import transformers
from transformers import testing_utils
from transformers.integrations import moe, tensor_parallel
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3] / "python"), str(HERE.parents[3] / "python/tests"), str(HERE.parents[2] / "common/tests")]
import mixtures  # noqa: E402
import upstream_runner as common  # noqa: E402
from hotswap import experts, packages  # noqa: E402

OF_OTHER_TESTS = ("_get_parameter_tp_plan",)  # which their files import, and not every release has
SENTINELS = "test_moe_experts_forward.py"
BODY = "_test_eager_matches_batched_and_grouped_inference"


class _AsMixtrals(MixtralExperts):
    """What has Mixtral's layout and formula, and no class that could be asked."""

    def __init__(self, given):
        if given.has_bias or given.is_transposed or type(given.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
            raise NotImplementedError("upstream: expected experts of Mixtral's formula; got others; leave them out")
        super(MixtralExperts, self).__init__()
        self.num_experts, self.act_fn = given.num_experts, given.act_fn
        self.has_bias = self.is_transposed = False
        for name in ("gate_up_proj", "down_proj"):
            setattr(self, name, getattr(given, name))


def of_names(given, *inputs):
    return experts.experts_forward(_AsMixtrals(given), *inputs)


def put(module):
    if Path(module.__file__).name == SENTINELS:
        module.batched_mm_experts_forward = of_names


def body_of(file, grouped_mm):
    """The file itself imports others that are not there."""
    names = vars(testing_utils) | dict(
        torch=torch, tempfile=tempfile, Mock=Mock, patch=patch, set_seed=transformers.set_seed, grouped_mm_experts_forward=grouped_mm,
        batched_mm_experts_forward=moe.batched_mm_experts_forward, is_sonicmoe_loadable=lambda: False, is_deepgemm_loadable=lambda: False,
    )  # fmt: skip
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name in (BODY, "_get_output_tensors"):
            exec(compile(ast.Module([node], []), str(file), "exec"), names)
    return names[BODY]


class Tiny(unittest.TestCase):
    """What the body asks of a family's test case."""

    def __init__(self, place):
        super().__init__("runTest")
        cls, self.config = mixtures.tiny(place)
        self.all_model_classes, self.model_tester, self.config.use_cache = (cls,), self, False

    def runTest(self):
        pass

    def prepare_config_and_inputs_for_common(self):
        shell = type(self.all_model_classes[0].__name__, (), {"dtype": torch.float32})()
        given = {name: x.to(testing_utils.torch_device) for name, x in mixtures.inputs(shell).items() if torch.is_tensor(x)}
        return copy.deepcopy(self.config), given

    def _prepare_for_class(self, given, _):
        return given


def on_tiny_models(file, stock):
    found, calls = Counter(), Counter()
    function = moe.grouped_mm_experts_forward if stock else experts.experts_forward

    def counted(*args, **kwargs):
        calls["all"] += 1
        return function(*args, **kwargs)

    body = body_of(file, counted)
    for place in mixtures.places():
        for dtype in ("fp16", "fp32", "bf16"):
            try:
                body(Tiny(place), dtype, dtype)
                found["passed"] += 1
            except AssertionError as error:
                found["failed"] += 1
                print(f"{place.name} {dtype}: {' '.join(str(error).split())[:200]}", flush=True)
    print(f"{testing_utils.torch_device}: {found['passed']} passed, {found['failed']} failed, {calls['all']} calls")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    folder = parser.add_mutually_exclusive_group(required=True)
    folder.add_argument("--transformers", type=Path)
    folder.add_argument("--common", type=Path)
    parser.add_argument("--stock", action="store_true", help="what passes without us")
    parser.add_argument("-k", default="test_eager_matches_batched_and_grouped or sentinel", help="as pytest's")
    args = parser.parse_args()
    os.environ["HOTSWAP_PACKAGES"] = str(args.packages)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.common:
        return on_tiny_models(args.common, args.stock)
    folder = args.transformers.resolve()
    families = sorted({place.family for place in mixtures.places()})
    files = [file for family in families for file in sorted((folder / "tests/models" / family).glob("test_modeling_*.py"))]
    files += [file for file in [folder / "tests/kernels" / SENTINELS] if file.exists()]
    if not args.stock:
        # the tests take it from there when they are read
        moe.grouped_mm_experts_forward = functools.wraps(experts.experts_forward)(experts.experts_forward)
    for name in OF_OTHER_TESTS:
        vars(tensor_parallel).setdefault(name, None)
    runner = common.Runner(files, [packages.package("moe").ops], put=(lambda module: None) if args.stock else put)
    # tests of theirs import each other by their folders
    sys.path[:0] = [str(folder), str(folder / "tests/kernels")]
    return runner.run(folder, "--import-mode=prepend", "--noconftest", "-W", "ignore", "--continue-on-collection-errors", "-k", args.k)


if __name__ == "__main__":
    sys.exit(main())
