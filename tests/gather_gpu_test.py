"""What ./x gpu takes to another machine: small enough, unpacked by its run.sh into packages as they were built, and complete:
its tests run where neither this checkout nor the build can be seen. A build whose steps could not be captured there is refused.

    gather_gpu_test.py --build build
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def gathered(build: Path, out: Path):
    command = [sys.executable, ROOT / "cmake/gather_gpu.py", "--build", build, "--out", out]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def contents(packages: Path) -> dict:
    """Bytes by path, without what Python or a build leaves there."""
    there = ((p.relative_to(packages), p) for p in packages.rglob("*") if p.is_file())
    return {name: p.read_bytes() for name, p in there if not any(part == "__pycache__" or part.startswith(".") for part in name.parts)}


# Of every program: what reads files of the checkout, libraries that are built for tests, packages, Python's libraries.
FILTER = ("*BundledOnesAreListed:Foreign*.Stable*:Package.ALibrary*:Attention*.*Package*:SmallModel.Unkernelize*:Parity.Stock/llama*:"
          "Deformable.Decoder*:*.Values*:*.Refus*:*.Empty*:Options.WhatIsMissing*:SavePretrained.Transformers*:Ops.*")  # fmt: skip


def hidden(folder: Path, build: Path) -> tuple[list, str] | None:
    """How a command begins that sees neither the checkout nor the build, and the Python that it is left, by another path. None
    where this user may not mount."""
    python, mounts = folder / "python", [p for p in (build, ROOT) if p.is_dir()]
    venv = Path(sys.prefix)
    python.mkdir()
    for own in ([], ["--user", "--map-root-user"]):
        unshare = ["unshare", *own, "--mount"]
        if shutil.which("unshare") and subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
            steps = [f"mount --rbind '{venv}' '{python}'", *(f"mount -t tmpfs none '{place}'" for place in mounts)]
            return [*unshare, "bash", "-c", " && ".join([*steps, "cd /", 'exec "$@"']), "_"], f"{python}/bin/python"
    return None


def check_complete(out: Path, folder: Path, build: Path) -> None:
    begin, python = hidden(folder, build) or ([], sys.executable)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHON": python, "FILTER": FILTER, "RESULTS": str(folder / "results")}
    done = subprocess.run([*begin, "bash", out / "run.sh", "test"], capture_output=True, text=True, env=environment)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    summary = done.stdout.splitlines()[-1]  # run.sh's own; stderr has warnings of libraries
    assert int(summary.split()[0]) >= 40 and " 0 failed" in summary, said
    print(summary, "" if begin else "(may not mount: the checkout could be seen)")


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
        assert refused.returncode == 2 and "expected test, second, sanitize or bench; got nothing" in refused.stderr, refused
        assert (out / "bin/hotswap").exists() and list((out / "lib").glob("libhotswap*.so*"))
        want, got = contents(build / "packages"), contents(out / "packages")
        assert want.keys() == got.keys() and not (unlike := [str(name) for name in want if want[name] != got[name]]), unlike
        check_complete(out, Path(folder), build)
    with tempfile.TemporaryDirectory() as folder:
        fake = Path(folder)
        for name in ("bin/one_test", "lib/libhotswap.so", "packages/norm/build/torch-cu130/metadata.json"):
            (fake / name).parent.mkdir(parents=True)
            (fake / name).write_bytes(Path("/bin/true").read_bytes())
        done = gathered(fake, fake / "out")
        assert done.returncode and "expected libhotswap_cuda.so" in done.stderr, done


if __name__ == "__main__":
    main()
