"""What the benchmarks in Python share: who measured when and where, a line a row, and the rows of results.csv.

    results.add_flags(parser)                        # --csv FILE --date D --commit C
    report = Results(args)                           # on a GPU: Results(args, **gpu())
    report.add(kind="op", what="rms_norm", shape="16384x4096", dtype="bfloat16", ours=69.2, peer=69.0,
               peer_name="Liger; 0.8.5", unit="us", target="")
    report.write()                                   # nothing without --csv; flush(): as they come, in a long run

kernels/common/testing/results.h does the same for the benchmarks of packages in C++.
"""

import argparse
import csv
import datetime
import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = "a copy of the same bytes"
COLUMNS = (
    "date commit machine cpus cpu_features torch load kind what shape dtype threads ours stock peer peer_name".split()
)
COLUMNS += ["unit", "ratio", "target", "memcpy_share"]
# On a GPU: each call after a write that fills L2 with other lines; bytes over what was there before the call.
COLUMNS += ["ours_cleared", "peer_cleared", "ours_memory", "peer_memory"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", type=Path, help="append the rows here; default: print only")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"))
    parser.add_argument("--commit", help="where git cannot say it")


def commit() -> str:
    if not shutil.which("git"):
        return ""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def cpu() -> dict:
    info = Path("/proc/cpuinfo").read_text()
    field = lambda name: next((l.split(":", 1)[1].strip() for l in info.split("\n") if l.startswith(name)), "unknown")
    flags = set(field("flags").split())
    features = [f for f in ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16") if f in flags]
    return {"machine": field("model name"), "cpus": os.cpu_count(), "cpu_features": " ".join(features),
            "load": round(os.getloadavg()[0], 1)}  # fmt: skip


def gpu() -> dict:
    import torch

    return {"machine": torch.cuda.get_device_name()}


def is_floor(peer: str) -> bool:
    """No peer: ours by another option, only the products of the result, or a copy."""
    return peer.startswith("ours") or "products" in peer or peer == COPY


def rounded(value):
    """Three digits behind the point of what is measured; counts and text as they are."""
    return f"{value:.3f}" if isinstance(value, float) else value


class Results:
    """Rows as they come, a line each. Written at the end, a run that dies leaves no half of itself in the file; by flush(), one that
    is cut off keeps what it has measured."""

    def __init__(self, args: argparse.Namespace, machine: dict | None = None):
        version = importlib.metadata.version("torch").split("+")[0]
        self.file, self.rows = args.csv, []
        self.common = {"date": args.date, "commit": args.commit or commit(), "torch": version, **(machine or cpu())}

    def add(self, *, ours, peer="", unit: str, target="", **row) -> dict:
        """The ratio, where none is given, is how much better ours is: of times and bytes theirs over ours, of rates
        (".../s") ours over theirs. A target that is a number is one of the ratio; text says what else was meant."""
        row |= dict(ours=ours, peer=peer, unit=unit, target=target)
        if peer != "":
            a, b = float(ours), float(peer)
            row["ratio"] = round(row.get("ratio", a / b if unit.endswith("/s") else b / a), 3)
        self.rows.append({**self.common, **row})
        print(shown(row), flush=True)
        return row

    def missed(self) -> list[dict]:
        return [r for r in self.rows if isinstance(r["target"], (int, float)) and r["ratio"] < r["target"]]

    def write(self) -> None:
        if not self.file:
            return
        fresh = not self.file.exists() or self.file.stat().st_size == 0
        with open(self.file, "a", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows({key: rounded(value) for key, value in row.items()} for row in self.rows)
        print(f"{len(self.rows)} rows appended to {self.file}")

    def flush(self) -> None:
        """Writes the rows that have come since the last one, if any."""
        if self.rows:
            self.write()
            self.rows.clear()


def shown(row: dict) -> str:
    place = f"{row['kind']:6} {row['what']:26} {row.get('shape', ''):22} {row.get('dtype', ''):9}"
    threads = f" {row['threads']} threads" if row.get("threads") else ""
    cleared = f" (cleared {rounded(row['ours_cleared'])})" if row.get("ours_cleared") else ""
    text = f"{place}{threads}  ours {rounded(row['ours'])}{cleared} {row['unit']}"
    if "ratio" in row:
        theirs = f" (cleared {rounded(row['peer_cleared'])})" if row.get("peer_cleared") else ""
        text += f"  {row['peer_name']} {rounded(row['peer'])}{theirs}  {row['ratio']:.2f}x"
    if isinstance(row["target"], (int, float)):
        text += f"  (expected {row['target']}){'  ok' if row['ratio'] >= row['target'] else '  MISSED'}"
    share = f", {float(row['memcpy_share']):.0%} of a copy" if row.get("memcpy_share") else ""
    return text + share
