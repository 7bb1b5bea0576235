"""Trains a tiny model by one of TRL's trainers, on the CPU, and writes its losses, its largest tensor and what is bound as JSON.

    trl_run.py sft|dpo|grpo|kto WAY,... FOLDER

A WAY is stock, or one line of hotswap: swapped (use_liger_kernel=True, where liger_kernel is hotswap), kernelized
(hotswap.kernelize(model) before the trainer is made) or loaded (kernel_config=hotswap.kernel_config() as the trainer loads the model);
each with +lora has peft's adapters, put in by the trainer.
"""

import json
import sys
import warnings

import torch
from chunked import Largest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

import hotswap

kind, ways, folder = sys.argv[1:]
if "swapped" in ways:
    hotswap.enable_for_trainer()  # before TRL looks whether there is a liger_kernel

import trl  # noqa: E402
from datasets import Dataset  # noqa: E402

warnings.simplefilter("ignore")
WORDS = "the a cat dog sees hears likes big small red old one two and or not".split()
VOCAB = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}


def tokenizer():
    made = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(f"{folder}/model")  # a reference is loaded from there
    return AutoModelForCausalLM.from_pretrained(f"{folder}/model")


def text(seed, words):
    generator = torch.Generator().manual_seed(seed)
    return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (words,), generator=generator))


ROWS = {
    "sft": lambda i: {"text": text(i, 12)},
    "dpo": lambda i: {"prompt": text(i, 5), "chosen": " " + text(i + 50, 6), "rejected": " " + text(i + 90, 4 + i % 3)},
    "kto": lambda i: {"prompt": text(i, 5), "completion": " " + text(i + 50, 6), "label": i % 3 > 0},
    "grpo": lambda i: {"prompt": text(i, 5)},
}
MORE = {"grpo": dict(num_generations=2, max_completion_length=7, beta=0.1)}  # how many tokens are told by the reward
TRAINERS = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "grpo": "GRPO"}
OPS = (("norm", "rms_norm_fwd"), ("mlp", "swiglu"), ("loss", "cross_entropy_fwd_"))


def counts():
    from hotswap.core.packages import package

    return {name: package(name).calls(op) for name, op in OPS}


def made(way, adapters):
    """A trainer."""
    more = dict(MORE.get(kind, {}))
    if way == "loaded":
        more["model_init_kwargs"] = dict(use_kernels=True, kernel_config=hotswap.kernel_config())
    config = getattr(trl, f"{TRAINERS[kind]}Config")(
        output_dir=folder, max_steps=3, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1, report_to=[],
        use_cpu=True, seed=3, bf16=False, use_liger_kernel=way == "swapped", gradient_checkpointing=False,
        save_strategy="no", disable_tqdm=True, **more,
    )  # fmt: skip
    trained = model()
    if way == "kernelized":
        hotswap.kernelize(trained)
    options = dict(
        model=f"{folder}/model" if way == "loaded" else trained,
        args=config,
        train_dataset=Dataset.from_list([ROWS[kind](i) for i in range(12)]),
        processing_class=tokenizer(),
    )
    if adapters:
        import peft

        torch.manual_seed(7)
        options["peft_config"] = peft.LoraConfig(r=4, target_modules=["q_proj", "gate_proj", "down_proj"], init_lora_weights=False)
    elif kind in ("dpo", "kto"):
        options["ref_model"] = model()
    if kind == "grpo":
        options["reward_funcs"] = lambda completions, **_: [float(len(c.split()) % 5) for c in completions]
    return getattr(trl, f"{TRAINERS[kind]}Trainer")(**options)


def train(way, adapters):
    trainer = made(way, adapters)
    before = counts()
    with Largest() as largest:
        trainer.train()
    logged = [step for step in trainer.state.log_history if "loss" in step]
    trained = trainer.accelerator.unwrap_model(trainer.model)
    trained = trained.get_base_model() if adapters else trained
    return dict(
        losses=[step["loss"] for step in logged],
        norms=[step["grad_norm"] for step in logged],
        largest=largest.numel,
        called={name: count - before[name] for name, count in counts().items()},
        report=str(hotswap.report(trained)),
        # from TRL 1.13 on a chunked head of its own makes these losses, and use_liger_kernel swaps layers alone
        asks_for_losses=hasattr(sys.modules[type(trainer).__module__], f"LigerFusedLinear{TRAINERS[kind]}Loss"),
    )


def main():
    said = {"trl": trl.__version__}
    for way in ways.split(","):
        said[way] = train(way.removesuffix("+lora"), way.endswith("+lora"))
    with open(f"{folder}/said.json", "w") as file:
        json.dump(said, file)


main()
