"""A whole state-space model with random weights, stock and with our kernels: a training step, a prompt, and a token of generation
behind it.

    HOTSWAP_PACKAGES=build/packages python -m bench mamba_model [--model mamba2] [--layers N] [--csv FILE]
    HOTSWAP_PACKAGES=build/packages python -m bench mamba_model --device cuda [--hotswap build/bin/hotswap]

On the CPU: transformers in float32 on one thread, stock and ours by turns, in the shape of state-spaces/mamba-130m or of a Mamba-2
of that size. On a GPU: transformers in bfloat16 in the shape of mamba-1.4b or mamba2-1.3b, first stock and then the same model
swapped: its training without checkpoints where memory allows and with them, prompt and generation at each of --batch. Where
mamba_ssm and causal_conv1d can be imported transformers takes their kernels, and the rows say so; --mamba-ssm FOLDER, where they
are, has both: a process of its own is a peer more. With --hotswap the C++ host by kernels beside it, which has no checkpoints; with
--stock-host its stock layers too (its stock Mamba-2 keeps too much to train). --large is a training step that transformers' loops
are not asked for.

Random weights in bfloat16 let 48 layers of roundings grow: no two programs agree on logits or ids. So the stock model in float32,
with the same weights, is what both are held against: ours must be as near to it as stock is. That is little (either is 0.7 of the
logits off in mamba2-1.3b's shape): what the kernels compute is what tests say.
"""

import argparse
import copy
import gc
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

import hotswap

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_model import arbitrary_ids  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402

SIZES = dict(vocab_size=50280, hidden_size=768, num_hidden_layers=24)
MODELS = {
    "mamba": lambda **changes: transformers.MambaForCausalLM(
        transformers.MambaConfig(**SIZES | changes, state_size=16, expand=2, time_step_rank=48)
    ),
    "mamba2": lambda **changes: transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(**SIZES | changes, state_size=128, num_heads=24, head_dim=64, n_groups=1, chunk_size=256)
    ),
}
LARGE = {  # on a GPU: state-spaces/mamba-1.4b and mamba2-1.3b, as their config.json
    "mamba": dict(
        model_type="mamba", architectures=["MambaForCausalLM"], vocab_size=50280, hidden_size=2048, num_hidden_layers=48,
        state_size=16, intermediate_size=4096, expand=2, conv_kernel=4, time_step_rank=128, use_mambapy=False,
        residual_in_fp32=True, dtype="bfloat16", bos_token_id=0, eos_token_id=0, pad_token_id=0,
    ),
    "mamba2": dict(
        model_type="mamba2", architectures=["Mamba2ForCausalLM"], vocab_size=50288, hidden_size=2048, num_hidden_layers=48,
        state_size=128, num_heads=64, head_dim=64, n_groups=1, expand=2, conv_kernel=4, chunk_size=256, residual_in_fp32=True,
        tie_word_embeddings=True, dtype="bfloat16", bos_token_id=0, eos_token_id=0, pad_token_id=0,
    ),
}  # fmt: skip
NAMES = {"mamba": "mamba-1.4b", "mamba2": "mamba2-1.3b"}
PEER = "transformers, mamba-ssm" if importlib.util.find_spec("mamba_ssm") else "transformers"
KERNELS = "causal_conv1d", "mamba_ssm.ops.selective_scan_interface", "mamba_ssm.ops.triton.ssd_combined"
AS_NEAR = 1.1  # our distance from float32 over stock's: two draws of the same roundings are within a few percent of each other
WARM = 1
SHORT = 32  # tokens of that warm step where a loop of Python goes through them, 10 s for 256
FULL = " checkpointed", ""


def seconds(call) -> float:
    """On the CPU of processor time, on one thread: what else runs on the machine does not count."""
    clock = time.process_time
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        clock = time.perf_counter
    start = clock()
    call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clock() - start


def training(m, ids):
    m.train()
    m.zero_grad(set_to_none=True)
    m(input_ids=ids, labels=ids, use_cache=False).loss.backward()


@torch.no_grad()
def prompt(m, ids):
    m.eval()
    return m(input_ids=ids, use_cache=True, logits_to_keep=1).cache_params


@torch.no_grad()
def generation(m, ids, cache, tokens):
    for _ in range(tokens):
        m(input_ids=ids[:, :1], cache_params=cache, use_cache=True)


@torch.no_grad()
def captured_generation(m, ids, tokens) -> float:
    """Seconds of the same steps of a custom loop that replays one from a graph."""
    cache, token, stream = prompt(m, ids), ids[:, :1].clone(), torch.cuda.Stream()
    step = lambda: m(input_ids=token, cache_params=cache, use_cache=True).logits
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(), step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    graph.replay()
    return seconds(lambda: [graph.replay() for _ in range(tokens)])


def on_cpu(args, report) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stock = MODELS[args.model](num_hidden_layers=args.layers)
    ours = hotswap.kernelize(copy.deepcopy(stock))
    ids = torch.randint(0, SIZES["vocab_size"], (1, args.length))
    with torch.no_grad():
        want, got = (m.eval()(ids).logits for m in (stock, ours))
    assert (got - want).norm() <= 1e-4 * want.norm(), "the two compute different things"
    cases = {
        "training step": lambda m: seconds(lambda: training(m, ids)),
        "prompt": lambda m: seconds(lambda: prompt(m, ids)),
        "token": lambda m: (lambda cache: seconds(lambda: generation(m, ids, cache, args.tokens)) / args.tokens)(prompt(m, ids)),
    }
    for what, took in cases.items():
        best = {}
        for _ in range(args.turns):
            for name, m in (("ours", ours), ("peer", stock)):
                best[name] = min(best.get(name, float("inf")), took(m))
        report.add(
            kind="model", what=f"{args.model} {what}", shape=f"1x{args.length}, {args.layers} layers", dtype="float32",
            threads=1, unit="ms", peer_name=PEER, **{k: v * 1e3 for k, v in best.items()},
        )  # fmt: skip


def train_rate(m, args, ids, warm, kept, found) -> None:
    """found[what, shape] = tokens/s, and the bytes of a training step at its peak."""
    if kept:
        m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        m.gradient_checkpointing_disable()
    gc.collect(), torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    shape = f"{ids.shape[0]}x{ids.shape[1]}{kept}"
    try:
        times = [seconds(lambda: training(m, which)) for which in [warm] * WARM + [ids] * found.turns][WARM:]
    except torch.OutOfMemoryError:
        print(f"no memory for a training step of {shape}")
        return
    found["training step", shape] = ids.numel() / statistics.median(times)
    found["peak memory", shape] = torch.cuda.max_memory_allocated()


def rates(m, args, vocabulary, found) -> None:
    ids = arbitrary_ids(1, args.length, vocabulary)
    for kept in FULL[:1] if found.loops and args.only_checkpointed else FULL:
        train_rate(m, args, ids, ids[:, :SHORT] if found.loops else ids, kept, found)
    if args.large and not found.loops:
        large = arbitrary_ids(*args.large, vocabulary)
        train_rate(m, args, large, large, "", found)
    m.zero_grad(set_to_none=True)
    for rows in args.batch:
        ids, shape = arbitrary_ids(rows, args.prompt, vocabulary), f"{rows}x{args.prompt}"
        prompts, tokens, caches = [], [], []
        try:
            for _ in range(WARM + found.turns):
                caches.clear(), gc.collect(), torch.cuda.empty_cache()
                prompts.append(seconds(lambda: caches.append(prompt(m, ids))))
                tokens.append(seconds(lambda: generation(m, ids, caches[0], args.tokens)))
        except torch.OutOfMemoryError:
            print(f"no memory for a prompt of {shape}")
            continue
        found["prompt", shape] = rows * args.prompt / statistics.median(prompts[WARM:])
        found["generation", f"{shape}+{args.tokens}"] = rows * args.tokens / statistics.median(tokens[WARM:])
    del caches
    for rows in [] if found.loops else args.batch:  # last: a capture that fails may leave nothing to go on with
        took = captured_generation(m, arbitrary_ids(rows, args.prompt, vocabulary), args.tokens)
        found["generation, captured", f"{rows}x{args.prompt}+{args.tokens}"] = rows * args.tokens / took


class Host:
    """The same of the C++ host, with the same weights. Its generation is captured in a graph where it can be."""

    def __init__(self, args, folder, kernels: bool):
        self.args, self.folder, self.kernels = args, folder, kernels

    def run(self, *more):
        start = [self.args.hotswap.resolve(), "bench", "model", "--device", "cuda", "--model", self.folder]
        start += ["--repeats", self.args.turns] + ["--use-kernels"] * self.kernels
        done = subprocess.run([str(s) for s in (*start, *more)], capture_output=True, text=True)
        if done.returncode:
            print(f"{more}, kernels {self.kernels}: failed with {done.returncode}: {done.stderr[-600:]}", flush=True)
            return {}
        return json.loads(done.stdout.strip().splitlines()[-1])

    def rates(self, found) -> None:
        args, steps = self.args, [(1, self.args.length)] + [self.args.large] * bool(self.args.large)
        for rows in args.batch:
            out = self.run("--what", "decode", "--rows", rows, "--columns", args.prompt, "--new-tokens", args.tokens)
            if out:
                for what in ("generation", "generation, captured")[: 1 + (out.get("captured") == "yes")]:
                    found[what, f"{rows}x{args.prompt}+{args.tokens}"] = out["value"]
                print(f"host, kernels {self.kernels}, {rows} rows: captured {out.get('captured')}, ids {out['check'][:6]}", flush=True)
        if not self.kernels and args.model == "mamba2":
            return
        for rows, columns in steps:
            out = self.run("--what", "step", "--rows", rows, "--columns", columns)
            if out:
                found["training step", f"{rows}x{columns}"] = out["value"]
                found["peak memory", f"{rows}x{columns}"] = out["device_memory"]["peak"]
                print(f"host, kernels {self.kernels}: losses {out['check'][:2]}, bound {out.get('bound')}", flush=True)


class Found(dict):
    """A side's numbers: each is said, and written beside those of the sides before it, as soon as it is there."""

    def __init__(self, name, peers, args, report):
        self.name, self.peers, self.args, self.report = name, peers, args, report
        self.loops = name == "transformers"  # of Python, through all tokens
        self.turns = 1 if self.loops and args.one_turn_of_loops else args.turns

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        what, shape = key
        print(f"{self.name}: {what} {shape} {value:.1f}", flush=True)
        for peer in self.peers:
            if key in peer:
                self.report.add(
                    kind="model", what=f"{what}, {self.name}", shape=f"{NAMES[self.args.model]} {shape}", dtype="bfloat16", ours=value,
                    peer=peer[key], peer_name=peer.name, unit="bytes" if what == "peak memory" else "tokens/s",
                )  # fmt: skip
        self.report.flush()


def with_mamba_ssm(args, report):
    """transformers over its kernels: taken where the model's file is imported, so in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        start = [sys.executable, __file__, "--device", "cuda", "--model", args.model, "--length", args.length, "--prompt", args.prompt]
        start += ["--batch", ",".join(map(str, args.batch)), "--tokens", args.tokens, "--turns", args.turns, "--stock-to", out]
        start += ["--large", "x".join(map(str, args.large))] if args.large else []
        path = os.pathsep.join(str(p) for p in (args.mamba_ssm.resolve(), os.environ.get("PYTHONPATH")) if p)
        done = subprocess.run([str(s) for s in start], env=os.environ | {"PYTHONPATH": path})
        if done.returncode:
            print(f"transformers with mamba-ssm: failed with {done.returncode}", flush=True)
        found = Found("transformers, mamba-ssm", [], args, report)
        for what, shape, value in json.loads(out.read_text()) if out.exists() else []:
            dict.__setitem__(found, (what, shape), value)
        return found


def on_gpu(args, report) -> None:
    for name in KERNELS if "mamba-ssm" in PEER else ():  # transformers would go on without one that cannot be imported
        importlib.import_module(name)
    config = transformers.AutoConfig.for_model(**LARGE[args.model])
    torch.manual_seed(0)
    with torch.device("cuda"):
        m = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    ids = arbitrary_ids(1, args.length, config.vocab_size)

    @torch.no_grad()
    def logits(m):
        return m.eval()(ids).logits.double()

    exact = logits(copy.deepcopy(m).float())
    apart = lambda: ((logits(m) - exact).norm() / exact.norm()).item()
    distances = {PEER: apart()}
    stock = Found(PEER, [], args, report)
    if args.stock_to:
        print(f"logits from float32's by the same kernels: {distances}", flush=True)
        try:
            return rates(m, args, config.vocab_size, stock)
        finally:
            args.stock_to.write_text(json.dumps([[*key, value] for key, value in stock.items()]))
    if args.hotswap:
        memory = Path("/dev/shm")
        fits = memory.is_dir() and shutil.disk_usage(memory).free > 2**33
        saved = tempfile.TemporaryDirectory(dir=memory if fits else None)
        m.save_pretrained(saved.name)
    rates(m, args, config.vocab_size, stock)
    peers = [stock]
    if args.mamba_ssm:
        gc.collect(), torch.cuda.empty_cache()
        peers.append(with_mamba_ssm(args, report))
    hotswap.kernelize(m)
    distances["hotswap"] = apart()
    print("logits from float32's:", ", ".join(f"{name} {d:.3e}" for name, d in distances.items()))
    if not distances["hotswap"] <= AS_NEAR * distances[PEER]:
        sys.exit(f"expected logits as near to float32's as transformers' are, within {AS_NEAR}; nothing is written")
    ours = Found("hotswap", peers, args, report)
    failed = ""
    try:
        rates(m, args, config.vocab_size, ours)
    except RuntimeError as error:  # the C++ host's turn all the same
        failed = f"hotswap: {error}"
        print(failed, flush=True)
    print({op: n for op, n in hotswap.report(m).calls.items() if n}, flush=True)
    peers = [*peers, ours]
    del m
    gc.collect(), torch.cuda.empty_cache()
    if args.hotswap:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        if args.stock_host:
            peers.append(Found("C++ host, stock", [], args, report))
            Host(args, saved.name, False).rates(peers[-1])
        Host(args, saved.name, True).rates(Found("C++ host", peers, args, report))
    if failed:
        sys.exit(failed)


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]
    shape = lambda text: [int(n) for n in text.split("x")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="mamba")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"], help="on the CPU")
    parser.add_argument("--length", type=int, help="of what is trained; on the CPU of the prompt too (512; 256)")
    parser.add_argument("--prompt", type=int, default=128, help="on a GPU")
    parser.add_argument("--batch", type=numbers, default=[1, 16], help="on a GPU, of prompt and generation")
    parser.add_argument("--tokens", type=int, default=16, help="of generation")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--hotswap", type=Path, help="on a GPU: the C++ host")
    parser.add_argument("--only-checkpointed", action="store_true", help="on a GPU, of what transformers trains")
    parser.add_argument("--one-turn-of-loops", action="store_true", help="on a GPU, of transformers' own, whatever --turns says")
    parser.add_argument("--large", type=shape, help="on a GPU: such a training step too, as 16x512")
    parser.add_argument("--mamba-ssm", type=Path, help="on a GPU: a folder with mamba_ssm and causal_conv1d in it")
    parser.add_argument("--stock-host", action="store_true", help="on a GPU, with --hotswap: without kernels too")
    parser.add_argument("--stock-to", type=Path, help="on a GPU: only transformers' numbers, as JSON into this file")
    add_flags(parser)
    args = parser.parse_args()
    cuda = args.device == "cuda"
    args.length = args.length or (512 if cuda else 256)
    report = Results(args, gpu() if cuda else None)
    (on_gpu if cuda else on_cpu)(args, report)
    report.write()


if __name__ == "__main__":
    main()
