"""`hotswap serve` as a process, and `hotswap bench serve` as its load."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path


def write_shape(config: dict, folder: Path) -> None:
    """A folder for --random-weights: config.json, and a tokenizer of as many made-up words."""
    words = {f"w{i}": i for i in range(config["vocab_size"])}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    parts = {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], **parts, "model": model}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@contextlib.contextmanager
def serving(hotswap: Path, packages: Path, model: Path, *flags, **environment):
    """The server's address, from when it listens to the end of the block."""
    command = [hotswap, "serve", model, "--port", "0", *flags]
    environment = os.environ | {"HOTSWAP_PACKAGES": str(packages.resolve())} | environment
    server = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = server.stdout.readline()
        if not line.startswith("listening on "):
            sys.exit(f"expected `listening on URL` from `hotswap serve`; got {line!r}")
        yield line.split()[-1]
    finally:
        server.terminate()
        server.wait(60)


def load(hotswap: Path, url: str, **options) -> dict:
    """What `hotswap bench serve --url URL --option value ...` prints; an option of True is a flag."""
    command = [hotswap, "bench", "serve", "--url", url]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), *([] if value is True else [value])]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the load failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
