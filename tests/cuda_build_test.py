"""What nvcc made of the CUDA kernels, without a GPU: no register goes to memory, vectors are loaded and stored whole.

    cuda_build_test.py --build build [--sizes]

Reads ptxas's report of every object (built with -Xptxas -v) and, where a cuobjdump is (the CUDA toolkit's, or
Triton's), the machine code. --sizes: also the size of each object by architecture. Exit code 77: built without CUDA.
"""

import argparse
import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# From sm_100 on ptxas also spills a few bytes of kernels that have registers to spare, and we have no such GPU to say
# whether that costs anything: these are named, and do not fail.
UNTUNED, FEW_BYTES = 100, 32
# The first architecture that has accesses of 32 bytes.
HAS_256_BITS = 100
KERNELS = Path(__file__).resolve().parent.parent / "kernels"


def demangled(names: list[str]) -> list[str]:
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


def spills(log: Path, known: dict[str, int]) -> tuple[int, list[str], list[str]]:
    """Kernels in a report of ptxas; those that spill; those that do by a few bytes on UNTUNED, or as their package says."""
    # A function's properties follow its name and architecture; an entry's name is repeated there.
    line = r"for '(sm_\d+)a?'\n.*?Function properties for (\S+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    found = re.findall(line, log.read_text())
    bad, few = [], []
    for arch, name, stores, loads in found:
        if int(stores) + int(loads):
            said = max((most for form, most in known.items() if re.search(form, demangled([name])[0])), default=0)
            untuned = FEW_BYTES if int(arch.removeprefix("sm_")) >= UNTUNED else 0
            excused = int(stores) <= max(said, untuned)
            (few if excused else bad).append(f"{arch}: {name}: {stores} bytes stored, {loads} loaded")
    return len(found), bad, few


def cuobjdump() -> str | None:
    found = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
    spec = importlib.util.find_spec("triton")
    if found or spec is None:
        return found
    carried = Path(spec.submodule_search_locations[0]) / "backends/nvidia/bin/cuobjdump"
    return str(carried) if carried.is_file() else None


def gpu_cases(package: str):
    """What the package says of its kernels: WIDE, a pattern of those that must move 16 bytes at a time (bfloat16, rows at whole
    vectors), WIDER, where they have code for 32 bytes as well, STORES_FEW: what they store is a few numbers, and SPILLS: of which
    kernels how many bytes go to memory."""
    spec = importlib.util.spec_from_file_location("gpu_cases", KERNELS / package / "tests/gpu_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def narrow(tool: str, package: str, items: list[Path]) -> list[str]:
    """Kernels of WIDE without loads or stores of a whole vector in the machine code of a package's objects."""
    says = gpu_cases(package)
    archs = {}  # "90" -> [name, code, name, code...] of all objects
    for item in items:
        listing = subprocess.run([tool, "--dump-sass", item], capture_output=True, text=True, check=True).stdout
        parts = re.split(r"^\s*code for sm_(\d+)\w*$", listing, flags=re.MULTILINE)
        for arch, code in zip(parts[1::2], parts[2::2]):
            archs.setdefault(arch, []).extend(re.split(r"^\s*Function : (\S+)$", code, flags=re.MULTILINE)[1:])
    problems = [] if archs else [f"{package}: no machine code"]
    for arch, parts in archs.items():
        wanted = [(n, c) for n, c in zip(demangled(parts[::2]), parts[1::2]) if re.search(says.WIDE, n)]
        if not wanted:
            problems.append(f"sm_{arch}: {package}: no kernel is called {says.WIDE}")
        widths = [128, 256] if getattr(says, "WIDER", False) and int(arch) >= HAS_256_BITS else [128]
        for (name, code), bits in itertools.product(wanted, widths):
            for what, pattern in (("loads", rf"LDG(STS)?\.\S*{bits}"), ("stores", rf"STG\.\S*{bits}")):
                if what == "stores" and getattr(says, "STORES_FEW", False):
                    continue
                if not re.search(pattern, code):
                    problems.append(f"sm_{arch}: {name}: no {bits}-bit {what}")
    return problems


def sizes(tool: str, item: Path) -> str:
    """KiB of machine code for each architecture, and of the whole object."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tool, "--extract-elf", "all", item.resolve()], cwd=folder, capture_output=True, check=True)
        found = {re.search(r"sm_\w+", f.name)[0]: f.stat().st_size >> 10 for f in Path(folder).iterdir()}
    each = ", ".join(f"{arch} {size}" for arch, size in sorted(found.items(), key=lambda a: (len(a[0]), a)))
    return f"{each}; in all {item.stat().st_size >> 10} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--sizes", action="store_true")
    args = parser.parse_args()
    objects = sorted(args.build.glob("kernels/**/*.cu.o"))
    if not objects:
        print(f"no CUDA objects in {args.build}: built without CUDA. Skipped.")
        sys.exit(77)
    problems, count, tool, packages, read = [], 0, cuobjdump(), {}, {}
    for item in objects:
        package = item.relative_to(args.build / "kernels").parts[0]
        packages.setdefault(package, []).append(item)
        kernels, bad, few = spills(item.with_name(item.name + ".log"), getattr(gpu_cases(package), "SPILLS", {}))
        count += kernels
        read[package] = read.get(package, 0) + kernels
        for line in few:
            print(f"{item.name}: {demangled([line])[0]}")
        problems += [f"{item.name}: registers spill in {line}" for line in bad]
        if tool and args.sizes:
            print(f"{item.name}: {sizes(tool, item)}")
    problems += [f"{package}: the reports of ptxas name no kernel" for package, kernels in read.items() if kernels == 0]
    for package, items in packages.items() if tool else ():
        problems += narrow(tool, package, items)
    how = f"machine code read by {tool}" if tool else "machine code not read: no cuobjdump"
    print(f"{count} kernels, {len(problems)} problems; {how}")
    print("\n".join(demangled(problems)))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
