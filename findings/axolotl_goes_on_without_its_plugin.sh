#!/usr/bin/env bash
# axolotl 0.19.0: a plugin of `plugins:` whose module is not found, or fails to import something, is logged as an error, and the run goes
# on without it: PluginManager.register catches ImportError. Keys of the YAML that only this plugin declares are then dropped.
# Natural guess: a name under `plugins:` that cannot be loaded ends the run, as a wrong value of any other key does; a run that finished
# used its plugins.
# Seen: register() of a plugin that does not exist returns, with a traceback on stderr, and the list of plugins is empty.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# without its dependencies: the newest versions that it pins, of what this file of it imports
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 transformers==5.16.1 peft==0.20.0 accelerate==1.13.0 addict colorama
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps axolotl==0.19.0
cat >"$folder/run.py" <<'PY'
import contextlib
import io
from axolotl.integrations.base import PluginManager

manager, shown = PluginManager.get_instance(), io.StringIO()
with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
    manager.register("no_such_package.Plugin")
seen = list(manager.plugins), shown.getvalue().strip().splitlines()[-1]
print(*seen)
assert seen == ([], "Error: No module named 'no_such_package'"), seen
PY
AXOLOTL_DO_NOT_TRACK=1 CUDA_VISIBLE_DEVICES='' "$folder/venv/bin/python" -W ignore "$folder/run.py"
