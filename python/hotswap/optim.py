"""Optimizers whose update is a kernel. The class is the package's own."""

from hotswap.core.packages import load

AdamW = load("optimizer").AdamW
