"""Liger's own tests, run against our kernels.

    upstream.py --packages build/packages --liger FOLDER [--most 12] [--seconds 60] [-k EXPRESSION] [FILE ...]
    upstream.py --packages build/packages --liger FOLDER [--steps 6 --rows 2] convergence/fp32/test_mini_models.py

The folder is a checkout of linkedin/Liger-Kernel, or a release's source archive, unpacked; pytest must be there, for convergence
`datasets` too. Its test files run as they are, but none of its kernels: modules under its names hold what
hotswap.enable_for_trainer() puts there, its autograd functions are ours where one of hotswap's has the same arguments, and what
hotswap has not is refused when it is used. Files of kernels that hotswap does not offer (attention of its own, quantised
products, mHC, ...) are not run. Convergence trains models of 70 million weights: by default as there, 32 steps of 16 rows of
128 tokens, which wants a GPU.
A few helpers in plain torch, of which its tests make what they compare with, are read from its source (HELPERS).
What is printed, and --most: kernels/common/tests/upstream_runner.py. What test_monkey_patch asks of modules: upstream_layers.py.
"""

import argparse
import ast
import importlib
import inspect
import math
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Optional

import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "kernels/common/tests")]
import exact  # noqa: E402
import hotswap  # noqa: E402
import upstream_layers  # noqa: E402
import upstream_runner as common  # noqa: E402
from hotswap.core import packages  # noqa: E402

FILES = """
transformers/test_rms_norm.py transformers/test_fused_add_rms_norm.py transformers/test_layer_norm.py transformers/test_rope.py
transformers/test_llama4_rope.py transformers/test_qwen2vl_mrope.py transformers/test_swiglu.py transformers/test_geglu.py
transformers/test_relu_squared.py transformers/test_mlp.py transformers/test_tiled_mlp.py transformers/test_cross_entropy.py
transformers/test_fused_linear_cross_entropy.py transformers/test_softmax.py transformers/test_sparsemax.py
transformers/test_kl_div.py transformers/test_jsd.py transformers/test_tvd.py transformers/test_fused_linear_jsd.py
transformers/test_group_norm.py transformers/test_dyt.py transformers/test_grpo_loss.py transformers/test_selective_log_softmax_strides.py transformers/test_fused_moe.py
transformers/test_moe.py transformers/test_auto_model.py transformers/test_monkey_patch.py transformers/test_transformers.py
transformers/test_trainer_integration.py
chunked_loss/test_cosine_loss.py chunked_loss/test_cpo_loss.py chunked_loss/test_dpo_loss.py chunked_loss/test_grpo_loss.py
chunked_loss/test_jsd_loss.py chunked_loss/test_kto_loss.py chunked_loss/test_orpo_loss.py chunked_loss/test_simpo_loss.py
""".split()
PACKAGES = ("norm", "activation", "rotary", "mlp", "loss", "moe", "probability", "dyt")


FUNCTIONS = {  # with the same arguments, in the same order
    "LigerRMSNormFunction": "liger_rms_norm",
    "LigerFusedAddRMSNormFunction": "liger_fused_add_rms_norm",
    "LigerLayerNormFunction": "liger_layer_norm",
    "LigerRopeFunction": "liger_rotary_pos_emb",
    "LigerLlama4RopeFunction": "liger_llama4_text_rotary_pos_emb",
    "LigerQwen2VLMRopeFunction": "liger_multimodal_rotary_pos_emb",
    "LigerSiLUMulFunction": "liger_swiglu",
    "LigerGELUMulFunction": "liger_geglu",
    "LigerReLUSquaredFunction": "liger_relu_squared",
    "LigerDyTFunction": "liger_dyt",
    "LigerJSDFunction": "liger_jsd",
    "LigerFusedLinearCosineSimilarityFunction": "liger_fused_linear_cosine",
}
FUNCTIONS |= {f"LigerFusedLinear{n}Function": f"liger_fused_linear_{n.lower()}" for n in "DPO CPO ORPO SimPO KTO GRPO JSD".split()}
TUPLES = {"LigerCrossEntropyFunction": "liger_cross_entropy", "LigerFusedLinearCrossEntropyFunction": "liger_fused_linear_cross_entropy"}
ORDER = """input target weight ignore_index lse_square_scale label_smoothing reduction softcap return_z_loss return_token_accuracy
return_predicted_tokens""".split()  # of the former's arguments
LINEAR_ORDER = """input weight target bias ce_weight ignore_index lse_square_scale label_smoothing reduction softcap return_z_loss
accum_dtype use_token_scaling return_token_accuracy return_predicted_tokens ce_impl ce_mode chunk_mem_const""".split()
INSIDES = ("ce_impl", "ce_mode")  # which of Liger's kernels; None: its own choice
BESIDE = ("loss", "z_loss", "token_accuracy", "predicted_tokens")


# elsewhere in hotswap, and in another order: Liger's static method over a head in chunks
def _chunk_forward(_input, weight, selected_token_ids, bias=None, temperature=1.0, **_):
    head = importlib.import_module("hotswap.head")
    return head.selected_logps(_input, weight, bias, head.Targets(selected_token_ids), temperature=temperature)


HELPERS = {  # of which tests make what ours are compared with, by file
    "chunked_loss/grpo_loss.py": ("get_gamma_weights",),
    "chunked_loss/fused_linear_ppo.py": ("LigerFusedLinearPPOBase._compute_dapo_normalizer",),
    "transformers/grpo_loss.py": ("_reduce_grpo_loss",),
}
ALONE = {f"test_reduce_grpo_loss_{what}": "of a helper alone, which is Liger's own here"
         for what in ("matches_reference", "requires_max_completion_length")}  # fmt: skip


def helpers(folder):
    """module, name -> the helper."""
    found, scope = {}, {"torch": torch, "math": math, "Optional": Optional, "F": torch.nn.functional}
    for file, paths in HELPERS.items():
        source = folder / "src/liger_kernel" / file
        nodes = {node.name: node for node in ast.parse(source.read_text()).body if hasattr(node, "name")}
        for path in paths:
            name, _, method = path.partition(".")
            node = nodes.get(name)
            if method and node:
                node = next((n for n in node.body if getattr(n, "name", "") == method), None)
            if node:  # not in every release
                exec(compile(ast.Module([node], []), source, "exec"), scope)
                made = scope[method or name]
                made = getattr(made, "__func__", made)
                module = "liger_kernel." + file.removesuffix(".py").replace("/", ".")
                found[module, name] = made
                if method:  # of a class that hotswap has not
                    found[module, name] = Absent(f"{module}.{name}")
                    setattr(found[module, name], method, made)
                    found[module, name].chunk_forward = staticmethod(_chunk_forward)
                    scope[name] = found[module, name]  # the others call it
    return found


def _with_all(function, order):
    def call(*given):
        named = {name: value for name, value in zip(order, given) if name not in INSIDES or value is not None}
        got = function(**named)
        if not hasattr(got, "loss"):
            return got, None, None, None
        return tuple(getattr(got, name) for name in BESIDE)

    return call


class _Function:
    def __init__(self, function):
        self.function = function
        kinds = [p.kind for p in inspect.signature(function).parameters.values()]
        self.most = None if inspect.Parameter.VAR_POSITIONAL in kinds else len(kinds)

    def apply(self, *given):
        """Without the last ones, which say by which of Liger's kernels; None: its own choice."""
        if self.most is not None and all(value is None for value in given[self.most :]):
            given = given[: self.most]
        return self.function(*given)


def _experts(x, gate_up_proj, down_proj, top_k_index, top_k_weights):
    return packages.load("moe").experts(x, top_k_index, top_k_weights, gate_up_proj, None, down_proj, None, "swiglu")


GIVEN: dict = {}  # helpers'


class Absent:
    """A name that hotswap has not: may be imported, and looked at, and not used."""

    def __init__(self, name):
        self.name = name

    def _refuse(self, *_, **__):
        raise NotImplementedError(f"upstream: expected a name that hotswap has; got {self.name}; leave it out")

    __call__ = _refuse

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")


class _Finder:
    """Modules of Liger's that hotswap has none for."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith("liger_kernel.") else None

    def create_module(self, spec):
        return ModuleType(spec.name)

    def exec_module(self, module):
        module.__getattr__ = _found(module.__name__, lambda name: None)


def _found(imported, before):
    def find(name):
        if name.startswith("__"):
            raise AttributeError(name)
        if (imported, name) in GIVEN:
            return GIVEN[imported, name]
        if name in FUNCTIONS:
            place = hotswap.chunked_loss if imported.startswith("liger_kernel.chunked_loss") else hotswap
            return _Function(getattr(place, FUNCTIONS[name]))
        if name == "fused_selective_log_softmax":
            return importlib.import_module("hotswap.grpo").fused_selective_log_softmax
        if name == "LigerFusedMoEFunction":
            return _Function(_experts)
        if name in TUPLES:
            return _Function(_with_all(getattr(hotswap, TUPLES[name]), ORDER if name == "LigerCrossEntropyFunction" else LINEAR_ORDER))
        try:
            found = before(name)
        except AttributeError:
            found = None
        return Absent(f"{imported}.{name}") if found is None else found

    return find


def _dispatch(version, before, after, before_args=(), after_args=(), before_kwargs=None, after_kwargs=None):
    return after(*after_args, **(after_kwargs or {}))  # of transformers that are older and newer than `version`


def install(device):
    hotswap.enable_for_trainer(shadow=True)
    importlib.import_module("hotswap.chunked_loss")  # an attribute of hotswap from here on
    for name, module in list(sys.modules.items()):
        if name.startswith("liger_kernel."):
            module.__getattr__ = _found(name, module.__getattr__)
    sys.meta_path.append(_Finder())
    utils = common.module_of(
        "liger_kernel.utils",
        infer_device=lambda: device,
        infer_comm_backend=lambda: "gloo",
        is_npu_available=lambda: False,
        transformers_version_dispatch=_dispatch,
        infer_device_arch=lambda: "",
        get_total_gpu_memory=lambda: 0 if device == "cpu" else torch.cuda.get_device_properties(0).total_memory // 2**30,
    )
    sys.modules["liger_kernel"].utils = utils
    # files ask when they are read
    importlib.import_module("liger_kernel.ops").cute = common.module_of("liger_kernel.ops.cute", is_available=lambda: False)


def shorter(steps, rows):
    """What a file's module is given: convergence in fewer steps of fewer rows. 0: as there."""

    def put(module):
        if whole := getattr(module, "run_mini_model", None):
            if steps:
                module.run_mini_model = lambda **given: whole(**{**given, "num_steps": min(steps, given["num_steps"])})
            if rows:
                module.DataLoader = lambda data, **given: DataLoader(data, **{**given, "batch_size": rows})

    return put


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--liger", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=0, help="of one test; 0: any")
    parser.add_argument("--steps", type=int, default=0, help="of convergence, at most; 0: as there")
    parser.add_argument("--rows", type=int, default=0, help="of a step of convergence; 0: as there")
    parser.add_argument("--exact", action="store_true", help="references in float64 (exact.py)")
    parser.add_argument("files", nargs="*", help="below FOLDER/test; none: all")
    common.add_arguments(parser)
    args = parser.parse_args()
    os.environ["HOTSWAP_PACKAGES"] = str(args.packages)
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = args.liger.resolve()
    install(args.device)
    GIVEN.update(helpers(folder))
    sys.path.insert(0, str(folder))  # their tests import `test.utils`
    if args.device == "cpu":  # theirs ask for a GPU's
        importlib.import_module("test.utils").supports_bfloat16 = lambda: True
        torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=2**33)  # what wants more skips itself
    files = [folder / "test" / file for file in args.files or FILES]
    if not args.files:  # of one release or the other
        files = [file for file in files if file.exists()]
    fewer = shorter(args.steps, args.rows)

    def put(module):
        fewer(module)
        if hasattr(module, "_apply_liger_kernel_to_instance"):
            upstream_layers.put(module, Absent)
        if args.exact:
            exact.put(module)

    ops = [packages.package(name).ops for name in PACKAGES]
    runner = common.Runner(files, ops, most=args.most, left_out=ALONE, seconds=args.seconds, put=put, after=hotswap.liger.restore_classes)
    return runner.run(folder, "--import-mode=prepend", "-W", "ignore", "--continue-on-collection-errors", "-k", args.k)


if __name__ == "__main__":
    sys.exit(main())
