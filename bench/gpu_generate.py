"""Generation on a GPU: the C++ host and transformers, stock and swapped, the same random weights, greedy.

    gpu_generate.py --hotswap build/bin/hotswap --packages build/packages [--batch 1,4,16] [--csv bench/results.csv ...]
    gpu_generate.py --packages build/packages --model llama_8b --sides generate --batch 1

Qwen3-0.6B's shape in bfloat16, or Llama-8B's; a prompt of --prompt tokens, then --new-tokens more: the rate of what follows the first
token ("decode"), of all of it ("generate"; of the C++ host made up from the two others), and of the prompt ("prefill"; --long: of one
prompt of so many tokens, by a forward alone, and by torch's flash kernel, which the C++ host takes). Each side is a process of its own
that has the GPU for itself; those in Python import what they need side by side, and wait for their turn. A side's first token is that of
its process's first call, the model being loaded.

"compile" is transformers with a static cache and torch.compile, whose first call is not counted in its rates; "generate" is
hotswap.generate, "hotswap" transformers' own loop over swapped layers, "attention" the same with our attention, too, as "attention" of
the C++ host; "continuous" is transformers' continuous batching with a cache of pages for just these rows, its manager kept, and "paged"
the same over swapped layers and our attention, which needs Python's `kernels`.
A row is written when its number is there: a run that is cut off keeps what it has measured. The first tokens of all sides must agree, and
one that says another has no rows; later ones part where two logits are as good as equal.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_model import (  # noqa: E402
    HOST_ATTENTION, LLAMA_8B, OURS, arbitrary_ids, seconds, wait_for_turn, waiting_for_turns
)  # fmt: skip
from bench.lib.results import Results, add_flags, gpu  # noqa: E402

QWEN3 = dict(
    model_type="qwen3", architectures=["Qwen3ForCausalLM"], vocab_size=151936, hidden_size=1024, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, intermediate_size=3072, hidden_act="silu",
    max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True,
    attention_bias=False, initializer_range=0.02, dtype="bfloat16", bos_token_id=1, eos_token_id=2,
)  # fmt: skip
MODELS = {"qwen3": ("Qwen3-0.6B", QWEN3), "llama_8b": ("Llama-8B", LLAMA_8B | dict(num_hidden_layers=32))}
SIDES = ("plain", "hotswap", "attention", "generate", "compile", "continuous", "paged")
HOST = {"stock": [], "kernels": ["--use-kernels"], "attention": HOST_ATTENTION}
UNCAPTURED = " uncaptured"  # of the C++ host's steps, where no graph could be made
BY_HOST = ("hotswap kernels", "hotswap attention")
BY_US = (*BY_HOST, *(name + UNCAPTURED for name in BY_HOST), *(f"transformers {side}" for side in (*OURS, "generate", "paged")))
WHAT = {"decode": "tokens/s", "generate": "tokens/s", "prefill": "tokens/s", "first token": "s"}
LONG = ("prefill of one prompt", "prefill of one prompt by torch's flash kernel")
SAVE, FOUND = "save", "found: "
FLASH = "kernels-community/flash-attn2"  # under this name transformers asks for pages and for steps over them
PAGE = 256


def random_model(args):
    """The same weights in every process."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    more = {"attn_implementation": args.attn} if args.attn else {}
    torch.manual_seed(0)
    with torch.device("cuda"):
        config = AutoConfig.for_model(**MODELS[args.model][1])
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **more).eval()


def over_pages(model, by_us: bool) -> None:
    """Attention of continuous batching: torch's, or ours under a name that transformers takes for flash attention's."""
    if not by_us:
        model.set_attn_implementation("paged|sdpa")
        return
    from hotswap.packages import package, packages_folder

    place = packages_folder() / "attention" / "build" / package("attention").variant
    os.environ["LOCAL_KERNELS"] = f"{FLASH}={place}"
    model.set_attn_implementation(FLASH)


def continuous(model, ids, max_new_tokens, pages, decoding, **_):
    """All rows are there from the beginning; an end of text that does not come. The seconds from the last row's first token to the last
    token of all go into `decoding`: beginning and end of the call take tenths of a second."""
    import torch
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=model.config.vocab_size - 1, pad_token_id=0)
    sizes = ContinuousBatchingConfig(block_size=PAGE, num_blocks=len(ids) * pages, max_batch_tokens=ids.numel())
    done = model.generate_batch(
        ids.tolist(), generation_config=config, continuous_batching_config=sizes, persistent_manager=True, record_timestamps=True
    )
    said = [answer.generated_tokens for answer in done.values()]
    if any(len(one) != max_new_tokens for one in said) or len(said) != len(ids):
        raise SystemExit(f"expected {max_new_tokens} tokens of each of {len(ids)} rows; got {[len(one) for one in said]}")
    times = [answer.timestamps for answer in done.values()]
    decoding[:] = [max(one[-1] for one in times) - max(one[0] for one in times)]
    return torch.cat([ids, torch.tensor(said, device=ids.device)], 1)


def of_one_prompt(model, length: int, repeats: int) -> dict:
    """Tokens/s of a forward that keeps keys and values, as transformers chooses its attention and by torch's flash kernel."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    ids = arbitrary_ids(1, length, model.config.vocab_size)
    found = {}
    with torch.no_grad():
        call = lambda: model(ids, use_cache=True, logits_to_keep=1)
        for what, kernels in zip(LONG, (None, SDPBackend.FLASH_ATTENTION), strict=True):
            with contextlib.nullcontext() if kernels is None else sdpa_kernel(kernels):
                times = [seconds(call)[0] for _ in range(repeats + 1)]
            found[what] = length / statistics.median(times[1:])
    return found


def transformers_side(args) -> None:
    """The process of one side: a line of what it found for each batch."""
    import torch
    import transformers  # noqa: F401

    if args.side in (*OURS, "generate", "paged"):
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
        import hotswap
    wait_for_turn()
    model = random_model(args)
    if args.side == SAVE:
        model.save_pretrained(args.folder)
        return
    say = model.generate
    if args.side in (*OURS, "generate", "paged"):
        hotswap.kernelize(model, strict=True, **OURS.get(args.side, {}))
        if args.side == "generate":
            say = functools.partial(hotswap.generate, model)
    options = dict(do_sample=False, eos_token_id=None, pad_token_id=0)
    if args.side in ("continuous", "paged"):
        over_pages(model, by_us=args.side == "paged")
        say = functools.partial(continuous, model)
        options |= dict(pages=-(-(args.prompt + args.new_tokens) // PAGE) + 1, decoding=[])
    if args.side == "compile":
        options["cache_implementation"] = "static"
    for i, rows in enumerate(args.batch):
        ids = arbitrary_ids(rows, args.prompt, model.config.vocab_size)
        options["attention_mask"] = torch.ones_like(ids)

        def generate(count: int) -> tuple[float, list[int]]:
            time, out = seconds(lambda: say(ids, max_new_tokens=count, min_new_tokens=count, **options))
            return time, out[0, args.prompt :].tolist()

        if args.side == "compile":
            torch._dynamo.reset()  # else the second batch makes a graph for batches of any size
        if "pages" in options and i > 0:
            model.destroy_cached_continuous_batching_manager()
        first_token = generate(1)[0]
        if args.side == "compile":
            first_token += generate(args.new_tokens)[0]  # the prompt is not compiled: what comes after its token is waited for here
        else:
            generate(2)
        rates, wholes, firsts = [], [], []
        for _ in range(args.repeats):
            first, (whole, tokens) = generate(1)[0], generate(args.new_tokens)
            firsts.append(first)
            wholes.append(whole)
            (decoding,) = options.get("decoding") or [whole - first]
            rates.append(rows * (args.new_tokens - 1) / decoding)
            if sum(wholes) > args.most:
                break
        found = {"decode": statistics.median(rates), "generate": rows * args.new_tokens / statistics.median(wholes),
                 "prefill": rows * args.prompt / statistics.median(firsts)}  # fmt: skip
        if i == 0:
            found["first token"] = first_token
        print(FOUND + json.dumps({"rows": rows, "check": tokens, "first_call": first_token, "found": found}), flush=True)
    if args.side == "paged":
        attention = hotswap.packages.package("attention")
        calls = {op: attention.calls(op) for op in (*hotswap.attention.OPS, "attention_decode")}
        print(f"calls of our attention: {calls}", flush=True)
        if not any(calls.values()):
            raise SystemExit("expected attention of ours under pages; got none of its calls")
    if args.long and "pages" not in options:
        print(FOUND + json.dumps({"rows": 1, "check": None, "found": of_one_prompt(model, args.long, args.repeats)}), flush=True)


class Rows:
    """Into the file as they come, each of ours beside each of the others that is there, and alone where none is."""

    def __init__(self, args):
        self.args, self.report, self.seen, self.said, self.failed = args, Results(args, gpu()), {}, {}, False
        self.start = time.perf_counter()

    def add(self, name: str, *, rows: int, check: list | None, found: dict, **more) -> None:
        numbers = ", ".join(f"{what} {value:.{3 if WHAT.get(what) == 's' else 1}f}" for what, value in found.items())
        more = "".join(f", {what} {value}" for what, value in more.items())
        print(f"{time.perf_counter() - self.start:5.0f} s  {name}, batch {rows}: {numbers}, ids {(check or [])[:6]}{more}", flush=True)
        if check and self.said.setdefault(rows, check[0]) != check[0]:
            print(f"expected the same first token of every side; got {check[0]} of {name}, {self.said[rows]} before: it has no rows")
            self.failed = True
            return
        for what, value in found.items():
            others = self.seen.setdefault((what, rows), {})
            beside = [one for one in others if (one in BY_US) != (name in BY_US)]
            for other in beside:
                ours, peer = (name, other) if name in BY_US else (other, name)
                self.row(what, rows, ours, {name: value, **others}, peer)
            if not beside:
                self.row(what, rows, name, {name: value})
            others[name] = value
        self.report.flush()

    def row(self, what: str, rows: int, ours: str, values: dict, peer: str | None = None) -> None:
        args = self.args
        tokens = args.long if what in LONG else f"{args.prompt}+{args.new_tokens}"
        said = what + (f" by {args.attn}" if args.attn else "")
        beside = dict(peer=values[peer], peer_name=peer) if peer else {}
        shape = f"{MODELS[args.model][0]} {rows}x{tokens}"
        self.report.add(kind="model", what=f"{said}, {ours}", shape=shape, dtype="bfloat16", ours=values[ours], unit=WHAT.get(what, "tokens/s"), **beside)


def of_host(args, rows: Rows, folder: str, name: str) -> None:
    command = [args.hotswap, "bench", "model", "--device", "cuda", "--model", folder, "--repeats", args.repeats]
    command += [*HOST[name], *["--attn-implementation", args.attn] * bool(args.attn)]

    def run(*more) -> dict | None:
        done = subprocess.run([str(c) for c in (*command, *more)], capture_output=True, text=True)
        if done.returncode:
            print(f"hotswap {name} {more}: failed with {done.returncode}: {done.stderr[-2000:]}", flush=True)
            rows.failed = True
            return None
        return json.loads(done.stdout.strip().splitlines()[-1])

    for count in args.batch:
        sizes = ("--rows", count, "--columns", args.prompt)
        decode, prefill = run("--what", "decode", "--new-tokens", args.new_tokens, *sizes), run("--what", "prefill", *sizes)
        if decode and prefill:
            whole = args.prompt / prefill["value"] + (args.new_tokens - 1) / decode["value"]  # seconds a row, times rows
            found = {"decode": decode["value"], "generate": args.new_tokens / whole, "prefill": prefill["value"]}
            found["first token"] = decode["first_token"]
            captured = decode.get("captured", "yes")  # else why not
            rows.failed |= captured != "yes"
            called = f"hotswap {name}" + UNCAPTURED * (captured != "yes")
            rows.add(called, rows=count, check=decode["check"], found=found, captured=captured)
    if args.long and (out := run("--what", "prefill", "--columns", args.long)):
        rows.add(f"hotswap {name}", rows=1, check=None, found=dict.fromkeys(LONG, out["value"]))


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]
    names = lambda text: [name for name in text.split(",") if name]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotswap", type=Path, help="the C++ host; without it the sides of Python alone")
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="qwen3")
    parser.add_argument("--batch", type=numbers, default=[1, 16])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--long", type=int, help="and the prefill of one prompt of so many tokens")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=float, default=6, help="seconds of a batch after which a side of Python repeats no more")
    parser.add_argument("--attn", help="attn_implementation of all sides")
    parser.add_argument("--hosts", type=names, default=list(HOST), help="of the C++ host: " + ", ".join(HOST))
    parser.add_argument("--sides", type=names, default=list(SIDES), help="of transformers, in this order, compile@1+16 at these batches: " + ", ".join(SIDES))
    add_flags(parser)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.update(HOTSWAP_PACKAGES=str(args.packages.resolve()), HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if args.side:
        transformers_side(args)
        return
    sides = {text: text.partition("@") for text in args.sides}
    if unknown := ({side for side, _, _ in sides.values()} - set(SIDES)) | (set(args.hosts) - set(HOST)):
        sys.exit(f"expected sides of {', '.join(SIDES)} and hosts of {', '.join(HOST)}; got {', '.join(unknown)}")
    rows = Rows(args)
    with tempfile.TemporaryDirectory() as folder:
        if args.hotswap and args.hosts:
            sides = {SAVE: (SAVE, "", "")} | sides
        start = [sys.executable, *sys.argv, "--folder", folder, "--side"]
        commands = {text: [*start, side, *["--batch", at.replace("+", ",")] * bool(at)] for text, (side, _, at) in sides.items()}
        for text, process in waiting_for_turns(commands).items():
            side = sides[text][0]
            name = "transformers" if side == "plain" else f"transformers {side}"
            if process.poll() is None:
                process.stdin.write("\n"), process.stdin.flush()
            for line in process.stdout:
                if line.startswith(FOUND):
                    rows.add(name, **json.loads(line.removeprefix(FOUND)))
                else:
                    print(line, end="", flush=True)
            if process.wait():
                print(f"{name}: failed with {process.returncode}", flush=True)
                rows.failed = True
            for host in args.hosts if side == SAVE else ():
                of_host(args, rows, folder, host)
    sys.exit(rows.failed)


if __name__ == "__main__":
    main()
