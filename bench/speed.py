"""Every claim about speed and memory, ours and the peer's side by side in one run; how: bench/METHOD.md.

    speed.py --build build --gguf FILE [--only ops,loss,model] [--filter TEXT] [--threads 1,2] [--quick]
             [--csv FILE]

Ends with what missed its target, and exits 0 all the same: a measurement is not a test. A wrong value is a failure.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import Results, add_flags  # noqa: E402

HERE = Path(__file__).resolve().parent
MODEL_TARGETS = {("decode", "float32"): 1.5, ("decode", "bfloat16"): 2.0, ("train", "float32"): 1.2}
MODEL_TARGETS |= {("prefill", dtype): 1.1 for dtype in ("float32", "bfloat16")}


def run(command: list, threads: int | None = None) -> str:
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, env=environment, timeout=600)
    if done.returncode:
        sys.exit(f"speed: `{' '.join(map(str, command))}` failed with {done.returncode}")
    return done.stdout


def measure_ops(args, report: Results) -> list[str]:
    """The programs that found a wrong value."""
    failed = []
    programs = sorted(p for p in (args.build / "bin").glob("*_bench") if not p.name.endswith("_cuda_bench"))
    if not programs:
        sys.exit(f"speed: expected *_bench programs in {args.build}/bin; got none; run ./x build")
    for program in programs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ops.csv"
            threads = ",".join(map(str, args.threads))
            command = [program, "--csv", file, "--threads", threads, "--filter", args.filter]
            done = subprocess.run(command + ["--quick"] * args.quick, stdout=subprocess.DEVNULL)
            rows = list(csv.DictReader(file.open())) if file.exists() else []
        if done.returncode:
            failed.append(program.name)
        for row in rows:
            said = {key: row[key] for key in ("kind", "what", "shape", "dtype", "threads", "unit", "peer_name", "memcpy_share")}
            report.add(ours=row["ours"], peer=row["peer"], target=float(row["target"]), **said)
    return failed


def measure_loss_memory(args, report: Results) -> None:
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
        threads=max(args.threads), unit="bytes", ours=ours, peer=eager, peer_name="torch eager", target=4,
    )  # fmt: skip


def same_answer(what: str, dtype: str, ours: list, peer: list) -> bool:
    if what == "train":  # rounding grows from step to step: the first loss is the exact one
        return abs(ours[0] - peer[0]) <= 1e-4 * max(1, abs(peer[0]))
    # Greedy tokens of both sides may part where two logits are closer than the rounding; never at once, in float32.
    return dtype == "bfloat16" or ours[:4] == peer[:4]


def measure_model(args, report: Results) -> None:
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
                peer=round(peer["value"], 2), target=MODEL_TARGETS[what, dtype],
                **common,
            )  # fmt: skip
            report.add(
                kind="model", what=f"{what}, peak memory", unit="bytes", ours=ours["peak_memory"],
                stock=stock["peak_memory"], peer=peer["peak_memory"],
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
    add_flags(parser)
    args = parser.parse_args()
    args.build = args.build.resolve()
    report = Results(args)
    if report.common["load"] > 0.5:
        print(f"speed: the machine is not quiet (load {report.common['load']}): the rows will say so", file=sys.stderr)
    wanted, failed = args.only.split(","), []
    if "ops" in wanted:
        failed = measure_ops(args, report)
    if "loss" in wanted:
        measure_loss_memory(args, report)
    if "model" in wanted:
        measure_model(args, report)
    missed = report.missed()
    print(f"{len(report.rows)} rows, {len(missed)} below their target")
    for row in missed:
        name = f"{row['what']} {row['shape']} {row['dtype']} {row['threads']} threads"
        print(f"  {name}: {row['ratio']:.2f} of {row['target']}")
    if failed:
        sys.exit(f"speed: wrong values in {', '.join(failed)}: nothing written")
    report.write()


if __name__ == "__main__":
    main()
