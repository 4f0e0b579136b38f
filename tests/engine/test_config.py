from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import GIB, EngineConfig, engine_setting_names, parse_bytes, read_settings
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, but is 0"),
        ({"max_num_batched_tokens": -5}, "max_num_batched_tokens must be at least 1, but is -5"),
        ({"max_num_partial_prefills": 0}, "max_num_partial_prefills must be at least 1, but is 0"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, but is -1"),
        ({"max_overtakings": -1}, "max_overtakings must be at least 0, but is -1"),
        ({"scheduling_policy": "random"}, "scheduling_policy must be one of priority, fcfs, fair, but is 'random'"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"num_threads": 0}, "num_threads must be at least 1"),
        ({"kv_cache_memory": 0}, "kv_cache_memory must be at least 1"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override must be at least 1"),
        ({"block_size": 0}, "block_size must be a power of two up to 256, but is 0"),
        ({"block_size": 24}, "block_size must be a power of two"),
        ({"block_size": 512}, "block_size must be a power of two"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization must be above 0"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization must be above 0 and at most 1, but is 1.1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization must be"),
        ({"dtype": "fp16"}, "dtype must be one of auto, float32, float16, bfloat16, but is 'fp16'"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype must be one of"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda, but is 'tpu'"),
        ({"step_timeout": 0.0}, "step_timeout must be a number of seconds above 0"),
        ({"swap_space": -1}, "swap_space must be at least 0"),
        ({"preemption_mode": "drop"}, "preemption_mode must be one of auto, swap, recompute"),
        ({"kernels": "fast"}, "kernels must be one of"),
        ({"load_format": "pt"}, "load_format must be one of"),
        ({"quantization": "awq"}, "quantization must be one of"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_its_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)


def test_the_defaults_are_in_range_and_every_setting_is_explained() -> None:
    config = EngineConfig()
    fields = config.__dataclass_fields__
    assert engine_setting_names() == set(fields)
    assert all(field.metadata["help"] for field in fields.values())


@pytest.mark.parametrize(
    ("settings", "token_budget", "seq_budget"),
    [
        ({}, 256, 128),
        ({"device": "cpu"}, 256, 128),
        ({"device": "cuda"}, 8192, 256),
        ({"max_num_batched_tokens": 1000}, 1000, 256),
        ({"max_num_batched_tokens": 1}, 1, 1),
        ({"max_num_seqs": 200}, 256, 200),
        ({"max_num_seqs": 300}, 256, 256),
        ({"max_num_seqs": 16, "max_num_batched_tokens": 8}, 8, 8),
    ],
)
def test_every_running_sequence_is_sure_of_its_token_in_each_step(settings: dict[str, Any], token_budget: int, seq_budget: int) -> None:
    config = EngineConfig(**settings)
    assert (config.token_budget, config.seq_budget) == (token_budget, seq_budget)
    assert config.seq_budget <= config.token_budget


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", 512),
        (4096, 4096),
        ("100B", 100),
        ("2k", 2048),
        ("512M", 512 << 20),
        ("512MB", 512 << 20),
        ("512MiB", 512 << 20),
        ("4G", 4 * GIB),
        (" 1.5 GiB ", int(1.5 * GIB)),
        ("1T", 1 << 40),
    ],
)
def test_a_number_of_bytes_may_have_a_suffix(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "G", "four", "4X", "1e999", "nan", "4GG", "--1"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no number of bytes: write for example 512M or 4G"):
        parse_bytes(text)


def test_settings_are_read_from_yaml_with_dashes_or_underscores(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("max-model-len: 2048\nblock_size: 32\ndtype: float32\n")
    assert read_settings(path) == {"max_model_len": 2048, "block_size": 32, "dtype": "float32"}
    path.write_text("# nothing\n")
    assert read_settings(path) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a: [1", "is not valid YAML"), (b"- a\n- b\n", "top level is a list"), (b"\xff\xfe\x00", "cannot read|not valid")],
)
def test_a_settings_file_that_cannot_be_read_as_such_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_settings(path)


def test_a_settings_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*nowhere\.yaml"):
        read_settings(tmp_path / "nowhere.yaml")
