"""From what a kernel mapping names to a layer on this machine. The first of these that knows the name is taken, as in the C++ host
(docs/formats.md): a folder; LOCAL_KERNELS; a bundled package by its own name, hotswap/norm; a bundled package that stands in for
the repository, unless a tag, branch or commit is named; the Hub, by the package kernels, which asks whether it is trusted.
"""

import functools
import json
import os
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Optional, Union

from hotswap.core.kernel_ref import KernelRef, same_repo
from hotswap.core.packages import owner, package, packages_folder, variants

ORGANIZATION = "hotswap"


class Source(NamedTuple):
    """A layer of a package that is loaded."""

    name: str  # "norm", "acme/norm", or the folder
    layer: str  # in that package; of a bundled one the name of the layer that it serves
    bundled: bool
    layer_class: Optional[type] = None  # of a package that is not bundled
    version: Optional[int] = None
    variant: str = ""
    note: str = ""  # "stands in for ..."


class NoVariant(str):
    """Why a package that exists has nothing for this machine."""


# ---- bundled packages -------------------------------------------------------------------------------------------------


class Bundled(NamedTuple):
    """What layers.json of a bundled package says."""

    layers: dict  # each name of a layer -> the layer that it means
    stands_in: list  # (repository, layer there, layer here)
    versions: dict  # repository -> the last version of it that is stood in for


@functools.lru_cache(maxsize=None)
def _read(folder: Path) -> Bundled:
    declared = json.loads((folder / "layers.json").read_text())
    layers = {name: entry if isinstance(entry, str) else name for name, entry in declared["layers"].items()}
    stands_in = []
    for text in declared.get("stands_in_for", ()):
        there, _, here = text.partition("=")
        repo, _, layer = there.rpartition(":")
        stands_in.append((repo, layer, here or layer))
    for alias, repo in declared.get("aliases", {}).items():
        stands_in += [(alias, layer, here) for known, layer, here in stands_in if same_repo(known, repo)]
    return Bundled(layers, stands_in, declared.get("versions", {}))


def bundled() -> dict:
    """name -> Bundled, of every package in the folder of packages."""
    places = {place.name: variants(place) for place in sorted(packages_folder().iterdir()) if place.is_dir()}
    return {name: _read(found[0].folder) for name, found in places.items() if found and (found[0].folder / "layers.json").exists()}


def _of_bundled(name: str, layer: str, note: str = "") -> Source:
    made = package(name)
    return Source(name, layer, True, version=made.version, variant=made.variant, note=note)


def _by_name(ref: KernelRef, names: tuple) -> Optional[Source]:
    organization, _, name = ref.repo.partition("/")
    if organization != ORGANIZATION:
        return None
    known = bundled()
    if name not in known:
        raise ValueError(f"expected a bundled package of {', '.join(known)}; got {ref.text}; correct the mapping")
    layers = known[name].layers
    layer = ref.layer or next((n for n in names if n in layers), "")
    if layer not in layers:
        raise ValueError(
            f"expected a layer of the package {name}, which has {', '.join(layers)}; got {ref.text!r} for {names[0]}; name one"
        )
    made = _of_bundled(name, layers[layer])
    if not _fits(made.version, ref):
        got = f"version {ref.version}" if ref.version is not None else ref.revision
        raise ValueError(f"expected version {made.version} of the package {name}; got {got} in {ref.text!r}; leave it out, or name this one")
    return made


def _fits(version: int, ref: KernelRef) -> bool:
    if ref.version is not None:
        return ref.version == version
    if not ref.revision:
        return True
    from packaging.specifiers import SpecifierSet

    return ref.is_specifier and SpecifierSet(ref.revision).contains(f"{version}")


def _asks_for_one_up_to(last: Optional[int], ref: KernelRef) -> bool:
    """A later version than a package was written to stand in for is the repository's own. None: there is no last one."""
    if last is None or not (ref.is_specifier or ref.version is not None):
        return True
    if ref.version is not None:
        return ref.version <= last
    from packaging.specifiers import SpecifierSet

    wanted = SpecifierSet(ref.revision)
    return any(wanted.contains(f"{major}.{minor}") for major in range(last + 1) for minor in range(100))


def check_attention_layer(ref: KernelRef) -> None:
    """ValueError where an attention that the package stands in for is named with a layer or function that its repository has not."""
    layers, stands_in, _ = bundled()["attention"]
    functions = {name for name in package("attention").module.__all__ if name.startswith("flash_attn_")}
    have = {*layers, *(there for repo, there, _ in stands_in if same_repo(repo, ref.repo)), *functions}
    if ref.layer and ref.layer not in have:
        raise ValueError(f"expected a layer or function of {ref.repo}: {', '.join(sorted(have))}; got {ref.text!r}; name one, or none")


def _by_stand_in(ref: KernelRef, names: tuple) -> Optional[Source]:
    if ref.exact:
        return None
    for name, (layers, stands_in, versions) in bundled().items():
        last = next((version for repo, version in versions.items() if same_repo(repo, ref.repo)), None)
        for repo, there, here in stands_in:
            named = there == ref.layer if ref.layer else here in names or layers.get(here, here) in names
            if named and same_repo(repo, ref.repo) and _asks_for_one_up_to(last, ref):
                return _of_bundled(name, layers.get(here, here), f"stands in for {ref.repo}:{there}")
    return None


# ---- packages of others -----------------------------------------------------------------------------------------------


def _loading(load, device: str) -> Union[ModuleType, NoVariant]:
    """load(backend) -> module. A torch that is built for a GPU refuses the CPU's variants unless they are asked for."""
    for backend in (None, "cpu") if device == "cpu" else (None,):
        try:
            return load(backend)
        except FileNotFoundError as error:
            if not str(error).startswith("Cannot find a build variant"):
                raise
            why = " ".join(str(error).split())
    return NoVariant(why)


def _local_kernels() -> dict:
    entries = [entry.partition("=") for entry in os.environ.get("LOCAL_KERNELS", "").split(":") if entry]
    return {repo: path for repo, _, path in entries}


def _from_folder(path: str, device: str) -> Union[ModuleType, NoVariant]:
    from kernels import get_local_kernel

    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a folder of a kernel package; got {path}, which is none; correct the mapping")

    def load(backend):
        try:
            return get_local_kernel(folder, backend=backend)
        except OSError as error:  # it takes a folder without a variant for this machine for a variant
            if (folder / "metadata.json").exists():
                raise
            have = ", ".join(sorted(p.name for p in [*folder.glob("build/*"), *folder.glob("torch*")])) or "none"
            raise FileNotFoundError(f"Cannot find a build variant for this machine in {folder}, only {have}") from error

    return _loading(load, device)


def _highest(ref: KernelRef) -> str:
    """The branch or tag v<version> with the highest version that fits; PEP 440. ValueError where none does."""
    from huggingface_hub import HfApi
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    refs = HfApi().list_repo_refs(ref.repo, repo_type="kernel")
    found = {}
    for name in [r.name for r in (*refs.tags, *refs.branches)]:  # of equal ones the branch
        try:
            found[Version(name[1:])] = name if name[:1] == "v" else found.get(Version(name[1:]))
        except InvalidVersion:
            continue
    fitting = list(SpecifierSet(ref.revision).filter(v for v, name in found.items() if name))
    if not fitting:
        have = ", ".join(sorted(name for name in found.values() if name)) or "none"
        raise ValueError(f"expected a version of {ref.repo} that is {ref.revision}; got {have}; correct the mapping")
    return found[max(fitting)]


def concrete(ref: KernelRef) -> KernelRef:
    """The same, with a branch or tag in the place of a range of versions."""
    return ref._replace(revision=_highest(ref)) if ref.is_specifier else ref


def _from_hub(ref: KernelRef, device: str, allow_all_kernels: bool) -> Union[ModuleType, NoVariant]:
    from kernels import get_kernel

    ref = concrete(ref)
    which = dict(revision=ref.revision) if ref.revision else dict(version=1 if ref.version is None else ref.version)
    trust = ref.trust or allow_all_kernels
    return _loading(lambda backend: get_kernel(ref.repo, **which, backend=backend, trust_remote_code=trust), device)


def _layer_of(module: ModuleType, ref: KernelRef, names: tuple) -> type:
    layers = getattr(module, "layers", None)
    if layers is None:
        raise ValueError(f"expected a package with layers; got {ref.text}, which has none; map another package")
    have = [name for name in dir(layers) if isinstance(getattr(layers, name), type) and name[0] != "_"]
    if ref.layer:
        found = ref.layer if ref.layer in have else None
    else:  # SiLU in a mapping is Silu in a package
        by_case = {name.lower(): name for name in have} | {name: name for name in have}
        found = next((by_case[n] for name in names for n in (name, name.lower()) if n in by_case), None)
    if found is None:
        raise ValueError(
            f"expected a layer {ref.layer or names[0]} in {ref.repo or ref.path}; got the layers {', '.join(have)}; name one of "
            "them after ':'"
        )
    return getattr(layers, found)


def _of_others(ref: KernelRef, names: tuple, device: str, allow_all_kernels: bool) -> Union[Source, NoVariant]:
    if ref.loader is not None:
        layer_class = ref.loader.load()
        return Source(owner(layer_class.forward) or layer_class.__module__, layer_class.__name__, False, layer_class)
    path = ref.path or next((path for repo, path in _local_kernels().items() if same_repo(repo, ref.repo)), "")
    module = _from_folder(path, device) if path else _from_hub(ref, device, allow_all_kernels)
    if isinstance(module, NoVariant):
        return module
    layer_class = _layer_of(module, ref, names)
    folder = Path(module.__file__).parent
    metadata = json.loads((folder / "metadata.json").read_text())
    found = Source(ref.repo or path, layer_class.__name__, False, layer_class, metadata.get("version"), folder.name)
    return _as_bundled(found, metadata) or found


def _as_bundled(found: Source, metadata: dict) -> Optional[Source]:
    """A copy of a bundled package is that package: it serves each form of its layers."""
    known = bundled().get(metadata["name"])
    if known is None or package(metadata["name"]).id != metadata["id"] or found.layer not in known.layers:
        return None
    return _of_bundled(metadata["name"], known.layers[found.layer], f"as {found.name}")


class Sources:
    """Each name is resolved once: a model that is bound again keeps what it began with."""

    def __init__(self, allow_all_kernels: bool = False):
        self.allow_all_kernels = allow_all_kernels
        self._known: dict = {}

    def __getstate__(self):  # a copy of a model asks again
        return {"allow_all_kernels": self.allow_all_kernels, "_known": {}}

    def find(self, ref: KernelRef, names: tuple, device: str) -> Union[Source, NoVariant]:
        """The layer of `names` by `ref` for this kind of device. NoVariant: the package has nothing for it; ValueError or
        FileNotFoundError: it does not exist, may not run, or has no such layer."""
        key = (ref, names, device)
        if key not in self._known:
            self._known[key] = self._find(ref, names, device)
        return self._known[key]

    def bundled(self, ref: KernelRef, names: tuple) -> Optional[Source]:
        """A bundled package that answers to the name, by its own or as a stand-in; None where none does."""
        local = ref.path or ref.loader or any(same_repo(repo, ref.repo) for repo in _local_kernels())
        return None if local else _by_name(ref, names) or _by_stand_in(ref, names)

    def _find(self, ref, names, device):
        return self.bundled(ref, names) or _of_others(ref, names, device, self.allow_all_kernels)
