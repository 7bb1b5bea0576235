"""A stranger's view: installs the build into an empty folder, builds examples/generate against it, and runs it.

    install_test.py --build build --python .venv/bin/python

Runs the example on the small model that hotswap/models/golden_model.py makes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
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


def check_headers(include: Path) -> None:
    """What is installed is public: no command line, no test helper, no part of sources, and nothing that needs those."""
    headers = {str(path.relative_to(include)) for path in include.rglob("*.h")}
    private = re.compile(r"^hotswap/cli/|/testdata/|/fuzz/|/test[a-z_]*\.h$|/sigstore_world\.h$|_impl\.h$")
    if found := sorted(filter(private.search, headers)):
        sys.exit(f"install_test: wanted public headers only; got {', '.join(found)}; see cmake/install.cmake")
    for header in sorted(headers):
        for target in re.findall(r'#include "(hotswap/[^"]+)"', (include / header).read_text()):
            if target not in headers:
                sys.exit(f"install_test: wanted what {header} includes to be installed too; {target} is not")


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
                sys.exit(f"install_test: wanted {wanted} after cmake --install; got no such file")
        check_headers(prefix / "include")
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
        )
        run("cmake", "--build", work)
        listed = json.loads(run(prefix / "bin/hotswap", "kernel", "list", "--json", env=clean))
        if "norm" not in json.dumps(listed) or str(prefix) not in json.dumps(listed):
            sys.exit(f"install_test: wanted the installed packages to be found; got {listed}")
        data = Path(folder) / "data"
        run(args.python, ROOT / "hotswap/models/golden_model.py", data, env=clean | {"PYTHONDONTWRITEBYTECODE": "1"})
        output = run(work / "generate", data / "models/tiny", "Unless required by", env=clean)
        print(output)
        if "Unless required by" not in output or "norm" not in output:
            sys.exit("install_test: wanted a continued text and a kernel report that names norm")


if __name__ == "__main__":
    main()
