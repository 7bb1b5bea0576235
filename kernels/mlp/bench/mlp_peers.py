"""Gated MLPs on a GPU beside torch, torch.compile, transformers and Liger; bench/peers.py runs it."""

from bench.lib.gates import gates


def run(c):
    gates(c, "mlp", {"swiglu": ("silu", "LigerSiLUMulFunction"), "geglu": ("gelu_pytorch_tanh", "LigerGELUMulFunction")}, joined=False)
