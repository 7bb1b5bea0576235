"""kernel_config(): a KernelConfig for from_pretrained(..., kernel_config=) that works on every device and in every mode."""

from typing import Optional

from kernels import LocalLayerRepository  # noqa: F401  (says early that `kernels` is missing)
from transformers import KernelConfig

from hotswap.core.arguments import FLAG, checked
from hotswap.core.mapping import Mapping
from hotswap.core.packages import package
from hotswap.swap import bind


class HotswapKernelConfig(KernelConfig):
    """Binds every layer when transformers asks for its mapping. Layers whose class carries a name for `kernels` are bound
    by `kernels` itself, which would put them back otherwise: they stand in the mapping, for every mode at once."""

    def __init__(self, mapping: Mapping, options: dict):
        super().__init__({}, use_local_kernel=True, inherit_mapping=False)
        self.mapping, self.options = mapping, options

    def sanitize_kernel_mapping(self, model):
        """Nothing: the mapping was checked when it was made, and its layers are looked for in each model."""

    def create_compatible_mapping(self, model, compile=False):
        """The model gets a config of its own, for what is bound in it stands there: this one may be given to other models, too."""
        model.kernel_config = HotswapKernelConfig(self.mapping, self.options)
        bind.kernelize(model, kernel_config=self.mapping, **self.options)

    def serve(self, model, layers: dict) -> None:
        """layers: those that are bound. A name without an entry is stock, with a warning for each layer; an empty entry is stock
        in silence: the report has it."""
        self.registered_layer_names = {}
        self.store_registered_layer_names(model)
        self.kernel_mapping = {name: layers.get(name, {}) for name in set(self.registered_layer_names.values())}

    def to_dict(self):
        return {"kernel_mapping": {}, "use_local_kernel": True, "options": self.options}


@checked(strict=FLAG, allow_all_kernels=FLAG)
def kernel_config(
    kernel_mapping: Optional[dict] = None,
    use_local_kernel: bool = False,
    inherit_mapping: Optional[bool] = None,
    mode=None,
    strict: bool = False,
    allow_all_kernels: bool = False,
    **options,
) -> HotswapKernelConfig:
    """For `from_pretrained(..., kernel_config=hotswap.kernel_config())` and `model.set_use_kernels(True, ...)`.

    kernel_mapping, use_local_kernel, inherit_mapping: as transformers' KernelConfig has them, in every form that its guides
    show (docs/snippets.md), for every device. mode, strict, allow_all_kernels and options: those of hotswap.kernelize. Serves
    the CPU and CUDA, inference and training, and every switch between them.
    """
    package("norm")  # missing packages raise here, not in the middle of a load
    mapping = Mapping(kernel_mapping, use_local_kernel, inherit_mapping)
    bind.check_options(options)
    bind.check_mode(mode)
    bind.check_attention_once(options, mapping)
    return HotswapKernelConfig(mapping, dict(mode=mode, strict=strict, allow_all_kernels=allow_all_kernels, **options))
