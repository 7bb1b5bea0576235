"""transformers' own tests of experts, run against our kernels.

    upstream.py --packages build/packages --transformers FOLDER [-k EXPRESSION]

The folder is a checkout of huggingface/transformers of about the installed release; pytest and parameterized must be there.
- tests/models/*, of each family with experts: test_eager_matches_batched_and_grouped_inference, in three types, with
  hotswap.experts in the place of grouped_mm. The test itself wants it to be called;
- tests/kernels/test_moe_experts_forward.py, in later releases: ids of other ranks, with ours in the place of batched_mm.
  Its experts are names without a class, and ours asks a class what it computes: they are handed on as Mixtral's.

Prints what passed, in how many of those our ops ran, and why others did not; --stock leaves transformers' function in its place.
"""

import argparse
import functools
import os
import sys
from pathlib import Path

from transformers.integrations import moe, tensor_parallel
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3] / "python"), str(HERE.parents[3] / "python/tests"), str(HERE.parents[2] / "common/tests")]
import mixtures  # noqa: E402
import upstream_runner as common  # noqa: E402
from hotswap import experts, packages  # noqa: E402

OF_OTHER_TESTS = ("_get_parameter_tp_plan",)  # which their files import, and not every release has
SENTINELS = "test_moe_experts_forward.py"


class _AsMixtrals(MixtralExperts):
    """What has Mixtral's layout and formula, and no class that could be asked."""

    def __init__(self, given):
        if given.has_bias or given.is_transposed or type(given.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
            raise NotImplementedError("upstream: wanted experts of Mixtral's formula; got others; leave them out")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--transformers", type=Path, required=True)
    parser.add_argument("--stock", action="store_true", help="what passes without us")
    parser.add_argument("-k", default="test_eager_matches_batched_and_grouped or sentinel", help="as pytest's")
    args = parser.parse_args()
    os.environ["HOTSWAP_PACKAGES"] = str(args.packages)
    os.environ["HF_HUB_OFFLINE"] = "1"
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
