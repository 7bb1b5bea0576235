"""Makes a kernel package's id and stages its built variant (kernel-builder's layout).

    package.py id    --source kernels/norm --common kernels/common --backend cpu --out id.h
    package.py stage --source kernels/norm --id id.h --library libnorm_cpu.so --backend cpu --out .../build/<variant>

The id `_<name>_<backend>_<7 hex>` is the op namespace and the file name. It hashes every source of the package, because
torch.ops and Python's module table keep one entry per id in a process.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: tomli where the wheel is built, else the one that pip brings
    try:
        import tomli as tomllib
    except ModuleNotFoundError:
        from pip._vendor import tomli as tomllib

# Tests and benchmarks do not change what is built.
NOT_BUILT = re.compile(r"(__pycache__|_test\.cpp$|_bench\.cpp$|/tests/|/testing/|\.pyc$)")

OPS_PY = """import torch

from . import {id}

ops = torch.ops.{id}


def add_op_namespace_prefix(name):
    return f"{id}::{{name}}"
"""


def general(source: Path) -> dict:
    config = tomllib.loads((source / "build.toml").read_text())["general"]
    for key in ("name", "version", "edition", "license", "backends"):
        if key not in config:
            sys.exit(f"{source}/build.toml: wanted key general.{key}; add it")
    return config


def make_id(args) -> None:
    digest = hashlib.sha256()
    for root in (args.source, args.common):
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            name = f"/{path.relative_to(root)}"
            if NOT_BUILT.search(name):
                continue
            digest.update(f"{root.name}{name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    python_name = general(args.source)["name"].replace("-", "_")
    text = f"#define TORCH_EXTENSION_NAME _{python_name}_{args.backend}_{digest.hexdigest()[:7]}\n"
    if not args.out.exists() or args.out.read_text() != text:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)


def file_digests(folder: Path) -> dict:
    """kernels' rule: every file but the top metadata.json(.sigstore) and Python's caches; base64 of the sha256."""
    result = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name in ("metadata.json", "metadata.json.sigstore") or "__pycache__" in name or name.endswith(".pyc"):
            continue
        result[name] = base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
    return result


def stage(args) -> None:
    config = general(args.source)
    python_name = config["name"].replace("-", "_")
    package_id = args.id.read_text().split()[-1]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".staging-", dir=args.out.parent))
    face = args.source / "torch-ext" / python_name
    shutil.copytree(face, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(args.source / "layers.json", folder / "layers.json")
    shutil.copy(args.library, folder / f"{package_id}.abi3.so")
    (folder / "_ops.py").write_text(OPS_PY.format(id=package_id))
    metadata = {
        "name": config["name"],
        "id": package_id,
        "version": config["version"],
        "license": config["license"],
        "python-depends": [],
        "kernel-depends": [],
        "backend": {"type": args.backend},
        "digest": {"algorithm": "sha256", "files": file_digests(folder)},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    os.chmod(folder, 0o755)
    if args.out.exists():
        old = Path(tempfile.mkdtemp(prefix=".old-", dir=args.out.parent))
        os.rename(args.out, old / "variant")
        os.rename(folder, args.out)
        shutil.rmtree(old)
    else:
        os.rename(folder, args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, flags in (("id", ("source", "common", "out")), ("stage", ("source", "id", "library", "out"))):
        sub = verbs.add_parser(verb)
        sub.add_argument("--backend", required=True)
        for flag in flags:
            sub.add_argument(f"--{flag}", type=Path, required=True)
    args = parser.parse_args()
    make_id(args) if args.verb == "id" else stage(args)


if __name__ == "__main__":
    main()
