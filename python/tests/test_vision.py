"""Models of text and images: every layer, and the loss without logits through the class's own forward."""

import copy

import pytest
import torch
import transformers
from tiny import BASE, LINEAR, Calls, batch, close, same_step, twin
from transformers import AutoModelForImageTextToText

import hotswap

ROPE = dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2])
VIT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4)
QWEN = dict(depth=1, hidden_size=32, num_heads=4, patch_size=4)
INNER = dict(QWEN, intermediate_size=48, out_hidden_size=32)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
T = transformers
# fmt: off
FAMILIES = {
    "llava": lambda: T.LlavaConfig(text_config=T.LlamaConfig(**BASE), vision_config=T.CLIPVisionConfig(**VIT), image_token_index=96),
    "internvl": lambda: T.InternVLConfig(text_config=T.Qwen2Config(**BASE), vision_config=dict(**VIT)),
    "gemma3": lambda: T.Gemma3Config(text_config=dict(BASE, head_dim=8), vision_config=dict(**VIT), mm_tokens_per_image=4),
    "paligemma": lambda: T.PaliGemmaConfig(text_config=T.GemmaConfig(head_dim=8, **BASE), vision_config=T.SiglipVisionConfig(**VIT),
                                           projection_dim=32),
    "smolvlm": lambda: T.SmolVLMConfig(text_config=T.LlamaConfig(**BASE), vision_config=dict(**VIT), scale_factor=2, image_token_id=96),
    "mllama": lambda: T.MllamaConfig(text_config=dict(BASE, num_hidden_layers=3, cross_attention_layers=[1]),
                                     vision_config=dict(VIT, num_global_layers=1)),
    "glm4v_moe": lambda: T.Glm4vMoeConfig(
        text_config=dict(BASE, head_dim=16, rope_parameters=dict(ROPE), n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
                         moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1), vision_config=dict(INNER)),
    "qwen3_5": lambda: T.Qwen3_5Config(text_config=dict(BASE, **LINEAR), vision_config=dict(INNER)),
    "qwen3_5_moe": lambda: T.Qwen3_5MoeConfig(
        text_config=dict(BASE, shared_expert_intermediate_size=16, **LINEAR, **EXPERTS), vision_config=dict(INNER)),
    "qwen3_vl_moe": lambda: T.Qwen3VLMoeConfig(
        text_config=dict(BASE, head_dim=8, rope_parameters=dict(ROPE), **EXPERTS),
        vision_config=dict(INNER, deepstack_visual_indexes=[0])),
    "glm4v": lambda: T.Glm4vConfig(text_config=dict(BASE, head_dim=8, rope_parameters=dict(ROPE)), vision_config=dict(INNER)),
    "qwen2_vl": lambda: T.Qwen2VLConfig(text_config=dict(BASE, rope_parameters=dict(ROPE)), vision_config=dict(QWEN, embed_dim=32)),
    "qwen2_5_vl": lambda: T.Qwen2_5_VLConfig(text_config=dict(BASE, rope_parameters=dict(ROPE)), vision_config=dict(INNER)),
    "qwen3_vl": lambda: T.Qwen3VLConfig(text_config=dict(BASE, head_dim=8, rope_parameters=dict(ROPE)),
                                        vision_config=dict(INNER, deepstack_visual_indexes=[0])),
}
# fmt: on


def model(family):
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(FAMILIES[family]())


def data_for(family):
    data = batch()
    if family in ("gemma3", "paligemma"):  # in training they want to know what is text
        data["token_type_ids"] = torch.zeros_like(data["input_ids"])
    return data


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family):
    stock, data = model(family), data_for(family)
    for fused, loss in ((False, "loss.cross_entropy_bwd"), (True, "loss.linear_cross_entropy_fwd")):
        swapped = twin(stock, fused_linear_cross_entropy=fused)
        swapped = copy.deepcopy(swapped)  # the copy's loss is of the copy's head
        for items in (None, 17):
            stock.train(), swapped.train()
            options = {} if items is None else {"num_items_in_batch": items}
            got, _, made = same_step(swapped, stock, data | options)
            assert (got.logits is None) == fused and made[loss] == 1
            gated = sum(n for op, n in made.items() if "_bwd" in op and op.startswith(("mlp.", "activation.silu")))
            assert made["norm.rms_norm_bwd"] >= 5 and gated >= 2
        stock.eval(), swapped.eval()
        with torch.no_grad():
            want, got = stock(**data), swapped(**data)
            close(got.logits, want.logits)
            close(got.loss, want.loss)
            if fused:
                with Calls() as calls:
                    got = swapped(**data, skip_logits=True, return_dict=False)
                close(got[0], want.loss)
                assert calls.made["loss.linear_cross_entropy"] == 1 and got[1].__class__.__name__.endswith("Cache")
    row = next(r for r in hotswap.report(swapped).rows if r.name == "")
    assert row.layer == "LinearCrossEntropy" and row.package == "loss"
    hotswap.unkernelize(swapped).train()
    with Calls() as calls:
        assert swapped(**data).logits is not None
    assert calls.made == {} and "defers" not in vars(swapped.lm_head)


def test_with_an_image():
    stock = model("llava").train()
    swapped = twin(stock, fused_linear_cross_entropy=True)
    ids = torch.cat([torch.full((1, 16), 96), torch.arange(3, 12)[None]], 1)  # 4 x 4 patches, then text
    data = dict(input_ids=ids, labels=ids.clone(), pixel_values=torch.randn(1, 3, 16, 16))
    _, _, made = same_step(swapped, stock, data)
    assert made["norm.layer_norm_bwd"] >= 3 and made["activation.gelu_quick_bwd"] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_by_ligers_name(family):
    stock = model(family).train()
    swapped, data = copy.deepcopy(stock), data_for(family)
    hotswap._apply_liger_kernel_to_instance(swapped)
    with Calls() as calls:
        got = swapped(**data)
    close(got.loss, stock(**data).loss)
    assert got.logits is None and calls.made["loss.linear_cross_entropy_fwd"] == 1 and calls.made["norm.rms_norm_fwd"] >= 5
    assert getattr(hotswap, f"apply_liger_kernel_to_{family}")


@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_compiled(family):
    stock = model(family).train()
    swapped = twin(stock, fused_linear_cross_entropy=True)
    data = batch() | {"use_cache": False}
    torch.compiler.reset()
    compiled = torch.compile(swapped, backend="aot_eager")
    for _ in range(2):
        got, _, made = same_step(swapped, stock, data, 1e-5, 5e-5, run=compiled)
        assert got.logits is None and made["loss.linear_cross_entropy_fwd"] == 1
        assert made["norm.rms_norm_bwd"] == 5 and not swapped.lm_head.defers
    torch.compiler.reset()
