"""A package's id changes with what it is built from, and with nothing else.

    package_id_test.py --build build

Two halves. The list of files that each id was made of, against what the compilers say that they read. And for a copy of
the tree, a byte more in each file of kernels/: an id changes with each file of its list, and not with all others at once.
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
HEADERS = {".h", ".cuh"}


def listed(build: Path) -> dict[str, set[str]]:
    """norm_cpu -> the files in build/kernels/norm/cpu/id.h.d, from the root; not of what was built with CUDA before."""
    found, rules = {}, (build / "build.ninja").read_text()
    for file in sorted(build.glob("kernels/*/*/id.h.d")):
        if file.relative_to(build).with_suffix("").as_posix() not in rules:
            continue
        names = file.read_text().replace("\\ ", "\0").split()[1:]
        name = f"{file.parents[1].name}_{file.parent.name}"
        found[name] = {Path(n.replace("\0", " ")).relative_to(ROOT).as_posix() for n in names}
    return found


def compiled(build: Path) -> dict[str, set[str]]:
    """norm_cpu -> the files of kernels/ that its objects were compiled from, as Ninja has it from the compilers."""
    text = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    found = {}
    for block in text.split("\n\n"):
        object_file, _, rest = block.partition(": #deps")
        parts = Path(object_file.split("\n")[-1]).parts
        if parts[:2] == ("kernels", "CMakeFiles"):
            owner = parts[2].removesuffix(".dir")  # norm_cpu_v4, norm_cpu, norm_cuda
            owner = owner.split("_cpu_")[0] + "_cpu" if "_cpu_" in owner else owner
        elif object_file.endswith(".cu.o"):
            owner = f"{parts[1]}_cuda"
        else:
            continue
        files = {(build / line.strip()).resolve() for line in rest.split("\n")[1:] if line.strip()}
        kernels = {f.relative_to(ROOT).as_posix() for f in files if f.is_relative_to(ROOT / "kernels")}
        found.setdefault(owner, set()).update(kernels)
    return found


def check_compilers(build: Path, lists: dict[str, set[str]]) -> list[str]:
    read, wrong = compiled(build), []
    for name, files in lists.items():
        missing = read[name] - files
        if name.endswith("_cuda"):  # holds the CPU's kernels, too
            missing |= read[name.replace("_cuda", "_cpu")] - files
        wrong += [f"{name}: {file} is compiled, and its id does not know" for file in sorted(missing)]
    return wrong


def check_edits(lists: dict[str, set[str]], copy: Path) -> list[str]:
    spec = importlib.util.spec_from_file_location("package_tool", ROOT / "cmake/package.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    shutil.copytree(ROOT / "kernels", copy / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    contents = {f.relative_to(copy).as_posix(): f.read_bytes() for f in (copy / "kernels").rglob("*") if f.is_file()}

    def id_of(name: str, edited: set[str] = frozenset(), only_isa: str = "") -> str:
        """Of the package, with a byte more in these files."""
        for file in edited:
            (copy / file).write_bytes(contents[file] + b"\n")
        package, _, backend = name.rpartition("_")
        roots = [copy / f for f in sorted(lists[name]) if Path(f).suffix not in HEADERS]  # headers are found again
        args = SimpleNamespace(source=copy / "kernels" / package, root=copy, backend=backend, files=roots,
                               out=copy / f"{name}.h", only_isa=only_isa)
        tool.make_id(args)
        for file in edited:
            (copy / file).write_bytes(contents[file])
        return args.out.read_text().split()[-1]

    wrong = []
    for name, files in lists.items():
        first, others = id_of(name), contents.keys() - files
        wrong += [f"{name}: expected a new id after an edit of {file}; got the same" for file in sorted(files) if id_of(name, {file}) == first]
        if id_of(name, others) != first:  # all at once; which of them it is, one by one
            found = [file for file in sorted(others) if id_of(name, {file}) != first]
            wrong.append(f"{name}: expected the same id after an edit of {found or 'all other files'}; got a new one")
        if id_of(name) != first:
            wrong.append(f"{name}: the same bytes give other ids")
        if id_of(name, only_isa="v4") == first:
            wrong.append(f"{name}: expected another id for a package of one instruction set; got the same")
    return wrong


def check_lists(lists: dict[str, set[str]]) -> list[str]:
    """What must not name a package anew, by what it is; and that the lists are no empty ones."""
    wrong = [f"{name}: {len(files)} files, too few" for name, files in lists.items() if len(files) < 8]
    for name, files in lists.items():
        package, _, backend = name.rpartition("_")
        layers = [Path(f).name for f in files if re.fullmatch(r"layers(\.\w+)?\.json", Path(f).name)]
        own = f"layers.{backend}.json"
        staged = own if (ROOT / "kernels" / package / own).is_file() else "layers.json"
        if layers != [staged]:
            wrong.append(f"{name}: expected {staged}, which is staged, to change its id; got {layers}")
        for file in files:
            parts, stem = Path(file).parts, Path(file).stem
            foreign = parts[1] not in (package, "common") or backend == "cpu" and Path(file).suffix in (".cu", ".cuh")
            if foreign or "tests" in parts or "testing" in parts or stem.endswith(("_test", "_bench")) or stem == "CARD":
                wrong.append(f"{name}: {file} changes its id")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    build = parser.parse_args().build.resolve()
    lists = listed(build)
    if not lists:
        sys.exit(f"expected packages built in {build}; got none; run ./x build")
    wrong = check_lists(lists) + check_compilers(build, lists)
    with tempfile.TemporaryDirectory() as folder:
        wrong += check_edits(lists, Path(folder).resolve())
    print("\n".join(wrong) or f"{len(lists)} ids: each changes with its own files alone")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
