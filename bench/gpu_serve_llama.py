"""`hotswap serve` beside llama.cpp's server by CUDA on one GPU: the same shape, bfloat16, the same load, alternately.

    gpu_serve_llama.py --server DIR/bin/llama-server --hotswap build/bin/hotswap --packages build/packages
                       [--model qwen3] [--streams 64] [--prompt 64] [--new-tokens 512] [--turns 2] [--csv FILE ...]

llama.cpp has no wheel with CUDA: its server is built on the machine (cmake -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90). Weights are
random on both sides, theirs in a GGUF file as in gpu_llama.py. Both servers run all the time, and `hotswap bench serve` loads one after
the other, greedily and on past an end of text; of each the median of its turns. Theirs has a slot for each stream with memory of its own, which
is the faster of its two ways.
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
from bench.gpu_generate import MODELS, random_model  # noqa: E402
from bench.gpu_llama import PORT, Server, write_gguf  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402
from bench.serve_peers import load  # noqa: E402


def write_folder(config, folder: Path) -> None:
    """config.json, and a tokenizer of as many made-up words."""
    words = {f"w{i}": i for i in range(config.vocab_size)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    parts = {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], **parts, "model": model}
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


class Ours:
    def __init__(self, args, folder: Path):
        environment = os.environ | {"HOTSWAP_PACKAGES": str(args.packages.resolve())}
        command = [args.hotswap, "serve", folder, "--random-weights", "--dtype", "bfloat16", "--device", "cuda", "--port", "0"]
        command += ["--rows", args.streams, "--max-model-len", args.prompt + args.new_tokens + 1, "--served-model-name", "m"]
        self.process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            sys.exit(f"expected `listening on URL` from `hotswap serve`; got {line!r}")
        self.url = line.split()[-1]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="llama.cpp's llama-server")
    parser.add_argument("--hotswap", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="qwen3")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the file of weights; default: one for temporary files")
    add_flags(parser)
    args = parser.parse_args()
    args.attn = None
    report = Results(args, gpu())
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        model = random_model(args)
        write_gguf(model, folder / "model.gguf")
        (folder / "shape").mkdir()
        write_folder(model.config, folder / "shape")
        del model
        torch.cuda.empty_cache()
        theirs = Server(args.server.resolve(), folder / "model.gguf", args.streams, args.prompt + args.new_tokens + 1, "--no-kv-unified")
        try:
            theirs.wait(120)
            ours = Ours(args, folder / "shape")
            found: dict[str, list[float]] = {ours.url: [], f"http://127.0.0.1:{PORT}": []}
            for url in found:  # graphs are captured, memory grows
                load(args, url, args.streams, args.prompt, args.new_tokens)
            for _ in range(args.turns):
                for url, rates in found.items():
                    row = load(args, url, 2 * args.streams, args.prompt, args.new_tokens)
                    rates.append(row["value"])
                    print("ours     " if url == ours.url else "llama.cpp", json.dumps(row), flush=True)
            ours.stop()
        finally:
            theirs.stop()
    here, there = (statistics.median(rates) for rates in found.values())
    report.add(kind="model", what=f"serve: {args.streams} streams of {args.prompt} + {args.new_tokens} tokens",
               shape=f"{MODELS[args.model][0]} {args.streams}", dtype="bfloat16", ours=here, peer=there,
               peer_name="llama.cpp's server by CUDA", unit="tokens/s", target=2.0)  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
