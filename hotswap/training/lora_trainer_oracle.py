"""lora_trainer_oracle.py OUT: transformers' Trainer over peft's adapters, for lora_trainer_test.cpp.

OUT/CASE/  model, adapter (before the run), trained (after it), run.json: the arguments, the data and the log
"""

import json
import sys
from pathlib import Path

import peft
import torch
import transformers

from trainer_oracle import COMMON, collate, examples, trainer_of

ARGUMENTS = dict(per_device_train_batch_size=3, gradient_accumulation_steps=2, max_steps=24, learning_rate=5e-3, weight_decay=0.1,
                 warmup_steps=3, lr_scheduler_type="cosine", seed=7, logging_steps=1)  # fmt: skip
CASES = {
    "all_linear": ("Llama", {}, dict(target_modules="all-linear", r=4, lora_alpha=8)),
    "dora": ("Qwen2", {}, dict(target_modules=["q_proj", "v_proj", "down_proj"], use_dora=True)),
    "whole": ("Gemma", {}, dict(target_modules=["q_proj", "gate_proj"], modules_to_save=["norm"], use_rslora=True)),
    "joined": ("Phi3", {}, dict(target_modules=["qkv_proj", "o_proj", "gate_up_proj"], modules_to_save=["lm_head"])),
    "bias": ("Llama", dict(attention_bias=True), dict(target_modules=["q_proj"], bias="lora_only")),
}


def run(case, out):
    family, own, options = CASES[case]
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**(COMMON | own)))
    folder = out / case
    model.save_pretrained(folder / "model")
    made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    for name, p in made.named_parameters():
        if "lora_B" in name:  # so that A learns from the first step on
            p.data.normal_(0, 0.1)
    made.save_pretrained(folder / "adapter")
    train = examples(53, torch.Generator().manual_seed(11))
    trainer = trainer_of(made, folder / "trainer", train, None, save_strategy="no", **ARGUMENTS)
    trainer.train()
    trainer.save_state()
    made.save_pretrained(folder / "trained")
    state = json.loads((folder / "trainer/trainer_state.json").read_text())
    (folder / "run.json").write_text(json.dumps(dict(arguments=ARGUMENTS, train=train, state=state)))


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in CASES:
        run(case, out)


if __name__ == "__main__":
    main()
