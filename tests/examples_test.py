"""The programs of examples/, as a reader builds and runs them: against an installed hotswap, on a small model made here.

    examples_test.py --build build --python .venv/bin/python [--packages build/packages]

examples/generate is README's program, which tests/install_test.py runs. A Python example whose library is absent is not run,
and reported as not tested.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from adding_a_kernel_test import MAKE_MODEL

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
BUILT = ("fine_tune", "own_model", "own_package")
TEXT = ROOT / "LICENSE"
NEEDS = {"trainer": ["accelerate"], "lora": ["peft"], "trl_sft": ["trl", "datasets"], "own_package": []}


def run(*command, **kwargs) -> str:
    print("$", *command, flush=True)
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **kwargs)
    if done.returncode:
        sys.exit(f"{done.stdout}\nexamples_test: expected this command to succeed; it ended with {done.returncode}")
    return done.stdout


def expect(output: str, *parts: str) -> None:
    if missing := [part for part in parts if part not in output]:
        sys.exit(f"{output}\nexamples_test: expected {', '.join(missing)} in this output; got none")


def expect_lower_loss(output: str) -> None:
    """From its line "loss 5.6 -> 5.0"."""
    (line,) = [line for line in output.splitlines() if line.startswith("loss ")]
    first, last = map(float, line.removeprefix("loss ").split(" -> "))
    if not last < first:
        sys.exit(f"{output}\nexamples_test: expected a loss that falls; got {line}")
    print(line)


def build(folder: Path, prefix: Path, python: Path) -> None:
    """Each by its own CMakeLists.txt, on all cores."""
    for name in BUILT:
        run("cmake", "-S", EXAMPLES / name, "-B", folder / name, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DHOTSWAP_PYTHON={python}")
    building = [subprocess.Popen(["cmake", "--build", folder / name]) for name in BUILT]
    if any([process.wait() for process in building]):
        sys.exit("examples_test: expected every example to compile; got the errors above")


def run_in_cpp(folder: Path, env: dict) -> None:
    output = run(folder / "fine_tune/fine_tune", "DIR", TEXT, "tuned-in-cpp", cwd=folder, env=env)
    expect_lower_loss(output)
    expect(output, "norm:RMSNorm", "mode TRAINING")
    run("hotswap", "kernelize", "--model", "tuned-in-cpp", cwd=folder, env=env)
    expect(run(folder / "own_model/own_model", env=env), "norm:RMSNorm", "stock again, same values: yes")
    expect(run(folder / "own_package/own_package", "my-silu", cwd=folder, env=env), "my-silu:SiLU")


def run_in_python(folder: Path, python: Path, env: dict) -> None:
    for name, libraries in NEEDS.items():
        if missing := [library for library in libraries if importlib.util.find_spec(library) is None]:
            print(f"not tested: examples/python/{name}.py: pip install {' '.join(missing)}")
            continue
        program = EXAMPLES / f"python/{name}.py"
        arguments = ["DIR", "my-silu"] if name == "own_package" else ["DIR", TEXT, f"tuned-by-{name}"]
        output = run(python, program, *arguments, cwd=folder, env=env)
        if name == "own_package":
            expect(output, "my-silu v1", "maximum difference")
        else:
            expect_lower_loss(output)
            expect(output, "norm v1", "norm.rms_norm_bwd")
            assert any((folder / f"tuned-by-{name}").glob("*.safetensors")), name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="has torch, transformers and kernels")
    parser.add_argument("--packages", type=Path, help="for the Python examples; BUILD/packages by default")
    args = parser.parse_args()
    if found := {path.stem for path in EXAMPLES.glob("python/*.py")} ^ NEEDS.keys():
        sys.exit(f"examples_test: expected every Python example to have a row in NEEDS; got {', '.join(sorted(found))}")
    if found := {path.parent.name for path in EXAMPLES.glob("*/CMakeLists.txt")} ^ {"generate", *BUILT}:
        sys.exit(f"examples_test: expected every C++ example in BUILT; got {', '.join(sorted(found))}")
    python, packages = args.python.absolute(), (args.packages or args.build / "packages").resolve()
    hidden = ("HF_", "HOTSWAP_", "LOCAL_KERNELS", "KERNELS_CACHE", "LD_LIBRARY_PATH", "GTEST_", "CXX")
    env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    with tempfile.TemporaryDirectory(prefix="hotswap-examples-") as name:
        folder, prefix = Path(name), Path(name) / "prefix"
        run("cmake", "--install", args.build, "--prefix", prefix)
        env |= {"PATH": f"{prefix / 'bin'}:{python.parent}:{env['PATH']}", "HF_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
        build(folder, prefix, python)
        run(python, "-c", MAKE_MODEL, "DIR", cwd=folder, env=env)
        run("hotswap", "kernel", "init", "my-silu", "--repo", "me/my-silu", cwd=folder, env=env)
        run("hotswap", "kernel", "build", "my-silu", cwd=folder, env=env)
        run_in_cpp(folder, env)
        in_python = {"HOTSWAP_PACKAGES": str(packages), "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        run_in_python(folder, python, env | in_python)


if __name__ == "__main__":
    main()
