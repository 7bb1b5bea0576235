"""A change of one package builds nothing else: what Ninja would run after an edit of any file in kernels/NAME/ makes that
package's objects, id, library, staged folder and test programs alone.

    rebuild_test.py --build build

Reads Ninja's graph and what the compilers said that they read; builds nothing.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ESCAPED = re.compile(r"\$([ :$])")


def words(text: str) -> list[str]:
    return [ESCAPED.sub(r"\1", word) for word in re.split(r"(?<!\$) +", text.strip()) if word]


def edges(build: Path) -> dict[str, set[tuple[str, str]]]:
    """A file -> (rule, output) of each command that runs again when it changes. What only has to be there first is none."""
    found = {}

    def add(rule: str, outputs: list[str], inputs: list[str]) -> None:
        for file in inputs:
            found.setdefault(os.path.normpath(build / file), set()).update((rule, output) for output in outputs)

    text = (build / "build.ninja").read_text().replace("$\n", " ")
    for line in text.split("\n"):
        if line.startswith("build "):
            left, right = re.split(r"(?<!\$):", line.removeprefix("build "), maxsplit=1)
            rule, *inputs = words(right.split("||")[0].replace(" | ", " "))
            add(rule, words(left.replace(" | ", " ").replace("${cmake_ninja_workdir}", "")), inputs)
    deps = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    for block in deps.split("\n\n"):
        head, _, rest = block.partition(": #deps")
        add("deps", [head.split("\n")[-1]], [line.strip() for line in rest.split("\n")[1:] if line.strip()])
    return found


def built_after(file: Path, graph: dict[str, set[tuple[str, str]]], build: Path) -> set[str]:
    """The outputs of all commands, from build/ on, that follow an edit of the file."""
    outputs, seen, queue = set(), set(), [str(file)]
    while queue:
        for rule, output in graph.get(queue.pop(), ()):
            path = os.path.normpath(build / output)
            if rule != "phony" and not output.endswith(".util"):  # what one asks for by name: install, test
                outputs.add(os.path.relpath(path, build))
            if path not in seen:
                seen.add(path)
                queue.append(path)
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    build = parser.parse_args().build.resolve()
    graph, wrong, files = edges(build), [], 0
    for package in sorted(toml.parent for toml in (ROOT / "kernels").glob("*/build.toml")):
        name = package.name
        own = re.compile(rf"kernels/{name}/.*|kernels/CMakeFiles/{name}_\w+\.dir/.*|(lib/lib|bin/){name}_\w+(\.so)?")
        built = set()
        for file in sorted(package.rglob("*")):
            after = built_after(file, graph, build)
            built |= after
            files += bool(after)
            wrong += [f"{file.relative_to(ROOT)}: builds {o}" for o in sorted(after) if not own.fullmatch(o)]
        if not {f"lib/lib{name}_cpu.so", f"kernels/{name}/cpu/staged"} <= built:
            wrong.append(f"kernels/{name}: expected its library and staged folder to follow its files; got {sorted(built)[:9]}")
    print("\n".join(wrong) or f"{files} files of packages: each builds its own package alone")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
