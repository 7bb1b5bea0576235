"""One layout for every package in kernels/. Prints what is elsewhere and exits 1.

    build.toml, CARD.md, layers.json   what it is; layers.<backend>.json where a backend serves other layers
    <package>.h                        the formulas, forward and backward, and what cpu/ and cuda/ share beside them: other *.h
    cpu/                               *.cpp, compiled once per instruction set, and their headers
    cuda/                              *.cu, *.cuh and host headers, <package>.h among them: the launches
    torch-ext/                         op registration, and the Python API in torch-ext/<package>/
    tests/                             *_test.cpp, test_*.py, gpu_cases.py, what they share
    bench/                             <package>_bench.cpp, <package>_cuda_bench.cpp, *_peers.py, *_picture.py, programs of ./x bench

In cuda/ the prefix is the architecture whose instructions a file is written in: sm90_ where it includes a header of ptx/ that
sm_90 begins with, sm80_ where it includes mma, ldmatrix or cp_async and none of sm_90. A header that includes such a file
of its package has a prefix too, of the later one; a source without a prefix launches, and may choose. build.toml lists
every file that is compiled. A package that serves no layer is a library, and its CARD.md states it in its first paragraph.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
MAY_BE = {
    "": r"build\.toml|CARD\.md|layers(\.\w+)?\.json|\w+\.h",
    "cpu": r"\w+\.(cpp|h)",
    "cuda": r"\w+\.(cu|cuh|h)",
    "torch-ext": r"\w+\.(cpp|h)",
    "tests": r"\w+\.(cpp|h|cu|py)",
    "bench": r"\w+_bench\.cpp|\w+\.py",
}
NEEDED = ("build.toml", "CARD.md", "layers.json", "torch-ext/torch_binding.cpp")
COMPILED = re.compile(r"^(cpu|cuda|torch-ext)/[^/]+$|^[^/]+\.h$")
ARCHITECTURE = {
    **dict.fromkeys(("mma", "ldmatrix", "cp_async"), 80),
    **dict.fromkeys(("cluster", "mbarrier", "setmaxnreg", "tma", "wgmma"), 90),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"kernels/([^"]+)"', re.MULTILINE)
LIBRARY = "is a library: it serves no layer"


def misplaced(package: str, files: dict[str, str]) -> list[str]:
    """Files, by their names in the package, that the layout has no room for, and those that it needs."""
    found = [f"{name}: expected; got none" for name in (*NEEDED, f"{package}.h", f"torch-ext/{package}/__init__.py") if name not in files]
    found += [f"{folder}/: expected sources; got none" for folder in ("cpu", "tests") if not any(n.startswith(f"{folder}/") for n in files)]
    for name in sorted(files):
        folder, _, file = name.rpartition("/")
        if folder.startswith(f"torch-ext/{package}"):
            continue
        if folder not in MAY_BE:
            found.append(f"{name}: expected in {', '.join(f for f in MAY_BE if f)}, or beside build.toml")
        elif not re.fullmatch(MAY_BE[folder], file):
            found.append(f"{name}: expected a file {MAY_BE[folder]} there")
        elif "_test." in file and folder != "tests" or "_bench." in file and folder != "bench":
            found.append(f"{name}: tests are in tests/, benchmarks in bench/")
    return found


def prefix_of(name: str) -> int:
    match = re.match(r"cuda/sm(\d+)_", name)
    return int(match[1]) if match else 0


def architectures(package: str, files: dict[str, str]) -> list[str]:
    found = []
    for name, text in sorted(files.items()):
        if not name.startswith("cuda/"):
            continue
        included = INCLUDE.findall(text)
        own = [m[1] for i in included if (m := re.fullmatch(r"common/gpu/ptx/(\w+)\.cuh", i))]
        needs = max((ARCHITECTURE.get(header, 0) for header in own), default=0)
        of_package = max((prefix_of(i.removeprefix(f"{package}/")) for i in included if i.startswith(f"{package}/cuda/")), default=0)
        if name.endswith((".cuh", ".h")):
            needs = max(needs, of_package)
        expected = f"sm{needs}_" if needs else "no prefix"
        if prefix_of(name) != needs and not (prefix_of(name) == of_package and not own):
            found.append(f"{name}: expected {expected}, by what it includes; got {name.split('/')[1]}")
    return found


def unlisted(files: dict[str, str]) -> list[str]:
    """What is compiled and build.toml does not list, or lists and is not there."""
    config = tomllib.loads(files.get("build.toml", ""))
    parts = [config.get("torch", {}), *config.get("kernel", {}).values()]
    listed = {source for part in parts for source in part.get("src", [])}
    there = {name for name in files if COMPILED.match(name)}
    return [f"build.toml: expected {name} in a src" for name in sorted(there - listed)] + [
        f"build.toml: lists {name}, which is not there" for name in sorted(listed - there)
    ]


def library(files: dict[str, str]) -> list[str]:
    served = any(json.loads(text).get("layers") for name, text in files.items() if re.fullmatch(r"layers(\.\w+)?\.json", name))
    card = files.get("CARD.md", "").split("\n\n")
    stated = len(card) > 1 and LIBRARY in card[1]
    if served == stated:
        return [f"CARD.md: expected {'no ' if served else ''}'{LIBRARY}' in the first paragraph: layers.json lists {'some' if served else 'none'}"]
    return []


def problems(package: str, files: dict[str, str]) -> list[str]:
    found = [*misplaced(package, files), *architectures(package, files), *unlisted(files), *library(files)]
    return [f"kernels/{package}/{line}" for line in found]


def self_test() -> None:
    gpu, own = '#include "kernels/common/gpu/ptx/{}.cuh"\n', '#include "kernels/a/cuda/{}"\n'
    good = {
        "build.toml": '[torch]\nsrc = ["torch-ext/torch_binding.cpp"]\n[kernel.a]\nsrc = ["a.h", "cpu/a.cpp"]\n[kernel.b]\nsrc = '
        '["cuda/a.cu", "cuda/a.h", "cuda/sm80_b.cuh", "cuda/sm90_c.cuh", "cuda/sm90_d.cuh"]\n',
        "CARD.md": "# a\n\nA layer's kernels.\n",
        "layers.json": '{"layers": {"A": {}}}',
        "a.h": "",
        "cpu/a.cpp": "",
        "cuda/a.h": "",
        "cuda/a.cu": own.format("sm80_b.cuh") + own.format("sm90_c.cuh"),
        "cuda/sm80_b.cuh": gpu.format("mma"),
        "cuda/sm90_c.cuh": gpu.format("tma") + gpu.format("mma"),
        "cuda/sm90_d.cuh": own.format("sm90_c.cuh"),
        "torch-ext/torch_binding.cpp": "",
        "torch-ext/a/__init__.py": "",
        "torch-ext/a/layers.py": "",
        "tests/a_test.cpp": "",
        "bench/a_bench.cpp": "",
    }
    assert not problems("a", good), problems("a", good)
    listed = good["build.toml"].replace('"cpu/a.cpp"', '"cpu/a.cpp", "cpu/more.cpp"')
    for change in (
        {"a_test.cpp": ""},
        {"a.cu": ""},
        {"cpu/a_test.cpp": ""},
        {"cuda/deep/b.cuh": ""},
        {"tests/a_bench.cpp": ""},
        {"a.h": None},
        {"CARD.md": None},
        {"cpu/a.cpp": None},
        {"cpu/more.cpp": ""},  # not in build.toml
        {"build.toml": listed},  # lists what is not there
        {"cuda/a.cu": gpu.format("wgmma")},
        {"cuda/sm80_b.cuh": ""},
        {"cuda/sm80_b.cuh": gpu.format("cluster")},
        {"cuda/sm90_d.cuh": own.format("sm80_b.cuh")},
        {"layers.json": '{"layers": {}}'},
        {"CARD.md": f"# a\n\nA {LIBRARY}.\n"},
    ):
        changed = {name: text for name, text in {**good, **change}.items() if text is not None}
        assert problems("a", changed), f"self test: {change} was not found"
    as_library = {**good, "layers.json": '{"layers": {}}', "CARD.md": f"# a\n\na {LIBRARY}.\n"}
    assert not problems("a", as_library), problems("a", as_library)


def main() -> int:
    self_test()
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "kernels"], check=True, capture_output=True, text=True)
    packages: dict[str, dict[str, str]] = defaultdict(dict)
    for path in listed.stdout.splitlines():
        package, _, name = path.removeprefix("kernels/").partition("/")
        if name and package != "common" and (ROOT / path).is_file():
            packages[package][name] = (ROOT / path).read_text()
    if not packages:
        sys.exit("package layout: expected folders in kernels/; got none")
    found = [line for package, files in sorted(packages.items()) for line in problems(package, files)]
    print("\n".join(found))
    print(f"package layout: {len(packages)} packages, {sum(map(len, packages.values()))} files, {len(found)} problems")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
