"""kernel_config(): a KernelConfig for from_pretrained(..., kernel_config=) that works on every device and in every mode."""

from kernels import LocalLayerRepository  # noqa: F401  (says early that `kernels` is missing)
from transformers import KernelConfig

from hotswap import bind, match
from hotswap.packages import package, packages_folder
from hotswap.replacement import Replacement


class _Layer:
    """What a kernel mapping holds: a layer class of a package that is loaded already."""

    def __init__(self, replacement: Replacement):
        self._replacement = replacement
        self.layer_name = replacement.layer

    def load(self):
        return self._replacement.layer_class

    def _key(self):
        return self._replacement.package, self.layer_name

    def __eq__(self, other):
        return isinstance(other, _Layer) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def __str__(self):
        return f"`{packages_folder() / self._replacement.package}` (layer `{self.layer_name}`)"


class HotswapKernelConfig(KernelConfig):
    """Binds every layer when transformers asks for its mapping. Layers whose class carries a name for `kernels` are bound
    by `kernels` itself, which would put them back otherwise: they stand in the mapping, for every mode at once."""

    def __init__(self, options: dict):
        super().__init__({}, use_local_kernel=True, inherit_mapping=False)
        self.options = options

    def sanitize_kernel_mapping(self, model):
        self.registered_layer_names = {}
        self.store_registered_layer_names(model)

    def create_compatible_mapping(self, model, compile=False):
        bind.kernelize(model, **self.options)
        # A name without an entry is stock, with a warning for each layer; an empty entry is stock in silence.
        self.kernel_mapping = {name: {} for name in set(self.registered_layer_names.values())}
        if not bind.enabled():
            return
        by_name: dict = {}
        for module in model.modules():
            if (name := getattr(type(module), "kernel_layer_name", None)) is not None:
                found = match.matches(module)
                by_name.setdefault(name, set()).add(found[0] if found else None)
        for name, found in by_name.items():
            replacement = found.pop()
            if found or replacement is None or replacement.layer_class is None or not self.options[replacement.option]:
                continue  # classes of one name that compute different things: kernels cannot tell them apart
            self.kernel_mapping[name] = {device: _Layer(replacement) for device in ("cpu", "cuda")}

    def to_dict(self):
        return {"kernel_mapping": {}, "use_local_kernel": True, "options": self.options}


def kernel_config(**options) -> HotswapKernelConfig:
    """For `from_pretrained(..., kernel_config=hotswap.kernel_config())` and `model.set_use_kernels(True, ...)`.

    options: those of hotswap.kernelize. Serves the CPU and CUDA, inference and training, and every switch between them.
    """
    package("norm")  # missing packages are told here, not in the middle of a load
    return HotswapKernelConfig(bind.check_options(options))
