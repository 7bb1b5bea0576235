"""lora.py MODEL TEXT OUT: a LoRA adapter by peft; the frozen layers around it run kernels."""

import sys

import hotswap
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

name, text, out = sys.argv[1:]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(name)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")).train()
hotswap.kernelize(model, fused_linear_cross_entropy=True)

ids = AutoTokenizer.from_pretrained(name)(open(text).read(), return_tensors="pt").input_ids[0]
batch = ids[: 8 * 32].view(8, 32)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
losses = []
for _ in range(20):
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
print(hotswap.report(model))
model.save_pretrained(out)  # the adapter only
