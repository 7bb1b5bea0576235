"""The tests of flash-attention, and of its packages on the Hub, run against our kernels.

    upstream.py --packages build/packages --suite fa2 --folder FLASH_ATTENTION [--device cpu] [--most 12] [-k EXPRESSION]

| suite | --folder: a checkout of | file |
|---|---|---|
| fa2, fa3 | Dao-AILab/flash-attention | tests/test_flash_attn.py, hopper/test_flash_attn.py |
| repeats | the same | hopper/test_flash_attn_bwd_determinism.py: a backward a thousand times |
| raw2 | huggingface/kernels-community | flash-attn2/tests/test_flash_attn_raw.py |
| hub2, hub3, vllm | huggingface/kernels-community | tests/test_flash_attn.py of flash-attn2, flash-attn3, vllm-flash-attn3 |

pytest and einops must be there. The test files run as they are, their references, shapes and tolerances too: modules under
their names hold our functions. flash-attention 3 has them with other names for arguments, and some that choose how
and not what is computed; those are dropped here, and what would be computed otherwise is refused.
What is printed, and what --most and a CPU change: kernels/common/tests/upstream_runner.py.
"""

import argparse
import os
import sys
from pathlib import Path

import kernels
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[n] / name) for n, name in ((3, "python"), (2, "common/tests"))]
import upstream_runner as common  # noqa: E402
from hotswap import packages  # noqa: E402

FILES = {
    "fa2": "tests/test_flash_attn.py",
    "fa3": "hopper/test_flash_attn.py",
    "repeats": "hopper/test_flash_attn_bwd_determinism.py",
    "raw2": "flash-attn2/tests/test_flash_attn_raw.py",
    "hub2": "flash-attn2/tests/test_flash_attn.py",
    "hub3": "flash-attn3/tests/test_flash_attn.py",
    "vllm": "vllm-flash-attn3/tests/test_flash_attn.py",
}
THEIR_OPS = "calls upstream's own op"
LEFT_OUT = {
    "test_flash_attn_generator_arg_must_be_none": THEIR_OPS,
    "test_flash_attn_varlen_paged_kv_num_splits": THEIR_OPS,
    "test_flash3_bw_compatibility": "the schemas of upstream's own ops",
    "test_flash_attn_combine": "flash_attn_combine, which ours has not: parts are put together inside of an op",
}
# A parametrisation that asks for what is not of the surface: refused by name, not drawn.
OUTSIDE = {
    "dropout_p": "dropout whose mask the test wants to see",
    "has_leftpad": "cache_leftpad",
    "has_qv": "qv",
    "varlen_q": "packed queries over a cache",
    "add_unused_qkv": "seqused_q, queries that take up room and are none",
    "has_rotary_seqlens": "rotary_seqlens",
}


def outside(longest, shortest):
    def why(item):
        given = getattr(item, "callspec", None)
        given = given.params if given else {}
        for name, reason in OUTSIDE.items():
            if given.get(name):
                return reason
        lengths = [value for name, value in given.items() if name.startswith("seqlen") and isinstance(value, int)]
        # one round of the others is one product; these have twenty of batches of 60
        most = longest // 4 if item.originalname == "test_flash_attn_race_condition" else longest
        if max(lengths, default=shortest) < shortest:
            return f"shorter than {shortest}"
        return f"longer than {most}" if longest and max(lengths, default=0) > most else None

    return why


# ---- flash-attention 2's names --------------------------------------------------------------------------------------


def _block_size(device, head_dim, is_dropout, is_causal):
    raise NotImplementedError("expected tests without dropout; got one that looks at its blocks; leave it out")


def _rotary(folder):
    """Their plain rotary embedding, with each sequence's first place."""
    with common.stand_ins("flash_attn.ops.triton.rotary", "flash_attn.ops.triton", "flash_attn.ops"):
        import flash_attn.layers.rotary as theirs

    def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, **_):
        places = torch.arange(x.shape[1], device=x.device)
        if isinstance(seqlen_offsets, torch.Tensor):
            places = places + seqlen_offsets.unsqueeze(1)
        else:
            places = places + seqlen_offsets
        return theirs.apply_rotary_emb_torch(x, cos[places], sin[places], interleaved)

    theirs.apply_rotary_emb = apply_rotary_emb


def _raw(function):
    """As the Hub's package has its ops: out, lse, and what is of dropout."""

    def forward(q, k, v, *, is_causal, **given):
        return *function(q, k, v, causal=is_causal, return_attn_probs=True, **given)[:2], None, None

    return forward


def two(ours, folder):
    if (folder / "flash_attn").is_dir():
        root = common.package_without_init("flash_attn", folder)
    else:
        root = common.module_of("flash_attn")
        root.__path__ = []
    for name in ours.__all__:
        setattr(root, name, getattr(ours, name))
    sys.modules["flash_attn.bert_padding"] = ours.bert_padding
    common.module_of("flash_attn.flash_attn_interface", _get_block_size_n=_block_size, USE_TRITON_ROCM=False)
    if root.__path__:
        _rotary(folder)
    root.fwd, root.varlen_fwd = _raw(ours.flash_attn_func), _raw(ours.flash_attn_varlen_func)
    # as the Hub's package has it
    sys.modules["flash_attn2"] = root
    for name in ("bert_padding", "flash_attn_interface"):
        sys.modules[f"flash_attn2.{name}"] = sys.modules[f"flash_attn.{name}"]


# ---- flash-attention 3's --------------------------------------------------------------------------------------------

HOW = ("num_splits", "pack_gqa", "sm_margin", "scheduler_metadata", "max_seqlen_q")  # and not what


def _refused(name, **given):
    asked = [argument for argument, value in given.items() if value is not None]
    if asked:
        raise NotImplementedError(f"{name}: expected no {', '.join(asked)}; got some; leave them out")


def three(ours, with_lse):
    def fewer(used, cu_seqlens):
        """None: all of them."""
        return used if used is not None and not torch.equal(used, cu_seqlens.diff()) else None

    def result(got):
        return got[:2] if isinstance(got, tuple) else got

    def flash_attn_func(q, k, v, qv=None, q_descale=None, k_descale=None, v_descale=None, return_attn_probs=with_lse, **given):
        _refused("flash_attn_func", qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
        given = {name: value for name, value in given.items() if name not in HOW}
        return result(ours.flash_attn_func(q, k, v, return_attn_probs=return_attn_probs, **given))

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, qv=None, q_descale=None, k_descale=None,
        v_descale=None, seqused_q=None, return_attn_probs=with_lse, **given
    ):  # fmt: skip
        unknown = dict(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
        unknown["seqused_q"] = fewer(seqused_q, cu_seqlens_q)
        _refused("flash_attn_varlen_func", **unknown)
        given = {name: value for name, value in given.items() if name not in HOW}
        lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        return result(ours.flash_attn_varlen_func(q, k, v, *lengths, return_attn_probs=return_attn_probs, **given))

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, cu_seqlens_q=None, cu_seqlens_k_new=None, rotary_seqlens=None,
        q_descale=None, k_descale=None, v_descale=None, **given
    ):  # fmt: skip
        if rotary_seqlens is given.get("cache_seqlens"):
            rotary_seqlens = None  # where they begin anyway
        unknown = dict(qv=qv, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens)
        _refused("flash_attn_with_kvcache", q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, **unknown)
        num_splits = given.get("num_splits", 0)
        given = {name: value for name, value in given.items() if name not in HOW}
        return ours.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, num_splits=num_splits, **given)

    def _flash_attn_backward(
        dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, dq, dk, dv,
        scale, causal, window_size=(-1, -1), softcap=0.0, deterministic=False
    ):  # fmt: skip
        _refused("_flash_attn_backward", seqused_q=fewer(seqused_q, cu_seqlens_q))
        ops = packages.package("attention").ops
        options = None, None, scale, causal, *map(int, window_size), 0, softcap, deterministic
        if cu_seqlens_q is None:
            gradients = ops.attention_bwd(dout, q, k, v, out, lse, None, *options)
        else:
            lengths = cu_seqlens_q, cu_seqlens_k, seqused_k, int(max_seqlen_q), int(max_seqlen_k)
            gradients = ops.attention_varlen_bwd(dout, q, k, v, out, lse, None, *lengths, *options)
        return *gradients[:3], None

    return dict(
        _flash_attn_backward=_flash_attn_backward,
        flash_attn_func=flash_attn_func,
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
        flash_attn_combine=None,
        get_scheduler_metadata=lambda *_, **__: None,
    )


def install(suite, folder):
    ours = packages.package("attention").module
    two(ours, folder)
    names = three(ours, with_lse=suite == "vllm")
    common.module_of("flash_attn_interface", **names)
    common.module_of("flash_attn3", **names).__path__ = []
    common.module_of("flash_attn3._ops", add_op_namespace_prefix=None, ops=None)
    kernels.get_kernel = lambda *_, **__: sys.modules["flash_attn3"]
    if suite in ("fa3", "repeats"):
        sys.path.insert(0, str(folder / "hopper"))  # padding, test_util


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--suite", choices=FILES, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--longest", type=int, default=0, help="leave out sequences that are longer; 0: none are")
    parser.add_argument("--shortest", type=int, default=0, help="leave out those whose queries and keys are fewer")
    common.add_arguments(parser)
    args = parser.parse_args()
    os.environ["HOTSWAP_PACKAGES"] = str(args.packages)
    os.environ["FLASH_ATTENTION_DISABLE_FP8"] = "TRUE"
    folder = args.folder.resolve()
    file = folder / FILES[args.suite]
    install(args.suite, folder)
    ops = [packages.package("attention").ops]
    runner = common.Runner([file], ops, args.device == "cpu", args.most, LEFT_OUT, outside(args.longest, args.shortest))
    return runner.run(file.parent, "-k", args.k, tests=args.tests)


if __name__ == "__main__":
    sys.exit(main())
