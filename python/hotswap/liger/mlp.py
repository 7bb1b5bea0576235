"""Liger's names for gated MLPs and squared ReLU: its arguments, our ops."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotswap.core.packages import load

_mlp, _activation = load("mlp"), load("activation")


def liger_swiglu(a, b, gate_multiplier=1.0, down_multiplier=1.0):
    """silu(a * gate_multiplier) * b * down_multiplier"""
    y = _mlp.swiglu(a if gate_multiplier == 1 else a * gate_multiplier, b)
    return y if down_multiplier == 1 else y * down_multiplier


def liger_geglu(a, b):
    """gelu_tanh(a) * b"""
    return _mlp.geglu(a, b)


def liger_relu_squared(x):
    """relu(x)^2"""
    return _activation.relu_squared(x)


class LigerReLUSquared(nn.Module):
    def forward(self, x):
        return liger_relu_squared(x)


def _act_of(config):
    return getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)


class _GatedMLP(nn.Module):
    _activations: tuple

    def __init__(self, config, intermediate_size=None, bias=False):
        super().__init__()
        if (act := _act_of(config)) not in self._activations:
            wanted = ", ".join(self._activations)
            raise ValueError(f"{type(self).__name__}: expected hidden_act of {wanted}; got {act}; keep the model's own MLP")
        self.config, self.hidden_size = config, config.hidden_size
        self.intermediate_size = inner = intermediate_size or config.intermediate_size
        self.gate_proj = nn.Linear(self.hidden_size, inner, bias=bias)
        self.up_proj = nn.Linear(self.hidden_size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, self.hidden_size, bias=bias)


class LigerSwiGLUMLP(_GatedMLP):
    _activations = ("silu", "swish")
    forward = _mlp.layers.SwiGLUMLP.forward


LigerMLP = LigerQwen3MoeSwiGLUMLP = LigerSwiGLUMLPForMuseGlimmer = LigerSwiGLUMLP


class LigerHunyuanV1SwiGLUMLP(LigerSwiGLUMLP):
    def __init__(self, config, layer_idx=None, is_shared_mlp=False):
        super().__init__(config)
        self.layer_idx = layer_idx


class LigerFalconH1SwiGLUMLP(LigerSwiGLUMLP):
    """With a factor on the gate, and one on what comes out."""

    def __init__(self, config):
        super().__init__(config, bias=getattr(config, "mlp_bias", False))
        self.gate_multiplier, self.down_multiplier = (float(m) for m in config.mlp_multipliers)

    def forward(self, x):
        y = liger_swiglu(self.gate_proj(x), self.up_proj(x), self.gate_multiplier)
        return self.down_proj(y) * self.down_multiplier


LigerFalconH1MLP = LigerFalconH1SwiGLUMLP


class LigerGEGLUMLP(_GatedMLP):
    _activations = ("gelu_pytorch_tanh", "gelu_tanh")
    forward = _mlp.layers.GeGLUMLP.forward


class LigerGEGLUMLPForGemma4(LigerGEGLUMLP):
    """Twice as wide in the last layers, which share keys and values, where the config says so."""

    def __init__(self, config, layer_idx=None):
        shared = getattr(config, "num_kv_shared_layers", 0)
        first = getattr(config, "num_hidden_layers", 0) - shared
        wide = getattr(config, "use_double_wide_mlp", False) and shared > 0 and layer_idx is not None
        super().__init__(config, config.intermediate_size * (2 if wide and layer_idx >= first else 1))


class LigerPhi3SwiGLUMLP(nn.Module):
    """Gate and up in one projection."""

    def __init__(self, config):
        super().__init__()
        if _act_of(config) not in LigerSwiGLUMLP._activations:
            got = _act_of(config)
            raise ValueError(f"LigerPhi3SwiGLUMLP: expected hidden_act silu or swish; got {got}; keep the model's own MLP")
        self.config, self.hidden_size, self.intermediate_size = config, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return _mlp.layers.PackedSwiGLUMLP.forward(self, x)


class LigerBlockSparseTop2MLP(nn.Module):
    """An expert of Mixtral as transformers 4 has it."""

    def __init__(self, config):
        super().__init__()
        if _act_of(config) not in LigerSwiGLUMLP._activations:
            got = _act_of(config)
            raise ValueError(f"LigerBlockSparseTop2MLP: expected hidden_act silu or swish; got {got}; keep the model's own MLP")
        self.ffn_dim, self.hidden_dim = config.intermediate_size, config.hidden_size
        self.w1 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        self.w2 = nn.Linear(self.ffn_dim, self.hidden_dim, bias=False)
        self.w3 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)

    def forward(self, x):
        return self.w2(liger_swiglu(self.w1(x), self.w3(x)))


class LigerExperts(nn.Module):
    """The experts of a mixture, in the layout of transformers' own: called with what the router chose."""

    def __init__(self, config):
        super().__init__()
        if _act_of(config) not in LigerSwiGLUMLP._activations:
            got = _act_of(config)
            raise ValueError(f"LigerExperts: expected hidden_act silu or swish; got {got}; keep the model's own experts")
        self.num_experts = getattr(config, "num_experts", None) or config.num_local_experts
        self.hidden_dim = config.hidden_size
        self.intermediate_dim = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * self.intermediate_dim, self.hidden_dim))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, self.hidden_dim, self.intermediate_dim))

    forward = load("moe").layers.Experts.forward


def in_tiles(whole, x, shards):
    """whole(tile) over so many tiles of x [..., time, dim], one after the other; each is made again for its gradient."""
    tiles = x.chunk(max(1, shards), dim=-2)
    if not torch.is_grad_enabled():
        return torch.cat([whole(tile) for tile in tiles], dim=-2)
    return torch.cat([checkpoint(whole, tile, use_reentrant=False) for tile in tiles], dim=-2)


class _Tiled:
    """Of a long sequence only a tile's intermediate values live at once: each is made again for its gradient."""

    def __init__(self, config, num_shards=None):
        super().__init__(config)
        self.num_shards = num_shards

    def forward(self, x):
        whole = super().forward
        return in_tiles(whole, x, self.num_shards or -(-x.shape[-2] // self.hidden_size))


class LigerTiledSwiGLUMLP(_Tiled, LigerSwiGLUMLP):
    pass


class LigerTiledGEGLUMLP(_Tiled, LigerGEGLUMLP):
    pass
