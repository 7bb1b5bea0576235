"""Makes a kernel package's id and stages its built variant (kernel-builder's layout).

    package.py id    --source kernels/norm --backend cpu --root . --out id.h FILE...
    package.py stage --source kernels/norm --backend cpu --layers kernels/norm/layers.json --id id.h
                     --library libnorm_cpu.so --out .../build/<variant> FILE...

The id `_<name>_<backend>_<7 hex>` is the op namespace and the file name, because torch.ops and Python's module table keep
one entry per id in a process: what is built from other bytes needs another id. It hashes the FILEs, which are compiled
or staged, the headers that they include in quotes, wherever those lie under the root, and --only-isa; nothing else. The
same list goes to id.h.d for the build. The FILEs of `stage` are what all Python APIs share, kernels/common/python.
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

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
COMPILED = {".h", ".cuh", ".cpp", ".cu"}

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
            sys.exit(f"{source}/build.toml: expected key general.{key}; add it")
    return config


def with_headers(files: list[Path], root: Path) -> list[Path]:
    """The files and what they include in quotes, as the compiler looks for it: beside the file, then under the root. Both
    sides of an #if count."""
    found, left = set(), [f.resolve() for f in files]
    while left:
        file = left.pop()
        if file in found:
            continue
        found.add(file)
        for name in INCLUDE.findall(file.read_text()) if file.suffix in COMPILED else ():
            header = next((h for h in (file.parent / name, root / name) if h.is_file()), None)
            if header is None:
                sys.exit(f'{file}: expected "{name}" beside it or under {root}; got none; write <{name}> if it is not ours')
            left.append(header.resolve())
    return sorted(found)


def make_id(args) -> None:
    root, files = args.root.resolve(), with_headers(args.files, args.root.resolve())
    digest = hashlib.sha256(OPS_PY.encode() + args.only_isa.encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    python_name = general(args.source)["name"].replace("-", "_")
    text = f"#define TORCH_EXTENSION_NAME _{python_name}_{args.backend}_{digest.hexdigest()[:7]}\n"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if not args.out.exists() or args.out.read_text() != text:
        args.out.write_text(text)
    names = " ".join(str(f).replace(" ", "\\ ") for f in files)
    args.out.with_name(args.out.name + ".d").write_text(f"{args.out}: {names}\n")


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
    shutil.copy(args.layers, folder / "layers.json")
    for file in args.files:
        shutil.copy(file, folder / file.name)
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
    for verb, flags in (("id", ("source", "root", "out")), ("stage", ("source", "layers", "id", "library", "out"))):
        sub = verbs.add_parser(verb)
        sub.add_argument("--backend", required=True)
        for flag in flags:
            sub.add_argument(f"--{flag}", type=Path, required=True)
        if verb == "id":
            sub.add_argument("--only-isa", default="", help="empty: all")
        sub.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    make_id(args) if args.verb == "id" else stage(args)


if __name__ == "__main__":
    main()
