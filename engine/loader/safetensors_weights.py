"""The tensors of safetensors files, which are memory-mapped: only what is asked for is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import safetensors
import torch

from engine.errors import ModelLoadError
from engine.loader.lfs_pointer import refuse_lfs_pointer
from engine.loader.model_source import Progress
from engine.model_config import ModelConfig
from kernels.weights import DenseWeight, Weight

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def read_weights(files: list[Path], config: ModelConfig, progress: Progress | None) -> Iterator[tuple[str, Weight | torch.Tensor]]:
    """All weights, file by file. Raises ModelLoadError when a file is damaged, or a tensor is of a type that is not supported."""
    total = sum(file.stat().st_size for file in files)
    done = 0
    for file in files:
        refuse_lfs_pointer(file)
        try:
            with safetensors.safe_open(str(file), framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  it is no dictionary
                    if not _is_weight(name, config):
                        continue
                    tensor = opened.get_tensor(name)
                    yield name, _checked(file, name, tensor)
                    done += tensor.nbytes
                    if progress is not None:
                        progress(min(done, total), total)
        except (safetensors.SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file} is damaged or cut short ({error}): download it again") from error
    if progress is not None:
        progress(total, total)


def _is_weight(name: str, config: ModelConfig) -> bool:
    """Leaves out what the model computes itself: old checkpoints store rotary frequencies, and tied output layers twice."""
    if name.endswith(".rotary_emb.inv_freq"):
        return False
    return not (config.tie_word_embeddings and name == "lm_head.weight")


def _checked(file: Path, name: str, tensor: torch.Tensor) -> Weight | torch.Tensor:
    if tensor.dtype not in _DTYPES:
        stored = str(tensor.dtype).removeprefix("torch.")
        raise ModelLoadError(f"{file}: tensor {name!r} is stored as {stored}; supported are float32, float16 and bfloat16")
    if tensor.dim() == 2:
        return DenseWeight(tensor)
    if tensor.dim() == 1:
        return tensor
    raise ModelLoadError(f"{file}: tensor {name!r} has {tensor.dim()} dimensions, but a weight has one or two")
