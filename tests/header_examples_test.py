"""The examples in the comments of headers compile: of the public ones, and of those that the two documents for authors name.

    header_examples_test.py --build build

An example is what stands three or more spaces behind a comment's //, between empty comment lines. All of them become one source,
each in a namespace of its own behind what it takes for granted (AROUND), and the compiler that built hotswap reads it.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "cmake"))
from compile_commands import compile_commands  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
# What examples take for granted. Those that are not in a function themselves, by FILE; else the text stands before a function. Or the
# example stands at EXAMPLE.
FILE = "// file\n"
MODEL = "extern CausalLM& model; "
IDS = "extern std::vector<int64_t> ids; "
AROUND = {
    "hotswap/base/file.h": "extern std::string header, data;",
    "hotswap/base/json.h": "extern Json manifest;",
    "hotswap/base/progress.h": "extern int64_t steps; extern double loss;",
    "hotswap/base/result.h": "struct Package {}; Result<Package> find_package(std::string); void use(Package); "
    "extern std::string name; extern std::vector<std::string> report;",
    "hotswap/generation/generate.h": "extern std::shared_ptr<CausalLM> model; extern Tensor ids;",
    "hotswap/hotswap.h": FILE,
    "hotswap/hub/names/variant.h": "extern std::vector<std::string> names;",
    "hotswap/kernelize/kernelize.h": MODEL,
    "hotswap/kernelize/kernelize.h void MyModel": FILE + "struct MyModel : Module { void on_mode_change() override; Kernelizer kernels_; };",
    "hotswap/layers/attention.h": "extern Tensor q, k, v, mask;",
    "hotswap/layers/cache.h": MODEL + "extern Tensor ids;",
    "hotswap/layers/experts.h": "extern Tensor x; extern Router router;",
    "hotswap/layers/module.h": FILE,
    "hotswap/layers/slot.h": FILE + "struct Norm : Module { Tensor forward(const Tensor& x) { EXAMPLE } Tensor weight; double eps_, offset_; "
    "std::string casting_; };",
    "hotswap/models/causal_lm.h": "extern std::shared_ptr<CausalLM> model; extern Tensor ids;",
    "hotswap/models/liger.h": "extern std::shared_ptr<CausalLM> model;",
    "hotswap/models/lora_config.h": "extern std::shared_ptr<CausalLM> model;",
    "hotswap/models/formats/safetensors.h": "extern Tensor logits;",
    "hotswap/models/formats/weights.h": MODEL + "extern std::filesystem::path folder;",
    "hotswap/tokenizers/stream_decoder.h": IDS + "extern Tokenizer tokenizer;",
    "hotswap/tokenizers/tokenizer.h tokenizer.encode_batch": "extern Tokenizer tokenizer; extern std::vector<std::string_view> texts;",
    "hotswap/training/trainer_parts.h": FILE,
    "hotswap/training/optimizers/optimizer.h": MODEL + "extern Tensor loss;",
    "hotswap/training/trainer.h": IDS + "extern std::shared_ptr<CausalLM> model;",
}
NO_CODE = (  # how blocks begin that stand so far in and are grammars, layouts, formulas
    "org/repo  org/repo:Layer", "variant   :=", "forward         inference:", "forward        (Tensor", "F32 F16 BF16", "p *= 1 - lr",
    "hidden += attention", "swiglu silu(g) u", "w[o, i] = ",
)  # fmt: skip
SYSTEM = "filesystem functional iostream iterator map memory optional string vector"


def public_headers() -> list[str]:
    listed = (ROOT / "cmake/public_headers.txt").read_text().splitlines()
    return [line for line in listed if line.startswith("hotswap/")]


def documented_headers() -> list[str]:
    """The public headers, those that the documents for authors of families and packages name, and what these include."""
    queue, found = public_headers(), []
    for document in ("adding_a_model", "adding_a_kernel"):
        queue += re.findall(r"hotswap/[a-z0-9_/]+\.h", (ROOT / f"docs/{document}.md").read_text())
    while queue:
        header = queue.pop(0)
        if header not in found:
            found.append(header)
            queue += re.findall(r'^#include "(hotswap/[^"]+)"', (ROOT / header).read_text(), re.MULTILINE)
    return found


def examples(header: str) -> list[tuple[int, str]]:
    """(line, code) of each block."""
    found, block = [], []
    for number, line in enumerate([*(ROOT / header).read_text().splitlines(), ""], 1):
        code = re.fullmatch(r"\s*//(   .*|)", line)
        if code and (code[1] or block):
            block.append((number, code[1][3:]))
        elif block:
            found.append((block[0][0], "\n".join(text for _, text in block).rstrip() + "\n"))
            block = []
    return [(at, text) for at, text in found if not text.startswith(NO_CODE)]


def source(headers: list[str]) -> tuple[str, int]:
    parts, count = [], 0
    for header in headers:
        for at, code in examples(header):
            own = [name for name in AROUND if name.startswith(f"{header} ") and code.startswith(name.split(" ", 1)[1])]
            around = AROUND.get(own[0] if own else header, "")
            code = "".join(line for line in code.splitlines(True) if not line.startswith("#include"))
            place = f'#line {at} "{header}"\n'
            body = place + code if around.startswith(FILE) else f"inline void example() {{\n{place}{code}}}\n"
            body = around.replace("EXAMPLE", f"\n{place}{code}") if "EXAMPLE" in around else f"{around}\n{body}"
            parts.append(f"namespace hotswap::example{count} {{\n{body}}}\n")
            count += 1
    includes = [f"#include <{name}>\n" for name in SYSTEM.split()] + [f'#include "{name}"\n' for name in headers]
    return "".join(includes) + '#include "hotswap/layers/norm.h"\n' + "".join(parts), count


def compiler(build: Path) -> list[str]:
    """The command of one source of the host, without its own files."""
    entry = next(e for e in compile_commands(build) if e["file"].endswith("hotswap/training/trainer.cpp"))
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if "++" in word) :]  # behind ccache
    kept = [w for w in words if w.startswith(("-I", "-std", "-D", "-fPIC")) or "++" in w]
    return kept + [w for i, word in enumerate(words) if word == "-isystem" for w in words[i : i + 2]]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    build = parser.parse_args().build.resolve()
    text, count = source(documented_headers())
    assert count >= 25, f"expected the headers' examples; got {count}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "examples.cpp"
        file.write_text(text)
        first, *flags = compiler(build)
        command = [first, f"-I{ROOT}", *flags, "-fsyntax-only", "-w", str(file)]
        done = subprocess.run(command, cwd=build, capture_output=True, text=True)
    if done.returncode:
        print(re.sub(r"\n[^\n]*In file included[^\n]*", "", done.stderr))
        print(f"expected {count} examples that compile; mend the header's, or say in AROUND what it takes for granted")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
