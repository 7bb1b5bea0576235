#!/usr/bin/env bash
# transformers 5.17.0: a Falcon-H1 with a gated norm (mamba_rms_norm) gives other tokens for a batch of two prompts of one length than for each
# by itself, when it generates with a cache; without a cache, and for one row, the tokens are right. No error, no warning: in a step of one token
# the norm drops the dimension of time, [rows, 1, width] becomes [rows, width], and what is added to it next makes [rows, rows, width] of it, a sum of
# each row with every other. transformers 5.24.0 keeps the dimension.
# Natural guess: rows of a batch do not see each other.
# Seen: 1 row: the same with and without a cache; 2 rows: not; without the norm: the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 transformers==5.17.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import torch
from transformers import FalconH1Config, FalconH1ForCausalLM

SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             mamba_d_ssm=64, mamba_n_heads=4, mamba_d_state=4, mamba_chunk_size=8, initializer_range=0.3, pad_token_id=0)  # fmt: skip


def cache_changes_nothing(rows: int, norm: bool) -> bool:
    torch.manual_seed(0)
    model = FalconH1ForCausalLM(FalconH1Config(**SIZES, mamba_rms_norm=norm, mamba_norm_before_gate=False)).eval()
    ids = torch.randint(3, 97, (rows, 6))
    made = [model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, use_cache=cache) for cache in (True, False)]
    return torch.equal(*made)


seen = {(rows, norm): cache_changes_nothing(rows, norm) for rows in (1, 2) for norm in (True, False)}
print(seen)
assert seen == {(1, True): True, (2, True): False, (1, False): True, (2, False): True}, seen
PY
