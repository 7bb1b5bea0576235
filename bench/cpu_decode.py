"""Decoding on a CPU, every side in turns in one run: ours, an older build of ours, transformers, llama.cpp.

    cpu_decode.py --gguf FILE.gguf [--hotswap build/bin/hotswap] [--packages build/packages]
                  [--before BUILD] [--xllamacpp FOLDER] [--threads 2] [--turns 3] [--csv bench/results.csv]

bfloat16 weights of the file as a folder (gguf_folder.py): ours beside the build in BUILD and transformers. The file's own packed
weights: ours beside llama.cpp, as PyPI's package xllamacpp in FOLDER has it (pip install --target FOLDER xllamacpp), and beside
ours with the same weights dequantised, whose tokens must be the same. A prompt of 32 tokens and 64 more, one after the other; of
each side the median of its turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib import llama_cpp  # noqa: E402
from bench.lib.results import Results, add_flags  # noqa: E402
from bench.peer_transformers import NEW_TOKENS, PROMPT, ids  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def llama_side(args) -> dict:
    """Its server's own account of the time of all tokens after the first; three readings, each from an empty cache."""
    sys.path.insert(0, str(args.xllamacpp))
    server = llama_cpp.server(args.gguf, args.threads, 1, 512)
    ask = {"prompt": ids(PROMPT, args.vocab), "n_predict": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answers = [server.handle_completions(ask) for _ in range(4)][1:]
    rates = [(json.loads(a) if isinstance(a, str) else a)["timings"]["predicted_per_second"] for a in answers]
    return {"value": statistics.median(rates), "check": []}


def run(command: list, args, packages: Path | None = None) -> dict:
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if packages:
        environment["HOTSWAP_PACKAGES"] = str(packages.resolve())
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        sys.exit(f"`{' '.join(map(str, command))}` failed with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--hotswap", type=Path, default=ROOT / "build/bin/hotswap")
    parser.add_argument("--packages", type=Path, default=ROOT / "build/packages")
    parser.add_argument("--folder", type=Path, help="what gguf_folder.py made of the file before")
    parser.add_argument("--before", type=Path, help="the build folder of an older commit")
    parser.add_argument("--before-commit", default="an older build", help="what the rows call it")
    parser.add_argument("--xllamacpp", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    add_flags(parser)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--vocab", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(llama_side(args)))
        return
    report = Results(args)
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        if not args.folder:
            done = subprocess.run([sys.executable, HERE / "gguf_folder.py", args.gguf, folder], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
        args.vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        flags = ["--what", "decode", "--threads", args.threads, "--repeats", 2]
        ours, wide = ["bench", "model", *flags, "--use-kernels"], ["--model", folder, "--dtype", "bfloat16"]
        sides = {
            "bfloat16": lambda: run([args.hotswap, *ours, *wide], args, args.packages),
            "transformers": lambda: run([sys.executable, HERE / "peer_transformers.py", *flags, *wide], args),
        }
        for dtype in ("float32", "bfloat16"):
            for packed in ("on", "off"):
                more = ["--model", args.gguf, "--dtype", dtype, "--packed", packed]
                sides[f"packed {packed}, {dtype}"] = lambda more=more: run([args.hotswap, *ours, *more], args, args.packages)
        if args.before:
            sides["before"] = lambda: run([args.before / "bin/hotswap", *ours, *wide], args, args.before / "packages")
        if args.xllamacpp:
            python = [sys.executable, __file__, "--side", "llama.cpp", "--gguf", args.gguf, "--xllamacpp", args.xllamacpp]
            sides["llama.cpp"] = lambda: run([*python, "--threads", args.threads, "--vocab", args.vocab], args)
        found = {name: [] for name in sides}
        for _ in range(args.turns):
            for name, side in sides.items():
                found[name].append(side())
        rate = {name: statistics.median(one["value"] for one in all) for name, all in found.items()}
        for name, all in found.items():
            each = ", ".join(f"{one['value']:.1f}" for one in all)
            print(f"{name:24} {rate[name]:7.1f} tokens/s of {each}  ids {all[0]['check'][:8]}")
    said = {name: all[0]["check"] for name, all in found.items()}
    for dtype in ("float32", "bfloat16"):
        if said[f"packed on, {dtype}"] != said[f"packed off, {dtype}"]:
            sys.exit(f"packed weights say something else than dequantised ones, {dtype}; nothing is written")
    common = dict(kind="model", shape="SmolLM2-135M batch 1", threads=args.threads, unit="tokens/s")
    for peer, name, target in (("before", f"the same at {args.before_commit}", 1.35), ("transformers", "transformers", 2.0)):
        if peer in rate:
            report.add(what="decode", dtype="bfloat16", ours=rate["bfloat16"], peer=rate[peer], peer_name=name, target=target, **common)
    for dtype in ("float32", "bfloat16"):
        packed = rate[f"packed on, {dtype}"]
        report.add(what="decode, Q4_1 packed", dtype=dtype, ours=packed, peer=rate[f"packed off, {dtype}"], peer_name="dequantised", **common)
        if "llama.cpp" in rate:
            report.add(what="decode, Q4_1 packed", dtype=dtype, ours=packed, peer=rate["llama.cpp"], peer_name="llama.cpp (xllamacpp)", target=1.0, **common)  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
