"""On a GPU, through Python: CUDA graphs, other streams, a GPU that is not the current one, tensors beyond 2^31 elements, the same bits
run after run.

    test_cuda.py --packages build/packages [--large]

Skips (exit code 77) where there is no GPU or no package with CUDA kernels. Each package says in tests/gpu_cases.py:
  cases(ops, random, names)  for each op (names) a call without arguments, or several: "rms_norm_bwd, odd". Inputs stay alive
                             and do not change; random(*shape) is bfloat16 on the GPU
  CPU_ONLY, GPU_ONLY         ops without a GPU kernel, and ops that are refused elsewhere, where there are some
  large(ops, x, random)      op -> (input, call): inputs that reach beyond 2^31 elements, made of x; the last rows must come
                             out as those of a call on these rows alone
  WIDE, WIDER                kernels that must move 16 bytes at a time, and where a GPU can, 32 (tests/cuda_build_test.py)
  RACECHECK_FAILS            tests in which compute-sanitizer's racecheck itself fails (cmake/gather_gpu.py)
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import torch

KERNELS = Path(__file__).resolve().parents[2]


def load(packages: Path) -> dict:
    loaded = {}
    for metadata in sorted(packages.glob("*/build/*-cu*/metadata.json")):
        package_id = json.loads(metadata.read_text())["id"]
        torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
        loaded[metadata.parents[2].name] = getattr(torch.ops, package_id)
    return loaded


def gpu_cases(package: str):
    file = KERNELS / package / "tests/gpu_cases.py"
    if not file.is_file():
        sys.exit(f"expected a call of every op of {package} in {file}; got no such file; kernels/norm has one to copy")
    spec = importlib.util.spec_from_file_location(f"{package}_gpu_cases", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_numbers():
    generator = torch.Generator("cuda").manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, device="cuda").bfloat16()


def cases(ops: dict) -> dict:
    """package::name -> a call without arguments."""
    random, calls = random_numbers(), {}
    for package, its in ops.items():
        found = gpu_cases(package).cases(its, random, op_names(its))
        calls |= {f"{package}::{name}": call for name, call in found.items()}
    return calls


def op_names(package) -> list:
    return sorted(package.op_names().split())


def check_all_are_called(ops: dict) -> list:
    called = {name.split(",")[0] for name in cases(ops)}
    named = [
        f"{package}::{name}"
        for package in ops
        for name in op_names(ops[package])
        if name not in getattr(gpu_cases(package), "CPU_ONLY", ())
    ]
    return [f"{name}: no case" for name in named if name not in called]


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


def check_second_gpu(ops: dict) -> list:
    """On the second GPU while the first is the current one: what comes out there when it is the current one."""
    if torch.cuda.device_count() < 2:
        return []
    failed, second = [], torch.cuda.device(1)
    with second:
        calls = cases(ops)
    for name, call in calls.items():
        with second:
            want = outputs(call())
        got = outputs(call())
        if not same(got, want) or any(t.device.index != 1 for t in got) or torch.cuda.current_device() != 0:
            failed.append(f"{name}: other bits on a GPU that is not the current one")
    return failed


def reach(t: torch.Tensor) -> int:
    """How many elements lie from its first to its last, those between its rows too."""
    return 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()))


def check_large(ops: dict) -> list:
    """More than 2^31 elements: the last rows are those of a small call."""
    failed, random = [], random_numbers()
    x = torch.randn((1 << 20) + 3, 2056, device="cuda", dtype=torch.bfloat16)
    for package, its in ops.items():
        for name, (given, call) in gpu_cases(package).large(its, x, random).items():
            assert reach(given) > 1 << 31, name
            if not torch.equal(call(given)[-5:], call(given[-5:].clone())):
                failed.append(f"{package}::{name}: wrong beyond 2^31 elements")
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
    failed = check_all_are_called(ops) + check_graphs_and_streams(ops) + check_second_gpu(ops)
    if args.large:
        failed += check_large(ops)
    print("\n".join(failed) or f"{len(cases(ops))} ops: same bits run after run, on another stream, under a CUDA graph")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
