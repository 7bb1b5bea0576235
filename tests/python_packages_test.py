"""The packages through Python's own `kernels`, unmodified: runs kernels/*/tests with pytest.
With --face, python/tests: the Python face on transformers.

    python_packages_test.py --packages build/packages [--face]
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--face", action="store_true")
    args = parser.parse_args()
    absent = [name for name in ("torch", "kernels", "transformers", "pytest") if importlib.util.find_spec(name) is None]
    if absent:
        print(f"wanted {', '.join(absent)} in {sys.executable}; got none; ./x test installs them. Skipped.")
        sys.exit(77)
    root = Path(__file__).resolve().parent.parent
    what = "python/tests" if args.face else "kernels/*/tests"
    folders = sorted(str(p) for p in root.glob(what) if any(p.glob("test_*.py")))
    if not folders:
        sys.exit(f"wanted Python tests in {what}; got none")
    # rootdir kernels/: from the root, pytest would make a package "kernels" of the folder and hide the real one
    rootdir = root / ("python" if args.face else "kernels")
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", f"--rootdir={rootdir}", "-rs"]
    command += ["-p", "no:cacheprovider", *folders]
    results = os.environ.get("HOTSWAP_TEST_RESULTS")
    if results:
        command.append(f"--junitxml={results}/{'python_face_test' if args.face else 'python_packages_test'}.xml")
    environment = dict(
        os.environ, HOTSWAP_PACKAGES=str(args.packages.resolve()), PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1"
    )
    if args.face:
        environment["PYTHONPATH"] = f"{root / 'python'}:{root / 'python/tests'}"
    sys.exit(subprocess.run(command, cwd=root, env=environment).returncode)


if __name__ == "__main__":
    main()
