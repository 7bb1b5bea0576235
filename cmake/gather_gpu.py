"""Gathers what another machine needs to run our tests: gather_gpu.py --build build --out build-gpu

packed.tar.xz, which run.sh unpacks: bin/ (the test programs of what a GPU changes, benchmarks, the command line), lib/
(libhotswap and the few Debian libraries), both stripped, and packages/; beside it source/, the files of the checkout that
tests read, and run.sh (cmake/run_gpu.sh). libtorch is that machine's own. The whole stays under 64 MiB.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

LIMIT = 64 << 20
HERE = Path(__file__).resolve().parent
NO_GPU_IN_THEM = {"base_test", "hub_test", "tokenizers_test", "chat_test", "cli_test", "cli_hub_test"}
# What tests read of the checkout: scripts that compute what they compare with, the licence that these train on, what packages
# say of themselves.
SOURCES = ("LICENSE", "hotswap/**/*.py", "kernels/*/build.toml", "kernels/*/tests/gpu_cases.py", "kernels/common/tests/test_cuda.py")
# Libraries that a machine with nothing but Python and torch may lack.
CARRIED = re.compile(r"lib(pcre2-8|utf8proc|crypto|ssl|cpp-httplib|brotli\w+|gtest|gtest_main)\.so")


def copy_stripped(source: Path, target: Path) -> None:
    shutil.copy(source.resolve(), target)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def carried_libraries(program: Path) -> list[tuple[str, Path]]:
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    pairs = re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)
    return [(name, Path(path)) for name, path in pairs if CARRIED.match(name)]


def namespace(mangled: str) -> str:
    """_ZN5norms4cuda... -> _ZN5norms"""
    match = re.match(r"_ZN(\d+)", mangled)
    return mangled[: match.end() + int(match[1])] if match else mangled


def cuda_packages(build: Path) -> list[str]:
    """A line for each package with CUDA kernels, for run.sh: its name, how the names of its kernels begin (their namespaces;
    only they are sanitized: torch's, which compute what is compared with, take most of the time), and the tests that
    racecheck cannot."""
    lines = []
    for cases in sorted((HERE.parent / "kernels").glob("*/tests/gpu_cases.py")):
        package = cases.parents[1].name
        logs = (build / "kernels" / package).rglob("*.cu.o.log")
        names = [n for log in logs for n in re.findall(r"Compiling entry function '(\S+)'", log.read_text())]
        if not names:
            continue  # built without CUDA
        spec = importlib.util.spec_from_file_location(f"{package}_gpu_cases", cases)
        says = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(says)
        spaces = sorted({namespace(n) for n in names})
        lines.append(f"{package} {','.join(spaces)} {':'.join(getattr(says, 'RACECHECK_FAILS', []))}".rstrip())
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    build, out = args.build.resolve(), args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("bin", "lib"):
        (out / folder).mkdir(parents=True)
    programs = sorted(
        p
        for p in (build / "bin").iterdir()
        if p.is_file() and re.fullmatch(r"\w+_(test|bench)|hotswap", p.name) and p.name not in NO_GPU_IN_THEM
    )
    if not any(p.name.endswith("_test") for p in programs):
        sys.exit(f"expected test programs in {build}/bin; got none; run ./x build")
    libraries = {}
    for program in programs:
        copy_stripped(program, out / "bin" / program.name)
        libraries |= dict(carried_libraries(program))
    for library in sorted((build / "lib").glob("lib*.so*")):
        own = re.match(r"lib(\w+)_(cpu|cuda)\.so", library.name)
        if own and (HERE.parent / "kernels" / own[1]).is_dir():
            continue  # a package's; it is in packages/
        libraries[library.name] = library
        libraries |= dict(carried_libraries(library))
    if any((build / "packages").glob("*/build/*-cu*")) and "libhotswap_cuda.so" not in libraries:
        sys.exit(f"expected libhotswap_cuda.so in {build}/lib, without which no step is captured; got none; run ./x --cuda build")
    for name, path in libraries.items():
        copy_stripped(path, out / "lib" / name)
    # Packages go as they are: a stripped library would no longer match its digest. The programs have most of their code in
    # common: found again over 64 MiB it is packed smaller, and by the quickest preset, than over 4 MiB by a slow one.
    pack = ["tar", "--exclude=__pycache__", "--exclude=.*", "-cJf", out / "packed.tar.xz"]
    pack += ["-C", build, "packages", "-C", out, "bin", "lib"]
    subprocess.run(pack, check=True, env=os.environ | {"XZ_OPT": "--x86 --lzma2=preset=0,dict=64MiB"})
    for folder in ("bin", "lib"):
        shutil.rmtree(out / folder)
    shutil.copy(HERE.parent / "tests/summary.py", out)
    root = HERE.parent
    for file in (f for pattern in SOURCES for f in sorted(root.glob(pattern))):
        place = out / "source" / file.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    (out / "cuda_packages").write_text("".join(f"{line}\n" for line in cuda_packages(build)))
    shutil.copy(HERE / "run_gpu.sh", out / "run.sh")
    (out / "run.sh").chmod(0o755)
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    print(f"{out}: {len(programs)} programs, {size / (1 << 20):.1f} MiB")
    if size > LIMIT:
        sys.exit(f"expected at most {LIMIT >> 20} MiB; leave something out in cmake/gather_gpu.py")
    print(f"take the folder there and run: bash {out.name}/run.sh")


if __name__ == "__main__":
    main()
