"""Gathers what the site is made of: every document, what they link to, and the pages of the two references.

    stage.py FOLDER     then, in FOLDER: doxygen, mkdocs build --strict
"""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from header_examples_test import public_headers  # noqa: E402

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def documents() -> list[Path]:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).exists()]


def stage(document: Path, pages: Path) -> None:
    """A copy, with the files that it links to beside it; a link to a folder becomes its text."""

    def link(match: re.Match) -> str:
        target = (document.parent / match[2]).resolve()
        if re.match(r"\w+:", match[2]) or target.suffix == ".md":
            return match[0]
        if not target.is_file():
            return match[1]
        copy = pages / target.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, copy)
        return match[0]

    copy = pages / document.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(LINK.sub(link, document.read_text()))


def python_reference() -> str:
    """The names that hotswap/__init__.py finds in its modules, each from its docstring."""
    source = ast.parse((ROOT / "python/hotswap/__init__.py").read_text())
    (where,) = [ast.literal_eval(node.value) for node in source.body if isinstance(node, ast.Assign) and node.targets[0].id == "_WHERE"]
    names = [f"::: hotswap.{module}.{name}\n" for name, module in where.items() if not name.startswith("_") and module != "liger.modules"]
    return "\n".join(["# Python reference\n", "Guide: [python.md](../docs/python.md). Liger's names: [python_liger.md](../docs/python_liger.md).\n", *names])


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    for document in documents():
        stage(document, pages)
    (pages / "reference").mkdir()
    (pages / "reference/python.md").write_text(python_reference())
    shutil.copyfile(HERE / "mkdocs.yml", folder / "mkdocs.yml")
    (folder / "python").symlink_to(ROOT / "python")
    more = {
        "INPUT": " ".join(public_headers()),
        "INPUT_FILTER": f'"{sys.executable} {HERE / "comments.py"}"',
        "OUTPUT_DIRECTORY": pages,
    }
    rows = "".join(f"{key} = {value}\n" for key, value in more.items())
    (folder / "Doxyfile").write_text((HERE / "Doxyfile").read_text() + rows)


if __name__ == "__main__":
    main()
