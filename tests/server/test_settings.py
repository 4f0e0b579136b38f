"""Flags over the settings file over the defaults."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from server.config import ServerConfig
from server.settings import all_settings, load_configs

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def _file(directory: Path, text: str) -> Path:
    path = directory / "settings.yaml"
    path.write_text(text)
    return path


def test_every_field_of_both_configs_is_a_setting_with_help() -> None:
    names = {field.name for config in (EngineConfig, ServerConfig) for field in dataclasses.fields(config)}
    assert set(all_settings()) == names
    assert all(setting.help for setting in all_settings().values())


def test_no_name_is_in_both_configs() -> None:
    engine, server = ({field.name for field in dataclasses.fields(config)} for config in (EngineConfig, ServerConfig))
    assert not engine & server


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    path = _file(tmp_path, "port: 9000\nmax-num-seqs: 7\nlog_format: json\n")
    engine, server = load_configs({"port": 9100}, path)
    assert (server.port, engine.max_num_seqs, server.log_format, server.host) == (9100, 7, "json", "127.0.0.1")


def test_sizes_take_suffixes_in_flags_and_files(tmp_path: Path) -> None:
    engine, server = load_configs({"kv_cache_memory": "512M"}, _file(tmp_path, "max_body_size: 1K\n"))
    assert engine.kv_cache_memory == 512 << 20
    assert server.max_body_size == 1024


def test_an_unknown_name_in_a_file_is_told_with_its_nearest_neighbour(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'max_num_seq'.*did you mean 'max_num_seqs'"):
        load_configs({}, _file(tmp_path, "max_num_seq: 7\n"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("port: eight", "port in .* must be a whole number"),
        ("port: true", "port in .* must be a whole number"),
        ("port: 70000", "port must be between 0 and 65535"),
        ("enable_prefix_caching: 1", "must be true or false"),
        ("device: gpu", "must be one of auto, cpu, cuda, but is 'gpu'"),
        ("log_format: jsn", "did you mean 'json'"),
        ("kv_cache_memory: lots", "write for example 512M"),
        ("grace_period: -1", "0 or more"),
        ("sse_keepalive: .nan", "0 or more"),
        ("served_model_name: [1, 2]", "a string or a list of strings"),
        ("- a list", "top level is a list"),
        ("host: [", "not valid YAML"),
    ],
)
def test_a_wrong_value_is_told_in_one_sentence(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_configs({}, _file(tmp_path, line + "\n"))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the settings"):
        load_configs({}, tmp_path / "none.yaml")


def test_one_name_or_several_may_be_served(tmp_path: Path) -> None:
    assert load_configs({}, _file(tmp_path, "served_model_name: one\n"))[1].served_model_name == ("one",)
    assert load_configs({"served_model_name": ["one", "two"]})[1].served_model_name == ("one", "two")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_settings_files_that_come_with_octavo_are_valid(path: Path) -> None:
    load_configs({}, path)
