"""Gathers what another machine needs to run our tests: gather_gpu.py --build build --out build-gpu

bin/ (test programs, benchmarks, the command line), packages/, lib/ (libhotswap and the few Debian libraries), run.sh.
Stripped; libtorch is that machine's own. The whole stays under 64 MiB.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

LIMIT = 64 << 20
# Libraries that a machine with nothing but Python and torch may lack.
CARRIED = re.compile(r"lib(pcre2-8|utf8proc|crypto|ssl|cpp-httplib|brotli\w+|gtest|gtest_main|benchmark)\.so")

RUN = """#!/usr/bin/env bash
# Runs every test program gathered here with this machine's own torch: bash run.sh [gtest arguments]
# PYTHON=... names the Python that has torch (default python3).
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
python=${{PYTHON:-python3}}
torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
nvidia=$(dirname "$torch")/nvidia
export LD_LIBRARY_PATH=$here/lib:$torch/lib
for part in cu13 cudnn nccl cusparselt nvshmem; do LD_LIBRARY_PATH+=:$nvidia/$part/lib; done
export HOTSWAP_PACKAGES=$here/packages OMP_WAIT_POLICY=passive
# The programs know their packages and sources by the paths that they had where they were built.
if [[ ! -e {build} ]]; then
  mkdir -p "$(dirname {build})"
  ln -s "$here" {build}
fi
# With CUDA kernels here, a test that finds no GPU fails.
compgen -G "$here/packages/*/build/*-cu*" >/dev/null && export HOTSWAP_REQUIRE_CUDA=1
passed=0 failed=0
for program in "$here"/bin/*_test; do
  echo "== ${{program##*/}}"
  if "$program" --gtest_brief=1 "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
if [[ -n ${{HOTSWAP_REQUIRE_CUDA:-}} ]]; then
  if "$python" "$here/test_cuda.py" --packages "$here/packages" --large; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
fi
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
"""


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
    args = parser.parse_args()
    build, out = args.build.resolve(), args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("bin", "lib"):
        (out / folder).mkdir(parents=True)
    programs = sorted(
        p for p in (build / "bin").iterdir() if p.is_file() and re.fullmatch(r"\w+_(test|bench)|hotswap", p.name)
    )
    if not any(p.name.endswith("_test") for p in programs):
        sys.exit(f"wanted test programs in {build}/bin; got none; run ./x build")
    libraries = {}
    for program in programs:
        copy_stripped(program, out / "bin" / program.name)
        libraries |= dict(carried_libraries(program))
    for library in sorted((build / "lib").glob("libhotswap*.so*")):
        libraries[library.name] = library
        libraries |= dict(carried_libraries(library))
    for name, path in libraries.items():
        copy_stripped(path, out / "lib" / name)
    # Packages go as they are: a stripped library would no longer match its digest.
    shutil.copytree(build / "packages", out / "packages", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(Path(__file__).parent.parent / "kernels/common/tests/test_cuda.py", out)
    (out / "run.sh").write_text(RUN.format(build=build))
    (out / "run.sh").chmod(0o755)
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    print(f"{out}: {len(programs)} programs, {size / (1 << 20):.1f} MiB")
    if size > LIMIT:
        sys.exit(f"wanted at most {LIMIT >> 20} MiB; leave something out in cmake/gather_gpu.py")
    print(f"take the folder there and run: bash {out.name}/run.sh")


if __name__ == "__main__":
    main()
