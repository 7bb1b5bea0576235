"""The layer AdamW is the C++ host's: in Python the package has an optimizer."""

__all__ = []
