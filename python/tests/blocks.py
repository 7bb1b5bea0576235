"""Runs pieces of code as scripts of their own: each in a fork of one process that has imported what takes long."""

import os
import re
import subprocess
import sys

DRIVER = """
import os, sys, traceback
from transformers import Trainer  # and all that it brings
for i, part in enumerate(parts):
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        torch.set_num_threads(1)
        status = 1
        try:
            print("BLOCK", i, flush=True)
            exec(compile(part, f"block {i}", "exec"), {"__name__": "block"})
            status = 0
        except BaseException:
            print("FAILED", traceback.format_exc())
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.waitpid(pid, 0)
"""


def inside(block: str) -> str:
    """The block one level deeper."""
    return "".join(f"    {line}\n" if line else "\n" for line in block.split("\n"))


def run(parts: list[str], before: str, *arguments, **environment) -> list[str]:
    """What each part printed, "FAILED" and the traceback where it raised. `before` runs once, ahead of the forks."""
    driver = f"import torch, accelerate, kernels\nparts = {parts!r}\n{before}\n{DRIVER}"
    command = [sys.executable, "-W", "ignore", "-c", driver, *arguments]
    around = dict(os.environ, OMP_NUM_THREADS="1") | environment
    done = subprocess.run(command, capture_output=True, text=True, env=around)
    assert done.returncode == 0, done.stderr[-3000:]
    return re.split(r"BLOCK \d+\n", done.stdout)[1:]
