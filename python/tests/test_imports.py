"""Who imports whom in python/hotswap: no circle, the imports inside functions included; and what `import hotswap` loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hotswap"


def imported(code: str) -> set[str]:
    """Modules of ours that the code imports anywhere; "hotswap" is the package's own __init__."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package"
            names = [f"hotswap.{a.name}" for a in node.names] if node.module == "hotswap" else [node.module]
        found |= {name for name in names if name.split(".")[0] == "hotswap"}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The first circle that is found, as a path; empty where there is none."""
    done: set[str] = set()

    def walk(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := walk(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def test_no_circle():
    files = {p: f"hotswap.{p.stem}".removesuffix(".__init__") for p in PACKAGE.glob("*.py")}
    graph = {name: imported(path.read_text()) for path, name in files.items()}
    assert {"hotswap.match", "hotswap.packages"} <= set(graph) and "hotswap.packages" in graph["hotswap.match"]
    assert set().union(*graph.values()) <= set(graph)
    assert circle(graph) == []


def test_a_circle_is_found():
    late = "def f():\n    from hotswap import b"
    graph = {"hotswap.a": imported(late), "hotswap.b": imported("from hotswap.a import x"), "hotswap": set()}
    assert circle(graph) == ["hotswap.a", "hotswap.b", "hotswap.a"]
    assert circle({"hotswap.a": imported("import hotswap"), "hotswap": imported("from hotswap import a")})


@pytest.mark.parametrize("first", ["", "import torch; "])
def test_import_loads_nothing_but_itself(first):
    """So its cost does not grow with what the package can do (bench/python_calls.py measures it)."""
    code = f"import sys, importlib; {first}before = set(sys.modules); import hotswap; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['hotswap']\n"


FIRST = """
import os, sys, torch, transformers
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            __import__(name)
            os._exit(0)
        except BaseException as error:
            print(name, type(error).__name__, error, flush=True)
            os._exit(1)
    os.waitpid(child, 0)
"""


def test_modules_that_are_called_as_names_of_ligers_may_be_imported_first():
    names = sorted(f"hotswap.{p.stem}" for p in PACKAGE.glob("liger*.py"))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST, *names], capture_output=True, text=True, check=True)
    assert done.stdout == ""
