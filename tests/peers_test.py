"""bench/peers.py has every op of every package, or a benchmark of the package's own has it; at least three shapes each.

    peers_test.py --packages build/packages
"""

import argparse
import importlib.util
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
# Parts of an op's name that say which of its passes it is, not which op.
PASSES = r"(_fwd|_bwd|_train|_again|_step|_decode|_varlen|_unordered|_known_reference)+_?$|_$"
# Parts of a whole decoder layer, which bench decode and decode_rows run as one.
WITH_OTHERS = {"decoder_heads", "decoder_inputs", "decoder_layer_packed", "decoder_layer_packed_rows", "decoder_layer_rows"}


class Recorder:
    """Stands in for bench.lib.gpu_common.Cases: notes each case that is offered, and runs none."""

    liger = None

    def __init__(self):
        self.ops, self.shapes = defaultdict(lambda: None), defaultdict(set)

    def wants(self, op, shape=""):
        assert shape, f"expected the shape of {op}; got none"
        self.shapes[op].add(shape)
        return False

    def wants_some(self, ops, shape):
        return any([self.wants(op, shape) for op in ops])


def recorded(file: Path) -> dict[str, set]:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recorder = Recorder()
    module.run(recorder)
    return recorder.shapes


def op_names(packages: Path) -> dict[str, list[str]]:
    found = {}
    for metadata in sorted(packages.glob("*/build/*/metadata.json")):
        package_id = json.loads(metadata.read_text())["id"]
        torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
        found.setdefault(metadata.parents[2].name, getattr(torch.ops, package_id).op_names().split())
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--packages", type=Path, required=True)
    wrong, cases = [], 0
    for package, ops in op_names(parser.parse_args().packages).items():
        bench, shapes = ROOT / "kernels" / package / "bench", defaultdict(set)
        for file in sorted(bench.glob("*_peers.py")):
            for op, some in recorded(file).items():
                cases += len(some)
                shapes[re.sub(PASSES, "", op)] |= some
                shapes[op] |= some
        own = "".join(f.read_text() for f in sorted(bench.glob("*.[cp]*")) if not f.stem.endswith("_peers"))
        for op in sorted({re.sub(PASSES, "", op) for op in ops} - WITH_OTHERS):
            there = shapes[op] or set().union(*(some for name, some in shapes.items() if name.startswith(f"{op}_")))
            if len(there) < 3 and not re.search(rf"\b{op}\b", own):
                wrong.append(f"{package}: expected {op} with three shapes in {bench.relative_to(ROOT)}; got {sorted(there)}")
    print("\n".join(wrong) or f"{cases} cases")
    sys.exit(bool(wrong) or cases < 100)


if __name__ == "__main__":
    main()
