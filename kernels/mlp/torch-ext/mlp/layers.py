from torch import nn

from . import _package
from ._package import ops
from .whole import gated_mlp


class SwiGLUMLP(_package.Layer):
    """LlamaMLP with silu: the products stay torch's, act(gate) * up is one op."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x):
        return gated_mlp(self, x, "swiglu")


class GeGLUMLP(_package.Layer):
    """As SwiGLUMLP with tanh's gelu (Gemma)."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x):
        return gated_mlp(self, x, "geglu")


class PackedSwiGLUMLP(_package.Layer):
    """As SwiGLUMLP with gate and up in one projection (Phi-3); its halves are read where they lie."""

    gate_up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, hidden_states):
        return self.down_proj(ops.swiglu(*self.gate_up_proj(hidden_states).chunk(2, dim=-1)))


class PackedGeGLUMLP(_package.Layer):
    gate_up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, hidden_states):
        return self.down_proj(ops.geglu(*self.gate_up_proj(hidden_states).chunk(2, dim=-1)))


class _Packing:
    """Whoever reads it is transformers, loading a checkpoint; nothing else of this package needs transformers."""

    def __get__(self, instance, owner):
        from transformers.core_model_loading import Concatenate, WeightConverter

        return [
            WeightConverter(
                [f"mlp.gate_proj.{kind}", f"mlp.up_proj.{kind}"], f"mlp.gate_up_proj.{kind}", operations=[Concatenate(dim=0)]
            )
            for kind in ("weight", "bias")
        ]


class PackedSwiGLUMLPLayout(nn.Module):
    """In place of a family's MLP class, KernelConfig({"LlamaMLP": "...:PackedSwiGLUMLP"}): one projection for gate and up,
    packed as the checkpoint is loaded, apart again as it is saved."""

    conversion_mapping = _Packing()
    activations = ("silu", "swish")
    act_class = nn.SiLU

    def __init__(self, config):
        super().__init__()
        act = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
        if act not in self.activations:
            raise ValueError(
                f"{type(self).__name__}: expected hidden_act of {', '.join(self.activations)}; got {act}; "
                "leave this family out of the kernel config"
            )
        hidden, inner, bias = config.hidden_size, config.intermediate_size, getattr(config, "mlp_bias", False)
        self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)
        self.act_fn = self.act_class()

    def forward(self, hidden_states):  # until a kernel is bound
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(self.act_fn(gate) * up)


class _GeluTanh(nn.GELU):
    def __init__(self):
        super().__init__(approximate="tanh")


class PackedGeGLUMLPLayout(PackedSwiGLUMLPLayout):
    activations = ("gelu_pytorch_tanh", "gelu_tanh")
    act_class = _GeluTanh
    forward = PackedSwiGLUMLPLayout.forward  # transformers looks for it in this very class


LigerSwiGLUMLP = LigerTiledSwiGLUMLP = SwiGLUMLP
LigerGEGLUMLP = LigerTiledGEGLUMLP = GeGLUMLP
