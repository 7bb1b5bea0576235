"""hotswap in Python: the kernel packages, and a thin face that binds them to models of transformers.

    import hotswap
    model = AutoModelForCausalLM.from_pretrained(name, kernel_config=hotswap.kernel_config())
    print(hotswap.report(model))

Nothing is loaded by the import itself; each name below brings its module when it is first used.
"""

import importlib
import sys

_WHERE = {
    "kernelize": "bind",
    "unkernelize": "bind",
    "report": "rows",
    "kernel_config": "config",
    "load": "packages",
    "packages_folder": "packages",
    "register_experts": "experts",
    "enable_for_trainer": "liger",
    "_apply_liger_kernel": "liger",
    "AutoLigerKernelForCausalLM": "auto",
    "CrossEntropyOutput": "modules",
    "generate": "generation",
    "captured_generate": "generation",
}


_FAMILIES = ("apply_liger_kernel_to_", "_apply_liger_kernel_to_")

_MODULES = frozenset(
    """attention auto chunked_loss distillation experts generation grpo head liger loss mamba modules packages
    preference""".split()
)


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
        importlib.import_module("hotswap.attention").register()


if _WhenTransformersComes.name in sys.modules:
    _WhenTransformersComes.tell()
else:
    sys.meta_path.insert(0, _WhenTransformersComes())


def _is_module(name):
    from importlib.util import find_spec

    return find_spec(f"hotswap.{name}") is not None


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        return version("hotswap")
    if name in _MODULES or (name.startswith("liger_") and _is_module(name)):
        return importlib.import_module(f"hotswap.{name}")
    if name.startswith(_FAMILIES):
        where = "liger"
    elif name.lower().startswith("liger"):
        found = importlib.import_module("hotswap.liger_places").place_of(name)
        where = None if found is None else found.__name__.removeprefix("hotswap.")
    else:
        where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'hotswap' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hotswap.{where}"), name)
    globals()[name] = value
    return value


def __dir__():
    from hotswap import liger_places

    places = (importlib.import_module(f"hotswap.{place}") for places in liger_places.PLACES.values() for place in places)
    ligers = {name for place in places for name in place.__all__ if name.lower().startswith(("liger", *_FAMILIES))}
    return sorted({*globals(), *_WHERE, *_MODULES, *ligers})
