"""The fate of every request parameter: one table, from which the server validates and docs/parameters.md is written.

`python -m server.protocol.fates > docs/parameters.md` renews the page.
"""

from __future__ import annotations

from server.limits import LIMITS, MAX_STOP_STRINGS
from server.protocol.fate import Parameter
from server.protocol.fate import accepted as _accepted
from server.protocol.fate import by_name as _by_name
from server.protocol.fate import implemented as _implemented
from server.protocol.fate import refused as _refused
from server.protocol.fates_batches import BATCHES
from server.protocol.fates_embeddings import EMBEDDINGS, RERANK, SCORE
from server.protocol.fates_messages import COUNT_TOKENS, MESSAGES
from server.protocol.fates_responses import INPUT_TOKENS, RESPONSES

_OLD_NAME = "use `structured_outputs`"
_SEE = "[structured-outputs.md](structured-outputs.md)"
_FORMATS = f"`text`, `json_object`, `json_schema` (enforced, `strict` or not), `structural_tag`: {_SEE}"

_NO_AUDIO = "the model neither hears nor speaks"

_SAMPLING = (
    _implemented("model", "one of `GET /v1/models`; left out: the server's model"),
    _implemented("n", "1 to 128"),
    _implemented("max_tokens", "left out: to the end of the context (completions: 16, or fewer if no more fit)"),
    _implemented("temperature", "0 is greedy; at most 100"),
    _implemented("top_p"),
    _implemented("seed", "64 bits, signed or not; the answer then depends on nothing else that runs"),
    _implemented("stop", f"a string or up to {MAX_STOP_STRINGS} of them"),
    _implemented("stream"),
    _implemented("stream_options", "`include_usage`, `continuous_usage_stats`; `include_obfuscation` has no effect"),
    _implemented("logprobs"),
    _implemented(
        "user",
        "whose turn the request takes with `--scheduling-policy fair`, unless it has a key of `--api-keys-file`, whose turn it takes then",
    ),
    _implemented("frequency_penalty", "-2 to 2"),
    _implemented("presence_penalty", "-2 to 2"),
    _implemented("logit_bias", "-100 to 100 for each of up to 1024 token ids"),
    _implemented("top_k", "0 or -1 keeps all", extra=True),
    _implemented("min_p", extra=True),
    _implemented("stop_token_ids", extra=True),
    _implemented("min_tokens", extra=True),
    _implemented("ignore_eos", extra=True),
    _implemented("prompt_logprobs", "not with `stream`", extra=True),
    _implemented("skip_special_tokens", extra=True),
    _implemented("include_stop_str_in_output", extra=True),
    _implemented("truncate_prompt_tokens", "keep the last k tokens of the prompt; -1: as many as fit", extra=True),
    _implemented("add_special_tokens", extra=True),
    _implemented("cache_salt", "prompts share cached prefixes only with prompts of the same salt", extra=True),
    _implemented("priority", "lower runs earlier; 0 by default", extra=True),
    _implemented("timeout", "seconds until the request, waiting or running, ends with 408; left out: `--request-timeout`", extra=True),
    _implemented("return_token_ids", extra=True),
    _implemented("use_beam_search", "the `n` most probable answers, found with `n` beams; not with `stream` or `stop`", extra=True),
    _implemented(
        "length_penalty", "beam search: answers score their log probability / their length to this power; 1 by default", extra=True
    ),
    _implemented("early_stopping", "beam search: true, false (the default) or `never`, as in Hugging Face's `generate`", extra=True),
    _implemented("repetition_penalty", "0.01 to 100; 1 changes nothing. Tokens of the prompt count too", extra=True),
    _implemented(
        "repetition_detection",
        "`{max_pattern_size, min_pattern_size, min_count}`: end an answer whose newest tokens are one pattern `min_count` times in a row, "
        "with `stop_reason: repetition_detected`",
        extra=True,
    ),
    _implemented("bad_words", "up to 256 texts that are not generated, at the start of a word or within one", extra=True),
    _implemented("allowed_token_ids", "no other tokens are generated", extra=True),
    _implemented(
        "logits_processors",
        "names, or `{qualname, kwargs}`, of those that the server was started with (`--logits-processors`): docs/logits-processors.md",
        extra=True,
    ),
    _refused("spaces_between_special_tokens", "special tokens are joined as the tokenizer does", True, extra=True),
    _refused("return_tokens_as_token_ids", "use return_token_ids", False, extra=True),
    _implemented(
        "structured_outputs",
        f"one of `json`, `json_object`, `regex`, `choice`, `grammar`, `structural_tag`: {_SEE}",
        extra=True,
    ),
    _refused("guided_json", _OLD_NAME, extra=True),
    _refused("guided_regex", _OLD_NAME, extra=True),
    _refused("guided_choice", _OLD_NAME, extra=True),
    _refused("guided_grammar", _OLD_NAME, extra=True),
)

CHAT = _by_name(
    (
        *_SAMPLING,
        _implemented(
            "messages",
            "text parts only; `developer` is `system` unless the template knows it; fields that are known neither here nor to the template "
            "are refused unless empty",
        ),
        _implemented("max_completion_tokens", "the same as `max_tokens`"),
        _implemented("top_logprobs", "0 to 20, with `logprobs`"),
        _accepted("metadata", "bookkeeping"),
        _implemented("safety_identifier", "the same as `user`"),
        _accepted("prompt_cache_key", "the prefix cache needs no hint"),
        _accepted("prompt_cache_options", "the prefix cache needs no hint"),
        _accepted("prompt_cache_retention", "the prefix cache needs no hint"),
        _accepted("prediction", "a hint for speed, which changes no answer"),
        _refused("service_tier", "there is one tier, which is `default`", "auto", "default"),
        _refused("store", "nothing is stored", False),
        _refused("audio", _NO_AUDIO),
        _refused("modalities", _NO_AUDIO, ["text"]),
        _refused("moderation", "there is no moderation"),
        _refused("web_search_options", "there is no web search"),
        _implemented(
            "reasoning_effort",
            "handed to the template, which may heed it; `none` turns reasoning off where the template can; others are refused unless the "
            "model reasons",
        ),
        _refused("verbosity", "the model has no such control", "medium"),
        _implemented("response_format", _FORMATS),
        _implemented("tools", "functions, see [tools.md](tools.md); `custom` tools are refused"),
        _implemented("tool_choice", "`none`, `auto`, `required`, a named function, `allowed_tools`"),
        _implemented("parallel_tool_calls", "false: no more than one call"),
        _refused("functions", "OpenAI replaced it: use `tools`", []),
        _refused("function_call", "OpenAI replaced it: use `tool_choice`", "none", "auto"),
        _implemented("add_generation_prompt", "true unless `continue_final_message`", extra=True),
        _implemented("continue_final_message", "go on writing the last message", extra=True),
        _implemented("chat_template_kwargs", "variables for the chat template", extra=True),
        _implemented("chat_template", "only with `--trust-request-chat-template`, and else refused", extra=True),
        _refused("documents", "the template is given no documents", [], extra=True),
        _refused("echo", "only completions echo their prompt", False, extra=True),
        _implemented("include_reasoning", "false: reasoning is generated and counted, but not sent", extra=True),
        _implemented("thinking_token_budget", "tokens of reasoning after which its end is forced", extra=True),
    )
)

COMPLETIONS = _by_name(
    (
        *_SAMPLING,
        _implemented("prompt", "a string, a list of strings, token ids, or a list of lists of them"),
        _implemented("echo"),
        _implemented("best_of", "`n` to 128: of so many, the `n` with the highest mean log probability per token; not with `stream`"),
        _refused("suffix", "the model has no template to fill in the middle", ""),
        _implemented("response_format", _FORMATS, extra=True),
    )
)

TOKENIZE = _by_name(
    (
        _implemented("model", "one of `GET /v1/models`", extra=True),
        _implemented("prompt", "text; or `messages`", extra=True),
        _implemented("messages", "chat messages; or `prompt`", extra=True),
        _implemented("add_special_tokens", "true for a prompt, false for messages", extra=True),
        _implemented("add_generation_prompt", extra=True),
        _implemented("continue_final_message", extra=True),
        _implemented("chat_template_kwargs", extra=True),
        _implemented("return_token_strs", extra=True),
        _implemented("chat_template", "only with `--trust-request-chat-template`, and else refused", extra=True),
        _implemented("tools", "as in chat completions", extra=True),
    )
)

DETOKENIZE = _by_name((_implemented("model", "one of `GET /v1/models`", extra=True), _implemented("tokens", "token ids", extra=True)))

ENDPOINTS = {
    "POST /v1/chat/completions": CHAT,
    "POST /v1/completions": COMPLETIONS,
    "POST /v1/responses": RESPONSES,
    "POST /v1/responses/input_tokens": INPUT_TOKENS,
    "POST /v1/messages": MESSAGES,
    "POST /v1/messages/count_tokens": COUNT_TOKENS,
    "POST /v1/embeddings": EMBEDDINGS,
    "POST /v1/score": SCORE,
    "POST /v1/rerank": RERANK,
    "POST /v1/batches": BATCHES,
    "POST /tokenize": TOKENIZE,
    "POST /detokenize": DETOKENIZE,
}


def page() -> str:
    """docs/parameters.md."""
    lines = [
        "# Request parameters",
        "",
        "Every parameter of the types of the `openai` package, for `/v1/messages` of the `anthropic` package, and those that",
        "self-hosted servers have added (marked \\*; send them at the top level of the body, `extra_body` in the SDKs), has one of",
        "three fates. None is dropped silently: what would change the answer is refused with 400, `code: unsupported_parameter` and",
        "`param` naming it. `null` is the same as leaving a parameter out. Unknown parameters are refused too, unless the server runs",
        "with `--allow-unknown-parameters`.",
        "",
        "What changes the choice of a token applies in this order: `repetition_penalty`, `frequency_penalty`, `presence_penalty`;",
        "`logit_bias`; `allowed_token_ids`; `bad_words`; `min_tokens` (no token that ends the answer); `response_format` and",
        "`structured_outputs`; then `temperature`, `min_p`, `top_k`, `top_p`, each on what the one before left; then one draw. Log",
        "probabilities are of the model's own distribution, before all of these. Should a request's own settings leave no token at all, it",
        "ends with a server error that says so.",
        "",
        "This page is written by `python -m server.protocol.fates > docs/parameters.md`; a test holds it to the code.",
    ]
    for endpoint, table in ENDPOINTS.items():
        lines += ["", f"## `{endpoint}`", "", "| parameter | fate | |", "| --- | --- | --- |"]
        lines += [_row(parameter) for parameter in table.values()]
    lines += ["", "## Limits", "", "What goes beyond is answered with 400.", "", *(f"- {line}" for line in LIMITS)]
    return "\n".join(lines) + "\n"


def _row(parameter: Parameter) -> str:
    import msgspec

    fate = parameter.fate.value
    if parameter.neutral:
        fate += " unless " + " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in parameter.neutral)
    star = " \\*" if parameter.extra else ""
    return f"| `{parameter.name}`{star} | {fate} | {parameter.note} |"


if __name__ == "__main__":
    print(page(), end="")
