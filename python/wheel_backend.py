"""What pip calls to build the wheel: scikit-build-core, told which torch to compile against and which Python runs it.

The kernels need torch's headers, and pip builds in an environment of its own that sees no package of the one around it. A
torch is several GB, so the one that this Python has already serves; only where it has none is one asked for. Any torch >=
2.10 does: what is built uses torch's stable ABI alone.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Optional

from scikit_build_core import build as wheel

OLDEST = (2, 10)
FIND = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
GIVEN = "cmake.define.HOTSWAP_TORCH_DIR"


def _new_enough(folder: Path) -> bool:
    version = folder / "version.py"  # read, not imported: that takes seconds
    found = re.search(r"^__version__ = '(\d+)\.(\d+)", version.read_text(), re.MULTILINE) if version.is_file() else None
    return found is not None and tuple(map(int, found.groups())) >= OLDEST


def _around() -> Optional[Path]:
    """The torch of the Python that runs pip, asked without the variables by which pip hides it."""
    plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    found = subprocess.run([sys.executable, "-c", FIND], env=plain, cwd=os.sep, capture_output=True, text=True)
    return Path(found.stdout.strip()) if found.returncode == 0 and found.stdout.strip() else None


def torch_folder() -> Optional[Path]:
    """The folder of a torch that is new enough, of this environment or of the one around it."""
    spec = importlib.util.find_spec("torch")
    here = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    return next((folder for folder in (here, _around()) if folder and _new_enough(folder)), None)


def get_requires_for_build_wheel(config_settings=None):
    wanted = wheel.get_requires_for_build_wheel(config_settings)
    if GIVEN in (config_settings or {}) or torch_folder():
        return wanted
    return [*wanted, f"torch>={OLDEST[0]}.{OLDEST[1]}"]


prepare_metadata_for_build_wheel = wheel.prepare_metadata_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = {"cmake.define.HOTSWAP_PYTHON": sys.executable, **(config_settings or {})}
    if GIVEN not in settings and (folder := torch_folder()):
        settings[GIVEN] = str(folder)
    return wheel.build_wheel(wheel_directory, settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("expected a wheel: the kernels' sources lie outside of python/, in the repository; build with --wheel")
