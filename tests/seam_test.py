"""How many files a new weight format, adapter, family and package touch, and what layers know of a step, counted from the tree itself.

A weight format that only Linear serves touches each file that lists the formats there are: whose code names q8_0, q4_0
and q4_1. An adapter on Linear touches each file whose code names it: Weight, Linear, the reader of adapters' files; a fused op does not, since Linear
itself reports whether it fuses (fused_products, which shards and formats have brought). One that trains has files of its own besides, counted in a row of its own:
its product and gradients, new adapters, the layers that take one. A family with a new attention part touches what names DeepSeek-V2's latent attention, its options or
its row; V3, which came later, and the header that V3 shares with it do not count. A package with one op touches one folder: no code outside of kernels/dyt
names dyt. Tests, documents and comments do not count. Prints the lists; exits 1 where one is longer than its limit.

How a step runs is the engine's business: headers of layers and models name no captured graph, no length that a device
counts and no promise about a prefetch, and a Cache has at most six public methods.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ("q8_0", "q4_0", "q4_1")
ADAPTER = re.compile(r"\b(?:Adapter|adapter_|set_adapter)\b")
OF_TRAINING = ("layers/adapter.h", "layers/adapter.cpp", "layers/linked.cpp", "models/lora_fresh.cpp", "models/lora_sites.h", "models/lora_sites.cpp")
OTHER_ADAPTERS = "hotswap/kernelize/foreign/"  # of packages that were not made for hotswap
NEW_ATTENTION = re.compile(r"\b(?:LatentAttention\w*|\w*latent_attention\w*|\w+_lora_rank|qk_nope_head_dim|kDeepseekV2)\b")
LATER_FAMILY = ("hotswap/models/families/deepseek_v3.cpp", "hotswap/models/families/deepseek_v2.h")
PACKAGE = re.compile(r"\bdyt\b", re.IGNORECASE)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
COMMENT = re.compile(r"//[^\n]*")
NOT_TOUCHED = {
    "hotswap/kernelize/contract/contract.h": "a list that is closed: what packages of before called packed",
    "kernels/decode/layers.json": "another op that takes weights",
    "kernels/decode/layers.cuda.json": "the same",
    "kernels/moe/layers.json": "the same",
    "kernels/linear/layers.cuda.json": "is there because of one format that a GPU does not take, and goes when it does",
    "kernels/common/gpu/gemv/packed_blocks.cuh": "what whole layers and few rows multiply by; other formats go without (has_packed_blocks)",
}
OF_STEPS = re.compile(r"captur|cuda.?graph|device_length|weights_are_old|prefetch", re.IGNORECASE)
CACHE_METHODS = 6
LIMITS = {
    "a weight format that only Linear serves": 6,
    "an adapter on Linear": 4,
    "an adapter on Linear that trains": 10,
    "a family with a new attention part": 3,
    "a package with one op (folders)": 1,
}


def sources() -> dict[str, str]:
    """The code of every source that is not a test's, by its path."""
    names = subprocess.run(["git", "ls-files", "hotswap", "kernels"], cwd=ROOT, check=True, capture_output=True, text=True)
    is_test = re.compile(r"_test\.|/tests?/|/test_|/testing/|/testdata/|_bench\.")
    kept = [n for n in names.stdout.split() if re.search(r"\.(h|cpp|cu|cuh|json)$", n) and not is_test.search(n)]
    return {name: COMMENT.sub("", (ROOT / name).read_text(errors="replace")) for name in kept if (ROOT / name).is_file()}


def lists_formats(code: str) -> bool:
    names_only = STRING.sub(lambda text: "" if " " in text.group() else text.group(), code)  # no texts for people
    words = set(re.findall(r"\bk?(q\d_\d)\b", names_only, re.IGNORECASE))
    return {word.lower() for word in words} >= set(FORMATS)


def lines_of_steps() -> list[str]:
    """Lines of headers in layers/ and models/, comments too, that name how a step runs."""
    found = []
    for room in ("layers", "models"):
        for header in sorted((ROOT / "hotswap" / room).rglob("*.h")):
            lines = enumerate(header.read_text().splitlines(), 1)
            found += [f"{header.relative_to(ROOT)}:{number}: {line.strip()}" for number, line in lines if OF_STEPS.search(line)]
    return found


def public_methods(code: str, name: str) -> list[str]:
    """Of a class whose public section comes first and ends at its private one; its constructors do not count."""
    body = re.search(rf"class {name} .*?\bpublic:\n(.*?)\n private:", COMMENT.sub("", code), re.DOTALL)[1]
    return [method for method in re.findall(r"(\w+)\([^;{]*\)[^;{]*[;{]", body) if method != name]


def main() -> int:
    code = sources()
    adapters = [n for n in code if ADAPTER.search(code[n]) and not n.startswith(OTHER_ADAPTERS)]
    touched = {
        "a weight format that only Linear serves": [n for n in code if n not in NOT_TOUCHED and lists_formats(code[n])],
        "an adapter on Linear": [n for n in adapters if not n.endswith(OF_TRAINING)],
        "an adapter on Linear that trains": adapters,
        "a family with a new attention part": [n for n in code if NEW_ATTENTION.search(code[n]) and n not in LATER_FAMILY],
        "a package with one op (folders)": sorted({"/".join(n.split("/")[:2]) for n in code if PACKAGE.search(code[n])}),
    }
    failed = False
    for what, files in touched.items():
        print(f"{what}: {len(files)} files, at most {LIMITS[what]}\n  " + "\n  ".join(files))
        failed |= not 0 < len(files) <= LIMITS[what]
    methods = public_methods((ROOT / "hotswap/layers/cache.h").read_text(), "Cache")
    print(f"public methods of Cache: {len(methods)}, at most {CACHE_METHODS}: {', '.join(methods)}")
    leaks = lines_of_steps()
    print("\n".join([f"lines that name how a step runs: {len(leaks)}, expected none", *leaks]))
    failed |= not 0 < len(methods) <= CACHE_METHODS or bool(leaks)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
