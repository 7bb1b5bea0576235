"""hotswap in Python: the kernel packages, and a thin face that binds them to models of transformers.

    import hotswap
    model = AutoModelForCausalLM.from_pretrained(name, kernel_config=hotswap.kernel_config())
    print(hotswap.report(model))

Nothing is loaded by the import itself; each name below brings its module when it is first used. The folders import each
other in one direction, core <- matchers <- generation <- swap <- liger (tests/import_directions.py).
"""

import importlib
import sys

_WHERE = {
    "kernelize": "swap.bind",
    "unkernelize": "swap.bind",
    "report": "swap.report",
    "kernel_config": "swap.config",
    "load": "core.packages",
    "packages_folder": "core.packages",
    "register_experts": "matchers.experts",
    "enable_for_trainer": "liger.families",
    "_apply_liger_kernel": "liger.families",
    "AutoLigerKernelForCausalLM": "liger.auto",
    "CrossEntropyOutput": "liger.modules",
    "generate": "generation.loop",
    "captured_generate": "generation.loop",
    "AdamW": "optim",
}

_FAMILIES = ("apply_liger_kernel_to_", "_apply_liger_kernel_to_")

# Modules by their public names, hotswap.grpo: where each is.
_MODULES = {name: f"{folder}.{name}" for folder, names in {
    "core": "packages",
    "matchers": "attention experts loss",
    "generation": "decode",
    "liger": "auto chunked_loss distillation grpo head modules preference",
}.items() for name in names.split()} | {
    f"liger_{name}": f"liger.{name}"
    for name in "channel_norm function functional lacks loss mlp norm ops places probability rotary".split()
}  # fmt: skip
# Modules that only models saved by 0.1 and earlier name: their classes and functions are in these pickles.
_SAVED = {
    "bind": "swap.bind",
    "binding": "swap.binding",
    "chosen": "core.chosen",
    "config": "swap.config",
    "deformable": "matchers.deformable",
    "kernel_ref": "core.kernel_ref",
    "mapping": "core.mapping",
    "sources": "core.sources",
}


class _UnderItsOldName:
    """An importer: hotswap.grpo is the module hotswap.liger.grpo, the same object."""

    def __init__(self, where):
        self.where = where

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        package, _, own = name.partition(".")
        if package != "hotswap" or (where := _MODULES.get(own) or _SAVED.get(own)) is None:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, cls(f"hotswap.{where}"))

    def create_module(self, spec):
        module = importlib.import_module(self.where)
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.spec  # importlib has put the other name's there


sys.meta_path.insert(0, _UnderItsOldName)


class _WhenTransformersComes:
    """attn_implementation="hotswap" is known to transformers as soon as it is imported, before this package or after it; the
    attention itself is loaded by its first call."""

    name = "transformers.modeling_utils"

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), self.tell())
        return spec

    @staticmethod
    def tell():
        importlib.import_module("hotswap.matchers.attention").register()


if _WhenTransformersComes.name in sys.modules:
    _WhenTransformersComes.tell()
else:
    sys.meta_path.insert(0, _WhenTransformersComes())


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        return version("hotswap")
    if name in _MODULES or name in ("generation", "liger", "mamba"):
        return importlib.import_module(f"hotswap.{name}")
    if name.startswith(_FAMILIES):
        where = "liger.families"
    elif name.lower().startswith("liger"):
        found = importlib.import_module("hotswap.liger.places").place_of(name)
        where = None if found is None else found.__name__.removeprefix("hotswap.")
    else:
        where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'hotswap' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hotswap.{where}"), name)
    globals()[name] = value
    return value


def __dir__():
    from hotswap.liger import places

    modules = (importlib.import_module(f"hotswap.liger.{file}") for files in places.PLACES.values() for file in files)
    ligers = {name for module in modules for name in module.__all__ if name.lower().startswith(("liger", *_FAMILIES))}
    public = {name for name in _MODULES if not name.startswith("liger_") and name != "decode"}
    return sorted({*globals(), *_WHERE, *public, "generation", "liger", "mamba", *ligers})
