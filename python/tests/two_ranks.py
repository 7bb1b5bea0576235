"""Runs a script in two processes that know each other."""

import os
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


def leave() -> None:
    """Ends a rank's process. A thread of gloo may still hold the last collective's tensors: it lets go of them under the
    interpreter's lock, and where the interpreter is shutting down that ends in std::terminate (torch 2.11: in one of ten
    runs on a busy machine)."""
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
