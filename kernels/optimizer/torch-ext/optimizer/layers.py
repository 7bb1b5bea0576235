"""No layer: an optimizer is none."""
