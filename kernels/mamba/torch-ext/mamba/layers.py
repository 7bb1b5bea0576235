"""The functions of transformers' state-space models."""

__all__ = []
