"""HOTSWAP_TEST_DEVICE=cuda, or cuda:1: every tensor and model of these tests on that device. The current GPU stays the first."""

import os

import torch

if device := os.environ.get("HOTSWAP_TEST_DEVICE"):
    torch.set_default_device(device)
    torch.backends.cudnn.allow_tf32 = False  # on unless told otherwise: convolutions of 10 bits choose other queries, run for run
