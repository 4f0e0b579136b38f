from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from small_models import new_llama, save_tokenizer, write_gguf

from engine.errors import ModelLoadError
from engine.loader import resolve_model
from engine.loader.hub import looks_like_hub_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache on this machine, with no way to the hub itself."""
    directory = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(directory))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return directory


def snapshot(cache: Path, repository: str) -> Path:
    """A directory of the cache that holds what was once downloaded from a repository."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    directory = folder / "snapshots" / COMMIT
    directory.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return directory


def test_a_model_in_the_cache_is_found_by_its_hub_id_without_a_connection(cache: Path) -> None:
    directory = snapshot(cache, "someone/small-llama")
    new_llama().save_pretrained(directory)
    save_tokenizer(directory)
    source = resolve_model("someone/small-llama")
    assert source.name == "someone/small-llama"
    assert source.path == directory
    assert source.config().architecture == "LlamaForCausalLM"
    assert len(dict(source.weights())) == len(new_llama().state_dict())
    assert resolve_model("someone/small-llama", revision=COMMIT).path == directory


def test_one_gguf_file_of_a_repository_is_named_after_a_colon(cache: Path) -> None:
    directory = snapshot(cache, "someone/ggufs")
    write_gguf(directory / "small-Q8_0.gguf", new_llama())
    source = resolve_model("someone/ggufs:small-Q8_0.gguf")
    assert source.path.name == "small-Q8_0.gguf"
    assert source.config().num_layers == 2


def test_a_repository_of_gguf_files_asks_for_one(cache: Path) -> None:
    write_gguf(snapshot(cache, "someone/ggufs") / "a.gguf", new_llama())
    with pytest.raises(ModelLoadError, match=r"no config\.json on the hub: if it holds GGUF files, name one as someone/ggufs:FILE\.gguf"):
        resolve_model("someone/ggufs")


@pytest.mark.parametrize("name", ["no/such-model", "mistyped-directory", "no/such-model:file.gguf"])
def test_what_is_neither_here_nor_reachable_says_both(cache: Path, name: str) -> None:
    with pytest.raises(ModelLoadError, match="neither a file nor a directory here, and the hub cannot be reached"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["org/name", "name", "org/name.v2-x_y", "org/name:dir/file.gguf"])
def test_hub_ids_are_recognised(name: str) -> None:
    assert looks_like_hub_id(name)


@pytest.mark.parametrize("name", ["/abs/path", "./here", "../there", "a/b/c", "a b", "", "org/name:file.bin", "~/model"])
def test_what_cannot_be_a_hub_id_is_never_asked_for(name: str) -> None:
    assert not looks_like_hub_id(name)


def test_the_offline_switch_of_the_environment_is_respected(tmp_path: Path) -> None:
    script = (
        "from engine.loader import resolve_model\n"
        "from engine.errors import ModelLoadError\n"
        "try: resolve_model('no/such-model')\n"
        "except ModelLoadError as error: print(error)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": shutil.which("env") or ""}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert "the hub cannot be reached" in result.stdout
