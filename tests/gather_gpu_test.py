"""What ./x gpu takes to another machine: small enough, unpacked by its run.sh into packages as they were built; and a build
whose steps could not be captured there is refused.

    gather_gpu_test.py --build build
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def gathered(build: Path, out: Path):
    command = [sys.executable, ROOT / "cmake/gather_gpu.py", "--build", build, "--out", out, "--python", sys.executable]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def contents(packages: Path) -> dict:
    """Bytes by path, without what Python or a build leaves there."""
    there = ((p.relative_to(packages), p) for p in packages.rglob("*") if p.is_file())
    return {name: p.read_bytes() for name, p in there if not any(part == "__pycache__" or part.startswith(".") for part in name.parts)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    build = parser.parse_args().build.resolve()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "build-gpu"
        done = gathered(build, out)
        assert done.returncode == 0, done.stdout + done.stderr
        run = ["bash", str(out / "run.sh"), "nothing"]
        refused = subprocess.run(run, capture_output=True, text=True, env=os.environ | {"PYTHON": sys.executable})
        assert refused.returncode == 2 and "wanted test, sanitize or bench; got nothing" in refused.stderr, refused
        assert (out / "bin/hotswap").exists() and list((out / "lib").glob("libhotswap*.so*"))
        want, got = contents(build / "packages"), contents(out / "packages")
        assert want.keys() == got.keys() and not (unlike := [str(name) for name in want if want[name] != got[name]]), unlike
    with tempfile.TemporaryDirectory() as folder:
        fake = Path(folder)
        for name in ("bin/one_test", "lib/libhotswap.so", "packages/norm/build/torch-cu130/metadata.json"):
            (fake / name).parent.mkdir(parents=True)
            (fake / name).write_bytes(Path("/bin/true").read_bytes())
        done = gathered(fake, fake / "out")
        assert done.returncode and "wanted libhotswap_cuda.so" in done.stderr, done


if __name__ == "__main__":
    main()
