"""The operators of the packages on a GPU against torch, torch.compile, transformers' layers and Liger, in one process.

    peers.py --packages build/packages [--only "rms_norm 16384x8192,silu"] [--csv bench/results.csv --date D --commit C]

What is measured, and beside whom, each package lists in its own bench/<package>_peers.py. Each case: our op is checked against
float64 on some rows, then everybody's time is taken in turns with CUDA events over three sets of inputs, medians of five
rounds: call after call, and each call after a write that fills L2 with other lines (`cleared`). Forward runs without
autograd, backward (`_bwd`) through torch.autograd.grad on a graph that is kept, and a step (`_step`) both as a user calls
them. At the end a table of all, first what is behind the best peer or below 0.85 of a copy. Peers are the installed ones, with their versions in
every row; one that cannot be imported is left out, and said so.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.gpu_common import Cases, load_packages  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--only", type=lambda s: s.split(","), default=[], help="what holds one of these; a shape may follow the op's name")
    parser.add_argument("--rest", type=float, default=0, help="seconds before each turn: large products heat the card, which then slows down")
    parser.add_argument("--prepare", action="store_true", help="check, and compile what peers compile at a first call; no clock")
    add_flags(parser)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("expected a GPU; got none that torch can use")
    torch.manual_seed(0)
    report = Results(args, gpu())
    cases = Cases(args.only, load_packages(args.packages), report, args.rest, args.packages, args.prepare)
    for file in sorted((HERE.parent / "kernels").glob("*/bench/*_peers.py")):
        name = file.parents[1].name
        if name not in cases.ops:
            print(f"{name} is left out: no such package with CUDA kernels in {args.packages}")
            continue
        spec = importlib.util.spec_from_file_location(file.stem, file)
        package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        package.run(cases)
        torch.cuda.empty_cache()
        report.flush()
    if not args.prepare:
        cases.summary()


if __name__ == "__main__":
    main()
