"""Finds, chooses and loads the built kernel packages: <folder>/<name>/build/<variant>/.

The folder is the one inside the wheel, or what HOTSWAP_PACKAGES names (build/packages of a checkout).
"""

import functools
import importlib.util
import json
import os
import platform
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Optional

import torch

from hotswap.core.arguments import TEXT, checked

VARIANT = re.compile(r"torch-stable-abi(\d)(\d+)-(cpu|cu(\d+)(\d))-(\w+)-linux")


def packages_folder() -> Path:
    named = os.environ.get("HOTSWAP_PACKAGES")
    folder = Path(named) if named else Path(__file__).parent.parent / "packages"
    if not folder.is_dir():
        got = f"HOTSWAP_PACKAGES={named}" if named else f"no folder {folder}"
        raise FileNotFoundError(
            f"expected a folder of built kernel packages; got {got}; install the wheel, or build them (./x build) and set "
            "HOTSWAP_PACKAGES to build/packages"
        )
    return folder.resolve()


class Variant(NamedTuple):
    folder: Path
    abi: tuple[int, int]  # of torch
    cuda: Optional[tuple[int, int]]  # None: CPU kernels only
    machine: str

    def why_not(self) -> Optional[str]:
        """Why it cannot run here; None where it can. A variant for CUDA carries the CPU's kernels too."""
        have = tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())
        if self.machine != platform.machine():
            return f"for {self.machine}, this is {platform.machine()}"
        if self.abi > have:
            return f"wants torch {self.abi[0]}.{self.abi[1]}, this is {torch.__version__}"
        if self.cuda:
            if not torch.version.cuda:
                return f"for CUDA {self.cuda[0]}.{self.cuda[1]}, this torch has none"
            major, minor = (int(n) for n in torch.version.cuda.split(".")[:2])
            if self.cuda[0] != major or self.cuda[1] > minor:
                return f"for CUDA {self.cuda[0]}.{self.cuda[1]}, this torch has {torch.version.cuda}"
        return None


def variants(package: Path) -> list[Variant]:
    found = []
    for folder in sorted((package / "build").glob("torch-*")):
        if match := VARIANT.fullmatch(folder.name):
            major, minor, backend, cuda_major, cuda_minor, machine = match.groups()
            cuda = None if backend == "cpu" else (int(cuda_major), int(cuda_minor))
            found.append(Variant(folder, (int(major), int(minor)), cuda, machine))
    return found


class Package(NamedTuple):
    name: str
    version: int
    id: str
    variant: str
    module: ModuleType

    @property
    def ops(self):
        return getattr(torch.ops, self.id)

    def calls(self, op: str) -> int:
        """How often `op` ran in this process; a backward by autograd counts as its own op."""
        return self.ops.call_count(op)


_loaded: dict = {}  # name -> Package
_loading = threading.RLock()  # a package may load another one


def package(name: str) -> Package:
    """The package `name` in the variant for this machine, loaded. FileNotFoundError where there is none."""
    if name not in _loaded:
        with _loading:
            if name not in _loaded:
                _loaded[name] = _found(name)
    return _loaded[name]


def _found(name: str) -> Package:
    place = packages_folder() / name
    found = variants(place)
    fitting = [v for v in found if v.why_not() is None]
    if not fitting:
        seen = "; ".join(f"{v.folder.name}: {v.why_not()}" for v in found) or "no variant"
        raise FileNotFoundError(
            f"expected the kernel package {name} for this machine in {place}; got {seen}; build it (./x build), or install the "
            "wheel for this torch"
        )
    best = max(fitting, key=lambda v: (v.cuda or (0, 0), v.abi))
    metadata = json.loads((best.folder / "metadata.json").read_text())
    return Package(name, metadata["version"], metadata["id"], best.folder.name, _module(metadata["id"], best.folder))


@functools.lru_cache(maxsize=None)
def dtypes(name: str) -> frozenset:
    """The floating-point types of tensors that the package's layers claim in layers.json."""
    said = json.loads((packages_folder() / name / "build" / package(name).variant / "layers.json").read_text())
    entries = [said.get("defaults", {}), *(e for e in said["layers"].values() if isinstance(e, dict))]
    return frozenset(getattr(torch, dtype) for entry in entries for dtype in entry.get("capabilities", {}).get("dtypes", ()))


def why_not_for(name: str, x: torch.Tensor) -> str:
    """Why the package `name` has no kernel for a tensor of this type, on this device; "": it has one. Asked at each call."""
    if x.dtype is torch.float64 and torch.float64 not in dtypes(name):
        return f"{name} has no float64"
    if not (x.is_cpu or x.is_meta) and "-cpu-" in package(name).variant:
        return f"{name} has kernels for CPUs only"
    return ""


def register_sharding() -> None:
    """DTensor learns the ops of every package that is loaded, where it is in this process."""
    if "torch.distributed.tensor" in sys.modules:
        for made in list(_loaded.values()):
            getattr(made.module, "register_sharding", lambda: None)()


@checked(name=TEXT)
def load(name: str) -> ModuleType:
    """The package's Python module: its functions, and its layers in `.layers`. TypeError for a name that is no text,
    FileNotFoundError where there is no such package."""
    return package(name).module


# Under the name that Python's `kernels` gives it, so that both share one copy.
def _module(package_id: str, folder: Path) -> ModuleType:
    if package_id in sys.modules:
        return sys.modules[package_id]
    spec = importlib.util.spec_from_file_location(package_id, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package_id] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package_id]
        raise
    return module


def owner(function) -> Optional[str]:
    """The id of the package that `function` comes from, whoever loaded it; None: of no package."""
    top = (getattr(function, "__module__", None) or "").split(".")[0]
    return top if hasattr(sys.modules.get(f"{top}._ops"), "add_op_namespace_prefix") else None
