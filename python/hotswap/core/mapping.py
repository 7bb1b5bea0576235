"""A user's kernel mapping: what it says of a layer on a device in a mode. The forms are those of transformers' KernelConfig and
of the C++ host: a kernel for every device, or one for each; for each device one kernel, or one for each mode.

    {"RMSNorm": "org/repo:Layer", "SiLU": {"cuda": "org/act:Silu", "cpu": ""}, "MLP": ("org/mlp", {"version": 2})}
"""

from typing import NamedTuple, Optional

from hotswap.core.kernel_ref import KernelRef, parse

ATTENTION, DECODER_LAYER = "attention", "DecoderLayer"  # layers that belong to no one module
STOCK = "the mapping says stock"
DEVICES = ("cpu", "cuda", "mps", "neuron", "npu", "rocm", "tpu", "xpu")
SPELLED = {"metal": "mps"}  # the guides' word for it
ALIASES = {"MLP": ("SwiGLUMLP", "GeGLUMLP")}  # one key for several layers
# Where a part is mapped and the layer that holds it is not, the whole must not run in its place.
FUSED = {
    "AddRMSNorm": ("RMSNorm",),
    "SwiGLUMLP": ("SiLU",),
    "GeGLUMLP": ("GeluTanh", "GeLU", "NewGELU", "FastGELU"),  # all that its kernel is bound for
    "LinearCrossEntropy": ("ForCausalLMLoss",),
    DECODER_LAYER: ("RMSNorm", "AddRMSNorm", "Linear", "rotary_pos_emb", "SwiGLUMLP", "GeGLUMLP", "SiLU", "GeluTanh"),
}
_MODES = {  # what may serve a mode, the best first
    "INFERENCE": ("INFERENCE", "INFERENCE|TORCH_COMPILE", "TRAINING", "TRAINING|TORCH_COMPILE", "FALLBACK"),
    "TRAINING": ("TRAINING", "TRAINING|TORCH_COMPILE", "FALLBACK"),
    "INFERENCE|TORCH_COMPILE": ("INFERENCE|TORCH_COMPILE", "TRAINING|TORCH_COMPILE", "FALLBACK"),
    "TRAINING|TORCH_COMPILE": ("TRAINING|TORCH_COMPILE", "FALLBACK"),
}


def check_flag(name: str, value, or_none: bool = False) -> None:
    if not (isinstance(value, bool) or or_none and value is None):
        raise TypeError(f"expected {name} as True or False{' or None' * or_none}; got {value!r}; pass one of these")


def mode_name(mode) -> str:
    """'TRAINING|TORCH_COMPILE' of a kernels.Mode, or of a text in any case and order."""
    text = mode if isinstance(mode, str) else getattr(mode, "name", None) or str(mode)
    names = {part.strip().removeprefix("Mode.").upper() for part in text.split("|")}
    order = ("INFERENCE", "TRAINING", "TORCH_COMPILE", "FALLBACK")
    if not names <= set(order):
        raise ValueError(f"expected a mode of {', '.join(order).lower()}; got {mode}; correct it")
    if {"INFERENCE", "TRAINING"} <= names or "FALLBACK" in names and len(names) > 1 or names == {"TORCH_COMPILE"}:
        raise ValueError(f"expected inference or training, with torch_compile or not, or only fallback; got {mode}; choose one of them")
    return "|".join(name for name in order if name in names)


class Choice(NamedTuple):
    ref: Optional[KernelRef]  # None: the mapping has no kernel here
    why: str = ""  # it has none
    part: str = ""  # stock, because this part of the layer is mapped
    key: str = ""  # of the entry


class Mapping:
    """kernel_mapping: as above. use_local_kernel: values may be folders. inherit_mapping: layers that it does not name keep
    their default kernels; None: unless use_local_kernel, as in transformers. ValueError for a malformed one."""

    def __init__(self, kernel_mapping: Optional[dict] = None, use_local_kernel=False, inherit_mapping: Optional[bool] = None):
        if not isinstance(kernel_mapping, (dict, type(None))):
            raise ValueError(f"expected a kernel mapping as a dictionary; got {type(kernel_mapping).__name__}; correct it")
        check_flag("use_local_kernel", use_local_kernel)
        check_flag("inherit_mapping", inherit_mapping, or_none=True)
        self.use_local_kernel = bool(use_local_kernel)
        self.inherits = not use_local_kernel if inherit_mapping is None else bool(inherit_mapping)
        self.table = {key: self._entry(key, value) for key, value in (kernel_mapping or {}).items()}

    def _entry(self, key, value) -> dict:
        """{device or None for every one: {mode: KernelRef}}"""
        if not isinstance(key, str) or not key:
            raise ValueError(f"expected a layer's name as the key of a kernel mapping; got {key!r}; name the layer")
        if not isinstance(value, dict):
            return {None: self._by_mode(key, value)}
        if not value:
            raise ValueError(f"expected at least one device for {key}; got none; name one, or leave the key out")
        self._check_once(key, value, self._device)
        return {self._device(device): self._by_mode(key, given) for device, given in value.items()}

    @staticmethod
    def _check_once(key: str, given: dict, name) -> None:
        """Two spellings of one device or mode, of which one would be lost."""
        spelled: dict = {}
        for word in given:
            spelled.setdefault(name(word), []).append(str(word))
        for one, words in spelled.items():
            if len(words) > 1:
                raise ValueError(f"expected one entry of {key} for {one.lower()}; got {' and '.join(words)}; leave one out")

    @staticmethod
    def _device(given) -> str:
        if getattr(given, "properties", None) is not None:
            raise ValueError(f"expected a device without properties; got {given}; name only the kind of device: every one of it is meant")
        device = getattr(given, "type", given)  # a kernels.Device
        device = SPELLED.get(device, device) if isinstance(device, str) else device
        if device not in DEVICES:
            raise ValueError(f"expected a device of {', '.join(DEVICES)}; got {given!r}; correct the mapping")
        return device

    def _by_mode(self, key: str, value) -> dict:
        if value == {}:
            raise ValueError(f"expected at least one mode for {key}; got none; name one, or write the kernel without a mode")
        if isinstance(value, dict):
            self._check_once(key, value, mode_name)
        values = {mode_name(mode): ref for mode, ref in value.items()} if isinstance(value, dict) else {"FALLBACK": value}
        found = {mode: parse(ref) for mode, ref in values.items()}
        for ref in found.values():
            if ref.path and not self.use_local_kernel:
                raise ValueError(
                    f"expected a kernel for {key} as 'org/repo:Layer'; got {ref.text!r} without use_local_kernel; pass "
                    "use_local_kernel=True to run a package folder of this machine"
                )
        return found

    @property
    def has_modes(self) -> bool:
        """Is there an entry with kernels by mode?"""
        return any(by_mode.keys() != {"FALLBACK"} for entry in self.table.values() for by_mode in entry.values())

    def _keys(self, layers: tuple) -> list:
        return [key for key in self.table if key in layers or set(ALIASES.get(key, ())) & set(layers)]

    def elsewhere(self, layers: tuple, device: str) -> str:
        """Of layers that keep their default: on which other devices the mapping names them; "": on none."""
        keys = self._keys(layers)
        if not keys or any(self._on(self.table[key], device) is not None for key in keys):
            return ""
        return f"the mapping names {keys[0]} only on {', '.join(sorted({str(d) for key in keys for d in self.table[key]}))}"

    def plus(self, key: str, value) -> "Mapping":
        """The same, and one more entry."""
        made = Mapping(None, self.use_local_kernel, self.inherits)
        made.table = {**self.table, key: made._entry(key, value)}
        return made

    def names(self, layers: tuple) -> bool:
        return bool(self._keys(layers))

    def choice(self, layers: tuple, device: str, mode: str) -> Optional[Choice]:
        """What is said of a layer that has these names, on this device; None: nothing, so that the default holds. A part that is
        mapped keeps the layers that hold it stock."""
        found = [(key, by_device) for key in self._keys(layers) if (by_device := self._on(self.table[key], device)) is not None]
        if found:
            return self._one([self._of_mode(by_mode, layers[0], device, mode)._replace(key=key) for key, by_mode in found], layers)
        if keys := self._keys(layers):
            if self.inherits:
                return None
            others = sorted({str(d) for key in keys for d in self.table[key]})
            return Choice(None, f"the mapping has no kernel of {layers[0]} for {device}, only for {', '.join(others)}")
        part = next((p for name in layers for p in FUSED.get(name, ()) if self._says(p, device)), "")
        if part:
            return Choice(None, f"the mapping names its part {part} and not {layers[0]}", part)
        return None if self.inherits else Choice(None, "the mapping does not name it, and inherits no default")

    @staticmethod
    def _on(entry: dict, device: str):
        return entry.get(device, entry.get(None))

    def _says(self, layer: str, device: str) -> bool:
        return any(self._on(self.table[key], device) is not None for key in self._keys((layer,)))

    @staticmethod
    def _one(choices: list, layers: tuple) -> Choice:
        """Of several keys for one layer, as "MLP" and "SwiGLUMLP": they may say the same, or one is for other modes."""
        named = [choice for choice in choices if choice.ref is not None]
        plain = {choice.ref._replace(text="", layer="" if choice.ref.layer in layers else choice.ref.layer) for choice in named}
        if len(plain) > 1:
            keys = " and ".join(f"{choice.key}={choice.ref.text!r}" for choice in named)
            raise ValueError(f"expected one kernel for {layers[0]}; got {keys} in the kernel mapping; leave one out")
        return named[0] if named else choices[0]

    @staticmethod
    def _of_mode(by_mode: dict, layer: str, device: str, mode: str) -> Choice:
        found = next((by_mode[name] for name in _MODES[mode] if name in by_mode), None)
        if found is None:
            return Choice(None, f"the mapping's kernels of {layer} for {device} are for {', '.join(by_mode)}, not for {mode}")
        return Choice(found)


def mapping_of(config) -> Mapping:
    """Of what kernelize() may be given as kernel_config: a Mapping, a dictionary, or a KernelConfig, of transformers too."""
    if isinstance(config, Mapping):
        return config
    if config is None or isinstance(config, dict):
        return Mapping(config)
    if isinstance(mapping := getattr(config, "mapping", None), Mapping):
        return mapping
    if not hasattr(config, "kernel_mapping"):
        raise TypeError(
            f"expected kernel_config as a dictionary or hotswap.kernel_config(...); got {type(config).__name__}; pass one of these"
        )
    inherits = None if getattr(config, "inherit_mapping", True) else False
    return Mapping(config.kernel_mapping, getattr(config, "use_local_kernel", False), inherits)
