"""Gathers what another machine needs to run our tests: gather_gpu.py --build build --out build-gpu

bin/ (the test programs of what a GPU changes, benchmarks, the command line), packages/, lib/ (libhotswap and the few
Debian libraries), run.sh (cmake/run_gpu.sh). Stripped; libtorch is that machine's own. The whole stays under 64 MiB.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

LIMIT = 64 << 20
HERE = Path(__file__).resolve().parent
NO_GPU_IN_THEM = {"base_test", "hub_test", "tokenizers_test", "cli_test"}
# Libraries that a machine with nothing but Python and torch may lack.
CARRIED = re.compile(r"lib(pcre2-8|utf8proc|crypto|ssl|cpp-httplib|brotli\w+|gtest|gtest_main|benchmark)\.so")

def copy_stripped(source: Path, target: Path) -> None:
    shutil.copy(source.resolve(), target)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def carried_libraries(program: Path) -> list[tuple[str, Path]]:
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    pairs = re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)
    return [(name, Path(path)) for name, path in pairs if CARRIED.match(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="the one that the tests were built to call")
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
        sys.exit(f"wanted test programs in {build}/bin; got none; run ./x build")
    libraries = {}
    for program in programs:
        copy_stripped(program, out / "bin" / program.name)
        libraries |= dict(carried_libraries(program))
    for library in sorted((build / "lib").glob("lib*.so*")):
        if re.match(r"lib\w+_(cpu|cuda)\.so", library.name):
            continue  # the packages' own; they are in packages/
        libraries[library.name] = library
        libraries |= dict(carried_libraries(library))
    for name, path in libraries.items():
        copy_stripped(path, out / "lib" / name)
    # Packages go as they are: a stripped library would no longer match its digest.
    shutil.copytree(build / "packages", out / "packages", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for script in ("kernels/common/tests/test_cuda.py", "tests/summary.py"):
        shutil.copy(HERE.parent / script, out)
    run = (HERE / "run_gpu.sh").read_text()
    (out / "run.sh").write_text(run.replace("@BUILD@", str(build)).replace("@PYTHON@", str(args.python)))
    (out / "run.sh").chmod(0o755)
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    print(f"{out}: {len(programs)} programs, {size / (1 << 20):.1f} MiB")
    if size > LIMIT:
        sys.exit(f"wanted at most {LIMIT >> 20} MiB; leave something out in cmake/gather_gpu.py")
    print(f"take the folder there and run: bash {out.name}/run.sh")


if __name__ == "__main__":
    main()
