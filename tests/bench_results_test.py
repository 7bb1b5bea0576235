"""The rows of the benchmarks: ratios, targets that were missed, and a file that reads back as it was meant."""

import argparse
import csv
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # of the package bench
from bench.lib.results import COLUMNS, Results  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        report = Results(argparse.Namespace(csv=file, date="2026-01-01T00:00Z", commit="abc"))
        said = dict(kind="op", dtype="float32", peer_name="torch")
        report.add(what="slower", shape="2x512 of 512, 8x64", ours=2.0, peer=3.0, unit="us", target=1.6, **said)
        report.add(what="as expected", shape="1x1", ours=2, peer=3, unit="us", target=1.5, **said)
        report.add(what="rate", shape="1x1", ours=30.0, peer=20.0, unit="tokens/s", target=2, **said)
        report.add(what="alone", shape="1x1", ours=1 / 3, unit="us", **said)
        assert [row["what"] for row in report.missed()] == ["slower", "rate"], report.missed()
        report.write()
        report.rows = report.rows[:1]
        report.write()  # appended, without a second head
        report.flush(), report.flush()  # once more, and nothing
        assert not report.rows
        lines = list(csv.DictReader(file.open()))
    assert [row["ratio"] for row in lines] == ["1.500", "1.500", "1.500", "", "1.500", "1.500"], lines
    assert list(lines[0]) == COLUMNS
    assert lines[0]["shape"] == "2x512 of 512, 8x64" and lines[0]["target"] == "1.600" and lines[1]["target"] == "1.500"
    assert lines[3]["ours"] == "0.333" and lines[3]["peer"] == ""


if __name__ == "__main__":
    main()
