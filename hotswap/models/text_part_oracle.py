"""Tiny models of text and images as transformers saves them, and the logits of plain text.

    python text_part_oracle.py OUT

Writes for each model OUT/<model>/published/ as save_pretrained does, OUT/<model>/by_modules/ with the same tensors under
the names that transformers' modules have, and OUT/<model>/expected.safetensors with input_ids [2, time] and logits.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import torch
import transformers
from safetensors.torch import save_file

TEXT = dict(vocab_size=60, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8)
MODELS = {
    "gemma3": dict(text_config=dict(TEXT, sliding_window=6, sliding_window_pattern=2), vision_config=VISION,
                   mm_tokens_per_image=4),
    "llama4": dict(text_config=dict(TEXT, num_local_experts=3, intermediate_size_mlp=48, attention_chunk_size=8, pad_token_id=0),
                   vision_config=dict(VISION, vision_output_dim=16, projector_input_dim=16, projector_output_dim=16)),
    "mistral3": dict(text_config=dict(TEXT, model_type="mistral", sliding_window=None), vision_config=dict(VISION, model_type="pixtral", head_dim=8),
                     tie_word_embeddings=False),
}  # fmt: skip


def write_model(root, name, arguments):
    config = transformers.AutoConfig.for_model(name, **arguments)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    for tensor_name, p in model.named_parameters():
        p.data.normal_(0, 1.0 if "embed_tokens" in tensor_name else 0.2)
        if p.dim() == 1 and not tensor_name.endswith("bias"):
            p.data.add_(1.0)
    published, by_modules = os.path.join(root, name, "published"), os.path.join(root, name, "by_modules")
    model.save_pretrained(published)
    os.makedirs(by_modules)
    tied = {key for key in model.state_dict() if key == "lm_head.weight"} if config.tie_word_embeddings else set()
    tensors = {key: value.contiguous() for key, value in model.state_dict().items() if key not in tied}
    save_file(tensors, os.path.join(by_modules, "model.safetensors"), {"format": "pt"})
    model.config.save_pretrained(by_modules)
    ids = torch.randint(3, 50, (2, 13))
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    save_file({"input_ids": ids, "logits": logits.contiguous()}, os.path.join(root, name, "expected.safetensors"))


def main():
    root = sys.argv[1]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    for name, arguments in MODELS.items():
        write_model(root, name, arguments)
    with open(os.path.join(root, "models.json"), "w") as f:
        json.dump(list(MODELS), f)


if __name__ == "__main__":
    main()
