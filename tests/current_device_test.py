"""What runs on a GPU runs on its tensors' GPU, not on whichever is current. An op has its tensors' GPU as the current one from
its first instruction (kernels/common/torch/ops.h), a generation that of its model: so what asks for the current GPU, or keeps
something for the whole process, may stand only where that holds. Prints every other place and exits 1.

    current_device_test.py
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAUNCH, OPS, BINDING = "kernels/common/gpu/launch.cuh", "kernels/common/torch/ops.h", "kernels/common/torch/binding.h"
HOST_GRAPHS, PYTHON_GRAPHS = "hotswap/cuda/cuda_graph.cpp", "python/hotswap/generation/loop.py"
# What is looked for, in which files (globs), where it may stand, and why not elsewhere.
RULES = [
    (r"\bcudaGetDevice\b", ("kernels/**/*.*", "hotswap/**/*.*"), {LAUNCH}, "the op's GPU is current; its properties are kept there, for each"),
    (r"\bcudaSetDevice\b|\bset_device\(", ("kernels/**/*.*", "hotswap/**/*.*", "python/hotswap/**/*.py"), set(), "a guard gives the GPU back"),
    (r"\bTORCH_LIBRARY\w*|\.impl\(", ("kernels/*/torch-ext/*.*", "kernels/common/torch/*.*"), {OPS}, "its rows guard the op's GPU"),
    (r"\baoti_torch_get_current_cuda_stream\b|\bgetCurrentStream\b", ("kernels/**/*.*",), {BINDING}, "run_on() gives the stream of a device"),
    (r"\bgetCurrentCUDAStream\(\)|\bgetStreamFromPool\(\)", ("hotswap/**/*.*",), set(), "name the device"),
    (r"\bstd::once_flag\b|\bstatic (?!constexpr|inline|_)[^(;{]*[;={]|^__device__ [^(]*[;=]", ("kernels/*/cuda/*.*",), set(),
     "what is kept for a process is kept for one GPU; launch.cuh keeps for each"),
    (r"\bkCUDA, 0\b", ("hotswap/**/*.*",), {"hotswap/kernelize/package/device.cpp"}, "take the model's device"),
    (r"torch\.cuda\.(?!device\b|is_available|get_device_capability|is_current_stream_capturing)\w+", ("python/hotswap/**/*.py", "kernels/*/torch-ext/**/*.py"), {PYTHON_GRAPHS},
     "whose loop has its model's GPU as the current one"),
]  # fmt: skip
TESTS = re.compile(r"(_test|_bench)\.cpp$|/(tests|testing|testdata|fuzz)/")


def places(pattern: str, globs: tuple) -> list[tuple[str, int, str]]:
    """(file, line number, text) of each match outside tests and comments."""
    found = []
    for file in sorted({f for glob in globs for f in ROOT.glob(glob) if f.suffix in {".h", ".cpp", ".cu", ".cuh", ".py"}}):
        name = file.relative_to(ROOT).as_posix()
        if TESTS.search(name):
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if re.search(pattern, re.sub(r"(//|#(?!include)).*", "", line)):
                found.append((name, number, line.strip()))
    return found


def main() -> int:
    wrong = 0
    for pattern, globs, allowed, why in RULES:
        found = places(pattern, globs)
        for name, number, line in found:
            if name not in allowed:
                print(f"{name}:{number}: {line}: {why}")
                wrong += 1
        for name in allowed - {name for name, _, _ in found}:
            print(f"{name}: expected {pattern} there; got none of it; take the file out of this test's table")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
