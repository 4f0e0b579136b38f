"""The fates of the parameters of /v1/embeddings, /v1/score and /v1/rerank."""

from __future__ import annotations

from server.protocol.fate import by_name, implemented, refused

_TIMEOUT = "seconds until the request, waiting or running, ends with 408; left out: `--request-timeout`"
_POOLED = (
    implemented("truncate_prompt_tokens", "keep the last k tokens of each text; -1: as many as fit", extra=True),
    implemented("add_special_tokens", extra=True),
    implemented("cache_salt", "texts share cached prefixes only with texts of the same salt", extra=True),
    implemented("priority", "lower runs earlier; 0 by default", extra=True),
    implemented("timeout", _TIMEOUT, extra=True),
    refused("truncation_side", "texts keep their end", "left", extra=True),
)
_MODEL = "one of `GET /v1/models`; left out: the server's model"
_USER = "whose turn the request takes with `--scheduling-policy fair`; left out: the API key's"

EMBEDDINGS = by_name(
    (
        *_POOLED,
        implemented("model", _MODEL),
        implemented("input", "a string, token ids, or up to 2048 of either; none may be empty"),
        implemented("encoding_format", "`float` or `base64`"),
        implemented("dimensions", "1 to the model's size: the leading ones, brought to length 1 again"),
        implemented("user", _USER),
        implemented("normalize", "true: vectors have length 1", extra=True),
        refused("messages", "send their text as `input`", extra=True),
        refused("embed_dtype", "embeddings are float32", "float32", extra=True),
    )
)

SCORE = by_name(
    (
        *_POOLED,
        implemented("model", _MODEL, extra=True),
        implemented("text_1", "one text, which is scored against each of `text_2`, or as many", extra=True),
        implemented("text_2", "up to 2048 texts", extra=True),
        implemented("user", _USER, extra=True),
    )
)

RERANK = by_name(
    (
        *_POOLED,
        implemented("model", _MODEL, extra=True),
        implemented("query", extra=True),
        implemented("documents", "up to 2048 texts, or objects of a `text`", extra=True),
        implemented("top_n", "return the best n; left out: all", extra=True),
        implemented("return_documents", "true: each result holds its document", extra=True),
        implemented("user", _USER, extra=True),
        refused("max_chunks_per_doc", "documents are not cut into chunks", 1, extra=True),
        refused("max_tokens_per_doc", "use truncate_prompt_tokens, which keeps the end", extra=True),
        refused("rank_fields", "documents are texts", ["text"], extra=True),
    )
)
