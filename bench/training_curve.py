"""The held-out curve of `hotswap train` beside transformers' Trainer: one model, text and TrainingArguments, float32.

    training_curve.py --model FOLDER --text FILE --output FOLDER [--hotswap build/bin/hotswap] [--side both] [--use-kernels] [--limit 1e-3]

The last tenth of the text is held out. Each side runs in a process of its own and leaves its log in the output folder, so that they may run on
different days: `--side ours` and `--side transformers` run one, `--side compare` only compares. Fails where a held-out loss differs by more
than the limit. A model of a GGUF file: bench/gguf_folder.py makes its folder.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json, model.safetensors and tokenizer.json")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="where both sides leave text, arguments and logs")
    parser.add_argument("--hotswap", type=Path, default=Path("build/bin/hotswap"))
    parser.add_argument("--side", choices=("both", "ours", "transformers", "compare"), default="both")
    parser.add_argument("--use-kernels", action="store_true", help="of ours")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=64, help="tokens of an example")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--held-out", type=int, default=16, help="examples")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--limit", type=float, default=1e-3, help="of the difference of two held-out losses")
    return parser.parse_args()


def arguments_of(args: argparse.Namespace) -> dict:
    return dict(per_device_train_batch_size=args.batch, per_device_eval_batch_size=4, max_steps=args.steps, learning_rate=args.learning_rate,
                logging_steps=max(1, args.steps // 20), eval_strategy="steps", eval_steps=max(1, args.steps // 10), eval_on_start=True,
                save_strategy="no", seed=42)  # fmt: skip


def pieces(file: Path, tokenizer, length: int) -> list[dict]:
    ids = tokenizer.encode(file.read_text()).ids
    rows = [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]
    return [dict(input_ids=row, labels=row) for row in rows]


def split(args: argparse.Namespace) -> None:
    """The texts that both sides read: the held-out one is cut so that it has as many examples as --held-out."""
    from tokenizers import Tokenizer

    text = args.text.read_text()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    at = len(text) * 9 // 10
    held_out = tokenizer.encode(text[at:])
    needed = args.held_out * args.length
    if len(held_out.ids) < needed:
        sys.exit(f"training_curve: expected {needed} held-out tokens in the last tenth of {args.text}; got {len(held_out.ids)}; take less")
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "train.txt").write_text(text[:at])
    (args.output / "held_out.txt").write_text(text[at : at + held_out.offsets[needed - 1][1]])
    (args.output / "arguments.json").write_text(json.dumps(arguments_of(args), indent=2))


def run_transformers(args: argparse.Namespace) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer

    transformers.logging.set_verbosity_error()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    train, held_out = (pieces(args.output / name, tokenizer, args.length) for name in ("train.txt", "held_out.txt"))
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    start = time.time()

    class Kept(transformers.TrainerCallback):
        """Written with each entry: what was measured stays where the run is stopped."""

        def on_log(self, arguments, state, control, **_):
            versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
            text = json.dumps(dict(versions=versions, seconds=time.time() - start, log=state.log_history))
            (args.output / "transformers.json").write_text(text)

    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(output_dir=str(args.output / "transformers"), use_cpu=True, report_to=[], disable_tqdm=True, **arguments_of(args)),
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=transformers.default_data_collator,
        callbacks=[Kept()],
    )
    trainer.train()


def run_ours(args: argparse.Namespace) -> None:
    out = args.output / "ours"
    start = time.time()
    command = [args.hotswap, "train", args.model, "--train-file", args.output / "train.txt", "--eval-file", args.output / "held_out.txt",
               "--arguments", args.output / "arguments.json", "--output-dir", out, "--max-length", args.length, "--dtype", "float32",
               "--use-cpu", *["--use-kernels"] * args.use_kernels]  # fmt: skip
    subprocess.run([str(part) for part in command], check=True)
    log = json.loads((out / "trainer_state.json").read_text())["log_history"]
    (args.output / "ours.json").write_text(json.dumps(dict(seconds=time.time() - start, log=log)))


def compare(args: argparse.Namespace) -> int:
    sides = {name: json.loads((args.output / f"{name}.json").read_text()) for name in ("ours", "transformers")}
    curves = {name: {e["step"]: e["eval_loss"] for e in side["log"] if "eval_loss" in e} for name, side in sides.items()}
    print(f"{sides['transformers']['versions']}; {args.steps} updates of {args.batch} x {args.length} tokens, float32, "
          f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}")  # fmt: skip
    print("step   held out: ours   transformers   difference")
    worst = 0.0
    for step, theirs in curves["transformers"].items():
        own = curves["ours"][step]
        worst = max(worst, abs(own - theirs))
        print(f"{step:4}   {own:14.6f}   {theirs:12.6f}   {own - theirs:10.2e}")
    losses = {name: [e["loss"] for e in side["log"] if "loss" in e] for name, side in sides.items()}
    training = max(abs(a - b) for a, b in zip(losses["ours"], losses["transformers"], strict=True))
    seconds = {name: side["seconds"] for name, side in sides.items()}
    print(f"maximum difference: held out {worst:.2e}, training loss {training:.2e}; seconds: {seconds['ours']:.0f} and {seconds['transformers']:.0f}")
    if len(curves["ours"]) < 2 or worst > args.limit:
        print(f"training_curve: expected held-out losses within {args.limit}; got {worst:.2e} over {len(curves['ours'])} evaluations")
        return 1
    return 0


def main() -> None:
    args = flags()
    if args.side != "compare":
        split(args)
    if args.side in ("both", "transformers"):
        run_transformers(args)
    if args.side in ("both", "ours"):
        run_ours(args)
    sys.exit(compare(args) if args.side in ("both", "compare") else 0)


if __name__ == "__main__":
    main()
