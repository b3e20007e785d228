"""Models: from config.json to layers, tensors, parameters and cache."""

from calculator.model.read import read

__all__ = ["read"]
