"""clang-tidy over some files of a g++ build: tidy.py --build build --jobs N FILE...

g++'s compile commands carry flags that clang does not know, and a precompiled header that it cannot read; both are
taken out first (the header is then read as text).
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compile_commands import compile_commands

GCC_ONLY = re.compile(r" (-fpch-preprocess|-Winvalid-pch|-fno-sanitize-recover=\S+|-fsanitize=\S+)(?= )")


def clang_database(build: Path, wanted: set[Path]) -> dict[Path, None]:
    """Writes build/tidy/compile_commands.json for the wanted files; returns those that are in it, in order."""
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    headers: dict[str, Path] = {}

    def as_text(match: re.Match) -> str:
        header = match.group(1)
        if header not in headers:
            headers[header] = folder / f"pch_{len(headers)}.hxx"
            shutil.copy(header, headers[header])
        return f"-include {headers[header]}"

    entries = {}
    for entry in compile_commands(build):
        file = Path(entry["file"])
        if file not in wanted or file in entries:  # the first of a file's ISAs stands for all
            continue
        command = GCC_ONLY.sub("", entry["command"])
        entry["command"] = re.sub(r"-include (\S+cmake_pch\.hxx)", as_text, command)
        entries[file] = entry
    (folder / "compile_commands.json").write_text(json.dumps(list(entries.values()), indent=1))
    return dict.fromkeys(entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    build = args.build.resolve()
    files = clang_database(build, {file.resolve() for file in args.files})
    for file in args.files:
        if file.resolve() not in files:
            print(f"{file}: not part of this build, not looked at")

    def look(file: Path) -> tuple[Path, subprocess.CompletedProcess]:
        command = ["clang-tidy", "--quiet", "-p", build / "tidy", "--extra-arg=-Wno-unknown-warning-option", file]
        return file, subprocess.run(command, capture_output=True, text=True)

    bad = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for done, (file, result) in enumerate(pool.map(look, files), 1):
            print(f"[{done}/{len(files)}] {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")
            if result.returncode:
                bad += 1
                print(result.stdout + result.stderr)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
