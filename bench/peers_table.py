"""The newest rows of bench/peers.py in results.csv as the table of docs/notes/peers.md.

    python -m bench peers_table [--since 2026-12-01] [--csv bench/results.csv]

Of each case the times with L2 cleared before each call, the best peer's, and the share of a copy of the same bytes.
"""

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import COPY, ROOT, is_floor  # noqa: E402


def cases(file: Path, since: str) -> dict:
    """(op, shape, dtype) -> the rows of its newest run, one of each peer."""
    found = defaultdict(dict)
    for row in csv.DictReader(file.open(newline="")):
        if row["kind"] != "op" or row["date"] < since or "H200" not in row["machine"]:
            continue
        case = found[row["what"], row["shape"], row["dtype"]]
        if case and next(iter(case.values()))["date"] < row["date"]:
            case.clear()
        case[row["peer_name"]] = row
    return found


def line(op: str, shape: str, dtype: str, rows: dict) -> str:
    ours = float(next(iter(rows.values()))["ours_cleared"])
    peers = {n: float(r["peer_cleared"]) for n, r in rows.items() if r["peer_cleared"] and not is_floor(n)}
    best = min(peers, key=peers.get, default=None)
    theirs = f"{best.split(';')[0]} {peers[best]:.1f} | {bold(peers[best] / ours, 1)}" if best else " | "
    copy = rows.get(COPY)
    share = bold(float(copy["peer_cleared"]) / ours, 0.85) if copy else ""
    return f"| {op} {shape}{'' if dtype == 'bfloat16' else ', ' + dtype} | {ours:.1f} | {theirs} | {share} |"


def bold(value: float, least: float) -> str:
    return f"{value:.2f}" if round(value, 2) >= least else f"**{value:.2f}**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=ROOT / "bench/results.csv")
    parser.add_argument("--since", default="2026-12-01")
    args = parser.parse_args()
    print("| op, shape, bfloat16 unless named | ours, us | the best peer, us | our speed in its | of a copy |\n|---|---|---|---|---|")
    for key, rows in cases(args.csv, args.since).items():
        print(line(*key, rows))


if __name__ == "__main__":
    main()
