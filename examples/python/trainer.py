"""trainer.py MODEL TEXT OUT: transformers' Trainer, with the model's layers swapped for kernels."""

import sys

import hotswap
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

name, text, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(name)
# The loss comes from the hidden states and the head's weight; logits are never stored as a whole.
hotswap.kernelize(model, fused_linear_cross_entropy=True)

ids = AutoTokenizer.from_pretrained(name)(open(text).read(), return_tensors="pt").input_ids[0]
examples = [{"input_ids": row, "labels": row} for row in ids[: len(ids) // 32 * 32].view(-1, 32)]
arguments = TrainingArguments(
    out, max_steps=20, per_device_train_batch_size=2, learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to="none"
)
trainer = Trainer(model, arguments, train_dataset=examples)
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
print(hotswap.report(model))
trainer.save_model(out)
