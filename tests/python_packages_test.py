"""The packages through Python's own `kernels`, unmodified: runs kernels/*/tests with pytest.
With --face, python/tests: the Python API on transformers; short: what takes seconds, long: the rest.

    python_packages_test.py --packages build/packages [--face short|long|all]
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


SHORT = ("test_face.py", "test_families.py", "test_imports.py", "test_types.py")


def face(which: str, folder: Path) -> list[str]:
    found = sorted(folder.glob("test_*.py"))
    return [str(p) for p in found if which == "all" or (p.name in SHORT) == (which == "short")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--face", choices=["short", "long", "all"])
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
        name = {None: "python_packages_test", "long": "python_face_long_test"}.get(args.face, "python_face_test")
        command.append(f"--junitxml={results}/{name}.xml")
    environment = dict(
        os.environ, HOTSWAP_PACKAGES=str(args.packages.resolve()), PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1"
    )
    if args.face:
        environment["PYTHONPATH"] = f"{root / 'python'}:{root / 'python/tests'}"
    sys.exit(subprocess.run(command, cwd=root, env=environment).returncode)


if __name__ == "__main__":
    main()
