"""Quantised checkpoints of every format, and what their own readers make of them. In one process: importing transformers,
compressed-tensors and bitsandbytes is nearly all of its time.

    python quantised_model_oracle.py OUT [NAME...]

OUT/layouts/NAME/    config.json and model.safetensors as the format's writer makes them, and expected.safetensors, the
                     weights that they stand for in float32
OUT/models/NAME/     a tiny Llama that transformers loads (config.json and model.safetensors, or model.gguf), and
                     expected.safetensors: input_ids [2, time] and logits [2, time, vocab] of float32, by transformers'
                     reader of the format where there is one that runs on a CPU and keeps float32 (READ_BY_TRANSFORMERS),
                     else by its Llama with the weights that the format stands for
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that spin make each other slow where others compute too

import gguf
import numpy as np
import torch
import transformers
from quantised_oracle import FORMATS, random
from safetensors.torch import save_file

# rows and columns that no block divides
SHAPES = {"q_proj": (192, 320), "k_proj": (64, 320), "down_proj": (320, 576)}
CONFIG = dict(vocab_size=97, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)  # fmt: skip
READ_BY_TRANSFORMERS = ("fp8_real", "ct_w4a16", "ct_w4a16_asym", "ct_w8a16", "bnb_real")
GGUF_WRITTEN = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")  # those that llama.cpp's package quantises to
# types of which it only reads: (bytes of a block, where in it the halves are that scale it)
GGUF_MADE = {"Q2_K": (84, (80, 82)), "Q3_K": (110, (108,)), "Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)),
             "Q6_K": (210, (208,)), "IQ4_XS": (136, (0,))}  # fmt: skip


def write_layout(folder, config, module):
    folder.mkdir(parents=True)
    stored = {"model.norm.weight": torch.randn(320)}
    expected = dict(stored)
    for name, shape in SHAPES.items():
        parts, weight = module(shape)
        stored |= {f"model.layers.0.{name}.{end}": tensor.contiguous() for end, tensor in parts.items()}
        expected[f"model.layers.0.{name}.weight"] = weight.to(torch.float32).contiguous()
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    save_file(stored, folder / "model.safetensors")
    save_file(expected, folder / "expected.safetensors")


# ---- whole models


def base_model():
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).eval()
    for name, parameter in model.named_parameters():
        spread = 0.2 if parameter.dim() == 1 else 1.0 if "embed" in name else parameter.shape[1] ** -0.5
        parameter.data.normal_(float(parameter.dim() == 1), spread)
    return model


def projections(model):
    return [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]


def save(folder, model, stored, config):
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"quantization_config": config, "dtype": "float32"}))
    save_file({n: t.contiguous() for n, t in stored.items()}, folder / "model.safetensors", metadata={"format": "pt"})


def write_by_module(folder, config, module):
    """Each projection as quantised_oracle.py makes it: random weights of the format. Norms make up for their size:
    large queries and keys make attention nearly one-hot, which raises the rounding of sums without bound."""
    model = base_model()
    stored = dict(model.state_dict())
    for name, linear in projections(model):
        parts, weight = module(tuple(linear.weight.shape))
        del stored[f"{name}.weight"]
        stored |= {f"{name}.{end}": tensor for end, tensor in parts.items()}
        linear.weight.data = weight.to(torch.float32)
    for layer in model.model.layers:
        reads = {layer.input_layernorm: layer.self_attn.q_proj, layer.post_attention_layernorm: layer.mlp.up_proj}
        for norm, linear in reads.items():
            norm.weight.data /= linear.weight.norm(dim=1).max()  # stored shares this memory
    save(folder, model, stored, config | {"ignore": ["lm_head"]} if "ignore" in config else config)
    return model


def write_fp8(folder):
    """By the function with which transformers quantises on a GPU."""
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    model, settings = base_model(), transformers.FineGrainedFP8Config()
    quantize = Fp8Quantize(SimpleNamespace(quantization_config=settings))
    stored = dict(model.state_dict())
    for name, linear in projections(model):
        stored |= quantize.convert({f"{name}.weight": stored.pop(f"{name}.weight")})
    save(folder, model, stored, settings.to_dict())


def write_bitsandbytes(folder):
    from transformers import BitsAndBytesConfig

    base_model().save_pretrained(folder / "plain")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                  bnb_4bit_compute_dtype=torch.float32)  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "plain", quantization_config=settings,
                                                              dtype=torch.float32, device_map="cpu")  # fmt: skip
    model.save_pretrained(folder)


def gguf_names(model):
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    inside = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q",
              "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
              "up_proj": "ffn_up", "down_proj": "ffn_down"}  # fmt: skip
    for name, tensor in model.state_dict().items():
        module = name.removesuffix(".weight")
        layer, part = (module.split(".")[i] for i in (2, -1)) if "layers" in module else ("", "")
        yield f"blk.{layer}.{inside[part]}.weight" if layer else f"{outside[module]}.weight", tensor


def made_blocks(kind, shape):
    """Blocks of any codes, with scales that leave products of ordinary size."""
    size, halves = GGUF_MADE[kind]
    blocks = random.integers(0, 256, (shape[0], shape[1] // 256, size), dtype=np.uint8)
    for at in halves:
        scale = random.uniform(-1e-4, 1e-4, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write_gguf(folder, kind):
    folder.mkdir(parents=True, exist_ok=True)
    model, c = base_model(), CONFIG
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(c["vocab_size"])
    writer.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    quantized = gguf.GGMLQuantizationType[kind]
    for name, tensor in gguf_names(model):
        if tensor.dim() == 1:
            writer.add_tensor(name, tensor.numpy())
        elif kind in GGUF_MADE:
            writer.add_tensor(name, made_blocks(kind, tensor.shape), raw_dtype=quantized)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_by_transformers(folder):
    kind = dict(gguf_file="model.gguf") if (folder / "model.gguf").exists() else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **kind).eval()
    if folder.name != "bnb_real":
        return model
    # bitsandbytes' own products on a CPU round to bfloat16 where it has that: its dequantiser does not
    plain = base_model()
    for name, linear in projections(plain):
        packed = model.get_submodule(name).weight
        linear.weight.data = __import__("bitsandbytes").functional.dequantize_4bit(packed.data, packed.quant_state).float()
    return plain


def write_model(folder, write, by_transformers):
    written = write(folder)
    model = read_by_transformers(folder) if by_transformers else written
    ids = torch.randint(3, CONFIG["vocab_size"], (2, 11))
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    assert torch.isfinite(logits).all(), folder
    save_file({"input_ids": ids, "logits": logits.float().contiguous()}, folder / "expected.safetensors")


def all_models():
    """{name: function of a folder that writes the model and may return it as the format stands for it}"""
    made = {name: lambda f, c=config, m=module: write_by_module(f, c, m) for name, (config, module) in FORMATS.items()}
    made |= {"fp8_real": write_fp8, "bnb_real": write_bitsandbytes}
    made |= {f"gguf_{kind.lower()}": lambda f, k=kind: write_gguf(f, k) for kind in (*GGUF_WRITTEN, *GGUF_MADE)}
    return made


def main():
    transformers.logging.set_verbosity_error()
    out, only = Path(sys.argv[1]), sys.argv[2:]
    for name, (config, module) in FORMATS.items():
        if not only or name in only:
            write_layout(out / "layouts" / name, config, module)
    for name, write in all_models().items():
        if not only or name in only:
            write_model(out / "models" / name, write, name in READ_BY_TRANSFORMERS or name.startswith("gguf_"))


if __name__ == "__main__":
    main()
