"""A whole state-space model with random weights, stock and with our kernels: a training step, a prompt, and a token of generation
behind it.

    PYTHONPATH=python HOTSWAP_PACKAGES=build/packages python bench/mamba_model.py [--model mamba2] [--layers N] [--csv FILE]
    PYTHONPATH=python HOTSWAP_PACKAGES=build/packages python bench/mamba_model.py --device cuda [--hotswap build/bin/hotswap]

On the CPU: transformers in float32 on one thread, stock and ours by turns, in the shape of state-spaces/mamba-130m or of a Mamba-2
of that size. On a GPU: transformers in bfloat16 in the shape of mamba-1.4b or mamba2-1.3b, first stock and then the same model
swapped: its training without checkpoints where memory allows and with them, prompt and generation at each of --batch. Where
mamba_ssm and causal_conv1d can be imported transformers takes their kernels, and the rows say so. With --hotswap the C++ host by
kernels beside it, which has no checkpoints; with --stock-host its stock layers too (its stock Mamba-2 keeps too much to train).

Random weights in bfloat16 let 48 layers of roundings grow: no two programs agree on logits or ids. So the stock model in float32,
with the same weights, is what both are held against: ours must be as near to it as stock is. That is little (either is 0.7 of the
logits off in mamba2-1.3b's shape): what the kernels compute is what tests say.
"""

import argparse
import copy
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from results import Results, add_flags, gpu

import hotswap

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
AS_NEAR = 1.1  # our distance from float32 over stock's: two draws of the same roundings are within a few percent of each other
WARM = 1
SHORT = 32  # tokens of that warm step where a loop of Python goes through them, 10 s for 256


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


def arbitrary_ids(rows: int, columns: int, vocabulary: int):
    """As hotswap/cli/bench/model.cpp has them."""
    return ((torch.arange(rows * columns, device="cuda") * 7919 + 104729) % vocabulary).view(rows, columns)


def rates(m, args, vocabulary, found) -> None:
    """found[what, shape] = tokens/s, and the bytes of a training step at its peak."""
    ids = arbitrary_ids(1, args.length, vocabulary)
    for kept in (" checkpointed", "") if found.peers or not args.only_checkpointed else (" checkpointed",):
        if kept:
            m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            m.gradient_checkpointing_disable()
        gc.collect(), torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            warm = ids if found.peers else ids[:, :SHORT]
            times = [seconds(lambda: training(m, which)) for which in [warm] * WARM + [ids] * args.turns][WARM:]
        except torch.OutOfMemoryError:
            print(f"no memory for a training step{kept}")
            continue
        found["training step", f"1x{args.length}{kept}"] = args.length / statistics.median(times)
        found["peak memory", f"1x{args.length}{kept}"] = torch.cuda.max_memory_allocated()
    m.zero_grad(set_to_none=True)
    for rows in args.batch:
        ids, shape = arbitrary_ids(rows, args.prompt, vocabulary), f"{rows}x{args.prompt}"
        prompts, tokens, caches = [], [], []
        try:
            for _ in range(WARM + args.turns):
                caches.clear(), gc.collect(), torch.cuda.empty_cache()
                prompts.append(seconds(lambda: caches.append(prompt(m, ids))))
                tokens.append(seconds(lambda: generation(m, ids, caches[0], args.tokens)))
        except torch.OutOfMemoryError:
            print(f"no memory for a prompt of {shape}")
            continue
        found["prompt", shape] = rows * args.prompt / statistics.median(prompts[WARM:])
        found["generation", f"{shape}+{args.tokens}"] = rows * args.tokens / statistics.median(tokens[WARM:])


class Host:
    """The same of the C++ host, whose weights are random too. Its generation is captured in a graph where it can be."""

    def __init__(self, args, kernels: bool):
        self.args, self.kernels = args, kernels

    def run(self, folder, *more):
        start = [self.args.hotswap.resolve(), "bench", "model", "--device", "cuda", "--random-weights", "--model", folder]
        start += ["--repeats", self.args.turns] + ["--use-kernels"] * self.kernels
        done = subprocess.run([str(s) for s in (*start, *more)], capture_output=True, text=True)
        if done.returncode:
            print(f"{more}, kernels {self.kernels}: failed with {done.returncode}: {done.stderr[-600:]}", flush=True)
            return {}
        return json.loads(done.stdout.strip().splitlines()[-1])

    def rates(self, found) -> None:
        args = self.args
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(LARGE[args.model]))
            for rows in args.batch:
                out = self.run(folder, "--what", "decode", "--rows", rows, "--columns", args.prompt, "--new-tokens", args.tokens)
                if out:
                    found["generation", f"{rows}x{args.prompt}+{args.tokens}"] = out["value"]
                    print(f"host, kernels {self.kernels}, {rows} rows: captured {out.get('captured')}, ids {out['check'][:6]}", flush=True)
            if not self.kernels and args.model == "mamba2":
                return
            out = self.run(folder, "--what", "step", "--rows", 1, "--columns", args.length)
            if out:
                found["training step", f"1x{args.length}"] = out["value"]
                found["peak memory", f"1x{args.length}"] = out["device_memory"]["peak"]
                print(f"host, kernels {self.kernels}: losses {out['check'][:2]}, bound {out.get('bound')}", flush=True)


class Found(dict):
    """A side's numbers: each is said, and written beside those of the sides before it, as soon as it is there."""

    def __init__(self, name, peers, args, report):
        self.name, self.peers, self.args, self.report = name, peers, args, report

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
        if self.report.rows:
            self.report.write()
            self.report.rows.clear()


def on_gpu(args, report) -> None:
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
    rates(m, args, config.vocab_size, stock)
    hotswap.kernelize(m)
    distances["hotswap"] = apart()
    print("logits from float32's:", ", ".join(f"{name} {d:.3e}" for name, d in distances.items()))
    if not distances["hotswap"] <= AS_NEAR * distances[PEER]:
        sys.exit(f"wanted logits as near to float32's as transformers' are, within {AS_NEAR}; nothing is written")
    ours = Found("hotswap", [stock], args, report)
    rates(m, args, config.vocab_size, ours)
    print({op: n for op, n in hotswap.report(m).calls.items() if n}, flush=True)
    del m
    gc.collect(), torch.cuda.empty_cache()
    if args.hotswap:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        peers = [stock, ours]
        if args.stock_host:
            peers.append(Found("C++ host, stock", [], args, report))
            Host(args, False).rates(peers[-1])
        Host(args, True).rates(Found("C++ host", peers, args, report))


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]
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
    parser.add_argument("--stock-host", action="store_true", help="beside it without kernels")
    add_flags(parser)
    args = parser.parse_args()
    cuda = args.device == "cuda"
    args.length = args.length or (512 if cuda else 256)
    report = Results(args, gpu() if cuda else None)
    (on_gpu if cuda else on_cpu)(args, report)
    report.write()


if __name__ == "__main__":
    main()
