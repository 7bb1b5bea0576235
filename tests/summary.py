"""Adds up what `./x test` ran: summary.py FOLDER, with ctest.xml, gtest/*.xml and pytest's files in it.

A test program counts with its gtest cases, any other entry as one. Last line: "N passed, N failed, N skipped".
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def case_outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed"
    if case.find("skipped") is not None or case.get("result") in ("skipped", "suppressed"):
        return "skipped"
    if case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def cases(file: Path) -> list[tuple[str, str]]:
    """(name, outcome) of each test case of a JUnit or gtest XML file."""
    return [
        (f"{case.get('classname', '')}.{case.get('name')}", case_outcome(case))
        for case in ET.parse(file).iter("testcase")
    ]


def detail(folder: Path, test: str) -> list[tuple[str, str]] | None:
    """The cases inside one ctest entry, or None where it wrote none: a script, or a program that crashed."""
    for name in (f"gtest/{test}_test.xml", f"gtest/{test.removeprefix('kernel_')}_test.xml", f"{test}.xml"):
        if (folder / name).exists():
            try:
                return cases(folder / name)
            except ET.ParseError:
                return None  # died while writing
    return None


def main() -> None:
    folder = Path(sys.argv[1])
    counted = {"passed": 0, "failed": 0, "skipped": 0}
    outer = cases(folder / "ctest.xml") if (folder / "ctest.xml").exists() else []
    for test, outcome in outer:
        test = test.rsplit(".", 1)[-1]
        inner = detail(folder, test)
        if inner is None or (outcome == "failed" and not any(o == "failed" for _, o in inner)):
            inner = (inner or []) + [("itself", outcome)]
        for name, result in inner:
            counted[result] += 1
            if result != "passed":
                print(f"  {result}: {test}: {name}")
    if not outer:
        print("wanted the results of ctest; got none: no test ran")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counted))
    sys.exit(counted["failed"] > 0 or counted["passed"] == 0)


if __name__ == "__main__":
    main()
