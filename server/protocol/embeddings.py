"""The bodies of POST /v1/embeddings, /v1/score and /v1/rerank."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator

from engine.pooling_params import PoolingParams
from server.protocol.body import RequestBody
from server.protocol.prompts import Prompt, PromptForms, as_prompts

MAX_INPUTS = 2048  # OpenAI's limit
_Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class PooledBody(RequestBody):
    """What bodies that ask for embeddings, or for what is made of them, have in common."""

    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    add_special_tokens: bool = True
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: _Int32 = 0
    user: str | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None

    @property
    def end_user(self) -> str | None:
        return self.user


def _as_inputs(value: Any) -> list[Prompt]:
    inputs = as_prompts(value, MAX_INPUTS)
    if "" in inputs:
        raise ValueError("must not hold an empty string")
    return inputs


class EmbeddingRequest(PooledBody):
    """Texts, and in which form their embeddings are wanted."""

    token_lists: ClassVar[tuple[str, ...]] = ("input",)

    input: Annotated[list[Prompt], PlainValidator(_as_inputs, json_schema_input_type=PromptForms)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    normalize: bool = True

    def pooling_params(self) -> PoolingParams:
        """Raises InvalidRequestError for dimensions that no model has."""
        return PoolingParams(dimensions=self.dimensions, normalize=self.normalize)


def _as_texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("must be a string or a list of strings, none of them empty")
    if len(texts) > MAX_INPUTS:
        raise ValueError(f"must hold at most {MAX_INPUTS} texts")
    return texts


_Texts = Annotated[list[str], PlainValidator(_as_texts, json_schema_input_type=str | list[str])]


class ScoreRequest(PooledBody):
    """One text against each of several, or pairs of texts, in vLLM's shape."""

    text_1: _Texts
    text_2: _Texts


def _as_documents(value: Any) -> list[str]:
    """Strings, or objects with a text, as Cohere and Jina have them."""
    if not isinstance(value, list):
        raise ValueError("must be a list of strings, or of objects with a text")
    return _as_texts([item["text"] if isinstance(item, dict) and set(item) == {"text"} else item for item in value])


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


class RerankRequest(PooledBody):
    """A query, and the documents to be put in order, in the shape of Jina and Cohere."""

    query: Annotated[str, AfterValidator(_not_empty)]
    documents: Annotated[list[str], PlainValidator(_as_documents, json_schema_input_type=list[str | dict[str, str]])]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True
