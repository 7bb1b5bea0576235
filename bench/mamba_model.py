"""A whole state-space model in transformers, stock and with our kernels by turns: a training step, a prompt, and a token of
generation behind it. Random weights in the shape of state-spaces/mamba-130m, or of a Mamba-2 of that size.

    PYTHONPATH=python HOTSWAP_PACKAGES=build/packages python bench/mamba_model.py [--model mamba2] [--layers N] [--csv FILE]
"""

import argparse
import copy
import time

import torch
import transformers
from results import Results, add_flags

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


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def training(m, ids):
    m.train()
    m.zero_grad(set_to_none=True)
    m(input_ids=ids, labels=ids, use_cache=False).loss.backward()


@torch.no_grad()
def prompt(m, ids):
    m.eval()
    return m(input_ids=ids, use_cache=True).cache_params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="mamba")
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16, help="of generation")
    parser.add_argument("--turns", type=int, default=2)
    add_flags(parser)
    args = parser.parse_args()
    report = Results(args)
    torch.manual_seed(0)
    stock = MODELS[args.model](num_hidden_layers=args.layers)
    ours = hotswap.kernelize(copy.deepcopy(stock))
    ids = torch.randint(0, SIZES["vocab_size"], (1, args.length))
    with torch.no_grad():
        want, got = (m.eval()(ids).logits for m in (stock, ours))
    assert (got - want).norm() <= 1e-4 * want.norm(), "the two compute different things"

    @torch.no_grad()
    def generation(m, cache):
        for _ in range(args.tokens):
            m(input_ids=ids[:, :1], cache_params=cache, use_cache=True)

    cases = {
        "training step": lambda m: seconds(lambda: training(m, ids)),
        "prompt": lambda m: seconds(lambda: prompt(m, ids)),
        "token": lambda m: (lambda cache: seconds(lambda: generation(m, cache)) / args.tokens)(prompt(m, ids)),
    }
    for what, took in cases.items():
        best = {}
        for _ in range(args.turns):
            for name, m in (("ours", ours), ("peer", stock)):
                best[name] = min(best.get(name, float("inf")), took(m))
        report.add(
            kind="model", what=f"{args.model} {what}", shape=f"1x{args.length}, {args.layers} layers", dtype="float32",
            threads=torch.get_num_threads(), unit="ms", peer_name="transformers", **{k: v * 1e3 for k, v in best.items()},
        )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
