"""Which device the model runs on."""

from __future__ import annotations

import dataclasses

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError


def resolve_device(config: EngineConfig) -> EngineConfig:
    """The settings with `device` decided: auto is CUDA where there is one. Raises ConfigError when cuda is asked for and there is none."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but PyTorch finds no CUDA device: use --device cpu, or check the driver and the PyTorch build")
    if config.device == "auto":
        return dataclasses.replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    return config
