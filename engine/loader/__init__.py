"""Models from disk and from the hub: their shape, their vocabulary and their weights.

Importing this package, or resolving a model, does not import PyTorch.
"""

from engine.loader.model_source import ModelSource, Progress
from engine.loader.resolve import DEFAULT_MODEL_NAME, resolve_model

__all__ = ["DEFAULT_MODEL_NAME", "ModelSource", "Progress", "resolve_model"]
