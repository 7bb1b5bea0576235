"""Liger's names for whole models: apply_liger_kernel_to_<family>(), and what Trainer's use_liger_kernel=True calls.

    hotswap.apply_liger_kernel_to_llama()              # every Llama that is made from now on
    hotswap.apply_liger_kernel_to_llama(model=model)   # this one
    hotswap.enable_for_trainer()                       # TrainingArguments(use_liger_kernel=True) runs on our kernels

Options mean what they mean in Liger; one that a family does not have is an error.
"""

import functools
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from inspect import Parameter, Signature
from types import ModuleType
from typing import NamedTuple

from hotswap.core.arguments import FLAG, MODEL, MODEL_OR_NONE, TEXT, check, checked
from hotswap.liger import places
from hotswap.swap import bind, binding


class Family(NamedTuple):
    module: str  # transformers.models.<this>
    base: str  # its class, whose post_init every model of the family calls
    options: dict  # Liger's for this family, with their defaults
    lacks: tuple = ()  # options that we know and cannot do


LOSSES = {"cross_entropy": False, "fused_linear_cross_entropy": True}


def _family(module, base, mlp="swiglu", lacks=(), norms=("layer_norm", "rms_norm"), **other):
    """norms: in Liger's order of arguments."""
    found = {name: True for name in norms if name == "rms_norm" or name in other}
    return Family(module, f"{base}PreTrainedModel", {"rope": True, **LOSSES, **found, mlp: True} | other, lacks)


FAMILIES = {
    "deepseek_v2": _family("deepseek_v2", "DeepseekV2", rope=False),
    "deepseek_v3": _family("deepseek_v3", "DeepseekV3", rope=False),
    "deepseek_v4": _family("deepseek_v4", "DeepseekV4", rope=False, swiglu=False, lacks=("rope",)),
    "exaone4": _family("exaone4", "Exaone4"),
    "falcon_h1": _family("falcon_h1", "FalconH1"),
    "gemma": _family("gemma", "Gemma", "geglu"),
    "gemma2": _family("gemma2", "Gemma2", "geglu"),
    "gemma3": _family("gemma3", "Gemma3", "geglu", layer_norm=True),
    "gemma3_text": _family("gemma3", "Gemma3", "geglu"),
    "gemma4": _family("gemma4", "Gemma4", "geglu", rope=False, layer_norm=False, lacks=("rope",)),
    "gemma4_text": _family("gemma4", "Gemma4", "geglu", rope=False, lacks=("rope",)),
    "glm4": _family("glm4", "Glm4", rope=False),
    "glm4v": _family("glm4v", "Glm4v", rope=False),
    "glm4v_moe": _family("glm4v_moe", "Glm4vMoe", rope=False),
    "gpt_oss": _family("gpt_oss", "GptOss", swiglu=False),
    "granite": _family("granite", "Granite", cross_entropy=True, fused_linear_cross_entropy=False),
    "hunyuan_v1_dense": _family("hunyuan_v1_dense", "HunYuanDenseV1"),
    "hunyuan_v1_moe": _family("hunyuan_v1_moe", "HunYuanMoEV1"),
    "internvl": Family("internvl", "InternVLPreTrainedModel", {**LOSSES, "rms_norm": True, "layer_norm": True}),
    "llama": _family("llama", "Llama"),
    "llama4": _family("llama4", "Llama4", norms=("rms_norm",), layer_norm=True),
    "llava": Family("llava", "LlavaPreTrainedModel", LOSSES),
    "ministral": _family("ministral", "Ministral"),
    "mllama": _family("mllama", "Mllama", layer_norm=True),
    "mistral": _family("mistral", "Mistral"),
    "mixtral": _family("mixtral", "Mixtral"),
    "muse_glimmer": _family("muse_glimmer", "MuseGlimmer", layer_norm=True),
    "nemotron": Family("nemotron", "NemotronPreTrainedModel", {"relu_squared": True, **LOSSES}),
    "olmo2": _family("olmo2", "Olmo2"),
    "olmo3": _family("olmo3", "Olmo3"),
    "paligemma": _family("paligemma", "PaliGemma", "geglu", layer_norm=True),
    "phi3": _family("phi3", "Phi3"),
    "pixtral": Family("pixtral", "PixtralPreTrainedModel", {"rope": True, "rms_norm": True, "swiglu": True}),
    "qwen2": _family("qwen2", "Qwen2"),
    "qwen2_5_vl": _family("qwen2_5_vl", "Qwen2_5_VL"),
    "qwen2_vl": _family("qwen2_vl", "Qwen2VL", norms=("rms_norm", "layer_norm"), layer_norm=True),
    "qwen3": _family("qwen3", "Qwen3"),
    "qwen3_moe": _family("qwen3_moe", "Qwen3Moe"),
    "qwen3_5": _family("qwen3_5", "Qwen3_5", rope=False),
    "qwen3_5_moe": _family("qwen3_5_moe", "Qwen3_5Moe", rope=False),
    "qwen3_next": _family("qwen3_next", "Qwen3Next", rope=False),
    "qwen3_vl": _family("qwen3_vl", "Qwen3VL", swiglu=False),
    "qwen3_vl_moe": _family("qwen3_vl_moe", "Qwen3VLMoe"),
    "smollm3": _family("smollm3", "SmolLM3"),
    "smolvlm": Family("smolvlm", "SmolVLMPreTrainedModel", {**LOSSES, "rms_norm": True, "layer_norm": True}),
}


def _options(family: str, given: dict) -> dict:
    """Liger's options of a family in our words: kernelize()'s."""
    known = FAMILIES[family].options
    if unknown := sorted(set(given) - set(known)):
        raise TypeError(f"{family}: expected options of {', '.join(known)}; got {', '.join(unknown)}; leave it out")
    if lacking := [name for name in FAMILIES[family].lacks if given.get(name)]:
        raise NotImplementedError(f"{family}: expected {lacking[0]}=False; got True, and there is no such kernel; leave it out")
    chosen = known | given
    if all(chosen.get(name) for name in LOSSES):
        if all(given.get(name) for name in LOSSES):
            raise ValueError("expected one of cross_entropy and fused_linear_cross_entropy; got both; leave one out")
        for name in LOSSES:  # the one that was asked for goes before the default
            chosen[name] = bool(given.get(name))
    mlp = chosen.get("swiglu", chosen.get("geglu", True))  # what a family has no option for is on
    return {
        "rope": chosen.get("rope", True),
        "rms_norm": chosen.get("rms_norm", True),
        "mlp": mlp,
        "experts": mlp,
        "activation": chosen.get("relu_squared", mlp),  # of experts that stay stock, or without a gate
        "layer_norm": chosen.get("layer_norm", False),
        "mamba": False,  # Liger has none
        **{name: chosen.get(name, False) for name in LOSSES},  # Pixtral, a model of images alone, has none
    }


_applied: dict = {}  # class -> its own post_init


def _apply_to_class(family: str, options: dict) -> None:
    place = FAMILIES[family]
    module = importlib.import_module(f"transformers.models.{place.module}.modeling_{place.module}")
    base = getattr(module, place.base)
    own = _applied.setdefault(base, base.__dict__.get("post_init"))
    inherited = own or super(base, base).post_init

    @functools.wraps(inherited)
    def post_init(self):
        inherited(self)
        bind.kernelize(self, **options)

    base.post_init = post_init


def _apply(family: str, model=None, **options) -> None:
    check(f"apply_liger_kernel_to_{family}", "model", model, MODEL_OR_NONE)
    for name in options.keys() & FAMILIES[family].options.keys():
        check(f"apply_liger_kernel_to_{family}", name, options[name], FLAG)
    chosen = _options(family, options)
    if model is None:
        _apply_to_class(family, chosen)
    elif bind.is_bound(model):  # as in Liger, False is no wish to take out what somebody else has bound
        bind.kernelize(model, **{name: value for name, value in chosen.items() if value})
    else:
        bind.kernelize(model, **chosen)


def _named(family: str):
    words = {**FAMILIES[family].options, "model": None}
    if family == "llama4":  # there Liger has added one behind the model
        words["layer_norm"] = words.pop("layer_norm")

    def apply(*args, **options):
        if len(args) > len(words) or options.keys() & set(list(words)[: len(args)]):
            got = f"{len(args)} in a row and {', '.join(options)}"
            raise TypeError(f"{family}: expected one value for each of {', '.join(words)}; got {got}; pass each once")
        _apply(family, **dict(zip(words, args)), **options)

    apply.__name__ = apply.__qualname__ = f"apply_liger_kernel_to_{family}"
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value) for name, value in words.items()]
    apply.__signature__ = Signature(parameters)
    apply.__doc__ = """With a model, this one is swapped; without, every one of the family that is made from now on.

    With fused_linear_cross_entropy a training forward with labels gives a loss and no logits, as in Liger."""
    return apply


for _name in FAMILIES:
    globals()[f"apply_liger_kernel_to_{_name}"] = _named(_name)


# Liger's table: model_type of a config -> function. As there it may be given entries; this is what is looked up.
_TEXT_HALVES = ("llama4", "qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe")
MODEL_TYPE_TO_APPLY_LIGER_FN = {
    **{family: globals()[f"apply_liger_kernel_to_{family}"] for family in FAMILIES},
    **{f"{family}_text": globals()[f"apply_liger_kernel_to_{family}"] for family in _TEXT_HALVES},
    "mllama_text_model": globals()["apply_liger_kernel_to_mllama"],
}
OURS = frozenset(MODEL_TYPE_TO_APPLY_LIGER_FN.values())  # others were put there, and go by Liger's rules


def restore_classes() -> None:
    """Models made from now on are stock again; those that are there stay as they are (unkernelize takes one model)."""
    for base, own in _applied.items():
        if own is None:
            del base.post_init
        else:
            base.post_init = own
    _applied.clear()


def function_of(model_type: str):
    """The function for this model_type of a config: the table's, or that of the model of text and images which it is the text
    half of. None where there is none."""
    for suffix in ("", "_text", "_text_model"):
        if found := MODEL_TYPE_TO_APPLY_LIGER_FN.get((model_type or "").removesuffix(suffix)):
            return found
    return None


def _known_function(model_type: str):
    if found := function_of(model_type):
        return found
    known = ", ".join(MODEL_TYPE_TO_APPLY_LIGER_FN)
    raise ValueError(f"expected a model of {known}; got {model_type}; call hotswap.kernelize(model) instead")


@checked(model_type=TEXT)
def _apply_liger_kernel(model_type: str, **options) -> None:
    """For every model of this model_type that is made from now on."""
    _known_function(model_type)(**options)


@checked(model=MODEL)
def _apply_liger_kernel_to_instance(model, **options) -> None:
    """What Trainer calls with use_liger_kernel=True."""
    _known_function(getattr(getattr(model, "config", None), "model_type", None))(model=model, **options)
    binding.put(model, "bound_by_trainer", True)


@checked(shadow=FLAG)
def enable_for_trainer(shadow: bool = False) -> None:
    """TrainingArguments(use_liger_kernel=True, liger_kernel_config={...}) runs on our kernels, in this process.

    Trainer imports one function from `liger_kernel.transformers`, TRL losses from `liger_kernel.chunked_loss`: modules of
    these names, with every name of Liger's that is here, are put where imports look. RuntimeError where liger_kernel is installed or imported, unless shadow=True says to go before it.
    """
    there = sys.modules.get("liger_kernel")
    if getattr(there, "__hotswap__", False):
        return
    if not shadow and (there is not None or importlib.util.find_spec("liger_kernel") is not None):
        raise RuntimeError(
            "enable_for_trainer: expected no liger_kernel; got an installed one; uninstall it, or pass shadow=True to go "
            "before it in this process"
        )
    made = {}
    for name in ("liger_kernel", *places.PLACES):
        module = made[name] = ModuleType(name, "hotswap's kernels under the names that Trainer and TRL import")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__, module.__version__, module.__hotswap__ = [], "0.8.5", True
        if name in places.PLACES:
            parent, _, own = name.rpartition(".")
            setattr(made[parent], own, module)
            module.__getattr__, module.__dir__ = places.names_of(name), places.all_of(name)
    for name in [n for n in sys.modules if n == "liger_kernel" or n.startswith("liger_kernel.")]:
        del sys.modules[name]
    sys.modules.update(made)
    from transformers.utils import import_utils

    import_utils.is_liger_kernel_available.cache_clear()


def is_transformers_available() -> bool:
    return True  # this module has imported it


__all__ = [
    "FAMILIES",
    "MODEL_TYPE_TO_APPLY_LIGER_FN",
    "_apply_liger_kernel",
    "_apply_liger_kernel_to_instance",
    "enable_for_trainer",
    "is_transformers_available",
    "restore_classes",
    *(f"apply_liger_kernel_to_{family}" for family in FAMILIES),
]
