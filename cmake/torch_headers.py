"""Does the C++ host compile with the headers of another torch? torch_headers.py --build build --jobs N VERSION...

Each version's wheel comes from pip, and its headers are kept in BUILD/torch-<version>. Every source of the build that
is not a test goes through the compiler's front end with them: a few minutes a version, and nothing is linked.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compile_commands import compile_commands

OUTPUT = re.compile(r" -(?:MD|Winvalid-pch|fpch-preprocess)(?= )| -(?:MT|MF|o) \S+| -include \S+cmake_pch\.hxx")
TORCH = re.compile(r"(?<=-isystem )(\S+)/torch/include")


def headers_of(version: str, build: Path) -> Path:
    """The folder of this version's headers, fetched where it is not there."""
    folder = build / f"torch-{version}"
    if not (folder / "torch/include").is_dir():
        with tempfile.TemporaryDirectory() as place:
            pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--dest", place, f"torch=={version}"], check=True)
            with zipfile.ZipFile(next(Path(place).glob("torch-*.whl"))) as wheel:
                names = [name for name in wheel.namelist() if name.startswith("torch/include/")]
                wheel.extractall(folder, names)
    return folder / "torch/include"


def sources(build: Path) -> dict[Path, str]:
    """The command that compiles each source with torch's headers, tests left out."""
    found: dict[Path, str] = {}
    for entry in compile_commands(build):
        file = Path(entry["file"])
        is_test = file.stem.endswith("_test") or file.stem.startswith("cmake_pch") or file.name == "pch.cpp"
        if file.suffix == ".cpp" and not is_test and TORCH.search(entry["command"]):
            found.setdefault(file, OUTPUT.sub("", entry["command"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    args = parser.parse_args()
    build = args.build.resolve()
    commands = sources(build)
    bad = 0
    for version in args.versions:
        headers = headers_of(version, build)

        def compiled(file: Path, headers: Path = headers) -> tuple[Path, subprocess.CompletedProcess]:
            command = TORCH.sub(str(headers), commands[file]).replace(" -c ", " -fsyntax-only -w -c ")
            return file, subprocess.run(command, shell=True, cwd=build, capture_output=True, text=True)

        with ThreadPoolExecutor(args.jobs) as pool:
            failed = [(file, run.stderr) for file, run in pool.map(compiled, commands) if run.returncode]
        for file, why in failed:
            print(f"{file}, torch {version}:\n{why}")
        print(f"torch {version}: {len(commands) - len(failed)} of {len(commands)} sources compile")
        bad += len(failed)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
