"""Who may include whom. Prints every include that points the wrong way and exits 1 when there is one.

Rooms:    base <- http <- hub <- kernelize; layers <- kernelize <- models <- engine <- {generation, serve};
          {generation, training, serve} <- cli; chat <- models;
          tokenizers on base, chat and grammar on tokenizers; grammar <- serve.
          The folders inside a room have an order too. No file includes itself by way of others; no file is too long.
Packages: kernels/ and hotswap/ know nothing of each other, nor does one package of another; common/ is everybody's.
torch:    none in base, http, hub, tokenizers, chat, grammar and in kernels' own files; packages' torch-ext sees the stable ABI only; host
          headers see one torch header, and torch's costliest ones appear in a few sources (specs: 9 s a file).
"""

import re
import subprocess
import sys
from pathlib import Path

BASE = {"base"}
HTTP = BASE | {"http"}
HUB = HTTP | {"hub"}
LAYERS = BASE | {"layers"}
KERNELIZE = HUB | LAYERS | {"kernelize"}
TOKENIZERS = BASE | {"tokenizers"}
CHAT = TOKENIZERS | {"chat"}
GRAMMAR = TOKENIZERS | {"grammar"}
MODELS = KERNELIZE | CHAT | {"models"}
ENGINE = MODELS | {"engine"}
ROOMS = {
    "base": BASE,
    "http": HTTP,
    "hub": HUB,
    "layers": LAYERS,
    "kernelize": KERNELIZE,
    "tokenizers": TOKENIZERS,
    "chat": CHAT,
    "grammar": GRAMMAR,
    "models": MODELS,
    "engine": ENGINE,
    "generation": ENGINE | {"generation"},
    "training": MODELS | {"training"},
    "serve": ENGINE | GRAMMAR | {"serve"},
    "cuda": {"base", "engine", "training", "cuda"},  # a library of its own, for torch's CUDA headers
    "cli": ENGINE | GRAMMAR | {"generation", "training", "serve", "cli"},
}
# Inside a room: what each of its folders may include of the room besides itself; "." is the files beside the folders.
FOLDERS = {
    "hotswap/hub": {
        "names": set(),
        "net": {"names"},
        "cache": {"names", "net"},
        "package": {"names"},
        "sign": {"names", "package"},
        "serve": {"names", "net", "cache"},
        ".": {"names", "net", "cache", "package", "sign", "serve"},
    },
    "hotswap/kernelize": {
        "contract": set(),
        "bind": {"contract"},
        "example": {"contract"},
        "package": {"contract"},
        "foreign": {"contract", "package"},
        "testdata": set(),  # libraries of their own
        ".": {"contract", "package", "foreign"},
    },
    "hotswap/chat": {
        "jinja": set(),
        ".": {"jinja"},
    },
    "hotswap/models": {
        "formats": set(),
        ".": {"formats"},
        "families": {"formats", "."},
        "encoder_models": {"formats", "."},
        "encoders": {"formats", ".", "encoder_models"},
        "quantize": {"formats", "."},
    },
    "hotswap/training": {
        "arguments": set(),
        "schedules": set(),
        "data": set(),
        "optimizers": set(),
        "checkpoint": {"optimizers"},
        "ranks": set(),
        ".": {"arguments", "schedules", "data", "optimizers", "checkpoint", "ranks"},
    },
    "hotswap/cli": {
        "print": set(),
        "flags": set(),
        ".": {"print", "flags"},  # verbs and what they share
        "bench": {"print", "flags", "."},
        "kernel": {"print", "flags", ".", "bench"},
        "demo": {"print", "flags", "."},
        "vectors": {"print", "flags", "."},
    },
    "kernels/common": {
        ".": set(),
        "cpu": {"."},
        "gpu": {"."},
        "torch": {".", "cpu"},
        "testing": {".", "cpu", "gpu", "torch"},
    },
}
MOST_LINES = 500
TORCH_FREE_ROOMS = ("base", "http", "hub", "tokenizers", "chat", "grammar")
HEADER_MAY = re.compile(r"ATen/core/(Tensor|ivalue|Generator)\.h|c10/.*|torch/csrc/autograd/variable\.h")
COSTLY = {"torch/torch.h": 2, "torch/csrc/autograd/custom_function.h": 3, "torch/extension.h": 0, "torch/all.h": 0}
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
STABLE = re.compile(r"^torch/(csrc/stable|headeronly)/|^torch/csrc/inductor/aoti_torch/(c|generated)/")
TEST_HELPERS = re.compile(r"kernels/common/testing/\w+\.h$")
KERNEL_TESTS = re.compile(rf"(_test|_bench)\.cpp$|/tests/|{TEST_HELPERS.pattern}")
BINDING = "kernels/common/torch/"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def folder_problem(path: str, target: str) -> str | None:
    """Of two files of one room; tests stand where they like."""
    parts, other = path.split("/"), target.split("/")
    room = "/".join(parts[:2])
    if len(parts) < 3 or parts[:2] != other[:2] or room not in FOLDERS or for_tests(path):
        return None
    folder, to = (names[2] if len(names) > 3 else "." for names in (parts, other))
    if folder not in FOLDERS[room]:
        return f"no folder of {room} is called {folder}; add it to tests/include_directions.py"
    if to != folder and to not in FOLDERS[room][folder]:
        return f"{room}/{folder} may include {', '.join(sorted(FOLDERS[room][folder])) or 'nothing else'} of {room} only"
    return None


def unit(path: str) -> str:
    """A header and the source that it is the face of are one: x.h, x_impl.h and x.cpp; x.cuh and x.cu."""
    stem, suffix = path.rsplit(".", 1)
    return stem + ".cu" if suffix in ("cu", "cuh") else stem.removesuffix("_impl")


def circles(files: dict[str, str]) -> list[str]:
    """One line for each way that leads from a unit back to it, found depth first."""
    edges: dict[str, set[str]] = {}
    for path, text in files.items():
        targets = {unit(target) for target in INCLUDE.findall(text) if target in files}
        edges.setdefault(unit(path), set()).update(targets - {unit(path)})
    found: list[str] = []
    done: set[str] = set()

    def walk(way: list[str]) -> None:
        for target in sorted(edges[way[-1]]):
            if target in way:
                found.append("a circle of includes: " + " -> ".join([*way[way.index(target) :], target]))
            elif target not in done:
                walk([*way, target])
        done.add(way[-1])

    for start in sorted(edges):
        if start not in done:
            walk([start])
    return found


def host_problem(path: str, target: str) -> str | None:
    parts = path.split("/")
    if target.startswith("kernels/"):
        return "the host never includes a kernel package"
    room = parts[1] if len(parts) > 2 else None  # hotswap/hotswap.h, the umbrella, may see every room
    if room is None:
        return None
    if room not in ROOMS:
        return f"no room is called {room}; add it to tests/include_directions.py"
    other = re.match(r"hotswap/(\w+)/", target)
    if other and other.group(1) not in ROOMS[room]:
        return f"{room} may include {', '.join(sorted(ROOMS[room]))} only"
    if other and target.endswith("_impl.h") and (other.group(1) != room or path.endswith(".h") and not path.endswith("_impl.h")):
        return "an _impl.h is for sources of its own room"
    if target == "hotswap/hotswap.h" and room != "cli":
        return "rooms include each other's headers, not the umbrella"
    if TORCH.match(target):
        if room in TORCH_FREE_ROOMS:
            return f"{room} is free of torch"
        # x_impl.h is a part of sources: no other room sees it.
        if path.endswith(".h") and not path.endswith("_impl.h") and not HEADER_MAY.fullmatch(target):
            return "a header may include ATen/core/Tensor.h, and no other torch header that takes longer to compile"
    return None


def device_problem(path: str, target: str) -> str | None:
    """cpu/ and cuda/ of a package know nothing of each other; what is beside them knows neither. common/ has both, too."""
    match = re.match(r"kernels/(\w+)/(cpu|cuda|gpu)/", target)
    if not match:
        return None
    folder, device = path.split("/")[2], match[2].replace("gpu", "cuda")
    others = {"cpu", "cuda"} - {device}
    if folder in others or match[1] != "common" and folder not in (device, "torch-ext"):
        return f"only {device}/ and torch-ext/ may"
    return None


def kernel_problem(path: str, target: str) -> str | None:
    package = path.split("/")[1]
    if target.startswith("hotswap/"):
        return "kernels know nothing of the host"
    other = re.match(r"kernels/(\w+)/", target)
    if other and other.group(1) not in (package, "common"):
        return f"{package} may include kernels/{package} and kernels/common only"
    if KERNEL_TESTS.search(path):
        return None
    if package != "common" and (why := device_problem(path, target)):
        return why
    if TEST_HELPERS.match(target):
        return "only tests and benchmarks use this helper"
    face = "/torch-ext/" in path or path.startswith(BINDING)
    if target.startswith(BINDING) and not face:
        return "only torch-ext uses the torch half of common/"
    if TORCH.match(target) and not face:
        return "kernel files know no framework"
    if TORCH.match(target) and not STABLE.match(target):
        return "torch-ext sees torch's stable ABI only"
    return None


def for_tests(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.endswith("_test.cpp") or name.startswith("test") and name.endswith(".h")


def problems(files: dict[str, str]) -> list[str]:
    found, costly = [], {header: [] for header in COSTLY}
    for path, text in sorted(files.items()):
        for match in INCLUDE.finditer(text):
            target = match.group(1)
            why = host_problem(path, target) if path.startswith("hotswap/") else kernel_problem(path, target)
            why = why or folder_problem(path, target)
            if path.startswith("hotswap/") and for_tests(target) and not for_tests(path):
                why = "only tests may"
            if why:
                line = text.count("\n", 0, match.start(1)) + 1
                found.append(f"{path}:{line}: includes {target}: {why}")
            if path.startswith("hotswap/") and target in costly:
                costly[target].append(path)
        if (lines := text.count("\n")) > MOST_LINES:
            found.append(f"{path}: {lines} lines; {MOST_LINES} at most")
        if path.startswith("hotswap/") and path != "hotswap/base/env.cpp" and not for_tests(path):
            if re.search(r"\bgetenv\s*\(", text):
                found.append(f"{path}: reads the environment; hotswap/base/env.cpp is the one place")
    for header, users in costly.items():
        if len(users) > COSTLY[header]:
            found.append(f"{header} is included by {', '.join(users)}; {COSTLY[header]} files at most")
    return found + circles(files)


def self_test() -> None:
    """A checker that finds nothing must first be able to find something."""
    bad = {
        "hotswap/base/a.h": '#include "hotswap/models/auto.h"',
        "hotswap/hub/a.cpp": "#include <ATen/ops/add.h>",
        "hotswap/hub/net/a.cpp": '#include "hotswap/hub/cache/cache.h"',
        "hotswap/hub/cache/a.h": '#include "hotswap/hub/hub.h"',
        "hotswap/layers/a.h": '#include "hotswap/kernelize/mode.h"',
        "hotswap/kernelize/bind/a.h": '#include "hotswap/kernelize/package/package.h"',
        "hotswap/kernelize/bind/c.cpp": '#include "hotswap/kernelize/example/example.h"',
        "hotswap/kernelize/example/a.cpp": '#include "hotswap/kernelize/bind/regular.h"',
        "hotswap/kernelize/contract/a.cpp": '#include "hotswap/kernelize/bind/regular.h"',
        "hotswap/kernelize/package/a.cpp": '#include "hotswap/kernelize/foreign/foreign.h"',
        "hotswap/kernelize/foreign/a.cpp": '#include "hotswap/kernelize/resolve.h"',
        "hotswap/kernelize/attic/a.cpp": '#include "hotswap/kernelize/resolve.h"',
        "hotswap/models/formats/a.cpp": '#include "hotswap/models/config.h"',
        "hotswap/models/a.cpp": '#include "hotswap/models/families/llama.h"',
        "hotswap/cli/flags/a.cpp": '#include "hotswap/cli/verbs.h"',
        "hotswap/cli/bench/a.cpp": '#include "hotswap/cli/kernel/hub.h"',
        "hotswap/base/long.cpp": "\n" * (MOST_LINES + 1),
        "kernels/common/cpu/a.h": '#include "kernels/common/gpu/launch.h"',
        "hotswap/models/a.h": "#include <torch/torch.h>",
        "hotswap/generation/a.cpp": '#include "hotswap/training/trainer.h"',
        "hotswap/http/a.cpp": '#include "hotswap/hub/hub.h"',
        "hotswap/engine/a.h": '#include "hotswap/serve/server.h"',
        "hotswap/models/f.cpp": '#include "hotswap/engine/kv_pool.h"',
        "hotswap/engine/b.cpp": '#include "hotswap/grammar/grammar.h"',
        "hotswap/grammar/a.cpp": '#include "hotswap/chat/chat_template.h"',
        "hotswap/models/b.cpp": '#include "kernels/norm/norm.h"',
        "hotswap/models/d.cpp": '#include "hotswap/kernelize/bind/bind_impl.h"',
        "hotswap/models/e.cpp": '#include "hotswap/base/test_support.h"',
        "hotswap/models/c.cpp": 'auto x = getenv("A");',
        "kernels/norm/cpu/norm.cpp": "#include <torch/csrc/stable/tensor.h>",
        "kernels/norm/norm.h": '#include "kernels/mlp/mlp.h"',
        "kernels/norm/cpu/norm_base.cpp": '#include "kernels/common/torch/binding.h"',
        "kernels/mlp/cpu/mlp.cpp": '#include "kernels/common/testing/testing.h"',
        "kernels/mlp/cpu/gate.h": '#include "kernels/mlp/cuda/mlp.h"',
        "kernels/mlp/mlp_more.h": '#include "kernels/mlp/cpu/gate.h"',
        "kernels/mlp/cuda/mlp.cu": '#include "kernels/mlp/cpu/gate.h"',
        "kernels/moe/cpu/rows.cpp": '#include "kernels/common/gpu/launch.h"',
        "kernels/moe/cuda/rows.cu": '#include "kernels/common/cpu/vec.h"',
        "kernels/norm/cuda/norm.cu": "#include <ATen/ATen.h>",
        "kernels/norm/torch-ext/b.cpp": "#include <ATen/core/Tensor.h>",
        "kernels/loss/loss.h": '#include "hotswap/base/error.h"',
    }
    for path, text in bad.items():
        assert problems({path: text}), f"self test: {path} with {text!r} was not found"
    circle = {
        "hotswap/base/a.h": '#include "hotswap/base/b.h"',
        "hotswap/base/b.h": "",
        "hotswap/base/b.cpp": '#include "hotswap/base/c.h"',
        "hotswap/base/c_impl.h": '#include "hotswap/base/a.h"',
        "hotswap/base/c.h": "",
    }
    assert circles(circle) == ["a circle of includes: " + " -> ".join(f"hotswap/base/{name}" for name in "abca")]
    for path in ("hotswap/base/a.h", "hotswap/base/b.cpp", "hotswap/base/c_impl.h"):  # without any of its three sides: none
        assert not problems({**circle, path: ""}), f"self test: no circle is left without the include in {path}"
    good = {
        "hotswap/base/long.cpp": "\n" * MOST_LINES,
        "hotswap/cli/kernel/bench.cpp": '#include "hotswap/cli/bench/ops.h"',
        "hotswap/kernelize/package/package.cpp": '#include "hotswap/kernelize/contract/contract.h"',
        "hotswap/kernelize/bind/a_test.cpp": '#include "hotswap/kernelize/resolve.h"',
        "kernels/norm/norm.h": "",
        "kernels/norm/cuda/norm.h": '#include "kernels/norm/norm.h"',
        "kernels/norm/cuda/norm.cu": '#include "kernels/norm/cuda/norm.h"',  # not the source of norm.h
        "hotswap/cli/main.cpp": '#include "hotswap/training/trainer.h"',
        "hotswap/models/a.cpp": "#include <ATen/ops/add.h>",
        "kernels/norm/torch-ext/b.cpp": "#include <torch/csrc/stable/tensor.h>",
        "kernels/norm/tests/norm_test.cpp": "#include <ATen/ops/add.h>",
        "kernels/norm/cpu/norm.cpp": '#include "kernels/common/cpu/vec.h"',
        "kernels/norm/norm_impl.h": '#include "kernels/common/cpu/isa.h"',
    }
    assert not problems(good), f"self test: {problems(good)}"


def main() -> None:
    self_test()
    root = Path(__file__).resolve().parent.parent
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-co", "--exclude-standard", "hotswap", "kernels"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    names = [n for n in listed if re.search(r"\.(h|cpp|cu|cuh)$", n) and (root / n).exists()]
    if not names:
        sys.exit("include directions: no source files were found")
    found = problems({name: (root / name).read_text() for name in names})
    print("\n".join(found) if found else f"include directions: {len(names)} files, all right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
