"""Models from the Hugging Face hub, downloaded once into its cache."""

from __future__ import annotations

import re
from pathlib import Path

from engine.errors import ModelLoadError

# Never *.bin or *.pt: pickle runs code when it is read. consolidated.safetensors is a second copy in another layout.
_SMALL_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "chat_template.jinja",
]
_WEIGHT_FILES = ["model*.safetensors", "model.safetensors.index.json"]
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w./-]+\.gguf)?")


def looks_like_hub_id(model: str) -> bool:
    """Whether a name has the form `org/name` or `name`, perhaps with `:file.gguf` after it."""
    return _HUB_ID.fullmatch(model) is not None and not model.startswith((".", "-"))


def download(model: str, revision: str | None, with_weights: bool) -> Path:
    """Where the files of a hub model lie, after downloading those that the cache lacks; HF_HUB_OFFLINE=1 forbids that.

    Raises ModelLoadError when the model cannot be found or reached.
    """
    import huggingface_hub
    from huggingface_hub import errors

    repository, _, file_name = model.partition(":")
    try:
        if file_name:
            return Path(huggingface_hub.hf_hub_download(repository, file_name, revision=revision))
        patterns = [*_SMALL_FILES, *(_WEIGHT_FILES if with_weights else [])]
        directory = Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except (errors.HFValidationError, ValueError) as error:
        raise ModelLoadError(f"{model!r} is neither a file nor a directory, nor the id of a model on the hub: {error}") from error
    except errors.GatedRepoError as error:
        raise ModelLoadError(f"{repository} is gated: accept its terms on the hub and log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"{model!r} is neither a file nor a directory here, nor a model on the hub that you have access to: check the spelling"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelLoadError(f"{repository} has no revision {revision!r} on the hub") from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelLoadError(
            f"{model!r} is neither a file nor a directory here, and the hub cannot be reached to look for it there: "
            "check the path, or the connection and HF_HUB_OFFLINE"
        ) from error
    except errors.EntryNotFoundError as error:
        raise ModelLoadError(f"{repository} has no file {file_name!r} on the hub") from error
    except Exception as error:  # whatever the connection may raise
        raise ModelLoadError(f"{model!r} could not be downloaded from the hub: {error}") from error
    if not (directory / "config.json").is_file():
        raise ModelLoadError(f"{repository} has no config.json on the hub: if it holds GGUF files, name one as {repository}:FILE.gguf")
    return directory
