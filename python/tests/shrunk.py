"""Every model class of the installed transformers, made tiny: its own defaults, with the sizes that a name tells made small."""

import copy
import inspect
import re
import warnings
from typing import NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto

import tiny

VOCAB, LAYERS, MAX_PARAMETERS = 99, 2, 12_000_000
# A class for each of these that a model type has: what generates; else the first of the others.
GENERATING = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES",
)
OTHERS = (
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
# name of a setting -> its small value; the first that fits counts
INTEGERS = [
    (r"vocab_size|vocab_size_per_layer_input|num_embeddings|audio_vocab_size", VOCAB),
    (r"codebook_size", 64),
    (r"qk_rope_head_dim", 4),
    (r".*head_dim|.*head_size|attention_key_dim|attention_value_dim", 8),
    (r".*(num_key_value_heads|num_kv_heads|n_kv_heads|num_key_value_groups).*", 2),
    (r"linear_num_(key|value)_heads|mamba_n_heads|.*n_heads?|.*num_heads|.*attention_heads|n_head", 4),
    (r".*(lora_rank|low_rank.*)", 8),
    (r".*(moe|expert).*(intermediate|ffn|hidden).*|.*shared_expert_intermediate_size", 16),
    (r".*(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|n_inner|ff_dim|feed_forward.*size|mlp_dim|dim_feedforward).*", 48),
    (r".*(experts_per_tok|topk_method|top_k_experts|moe_topk|moe_k|num_selected_experts|moe_top_k|top_k)", 2),
    (r"n_groups?|topk_group|num_expert_group|n_expert_groups|first_k_dense_replace|n_shared_experts|num_shared_experts", 1),
    (r".*(num_experts|n_routed_experts|num_local_experts|moe_num_experts|n_experts)", 4),
    (r".*(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|num_.*_layers|depth|num_blocks)", LAYERS),
    (r".*(max_position.*|n_positions|max_.*positions?|n_ctx|max_seq_len.*|seq_length|max_sequence_length)", 128),
    (r"hidden_size_per_layer_input", 8),
    (r"embedding_size|.*hidden_size|.*hidden_dim|d_model|n_embd|embed_dim|dim|width|.*projection_dim|.*_dim_model|d_embed", 32),
    (r".*(state_size|d_state)", 8),
    (r"sliding_window|.*chunk_size|attention_window|window_size|local_attention", 8),
    (r"image_size|img_size|input_size", 32),
    (r"patch_size", 8),
    (r"num_mel_bins|n_mels|feature_size|num_mel.*", 16),
]


# Of a config's class, settings that no name tells; None where its default is nothing.
OWN = {
    "Qwen4ExpTextConfig": dict(
        layer_types=["linear_attention", "full_attention"], hc_lowrank=8, ple_embed_dim=32, ngram_vocab_size_base=50, heads_per_ngram=2,
        make_ngram_vocab_size_divisible_by=8, split_ngram_parts=1, indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=8,
        indexer_budget=8, indexer_compress_ratio=4,
    ),
    "BambaConfig": dict(attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1),
    "GraniteMoeHybridConfig": dict(
        layer_types=["mamba", "attention"], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1
    ),
    "Mamba2Config": dict(num_heads=8, head_dim=8, hidden_size=32, n_groups=1, state_size=8),
    "Dots1Config": dict(n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1),
    "AXK1Config": dict(qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, qk_head_dim=12, head_dim=4),
    "ChameleonConfig": dict(vocabulary_map={"<image>": 90}),
}  # fmt: skip


class Built(NamedTuple):
    model: torch.nn.Module
    inputs: dict  # what a forward takes


def _named(mapping: str) -> dict:
    """Model type -> the first class that a mapping of transformers has for it."""
    found = getattr(modeling_auto, mapping, {})
    return {model_type: names if isinstance(names, str) else names[0] for model_type, names in found.items()}


def classes() -> list:
    """The names of the classes that are tried, each once; those that generate first."""
    generating, others = ([_named(mapping) for mapping in mappings] for mappings in (GENERATING, OTHERS))
    generate = {model_type for mapping in generating for model_type in mapping}
    found = [m[t] for t in sorted(generate) for m in generating if t in m]
    found += [next(m[t] for m in others if t in m) for t in sorted({t for m in others for t in m} - generate)]
    return [name for name in dict.fromkeys(found) if hasattr(transformers, name)]


# ---- a small config -------------------------------------------------------------------------------------------------


def _small_integer(name: str, value: int, settings: dict):
    if name.endswith(("_token_id", "_token_index")) or name in ("image_token", "pad_index"):
        return value if 0 <= value < VOCAB else VOCAB - 1 - sum(map(ord, name)) % 40
    for pattern, small in INTEGERS:
        if re.fullmatch(pattern, name):
            heads = settings.get("num_attention_heads")
            if small == 2 and "key_value" in name and value == heads:
                return 4
            return min(value, small) if value > 0 else value
    return value


def _few(values: list) -> list:
    """As many as there are layers, of as many kinds as fit."""
    kinds = list(dict.fromkeys(v if isinstance(v, (str, int, float, bool, type(None))) else str(v) for v in values))
    if len(kinds) == 1 or not isinstance(values[0], (str, bool)):
        return values[:LAYERS]
    return kinds[:LAYERS]


def _small(config) -> dict:
    """The settings of a config that are to be others, as its class takes them."""
    made, settings = {}, config.to_dict()
    layers = {v for k, v in settings.items() if isinstance(v, int) and re.fullmatch(r"(num_hidden_layers|num_layers|n_layers?)", k)}
    for name, value in settings.items():
        part = getattr(config, name, None)
        if isinstance(part, transformers.PretrainedConfig):
            made[name] = _small(part) | {"model_type": part.model_type}
        elif isinstance(value, bool) or name.startswith("_") or name in ("model_type", "transformers_version", "num_labels"):
            continue
        elif isinstance(value, int) and name != "rotary_dim":
            small = _small_integer(name, value, settings)
            if small != value:
                made[name] = small
        elif name == "rotary_dim":
            made[name] = 4
        elif name == "rope_parameters" and isinstance(value, dict) and "mrope_section" in value:
            pairs = int(8 * value.get("partial_rotary_factor", 1.0)) // 2  # of a head of 8
            made[name] = value | {"mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]}
        elif isinstance(value, float) and "drop" in name:
            made[name] = 0.0
        elif isinstance(value, list) and len(value) in layers and len(value) > LAYERS:
            made[name] = _few(value)
    return made


def config_of(model_class):
    kind = model_class.config_class
    own = next((own for name, own in tiny.FAMILIES.values() if name == kind.__name__), None)
    if own is not None:
        return kind(**{**tiny.BASE, **own})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**_small(kind()) | OWN.get(kind.__name__, {}))


# ---- a small model and what it takes ----------------------------------------------------------------------------------


def _model(model_class):
    config = config_of(model_class)
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class._from_config(copy.deepcopy(config), attn_implementation="eager").parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters with small settings")
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator("cpu").manual_seed(1)
    with torch.no_grad():  # norms that are not all ones, weights that are not all small
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.2 * _noise(p.shape, generator).to(p.device))
            elif p.numel():
                p.mul_(min(4.0, 0.1 / max(float(p.std()) if p.numel() > 1 else 1.0, 1e-3)))
    return model


def _names(model) -> set:
    return set(inspect.signature(model.forward).parameters)


def _noise(shape, generator):
    return torch.randn(shape, generator=generator, device="cpu")


def _ids(rows, columns, seed=2):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(3, 55, (rows, columns), generator=generator, device="cpu").to(torch.get_default_device())


def _candidates(model):
    """Inputs that a model may take, the likeliest first."""
    names, config = _names(model), model.config
    noise = lambda *shape: _noise(shape, torch.Generator("cpu").manual_seed(3)).to(torch.get_default_device())  # noqa: E731
    vision = getattr(config, "vision_config", config)
    size, channels = getattr(vision, "image_size", 32), getattr(vision, "num_channels", 3)
    size = size if isinstance(size, int) else 32
    if "input_ids" in names:
        text = dict(input_ids=_ids(2, 12))
        if "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False):
            yield text | dict(decoder_input_ids=_ids(2, 7, 4))
        yield text
        if "pixel_values" in names:
            yield text | dict(pixel_values=noise(2, channels, size, size))
        if "bbox" in names:
            yield text | dict(bbox=torch.zeros(2, 12, 4, dtype=torch.long))
    if "pixel_values" in names:
        for side in dict.fromkeys((size, 32, 64, 224)):
            yield dict(pixel_values=noise(2, channels, side, side))
        yield dict(pixel_values=noise(1, 2, channels, size, size))
    if "input_features" in names:
        bins = next((getattr(config, n) for n in ("num_mel_bins", "feature_size", "n_mels") if hasattr(config, n)), 16)
        for shape in ((2, bins, 256), (2, 256, bins), (2, 64, bins)):
            features = dict(input_features=noise(*shape))
            yield features | (dict(decoder_input_ids=_ids(2, 7, 4)) if "decoder_input_ids" in names else {})
    if "input_values" in names:
        yield dict(input_values=noise(2, 4000))
        yield dict(input_values=noise(2, 1, 4000))
        yield dict(input_values=noise(2, 64, 16))


def build(model_class) -> Built:
    """The model and inputs that its stock forward takes. Raises what its class raised."""
    model, error = _model(model_class), None
    for inputs in _candidates(model):
        try:
            with torch.no_grad():
                model(**inputs)
            return Built(model, inputs)
        except Exception as why:  # whatever a class raises on inputs that are not its own
            error = error or why
    raise error or ValueError(f"no inputs known for {sorted(_names(model))[:6]}")
