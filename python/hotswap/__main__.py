"""python -m hotswap env: as `hotswap python-env`, for who has the wheel alone."""

import argparse
import json
import os
import sys
from pathlib import Path

from hotswap.core.packages import packages_folder, variants

# Repositories of transformers' own mapping, the version that it names, and which of our packages has their layers.
MAPPED = (
    ("kernels-community/liger-kernels", "v3", "norm"),
    ("kernels-community/activation", "v1", "activation"),
    ("kernels-community/rotary", "v2", "rotary"),
)


def python_env() -> str:
    """The LOCAL_KERNELS line; places refs in the Hub's cache, where `kernels` looks a version up offline."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(os.environ.get("KERNELS_CACHE") or HF_HUB_CACHE)
    parts = []
    for repo, revision, package in MAPPED:
        place = packages_folder() / package
        found = variants(place)
        if not found:
            raise FileNotFoundError(f"expected a built package in {place}; got none; install the wheel again")
        if len(found) == 1:  # a torch with CUDA refuses a variant of CPU kernels, unless it is named itself
            place = found[0].folder
        if ":" in str(place):
            raise ValueError(f"expected a folder without ':', which separates the parts; got {place}; move the packages")
        parts.append(f"{repo}={place}")
        ref = cache / f"kernels--{repo.replace('/', '--')}" / "refs" / revision
        if not ref.exists():
            ref.parent.mkdir(parents=True, exist_ok=True)
            package_id = json.loads((found[0].folder / "metadata.json").read_text())["id"]
            ref.write_text(package_id.encode().hex().ljust(40, "0")[-40:])  # it only has to look like a commit
            print(f"placed {ref}", file=sys.stderr)
    return "LOCAL_KERNELS=" + ":".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hotswap", description=__doc__)
    parser.add_argument("verb", choices=["env"])
    parser.parse_args()
    print(python_env())


if __name__ == "__main__":
    main()
