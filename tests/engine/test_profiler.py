from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.profiler import Profiler
from octavo import LLM, SamplingParams


def test_a_profile_of_some_steps_is_a_trace_in_the_directory(tmp_path: Path) -> None:
    llm = LLM(profile_dir=str(tmp_path / "profiles"), kernels="reference", max_model_len=128, kv_cache_memory=32 << 20)
    llm.engine.call("start_profile")
    with pytest.raises(RuntimeError, match="already"):
        llm.engine.call("start_profile")
    llm.generate("Hello", SamplingParams(max_tokens=2))
    path = Path(llm.engine.call("stop_profile"))
    assert path.parent == tmp_path / "profiles"
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert "aten::mul" in names
    with pytest.raises(RuntimeError, match="start one first"):
        llm.engine.call("stop_profile")


def test_without_a_directory_there_are_no_profiles() -> None:
    with pytest.raises(RuntimeError, match="--profile-dir"):
        Profiler(None).start()
