"""The Python tests on other releases: the same built packages, another torch, transformers or kernels before the usual ones.

    .venv/bin/python tests/python_matrix.py --packages build/packages --transformers 5.22.2 --kernels 0.17.2
    .venv/bin/python tests/python_matrix.py --packages build/packages --torch 2.15.0 [-k EXPRESSION]

Downloads into build-matrix/ (a torch is several GB, once) and leaves the Python that runs it as it is. What follows -k goes
to pytest.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def install(folder: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", "--target", folder]
    subprocess.run([*command, *what], check=True)


def fetch(name: str, version: str) -> Path:
    folder = ROOT / "build-matrix" / f"{name}-{version}"
    if not (folder / "complete").exists():
        install(folder, f"{name}=={version}")
        if name == "torch":  # with the CUDA libraries that it names by version; the others are those of .venv
            (metadata,) = folder.glob("torch-*.dist-info/METADATA")
            pinned = re.findall(r"^Requires-Dist: (nvidia-[\w-]+==[\d.]+|triton==[\d.]+)", metadata.read_text(), re.MULTILINE)
            install(folder, *pinned)
        (folder / "complete").touch()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("-k", default="")
    for name in ("torch", "transformers", "kernels"):
        parser.add_argument(f"--{name}")
    args = parser.parse_args()
    folders = [fetch(n, getattr(args, n)) for n in ("torch", "transformers", "kernels") if getattr(args, n)]
    path = ":".join(str(p) for p in [*folders, ROOT / "python", ROOT / "python/tests"])
    environment = dict(os.environ, PYTHONPATH=path, HOTSWAP_PACKAGES=str(args.packages.resolve()), HF_HUB_OFFLINE="1")
    versions = "import torch, transformers, kernels; print(*(m.__name__ + ' ' + m.__version__ for m in (torch, transformers, kernels)))"
    subprocess.run([sys.executable, "-c", versions], env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--import-mode=importlib", f"--rootdir={ROOT / 'python'}"]
    command += ["-p", "no:cacheprovider", "-k", args.k, str(ROOT / "python/tests")]
    sys.exit(subprocess.run(command, env=environment, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
