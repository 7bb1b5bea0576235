"""The deformable attention of a Deformable DETR decoder layer as transformers computes it: deformable_oracle.py OUT SEED

OUT/<corners>.safetensors for reference points of 2 numbers and of 4: param.<name>, the arguments of its forward, dout, out,
and grad.<parameter or argument>.
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import torch
from safetensors.torch import save_file
from transformers import DeformableDetrConfig
from transformers.models.deformable_detr.modeling_deformable_detr import DeformableDetrDecoderLayer

SIZES, QUERIES = [(7, 9), (4, 5), (2, 2)], 11


def case(numbers):
    config = DeformableDetrConfig(d_model=24, decoder_attention_heads=4, num_feature_levels=3, decoder_n_points=2,
                                  use_timm_backbone=False, backbone=None, backbone_config={"model_type": "resnet"})  # fmt: skip
    attention = DeformableDetrDecoderLayer(config).encoder_attn
    for p in attention.parameters():
        torch.nn.init.normal_(p, std=0.3)
    shapes = torch.tensor(SIZES)
    rows = shapes.prod(1)
    made = dict(
        hidden_states=torch.randn(2, QUERIES, 24),
        encoder_hidden_states=torch.randn(2, int(rows.sum()), 24),
        position_embeddings=torch.randn(2, QUERIES, 24),
        reference_points=torch.rand(2, QUERIES, 3, numbers),
    )
    leaves = {name: t.requires_grad_() for name, t in made.items()}
    mask = torch.rand(2, int(rows.sum())) < 0.8
    sizes = dict(spatial_shapes=shapes, level_start_index=rows.cumsum(0) - rows)
    out, _ = attention(**leaves, **sizes, attention_mask=mask, spatial_shapes_list=SIZES)
    dout = torch.randn_like(out)
    out.backward(dout)
    saved = {f"param.{name}": p.detach() for name, p in attention.named_parameters()} | sizes
    saved |= {name: t.detach() for name, t in leaves.items()} | {"attention_mask": mask, "out": out.detach(), "dout": dout}
    saved |= {f"grad.{name}": p.grad for name, p in attention.named_parameters()}
    return saved | {f"grad.{name}": t.grad for name, t in leaves.items()}


def main():
    torch.manual_seed(int(sys.argv[2]))
    for numbers in (2, 4):
        save_file(case(numbers), Path(sys.argv[1]) / f"{numbers}.safetensors")


main()
