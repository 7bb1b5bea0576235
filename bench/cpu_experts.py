"""A mixture of experts on a CPU, its GGUF weights packed beside the same dequantised: decode and prefill by CPU time.

    cpu_experts.py [--layers 2] [--gguf FILE.gguf] [--hotswap build/bin/hotswap] [--threads 1] [--turns 3]
                   [--xllamacpp FOLDER] [--csv bench/results.csv]

Layers in the shape of Qwen3-30B-A3B: 2048 wide, 8 of 128 experts of 768, 32 query and 4 key heads of 128; few of them, and a
vocabulary of 32000. Weights are random bytes in Q4_K_M's types, experts' gate and up Q4_K and down Q6_K, so ids mean nothing and
speed does not depend on them. Packed: `--packed on`; beside it the same file dequantised to bfloat16 while loading.

CPU time is user and system time of the process, of which a short run's is taken away: what loading, warming up and the other
runs of the same process take is in both. On a machine that other programs use it is steadier than the clock; with more than one
thread it counts those that wait. `--clock`: tokens a second by the clock instead. llama.cpp reads the same file, as PyPI's package
xllamacpp in FOLDER has it, by its own account of the clock, and has no row in CPU time.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib import llama_cpp  # noqa: E402
from bench.lib.results import Results, add_flags  # noqa: E402
from bench.peer_transformers import NEW_TOKENS, PREFILL, PROMPT, ids  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
HIDDEN, INNER, EXPERTS, USED, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 768, 128, 8, 32, 4, 128, 32000
BLOCKS = {"Q4_K": (256, 144, (0, 2)), "Q6_K": (256, 210, (208,)), "Q8_0": (32, 34, (0,))}  # weights, bytes, its halves
LEAST, MORE = 16, 128  # tokens of the two runs whose difference counts, prompts of prefill in hundreds


def blocks(random, kind: str, *shape: int) -> np.ndarray:
    """Codes of any bits, scales that leave products of ordinary size."""
    weights, size, halves = BLOCKS[kind]
    raw = random.integers(0, 256, (*shape[:-1], shape[-1] // weights, size), dtype=np.uint8)
    for at in halves:
        scale = random.uniform(-1e-5, 1e-5, raw.shape[:-1]).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def write_model(file: Path, layers: int) -> None:
    import gguf

    random, w = np.random.default_rng(0), gguf.GGUFWriter(file, "qwen3moe", use_temp_file=True)
    w.add_block_count(layers), w.add_context_length(4096), w.add_embedding_length(HIDDEN), w.add_feed_forward_length(6144)
    w.add_head_count(HEADS), w.add_head_count_kv(KV_HEADS), w.add_key_length(HEAD_DIM), w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(1e-6), w.add_rope_freq_base(1e6), w.add_vocab_size(VOCAB)
    w.add_expert_count(EXPERTS), w.add_expert_used_count(USED), w.add_expert_feed_forward_length(INNER)
    w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre("qwen2"), w.add_token_list([f"t{i}" for i in range(VOCAB)]), w.add_token_merges([])

    def packed(name, kind, *shape):
        w.add_tensor(f"{name}.weight", blocks(random, kind, *shape), raw_dtype=gguf.GGMLQuantizationType[kind])

    def plain(name, *shape):
        w.add_tensor(f"{name}.weight", (np.ones(shape) if len(shape) == 1 else random.normal(0, 0.02, shape)).astype(np.float32))

    packed("token_embd", "Q4_K", VOCAB, HIDDEN), packed("output", "Q6_K", VOCAB, HIDDEN), plain("output_norm", HIDDEN)
    for n in range(layers):
        at = f"blk.{n}."
        plain(f"{at}attn_norm", HIDDEN), plain(f"{at}ffn_norm", HIDDEN), plain(f"{at}attn_q_norm", HEAD_DIM), plain(f"{at}attn_k_norm", HEAD_DIM)
        packed(f"{at}attn_q", "Q4_K", HEADS * HEAD_DIM, HIDDEN), packed(f"{at}attn_k", "Q4_K", KV_HEADS * HEAD_DIM, HIDDEN)
        packed(f"{at}attn_v", "Q6_K", KV_HEADS * HEAD_DIM, HIDDEN), packed(f"{at}attn_output", "Q4_K", HIDDEN, HEADS * HEAD_DIM)
        plain(f"{at}ffn_gate_inp", EXPERTS, HIDDEN)
        packed(f"{at}ffn_gate_exps", "Q4_K", EXPERTS, INNER, HIDDEN), packed(f"{at}ffn_up_exps", "Q4_K", EXPERTS, INNER, HIDDEN)
        packed(f"{at}ffn_down_exps", "Q6_K", EXPERTS, HIDDEN, INNER)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def run(args, packed: str, *flags) -> tuple[float, dict]:
    """CPU seconds of the process, and its line."""
    command = [args.hotswap, "bench", "model", "--use-kernels", "--dtype", "bfloat16", "--packed", packed, "--model", args.gguf]
    command += ["--threads", args.threads, "--repeats", 1, *flags]
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1", HOTSWAP_PACKAGES=str(args.packages.resolve()))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"`{' '.join(map(str, command))}` failed with {done.returncode}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(done.stdout.strip().splitlines()[-1])


def rate(args, what: str, packed: str) -> tuple[float, dict]:
    if args.clock:
        line = run(args, packed, "--what", what, *(["--columns", PREFILL] if what == "prefill" else []))[1]
        return line["value"], line
    flag, scale, runs = ("--new-tokens", 1, 1) if what == "decode" else ("--columns", 4, 2)  # a prefill warms up and runs once
    short, _ = run(args, packed, "--what", what, flag, LEAST * scale)
    long, line = run(args, packed, "--what", what, flag, MORE * scale)
    return runs * (MORE - LEAST) * scale / (long - short), line


def llama_side(args) -> dict:
    sys.path.insert(0, str(args.xllamacpp))
    server = llama_cpp.server(args.gguf, args.threads, 1, PREFILL + NEW_TOKENS)
    found = {}
    for what, prompt, key in (("decode", PROMPT, "predicted_per_second"), ("prefill", PREFILL, "prompt_per_second")):
        query = {"prompt": ids(prompt, VOCAB), "n_predict": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        answers = [server.handle_completions(query) for _ in range(args.turns + 1)][1:]
        found[what] = statistics.median((json.loads(a) if isinstance(a, str) else a)["timings"][key] for a in answers)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--gguf", type=Path, help="written where it is not there; default: a temporary one")
    parser.add_argument("--hotswap", type=Path, default=ROOT / "build/bin/hotswap")
    parser.add_argument("--packages", type=Path, default=ROOT / "build/packages")
    parser.add_argument("--xllamacpp", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--clock", action="store_true")
    add_flags(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        args.gguf = args.gguf or Path(made) / "experts.gguf"
        if not args.gguf.exists():
            write_model(args.gguf, args.layers)
        report = Results(args)
        unit = "tokens/s" if args.clock else "tokens/CPU s"
        shape = f"Qwen3-30B-A3B, {args.layers} layers, random weights"
        theirs = llama_side(args) if args.xllamacpp else {}
        for what in ("decode", "prefill"):
            found = {packed: [] for packed in ("on", "off")}
            for _ in range(args.turns):
                for packed, all in found.items():
                    all.append(rate(args, what, packed))
            median = {packed: statistics.median(value for value, _ in all) for packed, all in found.items()}
            memory = {packed: all[0][1].get("loaded_memory", all[0][1].get("memory", "")) for packed, all in found.items()}
            print(f"{what}: packed {median['on']:.2f}, dequantised {median['off']:.2f} {unit}, {median['on'] / median['off']:.2f}x; memory {memory}", flush=True)
            common = dict(kind="model", shape=shape, dtype="bfloat16", threads=args.threads, unit=unit)
            report.add(what=f"{what}, experts packed Q4_K", ours=median["on"], peer=median["off"], peer_name="dequantised", **common)
            if what in theirs:
                if args.clock:
                    report.add(what=f"{what}, experts packed Q4_K", ours=median["on"], peer=theirs[what], peer_name="llama.cpp (xllamacpp)", target=1.15, **common)
                else:
                    print(f"{what}: llama.cpp {theirs[what]:.2f} tokens/s by its own clock")
        report.write()


if __name__ == "__main__":
    main()
