"""A stranger's view: installs the build into an empty folder, builds examples/generate against it, and runs it.

    install_test.py --build build --python .venv/bin/python

What is installed of headers is cmake/public_headers.txt and nothing else, each of them compiles in a source of its own, and an
installation with a header that includes an internal one fails. Runs the example on the small model that hotswap/models/golden_model.py makes.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_HEADERS = 30


def run(*command, **kwargs) -> str:
    print("+", *command, flush=True)
    done = subprocess.run(
        [str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\ninstall_test: this command failed with {done.returncode}")
    return done.stdout


def public_headers() -> set[str]:
    listed = (ROOT / "cmake/public_headers.txt").read_text().splitlines()
    return {line for line in listed if line.startswith("hotswap/")}


def check_headers(include: Path) -> set[str]:
    """What is installed is what is public: no command line, no test helper, no part of sources."""
    public = public_headers()
    headers = {str(path.relative_to(include)) for path in include.rglob("*") if path.is_file()}
    if more := sorted(headers - public):
        sys.exit(f"install_test: expected public headers only; got {', '.join(more)}; see cmake/public_headers.txt")
    if less := sorted(public - headers):
        sys.exit(f"install_test: expected every public header; {', '.join(less)} is not installed; see cmake/public_headers.cmake")
    private = re.compile(r"^hotswap/cli/|/testdata/|/fuzz/|/test[a-z_]*\.h$|/sigstore_world\.h$|_impl\.h$")
    if found := sorted(filter(private.search, headers)):
        sys.exit(f"install_test: expected nothing private among the public headers; got {', '.join(found)}; take them off the list")
    if len(headers) > MAX_HEADERS:
        sys.exit(f"install_test: expected at most {MAX_HEADERS} public headers; got {len(headers)}; keep what a caller does not need internal")
    print(f"{len(headers)} public headers")
    return headers


def check_refusal(folder: Path) -> None:
    """A copy of the headers in which a public one includes an internal one: its installation fails, and names both."""
    for header in public_headers():
        (folder / "source" / header).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / header, folder / "source" / header)
    with (folder / "source/hotswap/hotswap.h").open("a") as umbrella:
        umbrella.write('#include "hotswap/models/trunk.h"\n')
    defines = [f"-DHOTSWAP_SOURCE_DIR={folder}/source", f"-DHOTSWAP_INCLUDE_DESTINATION={folder}/include"]
    done = subprocess.run(["cmake", *defines, "-P", ROOT / "cmake/public_headers.cmake"], capture_output=True, text=True)
    if not done.returncode or "hotswap/hotswap.h" not in done.stderr or "hotswap/models/trunk.h" not in done.stderr:
        sys.exit(f"install_test: expected an error that names hotswap.h and trunk.h; got {done.returncode}: {done.stderr}")


def compile_headers(headers: set[str], flags: list[str], folder: Path) -> None:
    """Every header in a source of its own."""

    def compile_one(header: str) -> None:
        source = folder / (re.sub(r"\W", "_", header) + ".cpp")
        source.write_text(f'#include "{header}"\n')
        run("c++", "-std=c++20", "-fsyntax-only", *flags, source)

    folder.mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(compile_one, sorted(headers)):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    args = parser.parse_args()
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "HOTSWAP_PACKAGES", "GTEST_OUTPUT")}
    with tempfile.TemporaryDirectory(prefix="hotswap-install-") as folder:
        prefix, work = Path(folder) / "prefix", Path(folder) / "example"
        run("cmake", "--install", args.build, "--prefix", prefix)
        for wanted in (
            "include/hotswap/hotswap.h",
            "include/hotswap/models/auto.h",
            "bin/hotswap",
            "share/hotswap/packages/norm",
        ):
            if not (prefix / wanted).exists():
                sys.exit(f"install_test: expected {wanted} after cmake --install; got no such file")
        headers = check_headers(prefix / "include")
        check_refusal(Path(folder) / "refused")
        run(
            "cmake",
            "-S",
            ROOT / "examples/generate",
            "-B",
            work,
            "-G",
            "Ninja",
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DHOTSWAP_PYTHON={args.python}",
            "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        )
        command = json.loads((work / "compile_commands.json").read_text())[0]["command"].split()
        flags = [part for at, part in enumerate(command) if part.startswith("-I") or "-isystem" in (part, command[at - 1])]
        with ThreadPoolExecutor(1) as beside:
            building = beside.submit(run, "cmake", "--build", work)
            compile_headers(headers, flags, Path(folder) / "headers")
            building.result()
        listed = json.loads(run(prefix / "bin/hotswap", "kernel", "list", "--json", env=clean))
        if "norm" not in json.dumps(listed) or str(prefix) not in json.dumps(listed):
            sys.exit(f"install_test: expected the installed packages to be found; got {listed}")
        data = Path(folder) / "data"
        run(args.python, ROOT / "hotswap/models/golden_model.py", data, env=clean | {"PYTHONDONTWRITEBYTECODE": "1"})
        output = run(work / "generate", data / "models/tiny", "Unless required by", env=clean)
        print(output)
        if "Unless required by" not in output or "norm" not in output:
            sys.exit("install_test: expected a continued text and a kernel report that names norm")


if __name__ == "__main__":
    main()
