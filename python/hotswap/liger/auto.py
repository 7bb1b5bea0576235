"""Liger's AutoModelForCausalLM: a model that is swapped as it is loaded."""

import functools
import inspect
import warnings

from transformers import AutoConfig, AutoModelForCausalLM

from hotswap.liger import families


def _function_of(config):
    """The table's; None, which is said, where a model is to stay stock."""
    model_type = getattr(config, "model_type", None)
    found = families.function_of(model_type)
    if found is None:
        warnings.warn(
            f"expected a model of {', '.join(families.MODEL_TYPE_TO_APPLY_LIGER_FN)}; got {model_type!r}, which stays stock; "
            "hotswap.kernelize(model) swaps what it finds in any model",
            stacklevel=4,
        )
    return found


def _split(function, given):
    """The function's options, and what is for transformers."""
    names = set(inspect.signature(function).parameters) - {"model"} if function else set()
    return {n: v for n, v in given.items() if n in names}, {n: v for n, v in given.items() if n not in names}


def _made(make, config, given):
    """make(what is for transformers) -> the model. Our functions take it; one that a program put into the table is called as
    Liger calls it, before there is a model, for the classes."""
    function = _function_of(config)
    options, rest = _split(function, given)
    if function and function not in families.OURS:
        function(**options)
    model = make(rest)
    if function in families.OURS:
        function(model=model, **options)
    return model


class AutoLigerKernelForCausalLM(AutoModelForCausalLM):
    """As AutoModelForCausalLM; what is an option of the family's apply_liger_kernel_to_ is taken for that. A model of no family
    that is known stays stock, with a warning."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, **given):
        names = ("revision", "token", "trust_remote_code", "cache_dir", "local_files_only", "subfolder")
        where = {name: given[name] for name in names if name in given}
        config = given.get("config") or AutoConfig.from_pretrained(pretrained_model_name_or_path, **where)
        make = functools.partial(AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path, *model_args)
        return _made(lambda rest: make(**rest), config, given)

    @classmethod
    def from_config(cls, config, **given):
        return _made(lambda rest: AutoModelForCausalLM.from_config(config, **rest), config, given)


__all__ = ["AutoLigerKernelForCausalLM"]
