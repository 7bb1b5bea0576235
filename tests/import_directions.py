"""Which folder of python/hotswap may import which, imports inside functions included. Prints every import that points the wrong way and exits 1
when there is one. The Python twin of include_directions.py.

Folders:  core <- matchers <- generation <- swap <- liger, each on those before it. Nobody imports the files beside the folders. No module imports itself by way of others; no file is too long.
"""

import ast
import subprocess
import sys
from pathlib import Path

CORE = {"core"}
MATCHERS = CORE | {"matchers"}
GENERATION = MATCHERS | {"generation"}
SWAP = GENERATION | {"swap"}
FOLDERS = {
    "core": CORE,
    "matchers": MATCHERS,
    "generation": GENERATION,
    "swap": SWAP,
    "liger": SWAP | {"liger"},
    ".": set(),  # files beside the folders, what `import hotswap` and `python -m hotswap` run: they see everything
}
MAX_LINES = 500


def imported(code: str) -> dict[str, int]:
    """Names of ours that the code imports anywhere -> the line. Of `from hotswap.core import x` both hotswap.core.x and hotswap.core, as
    x may be a module or not; a relative import keeps its dots."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = f"{'.' * node.level}{node.module or ''}"
            names = [f"{whole}.{alias.name}" for alias in node.names] + ([] if whole == "hotswap" else [whole])
        found |= {name: node.lineno for name in names if name.split(".")[0] in ("hotswap", "")}
    return found


def module_of(path: str) -> str:
    """hotswap/core/plain.py -> hotswap.core.plain"""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")



def graph_of(files: dict[str, str]) -> dict[str, dict[str, int]]:
    """module -> the modules among files that it imports, each with its line."""
    modules = {module_of(path) for path in files}
    edges = {}
    for path, text in files.items():
        names = imported(text)
        edges[module_of(path)] = {name: line for name, line in names.items() if name in modules and name != module_of(path)}
    return edges


def circles(graph: dict) -> list[str]:
    """One line for each way that leads from a module back to it, found depth first."""
    found: list[str] = []
    done: set[str] = set()

    def walk(way: list[str]) -> None:
        for target in sorted(graph.get(way[-1], ())):
            if target in way:
                found.append("a circle of imports: " + " -> ".join([*way[way.index(target) :], target]))
            elif target not in done:
                walk([*way, target])
        done.add(way[-1])

    for start in sorted(graph):
        if start not in done:
            walk([start])
    return found


def problem(folder: str, target: str) -> str:
    """Of an import of the module `target` by a file of this folder."""
    if folder not in FOLDERS:
        return f"no folder is called {folder}; add it to tests/import_directions.py"
    if target.startswith("."):
        return "imports name the package"
    to = target.split(".")[1] if "." in target else "."
    if folder == "." or to in FOLDERS[folder]:
        return ""
    return f"{folder} may import {', '.join(sorted(FOLDERS[folder]))} only"


def problems(files: dict[str, str]) -> list[str]:
    """files: path from python/ on -> text."""
    found = []
    for path, text in sorted(files.items()):
        parts = path.split("/")
        folder = parts[1] if len(parts) > 2 else "."
        for target, line in sorted(imported(text).items(), key=lambda pair: pair[1]):
            if why := problem(folder, target):
                found.append(f"python/{path}:{line}: imports {target}: {why}")
        if (lines := text.count("\n")) > MAX_LINES:
            found.append(f"python/{path}: {lines} lines; {MAX_LINES} at most")
    return found + circles(graph_of(files))


def self_test() -> None:
    """A checker that finds nothing must first be able to find something."""
    bad = {
        "hotswap/core/a.py": "from hotswap.matchers.norm import RmsNorm",
        "hotswap/core/b.py": "def f():\n    from hotswap.swap import bind",
        "hotswap/matchers/a.py": "import hotswap.generation.decode",
        "hotswap/generation/a.py": "from hotswap.swap.bind import kernelize",
        "hotswap/swap/a.py": "from hotswap.liger import families",
        "hotswap/swap/b.py": "import hotswap",
        "hotswap/swap/c.py": "from hotswap import mamba",
        "hotswap/liger/a.py": "from hotswap.mamba import selective_scan_fn",
        "hotswap/liger/b.py": "from . import norm",
        "hotswap/attic/a.py": "from hotswap.core import plain",
        "hotswap/core/long.py": "\n" * (MAX_LINES + 1),
    }
    for path, text in bad.items():
        assert problems({path: text}), f"self test: {path} with {text!r} was not found"
    circle = {
        "hotswap/core/a.py": "def late():\n    from hotswap.core import b",
        "hotswap/core/b.py": "from hotswap.core.c import x",
        "hotswap/core/c.py": "import hotswap.core.a",
    }
    assert circles(graph_of(circle)) == ["a circle of imports: " + " -> ".join(f"hotswap.core.{name}" for name in "abca")]
    for path in circle:
        assert not problems({**circle, path: ""}), f"self test: no circle is left without the import in {path}"
    good = {
        "hotswap/__init__.py": "def f():\n    from hotswap.liger import places",
        "hotswap/mamba.py": "from hotswap.core.packages import load",
        "hotswap/core/long.py": "\n" * MAX_LINES,
        "hotswap/liger/a.py": "from hotswap.swap import bind\nimport torch",
        "hotswap/matchers/b.py": "from hotswap.core.packages import load",
    }
    assert not problems(good), f"self test: {problems(good)}"


def main() -> None:
    self_test()
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", root, "ls-files", "-co", "--exclude-standard", "python/hotswap/*.py"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    files = {name.removeprefix("python/"): (root / name).read_text() for name in listed if (root / name).exists()}
    if not files:
        sys.exit("import directions: no source files were found")
    found = problems(files)
    print("\n".join(found) if found else f"import directions: {len(files)} files, all right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
