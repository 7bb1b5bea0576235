"""Cross-entropy of logits, and of hidden @ weight^T without ever holding all logits."""

from . import _autograd, functional, layers  # noqa: F401  (_autograd: the ops' gradients)
from .functional import CrossEntropyOutput, cross_entropy, cross_entropy_, linear_cross_entropy

__all__ = ["CrossEntropyOutput", "cross_entropy", "cross_entropy_", "functional", "layers", "linear_cross_entropy"]
