"""On a GPU, through Python: CUDA graphs, other streams, tensors beyond 2^31 elements, the same bits run after run.

    test_cuda.py --packages build/packages [--large]

Skips (exit code 77) where there is no GPU or no package with CUDA kernels.
"""

import argparse
import json
import sys
from pathlib import Path

import torch


def load(packages: Path) -> dict:
    loaded = {}
    for metadata in sorted(packages.glob("*/build/*-cu*/metadata.json")):
        package_id = json.loads(metadata.read_text())["id"]
        torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
        loaded[metadata.parents[2].name] = getattr(torch.ops, package_id)
    return loaded


def cases(ops: dict) -> dict:
    """name -> a call without arguments; its inputs stay alive and do not change."""
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    norm, act, mlp, rot, loss = (ops[n] for n in ("norm", "activation", "mlp", "rotary", "loss"))
    x, r, dy, w = random(333, 2048), random(333, 2048), random(333, 2048), random(2048)
    odd, odd_w = random(65, 577), random(577)
    rstd = norm.rms_norm_fwd(x, w, 1e-6, 0.0, "llama")[1]
    odd_rstd = norm.rms_norm_fwd(odd, odd_w, 1e-6, 0.0, "llama")[1]
    mean, layer_rstd = norm.layer_norm_fwd(x, w, w, 1e-6)[1:]
    q, k = random(2, 8, 65, 128), random(2, 2, 65, 128)
    cos, sin = random(1, 65, 128), random(1, 65, 128)
    z, target = random(100, 50257), torch.randint(0, 50257, (100,), generator=generator, device="cuda")
    target[::7] = -100
    lse = loss.cross_entropy_fwd(z, target, -100, 0.0, 0.0, 0.0, "mean")[1]
    h, head = random(300, 64), random(1000, 64)
    label = torch.randint(0, 1000, (300,), generator=generator, device="cuda")
    one = torch.ones((), device="cuda")
    llama, mean_of = (1e-6, 0.0, "llama"), (-100, 0.1, 0.0, 1e-3, "mean")
    head_lse = loss.linear_cross_entropy_fwd(h, head, None, label, *mean_of)[1]

    def in_place(op, changed: list, *rest):
        copies = [t.clone() for t in changed]
        return *copies, *outputs(op(*copies, *rest))

    calls = {
        "rms_norm": lambda: norm.rms_norm(x, w, *llama),
        "rms_norm_fwd": lambda: norm.rms_norm_fwd(x, w, *llama),
        "rms_norm_bwd": lambda: norm.rms_norm_bwd(dy, x, w, rstd, 0.0, "llama"),
        "rms_norm_bwd, odd": lambda: norm.rms_norm_bwd(odd, odd, odd_w, odd_rstd, 0.0, "llama"),
        "add_rms_norm": lambda: norm.add_rms_norm(x, r, w, *llama),
        "add_rms_norm_fwd": lambda: norm.add_rms_norm_fwd(x, r, w, 1e-6, 0.0, "gemma"),
        "add_rms_norm_bwd": lambda: norm.add_rms_norm_bwd(dy, r, x, w, rstd, 0.0, "llama"),
        "layer_norm": lambda: norm.layer_norm(x, w, w, 1e-6),
        "layer_norm_fwd": lambda: norm.layer_norm_fwd(x, w, w, 1e-6),
        "layer_norm_bwd": lambda: norm.layer_norm_bwd(dy, x, w, mean, layer_rstd),
        "swiglu": lambda: mlp.swiglu(x, r),
        "swiglu_bwd": lambda: mlp.swiglu_bwd(dy, x, r),
        "swiglu_bwd_": lambda: in_place(lambda *both: mlp.swiglu_bwd_(dy, *both), [x, r]),
        "geglu": lambda: mlp.geglu(x, r),
        "geglu_bwd": lambda: mlp.geglu_bwd(dy, x, r),
        "geglu_bwd_": lambda: in_place(lambda *both: mlp.geglu_bwd_(dy, *both), [x, r]),
        "rotary": lambda: rot.rotary(q, k, cos, sin, 128, False),
        "rotary_": lambda: in_place(rot.rotary_, [q, k], cos, sin, 128, False),
        "rotary_bwd, interleaved": lambda: rot.rotary_bwd(q, k, cos, sin, 128, True),
        "cross_entropy": lambda: loss.cross_entropy(z, target, *mean_of),
        "cross_entropy_fwd": lambda: loss.cross_entropy_fwd(z, target, *mean_of),
        "cross_entropy_fwd_": lambda: in_place(loss.cross_entropy_fwd_, [z], target, *mean_of),
        "cross_entropy_bwd": lambda: loss.cross_entropy_bwd(one, z, target, lse, -100, 0.0, 0.0, 0.0, "mean"),
        "linear_cross_entropy": lambda: loss.linear_cross_entropy(h, head, None, label, *mean_of),
        "linear_cross_entropy_fwd": lambda: loss.linear_cross_entropy_fwd(h, head, None, label, *mean_of),
        "linear_cross_entropy_fwd, float32 dweight": lambda: loss.linear_cross_entropy_fwd(
            h, head, None, label, *mean_of, True
        ),
        "linear_cross_entropy_bwd": lambda: loss.linear_cross_entropy_bwd(
            one, h, head, None, label, head_lse, *mean_of
        ),
    }
    for name in op_names(act):
        half = dy[:, :1024] if "_and_mul" in name else dy
        op = getattr(act, name)
        calls[name] = (lambda op=op, half=half: op(half, x)) if name.endswith("_bwd") else lambda op=op: op(x)
    return calls


def op_names(package) -> list:
    """Of a package's ops those that compute something."""
    own = f"{package.name}::"
    names = {s.name.removeprefix(own) for s in torch._C._jit_get_all_schemas() if s.name.startswith(own)}
    return sorted(names - {"call_count", "isa"})


def check_all_are_called(ops: dict) -> list:
    called = {name.split(",")[0] for name in cases(ops)}
    return [f"{package}::{name}: no case" for package in ops for name in op_names(ops[package]) if name not in called]


def outputs(result) -> list:
    if result is None:
        return []
    return [result] if isinstance(result, torch.Tensor) else list(result)


def same(a: list, b: list) -> bool:
    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(a, b, strict=True))


def check_graphs_and_streams(ops: dict) -> list:
    failed, source, aside = [], torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")
    for name, call in cases(ops).items():
        want = outputs(call())
        if not all(same(outputs(call()), want) for _ in range(3)):
            failed.append(f"{name}: other bits in another run")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            other = outputs(call())
        stream.synchronize()
        if not same(other, want):
            failed.append(f"{name}: other bits on another stream")
        with torch.cuda.stream(stream):
            call()  # what is made once, cuBLAS's workspace too, is made before the capture
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # after a node that is no kernel, and after itself
            aside.copy_(source)
            captured = [*outputs(call()), *outputs(call())]
        for t in captured:
            t.zero_()
        graph.replay()
        torch.cuda.synchronize()
        if not same(captured, want + want):
            failed.append(f"{name}: other bits under a CUDA graph")
    return failed


def check_large(ops: dict) -> list:
    """More than 2^31 elements: the last rows are those of a small call."""
    failed = []
    rows, cols = (1 << 20) + 3, 2056
    x = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    norm, act, mlp = ops["norm"], ops["activation"], ops["mlp"]
    last = x[-5:].clone()
    calls = {
        "rms_norm": lambda t: norm.rms_norm(t, w, 1e-6, 0.0, "llama"),
        "layer_norm": lambda t: norm.layer_norm(t, w, w, 1e-6),
        "silu": lambda t: act.silu(t),
        "silu_and_mul": lambda t: act.silu_and_mul(t),
        "swiglu": lambda t: mlp.swiglu(t, t),
    }
    for name, call in calls.items():
        if not torch.equal(call(x)[-5:], call(last)):
            failed.append(f"{name}: wrong beyond 2^31 elements")
    z = x.view(-1)[: 16448 * 131072].view(16448, 131072)
    target = torch.randint(0, 131072, (16448,), device="cuda")
    options = (-100, 0.0, 0.0, 0.0, "none")
    whole = ops["loss"].cross_entropy_fwd(z, target, *options)
    part = ops["loss"].cross_entropy_fwd(z[-5:], target[-5:], *options)
    if not torch.equal(whole[0][-5:], part[0]):
        failed.append("cross_entropy_fwd: wrong beyond 2^31 elements")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--large", action="store_true", help="also tensors beyond 2^31 elements (20 GB of GPU memory)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here")
        return 77
    ops = load(args.packages)
    if not ops:
        print(f"no package with CUDA kernels in {args.packages}")
        return 77
    failed = check_all_are_called(ops) + check_graphs_and_streams(ops)
    if args.large:
        failed += check_large(ops)
    print("\n".join(failed) or f"{len(cases(ops))} ops: same bits run after run, on another stream, under a CUDA graph")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
