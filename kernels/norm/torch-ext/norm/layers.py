import torch

from . import _package
from ._package import ops

# transformers gives one kernel name, RMSNorm, to two formulas: weight * n.to(dtype) and, in these classes, (weight * n).to(dtype).
WEIGHT_BEFORE_CAST = frozenset(
    {
        "AfmoeRMSNorm",
        "FlexOlmoRMSNorm",
        "GptOssRMSNorm",
        "Olmo2RMSNorm",
        "Olmo3RMSNorm",
        "OlmoHybridRMSNorm",
        "OpenAIPrivacyFilterRMSNorm",
    }
)


def _rms_norm(x, weight, eps, offset, casting):
    """By the op that saves nothing, where no gradient will be asked for."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return ops.rms_norm_fwd(x, weight, eps, offset, casting)[0]
    return ops.rms_norm(x, weight, eps, offset, casting)


class RMSNorm(_package.Layer):
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states):
        casting = "gemma" if type(self).__name__ in WEIGHT_BEFORE_CAST else "llama"
        return _rms_norm(hidden_states, self.weight, self.variance_epsilon, 0.0, casting)


LigerRMSNorm = RMSNorm


class RMSNormCastLast(_package.Layer):
    """(weight * n).to(dtype), all in float32, whatever the class is called."""

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states):
        return _rms_norm(hidden_states, self.weight, self.variance_epsilon, 0.0, "gemma")


class RMSNormEps(_package.Layer):
    """weight * n.to(dtype), of a class that calls its epsilon eps."""

    weight: torch.Tensor
    eps: float

    def forward(self, hidden_states):
        return _rms_norm(hidden_states, self.weight, self.eps, 0.0, "llama")


class RMSNormCastLastEps(_package.Layer):
    """(weight * n).to(dtype), of a class that calls its epsilon eps."""

    weight: torch.Tensor
    eps: float

    def forward(self, hidden_states):
        return _rms_norm(hidden_states, self.weight, self.eps, 0.0, "gemma")


class RMSNormZeroCentered(_package.Layer):
    """Scales by 1 + weight, all in float32 (Gemma, Qwen3.5)."""

    weight: torch.Tensor
    eps: float

    def forward(self, x):
        return _rms_norm(x, self.weight, self.eps, 1.0, "gemma")


def ones_of(x):
    """The weight of a norm that has none: a row of numbers beside the rows of x."""
    return x.new_ones(x.shape[-1])


class RMSNormUnweighted(_package.Layer):
    """Without a weight (Gemma 4's values, Llama 4's queries and keys)."""

    eps: float

    def forward(self, x):
        return _rms_norm(x, ones_of(x), self.eps, 0.0, "gemma")


class AddRMSNorm(_package.Layer):
    """(RMSNorm(h), h) with h = hidden_states + residual."""

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states, residual):
        return ops.add_rms_norm_fwd(hidden_states, residual, self.weight, self.variance_epsilon, 0.0, "llama")[:2]


def _layer_norm(x, weight, bias, eps):
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return ops.layer_norm_fwd(x, weight, bias, eps)[0]
    return ops.layer_norm(x, weight, bias, eps)


class LayerNorm(_package.Layer):
    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def forward(self, input):
        return _layer_norm(input, self.weight, self.bias, self.eps)


class LayerNormZeroCentered(_package.Layer):
    """Scales by 1 + weight (Nemotron), added in the weight's own type."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def forward(self, input):
        return _layer_norm(input, self.weight + 1, self.bias, self.eps)
