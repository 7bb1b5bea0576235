"""No layer of transformers has this shape by itself: hotswap.generate binds the op to a model's decoder layers."""

__all__ = []
