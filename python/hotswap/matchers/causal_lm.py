"""The loss of a causal language model as a matcher. What computes it, loss.py, imports transformers and a package: only models of
transformers bring it."""

from torch import nn

from hotswap.core.matcher import Matcher
from hotswap.core.replacement import class_of

LOSS = "ForCausalLMLoss"


def _loss():
    from hotswap.matchers import loss

    return loss


class CausalLmLoss(Matcher):
    options = {"cross_entropy": True, "fused_linear_cross_entropy": False}

    def match(self, module):
        if not isinstance(getattr(class_of(module), "loss_function", None), property):
            return []
        from transformers.loss import loss_utils

        if loss_utils.LOSS_MAPPING.get(getattr(module, "loss_type", None)) is not loss_utils.ForCausalLMLoss:
            return []
        return _loss().replacements(module)

    def stand_in(self, module, layer_class):
        """In the position of the function that the model's forward calls."""
        own = self.match(module)[0]
        return dict(forward=layer_class(), attribute=own.attribute, why_not=own.why_not)


def head_of(model: nn.Module):
    """The linear layer that gives a model's logits; None where it has none."""
    return _loss().head_of(model)


def heads(module: nn.Module) -> list:
    """What the head of a model may be bound to, with its model."""
    return [_loss().HEAD] if isinstance(module, nn.Linear) else []
