import torch
from torch import nn

from . import _package
from ._experts import experts


def _with_weights(experts):
    """Who reads an experts module's parameters goes around whatever is wrapped around it."""
    if not hasattr(experts, "gate_up_proj"):
        raise RuntimeError(
            f"expected experts that hold their weights themselves; got {type(experts).__name__} around them (adapters?); keep "
            "the model's own layer here, with hotswap.kernelize after the adapters are in, or with its experts=False"
        )
    return experts


class Experts(_package.Layer):
    """An experts class of transformers with silu(gate) up: called with what the router chose."""

    gate_up_proj: torch.Tensor
    down_proj: torch.Tensor

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return experts(hidden_states, top_k_index, top_k_weights, self.gate_up_proj, None, self.down_proj, None)


class MegaBlocksMoeMLP(_package.Layer):
    """GptOssMLP. The router is called as a module: its outputs are recorded, the auxiliary loss is made of them."""

    router: nn.Module
    experts: nn.Module

    def forward(self, hidden_states):
        e, shape = _with_weights(self.experts), hidden_states.shape
        x = hidden_states.reshape(-1, shape[-1])
        _, scores, index = self.router(x)
        weights = e.gate_up_proj, e.gate_up_proj_bias, e.down_proj, e.down_proj_bias
        y = experts(x, index, scores, *weights, "swiglu_oai", e.alpha, e.limit, interleaved=True, transposed=True)
        return y.reshape(shape), scores


CPUMegaBlocksMoeMLP = MegaBlocksMoeMLP

HOST_ALONE = ("PackedExperts",)  # layers of the C++ host that no layer of Python's is


class Llama4TextMoe(_package.Layer):
    """Scores multiply the experts' input. The router gives those of all experts, 0 where it did not choose one."""

    router: nn.Module
    experts: nn.Module
    shared_expert: nn.Module
    top_k: int

    def forward(self, hidden_states):
        e, x = _with_weights(self.experts), hidden_states.reshape(-1, hidden_states.shape[-1])
        router_scores, router_logits = self.router(x)
        scores, index = torch.topk(router_scores, self.top_k, dim=-1)
        out = self.shared_expert(x)
        y = experts(x, index, scores, e.gate_up_proj, None, e.down_proj, None, transposed=True, scale_input=True)
        return out + y, router_logits
