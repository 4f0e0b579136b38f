"""The tensors of a GGUF file under Hugging Face's names and in Hugging Face's order of rows."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import ModelLoadError
from engine.loader.gguf_file import GgufFile, TensorInfo
from engine.loader.gguf_quants import read_matrix, read_vector
from engine.loader.model_source import Progress
from engine.model_config import ModelConfig
from kernels.weights import Weight

_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Whose q and k rows llama.cpp's converter brings to the interleaved order.
_INTERLEAVED = ("LlamaForCausalLM", "MistralForCausalLM")
# Frequency factors are part of the configuration (RopeConfig).
_NOT_WEIGHTS = {"rope_freqs.weight"}


def read_weights(file: GgufFile, config: ModelConfig, progress: Progress | None) -> Iterator[tuple[str, Weight | torch.Tensor]]:
    """All weights, in the order in which they lie in the file. Raises ModelLoadError for a tensor that the model has no place for."""
    tensors = [tensor for tensor in file.tensors.values() if tensor.name not in _NOT_WEIGHTS]
    tensors.sort(key=lambda tensor: tensor.offset)
    total = sum(tensor.num_bytes for tensor in tensors)
    done = 0
    for tensor in tensors:
        yield hugging_face_name(file, tensor.name), _read(file, tensor, config)
        done += tensor.num_bytes
        if progress is not None:
            progress(done, total)
    if hasattr(mmap, "MADV_DONTNEED"):
        # Everything was copied: give the pages back, which would count as this process's memory for as long as the file is open.
        file.data.madvise(mmap.MADV_DONTNEED)


def hugging_face_name(file: GgufFile, name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _NAMES:
        return f"{_NAMES[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise ModelLoadError(f"{file.path} holds a tensor {name!r}, which this architecture has no place for")


def _read(file: GgufFile, tensor: TensorInfo, config: ModelConfig) -> Weight | torch.Tensor:
    num_dimensions, kind = len(tensor.shape), tensor.type
    if num_dimensions > 2 or (num_dimensions == 1 and kind.block_size > 1):
        raise ModelLoadError(
            f"{file.path}: a tensor of {num_dimensions} dimensions stored as {kind.name}, {tensor.name!r}, is not supported"
        )
    data = np.frombuffer(file.data, np.uint8, tensor.num_bytes, tensor.offset).reshape(tensor.shape[0], -1)
    order = _row_order(file, tensor, config)
    if order is not None:
        data = data[order]
    if num_dimensions == 1:
        return read_vector(data.reshape(-1), kind.name)
    return read_matrix(data, kind.name, tensor.shape[1])


def _row_order(file: GgufFile, tensor: TensorInfo, config: ModelConfig) -> NDArray[np.intp] | None:
    """For q and k: which row of the file stands at each row of the half-split form, [out_features].

    For Llama and Mistral, GGUF stores their rows for the interleaved form of rotary embedding, which rotates dimensions 2i and 2i + 1;
    Hugging Face, the kernels here, and GGUF for all others rotate i and i + rotary_dim / 2. Only whole rows move, so quantised groups
    stay as they are.
    """
    kind = tensor.name.split(".")[-2]
    if kind not in ("attn_q", "attn_k") or config.architecture not in _INTERLEAVED:
        return None
    num_heads = config.num_heads if kind == "attn_q" else config.num_kv_heads
    if tensor.shape[0] != num_heads * config.head_size:
        raise ModelLoadError(
            f"{file.path} is damaged: {tensor.name!r} has {tensor.shape[0]} rows, not {num_heads} heads of {config.head_size}"
        )
    rotary_dim = config.rope.rotary_dim
    within_head = np.arange(config.head_size)
    within_head[:rotary_dim] = np.arange(rotary_dim).reshape(-1, 2).T.reshape(-1)
    return (np.arange(num_heads)[:, np.newaxis] * config.head_size + within_head).reshape(-1)
