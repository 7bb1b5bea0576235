from torch import nn

from ._ops import ops


class SwiGLUMLP(nn.Module):
    """LlamaMLP with silu: the projections stay torch's, act(gate) * up is one op."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x)))


class GeGLUMLP(nn.Module):
    """As SwiGLUMLP with tanh's gelu (Gemma)."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return self.down_proj(ops.geglu(self.gate_proj(x), self.up_proj(x)))


class PackedSwiGLUMLP(nn.Module):
    """As SwiGLUMLP with gate and up in one projection (Phi-3); its halves are read where they lie."""

    gate_up_proj: nn.Module
    down_proj: nn.Module
    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states):
        return self.down_proj(ops.swiglu(*self.gate_up_proj(hidden_states).chunk(2, dim=-1)))


class PackedGeGLUMLP(nn.Module):
    gate_up_proj: nn.Module
    down_proj: nn.Module
    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states):
        return self.down_proj(ops.geglu(*self.gate_up_proj(hidden_states).chunk(2, dim=-1)))


LigerSwiGLUMLP = LigerTiledSwiGLUMLP = SwiGLUMLP
LigerGEGLUMLP = LigerTiledGEGLUMLP = GeGLUMLP
