"""What a kernel mapping may say of one layer: the grammar of docs/formats.md, 'Names of kernels', as in the C++ host.

    org/repo  org/repo:Layer  org/repo@v2:Layer  org/repo@main:Layer  org/repo@>=1,<3:Layer
    /abs/path:Layer     a package folder on this machine
    ""                  no kernel: the layer stays stock
    ("org/repo:Layer", {"version": 1, "trust_remote_code": True})
"""

import re
from typing import Any, NamedTuple, Optional

FORMS = "a kernel as 'org/repo[@revision][:Layer]', '/abs/path:Layer' or '' for stock"
METADATA = ("version", "revision", "trust_remote_code")
_REPO_PART = re.compile(r"(?![-.])(?!.*(--|\.\.))[A-Za-z0-9._-]+(?<![-.])(?<!\.git)")


class KernelRef(NamedTuple):
    text: str  # as written, for messages and the report
    repo: str = ""  # "org/repo"; empty for a folder and for stock
    path: str = ""  # an absolute folder
    layer: str = ""  # empty: the mapping's own name for the layer
    version: Optional[int] = None
    revision: str = ""  # a tag, branch or commit, or versions such as >=1,<3
    trust: bool = False
    loader: Any = None  # an object of the package kernels that has load(), such as a LayerRepository

    @property
    def stock(self) -> bool:
        return not (self.repo or self.path or self.loader)

    @property
    def is_specifier(self) -> bool:
        return self.revision[:1] in tuple("<>=!~")

    @property
    def exact(self) -> bool:
        """Names a tag, branch or commit: these very bytes, which no stand-in replaces."""
        return bool(self.revision) and not self.is_specifier


def _refuse(text, why):
    raise ValueError(f"expected {FORMS}; got {text!r}: {why}; correct the mapping")


def _is_repo(text: str) -> bool:
    parts = text.split("/")
    return len(parts) == 2 and len(text) <= 96 and all(_REPO_PART.fullmatch(part) for part in parts)


def _of_folder(text: str) -> KernelRef:
    path, colon, layer = text.rpartition(":")
    if not colon or not layer.isidentifier():
        path, layer = text, ""
    return KernelRef(text, path=path, layer=layer)


def _of_repo(text: str) -> KernelRef:
    rest, colon, layer = text.rpartition(":")
    if not colon:
        rest, layer = text, ""
    elif not layer.isidentifier():
        _refuse(text, f"the layer's name {layer!r} is not an identifier")
    repo, at, revision = rest.partition("@")
    if at and not revision:
        _refuse(text, "nothing follows '@'")
    if "/" not in repo:
        _refuse(text, f"there is no 'org/' before the repository's name; a bundled package is hotswap/{repo}")
    if not _is_repo(repo):
        _refuse(text, f"{repo!r} is no valid repository name")
    version = int(revision[1:]) if re.fullmatch(r"v(0|[1-9]\d*)", revision) else None
    return KernelRef(text, repo=repo, layer=layer, version=version, revision="" if version is not None else revision)


def _check_revision(ref: KernelRef) -> None:
    if ref.is_specifier:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(ref.revision)
        except InvalidSpecifier as error:
            _refuse(ref.text, str(error))
    elif ref.revision and (re.search(r"[\s~^:?*\[\\]|\.\.|@\{", ref.revision) or ref.revision.endswith((".", "/"))):
        _refuse(ref.text, f"{ref.revision!r} can name no branch, tag or commit")


def _with_metadata(ref: KernelRef, metadata: dict) -> KernelRef:
    if unknown := sorted(map(str, set(metadata) - set(METADATA))):
        _refuse(ref.text, f"{', '.join(unknown)} beside it, where {', '.join(METADATA)} are known")
    version, revision = metadata.get("version"), metadata.get("revision")
    if revision is not None and (not isinstance(revision, str) or not revision):
        _refuse(ref.text, f"the revision {revision!r} is not a text that names a branch, tag, commit or versions")
    if not isinstance(metadata.get("trust_remote_code", False), bool):
        _refuse(ref.text, "trust_remote_code is not True or False")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        _refuse(ref.text, f"the version {version!r} is not an integer of 0 or more")
    if sum(given is not None for given in (version, revision, ref.version, ref.revision or None)) > 1:
        _refuse(ref.text, "only one of version, revision and what follows '@' may be given")
    ref = ref._replace(trust=metadata.get("trust_remote_code", False))
    return ref if version is None and revision is None else ref._replace(version=version, revision=revision or "")


def parse(value) -> KernelRef:
    """A KernelRef of one value of a mapping; ValueError, which shows the forms, for anything else."""
    if isinstance(value, KernelRef):
        return value
    if callable(getattr(value, "load", None)):
        return KernelRef(str(getattr(value, "layer_name", value)), loader=value)
    text, metadata = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, {})
    if not isinstance(text, str) or not isinstance(metadata, dict):
        _refuse(value, "neither a string nor a pair of a string and a dictionary")
    if text == "":
        if metadata:
            _refuse(value, f"'' keeps the layer stock, and {', '.join(map(str, metadata))} beside it is of no kernel")
        return KernelRef("")
    ref = _with_metadata(_of_folder(text) if text.startswith("/") else _of_repo(text), metadata)
    _check_revision(ref)
    return ref


def same_repo(a: str, b: str) -> bool:
    """kernels-community/liger_kernels and kernels-community/liger-kernels are one repository by two spellings."""
    return a.replace("_", "-") == b.replace("_", "-")
