"""The argument structs of csrc/octavo.h, field by field, and the library's functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

WEIGHT_F32, WEIGHT_Q4, WEIGHT_Q8, WEIGHT_F16, WEIGHT_BF16 = 0, 1, 2, 3, 4
TILE = 16  # output features that are computed together
ROWS_TOKENS, ROWS_LOGITS = 0, 1
SILU, GELU_TANH = 0, 1
KV_F32, KV_F16, KV_BF16, KV_I8 = 0, 1, 2, 3
CODES_INT8, CODES_INT16 = 1, 2  # bytes of an activation's code


class Step(Structure):
    _fields_ = [
        ("num_tokens", c_int32),
        ("num_seqs", c_int32),
        ("num_logits", c_int32),
        ("max_query_len", c_int32),
        ("max_seq_len", c_int32),
        ("block_table_stride", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("query_start_loc", c_void_p),
        ("seq_lens", c_void_p),
        ("block_tables", c_void_p),
        ("logits_indices", c_void_p),
    ]


class Codes(Structure):
    """Activations as integers, with a scale per row and group."""

    _fields_ = [
        ("data", c_void_p),
        ("row_bytes", c_int64),
        ("features", c_int32),
        ("group_size", c_int32),
        ("code_bytes", c_int32),
    ]


class WeightStruct(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bias", c_void_p),
        ("form", c_int32),
        ("in_features", c_int32),
        ("out_features", c_int32),
        ("group_size", c_int32),
        ("scale_bytes", c_int32),
        ("has_mins", c_int32),
        ("group_bytes", c_int64),
    ]


class KvStruct(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("block_bytes", c_int64),
        ("element", c_int32),
        ("block_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("rotary_dim", c_int32),
        ("sliding_window", c_int32),
        ("scale", c_float),
    ]


class Args(Structure):
    """Arguments of one operation; `kind` is its number in the list."""

    kind = -1

    @classmethod
    def has(cls, name: str) -> bool:
        return any(field[0] == name for field in cls._fields_)


class EmbeddingArgs(Args):
    kind = 0
    _fields_ = [("table", POINTER(WeightStruct)), ("out", c_void_p)]


class NormArgs(Args):
    kind = 1
    _fields_ = [
        ("x", c_void_p),
        ("residual", c_void_p),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("codes", Codes),
        ("rows", c_int32),
        ("features", c_int32),
        ("eps", c_float),
    ]


class QuantizeArgs(Args):
    kind = 2
    _fields_ = [("x", c_void_p), ("codes", Codes), ("rows", c_int32)]


class LinearArgs(Args):
    kind = 3
    _fields_ = [("weight", POINTER(WeightStruct)), ("x", c_void_p), ("codes", Codes), ("out", c_void_p), ("rows", c_int32)]


class ActivationArgs(Args):
    kind = 4
    _fields_ = [
        ("gate_up", c_void_p),
        ("out", c_void_p),
        ("codes", Codes),
        ("rows", c_int32),
        ("features", c_int32),
        ("function", c_int32),
    ]


class RotaryArgs(Args):
    kind = 5
    _fields_ = [
        ("kv", KvStruct),
        ("qkv", c_void_p),
        ("cos_sin", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("cos_sin_stride", c_int32),
        ("norm_eps", c_float),
    ]


class AttentionArgs(Args):
    kind = 6
    _fields_ = [("kv", KvStruct), ("qkv", c_void_p), ("out", c_void_p), ("partials", c_void_p)]


class GatherArgs(Args):
    kind = 7
    _fields_ = [("x", c_void_p), ("indices", c_void_p), ("out", c_void_p), ("features", c_int32)]


class CopyBlocksArgs(Args):
    kind = 8
    _fields_ = [
        ("source", c_void_p),
        ("target", c_void_p),
        ("pairs", c_void_p),
        ("num_pairs", c_int64),
        ("source_stride_bytes", c_int64),
        ("target_stride_bytes", c_int64),
        ("block_bytes", c_int64),
    ]


class PackArgs(Args):
    kind = 9
    _fields_ = [("weight", POINTER(WeightStruct)), ("values", c_void_p), ("scales", c_void_p), ("mins", c_void_p), ("offset", c_int32)]


class SampleArgs(Args):
    kind = 10
    _fields_ = [
        ("logits", c_void_p),
        ("temperature", c_void_p),
        ("log_min_p", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("seeds", c_void_p),
        ("sample_indices", c_void_p),
        ("positions", c_void_p),
        ("out", c_void_p),
        ("num_rows", c_int32),
        ("vocab_size", c_int32),
    ]


class LogprobsArgs(Args):
    kind = 11
    _fields_ = [
        ("logits", c_void_p),
        ("token_ids", c_void_p),
        ("num_top", c_void_p),
        ("chosen", c_void_p),
        ("ranks", c_void_p),
        ("top_ids", c_void_p),
        ("top_ranks", c_void_p),
        ("top_values", c_void_p),
        ("num_rows", c_int32),
        ("vocab_size", c_int32),
        ("most", c_int32),
    ]


class Op(Structure):
    """One entry of the list that `octavo_run` walks: a kind and the address of its argument struct."""

    _fields_ = [("kind", c_int32), ("unused", c_int32), ("args", c_void_p)]


@cache
def load_library(path: Path) -> ctypes.CDLL:
    """The compiled kernels, with the types of their functions. Raises OSError if `path` is no library for this machine."""
    library = ctypes.CDLL(str(path))
    library.octavo_pool_create.argtypes = [c_int32]
    library.octavo_pool_create.restype = c_void_p
    library.octavo_pool_destroy.argtypes = [c_void_p]
    library.octavo_pool_destroy.restype = None
    library.octavo_pool_scratch_bytes.argtypes = [c_void_p]
    library.octavo_pool_scratch_bytes.restype = c_int64
    library.octavo_run.argtypes = [c_void_p, POINTER(Op), c_int32, POINTER(Step)]
    library.octavo_run.restype = None
    library.octavo_attention_partials_floats.argtypes = [POINTER(KvStruct), c_int32]
    library.octavo_attention_partials_floats.restype = c_int64
    return library
