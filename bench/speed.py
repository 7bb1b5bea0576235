"""Every claim about speed and memory, ours and the peer's side by side in one run; how: bench/METHOD.md.

    speed.py --build build --gguf FILE [--only ops,loss,model] [--filter TEXT] [--threads 1,2] [--quick] [--dry-run]
             [--out FILE]

Ends with what missed its target, and exits 0 all the same: a measurement is not a test. A wrong value is a failure.
Rows are appended to bench/results.csv, unless --dry-run.
"""

import argparse
import csv
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = (
    "date commit machine cpus cpu_features torch load kind what shape dtype threads ours stock peer peer_name".split()
)
COLUMNS += ["unit", "ratio", "target", "memcpy_share"]
# On a GPU: each call after a write that fills L2 with other lines; bytes over what was there before the call.
COLUMNS += ["ours_cleared", "peer_cleared", "ours_memory", "peer_memory"]

# Ratios to the peer that we mean to reach; what is not named here: never slower than 0.95.
OP_TARGETS = dict.fromkeys(("rms_norm", "add_rms_norm"), 6)
OP_TARGETS |= dict.fromkeys(("silu_and_mul", "swiglu", "swiglu_packed"), 2.5)
OP_TARGETS |= dict.fromkeys(("gelu", "gelu_tanh", "gelu_new", "gelu_fast", "gelu_quick", "rotary", "rotary_"), 3)
OP_TARGETS |= {"cross_entropy": 1.5, "linear_cross_entropy": 1.3, "linear_cross_entropy_fwd_bwd": 1.3}
MODEL_TARGETS = {("decode", "float32"): 1.5, ("decode", "bfloat16"): 2.0, ("train", "float32"): 1.2}
MODEL_TARGETS |= {("prefill", dtype): 1.1 for dtype in ("float32", "bfloat16")}
FLOOR = 0.95


def run(command: list, threads: int | None = None) -> str:
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, env=environment, timeout=600)
    if done.returncode:
        sys.exit(f"speed: `{' '.join(map(str, command))}` failed with {done.returncode}")
    return done.stdout


def provenance() -> dict:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", HERE, *arguments], capture_output=True, text=True).stdout.strip()

    info = Path("/proc/cpuinfo").read_text()
    field = lambda name: next((l.split(":", 1)[1].strip() for l in info.split("\n") if l.startswith(name)), "unknown")
    flags = set(field("flags").split())
    features = [f for f in ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16") if f in flags]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else ""),
        "machine": field("model name"),
        "cpus": os.cpu_count(),
        "cpu_features": " ".join(features),
        "torch": run([sys.executable, "-c", "import importlib.metadata as m; print(m.version('torch'))"]).strip(),
        "load": round(os.getloadavg()[0], 1),
    }


class Report:
    """Rows as they come, printed at once, written at the end."""

    def __init__(self, common: dict):
        self.common, self.rows, self.failed = common, [], 0

    def add(self, **row) -> None:
        row["ratio"] = round(row["ratio"], 3)
        self.rows.append({**self.common, **row})
        target = row.get("target", "")
        verdict = "" if target == "" else "  ok" if row["ratio"] >= target else "  MISSED"
        shown = f"{row['kind']:6} {row['what']:26} {row['shape']:22} {row['dtype']:9} {row['threads']} threads"
        share = f", {float(row['memcpy_share']):.0%} of memcpy" if row.get("memcpy_share") else ""
        print(f"{shown}  {row['ratio']:7.2f}x  (wanted {target}){verdict}{share}", flush=True)

    def write(self, file: Path) -> None:
        fresh = not file.exists() or file.stat().st_size == 0
        with open(file, "a", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows(self.rows)


def measure_ops(args, report: Report) -> None:
    programs = sorted(p for p in (args.build / "bin").glob("*_bench") if not p.name.endswith("_cuda_bench"))
    if not programs:
        sys.exit(f"speed: wanted *_bench programs in {args.build}/bin; got none; run ./x build")
    for program in programs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ops.csv"
            threads = ",".join(map(str, args.threads))
            command = [program, "--csv", file, "--threads", threads, "--filter", args.filter]
            done = subprocess.run(command + ["--quick"] * args.quick, stdout=subprocess.DEVNULL)
            rows = list(csv.DictReader(file.open())) if file.exists() else []
        report.failed += done.returncode != 0
        for row in rows:
            report.add(
                kind="op", what=row["what"], shape=row["shape"], dtype=row["dtype"], threads=int(row["threads"]),
                unit="us", ours=row["ours"], peer=row["peer"], peer_name=row["peer_name"], ratio=float(row["ratio"]),
                target=OP_TARGETS.get(row["what"], FLOOR), memcpy_share=row["memcpy_share"],
            )  # fmt: skip


def measure_loss_memory(args, report: Report) -> None:
    """Linear cross-entropy with gradients at SmolLM2's vocabulary: what the process needs on top of its inputs."""
    library = next((args.build / "packages/loss/build").glob("*/*.abi3.so"))
    rows, dim, vocab = (1024 if args.quick else 4096), 576, 49152
    sides = {}
    for side in ("ours", "eager"):
        command = [sys.executable, HERE / "loss_memory.py", "--side", side, "--library", library, "--rows", rows]
        sides[side] = json.loads(run(command, max(args.threads)))
    if abs(sides["ours"]["loss"] - sides["eager"]["loss"]) > 1e-3:
        sys.exit(f"speed: linear cross-entropy gives different losses: {sides}")
    ours, eager = sides["ours"]["extra_memory"], sides["eager"]["extra_memory"]
    report.add(
        kind="memory", what="linear_cross_entropy+grad", shape=f"{rows}x{dim} @ {dim}x{vocab}", dtype="float32",
        threads=max(args.threads), unit="bytes", ours=ours, peer=eager, peer_name="torch eager",
        ratio=eager / ours, target=4,
    )  # fmt: skip


def same_answer(what: str, dtype: str, ours: list, peer: list) -> bool:
    if what == "train":  # rounding grows from step to step: the first loss is the exact one
        return abs(ours[0] - peer[0]) <= 1e-4 * max(1, abs(peer[0]))
    # Greedy tokens of both sides may part where two logits are closer than the rounding; never at once, in float32.
    return dtype == "bfloat16" or ours[:4] == peer[:4]


def measure_model(args, report: Report) -> None:
    folder = args.build / "bench/smollm2"
    if not (folder / "config.json").exists():
        run([sys.executable, HERE / "gguf_folder.py", args.gguf, folder])
    cases = [(what, dtype) for what in ("decode", "prefill") for dtype in ("float32", "bfloat16")]
    cases.append(("train", "float32"))
    for threads in args.threads:
        for what, dtype in cases:
            if what == "train" and threads != max(args.threads) and args.quick:
                continue
            repeats = 1 if args.quick else 2
            flags = ["--model", folder, "--what", what, "--dtype", dtype, "--threads", threads, "--repeats", repeats]
            ours_command = [args.build / "bin/hotswap", "bench", "model", *flags]
            ours = json.loads(run([*ours_command, "--use-kernels"], threads))
            peer = json.loads(run([sys.executable, HERE / "peer_transformers.py", *flags], threads))
            stock = json.loads(run(ours_command, threads))
            if not same_answer(what, dtype, ours["check"], peer["check"]):
                sys.exit(f"speed: {what} {dtype}: different answers: {ours['check'][:8]}, {peer['check'][:8]}")
            common = dict(shape="SmolLM2-135M batch 2x256" if what == "train" else "SmolLM2-135M batch 1")
            common |= dict(dtype=dtype, threads=threads, peer_name="transformers")
            report.add(
                kind="model", what=what, unit="tokens/s", ours=round(ours["value"], 2), stock=round(stock["value"], 2),
                peer=round(peer["value"], 2), ratio=ours["value"] / peer["value"], target=MODEL_TARGETS[what, dtype],
                **common,
            )  # fmt: skip
            report.add(
                kind="model", what=f"{what}, peak memory", unit="bytes", ours=ours["peak_memory"],
                stock=stock["peak_memory"], peer=peer["peak_memory"], ratio=peer["peak_memory"] / ours["peak_memory"],
                target=round(1 / 0.7, 3) if what == "train" else "", **common,
            )  # fmt: skip


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--only", default="ops,loss,model")
    parser.add_argument("--filter", default="", help="only operators whose name holds this")
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="default 1,2")
    parser.add_argument("--quick", action="store_true", help="shorter measurements, for trying the script itself")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    args = parser.parse_args()
    args.build = args.build.resolve()
    common = provenance()
    if common["load"] > 0.5:
        print(f"speed: the machine is not quiet (load {common['load']}): the rows will say so", file=sys.stderr)
    report = Report(common)
    for name, measure in (("ops", measure_ops), ("loss", measure_loss_memory), ("model", measure_model)):
        if name in args.only.split(","):
            measure(args, report)
    missed = [r for r in report.rows if r.get("target", "") != "" and r["ratio"] < r["target"]]
    print(f"{len(report.rows)} rows, {len(missed)} below their target")
    for row in missed:
        name = f"{row['what']} {row['shape']} {row['dtype']} {row['threads']} threads"
        print(f"  {name}: {row['ratio']:.2f} of {row['target']}")
    if report.failed:
        sys.exit(f"speed: {report.failed} benchmarks failed their check: nothing written")
    if not args.dry_run:
        report.write(args.out)
        print(f"written to {args.out}")


if __name__ == "__main__":
    main()
