"""The packages through Python's own `kernels`, unmodified: runs kernels/*/tests with pytest.
With --face, a part of python/tests, the Python API on transformers, or all of it. A part is a ctest entry.

    python_packages_test.py --packages build/packages [--face PART|all]
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


# Parts of about the same length, by patterns of files; what no pattern names is in the last one.
PARTS = {
    "short": ("face", "families", "imports", "types"),  # what takes seconds
    "training": ("compile", "training", "*dtensor", "trl"),
    "liger": ("liger*", "grpo", "preference", "distillation", "derivatives", "guide", "no_labels", "sweep"),
    "experts": ("experts*", "deformable", "mamba", "vision", "projections", "residual"),
    "rest": ("*",),
}


def part_of(file: Path) -> str:
    return next(part for part, names in PARTS.items() if any(file.match(f"test_{name}.py") for name in names))


def face(which: str, folder: Path) -> list[str]:
    return [str(p) for p in sorted(folder.glob("test_*.py")) if which in ("all", part_of(p))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--face", choices=[*PARTS, "all"])
    args = parser.parse_args()
    absent = [name for name in ("torch", "kernels", "transformers", "pytest") if importlib.util.find_spec(name) is None]
    if absent:
        print(f"expected {', '.join(absent)} in {sys.executable}; got none; ./x test installs them. Skipped.")
        sys.exit(77)
    root = Path(__file__).resolve().parent.parent
    packages = sorted(str(p) for p in root.glob("kernels/*/tests") if any(p.glob("test_*.py")))
    what = face(args.face, root / "python/tests") if args.face else packages
    if not what:
        sys.exit("expected Python tests in python/tests and kernels/*/tests; got none")
    # rootdir kernels/: from the root, pytest would make a package "kernels" of the folder and hide the real one
    rootdir = root / ("python" if args.face else "kernels")
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", f"--rootdir={rootdir}", "-rs"]
    command += ["-p", "no:cacheprovider", *what]
    results = os.environ.get("HOTSWAP_TEST_RESULTS")
    if results:
        part = "packages" if args.face is None else "face" if args.face == "short" else f"face_{args.face}"
        command.append(f"--junitxml={results}/python_{part}_test.xml")
    environment = dict(
        os.environ, HOTSWAP_PACKAGES=str(args.packages.resolve()), PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1"
    )
    if args.face:
        environment["PYTHONPATH"] = f"{root / 'python'}:{root / 'python/tests'}"
    sys.exit(subprocess.run(command, cwd=root, env=environment).returncode)


if __name__ == "__main__":
    main()
