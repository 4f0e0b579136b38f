"""Small random checkpoints of real formats, written with the libraries that users write theirs with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def new_llama(seed: int = 0, **settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return _with_random_vectors(LlamaForCausalLM(LlamaConfig(**{**SHAPE, **settings})))


def new_mistral(seed: int = 0, **settings: Any) -> MistralForCausalLM:
    torch.manual_seed(seed)
    return MistralForCausalLM(MistralConfig(**{**SHAPE, **settings})).eval()


def new_qwen2(seed: int = 0, **settings: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    return _with_random_vectors(Qwen2ForCausalLM(Qwen2Config(**{**SHAPE, **settings})))


def new_qwen3(seed: int = 0, **settings: Any) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return _with_random_vectors(Qwen3ForCausalLM(Qwen3Config(**{**SHAPE, "head_dim": 32, **settings})))


def byte_level_vocabulary() -> list[str]:
    """Three special tokens, the 256 bytes, and two that are merged: 'Ġt' and 'he'."""
    return ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he"]


def save_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer that puts <s> in front of a text."""
    vocab = {token: index for index, token in enumerate(byte_level_vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "t"), ("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": null}')


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    matrix_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
    with_tokenizer: bool = True,
) -> Path:
    """A model as llama.cpp's converter writes it: its names, and Llama's q and k rows in the interleaved order. `edit` adds metadata."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_size)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    if with_tokenizer:
        _add_tokenizer(writer)
    if edit is not None:
        edit(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        module = name.split(".")[-2]
        if module in heads and config.model_type == "llama":
            values = interleaved(values, heads[module])
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 2 and matrix_type != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name, quantize(values, matrix_type), raw_dtype=matrix_type)
        else:
            writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """The permutation of llama.cpp's convert_hf_to_gguf.py (LlamaModel.permute)."""
    return rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


AnyModel = TypeVar("AnyModel", bound=PreTrainedModel)


def _with_random_vectors(model: AnyModel) -> AnyModel:
    """transformers begins with biases of zero and norms of q and k of one, which would hide that one is in the wrong place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_(std=0.02)
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.uniform_(0.5, 2.0)
    return model.eval()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = byte_level_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ t", "h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
