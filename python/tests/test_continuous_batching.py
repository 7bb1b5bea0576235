"""transformers' continuous batching over our attention: prompts packed with decoding rows (varlen), and steps of one token
over pages in place (flash_attn_with_kvcache), the same ids as eager gives each prompt alone."""

import os

import pytest
import torch
from attention_calls import Calls, local_kernels  # noqa: F401
from tiny import model
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import initialization

pytestmark = pytest.mark.skipif(os.environ.get("HOTSWAP_TEST_DEVICE", "").startswith("cuda"), reason="float32, which a GPU's kernels have not")

PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]]
STEPS = 12
GREEDY = dict(max_new_tokens=STEPS, do_sample=False, eos_token_id=96, pad_token_id=0)
FLASH2, FLASH3 = "acme/flash-attn2", "kernels-community/vllm-flash-attn3"  # gpt-oss takes no other


def alone(m):
    m.set_attn_implementation("eager")
    config = GenerationConfig(**GREEDY)
    return [m.generate(torch.tensor([prompt]), generation_config=config)[0, len(prompt) :].tolist() for prompt in PROMPTS]


def together(m, name, **options):
    m.set_attn_implementation(name)
    sizes = ContinuousBatchingConfig(block_size=16, num_blocks=16, max_batch_tokens=64, **options)
    with Calls() as calls:
        done = m.generate_batch(PROMPTS, generation_config=GenerationConfig(**GREEDY), continuous_batching_config=sizes)
    return [answer.generated_tokens for answer in done.values()], calls.made


@pytest.mark.parametrize("family, name, options", [
    ("llama", FLASH2, {}),
    ("mistral", FLASH2, dict(sliding_window=5)),
    ("gpt_oss", FLASH3, dict(sliding_window=5, output_router_logits=False)),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_packed_steps(family, name, options, local_kernels):
    m = model(family, **options).eval()
    want = alone(m)
    got, calls = together(m, name)
    assert got == want
    assert set(calls) == {"varlen"} and calls["varlen"] >= 2 * max(map(len, want))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_steps_over_pages(family, local_kernels, monkeypatch):
    # transformers asks for CUDA here; what it then calls runs on the CPU too
    monkeypatch.setattr(initialization, "ensure_decode_fast_path_is_available", lambda *_: None)
    m = model(family).eval()
    want = alone(m)
    got, calls = together(m, FLASH2, max_blocks_per_request=4)
    assert got == want
    assert calls["varlen"] == 2 and calls["decode"] >= 2 * (max(map(len, want)) - 1)
