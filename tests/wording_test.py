"""Does the house speak the language of its field? Words that we are giving up may only become fewer.

    wording_test.py           compares the counts with tests/wording_counts.txt; fails where one grew
    wording_test.py --lower   writes the counts as they are now, where they fell
    wording_test.py --where WORD   every line that has it; texts that a user reads begin with *

docs/glossary.md has the term to use instead. A row of the counts is `word: all users`: how often it stands in names,
comments, texts and documents, and how often in what a user reads: README.md, docs/ without its notes, the packages'
cards, and the strings of code that is not a test.

Branches that lower different counts merge by themselves: .gitattributes lets git keep the rows of both, and of two rows
of one word the lower counts; --lower leaves one row again.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "tests/wording_counts.txt"
TEXTS = re.compile(r"\.(h|cpp|cu|cuh|py|md|cmake|sh|in)$|(^|/)(x|CMakeLists\.txt)$")
LEFT_OUT = re.compile(r"^docs/glossary\.md$|^tests/wording_test\.py$|/testdata/")
FOR_USERS = re.compile(r"^README\.md$|^docs/[^/]+\.md$|^kernels/\w+/CARD\.md$|^python/README\.md$|^(SECURITY|CHANGELOG)\.md$")
IS_TEST = re.compile(r"(^|/)tests?/|_test\.|(^|/)test_|/testing/|_bench\.|^bench/")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
DOCSTRING = re.compile(r'""".*?"""', re.DOTALL)

# Names that the review of the tree found to have a term in the field: house names, each to become zero.
NAMES = """FixedPlace said_here_ said_there_ asks_the_host weights_are_old inputs_at_once next_launch_may_begin
    wait_for_launch_before wait_until_stores_have_read publish_shared_writes give_registers take_registers
    commit_copies load_matrices multiply_16x8 rms_forward_again backward_again kAlong kAcross Sight InTwo
    device_length not_run step_inputs""".split()

# word: (what matches it, the field's term)
WORDS = {
    "alone": (r"alone", "only"),
    "anew": (r"anew", "again"),
    "ask": (r"ask(?:s|ed|ing)?", "needs, calls, queries, requests, checks"),
    "behind": (r"behind", "after"),
    "copy engine": (r"copy\s+engine", "TMA"),
    "face": (r"(?:Python|C\+\+|library's)\s+face", "API, op registration"),
    "given": (r"(?:is|are|was|were)\s+given", "is passed, is provided, is returned"),
    "house names": ("|".join(NAMES), "see docs/glossary.md"),
    "largest": (r"largest", "argmax for an index, max for a value"),
    "lie": (r"lies?", "is stored, is laid out, layout"),
    "most": (r"k?[Mm]ost[_A-Z]\w*|MOST_\w+|\w+_most|at most so", "max, kMax, max_"),
    "nobody": (r"(?:no|every|some)body", "no caller, every thread: name the actor"),
    "numbers": (r"numbers", "elements, values, scalars"),
    "one's own": (r"one's\s+own", "your own, self-hosted, custom"),
    "place": (r"(?<!in[\s-])places?", "position, index, offset, slot, buffer, location"),
    "reach": (r"reach(?:es|ed)?", "window, range, visible length"),
    "said": (r"said|says", "reports, emits, documents, states"),
    "so many": (r"so\s+many", "the count: n, rows"),
    "together": (r"together", "in total, merged"),
    "told": (r"told|tells?", "is reported, an error"),
    "turns": (r"in\s+turns?", "interleaved, alternately, round-robin"),
    "want": (r"(?<![.>])want(?:s|ed)?", "expected, required, needs"),
    "who": (r"who(?:m|ever)?", "the caller, a thread, a block: name the actor"),
}


def group(word: str) -> str:
    return re.sub(r"\W", "_", word)


ONE_OF = "|".join(f"(?P<{group(word)}>{pattern})" for word, (pattern, _) in WORDS.items())
ANY_WORD = re.compile(rf"(?<![A-Za-z])(?:{ONE_OF})(?![A-Za-z])")


def for_users(path: str, text: str) -> str:
    """What of a file a user reads."""
    if FOR_USERS.search(path) or path == "x":
        return text
    if path.endswith(".md") or IS_TEST.search(path):
        return ""
    if path.endswith(".py"):
        text = DOCSTRING.sub("", text)
        return "\n".join(STRING.findall(re.sub(r"^\s*#.*|\s# .*$", "", text, flags=re.MULTILINE)))
    code = re.sub(r"^\s*#\s*include.*|//.*$", "", text, flags=re.MULTILINE)
    return "\n".join(s for s in STRING.findall(code) if s[0] == '"')


def counts(files: dict[str, str]) -> dict[str, tuple[int, int]]:
    """One scan for all words: the group of a match names its word."""
    everywhere, users = Counter(), Counter()
    for path, text in files.items():
        everywhere.update(match.lastgroup for match in ANY_WORD.finditer(text))
        users.update(match.lastgroup for match in ANY_WORD.finditer(for_users(path, text)))
    return {word: (everywhere[group(word)], users[group(word)]) for word in WORDS}


def kept(text: str) -> dict[str, tuple[int, int]]:
    """Of two rows of one word, as a merge leaves them, the lower numbers."""
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        if row := re.fullmatch(r"([^:#]+): (\d+) (\d+)", line):
            one = int(row[2]), int(row[3])
            found[row[1]] = tuple(map(min, found.get(row[1], one), one))
    return found


def grown(now: dict[str, tuple[int, int]], before: dict[str, tuple[int, int]]) -> list[str]:
    found = []
    for word, (everywhere, users) in now.items():
        most, most_users = before.get(word, (0, 0))
        for count, limit, where in ((everywhere, most, "the tree"), (users, most_users, "what a user reads")):
            if count > limit:
                found.append(f"'{word}' in {where}: expected at most {limit}; got {count}; write {WORDS[word][1]}")
    return found


def tracked() -> dict[str, str]:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    names = [n for n in listed.stdout.split("\n") if TEXTS.search(n) and not LEFT_OUT.search(n) and (ROOT / n).is_file()]
    return {name: (ROOT / name).read_text() for name in names}


def write(now: dict[str, tuple[int, int]]) -> None:
    rows = [f"{word}: {everywhere} {users}\n" for word, (everywhere, users) in sorted(now.items())]
    COUNTS.write_text("# word: in the tree, in what a user reads. They only fall: tests/wording_test.py --lower\n" + "".join(rows))


def where(word: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        read = for_users(path, text)
        for number, line in enumerate(text.splitlines(), 1):
            if any(match.lastgroup == group(word) for match in ANY_WORD.finditer(line)):
                print("*" if line in read or any(s in read for s in STRING.findall(line)) else " ", f"{path}:{number}: {line.strip()}")


def self_test() -> None:
    text = 'throw Error({.wanted = "x"});  // who asked\n#include "who.h"\nf("nobody said");\n'
    found = counts({"hotswap/base/a.cpp": text})
    assert (found["want"], found["who"], found["ask"], found["nobody"]) == ((0, 0), (2, 0), (1, 0), (1, 1)), found
    assert counts({"tests/a_test.py": 'f("who")'})["who"] == (1, 0)
    assert counts({"docs/a.md": "who_says in place, a place"})["place"] == (1, 1)
    assert kept("# a\nwho: 3 1\nsaid: 2 2\nwho: 2 4\n") == {"who": (2, 1), "said": (2, 2)}
    assert grown({"who": (3, 1)}, {"who": (3, 1)}) == [] and len(grown({"who": (4, 2)}, {"who": (3, 1)})) == 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true")
    parser.add_argument("--where", choices=sorted(WORDS))
    args = parser.parse_args()
    self_test()
    files = tracked()
    if args.where:
        return where(args.where, files)
    now, before = counts(files), kept(COUNTS.read_text() if COUNTS.exists() else "")
    found = grown(now, before) if before else []
    if found:
        sys.exit("\n".join(["wording:", *found, "tests/wording_test.py --where WORD shows where; docs/glossary.md has the terms"]))
    if args.lower or not before:
        write(now)
    elif now != before:
        fell = [f"{word} {before[word]} -> {now[word]}" for word in now if now[word] != before.get(word)]
        print(f"wording: fewer than before, lower them by tests/wording_test.py --lower: {'; '.join(fell)}")
    print(f"wording: {len(files)} files, {sum(n for n, _ in now.values())} words to mend, {sum(n for _, n in now.values())} of them read by users")


if __name__ == "__main__":
    main()
