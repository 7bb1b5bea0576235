"""The command that compiles each source of a build, also of those that the build compiles several as one."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def compile_commands(build: Path) -> Iterator[dict[str, str]]:
    """The entries of compile_commands.json; a batch (hotswap_batches of hotswap_room.cmake) as those of its sources."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        batch = Path(entry["file"])
        if batch.parent.name != "batches":
            yield entry
            continue
        for name in re.findall(r'^#include "(.+)"$', batch.read_text(), re.MULTILINE):
            source = str(ROOT / name)
            yield entry | {"file": source, "command": entry["command"].replace(f" -c {batch}", f" -c {source}")}
