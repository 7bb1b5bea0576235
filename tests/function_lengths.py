"""The longest functions of the tree; one of more than 120 lines names its phases, or the test fails.

    function_lengths.py [COUNT]   prints the COUNT longest, ten by default: lines, file, first line, phases

A phase is a comment that begins with `// ----`: prologue, producer, consumer, main loop, epilogue. A function is looked
for as clang-format leaves it: a header that ends in `{`, and the next `}` at the header's indentation. Tests and
generated tables do not count.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 120  # of a function without phases
PHASES = 2  # that a longer one names at least
NOT_COUNTED = re.compile(r"_test\.|/tests?/|/testing/|/testdata/|/unicode_tables\.")
ENDS_A_STATEMENT = re.compile(r"[;{}]\s*(//.*)?$|^\s*//|^\s*(public|private|protected):|^#")
NO_FUNCTION = re.compile(r"(namespace|extern|if|for|while|switch|else|do|catch|return|case|default|try)\b|\}|(const )?auto\b[^()]*=")
TYPE = re.compile(r"(template ?<.*?> ?)?(class|struct|enum|union)\b[^()]*\{$")


def functions(lines: list[str]) -> list[tuple[int, int, int]]:
    """(lines, first line, phases) of each function in a file's lines."""
    found = []
    for at, line in enumerate(lines):
        if not line.endswith("{") or line.lstrip().startswith("//"):
            continue
        first = at
        while first > 0 and lines[first - 1].strip() and not ENDS_A_STATEMENT.search(lines[first - 1]):
            first -= 1
        header = " ".join(part.strip() for part in lines[first : at + 1])
        if ")" not in header or "](" in header or "] {" in header or NO_FUNCTION.match(header) or TYPE.match(header):
            continue
        closing = lines[first][: len(lines[first]) - len(lines[first].lstrip())] + "}"
        end = next((n for n in range(at + 1, len(lines)) if lines[n].startswith(closing)), None)
        if end is not None:
            phases = sum(text.lstrip().startswith("// ----") for text in lines[first:end])
            found.append((end - first + 1, first + 1, phases))
    return found


def self_test() -> None:
    text = ["int f(int a) {", "  // ---- prologue: none", "  if (a) {", "    g();", "  }", "  return a;", "}", "struct S {", "};"]
    assert functions(text) == [(7, 1, 1)], functions(text)
    assert functions(["template <class T>", "__global__ void k(", "    const T* x) {", "}"]) == [(4, 1, 0)]
    assert functions(["const auto f = [&](int i) {", "};"]) == []


def main() -> int:
    self_test()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    names = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh"], cwd=ROOT, check=True, capture_output=True, text=True)
    kept = [name for name in names.stdout.split() if not NOT_COUNTED.search(name) and (ROOT / name).is_file()]
    found = [(*f, name) for name in kept for f in functions((ROOT / name).read_text().splitlines())]
    if len(found) < 1000:  # the pattern has stopped matching
        sys.exit(f"expected thousands of functions in {len(kept)} files; got {len(found)}; mend functions() of {Path(__file__).name}")
    found.sort(reverse=True)
    for lines, first, phases, name in found[:count]:
        print(f"{lines:4} lines  {name}:{first}  {phases} phases")
    wrong = [f for f in found if f[0] > MAX_LINES and f[2] < PHASES]
    for lines, first, _, name in wrong:
        print(f"{name}:{first}: expected at most {MAX_LINES} lines, or phases by comments `// ----`; got {lines} lines; cut the function")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
