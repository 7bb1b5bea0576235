"""A model with random weights, forward and backward on a GPU: the C++ host and transformers, stock and swapped.

    gpu_model.py --hotswap build/bin/hotswap --packages build/packages [--csv bench/results.csv --date D --commit C]
    gpu_model.py --packages build/packages --model 8b --rows 2        # 16 layers, activations checkpointed; 8b_whole: not
    gpu_model.py --packages build/packages --adamw --sides "transformers;transformers hotswap;transformers liger"
    gpu_model.py --packages build/packages --model 8b_32 --rows 2 --lora 16 --adamw     # peft's adapters
    gpu_model.py --hotswap build/bin/hotswap --packages build/packages --model moe     # 4 layers of Qwen3-30B-A3B's, Liger left out
    gpu_model.py --hotswap build/bin/hotswap --packages build/packages --model gpt_oss --rows 1
    gpu_model.py --packages build/packages --model mamba2 --rows 1 --columns 512    # and mamba: transformers and ours alone

bfloat16, --rows x --columns tokens, no optimizer but by --adamw (torch's, fused; the C++ host is left out). Each line is
a process of its own: tokens/s, the GPU memory at the peak and before the first step, the first two steps' seconds, the clock
and the power of the card while steps were timed, and the first loss; the losses of one program must agree, of the first
seven steps. With --turns the processes in Python stay and take turns, --repeats steps behind two untimed ones in each.
--floor adds a process that takes turns with them: the step's matrix products, attention and the loss, each alone
(gpu_floor.py). --profile FILE: every kernel of one more step of each, by name.
transformers takes the packages through KernelConfig(use_local_kernel=True) ("kernels"), which needs Python's `kernels`,
and through python/ ("hotswap": every layer and the loss without logits; "attention": that, and the attention, as in
"hotswap attention" of the C++ host); "compile" is torch.compile of the stock model, and Liger's line needs its wheel:
missing dependencies are reported.
"""

import argparse
import contextlib
import csv
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib import gpu_floor  # noqa: E402
from bench.lib.results import Results, add_flags, gpu  # noqa: E402

LLAMA_1B = dict(
    model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=128256, hidden_size=2048, num_hidden_layers=16,
    num_attention_heads=32, num_key_value_heads=8, head_dim=64, intermediate_size=8192, hidden_act="silu",
    max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True,
    attention_bias=False, mlp_bias=False, initializer_range=0.02, dtype="bfloat16", bos_token_id=1, eos_token_id=2,
)  # fmt: skip
LLAMA_8B = LLAMA_1B | dict(
    hidden_size=4096, head_dim=128, intermediate_size=14336, tie_word_embeddings=False
)  # fmt: skip
LLAMA_8B_32 = LLAMA_8B | dict(num_hidden_layers=32)
QWEN3_MOE = LLAMA_1B | dict(
    model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], vocab_size=151936, num_hidden_layers=4, num_key_value_heads=4,
    head_dim=128, intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
    decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=False,
    max_position_embeddings=40960, output_router_logits=False, router_aux_loss_coef=0.001,
)  # fmt: skip
# gpt-oss-20b: one layer with a window, one without. Its attention has sinks: stock is eager.
GPT_OSS = dict(
    model_type="gpt_oss", architectures=["GptOssForCausalLM"], vocab_size=201088, hidden_size=2880, num_hidden_layers=2,
    num_attention_heads=64, num_key_value_heads=8, head_dim=64, intermediate_size=2880, num_local_experts=32, num_experts_per_tok=4,
    sliding_window=128, layer_types=["sliding_attention", "full_attention"], hidden_act="silu", attention_bias=True,
    attention_dropout=0.0, max_position_embeddings=131072, rms_norm_eps=1e-5, swiglu_limit=7.0, rope_theta=150000.0,
    tie_word_embeddings=False, initializer_range=0.02, output_router_logits=False, dtype="bfloat16", bos_token_id=1, eos_token_id=2,
)  # fmt: skip
# state-spaces/mamba-1.4b and mamba2-1.3b. Stock keeps tensors of tokens x states: checkpointed, a layer's at a time.
MAMBA = dict(
    model_type="mamba", architectures=["MambaForCausalLM"], vocab_size=50280, hidden_size=2048, num_hidden_layers=48,
    state_size=16, intermediate_size=4096, expand=2, conv_kernel=4, time_step_rank=128, use_mambapy=False, residual_in_fp32=True,
    dtype="bfloat16", bos_token_id=0, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
MAMBA2 = dict(
    model_type="mamba2", architectures=["Mamba2ForCausalLM"], vocab_size=50288, hidden_size=2048, num_hidden_layers=48,
    state_size=128, num_heads=64, head_dim=64, n_groups=1, expand=2, conv_kernel=4, chunk_size=256, residual_in_fp32=True,
    tie_word_embeddings=True, dtype="bfloat16", bos_token_id=0, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
MODELS = {  # name, configuration, are activations checkpointed
    "1b": ("Llama-1B", LLAMA_1B, False),
    "8b": ("Llama-8B, 16 layers checkpointed", LLAMA_8B, True),
    "8b_32": ("Llama-8B", LLAMA_8B_32, False),  # with --lora: all layers
    "8b_whole": ("Llama-8B, 16 layers", LLAMA_8B, False),  # of the C++ host too, which does not checkpoint: 90 GB
    "moe": ("Qwen3-30B-A3B, 4 layers", QWEN3_MOE, False),
    "gpt_oss": ("gpt-oss-20b, 2 layers", GPT_OSS, False),
    "mamba": ("mamba-1.4b checkpointed", MAMBA, True),
    "mamba2": ("mamba2-1.3b checkpointed", MAMBA2, True),
}
LLAMAS = [model for model, (_, config, _) in MODELS.items() if config["model_type"] == "llama"]
WARM = 2
CHECKED = 7  # steps whose losses are compared: afterwards the same ids are known by heart, by each side its own way
BF16_LOSS = 2e-2
HOST_ATTENTION = ["--use-kernels", "--attn-implementation", "flash_attention_2"]  # for which our package stands in
LEARNING_RATE = 1e-5
READY = "ready"
OURS = {"hotswap": {}, "attention": {"attention": True}}  # through python/, and what else kernelize is asked for


def import_for(side: str) -> None:
    """What a side needs takes longer to import than what is measured."""
    from transformers.models.llama import modeling_llama  # noqa: F401

    if side == "liger":
        import liger_kernel.transformers  # noqa: F401
    elif side in (*OURS, "floor"):
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
        import hotswap.swap.bind  # noqa: F401


def arbitrary_ids(rows: int, columns: int, vocabulary: int, device: str = "cuda", first: int = 0):
    """As hotswap/cli/bench/model.cpp has them, from its number `first` on."""
    import torch

    ids = (torch.arange(rows * columns, device=device) + first) * 7919 + 104729
    return (ids % vocabulary).view(rows, columns)


def seconds(call) -> tuple:
    """Of a call that waits for nothing on the GPU, and its result."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def apply_liger(model_type: str) -> None:
    import liger_kernel.transformers as liger

    getattr(liger, f"apply_liger_kernel_to_{model_type}")()


def random_model(config, side: str, device: str, dtype, checkpoint: bool, lora: int = 0):
    """A model for training with the same random weights for every side; Liger and ours are applied here. lora: the rank of peft's
    adapters of all linear layers, in whose default form their weights are float32."""
    import torch
    from transformers import AutoModelForCausalLM

    if side == "liger":
        apply_liger(config.model_type)
    torch.manual_seed(0)
    with torch.device(device):
        attention = dict(attn_implementation="sdpa") if config.model_type == "llama" else {}
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **attention)
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():  # B begins as 0, and its product would be one of zeros
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=1e-3)
    model.train()
    if checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if side in OURS:
        import hotswap

        # Llama has a kernel for each of its layers; a Mamba has no loss without logits.
        without_logits = not config.model_type.startswith("mamba")
        hotswap.kernelize(model, strict=config.model_type == "llama" and not lora, fused_linear_cross_entropy=without_logits, **OURS[side])
    return model


def transformers_step(args) -> dict:
    import torch
    from bench.lib.gpu_meter import Meter
    from transformers import AutoConfig
    from transformers.models.llama import modeling_llama

    import_for(args.side)
    wait_for_turn()
    side, packages, rows, columns = args.side, args.packages, args.rows, args.columns
    config = AutoConfig.from_pretrained(args.folder)
    if side == "kernels":
        from kernels import replace_kernel_forward_from_hub

        replace_kernel_forward_from_hub(modeling_llama.LlamaMLP, "SwiGLUMLP")
    model = random_model(config, side, "cuda", torch.bfloat16, checkpoint=MODELS[args.model][2], lora=args.lora)
    calls = lambda: {}
    if side in OURS:
        import hotswap

        calls = lambda: {op: n for op, n in hotswap.report(model).calls.items() if n}
    if side == "compile":
        model.forward = torch.compile(model.forward)
    if side == "kernels":
        from kernels import use_kernel_forward_from_hub
        from transformers import KernelConfig
        from transformers.loss import loss_utils

        model._loss_function = use_kernel_forward_from_hub("ForCausalLMLoss")(loss_utils.ForCausalLMLoss)
        layers = {"RMSNorm": "norm:RMSNorm", "rotary_pos_emb": "rotary:rotary_pos_emb",
                  "SwiGLUMLP": "mlp:SwiGLUMLP", "ForCausalLMLoss": "loss:ForCausalLMLoss"}  # fmt: skip
        mapping = {layer: f"{Path(packages).resolve()}/{where}" for layer, where in layers.items()}
        model.set_use_kernels(True, KernelConfig(mapping, use_local_kernel=True))
        ids = {json.loads(f.read_text())["name"]: json.loads(f.read_text())["id"]
               for f in Path(packages).glob("*/build/*-cu*/metadata.json")}  # fmt: skip
        ops = dict(norm="rms_norm_fwd", rotary="rotary", mlp="swiglu", loss="cross_entropy_fwd")
        calls = lambda: {op: getattr(torch.ops, ids[package]).call_count(op) for package, op in ops.items()}
    tokens = arbitrary_ids(rows, columns, config.vocab_size)
    torch.cuda.synchronize()
    loaded = torch.cuda.memory_allocated()
    times, losses, readings, meter = [], [], [], Meter()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, fused=True) if args.adamw else None

    def step():
        loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        if optimizer:
            optimizer.step()
        return loss.detach()

    for turn in range(args.turns):
        if turn:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()  # for whose turn it is
            wait_for_turn()
        for i in range(WARM + args.repeats):
            model.zero_grad(set_to_none=True)
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            start = time.perf_counter()
            if i == WARM:
                began = start
            loss = step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            losses.append(loss.item())
        readings.append((statistics.median(times[-args.repeats :]), *meter.between(began, time.perf_counter())))
        if args.turns > 1:
            print("s a step, MHz, W:", *(f"{n:.4f}" for n in readings[-1]), flush=True)
    peak = torch.cuda.max_memory_allocated()
    if args.profile:
        model.zero_grad(set_to_none=True)
        write_kernels(args.profile, f"{args.model} {side}", step)
    timed = [t for i, t in enumerate(times) if i % (WARM + args.repeats) >= WARM]
    return {"value": rows * columns / statistics.median(timed), "check": losses[:CHECKED], "calls": calls(),
            "first_steps": [round(t, 3) for t in times[:2]], "turns": [[round(n, 4) for n in r] for r in readings],
            "load": "{:.0f} MHz {:.0f} W".format(*(statistics.mean(r[i] for r in readings) for i in (1, 2))),
            "device_memory": {"loaded": loaded, "peak": peak}}  # fmt: skip


def floor_of(args) -> dict:
    """The process of --floor."""
    import_for("floor")
    return gpu_floor.measured(args, MODELS[args.model][1], MODELS[args.model][2], wait_for_turn)


def write_kernels(file: Path, side: str, step) -> None:
    """Every kernel of one step by name: calls and milliseconds of the GPU; first the step itself, by the profiler slowed down."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took = time.perf_counter() - start
    kernels = [e for e in found.key_averages() if e.device_type == DeviceType.CUDA]
    with open(file, "a", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow([side, "the step", 1, f"{took * 1e3:.3f}"])
        for e in sorted(kernels, key=lambda e: -e.self_device_time_total):
            rows.writerow([side, e.key, e.count, f"{e.self_device_time_total / 1e3:.3f}"])


def wait_for_turn() -> None:
    print(READY, flush=True)
    sys.stdin.readline()


def waiting_for_turns(commands: dict, **options) -> dict:
    """A process of each command, all of which have imported what they need, side by side, and wait for a line: their turn on the GPU."""
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    waiting = {name: subprocess.Popen(command, **pipes, text=True, **options) for name, command in commands.items()}
    for name, process in waiting.items():
        until_ready(process, name)
    return waiting


def until_ready(process, name="") -> None:
    """What it prints before is shown: a run that is cut off keeps its readings."""
    while (line := process.stdout.readline().strip()) not in (READY, ""):
        print(name, line, flush=True)


def one_by_one(commands: dict, environment: dict, turns: int):
    """(name, exit status, stdout, stderr) of each. Those in Python import what they need side by side, which takes longer than
    what is measured, and wait for their turns."""
    in_python = {name: command for name, command in commands.items() if "--side" in command}
    waiting = waiting_for_turns(in_python, stderr=subprocess.PIPE, env=environment)
    for _ in range(turns - 1):
        for name, process in waiting.items():
            with contextlib.suppress(BrokenPipeError):  # it died: below
                print(file=process.stdin, flush=True)
            until_ready(process, name)
    for name, command in commands.items():
        if name in waiting:
            printed, errors = waiting[name].communicate("\n")
            yield name, waiting[name].returncode, printed, errors
        else:
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            yield name, done.returncode, done.stdout, done.stderr


def add_model_rows(args, results: dict, ours, peers, what: str, shape: str) -> None:
    """A row for tokens/s and one for the peak of memory, for each of ours beside each of the peers."""
    report = Results(args, gpu())
    common = dict(kind="model", shape=shape, dtype="bfloat16")
    for name in ours:
        for peer in peers:
            if name in results and peer in results:
                a, b = results[name], results[peer]
                rate = dict(ours=round(a["value"]), peer=round(b["value"]), unit="tokens/s")
                if "load" in a and "load" in b:
                    rate["load"] = f"{a['load']}; {b['load']}"
                report.add(what=f"{what}, {name}", peer_name=peer, **rate, **common)
                memory = dict(ours=a["device_memory"]["peak"], peer=b["device_memory"]["peak"], unit="bytes")
                report.add(what=f"{what} peak memory, {name}", peer_name=peer, **memory, **common)
    report.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotswap", type=Path)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="1b")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--adamw", action="store_true", help="and a step of AdamW")
    parser.add_argument("--lora", type=int, default=0, metavar="R", help="train adapters of rank R by peft, all linear layers")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--floor", action="store_true", help="of a Llama: its products, attention and loss alone, in turns with the steps")
    parser.add_argument("--profile", type=Path, help="append the kernels of one more step of each side here")
    parser.add_argument("--sides", type=lambda s: s.split(";"), default=[], help="names as printed, with ; between")
    add_flags(parser)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(floor_of(args) if args.side == "floor" else transformers_step(args)))
        return
    if args.floor and (args.model not in LLAMAS or not args.adamw):
        sys.exit(f"expected --floor with --adamw and a model of {', '.join(LLAMAS)}; got {args.model}")
    name, config, checkpointed = MODELS[args.model]
    shape = f"{name} {args.rows}x{args.columns}" + f", LoRA of rank {args.lora}" * bool(args.lora)
    results, floor = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        sizes = ["--rows", str(args.rows), "--columns", str(args.columns), "--repeats", str(args.repeats)]
        host = [args.hotswap, "bench", "model", "--what", "step", "--device", "cuda"]
        host += ["--model", folder, "--random-weights"]
        python = [sys.executable, __file__, "--folder", folder, "--packages", args.packages, "--model", args.model]
        python += ["--adamw"] * args.adamw + ["--turns", args.turns, "--lora", args.lora]
        python += ["--profile", args.profile] if args.profile else []
        sides = {}
        if args.hotswap and not checkpointed and not args.adamw:  # the C++ host does not checkpoint
            sides = {"hotswap stock": host, "hotswap kernels": [*host, "--use-kernels"], "hotswap attention": [*host, *HOST_ATTENTION]}
        sides["transformers"] = [*python, "--side", "plain"]
        modules = dict(hotswap="torch", attention="torch")
        if args.model in LLAMAS:
            modules = dict(compile="torch", kernels="kernels", **modules, liger="liger_kernel")
        elif "mamba" in args.model:
            del modules["attention"]
        for side, module in modules.items():
            if importlib.util.find_spec(module):
                sides[f"transformers {side}"] = [*python, "--side", side]
            else:
                print(f"transformers {side} is left out: no {module} in {sys.executable}")
        if unknown := set(args.sides) - set(sides):
            sys.exit(f"expected sides of {'; '.join(sides)}; got {'; '.join(unknown)}")
        sides = {name: command for name, command in sides.items() if not args.sides or name in args.sides}
        if args.floor:
            sides["floor"] = [*python, "--side", "floor"]
        environment = dict(os.environ, HOTSWAP_PACKAGES=str(args.packages.resolve()), HF_HUB_OFFLINE="1")
        commands = {name: [*map(str, command), *sizes] for name, command in sides.items()}
        for name, code, printed, errors in one_by_one(commands, environment, args.turns):
            if code:
                print(f"{name}: failed with {code}: {errors[-3000:]}")
                continue
            out = json.loads(printed.strip().splitlines()[-1])
            if name == "floor":
                floor = out
                continue
            results[name] = out
            memory = out["device_memory"]
            extra = {key: out[key] for key in ("first_steps", "turns", "load", "bound", "calls") if out.get(key)}
            used = f"peak {memory['peak'] / 1e9:6.2f} GB (weights {memory['loaded'] / 1e9:.2f})"
            print(f"{name:22} {out['value']:9.0f} tokens/s  {used}  loss {out['check'][0]:.4f} {extra}", flush=True)
    failed = False
    pairs = (("hotswap stock", "hotswap kernels"), ("hotswap stock", "hotswap attention"), ("transformers", "transformers kernels"))
    for stock, name in (*pairs, *(("transformers", f"transformers {side}") for side in (*OURS, "compile", "liger"))):
        if stock in results and name in results:
            apart = max(abs(a - b) for a, b in zip(results[stock]["check"], results[name]["check"], strict=True))
            print(f"losses of {name} and {stock} are {apart:.1e} apart")
            failed |= not apart <= BF16_LOSS
    if failed:
        sys.exit(f"expected losses within {BF16_LOSS} of each other; nothing is written")
    ours = ("hotswap kernels", "hotswap attention", "transformers kernels", *(f"transformers {side}" for side in OURS))
    peers = ("hotswap stock", "transformers", "transformers compile", "transformers liger")
    add_model_rows(args, results, ours, peers, what="forward+backward" + "+AdamW" * args.adamw, shape=shape)
    if floor:
        gpu_floor.add_rows(floor, "forward+backward+AdamW", shape, Results(args, gpu()))


if __name__ == "__main__":
    main()
