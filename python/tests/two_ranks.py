"""Runs a script in two processes that know each other."""

import subprocess
import sys

import pytest
import torch


def run(*command) -> str:
    """What it printed."""
    if not torch.distributed.is_available():
        pytest.skip("torch.distributed is not in this torch")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    done = subprocess.run(launch, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
