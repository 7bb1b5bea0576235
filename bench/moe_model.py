"""A whole mixture of experts with random weights on a GPU, transformers' own and with our kernels: a training step, and generation.

    HOTSWAP_PACKAGES=build/packages python -m bench moe_model [--hotswap build/bin/hotswap] [--csv FILE]

Four layers in the shape of Qwen3-30B-A3B, bfloat16, the same random weights for all sides of transformers: stock; "hotswap", every
layer and the loss without logits; "attention", that and the attention; both generate by transformers' loop, and "generate" is
hotswap.generate over the former. A step is forward and backward of --train rows, no optimizer; generation goes on from a prompt
of --prompt tokens at each of --batch, and draws from the whole vocabulary: greedy, random weights say one token over and over,
and all rows go to the same few experts. The losses of the sides must agree. With --hotswap the C++ host beside its stock layers, whose
random weights are others: its generation stands beside transformers' all the same, which does the same work.

torch's attention on Hopper is cuDNN's, which builds a plan for each new length of the keys (docs/notes/decode_gpu.md): the first turn of a
generation has a row of its own ("over new lengths"), and the others' median is the rate over known ones.

Each side is a process of its own that has the GPU for itself; those in Python import what they need side by side, and wait for
their turn. A row is written when its number is there: a run that is cut off keeps what it has measured.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.gpu_model import BF16_LOSS, QWEN3_MOE, WARM, arbitrary_ids, seconds, wait_for_turn, waiting_for_turns  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402

NAME = "Qwen3-30B-A3B, 4 layers"
FOUND = "found: "
HOST = {"C++ host, stock": False, "C++ host": True}  # by kernels?
SIDES = {"transformers": None, "hotswap": {}, "attention": {"attention": True}}  # what kernelize is asked for


def fresh() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def say(**found) -> None:
    """To the process that writes rows."""
    print(FOUND + json.dumps(found), flush=True)


def trained(m, side: str, args) -> None:
    rows, columns = args.train
    ids, losses = arbitrary_ids(rows, columns, QWEN3_MOE["vocab_size"]), []

    def step():
        m.zero_grad(set_to_none=True)
        loss = m(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    fresh()
    m.train()
    times = []
    for _ in range(WARM + args.turns):
        took, loss = seconds(step)
        times.append(took), losses.append(loss.item())
    m.zero_grad(set_to_none=True)
    rate = rows * columns / statistics.median(times[WARM:])
    say(side=side, what="training", shape=f"{rows}x{columns}", rate=rate, peak=torch.cuda.max_memory_allocated(), losses=losses)


def generated(m, call, side: str, args) -> None:
    m.eval()
    for rows in args.batch:
        ids = arbitrary_ids(rows, args.prompt, QWEN3_MOE["vocab_size"])
        options = dict(do_sample=True, top_k=0, eos_token_id=None, pad_token_id=0, attention_mask=torch.ones_like(ids))
        torch.manual_seed(1)
        generate = lambda count: seconds(lambda: call(ids, max_new_tokens=count, **options))
        fresh()
        generate(2)
        rates = []
        for _ in range(args.turns):
            first, (whole, out) = generate(1)[0], generate(args.tokens)
            rates.append(rows * (args.tokens - 1) / (whole - first))
        shape, peak = f"{rows}x{args.prompt}+{args.tokens}", torch.cuda.max_memory_allocated()
        print(f"  {side} {shape}: ids {out[0, args.prompt :][:8].tolist()}, tokens/s of each turn {rates}", flush=True)
        say(side=side, what="generation over new lengths", shape=shape, rate=rates[0])
        say(side=side, what="generation", shape=shape, rate=statistics.median(rates[1:] or rates), peak=peak)


def in_python(args) -> None:
    """The process of one side."""
    import hotswap

    wait_for_turn()
    options = SIDES[args.side]
    torch.manual_seed(0)
    with torch.device("cuda"):
        config = transformers.AutoConfig.for_model(**QWEN3_MOE)
        m = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if options is not None:
        hotswap.kernelize(m, fused_linear_cross_entropy=True, **options)
    if "training" in args.what:
        trained(m, args.side, args)
    if "generation" in args.what:
        generated(m, m.generate, args.side, args)
    if "generation" in args.what and args.side == "hotswap":
        generated(m, functools.partial(hotswap.generate, m), "generate", args)
    if options is not None:
        print({op: n for op, n in hotswap.report(m).calls.items() if n})


def of_host(args, rows, side: str, kernels: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(QWEN3_MOE))
        start = [args.hotswap.resolve(), "bench", "model", "--device", "cuda", "--random-weights", "--model", folder, "--repeats", args.turns]
        start += ["--use-kernels"] * kernels

        def run(*more):
            done = subprocess.run([str(s) for s in (*start, *more)], capture_output=True, text=True)
            if done.returncode:
                print(f"{side} {more}: failed with {done.returncode}: {done.stderr[:2000]}", flush=True)
                return None
            return json.loads(done.stdout.strip().splitlines()[-1])

        count, columns = args.train
        if "training" in args.what and (out := run("--what", "step", "--rows", count, "--columns", columns)):
            print(f"  {side}: bound {out.get('bound')}", flush=True)
            peak = out["device_memory"]["peak"]
            rows.add(side=side, what="training", shape=f"{count}x{columns}", rate=out["value"], peak=peak, losses=out["check"])
        for count in args.batch if kernels and "generation" in args.what else ():
            if out := run("--what", "decode", "--rows", count, "--columns", args.prompt, "--new-tokens", args.tokens, "--sample"):
                print(f"  {side}, {count} rows: captured {out.get('captured')}, ids {out['check'][:8]}", flush=True)
                shape = f"{count}x{args.prompt}+{args.tokens}"
                rows.add(side=side, what="generation", shape=shape, rate=out["value"], peak=out["device_memory"]["peak"])


class Rows:
    """Into the file as they come, each beside the peer's number where that is there."""

    def __init__(self, args):
        self.args, self.machine, self.seen, self.failed = args, gpu(), {}, False

    def add(self, *, side: str, what: str, shape: str, rate: float, peak: int | None = None, losses: list | None = None) -> None:
        peer = "C++ host, stock" if side == "C++ host" and what == "training" else "transformers"
        self.seen[side, what, shape] = (rate, peak, losses)
        print(f"  {side}, {what} {shape}: {rate:.1f} tokens/s, peak {peak}, losses {losses}", flush=True)
        if side in ("transformers", "C++ host, stock"):
            return
        theirs, their_peak, their_losses = self.seen.get((peer, what, shape), (None, None, None))
        if losses and their_losses:
            apart = max(abs(a - b) for a, b in zip(losses, their_losses, strict=True))
            if not apart <= BF16_LOSS:
                print(f"expected losses of {side} and {peer} within {BF16_LOSS}; got {apart}; nothing is written")
                self.failed = True
                return
        report = Results(self.args, self.machine)
        step = " step" if what == "training" else ""
        for name, ours, other, unit in ((f"{what}{step}", rate, theirs, "tokens/s"), (f"{what}, peak memory", peak, their_peak, "bytes")):
            if ours is not None:
                beside = dict(peer=other, peer_name=peer) if other is not None else {}
                report.add(kind="model", what=f"{name}, {side}", shape=f"{NAME} {shape}", dtype="bfloat16", ours=ours, unit=unit, **beside)
        report.write()


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=lambda s: [int(n) for n in s.split("x")], default=[4, 4096], help="rows x columns")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--batch", type=numbers, default=[1, 16], help="of generation")
    parser.add_argument("--tokens", type=int, default=64, help="of generation")
    parser.add_argument("--turns", type=int, default=3)
    names = lambda text: text.split(",")
    parser.add_argument("--what", type=names, default=["training", "generation"])
    parser.add_argument("--sides", type=names, default=list(SIDES), help="of transformers")
    parser.add_argument("--hotswap", type=Path, help="the C++ host")
    add_flags(parser)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if args.side:
        in_python(args)
        return
    if unknown := set(args.sides) - set(SIDES):
        sys.exit(f"expected sides of {', '.join(SIDES)}; got {', '.join(unknown)}")
    waiting = waiting_for_turns({side: [sys.executable, *sys.argv, "--side", side] for side in args.sides})
    rows, host = Rows(args), HOST if args.hotswap else {}
    sides = [*args.sides[:1], *host, *args.sides[1:]]  # behind the peer: a run that is cut off has it
    for side in sides:
        if side in host:
            of_host(args, rows, side, host[side])
            continue
        process = waiting[side]
        process.stdin.write("\n"), process.stdin.flush()
        for line in process.stdout:
            if line.startswith(FOUND):
                rows.add(**json.loads(line.removeprefix(FOUND)))
            else:
                print(line, end="", flush=True)
        if process.wait():
            print(f"{side}: failed with {process.returncode}", flush=True)
            rows.failed = True
    sys.exit(rows.failed)


if __name__ == "__main__":
    main()
