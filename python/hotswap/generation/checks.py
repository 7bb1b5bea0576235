"""What the loop of loop.py does not do: a ValueError before anything is computed."""

import functools


def refuse(wanted, got, to_do):
    raise ValueError(f"hotswap.generate: expected {wanted}; got {got}; {to_do}")


def check_class(model):
    """What a class cannot do with a static cache; transformers' own generate() says other ids there, or raises."""
    name, config = type(model).__name__, model.config
    if config.is_encoder_decoder:
        refuse("a decoder", "an encoder and a decoder", "call model.generate")
    if hasattr(config, "add_cross_attention") and not getattr(config, "is_decoder", True):  # as BERT; others do not read it
        refuse("a decoder", f"{name} with is_decoder=False", "make the model with is_decoder=True, or call model.generate")
    if not (model._can_compile_fullgraph or model._supports_attention_backend):
        refuse("a class that supports a static cache", f"{name}, which says that it does not", "call model.generate")
    if getattr(config, "alibi", False):
        refuse("positions by a rotary embedding", f"{name} with alibi=True", "call model.generate")
    attention = config._attn_implementation or ""
    if "flash" in attention or "flex" in attention:  # they take no mask that a device alone knows
        refuse("attn_implementation of eager, sdpa or hotswap", attention, "call model.set_attn_implementation, or model.generate")


def check_cache(cache):
    kinds = sorted({type(layer).__name__ for layer in getattr(cache, "layers", [])})
    if kinds != ["StaticLayer"]:
        refuse('cache_implementation="static" and layers that see all keys', f"a cache of {', '.join(kinds) or type(cache).__name__}",
                "call model.generate")  # fmt: skip


def static_cache(model, length: int):
    """A static cache for `length` tokens; it has no memory before the first of them."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=length)
    for layer in cache.layers:
        layer.lazy_initialization = functools.partial(_initialize, layer)
    return cache


def _initialize(layer, keys, values):
    """As its class does, which takes keys and values to be of one type: under autocast a norm leaves only the keys in float32."""
    type(layer).lazy_initialization(layer, keys, values)
    if values.dtype != keys.dtype:
        layer.values = layer.values.to(values.dtype)


def why_not_generated(model) -> str:
    """Why hotswap.generate refuses this model, whatever the request; "": it does not, or nothing generates with the model."""
    if not (hasattr(model, "can_generate") and model.can_generate()):
        return ""
    try:
        check_class(model)
        check_cache(static_cache(model, 8))
    except ValueError as error:
        return str(error).replace("hotswap.generate:", "hotswap.generate refuses this model:")
    except (AttributeError, TypeError, KeyError, NotImplementedError) as error:  # of a config that transformers' cache does not read
        return f"hotswap.generate refuses this model: expected a config of which a static cache is made; got {error!r}; call model.generate"
    return ""


def check_request(model, config, cache):
    check_class(model)
    if model.training and getattr(model, "is_gradient_checkpointing", False):  # its layers drop the cache
        refuse("a model in evaluation, or without gradient checkpointing", "one in training with it", "call model.eval()")
    if config.use_cache is False:
        refuse("use_cache=True", "use_cache=False", "leave it out, or call model.generate")
    if (config.num_beams or 1) > 1:
        refuse("greedy search or sampling", f"num_beams={config.num_beams}", "call model.generate")
    if (mode := config.get_generation_mode().value) not in ("greedy_search", "sample"):
        refuse("greedy search or sampling", mode, "call model.generate")
    if config.guidance_scale not in (None, 1):
        refuse("one forward a token", f"guidance_scale={config.guidance_scale}", "call model.generate")
    for name in ("output_attentions", "output_hidden_states", "output_scores", "output_logits", "prefill_chunk_size"):
        if getattr(config, name, None):
            refuse("the ids alone", f"{name}={getattr(config, name)}", "leave it out, or call model.generate")
    check_cache(cache)
