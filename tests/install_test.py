"""A stranger's view: installs the build into an empty folder, builds examples/generate against it, and runs it.

    install_test.py --build build --python .venv/bin/python [--alone]

What is installed of headers is what docs/design.md calls public, and compiles. Runs the example on the small model that hotswap/models/golden_model.py makes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command, **kwargs) -> str:
    print("+", *command, flush=True)
    done = subprocess.run(
        [str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\ninstall_test: this command failed with {done.returncode}")
    return done.stdout


def included(header: str) -> list[str]:
    return re.findall(r'^#include [<"]([^>"]+)[>"]', (ROOT / header).read_text(), re.MULTILINE)


def closure(headers: set[str]) -> set[str]:
    """These headers of ours, and all that they include, by others as well; what is not ours by its name alone."""
    found: set[str] = set()
    while headers:
        found |= headers
        ours = [header for header in headers if header.startswith("hotswap/")]
        headers = {target for header in ours for target in included(header)} - found
    return found


def public_headers() -> set[str]:
    """docs/design.md, "Public headers"."""
    named = {"hotswap/hotswap.h"}
    for document in ("adding_a_model", "adding_a_kernel"):
        named.update(re.findall(r"hotswap/[a-z0-9_/]+\.h", (ROOT / f"docs/{document}.md").read_text()))
    return {header for header in closure(named) if header.startswith("hotswap/")}


def check_headers(include: Path) -> set[str]:
    """What is installed is what is public: no command line, no test helper, no part of sources."""
    public = public_headers()
    headers = {str(path.relative_to(include)) for path in include.rglob("*") if path.is_file()}
    if more := sorted(headers - public):
        sys.exit(f"install_test: expected public headers only; got {', '.join(more)}; see cmake/public_headers.cmake")
    if less := sorted(public - headers):
        sys.exit(f"install_test: expected every public header; {', '.join(less)} is not installed; see cmake/public_headers.cmake")
    private = re.compile(r"^hotswap/cli/|/testdata/|/fuzz/|/test[a-z_]*\.h$|/sigstore_world\.h$|_impl\.h$")
    if found := sorted(filter(private.search, headers)):
        sys.exit(f"install_test: expected nothing private among the public headers; got {', '.join(found)}; do not include them")
    print(f"{len(headers)} public headers")
    return headers


def compile_headers(headers: set[str], flags: list[str], folder: Path, alone: bool) -> None:
    """Those that the example does not reach by hotswap.h, in one source; alone: every header, each in a source of its own."""
    others = sorted(headers if alone else headers - closure({"hotswap/hotswap.h"}))
    units = [[header] for header in others] if alone else [others]

    def compile_unit(unit: list[str]) -> None:
        source = folder / (re.sub(r"\W", "_", unit[0]) + ".cpp")
        source.write_text("".join(f'#include "{header}"\n' for header in unit))
        run("c++", "-std=c++20", "-fsyntax-only", *flags, source)

    folder.mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(compile_unit, units):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--alone", action="store_true", help="every public header in a source of its own: minutes")
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
            compile_headers(headers, flags, Path(folder) / "headers", args.alone)
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
