"""What a change touched: files and lines, by the folder that they are in.

    growth_count.py BASE [CHANGED] [--home kernels/norm]

BASE and CHANGED are commits; without CHANGED, the working tree with what git does not know yet. --home: the folder that the
change is at home in; the sums of what lies in it and outside of it close the list.
"""

import argparse
import subprocess
from pathlib import Path


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def changes(base: str, changed: str | None) -> list[tuple[str, int, int]]:
    """(file, lines added, lines removed); a binary file has no lines."""
    range_of = [base, changed] if changed else [base]
    rows = [line.split("\t") for line in git("diff", "--numstat", "--no-renames", *range_of).splitlines()]
    found = [(name, *(0 if n == "-" else int(n) for n in counts)) for *counts, name in rows]
    if not changed:
        new = git("ls-files", "--others", "--exclude-standard", "--full-name", ":/").splitlines()
        top = Path(git("rev-parse", "--show-toplevel").strip())
        found += [(name, len((top / name).read_bytes().splitlines()), 0) for name in new]
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("changed", nargs="?")
    parser.add_argument("--home", default="")
    args = parser.parse_args()
    found = changes(args.base, args.changed)
    for name, added, removed in found:
        print(f"{added:+6} {-removed:6}  {name}")
    home = args.home.rstrip("/") + "/" if args.home else ""
    for title, inside in ((f"in {home}", True), ("outside", False)) if home else (("in all", True),):
        rows = [row for row in found if row[0].startswith(home) == inside]
        print(f"{title}: {len(rows)} files, {sum(r[1] for r in rows)} lines added, {sum(r[2] for r in rows)} removed")


if __name__ == "__main__":
    main()
