"""How many files a new weight format and a new adapter touch, counted from the tree itself.

A weight format that only Linear serves touches each file that lists the formats there are: whose code names q8_0, q4_0
and q4_1. An adapter on Linear touches each file whose code names it: Weight, Linear, what fuses it, the reader of adapters' files. Tests, documents and comments do not count. Prints
both lists; exits 1 where one is longer than its limit.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ("q8_0", "q4_0", "q4_1")
ADAPTER = re.compile(r"\b(?:Adapter|adapter_|set_adapter|all_fuse)\b")
OTHER_ADAPTERS = "hotswap/kernelize/foreign/"  # of packages that were not made for hotswap
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
COMMENT = re.compile(r"//[^\n]*")
NOT_TOUCHED = {
    "hotswap/kernelize/bind/contract.h": "a list that is closed: what packages of before called packed",
    "kernels/decode/layers.json": "another op that takes weights",
}
LIMITS = {"a weight format that only Linear serves": 6, "an adapter on Linear": 5}


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


def main() -> int:
    code = sources()
    touched = {
        "a weight format that only Linear serves": [n for n in code if n not in NOT_TOUCHED and lists_formats(code[n])],
        "an adapter on Linear": [n for n in code if ADAPTER.search(code[n]) and not n.startswith(OTHER_ADAPTERS)],
    }
    failed = False
    for what, files in touched.items():
        print(f"{what}: {len(files)} files, at most {LIMITS[what]}\n  " + "\n  ".join(files))
        failed |= not 0 < len(files) <= LIMITS[what]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
