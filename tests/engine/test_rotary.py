from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.errors import ModelLoadError
from engine.layers.rotary import SCALINGS, build_cos_sin
from engine.model_config import RopeConfig

HEAD_SIZE = 32
MAX_POSITIONS = 512  # what the engine serves

# (kind, its parameters, the checkpoint's context length)
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("default", {}, 512),
    ("linear", {"factor": 4.0}, 512),
    ("dynamic", {"factor": 2.0}, 128),
    ("dynamic", {"factor": 2.0}, 512),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 128}, 512),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16, "beta_slow": 2, "truncate": False}, 512),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.25}, 512),
    ("yarn", {"factor": 40.0, "original_max_position_embeddings": 128, "mscale": 1.0, "mscale_all_dim": 0.707}, 5120),
    (
        "longrope",
        {
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "short_factor": [1.0 + 0.01 * i for i in range(16)],
            "long_factor": [1.0 + 0.5 * i for i in range(16)],
        },
        512,
    ),
    (
        "longrope",
        {
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "short_factor": [1.0 + 0.01 * i for i in range(16)],
            "long_factor": [1.0 + 0.5 * i for i in range(16)],
        },
        2048,
    ),
    ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}, 1024),
]


def transformers_config(kind: str, parameters: dict[str, Any], context: int, theta: float) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD_SIZE,
        num_attention_heads=4,
        max_position_embeddings=context,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **parameters},
    )


@pytest.mark.parametrize(("kind", "parameters", "context"), CASES)
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_every_scaling_turns_as_transformers_does_for_a_sequence_of_the_longest_length(
    kind: str, parameters: dict[str, Any], context: int, theta: float
) -> None:
    table = build_cos_sin(RopeConfig(theta, HEAD_SIZE, kind, parameters), MAX_POSITIONS, context)
    assert table.shape == (MAX_POSITIONS, HEAD_SIZE)
    assert table.dtype == torch.float32
    embedding = LlamaRotaryEmbedding(transformers_config(kind, parameters, context, theta))
    positions = torch.arange(MAX_POSITIONS).unsqueeze(0)
    cos, sin = embedding(torch.zeros(1, MAX_POSITIONS, HEAD_SIZE), positions)
    half = HEAD_SIZE // 2
    # Angles reach 512 radians: a last bit of the frequency is worth 3e-5 there.
    torch.testing.assert_close(table[:, :half], cos[0, :, :half], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(table[:, half:], sin[0, :, :half], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "parameters", "context"), [case for case in CASES if case[0] != "default"])
def test_frequencies_and_attention_factor_are_those_of_transformers(kind: str, parameters: dict[str, Any], context: int) -> None:
    config = transformers_config(kind, parameters, context, 10_000.0)
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=MAX_POSITIONS)
    frequencies, factor = SCALINGS[kind](RopeConfig(10_000.0, HEAD_SIZE, kind, parameters), MAX_POSITIONS, context)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_every_scaling_that_transformers_knows_for_whole_models_is_known() -> None:
    assert set(SCALINGS) >= set(ROPE_INIT_FUNCTIONS) - {"proportional"}


def test_a_rotation_depends_on_the_position_alone_for_scalings_without_a_length() -> None:
    for kind, parameters, context in CASES:
        if kind not in ("dynamic", "longrope"):
            rope = RopeConfig(10_000.0, HEAD_SIZE, kind, parameters)
            assert torch.equal(build_cos_sin(rope, 100, context), build_cos_sin(rope, 512, context)[:100]), kind


def test_a_gguf_divisor_per_frequency_is_applied() -> None:
    divisors = [1.0] * 8 + [8.0] * 8
    plain = build_cos_sin(RopeConfig(10_000.0, HEAD_SIZE), 65, 512)
    scaled = build_cos_sin(RopeConfig(10_000.0, HEAD_SIZE, "default", {"freq_factors": divisors}), 65, 512)
    torch.testing.assert_close(scaled[:, :8], plain[:, :8])
    torch.testing.assert_close(scaled[::8, 8:16], plain[:9, 8:16], rtol=1e-5, atol=1e-5)


def test_only_the_leading_part_of_a_head_may_be_rotated() -> None:
    assert build_cos_sin(RopeConfig(10_000.0, 8), 10, 512).shape == (10, 8)


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("spiral", {}, "RoPE scaling 'spiral' is not supported; supported are default, dynamic"),
        ("linear", {}, "'linear' needs the parameter 'factor'"),
        ("llama3", {"factor": 8.0}, "'llama3' needs the parameter 'original_max_position_embeddings'"),
        ("longrope", {"long_factor": [1.0]}, "'longrope' needs the parameter 'short_factor'"),
        ("longrope", {"short_factor": [1.0]}, "1 factors for 16 frequencies"),
    ],
)
def test_a_scaling_that_cannot_be_computed_is_refused(kind: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        build_cos_sin(RopeConfig(10_000.0, HEAD_SIZE, kind, parameters), 64, 64)
