"""The Python tests on other releases: the same built packages, another torch, transformers or kernels before the usual ones,
or another Python with the usual ones.

    .venv/bin/python tests/python_matrix.py --packages build/packages --transformers 5.22.2 --kernels 0.17.2
    .venv/bin/python tests/python_matrix.py --packages build/packages --torch 2.15.0 [-k EXPRESSION]
    .venv/bin/python tests/python_matrix.py --packages build/packages --python python3.13

Downloads into build-matrix/ (a torch is several GB, once) and leaves the Python that runs it as it is. What follows -k goes
to pytest.
"""

import argparse
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

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


def other_python(python: str) -> Path:
    """The interpreter of a virtual environment with the releases of this one."""
    folder = ROOT / "build-matrix" / Path(python).name
    made = folder / "bin/python"
    if not (folder / "complete").exists():
        same = lambda *names: [f"{name}=={version(name)}" for name in names]
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = [made, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        # without what torch names: the CUDA libraries of this environment serve every Python
        subprocess.run([*pip, "--no-deps", *same("torch", "accelerate", "peft")], check=True)
        rest = "pytest psutil sympy networkx jinja2 fsspec setuptools numpy".split()
        subprocess.run([*pip, *same("transformers", "kernels", "kernel-abi-check"), *rest], check=True)
        (there,) = folder.glob("lib/python*/site-packages")
        (there / "nvidia").symlink_to(Path(torch.__file__).parents[1] / "nvidia")
        (folder / "complete").touch()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("-k", default="")
    for name in ("torch", "transformers", "kernels"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--python", help="another interpreter, alone")
    args = parser.parse_args()
    python = other_python(args.python) if args.python else sys.executable
    folders = [fetch(n, getattr(args, n)) for n in ("torch", "transformers", "kernels") if getattr(args, n)]
    path = ":".join(str(p) for p in [*folders, ROOT / "python", ROOT / "python/tests"])
    environment = dict(os.environ, PYTHONPATH=path, HOTSWAP_PACKAGES=str(args.packages.resolve()), HF_HUB_OFFLINE="1")
    versions = "import sys, torch, transformers as t, kernels as k"
    versions += "; print(f'Python {sys.version.split()[0]}, torch {torch.__version__}, transformers {t.__version__}, kernels {k.__version__}')"
    subprocess.run([python, "-c", versions], env=environment, check=True)
    command = [python, "-m", "pytest", "-q", "-rfEs", "--import-mode=importlib", f"--rootdir={ROOT / 'python'}"]
    command += ["-p", "no:cacheprovider", "-W", "ignore", "-k", args.k, str(ROOT / "python/tests")]
    sys.exit(subprocess.run(command, env=environment, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
