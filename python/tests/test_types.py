"""The stubs beside the package: every public name has one, fully annotated, with the parameters and defaults that it has."""

import ast
import inspect
from pathlib import Path

import pytest
import torch

import hotswap

FOLDER = Path(hotswap.__file__).parent
FILES = [ast.parse((FOLDER / name).read_text()) for name in ("__init__.pyi", "_liger.pyi")]
STUBS = {node.name: node for file in FILES for node in file.body if hasattr(node, "name")}
PUBLIC = [name for name in dir(hotswap) if not name.startswith("_") and not inspect.ismodule(getattr(hotswap, name))]


def functions(node) -> list[ast.FunctionDef]:
    return [node] if isinstance(node, ast.FunctionDef) else [f for f in node.body if isinstance(f, ast.FunctionDef)]


def written(node: ast.FunctionDef) -> list[tuple[str, str]]:
    """[(parameter, default)] of a stub."""
    given, last = node.args, len(node.args.args)
    defaults = [None] * (last - len(given.defaults)) + given.defaults
    found = [(a.arg, ast.unparse(d) if d else "") for a, d in zip(given.args, defaults)]
    found += [(f"*{given.vararg.arg}", "")] if given.vararg else []
    found += [(a.arg, ast.unparse(d) if d else "") for a, d in zip(given.kwonlyargs, given.kw_defaults)]
    return found + ([(f"**{given.kwarg.arg}", "")] if given.kwarg else [])


def at_run_time(function) -> list[tuple[str, str]]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(function).parameters.values()
    return [(stars.get(p.kind, "") + p.name, "" if p.default is p.empty else repr(p.default)) for p in found]


def test_every_public_name_has_a_stub_and_no_other():
    private = {name for name in STUBS if name.startswith("_")}
    assert sorted(STUBS.keys() - private) == PUBLIC
    assert all(hasattr(hotswap, name) for name in private)
    assert (FOLDER / "py.typed").exists()


def test_every_public_module_has_a_stub_under_its_name():
    stubs = {path.stem for path in FOLDER.glob("*.pyi")} - {"__init__", "_liger"}
    assert stubs == {name for name in hotswap._MODULES if not name.startswith("liger_")} - {"decode"}
    for name in stubs:
        where = f"hotswap.{hotswap._MODULES[name]}"
        assert (FOLDER / f"{name}.pyi").read_text() == f"from {where} import *\n" and getattr(hotswap, name).__name__ == where


@pytest.mark.parametrize("name", sorted(STUBS))
def test_a_stub_is_annotated_and_has_the_parameters_of_its_name(name):
    value = getattr(hotswap, name)
    for node in functions(STUBS[name]):
        parameters = [*node.args.args, *node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg))]
        assert node.returns and all(p.annotation or p.arg in ("self", "cls") for p in parameters), node.name
        function = getattr(value, node.name) if isinstance(STUBS[name], ast.ClassDef) else value
        if node.name == "apply" or function is torch.nn.Module.__init__:
            continue  # torch's own
        bound = inspect.ismethod(function)
        assert written(node)[bound:] == at_run_time(function)
