"""Names in anonymous namespaces are unique in their room, since several files of a room compile as one (hotswap_batches).

A file's own names are what it defines in `namespace {`, or `static` and `const` at file scope; tests and what they test
are two sets. Those of a named namespace (hotswap::llama) are that namespace's. The same `using` with the same target may stand
in several files, and so may gtest's PrintTo. Nor is such a name one that a header declares which a file of the room includes,
itself or through others: it would hide that from the files after it. Exits 1 with a
line for each name.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
APART = re.compile(r"/testdata/|/main\.cpp$|^hotswap/cuda/|^kernels/(mamba/|common/|(?!\w+/tests/\w+_test\.cpp$))")  # each compiles by itself
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)
NAMESPACE = re.compile(r"namespace (?:hotswap(?:::)?)?([\w:]*) \{")
TYPE = re.compile(r"(?:struct|class|enum class|enum|union) (\w+)[^;{]*\{")
USING = re.compile(r"using (\w+ = .*);")
OTHER = re.compile(r"(using|template|namespace|extern|TEST|INSTANTIATE|return|static_assert)\b")
CONSTANT = re.compile(r"(?:static |constexpr |const )+")
SEVERAL = re.compile(r"[\s*&](\w+)(?:\[\w*\])?(?: = |\{)")
DEFINED = re.compile(r"[\w:<>,&*\s\[\]]+?[\s&*](\w+)(?=\s*(?:(\()|=|\{|\[))")


def own_names(text: str) -> set[str]:
    """Names as they are written, after their namespace where it is one inside hotswap: llama::read_config."""
    found, anonymous, outer = set(), False, ""

    def add(*names: str) -> None:
        found.update(outer + name for name in names)

    for line in RAW_STRING.sub('""', text).splitlines():
        if line.startswith(("namespace {", "}  // namespace")):
            anonymous = line == "namespace {"
        elif match := NAMESPACE.match(line):
            outer = match[1] + "::" if match[1] else ""
        if not line or line[0] in " #/})" or not (anonymous or re.match(r"(static|constexpr|const) ", line)):
            continue
        if match := TYPE.match(line) or USING.match(line):
            add(match[1])
        elif not OTHER.match(line) and (match := DEFINED.match(line)) and (anonymous or not match[2] or line.startswith("static ")):
            add(match[1])
            if CONSTANT.match(line) and "(" not in line.split(" = ")[0]:
                add(*SEVERAL.findall(STRING.sub('""', line)))
    return found - {"PrintTo"}


def room(path: str) -> str:
    """hotswap/models of hotswap/models/formats/gguf.cpp"""
    return "/".join(path.split("/")[:2])


def twice(files: dict[str, str]) -> list[str]:
    owners: dict[tuple[str, bool, str], list[str]] = defaultdict(list)
    for path, text in files.items():
        folder, is_test = room(path), path.endswith("_test.cpp")
        for name in own_names(text):
            owners[folder, is_test, name].append(path)
    by_name: dict[tuple[str, bool, str], set[str]] = defaultdict(set)
    for (folder, is_test, name), paths in owners.items():
        if " = " not in name:
            by_name[folder, is_test, name] |= set(paths)
        else:  # one target is one name
            by_name[folder, is_test, name.split(" = ")[0]].add(paths[0])
    return [f"{name}: {', '.join(sorted(paths))}" for (_, _, name), paths in sorted(by_name.items()) if len(paths) > 1]


def declared(text: str) -> set[str]:
    """What a header declares in namespace hotswap or that of its room, at file scope."""
    found, inner = set(), False
    for line in RAW_STRING.sub('""', text).splitlines():
        if opened := re.match(r"namespace ([\w:]*)", line):
            inner = "::test_support" in opened[1] or opened[1].count("::") > 1
        if inner or not line or line[0] in " #/})" or line.startswith(("namespace", "template", "using namespace")):
            continue
        if match := re.match(r"(?:struct|class|enum class|enum) (\w+)", line) or re.match(r"using (\w+ =)", line) or DEFINED.match(line):
            found.add(match[1])
    return found


def defined_twice(headers: dict[str, str]) -> list[str]:
    """Types of one namespace that two headers define: a linker takes either's destructor for both."""
    owners: dict[str, list[str]] = defaultdict(list)
    for path, text in headers.items():
        namespace = ""
        for line in text.splitlines():
            if opened := re.match(r"namespace ([\w:]+) \{", line):
                namespace = opened[1]
            elif match := re.match(r"(?:struct|class) (\w+)(?: final)?(?: : [^{]*)? \{", line):
                owners[f"{namespace}::{match[1]}"].append(path)
    return [f"{name}: {', '.join(sorted(paths))}" for name, paths in sorted(owners.items()) if len(paths) > 1]


def hidden(files: dict[str, str], headers: dict[str, str]) -> list[str]:
    """Own names of sources that a header declares which another source of the folder includes."""
    include = re.compile(r'^#include "(hotswap/[^"]+)"', re.MULTILINE)
    names = {path: declared(text) for path, text in headers.items()}
    includes = {path: set(include.findall(text)) for path, text in {**files, **headers}.items()}

    def closure(path: str) -> set[str]:
        seen, todo = set(), [path]
        while todo:
            todo += [h for h in includes.get(todo.pop(), ()) if h not in seen and not seen.add(h)]
        return seen

    included = {path: closure(path) for path in files}
    by_folder = defaultdict(list)
    for path in files:
        by_folder[room(path), path.endswith("_test.cpp")].append(path)
    found = []
    for paths in by_folder.values():
        if len(paths) == 1:
            continue
        for path in paths:
            others = set().union(*(included[other] for other in paths if other != path))
            for name in own_names(files[path]):
                owners = [h for h in sorted(others) if name.split(" = ")[0].split("::")[-1] in names.get(h, ())]
                if owners:
                    found.append(f"{name} of {path}: {owners[0]} declares it too")
    return found


def self_test() -> None:
    assert own_names("constexpr int kOne = 1, kTwo = 2;\n") == {"kOne", "kTwo"}
    a = "namespace {\nstruct Flags {\n  int x;\n};\nint f(int a) {\n}\n}  // namespace\nint shared(int a) {\n}\n"
    b = "namespace {\nusing J = json;\nint f(int a) {\n}\n}  // namespace\nstatic int g() {\n}\n"
    assert own_names(a) == {"Flags", "f"} and own_names(b) == {"J = json", "f", "g"}, (own_names(a), own_names(b))
    assert twice({"h/r/a.cpp": a, "h/r/b.cpp": b}) == ["f: h/r/a.cpp, h/r/b.cpp"]
    inner = a.replace("namespace {", "namespace hotswap::llama {\nnamespace {", 1)
    assert own_names(inner) == {"llama::Flags", "llama::f"} and twice({"h/r/a.cpp": inner, "h/r/b.cpp": b}) == []
    assert twice({"h/r/a.cpp": a, "h/s/b.cpp": b, "h/r/a_test.cpp": a}) == []
    assert twice({"h/r/a.cpp": b.replace("json", "other").replace("f(", "h(").replace("g(", "i("), "h/r/b.cpp": b}) == ["J: h/r/a.cpp, h/r/b.cpp"]
    assert defined_twice({"r/a.h": "namespace r {\nstruct A {\n};\n}\n", "r/b.h": "namespace r {\nstruct A {\n};\n}\n"}) == ["r::A: r/a.h, r/b.h"]
    header = "namespace hotswap {\nstruct Flags {\n};\nstd::string h(int x);\n}\n"
    sources = {"h/r/a.cpp": a, "h/r/b.cpp": '#include "hotswap/c.h"\n'}
    assert hidden(sources, {"hotswap/c.h": header}) == ["Flags of h/r/a.cpp: hotswap/c.h declares it too"]


def main() -> int:
    self_test()
    names = subprocess.run(["git", "ls-files", "hotswap", "kernels"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    kept = [n for n in names if n.endswith(".cpp") and not APART.search(n) and (ROOT / n).is_file()]
    files = {name: (ROOT / name).read_text() for name in kept}
    headers = {n: (ROOT / n).read_text() for n in names if n.endswith(".h") and n.startswith("hotswap/") and (ROOT / n).is_file()}
    found = twice(files) + hidden(files, headers) + defined_twice(headers)
    for line in found:
        print(f"expected names of a file's own to be unique in its room and its headers; got {line}; rename one")
    print(f"file names: {len(kept)} sources, {len(found)} names twice")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
