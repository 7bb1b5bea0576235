"""`hotswap serve` beside llama.cpp's server on a CPU: the same bfloat16 weights from one GGUF file, the same load, alternately.

    serve_peers.py --gguf FILE.gguf [--hotswap build/bin/hotswap] [--packages build/packages] [--threads 2] [--streams 4]
                   [--turns 3] [--csv bench/results.csv]

With PyPI's packages gguf and xllamacpp, whose server is llama.cpp's (pip install --target FOLDER gguf xllamacpp, and
PYTHONPATH=FOLDER). Both servers run all the time, and `hotswap bench serve` loads one after the other; of each the median of
its turns. FILE's tensors of two dimensions are written as bfloat16 first, whatever they are packed as. Before the clock both
answer one prompt greedily, and their texts have to begin alike.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib import llama_cpp  # noqa: E402
from bench.lib.results import Results, add_flags  # noqa: E402
from bench.lib.serving import load, serving  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def write_bfloat16(source: Path, target: Path) -> None:
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        bits = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(tensor.name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextlib.contextmanager
def llama(args, model: Path):
    """In a process of its own, so that no thread of it runs in this one."""
    command = [sys.executable, __file__, "--llama-side", "--gguf", model, "--threads", args.threads, "--streams", args.streams]
    server = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for line in server.stdout:
            if line.startswith("listening on "):
                break
        else:
            sys.exit("llama.cpp's server ended before it listened")
        yield line.split()[-1]
    finally:
        server.stdin.close()
        server.wait(60)


def llama_side(args) -> None:
    running = llama_cpp.server(args.gguf, args.threads, args.streams, 1024 * args.streams)
    print("listening on", running.listening_address, flush=True)
    sys.stdin.read()


def greedy(url: str) -> str:
    body = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["text"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--hotswap", type=Path, default=ROOT / "build/bin/hotswap")
    parser.add_argument("--packages", type=Path, default=ROOT / "build/packages")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--flags", type=lambda s: s.split(), default=[], help="further flags of `hotswap serve`, in one word")
    parser.add_argument("--llama-side", action="store_true", help=argparse.SUPPRESS)
    add_flags(parser)
    args = parser.parse_args()
    if args.llama_side:
        return llama_side(args)
    report = Results(args)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bfloat16.gguf"
        write_bfloat16(args.gguf, model)
        flags = ["--rows", args.streams, "--device", "cpu", "--dtype", "bfloat16", *args.flags]
        ours = serving(args.hotswap, args.packages, model, *flags, OMP_NUM_THREADS=str(args.threads))
        with ours as here, llama(args, model) as there:
            texts = greedy(here), greedy(there)
            print("ours     :", texts[0], "\nllama.cpp:", texts[1])
            if texts[0][:12] != texts[1][:12]:
                sys.exit("expected the same beginning of both answers")
            found = {here: [], there: []}
            for _ in range(args.turns):
                for url in found:
                    options = {"streams": args.streams, "requests": 4 * args.streams, "prompt_tokens": 64, "new_tokens": 128}
                    found[url].append(load(args.hotswap, url, **options))
                    print("ours     " if url == here else "llama.cpp", json.dumps(found[url][-1]), flush=True)
    rate = {url: statistics.median(r["value"] for r in rows) for url, rows in found.items()}
    report.add(kind="model", what=f"serve: {args.streams} streams of 64 + 128 tokens", shape=args.gguf.stem, dtype="bfloat16",
               threads=args.threads, ours=rate[here], peer=rate[there], peer_name="llama.cpp's server (xllamacpp)", unit="tokens/s",
               target=1.0)  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
