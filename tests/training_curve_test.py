"""200 updates of a real model on real text: the held-out curve of `hotswap train` is transformers' Trainer's, within 1e-3.

    training_curve_test.py --build build --python .venv/bin/python

Of stories260k, where the folder of shared data is beside the checkout; else a line reports that (exit status 77). HOTSWAP_TEST_CURVE_MODEL names a
folder with another model, such as SmolLM2-135M, which takes a quarter of an hour on an idle core: bench/gguf_folder.py makes one of a GGUF file.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "HOTSWAP_TEST_CURVE_MODEL"


def curves(args: argparse.Namespace, layers: list[list[str]], model: Path, text: Path, *further: str) -> int:
    """How many of our curves, a list of flags for each, differ from transformers', which trains once."""
    environment = dict(os.environ, HF_HUB_OFFLINE="1", USE_HUB_KERNELS="0", OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as output:
        command = [args.python, ROOT / "bench/training_curve.py", "--model", model, "--text", text, "--output", output,
                   "--hotswap", args.build / "bin/hotswap", *further]  # fmt: skip
        side = lambda *more: subprocess.run([str(part) for part in (*command, "--side", *more)], env=environment).returncode
        failed = side("transformers")
        for flags in layers:
            print(f"{model.name} on {text.name}, {' '.join(flags) or 'stock layers'}", flush=True)
            failed += side("ours", *flags) or side("compare")
            shutil.rmtree(Path(output) / "ours", ignore_errors=True)
            (Path(output) / "ours.json").unlink(missing_ok=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    args = parser.parse_args()
    own = os.environ.get(VARIABLE)
    if not (args.data / "text").exists():
        print(f"training_curve: skipped: no {args.data}")
        sys.exit(77)
    if own:
        sys.exit(curves(args, [[]], Path(own), args.data / "text/tinyshakespeare.txt"))
    small = (args.data / "models/stories260k", args.data / "text/buster_bear.txt", "--batch", "4", "--learning-rate", "1e-3")
    failed = curves(args, [[], ["--use-kernels"]], *small)
    print(f"not tested: the curve of a larger model: {VARIABLE} names none")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
