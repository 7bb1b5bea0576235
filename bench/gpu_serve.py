"""`hotswap serve` on one GPU, each line of docs/serving.md's table beside what it is measured by, in one run.

    gpu_serve.py --hotswap build/bin/hotswap --packages build/packages --tokenizer DIR [--models qwen3 llama_8b] [--csv FILE ...]

Random weights of Qwen3-0.6B's and Llama-8B's shapes, bfloat16, greedy and on past an end of text. DIR has a tokenizer.json of a vocabulary
that fits, by which rows are held to a JSON schema. Shares of the floor: the weights once and each row's keys and values over the rate of a copy
that is measured in the same run.
"""

import argparse
import concurrent.futures
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_generate import HOST_ATTENTION, MODELS  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402
from bench.lib.serving import load, serving, write_shape  # noqa: E402

# A list that does not end before max_tokens: all rows are held to it to the end.
SCHEMA = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}, "minItems": 4000}}, "required": ["n"]}


def copy_rate() -> float:
    """Bytes read and written a second by a copy of 1 GiB."""
    import torch

    a, b = (torch.empty(1 << 29, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    times = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        b.copy_(a)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    del a, b
    torch.cuda.empty_cache()
    return 2 * (1 << 30) / sorted(times)[len(times) // 2]


def bytes_of(config: dict) -> tuple[int, int]:
    """Of all weights that a step reads, and of a token's keys and values."""
    hidden, head = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = hidden * (2 * q + 2 * kv) + 3 * hidden * config["intermediate_size"]
    return 2 * (config["num_hidden_layers"] * layer + config["vocab_size"] * hidden), 4 * config["num_hidden_layers"] * kv


class Bench:
    def __init__(self, args, name: str, folder: Path, report: Results, rate: float):
        self.args, self.name, self.folder, self.report, self.rate = args, name, folder, report, rate
        self.shape, self.config = MODELS[name]
        write_shape(self.config, folder)
        if args.tokenizer:
            for file in args.tokenizer.glob("tokenizer*.json"):
                shutil.copy(file, folder)

    def server(self, rows: int, tokens: int, *flags):
        common = ["--random-weights", "--dtype", "bfloat16", "--device", "cuda", "--served-model-name", "m"]
        return serving(self.args.hotswap, self.args.packages, self.folder, *common, "--rows", rows, "--max-model-len", tokens, *flags)

    def load(self, url: str, streams: int, prompt: int, new: int, **more) -> dict:
        got = load(self.args.hotswap, url, streams=streams, prompt_tokens=prompt, new_tokens=new, **more)
        print(f"# {self.shape} {streams} x {prompt} + {new} {more}: {json.dumps(got)}", flush=True)
        return got

    def add(self, what: str, ours: float, unit: str = "tokens/s", **more) -> None:
        self.report.add(kind="model", what=f"serve: {what}", shape=self.shape, dtype="bfloat16", ours=ours, unit=unit, **more)

    def generate(self, rows: int, prompt: int, new: int) -> float:
        """tokens/s of the C++ host's own captured steps, without a server, by the faster attention."""
        command = [self.args.hotswap, "bench", "model", self.folder, "--random-weights", "--device", "cuda", "--dtype", "bfloat16"]
        command += ["--rows", rows, "--columns", prompt, "--new-tokens", new, "--cache", "static", "--use-kernels"]

        def rate(*more) -> float:
            done = subprocess.run([str(c) for c in [*command, *more]], check=True, capture_output=True, text=True)
            return json.loads(done.stdout.strip().splitlines()[-1])["value"]

        return max(rate(), rate(*HOST_ATTENTION))

    def closed_loop(self, url: str, streams: int, target: float) -> float:
        got = self.load(url, streams, 64, 512)["value"]
        weights, token = bytes_of(self.config)
        floor = streams * self.rate / (weights + streams * token * (64 + 512 / 2))
        self.add(f"{streams} streams of 64 + 512", got, peer=floor, peer_name="its bytes by a copy", target=target)
        return got


def first_tokens(b: Bench, url: str) -> None:
    idle = b.load(url, 1, 512, 2, requests=40)["time_to_first_token_ms"]
    b.add("first token of 512, idle, median", idle["p50"], "ms", peer=20.0, peer_name="at most", target=1.0)
    most = b.load(url, 64, 512, 128)
    b.add("64 streams of 512 + 128", most["value"], peer=10000.0, peer_name="at least", target=1.0)
    rate = 0.8 * most["requests_per_second"]
    busy = b.load(url, 64, 512, 128, rate=rate, requests=500)["time_to_first_token_ms"]
    b.add(f"first token of 512, {rate:.0f} requests/s, p99", busy["p99"], "ms", peer=250.0, peer_name="at most", target=1.0)


def beside_long_prompts(b: Bench, url: str) -> None:
    """Between two events of 32 streams while prompts of 4,096 tokens come, half as many as the device could take."""
    idle = b.load(url, 8, 4096, 2, requests=48)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        rate = idle["requests_per_second"] / 2
        prompts = pool.submit(b.load, url, 1, 4096, 2, rate=rate, requests=int(6 * rate))
        time.sleep(0.3)
        between = b.load(url, 32, 64, 512, requests=64)["between_events_ms"]
        prompts.result()
    b.add(f"p99 over p50 between events, {rate:.0f} prompts of 4096 a second", between["p99"] / between["p50"], "x",
          peer=3.0, peer_name="at most", target=1.0)  # fmt: skip


def constrained(b: Bench, url: str) -> None:
    """64 rows held to a schema over 64 that are not, of requests without streams."""

    def rate(**more) -> float:
        counted, lock, end = [0], threading.Lock(), time.monotonic() + 6

        def client(index: int) -> None:
            while time.monotonic() < end:
                body = {"model": "m", "messages": [{"role": "user", "content": f"Integers, please. {index}"}], "max_tokens": 256, **more}
                request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body | {"temperature": 0}).encode(),
                                                 {"Content-Type": "application/json"})  # fmt: skip
                with urllib.request.urlopen(request) as answer:
                    answer = json.load(answer)
                text = answer["choices"][0]["message"]["content"]
                with lock:
                    counted[0] += answer["usage"]["completion_tokens"]
                    if more == held and not re.fullmatch(r'\s*\{\s*"n"\s*:\s*\[[-0-9,\s]*', text):
                        wrong.append(text)

        begin = time.monotonic()
        threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return counted[0] / (time.monotonic() - begin)

    wrong = []
    held = {"response_format": {"type": "json_schema", "json_schema": {"name": "integers", "schema": SCHEMA}}}
    pairs = [(rate(ignore_eos=True), rate(**held)) for _ in range(3)][1:]
    if wrong:
        sys.exit(f"expected the beginning of a list as the schema has it; got {wrong[0][:200]!r}")
    free, ours = (sorted(p[i] for p in pairs)[len(pairs) // 2] for i in (0, 1))
    b.add("64 rows held to a JSON schema", ours, peer=free, peer_name="not held", target=0.9)


def kept_prefix(b: Bench) -> None:
    with b.server(4, 4200, "--prefix-cache", 16384) as url:
        b.load(url, 1, 4096, 2, requests=2, shared_prompt=True)
        long = b.load(url, 1, 4096, 2, requests=30, shared_prompt=True)["time_to_first_token_ms"]["p50"]
        short = b.load(url, 1, 64, 2, requests=30)["time_to_first_token_ms"]["p50"]
    b.add("first token of 4096, all kept but a page, median", long, "ms", peer=1.3 * short + 2,
          peer_name="1.3 times that of 64 tokens, and 2 ms", target=1.0)  # fmt: skip


def small(b: Bench) -> None:
    with b.server(64, 4200) as url:
        served = b.closed_loop(url, 64, 0.4)
        one = 1e3 / b.load(url, 1, 64, 256, requests=6)["between_events_ms"]["p50"]
        first_tokens(b, url)
        beside_long_prompts(b, url)
        if b.args.tokenizer:
            constrained(b, url)
    kept_prefix(b)
    b.add("64 streams of 64 + 512", served, peer=b.generate(64, 64, 512), peer_name="generate, captured", target=0.8)
    b.add("one stream of 64 + 256 after its first token, by the median", one, peer=b.generate(1, 64, 256), peer_name="generate", target=0.97)


def large(b: Bench) -> None:
    with b.server(256, 640) as url:
        b.closed_loop(url, 256, 0.6)
        b.closed_loop(url, 64, 0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotswap", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="without it no row is held to a schema")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add_flags(parser)
    args = parser.parse_args()
    report = Results(args, gpu())
    rate = copy_rate()
    print(f"# a copy: {rate / 1e12:.2f} TB/s")
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            (small if name == "qwen3" else large)(Bench(args, name, Path(folder), report, rate))
        report.flush()


if __name__ == "__main__":
    main()
