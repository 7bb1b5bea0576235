"""Every class of experts that transformers sends through its ExpertsInterface, and a tiny model around each."""

import importlib
import inspect
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

# What configs of mixtures call their sizes; each takes those that it knows.
SIZES = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, first_k_dense_replace=1,
    max_position_embeddings=64, num_attention_heads=4, num_key_value_heads=4, head_dim=8, global_head_dim=8,
    q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
    num_experts=4, num_local_experts=4, n_routed_experts=4, moe_num_experts=4, num_experts_per_tok=2, n_shared_experts=1,
    shared_expert_intermediate_size=16, n_group=1, topk_group=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
BY_TURNS = ["linear_attention", "full_attention"]
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
# of a family, or of a class where a family has two
OWN = {
    "beam": dict(mlp_layer_types=["dense", "sparse"]),
    "deepseek_ocr2": dict(layer_types=["full_attention"] * 2, mlp_layer_types=["dense", "sparse"]),
    "diffusion_gemma": dict(top_k_experts=2),
    "ernie4_5_moe": dict(moe_k=2),
    "ernie4_5_vl_moe": dict(moe_intermediate_size=[16, 16], moe_k=2, rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2])),
    "flint": dict(mlp_only_layers=[0]),
    "gemma4": dict(enable_moe_block=True, top_k_experts=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=97),
    "glm4v_moe": dict(head_dim=128),  # half of it rotates, in sections of 8, 12 and 12 pairs
    "glm5_next": dict(qk_rope_head_dim=0, mlp_layer_types=["dense", "sparse"], linear_head_dim=8, linear_num_heads=2),
    "granitemoehybrid": dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, layer_types=["mamba", "attention"]),
    "hy_v4_vl": dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2])),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "kimi_linear": dict(layer_types=BY_TURNS, linear_head_dim=8, linear_num_heads=2),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "mimo_v2_flash": dict(num_key_value_heads=2),
    "muse_spark": dict(mlp_layer_types=["dense", "sparse"], moe_hidden_size=32),
    "nemotron_h": dict(mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=2, chunk_size=8),
    "qwen3_5_moe": LINEAR | dict(layer_types=BY_TURNS),
    "qwen3_next": LINEAR | dict(layer_types=BY_TURNS),
    "qwen4_exp": LINEAR,
    "Qwen3OmniMoeTalkerTextExperts": dict(shared_expert_intermediate_size=16),  # read, but in no default
    "zaya": dict(num_experts_per_tok=1),
}


class Place(NamedTuple):
    family: str
    name: str  # of the class

    def module(self):
        return importlib.import_module(f"transformers.models.{self.family}.modeling_{self.family}")

    def cls(self):
        return getattr(self.module(), self.name)


def _is_behind_the_interface(cls) -> bool:
    forward = cls.__dict__.get("forward")
    cells = getattr(forward, "__closure__", None) or ()
    return hasattr(forward, "__wrapped__") and any(cell.cell_contents is ALL_EXPERTS_FUNCTIONS for cell in cells)


def _classes(module) -> list:
    return [cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__]


def places() -> list:
    """All of this release of transformers: whoever is new in the next is here, too."""
    found = []
    for file in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        if "use_experts_implementation" in file.read_text():
            classes = _classes(Place(file.parent.name, "").module())
            found += [Place(file.parent.name, cls.__name__) for cls in classes if _is_behind_the_interface(cls)]
    return found


def _config(kind, own):
    names = {*inspect.signature(kind.__init__).parameters, *dir(kind)}
    return kind(**{name: size for name, size in SIZES.items() if name in names} | own)


def _candidates(module) -> list:
    models = [cls for cls in _classes(module) if issubclass(cls, transformers.PreTrainedModel)]
    kinds = [(cls, getattr(cls, "config_class", None)) for cls in models]
    kinds = [(cls, kind) for cls, kind in kinds if inspect.isclass(kind)]
    text = [(cls, kind.sub_configs["text_config"]) for cls, kind in kinds if "Text" in cls.__name__ and "text_config" in kind.sub_configs]
    return [(cls, kind) for cls, kind in kinds if not kind.sub_configs] + text  # 5.22 names the whole model's config of a part


def tiny(place: Place) -> tuple:
    """(class, config) of the first model of text in its file that has such experts."""
    own, why = OWN.get(place.name, OWN.get(place.family, {})), []
    for cls, kind in _candidates(place.module()):
        try:
            config = _config(kind, own)
            with torch.device("meta"):
                made = cls(config)
        except Exception as error:  # the config of another part of the model, which has other words
            why.append(f"{cls.__name__}: {error!r}")
            continue
        if any(type(m) is place.cls() for m in made.modules()):
            assert sum(p.numel() for p in made.parameters()) < 2e6, f"{place.name}: a size that SIZES does not name"
            return cls, config
    raise LookupError(f"{place.name}: no model to test it in: {why}; give its family what it wants in OWN")


def inputs(model) -> dict:
    """Two rows of nine tokens."""
    ids = 3 + torch.arange(18).view(2, 9) * 7 % 94
    if "Talker" not in type(model).__name__:  # which hears what another model thinks
        return dict(input_ids=ids, use_cache=False)
    return dict(inputs_embeds=torch.sin(torch.arange(18.0 * 32)).view(2, 9, 32).to(model.dtype), use_cache=False)
