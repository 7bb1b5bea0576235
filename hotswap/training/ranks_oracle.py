"""ranks_oracle.py OUT: transformers' Trainer in two processes over Gloo, under torchrun, for ranks_oracle_test.cpp.

OUT/FAMILY/  model, before the run; run.json: the arguments, the data and the log
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed
import transformers

from trainer_oracle import COMMON, FAMILIES, examples, trainer_of

# 53 examples: the last batches of an epoch are filled from its beginning.
ARGUMENTS = dict(per_device_train_batch_size=3, per_device_eval_batch_size=3, gradient_accumulation_steps=2, max_steps=24, learning_rate=3e-3,
                 weight_decay=0.1, warmup_steps=3, lr_scheduler_type="cosine", seed=7, logging_steps=1, eval_strategy="steps",
                 eval_steps=8, include_num_input_tokens_seen="all")  # fmt: skip
RUNS = {
    "llama": {},
    "qwen3": dict(logging_steps=3),  # head and embedding are one
    "mixtral": dict(dataloader_drop_last=True),
    "gemma": dict(average_tokens_across_devices=False),
}


def run(name, out):
    family, own = FAMILIES[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**(COMMON | own))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    folder, first = out / name, torch.distributed.get_rank() == 0
    if first:
        model.save_pretrained(folder / "model")
    torch.distributed.barrier()
    generator = torch.Generator().manual_seed(11)
    train, held_out = examples(53, generator), examples(12, generator)
    arguments = ARGUMENTS | RUNS[name]
    trainer = trainer_of(model, folder / "trainer", train, held_out, save_strategy="no", **arguments)
    trainer.train()
    if first:
        log = trainer.state.log_history
        (folder / "run.json").write_text(json.dumps(dict(arguments=arguments, train=train, held_out=held_out, log=log)))


def main():
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=os.environ | dict(OMP_NUM_THREADS="1")).returncode)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for name in RUNS:
        run(name, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
