"""A model in a directory as Hugging Face lays it out: config.json, tokenizer.json, *.safetensors."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelLoadError
from engine.loader.fingerprint import fingerprint_file
from engine.loader.hf_config import read_config, read_generation_config
from engine.loader.json_file import read_json
from engine.loader.lfs_pointer import refuse_lfs_pointer
from engine.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

    from engine.loader.model_source import Progress
    from engine.tokenizer import Tokenizer
    from kernels.weights import Weight

# Sampling settings of generation_config.json that have the same name and meaning in SamplingParams.
_GENERATION_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# Checkpoints of embedding models leave out the name of the part that they are.
_BARE = ("embed_tokens.", "layers.", "norm.")
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class HuggingFaceSource:
    """The ModelSource of a directory with a config.json."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    def config(self) -> ModelConfig:
        return read_config(self.path)

    def tokenizer(self) -> Tokenizer:
        from engine.tokenizer import load_tokenizer

        refuse_lfs_pointer(self.path / "tokenizer.json")
        return load_tokenizer(self.path, self.config().eos_token_ids)

    def chat_template(self) -> str | None:
        path = self.path / "chat_template.jinja"
        if path.is_file():
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ModelLoadError(f"cannot read {path}: {error}") from error
        settings = self.path / "tokenizer_config.json"
        template = read_json(settings).get("chat_template") if settings.is_file() else None
        if isinstance(template, list):  # several by name
            by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = by_name.get("default")
        return template if isinstance(template, str) else None

    def generation_defaults(self) -> dict[str, Any]:
        """Greedy decoding (`do_sample: false`, which is also the file's default) is not taken over: a client that wants it says so."""
        settings = read_generation_config(self.path)
        return {name: settings[name] for name in _GENERATION_SETTINGS if isinstance(settings.get(name), int | float)}

    def weights(self, progress: Progress | None = None) -> Iterator[tuple[str, Weight | torch.Tensor]]:
        from engine.loader.safetensors_weights import read_weights

        for name, weight in read_weights(self.weight_files(), self.config(), progress):
            yield (f"model.{name}" if name.startswith(_BARE) else name), weight

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        try:
            digest.update((self.path / "config.json").read_bytes())
            for file in self.weight_files():
                with file.open("rb") as opened:
                    prefix = opened.read(8)
                header_bytes = 8 + struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
                digest.update(fingerprint_file(file, min(header_bytes, file.stat().st_size)).encode())
        except OSError as error:
            raise ModelLoadError(f"cannot read the model in {self.path}: {error}") from error
        return digest.hexdigest()[:16]

    def weight_files(self) -> list[Path]:
        """The safetensors files, one or several. Raises ModelLoadError when there is none or one of them is missing."""
        index = self.path / INDEX_FILE
        if index.is_file():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise ModelLoadError(f"{index} has no weight_map: download it again")
            names = sorted({str(name) for name in weight_map.values()})
            if unsafe := [name for name in names if Path(name).name != name]:
                raise ModelLoadError(f"{index} names {unsafe[0]!r}, which is not a file of its own directory")
            missing = [name for name in names if not (self.path / name).is_file()]
            if missing:
                raise ModelLoadError(f"{self.path} lacks {len(missing)} of its {len(names)} files of weights: {', '.join(missing[:3])}")
            return [self.path / name for name in names]
        if (self.path / SINGLE_FILE).is_file():
            return [self.path / SINGLE_FILE]
        if any(self.path.glob("*.bin")) or any(self.path.glob("*.pth")):
            raise ModelLoadError(
                f"{self.path} has its weights only as a pickle checkpoint, which could run any code when it is read: "
                "use a revision with safetensors, or a GGUF file"
            )
        raise ModelLoadError(f"{self.path} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}")
