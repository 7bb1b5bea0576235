"""Every built package's library: loadable by any torch >= 2.10, any Python and any glibc since 2.28?

    package_elf_test.py --packages build/packages [--build build]

A stable-ABI library may want C symbols of torch (aoti_torch_*, torch_*), libc, libstdc++ and libm; never at:: or c10::,
never libpython. Versions of glibc and libstdc++ symbols stay within manylinux_2_28. It exports what Python calls, and
nothing else: linked with a static libstdc++, as some compilers do, its errors are those of any other (--build).
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIMITS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (8,)}
NEEDED = re.compile(
    r"(libtorch_cpu|libtorch_cuda|libcudart|libc|libm|libstdc\+\+|libgcc_s|libgomp|libdl|libpthread|ld-linux[\w-]*)\.so"
)
FOREIGN = re.compile(r"\b(at|c10|caffe2|torch)::")
PYTHON_WEAK = {"PyModule_Create2"}  # weak: resolved in Python, absent in a C++ host


def run(*command) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbol_problems(lines: list[str]) -> list[str]:
    """Lines of `nm -DC --undefined-only`: "                 U memcpy@GLIBC_2.14"."""
    found = []
    for line in lines:
        match = re.match(r"\s*([Uwv]) (.+?)(?:@+(\w+)_([\d.]+))?$", line)
        if not match:
            continue
        kind, symbol, family, version = match.groups()
        if FOREIGN.search(symbol):
            found.append(f"wants {symbol}: not in torch's stable ABI")
        elif symbol.startswith("Py") and not (kind == "w" and symbol in PYTHON_WEAK):
            found.append(f"wants {symbol}: a C++ host has no Python")
        elif family in LIMITS and tuple(map(int, version.split("."))) > LIMITS[family]:
            found.append(f"wants {symbol} of {family}_{version}: newer than manylinux_2_28")
    return found


def library_problems(library: Path) -> list[str]:
    found = symbol_problems(run("nm", "-DC", "--undefined-only", library).split("\n"))
    dynamic = run("readelf", "-dW", library)
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)
    found += [f"is linked with {name}" for name in needed if not NEEDED.match(name)]
    if not any(name.startswith("libtorch_cpu.so") for name in needed):
        found.append("does not name libtorch_cpu.so as NEEDED: Python could not load it")
    exported = [line.split(maxsplit=2)[2] for line in run("nm", "-D", "--defined-only", library).split("\n") if line]
    init = f"PyInit_{library.name.split('.')[0]}"
    if init not in exported:
        found.append(f"does not export {init}")
    if more := sorted(set(exported) - {init}):  # another library's calls could end here, and its own there
        found.append(f"exports {', '.join(more[:3])} and so on: {len(more)} symbols besides {init}")
    return found


def variant_problems(variant: Path) -> list[str]:
    found = []
    for name in ("metadata.json", "layers.json", "_ops.py", "_package.py", "__init__.py", "layers.py"):
        if not (variant / name).is_file():
            found.append(f"{variant}: {name} is missing")
    libraries = sorted(variant.glob("*.abi3.so"))
    if len(libraries) != 1:
        return found + [f"{variant}: expected one *.abi3.so; got {[p.name for p in libraries]}"]
    metadata = json.loads((variant / "metadata.json").read_text())
    if libraries[0].name != metadata["id"] + ".abi3.so":
        found.append(f"{variant}: metadata.json's id is {metadata['id']}, the library is {libraries[0].name}")
    return found + [f"{libraries[0]}: {problem}" for problem in library_problems(libraries[0])]


ERROR_WITH_NUMBERS = """
import sys, torch
torch.ops.load_library(sys.argv[1])
q, table = torch.ones(1, 2, 4, 8), torch.ones(5, 8)
try:
    getattr(torch.ops, sys.argv[2]).rotary(q, q, table, table, 8, False)
except RuntimeError as error:
    assert "for 4 positions" in str(error) and "[5, 8]" in str(error), error
"""


def static_runtime_problems(build: Path) -> list[str]:
    """A package linked again, with a libstdc++ of its own inside: an error with integers in it must be one in Python."""
    library = "lib/librotary_cpu.so"
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", library], check=True, capture_output=True, text=True)
    metadata = next(build.glob("packages/rotary/build/*-cpu-*/metadata.json"))
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/rotary.so"
        command = commands.stdout.replace(f"-o {library}", f"-o {made} -static-libstdc++")
        done = subprocess.run(command, shell=True, cwd=build, capture_output=True, text=True)
        if done.returncode:
            return [f"no library with a static libstdc++ (Debian: libstdc++-12-dev has it): {done.stderr[-500:]}"]
        words = [sys.executable, "-c", ERROR_WITH_NUMBERS, made, json.loads(metadata.read_text())["id"]]
        done = subprocess.run(words, capture_output=True, text=True)
    return [f"with a static libstdc++ an op's error ends Python: {done.returncode} {done.stderr}"] if done.returncode else []


def self_test() -> None:
    bad = [
        "                 U at::_ops::add::call(at::Tensor const&)",
        "                 U c10::Error::Error()",
        "                 U memcpy@GLIBC_2.34",
        "                 U PyList_New",
        "                 U std::ios_base::x()@GLIBCXX_3.4.29",
    ]
    for line in bad:
        assert symbol_problems([line]), f"self test: {line!r} was not found"
    good = [
        "                 U aoti_torch_empty_strided",
        "                 U memcpy@GLIBC_2.14",
        "                 w PyModule_Create2",
        "                 U std::runtime_error::what() const@GLIBCXX_3.4",
    ]
    assert not symbol_problems(good), f"self test: {symbol_problems(good)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--build", type=Path, help="the build folder, to link a package again")
    args = parser.parse_args()
    self_test()
    variants = sorted(p for p in args.packages.glob("*/build/*") if p.is_dir() and not p.name.startswith("."))
    if not variants:
        sys.exit(f"expected built packages in {args.packages}; got none; run ./x build")
    found = [problem for variant in variants for problem in variant_problems(variant)]
    if args.build:
        found += static_runtime_problems(args.build.resolve())
    print("\n".join(found) if found else f"package libraries: {len(variants)} variants, all right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
