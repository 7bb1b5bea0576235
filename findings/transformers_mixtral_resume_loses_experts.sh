#!/usr/bin/env bash
# transformers 5.24.0 (5.17.0 too): Trainer resumes a Mixtral from its own checkpoint without the experts and the router. Saving writes them
# under the names of published checkpoints (block_sparse_moe.experts.0.w1 ...), from_pretrained makes of these the model's stacked
# tensors, but Trainer's way of loading a checkpoint does not: it warns of missing and unexpected keys, and trains on with the
# experts that the new model was made with, and with the optimizer's states of those that were saved.
# Natural guess: train(resume_from_checkpoint=...) begins with the weights of the checkpoint, as its model.safetensors has them.
# Seen: attention weights are the checkpoint's, the experts are those of the model before; from_pretrained has both right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0 torch==2.11.0 accelerate==1.15.0
cd "$folder" && HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainingArguments

config = MixtralConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, num_local_experts=4
)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.arange(64).view(8, 8) % 32]
arguments = TrainingArguments(
    output_dir="out", max_steps=2, save_steps=2, per_device_train_batch_size=4, learning_rate=0.1, report_to="none", use_cpu=True, disable_tqdm=True
)

def fresh():
    torch.manual_seed(0)
    return MixtralForCausalLM(config)

Trainer(fresh(), arguments, train_dataset=rows).train()
saved = MixtralForCausalLM.from_pretrained("out/checkpoint-2").state_dict()
resumed = fresh()
Trainer(resumed, arguments, train_dataset=rows).train(resume_from_checkpoint="out/checkpoint-2")  # nothing is left to do
before = fresh().state_dict()

def state(name):
    now = resumed.state_dict()[name]
    return "the checkpoint's" if torch.equal(now, saved[name]) else "the new model's" if torch.equal(now, before[name]) else "neither"

seen = {name: state(f"model.layers.0.{name}") for name in ("self_attn.q_proj.weight", "mlp.gate.weight", "mlp.experts.gate_up_proj")}
print(seen)
assert seen == {
    "self_attn.q_proj.weight": "the checkpoint's",
    "mlp.gate.weight": "the new model's",
    "mlp.experts.gate_up_proj": "the new model's",
}, seen
PY
