"""Models from disk and from the hub: their shape, their vocabulary and their weights.

Importing this package, or resolving a model, does not import PyTorch.
"""

from engine.loader.source import DEFAULT_MODEL_NAME, ModelSource, Progress, resolve_model

__all__ = ["DEFAULT_MODEL_NAME", "ModelSource", "Progress", "resolve_model"]
