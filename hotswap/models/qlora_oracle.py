"""qlora_oracle.py OUT: bitsandbytes' NF4 and peft over it, on the CPU, for qlora_test.cpp.

OUT/plain, OUT/nf4       a tiny Llama, and the same as transformers saves it quantised
OUT/adapter              an adapter of it
OUT/expected.safetensors input_ids, loss, grad.<name of the adapter's file>
OUT/blocks.safetensors   weight.I [out, in], data.I and absmax.I as bitsandbytes makes them
"""

import os
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import bitsandbytes
import bitsandbytes.functional as bnb
import peft
import torch
import transformers
from safetensors.torch import save_file

CONFIG = dict(vocab_size=61, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip


def with_plain_weights(model):
    """The weights that NF4 stands for, in torch's own layers: bitsandbytes' product on a CPU computes in bfloat16, whatever
    bnb_4bit_compute_dtype is."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, bitsandbytes.nn.Linear4bit):
                plain = torch.nn.Linear(child.in_features, child.out_features, bias=False)
                plain.weight.data = bnb.dequantize_4bit(child.weight.data, child.weight.quant_state)
                setattr(parent, name, plain)
    del model.hf_quantizer
    model.is_loaded_in_4bit = model.is_quantized = False
    return model


def main():
    out = Path(sys.argv[1])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).save_pretrained(out / "plain")
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        out / "plain", dtype=torch.float32, quantization_config=settings, device_map={"": "cpu"})
    base.save_pretrained(out / "nf4")
    model = peft.get_peft_model(with_plain_weights(base), peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4, lora_alpha=6))
    for p in model.parameters():
        if p.requires_grad:
            p.data.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(out / "adapter")
    ids = torch.randint(3, 61, (2, 11))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    found = {"input_ids": ids, "loss": loss.detach()}
    found |= {"grad." + n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.requires_grad}
    save_file(found, out / "expected.safetensors")

    blocks = {}
    for i, (shape, dtype) in enumerate((((8, 64), torch.float32), ((5, 192), torch.bfloat16), ((64, 640), torch.float32))):
        weight = torch.randn(shape, dtype=dtype)
        weight[0, :64] = 0
        data, state = bnb.quantize_4bit(weight, quant_type="nf4", blocksize=64, compress_statistics=False)
        blocks |= {f"weight.{i}": weight, f"data.{i}": data, f"absmax.{i}": state.absmax}
    save_file(blocks, out / "blocks.safetensors")


if __name__ == "__main__":
    main()
