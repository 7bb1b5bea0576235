"""Generation on a GPU: the C++ host and transformers, stock and swapped, the same random weights, greedy.

    gpu_generate.py --hotswap build/bin/hotswap --packages build/packages [--batch 1,16] [--csv bench/results.csv ...]

Qwen3-0.6B's shape in bfloat16; a prompt of --prompt tokens, then --new-tokens more; of prefill the prompt alone. Each line is a
process of its own; its first token is that of the process's first call, the model being loaded. "compile" is transformers with a
static cache and torch.compile, whose first call is not counted in its rates; "generate" is hotswap.generate, "hotswap"
transformers' own loop over swapped layers, "attention" the same with our attention, too, as "attention" of the C++ host;
"continuous" is transformers' continuous batching, its manager kept.
The first tokens of all sides must agree before anything is written; later ones part where two logits are as good as equal.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gpu_model import HOST_ATTENTION, OURS  # noqa: E402
from results import Results, add_flags, gpu  # noqa: E402

QWEN3 = dict(
    model_type="qwen3", architectures=["Qwen3ForCausalLM"], vocab_size=151936, hidden_size=1024, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, intermediate_size=3072, hidden_act="silu",
    max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True,
    attention_bias=False, initializer_range=0.02, dtype="bfloat16", bos_token_id=1, eos_token_id=2,
)  # fmt: skip
SIDES = ("plain", "hotswap", "attention", "generate", "compile", "continuous")
HOST = {"stock": [], "kernels": ["--use-kernels"], "attention": HOST_ATTENTION}


def arbitrary_ids(rows: int, columns: int):
    """As hotswap/cli/bench/model.cpp has them."""
    import torch

    ids = (torch.arange(rows * columns) * 7919 + 104729) % QWEN3["vocab_size"]
    return ids.view(rows, columns).cuda()


def save_model(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(Qwen3Config(**QWEN3), dtype=torch.bfloat16)
    model.save_pretrained(folder)


def continuous(model, ids, max_new_tokens, **_):
    """All rows are there from the beginning; an end of text that does not come."""
    import torch
    from transformers import GenerationConfig

    config = GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=QWEN3["vocab_size"] - 1, pad_token_id=0)
    done = model.generate_batch(ids.tolist(), generation_config=config, persistent_manager=True)
    said = [answer.generated_tokens for answer in done.values()]
    if any(len(one) != max_new_tokens for one in said):
        raise SystemExit(f"wanted {max_new_tokens} tokens of each row; got {[len(one) for one in said]}")
    return torch.cat([ids, torch.tensor(said, device=ids.device)], 1)


def transformers_side(args) -> dict:
    import torch
    from transformers import AutoModelForCausalLM

    more = {"attn_implementation": args.attn} if args.attn else {}
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.bfloat16, device_map="cuda", **more).eval()
    say = functools.partial(continuous, model) if args.side == "continuous" else model.generate
    if args.side in (*OURS, "generate"):
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
        import hotswap

        hotswap.kernelize(model, strict=True, **OURS.get(args.side, {}))
        if args.side == "generate":
            say = functools.partial(hotswap.generate, model)
    ids = arbitrary_ids(args.rows, args.prompt)
    options = dict(do_sample=False, eos_token_id=None, pad_token_id=0, attention_mask=torch.ones_like(ids))
    if args.side == "compile":
        options["cache_implementation"] = "static"

    def generate(count: int) -> tuple[float, list[int]]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = say(ids, max_new_tokens=count, min_new_tokens=count, **options)
        torch.cuda.synchronize()
        return time.perf_counter() - start, out[0, args.prompt :].tolist()

    first_token = generate(1)[0]
    if args.side == "compile":
        first_token += generate(args.new_tokens)[0]  # the prompt is not compiled: what comes after its token is waited for here
    else:
        generate(2)
    rates, firsts = [], []
    for _ in range(args.repeats):
        first, (whole, tokens) = generate(1)[0], generate(args.new_tokens)
        firsts.append(first)
        rates.append(args.rows * (args.new_tokens - 1) / (whole - first))
    return {"decode": statistics.median(rates), "prefill": args.rows * args.prompt / statistics.median(firsts), "check": tokens, "first_token": first_token}


def told(name: str, rows: int, side) -> dict:
    """What `side` finds, printed at once with the time it took, loading and warming up included: a run that is cut off has said what it knew."""
    start = time.perf_counter()
    one = side()
    if one:
        print(f"batch {rows:3} {name:22} decode {one['decode']:8.1f} prefill {one['prefill']:9.0f} tokens/s, first token {one['first_token']:6.3f} s, "
              f"ids {one['check'][:6]}; took {time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
    return one


def run(command: list) -> dict:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(str(c) for c in command)}: failed with {done.returncode}: {done.stderr[-3000:]}")
        return {}
    return json.loads(done.stdout.strip().splitlines()[-1])


def host_side(args, folder: str, rows: int, kernels: list) -> dict:
    command = [args.hotswap, "bench", "model", "--device", "cuda", "--model", folder, "--rows", rows, "--columns", args.prompt]
    command += ["--repeats", args.repeats, *kernels, *["--attn-implementation", args.attn] * bool(args.attn)]
    decode = run([*command, "--what", "decode", "--new-tokens", args.new_tokens])
    prefill = run([*command, "--what", "prefill"])
    if not decode or not prefill:
        return {}
    return {"decode": decode["value"], "prefill": prefill["value"], "check": decode["check"], "first_token": decode["first_token"]}


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotswap", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--batch", type=numbers, default=[1, 16])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--attn", help="attn_implementation of all sides")
    parser.add_argument("--hosts", type=lambda s: s.split(","), default=list(HOST), help="of the C++ host: " + ", ".join(HOST))
    parser.add_argument("--sides", type=lambda s: s.split(","), default=list(SIDES), help="of transformers: " + ", ".join(SIDES))
    add_flags(parser)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(transformers_side(args)))
        return
    os.environ.update(HOTSWAP_PACKAGES=str(args.packages.resolve()), HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    report = Results(args, gpu())
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        for rows in args.batch:
            found = {}
            for host in args.hosts:
                name = f"hotswap {host}"
                found[name] = told(name, rows, lambda: host_side(args, folder, rows, HOST[host]))
            sizes = ["--rows", rows, "--prompt", args.prompt, "--new-tokens", args.new_tokens, "--repeats", args.repeats]
            sizes += ["--attn", args.attn] * bool(args.attn)
            python = [sys.executable, __file__, "--hotswap", args.hotswap, "--packages", args.packages, "--folder", folder, *sizes]
            for side in args.sides:
                name = "transformers" if side == "plain" else f"transformers {side}"
                found[name] = told(name, rows, lambda: run([*python, "--side", side]))
            found = {name: one for name, one in found.items() if one}
            if len({one["check"][0] for one in found.values()}) > 1:
                sys.exit("wanted the same first token of every side; nothing is written")
            ours = ("hotswap kernels", "hotswap attention", "transformers hotswap", "transformers attention", "transformers generate")
            for name in ours:
                for peer in set(found) - set(ours):
                    for what in ("decode", "prefill", "first_token") if name in found else ():
                        said = what.replace("_", " ") + (f" by {args.attn}" if args.attn else "")
                        report.add(
                            kind="model", what=f"{said}, {name}", shape=f"Qwen3-0.6B {rows}x{args.prompt}+{args.new_tokens}", dtype="bfloat16",
                            ours=found[name][what], peer=found[peer][what], peer_name=peer, unit="s" if what == "first_token" else "tokens/s",
                        )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
