"""trl_sft.py MODEL TEXT OUT: TRL's SFTTrainer with use_liger_kernel=True, where hotswap's kernels stand in for Liger's."""

import sys

import hotswap

hotswap.enable_for_trainer()  # before TRL is imported: it looks for liger_kernel then

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

name, text, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
paragraphs = [paragraph for paragraph in open(text).read().split("\n\n") if paragraph.strip()]
on_gpu = torch.cuda.is_available()
arguments = SFTConfig(
    out, max_steps=20, per_device_train_batch_size=2, learning_rate=1e-3, max_length=64, use_liger_kernel=True,
    bf16=on_gpu, use_cpu=not on_gpu, logging_steps=1, save_strategy="no", report_to="none", eos_token=tokenizer.eos_token or tokenizer.pad_token,
)  # fmt: skip
trainer = SFTTrainer(
    AutoModelForCausalLM.from_pretrained(name),
    args=arguments,
    train_dataset=Dataset.from_dict({"text": paragraphs}),
    processing_class=tokenizer,
)
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
print(hotswap.report(trainer.model))
trainer.save_model(out)
