"""Liger's AutoModelForCausalLM: a model that is swapped as it is loaded."""

from transformers import AutoConfig, AutoModelForCausalLM

from hotswap import liger


class AutoLigerKernelForCausalLM(AutoModelForCausalLM):
    """As AutoModelForCausalLM; what is an option of the family's apply_liger_kernel_to_ is taken for that."""

    @staticmethod
    def _split(model_type, given):
        """The family, its options, and what is for transformers."""
        family = liger.family_of(model_type)
        options = {name: given.pop(name) for name in liger.FAMILIES[family].options if name in given}
        return family, options, given

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, **given):
        names = ("revision", "token", "trust_remote_code", "cache_dir", "local_files_only", "subfolder")
        where = {name: given[name] for name in names if name in given}
        config = given.get("config") or AutoConfig.from_pretrained(pretrained_model_name_or_path, **where)
        family, options, rest = cls._split(config.model_type, given)
        model = AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path, *model_args, **rest)
        liger._apply(family, model, **options)
        return model

    @classmethod
    def from_config(cls, config, **given):
        family, options, rest = cls._split(config.model_type, given)
        model = AutoModelForCausalLM.from_config(config, **rest)
        liger._apply(family, model, **options)
        return model


__all__ = ["AutoLigerKernelForCausalLM"]
