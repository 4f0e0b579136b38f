"""Prompts and answers in the log, for operators who ask for them with --log-requests. Nothing else logs what clients say."""

from __future__ import annotations

from collections import defaultdict

from engine.outputs import RequestOutput
from engine.tokenizer import Tokenizer
from server.observability.logs import logger

LONGEST_TEXT = 4000  # characters that are logged of a prompt, and of each answer
_LONGEST_PROMPT = 4000  # tokens of it that are made into text


class Transcript:
    """One prompt, logged when it comes, and its answers, logged when they end."""

    def __init__(self, request_id: str, tokenizer: Tokenizer, prompt_token_ids: list[int]) -> None:
        self._request_id = request_id
        self._answers: defaultdict[int, str] = defaultdict(str)
        self._log("prompt", tokenizer.decode(prompt_token_ids[:_LONGEST_PROMPT]))

    def add(self, output: RequestOutput) -> None:
        for sequence in output.outputs:
            if len(self._answers[sequence.index]) <= LONGEST_TEXT:
                self._answers[sequence.index] += sequence.text

    def end(self) -> None:
        for index, text in sorted(self._answers.items()):
            self._log(f"answer {index}", text)

    def _log(self, what: str, text: str) -> None:
        shown = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " ..."
        logger.info("%s of %s", what, self._request_id, extra={"fields": {"text": shown}})
