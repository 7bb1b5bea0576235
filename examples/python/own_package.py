"""own_package.py MODEL PACKAGE: a kernel of your own in a model of transformers. To make the package:

    hotswap kernel init my-silu --repo me/my-silu && hotswap kernel build my-silu && python own_package.py MODEL my-silu
"""

import sys
from pathlib import Path

import hotswap
import torch
from transformers import AutoModelForCausalLM

name, package = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(name).eval()
ids = torch.arange(16)[None]  # [1, 16]
with torch.no_grad():
    stock = model(ids).logits
    mapping = {"SiLU": f"{Path(package).resolve()}:SiLU"}  # layers that it does not name run hotswap's kernels
    config = hotswap.kernel_config(mapping, use_local_kernel=True, inherit_mapping=True)
    hotswap.kernelize(model, kernel_config=config, strict=True)
    difference = (model(ids).logits - stock).abs().max().item()
print(hotswap.report(model))
print(f"maximum difference from stock: {difference:.2e}")
sys.exit(difference > 1e-4)
