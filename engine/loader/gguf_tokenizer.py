"""A tokenizer from the vocabulary that a GGUF file carries in its metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from engine.errors import ModelLoadError
from engine.loader.gguf_file import GgufFile
from engine.tokenizer import Tokenizer

# Values of tokenizer.ggml.token_type
CONTROL, USER_DEFINED = 3, 4

# How text is cut before merging, by tokenizer.ggml.pre: the regular expressions of the models' own tokenizer.json.
_LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3_SPLIT),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _QWEN2_SPLIT),
    "tekken": _TEKKEN_SPLIT,
}
_GPT2_STYLE = ("default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "roberta-bpe")
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
# These look a whole word up in the vocabulary before merging, and begin every text with BOS unless the file says otherwise.
_WHOLE_WORDS_FIRST = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")

# What ends a turn in well-known chat formats, beside the one EOS that the file names.
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>")


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises ModelLoadError for a kind that is not supported, or metadata that contradict themselves."""
    kind = file.metadata.get("tokenizer.ggml.model")
    tokens = _list_of(file, "tokens", str)
    if tokens is None or kind is None:
        raise ModelLoadError(f"{file.path} carries no tokenizer: convert the model again together with its tokenizer")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise ModelLoadError(f"{file.path} is damaged: {len(tokens) - len(vocab)} tokens of its vocabulary occur twice")
    special = {
        f"{name}_token": _token_at(file, tokens, key)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    try:
        if kind == "gpt2":
            backend, adds_bos = _byte_level(file, vocab)
        elif kind == "llama":
            backend, adds_bos = _sentencepiece(file, tokens, vocab), True
        else:
            raise ModelLoadError(f"{file.path} has a tokenizer of kind {kind!r}; supported are 'gpt2' and 'llama'")
        _add_special_tokens(file, backend, tokens)
        _add_post_processor(file, backend, special, vocab, adds_bos)
        return Tokenizer(backend, special, eos_token_ids(file, tokens))
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise ModelLoadError(f"{file.path}: its tokenizer cannot be built: {error}") from error


def bos_token_id(file: GgufFile) -> int | None:
    return _id_at(file, len(_list_of(file, "tokens", str) or []), "bos")


def eos_token_ids(file: GgufFile, tokens: Sequence[str] | None = None) -> tuple[int, ...]:
    """The ids of all tokens that end a sequence, the file's own EOS first."""
    tokens = _list_of(file, "tokens", str) or [] if tokens is None else tokens
    types = _list_of(file, "token_type", int) or []
    named = [_id_at(file, len(tokens), key) for key in ("eos", "eot", "eom")]
    known = set(_END_TOKENS)
    control = [index for index, kind in enumerate(types) if kind == CONTROL and index < len(tokens) and tokens[index] in known]
    return tuple(dict.fromkeys(index for index in [*named, *control] if index is not None))


def _byte_level(file: GgufFile, vocab: dict[str, int]) -> tuple[Backend, bool]:
    """Byte-pair encoding over GPT-2's alphabet of bytes, and whether texts begin with BOS by default."""
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    merges = _list_of(file, "merges", str)
    if merges is None:
        raise ModelLoadError(f"{file.path} has a byte-level vocabulary without merges: convert the model again")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = Backend(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in _SPLITS)
    if pre in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    elif pre in _DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif pre in _GPT2_STYLE:
        backend.pre_tokenizer = byte_level
    else:
        supported = ", ".join(sorted((*_SPLITS, *_GPT2_STYLE, *_DIGITS_APART)))
        raise ModelLoadError(f"{file.path} cuts text by the rules {pre!r}, which are not supported; supported are {supported}")
    if pre in ("qwen2", "deepseek-r1-qwen"):
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend, pre in _WHOLE_WORDS_FIRST


def _sentencepiece(file: GgufFile, tokens: list[str], vocab: dict[str, int]) -> Backend:
    """Byte-pair encoding over characters, bytes where a character is unknown, as SentencePiece does it."""
    merges = _list_of(file, "merges", str)
    scores = _list_of(file, "scores", float)
    if merges is not None:
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    elif scores is not None and len(scores) == len(tokens):
        pairs = _merges_by_score(tokens, scores, vocab)
    else:
        raise ModelLoadError(f"{file.path} has a SentencePiece vocabulary without scores: convert the model again")
    unknown = _token_at(file, tokens, "unknown")
    backend = Backend(models.BPE(vocab=vocab, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    with_space = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if with_space else "never", split=False)
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if with_space else steps)
    return backend


def _merges_by_score(tokens: list[str], scores: list[float], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """The order in which SentencePiece joins neighbours: the pair that makes the token of the highest score first."""
    found = []
    for token, score in zip(tokens, scores, strict=True):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token)) if token[:cut] in vocab and token[cut:] in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found += [(score, len(left), len(right), left, right) for left, right in pairs]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in found]


def _add_special_tokens(file: GgufFile, backend: Backend, tokens: list[str]) -> None:
    """Control tokens are recognised whole in a text and skipped on request; user-defined ones are only recognised."""
    types = _list_of(file, "token_type", int) or []
    marked = list(zip(tokens, types, strict=False))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, kind in marked if kind == CONTROL and token])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token, kind in marked if kind == USER_DEFINED and token])


def _add_post_processor(file: GgufFile, backend: Backend, special: dict[str, str | None], vocab: dict[str, int], adds_bos: bool) -> None:
    """Put BOS before and EOS after a text where the file says so."""
    pieces = ["$A"]
    bos, eos = special["bos_token"], special["eos_token"]
    used: list[dict[str, Any]] = []  # under names of our own: the library gives a meaning to some characters in a token's name
    if file.metadata.get("tokenizer.ggml.add_bos_token", adds_bos) and bos is not None:
        pieces.insert(0, "BOS")
        used.append({"id": "BOS", "ids": [vocab[bos]], "tokens": [bos]})
    if file.metadata.get("tokenizer.ggml.add_eos_token", False) and eos is not None:
        pieces.append("EOS")
        used.append({"id": "EOS", "ids": [vocab[eos]], "tokens": [eos]})
    if used:
        backend.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=used)


def _list_of(file: GgufFile, key: str, kind: type) -> list[Any] | None:
    """A list of the tokenizer's metadata; None if there is none. Raises ModelLoadError when it holds something else."""
    values = file.metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
        raise ModelLoadError(f"{file.path} is damaged: tokenizer.ggml.{key} is not a list of {kind.__name__}")
    return values


def _id_at(file: GgufFile, num_tokens: int, name: str) -> int | None:
    index = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return index if isinstance(index, int) and 0 <= index < num_tokens else None


def _token_at(file: GgufFile, tokens: list[str], name: str) -> str | None:
    index = _id_at(file, len(tokens), name)
    return None if index is None else tokens[index]
