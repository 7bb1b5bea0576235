"""Whole models in both hosts before and after, beside Liger, all with the same weights, in one run on a GPU.

    gpu_both_hosts.py --hotswap build/bin/hotswap --packages build/packages [--models prefill,gpt_oss,1b,8b_whole] [--csv bench/results.csv ...]

prefill: a forward of Qwen3-0.6B's shape over one prompt of --prompt tokens that keeps keys and values and gives the last token's logits.
The others: forward and backward of gpu_model.py's models, 4096 tokens a row, no optimizer. Random weights, which a process of
transformers writes first; bfloat16. A side is a process of its own that has the GPU for itself; those in Python import what they need side
by side, of all models at once, and wait for their turn. "attention" is swapped layers and our attention, in transformers and in
the C++ host. Rows are written when a model's sides are done, if its losses agree with transformers' own within gpu_model.py's limit; of
prefill the next token must be one whose logit is as good as the first.
"""

import argparse
import contextlib
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
from types import SimpleNamespace

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench import gpu_model  # noqa: E402
from bench.gpu_generate import QWEN3  # noqa: E402
from bench.gpu_model import HOST_ATTENTION, OURS  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402

SAVE = "save"
PYTHON = {"transformers": "plain", **{f"transformers {side}": side for side in (*OURS, "liger")}}
HOST = {"hotswap stock": [], "hotswap kernels": ["--use-kernels"], "hotswap attention": HOST_ATTENTION}
BY_US = [name for name in (*HOST, *PYTHON) if name != "hotswap stock" and PYTHON.get(name) in (None, *OURS)]
ROWS = {"gpt_oss": 1, "1b": 4, "8b_whole": 2}
AS_GOOD = 2**-6  # of the maximum logit: two roundings of bfloat16


def model_of(config, side: str):
    """For a forward: the same weights on every side."""
    import torch
    from transformers import AutoModelForCausalLM

    if side == "liger":
        gpu_model.apply_liger(config.model_type)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    if side in OURS:
        import hotswap

        hotswap.kernelize(model, strict=True, **OURS[side])
    return model


def prefilled(model, tokens: int, repeats: int) -> dict:
    import torch
    from transformers import DynamicCache

    ids = gpu_model.arbitrary_ids(1, tokens, model.config.vocab_size)
    times = []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats + 1):
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            took, out = gpu_model.seconds(lambda: model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1))
        times.append(took)
    last = out.logits[0, -1].float()
    near = (last >= last.max() - AS_GOOD * last.abs().max()).nonzero().flatten().tolist()
    return {"value": tokens / statistics.median(times[1:]), "check": [last.argmax().item()], "near": near,
            "device_memory": {"peak": torch.cuda.max_memory_allocated()}}  # fmt: skip


def side_in_python(args) -> dict:
    """The process of one side of one model."""
    import torch
    from transformers import AutoConfig

    if args.side != SAVE and args.models != "prefill":
        step = dict(model=args.models, rows=ROWS[args.models], columns=4096, repeats=args.repeats, adamw=False, turns=1, profile=None)
        return gpu_model.transformers_step(SimpleNamespace(**step, side=args.side, packages=args.packages, folder=args.folder))
    gpu_model.import_for(args.side)
    gpu_model.wait_for_turn()
    config = AutoConfig.from_pretrained(args.folder)
    if args.models == "prefill":
        model = model_of(config, args.side)
    else:
        model = gpu_model.random_model(config, "plain", "cuda", torch.bfloat16, checkpoint=False)
    if args.side == SAVE:
        model.save_pretrained(args.folder)
        return {}
    return prefilled(model, args.prompt, args.repeats)


def commands_of(args, model: str, folder: str) -> dict:
    """name -> command of each side of a model, in their order."""
    config = QWEN3 if model == "prefill" else gpu_model.MODELS[model][1]
    (Path(folder) / "config.json").write_text(json.dumps(config))
    python = [sys.executable, __file__, "--packages", args.packages, "--models", model, "--folder", folder]
    python += ["--prompt", args.prompt, "--repeats", args.repeats, "--hotswap", args.hotswap, "--side"]
    host = [args.hotswap, "bench", "model", "--device", "cuda", "--model", folder, "--repeats", args.repeats]
    if model == "prefill":
        host += ["--what", "prefill", "--columns", args.prompt]
    else:
        host += ["--what", "step", "--rows", ROWS[model], "--columns", 4096]
    sides = {SAVE: [*python, SAVE]} | {name: [*python, side] for name, side in PYTHON.items()} | {name: [*host, *more] for name, more in HOST.items()}
    return {name: [str(c) for c in command] for name, command in sides.items() if name == SAVE or name in args.sides}


def agrees(model: str, results: dict, name: str) -> bool:
    stock, one = results.get("transformers"), results[name]
    if stock is None or name == "transformers":
        return True
    if model == "prefill":
        return one["check"][0] in stock["near"]
    both = zip(stock["check"], one["check"], strict=False)  # of as many first steps as both keep
    apart = max(abs(a - b) for a, b in both)
    print(f"losses of {name} and transformers are {apart:.1e} apart")
    return apart <= gpu_model.BF16_LOSS


def write_weights(waiting: dict) -> None:
    """Of all models side by side, before anything is timed."""
    start, savers = time.perf_counter(), {model: process for (model, name), process in waiting.items() if name == SAVE}
    for process in savers.values():
        with contextlib.suppress(BrokenPipeError):  # it died: below
            print(file=process.stdin, flush=True)
    for model, process in savers.items():
        _, errors = process.communicate()
        if process.returncode:
            sys.exit(f"weights of {model} were not written: {errors[-3000:]}")
    print(f"weights are written, took {time.perf_counter() - start:.1f} s", flush=True)


def compare(args, model: str, commands: dict, waiting: dict) -> bool:
    """The sides of one model, one after the other, and their rows; False where one failed or says something else."""
    results, good = {}, True
    for name, command in commands.items():
        if name == SAVE:
            continue
        start = time.perf_counter()
        if name in waiting:
            printed, errors = waiting[name].communicate("\n")
            code = waiting[name].returncode
        else:
            done = subprocess.run(command, capture_output=True, text=True)
            printed, errors, code = done.stdout, done.stderr, done.returncode
        took = f"took {time.perf_counter() - start:.1f} s"
        if code:
            print(f"{name}: failed with {code}, {took}: {errors[-3000:]}", flush=True)
            good = False
            continue
        results[name] = one = json.loads(printed.strip().splitlines()[-1])
        shown = {key: one[key] for key in ("device_memory", "check", "first_steps", "bound", "calls") if one.get(key)}
        print(f"{name:22} {one['value']:9.0f} tokens/s, {took}, {shown}", flush=True)
    far = [name for name in results if not agrees(model, results, name)]
    if far:
        print(f"expected what transformers says; got something else of {', '.join(far)}: they have no rows", flush=True)
    results = {name: one for name, one in results.items() if name not in far}
    peers = [name for name in results if name not in BY_US]
    if model == "prefill":
        report = Results(args, gpu())
        for name in [name for name in results if name in BY_US]:
            for peer in peers:
                rates = dict(ours=results[name]["value"], peer=results[peer]["value"], peer_name=peer, unit="tokens/s")
                report.add(kind="model", what=f"prefill, {name}", shape=f"Qwen3-0.6B 1x{args.prompt}", dtype="bfloat16", **rates)
        report.write()
    else:
        shape = f"{gpu_model.MODELS[model][0]} {ROWS[model]}x4096"
        gpu_model.add_model_rows(args, results, BY_US, peers, what="forward+backward", shape=shape)
    return good and not far


def main() -> None:
    names = lambda text: [name for name in text.split(";" if ";" in text else ",") if name]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotswap", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--models", default="prefill,gpt_oss,1b,8b_whole")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sides", type=names, default=[*PYTHON, *HOST], help="with ; between: " + "; ".join((*PYTHON, *HOST)))
    add_flags(parser)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.update(HOTSWAP_PACKAGES=str(args.packages.resolve()), HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if args.side:
        print(json.dumps(side_in_python(args)))
        return
    models = names(args.models)
    if unknown := [m for m in models if m not in ("prefill", *ROWS)] + [s for s in args.sides if s not in (*PYTHON, *HOST)]:
        parser.error(f"expected models of prefill, {', '.join(ROWS)} and sides of {'; '.join((*PYTHON, *HOST))}; got {', '.join(unknown)}")
    if not importlib.util.find_spec("liger_kernel") and "transformers liger" in args.sides:
        print(f"transformers liger is left out: no liger_kernel in {sys.executable}")
        args.sides.remove("transformers liger")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        commands = {}
        for model in models:
            (Path(folder) / model).mkdir()
            commands[model] = commands_of(args, model, f"{folder}/{model}")
        in_python = {(model, name): c for model in models for name, c in commands[model].items() if "--side" in c}
        waiting = gpu_model.waiting_for_turns(in_python, stderr=subprocess.PIPE)
        write_weights(waiting)
        for model in models:
            print(f"== {model}", flush=True)
            its = {name: process for (of, name), process in waiting.items() if of == model}
            good &= compare(args, model, commands[model], its)
            shutil.rmtree(f"{folder}/{model}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
