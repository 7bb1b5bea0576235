#!/usr/bin/env bash
# transformers 5.24.0: of a Qwen3 GGUF file the width of a head is not read. The config has head_dim 128 whatever
# `qwen3.attention.key_length` and `qwen3.rope.dimension_count` are, without a warning. Of Qwen3-MoE, Gemma 2 and 3 the key is read,
# of Llama the rope's. llama.cpp reads it for Qwen3, too.
# Natural guess: the keys of a GGUF file decide, as they do for the other families; every published Qwen3 but those that were
# made smaller has heads of 128, and those load.
# Seen: qwen3 with key_length 64: head_dim 128; qwen3moe with 64: 64; llama with rope.dimension_count 64: 64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 transformers==5.24.0 gguf==0.19.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import gguf
from transformers import AutoConfig


def head_dim(folder: str, family: str, width: int) -> int:
    """The head_dim of the config of a file that has metadata only, heads of `width`."""
    file = f"{family}.gguf"
    writer = gguf.GGUFWriter(f"{folder}/{file}", family)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return AutoConfig.from_pretrained(folder, gguf_file=file).head_dim


seen = {family: head_dim(sys.argv[1], family, 64) for family in ("qwen3", "qwen3moe", "llama")}
print(seen)
assert seen == {"qwen3": 128, "qwen3moe": 64, "llama": 64}, seen
PY
