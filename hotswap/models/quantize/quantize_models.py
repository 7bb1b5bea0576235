"""Tiny models to quantise, one of each family that is written, random and with tokenizers that a GGUF file can state.

    python quantize_models.py OUT

Writes OUT/NAME/ as save_pretrained does, with tokenizer.json and tokenizer_config.json, and OUT/NAME/plain.safetensors:
input_ids [2, time] and logits [2, time, vocab] of float32.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tokenizers"))

import torch
import transformers
from golden_tokenizers import make_tokenizer
from safetensors.torch import save_file

CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SIZES = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-5)  # fmt: skip
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=500000.0,
              original_max_position_embeddings=8192)  # fmt: skip
MODELS = {  # the family's class, its tokenizer, its config beyond SIZES, the dtype of its weights
    "llama": ("Llama", "digits", dict(tie_word_embeddings=True, vocab_size=512), torch.bfloat16),
    # rows that are no multiples of 256, of 128 or of 32; a scaled rotary embedding
    "llama_odd": ("Llama", "gpt2", dict(hidden_size=96, intermediate_size=172, head_dim=32, num_attention_heads=3,
                                        num_key_value_heads=1, vocab_size=513, rope_parameters=LLAMA3,
                                        attention_bias=True, mlp_bias=True), torch.float32),
    # an embedding with more rows than there are tokens; biases that no key of the config mentions
    "qwen2": ("Qwen2", "split_nfc", dict(tie_word_embeddings=False, vocab_size=576), torch.float32),
    # heads as wide as every published one's: transformers' reader of such GGUF files does not look at their width
    "qwen3": ("Qwen3", "split_nfc", dict(tie_word_embeddings=True, vocab_size=514, head_dim=128), torch.bfloat16),
}  # fmt: skip


def write(folder, family, tokenizer_kind, config, dtype):
    torch.manual_seed(11)
    settings = getattr(transformers, f"{family}Config")(**(SIZES | config))
    model = getattr(transformers, f"{family}ForCausalLM")(settings).eval()
    for name, parameter in model.named_parameters():
        spread = 0.2 if parameter.dim() == 1 else 1.0 if "embed" in name else parameter.shape[1] ** -0.5
        parameter.data.normal_(float("norm" in name), spread)
    model.to(dtype).save_pretrained(folder)
    tokenizer = make_tokenizer(tokenizer_kind)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(eos_token="<|endoftext|>") | (dict(chat_template=CHAT) if tokenizer_kind != "gpt2" else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    ids = torch.randint(3, 500, (2, 11))
    with torch.no_grad():
        logits = model.float()(input_ids=ids, use_cache=False).logits
    save_file({"input_ids": ids, "logits": logits.contiguous()}, folder / "plain.safetensors")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name, parts in MODELS.items():
        write(Path(sys.argv[1]) / name, *parts)
