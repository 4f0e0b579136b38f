"""The same model for programs that cannot read a GGUF: a Hugging Face directory in the user's cache, weights dequantised to float32."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from engine.loader.model_source import ModelSource
from engine.loader.resolve import resolve_model
from kernels.weights import Weight

CACHE = Path.home() / ".cache" / "octavo" / "loadtest"


def hugging_face_directory(source: ModelSource) -> Path:
    """What transformers and vLLM can load: the model's own directory, or one that is written at first use."""
    directory = tokenizer_directory(source)
    if not any(directory.glob("*.safetensors")):
        _write_weights(source, directory)
    return directory


def tokenizer_directory(source: ModelSource) -> Path:
    """The same without weights, unless they are there already. Raises SystemExit when transformers lacks what it reads GGUF files with."""
    if source.path.is_dir():
        return source.path
    directory = CACHE / f"{source.path.stem}-{source.fingerprint()}"
    if not (directory / "tokenizer.json").exists():
        if find_spec("gguf") is None:
            raise SystemExit("transformers reads GGUF files with the package gguf: `pip install -c constraints.txt gguf`")
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name).save_pretrained(directory)
    return directory


def _write_weights(source: ModelSource, directory: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source.path.parent, gguf_file=source.path.name, dtype=torch.float32)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = {name: weight.dequantize() if isinstance(weight, Weight) else weight for name, weight in source.weights()}
    missing, unknown = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    if unknown or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"transformers' model has other weights than {source.path}: {missing=}, {unknown=}")
    model.save_pretrained(directory)


if __name__ == "__main__":
    print(hugging_face_directory(resolve_model(*sys.argv[1:2] or [None])))
