"""python -m bench: its list has every program and no other, and what a program imports of the package bench exists.

    bench_programs_test.py
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
from bench.__main__ import PROGRAMS, about  # noqa: E402


def tracked(*patterns: str) -> list[str]:
    command = ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).exists()]


def names_of(file: Path) -> set[str]:
    """What a module defines or imports at its top, in `if` and `try` too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def absent(text: str) -> list[str]:
    """Names of the package bench that the code imports and that are not there, or not under that name."""
    wrong = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        bare = [name for name in modules if any((ROOT / f"{folder}/{name}.py").exists() for folder in ("bench", "bench/lib"))]
        wrong += [f"bare {name}" for name in bare]
        if isinstance(node, ast.Import) or modules[0].split(".")[0] != "bench":
            continue
        target = ROOT / node.module.replace(".", "/")
        for alias in node.names:
            file = target.with_suffix(".py")
            found = (target / f"{alias.name}.py").exists() or file.exists() and alias.name in names_of(file)
            wrong += [] if found else [f"{node.module}.{alias.name}"]
    return wrong


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)


def main() -> None:
    bad = "from bench.lib.results import Results, Nothing\nfrom bench import attic\nfrom gpu_common import Timer\nimport results"
    assert absent(bad) == ["bench.lib.results.Nothing", "bench.attic", "bare gpu_common", "bare results"]
    files = tracked("bench/*.py", "kernels/*/bench/*.py")
    programs = {file for file in files if not re.search(r"/lib/|/__\w+__\.py$|^kernels/.*_(peers|picture)\.py$", file)}
    assert programs == set(PROGRAMS.values()), f"bench/__main__.py lists other files than there are: {programs ^ set(PROGRAMS.values())}"
    for file in programs:
        text = (ROOT / file).read_text()
        assert about(file) and '__name__ == "__main__"' in text, f"{file}: expected a first line about it, and a main program"
    for file in [*files, *tracked("tests/bench_*.py")]:
        assert not (wrong := absent((ROOT / file).read_text())), f"{file}: imports {', '.join(wrong)}, which is not there"
    here = [file for file in tracked("*/tests/*") if re.search(r"/bench\w*\.py$", file)]
    assert not here, f"{here}: a benchmark is in a folder bench/"
    listed = run()
    assert listed.returncode == 0 and all(f"\n{name} " in listed.stdout for name in PROGRAMS), listed
    assert "expected a program of speed" in run("sped").stderr
    assert "--csv" in run("gpu_plot", "--help").stdout
    print(f"bench: {len(programs)} programs, {len(files)} files, all right")


if __name__ == "__main__":
    main()
