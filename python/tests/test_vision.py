"""Models of text and images: every layer, and the loss without logits through the class's own forward."""

import copy

import pytest
import torch
import transformers
from tiny import BASE, LINEAR, Calls, batch, close, gradients, same_gradients, same_step, twin
from transformers import AutoModelForImageTextToText

import hotswap

ROPE = dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2])
VIT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4)
QWEN = dict(depth=1, hidden_size=32, num_heads=4, patch_size=4)
INNER = dict(QWEN, intermediate_size=48, out_hidden_size=32)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
GEMMA4 = dict(head_dim=8, global_head_dim=8, hidden_size_per_layer_input=8, vocab_size_per_layer_input=97,
              final_logit_softcapping=0.3)  # fmt: skip
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
    "llama4": lambda: T.Llama4Config(
        text_config=dict(BASE, head_dim=8, intermediate_size_mlp=48, num_local_experts=4, interleave_moe_layer_step=2),
        vision_config=dict(VIT, intermediate_size=128, projector_input_dim=32, projector_output_dim=32, vision_output_dim=32),
        image_token_index=96),
    "gemma4": lambda: T.Gemma4Config(
        text_config=dict(BASE, **GEMMA4), image_token_id=96,
        vision_config=dict(VIT, head_dim=8, num_key_value_heads=4, pooling_kernel_size=2, position_embedding_size=4)),
    "muse_glimmer": lambda: T.MuseGlimmerConfig(
        text_config=dict(BASE, head_dim=8, final_logit_softcapping=0.3, output_multiplier=0.5),
        vision_config=dict(VIT, pos_emb_height=4, pos_emb_width=4), out_hidden_size=128, projector_hidden_size=32,
        image_token_id=96),
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
            got, made = same_step(swapped, stock, data | options)
            assert (got.logits is None) == fused and made[loss] == 1
            gated = sum(n for op, n in made.items() if "_bwd" in op and op.startswith(("mlp.", "activation.silu", "moe.")))
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
    assert calls.made == {} and not {"defers", "forward"} & set(vars(swapped.get_output_embeddings()))


# tokens of an image of 4 x 4 patches, and the calls that its tower makes
IMAGES = {
    "llava": (16, {"norm.layer_norm_bwd": 3, "activation.gelu_quick_bwd": 1}),
    "llama4": (4, {"norm.layer_norm_bwd": 6, "activation.gelu_bwd": 4, "rotary.rotary_bwd": 2 + 2}),
    "gemma4": (4, {"norm.rms_norm_bwd": 18 + 12 + 3, "mlp.geglu_bwd_": 2 + 2}),
    "muse_glimmer": (4, {"norm.layer_norm_bwd": 6, "activation.gelu_bwd": 4}),
}


@pytest.mark.parametrize("family", IMAGES)
def test_with_an_image(family):
    stock = model(family).train()
    swapped = twin(stock, fused_linear_cross_entropy=True)
    tokens, calls = IMAGES[family]
    ids = torch.cat([torch.full((1, tokens), 96), torch.arange(3, 12)[None]], 1)
    data = dict(input_ids=ids, labels=ids.clone(), pixel_values=torch.randn(1, 3, 16, 16))
    if family == "gemma4":
        place = torch.arange(16)
        data |= dict(pixel_values=torch.rand(1, 16, 48), image_position_ids=torch.stack([place % 4, place // 4], -1)[None])
    if family == "muse_glimmer":
        data |= dict(pixel_values=torch.randn(16, 96), image_grid_thw=torch.tensor([[1, 4, 4]]))
    _, made = same_step(swapped, stock, data)
    assert made.items() >= calls.items(), made


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "qwen3_5"])
def test_the_tower_of_qwen(family):
    """Its rotary embedding, alone among the kernels that do not serve text as well, has no batch."""
    stock = model(family).model.visual
    swapped = twin(stock)
    patches, grid = torch.randn(16, 3 * 2 * 4 * 4), torch.tensor([[1, 4, 4]])
    whole = lambda out: out if torch.is_tensor(out) else out.last_hidden_state
    with Calls() as calls:
        got = whole(swapped(patches, grid_thw=grid))
        weight = torch.randn_like(got)
        mine = gradients(swapped, (weight * got).sum())
    want = whole(stock(patches, grid_thw=grid))
    close(got, want, 1e-5)
    same_gradients(mine, gradients(stock, (weight * want).sum()), 2e-5)
    assert calls.made["rotary.rotary"] == calls.made["rotary.rotary_bwd"] == 1
    assert [r.package for r in hotswap.report(swapped).rows if r.layer == "image_rotary_pos_emb"] == ["rotary"]


def test_a_model_of_images_alone():
    """Pixtral: no head and no loss, and a rotary table without a batch; as many patches as heads, which hides no mix-up."""
    torch.manual_seed(0)
    stock = T.PixtralVisionModel(T.PixtralVisionConfig(**VIT, hidden_act="silu"))
    swapped = copy.deepcopy(stock)
    hotswap.apply_liger_kernel_to_pixtral(model=swapped)
    image, weight = torch.randn(1, 3, 8, 8), torch.randn(1, 4, 32)
    with Calls() as calls:
        got = swapped(image).last_hidden_state
        mine = gradients(swapped, (weight * got).sum())
    want = stock(image).last_hidden_state
    close(got, want)
    same_gradients(mine, gradients(stock, (weight * want).sum()))
    assert calls.made == {
        "norm.rms_norm_fwd": 5, "norm.rms_norm_bwd": 5, "rotary.rotary": 2, "rotary.rotary_bwd": 2,
        "mlp.swiglu": 2, "mlp.swiglu_bwd_": 2,
    }  # fmt: skip
    with pytest.raises(TypeError, match="pixtral: expected options of rope, rms_norm, swiglu; got cross_entropy"):
        hotswap.apply_liger_kernel_to_pixtral(model=swapped, cross_entropy=True)


def test_a_causal_model_inside():
    """Llama 4's is swapped as well, is handed shift_labels too, and leaves the loss to the model around it."""
    stock, data = model("llama4").train(), batch()
    swapped = twin(stock, fused_linear_cross_entropy=True)
    data["shift_labels"] = torch.nn.functional.pad(data["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    got, made = same_step(swapped, stock, data)
    assert got.logits is None and made["loss.linear_cross_entropy_fwd"] == 1
    del data["labels"]
    close(swapped(**data).logits, stock(**data).logits)


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


@pytest.mark.parametrize("family, norms", [("qwen2_vl", 5), ("llava", 5), ("gemma4", 18), ("llama4", 9)])
def test_compiled(family, norms):
    stock = model(family).train()
    swapped = twin(stock, fused_linear_cross_entropy=True)
    data = batch() | {"use_cache": False}
    torch.compiler.reset()
    compiled, keys = torch.compile(swapped, backend="aot_eager"), set(vars(swapped.get_output_embeddings()))
    for _ in range(2):
        got, made = same_step(swapped, stock, data, 1e-5, 5e-5, run=compiled)
        assert got.logits is None and made["loss.linear_cross_entropy_fwd"] == 1
        assert made["norm.rms_norm_bwd"] == norms
        assert vars(swapped.get_output_embeddings()).keys() == keys, "a call changes nothing on the head"
    torch.compiler.reset()
