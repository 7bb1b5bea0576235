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
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_generate import MODELS, random_model  # noqa: E402
from bench.gpu_llama import PORT, Server, write_gguf  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402
from bench.lib.serving import load, serving, write_shape  # noqa: E402


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
        write_shape(model.config.to_dict(), folder / "shape")
        del model
        torch.cuda.empty_cache()
        theirs = Server(args.server.resolve(), folder / "model.gguf", args.streams, args.prompt + args.new_tokens + 1, "--no-kv-unified")
        try:
            theirs.wait(120)
            flags = ["--random-weights", "--dtype", "bfloat16", "--device", "cuda", "--rows", args.streams, "--served-model-name", "m"]
            flags += ["--max-model-len", args.prompt + args.new_tokens + 1]
            with serving(args.hotswap, args.packages, folder / "shape", *flags) as url:
                found: dict[str, list[float]] = {url: [], f"http://127.0.0.1:{PORT}": []}
                options = {"streams": args.streams, "prompt_tokens": args.prompt, "new_tokens": args.new_tokens}
                for side in found:  # graphs are captured, memory grows
                    load(args.hotswap, side, requests=args.streams, **options)
                for _ in range(args.turns):
                    for side, rates in found.items():
                        row = load(args.hotswap, side, requests=2 * args.streams, **options)
                        rates.append(row["value"])
                        print("ours     " if side == url else "llama.cpp", json.dumps(row), flush=True)
        finally:
            theirs.stop()
    here, there = (statistics.median(rates) for rates in found.values())
    report.add(kind="model", what=f"serve: {args.streams} streams of {args.prompt} + {args.new_tokens} tokens",
               shape=f"{MODELS[args.model][0]} {args.streams}", dtype="bfloat16", ours=here, peer=there,
               peer_name="llama.cpp's server by CUDA", unit="tokens/s", target=2.0)  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
